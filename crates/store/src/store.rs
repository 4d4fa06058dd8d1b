//! One store type over three databases.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use twicesafe_core::journal::{self, Event, Head};
use twicesafe_core::{IntentId, LaneName, Name, Salt, Status, Timestamp};

use crate::address::Address;
use crate::error::StoreError;
use crate::memory::Memory;
use crate::plan::{Applied, JournalRow, Order, Stored};
use crate::postgres::Postgres;
use crate::query::{Cursor, Dossier, DueIntent, Filter, PAGE_MAX, Page, SCOPES_MAX};
use crate::scan::Scan;
use crate::secret::Keys;
use crate::sqlite::Sqlite;
use crate::tally::{Statistics, hour_of};
use crate::transfer::{Export, Facts, Import};
use crate::watch::Watchers;
use crate::{Options, plan};

/// A ledger's store. Cheap to clone; the last clone to go waits for what was queued.
#[derive(Clone)]
pub struct Store(Arc<Inner>);

struct Inner {
    address: Address,
    backend: Backend,
    watchers: Arc<Watchers>,
    polling: AtomicBool,
    clock: Arc<dyn crate::clock::Clock>,
}

#[expect(clippy::large_enum_variant, reason = "there is one a store")]
enum Backend {
    Memory(Arc<Memory>),
    Sqlite(Sqlite),
    Postgres(Postgres),
}

/// How often one looks for changes of other processes, at first and after a while without any.
const LOOK_SQLITE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(50));
/// How often one looks for what this process has written as well: changes are announced by whoever asked for them, and they may
/// have gone away meanwhile.
const LOOK_AT_OWN: Duration = Duration::from_secs(1);
/// Most intents looked at each time: many who wait must not cost those who work.
const LOOKED_AT_MAX: usize = 1000;
const LOOK_POSTGRES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));

impl Store {
    /// Opens a ledger, making or migrating it where needed.
    pub async fn open(address: &Address, options: Options) -> Result<Self, StoreError> {
        let backend = match address {
            Address::Memory => Backend::Memory(Arc::new(Memory::new(&options))),
            Address::Sqlite(path) => Backend::Sqlite(Sqlite::open(path, &options)?),
            Address::Postgres(url) => Backend::Postgres(Postgres::open(url, &options).await?),
        };
        let watchers = Arc::new(Watchers::default());
        Ok(Self(Arc::new(Inner {
            address: address.clone(),
            backend,
            watchers,
            polling: AtomicBool::new(false),
            clock: options.clock,
        })))
    }

    /// Where it is.
    pub fn address(&self) -> &Address {
        &self.0.address
    }

    /// Applies commands: each is decided and written atomically, and none takes another one with it. Those about the
    /// same intent are applied in the order given.
    pub async fn apply(&self, orders: Vec<Order>) -> Vec<Result<Applied, StoreError>> {
        let results: Vec<_> = match &self.0.backend {
            Backend::Memory(memory) => orders.iter().map(|order| Ok(memory.apply(order))).collect(),
            Backend::Sqlite(sqlite) => sqlite.submit_all(orders).await,
            Backend::Postgres(postgres) => postgres.submit_all(orders).await,
        };
        results.iter().flatten().for_each(|applied| self.0.watchers.announce(applied));
        results
    }

    /// What a claim is told from memory, if nothing would be written: of a ledger in memory, and of what is remembered of another
    /// ([`Options::remember`](crate::Options)). It is only made out if something is there.
    pub fn recall(
        &self,
        name: &Name,
        claim: impl FnOnce(&Stored) -> Option<Order>,
    ) -> Result<Option<Applied>, StoreError> {
        match &self.0.backend {
            Backend::Memory(memory) => Ok(memory.recall(name, claim)),
            Backend::Sqlite(sqlite) => sqlite.recall(name, claim),
            Backend::Postgres(_) => Ok(None),
        }
    }

