//! Connections that are open: how many there may be, and which one ends first when there is no room for another.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::task::AbortHandle;

/// Most connections of one listener at a time, where the process may open as many files.
const CONNECTIONS_MAX: usize = 20_000;
/// Fewest connections of one listener, however few files the process may open.
const CONNECTIONS_MIN: usize = 16;
/// Files that are not left to callers: the ledger's, and connections to destinations.
const FILES_OF_OUR_OWN: usize = 1000;
/// Most files that the process asks to be allowed.
const FILES_MAX: u64 = 1 << 20;
/// A connection that was ended while it was idle.
const ENDED: u32 = u32::MAX;
/// One of so many idle connections is ended at a time, so that looking for them costs little.
const SHARE_ENDED: usize = 64;

/// Raises the number of files that the process may open to its hard limit, and returns the number.
pub(crate) fn raise_files_max() -> Option<u64> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = maximum.unwrap_or(FILES_MAX).min(FILES_MAX);
    let before = current?;
    if before >= wanted {
        return Some(before);
    }
    match setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum }) {
        Ok(()) => Some(wanted),
        Err(error) => {
            tracing::warn!("failed to raise the limit of open files from {before} to {wanted}: {error}");
            Some(before)
        }
    }
}

/// Returns how many connections each of so many listeners may have, if the process may open that many files.
pub(crate) fn connections_max(files_max: Option<u64>, listeners: usize) -> usize {
    let Some(files_max) = files_max else { return CONNECTIONS_MAX };
    let files_max = usize::try_from(files_max).unwrap_or(usize::MAX);
    // Where there are few, half of them are for callers.
    let for_callers = files_max.saturating_sub(FILES_OF_OUR_OWN).max(files_max / 2);
    (for_callers / listeners.max(1)).clamp(CONNECTIONS_MIN, CONNECTIONS_MAX)
}

/// All open connections.
#[derive(Default)]
pub(crate) struct Connections {
    open: Mutex<HashMap<u64, Open>>,
    next: AtomicU64,
}

/// One of them.
struct Open {
    /// The listener that accepted it.
    listener: usize,
    presence: Arc<Presence>,
    ends: Option<AbortHandle>,
}

/// Tells whether a connection is idle: no request is answered over it, and none has arrived whole.
pub(crate) struct Presence {
    opened: Instant,
    /// Requests that are answered, or [`ENDED`].
    answering: AtomicU32,
    /// When it became idle or sent something, in milliseconds since it was opened.
    last_ms: AtomicU64,
}

impl Default for Presence {
    fn default() -> Self {
        Self { opened: Instant::now(), answering: AtomicU32::new(0), last_ms: AtomicU64::new(0) }
    }
}

/// A request that is answered. Its connection is not idle until this is dropped.
pub(crate) struct Answering(Arc<Presence>);

/// A request whose body has not arrived. Its connection is idle until this is dropped.
pub(crate) struct Arriving(Arc<Presence>);

/// Removes a connection from the open ones when it is dropped.
pub(crate) struct Registered {
    connections: Arc<Connections>,
    number: u64,
    pub(crate) presence: Arc<Presence>,
}

impl Presence {
    /// Begins to answer a request. Returns nothing if the connection was ended before.
    pub(crate) fn answering(self: &Arc<Self>) -> Option<Answering> {
        self.count(1).then(|| Answering(self.clone()))
    }

    /// Begins to wait for the body of a request that is answered.
    pub(crate) fn arriving(self: &Arc<Self>) -> Arriving {
        self.touch();
        self.count(-1);
        Arriving(self.clone())
    }

    /// Notes that something has arrived.
    pub(crate) fn touch(&self) {
        let since = u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_ms.store(since, Ordering::Relaxed);
    }

    fn count(&self, by: i32) -> bool {
        let counted = |now: u32| (now != ENDED).then(|| now.saturating_add_signed(by));
        self.answering.fetch_update(Ordering::AcqRel, Ordering::Acquire, counted).is_ok()
    }

    /// Returns since when it is idle, if it is.
    fn idle_since(&self) -> Option<Instant> {
        let is_idle = self.answering.load(Ordering::Acquire) == 0;
        is_idle.then(|| self.opened + std::time::Duration::from_millis(self.last_ms.load(Ordering::Relaxed)))
    }

