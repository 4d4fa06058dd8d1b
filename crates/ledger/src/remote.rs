//! Permits held at the other end of a wire: whoever has one renews and settles it by number, and may do so at another
//! process than the one that gave it. Nothing here beats for anybody; who does not say that it is alive, lapses.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use twicesafe_core::{
    Action, Actor, Ask, Command, CommandId, Fence, IntentId, PermitSecret, Renew, Report, Settle,
};
use twicesafe_store::{Applied, Order, Stored};

use crate::error::Error;
use crate::intent::Intent;
use crate::ledger::Ledger;
use crate::run::ANSWER_BYTES_MAX;
use crate::turn::Claimant;

/// Most intents whose record is remembered between claim and settle. What is not remembered is read.
const BELIEFS_MAX: usize = 16_384;

/// Which permit somebody says to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Of which intent.
    pub intent: IntentId,
    /// Which one.
    pub fence: Fence,
    /// Proves that the caller was given the permit.
    pub secret: PermitSecret,
}

impl Ledger {
    /// Claims for somebody who acts elsewhere. Waits for another's answer, a lane or a due time (S8) until `patience` ends.
    /// The same command again gets the same permit (S12). Without an id nobody can send it again: a permit goes back if its
    /// caller has left.
    pub async fn claim_remotely(
        &self,
        intent: &Intent,
        id: Option<CommandId>,
        patience: impl Future<Output = ()>,
    ) -> Result<Applied, Error> {
        let patience = std::pin::pin!(futures_util::FutureExt::fuse(patience));
        let turn = self.turn(intent, Claimant::Elsewhere(id), patience).await?;
        let applied = turn.told.into_applied();
        self.remember(&applied);
        Ok(applied)
    }

    /// Extends a permit's lease.
    pub async fn renew_remotely(&self, held: Held, id: CommandId) -> Result<Applied, Error> {
        self.apply_remotely(
            held.intent,
            id,
            Action::Renew(Renew { fence: held.fence, secret: held.secret, holder: None }),
        )
        .await
    }

    /// Asks for leave to look up whether an intent in doubt happened.
    pub async fn ask_remotely(&self, intent: IntentId, id: CommandId) -> Result<Applied, Error> {
        self.apply_remotely(intent, id, Action::Ask(Ask)).await
    }

    /// Says what came of a permit. The same again is no news; something else is refused (S12).
    pub async fn settle_remotely(
        &self,
        held: Held,
        generation: u32,
        report: Report,
        id: CommandId,
    ) -> Result<Applied, Error> {
        let Held { fence, secret, .. } = held;
        let settle = Settle { fence, generation, secret, report: report.limited(ANSWER_BYTES_MAX) };
        self.apply_remotely(held.intent, id, Action::Settle(settle)).await
    }

    /// What is believed of an intent, from memory where it was claimed here.
    pub async fn believed(&self, intent: IntentId) -> Result<Option<Arc<Stored>>, Error> {
        if let Some(stored) = self.beliefs().of(intent) {
            return Ok(Some(stored));
        }
        Ok(self.store().find_id(intent).await?.map(Arc::new))
    }

    async fn apply_remotely(
        &self,
        intent: IntentId,
        id: CommandId,
        action: Action,
    ) -> Result<Applied, Error> {
        let command = Command { id, actor: self.actor().clone(), action };
        let order = match self.beliefs().of(intent) {
            Some(believed) => Order::believing(believed, command),
            None => Order::numbered(intent, command),
        };
        // In a task of its own: if the caller leaves now, what was written is told to those who wait and to owners all the same.
        let ledger = self.clone();
        let applying = tokio::spawn(async move {
            let applied = ledger.apply(order).await?;
            ledger.remember(&applied);
            Ok(applied)
        });
        match applying.await {
            Ok(applied) => applied,
            Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
        }
    }

    fn remember(&self, applied: &Applied) {
        if let Some(stored) = &applied.stored {
            match stored.record.attempt.is_some() {
                true => self.beliefs().remember(stored),
                false => self.beliefs().drop(stored.id),
            }
        }
    }
}

/// What was last heard of intents with a permit out.
#[derive(Default)]
pub(crate) struct Beliefs(Mutex<Remembered>);

#[derive(Default)]
struct Remembered {
    stored: HashMap<IntentId, Arc<Stored>>,
    /// Oldest first; may name what is gone.
    order: VecDeque<IntentId>,
}

impl Beliefs {
    fn of(&self, id: IntentId) -> Option<Arc<Stored>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).stored.get(&id).cloned()
    }

    fn drop(&self, id: IntentId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).stored.remove(&id);
    }

    fn remember(&self, stored: &Arc<Stored>) {
        let mut remembered = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if remembered.stored.insert(stored.id, stored.clone()).is_none() {
            remembered.order.push_back(stored.id);
        }
        while remembered.order.len() > BELIEFS_MAX {
            if let Some(oldest) = remembered.order.pop_front() {
                remembered.stored.remove(&oldest);
            }
        }
    }
}

/// The same ledger for somebody else: what is commanded through it is theirs.
impl Ledger {
    /// The ledger as used by `actor`.
    #[must_use]
    pub fn acting_as(&self, actor: &Actor) -> Self {
        self.with_actor(actor.clone())
    }
}
