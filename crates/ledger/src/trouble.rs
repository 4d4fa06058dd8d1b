//! What an act says when there is no answer.

use std::fmt;
use std::time::Duration;

use twicesafe_core::{Answer, Counts, Finding, Outcome, Report};

/// What an act says when there is no answer.
///
/// Every error becomes trouble with `?`, and means that nobody knows whether it happened: after a timeout, a reset or a
/// crash that is the truth, and where it is not, a look at the destination is cheaper than a second invoice. Say
/// [`Trouble::not_sent`] or [`Trouble::refused`] where you are certain.
pub struct Trouble(pub(crate) Report);

impl Trouble {
    /// What an outcome without an answer says. For doors that tell them apart themselves.
    pub fn from_outcome(outcome: Outcome) -> Self {
        Self(Report::Act(outcome))
    }

    /// Nothing was sent: the act looked at the destination first, and it is there already. This is what was seen of it.
    pub fn found(answer: Answer) -> Self {
        Self(Report::Lookup(Finding::Found(answer)))
    }

    /// It certainly did not happen: nothing reached the destination.
    pub fn not_sent(reason: impl fmt::Display) -> Self {
        Self::from_outcome(Outcome::not_sent(&reason.to_string()))
    }

    /// The destination said no, and did nothing.
    pub fn refused(answer: Answer) -> Self {
        Self::from_outcome(Outcome::refused(answer))
    }

    /// It may or may not have happened.
    pub fn unknown(reason: impl fmt::Display) -> Self {
        Self::from_outcome(Outcome::unknown(&reason.to_string()))
    }

    /// The destination asked to be tried again after that long.
    #[must_use]
    pub fn retry_after(mut self, after: Duration) -> Self {
        match &mut self.0 {
            Report::Act(Outcome::NotSent { retry_after, .. } | Outcome::Unknown { retry_after, .. }) => {
                *retry_after = Some(after)
            }
            Report::Act(Outcome::Answered(_) | Outcome::Refused { .. }) | Report::Lookup(_) => {}
        }
        self
    }

    /// A refusal is given again to the same request for that long.
    #[must_use]
    pub fn replay_for(mut self, span: Duration) -> Self {
        if let Report::Act(Outcome::Refused { replay_for, .. }) = &mut self.0 {
            *replay_for = span;
        }
        self
    }

    /// The caller was told and must mend something first: this counts as no attempt.
    #[must_use]
    pub fn passed_on(mut self) -> Self {
        if let Report::Act(Outcome::NotSent { counts, .. }) = &mut self.0 {
            *counts = Counts::AsPassedOn;
        }
        self
    }

    /// A person must look, whatever the recovery class: it happened in part.
    #[must_use]
    pub fn park(mut self) -> Self {
        if let Report::Act(Outcome::Unknown { park, .. }) = &mut self.0 {
            *park = true;
        }
        self
    }
}

impl<E: std::error::Error> From<E> for Trouble {
    fn from(error: E) -> Self {
        Self::unknown(error)
    }
}

impl fmt::Debug for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
