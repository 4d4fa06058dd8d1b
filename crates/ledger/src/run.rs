//! One effect, start to end: claim, act, settle, answer.

use std::future::Future;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use twicesafe_core::journal::Event;
use twicesafe_core::{Answer, Finding, Report, Status, WaitCause};
use twicesafe_store::Stored;

use crate::attempt::{Attempt, Permit};
use crate::error::Error;
use crate::intent::{Intent, LookupFn};
use crate::ledger::{Claimed, Given, Ledger, given};
use crate::trouble::Trouble;

/// Largest body of an answer that is kept; of a larger one only length and digest are (S20).
pub const ANSWER_BYTES_MAX: usize = 8 << 20;
/// How often one looks whether a lane has become free.
const LANE_PAUSE: Duration = Duration::from_millis(50);
/// What a caller is told when nothing better is known.
pub(crate) const RETRY_AFTER_DEFAULT: Duration = Duration::from_secs(1);

impl Ledger {
    /// Gives the first answer of an intent: by acting now, or from the ledger.
    ///
    /// A duplicate waits for the first one's answer. The act runs in a task of its own: a caller that goes away does
    /// not cancel an attempt that may have been sent, and its answer is stored (S13). An act that panics leaves doubt.
    pub async fn run<F, Fut>(&self, intent: Intent, act: F) -> Result<Given, Error>
    where
        F: FnOnce(Attempt) -> Fut + Send + 'static,
        Fut: Future<Output = Result<Answer, Trouble>> + Send + 'static,
    {
        let deadline = Instant::now() + intent.wait;
        let permit = match self.wait_for_turn(&intent, deadline).await? {
            Turn::Act(permit) => permit,
            Turn::Given(given) => return Ok(given),
        };
        let stored = act_and_settle(permit, act).await?;
        match told(&stored) {
            // A lookup can tell at once; without one the next caller is told the same.
            Err(Error::Pending { .. })
                if stored.record.status == Status::Pending && intent.lookup.is_some() =>
            {
                match self.wait_for_turn(&intent, deadline).await? {
                    Turn::Given(given) => Ok(Given { replayed: false, ..given }),
                    // It did not happen, and this act is spent. The next caller acts.
                    Turn::Act(permit) => {
                        let stored = permit
                            .settle(Err(Trouble::not_sent("left to the next caller").passed_on()))
                            .await?;
                        told(&stored)
                    }
                }
            }
            told => told,
        }
    }

    /// Like [`Ledger::run`], and tries again by itself while another attempt is safe and due within the intent's wait.
    pub async fn run_retrying<F, Fut>(&self, intent: Intent, act: F) -> Result<Given, Error>
    where
        F: Fn(Attempt) -> Fut + Send + Sync + Clone + 'static,
        Fut: Future<Output = Result<Answer, Trouble>> + Send + 'static,
    {
        let deadline = Instant::now() + intent.wait;
        let mut acted = false;
        loop {
            match self.wait_for_turn(&intent, deadline).await? {
                Turn::Given(given) => return Ok(Given { replayed: given.replayed && !acted, ..given }),
                Turn::Act(permit) => {
                    acted = true;
                    let stored = act_and_settle(permit, act.clone()).await?;
                    let due = stored.record.due_at.is_some();
                    match told(&stored) {
                        Err(Error::Pending { .. }) if due => {}
                        told => return told,
                    }
                }
            }
        }
    }

