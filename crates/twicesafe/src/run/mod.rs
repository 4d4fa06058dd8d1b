//! `twicesafe run`: a whole command as one effect.

mod alive;
mod captured;
pub(crate) mod child;
mod each;
mod effect;
pub(crate) mod nursery;
mod progress;

use std::ffi::OsString;
use std::io::{self, IsTerminal, Read, Write};
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use clap::{Args, ValueEnum};
use rustix::process::Signal;
use tokio::signal::unix::{SignalKind, signal};
use twicesafe_core::Code;
use twicesafe_ledger::{Error, Given, Ledger, Recovery, Refusal, Source};

use crate::failure::{Failure, exit_status_of};
use crate::output::{parse_span, say};
use crate::{Common, place};
use captured::Captured;
use child::Current;
use effect::{Effect, Last};

/// Most that is read from stdin for a fingerprint.
const STDIN_BYTES_MAX: u64 = 64 << 20;
/// How long a record that is being written is waited for when somebody wants this to end.
const LAST_RECORD: Duration = Duration::from_secs(1);

/// Runs a command once, whoever starts it again.
///
/// The whole command is ONE effect: if it is cut in the middle, Twicesafe knows that it may have acted, and not how far it
/// came. A command that sends ten e-mails should be ten runs (see --each).
///
/// The command's own end says what happened: exit status 0 means that it happened; 75 that certainly nothing was done (try
/// again); 65 that the destination refused; anything else, or death by a signal, that nobody knows. What it writes and its
/// exit status are kept and given again. It finds TWICESAFE_KEY, TWICESAFE_ATTEMPT, TWICESAFE_DOUBT and
/// TWICESAFE_DESTINATION_KEY (for destinations that deduplicate themselves) in its environment.
///
/// Exit status: the command's own, now or as it was the first time; 118 it was run, and what came of it could not be recorded:
/// do not do it by hand, run the same line again; 119 undone or no longer kept; 120 under way or not due
/// yet; 121 in review; 122 waits for approval; 123 rejected; 124 the key was used for another command; 125 the ledger cannot
/// be used, nothing was run.
#[derive(Args)]
pub(crate) struct Run {
    /// What is being done, where and for whom, e.g. billing/invoice.send.
    #[arg(long)]
    scope: String,
    /// The stable name of this intent: the same on every retry. Never the time of the run, a random id or the output of
    /// an AI.
    #[arg(long, required_unless_present = "each", conflicts_with = "each")]
    key: Option<String>,
    /// One intent a line of FILE (JSON lines; - is stdin): the command gets the line on its stdin.
    #[arg(long, value_name = "FILE", requires = "key_field")]
    each: Option<String>,
    /// The field of a line that is its key.
    #[arg(long, value_name = "FIELD", requires = "each")]
    key_field: Option<String>,
    /// How many lines at once.
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    parallel: u16,
    /// What may be done when nobody knows whether it happened.
    #[arg(long, value_enum, default_value_t = Class::Person)]
    recovery: Class,
    /// A shell command that asks the destination: exits 0 and prints the external id if it happened, 1 if it did not;
    /// anything else is no answer.
    #[arg(long, value_name = "CMD")]
    lookup: Option<String>,
    /// How long the destination remembers keys (native-key).
    #[arg(long, value_name = "SPAN", value_parser = parse_span)]
    key_retention: Option<Duration>,
    /// How long what happened may stay invisible to the lookup.
    #[arg(long, value_name = "SPAN", value_parser = parse_span, default_value = "5s")]
    lag: Duration,
    /// How long after the command ended something of it can still arrive.
    #[arg(long, value_name = "SPAN", value_parser = parse_span, default_value = "60s")]
    in_flight_max: Duration,
    /// What must be the same under the same key: the command, the command and its stdin, or nothing but the key.
    #[arg(long, value_enum, default_value_t = Same::Command)]
    fingerprint: Same,
    /// How long the permit is good for without a heartbeat.
    #[arg(long, value_name = "SPAN", value_parser = parse_span, default_value = "60s")]
    lease: Duration,
    /// How long to wait for another run of the same, a lane or a retry.
    #[arg(long, value_name = "SPAN", value_parser = parse_span, default_value = "25s")]
    wait: Duration,
    /// Attempts in one round.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    attempts: u32,
    /// How long what it said is kept.
    #[arg(long, value_name = "SPAN", value_parser = parse_span, default_value = "30d")]
    retention: Duration,
    /// The unit of work this is a step of.
    #[arg(long, value_name = "ID", requires = "step")]
    work: Option<String>,
    /// The step.
    #[arg(long, value_name = "NAME", requires = "work")]
    step: Option<String>,
    /// The shared entity this touches: one intent at a time.
    #[arg(long, value_name = "ENTITY")]
    lane: Option<String>,
    /// The version of the entity this writes; an older one than was applied is superseded.
    #[arg(long, value_name = "N", requires = "lane")]
    version: Option<i64>,
    /// A person must say yes first.
    #[arg(long)]
    approve: bool,
    /// Exit statuses that mean: certainly nothing was done.
    #[arg(long, value_name = "CODES", value_delimiter = ',', default_value = "75")]
    not_sent: Vec<u8>,
    /// Exit statuses that mean: the destination refused.
    #[arg(long, value_name = "CODES", value_delimiter = ',', default_value = "65")]
    refused: Vec<u8>,
    /// The command and its arguments.
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Recovery classes.
#[derive(Clone, Copy, ValueEnum)]
enum Class {
    /// Doing it again is harmless.
    Repeat,
    /// The destination deduplicates by TWICESAFE_DESTINATION_KEY.
    NativeKey,
    /// --lookup tells.
    Lookup,
    /// Only a person can tell.
    Person,
}

/// What must be the same under the same key.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Same {
    /// The command and its arguments.
    Command,
    /// Those, and what it reads on stdin.
    Stdin,
    /// Nothing else.
    Key,
}

