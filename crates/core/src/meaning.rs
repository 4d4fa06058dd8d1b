//! What an answer means by the number of its HTTP status: the one table for whoever acts over HTTP (S16-S19).

use std::time::Duration;

use crate::answer::{Answer, Counts, Outcome, reason};

/// How long a refusal is given again, unless somebody says otherwise (S18).
const REFUSAL_REPLAYED_FOR: Duration = Duration::from_secs(30);

/// What an answer means.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Meaning {
    /// It happened.
    Answered,
    /// The destination said no, and did nothing.
    Refused,
    /// It was certainly not taken; another try is safe.
    NotSent,
    /// It may or may not have happened.
    Unknown,
    /// It happened in part: a person looks.
    Partial,
    /// The caller must mend something first; counts as no attempt.
    PassedOn,
}

impl Meaning {
    /// What an HTTP status means by itself. A destination that deduplicates by key says with a 409 that the first one is still
    /// under way.
    pub fn of_http_status(status: u16, has_native_key: bool) -> Self {
        match status {
            207 => Self::Partial,
            200..=299 | 303 => Self::Answered,
            // These send the same write elsewhere: it was not done here.
            307 | 308 => Self::Refused,
            // Applications answer a form that they have taken with such a redirect, and others with the same one do nothing.
            300..=399 => Self::Unknown,
            401 | 403 | 407 => Self::PassedOn,
            425 | 429 => Self::NotSent,
            408 => Self::Unknown,
            409 if has_native_key => Self::Unknown,
            400..=499 => Self::Refused,
            _ => Self::Unknown,
        }
    }

    /// The outcome of an attempt that was answered with this status and meaning.
    pub fn outcome(self, status: u16, answer: Answer, retry_after: Option<Duration>) -> Outcome {
        let said = reason(&format!("it answered {status}"));
        match self {
            Self::Answered => Outcome::Answered(answer),
            Self::Refused => Outcome::Refused { answer, replay_for: replayed_for(status) },
            Self::NotSent => Outcome::NotSent { reason: said, retry_after, counts: Counts::AsAttempt },
            Self::PassedOn => Outcome::NotSent { reason: said, retry_after, counts: Counts::AsPassedOn },
            Self::Unknown => Outcome::Unknown { reason: said, retry_after, park: false },
            Self::Partial => {
                let reason = reason(&format!("{said}: it happened in part"));
                Outcome::Unknown { reason, retry_after: None, park: true }
            }
        }
    }
}

fn replayed_for(status: u16) -> Duration {
    match status {
        // Their causes get fixed without the request changing.
        402 | 404 | 409 | 423 | 424 => Duration::ZERO,
        _ => REFUSAL_REPLAYED_FOR,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s16_to_s19_statuses_mean_what_they_mean() {
        for (status, means) in [
            (200, Meaning::Answered),
            (201, Meaning::Answered),
            (204, Meaning::Answered),
            (207, Meaning::Partial),
            (300, Meaning::Unknown),
            (301, Meaning::Unknown),
            (302, Meaning::Unknown),
            (303, Meaning::Answered),
            (304, Meaning::Unknown),
            (307, Meaning::Refused),
            (308, Meaning::Refused),
            (400, Meaning::Refused),
            (401, Meaning::PassedOn),
            (402, Meaning::Refused),
            (403, Meaning::PassedOn),
            (404, Meaning::Refused),
            (407, Meaning::PassedOn),
            (408, Meaning::Unknown),
            (409, Meaning::Refused),
            (422, Meaning::Refused),
            (425, Meaning::NotSent),
            (429, Meaning::NotSent),
            (500, Meaning::Unknown),
            (502, Meaning::Unknown),
            (503, Meaning::Unknown),
            (504, Meaning::Unknown),
            (599, Meaning::Unknown),
            (100, Meaning::Unknown),
            (0, Meaning::Unknown),
        ] {
            assert_eq!(Meaning::of_http_status(status, false), means, "{status}");
        }
        assert_eq!(Meaning::of_http_status(409, true), Meaning::Unknown);
    }

    #[test]
    fn s18_refusals_are_given_again_for_a_short_time_only() {
        assert_eq!(replayed_for(400), REFUSAL_REPLAYED_FOR);
        for status in [402, 404, 409, 423, 424] {
            assert_eq!(replayed_for(status), Duration::ZERO);
        }
    }
}
