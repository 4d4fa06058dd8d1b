//! The ledger in one SQLite file.
//!
//! All writes go through one thread: it takes whatever waits, writes it in one transaction, and syncs once (group commit without a
//! timer). What it writes was decided by whoever asked (`task`), or is decided by the writer, where that cannot be or was wrong.
//! Reads have connections of their own and never wait for the writer. Several processes
//! may share the file; SQLite's lock orders their transactions, and versions tell when a belief was wrong.

mod checkpoint;
mod open;
mod place;
mod read;
mod recent;
mod task;
mod transfer;
mod write;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use tokio::sync::oneshot;
use twicesafe_core::{Action, IntentId, MachineClock, Moment, Timestamp};

use crate::clock::{Clock, LedgerTime};
use crate::error::StoreError;
use crate::plan::{Applied, Order, Stored, Target, check_name, plan};
use crate::reply::Reply;
use crate::seal::RowCodec;
use crate::secret::Keys;
use crate::tally::Tally;
use crate::{Dice, NameHash, NameHasher, Options, QUEUE_MAX};
use read::Readers;
use recent::Recent;
use task::Task;
pub(crate) use transfer::{Importing, Snapshot};

/// A ledger with fewer pages left, or a disk with fewer bytes, is full: the next claims would be refused.
const PAGES_LEFT_MIN: i64 = 64;
const BYTES_LEFT_MIN: u64 = 1 << 20;
/// How long a process waits for another one's transaction.
const BUSY_MAX: std::time::Duration = std::time::Duration::from_secs(10);

/// Of many commands given together so many are queued at a time: who has one waits for a few of a sweep's, not for all.
const PORTION: usize = 16;

/// What the parts of a SQLite store share.
pub(crate) struct Shared {
    pub(crate) path: PathBuf,
    pub(crate) hasher: NameHasher,
    pub(crate) keys: Keys,
    /// The last ledger time before the machine was started.
    before_start: Timestamp,
    pub(crate) time: LedgerTime,
    pub(crate) rows: RowCodec,
    pub(crate) dice: Dice,
    pub(crate) batch_max: usize,
    /// Counts of what needed no write; go along with the next one.
    pub(crate) tally: std::sync::Mutex<Tally>,
    recent: Recent,
    odds: Odds,
    /// Since when records may be missing, as of the last transaction; `NOT_RECOVERING` otherwise.
    recovering_since: AtomicI64,
    /// Errands that wait for the writer.
    queued: AtomicUsize,
    /// Transactions of the writer's.
    commits: AtomicU64,
}

const NOT_RECOVERING: i64 = i64::MIN;

impl Shared {
    fn recovering_since(&self) -> Option<Timestamp> {
        let since = self.recovering_since.load(Ordering::Relaxed);
        (since != NOT_RECOVERING).then(|| Timestamp::from_millis(since))
    }

    fn machine_clock(&self) -> MachineClock {
        self.time.machine_clock(self.before_start)
    }

    /// The hash of the name a command has its intent by, if it has one, and the number of its key.
    fn hash_of(&self, order: &Order) -> Option<(NameHash, u64)> {
        match &order.target {
            Target::Name(name) => Some(self.hasher.hash_and_key(name)),
            Target::Id(_) => None,
        }
    }

    fn recovers_since(&self, since: Option<Timestamp>) {
        self.recovering_since.store(since.map_or(NOT_RECOVERING, Timestamp::as_millis), Ordering::Relaxed);
    }

    fn count(&self, at: Timestamp, verdict: &twicesafe_core::Verdict) {
        self.tally.lock().unwrap_or_else(std::sync::PoisonError::into_inner).verdict(at, verdict);
    }
}

/// How many of the last claims were of names the ledger knew.
///
/// Looking first saves a repetition the wait for the writer. For a new name it is wasted, and it is not cheap where much is
/// written, because every commit makes SQLite read its pages anew. The writer needs no look: it finds out by writing.
struct Odds {
    known: AtomicU32,
}

impl Odds {
    const ALL: u32 = 1 << 16;
    /// One claim in so many has to be a repetition.
    const WORTH_IT: u32 = Self::ALL / 4;
    /// So many claims back, about.
    const MEMORY: u32 = 64;

    fn are_good(&self) -> bool {
        self.known.load(Ordering::Relaxed) >= Self::WORTH_IT
    }

    /// Looks again: the writer cannot write.
    fn forget(&self) {
        self.known.store(Self::ALL, Ordering::Relaxed);
    }

    /// Two that count at the same moment may lose one count, which does not matter.
    fn count(&self, was_known: bool) {
        let odds = self.known.load(Ordering::Relaxed);
        let changed =
            if was_known { odds + (Self::ALL - odds) / Self::MEMORY } else { odds - odds / Self::MEMORY };
        self.known.store(changed, Ordering::Relaxed);
    }
}

