//! Threads that look after connections. Each has a runtime of its own: a request is read, answered and written on the thread its
//! connection belongs to, and nobody is woken on another core for it.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

thread_local! {
    static NUMBER: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Which of them this thread is, if it is one: what belongs to one is best used by the same.
pub(crate) fn here() -> Option<usize> {
    NUMBER.get()
}

/// The threads. Dropped, they end, and with them what they are at.
pub(crate) struct Hands {
    hands: Vec<Hand>,
    next: AtomicUsize,
}

struct Hand {
    runtime: Handle,
    _until_dropped: oneshot::Sender<()>,
}

impl Hands {
    /// One for each core.
    pub(crate) fn start() -> std::io::Result<Self> {
        let count = std::thread::available_parallelism().map_or(1, usize::from);
        let hands = (0..count).map(Hand::start).collect::<std::io::Result<_>>()?;
        Ok(Self { hands, next: AtomicUsize::new(0) })
    }

    /// Has the next one in turn do it.
    pub(crate) fn give(&self, what: impl Future<Output = ()> + Send + 'static) {
        let next = self.next.fetch_add(1, Ordering::Relaxed) % self.hands.len();
        self.hands[next].runtime.spawn(what);
    }
}

impl Hand {
    fn start(number: usize) -> std::io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (until_dropped, dropped) = oneshot::channel::<()>();
        std::thread::Builder::new().name("twicesafe-hand".to_owned()).spawn(move || {
            NUMBER.set(Some(number));
            let _ = runtime.block_on(dropped);
        })?;
        Ok(Self { runtime: handle, _until_dropped: until_dropped })
    }
}