    /// Applies one command. It shares its transaction with others that come at the same time.
    pub async fn apply_one(&self, order: Order) -> Result<Applied, StoreError> {
        let applied = match &self.0.backend {
            Backend::Memory(memory) => memory.apply(&order),
            Backend::Sqlite(sqlite) => sqlite.submit(order, true)?.answer().await?,
            Backend::Postgres(postgres) => postgres.submit(order).await?,
        };
        self.0.watchers.announce(&applied);
        Ok(applied)
    }

    /// What is believed of an intent; nothing is changed by looking.
    pub async fn find(&self, name: &Name) -> Result<Option<Stored>, StoreError> {
        match &self.0.backend {
            Backend::Memory(memory) => Ok(memory.by_name(name)),
            Backend::Sqlite(sqlite) => sqlite.readers.by_hash(&sqlite.hash_of(name)),
            // Boxed, here and below: otherwise everybody would hold, and move, room for a query.
            Backend::Postgres(postgres) => Box::pin(postgres.by_name(name)).await,
        }
    }

    /// What is believed of the intent with that number.
    pub async fn find_id(&self, id: IntentId) -> Result<Option<Stored>, StoreError> {
        match &self.0.backend {
            Backend::Memory(memory) => Ok(memory.by_id(id)),
            Backend::Sqlite(sqlite) => sqlite.readers.by_id(id),
            Backend::Postgres(postgres) => Box::pin(postgres.by_id(id)).await,
        }
    }

    /// Everything about one intent.
    pub async fn dossier(&self, name: &Name) -> Result<Option<Dossier>, StoreError> {
        let Some(stored) = self.find(name).await? else { return Ok(None) };
        let id = stored.id;
        let (journal, earlier) = match &self.0.backend {
            Backend::Memory(memory) => (memory.journal(id), memory.earlier(id)),
            Backend::Sqlite(sqlite) => (sqlite.readers.journal(id)?, sqlite.readers.earlier(id)?),
            Backend::Postgres(postgres) => {
                let all = async { Ok((postgres.journal(id).await?, postgres.earlier(id).await?)) };
                Box::pin(all).await?
            }
        };
        let request = match self.request(id).await {
            // It is nothing to go by, and the check of the journal says so.
            Err(StoreError::Altered(_)) => None,
            request => request?,
        };
        Ok(Some(Dossier { stored, journal, earlier, request }))
    }

    /// The journal of one intent.
    pub async fn journal(&self, id: IntentId) -> Result<Vec<JournalRow>, StoreError> {
        match &self.0.backend {
            Backend::Memory(memory) => Ok(memory.journal(id)),
            Backend::Sqlite(sqlite) => sqlite.readers.journal(id),
            Backend::Postgres(postgres) => Box::pin(postgres.journal(id)).await,
        }
    }

    /// Checks that the journal of an intent is whole: every row follows from the one before, none is missing, and the
    /// intent's own row agrees about where it ends (S40).
    pub async fn verify_journal(&self, stored: &Stored) -> Result<Option<JournalFault>, StoreError> {
        let rows = self.journal(stored.id).await?;
        let broken = fault_in(&rows, stored.journal_rows, &stored.journal_head, stored.record.salt);
        if broken.is_some() {
            return Ok(broken);
        }
        let at_its_end = |what| Ok(Some(JournalFault { number: stored.journal_rows, what }));
        if !stored.fits_seal {
            return at_its_end("the record does not fit its seal");
        }
        match self.request(stored.id).await {
            Err(StoreError::Altered(_)) => at_its_end("the request does not fit the record"),
            Err(error) => Err(error),
            Ok(_) => Ok(None),
        }
    }

