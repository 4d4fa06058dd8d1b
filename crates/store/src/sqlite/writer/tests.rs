use std::path::PathBuf;
use std::sync::atomic::AtomicI64;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use tokio::sync::oneshot;
use twicesafe_core::{Outcome, Policy, Recovery, Report, Settle, Verdict};

use super::super::recent::tests::{claim, order};
use super::super::{Sqlite, open};
use super::*;
use crate::clock::ManualClock;
use crate::{Clock, Options};

/// Another second whenever somebody looks.
struct Ticking(AtomicI64);

impl Clock for Ticking {
    fn system_millis(&self) -> i64 {
        self.0.fetch_add(1000, Ordering::SeqCst) + 1000
    }

    fn monotonic(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::SeqCst).unsigned_abs())
    }

    fn boot(&self) -> i64 {
        1
    }
}

/// A ledger, and a queue for a writer of the test's own.
struct Ledger {
    folder: PathBuf,
    store: Sqlite,
    connection: Connection,
    queue: Sender<Errand>,
    errands: Option<Receiver<Errand>>,
}

impl Ledger {
    fn new(name: &str) -> Self {
        Self::with_clock(name, Arc::new(Ticking(AtomicI64::new(1_800_000_000_000))))
    }

    fn with_clock(name: &str, clock: Arc<dyn Clock>) -> Self {
        let folder = std::env::temp_dir().join(format!("twicesafe-writer-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let options = Options { clock, ..Options::default() };
        let store = Sqlite::open(&folder.join("ledger"), &options).expect("it opens");
        let (connection, _) = open::writable(&folder.join("ledger"), &options).expect("it opens");
        let (queue, errands) = channel();
        Self { folder, store, connection, queue, errands: Some(errands) }
    }

    fn put(&self, order: Order) -> oneshot::Receiver<Result<Applied, StoreError>> {
        let (reply, answer) = Reply::channel();
        self.store.shared.queued.fetch_add(1, Ordering::Relaxed);
        let shared = &self.store.shared;
        let hash = shared.hash_of(&order);
        self.queue.send(Errand::Apply(Box::new(Task::new(shared, order, hash)), reply)).expect("queued");
        answer
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn granted(answer: oneshot::Receiver<Result<Applied, StoreError>>) -> Arc<Stored> {
    let applied = answer.blocking_recv().expect("answered").expect("applied");
    assert!(matches!(applied.verdict, Verdict::Proceed(_)), "{:?}", applied.verdict);
    applied.stored.expect("it is there")
}

fn granted_at(stored: &Stored) -> Timestamp {
    stored.record.attempt.as_ref().expect("a permit is out").granted_at
}

fn of_class_repeat(key: &str) -> Order {
    order(key, |name| {
        let mut action = claim(name);
        if let Action::Claim(claim) = &mut action {
            claim.policy = Arc::new(Policy::new(Recovery::Repeat));
        }
        action
    })
}

/// What one turn of the writer's does.
fn turn(writer: &mut Writer<'_>, batch: &mut Batch) {
    match batch.next.take().or_else(|| writer.wait()).expect("something waits") {
        Errand::Apply(task, reply) => {
            batch.push(*task, reply);
            writer.apply(batch);
        }
        Errand::Run(what, reply) => drop(reply.send(writer.run_aside(what, false))),
        Errand::Count(reply) => drop(reply.send(writer.write_counts())),
    }
}

#[test]
fn s9_what_is_taken_along_is_decided_after_it_came() {
    let mut ledger = Ledger::new("s9");
    let answers = ["a", "b"].map(|key| ledger.put(order(key, claim)));
    let errands = ledger.errands.take().expect("not yet taken");
    let mut writer = Writer::new(&ledger.connection, &ledger.store.shared, errands);
    turn(&mut writer, &mut Batch::default());
    assert_eq!(ledger.store.shared.queued.load(Ordering::Relaxed), 0, "one batch for both");
    let [first, second] = answers.map(granted);
    assert!(granted_at(&first) < granted_at(&second));
}

#[test]
fn s10_what_was_decided_a_moment_ago_stands_and_later_it_is_decided_again() {
    let clock = Arc::new(ManualClock::at(1_800_000_000_000));
    let mut ledger = Ledger::with_clock("ago", clock.clone());
    let errands = ledger.errands.take().expect("not yet taken");
    let mut writer = Writer::new(&ledger.connection, &ledger.store.shared, errands);
    let mut granted_after = |key: &str, waits: Duration| {
        let asked_at = ledger.store.now();
        let answer = ledger.put(order(key, claim));
        clock.advance(waits);
        turn(&mut writer, &mut Batch::default());
        granted_at(&granted(answer)).since(asked_at)
    };
    let (moment, long) = (Duration::from_millis(500), Duration::from_secs(5));
    assert_eq!(granted_after("a", moment), Duration::ZERO, "by whoever asked");
    assert_eq!(granted_after("b", long), long, "by the writer");
}

#[test]
fn s43_what_was_decided_before_the_ledger_recovers_is_decided_again() {
    let mut ledger = Ledger::with_clock("recovers", Arc::new(ManualClock::at(1_800_000_000_000)));
    let answer = ledger.put(order("a", claim));
    let mark = "UPDATE ledger SET recovering_since = 1";
    ledger.connection.execute_batch(mark).expect("another process");
    let errands = ledger.errands.take().expect("not yet taken");
    let mut writer = Writer::new(&ledger.connection, &ledger.store.shared, errands);
    turn(&mut writer, &mut Batch::default());
    let applied = answer.blocking_recv().expect("answered").expect("applied");
    assert!(matches!(applied.verdict, Verdict::Review), "{:?}", applied.verdict);
}

#[test]
fn s1_what_was_decided_of_one_new_name_twice_is_given_to_one() {
    let mut ledger = Ledger::with_clock("twice", Arc::new(ManualClock::at(1_800_000_000_000)));
    let mut again = order("a", claim);
    again.command.id = twicesafe_core::CommandId::new([2; 16]);
    let answers = [ledger.put(order("a", claim)), ledger.put(again)];
    let errands = ledger.errands.take().expect("not yet taken");
    let mut writer = Writer::new(&ledger.connection, &ledger.store.shared, errands);
    turn(&mut writer, &mut Batch::default());
    let verdicts = answers.map(|answer| answer.blocking_recv().expect("answered").expect("applied").verdict);
    assert!(matches!(verdicts, [Verdict::Proceed(_), Verdict::Wait(_)]), "{verdicts:?}");
}

#[test]
fn s7_what_must_be_synced_does_not_go_along_with_what_need_not() {
    let mut ledger = Ledger::new("s7");
    let (a, b) = (ledger.put(of_class_repeat("a")), ledger.put(of_class_repeat("b")));
    let (c, d) = (ledger.put(order("c", claim)), ledger.put(of_class_repeat("d")));
    let (noted, aside) = oneshot::channel();
    ledger.store.shared.queued.fetch_add(1, Ordering::Relaxed);
    ledger.queue.send(Errand::Run(Box::new(|_| Ok(())), noted)).expect("queued");
    let e = ledger.put(of_class_repeat("e"));
    let errands = ledger.errands.take().expect("not yet taken");
    let mut writer = Writer::new(&ledger.connection, &ledger.store.shared, errands);
    let mut batch = Batch::default();
    turn(&mut writer, &mut batch);
    assert!(writer.relaxed, "a and b need no sync");
    let [a, b] = [a, b].map(granted);
    assert!(batch.next.is_some(), "c does");
    turn(&mut writer, &mut batch);
    assert!(!writer.relaxed);
    let [c, d] = [c, d].map(granted);
    assert!(a.id < b.id && b.id < c.id && c.id < d.id, "in their order");
    writer.relax(true).expect("it can be");
    turn(&mut writer, &mut batch);
    assert!(!writer.relaxed, "what is no command is always synced");
    aside.blocking_recv().expect("answered").expect("done");
    turn(&mut writer, &mut batch);
    granted(e);
    assert_eq!(ledger.store.shared.queued.load(Ordering::Relaxed), 0);
}

#[test]
fn s7_what_was_agreed_first_decides_whether_a_claim_is_synced() {
    let mut ledger = Ledger::new("agreed");
    let errands = ledger.errands.take().expect("not yet taken");
    let mut writer = Writer::new(&ledger.connection, &ledger.store.shared, errands);
    let mut batch = Batch::default();
    let claimed = ledger.put(order("a", claim));
    turn(&mut writer, &mut batch);
    let claimed = granted(claimed);
    let report = Report::Act(Outcome::not_sent("refused"));
    let (fence, salt) = (claimed.record.fence, claimed.record.salt.expect("a salt"));
    let secret = twicesafe_core::PermitSecret::of(salt, fence, 1, &twicesafe_core::Actor::sweep());
    let settle = Settle { fence, generation: 1, secret, report };
    let settled = ledger.put(order("a", |_| Action::Settle(settle)));
    turn(&mut writer, &mut batch);
    settled.blocking_recv().expect("answered").expect("settled");
    // By now somebody has called it harmless to repeat, but a person was to be asked when this began.
    let mut again = of_class_repeat("a");
    again.command.id = twicesafe_core::CommandId::new([2; 16]);
    let mut tries = 0;
    loop {
        let answer = ledger.put(again.clone());
        turn(&mut writer, &mut batch);
        let applied = answer.blocking_recv().expect("answered").expect("applied");
        match applied.verdict {
            Verdict::Proceed(_) => break,
            // Not due yet: the clock ticks.
            other => assert!(tries < 1000, "{other:?}"),
        }
        tries += 1;
    }
    assert!(!writer.relaxed, "its permit was synced");
}
