//! What an intent looks like in a list: a row for people, an object for programs.

use serde_json::{Value, json};
use twicesafe_ledger::{ExternalId, Record, Stored, Timestamp};
use twicesafe_server::wire::IntentView;

use super::next;

/// Scope and key; what is left of them once they were forgotten.
pub(super) fn scope_and_key(stored: &Stored) -> [String; 2] {
    match &stored.record.name {
        Some(name) => [name.scope.to_string(), name.key.to_string()],
        None => ["(forgotten)".to_owned(), stored.id.to_string()],
    }
}

/// The status, with what must not be overlooked beside it.
pub(super) fn status(record: &Record) -> String {
    match (record.is_tombstone(), record.doubt) {
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

/// An intent for programs: as in the API, with what can be done next.
pub(super) fn as_json(stored: &Stored, now: Timestamp) -> Value {
    let mut value = json!(IntentView::of(stored));
    value["next_step"] = json!(next::step(stored, now));
    value
}