    /// Intents, newest first; by the times of the agenda where a status other than `done` is asked for.
    pub async fn list(
        &self,
        filter: &Filter,
        after: Option<Cursor>,
        limit: usize,
    ) -> Result<Page, StoreError> {
        if filter.matches_nothing() {
            return Ok(Page { intents: Vec::new(), next: None });
        }
        let limit = limit.clamp(1, PAGE_MAX);
        let below = match &filter.scope {
            Some(scope) if scope.ends_with('/') => self.scopes(scope).await?,
            _ => Vec::new(),
        };
        let paths = filter.paths(|_| below);
        let mut scan = Scan::new(&paths, limit);
        let (mut intents, mut reached) = (Vec::new(), after);
        loop {
            while let Some((path, from, want)) = scan.wants() {
                if scan.is_over() {
                    return Ok(Page { intents, next: reached });
                }
                let rows = self.page(path, from.or(after), want).await?;
                scan.take(rows, |path, stored| filter.ends_at(path, stored));
            }
            let Some((stored, cursor)) = scan.newest() else { return Ok(Page { intents, next: None }) };
            if filter.matches(&stored) {
                if intents.len() == limit {
                    return Ok(Page { intents, next: reached });
                }
                intents.push(stored);
            }
            reached = Some(cursor);
        }
    }

    async fn page(
        &self,
        path: &crate::query::Path,
        after: Option<Cursor>,
        limit: usize,
    ) -> Result<Vec<(Stored, Cursor)>, StoreError> {
        match &self.0.backend {
            Backend::Memory(memory) => Ok(memory.page(path, after, limit)),
            Backend::Sqlite(sqlite) => sqlite.readers.page(path, after, limit),
            Backend::Postgres(postgres) => Box::pin(postgres.page(path, after, limit)).await,
        }
    }

    /// The scopes that start with a prefix.
    pub async fn scopes(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        match &self.0.backend {
            Backend::Memory(memory) => Ok(memory.scopes(prefix, SCOPES_MAX)),
            Backend::Sqlite(sqlite) => sqlite.readers.scopes(prefix, SCOPES_MAX),
            Backend::Postgres(postgres) => Box::pin(postgres.scopes(prefix, SCOPES_MAX)).await,
        }
    }

    /// The steps of a unit of work, oldest first.
    pub async fn work(&self, work: &str) -> Result<Vec<Stored>, StoreError> {
        let filter = Filter { work: Some(work.to_owned()), ..Filter::default() };
        let mut steps = self.list(&filter, None, PAGE_MAX).await?.intents;
        steps.reverse();
        Ok(steps)
    }

    /// Intents that time alone changes now: lapsed leases, expired approvals, lookups and native keys out of time.
    pub async fn awake(&self, limit: usize) -> Result<Vec<IntentId>, StoreError> {
        let now = self.now().await?;
        let mut ids = Vec::new();
        for status in Status::ALL {
            let left = limit - ids.len();
            ids.extend(match &self.0.backend {
                Backend::Memory(memory) => memory.awake(status, now, left),
                Backend::Sqlite(sqlite) => sqlite.readers.awake(status, now, left)?,
                Backend::Postgres(postgres) => Box::pin(postgres.awake(status, now, left)).await?,
            });
        }
        Ok(ids)
    }

    /// Intents of a scope whose next attempt or lookup is due, oldest first; those that follow on `after`. However much is on the
    /// agenda, a page costs only the page.
    pub async fn due(
        &self,
        scope: &str,
        after: Option<(Timestamp, IntentId)>,
        limit: usize,
    ) -> Result<Vec<DueIntent>, StoreError> {
        let now = self.now().await?;
        match &self.0.backend {
            Backend::Memory(memory) => Ok(memory.due(scope, now, after, limit)),
            Backend::Sqlite(sqlite) => sqlite.readers.due(scope, now, after, limit),
            Backend::Postgres(postgres) => Box::pin(postgres.due(scope, now, after, limit)).await,
        }
    }

    /// Scopes in which something is due, now or later, and when the first of it is: those that follow on `after`, in their order.
    pub async fn scopes_with_due(
        &self,
        after: &str,
        limit: usize,
    ) -> Result<Vec<(String, Timestamp)>, StoreError> {
        match &self.0.backend {
            Backend::Memory(memory) => Ok(memory.scopes_with_due(after, limit)),
            Backend::Sqlite(sqlite) => sqlite.readers.scopes_with_due(after, limit),
            Backend::Postgres(postgres) => Box::pin(postgres.scopes_with_due(after, limit)).await,
        }
    }

