//! Accepting: what the server carries out later by itself, committed before anybody is told that it was taken.

use std::sync::Arc;
use std::time::Duration;

use twicesafe_core::{Grant, Verdict};
use twicesafe_store::{Applied, Order, Stored};

use crate::error::Error;
use crate::intent::Intent;
use crate::ledger::{Ledger, new_command_id};

/// What accepting came to.
#[derive(Clone, Debug)]
pub struct Accepted {
    /// What is believed of the intent now.
    pub stored: Option<Arc<Stored>>,
    /// The ledger had not heard of it.
    pub is_new: bool,
    /// It is to be carried out, and was not before: it is new, or was reopened.
    pub is_opened: bool,
}

impl Ledger {
    /// Accepts intents without acting on any. Whatever is known of one already, it stays so; accepting is no error then.
    /// Those given together share a commit where they can; the first that could not be stored is the error.
    pub async fn accept_all(&self, intents: &[Intent], due_in: Duration) -> Result<Vec<Accepted>, Error> {
        let grant = Grant::Accept { due_in };
        if let [only] = intents {
            return Ok(vec![Self::accepted(self.claim_applied(only, new_command_id(), grant).await?)]);
        }
        let order = |intent: &Intent| {
            Ok(Order::named(intent.name.clone(), self.claim_command(intent, new_command_id(), grant)?))
        };
        let orders = intents.iter().map(order).collect::<Result<Vec<_>, Error>>()?;
        // Together, so that those of one lane stand in it in their order.
        let results = self.store().apply(orders).await;
        let mut all = Vec::with_capacity(intents.len());
        for (intent, applied) in intents.iter().zip(results) {
            let applied = applied?;
            all.push(match &applied.verdict {
                // Somebody described the inbox otherwise since it came first.
                Verdict::Recompute(_) => {
                    Self::accepted(self.claim_applied(intent, new_command_id(), grant).await?)
                }
                _ => {
                    self.raise(&applied);
                    self.tell_notices(intent, &applied);
                    Self::accepted(applied)
                }
            });
        }
        Ok(all)
    }

    fn accepted(applied: Applied) -> Accepted {
        let is_opened = applied.changed && matches!(applied.verdict, Verdict::Wait(_));
        let is_new = is_opened && applied.stored.as_ref().is_some_and(|stored| stored.version == 1);
        Accepted { stored: applied.stored, is_new, is_opened }
    }
}
