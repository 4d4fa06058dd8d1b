//! Act and record in one PostgreSQL transaction.
/// placeholder
#[derive(Debug, thiserror::Error)]
#[error("x")]
pub struct TransactionError;