    /// Claims until there is leave to act, an answer, or no more patience.
    async fn wait_for_turn(&self, intent: &Intent, deadline: Instant) -> Result<Turn, Error> {
        loop {
            let claimed = if self.holder_lives(intent).await? {
                Claimed::Wait { retry_after: RETRY_AFTER_DEFAULT, cause: WaitCause::Pending, known: None }
            } else {
                self.claim(intent).await?
            };
            let (retry_after, cause, known) = match claimed {
                Claimed::Proceed(permit) => return Ok(Turn::Act(permit)),
                Claimed::Replay(given) => return Ok(Turn::Given(given)),
                Claimed::Refused(given) => return Err(Error::Refused(Box::new(given))),
                Claimed::Hold { expires_at } => return Err(Error::Held { expires_at }),
                Claimed::Review => return Err(Error::Review),
                Claimed::Wait { retry_after, cause, known } => (retry_after, cause, known),
            };
            if let (WaitCause::LookupDue, Some(lookup), Some((id, _))) = (cause, &intent.lookup, known)
                && let Some(permit) = self.ask(&intent.name, id).await?
            {
                look_up(permit, lookup.clone()).await?;
                continue;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let retry_after = retry_after.clamp(RETRY_AFTER_DEFAULT, Duration::from_secs(60));
                return Err(Error::Pending { retry_after });
            }
            let pause = match cause {
                WaitCause::Lane(_) => LANE_PAUSE,
                WaitCause::LookupDue => RETRY_AFTER_DEFAULT,
                _ => retry_after.max(Duration::from_millis(1)),
            };
            let pause = tokio::time::sleep(pause.min(left));
            match known {
                Some((id, version)) => tokio::select! {
                    () = self.store().changed(id, version) => {}
                    () = pause => {}
                },
                None => pause.await,
            }
        }
    }

    /// Whether somebody whose lease is over was seen alive: then a claim would only spread doubt.
    async fn holder_lives(&self, intent: &Intent) -> Result<bool, Error> {
        let Some(lives) = &intent.holder_lives else { return Ok(false) };
        let Some(stored) = self.store().find(&intent.name).await? else { return Ok(false) };
        let record = &stored.record;
        match &record.attempt {
            Some(attempt) => {
                Ok(attempt.lease_until <= self.store().now().await? && lives(attempt.holder.as_str()))
            }
            None if record.doubt && !record.status.is_settled() => {
                let journal = self.store().journal(stored.id).await?;
                let last = journal.iter().rev().find(|row| row.entry.event == Event::Lapsed);
                Ok(last.is_some_and(|row| lives(&row.entry.reason)))
            }
            None => Ok(false),
        }
    }
}

/// What the one who acted is told, by where the intent stands now (S27).
fn told(stored: &Stored) -> Result<Given, Error> {
    match stored.record.status {
        Status::Done => Ok(given(stored, false, false)),
        Status::Failed => Err(Error::Refused(Box::new(given(stored, false, false)))),
        Status::Review => Err(Error::Review),
        _ => Err(Error::Pending { retry_after: RETRY_AFTER_DEFAULT }),
    }
}

enum Turn {
    Act(Permit),
    Given(Given),
}

/// Acts and settles in a task of its own.
async fn act_and_settle<F, Fut>(permit: Permit, act: F) -> Result<std::sync::Arc<Stored>, Error>
where
    F: FnOnce(Attempt) -> Fut + Send + 'static,
    Fut: Future<Output = Result<Answer, Trouble>> + Send + 'static,
{
    let task = tokio::spawn(async move {
        let attempt = permit.attempt().clone();
        let result = match attempt.check_send() {
            Ok(()) => {
                let acting = std::panic::AssertUnwindSafe(async move { act(attempt).await });
                acting.catch_unwind().await.unwrap_or_else(|_| Err(Trouble::unknown("the act panicked")))
            }
            Err(too_late) => Err(too_late),
        };
        permit.settle(result).await
    });
    task.await.unwrap_or_else(|_| Err(Error::Pending { retry_after: RETRY_AFTER_DEFAULT }))
}

/// Asks the destination and reports what it said, in a task of its own.
async fn look_up(permit: Permit, lookup: LookupFn) -> Result<(), Error> {
    let task = tokio::spawn(async move {
        let attempt = permit.attempt().clone();
        let asking = std::panic::AssertUnwindSafe(async move { lookup(attempt).await });
        let finding = asking
            .catch_unwind()
            .await
            .unwrap_or_else(|_| Finding::Silent { reason: "the lookup panicked".into() });
        let finding = match finding {
            Finding::Found(answer) => Finding::Found(answer.limited(ANSWER_BYTES_MAX)),
            other => other,
        };
        permit.report(Report::Lookup(finding)).await
    });
    match task.await {
        Ok(Ok(_)) | Err(_) => Ok(()),
        // Somebody else settled it meanwhile: the next claim tells.
        Ok(Err(Error::Ledger(_))) => Ok(()),
        Ok(Err(error)) => Err(error),
    }
}
