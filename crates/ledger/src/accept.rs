//! Accepting: what the server carries out later by itself, committed before anybody is told that it was taken.

use std::sync::Arc;
use std::time::Duration;

use twicesafe_core::{Grant, Verdict};
use twicesafe_store::Stored;

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
        let accepting = intents.iter().map(|intent| self.accepted(intent, due_in));
        futures_util::future::join_all(accepting).await.into_iter().collect()
    }

    async fn accepted(&self, intent: &Intent, due_in: Duration) -> Result<Accepted, Error> {
        let applied = self.claim_applied(intent, new_command_id(), Grant::Accept { due_in }).await?;
        let is_opened = applied.changed && matches!(applied.verdict, Verdict::Wait(_));
        let is_new = is_opened && applied.stored.as_ref().is_some_and(|stored| stored.version == 1);
        Ok(Accepted { stored: applied.stored, is_new, is_opened })
    }
}
