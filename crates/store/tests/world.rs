//! A ledger to test: a kind of store, a place of its own for it, and a way to let time pass.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rusqlite::types::Value;
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use twicesafe_core::{Lookup, Policy, Recovery};
use twicesafe_store::{Address, Applied, ManualClock, Options, Order, Store, SystemClock};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Memory,
    Sqlite,
    /// SQLite that keeps what was replayed lately in memory.
    Remembering,
    Postgres,
    /// PostgreSQL behind a pooler; what was settled or replayed lately is kept in memory.
    PgBouncer,
}

/// One ledger, opened twice: commands go through `store`, and `other` sees what came of them.
pub struct World {
    pub kind: Kind,
    pub store: Store,
    pub other: Store,
    /// The unit of time for policies: long where time passes on command, short where one has to sleep.
    pub tick: Duration,
    /// The clock of the stores, where they do not have the database's.
    pub clock: Option<Arc<ManualClock>>,
    pub place: Place,
}

/// Where the ledger is kept; gone with the world.
pub enum Place {
    Memory,
    Folder(Folder),
    Database(Database),
}

/// Any time will do, as long as it is not the first hours of the epoch.
const START_MILLIS: i64 = 1_790_000_000_000;

impl World {
    pub async fn new(kind: Kind) -> Self {
        Self::at(kind, None).await
    }

    /// Another ledger, of any kind, that goes before this one does.
    pub async fn beside(&self, kind: Kind) -> Self {
        Self::at(kind, Some(&self.place)).await
    }

    async fn at(kind: Kind, beside: Option<&Place>) -> Self {
        let place = match (kind, beside) {
            (Kind::Memory, _) => Place::Memory,
            (Kind::Sqlite | Kind::Remembering, _) => Place::Folder(Folder::new()),
            // The other one takes part already; to ask twice would be to wait for oneself.
            (_, Some(Place::Database(_))) => Place::Database(Database::create_in_turn(None).await),
            (Kind::Postgres | Kind::PgBouncer, _) => Place::Database(Database::create().await),
        };
        let clock = matches!(kind, Kind::Memory | Kind::Sqlite | Kind::Remembering)
            .then(|| Arc::new(ManualClock::at(START_MILLIS)));
        let tick = Duration::from_millis(if clock.is_some() { 10_000 } else { 400 });
        let address = place.address(kind);
        let store = open(kind, &address, &clock).await;
        let other = if kind == Kind::Memory { store.clone() } else { open(kind, &address, &clock).await };
        Self { kind, store, other, tick, clock, place }
    }

    /// Another store on the same ledger, as after a restart.
    pub async fn open(&self) -> Store {
        match self.kind {
            Kind::Memory => self.store.clone(),
            _ => open(self.kind, &self.address(), &self.clock).await,
        }
    }

    pub fn address(&self) -> Address {
        self.place.address(self.kind)
    }

    /// Lets time pass.
    pub async fn pass(&self, span: Duration) {
        match &self.clock {
            Some(clock) => clock.advance(span),
            None => tokio::time::sleep(span + Duration::from_millis(5)).await,
        }
    }

    /// A policy whose times are a few ticks, so that they can be waited for.
    pub fn policy(&self, recovery: Recovery) -> Policy {
        Policy {
            lease: self.tick * 4,
            act_max: self.tick * 8,
            in_flight_max: self.tick * 2,
            backoff: twicesafe_core::Backoff { base: Duration::ZERO, cap: self.tick * 10 },
            ..Policy::new(recovery)
        }
    }

    pub fn lookup(&self) -> Lookup {
        Lookup { lag: self.tick, lookup_for: self.tick * 20 }
    }

    /// Applies a command, and checks that what is stored is what was decided, field for field, and that the journal
    /// fits (S40).
    pub async fn tell(&self, order: impl Into<Order>) -> Applied {
        let applied = self.store.apply_one(order.into()).await.expect("nothing is wrong with the store");
        if let Some(stored) = &applied.stored {
            let found = self.other.find_id(stored.id).await.unwrap();
            assert_eq!(found.as_ref(), Some(&**stored));
            assert_eq!(self.other.verify_journal(stored).await.unwrap(), None);
        }
        applied
    }

    /// Changes the database behind the store's back.
    pub async fn sql(&self, statements: &str) {
        self.try_sql(statements).await.unwrap();
    }

    pub async fn try_sql(&self, statements: &str) -> Result<(), String> {
        match &self.place {
            Place::Memory => panic!("memory has no tables"),
            Place::Folder(folder) => {
                let connection = rusqlite::Connection::open(folder.ledger()).unwrap();
                connection.execute_batch(statements).map_err(|error| error.to_string())
            }
            Place::Database(database) if statements.contains(" journal ") => {
                let (unfold, fold) = (include_str!("journal/unfold.sql"), include_str!("journal/fold.sql"));
                database.try_run(&format!("{unfold}{statements}{fold}")).await
            }
            Place::Database(database) => database.try_run(statements).await,
        }
    }

    /// Where what is meant is not the same in every database.
    pub async fn sql_of(&self, sqlite: &str, postgres: &str) {
        let in_database = matches!(self.place, Place::Database(_));
        self.sql(if in_database { postgres } else { sqlite }).await;
    }

    /// Everything in every table, as text.
    pub async fn dump(&self) -> String {
        match &self.place {
            Place::Memory => panic!("memory has no tables"),
            Place::Folder(folder) => folder.dump(),
            Place::Database(database) => database.dump().await,
        }
    }