    /// The first of those that wait for a lane, by version, then by arrival.
    pub async fn first_waiting(&self, lane: &LaneName) -> Result<Option<IntentId>, StoreError> {
        let now = self.now().await?;
        match &self.0.backend {
            Backend::Memory(memory) => Ok(memory.first_waiting(lane.as_str(), now)),
            Backend::Sqlite(sqlite) => sqlite.readers.first_waiting(lane.as_str(), now),
            Backend::Postgres(postgres) => Box::pin(postgres.first_waiting(lane.as_str(), now)).await,
        }
    }

    /// What would be sent for an intent, as far as it is kept.
    pub async fn request(&self, id: IntentId) -> Result<Option<bytes::Bytes>, StoreError> {
        match &self.0.backend {
            Backend::Memory(memory) => Ok(memory.request(id)),
            Backend::Sqlite(sqlite) => sqlite.readers.request(id),
            Backend::Postgres(postgres) => Box::pin(postgres.request(id)).await,
        }
    }

    /// Intents to look at for purging.
    pub async fn kept_too_long(&self, limit: usize) -> Result<Vec<IntentId>, StoreError> {
        let now = self.now().await?;
        match &self.0.backend {
            Backend::Memory(memory) => Ok(memory.kept_too_long(now, limit)),
            Backend::Sqlite(sqlite) => sqlite.readers.kept_too_long(now, limit),
            Backend::Postgres(postgres) => Box::pin(postgres.kept_too_long(now, limit)).await,
        }
    }

    /// Looks again later at intents that could not be purged now.
    pub async fn keep_until(&self, until: Vec<(IntentId, Timestamp)>) -> Result<(), StoreError> {
        match &self.0.backend {
            Backend::Memory(memory) => memory.keep_until(until),
            Backend::Sqlite(sqlite) => sqlite.keep_until(until).await?,
            Backend::Postgres(postgres) => Box::pin(postgres.keep_until(until)).await?,
        }
        Ok(())
    }

    /// Figures: where intents stand now, and what happened in the hours asked for.
    pub async fn statistics(&self, from: Timestamp, to: Timestamp) -> Result<Statistics, StoreError> {
        self.flush().await?;
        // Hour 0 is where things stand now.
        let (from, to) = (hour_of(from).max(1), hour_of(to));
        let rows = match &self.0.backend {
            Backend::Memory(memory) => memory.tallies(from, to),
            Backend::Sqlite(sqlite) => sqlite.readers.tallies(from, to)?,
            Backend::Postgres(postgres) => Box::pin(postgres.tallies(from, to)).await?,
        };
        Ok(Statistics::from_rows(rows.into_iter()))
    }

    /// Everything the ledger knows, as it is now. Others may go on writing.
    pub async fn export(&self) -> Result<Export, StoreError> {
        self.flush().await?;
        Ok(match &self.0.backend {
            Backend::Memory(memory) => Export::memory(memory.export()),
            Backend::Sqlite(sqlite) => Export::sqlite(sqlite.export()?),
            Backend::Postgres(postgres) => Export::postgres(postgres.export().await?),
        })
    }

    /// Fills the ledger, which must be empty, with what another one knows.
    pub async fn import(&self, facts: &Facts) -> Result<Import, StoreError> {
        Ok(match &self.0.backend {
            Backend::Memory(memory) => Import::memory(memory.import(facts)?),
            Backend::Sqlite(sqlite) => Import::sqlite(sqlite.import(facts).await?),
            Backend::Postgres(postgres) => Import::postgres(postgres.import(facts).await?),
        })
    }

    /// The time of this machine, which may be wrong and may go back: for what others have signed with theirs.
    pub fn system_millis(&self) -> i64 {
        self.0.clock.system_millis()
    }

