//! `twicesafe import`: fills an empty ledger with what `export` wrote, as a whole or not at all.

use std::io::{BufRead, Read, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;
use twicesafe_core::{Code, IntentId};
use twicesafe_ledger::{
    Count, Exported, Facts, Header, LaneState, LedgerSecret, Line, LineCodec, LineSeal, Totals,
};

use super::{bad_line, count, open, say, unreadable};
use crate::failure::Failure;
use crate::output::{print_json, time};
use crate::{Common, place};

/// Longest line. Bodies have at most 8 MiB and are written in hex; a line holds those of all generations of an intent.
const LINE_BYTES_MAX: u64 = 1 << 30;
/// Lines handed to the ledger at a time, and the bytes after which fewer are.
const BATCH_LINES_MAX: usize = 200;
const BATCH_BYTES_MAX: usize = 16 << 20;

const REMEDY: &str = "Export the ledger again: twicesafe export > FILE.";

#[derive(Args)]
pub(crate) struct Import {
    /// What `export` wrote; - for stdin.
    #[arg(value_name = "FILE")]
    file: String,
    /// The file with the secret of the ledger that was exported: `OLD.db.secret`. Otherwise that of the ledger that is filled, or what the
    /// export itself holds.
    #[arg(long, value_name = "FILE", conflicts_with = "unsealed")]
    secret: Option<PathBuf>,
    /// Takes an export as it is, whether it was changed or not. Its records are sealed anew.
    #[arg(long)]
    unsealed: bool,
}

pub(super) async fn run(asked: Import, common: &Common, out: &mut impl Write) -> Result<(), Failure> {
    let mut lines = Lines::new(open(&asked.file)?, LINE_BYTES_MAX);
    let facts = header(&mut lines)?;
    let ledger = place::open(common).await?;
    let seal = match &asked.secret {
        _ if asked.unsealed => None,
        Some(path) => Some(facts.line_seal(&secret_in(path)?).ok_or_else(other_secret)?),
        None => Some(ledger.store().line_seal_of(&facts).ok_or_else(other_secret)?),
    };
    lines.sealed_by(seal);
    let mut import = ledger.store().import(&facts).await?;
    let mut found = Totals::default();
    let mut reader = Parts { lines, codec: LineCodec::default(), facts: &facts, last: IntentId::new(0) };
    loop {
        let batch = reader.batch()?;
        found.intents += batch.intents.len() as u64;
        found.lanes += batch.lanes.len() as u64;
        found.counts += batch.counts.len() as u64;
        import.intents(batch.intents).await?;
        import.lanes(batch.lanes).await?;
        import.counts(batch.counts).await?;
        if let Some(said) = batch.end {
            reader.check_end(said, found)?;
            reader.check_seal()?;
            break;
        }
    }
    import.finish().await?;
    if common.json {
        let value = json!({ "intents": found.intents, "lanes": found.lanes, "counts": found.counts, "as_of": time(facts.at) });
        return Ok(print_json(out, &value)?);
    }
    writeln!(out, "intents  {}", found.intents)?;
    writeln!(out, "lanes    {}", found.lanes)?;
    let intents = count(found.intents, "intent", "intents");
    let at = time(facts.at);
    say(&format!("Imported {intents} as of {at}."));
    say(&format!("If the old ledger was used after that: twicesafe restored --since {at}"));
    Ok(())
}

fn header(lines: &mut Lines<impl BufRead>) -> Result<Facts, Failure> {
    let line = lines.next()?.ok_or_else(|| bad_line(1, "the file is empty", REMEDY))?;
    match Header::from_text(line).map_err(|error| bad_line(1, error, REMEDY))? {
        Header::Whole(facts) => Ok(facts),
        Header::Excerpt { scope, .. } => {
            let problem = format!(
                "this is an excerpt of the scope `{scope}`, to be read; only a whole ledger can be imported"
            );
            Err(bad_line(1, problem, "Export without --scope."))
        }
    }
}

/// Some of an export.
#[derive(Default)]
struct Batch {
    intents: Vec<Exported>,
    lanes: Vec<LaneState>,
    counts: Vec<Count>,
    end: Option<Totals>,
}

struct Parts<'a, R> {
    lines: Lines<R>,
    codec: LineCodec,
    facts: &'a Facts,
    last: IntentId,
}

