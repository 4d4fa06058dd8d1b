//! Moving what was written from the log into the file, without making anyone wait.
//!
//! A thread of its own copies while writes go on; the writer copies the last few pages between two batches, after which
//! the log starts anew. Left to itself SQLite would copy everything inside some unlucky caller's commit, or, with
//! everything in the background, never reach the end of a log that grows meanwhile.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rusqlite::Connection;

use super::BUSY_MAX;
use super::open::{for_checkpoints, ran};
use crate::error::StoreError;

/// Batches between two looks at the size of the log.
const BATCHES_BETWEEN: u32 = 16;
/// Pages in the log that start a checkpoint: usually, and while many write (then some 200 MB). A longer one has more pages in it twice, which
/// are copied once: in a large ledger those of the index of names. But a file that grows is slow to sync, which one who writes
/// alone would feel, and whoever opens the ledger after a crash reads all of it.
const LOG_PAGES_START: i64 = 4096;
const LOG_PAGES_START_BUSY: i64 = 49_152;
/// So many commands a batch are many.
const COMMANDS_BUSY: usize = 8;
/// Pages left in the log when the last one closes the file.
const LOG_PAGES_LEFT_BEHIND_MAX: i64 = 256;
/// Pages that the writer copies itself.
const PAGES_LEFT_MAX: i64 = 256;
/// Rounds in the background before the writer finishes whatever is left.
const ROUNDS_MAX: u32 = 8;

const IDLE: u8 = 0;
const COPYING: u8 = 1;
const NEARLY_DONE: u8 = 2;
/// The disk failed. What was copied may be lost, and the system would not say so again: nothing is copied any more, so that
/// the log keeps everything, and whoever opens the ledger after all have closed it copies it all again.
const GIVEN_UP: u8 = 3;

pub(super) struct Checkpointer {
    path: PathBuf,
    state: Arc<AtomicU8>,
    stopping: Arc<AtomicBool>,
    /// Started when there is first something to copy.
    thread: Option<JoinHandle<()>>,
    /// Batches since the last look, and commands in them.
    batches: u32,
    commands: usize,
    /// The log holds what was forgotten, until it is emptied.
    must_empty: bool,
}

impl Checkpointer {
    pub(super) fn new(path: &Path) -> Self {
        let (state, stopping) = (Arc::new(AtomicU8::new(IDLE)), Arc::default());
        Self {
            path: path.to_owned(),
            state,
            stopping,
            thread: None,
            batches: 0,
            commands: 0,
            must_empty: false,
        }
    }

    /// So many commands were in a batch.
    pub(super) fn written(&mut self, commands: usize) {
        self.commands += commands;
    }

    /// Something was forgotten or removed: the log is emptied as soon as nobody reads what was before (S40). Says whether that is
    /// still to do.
    pub(super) fn must_empty(&self) -> bool {
        self.must_empty
    }

    pub(super) fn has_forgotten(&mut self) {
        self.must_empty = true;
    }

    /// Called by the writer between two batches.
    pub(super) fn after_batch(&mut self, connection: &Connection) {
        self.batches += 1;
        match self.state.load(Ordering::Acquire) {
            NEARLY_DONE => {
                // What cannot be copied now is copied in the next round.
                let state = if has_failed(&self.finish(connection)) { GIVEN_UP } else { IDLE };
                self.state.store(state, Ordering::Release);
            }
            IDLE if self.must_empty => self.copy_in_background(),
            IDLE if self.batches >= BATCHES_BETWEEN => {
                let is_busy = self.commands >= COMMANDS_BUSY * self.batches as usize;
                (self.batches, self.commands) = (0, 0);
                let start = if is_busy { LOG_PAGES_START_BUSY } else { LOG_PAGES_START };
                if left(connection, "NOOP").is_ok_and(|left| left >= start) {
                    self.copy_in_background();
                }
            }
            GIVEN_UP => self.must_empty = false,
            _ => {}
        }
    }

    /// Copies the last pages, and empties the log where it must be: unless somebody still reads from it, who is not waited for.
    fn finish(&mut self, connection: &Connection) -> Result<i64, StoreError> {
        if !self.must_empty {
            return left(connection, "PASSIVE");
        }
        ran(connection.busy_timeout(Duration::ZERO))?;
        let emptied = emptied(connection);
        ran(connection.busy_timeout(BUSY_MAX))?;
        self.must_empty = !emptied?;
        Ok(0)
    }

