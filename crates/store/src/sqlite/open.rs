//! Opening a ledger file: is it ours, is it safe, is it up to date?

use std::ffi::CStr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rusqlite::config::DbConfig;
use rusqlite::{CachedStatement, Connection, ErrorCode, OpenFlags, TransactionBehavior};
use twicesafe_core::Timestamp;

use super::BUSY_MAX;
use super::write::NOW;
use crate::clock::Noted;
use crate::error::StoreError;
use crate::secret::{Keys, beside};
use crate::{HashKey, Options, private};

/// "TwSf" in the header of the file.
const APPLICATION_ID: i64 = 0x5477_5366;
const PAGE_BYTES: i64 = 4096;
const MIGRATIONS: &[&str] = &[include_str!("../../migrations/sqlite/0001_ledger.sql")];
const STATEMENTS_MAX: usize = 64;
const MAPPED_BYTES_MAX: i64 = 1 << 30;
const BUSY_PAUSE: Duration = Duration::from_millis(2);

/// What a ledger knows of itself.
pub(super) struct Known {
    pub(super) hash_key: HashKey,
    pub(super) keys: Keys,
    pub(super) last: Noted,
    /// The last ledger time before the machine was started.
    pub(super) before_start: Timestamp,
    /// What somebody should know of its files.
    pub(super) warnings: Vec<String>,
}

/// Opens the file for the writer, and makes or migrates it. Its path is the one of [`super::place`].
pub(super) fn writable(path: &Path, options: &Options) -> Result<(Connection, Known), StoreError> {
    let warnings = make_private(path);
    let flags =
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = connect(path, flags, twicesafe_vfs::name())?;
    check_ours(&connection, path)?;
    pragma(&connection, "page_size", PAGE_BYTES)?;
    keep_a_log(&connection)?;
    pragma(&connection, "synchronous", "FULL")?;
    pragma(&connection, "wal_autocheckpoint", 0)?;
    pragma(&connection, "cache_size", -16_384)?;
    pragma(&connection, "temp_store", "MEMORY")?;
    // What is deleted is written over, on pages that become free, too (S40).
    pragma(&connection, "secure_delete", "ON")?;
    if let Some(bytes_max) = options.bytes_max {
        pragma(&connection, "max_page_count", i64::try_from(bytes_max).unwrap_or(i64::MAX) / PAGE_BYTES)?;
    }
    let known = Known { warnings, ..migrate(&mut connection, path, options)? };
    Ok((connection, known))
}

/// Makes the file, and keeps it and what is beside it from others. SQLite gives its log and the index of that the mode of the file.
fn make_private(path: &Path) -> Vec<String> {
    private::make_empty(path);
    let of = |suffix: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        PathBuf::from(name)
    };
    let files = [path.to_owned(), of("-wal"), of("-shm"), beside(path)];
    files.iter().filter_map(|file| private::mend(file)).collect()
}

/// Opens the file for reading only.
pub(super) fn readable(path: &Path) -> Result<Connection, StoreError> {
    let connection =
        connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX, None)?;
    pragma(&connection, "query_only", 1)?;
    Ok(connection)
}

/// Whether the file is read through a map of it.
pub(super) fn map(connection: &Connection, is_mapped: bool) -> Result<(), StoreError> {
    pragma(connection, "mmap_size", if is_mapped { MAPPED_BYTES_MAX } else { 0 })
}

/// Opens the file for checkpoints.
pub(super) fn for_checkpoints(path: &Path) -> Result<Connection, StoreError> {
    let connection =
        connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX, None)?;
    pragma(&connection, "wal_autocheckpoint", 0)?;
    pragma(&connection, "synchronous", "FULL")?;
    Ok(connection)
}

