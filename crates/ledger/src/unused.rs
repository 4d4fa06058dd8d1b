//! Permits that nobody has begun to use. Whoever claims may leave at any moment; what they were given goes back then, because
//! nothing was sent (S13).

use twicesafe_core::{Counts, Outcome, Report, Verdict};
use twicesafe_store::{Applied, Tick};

use crate::attempt::Attempt;
use crate::intent::Intent;
use crate::ledger::{Ledger, UnderWay};

/// What a claim was told, and the permit in it, which goes back if this is dropped.
pub(crate) struct Told {
    pub(crate) applied: Applied,
    pub(crate) unused: Option<Unused>,
}

impl Told {
    pub(crate) fn new(ledger: &Ledger, intent: &Intent, started: Tick, applied: Applied) -> Self {
        let unused = match (&applied.verdict, &applied.stored) {
            (Verdict::Proceed(permit), Some(stored)) => {
                let attempt = Attempt::new(intent.name.clone(), permit.clone(), started, stored.clone());
                Some(Unused { inner: Some((ledger.begin(), attempt)) })
            }
            _ => None,
        };
        Self { applied, unused }
    }

    /// Tells somebody whose act is their own business from now on.
    pub(crate) fn into_applied(self) -> Applied {
        if let Some(unused) = self.unused {
            unused.used();
        }
        self.applied
    }
}

/// A permit under which nothing was begun. Dropped, it settles as not sent.
#[must_use = "dropped, the permit is given back"]
pub(crate) struct Unused {
    inner: Option<(UnderWay, Attempt)>,
}

impl Unused {
    /// The act begins: from now on only its own report says what happened.
    pub(crate) fn used(mut self) {
        self.inner = None;
    }

    /// Gives the permit back.
    pub(crate) async fn give_back(mut self) {
        if let Some((under_way, attempt)) = self.inner.take() {
            give_back(under_way, attempt).await;
        }
    }
}

impl Drop for Unused {
    fn drop(&mut self) {
        let Some((under_way, attempt)) = self.inner.take() else { return };
        let ledger = under_way.ledger().clone();
        ledger.leftover().spawn(give_back(under_way, attempt));
    }
}

async fn give_back(under_way: UnderWay, attempt: Attempt) {
    // No attempt was made: callers that leave must not use up those of the others.
    let report = Report::Act(Outcome::NotSent {
        reason: "its caller left before anything was sent".into(),
        retry_after: None,
        counts: Counts::AsWaiting,
    });
    if let Err(error) = under_way.ledger().settle(&attempt, report).await {
        tracing::warn!(code = %error.code(), "failed to give back a permit that nobody used: {error}");
    }
}
