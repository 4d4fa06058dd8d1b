//! SQLite's interface to files, in front of the system's own.
#![expect(unsafe_code, reason = "SQLite hands over pointers, and takes them")]

use std::ffi::{CStr, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use rusqlite::ffi::{
    self, SQLITE_ERROR, SQLITE_FCNTL_FILE_POINTER, SQLITE_FCNTL_JOURNAL_POINTER, SQLITE_IOERR_WRITE,
    SQLITE_OK, SQLITE_OPEN_WAL, SQLITE_SYNC_DATAONLY, SQLITE_SYNC_NORMAL, sqlite3_file, sqlite3_filename,
    sqlite3_int64, sqlite3_io_methods, sqlite3_vfs,
};
use rusqlite::{Connection, Result};

use crate::gather::Gathered;

const NAME: &CStr = c"twicesafe";

/// The system's own.
static SYSTEM: AtomicPtr<sqlite3_vfs> = AtomicPtr::new(ptr::null_mut());

/// A log. SQLite gives the room for it, and behind it the room for the system's own file.
#[repr(C)]
struct Log {
    /// First, as SQLite wants it: what can be done with the file.
    file: sqlite3_file,
    /// A transaction is being committed: what is written belongs to it.
    is_committing: bool,
    gathered: Gathered,
}

/// Makes SQLite know it; who opens a file asks for it by name.
pub(crate) fn register() -> Option<&'static CStr> {
    // SAFETY: SQLite may be asked at any time, and what it answers stays.
    let system = unsafe { ffi::sqlite3_vfs_find(ptr::null()) };
    // SAFETY: it is null or what SQLite keeps, which nobody changes but for the list it is in.
    let mut ours = unsafe { system.as_ref() }.copied()?;
    SYSTEM.store(system, Ordering::Release);
    // Whatever is not about an open file is the system's, and finds what it expects.
    ours.szOsFile = c_int::try_from(size_of::<Log>()).ok()?.checked_add(ours.szOsFile)?;
    ours.pNext = ptr::null_mut();
    ours.zName = NAME.as_ptr();
    ours.xOpen = Some(open);
    // SAFETY: it is never freed.
    let registered = unsafe { ffi::sqlite3_vfs_register(Box::leak(Box::new(ours)), 0) };
    (registered == SQLITE_OK).then_some(NAME)
}

/// Commits a transaction. What that writes to the log is gathered; nothing is left of it when it is over. SQLite also writes to the log
/// before that, where a transaction does not fit into its cache: that is taken back without a word to the log, so it is not for us.
pub(crate) fn commit(connection: &Connection) -> Result<()> {
    let commit = || connection.execute_batch("COMMIT");
    let Some(file) = log_of(connection) else { return commit() };
    committing(file, true);
    let committed = commit();
    // It may be gone with what failed.
    let Some(file) = log_of(connection) else { return committed };
    committing(file, false);
    match &committed {
        Ok(()) => match write_gathered(file) {
            SQLITE_OK => {}
            failed => return Err(rusqlite::Error::SqliteFailure(ffi::Error::new(failed), None)),
        },
        Err(_) => gathered(file).clear(),
    }
    committed
}

/// Has the file of a connection synced, not its log.
pub(crate) fn sync_file(connection: &Connection) -> Result<()> {
    let file = file_of(connection, SQLITE_FCNTL_FILE_POINTER);
    let synced = file.and_then(|(file, methods)| {
        // SAFETY: it is open as long as the connection is, which does nothing else meanwhile.
        unsafe { methods.as_ref()?.xSync.map(|sync| sync(file, SQLITE_SYNC_NORMAL | SQLITE_SYNC_DATAONLY)) }
    });
    match synced.unwrap_or(SQLITE_ERROR) {
        SQLITE_OK => Ok(()),
        failed => Err(rusqlite::Error::SqliteFailure(ffi::Error::new(failed), None)),
    }
}

