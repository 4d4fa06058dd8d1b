//! What an exchange means: answered, refused, not sent or unknown (S16-S19, S23). A pure function of what was seen; a route's
//! table may know better than the status.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use twicesafe_ledger::{Answer, Counts, Outcome};

use super::expression::{Expression, Sight};
use super::upstream::Failure;
use crate::config::destinations::Means;

/// How long a refusal is given again, unless a route says otherwise (S18).
const REFUSAL_REPLAYED_FOR: Duration = Duration::from_secs(30);

/// A route's table.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    pub(crate) readings: Vec<Reading>,
    /// What a refusal means once an earlier attempt may have acted.
    pub(crate) after_doubt: BTreeMap<u16, Means>,
    pub(crate) refusal_replayed_for: Option<Duration>,
    /// The destination deduplicates by key: a 409 says that the first one is still under way.
    pub(crate) has_native_key: bool,
}

/// One line of it.
#[derive(Clone, Debug)]
pub(crate) struct Reading {
    pub(crate) status: Option<u16>,
    pub(crate) when: Option<Expression>,
    pub(crate) means: Means,
}

/// An answer as it was seen.
pub(crate) struct Seen<'a> {
    pub(crate) status: u16,
    pub(crate) retry_after: Option<Duration>,
    /// Request and answer, as expressions see them.
    pub(crate) sight: Sight<'a>,
    /// An earlier attempt may have acted.
    pub(crate) in_doubt: bool,
}

impl Table {
    /// What an answer means.
    pub(crate) fn meaning(&self, seen: &Seen<'_>) -> Means {
        let means = self.first_reading(seen).unwrap_or_else(|| self.by_status(seen.status));
        let after_doubt = seen.in_doubt && means == Means::Refused;
        self.after_doubt.get(&seen.status).filter(|_| after_doubt).copied().unwrap_or(means)
    }

    fn first_reading(&self, seen: &Seen<'_>) -> Option<Means> {
        let fits = |reading: &&Reading| {
            // A reading about a field that the answer does not have does not fit.
            let holds = |when: &Expression| when.holds(&seen.sight).unwrap_or(false);
            reading.status.is_none_or(|status| status == seen.status)
                && reading.when.as_ref().is_none_or(holds)
        };
        self.readings.iter().find(fits).map(|reading| reading.means)
    }

    fn by_status(&self, status: u16) -> Means {
        match status {
            207 => Means::Partial,
            200..=299 | 303 => Means::Answered,
            300..=399 => Means::Refused,
            401 | 403 | 407 => Means::PassedOn,
            425 | 429 => Means::NotSent,
            408 => Means::Unknown,
            409 if self.has_native_key => Means::Unknown,
            400..=499 => Means::Refused,
            _ => Means::Unknown,
        }
    }

    /// The outcome of an exchange that ended with an answer.
    pub(crate) fn outcome(&self, seen: &Seen<'_>, answer: Answer) -> Outcome {
        let status = seen.status;
        let (retry_after, said) = (seen.retry_after, format!("it answered {status}"));
        match self.meaning(seen) {
            Means::Answered => Outcome::Answered(answer),
            Means::Refused => Outcome::Refused { answer, replay_for: self.replayed_for(status) },
            Means::NotSent => {
                Outcome::NotSent { reason: said.into(), retry_after, counts: Counts::AsAttempt }
            }
            Means::PassedOn => {
                Outcome::NotSent { reason: said.into(), retry_after, counts: Counts::AsPassedOn }
            }
            Means::Unknown => Outcome::Unknown { reason: said.into(), retry_after, park: false },
            Means::Partial => {
                let reason = format!("{said}: it happened in part").into();
                Outcome::Unknown { reason, retry_after: None, park: true }
            }
        }
    }

    fn replayed_for(&self, status: u16) -> Duration {
        match (self.refusal_replayed_for, status) {
            (Some(span), _) => span,
            // Their causes get fixed without the request changing.
            (None, 402 | 404 | 409 | 423 | 424) => Duration::ZERO,
            (None, _) => REFUSAL_REPLAYED_FOR,
        }
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

    fn check(table: &Table, status: u16, body: Value, in_doubt: bool, expected: Means) {
        let answer = answer_view(status, json!({}), body);
        let sight = Sight { answer: Some(&answer), ..Sight::default() };
        let seen = Seen { status, retry_after: None, sight, in_doubt };
        assert_eq!(table.meaning(&seen), expected, "{status}");
    }

    #[test]
    fn s16_to_s19_statuses_mean_what_they_mean() {
        let table = Table::default();
        for (status, means) in [
            (200, Means::Answered),
            (201, Means::Answered),
            (204, Means::Answered),
            (207, Means::Partial),
            (301, Means::Refused),
            (302, Means::Refused),
            (303, Means::Answered),
            (307, Means::Refused),
            (400, Means::Refused),
            (401, Means::PassedOn),
            (402, Means::Refused),
            (403, Means::PassedOn),
            (404, Means::Refused),
            (407, Means::PassedOn),
            (408, Means::Unknown),
            (409, Means::Refused),
            (422, Means::Refused),
            (425, Means::NotSent),
            (429, Means::NotSent),
            (500, Means::Unknown),
            (502, Means::Unknown),
            (503, Means::Unknown),
            (504, Means::Unknown),
            (599, Means::Unknown),
        ] {
            check(&table, status, Value::Null, false, means);
        }
        let native = Table { has_native_key: true, ..Table::default() };
        check(&native, 409, Value::Null, false, Means::Unknown);
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
                    Means::NotSent,
                ),
                reading(Some(200), Some("answer.body.ok == false"), Means::Refused),
                reading(None, Some("size(answer.body.errors) > 0"), Means::Refused),
                reading(Some(503), None, Means::NotSent),
            ],
            after_doubt: BTreeMap::from([(404, Means::Answered)]),
            ..Table::default()
        };
        check(&table, 200, json!({ "ok": true }), false, Means::Answered);
        check(&table, 200, json!({ "ok": false, "error": "no" }), false, Means::Refused);
        check(&table, 200, json!({ "ok": false, "error": "ratelimited" }), false, Means::NotSent);
        check(&table, 200, json!({ "errors": [1] }), false, Means::Refused);
        check(&table, 200, json!("text"), false, Means::Answered);
        check(&table, 503, Value::Null, false, Means::NotSent);
        check(&table, 404, Value::Null, false, Means::Refused);
        check(&table, 404, Value::Null, true, Means::Answered);
    }

    #[test]
    fn s18_refusals_are_given_again_for_a_short_time_only() {
        let table = Table::default();
        assert_eq!(table.replayed_for(400), REFUSAL_REPLAYED_FOR);
        for status in [402, 404, 409, 423, 424] {
            assert_eq!(table.replayed_for(status), Duration::ZERO);
        }
    }
}