    /// Keeps it from answering anything more, unless it has just begun to.
    fn end(&self) -> bool {
        self.answering.compare_exchange(0, ENDED, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.touch();
        self.0.count(-1);
    }
}

impl Drop for Arriving {
    fn drop(&mut self) {
        self.0.count(1);
    }
}

impl Connections {
    fn open(&self) -> MutexGuard<'_, HashMap<u64, Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a connection that was accepted.
    pub(crate) fn register(self: &Arc<Self>, listener: usize) -> Registered {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let presence = Arc::new(Presence::default());
        self.open().insert(number, Open { listener, presence: presence.clone(), ends: None });
        Registered { connections: self.clone(), number, presence }
    }

    /// Notes what ends a connection, if it has not ended by itself.
    pub(crate) fn ends(&self, number: u64, ends: AbortHandle) {
        if let Some(open) = self.open().get_mut(&number) {
            open.ends = Some(ends);
        }
    }

    /// Ends the connections that were idle for longest, of one listener or of all. Returns how many were ended.
    pub(crate) fn end_idle(&self, listener: Option<usize>) -> usize {
        let open = self.open();
        let of_listener = open.values().filter(|open| listener.is_none_or(|own| own == open.listener));
        let mut idle: Vec<(Instant, &Open)> = of_listener
            .filter(|open| open.ends.is_some())
            .filter_map(|open| Some((open.presence.idle_since()?, open)))
            .collect();
        if idle.is_empty() {
            return 0;
        }
        let count = idle.len().div_ceil(SHARE_ENDED);
        idle.select_nth_unstable_by_key(count - 1, |(since, _)| *since);
        let ended = idle[..count].iter().filter(|(_, open)| open.presence.end());
        ended.inspect(|(_, open)| open.ends.iter().for_each(AbortHandle::abort)).count()
    }
}

impl Registered {
    pub(crate) fn number(&self) -> u64 {
        self.number
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.connections.open().remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_are_left_some_files_however_few_there_are() {
        for (files, listeners, connections) in [
            (None, 1, CONNECTIONS_MAX),
            (Some(1 << 20), 2, CONNECTIONS_MAX),
            (Some(4096), 1, 3096),
            (Some(4096), 2, 1548),
            (Some(1024), 1, 512),
            (Some(10), 1, CONNECTIONS_MIN),
        ] {
            assert_eq!(connections_max(files, listeners), connections, "{files:?}");
        }
    }

    #[tokio::test]
    async fn the_longest_idle_ends_and_none_that_is_answered() {
        let connections = Arc::new(Connections::default());
        let open = |listener| {
            let registered = connections.register(listener);
            let (number, presence) = (registered.number(), registered.presence.clone());
            let task = tokio::spawn(async move {
                std::future::pending::<()>().await;
                drop(registered);
            });
            connections.ends(number, task.abort_handle());
            (presence, task)
        };
        let (answered, _) = open(0);
        let answering = answered.answering().expect("it is open");
        let (first, first_task) = open(0);
        let (second, _second_task) = open(0);
        let (other, _other_task) = open(1);
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        for presence in [&first, &second, &other] {
            presence.touch();
        }
        first.last_ms.store(0, Ordering::Relaxed);
        other.last_ms.store(0, Ordering::Relaxed);
        assert_eq!(connections.end_idle(Some(0)), 1);
        assert!(first_task.await.is_err_and(|error| error.is_cancelled()));
        assert!(first.answering().is_none() && second.answering().is_some());
        assert_eq!(connections.open().len(), 3);
        drop(answering);
        for _ in 0..3 {
            assert_eq!(connections.end_idle(None), 1);
        }
        assert_eq!(connections.end_idle(None), 0);
    }

    #[tokio::test]
    async fn who_waits_for_a_body_is_idle() {
        let connections = Arc::new(Connections::default());
        let registered = connections.register(0);
        let task = tokio::spawn(std::future::pending::<()>());
        connections.ends(registered.number(), task.abort_handle());
        let _answering = registered.presence.answering().expect("it is open");
        let arriving = registered.presence.arriving();
        drop(arriving);
        assert_eq!(connections.end_idle(None), 0, "its body has arrived");
        let _arriving = registered.presence.arriving();
        assert_eq!(connections.end_idle(None), 1);
    }
}
