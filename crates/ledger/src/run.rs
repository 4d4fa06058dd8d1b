//! One effect, start to end: claim, act, settle, answer.

use std::future::Future;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::Fuse;
use tokio::sync::oneshot;
use twicesafe_core::journal::Event;
use twicesafe_core::{Answer, Finding, Grant, Report, Status, Verdict};
use twicesafe_store::{Order, Stored, Tick};

use crate::attempt::{Attempt, Permit};
use crate::error::Error;
use crate::intent::{Intent, LookupFn};
use crate::ledger::{Claimed, Given, Ledger, given, new_command_id};
use crate::trouble::Trouble;
use crate::turn::{Claimant, RETRY_AFTER_DEFAULT, Turn};
use crate::unused::{Told, Unused};

/// Largest body of an answer that is kept; of a larger one only length and digest are (S20).
pub const ANSWER_BYTES_MAX: usize = 8 << 20;
/// When somebody should ask again, at most.
const RETRY_AFTER_MAX: std::time::Duration = std::time::Duration::from_secs(60);

/// How it ended for one who wanted an intent done, and where the intent stands then.
pub struct Ended {
    /// The answer, or why there is none.
    pub result: Result<Given, Error>,
    /// What is believed of the intent, as far as anything is.
    pub stored: Option<Arc<Stored>>,
}

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
        let mut patience = std::pin::pin!(tokio::time::sleep(intent.wait).fuse());
        let own = match self.own_turn(&intent, patience.as_mut()).await {
            Ok(own) => own,
            Err(ended) => return ended.result,
        };
        let stored = act_and_settle(own, act).await?;
        match told(&stored) {
            // A lookup can tell at once; without one the next caller is told the same.
            Err(Error::Pending { .. })
                if stored.record.status == Status::Pending && intent.lookup.is_some() =>
            {
                match self.own_turn(&intent, patience).await {
                    Err(ended) => after_acting(ended.result).map(|given| Given { replayed: false, ..given }),
                    // It did not happen, and this act is spent. The next caller acts.
                    Ok(Own { permit, unused }) => {
                        unused.into_iter().for_each(Unused::used);
                        let spent = Trouble::not_sent("left to the next caller").passed_on();
                        let stored = permit.settle(Err(spent)).await?;
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
        let patience = tokio::time::sleep(intent.wait);
        self.carry_out(&intent, patience, act).await.result
    }

    /// Like [`Ledger::run_retrying`], as long as `patience` lasts, and says where the intent stands whatever came of it.
    pub async fn carry_out<F, Fut>(
        &self,
        intent: &Intent,
        patience: impl Future<Output = ()>,
        act: F,
    ) -> Ended
    where
        F: Fn(Attempt) -> Fut + Send + Sync + Clone + 'static,
        Fut: Future<Output = Result<Answer, Trouble>> + Send + 'static,
    {
        let mut patience = std::pin::pin!(patience.fuse());
        let mut acted = false;
        loop {
            let own = match self.own_turn(intent, patience.as_mut()).await {
                Ok(own) => own,
                Err(Ended { result, stored }) => {
                    let result = if acted { after_acting(result) } else { result };
                    let result = result.map(|given| Given { replayed: given.replayed && !acted, ..given });
                    return Ended { result, stored };
                }
            };
            acted = true;
            let believed = own.permit.attempt().believed();
            let stored = match act_and_settle(own, act.clone()).await {
                Ok(stored) => stored,
                Err(error) => return Ended { result: Err(error), stored: Some(believed) },
            };
            match told(&stored) {
                // Another attempt, or a lookup, is due soon: whoever has patience is there for it.
                Err(Error::Pending { .. }) if stored.record.due_at.is_some() => {}
                told => return Ended { result: told, stored: Some(stored) },
            }
        }
    }

    /// What a repetition is told, if that is in memory ([`crate::Open::remembering`]): name and fingerprint say enough, and the
    /// rest of the intent need not be made out. `None`: claim it.
    pub fn recall(&self, intent: &Intent) -> Result<Option<Ended>, Error> {
        let started = Tick::now();
        let recalled = self.store().recall(&intent.name, |stored| {
            let record = &stored.record;
            record.status.is_settled().then_some(())?;
            let fingerprint = intent.input.fingerprint(Some(record.fingerprint.as_ref()?.recipe()))?;
            let command =
                self.claim_by(intent, fingerprint, record.policy.clone(), new_command_id(), Grant::Permit);
            Some(Order::named(intent.name.clone(), command))
        });
        let Some(applied) = recalled? else { return Ok(None) };
        self.raise(&applied);
        self.tell_notices(intent, &applied);
        let stored = applied.stored.clone();
        let result = match self.claimed(intent, started, applied) {
            Ok(Claimed::Replay(given)) => Ok(given),
            Ok(Claimed::Refused(given)) => Err(Error::Refused(Box::new(given))),
            Ok(_) => return Ok(None),
            Err(error) => Err(error),
        };
        Ok(Some(Ended { result, stored }))
    }

    /// Leave to act, or how it ended without.
    async fn own_turn<P: Future<Output = ()>>(
        &self,
        intent: &Intent,
        mut patience: std::pin::Pin<&mut Fuse<P>>,
    ) -> Result<Own, Ended> {
        loop {
            let unheard_of = |error| Ended { result: Err(error), stored: None };
            let turn =
                Box::pin(self.turn(intent, Claimant::Here, patience.as_mut())).await.map_err(unheard_of)?;
            let Turn { told: Told { applied, unused }, started, is_over } = turn;
            let stored = applied.stored.clone();
            let ended = |result| Ended { result, stored: stored.clone() };
            let is_lookup_due = matches!(&applied.verdict, Verdict::Wait(_)) && !is_over;
            let result = match self.claimed(intent, started, applied) {
                Ok(Claimed::Proceed(permit)) => return Ok(Own { permit, unused }),
                Ok(Claimed::Replay(given)) => Ok(given),
                Ok(Claimed::Refused(given)) => Err(Error::Refused(Box::new(given))),
                Ok(Claimed::Hold { expires_at }) => Err(Error::Held { expires_at }),
                Ok(Claimed::Review) => Err(Error::Review),
                Ok(Claimed::Wait { known: Some((id, _)), .. }) if is_lookup_due => {
                    if let Some(lookup) = &intent.lookup
                        && let Some(permit) = self.ask(&intent.name, id).await.map_err(|e| ended(Err(e)))?
                    {
                        look_up(permit, lookup.clone()).await.map_err(|e| ended(Err(e)))?;
                    }
                    continue;
                }
                Ok(Claimed::Wait { retry_after, .. }) => {
                    let retry_after = retry_after.clamp(RETRY_AFTER_DEFAULT, RETRY_AFTER_MAX);
                    Err(Error::Pending { retry_after })
                }
                Err(error) => Err(error),
            };
            return Err(ended(result));
        }
    }

    /// Whether somebody whose lease is over was seen alive: then a claim would only spread doubt.
    pub(crate) async fn holder_lives(&self, intent: &Intent) -> Result<bool, Error> {
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

/// What came of an attempt is on record already: that the ledger is away now does not mean that nothing was sent.
fn after_acting(result: Result<Given, Error>) -> Result<Given, Error> {
    match result {
        Err(Error::Store(error)) => {
            tracing::warn!(code = %error.code(), "where the intent stands could not be read: {error}");
            Err(Error::Pending { retry_after: RETRY_AFTER_DEFAULT })
        }
        other => other,
    }
}

/// A permit of one's own. It goes back if the act does not begin.
struct Own {
    permit: Permit,
    unused: Option<Unused>,
}

/// Acts and settles in a task of its own. What came of the act is stored even if the runtime ends.
async fn act_and_settle<F, Fut>(own: Own, act: F) -> Result<Arc<Stored>, Error>
where
    F: FnOnce(Attempt) -> Fut + Send + 'static,
    Fut: Future<Output = Result<Answer, Trouble>> + Send + 'static,
{
    let Own { permit, unused } = own;
    let under_way = permit.ledger.begin();
    let (telling, hearing) = oneshot::channel();
    tokio::spawn(async move {
        unused.into_iter().for_each(Unused::used);
        let attempt = permit.attempt().clone();
        let result = match attempt.check_send() {
            Ok(()) => {
                let acting = std::panic::AssertUnwindSafe(async move { act(attempt).await });
                acting.catch_unwind().await.unwrap_or_else(|_| Err(Trouble::unknown("the act panicked")))
            }
            Err(too_late) => Err(too_late),
        };
        let ledger = permit.ledger.clone();
        let settling = async move {
            let settled = permit.settle(result).await;
            drop(under_way);
            // Its caller may have left.
            let _ = telling.send(settled);
        };
        ledger.leftover().finishing(settling).await;
    });
    hearing.await.unwrap_or(Err(Error::Pending { retry_after: RETRY_AFTER_DEFAULT }))
}

/// Asks the destination and reports what it said, in a task of its own.
async fn look_up(permit: Permit, lookup: LookupFn) -> Result<(), Error> {
    let under_way = permit.ledger.begin();
    let task = tokio::spawn(async move {
        let _under_way = under_way;
        let attempt = permit.attempt().clone();
        let asking = std::panic::AssertUnwindSafe(async move { lookup(attempt).await });
        let finding = asking
            .catch_unwind()
            .await
            .unwrap_or_else(|_| Finding::Silent { reason: "the lookup panicked".into() });
        permit.report(Report::Lookup(finding)).await
    });
    match task.await {
        Ok(Ok(_)) | Err(_) => Ok(()),
        // Somebody else settled it meanwhile: the next claim tells.
        Ok(Err(Error::Ledger(_))) => Ok(()),
        Ok(Err(error)) => Err(error),
    }
}
