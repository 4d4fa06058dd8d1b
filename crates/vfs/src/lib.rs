//! How SQLite writes its log for Twicesafe: what a commit adds in one piece, not page by page.
//!
//! SQLite writes a page of its log with two system calls, one for the 24 bytes before it and one for the page. A batch of commands
//! changes dozens of pages, and everybody waits for its commit. So this is a VFS, the interface between SQLite and the
//! system, that hands everything on to the system's own and, while a transaction is committed, gathers consecutive writes of a log:
//! its pages are copied to one place and leave together, all but the last.
//!
//! What is gathered was promised to nobody: a transaction counts once its last page, which says that it is the last
//! (<https://sqlite.org/fileformat2.html#wal_file_format>), is in the log. That page is never gathered, and everything before it is
//! written before it. Whoever reads, measures, cuts or syncs the log through the same connection finds everything written;
//! other connections and processes look no further than the last transaction that ended. A write that fails is told by the call
//! that needed it, at the latest by the one that ends the transaction, which SQLite then takes back. When the commit is over,
//! whatever came of it, nothing is left.
//!
//! This is the one crate with unsafe code: SQLite is asked, and asks, by pointers.

mod gather;
mod shim;
#[cfg(test)]
mod tests;

use std::ffi::CStr;
use std::sync::OnceLock;

use rusqlite::Connection;

/// The name by which SQLite opens files this way; `None` where it cannot, and its own way has to do.
pub fn name() -> Option<&'static CStr> {
    static NAME: OnceLock<Option<&'static CStr>> = OnceLock::new();
    *NAME.get_or_init(shim::register)
}

/// Commits the transaction of a connection that was opened this way, or another.
pub fn commit(connection: &Connection) -> rusqlite::Result<()> {
    shim::commit(connection)
}

/// Has what was written to the file of a connection reach the disk, without a descriptor of one's own: whoever closed that would let go of
/// SQLite's locks (<https://sqlite.org/howtocorrupt.html>, 2.2).
pub fn sync(connection: &Connection) -> rusqlite::Result<()> {
    shim::sync_file(connection)
}
