//! The ledger in a PostgreSQL database shared by several machines.

pub(crate) mod guard;

use bytes::Bytes;
use twicesafe_core::{IntentId, Name, Status, Timestamp};

use crate::error::StoreError;
use crate::plan::{Applied, JournalRow, Order, Stored};
use crate::query::{Cursor, EarlierAnswer, Path};

pub(crate) struct Postgres;

impl Postgres {
    pub(crate) async fn open(_url: &str) -> Result<Self, StoreError> {
        Err(StoreError::Away("x".into()))
    }
    pub(crate) async fn submit(&self, _order: Order) -> Result<Applied, StoreError> {
        Err(StoreError::Away("x".into()))
    }
    pub(crate) async fn by_name(&self, _n: &Name) -> Result<Option<Stored>, StoreError> {
        Ok(None)
    }
    pub(crate) async fn by_id(&self, _n: IntentId) -> Result<Option<Stored>, StoreError> {
        Ok(None)
    }
    pub(crate) async fn journal(&self, _n: IntentId) -> Result<Vec<JournalRow>, StoreError> {
        Ok(vec![])
    }
    pub(crate) async fn earlier(&self, _n: IntentId) -> Result<Vec<EarlierAnswer>, StoreError> {
        Ok(vec![])
    }
    pub(crate) async fn request(&self, _n: IntentId) -> Result<Option<Bytes>, StoreError> {
        Ok(None)
    }
    pub(crate) async fn page(
        &self,
        _p: &Path,
        _a: Option<Cursor>,
        _l: usize,
    ) -> Result<Vec<(Stored, Cursor)>, StoreError> {
        Ok(vec![])
    }
    pub(crate) async fn scopes(&self, _p: &str, _l: usize) -> Result<Vec<String>, StoreError> {
        Ok(vec![])
    }
    pub(crate) async fn awake(
        &self,
        _s: Status,
        _n: Timestamp,
        _l: usize,
    ) -> Result<Vec<IntentId>, StoreError> {
        Ok(vec![])
    }
    pub(crate) async fn due(
        &self,
        _s: Status,
        _n: Timestamp,
        _l: usize,
    ) -> Result<Vec<IntentId>, StoreError> {
        Ok(vec![])
    }
    pub(crate) async fn kept_too_long(&self, _n: Timestamp, _l: usize) -> Result<Vec<IntentId>, StoreError> {
        Ok(vec![])
    }
    pub(crate) async fn keep_until(&self, _u: Vec<(IntentId, Timestamp)>) -> Result<(), StoreError> {
        Ok(())
    }
    pub(crate) async fn tallies(&self, _f: i64, _t: i64) -> Result<Vec<(String, i64)>, StoreError> {
        Ok(vec![])
    }
    pub(crate) async fn flush(&self) -> Result<(), StoreError> {
        Ok(())
    }
    pub(crate) async fn recover_since(&self, _s: Option<Timestamp>) -> Result<(), StoreError> {
        Ok(())
    }
    pub(crate) async fn recovering_since(&self) -> Result<Option<Timestamp>, StoreError> {
        Ok(None)
    }
    pub(crate) async fn now(&self) -> Result<Timestamp, StoreError> {
        Ok(Timestamp::default())
    }
    pub(crate) async fn versions(&self, _ids: &[IntentId]) -> Result<Vec<(IntentId, i64)>, StoreError> {
        Ok(vec![])
    }
    pub(crate) fn guard(&self) -> guard::Guard {
        guard::Guard
    }
}
