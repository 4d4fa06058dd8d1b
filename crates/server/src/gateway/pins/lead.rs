//! The one who carries a flight: claims, has the question asked or gets what is on record, and shows its end when it is.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use twicesafe_ledger::{Actor, Ended, Error, Intent, Ledger, Refusal, Timestamp};

use super::ROUNDS_MAX;
use super::flight::{End, OnRecord, Open};
use super::question::still_asked;
use super::record::{Held, Recorder};
use super::saved::Cost;
use crate::http::Problem;
use crate::server::Shared;

/// How far this machine's clock may be from the ledger's.
const CLOCKS_APART_MAX: Duration = Duration::from_secs(3600);

/// The one who carries a flight.
pub(super) struct Leading {
    pub(super) shared: Arc<Shared>,
    pub(super) ledger: Ledger,
    pub(super) open: Open,
    pub(super) recorder: Recorder,
    pub(super) intent: Intent,
    pub(super) wait: Duration,
    pub(super) drain: crate::http::Drain,
}

impl Leading {
    pub(super) async fn lead(self) {
        let ended = self.carried().await;
        let Self { shared, open, recorder, .. } = self;
        let flight = open.flight.clone();
        let held = recorder.held.lock().unwrap_or_else(PoisonError::into_inner).take();
        // Who comes from now on finds the answer on record.
        let close = |end: End| {
            flight.end(end);
            drop(open);
        };
        match (ended.result, held) {
            (Ok(given), held) => {
                let Some(answer) = given.answer else { return close(End::Cut) };
                let is_ours = held.as_ref().is_some_and(|held| answer.bytes() == Some(&held.body));
                match held {
                    Some(Held { last: Some(last), findings, .. }) if is_ours => {
                        flight.push(last);
                        let followers = flight.joined().saturating_sub(1);
                        close(End::Whole);
                        let cost = Cost::new(findings.model.as_deref(), findings.usage);
                        let pins = recorder.destination.pins.as_ref();
                        cost.save(&shared, pins.map(|pins| &pins.prices), followers as u64);
                    }
                    // What was shown is not what is on record: nobody may take it for whole.
                    Some(Held { last: Some(_), .. }) => close(End::Cut),
                    _ => {
                        let replayed = given.replayed || !is_ours;
                        close(End::Given(Arc::new(OnRecord { answer, replayed, stored: ended.stored })));
                    }
                }
            }
            (Err(_), _) if flight.has_begun() => close(End::Cut),
            (Err(error), _) => {
                let problem: Problem = match error {
                    Error::Pending { retry_after } => still_asked(retry_after),
                    error => error.into(),
                };
                close(End::Problem(Arc::new(problem)));
            }
        }
    }

    /// Asks, or gets what is on record. What is there no longer, or for too long, is asked anew.
    async fn carried(&self) -> Ended {
        let mut ended = self.round().await;
        for _ in 1..ROUNDS_MAX {
            let anew = match &ended.result {
                Err(Error::Ledger(Refusal::Purged)) => self.begin_anew().await,
                // Another one's answer is on record by now, and nobody has seen anything else.
                Err(Error::Ledger(Refusal::StaleFence | Refusal::SettledOtherwise))
                    if self.open.flight.is_untouched() =>
                {
                    *self.recorder.held.lock().unwrap_or_else(PoisonError::into_inner) = None;
                    Ok(())
                }
                Ok(given) if given.replayed && self.is_over(given.kept_until).await => match &ended.stored {
                    Some(stored) => self.ledger.purge(stored).await,
                    None => Ok(()),
                },
                _ => break,
            };
            if let Err(error) = anew {
                return Ended { result: Err(error), ..ended };
            }
            ended = self.round().await;
        }
        ended
    }

    async fn round(&self) -> Ended {
        let mut drain = self.drain.clone();
        let patience = async {
            tokio::select! {
                () = tokio::time::sleep(self.wait) => {}
                () = drain.begun() => {}
                // Nobody is there to wait for it.
                () = self.open.flight.left_alone() => {}
            }
        };
        let recorder = self.recorder.clone();
        self.ledger.carry_out(&self.intent, patience, move |attempt| recorder.clone().act(attempt)).await
    }

    /// Whether an answer is kept no longer. Ledger time may be a round trip away: it is asked for where it could be so.
    async fn is_over(&self, kept_until: Option<Timestamp>) -> bool {
        let Some(kept_until) = kept_until else { return false };
        let here = Timestamp::from_millis(self.ledger.store().system_millis());
        here + CLOCKS_APART_MAX >= kept_until
            && self.ledger.store().now().await.is_ok_and(|now| now >= kept_until)
    }

    /// An answer that was forgotten or is no longer kept: asking again does no harm (S24), and gives another one.
    async fn begin_anew(&self) -> Result<(), Error> {
        let Some(stored) = self.ledger.look(self.intent.name()).await? else { return Ok(()) };
        if !stored.record.is_tombstone() {
            // Somebody else was first.
            return Ok(());
        }
        match self.ledger.reset(&Actor::sweep(), &stored, "its answer is no longer kept").await {
            Ok(_) | Err(Error::Ledger(Refusal::Moved | Refusal::WrongStatus(_) | Refusal::NoSuchIntent)) => {
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}