    /// Counts something a door cares about, by the hour, without waiting for a sync: it may be lost in a crash.
    pub fn count(&self, at: Timestamp, name: &str, n: u64) {
        let n = i64::try_from(n).unwrap_or(i64::MAX);
        match &self.0.backend {
            Backend::Memory(memory) => memory.count(at, name, n),
            Backend::Sqlite(sqlite) => sqlite.count(at, name, n),
            Backend::Postgres(postgres) => postgres.count(at, name, n),
        }
    }

    /// Whether there are counts that needed no write of their own, and were not written with another.
    pub fn has_unwritten_counts(&self) -> bool {
        match &self.0.backend {
            Backend::Memory(_) => false,
            Backend::Sqlite(sqlite) => sqlite.has_unwritten_counts(),
            Backend::Postgres(postgres) => postgres.has_unwritten_counts(),
        }
    }

    /// Writes counts that needed no write of their own.
    pub async fn flush(&self) -> Result<(), StoreError> {
        match &self.0.backend {
            Backend::Memory(_) => Ok(()),
            Backend::Sqlite(sqlite) => sqlite.flush().await,
            Backend::Postgres(postgres) => Box::pin(postgres.flush()).await,
        }
    }

    /// What a door keeps under that kind beside intents: names and values, in the order of names.
    pub async fn notes(&self, kind: &str) -> Result<Vec<(String, String)>, StoreError> {
        match &self.0.backend {
            Backend::Memory(memory) => Ok(memory.notes(kind)),
            Backend::Sqlite(sqlite) => sqlite.readers.notes(kind),
            Backend::Postgres(postgres) => Box::pin(postgres.notes(kind)).await,
        }
    }

    /// Keeps a note, in place of the one with that name; without a value there is none any more.
    pub async fn put_note(&self, kind: &str, name: &str, value: Option<&str>) -> Result<(), StoreError> {
        match &self.0.backend {
            Backend::Memory(memory) => memory.put_note(kind, name, value),
            Backend::Sqlite(sqlite) => sqlite.put_note(kind, name, value).await?,
            Backend::Postgres(postgres) => Box::pin(postgres.put_note(kind, name, value)).await?,
        }
        Ok(())
    }

    /// Checks that there is room for more on the ledger's disk. What can be written may only replace what is there. On PostgreSQL a
    /// write tells.
    pub async fn check_room(&self) -> Result<(), StoreError> {
        match &self.0.backend {
            Backend::Sqlite(sqlite) => sqlite.check_room().await,
            Backend::Memory(_) | Backend::Postgres(_) => Ok(()),
        }
    }

    /// A key for a purpose, the same for everybody who has opened this ledger.
    pub fn derived_key(&self, purpose: &str) -> [u8; 32] {
        let key = match &self.0.backend {
            Backend::Memory(memory) => memory.key(),
            Backend::Sqlite(sqlite) => sqlite.key(),
            Backend::Postgres(postgres) => postgres.key(),
        };
        blake3::derive_key(purpose, &key)
    }

    /// Derives a key for what is written into rows. Who can read the ledger and has not its secret cannot derive it; it stays the same
    /// when the ledger is given a secret.
    pub fn lasting_key(&self, purpose: &str) -> [u8; 32] {
        self.keys().lasting(purpose)
    }

    /// Derives a key that only those have who have the ledger's secret of now.
    pub fn secret_key(&self, purpose: &str) -> [u8; 32] {
        self.keys().of_secret(purpose)
    }

    /// Whether there is a secret. Without one, who can read the ledger can derive its keys, too.
    pub fn has_secret(&self) -> bool {
        self.keys().have_secret()
    }

    /// What was found when it was opened and somebody should know: that others could read its files, or can still.
    pub fn warnings(&self) -> &[String] {
        match &self.0.backend {
            Backend::Sqlite(sqlite) => &sqlite.warnings,
            Backend::Memory(_) | Backend::Postgres(_) => &[],
        }
    }

    fn keys(&self) -> &Keys {
        match &self.0.backend {
            Backend::Memory(memory) => memory.keys(),
            Backend::Sqlite(sqlite) => sqlite.keys(),
            Backend::Postgres(postgres) => postgres.keys(),
        }
    }

