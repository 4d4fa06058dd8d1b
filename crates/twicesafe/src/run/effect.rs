//! One command under one key: what is claimed, what is run, what its end means.

use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FileType;
use twicesafe_core::journal::Event;
use twicesafe_ledger::{
    Actor, Answer, ApprovalRule, Attempt, Error, Finding, Given, Intent, JournalRow, Key, Ledger, Name,
    OnReview, Policy, Trouble, VersionMeans,
};

use super::alive::Process;
use super::child::{Current, Ended, Prepared};
use super::{Run, Same};
use crate::operators::command;

/// Longest external id a lookup prints.
const EXTERNAL_ID_BYTES_MAX: usize = 255;
/// How the last command of this run ended, if one was run.
#[derive(Clone, Debug)]
pub(super) enum Last {
    Exited(i32),
    Killed(i32),
    NotStarted(String),
}

type LastShared = Arc<Mutex<Option<Last>>>;

/// One command under one key.
pub(super) struct Effect {
    pub(super) run: Arc<Run>,
    pub(super) key: String,
    pub(super) stdin: Option<Bytes>,
    pub(super) shown: bool,
}

impl Effect {
    /// Runs it, or finds out what came of it. Beside the answer: how the command ended, if it was run now.
    pub(super) async fn run(
        &self,
        ledger: &Ledger,
        current: &Current,
    ) -> (Result<Given, Error>, Option<Last>) {
        let last = LastShared::default();
        let result = match self.intent() {
            Ok(intent) if self.can_be_started_again() => {
                ledger.run_retrying(intent, self.act(ledger, current, &last)).await
            }
            Ok(intent) => ledger.run(intent, self.act(ledger, current, &last)).await,
            Err(error) => Err(error),
        };
        let last = last.lock().unwrap_or_else(PoisonError::into_inner).take();
        (result, last)
    }

    /// Whether a second attempt would read what the first one read. What came through a pipe and was not kept is gone.
    fn can_be_started_again(&self) -> bool {
        self.stdin.is_some() || nothing_to_read()
    }

    fn intent(&self) -> Result<Intent, Error> {
        let run = &self.run;
        let policy = Policy {
            lease: run.lease,
            act_max: run.lease.max(std::time::Duration::from_secs(7 * 86_400)),
            in_flight_max: run.in_flight_max,
            attempts_max: run.attempts,
            retention: run.retention,
            approval: run.approve.then(ApprovalRule::default),
            version_means: VersionMeans::Snapshot,
            on_review: OnReview::Block,
            ..Policy::new(run.recovery())
        };
        let mut intent =
            Intent::new(&run.scope, &self.key)?.input(self.input()).policy(policy).wait(run.wait);
        if let Some(me) = Process::here(std::process::id()) {
            intent = intent.holder(Actor::new(&me.to_string())?);
        }
        intent = intent.holder_lives(|holder| {
            Process::named_in(holder).and_then(|process| process.lives()) == Some(true)
        });
        if let (Some(work), Some(step)) = (&run.work, &run.step) {
            intent = intent.step(work, step)?;
        }
        if let Some(lane) = &run.lane {
            intent = intent.lane(lane, run.version)?;
        }
        if let Some(lookup) = &run.lookup {
            let (lookup, key, current) = (lookup.clone(), self.key.clone(), Current::default());
            intent =
                intent.lookup(move |attempt| look_up(lookup.clone(), key.clone(), attempt, current.clone()));
        }
        Ok(intent)
    }

    /// What must be the same under the same key: every word with its length.
    fn input(&self) -> Vec<u8> {
        let mut input = Vec::new();
        if self.run.fingerprint == Same::Key {
            return input;
        }
        for word in &self.run.command {
            input.extend_from_slice(&(word.len() as u64).to_be_bytes());
            input.extend_from_slice(word.as_bytes());
        }
        if let Some(stdin) = &self.stdin {
            input.extend_from_slice(stdin);
        }
        input
    }

