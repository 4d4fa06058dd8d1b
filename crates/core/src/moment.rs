//! Ledger time. Rules work in durations; a [`Timestamp`] only says where on the ledger's own clock something is.

use std::fmt;
use std::ops::Add;
use std::time::Duration;

/// A point on the ledger's clock, in milliseconds since the Unix epoch.
///
/// The ledger's clock belongs to the store (S10): the database's on PostgreSQL, a clock that never runs backwards on
/// SQLite. It is not the clock of the machine that asks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Timestamp(i64);

impl Timestamp {
    /// Later than anything that happens.
    pub const NEVER: Self = Self(i64::MAX);

    /// The point that many milliseconds after the Unix epoch.
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis)
    }

    /// Milliseconds since the Unix epoch.
    pub const fn as_millis(self) -> i64 {
        self.0
    }

    /// How long after `earlier` this is; zero if it is not after it.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// The point that much earlier, but not before the beginning of the type.
    pub fn minus(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(millis(span)))
    }
}

impl Add<Duration> for Timestamp {
    type Output = Self;

    fn add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(millis(span)))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

fn millis(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}

/// What the outside world contributes to a decision: the time, and one roll of the dice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Moment {
    /// Ledger time.
    pub now: Timestamp,
    /// Off while the clock is not to be trusted: after a jump beyond the store's limit nothing expires for one lease,
    /// so that holders who are alive can say so (S10).
    pub expiry: bool,
    /// Uniform over all of `u32`; spreads retries (S26).
    pub dice: u32,
    /// Set while the ledger recovers from a lost tail: since when records may be missing (S43).
    pub recovering_since: Option<Timestamp>,
}

impl Moment {
    /// An ordinary moment: expiry on, dice at zero, nothing lost.
    pub const fn at(now: Timestamp) -> Self {
        Self { now, expiry: true, dice: 0, recovering_since: None }
    }
}