    /// Returns what seals the lines of an export of this ledger (S49).
    pub fn line_seal(&self) -> crate::LineSeal {
        self.keys().into()
    }

    /// Returns what seals the lines of an export of another ledger, if that has the same secret.
    pub fn line_seal_of(&self, facts: &Facts) -> Option<crate::LineSeal> {
        facts.line_seal(self.keys().secret())
    }

    /// Marks the ledger as having lost its tail since then, or ends that (S43).
    pub async fn recover_since(&self, since: Option<Timestamp>) -> Result<(), StoreError> {
        match &self.0.backend {
            Backend::Memory(memory) => memory.recover_since(since),
            Backend::Sqlite(sqlite) => sqlite.recover_since(since).await?,
            Backend::Postgres(postgres) => Box::pin(postgres.recover_since(since)).await?,
        }
        Ok(())
    }

    /// Since when records may be missing, if the ledger recovers from a lost tail.
    pub async fn recovering_since(&self) -> Result<Option<Timestamp>, StoreError> {
        match &self.0.backend {
            Backend::Memory(memory) => Ok(memory.recovering_since()),
            Backend::Sqlite(sqlite) => sqlite.readers.recovering_since(),
            Backend::Postgres(postgres) => Box::pin(postgres.recovering_since()).await,
        }
    }

    /// Since when acknowledged writes were found to be missing in the database, if this store found any (S43). The ledger recovers since
    /// then, until a person ends that.
    pub fn lost_since(&self) -> Option<Timestamp> {
        match &self.0.backend {
            Backend::Postgres(postgres) => postgres.lost_since(),
            Backend::Memory(_) | Backend::Sqlite(_) => None,
        }
    }

    /// Ledger time.
    pub async fn now(&self) -> Result<Timestamp, StoreError> {
        match &self.0.backend {
            Backend::Memory(memory) => Ok(memory.now()),
            Backend::Sqlite(sqlite) => Ok(sqlite.now()),
            Backend::Postgres(postgres) => Box::pin(postgres.now()).await,
        }
    }

    /// Waits until an intent has another version than the known one. Bound it with a timeout.
    pub async fn changed(&self, id: IntentId, known: i64) {
        let mut watcher = self.0.watchers.watch(id, known);
        // It may have changed before anybody watched: nobody would say so again.
        let version = match &self.0.backend {
            Backend::Memory(memory) => Some(memory.by_id(id).map_or(i64::MAX, |stored| stored.version)),
            Backend::Sqlite(sqlite) => match sqlite.readers.versions(&[id]) {
                Ok(versions) => Some(versions[0].1),
                // Nobody knows: it is asked again.
                Err(_) => return tokio::time::sleep(LOOK_SQLITE.1).await,
            },
            // Whoever looks for others asks for every version each time.
            Backend::Postgres(_) => None,
        };
        if let Some(version) = version {
            self.0.watchers.announce_version(id, version);
        }
        self.look_for_others();
        watcher.changed(known).await;
    }

    /// The store as a place for guarding effects inside the caller's own PostgreSQL transaction.
    pub fn guard(&self) -> Option<crate::Guard> {
        match &self.0.backend {
            Backend::Postgres(postgres) => Some(postgres.guard()),
            Backend::Memory(_) | Backend::Sqlite(_) => None,
        }
    }

    /// Starts the task that looks for changes made by other processes, unless it runs.
    fn look_for_others(&self) {
        let look = match &self.0.backend {
            Backend::Memory(_) => return,
            Backend::Sqlite(_) => LOOK_SQLITE,
            Backend::Postgres(_) => LOOK_POSTGRES,
        };
        if !self.0.polling.swap(true, Ordering::SeqCst) {
            tokio::spawn(look_for_others(Arc::downgrade(&self.0), look));
        }
    }
}