    fn act(
        &self,
        ledger: &Ledger,
        current: &Current,
        last: &LastShared,
    ) -> impl Fn(Attempt) -> std::pin::Pin<Box<dyn Future<Output = Result<Answer, Trouble>> + Send>>
    + Clone
    + Send
    + Sync
    + 'static {
        let (ledger, current, last) = (ledger.clone(), current.clone(), last.clone());
        let (run, key, stdin, shown) = (self.run.clone(), self.key.clone(), self.stdin.clone(), self.shown);
        move |attempt| {
            let (ledger, current, last, run) = (ledger.clone(), current.clone(), last.clone(), run.clone());
            let prepared = Prepared {
                words: run.command.clone(),
                environment: environment(&key, &attempt),
                stdin: stdin.clone(),
                shown,
            };
            Box::pin(async move {
                attempt.check_send()?;
                let its_attempt = attempt.clone();
                let started = move |pid| async move {
                    // Should this fail, the runner itself is on record, and the child dies with it.
                    if let Some(Ok(child)) = Process::here(pid).map(|child| Actor::new(&child.to_string())) {
                        let _ = ledger.name_holder(&its_attempt, child).await;
                    }
                };
                let ended = prepared.run(&current, started).await?;
                *last.lock().unwrap_or_else(PoisonError::into_inner) = Some(match &ended {
                    Ended::Exited(captured) => Last::Exited(captured.status),
                    Ended::Killed(signal) => Last::Killed(*signal),
                    Ended::NotStarted(why) => Last::NotStarted(why.clone()),
                });
                meaning(&run, ended)
            })
        }
    }

    /// Says so where the key looks as if the next run had another one (S6).
    pub(super) fn point_out_key(&self) {
        if let Some(why) = Key::new(&self.key).ok().and_then(|key| key.suspicion()) {
            let _ = writeln!(
                io::stderr(),
                "twicesafe: TS0007: the key may differ on the next run: {why}. More: twicesafe explain TS0007"
            );
        }
    }

    /// What happened, what is known, and what the user can do.
    pub(super) async fn in_review(&self, ledger: &Ledger, last: Option<&Last>) -> String {
        let what = match last {
            Some(Last::Exited(status)) => {
                format!("the command ended with exit status {status}, which does not say whether it acted")
            }
            Some(Last::Killed(signal)) => {
                format!("the command was killed by signal {signal}; it may have acted before")
            }
            Some(Last::NotStarted(_)) | None => {
                format!("an earlier run may or may not have acted: {}", self.known_of_earlier(ledger).await)
            }
        };
        let about_it = |verb, options| match Name::new(&self.run.scope, &self.key) {
            Ok(name) => command(verb, &name, options),
            Err(_) => format!("twicesafe {verb} SCOPE KEY {options}"),
        };
        format!(
            "TS0016: {what}.\n  \
             It is in review and will not be run again by itself. Look at the destination, then say what happened:\n    \
             {}        it is done\n    {}  run it again\n    {}         leave it\n  More: {}",
            about_it("resolve", "--happened --reason TEXT"),
            about_it("resolve", "--did-not-happen --reason TEXT"),
            about_it("resolve", "--give-up --reason TEXT"),
            about_it("show", ""),
        )
    }

    /// What the journal says of how an earlier run ended.
    async fn known_of_earlier(&self, ledger: &Ledger) -> String {
        let unheard = || "nobody heard how it ended".to_owned();
        let Ok(name) = Name::new(&self.run.scope, &self.key) else { return unheard() };
        let Ok(Some(stored)) = ledger.store().find(&name).await else { return unheard() };
        let journal = ledger.store().journal(stored.id).await.unwrap_or_default();
        let ended = |row: &&JournalRow| matches!(row.entry.event, Event::Unknown | Event::Lapsed);
        match journal.iter().rev().find(ended) {
            Some(row) if row.entry.event == Event::Unknown => row.entry.reason.to_string(),
            _ => unheard(),
        }
    }
}

impl Run {
    pub(super) fn means_not_sent(&self, status: i32) -> bool {
        self.not_sent.iter().any(|code| i32::from(*code) == status)
    }

    fn means_refused(&self, status: i32) -> bool {
        self.refused.iter().any(|code| i32::from(*code) == status)
    }
}

/// What the end of a command means.
fn meaning(run: &Run, ended: Ended) -> Result<Answer, Trouble> {
    match ended {
        Ended::NotStarted(why) => Err(Trouble::not_sent(format!("TS0060: {why}")).passed_on()),
        Ended::Killed(signal) => Err(Trouble::unknown(format!("killed by signal {signal}"))),
        Ended::Exited(captured) => match captured.status {
            0 => Ok(captured.into_answer()),
            status if run.means_not_sent(status) => Err(Trouble::not_sent(format!("exit status {status}"))),
            status if run.means_refused(status) => Err(Trouble::refused(captured.into_answer())),
            status => Err(Trouble::unknown(format!("exit status {status}"))),
        },
    }
}

/// Whether stdin gives the same to whoever reads it next: a terminal, `/dev/null`, or a pipe that was closed empty, as
/// cron's is.
fn nothing_to_read() -> bool {
    let stdin = io::stdin();
    let Ok(stat) = rustix::fs::fstat(&stdin) else { return true };
    if FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice {
        return true;
    }
    let mut polled = [PollFd::new(&stdin, PollFlags::IN)];
    let asked = poll(&mut polled, Some(&Timespec::default()));
    let said = polled[0].revents();
    asked.is_ok() && said.contains(PollFlags::HUP) && !said.contains(PollFlags::IN)
}

fn environment(key: &str, attempt: &Attempt) -> Vec<(&'static str, String)> {
    vec![
        ("TWICESAFE_SCOPE", attempt.name().scope.to_string()),
        ("TWICESAFE_KEY", key.to_owned()),
        ("TWICESAFE_ATTEMPT", attempt.number().to_string()),
        ("TWICESAFE_DOUBT", u8::from(attempt.in_doubt()).to_string()),
        ("TWICESAFE_DESTINATION_KEY", attempt.destination_key()),
    ]
}

/// Asks the destination by a shell command.
async fn look_up(command: String, key: String, attempt: Attempt, current: Current) -> Finding {
    let silent = |reason: String| Finding::Silent { reason: reason.into() };
    let prepared = Prepared {
        words: ["/bin/sh", "-c", &command].map(Into::into).to_vec(),
        environment: environment(&key, &attempt),
        stdin: Some(Bytes::new()),
        shown: false,
    };
    match prepared.run(&current, |_| async {}).await {
        Ok(Ended::Exited(captured)) if captured.status == 0 => {
            let said = String::from_utf8_lossy(&captured.stdout.kept);
            let id = said.lines().next().unwrap_or_default();
            let id = &id[..id.floor_char_boundary(EXTERNAL_ID_BYTES_MAX)];
            Finding::Found(Answer::default().with_external_id(id))
        }
        Ok(Ended::Exited(captured)) if captured.status == 1 => Finding::NotFound,
        Ok(Ended::Exited(captured)) => {
            silent(format!("the lookup ended with exit status {}", captured.status))
        }
        Ok(Ended::Killed(signal)) => silent(format!("the lookup was killed by signal {signal}")),
        Ok(Ended::NotStarted(why)) => silent(why),
        Err(error) => silent(error.to_string()),
    }
}
