//! `twicesafe run --each`: one intent a line. There is no finished marker for the whole: what was done is answered from the
//! ledger, so that the same command resumes where it was cut.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::mpsc::Receiver;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use twicesafe_core::{Code, legible};
use twicesafe_ledger::{Error, Ledger};

use super::captured::Captured;
use super::child::Current;
use super::effect::{Effect, Last};
use super::progress::Progress;
use super::{LAST_RECORD, Run, own};
use crate::failure::{Failure, exit_status_of};

/// Longest line.
const LINE_BYTES_MAX: usize = 16 << 20;
/// Lines read before somebody has time for them.
const LINES_AHEAD: usize = 64;

/// What came of the lines so far.
#[derive(Default)]
struct Summary {
    done: u64,
    before: u64,
    /// What else, by code.
    others: BTreeMap<&'static str, u64>,
    /// The worst exit status: the first that is not a success.
    status: u8,
}

type Ending = (String, Result<twicesafe_ledger::Given, Error>, Option<Last>);

pub(super) async fn run(run: Run, ledger: &Ledger, as_json: bool) -> Result<u8, Failure> {
    let path = run.each.clone().unwrap_or_default();
    let field = run.key_field.clone().unwrap_or_default();
    let parallel = usize::from(run.parallel);
    let mut lines = Some(lines(&path)?);
    let run = Arc::new(run);
    let current = Current::with_nursery(&run.command);
    let mut running: JoinSet<Ending> = JoinSet::new();
    let mut summary = Summary::default();
    let mut progress = Progress::of(&path);
    let mut failed = None;
    let mut interrupted = std::pin::pin!(super::interrupted(&current));
    let mut deadline = None;
    while lines.is_some() || !running.is_empty() {
        tokio::select! {
            Some(ended) = running.join_next() => {
                summary.take(ended, &run, as_json, &mut progress)?;
                progress.show(summary.total());
            }
            line = next(&mut lines), if lines.is_some() && running.len() < parallel => match line {
                None => lines = None,
                Some(Line { number, text }) => match text.and_then(|text| Ok((key_of(&text, &field)?, text))) {
                    Ok((key, text)) => {
                        let effect = Effect { run: run.clone(), key, stdin: Some(text.into()), shown: false };
                        let (ledger, current) = (ledger.clone(), current.clone());
                        running.spawn(async move {
                            let (result, last) = effect.run(&ledger, &current).await;
                            (effect.key, result, last)
                        });
                    }
                    Err(why) => {
                        failed = Some(bad(format!("line {number} of {path}: {why}")));
                        lines = None;
                    }
                },
            },
            () = &mut interrupted, if deadline.is_none() => deadline = Some(Instant::now() + LAST_RECORD),
            () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => break,
        }
        if current.stopped_by().is_some() {
            lines = None;
        }
    }
    progress.clear();
    summary.tell(as_json)?;
    match (current.stopped_by(), failed) {
        (Some(signal), _) => Ok(super::stopped(signal)),
        (None, Some(failed)) => Err(failed),
        (None, None) => Ok(summary.status),
    }
}

fn bad(cause: String) -> Failure {
    let remedy = "Mend the line and run the same command again; what was done stays done.";
    Failure::coded(Code::BadInputFile, cause, remedy)
}

/// A line that is not empty, or why it cannot be read.
struct Line {
    number: u64,
    text: Result<Vec<u8>, String>,
}

async fn next(lines: &mut Option<Receiver<Line>>) -> Option<Line> {
    lines.as_mut()?.recv().await
}

/// The lines of a file, read in a thread of its own: whoever writes them may be slow, and leases have to be kept alive.
fn lines(path: &str) -> Result<Receiver<Line>, Failure> {
    let mut source: Box<dyn BufRead + Send> = if path == "-" {
        Box::new(BufReader::new(io::stdin()))
    } else {
        let file = File::open(path).map_err(|error| {
            let cause = format!("{path}: {error}");
            Failure::coded(Code::BadInputFile, cause, "Name a file of JSON lines, or - for stdin.")
        })?;
        Box::new(BufReader::new(file))
    };
    let (sender, receiver) = tokio::sync::mpsc::channel(LINES_AHEAD);
    std::thread::spawn(move || {
        for number in 1.. {
            let mut line = Vec::new();
            let read = io::Read::take(&mut source, LINE_BYTES_MAX as u64 + 1).read_until(b'\n', &mut line);
            let text = match read {
                Ok(0) => return,
                Ok(_) if line.len() > LINE_BYTES_MAX => Err("longer than 16 MiB".to_owned()),
                Ok(_) if line.trim_ascii().is_empty() => continue,
                Ok(_) => Ok(whole(line)),
                Err(error) => Err(error.to_string()),
            };
            let is_last = text.is_err();
            if sender.blocking_send(Line { number, text }).is_err() || is_last {
                return;
            }
        }
    });
    Ok(receiver)
}

