//! What a decision comes to: everything the store has to write, and everything people have to be told.

use crate::journal::Entry;
use crate::lane::{Lane, LaneName};
use crate::name::KeySuspicion;
use crate::record::Record;
use crate::verdict::Verdict;

/// What a decision comes to. The store writes `after`, `lane` and `entries` in one transaction or not at all.
#[derive(Clone, PartialEq, Debug)]
pub struct Transition {
    /// What is believed of the intent from now on.
    pub after: After,
    /// What is believed of its lane from now on, where that changed.
    pub lane: Option<Lane>,
    /// What the journal says about it.
    pub entries: Vec<Entry>,
    /// What somebody should be told.
    pub alerts: Vec<Alert>,
    /// What the caller should be told beside the verdict.
    pub notices: Vec<Notice>,
    /// What the caller is told.
    pub verdict: Verdict,
}

/// What is believed of the intent from now on.
#[derive(Clone, PartialEq, Debug)]
pub enum After {
    /// The same as before: nothing to write.
    Unchanged,
    /// This.
    Write(Box<Record>),
    /// Nothing: its tombstone is over.
    Remove,
}

/// What an owner should be told.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Alert {
    /// Somebody must say yes or no.
    Held,
    /// Nobody said yes in time.
    ApprovalExpired,
    /// Somebody must find out whether it happened.
    Review {
        /// Its lane waits until then.
        blocks: Option<LaneName>,
    },
    /// Out of attempts; nothing was sent. The next claim starts a fresh round.
    OutOfAttempts,
    /// It is open, and nothing more happens by itself (S47).
    Stuck,
    /// Two attempts report different external ids: it happened twice.
    DoubleEffect,
    /// Something else than the ledger has changed its record, which is not acted on (S49).
    Altered,
}

/// What a caller should be told beside the verdict.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Notice {
    /// The policy of the first claim stands; the one given now differs (S14).
    PolicyDiffers,
    /// The key looks as if it were made anew on every run (S6).
    SuspiciousKey(KeySuspicion),
}
