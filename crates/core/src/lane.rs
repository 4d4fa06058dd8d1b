//! Lanes: one entity is touched by one intent at a time, and never by an older version (S15).

use std::fmt;
use std::sync::Arc;

use crate::moment::Timestamp;
use crate::name::{InvalidName, Name, text};

/// The number a store gives an intent when it first hears of it. Never used for another one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct IntentId(i64);

impl IntentId {
    /// The id with that number.
    pub const fn new(number: i64) -> Self {
        Self(number)
    }

    /// Its number.
    pub const fn number(self) -> i64 {
        self.0
    }
}

impl fmt::Display for IntentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// The shared entity, e.g. `crm:contact:881`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneName(Arc<str>);

impl LaneName {
    /// Checks and takes a name; it has the form of a key.
    pub fn new(text: &str) -> Result<Self, InvalidName> {
        Name::new("lane", text).map(|name| Self(name.key.as_str().into()))
    }
}
text!(LaneName);

/// Where an intent stands in a lane.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Place {
    /// The lane.
    pub lane: LaneName,
    /// The version of the entity this intent would write, if it has one.
    pub version: Option<i64>,
}

/// What a store knows of a lane when an intent in it is decided.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Lane {
    /// The intent being decided.
    pub me: IntentId,
    /// Who touches the entity now, or may have and nobody knows.
    pub holder: Option<IntentId>,
    /// The newest version that was applied.
    pub applied: Option<i64>,
    /// The first of the others that wait, by version, then by arrival.
    pub first_waiting: Option<Waiting>,
    /// The first of the others that wait with the version of this one, by arrival, where versions are snapshots.
    pub first_equal: Option<Waiting>,
}

impl Lane {
    /// A lane that nobody has touched.
    pub const fn untouched(me: IntentId) -> Self {
        Self { me, holder: None, applied: None, first_waiting: None, first_equal: None }
    }
}

/// An intent that waits for its lane.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Waiting {
    /// The version it would write. Those without one come first.
    pub version: Option<i64>,
    /// Which intent.
    pub intent: IntentId,
    /// Until when its place is kept.
    pub until: Timestamp,
}
