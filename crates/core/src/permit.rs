//! Permits, as data. The ledger crate wraps them into a value that is consumed by settling.

use std::fmt;
use std::time::Duration;

use crate::command::Salt;
use crate::name::{Actor, Domain, put};

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

/// Proves that somebody was given a permit: told with it, and never stored (S48).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PermitSecret([u8; 16]);

impl PermitSecret {
    /// The secret with those bytes, as somebody tells it.
    pub const fn new(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    pub const fn bytes(self) -> [u8; 16] {
        self.0
    }

    /// Derives the secret of a permit from what only the ledger knows of the intent. The same permit of the same actor has the
    /// same secret, however often it is told (S12).
    pub fn of(salt: Salt, fence: Fence, generation: u32, actor: &Actor) -> Self {
        static DOMAIN: Domain = Domain::new("twicesafe permit secret v1");
        let mut hasher = DOMAIN.hasher();
        put(&mut hasher, &salt.0);
        hasher.update(&fence.number().to_be_bytes()).update(&generation.to_be_bytes());
        put(&mut hasher, actor.as_str().as_bytes());
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        Self(bytes)
    }

    /// Compares in constant time (S41).
    pub(crate) fn is(self, other: Self) -> bool {
        let differing = self.0.iter().zip(other.0).fold(0, |differing, (a, b)| differing | (a ^ b));
        std::hint::black_box(differing) == 0
    }
}

impl fmt::Debug for PermitSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PermitSecret")
    }
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
    /// Proves that it was given to whoever settles it.
    pub secret: PermitSecret,
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