/// Somebody looks for changes made by other processes. If it is dropped with its runtime, the next who waits looks.
struct Looking {
    store: std::sync::Weak<Inner>,
    is_over: bool,
}

impl Drop for Looking {
    fn drop(&mut self) {
        if let Some(inner) = self.store.upgrade().filter(|_| !self.is_over) {
            inner.polling.store(false, Ordering::SeqCst);
        }
    }
}

/// Looks until nobody waits any more, or the store is gone.
async fn look_for_others(store: std::sync::Weak<Inner>, (at_first, later): (Duration, Duration)) {
    let mut looking = Looking { store: store.clone(), is_over: false };
    let mut pause = at_first;
    let mut last_seen = None;
    let mut own_seen = (std::time::Instant::now(), None);
    let mut last_looked_at = None;
    // Looks left until everybody was looked at since something was last written.
    let mut looks_left = 0;
    loop {
        tokio::time::sleep(pause).await;
        let Some(inner) = store.upgrade() else { return };
        let watched = inner.watchers.some_watched(last_looked_at, LOOKED_AT_MAX);
        last_looked_at = watched.last().copied();
        if watched.is_empty() {
            inner.polling.store(false, Ordering::SeqCst);
            // Somebody may have come between the look and the mark.
            if inner.watchers.some_watched(None, 1).is_empty() || inner.polling.swap(true, Ordering::SeqCst) {
                looking.is_over = true;
                return;
            }
            continue;
        }
        let versions = match &inner.backend {
            Backend::Sqlite(sqlite) => match sqlite.others() {
                Ok(others) => {
                    let own = Some(sqlite.commits());
                    let is_time = own_seen.0.elapsed() >= LOOK_AT_OWN && own_seen.1 != own;
                    if last_seen != Some(others) || is_time {
                        last_seen = Some(others);
                        own_seen = (std::time::Instant::now(), own);
                        looks_left = inner.watchers.count().div_ceil(LOOKED_AT_MAX) + 1;
                    }
                    match looks_left {
                        0 => Ok(Vec::new()),
                        _ => {
                            looks_left -= 1;
                            sqlite.readers.versions(&watched)
                        }
                    }
                }
                Err(error) => Err(error),
            },
            Backend::Postgres(postgres) => Box::pin(postgres.versions(&watched)).await,
            Backend::Memory(_) => return,
        };
        match versions {
            Ok(versions) => {
                let mut news = false;
                for (id, version) in versions {
                    news |= inner.watchers.announce_version(id, version);
                }
                pause = if news { at_first } else { (pause * 2).min(later) };
            }
            Err(error) => {
                tracing::warn!(code = %error.code(), %error, "cannot look for changes");
                last_seen = None;
                pause = later;
            }
        }
    }
}

/// What is wrong with a journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalFault {
    /// The row where it shows.
    pub number: u32,
    /// What is wrong.
    pub what: &'static str,
}

pub(crate) fn fault_in(
    rows: &[plan::JournalRow],
    count: u32,
    head: &Head,
    salt: Option<Salt>,
) -> Option<JournalFault> {
    let mut last = journal::START;
    let forgotten = rows.iter().rposition(|row| row.entry.event == Event::Forgotten).unwrap_or_default();
    for (row, number) in rows.iter().zip(1..) {
        if row.number != number {
            return Some(JournalFault { number, what: "a row is missing" });
        }
        // What was written before it was forgotten has another salt, or none, and no words.
        let are_forgotten = (number as usize) <= forgotten && row.entry.is_forgotten();
        let are_its_own = || [salt, None].iter().any(|salt| row.words == row.entry.words(*salt));
        if !are_forgotten && !are_its_own() {
            return Some(JournalFault { number, what: "the words of a row were changed" });
        }
        if row.hash != journal::link(&last, number, &row.entry, &row.words, row.digest) {
            return Some(JournalFault { number, what: "a row was changed" });
        }
        last = row.hash;
    }
    let number = rows.len() as u32;
    (number != count || last != *head)
        .then_some(JournalFault { number, what: "the end does not fit the intent" })
}
