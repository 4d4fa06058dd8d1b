//! What can go wrong with a store.

use twicesafe_core::Code;

/// Why a store could not do what it was asked. Whatever it says: nothing was half done.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// It cannot be reached right now.
    #[error("the ledger cannot be reached: {0}")]
    Away(String),
    /// The file or database belongs to something else.
    #[error("{0} is not a Twicesafe ledger")]
    NotOurs(String),
    /// Made by a newer version.
    #[error("the ledger has schema version {found}; this program knows versions up to {known}")]
    Newer {
        /// The ledger's version.
        found: i64,
        /// The newest one known here.
        known: i64,
    },
    /// It cannot be written.
    #[error("the ledger cannot be written: {0}")]
    ReadOnly(String),
    /// There is no room.
    #[error("there is no room left for the ledger")]
    DiskFull,
    /// On a file system that does not keep SQLite's promises.
    #[error("{path} is on a network file system ({kind})")]
    NetworkFileSystem {
        /// The ledger's file.
        path: String,
        /// The kind of file system.
        kind: String,
    },
    /// Reached under more than one name, each of which would have a log of its own.
    #[error("{path} has a second name: {how}")]
    SecondName {
        /// The ledger's file.
        path: String,
        /// Why it has one.
        how: &'static str,
    },
    /// Its secret is not there, or is another one.
    #[error("{place}: {why}")]
    Secret {
        /// Where it is looked for.
        place: String,
        /// What is wrong with it.
        why: String,
    },
    /// Set up to lose what it acknowledged (S42).
    #[error("the database has {0}, and would lose what it acknowledged")]
    UnsafeDurability(String),
    /// Its texts could not be stored there.
    #[error("the database has the encoding {0}, and cannot hold every text")]
    Encoding(String),
    /// It lacks what the ledger uses; by its number.
    #[error("the server is PostgreSQL {0}, and the ledger needs 14 (140000) or newer")]
    TooOld(String),
    /// There is no place in it for tables.
    #[error("no schema of the search path of {0} exists, or may be used")]
    NoSchema(String),
    /// The caller's own transaction is somewhere else.
    #[error("the transaction is on another database than the ledger")]
    OtherDatabase,
    /// The caller's own transaction gave way to another one; by SQLSTATE.
    #[error("another transaction was in the way, and this one has to be started again ({0})")]
    StartAgain(String),
    /// The line to the database is not as safe as its address asks for.
    #[error("the connection to the database is not as safe as was asked for: {0}")]
    NotTrusted(String),
    /// Something is in it that cannot be.
    #[error("the ledger is damaged: {0}")]
    Damaged(String),
    /// A record, or what belongs to it, is not as the ledger wrote it (S49).
    #[error("{0} was changed by something else than Twicesafe")]
    Altered(String),
    /// A value that the database cannot hold. It is not shown: it may be a secret.
    #[error("the database cannot hold a value ({0})")]
    Value(String),
    /// The address is not understood.
    #[error("`{0}` is not the address of a ledger")]
    Address(String),
    /// Something is in it already.
    #[error("the ledger is not empty")]
    NotEmpty,
    /// Too much waits already.
    #[error("{0} commands are waiting for the ledger already")]
    Overloaded(usize),
}

impl StoreError {
    /// The stable code.
    pub fn code(&self) -> Code {
        match self {
            Self::Away(_) => Code::LedgerAway,
            Self::NotOurs(_) => Code::LedgerNotOurs,
            Self::Newer { .. } => Code::LedgerNewer,
            Self::ReadOnly(_) => Code::LedgerReadOnly,
            Self::DiskFull => Code::DiskFull,
            Self::NetworkFileSystem { .. } => Code::NetworkFileSystem,
            Self::SecondName { .. } => Code::LedgerSecondName,
            Self::Secret { .. } => Code::LedgerSecret,
            Self::UnsafeDurability(_) => Code::UnsafeDurability,
            Self::Encoding(_) | Self::NoSchema(_) | Self::TooOld(_) => Code::LedgerUnfit,
            Self::OtherDatabase => Code::OtherDatabase,
            Self::StartAgain(_) => Code::StartAgain,
            Self::NotTrusted(_) => Code::LedgerNotTrusted,
            Self::Damaged(_) => Code::LedgerDamaged,
            Self::Altered(_) => Code::RecordAltered,
            Self::Value(_) => Code::ValueRefused,
            Self::Address(_) => Code::LedgerAddress,
            Self::NotEmpty => Code::LedgerNotEmpty,
            Self::Overloaded(_) => Code::Overloaded,
        }
    }

    /// The SQLSTATE of the database, where a caller's own transaction failed in a way that callers have a remedy for: starting it
    /// again.
    pub fn sqlstate(&self) -> Option<&str> {
        match self {
            Self::StartAgain(state) => Some(state),
            _ => None,
        }
    }

    /// What to do about it, in one sentence. Whether anything was sent is for those to say who know what was asked for (S20).
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Away(_) => "Check that the database is up and reachable, then send the same again.",
            Self::NotOurs(_) => "Name another file or database, or move the other program's data away.",
            Self::Newer { .. } => {
                "Run the newer version of Twicesafe; ledgers are not taken back to older ones."
            }
            Self::ReadOnly(_) => "Give this user write access to the file and its folder, or to the tables.",
            Self::DiskFull => "Make room on the ledger's disk, then send the same again.",
            Self::NetworkFileSystem { .. } => {
                "Put the ledger on a local disk, or use PostgreSQL to share it."
            }
            Self::SecondName { .. } => {
                "Mount the folder, not the file; remove hard links, and use symbolic ones instead."
            }
            Self::Secret { .. } => {
                "Bring the secret from where the ledger was: the file <ledger>.secret, or secret: and TWICESAFE_SECRET."
            }
            Self::UnsafeDurability(_) => "Set fsync, full_page_writes and synchronous_commit to on.",
            Self::Encoding(_) => {
                "Create a database with ENCODING 'UTF8' for the ledger, and name that one in the address."
            }
            Self::TooOld(_) => "Upgrade the server, or put the ledger on another one.",
            Self::NoSchema(_) => {
                "Create a schema for the ledger that its user may use, or name one that exists in search_path."
            }
            Self::OtherDatabase => "Connect the client to the same server and database as the ledger.",
            Self::StartAgain(_) => "Roll the transaction back and start it again from the beginning.",
            Self::NotTrusted(_) => {
                "Compare sslmode, sslrootcert, sslcert and sslkey in the address with what the server shows."
            }
            Self::Damaged(_) => "Stop writers, keep a copy, and restore the last good backup.",
            Self::Altered(_) => "Copy the ledger, then find out who wrote to it: twicesafe journal verify.",
            Self::Value(_) => {
                "Nothing was stored. Look for NUL characters and absurd numbers in what was given."
            }
            Self::Address(_) => "Use sqlite:PATH, postgres://USER@HOST/DATABASE or memory:.",
            Self::NotEmpty => "Nothing was imported. Name a ledger that does not exist yet.",
            Self::Overloaded(_) => "Slow down, or look why the ledger's disk or database has become slow.",
        }
    }
}
