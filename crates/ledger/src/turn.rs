//! Waiting for one's turn: for leave to act, for another's answer, a lane, a due time or a person (S8, S15). One loop for
//! every door.

use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::{Fuse, FusedFuture};
use tokio::sync::oneshot;
use twicesafe_core::{CommandId, Grant, Verdict, WaitCause};
use twicesafe_store::{Applied, Tick};

use crate::error::Error;
use crate::intent::Intent;
use crate::ledger::{Claimed, Ledger, new_command_id};
use crate::trouble::Trouble;

/// Pauses before asking again where nobody knows how long to wait: at first, and at most.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// What a caller is told when nothing better is known.
pub(crate) const RETRY_AFTER_DEFAULT: Duration = Duration::from_secs(1);

/// What waiting came to.
pub(crate) struct Turn {
    /// What the last claim was told. [`Verdict::Wait`]: patience is over, or a lookup is due.
    pub(crate) applied: Applied,
    /// From before that claim was submitted: the holder's own clock bounds what it may do (S9).
    pub(crate) started: Tick,
    /// Patience is over.
    pub(crate) is_over: bool,
}

impl Ledger {
    /// A claim by one who may leave while it is made: leave that nobody is there to take is given back, or the intent would be
    /// in doubt though nothing was sent. What is answered by looking, as most repetitions are, is answered at once; what must
    /// be written goes on in a task of its own.
    async fn claim_for_one_who_may_leave(&self, intent: &Intent, started: Tick) -> Result<Applied, Error> {
        let (ledger, claimed) = (self.clone(), intent.clone());
        let mut claiming = Box::pin(async move {
            let applied = ledger.claim_applied(&claimed, new_command_id(), Grant::Permit).await;
            (applied, ledger, claimed)
        });
        let at_once = std::future::poll_fn(|context| Poll::Ready(claiming.as_mut().poll(context))).await;
        if let Poll::Ready((applied, ..)) = at_once {
            return applied;
        }
        let (told, hearing) = oneshot::channel();
        let under_way = self.begin();
        tokio::spawn(async move {
            let _under_way = under_way;
            let (applied, ledger, intent) = claiming.await;
            let Err(Ok(unheard)) = told.send(applied) else { return };
            if let Ok(Claimed::Proceed(permit)) = ledger.claimed(&intent, started, unheard) {
                let left = Trouble::not_sent("its caller left before anything was sent");
                if let Err(error) = permit.settle(Err(left)).await {
                    tracing::warn!(code = %error.code(), "leave that nobody took was not given back: {error}");
                }
            }
        });
        // The task ends only after it has told.
        hearing.await.unwrap_or(Err(Error::Pending { retry_after: RETRY_AFTER_DEFAULT }))
    }

    /// Claims until there is something to do or to tell, or `patience` ends. With an id of a caller's own the same claim is
    /// made each time, and who makes it can be told of a lookup that is due; otherwise only who brought a lookup is.
    pub(crate) async fn turn<P: Future<Output = ()>>(
        &self,
        intent: &Intent,
        id: Option<CommandId>,
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
            let applied = match id {
                Some(id) => Box::pin(self.claim_applied(intent, id, Grant::Permit)).await?,
                None => Box::pin(self.claim_for_one_who_may_leave(intent, started)).await?,
            };
            let (until, cause) = match &applied.verdict {
                Verdict::Wait(told) => (told.until.since(applied.at), Some(told.cause)),
                Verdict::Hold(_) if intent.waits_for_people => (PAUSE_MAX, None),
                _ => return Ok(Turn { applied, started, is_over }),
            };
            let asks = id.is_some() || intent.lookup.is_some();
            if is_over || cause == Some(WaitCause::LookupDue) && asks {
                return Ok(Turn { applied, started, is_over });
            }
            let mut known = applied.stored.as_ref().map(|stored| (stored.id, stored.version));
            // Many wait at once: what was read must not be kept for each of them.
            drop(applied);
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
