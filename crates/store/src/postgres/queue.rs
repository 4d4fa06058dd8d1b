//! What waits for a worker, and when it leaves: in company, so that those who were answered together go on together.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Mutex, MutexGuard, Notify, mpsc};

use super::CONNECTIONS;
use super::worker::Task;
use crate::BATCH_MAX;

/// Batches that are under way at a time whatever waits. With more, each would be smaller, and what a batch costs by itself
/// count for more. The other workers are there for when one waits for somebody's lock.
const FLIGHTS: usize = 2;
/// So many commands are worth what a batch costs by itself: while more are expected, it waits for company up to this.
const COMPANY: usize = 24;
/// So long others are waited for at most: they may not come, and what is under way may be stuck.
const COMPANY_MAX: Duration = Duration::from_millis(3);
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
    desk: Mutex<Desk>,
    /// Told to the worker that has been free for the shortest time: its connection has at hand what the next batch needs.
    free: Notify,
    /// Batches under way, and commands in them.
    flights: AtomicUsize,
    flying: AtomicUsize,
    landed: Notify,
}

/// What one worker at a time has.
struct Desk {
    errands: mpsc::Receiver<Errand>,
    about: About,
}

impl Queue {
    pub(super) fn new(errands: mpsc::Receiver<Errand>) -> Self {
        let (flights, flying) = Default::default();
        let desk = Mutex::new(Desk { errands, about: About::default() });
        Self { desk, free: Notify::new(), flights, flying, landed: Notify::new() }
    }

    /// Whether so many commands are worth a batch now. `alone` are those for whom others were waited for long enough.
    fn may_leave(&self, commands: usize, expected: usize, alone: bool) -> bool {
        let is_free = self.flights.load(Ordering::Acquire) < FLIGHTS;
        commands >= FULL_FLIGHT || is_free && (alone || commands >= expected)
    }

    async fn desk(&self) -> MutexGuard<'_, Desk> {
        loop {
            if let Ok(desk) = self.desk.try_lock() {
                return desk;
            }
            self.free.notified().await;
        }
    }

    /// Whatever waits, as soon as it may leave. `None` once nobody can send errands any more and none is left.
    pub(super) async fn take(self: &Arc<Self>) -> Option<(Vec<Task>, Flight)> {
        // Dropped after the desk is free.
        let _next = Next(&self.free);
        let mut desk = self.desk().await;
        let Desk { errands, about } = &mut *desk;
        let mut tasks = Vec::new();
        let mut next = Some(errands.recv().await?);
        let expected = about.expected();
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
            if !self.may_leave(tasks.len(), expected, alone) {
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
        about.saw(self.flying.load(Ordering::Acquire) + tasks.len() + errands.len());
        let flight = Flight::leave(self, tasks.len());
        Some((tasks, flight))
    }
}

/// Lets the next one come to the desk.
struct Next<'a>(&'a Notify);

impl Drop for Next<'_> {
    fn drop(&mut self) {
        self.0.notify_last();
    }
}

/// How many commands are about, on an average of the last batches: waiting, leaving and under way.
#[derive(Default)]
struct About {
    /// In eighths.
    eighths: usize,
}

impl About {
    fn saw(&mut self, commands: usize) {
        self.eighths = self.eighths - self.eighths / 8 + commands;
    }

    /// How many a batch waits for: seven in eight, so that nobody waits for the last ones, who may be about something else.
    fn expected(&self) -> usize {
        (self.eighths * 7 / 64).min(COMPANY)
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
        assert!(queue.may_leave(1, 0, false), "nobody is expected");
        assert!(!queue.may_leave(4, 5, false));
        assert!(queue.may_leave(5, 5, false));
        assert!(queue.may_leave(1, 5, true), "nobody came");
        let first = Flight::leave(&queue, 10);
        assert!(queue.may_leave(5, 5, false), "one is under way");
        let second = Flight::leave(&queue, 5);
        assert!(!queue.may_leave(FULL_FLIGHT - 1, 5, true), "two are enough");
        assert!(queue.may_leave(FULL_FLIGHT, 5, false));
        drop(first);
        assert!(queue.may_leave(5, 5, false));
        drop(second);
    }

    #[test]
    fn as_many_are_expected_as_are_about() {
        let mut about = About::default();
        assert_eq!(about.expected(), 0, "nothing is known");
        let mut expected_of = |commands: usize| {
            (0..64).for_each(|_| about.saw(commands));
            about.expected()
        };
        assert_eq!(expected_of(1), 0, "who is alone waits for nobody");
        assert_eq!(expected_of(12), 10);
        assert_eq!(expected_of(1_000), COMPANY);
        assert!(expected_of(2) <= 2, "the others are gone");
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
        (0..64).for_each(|_| queue.desk.try_lock().expect("it is free").about.saw(10));
        sender.send(Errand::Several(Vec::new())).await.expect("there is room");
        let since = Instant::now();
        let (_, flight) = queue.take().await.expect("the queue is open");
        assert!(since.elapsed() >= COMPANY_MAX, "others are waited for");
        drop(flight);

        drop(sender);
        assert!(queue.take().await.is_none(), "nobody can send any more");
    }
}
