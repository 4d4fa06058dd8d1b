//! Threads that look after connections. Each has a runtime of its own: a request is read, answered and written on the thread its
//! connection belongs to, and nobody is woken on another core for it.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

/// Shorter than any time a request may take.
const TIMER_EVERY: Duration = Duration::from_millis(250);

thread_local! {
    static NUMBER: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Which of them this thread is, if it is one: what belongs to one is best used by the same.
pub(crate) fn here() -> Option<usize> {
    NUMBER.get()
}

/// The threads. Dropped, they end, and with them what they are at.
pub(crate) struct Hands {
    hands: Vec<Handle>,
    threads: Mutex<Vec<Hand>>,
    next: AtomicUsize,
}

struct Hand {
    until_dropped: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl Hands {
    /// One for each core.
    pub(crate) fn start() -> std::io::Result<Self> {
        let count = std::thread::available_parallelism().map_or(1, usize::from);
        let started = (0..count).map(start).collect::<std::io::Result<Vec<_>>>()?;
        let (hands, threads) = started.into_iter().unzip();
        Ok(Self { hands, threads: Mutex::new(threads), next: AtomicUsize::new(0) })
    }

    /// Has the next one in turn do it. Returns what ends it early.
    pub(crate) fn give(&self, what: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        let next = self.next.fetch_add(1, Ordering::Relaxed) % self.hands.len();
        self.hands[next].spawn(what).abort_handle()
    }

    /// Ends them, and waits: what they hold, the ledger among it, is gone then.
    pub(crate) async fn end(&self) {
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        let ending = tokio::task::spawn_blocking(move || {
            for Hand { until_dropped, thread } in threads {
                drop(until_dropped);
                let _ = thread.join();
            }
        });
        let _ = ending.await;
    }
}

/// Sees to it that a runtime always wakes up soon by itself.
///
/// tokio wakes its thread, by a system call, for every timer that is due before the one it waits for; for each of them, though the thread
/// is awake. Every request has timers, of seconds and more: with this one they are never the first.
async fn keep_a_timer() {
    loop {
        tokio::time::sleep(TIMER_EVERY).await;
    }
}

fn start(number: usize) -> std::io::Result<(Handle, Hand)> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    handle.spawn(keep_a_timer());
    let (until_dropped, dropped) = oneshot::channel::<()>();
    let thread = std::thread::Builder::new().name("twicesafe-hand".to_owned()).spawn(move || {
        NUMBER.set(Some(number));
        let _ = runtime.block_on(dropped);
        // Somebody's name may still be looked up: nobody waits for that.
        runtime.shutdown_background();
    })?;
    Ok((handle, Hand { until_dropped, thread }))
}
