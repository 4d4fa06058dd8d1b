//! Seals: what the journal held at a time, in a form that can be kept elsewhere.
//!
//! The first line says how many intents and rows there were, and has a root hash over the lines that follow: one an
//! intent, in the order of numbers, with how many rows it had, the hash that ended them, and until when it is kept at
//! least. Chains only grow, so a seal need not be of one moment: each line stays true.

use std::io::{BufRead, Write};
use std::path::Path;

use serde_json::{Value, json};
use twicesafe_core::journal::Head;
use twicesafe_ledger::{Code, Filter, Ledger, Record, Timestamp};

use super::walk;
use crate::failure::Failure;
use crate::operators::{agreement, say};
use crate::output::{print_json, time};

const FORM: &str = "twicesafe journal seal 1";

/// A seal.
pub(super) struct Seal {
    pub(super) at: Timestamp,
    pub(super) lines: Vec<Line>,
}

/// What a seal says of one intent.
pub(super) struct Line {
    pub(super) intent: i64,
    pub(super) rows: u32,
    pub(super) head: Head,
    /// Purging cannot have removed it before.
    pub(super) kept_until: Timestamp,
}

pub(super) async fn run(ledger: &Ledger, out: &mut impl Write) -> Result<(), Failure> {
    let store = ledger.store();
    let at = store.now().await?;
    let mut lines = Vec::new();
    walk(store, &Filter::default(), "sealed", async |stored| {
        let (rows, head) = stored.journal_end();
        lines.push(Line {
            intent: stored.id.number(),
            rows,
            head,
            kept_until: kept_until(&stored.record, at),
        });
        Ok(())
    })
    .await?;
    lines.sort_by_key(|line| line.intent);
    let rows: u64 = lines.iter().map(|line| u64::from(line.rows)).sum();
    let header = json!({
        "form": FORM,
        "at": time(at),
        "at_ms": at.as_millis(),
        "intents": lines.len(),
        "rows": rows,
        "root": hex(&root(&lines)),
    });
    print_json(out, &header)?;
    for line in &lines {
        let value = json!({
            "intent": line.intent,
            "rows": line.rows,
            "head": hex(&line.head),
            "kept_until_ms": line.kept_until.as_millis(),
        });
        print_json(out, &value)?;
    }
    let how_many = agreement::count(lines.len() as u64, "intent", "intents");
    say(&format!(
        "Sealed {how_many} with {rows} rows. Keep it where who writes the ledger cannot change it."
    ));
    Ok(())
}

/// The earliest time at which purging can remove an intent: an open one settles later, and a new generation later still.
fn kept_until(record: &Record, now: Timestamp) -> Timestamp {
    let purged_at = || record.settled_at.unwrap_or(now) + record.policy.retention;
    record.entombed_at.unwrap_or_else(purged_at) + record.policy.tombstone
}

fn root(lines: &[Line]) -> Head {
    let mut hasher = blake3::Hasher::new_derive_key("twicesafe journal seal v1");
    for line in lines {
        hasher.update(&line.intent.to_be_bytes()).update(&line.rows.to_be_bytes()).update(&line.head);
        hasher.update(&line.kept_until.as_millis().to_be_bytes());
    }
    hasher.finalize().into()
}

fn hex(hash: &Head) -> String {
    blake3::Hash::from(*hash).to_hex().to_string()
}

impl Seal {
    /// Reads a seal and checks that it is whole.
    pub(super) fn read(path: &Path) -> Result<Self, Failure> {
        let bad = |what: String| {
            let cause = format!("{}: {what}", path.display());
            Failure::coded(
                Code::BadInputFile,
                cause,
                "Give a file that `twicesafe journal seal` printed, unchanged.",
            )
        };
        let file = std::fs::File::open(path).map_err(|error| bad(format!("cannot be read: {error}")))?;
        let mut values = std::io::BufReader::new(file).lines().enumerate().map(|(index, line)| {
            let line = line.map_err(|error| bad(format!("cannot be read: {error}")))?;
            serde_json::from_str::<Value>(&line).map_err(|_| bad(format!("line {} is not JSON", index + 1)))
        });
        let header = values.next().ok_or_else(|| bad("is empty".to_owned()))??;
        if header["form"] != FORM {
            return Err(bad(format!("does not start with the form `{FORM}`")));
        }
        let mut lines = Vec::new();
        for (value, number) in values.zip(2..) {
            lines.push(Line::of(&value?).ok_or_else(|| bad(format!("line {number} is not one of a seal")))?);
        }
        let at = header["at_ms"].as_i64().ok_or_else(|| bad("does not say when it was made".to_owned()))?;
        if header["root"] != hex(&root(&lines)) || header["intents"] != lines.len() {
            return Err(bad("was changed: its lines do not fit its root".to_owned()));
        }
        Ok(Self { at: Timestamp::from_millis(at), lines })
    }
}

impl Line {
    fn of(value: &Value) -> Option<Self> {
        Some(Self {
            intent: value["intent"].as_i64()?,
            rows: u32::try_from(value["rows"].as_u64()?).ok()?,
            head: blake3::Hash::from_hex(value["head"].as_str()?).ok()?.into(),
            kept_until: Timestamp::from_millis(value["kept_until_ms"].as_i64()?),
        })
    }
}