impl Default for Odds {
    fn default() -> Self {
        Self { known: AtomicU32::new(Self::ALL) }
    }
}

/// Something to do inside a transaction of the writer's.
type Aside = Box<dyn FnOnce(&rusqlite::Connection) -> Result<(), StoreError> + Send>;

/// Something for the writer to do.
enum Errand {
    Apply(Box<Task>, Reply<Result<Applied, StoreError>>),
    /// Drop what is purged, or set the recovery mark: things that are no command about one intent.
    Run(Aside, oneshot::Sender<Result<(), StoreError>>),
    /// Writes what was counted, without a sync.
    Count(oneshot::Sender<Result<(), StoreError>>),
}

pub(crate) struct Sqlite {
    shared: Arc<Shared>,
    /// Bounded by count: a queue with room for everything would cost every short-lived process milliseconds.
    queue: Option<Sender<Errand>>,
    writer: Option<JoinHandle<()>>,
    pub(crate) warnings: Vec<String>,
    pub(crate) readers: Readers,
}

impl Sqlite {
    pub(crate) fn open(path: &Path, options: &Options) -> Result<Self, StoreError> {
        let clock: Arc<dyn Clock> = options.clock.clone();
        let path = place::of_ledger(path)?;
        let (connection, known) = open::writable(&path, options)?;
        let hasher = NameHasher::new(known.hash_key);
        let time = LedgerTime::new(clock);
        // Also after a restart, and if the clock was set back meanwhile (S10).
        time.read(Some(known.last));
        let shared = Arc::new(Shared {
            hasher,
            before_start: known.before_start,
            time,
            rows: RowCodec::new(&known.keys),
            keys: known.keys,
            dice: Dice::new(),
            batch_max: options.batch_max.max(1),
            tally: Default::default(),
            recent: if options.remember { Recent::of(&path) } else { Recent::default() },
            odds: Odds::default(),
            recovering_since: AtomicI64::new(NOT_RECOVERING),
            queued: AtomicUsize::new(0),
            commits: AtomicU64::new(0),
            path,
        });
        let readers = Readers::new(shared.clone());
        let (queue, errands) = channel();
        let of_writer = shared.clone();
        let writer = std::thread::Builder::new()
            .name("twicesafe-writer".into())
            .spawn(move || writer::Writer::new(&connection, &of_writer, errands).run())
            .map_err(|error| StoreError::Away(error.to_string()))?;
        Ok(Self { shared, queue: Some(queue), writer: Some(writer), warnings: known.warnings, readers })
    }

    /// Queues commands in their order, and waits for all their answers.
    pub(crate) async fn submit_all(&self, orders: Vec<Order>) -> Vec<Result<Applied, StoreError>> {
        let mut results = Vec::with_capacity(orders.len());
        let mut orders = orders.into_iter().peekable();
        while orders.peek().is_some() {
            let mut queued = false;
            let mut submitted = Vec::with_capacity(PORTION);
            for order in orders.by_ref().take(PORTION) {
                // A look would not see what those before it are about to do.
                let one = self.submit(order, !queued);
                queued |= matches!(one, Ok(Submitted::Queued(_)));
                submitted.push(one);
            }
            for one in submitted {
                results.push(match one {
                    Ok(one) => one.answer().await,
                    Err(error) => Err(error),
                });
            }
        }
        results
    }

    /// Queues a command; its answer comes when it is on disk. A claim that needs no write is answered at once, if the
    /// sender lets it be looked up and a look is worth it.
    pub(crate) fn submit(&self, mut order: Order, may_look: bool) -> Result<Submitted, StoreError> {
        let hash = self.shared.hash_of(&order);
        if let (Action::Claim(_), Target::Name(_), None, Some((hash, _))) =
            (&order.command.action, &order.target, &order.believed, &hash)
            && may_look
            && let Some(stored) = self.look(hash)?
        {
            if let Some(applied) = self.told_again(&order, &stored)? {
                return Ok(Submitted::Answered(applied));
            }
            order.believed = Some(stored);
        }
        let (reply, answer) = Reply::channel();
        let task = Task::new(&self.shared, order, hash);
        self.send(Errand::Apply(Box::new(task), reply))?;
        Ok(Submitted::Queued(answer))
    }

    /// What a claim is told from memory, if nothing would be written. It is only made out if something is remembered, and that
    /// is only looked for where repetitions are likely.
    pub(crate) fn recall(
        &self,
        name: &twicesafe_core::Name,
        claim: impl FnOnce(&Stored) -> Option<Order>,
    ) -> Result<Option<Applied>, StoreError> {
        let remembered = || {
            self.shared.odds.are_good().then_some(())?;
            self.shared.recent.get(&self.shared.hasher.hash(name))
        };
        let Some(stored) = remembered() else { return Ok(None) };
        claim(&stored).map_or(Ok(None), |order| self.told_again(&order, &stored))
    }

