//! Where Twicesafe keeps what it knows: SQLite, PostgreSQL or memory, behind one [`Store`].
//!
//! A store loads what is believed of an intent, lets [`twicesafe_core::decide`] decide, and writes the result and its
//! journal in one transaction. It knows no rule itself. Commands that arrive together share a transaction and a sync.
//!
//! A caller may hand in what it believes ([`Order::believed`]); the store then decides without reading, and writes only
//! if the version is still that one. A first claim believes that there is nothing.

mod address;
mod clock;
mod codec;
mod error;
mod memory;
mod name_hash;
mod plan;
mod postgres;
mod private;
mod query;
mod remembered;
mod reply;
mod scan;
mod seal;
mod secret;
mod sqlite;
mod store;
mod tally;
mod transfer;
mod watch;

use std::sync::Arc;

pub(crate) use name_hash::{HashKey, NameHash, NameHasher};

pub use address::Address;
pub use clock::{CLOCK_JUMP_MAX, CLOCK_SET_MAX, Clock, ManualClock, SystemClock, Tick};
pub use error::StoreError;
pub use plan::{Applied, JournalRow, Order, Stored, Target};
pub use postgres::guard::Guard;
pub use query::{Cursor, Dossier, DueIntent, EarlierAnswer, Filter, PAGE_MAX, Page, SCOPES_MAX};
pub use scan::{SCAN_MAX, SCATTERED_MAX};
pub use seal::LineSeal;
pub use secret::{LedgerSecret, SECRET_BYTES_MIN};
pub use store::{JournalFault, Store};
pub use tally::Statistics;
pub use transfer::{
    BadLine, Count, Export, Exported, FORMAT_VERSION, Facts, Header, Import, LaneState, Line, LineCodec,
    Totals,
};

/// Most commands that wait for a store; more are refused.
pub const QUEUE_MAX: usize = 65_536;
/// Most commands in one transaction.
pub const BATCH_MAX: usize = 512;

/// How a store is opened.
#[derive(Clone)]
pub struct Options {
    /// The machine's clocks. A shared database has its own.
    pub clock: Arc<dyn Clock>,
    /// The size a SQLite ledger may grow to; beyond it nothing is taken any more, as with a full disk.
    pub bytes_max: Option<u64>,
    /// Most commands in one SQLite transaction.
    pub batch_max: usize,
    /// Keep what was settled or replayed lately in memory, up to 64 MB. For processes that stay: for a SQLite ledger it takes two
    /// file descriptors until the process ends.
    pub remember: bool,
    /// The ledger's secret. Without it a SQLite ledger has one in a file beside it, and a PostgreSQL ledger none.
    pub secret: Option<LedgerSecret>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            clock: Arc::new(SystemClock::default()),
            bytes_max: None,
            batch_max: BATCH_MAX,
            remember: false,
            secret: None,
        }
    }
}

/// Random bytes from the system.
pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("a system without randomness cannot run anything safely");
    bytes
}

/// The dice that spread retries. Cheap rather than unpredictable, and different in every process.
pub(crate) struct Dice(std::sync::atomic::AtomicU64);

impl Dice {
    pub(crate) fn new() -> Self {
        Self(u64::from_be_bytes(random()).into())
    }

    pub(crate) fn roll(&self) -> u32 {
        let state = self.0.fetch_add(0x9E37_79B9_7F4A_7C15, std::sync::atomic::Ordering::Relaxed);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        ((mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB) >> 32) as u32
    }
}
