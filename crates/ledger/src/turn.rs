//! Waiting for one's turn: for leave to act, for another's answer, a lane, a due time or a person (S8, S15). One loop for
//! every door.

use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::{Fuse, FusedFuture};
use tokio::sync::oneshot;
use twicesafe_core::{CommandId, Grant, Verdict, WaitCause};
use twicesafe_store::Tick;

use crate::error::Error;
use crate::intent::Intent;
use crate::ledger::{Ledger, new_command_id};
use crate::unused::Told;

/// Pauses before asking again where nobody knows how long to wait: at first, and at most.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// What a caller is told when nothing better is known.
pub(crate) const RETRY_AFTER_DEFAULT: Duration = Duration::from_secs(1);

/// Who claims.
#[derive(Clone, Copy)]
pub(crate) enum Claimant {
    /// Whoever acts in this process.
    Here,
    /// Somebody at the other end of a wire, by a command id of their own where they made one.
    Elsewhere(Option<CommandId>),
}

/// What waiting came to.
pub(crate) struct Turn {
    /// What the last claim was told. [`Verdict::Wait`]: patience is over, or a lookup is due.
    pub(crate) told: Told,
    /// From before that claim was submitted: the holder's own clock bounds what it may do (S9).
    pub(crate) started: Tick,
    /// Patience is over.
    pub(crate) is_over: bool,
}

impl Ledger {
    /// Claims for one who may leave meanwhile: then the permit is given back, or the intent would be in doubt though nothing was
    /// sent. What is answered by looking, as most repetitions are, is answered at once; what must be written goes on in a task of
    /// its own, and what it tells gives itself back where nobody takes it.
    pub(crate) async fn claim_for_one_who_may_leave(
        &self,
        intent: &Intent,
        started: Tick,
    ) -> Result<Told, Error> {
        let (ledger, claimed) = (self.clone(), intent.clone());
        let mut claiming = Box::pin(async move {
            let applied = ledger.claim_applied(&claimed, new_command_id(), Grant::Permit).await?;
            Ok(Told::new(&ledger, &claimed, started, applied))
        });
        let at_once = std::future::poll_fn(|context| Poll::Ready(claiming.as_mut().poll(context))).await;
        if let Poll::Ready(told) = at_once {
            return told;
        }
        let (telling, hearing) = oneshot::channel();
        let under_way = self.begin();
        tokio::spawn(self.leftover().finishing(async move {
            let _under_way = under_way;
            if let Err(Ok(Told { unused: Some(unused), .. })) = telling.send(claiming.await) {
                unused.give_back().await;
            }
        }));
        // The task ends only after it has told.
        hearing.await.unwrap_or(Err(Error::Pending { retry_after: RETRY_AFTER_DEFAULT }))
    }

    /// Claims until there is something to do or to tell, or `patience` ends. Who acts elsewhere can be told of a lookup that is due;
    /// otherwise only who brought a lookup is.
    pub(crate) async fn turn<P: Future<Output = ()>>(
        &self,
        intent: &Intent,
        claimant: Claimant,
        mut patience: Pin<&mut Fuse<P>>,
    ) -> Result<Turn, Error> {
        let mut is_over = patience.is_terminated();
        // Grows, because some waits cannot say for how long: a lane with a queue, say.
        let mut pause_min = PAUSE_MIN;
        loop {
            if intent.holder_lives.is_some() && Box::pin(self.holder_lives(intent)).await? {
                // A claim would only spread doubt: whoever has it is alive, whatever its lease says.
                if is_over {
                    return Err(Error::Pending { retry_after: RETRY_AFTER_DEFAULT });
                }
                is_over = tokio::select! {
                    () = tokio::time::sleep(RETRY_AFTER_DEFAULT) => false,
                    () = patience.as_mut() => true,
                };
                continue;
            }
            let started = Tick::now();
            // Boxed, so that thousands who wait hold room for waiting and not for claiming.
            let told = match claimant {
                // Whoever made the id can claim again with it, and gets the same permit (S12).
                Claimant::Elsewhere(Some(id)) => Told {
                    applied: Box::pin(self.claim_applied(intent, id, Grant::Permit)).await?,
                    unused: None,
                },
                Claimant::Elsewhere(None) | Claimant::Here => {
                    Box::pin(self.claim_for_one_who_may_leave(intent, started)).await?
                }
            };
            let (until, cause) = match &told.applied.verdict {
                Verdict::Wait(wait) => (wait.until.since(told.applied.at), Some(wait.cause)),
                Verdict::Hold(_) if intent.waits_for_people => (PAUSE_MAX, None),
                _ => return Ok(Turn { told, started, is_over }),
            };
            let asks = matches!(claimant, Claimant::Elsewhere(_)) || intent.lookup.is_some();
            if is_over || cause == Some(WaitCause::LookupDue) && asks {
                return Ok(Turn { told, started, is_over });
            }
            let mut known = told.applied.stored.as_ref().map(|stored| (stored.id, stored.version));
            // Many wait at once: what was read must not be kept for each of them.
            drop(told);
            let pause = match cause {
                Some(WaitCause::Lane(blocker)) => {
                    if let Some(blocker) = blocker {
                        known = Box::pin(self.store().find_id(blocker))
                            .await?
                            .map(|stored| (stored.id, stored.version));
                    }
                    pause_min
                }
                _ => until.max(pause_min),
            };
            pause_min = (pause_min * 2).min(PAUSE_MAX);
            let changed = async {
                match known {
                    Some((id, version)) => self.store().changed(id, version).await,
                    None => std::future::pending().await,
                }
            };
            is_over = tokio::select! {
                () = changed => false,
                () = tokio::time::sleep(pause) => false,
                () = patience.as_mut() => true,
            };
        }
    }
}
