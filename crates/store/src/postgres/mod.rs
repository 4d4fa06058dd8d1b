//! The ledger in a PostgreSQL database shared by several machines.
//!
//! A few workers with a connection each share one queue; each takes whatever waits, decides it and writes it with one
//! statement. Nothing depends on a session (no named statements, no settings, no LISTEN), so that it works behind PgBouncer
//! in transaction mode. Versions tell when a belief was wrong, and every command may be applied again after a lost
//! connection, because commands carry ids (S12).

mod columns;
mod connect;
mod fitness;
pub(crate) mod guard;
mod home;
mod locked;
mod open;
mod queue;
mod read;
mod rows;
mod tail;
mod time;
mod tls;
mod transfer;
mod worker;
mod write;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tokio_postgres::Client;
use tokio_postgres::types::{ToSql, Type};
use twicesafe_core::{Action, IntentId, Name, Status, Timestamp, Verdict};

use crate::error::StoreError;
use crate::plan::{Applied, JournalRow, Order, Stored, Target};
use crate::query::{Cursor, DueIntent, EarlierAnswer, Path};
use crate::remembered::Remembered;
use crate::seal::RowCodec;
use crate::secret::Keys;
use crate::tally::Tally;
use crate::{Dice, NameHash, NameHasher, Options, QUEUE_MAX};
use connect::{Failure, Link};
use home::Home;
use queue::{Errand, Queue};
use read::Readers;
use tail::Tail;
use time::DatabaseTime;
pub(crate) use transfer::{Importing, Snapshot};
use worker::{Task, Worker};
use write::RowTypes;

/// How long a name that somebody's own transaction keeps is expected to be kept.
const HELD_MAX: Duration = Duration::from_secs(5);
/// Connections that write.
const CONNECTIONS: usize = 4;

/// What the parts of a PostgreSQL store share.
pub(crate) struct Shared {
    hasher: NameHasher,
    keys: Keys,
    rows: RowCodec,
    dice: Dice,
    time: Arc<DatabaseTime>,
    /// What was acknowledged lately, and must be there.
    tail: Arc<Tail>,
    /// Counts of what needed no write; go along with the next one.
    tally: Mutex<Tally>,
    /// Names that somebody's own transaction was found to keep, and until when to expect that.
    held: Mutex<HashMap<NameHash, Instant>>,
    /// What was settled or replayed lately, if it is to be remembered. Others may have changed it since.
    settled: Option<Mutex<Remembered>>,
    /// Where the tables are, quoted and with a dot.
    schema: String,
    /// The number of the database they are in.
    database: u32,
    row_types: RowTypes,
    apply_sql: String,
    look_sql: String,
}

impl Shared {
    /// A statement with the place of our tables put in for `@`.
    fn within(&self, sql: &str) -> String {
        sql.replace('@', &self.schema)
    }

    /// Of the name it is about, as far as it says. A claim always does.
    fn hash_of(&self, order: &Order) -> Option<NameHash> {
        match (&order.target, &order.command.action) {
            (Target::Name(name), _) => Some(self.hasher.hash(name)),
            (Target::Id(_), Action::Claim(claim)) => Some(self.hasher.hash(&claim.name)),
            (Target::Id(_), _) => None,
        }
    }

    /// The database's time, and since when records may be missing; asks the database if it has not said so lately.
    async fn reading(&self, client: &Client) -> Result<(Timestamp, Option<Timestamp>), Failure> {
        if let Some(reading) = self.time.read() {
            return Ok(reading);
        }
        read::sample(client, self).await?;
        self.time.read().ok_or_else(|| Failure::Lost("the database answers too slowly".into()))
    }

    async fn now(&self, client: &Client) -> Result<Timestamp, Failure> {
        self.reading(client).await.map(|(now, _)| now)
    }

    /// A batch with such a name would wait for that transaction, and everybody in it.
    fn is_held(&self, hash: &NameHash) -> bool {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.get(hash).is_some_and(|until| Instant::now() < *until)
    }