/// The log of a connection, if it is one of ours.
fn log_of(connection: &Connection) -> Option<*mut sqlite3_file> {
    let (file, methods) = file_of(connection, SQLITE_FCNTL_JOURNAL_POINTER)?;
    ptr::eq(methods, &METHODS).then_some(file)
}

/// One of the files of a connection, and what can be done with it.
fn file_of(connection: &Connection, which: c_int) -> Option<(*mut sqlite3_file, *const sqlite3_io_methods)> {
    let mut file: *mut sqlite3_file = ptr::null_mut();
    // SAFETY: the connection is open, and SQLite writes a pointer to where it is told to.
    let asked = unsafe {
        let to = ptr::from_mut(&mut file).cast();
        ffi::sqlite3_file_control(connection.handle(), c"main".as_ptr(), which, to)
    };
    // SAFETY: it is null or one of SQLite's files, which all begin like this.
    let methods = unsafe { file.as_ref() }.map(|file| file.pMethods)?;
    (asked == SQLITE_OK).then_some((file, methods))
}

fn committing(file: *mut sqlite3_file, is_committing: bool) {
    // SAFETY: it is a log that is open, and its connection does nothing meanwhile.
    unsafe { (*file.cast::<Log>()).is_committing = is_committing }
}

/// Opens a file: a log as ours, anything else as the system's.
unsafe extern "C" fn open(
    _: *mut sqlite3_vfs,
    name: sqlite3_filename,
    file: *mut sqlite3_file,
    flags: c_int,
    flags_out: *mut c_int,
) -> c_int {
    let system = SYSTEM.load(Ordering::Acquire);
    // SAFETY: it was found before ours was registered.
    let Some(open) = (unsafe { (*system).xOpen }) else { return SQLITE_ERROR };
    if flags & SQLITE_OPEN_WAL == 0 {
        // SAFETY: there is more room than it asks for.
        return unsafe { open(system, name, file, flags, flags_out) };
    }
    let log = file.cast::<Log>();
    // SAFETY: the room that was asked for is for a log and a file of the system's behind it.
    unsafe {
        (*file).pMethods = ptr::null();
        let opened = open(system, name, system_file(log), flags, flags_out);
        if opened == SQLITE_OK {
            let file = sqlite3_file { pMethods: &METHODS };
            log.write(Log { file, is_committing: false, gathered: Gathered::default() });
        }
        opened
    }
}

/// The system's file, behind ours.
fn system_file(log: *mut Log) -> *mut sqlite3_file {
    log.wrapping_add(1).cast()
}

static METHODS: sqlite3_io_methods = sqlite3_io_methods {
    iVersion: 1,
    xClose: Some(close),
    xRead: Some(read),
    xWrite: Some(write),
    xTruncate: Some(truncate),
    xSync: Some(sync),
    xFileSize: Some(file_size),
    xLock: Some(lock),
    xUnlock: Some(unlock),
    xCheckReservedLock: Some(check_reserved_lock),
    xFileControl: Some(file_control),
    xSectorSize: Some(sector_size),
    xDeviceCharacteristics: Some(device_characteristics),
    xShmMap: None,
    xShmLock: None,
    xShmBarrier: None,
    xShmUnmap: None,
    xFetch: None,
    xUnfetch: None,
};

/// Calls what the system's file does in place of ours.
macro_rules! system {
    ($file:ident . $method:ident ( $($argument:expr),* )) => {{
        let file = system_file($file.cast::<Log>());
        // SAFETY: it was opened, and is not closed, and SQLite gave what it asks for.
        unsafe { (*file).pMethods.as_ref().and_then(|methods| methods.$method).map(|method| method(file, $($argument),*)) }
    }};
}

/// Writes what was gathered, and goes on if that went well.
macro_rules! after_all_is_written {
    ($file:ident, $then:expr) => {
        match write_gathered($file) {
            SQLITE_OK => $then.unwrap_or(SQLITE_ERROR),
            failed => failed,
        }
    };
}

