//! `twicesafe restored`: a ledger that lost its tail is told so (S43).

use std::io::Write;

use clap::Args;
use serde_json::json;
use twicesafe_ledger::Ledger;

use super::say;
use crate::failure::Failure;
use crate::output::{parse_time, print_json, time};

#[derive(Args)]
#[group(required = true, multiple = false)]
pub(crate) struct Restored {
    /// What was written after that time is lost: when the backup was made, 2026-11-15T08:00:00Z, or how long ago (2h).
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// What was lost is made up for: unknown keys are new again.
    #[arg(long)]
    end: bool,
}

pub(super) async fn run(
    ledger: &Ledger,
    asked: Restored,
    json: bool,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let store = ledger.store();
    let now = store.now().await?;
    let before = store.recovering_since().await?;
    let since = asked.since.map(|text| parse_time(&text, now)).transpose().map_err(Failure::Usage)?;
    if let Some(since) = since.filter(|since| *since > now) {
        return Err(Failure::Usage(format!(
            "{} has not come yet: --since is when the backup was made",
            time(since)
        )));
    }
    store.recover_since(since).await?;
    if json {
        let value = json!({ "recovering_since": since.map(time), "changed": before != since });
        return Ok(print_json(out, &value)?);
    }
    match since {
        Some(since) => {
            writeln!(out, "recovering since {}", time(since))?;
            say(
                "From now on a key that this ledger has not heard of may have been used after the backup was made:",
            );
            say(
                "it is looked up first where its destination can be asked, and left to a person (review) where it cannot.",
            );
            say("When no caller can come back with work from that time any more: twicesafe restored --end");
        }
        None if before.is_none() => {
            writeln!(out, "not recovering")?;
            say("Nothing changed: the ledger was not recovering.");
        }
        None => {
            writeln!(out, "not recovering")?;
            say(
                "A key that this ledger has not heard of is new again. What is in review stays there until somebody decides.",
            );
        }
    }
    Ok(())
}