/// Runs it; what is returned is the exit status.
pub(crate) async fn run(run: Run, common: &Common) -> Result<u8, Failure> {
    run.check()?;
    let ledger = place::open(common).await?;
    let status = run_in(run, &ledger, common).await;
    // What was prevented is counted without waiting for the disk, but nobody comes after this process. It was prevented all the
    // same if it cannot be counted.
    if ledger.store().has_unwritten_counts() {
        let _ = ledger.store().flush().await;
    }
    status
}

async fn run_in(run: Run, ledger: &Ledger, common: &Common) -> Result<u8, Failure> {
    if run.each.is_some() {
        return each::run(run, ledger, common.json).await;
    }
    let stdin = match run.fingerprint {
        Same::Stdin => Some(read_stdin()?),
        Same::Command | Same::Key => None,
    };
    let key = run.key.clone().unwrap_or_default();
    let effect = Effect { run: std::sync::Arc::new(run), key, stdin, shown: true };
    effect.point_out_key();
    let current = Current::default();
    let mut running = pin!(effect.run(ledger, &current));
    let ended = tokio::select! {
        ended = &mut running => Some(ended),
        () = interrupted(&current) => tokio::time::timeout(LAST_RECORD, running).await.ok(),
    };
    match (ended, current.stopped_by()) {
        (None | Some((Err(Error::Pending { .. }), _)), Some(signal)) => Ok(stopped(signal)),
        (Some((result, last)), _) => tell(ledger, &effect, result, last).await,
        (None, None) => unreachable!("only a signal ends a run before its end"),
    }
}

/// What is said and returned when a signal ended it before anything was decided: what a shell would say.
fn stopped(signal: Signal) -> u8 {
    let _ = writeln!(io::stderr(), "twicesafe: stopped by a signal; run the same line again to go on");
    128 + u8::try_from(signal.as_raw()).unwrap_or(0)
}

impl Run {
    /// What clap cannot check.
    fn check(&self) -> Result<(), Failure> {
        if matches!(self.recovery, Class::Lookup) && self.lookup.is_none() {
            return Err(Failure::Usage(
                "--recovery lookup needs --lookup CMD, a command that asks the destination".into(),
            ));
        }
        if self.not_sent.iter().chain(&self.refused).any(|code| *code == 0) {
            return Err(Failure::Usage("exit status 0 always means that it happened".into()));
        }
        Ok(())
    }

    fn recovery(&self) -> Recovery {
        let lookup_for = (self.in_flight_max + self.lag) * 2 + Duration::from_secs(3600);
        let lookup = twicesafe_ledger::Lookup { lag: self.lag, lookup_for };
        match self.recovery {
            Class::Repeat => Recovery::Repeat,
            Class::NativeKey => Recovery::NativeKey {
                retention: self.key_retention.unwrap_or(Recovery::NATIVE_RETENTION_UNKNOWN),
                lookup: self.lookup.is_some().then_some(lookup),
            },
            Class::Lookup => Recovery::Lookup(lookup),
            Class::Person => Recovery::Person,
        }
    }
}

