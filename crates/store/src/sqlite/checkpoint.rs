//! Moving what was written from the log into the file, without making anyone wait.
//!
//! A thread of its own copies while writes go on; the writer copies the last few pages between two batches, after which
//! the log starts anew. Left to itself SQLite would copy everything inside some unlucky caller's commit, or, with
//! everything in the background, never reach the end of a log that grows meanwhile.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::thread::JoinHandle;

use rusqlite::Connection;

use super::open::{for_checkpoints, ran};
use crate::error::StoreError;

/// Batches between two looks at the size of the log.
const BATCHES_BETWEEN: u32 = 256;
/// Pages in the log that start a checkpoint.
const LOG_PAGES_START: i64 = 2048;
/// Pages that the writer copies itself.
const PAGES_LEFT_MAX: i64 = 256;
/// Rounds in the background before the writer finishes whatever is left.
const ROUNDS_MAX: u32 = 8;

const IDLE: u8 = 0;
const COPYING: u8 = 1;
const NEARLY_DONE: u8 = 2;

pub(super) struct Checkpointer {
    state: Arc<AtomicU8>,
    stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    batches: u32,
}

impl Checkpointer {
    pub(super) fn start(path: &Path) -> Result<Self, StoreError> {
        let connection = for_checkpoints(path)?;
        let state = Arc::new(AtomicU8::new(IDLE));
        let stopping = Arc::new(AtomicBool::new(false));
        let (its_state, its_stopping) = (state.clone(), stopping.clone());
        let thread = std::thread::Builder::new()
            .name("twicesafe-checkpoint".into())
            .spawn(move || copy(&connection, &its_state, &its_stopping))
            .map_err(|error| StoreError::Away(error.to_string()))?;
        Ok(Self { state, stopping, thread: Some(thread), batches: 0 })
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
                self.batches = 0;
                if left(connection, "NOOP").is_ok_and(|left| left >= LOG_PAGES_START) {
                    self.state.store(COPYING, Ordering::Release);
                    if let Some(thread) = &self.thread {
                        thread.thread().unpark();
                    }
                }
            }
            _ => {}
        }
    }

    pub(super) fn stop(mut self, connection: &Connection) {
        self.stopping.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
        let _ = left(connection, "PASSIVE");
    }
}

fn copy(connection: &Connection, state: &AtomicU8, stopping: &AtomicBool) {
    while !stopping.load(Ordering::Acquire) {
        if state.load(Ordering::Acquire) == COPYING {
            for _ in 0..ROUNDS_MAX {
                match left(connection, "PASSIVE") {
                    Ok(left) if left > PAGES_LEFT_MAX && !stopping.load(Ordering::Acquire) => {}
                    _ => break,
                }
            }
            state.store(NEARLY_DONE, Ordering::Release);
        }
        std::thread::park();
    }
}

/// Copies what can be copied without waiting for anyone (`PASSIVE`), or nothing (`NOOP`); says how many pages of the log
/// are left to copy.
fn left(connection: &Connection, mode: &str) -> Result<i64, StoreError> {
    let mut statement = ran(connection.prepare_cached(&format!("PRAGMA wal_checkpoint({mode})")))?;
    let (log, copied): (i64, i64) = ran(statement.query_row([], |row| Ok((row.get(1)?, row.get(2)?))))?;
    Ok(log - copied)
}
