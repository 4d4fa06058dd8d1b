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
/// Beside one that is under way another one leaves with at least this share of its commands (one in so many), so that those
/// who were answered together go on together.
const SHARE: usize = 2;
/// So many commands are worth what a batch costs by itself: while more are expected, it waits for company up to this.
const COMPANY: usize = 24;
/// So long others are waited for at most, but for one of two batches under way to come back: they may not come, and what is under way may
/// be stuck.
const COMPANY_MAX: Duration = Duration::from_millis(3);
/// So many commands make another batch worth its while.
const FULL_FLIGHT: usize = 48;
/// So many leave together at most, unless more wait than that for each connection: whoever was answered together comes back together, and all
/// in one batch would have the database wait for the callers and the callers for the database.
const FLIGHT_MAX: usize = 64;

/// What workers take.
pub(super) enum Errand<T = Task> {
    One(Box<T>),
    /// Given together: those about the same intent are applied in this order.
    Several(Vec<T>),
}

/// What workers take errands from.
pub(super) struct Queue<T = Task> {
    desk: Mutex<Desk<T>>,
    /// Told to the worker that has waited for the shortest time: its connection has at hand what the next batch needs.
    free: Notify,
    /// Batches under way, and commands in them.
    flights: AtomicUsize,
    flying: AtomicUsize,
    landed: Notify,
}

/// What one worker at a time has.
struct Desk<T> {
    errands: mpsc::Receiver<Errand<T>>,
    about: About,
}

impl<T> Queue<T> {
    pub(super) fn new(errands: mpsc::Receiver<Errand<T>>) -> Self {
        let (flights, flying) = Default::default();
        let desk = Mutex::new(Desk { errands, about: About::default() });
        Self { desk, free: Notify::new(), flights, flying, landed: Notify::new() }
    }

    /// Whether so many commands are worth a batch now. `alone` are those for whom others were waited for long enough.
    fn may_leave(&self, commands: usize, expected: usize, alone: bool) -> bool {
        let (flights, flying) = (self.flights.load(Ordering::Acquire), self.flying.load(Ordering::Acquire));
        let are_enough = commands >= expected && commands * SHARE >= flying;
        commands >= FULL_FLIGHT || flights < FLIGHTS && (alone || are_enough)
    }

    async fn desk(&self) -> MutexGuard<'_, Desk<T>> {
        loop {
            if let Ok(desk) = self.desk.try_lock() {
                return desk;
            }
            self.free.notified().await;
        }
    }

    /// Whatever waits, as soon as it may leave. `None` once nobody can send errands any more and none is left.
    pub(super) async fn take(self: &Arc<Self>) -> Option<(Vec<T>, Flight<T>)> {
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
        let seen = self.flying.load(Ordering::Acquire) + tasks.len() + errands.len();
        // Whom it waited for in vain nobody else waits for.
        if company.is_elapsed() && tasks.len() < expected {
            about.is(seen)
        } else {
            about.saw(seen)
        }
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
    /// In parts.
    average: usize,
}

impl About {
    const PARTS: usize = 64;
    /// More than this makes no difference.
    const MOST: usize = COMPANY * 2;

    fn is(&mut self, commands: usize) {
        self.average = commands.min(Self::MOST) * Self::PARTS;
    }

    fn saw(&mut self, commands: usize) {
        self.average = self.average - self.average / 8 + commands.min(Self::MOST) * Self::PARTS / 8;
    }

    /// How many a batch waits for: seven in eight, so that nobody waits for the last ones, who may be about something else.
    fn expected(&self) -> usize {
        (self.average * 7 / 8 / Self::PARTS).min(COMPANY)
    }
}

/// Whether a batch of so many commands takes another one, with so many errands left.
fn has_room(commands: usize, left: usize) -> bool {
    commands < ((commands + left) / CONNECTIONS).clamp(FLIGHT_MAX, BATCH_MAX)
}

/// A batch under way.
pub(super) struct Flight<T = Task> {
    queue: Arc<Queue<T>>,
    commands: usize,
}

