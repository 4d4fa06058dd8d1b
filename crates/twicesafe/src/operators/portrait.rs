//! What an intent looks like in a list: a row for people, an object for programs.

use serde_json::{Value, json};
use twicesafe_ledger::{ExternalId, Record, Stored, Timestamp};

use super::next;
use crate::output::time;

/// Scope and key; what is left of them once they were forgotten.
pub(super) fn scope_and_key(stored: &Stored) -> [String; 2] {
    match &stored.record.name {
        Some(name) => [name.scope.to_string(), name.key.to_string()],
        None => ["(forgotten)".to_owned(), stored.id.to_string()],
    }
}

/// The status, with what must not be overlooked beside it.
pub(super) fn status(record: &Record) -> String {
    match (record.tombstone, record.doubt) {
        (true, _) => format!("{}, purged", record.status),
        (false, true) if record.status != twicesafe_ledger::Status::Review => {
            format!("{}, in doubt", record.status)
        }
        _ => record.status.to_string(),
    }
}

/// What was made, in the destination's own words.
pub(super) fn external_id(record: &Record) -> Option<&str> {
    record.answer.as_ref()?.external_id.as_ref().map(ExternalId::as_str)
}

/// Work and step in one word.
pub(super) fn work(record: &Record) -> String {
    record.step.as_ref().map_or_else(String::new, |step| format!("{} / {}", step.work(), step.step()))
}

/// An intent for programs.
pub(super) fn as_json(stored: &Stored, now: Timestamp) -> Value {
    let record = &stored.record;
    let at = |at: Option<Timestamp>| at.map(time);
    json!({
        "intent": stored.id.number(),
        "scope": record.name.as_ref().map(|name| name.scope.as_str()),
        "key": record.name.as_ref().map(|name| name.key.as_str()),
        "status": record.status.as_str(),
        "doubt": record.doubt,
        "tombstone": record.tombstone,
        "generation": record.generation,
        "attempts": record.tries,
        "external_id": external_id(record),
        "work": record.step.as_ref().map(|step| step.work()),
        "step": record.step.as_ref().map(|step| step.step()),
        "lane": record.place.as_ref().map(|place| place.lane.as_str()),
        "version": record.place.as_ref().and_then(|place| place.version),
        "requested_by": record.requested_by.as_str(),
        "created_at": time(record.created_at),
        "due_at": at(record.due_at),
        "settled_at": at(record.settled_at),
        "next_step": next::step(stored, now),
    })
}
