//! Guarding an effect inside the caller's own transaction: the act, where it is a write to the same database, and the
//! record commit together or not at all.

use std::sync::Arc;

use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Transaction};
use twicesafe_core::{Verdict, WaitCause};

use super::Shared;
use super::columns::get;
use super::connect::Failure;
use super::locked::{self, Came, Candidate};
use crate::NameHash;
use crate::error::StoreError;
use crate::plan::{Applied, Order};

/// How often a decision is made anew because the intent changed meanwhile.
const DECISIONS_MAX: usize = 10;

/// Applies commands inside transactions of the caller's own, on any connection to the ledger's database.
///
/// A name that is claimed this way is kept until the transaction ends, and so is its lane: everybody else who claims it, or in
/// it, is told to wait. Keep
/// such transactions short. After an error the transaction is as it was before, and can go on; but for
/// [`StoreError::StartAgain`], after which only another transaction can.
#[derive(Clone)]
pub struct Guard {
    shared: Arc<Shared>,
}

impl Guard {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Claims an intent. With a permit, act in this transaction, then [`settle`](Self::settle) in it, then commit.
    ///
    /// What does not act here is not recorded here either (a hold, a review, a wait): the transaction ends without having acted, and what
    /// it had recorded would go with it. Nothing is kept for it then, and a verdict without a record has to be asked for outside.
    pub async fn claim(&self, transaction: &Transaction<'_>, order: Order) -> Result<Applied, StoreError> {
        self.apply(transaction, &order, true).await
    }

    /// Settles what was claimed in the same transaction.
    pub async fn settle(&self, transaction: &Transaction<'_>, order: Order) -> Result<Applied, StoreError> {
        self.apply(transaction, &order, false).await
    }

    async fn apply(
        &self,
        transaction: &Transaction<'_>,
        order: &Order,
        hold: bool,
    ) -> Result<Applied, StoreError> {
        let client = transaction.client();
        let failed = |error: tokio_postgres::Error| told(Failure::from(error));
        client.batch_execute("SAVEPOINT twicesafe").await.map_err(failed)?;
        const TAKEN_BACK: &str = "ROLLBACK TO SAVEPOINT twicesafe; RELEASE SAVEPOINT twicesafe";
        let (applied, end) = match self.inside(transaction, order, hold).await {
            Ok(applied)
                if matches!(applied.verdict, Verdict::Hold(_) | Verdict::Review | Verdict::Wait(_)) =>
            {
                let stored = applied.stored.filter(|_| !applied.changed);
                (Ok(Applied { stored, changed: false, ..applied }), TAKEN_BACK)
            }
            Ok(applied) => (Ok(applied), "RELEASE SAVEPOINT twicesafe"),
            Err(failure) => (Err(told(failure)), TAKEN_BACK),
        };
        client.batch_execute(end).await.map_err(failed)?;
        applied
    }

    async fn inside(
        &self,
        transaction: &Transaction<'_>,
        order: &Order,
        hold: bool,
    ) -> Result<Applied, Failure> {
        let client = transaction.client();
        let hash = self.shared.hash_of(order).filter(|_| hold);
        if let Some(hash) = hash
            && !self.hold(client, &hash).await?
        {
            return self.told_to_wait(client, WaitCause::Pending).await;
        }
        for _ in 0..DECISIONS_MAX {
            let found = locked::find(client, &self.shared, order).await?;
            let candidate = Candidate::new(&self.shared, order, found.as_ref());
            if let Some(lane) = candidate.lane.as_ref().filter(|_| hold) {
                let sql = self.shared.within("SELECT @ledger_hold(@ledger_lane_lock($1))");
                let row = client.query_typed_one(&sql, &[(&lane.as_str(), Type::TEXT)]).await?;
                if !get::<bool>(&row, 0)? {
                    return self.told_to_wait(client, WaitCause::Lane(None)).await;
                }
            }
            let came = locked::inside(client, &self.shared, &[&candidate]).await?;
            match came.into_iter().next() {
                Some(Came::Applied(applied)) => return Ok(applied),
                Some(Came::Kept) => return Err(Failure::InTheWay),
                Some(Came::Mistaken) | None => {}
            }
        }
        Err(Failure::InTheWay)
    }

    /// Keeps a name; false when another transaction has kept it too long. Also tells whether the transaction is where the ledger
    /// is: in another database of the server nobody would hear of the act. A copy of the whole server cannot be told from it.
    async fn hold(&self, client: &Client, hash: &NameHash) -> Result<bool, Failure> {
        let sql = self.shared.within(
            "SELECT d.oid = $2 AND l.hash_key = $3, @ledger_hold($1) FROM pg_catalog.pg_database d, @ledger l
             WHERE d.datname = pg_catalog.current_database()",
        );
        let key = self.shared.hasher.key();
        let values: [(&(dyn ToSql + Sync), Type); 3] = [
            (&locked::name_lock(hash), Type::INT8),
            (&self.shared.database, Type::OID),
            (&key.bytes(), Type::BYTEA),
        ];
        let row = match client.query_typed_opt(&sql, &values).await {
            Err(error) if error.code().is_some_and(is_nothing_of_ours) => None,
            row => row?,
        };
        match row {
            Some(row) if get(&row, 0)? => Ok(get(&row, 1)?),
            _ => Err(StoreError::OtherDatabase.into()),
        }
    }

    async fn told_to_wait(&self, client: &Client, cause: WaitCause) -> Result<Applied, Failure> {
        let now = self.shared.now(client).await?;
        Ok(locked::told_to_wait(&self.shared, now, cause))
    }
}

/// Only the caller can start its transaction again.
fn told(failure: Failure) -> StoreError {
    match failure {
        Failure::Overtaken(state) => StoreError::StartAgain(state),
        failure => failure.into_error(),
    }
}

/// Whether there is no such function, table or schema.
fn is_nothing_of_ours(code: &SqlState) -> bool {
    let missing = [SqlState::UNDEFINED_FUNCTION, SqlState::UNDEFINED_TABLE, SqlState::INVALID_SCHEMA_NAME];
    missing.contains(code)
}
