//! What an exchange means: answered, refused, not sent or unknown (S16-S19, S23). A pure function of what was seen; a route's
//! table may know better than the status.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use twicesafe_ledger::{Answer, Meaning, Outcome};

use super::expression::{Expression, Sight};
use super::graphql;
use super::upstream::Failure;

/// A route's table.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    pub(crate) readings: Vec<Reading>,
    /// What a refusal means once an earlier attempt may have acted.
    pub(crate) after_doubt: BTreeMap<u16, Meaning>,
    pub(crate) refusal_replayed_for: Option<Duration>,
    /// The destination deduplicates by key: a 409 says that the first one is still under way.
    pub(crate) has_native_key: bool,
    /// The answers are those of GraphQL, which has a table of its own.
    pub(crate) speaks_graphql: bool,
}

/// One line of it.
#[derive(Clone, Debug)]
pub(crate) struct Reading {
    pub(crate) status: Option<u16>,
    pub(crate) when: Option<Expression>,
    pub(crate) means: Meaning,
}

/// An answer as it was seen.
pub(crate) struct Seen<'a> {
    pub(crate) status: u16,
    pub(crate) retry_after: Option<Duration>,
    /// Request and answer, as expressions see them.
    pub(crate) sight: Sight<'a>,
    /// Whether its body could be read: `when` tells nothing about one that could not.
    pub(crate) has_read_body: bool,
    /// An earlier attempt may have acted.
    pub(crate) in_doubt: bool,
}

impl Seen<'_> {
    /// The body, where it could be read.
    fn body(&self) -> Option<&Value> {
        self.sight.answer.filter(|_| self.has_read_body).and_then(|answer| answer.get("body"))
    }
}

impl Table {
    /// What an answer means.
    pub(crate) fn meaning(&self, seen: &Seen<'_>) -> Meaning {
        let by_status = Meaning::of_http_status(seen.status, self.has_native_key);
        let by_status = match self.speaks_graphql {
            false => by_status,
            true => graphql::meaning(seen.status, by_status, seen.body()),
        };
        let means = self.first_reading(seen, by_status).unwrap_or(by_status);
        let after_doubt = seen.in_doubt && means == Meaning::Refused;
        self.after_doubt.get(&seen.status).filter(|_| after_doubt).copied().unwrap_or(means)
    }

    fn first_reading(&self, seen: &Seen<'_>, by_status: Meaning) -> Option<Meaning> {
        let of_status = |reading: &&Reading| reading.status.is_none_or(|status| status == seen.status);
        self.readings.iter().filter(of_status).find_map(|reading| {
            let Some(when) = &reading.when else { return Some(reading.means) };
            // A reading about a field that the answer does not have does not fit. Where the body was not read nobody knows, and then
            // nothing is taken for a success that may be none, nor for something that did not happen.
            let is_told = seen.has_read_body || !when.speaks_of_bodies();
            let is_sure =
                |meaning| matches!(meaning, Meaning::Refused | Meaning::NotSent | Meaning::PassedOn);
            let matters = is_sure(reading.means) != is_sure(by_status)
                || (reading.means == Meaning::Answered) != (by_status == Meaning::Answered);
            match is_told {
                true => when.holds(&seen.sight).unwrap_or(false).then_some(reading.means),
                false => matters.then_some(Meaning::Unknown),
            }
        })
    }

    /// The outcome of an exchange that ended with an answer.
    pub(crate) fn outcome(&self, seen: &Seen<'_>, answer: Answer) -> Outcome {
        let mut outcome = self.meaning(seen).outcome(seen.status, answer, seen.retry_after);
        if let (Outcome::Refused { replay_for, .. }, Some(span)) = (&mut outcome, self.refusal_replayed_for) {
            *replay_for = span;
        }
        outcome
    }
}

/// The outcome of an exchange that ended without an answer.
pub(crate) fn of_failure(failure: &Failure) -> Outcome {
    match failure {
        Failure::NotSent(why) => Outcome::not_sent(why),
        Failure::Unknown(why) => Outcome::unknown(why),
    }
}

