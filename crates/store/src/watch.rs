//! Waiting for an intent to change (S8).
//!
//! Changes made by this process are announced at once. Changes made by others are found by looking: one task looks for
//! everybody who waits, more often while things change and less often while nothing does. Looking works through every
//! pooler and needs no lock, which cannot be said of NOTIFY.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;
use twicesafe_core::IntentId;

use crate::plan::Applied;

/// Who waits for what.
#[derive(Default)]
pub(crate) struct Watchers {
    waiting: AtomicUsize,
    intents: Mutex<BTreeMap<IntentId, Watched>>,
}

struct Watched {
    version: watch::Sender<i64>,
    watchers: usize,
}

/// One who waits.
pub(crate) struct Watcher {
    all: Arc<Watchers>,
    id: IntentId,
    version: watch::Receiver<i64>,
}

impl Watchers {
    /// Starts to watch an intent of which one knows that version.
    pub(crate) fn watch(self: &Arc<Self>, id: IntentId, known: i64) -> Watcher {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let mut intents = self.intents.lock().unwrap_or_else(PoisonError::into_inner);
        let watched =
            intents.entry(id).or_insert_with(|| Watched { version: watch::Sender::new(known), watchers: 0 });
        watched.watchers += 1;
        let version = watched.version.subscribe();
        drop(intents);
        Watcher { all: self.clone(), id, version }
    }

    /// Tells those who wait what came of a command.
    pub(crate) fn announce(&self, applied: &Applied) {
        if self.waiting.load(Ordering::SeqCst) > 0
            && let Some(stored) = &applied.stored
        {
            self.announce_version(stored.id, stored.version);
        }
    }

    /// Tells those who wait; says whether it was news to any.
    pub(crate) fn announce_version(&self, id: IntentId, version: i64) -> bool {
        let intents = self.intents.lock().unwrap_or_else(PoisonError::into_inner);
        intents.get(&id).is_some_and(|watched| {
            watched.version.send_if_modified(|last| {
                let newer = version > *last;
                *last = version.max(*last);
                newer
            })
        })
    }

    /// How many intents are being waited for.
    pub(crate) fn count(&self) -> usize {
        self.intents.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Some of what is being waited for: those after the last one that was looked at, or from the start again.
    pub(crate) fn some_watched(&self, after: Option<IntentId>, limit: usize) -> Vec<IntentId> {
        let intents = self.intents.lock().unwrap_or_else(PoisonError::into_inner);
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut some: Vec<IntentId> =
            intents.range((from, Bound::Unbounded)).map(|(id, _)| *id).take(limit).collect();
        if some.is_empty() {
            some.extend(intents.keys().copied().take(limit));
        }
        some
    }
}

impl Watcher {
    /// Waits until the intent has another version than the known one.
    pub(crate) async fn changed(&mut self, known: i64) {
        // The sender lives as long as a watcher does.
        let _ = self.version.wait_for(|version| *version > known).await;
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.all.waiting.fetch_sub(1, Ordering::SeqCst);
        let mut intents = self.all.intents.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(watched) = intents.get_mut(&self.id) {
            watched.watchers -= 1;
            if watched.watchers == 0 {
                intents.remove(&self.id);
            }
        }
    }
}