    fn copy_in_background(&mut self) {
        self.state.store(COPYING, Ordering::Release);
        if let Some(thread) = self.thread.as_ref().filter(|thread| !thread.is_finished()) {
            thread.thread().unpark();
            return;
        }
        let (path, state, stopping) = (self.path.clone(), self.state.clone(), self.stopping.clone());
        let work = move || match for_checkpoints(&path) {
            Ok(connection) => copy(&connection, sync, &state, &stopping),
            Err(error) => {
                tracing::warn!(code = %error.code(), "no checkpoints in the background: {error}");
                state.store(NEARLY_DONE, Ordering::Release);
            }
        };
        match std::thread::Builder::new().name("twicesafe-checkpoint".into()).spawn(work) {
            Ok(thread) => self.thread = Some(thread),
            // The writer copies everything itself then.
            Err(_) => self.state.store(NEARLY_DONE, Ordering::Release),
        }
    }

    /// Leaves a short log to the next one who opens the file: copying costs two syncs, reading a short log nothing.
    ///
    /// A long one is emptied here and now. The next one who opens the file cannot know how much of the log was copied, so
    /// it would grow with every short-lived process, and each would read all of it.
    pub(super) fn stop(mut self, connection: &Connection) {
        self.stopping.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
        if self.state.load(Ordering::Acquire) != GIVEN_UP
            && (self.must_empty
                || left(connection, "NOOP").is_ok_and(|left| left >= LOG_PAGES_LEFT_BEHIND_MAX))
        {
            // Who still uses the file empties the log himself: nobody is waited for.
            let _ = connection.busy_timeout(Duration::ZERO);
            has_failed(&left(connection, "TRUNCATE"));
        }
    }
}

fn copy(
    connection: &Connection,
    sync: impl Fn(&Connection) -> Result<i64, StoreError>,
    state: &AtomicU8,
    stopping: &AtomicBool,
) {
    let is_over = || stopping.load(Ordering::Acquire);
    while !is_over() {
        if state.load(Ordering::Acquire) == COPYING {
            let mut went_well = copy_most(connection, &is_over);
            if went_well && !is_over() {
                // Who copies the last page syncs the file, and that is the writer: it should find little left to sync.
                went_well = !has_failed(&sync(connection)) && copy_most(connection, &is_over);
            }
            state.store(if went_well { NEARLY_DONE } else { GIVEN_UP }, Ordering::Release);
        }
        std::thread::park();
    }
}

fn sync(connection: &Connection) -> Result<i64, StoreError> {
    ran(twicesafe_vfs::sync(connection)).map(|()| 0)
}

/// Copies until little is left. Says whether the disk did what it was told.
fn copy_most(connection: &Connection, is_over: &impl Fn() -> bool) -> bool {
    for _ in 0..ROUNDS_MAX {
        let left = left(connection, "PASSIVE");
        if has_failed(&left) {
            return false;
        }
        if is_over() || left.is_ok_and(|left| left <= PAGES_LEFT_MAX) {
            break;
        }
    }
    true
}

/// Whether the disk failed, which operators are told. Where there is no room nothing is lost, and it is tried again.
fn has_failed(copied: &Result<i64, StoreError>) -> bool {
    match copied {
        Ok(_) | Err(StoreError::DiskFull) => false,
        Err(error) => {
            tracing::error!(
                code = %error.code(),
                "the disk failed while the ledger's log was copied into its file: {error}. Nothing is lost, the log keeps everything. Stop \
                 every program that uses this ledger, see to the disk, and start them again."
            );
            true
        }
    }
}

/// Copies everything and empties the log. Says whether it could be: not while somebody reads from it.
fn emptied(connection: &Connection) -> Result<bool, StoreError> {
    let mut statement = ran(connection.prepare_cached("PRAGMA wal_checkpoint(TRUNCATE)"))?;
    ran(statement.query_row([], |row| row.get::<_, bool>(0))).map(|is_busy| !is_busy)
}

/// Copies what can be copied without waiting for anyone (`PASSIVE`), everything (`TRUNCATE`, which empties the log too), or
/// nothing (`NOOP`); says how many pages of the log are left to copy.
fn left(connection: &Connection, mode: &str) -> Result<i64, StoreError> {
    let mut statement = ran(connection.prepare_cached(&format!("PRAGMA wal_checkpoint({mode})")))?;
    let (log, copied): (i64, i64) = ran(statement.query_row([], |row| Ok((row.get(1)?, row.get(2)?))))?;
    Ok(log - copied)
}

#[cfg(test)]
mod tests;
