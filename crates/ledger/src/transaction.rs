//! Act and record in one PostgreSQL transaction.
//!
//! Where the act is itself a write to the ledger's database, no doubt is possible: the effect and its record are committed
//! together or not at all.

use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::Transaction;
use twicesafe_core::{Action, Answer, Grant, Outcome, Report, Settle, Verdict, WaitCause};
use twicesafe_store::{Applied, Guard, Order, StoreError, Tick};

use crate::attempt::Attempt;
use crate::error::Error;
use crate::intent::Intent;
use crate::ledger::{Given, Ledger, given, new_command_id};
use crate::run::ANSWER_BYTES_MAX;
use crate::turn::RETRY_AFTER_DEFAULT;

/// Why there is no answer. Whatever it is: roll the transaction back, and nothing has happened.
#[derive(Debug, thiserror::Error)]
pub enum TransactionError<E> {
    /// The act failed.
    #[error(transparent)]
    Act(E),
    /// The ledger gave no leave, or could not be written.
    #[error(transparent)]
    Ledger(Error),
}

impl<E> TransactionError<E> {
    /// The SQLSTATE where another transaction was in the way and this one has to be started again (40001 or 40P01), as a loop
    /// that does so looks for it. The act's own errors are the caller's.
    pub fn sqlstate(&self) -> Option<&str> {
        match self {
            Self::Ledger(Error::Store(error)) => error.sqlstate(),
            Self::Ledger(_) | Self::Act(_) => None,
        }
    }
}

impl<E, T: Into<Error>> From<T> for TransactionError<E> {
    fn from(error: T) -> Self {
        Self::Ledger(error.into())
    }
}

impl Ledger {
    /// Gives the first answer of an intent whose act is part of the caller's own transaction on the ledger's database.
    ///
    /// The act writes through the same `transaction`. Commit after `Ok`, roll back after `Err`. Others who claim the
    /// intent meanwhile, or another one of its lane, are told to wait; keep the transaction short.
    ///
    /// Any isolation level will do. Where the database lets another transaction go first, [`TransactionError::sqlstate`] says so:
    /// roll back, and start the transaction again.
    ///
    /// Where a person must say yes first, the question is put on record at once, outside the transaction: it is [`Error::Held`],
    /// and after the yes another transaction with the same key acts. So is what a person has to decide, [`Error::Review`].
    ///
    /// Nobody but the caller knows whether it commits. What becomes of the intent in its transaction is therefore neither in
    /// [`Ledger::changes`] nor in [`Ledger::alarms`]; who waits for the intent finds out by looking. What time alone has decided,
    /// and a transaction met and rolled back, the next sweep records, and raises alarms for.
    ///
    /// ```no_run
    /// # async fn example(ledger: twicesafe_ledger::Ledger, client: &mut tokio_postgres::Client)
    /// #     -> Result<(), Box<dyn std::error::Error>> {
    /// use twicesafe_ledger::{Answer, Intent};
    ///
    /// let transaction = client.transaction().await?;
    /// let intent = Intent::new("shop/stock.reserve", "order:10492")?;
    /// let given = ledger
    ///     .transaction(&transaction, &intent, async |_| {
    ///         transaction.execute("UPDATE stock SET reserved = reserved + 1 WHERE item = 7", &[]).await?;
    ///         Ok::<_, tokio_postgres::Error>(Answer::of("reserved"))
    ///     })
    ///     .await?;
    /// transaction.commit().await?;
    /// # let _ = given; Ok(()) }
    /// ```
    pub async fn transaction<E>(
        &self,
        transaction: &Transaction<'_>,
        intent: &Intent,
        act: impl AsyncFnOnce(&Attempt) -> Result<Answer, E>,
    ) -> Result<Given, TransactionError<E>> {
        let guard = self.store().guard().ok_or_else(|| {
            StoreError::Address(format!("{} (a PostgreSQL ledger is needed here)", self.store().address()))
        })?;
        let started = Tick::now();
        let claimed = self.claim_inside(&guard, transaction, intent).await?;
        if claimed.stored.is_none() && is_for_others(&claimed.verdict) {
            return Ok(self.hand_over(intent).await?);
        }
        self.tell_notices(intent, &claimed);
        let (permit, stored) = match (claimed.verdict, claimed.stored) {
            (Verdict::Proceed(permit), Some(stored)) => (permit, stored),
            (verdict, stored) => return Ok(not_now(verdict, stored)?),
        };
        let attempt = Attempt::new(intent.name.clone(), permit, started, stored.clone());
        let answer = act(&attempt).await.map_err(TransactionError::Act)?;
        let permit = attempt.permit();
        let settle = Settle {
            fence: permit.fence,
            generation: permit.generation,
            secret: permit.secret,
            report: Report::Act(Outcome::Answered(answer)).limited(ANSWER_BYTES_MAX),
        };
        let command = self.command(Action::Settle(settle));
        let Applied { verdict, stored, .. } =
            guard.settle(transaction, Order::believing(stored, command)).await?;
        match (verdict, stored) {
            (Verdict::Noted(_), Some(stored)) => Ok(given(&stored, false, false)),
            (verdict, stored) => Ok(not_now(verdict, stored)?),
        }
    }

    /// Puts on record what a person must decide, or a lookup, through the ledger's own connection: the caller rolls back, and the
    /// question must not go with it. Accepted, not claimed: should somebody have said yes by now, the next transaction acts.
    async fn hand_over(&self, intent: &Intent) -> Result<Given, Error> {
        let accept = Grant::Accept { due_in: Duration::ZERO };
        let asked = self.claim_applied(intent, new_command_id(), accept).await?;
        not_now(asked.verdict, asked.stored)
    }

    async fn claim_inside(
        &self,
        guard: &Guard,
        transaction: &Transaction<'_>,
        intent: &Intent,
    ) -> Result<Applied, Error> {
        let id = new_command_id();
        let order = |command| Order::named(intent.name.clone(), command);
        let command = self.claim_command(intent, id, Grant::Permit)?;
        let mut claimed = guard.claim(transaction, order(command)).await?;
        if let Verdict::Recompute(recipe) = &claimed.verdict {
            let command = self.claim_command_by(recipe, intent, id, Grant::Permit)?;
            claimed = guard.claim(transaction, order(command)).await?;
        }
        Ok(claimed)
    }
}

/// Whether somebody else has to do something about it first.
fn is_for_others(verdict: &Verdict) -> bool {
    match verdict {
        Verdict::Hold(_) | Verdict::Review => true,
        Verdict::Wait(wait) => matches!(wait.cause, WaitCause::LookupDue | WaitCause::NotDue),
        _ => false,
    }
}

/// What a claim without a permit is told.
fn not_now(verdict: Verdict, stored: Option<Arc<twicesafe_store::Stored>>) -> Result<Given, Error> {
    match (verdict, stored) {
        (Verdict::Replay(replay), Some(stored)) if !replay.refused => {
            Ok(given(&stored, true, replay.mismatch))
        }
        (Verdict::Replay(replay), Some(stored)) => {
            Err(Error::Refused(Box::new(given(&stored, true, replay.mismatch))))
        }
        (Verdict::Hold(hold), _) => Err(Error::Held { expires_at: hold.expires_at }),
        (Verdict::Review, _) => Err(Error::Review),
        (Verdict::Refuse(refusal), _) => Err(refusal.into()),
        (Verdict::Recompute(recipe), _) => Err(Error::Recipe(recipe.as_str().to_owned())),
        _ => Err(Error::Pending { retry_after: RETRY_AFTER_DEFAULT }),
    }
}
