//! `twicesafe approvals` and `twicesafe review`: what waits for a person, oldest first.

use std::io::Write;

use serde_json::json;
use twicesafe_core::journal::Event;
use twicesafe_ledger::{Filter, JournalRow, Ledger, Status, Stored, Timestamp};

use super::{PAGE, agreement, next, portrait, say};
use crate::failure::Failure;
use crate::output::{Table, print_json, span, time};

/// Most intents of one status among which stuck ones are looked for.
const LOOKED_AT_MAX: usize = 100_000;

/// One intent that waits for a person.
struct Waiting {
    stored: Stored,
    since: Timestamp,
    why: String,
}

pub(super) async fn approvals(ledger: &Ledger, json: bool, out: &mut impl Write) -> Result<(), Failure> {
    let now = ledger.store().now().await?;
    let waiting = waiting(ledger, &[Status::Held], now).await?;
    if json {
        return print_all(&waiting, now, out);
    }
    let mut table =
        Table::new(&["waits for", "scope", "key", "asked by", "said yes", "until", "work / step"]);
    for Waiting { stored, since, .. } in &waiting {
        let record = &stored.record;
        let [scope, key] = portrait::scope_and_key(stored);
        let people = record.policy.approval.as_ref().map_or(1, |rule| rule.people);
        let said_yes = record.approval.as_ref().map_or(0, |approval| approval.approved_by.len());
        let until = record.approval.as_ref().map_or(Timestamp::NEVER, |approval| approval.expires_at);
        table.row(vec![
            span(now.since(*since)),
            scope,
            key,
            record.requested_by.to_string(),
            format!("{said_yes} of {people}"),
            time(until),
            portrait::work(record),
        ]);
    }
    finish(&table, &waiting, "approve", now, out)
}

pub(super) async fn review(ledger: &Ledger, json: bool, out: &mut impl Write) -> Result<(), Failure> {
    let now = ledger.store().now().await?;
    let waiting = waiting(ledger, &[Status::Review, Status::Retryable, Status::Ready], now).await?;
    if json {
        return print_all(&waiting, now, out);
    }
    let mut table = Table::new(&["waits for", "scope", "key", "asked by", "blocks lane", "why"]);
    for Waiting { stored, since, why } in &waiting {
        let [scope, key] = portrait::scope_and_key(stored);
        let blocks = blocked_lane(stored).unwrap_or_default().to_owned();
        let asked_by = stored.record.requested_by.to_string();
        table.row(vec![span(now.since(*since)), scope, key, asked_by, blocks, why.clone()]);
    }
    finish(&table, &waiting, "review", now, out)
}

/// All intents of these statuses that wait for a person, those that have waited longest first. There are as many as people let
/// there be.
async fn waiting(ledger: &Ledger, statuses: &[Status], now: Timestamp) -> Result<Vec<Waiting>, Failure> {
    // What time has ended does not wait for anybody any more.
    ledger.sweep().await?;
    let mut found = Vec::new();
    for status in statuses {
        waiting_in(ledger, *status, now, &mut found).await?;
    }
    found.sort_by_key(|waiting| (waiting.since, waiting.stored.id));
    Ok(found)
}

async fn waiting_in(
    ledger: &Ledger,
    status: Status,
    now: Timestamp,
    found: &mut Vec<Waiting>,
) -> Result<(), Failure> {
    let store = ledger.store();
    let filter = Filter { status: Some(status), ..Filter::default() };
    // Of what could still go on by itself, only what is stuck waits for a person (S47).
    let waits = |stored: &Stored| {
        matches!(status, Status::Held | Status::Review) || twicesafe_server::is_stuck(stored, now)
    };
    let (mut after, mut looked_at) = (None, 0);
    loop {
        let page = store.list(&filter, after, PAGE).await?;
        looked_at += page.intents.len();
        // What is the server's own waits for nobody here.
        let is_own = |stored: &Stored| {
            stored.record.name.as_ref().is_some_and(|name| twicesafe_server::is_reserved(name.scope.as_str()))
        };
        for stored in page.intents.into_iter().filter(|stored| !is_own(stored) && waits(stored)) {
            let journal = store.journal(stored.id).await?;
            let (since, why) = entered(&journal, status).unwrap_or((stored.record.created_at, String::new()));
            found.push(Waiting { stored, since, why });
        }
        after = page.next;
        if after.is_none() {
            break;
        }
        if looked_at >= LOOKED_AT_MAX && !matches!(status, Status::Held | Status::Review) {
            say(&format!("Of what is {status}, only {LOOKED_AT_MAX} intents were looked at."));
            break;
        }
    }
    Ok(())
}

/// When and why an intent came into the status it has now.
fn entered(journal: &[JournalRow], status: Status) -> Option<(Timestamp, String)> {
    let entry = JournalRow::entered(journal, status)?;
    let why = if entry.reason.is_empty() { entry.event.as_str() } else { &entry.reason };
    Some((entry.at, if entry.event == Event::Held { String::new() } else { why.to_owned() }))
}

/// The lane that waits until somebody has decided.
fn blocked_lane(stored: &Stored) -> Option<&str> {
    let record = &stored.record;
    let place = record.place.as_ref().filter(|_| record.holds_lane())?;
    Some(place.lane.as_str())
}

fn print_all(waiting: &[Waiting], now: Timestamp, out: &mut impl Write) -> Result<(), Failure> {
    for Waiting { stored, since, why } in waiting {
        let mut value = portrait::as_json(stored, now);
        value["waits_since"] = json!(time(*since));
        value["waits_for_ms"] = json!(u64::try_from(now.since(*since).as_millis()).unwrap_or(u64::MAX));
        match stored.record.status {
            Status::Held => {
                let approval = stored.record.approval.as_ref();
                value["expires_at"] = json!(approval.map(|approval| time(approval.expires_at)));
                value["people"] = json!(stored.record.policy.approval.as_ref().map(|rule| rule.people));
            }
            _ => {
                value["why"] = json!(why);
                value["blocks_lane"] = json!(blocked_lane(stored));
            }
        }
        print_json(out, &value)?;
    }
    Ok(())
}

fn finish(
    table: &Table,
    waiting: &[Waiting],
    what: &str,
    now: Timestamp,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let Some(first) = waiting.first() else {
        say(&format!("Nothing waits for a person to {what}."));
        return Ok(());
    };
    table.print(out)?;
    let how_many = agreement::count(waiting.len() as u64, "intent waits", "intents wait");
    say(&format!("{how_many} for a person. The oldest: {}", next::step(&first.stored, now)));
    Ok(())
}
