//! Moving a ledger: everything it knows, out of one store and into another of any kind.
//!
//! What goes out is a snapshot, although others go on writing. What goes in goes in as a whole or not at all, and only into
//! an empty ledger: numbers, versions, journals and the key of name hashes stay what they were, and cannot be mixed with
//! those of another ledger.

mod lines;

use bytes::Bytes;
use twicesafe_core::{IntentId, Timestamp};

pub use lines::{BadLine, FORMAT_VERSION, Header, Line, LineCodec, Totals};

use crate::error::StoreError;
use crate::plan::{JournalRow, Stored};
use crate::query::EarlierAnswer;
use crate::secret::Keys;
use crate::{HashKey, LedgerSecret, LineSeal, NameHash, memory, postgres, sqlite};

/// What a ledger knows as a whole.
#[derive(Clone, PartialEq, Eq)]
pub struct Facts {
    /// When it was looked at, in ledger time.
    pub at: Timestamp,
    /// The greatest number given to an intent: numbers are never reused.
    pub last_intent: i64,
    /// Since when records may be missing, if it recovers from a lost tail.
    pub recovering_since: Option<Timestamp>,
    /// Keys the hashes of names. A secret: who has it can find forgotten names by trying.
    pub(crate) hash_key: HashKey,
    /// What its seals are made with, sealed with its secret (S49).
    pub(crate) sealed_key: Vec<u8>,
}

impl std::fmt::Debug for Facts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Secrets are not logged (S41).
        f.debug_struct("Facts")
            .field("at", &self.at)
            .field("last_intent", &self.last_intent)
            .finish_non_exhaustive()
    }
}

impl Facts {
    /// Returns what seals the lines of an export of this ledger, for who has its secret. `None`: this is another one, or the ledger had
    /// none; then anybody can seal.
    pub fn line_seal(&self, secret: &LedgerSecret) -> Option<LineSeal> {
        let keys = Keys::unsealed(secret.clone(), &self.sealed_key)?;
        keys.have_secret().then(|| LineSeal::from(&keys))
    }
}

/// Everything a ledger knows of one intent.
#[derive(Clone, PartialEq, Debug)]
pub struct Exported {
    /// What is believed.
    pub stored: Stored,
    /// Of its name, by the ledger's key; what is left of the name of a forgotten intent. `None` in an excerpt.
    pub(crate) hash: Option<NameHash>,
    /// When to look whether it can be purged.
    pub(crate) keep_until: Timestamp,
    /// What the journal says.
    pub journal: Vec<JournalRow>,
    /// What came of earlier generations.
    pub earlier: Vec<EarlierAnswer>,
    /// What would be sent, if it was kept.
    pub request: Option<Bytes>,
}

impl Exported {
    /// The same, for an excerpt: without the hash, which means nothing without the ledger's key.
    #[must_use]
    pub fn for_excerpt(mut self) -> Self {
        self.hash = None;
        self
    }

    /// Whether it can come from a ledger with these facts, after the intent with the number `after`.
    pub fn check(&self, facts: &Facts, after: IntentId) -> Result<(), BadLine> {
        let id = self.stored.id;
        let hash = self.hash.ok_or_else(|| BadLine::new("an intent without a hash"))?;
        if id <= after || id.number() > facts.last_intent {
            return Err(BadLine::new("an intent with a number out of order"));
        }
        match &self.stored.record.name {
            Some(name) if facts.hash_key.hash(name) != hash => {
                Err(BadLine::new("a hash that does not fit its name"))
            }
            _ => Ok(()),
        }
    }
}

/// A lane: who touches its entity, and the newest version that was applied.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LaneState {
    pub(crate) name: String,
    pub(crate) holder: Option<IntentId>,
    pub(crate) applied: Option<i64>,
}

/// How often something happened in one hour.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Count {
    pub(crate) hour: i64,
    pub(crate) name: std::borrow::Cow<'static, str>,
    pub(crate) n: i64,
}

/// A ledger as it was at one moment.
pub struct Export(From);

enum From {
    Memory(memory::Snapshot),
    Sqlite(sqlite::Snapshot),
    Postgres(postgres::Snapshot),
}

impl Export {
    pub(crate) fn memory(snapshot: memory::Snapshot) -> Self {
        Self(From::Memory(snapshot))
    }

    pub(crate) fn sqlite(snapshot: sqlite::Snapshot) -> Self {
        Self(From::Sqlite(snapshot))
    }

