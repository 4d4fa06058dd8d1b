//! What has just arrived, on its way to who hands it over. A short cut past the ledger's agenda, and no more: what does not fit
//! is found there.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{Notify, mpsc};
use twicesafe_ledger::Stored;

use super::event::Event;

/// Events that wait in memory for being handed over.
const FRESH_MAX: usize = 256;

/// An event that was committed a moment ago.
pub(crate) struct Arrived {
    pub(crate) stored: Arc<Stored>,
    pub(crate) event: Event,
}

/// The short cut.
pub(crate) struct Fresh {
    sender: mpsc::Sender<Arrived>,
    receiver: Mutex<Option<mpsc::Receiver<Arrived>>>,
    /// Something did not fit.
    missed: AtomicBool,
    pub(crate) told: Notify,
}

impl Default for Fresh {
    fn default() -> Self {
        let (sender, receiver) = mpsc::channel(FRESH_MAX);
        let receiver = Mutex::new(Some(receiver));
        Self { sender, receiver, missed: AtomicBool::new(false), told: Notify::new() }
    }
}

impl Fresh {
    pub(crate) fn put(&self, arrived: Arrived) {
        if self.sender.try_send(arrived).is_err() {
            self.miss();
        }
    }

    /// The agenda holds something to hand over.
    pub(crate) fn miss(&self) {
        if !self.missed.swap(true, Ordering::SeqCst) {
            self.told.notify_one();
        }
    }

    /// Whether something did not fit since this was last asked.
    pub(crate) fn was_missed(&self) -> bool {
        self.missed.swap(false, Ordering::SeqCst)
    }

    /// Its other end, once.
    pub(crate) fn receiver(&self) -> Option<mpsc::Receiver<Arrived>> {
        self.receiver.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