    /// What a claim is told about what is believed, if nothing would be written.
    fn told_again(&self, order: &Order, stored: &Arc<Stored>) -> Result<Option<Applied>, StoreError> {
        check_name(order, stored)?;
        let clock = self.shared.machine_clock();
        let dice = self.shared.dice.roll();
        let moment = Moment { dice, clock, ..Moment::at(self.shared.time.glance()) };
        let planned = plan(Some(stored), stored.id, None, order, &moment, &self.shared.hasher);
        if planned.change.is_some() {
            return Ok(None);
        }
        self.shared.odds.count(true);
        self.shared.count(moment.now, &planned.applied.verdict);
        Ok(Some(planned.applied))
    }

    /// What is believed of an intent, from memory if nobody has written since it was read.
    fn look(&self, hash: &NameHash) -> Result<Option<Arc<Stored>>, StoreError> {
        if let Some(found) = self.shared.recent.get(hash) {
            return Ok(Some(found));
        }
        let is_busy = self.shared.queued.load(Ordering::Relaxed) > self.shared.batch_max;
        if !is_busy && !self.shared.odds.are_good() {
            return Ok(None);
        }
        let header = self.shared.recent.header();
        let found = self.readers.by_hash(hash)?.map(Arc::new);
        if let (Some(header), Some(found)) = (&header, &found) {
            self.shared.recent.put(header, hash, found);
        }
        Ok(found)
    }

    pub(crate) async fn run(
        &self,
        what: impl FnOnce(&rusqlite::Connection) -> Result<(), StoreError> + Send + 'static,
    ) -> Result<(), StoreError> {
        let (reply, answer) = oneshot::channel();
        self.send(Errand::Run(Box::new(what), reply))?;
        answer.await.unwrap_or_else(|_| Err(gone()))
    }

    pub(crate) fn count(&self, at: Timestamp, name: &str, n: i64) {
        self.shared.tally.lock().unwrap_or_else(std::sync::PoisonError::into_inner).of_door(at, name, n);
    }

    pub(crate) fn has_unwritten_counts(&self) -> bool {
        !self.shared.tally.lock().unwrap_or_else(std::sync::PoisonError::into_inner).is_empty()
    }

    pub(crate) async fn flush(&self) -> Result<(), StoreError> {
        let (reply, answer) = oneshot::channel();
        self.send(Errand::Count(reply))?;
        answer.await.unwrap_or_else(|_| Err(gone()))
    }

    pub(crate) async fn recover_since(&self, since: Option<Timestamp>) -> Result<(), StoreError> {
        self.run(move |connection| {
            let mut statement = open::prepared(connection, "UPDATE ledger SET recovering_since = ?1")?;
            open::ran(statement.execute([since.map(Timestamp::as_millis)])).map(drop)
        })
        .await
    }

    pub(crate) async fn put_note(
        &self,
        kind: &str,
        name: &str,
        value: Option<&str>,
    ) -> Result<(), StoreError> {
        let (kind, name, value) = (kind.to_owned(), name.to_owned(), value.map(str::to_owned));
        self.run(move |connection| {
            open::ran(match &value {
                Some(value) => open::prepared(connection, "INSERT OR REPLACE INTO note VALUES (?1, ?2, ?3)")?
                    .execute((&kind, &name, value)),
                None => open::prepared(connection, "DELETE FROM note WHERE kind = ?1 AND name = ?2")?
                    .execute((&kind, &name)),
            })
            .map(drop)
        })
        .await
    }

    pub(crate) fn keys(&self) -> &Keys {
        &self.shared.keys
    }

    /// Checks that there is room for more, in the file and on its disk.
    pub(crate) async fn check_room(&self) -> Result<(), StoreError> {
        self.run(|connection| {
            let pages = |what: &str| open::ran(connection.query_row(what, [], |row| row.get::<_, i64>(0)));
            let used = pages("PRAGMA page_count")? - pages("PRAGMA freelist_count")?;
            if pages("PRAGMA max_page_count")? - used < PAGES_LEFT_MIN {
                return Err(StoreError::DiskFull);
            }
            let place = connection.path().map(rustix::fs::statvfs);
            match place {
                Some(Ok(place)) if place.f_bavail.saturating_mul(place.f_frsize) < BYTES_LEFT_MIN => {
                    Err(StoreError::DiskFull)
                }
                // Where nobody knows, a write tells.
                _ => Ok(()),
            }
        })
        .await
    }

