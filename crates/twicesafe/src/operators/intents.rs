//! `twicesafe intents`: what there is, newest first.

use std::io::Write;

use clap::Args;
use serde_json::json;
use twicesafe_ledger::{Cursor, Filter, Ledger, Status, Store, Timestamp};

use super::{portrait, say};
use crate::failure::Failure;
use crate::output::{Table, parse_time, print_json, time};

/// Numbers are given in the order of arrival, give or take the intents of transactions that overlap.
const OVERLAP_MAX: i64 = 1000;

#[derive(Args)]
pub(crate) struct Intents {
    /// Of this scope, or of all below it if it ends with a slash.
    #[arg(long)]
    scope: Option<String>,
    /// With this status: held, ready, pending, retryable, review, done, failed, rejected, superseded or undone.
    #[arg(long, value_parser = parse_status)]
    status: Option<Status>,
    /// Steps of this work.
    #[arg(long, value_name = "ID")]
    work: Option<String>,
    /// With this text in the key or in the external id.
    #[arg(long, value_name = "TEXT")]
    containing: Option<String>,
    /// First heard of at that time or later: 2026-11-15T08:00:00Z, 2026-11-15, or how long ago (2h).
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// First heard of before that time.
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
    /// At most that many.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=1000))]
    limit: u16,
    /// Goes on where an earlier list ended.
    #[arg(long, value_name = "CURSOR", value_parser = parse_cursor)]
    after: Option<Cursor>,
}

fn parse_status(text: &str) -> Result<Status, String> {
    let words = || Status::ALL.map(Status::as_str).join(", ");
    Status::from_word(text).ok_or_else(|| format!("a status is one of {}", words()))
}

fn parse_cursor(text: &str) -> Result<Cursor, String> {
    Cursor::from_text(text).ok_or_else(|| "a cursor is what an earlier list ended with".to_owned())
}

pub(super) async fn run(
    ledger: &Ledger,
    asked: Intents,
    json: bool,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let store = ledger.store();
    let now = store.now().await?;
    let moment = |text: &Option<String>| {
        text.as_ref().map(|text| parse_time(text, now)).transpose().map_err(Failure::Usage)
    };
    let filter = Filter {
        scope: asked.scope.clone(),
        status: asked.status,
        work: asked.work.clone(),
        containing: asked.containing.clone(),
        created_from: moment(&asked.since)?,
        created_before: moment(&asked.until)?,
    };
    // What stands in the agenda is listed by its own times, and there is little of it.
    let by_number = asked.work.is_none() && filter.status.is_none_or(|status| status == Status::Done);
    let after = match (asked.after, filter.created_before) {
        (None, Some(before)) if by_number => first_before(store, before).await?,
        (after, _) => after,
    };
    let page = store.list(&filter, after, usize::from(asked.limit)).await?;
    if json {
        for stored in &page.intents {
            print_json(out, &portrait::as_json(stored, now))?;
        }
        if let Some(next) = page.next {
            print_json(out, &json!({ "next_cursor": next.to_text() }))?;
        }
        return Ok(());
    }
    let mut table = Table::new(&["created", "scope", "key", "status", "external id", "work / step"]);
    for stored in &page.intents {
        let record = &stored.record;
        let [scope, key] = portrait::scope_and_key(stored);
        let external_id = portrait::external_id(record).unwrap_or_default().to_owned();
        let row = [time(record.created_at), scope, key, portrait::status(record), external_id];
        table.row(row.into_iter().chain([portrait::work(record)]).collect());
    }
    match (table.is_empty(), page.next) {
        (true, None) => say("No such intents."),
        (true, Some(_)) => say("None so far; there are more to look through."),
        (false, _) => table.print(out)?,
    }
    if let Some(next) = page.next {
        say(&format!("There are more: add --after {}", next.to_text()));
    }
    Ok(())
}

/// Where to start for what was first heard of before a time, without reading everything after it.
async fn first_before(store: &Store, before: Timestamp) -> Result<Option<Cursor>, Failure> {
    let all = Filter::default();
    let at_or_below = async |number: i64| -> Result<Option<(i64, Timestamp)>, Failure> {
        let page = store.list(&all, cursor(number + 1), 1).await?;
        Ok(page.intents.first().map(|stored| (stored.id.number(), stored.record.created_at)))
    };
    let Some((newest, _)) = at_or_below(i64::MAX - 1).await? else { return Ok(None) };
    let (mut older, mut newer) = (0, newest + 1);
    while newer - older > 1 {
        let middle = older + (newer - older) / 2;
        match at_or_below(middle).await? {
            Some((_, created_at)) if created_at >= before => newer = middle,
            _ => older = middle,
        }
    }
    Ok(cursor((older + 1).saturating_add(OVERLAP_MAX)))
}

/// The cursor behind the intent with that number.
fn cursor(number: i64) -> Option<Cursor> {
    Cursor::from_text(&format!("{:x}.{number:x}", i64::MAX))
}