/// An answer as expressions see it.
pub(crate) fn answer_view(status: u16, headers: Value, body: Value) -> Value {
    super::sending::object([("status", status.into()), ("headers", headers), ("body", body)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::expression::OF_ANSWER;
    use serde_json::json;

    fn check(table: &Table, status: u16, body: Value, in_doubt: bool, expected: Meaning) {
        let answer = answer_view(status, json!({}), body);
        let sight = Sight { answer: Some(&answer), ..Sight::default() };
        let seen = Seen { status, retry_after: None, sight, has_read_body: true, in_doubt };
        assert_eq!(table.meaning(&seen), expected, "{status}");
    }

    #[test]
    fn s17_a_409_of_a_destination_that_knows_keys_is_unknown() {
        check(&Table::default(), 409, Value::Null, false, Meaning::Refused);
        let native = Table { has_native_key: true, ..Table::default() };
        check(&native, 409, Value::Null, false, Meaning::Unknown);
    }

    #[test]
    fn s19_a_table_knows_better_than_the_status() {
        let reading = |status, when: Option<&str>, means| Reading {
            status,
            when: when.map(|when| Expression::parse(when, OF_ANSWER).expect("it is right")),
            means,
        };
        let table = Table {
            readings: vec![
                reading(
                    Some(200),
                    Some("answer.body.ok == false && answer.body.error == 'ratelimited'"),
                    Meaning::NotSent,
                ),
                reading(Some(200), Some("answer.body.ok == false"), Meaning::Refused),
                reading(None, Some("size(answer.body.errors) > 0"), Meaning::Refused),
                reading(Some(503), None, Meaning::NotSent),
            ],
            after_doubt: BTreeMap::from([(404, Meaning::Answered)]),
            ..Table::default()
        };
        check(&table, 200, json!({ "ok": true }), false, Meaning::Answered);
        check(&table, 200, json!({ "ok": false, "error": "no" }), false, Meaning::Refused);
        check(&table, 200, json!({ "ok": false, "error": "ratelimited" }), false, Meaning::NotSent);
        check(&table, 200, json!({ "errors": [1] }), false, Meaning::Refused);
        check(&table, 200, json!("text"), false, Meaning::Answered);
        check(&table, 503, Value::Null, false, Meaning::NotSent);
        check(&table, 404, Value::Null, false, Meaning::Refused);
        check(&table, 404, Value::Null, true, Meaning::Answered);
    }

    #[test]
    fn s19_what_could_not_be_read_is_no_success() {
        let reading = |status, when: &str, means| Reading {
            status,
            when: Some(Expression::parse(when, OF_ANSWER).expect("it is right")),
            means,
        };
        let table = Table {
            readings: vec![
                reading(None, "answer.headers['x-state'] == 'late'", Meaning::NotSent),
                reading(None, "answer.body.ok == false", Meaning::Refused),
                reading(Some(400), "answer.body.code == 'exists'", Meaning::Answered),
            ],
            ..Table::default()
        };
        for (status, expected) in [
            (200, Meaning::Unknown),
            (400, Meaning::Unknown),
            (404, Meaning::Refused),
            (429, Meaning::NotSent),
        ] {
            let answer = answer_view(status, json!({}), Value::Null);
            let sight = Sight { answer: Some(&answer), ..Sight::default() };
            let seen = Seen { status, retry_after: None, sight, has_read_body: false, in_doubt: false };
            assert_eq!(table.meaning(&seen), expected, "{status}");
            let nothing = Table::default().meaning(&seen);
            assert_eq!(nothing, Meaning::of_http_status(status, false), "nothing asks for it");
        }
    }

    #[test]
    fn s18_a_route_says_how_long_refusals_are_given_again() {
        let replayed_for = |table: Table, status| {
            let sight = Sight::default();
            let seen = Seen { status, retry_after: None, sight, has_read_body: true, in_doubt: false };
            match table.outcome(&seen, Answer::default()) {
                Outcome::Refused { replay_for, .. } => replay_for,
                other => panic!("{other:?}"),
            }
        };
        let minute = Duration::from_secs(60);
        assert_eq!(replayed_for(Table::default(), 404), Duration::ZERO);
        let table = Table { refusal_replayed_for: Some(minute), ..Table::default() };
        assert_eq!(replayed_for(table, 404), minute);
    }
}