    /// Goes away with everything it kept.
    pub async fn end(self) {
        let Self { store, other, place, .. } = self;
        drop((store, other));
        if let Place::Database(database) = place {
            database.delete().await;
        }
    }
}

async fn open(kind: Kind, address: &Address, clock: &Option<Arc<ManualClock>>) -> Store {
    let remember = matches!(kind, Kind::Remembering | Kind::PgBouncer);
    let options = match clock {
        Some(clock) => Options { clock: clock.clone(), remember, ..Options::default() },
        None => Options { clock: Arc::new(SystemClock::default()), remember, ..Options::default() },
    };
    Store::open(address, options).await.expect("the ledger opens")
}

impl Place {
    pub fn address(&self, kind: Kind) -> Address {
        match self {
            Self::Memory => Address::Memory,
            Self::Folder(folder) => Address::Sqlite(folder.ledger()),
            Self::Database(database) if kind == Kind::PgBouncer => {
                Address::Postgres(at(&pgbouncer_url(), &database.name))
            }
            Self::Database(database) => Address::Postgres(database.url()),
        }
    }
}

/// A folder for the time of a test.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Self {
        let path = std::env::temp_dir().join(unique_name());
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn ledger(&self) -> PathBuf {
        self.0.join("ledger.db")
    }

    fn dump(&self) -> String {
        let connection = rusqlite::Connection::open(self.ledger()).unwrap();
        let mut tables = connection.prepare("SELECT name FROM sqlite_schema WHERE type = 'table'").unwrap();
        let tables: Vec<String> =
            tables.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
        let mut dump = String::new();
        for table in tables {
            let mut select = connection.prepare(&format!("SELECT * FROM {table}")).unwrap();
            let columns = select.column_count();
            let mut rows = select.query([]).unwrap();
            while let Some(row) = rows.next().unwrap() {
                for column in 0..columns {
                    dump.push_str(&match row.get(column).unwrap() {
                        Value::Blob(bytes) => bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
                        Value::Text(text) => text,
                        other => format!("{other:?}"),
                    });
                    dump.push('\n');
                }
            }
        }
        dump
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A PostgreSQL database for the time of a test.
pub struct Database {
    name: String,
    _others_too: Option<RwLockReadGuard<'static, ()>>,
}

/// Held by everybody who uses PostgreSQL; alone by who restarts it.
static TURNS: RwLock<()> = RwLock::const_new(());

/// Waits until nobody else uses PostgreSQL, and keeps them from it.
pub async fn alone() -> RwLockWriteGuard<'static, ()> {
    TURNS.write().await
}

impl Database {
    pub async fn create() -> Self {
        Self::create_in_turn(Some(TURNS.read().await)).await
    }

    /// With such options of `CREATE DATABASE`.
    pub async fn create_with(options: &str) -> Self {
        Self::create_so(options, Some(TURNS.read().await)).await
    }

    /// For who is [`alone`].
    pub async fn create_alone(_: &RwLockWriteGuard<'static, ()>) -> Self {
        Self::create_in_turn(None).await
    }

    async fn create_in_turn(others_too: Option<RwLockReadGuard<'static, ()>>) -> Self {
        Self::create_so("", others_too).await
    }

    async fn create_so(options: &str, _others_too: Option<RwLockReadGuard<'static, ()>>) -> Self {
        let name = unique_name();
        let statement = format!("CREATE DATABASE {name} {options}");
        connect(&postgres_url()).await.batch_execute(&statement).await.unwrap();
        Self { name, _others_too }
    }

    /// Lets others be [`alone`] meanwhile; the database may go away until [`back`](Self::back).
    pub fn left(self) -> Self {
        Self { _others_too: None, ..self }
    }

    pub async fn back(self) -> Self {
        Self { _others_too: Some(TURNS.read().await), ..self }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn url(&self) -> String {
        at(&postgres_url(), &self.name)
    }

    /// Runs statements in it.
    pub async fn run(&self, statements: &str) {
        self.try_run(statements).await.unwrap();
    }

    pub async fn try_run(&self, statements: &str) -> Result<(), String> {
        let said = |error: tokio_postgres::Error| error.as_db_error().unwrap().message().to_owned();
        connect(&self.url()).await.batch_execute(statements).await.map_err(said)
    }

    async fn dump(&self) -> String {
        let client = connect(&self.url()).await;
        let mut dump = String::new();
        let tables = "SELECT tablename FROM pg_tables WHERE schemaname = 'public'";
        for table in client.query(tables, &[]).await.unwrap() {
            let table: &str = table.get(0);
            for row in client.query(&format!("SELECT t::text FROM {table} t"), &[]).await.unwrap() {
                dump.push_str(row.get(0));
                dump.push('\n');
            }
        }
        dump
    }

    pub async fn delete(self) {
        let statement = format!("DROP DATABASE {} WITH (FORCE)", self.name);
        connect(&postgres_url()).await.batch_execute(&statement).await.unwrap();
    }
}

async fn connect(url: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

pub fn postgres_url() -> String {
    needed("TWICESAFE_TEST_POSTGRES")
}

fn pgbouncer_url() -> String {
    needed("TWICESAFE_TEST_PGBOUNCER")
}

pub fn needed(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| {
        panic!("{variable} is not set: run scripts/test, which starts PostgreSQL and PgBouncer")
    })
}

/// The same server, another database.
pub fn at(url: &str, database: &str) -> String {
    let (server, _) = url.rsplit_once('/').expect("an address ends with a database");
    format!("{server}/{database}")
}

fn unique_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("twicesafe_{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}
