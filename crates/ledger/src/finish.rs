//! Work that must not end with the runtime it was begun on: storing an outcome, or giving a permit back.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// How long a runtime that ends waits for the work that is left, all of it together.
const FINISH_WITHIN: Duration = Duration::from_secs(5);

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Work left over when a runtime ended, of one ledger.
#[derive(Default)]
pub(crate) struct Leftover(Arc<Mutex<Left>>);

#[derive(Default)]
struct Left {
    threads: usize,
    /// When nobody waits any longer. Set by the first that is left, and again once nothing is.
    until: Option<Instant>,
}

impl Leftover {
    /// Returns a future that completes `work`. If it is dropped before that, because its runtime ends, `work` goes on on a thread
    /// of its own, and the drop waits for it for a bounded time.
    pub(crate) fn finishing(&self, work: impl Future<Output = ()> + Send + 'static) -> Finishing {
        Finishing { work: Some(Box::pin(work)), left: self.0.clone() }
    }

    /// Does `work` on the current runtime where there is one, and otherwise at once.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let finishing = self.finishing(work);
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn(finishing)),
            Err(_) => drop(finishing),
        }
    }
}

/// Work under way. See [`Leftover::finishing`].
pub(crate) struct Finishing {
    work: Option<Work>,
    left: Arc<Mutex<Left>>,
}

impl Future for Finishing {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        // Taken out meanwhile: work that panics is not polled again.
        let Some(mut work) = self.work.take() else { return Poll::Ready(()) };
        let polled = work.as_mut().poll(context);
        if polled.is_pending() {
            self.work = Some(work);
        }
        polled
    }
}

impl Drop for Finishing {
    fn drop(&mut self) {
        let Some(work) = self.work.take() else { return };
        let now = Instant::now();
        let until = {
            let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
            if left.threads == 0 {
                left.until = None;
            }
            let until = *left.until.get_or_insert(now + FINISH_WITHIN);
            if until <= now {
                tracing::warn!("the runtime ended before an outcome was stored; its lease will lapse");
                return;
            }
            left.threads += 1;
            until
        };
        let (working, worked) = mpsc::channel::<()>();
        let left = self.left.clone();
        let thread = move || {
            let _working = working;
            if let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_time().build() {
                let finish = std::panic::AssertUnwindSafe(|| runtime.block_on(work));
                // It may rest on a timer of the runtime that ended. Then the lease lapses, as after a crash.
                if std::panic::catch_unwind(finish).is_err() {
                    tracing::warn!("failed to store an outcome when its runtime ended; its lease will lapse");
                }
            }
            left.lock().unwrap_or_else(PoisonError::into_inner).threads -= 1;
        };
        match std::thread::Builder::new().name("twicesafe-finish".to_owned()).spawn(thread) {
            // Either way there is nothing more to wait for.
            Ok(_) => drop(worked.recv_timeout(until.saturating_duration_since(now))),
            Err(error) => {
                self.left.lock().unwrap_or_else(PoisonError::into_inner).threads -= 1;
                tracing::warn!("failed to start a thread that stores an outcome: {error}");
            }
        }
    }
}