fn gathered<'a>(file: *mut sqlite3_file) -> &'a mut Gathered {
    // SAFETY: it is a log that was opened, and SQLite does one thing at a time with it.
    unsafe { &mut (*file.cast::<Log>()).gathered }
}

fn write_gathered(file: *mut sqlite3_file) -> c_int {
    let gathered = gathered(file);
    let Some((bytes, offset)) = gathered.due() else { return SQLITE_OK };
    let (start, length) = (bytes.as_ptr().cast::<c_void>(), c_int::try_from(bytes.len()));
    let Ok(length) = length else { return SQLITE_IOERR_WRITE };
    let written = system!(file.xWrite(start, length, offset));
    gathered.clear();
    written.unwrap_or(SQLITE_ERROR)
}

unsafe extern "C" fn close(file: *mut sqlite3_file) -> c_int {
    // What is left belongs to a transaction that did not end.
    let closed = system!(file.xClose());
    // SAFETY: it was written when it was opened, and nobody uses it after this.
    unsafe { ptr::drop_in_place(file.cast::<Log>()) };
    closed.unwrap_or(SQLITE_ERROR)
}

unsafe extern "C" fn write(
    file: *mut sqlite3_file,
    start: *const c_void,
    length: c_int,
    offset: sqlite3_int64,
) -> c_int {
    let Ok(bytes_length) = usize::try_from(length) else { return SQLITE_IOERR_WRITE };
    // SAFETY: SQLite says that so many bytes are there.
    let bytes = unsafe { std::slice::from_raw_parts(start.cast::<u8>(), bytes_length) };
    // SAFETY: it is a log that is open.
    let is_committing = unsafe { (*file.cast::<Log>()).is_committing };
    if !is_committing || !gathered(file).takes(bytes, offset) {
        let written = write_gathered(file);
        if written != SQLITE_OK {
            return written;
        }
    }
    let gathered = gathered(file);
    if is_committing && gathered.takes(bytes, offset) {
        gathered.push(bytes, offset);
        return SQLITE_OK;
    }
    system!(file.xWrite(start, length, offset)).unwrap_or(SQLITE_ERROR)
}

unsafe extern "C" fn read(
    file: *mut sqlite3_file,
    to: *mut c_void,
    length: c_int,
    offset: sqlite3_int64,
) -> c_int {
    after_all_is_written!(file, system!(file.xRead(to, length, offset)))
}

unsafe extern "C" fn truncate(file: *mut sqlite3_file, size: sqlite3_int64) -> c_int {
    after_all_is_written!(file, system!(file.xTruncate(size)))
}

unsafe extern "C" fn sync(file: *mut sqlite3_file, flags: c_int) -> c_int {
    after_all_is_written!(file, system!(file.xSync(flags)))
}

unsafe extern "C" fn file_size(file: *mut sqlite3_file, size: *mut sqlite3_int64) -> c_int {
    after_all_is_written!(file, system!(file.xFileSize(size)))
}

unsafe extern "C" fn lock(file: *mut sqlite3_file, level: c_int) -> c_int {
    system!(file.xLock(level)).unwrap_or(SQLITE_ERROR)
}

unsafe extern "C" fn unlock(file: *mut sqlite3_file, level: c_int) -> c_int {
    system!(file.xUnlock(level)).unwrap_or(SQLITE_ERROR)
}

unsafe extern "C" fn check_reserved_lock(file: *mut sqlite3_file, is_locked: *mut c_int) -> c_int {
    system!(file.xCheckReservedLock(is_locked)).unwrap_or(SQLITE_ERROR)
}

unsafe extern "C" fn file_control(file: *mut sqlite3_file, what: c_int, argument: *mut c_void) -> c_int {
    after_all_is_written!(file, system!(file.xFileControl(what, argument)))
}

unsafe extern "C" fn sector_size(file: *mut sqlite3_file) -> c_int {
    system!(file.xSectorSize()).unwrap_or_default()
}

unsafe extern "C" fn device_characteristics(file: *mut sqlite3_file) -> c_int {
    system!(file.xDeviceCharacteristics()).unwrap_or_default()
}
