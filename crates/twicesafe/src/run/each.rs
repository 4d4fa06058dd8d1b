//! `twicesafe run --each`: one intent a line. There is no finished marker for the whole: what was done is answered from the
//! ledger, so that the same command resumes where it was cut.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, Write};
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::task::JoinSet;
use twicesafe_core::Code;
use twicesafe_ledger::{Error, Ledger};

use super::captured::Captured;
use super::child::Current;
use super::effect::{Effect, Last};
use super::{Run, own};
use crate::failure::{Failure, exit_status_of};

/// Longest line.
const LINE_BYTES_MAX: usize = 16 << 20;
/// Lines between two looks at the progress.
const PROGRESS_EVERY: u64 = 50;

/// What came of a line: its key, the answer, and how the command ended if it was run.
type Line = (String, Result<twicesafe_ledger::Given, Error>, Option<Last>);

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

pub(super) async fn run(run: Run, ledger: &Ledger, as_json: bool) -> Result<u8, Failure> {
    let path = run.each.clone().unwrap_or_default();
    let field = run.key_field.clone().unwrap_or_default();
    let parallel = usize::from(run.parallel);
    let bad = |line: u64, why: &str| {
        let cause = format!("line {line} of {path}: {why}");
        Failure::coded(
            Code::BadInputFile,
            cause,
            "Mend the line and run the same command again; what was done stays done.",
        )
    };
    let mut lines: Box<dyn BufRead + Send> = if path == "-" {
        Box::new(BufReader::new(io::stdin()))
    } else {
        let file = File::open(&path).map_err(|error| {
            Failure::coded(
                Code::BadInputFile,
                format!("{path}: {error}"),
                "Name a file of JSON lines, or - for stdin.",
            )
        })?;
        Box::new(BufReader::new(file))
    };
    let run = Arc::new(run);
    let current = Current::default();
    let mut running: JoinSet<Line> = JoinSet::new();
    let mut summary = Summary::default();
    let mut number = 0;
    let mut failed = None;
    let mut line = Vec::new();
    let mut interrupted = std::pin::pin!(super::interrupted(&current));
    loop {
        line.clear();
        let read = io::Read::take(&mut lines, LINE_BYTES_MAX as u64 + 1).read_until(b'\n', &mut line)?;
        if read == 0 {
            break;
        }
        number += 1;
        if line.len() > LINE_BYTES_MAX {
            failed = Some(bad(number, "longer than 16 MiB"));
            break;
        }
        if line.trim_ascii().is_empty() {
            continue;
        }
        let key = match key_of(&line, &field) {
            Ok(key) => key,
            Err(why) => {
                failed = Some(bad(number, &why));
                break;
            }
        };
        while running.len() >= parallel {
            tokio::select! {
                Some(ended) = running.join_next() => summary.take(ended, &run, as_json)?,
                status = &mut interrupted => return Ok(status),
            }
            summary.show_progress();
        }
        let effect =
            Effect { run: run.clone(), key: key.clone(), stdin: Some(line.clone().into()), shown: false };
        let (ledger, current) = (ledger.clone(), current.clone());
        running.spawn(async move {
            let (result, last) = effect.run(&ledger, &current).await;
            (key, result, last)
        });
    }
    while !running.is_empty() {
        tokio::select! {
            Some(ended) = running.join_next() => summary.take(ended, &run, as_json)?,
            status = &mut interrupted => return Ok(status),
        }
    }
    summary.tell(as_json)?;
    failed.map_or(Ok(summary.status), Err)
}

/// The key of a line: text, or an exact integer (S2).
fn key_of(line: &[u8], field: &str) -> Result<String, String> {
    let value: Value = serde_json::from_slice(line).map_err(|error| format!("not JSON: {error}"))?;
    match value.get(field) {
        Some(Value::String(key)) if !key.is_empty() => Ok(key.clone()),
        Some(Value::Number(number)) if number.is_i64() || number.is_u64() => Ok(number.to_string()),
        Some(Value::Number(_)) => Err(format!("the field `{field}` is not an exact integer")),
        Some(Value::Null) | None => Err(format!("the field `{field}` is not there")),
        Some(_) => Err(format!("the field `{field}` is neither text nor an integer")),
    }
}

impl Summary {
    fn take(
        &mut self,
        ended: Result<Line, tokio::task::JoinError>,
        run: &Run,
        as_json: bool,
    ) -> Result<(), Failure> {
        let (key, result, last) = ended.map_err(|error| Failure::Output(io::Error::other(error)))?;
        let (word, status) = match &result {
            Ok(given) => {
                let captured = Captured::from_given(given);
                if as_json {
                    // One line an intent, below.
                } else if !given.replayed {
                    captured.replay()?;
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
            writeln!(io::stdout(), "{}", json!({ "key": key, "result": word, "code": code, "exit": exit }))?;
        } else if let Err(error) = &result {
            writeln!(io::stderr(), "twicesafe: {key}: {word} ({})", error.code())?;
        }
        if status != 0 && self.status == 0 {
            self.status = status;
        }
        Ok(())
    }

    fn total(&self) -> u64 {
        self.done + self.before + self.others.values().sum::<u64>()
    }

    fn show_progress(&self) {
        if io::stderr().is_terminal() && self.total().is_multiple_of(PROGRESS_EVERY) {
            let _ = write!(io::stderr(), "\r{} lines", self.total());
        }
    }

    fn tell(&self, as_json: bool) -> io::Result<()> {
        let mut stderr = io::stderr();
        if stderr.is_terminal() {
            write!(stderr, "\r")?;
        }
        let mut words = vec![format!("{} done now", self.done), format!("{} done before", self.before)];
        words.extend(self.others.iter().map(|(word, n)| format!("{n} {word}")));
        if as_json {
            return Ok(());
        }
        writeln!(stderr, "twicesafe: {} lines: {}", self.total(), words.join(", "))
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
        _ => "failed",
    }
}