/// `vfs`: how files are read and written, if not SQLite's own way.
fn connect(path: &Path, flags: OpenFlags, vfs: Option<&CStr>) -> Result<Connection, StoreError> {
    let connection = ran(match vfs {
        Some(vfs) => Connection::open_with_flags_and_vfs(path, flags, vfs),
        None => Connection::open_with_flags(path, flags),
    })?;
    ran(connection.busy_timeout(BUSY_MAX))?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
    // Plans do not depend on values here; without this SQLite plans a statement anew for every value bound to it.
    ran(connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true))?;
    // The writer decides when to copy the log; see `checkpoint`.
    ran(connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true))?;
    Ok(connection)
}

fn pragma(connection: &Connection, name: &str, value: impl rusqlite::ToSql) -> Result<(), StoreError> {
    ran(connection.pragma_update(None, name, value))
}

/// Switches to a write-ahead log. SQLite does not wait by itself when another process is switching too.
fn keep_a_log(connection: &Connection) -> Result<(), StoreError> {
    let start = Instant::now();
    loop {
        match connection.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(())) {
            Err(error) if is_busy(&error) && start.elapsed() < BUSY_MAX => std::thread::sleep(BUSY_PAUSE),
            result => return ran(result),
        }
    }
}

fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(error_code(error), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

fn check_ours(connection: &Connection, path: &Path) -> Result<(), StoreError> {
    let not_ours = || StoreError::NotOurs(path.display().to_string());
    // In one statement: another process may be making the ledger right now, and half of one looks like another program's.
    let question = "SELECT application_id, (SELECT count(*) FROM sqlite_schema) FROM pragma_application_id";
    let answer: (i64, i64) = connection
        .query_row(question, [], |row| Ok((row.get(0)?, row.get(1)?)))
        .map_err(|error| match error_code(&error) {
            Some(ErrorCode::NotADatabase) => not_ours(),
            _ => from_sqlite(error),
        })?;
    match answer {
        (APPLICATION_ID, _) | (0, 0) => Ok(()),
        _ => Err(not_ours()),
    }
}

/// Brings the schema up to date. Safe when several processes start at once: the first takes the lock, the others find
/// nothing left to do.
fn migrate(connection: &mut Connection, path: &Path, options: &Options) -> Result<Known, StoreError> {
    let known = MIGRATIONS.len() as i64;
    let version = |connection: &Connection| {
        let found: i64 = ran(connection.pragma_query_value(None, "user_version", |row| row.get(0)))?;
        if found > known { Err(StoreError::Newer { found, known }) } else { Ok(found) }
    };
    let found = version(connection)?;
    if ran(connection.is_readonly(rusqlite::MAIN_DB))? {
        // Tell at once, not only when the first claim comes.
        return Err(StoreError::ReadOnly("this user may not write the file".into()));
    }
    if found < known {
        let transaction = ran(connection.transaction_with_behavior(TransactionBehavior::Immediate))?;
        let found = version(&transaction)?;
        for migration in MIGRATIONS.iter().skip(usize::try_from(found).unwrap_or(0)) {
            ran(transaction.execute_batch(migration))?;
        }
        if found == 0 {
            let key = HashKey::random();
            let keys = Keys::of_new_file(path, options.secret.as_ref())?;
            let row = "INSERT INTO ledger (one, hash_key, sealed_key) VALUES (1, ?1, ?2)";
            ran(transaction.execute(row, (key.bytes(), keys.sealed())))?;
            let rows = "INSERT INTO tally (hour, name, n) VALUES
                (?1, 'last at', ?2), (?1, 'last tick', 0), (?1, 'last boot', 0),
                (?1, 'last intent', 0), (?1, 'start', ?3), (?1, 'before start', 0)";
            ran(transaction.execute(rows, (NOW, options.clock.system_millis(), options.clock.boot())))?;
            ran(transaction.pragma_update(None, "application_id", APPLICATION_ID))?;
        }
        ran(transaction.pragma_update(None, "user_version", known))?;
        ran(transaction.commit())?;
    }
    note_start(connection, options.clock.boot())?;
    let sql = "SELECT hash_key, sealed_key, at.n, tick.n, boot.n, before.n
        FROM ledger, tally at, tally tick, tally boot, tally before
        WHERE at.hour = ?1 AND at.name = 'last at' AND tick.hour = ?1 AND tick.name = 'last tick'
        AND boot.hour = ?1 AND boot.name = 'last boot' AND before.hour = ?1 AND before.name = 'before start'";
    let facts = connection.query_row(sql, [NOW], |row| {
        let last = noted(row.get(2)?, row.get(3)?, row.get(4)?);
        let before_start = Timestamp::from_millis(row.get(5)?);
        Ok((row.get::<_, Vec<u8>>(0)?, row.get::<_, Vec<u8>>(1)?, last, before_start))
    });
    let (hash_key, sealed, last, before_start) = ran(facts)?;
    let keys = Keys::of_file(path, options.secret.as_ref(), &sealed)?;
    Ok(Known { hash_key: HashKey::kept(&hash_key)?, keys, last, before_start, warnings: Vec::new() })
}

/// Notes when the ledger was last written before the machine was started, if it was started since: the first who opens it does.
fn note_start(connection: &mut Connection, boot: i64) -> Result<(), StoreError> {
    let is_new = |connection: &Connection| {
        let sql = "SELECT n FROM tally WHERE hour = ?1 AND name = 'start'";
        let known: i64 = ran(connection.query_row(sql, [NOW], |row| row.get(0)))?;
        Ok::<_, StoreError>(known != boot)
    };
    if !is_new(connection)? {
        return Ok(());
    }
    let transaction = ran(connection.transaction_with_behavior(TransactionBehavior::Immediate))?;
    if is_new(&transaction)? {
        let sql = "UPDATE tally SET n = (SELECT n FROM tally WHERE hour = ?1 AND name = 'last at')
            WHERE hour = ?1 AND name = 'before start'";
        ran(transaction.execute(sql, [NOW]))?;
        let sql = "UPDATE tally SET n = ?2 WHERE hour = ?1 AND name = 'start'";
        ran(transaction.execute(sql, (NOW, boot)))?;
    }
    ran(transaction.commit())
}

/// Where the clocks were when something was last written.
pub(super) fn noted(at: i64, tick: i64, boot: i64) -> Noted {
    let monotonic = Duration::from_millis(tick.unsigned_abs());
    Noted { at: Timestamp::from_millis(at), monotonic, boot, ahead: Duration::ZERO }
}

pub(super) fn prepared<'a>(connection: &'a Connection, sql: &str) -> Result<CachedStatement<'a>, StoreError> {
    ran(connection.prepare_cached(sql))
}

pub(super) fn ran<T>(result: rusqlite::Result<T>) -> Result<T, StoreError> {
    result.map_err(from_sqlite)
}

fn error_code(error: &rusqlite::Error) -> Option<ErrorCode> {
    error.sqlite_error_code()
}

fn from_sqlite(error: rusqlite::Error) -> StoreError {
    match error_code(&error) {
        Some(ErrorCode::DiskFull) => StoreError::DiskFull,
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied | ErrorCode::CannotOpen) => {
            StoreError::ReadOnly(error.to_string())
        }
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt | ErrorCode::ConstraintViolation) => {
            StoreError::Damaged(error.to_string())
        }
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            StoreError::Away(format!("another process has kept it locked for {} s", BUSY_MAX.as_secs()))
        }
        None if matches!(error, rusqlite::Error::QueryReturnedNoRows) => {
            StoreError::Damaged("a row that every ledger has is not there".into())
        }
        None if matches!(
            error,
            rusqlite::Error::InvalidColumnType(..)
                | rusqlite::Error::FromSqlConversionFailure(..)
                | rusqlite::Error::IntegralValueOutOfRange(..)
        ) =>
        {
            StoreError::Damaged(error.to_string())
        }
        _ => StoreError::Away(error.to_string()),
    }
}
