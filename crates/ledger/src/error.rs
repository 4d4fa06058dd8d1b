//! Why there is no answer.

use std::time::Duration;

use twicesafe_core::{Code, InvalidName, InvalidPolicy, Refusal, Timestamp};
use twicesafe_store::StoreError;

use crate::ledger::Given;

/// Why there is no answer. Nothing held or doubtful looks like success (S27).
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The destination said no.
    #[error("the destination refused")]
    Refused(Box<Given>),
    /// Under way somewhere else, in backoff, or waiting for its lane.
    #[error("it is under way or not due yet; try again in {} ms", .retry_after.as_millis())]
    Pending {
        /// When to ask again.
        retry_after: Duration,
    },
    /// It may or may not have happened, and a person decides.
    #[error("it may or may not have happened; a person decides")]
    Review,
    /// A person must say yes first.
    #[error("a person must say yes first")]
    Held {
        /// Until when, in ledger time.
        expires_at: Timestamp,
    },
    /// The ledger refuses.
    #[error(transparent)]
    Ledger(#[from] Refusal),
    /// The store could not be read or written. Nothing was sent.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// It was sent, or may have been, and the store could not be written afterwards.
    #[error("it was sent, and what came of it is not recorded: {0}")]
    NotRecorded(StoreError),
    /// A name is not valid.
    #[error(transparent)]
    Name(#[from] InvalidName),
    /// The policy is not valid.
    #[error("policy: {0}")]
    Policy(#[from] InvalidPolicy),
    /// The stored request is over its limit.
    #[error("the request has {bytes} bytes; at most {bytes_max} can be kept")]
    TooLarge {
        /// How many it has.
        bytes: usize,
        /// How many it may have.
        bytes_max: usize,
    },
    /// The fingerprint cannot be made the way the first claim made it.
    #[error("the first claim's fingerprint was made by the recipe `{0}`, which is not known here")]
    Recipe(String),
}

impl Error {
    /// The stable code.
    pub fn code(&self) -> Code {
        match self {
            Self::Refused(_) => Code::Refused,
            Self::Pending { .. } => Code::Pending,
            Self::Review => Code::Review,
            Self::Held { .. } => Code::Held,
            Self::Ledger(refusal) => refusal.code(),
            Self::Store(error) => error.code(),
            Self::NotRecorded(_) => Code::NotRecorded,
            Self::Name(error) => error.code(),
            Self::Policy(error) => error.code(),
            Self::TooLarge { .. } => Code::InputTooLarge,
            Self::Recipe(_) => Code::Mismatch,
        }
    }
}