impl<T> Flight<T> {
    fn leave(queue: &Arc<Queue<T>>, commands: usize) -> Self {
        queue.flights.fetch_add(1, Ordering::AcqRel);
        queue.flying.fetch_add(commands, Ordering::AcqRel);
        Self { queue: queue.clone(), commands }
    }
}

impl<T> Drop for Flight<T> {
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

    /// Commands are numbers here.
    fn queue() -> (mpsc::Sender<Errand<u8>>, Arc<Queue<u8>>) {
        let (sender, errands) = mpsc::channel(64);
        (sender, Arc::new(Queue::new(errands)))
    }

    async fn send(sender: &mpsc::Sender<Errand<u8>>, commands: usize) {
        sender.send(Errand::Several(vec![0; commands])).await.expect("there is room");
    }

    async fn take(queue: &Arc<Queue<u8>>) -> Option<(Vec<u8>, Flight<u8>)> {
        tokio::time::timeout(Duration::from_secs(10), queue.take()).await.expect("nobody waits for ever")
    }

    #[test]
    fn batches_leave_in_company() {
        let (_sender, queue) = queue();
        assert!(queue.may_leave(1, 0, false), "nobody is expected");
        assert!(!queue.may_leave(4, 5, false));
        assert!(queue.may_leave(5, 5, false));
        assert!(queue.may_leave(1, 5, true), "nobody came");
        let first = Flight::leave(&queue, 20);
        assert!(!queue.may_leave(9, 5, false), "fewer than half of what is under way");
        assert!(queue.may_leave(10, 5, false));
        assert!(queue.may_leave(1, 5, true), "nobody came");
        let second = Flight::leave(&queue, 10);
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
        assert_eq!(expected_of(12), 10);
        assert_eq!(expected_of(1_000), COMPANY);
        assert_eq!(expected_of(2), 1, "who is one of two waits for nobody");
        assert_eq!(expected_of(1), 0);
        (0..64).for_each(|_| about.saw(usize::MAX / 2));
        about.is(3);
        assert_eq!(about.expected(), 2);
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
    async fn others_are_waited_for_once_many_are_about_and_nobody_for_ever() {
        let (sender, queue) = queue();
        for _ in 0..64 {
            send(&sender, 10).await;
            assert_eq!(take(&queue).await.expect("the queue is open").0.len(), 10);
        }
        // Fewer than usual: the others may come.
        send(&sender, 2).await;
        let since = Instant::now();
        let later = async {
            tokio::task::yield_now().await;
            send(&sender, 8).await;
        };
        let (taken, ()) = tokio::join!(take(&queue), later);
        assert_eq!(taken.expect("the queue is open").0.len(), 10, "it waited for them");
        // They do not.
        send(&sender, 2).await;
        assert_eq!(take(&queue).await.expect("the queue is open").0.len(), 2);
        assert!(since.elapsed() >= COMPANY_MAX, "they were waited for");
        assert!(queue.desk().await.about.expected() <= 2, "the next one does not");
    }

    #[tokio::test]
    async fn who_waited_for_the_shortest_time_is_next_and_all_end_with_the_queue() {
        let (sender, queue) = queue();
        let (told, mut turns) = mpsc::unbounded_channel();
        let mut workers = Vec::new();
        for worker in 0..4 {
            let (queue, told) = (queue.clone(), told.clone());
            workers.push(tokio::spawn(async move {
                // Each keeps what it takes, so that it is never free again.
                let taken = take(&queue).await;
                told.send((worker, taken.is_some())).expect("somebody listens");
                std::mem::forget(taken);
            }));
            tokio::task::yield_now().await;
        }
        // The first has the desk, and the last came last; then the last but one.
        for _ in 0..FLIGHTS {
            send(&sender, 1).await;
            tokio::time::sleep(COMPANY_MAX * 4).await;
        }
        drop(sender);
        for worker in workers {
            worker.await.expect("it ends");
        }
        drop(told);
        let mut order = Vec::new();
        while let Some(turn) = turns.recv().await {
            order.push(turn);
        }
        assert_eq!(order, [(0, true), (3, true), (2, false), (1, false)]);
    }
}