fn read_stdin() -> Result<Bytes, Failure> {
    let mut bytes = Vec::new();
    let read = io::stdin().lock().take(STDIN_BYTES_MAX + 1).read_to_end(&mut bytes)? as u64;
    if read > STDIN_BYTES_MAX {
        let cause = format!("stdin has more than {STDIN_BYTES_MAX} bytes");
        return Err(Failure::coded(
            Code::InputTooLarge,
            cause,
            "Use --fingerprint command, or pass a file by name.",
        ));
    }
    Ok(bytes.into())
}

/// Passes signals on to the children, and lets no further one be started. Ends when there is none to pass it to.
async fn interrupted(current: &Current) {
    let listen = |kind| signal(kind).expect("this process may listen for signals");
    let (mut interrupt, mut terminate) = (listen(SignalKind::interrupt()), listen(SignalKind::terminate()));
    let (mut hang_up, mut quit) = (listen(SignalKind::hangup()), listen(SignalKind::quit()));
    let mut interrupts = 0;
    loop {
        let name = tokio::select! {
            _ = interrupt.recv() => Signal::INT,
            _ = terminate.recv() => Signal::TERM,
            _ = hang_up.recv() => Signal::HUP,
            _ = quit.recv() => Signal::QUIT,
        };
        current.stop(name);
        interrupts += u32::from(name == Signal::INT);
        let alive = if interrupts > 1 {
            let _ = writeln!(io::stderr(), "twicesafe: interrupted again: the command is killed");
            current.signal(Signal::KILL)
        } else if name == Signal::INT && io::stdin().is_terminal() {
            // The terminal has told the child too.
            current.signal(Signal::CONT)
        } else {
            current.signal(name)
        };
        if !alive {
            return;
        }
    }
}

/// Tells the user what came of it, and with which exit status.
async fn tell(
    ledger: &Ledger,
    effect: &Effect,
    result: Result<Given, Error>,
    last: Option<Last>,
) -> Result<u8, Failure> {
    let say = |words: &str| say(&format!("twicesafe: {words}"));
    match (result, last) {
        (Ok(given), last) => {
            let captured = Captured::from_given(&given);
            let id = given.answer.as_ref().and_then(|answer| answer.external_id.as_ref());
            let id = id.map(|id| format!(", as {}", id.as_str())).unwrap_or_default();
            match given.source {
                Source::Act if given.replayed => {
                    captured.replay()?;
                    say(&format!("{} was done before; this is what it said then", effect.key));
                }
                Source::Act => {}
                Source::Lookup => {
                    let who = if last.is_some() { "the command" } else { "an earlier run" };
                    say(&format!(
                        "{who} did not say whether it acted; the lookup found that it happened{id}"
                    ));
                }
                Source::Person => {
                    say(&format!("{} was done before: a person said that it happened{id}", effect.key));
                }
            }
            Ok(own(captured.status))
        }
        (Err(Error::Refused(given)), _) => {
            let captured = Captured::from_given(&given);
            if given.replayed {
                captured.replay()?;
                say("the destination refused before; this is what it said then");
            }
            Ok(own(captured.status))
        }
        (Err(Error::Ledger(Refusal::Superseded)), _) => {
            say("a newer version was already applied; nothing was run");
            Ok(0)
        }
        (Err(Error::Review), last) => {
            say(&effect.in_review(ledger, last.as_ref()).await);
            Ok(exit_status_of(Code::Review))
        }
        (Err(Error::Pending { .. }), Some(Last::NotStarted(why))) => Err(Failure::coded(
            Code::CommandNotStarted,
            why,
            "Nothing was done. Mend it and run the same line again.",
        )),
        (Err(Error::Pending { .. }), Some(Last::Exited(status))) if effect.run.means_not_sent(status) => {
            say("the command says that it did nothing; run it again with the same key");
            Ok(own(status))
        }
        (Err(error), _) => Err(error.into()),
    }
}

/// A command's own exit status; those with a meaning here are reported as 1 (S27).
fn own(status: i32) -> u8 {
    match u8::try_from(status) {
        Ok(118..=125) | Err(_) => 1,
        Ok(status) => status,
    }
}
