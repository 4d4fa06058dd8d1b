//! Permits, as data. The ledger crate wraps them into a value that is consumed by settling.

use std::fmt;
use std::time::Duration;

/// Numbers the permits of an intent. It only grows, over all generations (S11).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Fence(u64);

impl Fence {
    /// The fence with that number. Numbers come from permits; anything else is stale.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Its number.
    pub const fn number(self) -> u64 {
        self.0
    }

    pub(crate) fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// What a permit is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PermitKind {
    /// To act.
    Act,
    /// To ask the destination whether an earlier attempt happened.
    Lookup,
}

/// Leave to act, or to ask, once.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Permit {
    /// For acting or for asking.
    pub kind: PermitKind,
    /// Which permit this is.
    pub fence: Fence,
    /// Which generation of the intent.
    pub generation: u32,
    /// Which attempt of this round, from 1.
    pub attempt: u32,
    /// How long the lease runs, counted from before the claim was submitted.
    pub lease: Duration,
    /// How long the first byte may still leave, counted likewise (S9).
    pub send_within: Duration,
    /// An earlier attempt may have acted: a refusal now does not mean that nothing happened (S23).
    pub doubt: bool,
    /// A newer version was applied already (S15).
    pub late: bool,
}
