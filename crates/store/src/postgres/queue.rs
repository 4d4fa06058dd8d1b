//! What waits for a worker, and when it leaves: in company, so that those who were answered together go on together.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Mutex, Notify, mpsc};

use super::CONNECTIONS;
use super::worker::Task;
use crate::BATCH_MAX;

/// Batches that are under way at a time whatever waits. With more, each would be smaller, and what a batch costs by itself
/// count for more. The other workers are there for when one waits for somebody's lock.
const FLIGHTS: usize = 2;
/// Beside one that is under way another one leaves with at least this share of its commands (one in so many), so that those
/// who were answered together go on together.
const SHARE: usize = 2;
/// So long others are waited for at most: what is under way may be stuck.
const COMPANY_MAX: Duration = Duration::from_millis(5);
/// So many commands make another batch worth its while.
const FULL_FLIGHT: usize = 48;
/// So many leave together at most, unless more wait than that for each connection: whoever was answered together comes back together, and all
/// in one batch would have the database wait for the callers and the callers for the database.
const FLIGHT_MAX: usize = 64;

/// What workers take.
pub(super) enum Errand {
    One(Box<Task>),
    /// Given together: those about the same intent are applied in this order.
    Several(Vec<Task>),
}

/// What workers take errands from.
pub(super) struct Queue {
    errands: Mutex<mpsc::Receiver<Errand>>,
    /// Batches under way, and commands in them.
    flights: AtomicUsize,
    flying: AtomicUsize,
    landed: Notify,
}

impl Queue {
    pub(super) fn new(errands: mpsc::Receiver<Errand>) -> Self {
        let (flights, flying) = Default::default();
        Self { errands: Mutex::new(errands), flights, flying, landed: Notify::new() }
    }

    /// Whether so many commands are worth a batch now.
    fn may_leave(&self, commands: usize, alone: bool) -> bool {
        let (flights, flying) = (self.flights.load(Ordering::Acquire), self.flying.load(Ordering::Acquire));
        commands >= FULL_FLIGHT || flights < FLIGHTS && (alone || commands * SHARE >= flying)
    }

    /// Whatever waits, as soon as it may leave. `None` once nobody can send errands any more and none is left.
    pub(super) async fn take(self: &Arc<Self>) -> Option<(Vec<Task>, Flight)> {
        let mut errands = self.errands.lock().await;
        let mut tasks = Vec::new();
        let mut next = Some(errands.recv().await?);
        let mut company = std::pin::pin!(tokio::time::sleep(COMPANY_MAX));
        let mut yielded = false;
        loop {
            while let Some(errand) = next {
                match errand {
                    Errand::One(task) => tasks.push(*task),
                    Errand::Several(several) => tasks.extend(several),
                }
                next = if has_room(tasks.len(), errands.len()) { errands.try_recv().ok() } else { None };
            }
            if !has_room(tasks.len(), errands.len()) || errands.is_closed() {
                break;
            }
            // Asked once: it may come true between two questions.
            let alone = company.is_elapsed();
            if !self.may_leave(tasks.len(), alone) {
                tokio::select! {
                    errand = errands.recv() => next = errand,
                    () = self.landed.notified() => {}
                    () = &mut company, if !alone => {}
                }
            } else if yielded {
                break;
            } else {
                // Whoever was just answered may have the next command ready: let them send it, rather than leave without. Once:
                // where many are at work it takes a while.
                yielded = true;
                tokio::task::yield_now().await;
                next = errands.try_recv().ok();
            }
        }
        let flight = Flight::leave(self, tasks.len());
        Some((tasks, flight))
    }
}

/// Whether a batch of so many commands takes another one, with so many errands left.
fn has_room(commands: usize, left: usize) -> bool {
    commands < ((commands + left) / CONNECTIONS).clamp(FLIGHT_MAX, BATCH_MAX)
}

/// A batch under way.
pub(super) struct Flight {
    queue: Arc<Queue>,
    commands: usize,
}

impl Flight {
    fn leave(queue: &Arc<Queue>, commands: usize) -> Self {
        queue.flights.fetch_add(1, Ordering::AcqRel);
        queue.flying.fetch_add(commands, Ordering::AcqRel);
        Self { queue: queue.clone(), commands }
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.queue.flights.fetch_sub(1, Ordering::AcqRel);
        self.queue.flying.fetch_sub(self.commands, Ordering::AcqRel);
        self.queue.landed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn batches_leave_in_company() {
        let queue = Arc::new(Queue::new(mpsc::channel(1).1));
        assert!(queue.may_leave(1, false), "nothing is under way");
        let first = Flight::leave(&queue, 10);
        assert!(!queue.may_leave(4, false), "fewer than half");
        assert!(queue.may_leave(5, false));
        assert!(queue.may_leave(1, true), "nobody came");
        let second = Flight::leave(&queue, 5);
        assert!(!queue.may_leave(FULL_FLIGHT - 1, true), "two are enough");
        assert!(queue.may_leave(FULL_FLIGHT, false));
        drop(first);
        assert!(!queue.may_leave(2, false));
        assert!(queue.may_leave(3, false));
        drop(second);
        assert!(queue.may_leave(1, false));
    }

    #[test]
    fn those_who_come_together_do_not_all_leave_together() {
        let leave_with = |waiting: usize| {
            (1..=waiting).find(|commands| !has_room(*commands, waiting - commands)).unwrap_or(waiting)
        };
        assert_eq!(leave_with(1), 1);
        assert_eq!(leave_with(64), 64);
        assert_eq!(leave_with(256), 64, "one in four");
        assert_eq!(leave_with(1024), 256, "the more wait, the larger");
        assert_eq!(leave_with(10_000), BATCH_MAX);
    }

    #[tokio::test]
    async fn nobody_waits_for_ever_for_company() {
        let (sender, errands) = mpsc::channel(4);
        let queue = Arc::new(Queue::new(errands));
        let stuck = Flight::leave(&queue, 10);
        sender.send(Errand::Several(Vec::new())).await.expect("there is room");
        let since = Instant::now();
        let (_, flight) = queue.take().await.expect("the queue is open");
        assert!(since.elapsed() >= COMPANY_MAX, "others are waited for");
        drop(flight);
        drop(stuck);

        drop(sender);
        assert!(queue.take().await.is_none(), "nobody can send any more");
    }
}