impl<R: BufRead> Parts<'_, R> {
    fn batch(&mut self) -> Result<Batch, Failure> {
        let (mut batch, mut bytes) = (Batch::default(), 0);
        for _ in 0..BATCH_LINES_MAX {
            let number = self.lines.number + 1;
            let Some(text) = self.lines.next()? else {
                return Err(bad_line(number, "the file ends before its last line: it was cut short", REMEDY));
            };
            bytes += text.len();
            match self.codec.from_text(text).map_err(|error| bad_line(number, error, REMEDY))? {
                Line::Intent(intent) => {
                    intent.check(self.facts, self.last).map_err(|error| bad_line(number, error, REMEDY))?;
                    if !intent.stored.fits_seal && self.lines.seal.is_some() {
                        return Err(altered(number, "it is of a record that did not fit its seal"));
                    }
                    self.last = intent.stored.id;
                    batch.intents.push(*intent);
                }
                Line::Lane(lane) => batch.lanes.push(lane),
                Line::Count(count) => batch.counts.push(count),
                Line::End(totals) => {
                    batch.end = Some(totals);
                    break;
                }
                Line::Seal(_) => return Err(bad_line(number, "the seal comes too early", REMEDY)),
            }
            if bytes > BATCH_BYTES_MAX {
                break;
            }
        }
        Ok(batch)
    }

    /// Checks that the last line is the seal of those before it, and that nothing comes after it (S49).
    fn check_seal(&mut self) -> Result<(), Failure> {
        let seal = self.lines.seal.take();
        let number = self.lines.number + 1;
        let text = self.lines.next()?;
        let text = text.ok_or_else(|| {
            bad_line(number, "the file ends before its last line: it was cut short", REMEDY)
        })?;
        let line = self.codec.from_text(text).map_err(|error| bad_line(number, error, REMEDY))?;
        let Line::Seal(found) = line else {
            return Err(bad_line(number, "the seal should be here", REMEDY));
        };
        if seal.is_some_and(|seal| !seal.fits(&found)) {
            let problem = "the seal does not fit the lines: the file was changed, or is of a ledger with another secret";
            return Err(altered(number, problem));
        }
        match self.lines.next()? {
            Some(_) => Err(bad_line(number + 1, "something comes after the last line", REMEDY)),
            None => Ok(()),
        }
    }

    /// Whether everything was there that should be.
    fn check_end(&mut self, said: Totals, found: Totals) -> Result<(), Failure> {
        let number = self.lines.number;
        if said != found {
            let problem =
                format!("{} intents should be in the file, and {} are", said.intents, found.intents);
            return Err(bad_line(number, problem, REMEDY));
        }
        Ok(())
    }
}

fn altered(number: u64, problem: &str) -> Failure {
    let remedy = "Name the secret of the ledger that was exported with --secret FILE, or export it again.";
    Failure::coded(Code::RecordAltered, format!("line {number}: {problem}"), remedy)
}

fn other_secret() -> Failure {
    let problem = "the export is sealed with another secret, or with none";
    let remedy = "Name the secret of the ledger that was exported with --secret FILE, or say --unsealed if you know where the file has been.";
    Failure::coded(Code::RecordAltered, problem, remedy)
}

/// Reads the secret of another ledger.
fn secret_in(path: &Path) -> Result<LedgerSecret, Failure> {
    let text = twicesafe_server::config::Secret::from(&*format!("file:{}", path.display())).reveal()?;
    Ok(LedgerSecret::of(&text)?)
}

/// Lines of bounded length.
struct Lines<R> {
    input: R,
    bytes_max: u64,
    line: Vec<u8>,
    number: u64,
    /// What the lines are sealed with, if that is to be checked.
    seal: Option<LineSeal>,
}

impl<R: BufRead> Lines<R> {
    fn new(input: R, bytes_max: u64) -> Self {
        Self { input, bytes_max, line: Vec::new(), number: 0, seal: None }
    }

    /// Goes on to check the seal, of the line that was read last, too.
    fn sealed_by(&mut self, mut seal: Option<LineSeal>) {
        let line = String::from_utf8_lossy(&self.line);
        seal.iter_mut().for_each(|seal| seal.add(&line));
        self.seal = seal;
    }

    fn next(&mut self) -> Result<Option<&str>, Failure> {
        self.line.clear();
        let mut bounded = self.input.by_ref().take(self.bytes_max + 1);
        let bytes = bounded.read_until(b'\n', &mut self.line).map_err(|error| unreadable(&error))?;
        if bytes == 0 {
            return Ok(None);
        }
        self.number += 1;
        if self.line.last() == Some(&b'\n') {
            self.line.pop();
        } else if bytes as u64 > self.bytes_max {
            let problem = format!("it is longer than {} bytes", self.bytes_max);
            return Err(bad_line(self.number, problem, REMEDY));
        }
        let line = std::str::from_utf8(&self.line);
        let line = line.map_err(|_| bad_line(self.number, "it is not text", REMEDY))?;
        self.seal.iter_mut().for_each(|seal| seal.add(line));
        Ok(Some(line))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(input: &[u8], expected: &[Result<&str, &str>]) {
        let mut lines = Lines::new(input, 4);
        for expected in expected {
            match (lines.next(), expected) {
                (Ok(line), Ok(expected)) => assert_eq!(line, Some(*expected)),
                (Err(Failure::Coded { cause, .. }), Err(expected)) => assert_eq!(cause, *expected),
                (other, _) => panic!("{other:?}"),
            }
        }
        if expected.iter().all(Result::is_ok) {
            assert!(matches!(lines.next(), Ok(None)));
        }
    }

    #[test]
    fn lines_are_bounded_text() {
        check(b"", &[]);
        check(b"ab\ncd", &[Ok("ab"), Ok("cd")]);
        check(b"abcd\n", &[Ok("abcd")]);
        check(b"ab\nabcde\n", &[Ok("ab"), Err("line 2: it is longer than 4 bytes")]);
        check(b"ab\n\xff\n", &[Ok("ab"), Err("line 2: it is not text")]);
    }
}