    pub(crate) fn postgres(snapshot: postgres::Snapshot) -> Self {
        Self(From::Postgres(snapshot))
    }

    /// What the ledger knows as a whole.
    pub fn facts(&self) -> &Facts {
        match &self.0 {
            From::Memory(snapshot) => snapshot.facts(),
            From::Sqlite(snapshot) => snapshot.facts(),
            From::Postgres(snapshot) => snapshot.facts(),
        }
    }

    /// Intents after that number, in the order of numbers; of this scope, or of all below it where it ends with a slash.
    /// Fewer than `limit`: these were the last.
    pub async fn intents(
        &mut self,
        scope: Option<&str>,
        after: IntentId,
        limit: usize,
    ) -> Result<Vec<Exported>, StoreError> {
        match &mut self.0 {
            From::Memory(snapshot) => Ok(snapshot.intents(scope, after, limit)),
            From::Sqlite(snapshot) => snapshot.intents(scope, after, limit),
            From::Postgres(snapshot) => snapshot.intents(scope, after, limit).await,
        }
    }

    /// Lanes after that one, by name. Fewer than `limit`: these were the last.
    pub async fn lanes(&mut self, after: &LaneState, limit: usize) -> Result<Vec<LaneState>, StoreError> {
        match &mut self.0 {
            From::Memory(snapshot) => Ok(snapshot.lanes(&after.name, limit)),
            From::Sqlite(snapshot) => snapshot.lanes(&after.name, limit),
            From::Postgres(snapshot) => snapshot.lanes(&after.name, limit).await,
        }
    }

    /// What happened when. How many intents stand where is not among it: that follows from the intents.
    pub async fn counts(&mut self) -> Result<Vec<Count>, StoreError> {
        match &mut self.0 {
            From::Memory(snapshot) => Ok(snapshot.counts()),
            From::Sqlite(snapshot) => snapshot.counts(),
            From::Postgres(snapshot) => snapshot.counts().await,
        }
    }
}

impl LaneState {
    /// Before all lanes.
    pub const START: Self = Self { name: String::new(), holder: None, applied: None };
}

/// Some of what an import brings.
pub(crate) enum Parcel {
    Intents(Vec<Exported>),
    Lanes(Vec<LaneState>),
    Counts(Vec<Count>),
}

/// An import under way. Nothing of it is there before [`finish`](Self::finish); dropping it gives it up.
pub struct Import(Into);

enum Into {
    Memory(memory::Importing),
    Sqlite(sqlite::Importing),
    Postgres(postgres::Importing),
}

impl Import {
    pub(crate) fn memory(importing: memory::Importing) -> Self {
        Self(Into::Memory(importing))
    }

    pub(crate) fn sqlite(importing: sqlite::Importing) -> Self {
        Self(Into::Sqlite(importing))
    }

    pub(crate) fn postgres(importing: postgres::Importing) -> Self {
        Self(Into::Postgres(importing))
    }

    /// Brings intents.
    pub async fn intents(&mut self, intents: Vec<Exported>) -> Result<(), StoreError> {
        self.put(Parcel::Intents(intents)).await
    }

    /// Brings lanes.
    pub async fn lanes(&mut self, lanes: Vec<LaneState>) -> Result<(), StoreError> {
        self.put(Parcel::Lanes(lanes)).await
    }

    /// Brings counts.
    pub async fn counts(&mut self, counts: Vec<Count>) -> Result<(), StoreError> {
        self.put(Parcel::Counts(counts)).await
    }

    async fn put(&mut self, parcel: Parcel) -> Result<(), StoreError> {
        match &mut self.0 {
            Into::Memory(importing) => importing.put(parcel),
            Into::Sqlite(importing) => importing.put(parcel).await,
            Into::Postgres(importing) => importing.put(parcel).await,
        }
    }

    /// Everything was brought: from now on it is there.
    pub async fn finish(self) -> Result<(), StoreError> {
        match self.0 {
            Into::Memory(importing) => importing.finish(),
            Into::Sqlite(importing) => importing.finish().await,
            Into::Postgres(importing) => importing.finish().await,
        }
    }
}

/// Whether a scope is the one asked for, or below it where that ends with a slash.
pub(crate) fn is_within(scope: &str, asked: &str) -> bool {
    if asked.ends_with('/') { scope.starts_with(asked) } else { scope == asked }
}

pub(crate) fn unhashed() -> StoreError {
    StoreError::Damaged("an intent of an excerpt cannot be imported".into())
}
