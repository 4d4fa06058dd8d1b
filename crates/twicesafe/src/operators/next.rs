//! What is safe to do next about an intent, in one line.

use twicesafe_ledger::{Name, Record, Status, Stored, Timestamp};

use crate::output::time;

/// Who sends what is ready.
const SENT_BY: &str =
    "A server that has the request sends it within seconds; otherwise run it: the next caller acts.";

/// What can be done next, in one line.
pub(super) fn step(stored: &Stored, now: Timestamp) -> String {
    let record = &stored.record;
    let Some(name) = &record.name else {
        return "Nothing: it was forgotten, and does not happen again.".to_owned();
    };
    let command = |verb, options| command(verb, name, options);
    let reset = || command("reset", "--reason TEXT");
    if record.is_tombstone() {
        return format!(
            "Nothing: its answer is no longer kept, and it does not happen again. To do it afresh: {}",
            reset()
        );
    }
    match record.status {
        Status::Held => {
            format!("Say yes or no: {}, or {}", command("approve", ""), command("reject", "--reason TEXT"))
        }
        Status::Ready => ready(record, now),
        Status::Pending => pending(record, now),
        Status::Retryable if record.doubt && record.is_stuck(now) => format!(
            "{} Or look at the destination, then say what you found: {}",
            retryable(record, now),
            command("resolve", "(--happened | --did-not-happen | --give-up) --reason TEXT")
        ),
        Status::Retryable => retryable(record, now),
        Status::Review => format!(
            "Look at the destination, then say what you found: {}",
            command("resolve", "(--happened | --did-not-happen | --give-up) --reason TEXT")
        ),
        Status::Done => "Nothing: it is done. Running it again gives the first answer.".to_owned(),
        Status::Failed if record.doubt => format!(
            "Nothing: it was given up, and nobody knows whether it happened. After a look at the destination: {}",
            reset()
        ),
        Status::Failed => "Mend what the destination refused, then run it again.".to_owned(),
        Status::Rejected => format!(
            "Nothing: a person said no, or nobody said yes in time. If it should happen after all: {}",
            reset()
        ),
        Status::Superseded => "Nothing: a newer version is in place.".to_owned(),
        Status::Undone => {
            format!("Nothing: it was done and then undone. To do it afresh: {}", reset())
        }
    }
}

fn ready(record: &Record, now: Timestamp) -> String {
    match record.due_at.filter(|due_at| *due_at > now) {
        Some(due_at) => format!("Wait: it is due at {}. Nothing was sent.", time(due_at)),
        None if record.generation > 1 => {
            format!("Nothing was sent since the fresh start. {SENT_BY}")
        }
        None => format!("Nothing was sent. {SENT_BY}"),
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

/// A command about an intent, as a shell takes it.
pub(crate) fn command(verb: &str, name: &Name, options: &str) -> String {
    let (scope, key) = (&name.scope, shell(name.key.as_str()));
    let looks_like_an_option = name.key.as_str().starts_with('-');
    let name = format!("{scope} {key}");
    let words = match looks_like_an_option {
        true => ["twicesafe", verb, options, "--", &name],
        false => ["twicesafe", verb, &name, options, ""],
    };
    words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

fn shell(text: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "._:@+=-/,%".contains(c);
    match text.chars().all(plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_suggested_can_be_pasted_into_a_shell() {
        let command = |key, options| command("reject", &Name::new("a/b", key).expect("valid"), options);
        assert_eq!(command("order:10492", ""), "twicesafe reject a/b order:10492");
        assert_eq!(
            command("ann's; rm", "--reason TEXT"),
            r"twicesafe reject a/b 'ann'\''s; rm' --reason TEXT"
        );
        assert_eq!(command("--json", "--reason TEXT"), "twicesafe reject --reason TEXT -- a/b --json");
        assert_eq!(command("--json", ""), "twicesafe reject -- a/b --json");
    }
}