    /// A key that everybody who opens this ledger can derive.
    pub(crate) fn key(&self) -> [u8; 32] {
        *self.shared.hasher.key().secret()
    }

    /// Looks again later at an intent that could not be purged now.
    pub(crate) async fn keep_until(&self, until: Vec<(IntentId, Timestamp)>) -> Result<(), StoreError> {
        self.run(move |connection| {
            let mut statement =
                open::prepared(connection, "UPDATE intent SET keep_until = ?2 WHERE id = ?1")?;
            for (id, until) in until {
                open::ran(statement.execute((id.number(), until.as_millis())))?;
            }
            Ok(())
        })
        .await
    }

    /// Differs from what it was when others have written, whose changes nobody announces here.
    pub(crate) fn others(&self) -> Result<Others, StoreError> {
        match self.shared.recent.others_wrote() {
            Some(times) => Ok(Others::Wrote(times)),
            None => self.readers.data_version().map(Others::OrThisProcess),
        }
    }

    /// Differs from what it was when this process has written.
    pub(crate) fn commits(&self) -> u64 {
        self.shared.commits.load(Ordering::Relaxed)
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.shared.time.glance()
    }

    pub(crate) fn hash_of(&self, name: &twicesafe_core::Name) -> crate::NameHash {
        self.shared.hasher.hash(name)
    }

    fn send(&self, errand: Errand) -> Result<(), StoreError> {
        let queue = self.queue.as_ref().ok_or_else(gone)?;
        if self.shared.queued.fetch_add(1, Ordering::Relaxed) >= QUEUE_MAX {
            self.shared.queued.fetch_sub(1, Ordering::Relaxed);
            return Err(StoreError::Overloaded(QUEUE_MAX));
        }
        queue.send(errand).map_err(|_| gone())
    }
}

impl Drop for Sqlite {
    /// Waits for what was queued: an answer that was promised is written before the process goes on.
    fn drop(&mut self) {
        self.queue = None;
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

/// What is known of others who write to the ledger.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Others {
    Wrote(u64),
    /// They cannot be told from this process's own writer.
    OrThisProcess(i64),
}

/// A command that was taken.
pub(crate) enum Submitted {
    Answered(Applied),
    Queued(oneshot::Receiver<Result<Applied, StoreError>>),
}

impl Submitted {
    pub(crate) async fn answer(self) -> Result<Applied, StoreError> {
        match self {
            Self::Answered(applied) => Ok(applied),
            Self::Queued(answer) => answer.await.unwrap_or_else(|_| Err(gone())),
        }
    }
}

fn gone() -> StoreError {
    StoreError::Away("the writer has stopped".into())
}

#[cfg(test)]
mod tests {
    use twicesafe_core::{Answer, Outcome, Report, Settle, Verdict};

    use super::recent::tests::{claim, order};
    use super::*;

    #[tokio::test]
    async fn new_names_are_not_looked_for_once_all_are_new_and_repetitions_are_answered_all_the_same() {
        let folder = std::env::temp_dir().join(format!("twicesafe-odds-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let store = Sqlite::open(&folder.join("ledger"), &Options::default()).expect("it opens");
        let tell = async |order: Order| store.submit(order, true)?.answer().await;
        let known = || store.shared.odds.known.load(Ordering::Relaxed);
        assert_eq!(known(), Odds::ALL, "nothing is known yet");
        let claimed = tell(order("known", claim)).await.expect("claimed");
        let Verdict::Proceed(permit) = claimed.verdict else { panic!("{:?}", claimed.verdict) };
        let report = Report::Act(Outcome::Answered(Answer::of("first".as_bytes().to_vec())));
        let settle = Settle { fence: permit.fence, generation: 1, secret: permit.secret, report };
        tell(order("known", |_| Action::Settle(settle))).await.expect("settled");
        for n in 0..200 {
            tell(order(&format!("new {n}"), claim)).await.expect("claimed");
        }
        assert!(known() < Odds::WORTH_IT / 4, "all were new");
        let mut by_the_writer = 0;
        for _ in 0..64 {
            let submitted = store.submit(order("known", claim), true).expect("taken");
            let by_a_look = matches!(submitted, Submitted::Answered(_));
            let again = submitted.answer().await.expect("answered");
            assert!(matches!(again.verdict, Verdict::Replay(_)), "{:?}", again.verdict);
            assert!(!again.changed);
            by_the_writer += u32::from(!by_a_look);
        }
        assert!(known() >= Odds::WORTH_IT);
        assert!(
            (8..32).contains(&by_the_writer),
            "until a quarter of the last ones are repetitions: {by_the_writer}"
        );
        drop(store);
        std::fs::remove_dir_all(&folder).expect("it can go");
    }
}
