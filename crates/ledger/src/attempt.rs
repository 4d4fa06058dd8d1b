//! Leave to act, as values that cannot be used twice.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use twicesafe_core::{Answer, Meaning, Name, Outcome, Recovery, Report, destination_key};
use twicesafe_store::{Stored, Tick};

use crate::error::Error;
use crate::heartbeat::Heartbeat;
use crate::ledger::Ledger;
use crate::trouble::Trouble;

/// One try, as the act sees it.
#[derive(Clone, Debug)]
pub struct Attempt(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    name: Name,
    permit: twicesafe_core::Permit,
    /// From before the claim was submitted: the holder's own clock bounds what it may do (S9).
    started: Tick,
    send_within_micros: AtomicU64,
    believed: Mutex<Arc<Stored>>,
}

impl Attempt {
    pub(crate) fn new(
        name: Name,
        permit: twicesafe_core::Permit,
        started: Tick,
        believed: Arc<Stored>,
    ) -> Self {
        let send_within_micros = AtomicU64::new(micros(permit.send_within));
        Self(Arc::new(Inner { name, permit, started, send_within_micros, believed: Mutex::new(believed) }))
    }

    /// Call this immediately before the first byte leaves. It says no when the lease may lapse before the request
    /// arrives; whoever claims next must be able to rely on that (S9).
    pub fn check_send(&self) -> Result<(), Trouble> {
        if self.may_send() {
            Ok(())
        } else {
            Err(Trouble::not_sent("TS0023: too late to send under this permit"))
        }
    }

    pub(crate) fn may_send(&self) -> bool {
        micros(self.0.started.elapsed()) < self.0.send_within_micros.load(Ordering::Acquire)
    }

    /// A key for destinations that deduplicate themselves: the same for every attempt of a generation.
    pub fn destination_key(&self) -> String {
        destination_key(&self.0.name, self.0.permit.generation)
    }

    /// What an HTTP destination said, by the status of its answer: 2xx is the answer, 408 and 5xx say that nobody knows, 425 and 429
    /// that it was not taken, 401, 403 and 407 that the caller must mend something first, other 4xx that it was refused (S16 to S19).
    ///
    /// HTTP clients do not fail on a status by themselves, and a stored error page would be given again as if it were success.
    /// Where a destination means something else by a status, say so with [`Trouble`]. Let the client follow no redirects.
    pub fn by_http_status(&self, status: u16, answer: Answer) -> Result<Answer, Trouble> {
        let has_native_key = matches!(self.believed().record.policy.recovery, Recovery::NativeKey { .. });
        match Meaning::of_http_status(status, has_native_key).outcome(status, answer, None) {
            Outcome::Answered(answer) => Ok(answer),
            other => Err(Trouble::from_outcome(other)),
        }
    }

    /// What the intent is called.
    pub fn name(&self) -> &Name {
        &self.0.name
    }

    /// Which attempt of this round, from 1.
    pub fn number(&self) -> u32 {
        self.0.permit.attempt
    }

    /// The permit, as data.
    pub fn permit(&self) -> &twicesafe_core::Permit {
        &self.0.permit
    }

    /// What is believed of the intent: what was agreed about it, among other things.
    pub fn stored(&self) -> Arc<Stored> {
        self.believed()
    }

    /// An earlier attempt may have acted: a refusal now does not mean that nothing happened.
    pub fn in_doubt(&self) -> bool {
        self.0.permit.doubt
    }

    /// A newer version was applied already.
    pub fn is_late(&self) -> bool {
        self.0.permit.late
    }

    pub(crate) fn believed(&self) -> Arc<Stored> {
        self.0.believed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The lease was extended, `since` the renewal was submitted.
    pub(crate) fn renewed(&self, since: Tick, renewed: &twicesafe_core::Permit, believed: Arc<Stored>) {
        let send_within = since.since(self.0.started) + renewed.send_within;
        self.0.send_within_micros.store(micros(send_within), Ordering::Release);
        *self.0.believed.lock().unwrap_or_else(PoisonError::into_inner) = believed;
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

/// Leave to act, once. Settling consumes it.
///
/// While it is there, heartbeats keep its lease alive. Dropped without settling it leaves the intent in doubt when the
/// lease runs out, which is the truth: the holder did not say what happened.
#[must_use = "a permit that is not settled leaves the intent in doubt"]
pub struct Permit {
    pub(crate) ledger: Ledger,
    pub(crate) attempt: Attempt,
    pub(crate) heartbeat: Heartbeat,
}

impl Permit {
    /// The try this permit is for.
    pub fn attempt(&self) -> &Attempt {
        &self.attempt
    }

    /// Says what happened: `Ok` with the destination's answer, or what kind of trouble there was.
    pub async fn settle(self, result: Result<Answer, Trouble>) -> Result<Arc<Stored>, Error> {
        let report = match result {
            Ok(answer) => Report::Act(Outcome::Answered(answer)),
            Err(trouble) => trouble.0,
        };
        self.report(report).await
    }

    pub(crate) async fn report(self, report: Report) -> Result<Arc<Stored>, Error> {
        let stored = self.ledger.settle(&self.attempt, report).await;
        drop(self.heartbeat);
        stored
    }
}