    fn expect_held(&self, hash: NameHash) {
        let now = Instant::now();
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.retain(|_, until| now < *until);
        held.insert(hash, now + HELD_MAX);
    }

    /// What is remembered of an intent: to be believed as far as a write, or a look, says that it is still so.
    fn recall(&self, name: &Name, hash: &NameHash) -> Option<Arc<Stored>> {
        let mut settled = self.settled.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner);
        settled.get(hash).filter(|stored| stored.record.name.as_ref() == Some(name))
    }

    fn remember(&self, hash: NameHash, stored: &Arc<Stored>) {
        let Some(settled) = &self.settled else { return };
        let crowded_out = settled.lock().unwrap_or_else(PoisonError::into_inner).put(hash, stored);
        drop(crowded_out);
    }

    fn forget(&self, hash: &NameHash) {
        let Some(settled) = &self.settled else { return };
        settled.lock().unwrap_or_else(PoisonError::into_inner).forget(hash);
    }

    fn count(&self, at: Timestamp, verdict: &Verdict) {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner).verdict(at, verdict);
    }

    fn take_tally(&self) -> Tally {
        std::mem::take(&mut *self.tally.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// When the last sender goes, the workers end once the queue is empty.
pub(crate) struct Postgres {
    shared: Arc<Shared>,
    queue: mpsc::Sender<Errand>,
    readers: Readers,
}

impl Postgres {
    pub(crate) async fn open(url: &str, options: &Options) -> Result<Self, StoreError> {
        let time = Arc::new(DatabaseTime::default());
        let tail = Arc::new(Tail::new(time.clone()));
        let place = connect::place(url)?.remembering(tail.clone());
        let home = Home::start()?;
        let link = Link::new(place.clone(), home.clone());
        let shown = crate::Address::Postgres(url.to_owned()).to_string();
        let client = link.client().await.map_err(Failure::into_error)?;
        let opened =
            open::ledger(&client, &shown, options.secret.as_ref()).await.map_err(Failure::into_error)?;
        let hasher = NameHasher::new(opened.hash_key);
        time.sample(opened.now, opened.recovering_since);
        tail.opened(&opened.schema, opened.now);
        let shared = Arc::new(Shared {
            hasher,
            rows: RowCodec::new(&opened.keys),
            keys: opened.keys,
            dice: Dice::new(),
            time,
            tail,
            tally: Mutex::default(),
            held: Mutex::default(),
            settled: options.remember.then(Mutex::default),
            row_types: opened.row_types,
            apply_sql: write::apply_sql(&opened.schema),
            look_sql: read::look_sql(&opened.schema),
            database: opened.database,
            schema: opened.schema,
        });
        let readers = Readers::new(shared.clone(), &place, &home);
        let (queue, errands) = mpsc::channel(QUEUE_MAX);
        let errands = Arc::new(Queue::new(errands));
        let new_link = || Link::new(place.clone(), home.clone());
        let links = std::iter::once(link).chain(std::iter::repeat_with(new_link));
        for link in links.take(CONNECTIONS) {
            home.spawn(Worker::new(shared.clone(), link, errands.clone()).run());
        }
        Ok(Self { shared, queue, readers })
    }

    /// Queues a command and waits until it is on disk.
    pub(crate) async fn submit(&self, order: Order) -> Result<Applied, StoreError> {
        let (task, answer) = Task::new(&self.shared, order);
        self.send(Errand::One(Box::new(task)))?;
        answer.await.unwrap_or_else(|_| Err(gone()))
    }

    /// Queues commands together: those about the same intent are applied in the order given.
    pub(crate) async fn submit_all(&self, orders: Vec<Order>) -> Vec<Result<Applied, StoreError>> {
        let count = orders.len();
        let (tasks, answers): (Vec<_>, Vec<_>) =
            orders.into_iter().map(|order| Task::new(&self.shared, order)).unzip();
        if let Err(error) = self.send(Errand::Several(tasks)) {
            return std::iter::repeat_n(Err(error), count).collect();
        }
        let answers = futures_util::future::join_all(answers).await;
        answers.into_iter().map(|answer| answer.unwrap_or_else(|_| Err(gone()))).collect()
    }

    fn send(&self, errand: Errand) -> Result<(), StoreError> {
        self.queue.try_send(errand).map_err(|error| match error {
            TrySendError::Full(_) => StoreError::Overloaded(QUEUE_MAX),
            TrySendError::Closed(_) => gone(),
        })
    }

    pub(crate) async fn by_name(&self, name: &Name) -> Result<Option<Stored>, StoreError> {
        self.readers.look(&[self.shared.hasher.hash(name)], &[]).await
    }

    pub(crate) async fn by_id(&self, id: IntentId) -> Result<Option<Stored>, StoreError> {
        self.readers.look(&[], &[id]).await
    }

    pub(crate) async fn journal(&self, id: IntentId) -> Result<Vec<JournalRow>, StoreError> {
        self.readers.journal(id).await
    }

    pub(crate) async fn earlier(&self, id: IntentId) -> Result<Vec<EarlierAnswer>, StoreError> {
        self.readers.earlier(id).await
    }

    pub(crate) async fn scopes_with_due(
        &self,
        after: &str,
        limit: usize,
    ) -> Result<Vec<(String, Timestamp)>, StoreError> {
        self.readers.scopes_with_due(after, limit).await
    }

    pub(crate) async fn first_waiting(
        &self,
        lane: &str,
        now: Timestamp,
    ) -> Result<Option<IntentId>, StoreError> {
        self.readers.first_waiting(lane, now).await
    }

    pub(crate) async fn request(&self, id: IntentId) -> Result<Option<Bytes>, StoreError> {
        self.readers.request(id).await
    }

    pub(crate) async fn page(
        &self,
        path: &Path,
        after: Option<Cursor>,
        limit: usize,
    ) -> Result<Vec<(Stored, Cursor)>, StoreError> {
        self.readers.page(path, after, limit).await
    }

    pub(crate) async fn scopes(&self, prefix: &str, limit: usize) -> Result<Vec<String>, StoreError> {
        self.readers.scopes(prefix, limit).await
    }

    pub(crate) async fn awake(
        &self,
        status: Status,
        now: Timestamp,
        limit: usize,
    ) -> Result<Vec<IntentId>, StoreError> {
        self.readers.awake(status, now, limit).await
    }

    pub(crate) async fn due(
        &self,
        scope: &str,
        now: Timestamp,
        after: Option<(Timestamp, IntentId)>,
        limit: usize,
    ) -> Result<Vec<DueIntent>, StoreError> {
        self.readers.due(scope, now, after, limit).await
    }

    pub(crate) async fn kept_too_long(
        &self,
        now: Timestamp,
        limit: usize,
    ) -> Result<Vec<IntentId>, StoreError> {
        self.readers.kept_too_long(now, limit).await
    }

    /// Looks again later at intents that could not be purged now.
    pub(crate) async fn keep_until(&self, until: Vec<(IntentId, Timestamp)>) -> Result<(), StoreError> {
        let (ids, until): (Vec<i64>, Vec<i64>) =
            until.into_iter().map(|(id, until)| (id.number(), until.as_millis())).unzip();
        let sql =
            "UPDATE @intent i SET keep_until = n.until FROM unnest($1, $2) n (id, until) WHERE i.id = n.id";
        self.readers.rows(sql, &[(&ids, Type::INT8_ARRAY), (&until, Type::INT8_ARRAY)]).await.map(drop)
    }

    pub(crate) fn count(&self, at: Timestamp, name: &str, n: i64) {
        self.shared.tally.lock().unwrap_or_else(PoisonError::into_inner).of_door(at, name, n);
    }

    pub(crate) async fn tallies(&self, from: i64, to: i64) -> Result<Vec<(String, i64)>, StoreError> {
        self.readers.tallies(from, to).await
    }

    pub(crate) fn has_unwritten_counts(&self) -> bool {
        !self.shared.tally.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Writes counts that needed no write of their own, and adds up what was counted.
    pub(crate) async fn flush(&self) -> Result<(), StoreError> {
        let tally = &self.shared.take_tally();
        let written = self
            .readers
            .run(|client| async move {
                if !tally.is_empty() {
                    write::changes(&client, &self.shared, &[], &[], tally, true).await?;
                }
                Ok(())
            })
            .await;
        if written.is_err() {
            self.shared.tally.lock().unwrap_or_else(PoisonError::into_inner).merge(tally.clone());
        }
        written?;
        self.readers.add_up(self.now().await?).await
    }

    pub(crate) async fn notes(&self, kind: &str) -> Result<Vec<(String, String)>, StoreError> {
        let sql = "SELECT name, value FROM @note WHERE kind = $1 ORDER BY name";
        let rows = self.readers.rows(sql, &[(&kind, Type::TEXT)]).await?;
        rows.iter().map(|row| Ok((columns::get(row, 0)?, columns::get(row, 1)?))).collect()
    }

    pub(crate) async fn put_note(
        &self,
        kind: &str,
        name: &str,
        value: Option<&str>,
    ) -> Result<(), StoreError> {
        let about: [(&(dyn ToSql + Sync), Type); 2] = [(&kind, Type::TEXT), (&name, Type::TEXT)];
        let rows = match &value {
            Some(value) => {
                let sql = "INSERT INTO @note (kind, name, value) VALUES ($1, $2, $3)
                           ON CONFLICT (kind, name) DO UPDATE SET value = excluded.value";
                let [kind, name] = about;
                self.readers.rows(sql, &[kind, name, (value, Type::TEXT)]).await
            }
            None => self.readers.rows("DELETE FROM @note WHERE kind = $1 AND name = $2", &about).await,
        };
        rows.map(drop)
    }

    pub(crate) fn keys(&self) -> &Keys {
        &self.shared.keys
    }

    /// A key that everybody who opens this ledger can derive.
    pub(crate) fn key(&self) -> [u8; 32] {
        *self.shared.hasher.key().secret()
    }

    /// Since when acknowledged writes were found to be missing.
    pub(crate) fn lost_since(&self) -> Option<Timestamp> {
        self.shared.tail.lost_since()
    }

    pub(crate) async fn recover_since(&self, since: Option<Timestamp>) -> Result<(), StoreError> {
        let since = since.map(Timestamp::as_millis);
        let sql = "UPDATE @ledger SET recovering_since = $1";
        self.readers.rows(sql, &[(&since, Type::INT8)]).await?;
        self.readers.run(|client| async move { read::sample(&client, &self.shared).await }).await
    }

    pub(crate) async fn recovering_since(&self) -> Result<Option<Timestamp>, StoreError> {
        self.readers
            .run(|client| async move {
                read::sample(&client, &self.shared).await?;
                Ok(self.shared.reading(&client).await?.1)
            })
            .await
    }

    pub(crate) async fn now(&self) -> Result<Timestamp, StoreError> {
        // It is compared with times that others wrote, whose idea of the database's clock may be fresher than ours.
        self.readers
            .run(|client| async move {
                read::sample(&client, &self.shared).await?;
                self.shared.now(&client).await
            })
            .await
    }

    pub(crate) async fn versions(&self, ids: &[IntentId]) -> Result<Vec<(IntentId, i64)>, StoreError> {
        self.readers.versions(ids).await
    }

    pub(crate) fn guard(&self) -> guard::Guard {
        guard::Guard::new(self.shared.clone())
    }
}

fn gone() -> StoreError {
    StoreError::Away("the workers have stopped".into())
}
