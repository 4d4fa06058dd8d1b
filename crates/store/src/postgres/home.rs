//! Where connections and workers live: a thread of the store's own.
//!
//! On the runtime that happened to open the ledger they would end with it, or stand still while it has nothing to do; and whoever
//! uses the ledger from another one would wait for them.

use std::sync::Arc;

use tokio::runtime::{Builder, Handle};
use tokio::sync::mpsc;
use tokio::task::yield_now;

use super::connect::Failure;
use crate::error::StoreError;

/// So often connections that nobody needs any more are let run before the thread ends, so that they can say so to the server.
const GOODBYES: usize = 16;

/// Ends when nobody has it any more.
pub(super) struct Home {
    runtime: Handle,
    _open: mpsc::Sender<()>,
}

impl Home {
    pub(super) fn start() -> Result<Arc<Self>, StoreError> {
        let failed =
            |error: std::io::Error| StoreError::Away(format!("no thread for its connections: {error}"));
        let (_open, mut closed) = mpsc::channel(1);
        let (tell, told) = std::sync::mpsc::channel();
        // Made there: where no thread is to be had, it would have to go here, inside another one.
        let live = move || {
            let runtime = match Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                Err(error) => return drop(tell.send(Err(error))),
            };
            let _ = tell.send(Ok(runtime.handle().clone()));
            runtime.block_on(async {
                closed.recv().await;
                for _ in 0..GOODBYES {
                    yield_now().await;
                }
            });
        };
        std::thread::Builder::new().name("twicesafe-postgres".into()).spawn(live).map_err(failed)?;
        let gone = |_| Err(std::io::Error::other("it has ended"));
        Ok(Arc::new(Self { runtime: told.recv().unwrap_or_else(gone).map_err(failed)?, _open }))
    }

    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(task);
    }

    /// Does something there, to its end, and tells what came of it.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        task: impl Future<Output = Result<T, Failure>> + Send + 'static,
    ) -> Result<T, Failure> {
        let ended = self.runtime.spawn(task).await;
        ended.unwrap_or_else(|_| Err(Failure::Lost("the thread of its connections has ended".into())))
    }
}
