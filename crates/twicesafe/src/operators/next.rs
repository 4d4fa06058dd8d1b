//! What is safe to do next about an intent, in one line.

use twicesafe_ledger::{Name, Record, Status, Stored, Timestamp};

use crate::output::time;

/// What can be done next, in one line.
pub(super) fn step(stored: &Stored, now: Timestamp) -> String {
    let record = &stored.record;
    let Some(name) = &record.name else {
        return "Nothing: it was forgotten, and does not happen again.".to_owned();
    };
    let it = quoted(name);
    if record.tombstone {
        return format!(
            "Nothing: its answer is no longer kept, and it does not happen again. To do it afresh: twicesafe reset {it} --reason TEXT"
        );
    }
    match record.status {
        Status::Held => {
            format!("Say yes or no: twicesafe approve {it}, or twicesafe reject {it} --reason TEXT")
        }
        Status::Ready => ready(record, now),
        Status::Pending => pending(record, now),
        Status::Retryable => retryable(record, now),
        Status::Review => format!(
            "Look at the destination, then say what you found: twicesafe resolve {it} --happened | --did-not-happen | --give-up, with --reason TEXT"
        ),
        Status::Done => "Nothing: it is done. Running it again gives the first answer.".to_owned(),
        Status::Failed if record.doubt => format!(
            "Nothing: it was given up, and nobody knows whether it happened. After a look at the destination: twicesafe reset {it} --reason TEXT"
        ),
        Status::Failed => "Mend what the destination refused, then run it again.".to_owned(),
        Status::Rejected => format!(
            "Nothing: a person said no, or nobody said yes in time. If it should happen after all: twicesafe reset {it} --reason TEXT"
        ),
        Status::Superseded => "Nothing: a newer version is in place.".to_owned(),
        Status::Undone => {
            format!(
                "Nothing: it was done and then undone. To do it afresh: twicesafe reset {it} --reason TEXT"
            )
        }
    }
}

fn ready(record: &Record, now: Timestamp) -> String {
    match record.due_at.filter(|due_at| *due_at > now) {
        Some(due_at) => format!("Wait: it is due at {}. Nothing was sent.", time(due_at)),
        None if record.generation > 1 => {
            "Run it: nothing was sent since the fresh start, and the next caller acts.".to_owned()
        }
        None => "Run it: nothing was sent, and the next caller acts.".to_owned(),
    }
}

fn pending(record: &Record, now: Timestamp) -> String {
    match (&record.attempt, record.due_at.filter(|due_at| *due_at > now)) {
        (Some(attempt), _) => format!(
            "Wait: {} has leave to act until {}, or longer if it says that it is alive.",
            attempt.holder,
            time(attempt.lease_until)
        ),
        (None, Some(due_at)) => {
            format!("Wait: the destination will be asked whether it happened, after {}.", time(due_at))
        }
        (None, None) => {
            "Run it again with its lookup: the destination is asked first whether it happened.".to_owned()
        }
    }
}

fn retryable(record: &Record, now: Timestamp) -> String {
    let safe = match record.doubt {
        true => "it may have happened, and doing it again is harmless there",
        false => "it did not happen",
    };
    match record.due_at {
        Some(due_at) if due_at > now => format!("Run it again after {}: {safe}.", time(due_at)),
        Some(_) => format!("Run it again: {safe}."),
        None => format!("Mend the cause, then run it again: {safe}, and nobody tries again by himself."),
    }
}

/// Scope and key as a shell takes them.
pub(super) fn quoted(name: &Name) -> String {
    format!("{} {}", name.scope, shell(name.key.as_str()))
}

fn shell(text: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "._:@+=-/,%".contains(c);
    if text.chars().all(plain) && !text.starts_with('-') {
        text.to_owned()
    } else if text.starts_with('-') {
        format!("-- '{}'", text.replace('\'', r"'\''"))
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_suggested_can_be_pasted_into_a_shell() {
        assert_eq!(shell("order:10492"), "order:10492");
        assert_eq!(shell("ann's order; rm"), r"'ann'\''s order; rm'");
        assert_eq!(shell("--json"), "-- '--json'");
    }
}