/// A line with the same end everywhere, also where it is the last of its file: the end is no part of what is asked for.
fn whole(mut line: Vec<u8>) -> Vec<u8> {
    line.truncate(line.trim_ascii_end().len());
    line.push(b'\n');
    line
}

/// The key of a line: text, or an exact integer (S2).
fn key_of(line: &[u8], field: &str) -> Result<String, String> {
    let value: Value = serde_json::from_slice(line).map_err(|error| format!("not JSON: {error}"))?;
    match value.get(field) {
        Some(Value::String(key)) if key.is_empty() => Err(format!("the field `{field}` is empty")),
        Some(Value::String(key)) => Ok(key.clone()),
        Some(Value::Number(number)) if number.is_i64() || number.is_u64() => Ok(number.to_string()),
        Some(Value::Number(_)) => Err(format!("the field `{field}` is not an exact integer")),
        Some(Value::Null) | None => Err(format!("the field `{field}` is not there")),
        Some(_) => Err(format!("the field `{field}` is neither text nor an integer")),
    }
}

impl Summary {
    fn take(
        &mut self,
        ended: Result<Ending, tokio::task::JoinError>,
        run: &Run,
        as_json: bool,
        progress: &mut Progress,
    ) -> Result<(), Failure> {
        let (key, result, last) = ended.map_err(|error| Failure::Output(io::Error::other(error)))?;
        let (word, status) = match &result {
            Ok(given) => {
                let captured = Captured::from_given(given);
                if as_json {
                    // One line an intent, below.
                } else if !given.replayed && captured.said_something() {
                    progress.clear();
                    captured.replay()?;
                    progress.shown(&captured);
                }
                *if given.replayed { &mut self.before } else { &mut self.done } += 1;
                (if given.replayed { "done before" } else { "done" }, own(captured.status))
            }
            Err(error) => {
                let code = error.code();
                let (word, status) = match &last {
                    Some(Last::NotStarted(_)) => ("not started", exit_status_of(Code::CommandNotStarted)),
                    Some(Last::Exited(status)) if run.means_not_sent(*status) => ("not sent", own(*status)),
                    Some(Last::Exited(status)) if code == Code::Refused => ("refused", own(*status)),
                    _ => (word_of(code), exit_status_of(code)),
                };
                *self.others.entry(word).or_default() += 1;
                (word, status)
            }
        };
        if as_json {
            let code = result.as_ref().err().map(|error| error.code().as_str());
            let exit = match last {
                Some(Last::Exited(status)) => Some(status),
                _ => None,
            };
            progress.clear();
            writeln!(io::stdout(), "{}", json!({ "key": key, "result": word, "code": code, "exit": exit }))?;
        } else if let Err(error) = &result {
            progress.clear();
            writeln!(io::stderr(), "twicesafe: {}: {word} ({})", legible::line(&key), error.code())?;
        }
        if status != 0 && self.status == 0 {
            self.status = status;
        }
        Ok(())
    }

    fn total(&self) -> u64 {
        self.done + self.before + self.others.values().sum::<u64>()
    }

    fn tell(&self, as_json: bool) -> io::Result<()> {
        let mut words = vec![format!("{} done now", self.done), format!("{} done before", self.before)];
        words.extend(self.others.iter().map(|(word, n)| format!("{n} {word}")));
        if as_json {
            return Ok(());
        }
        writeln!(io::stderr(), "twicesafe: {} lines: {}", self.total(), words.join(", "))
    }
}

fn word_of(code: Code) -> &'static str {
    match code {
        Code::Pending => "under way or not due",
        Code::Review => "in review",
        Code::Held => "held",
        Code::Rejected => "rejected",
        Code::Mismatch => "mismatched",
        Code::Refused => "refused",
        Code::Superseded => "superseded",
        Code::Gone => "gone",
        Code::NotRecorded => "not recorded",
        _ => "failed",
    }
}
