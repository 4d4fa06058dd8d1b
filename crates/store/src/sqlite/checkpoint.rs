//! Moving what was written from the log into the file, without making anyone wait.
//!
//! A thread of its own copies while writes go on; the writer copies the last few pages between two batches, after which
//! the log starts anew. Left to itself SQLite would copy everything inside some unlucky caller's commit, or, with
//! everything in the background, never reach the end of a log that grows meanwhile.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rusqlite::Connection;

use super::open::{for_checkpoints, ran};
use super::place::kept_open;
use crate::error::StoreError;

/// Batches between two looks at the size of the log.
const BATCHES_BETWEEN: u32 = 16;
/// Pages in the log that start a checkpoint: usually, and while many write. A longer one has more pages in it twice, which are
/// copied once; but a file that grows is slow to sync, which one who writes alone would feel.
const LOG_PAGES_START: i64 = 4096;
const LOG_PAGES_START_BUSY: i64 = 12_288;
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

pub(super) struct Checkpointer {
    path: PathBuf,
    state: Arc<AtomicU8>,
    stopping: Arc<AtomicBool>,
    /// Started when there is first something to copy.
    thread: Option<JoinHandle<()>>,
    /// Batches since the last look, and commands in them.
    batches: u32,
    commands: usize,
}

impl Checkpointer {
    pub(super) fn new(path: &Path) -> Self {
        let (state, stopping) = (Arc::new(AtomicU8::new(IDLE)), Arc::default());
        Self { path: path.to_owned(), state, stopping, thread: None, batches: 0, commands: 0 }
    }

    /// So many commands were in a batch.
    pub(super) fn written(&mut self, commands: usize) {
        self.commands += commands;
    }

    /// Called by the writer between two batches.
    pub(super) fn after_batch(&mut self, connection: &Connection) {
        self.batches += 1;
        match self.state.load(Ordering::Acquire) {
            NEARLY_DONE => {
                // What cannot be copied now is copied in the next round.
                let _ = left(connection, "PASSIVE");
                self.state.store(IDLE, Ordering::Release);
            }
            IDLE if self.batches >= BATCHES_BETWEEN => {
                let is_busy = self.commands >= COMMANDS_BUSY * self.batches as usize;
                (self.batches, self.commands) = (0, 0);
                let start = if is_busy { LOG_PAGES_START_BUSY } else { LOG_PAGES_START };
                if left(connection, "NOOP").is_ok_and(|left| left >= start) {
                    self.copy_in_background();
                }
            }
            _ => {}
        }
    }

    fn copy_in_background(&mut self) {
        self.state.store(COPYING, Ordering::Release);
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
            return;
        }
        let (path, state, stopping) = (self.path.clone(), self.state.clone(), self.stopping.clone());
        let work = move || match for_checkpoints(&path) {
            Ok(connection) => copy(&connection, kept_open(&path).ok(), &state, &stopping),
            Err(error) => tracing::warn!(code = %error.code(), "no checkpoints in the background: {error}"),
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
        if left(connection, "NOOP").is_ok_and(|left| left >= LOG_PAGES_LEFT_BEHIND_MAX) {
            // Who still uses the file empties the log himself: nobody is waited for.
            let _ = connection.busy_timeout(Duration::ZERO);
            let _ = left(connection, "TRUNCATE");
        }
    }
}

fn copy(connection: &Connection, file: Option<&File>, state: &AtomicU8, stopping: &AtomicBool) {
    let copy_most = || {
        for _ in 0..ROUNDS_MAX {
            match left(connection, "PASSIVE") {
                Ok(left) if left > PAGES_LEFT_MAX && !stopping.load(Ordering::Acquire) => {}
                _ => break,
            }
        }
    };
    while !stopping.load(Ordering::Acquire) {
        if state.load(Ordering::Acquire) == COPYING {
            copy_most();
            if let Some(file) = file {
                // Who copies the last page syncs the file, and that is the writer: it should find little left to sync. Whether this
                // one fails does not matter, because that one tells.
                let _ = file.sync_data();
                copy_most();
            }
            state.store(NEARLY_DONE, Ordering::Release);
        }
        std::thread::park();
    }
}

/// Copies what can be copied without waiting for anyone (`PASSIVE`), everything (`TRUNCATE`, which empties the log too), or
/// nothing (`NOOP`); says how many pages of the log are left to copy.
fn left(connection: &Connection, mode: &str) -> Result<i64, StoreError> {
    let mut statement = ran(connection.prepare_cached(&format!("PRAGMA wal_checkpoint({mode})")))?;
    let (log, copied): (i64, i64) = ran(statement.query_row([], |row| Ok((row.get(1)?, row.get(2)?))))?;
    Ok(log - copied)
}
