//! Reading: rows become records here, and only here.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use rusqlite::types::FromSql;
use rusqlite::{CachedStatement, Connection, OptionalExtension, Params, Row};
use twicesafe_core::journal::{Entry, Event};
use twicesafe_core::{
    Actor, Answer, Attempt, Body, CommandId, ExternalId, Fence, Fingerprint, IntentId, Lane, LaneName, Name,
    PermitKind, Place, Recipe, Record, Salt, Source, Status, Step, Timestamp, Waiting,
};

use super::Shared;
use super::open::{map, prepared, ran, readable};
use super::write::NOW;
use crate::NameHash;
use crate::codec;
use crate::error::StoreError;
use crate::plan::{JournalRow, Stored, version_of};
use crate::query::{Cursor, DueIntent, EarlierAnswer, Path};
use crate::seal::{RowCodec, request_digest};

/// Connections for reading. A read takes microseconds, so it runs where it is asked for instead of on a thread of its
/// own; a few connections keep readers from waiting for each other.
const READERS: usize = 4;

/// Reads between two commits of this process that make it worth while to map the file. With every commit SQLite gives the map up, and the
/// next read makes a new one, for which it interrupts the other processors: far more than it takes to read a few pages.
const READS_WORTH_A_MAP: u32 = 32;

pub(crate) struct Readers {
    shared: Arc<Shared>,
    /// Opened when they are first needed: a command that runs for milliseconds needs one.
    connections: [Mutex<Option<Reader>>; READERS],
    next: AtomicUsize,
}

struct Reader {
    connection: Connection,
    is_mapped: bool,
    /// How much this process had committed at the last read, and how often was read since then.
    commits: u64,
    reads: u32,
}

impl Reader {
    fn open(shared: &Shared) -> Result<Self, StoreError> {
        let connection = readable(&shared.path)?;
        map(&connection, true)?;
        let commits = shared.commits.load(Ordering::Relaxed);
        // Nothing is known yet: a list of everything may come.
        Ok(Self { connection, is_mapped: true, commits, reads: READS_WORTH_A_MAP })
    }

    /// Before each read.
    fn make_ready(&mut self, commits: u64) -> Result<(), StoreError> {
        let is_worth_it = self.reads >= READS_WORTH_A_MAP;
        if self.is_mapped != is_worth_it {
            map(&self.connection, is_worth_it)?;
            self.is_mapped = is_worth_it;
        }
        self.reads = if commits == self.commits { self.reads.saturating_add(1) } else { 0 };
        self.commits = commits;
        Ok(())
    }
}

/// A connection, while somebody reads.
struct Lent<'a>(MutexGuard<'a, Option<Reader>>);

impl std::ops::Deref for Lent<'_> {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.0.as_ref().expect("it was opened when it was lent").connection
    }
}

impl Readers {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, connections: Default::default(), next: AtomicUsize::new(0) }
    }

    fn connection(&self) -> Result<Lent<'_>, StoreError> {
        let start = self.next.load(Ordering::Relaxed);
        let in_turn = |i: usize| &self.connections[(start + i) % READERS];
        let free = (0..READERS).find_map(|i| in_turn(i).try_lock().ok());
        if free.is_none() {
            self.next.fetch_add(1, Ordering::Relaxed);
        }
        self.lend(free.unwrap_or_else(|| in_turn(0).lock().unwrap_or_else(PoisonError::into_inner)))
    }

    fn lend<'a>(&self, mut guard: MutexGuard<'a, Option<Reader>>) -> Result<Lent<'a>, StoreError> {
        match &mut *guard {
            Some(reader) => reader.make_ready(self.shared.commits.load(Ordering::Relaxed))?,
            none => *none = Some(Reader::open(&self.shared)?),
        }
        Ok(Lent(guard))
    }

    pub(crate) fn by_hash(&self, hash: &NameHash) -> Result<Option<Stored>, StoreError> {
        by_hash(&*self.connection()?, &self.shared.rows, hash)
    }

    pub(crate) fn by_id(&self, id: IntentId) -> Result<Option<Stored>, StoreError> {
        by_id(&*self.connection()?, &self.shared.rows, id)
    }

    /// Changes whenever another connection, of any process, has written.
    pub(crate) fn data_version(&self) -> Result<i64, StoreError> {
        // Always the same connection: the number means nothing on another.
        let connection = self.lend(self.connections[0].lock().unwrap_or_else(PoisonError::into_inner))?;
        data_version(&connection)
    }

    pub(crate) fn versions(&self, ids: &[IntentId]) -> Result<Vec<(IntentId, i64)>, StoreError> {
        let connection = self.connection()?;
        // At once: whoever begins to read after a commit of anybody begins with an empty cache.
        let at_once = (ids.len() > 1).then(|| ran(connection.unchecked_transaction())).transpose()?;
        let mut statement = prepared(&connection, "SELECT version FROM intent WHERE id = ?1")?;
        let mut versions = Vec::with_capacity(ids.len());
        for id in ids {
            let version = ran(statement.query_row([id.number()], |row| row.get(0)).optional())?;
            versions.push((*id, version.unwrap_or(i64::MAX)));
        }
        drop(statement);
        at_once.map_or(Ok(()), |at_once| ran(at_once.finish()))?;
        Ok(versions)
    }

    pub(crate) fn page(
        &self,
        path: &Path,
        after: Option<Cursor>,
        limit: usize,
    ) -> Result<Vec<(Stored, Cursor)>, StoreError> {
        let connection = self.connection()?;
        let limit = limit as i64;
        let after = after.unwrap_or(Cursor::START);
        let take = |row: &Row<'_>| {
            let stored = stored(row, &self.shared.rows)?;
            let cursor =
                Cursor { wake_at: get::<Option<i64>>(row, 39)?.unwrap_or(i64::MAX), id: stored.id.number() };
            Ok((stored, cursor))
        };
        match path {
            Path::All => {
                let sql = select!(
                    ", NULL FROM intent i LEFT JOIN answer a ON a.intent = i.id
                     WHERE i.id < ?1 ORDER BY i.id DESC LIMIT ?2"
                );
                all(prepared(&connection, sql)?, (after.id, limit), take)
            }
            Path::Scope(scope) => {
                let sql = select!(
                    ", NULL FROM intent i LEFT JOIN answer a ON a.intent = i.id
                     WHERE i.id < ?1 AND i.scope = ?3 ORDER BY i.id DESC LIMIT ?2"
                );
                all(prepared(&connection, sql)?, (after.id, limit, scope), take)
            }
            Path::Work(work) => {
                let sql = select!(
                    ", NULL FROM intent i LEFT JOIN answer a ON a.intent = i.id
                     WHERE i.id < ?1 AND i.work = ?3 ORDER BY i.id DESC LIMIT ?2"
                );
                all(prepared(&connection, sql)?, (after.id, limit, work), take)
            }
            Path::Status(status) => {
                let sql = select!(
                    ", g.wake_at FROM agenda g JOIN intent i ON i.id = g.intent LEFT JOIN answer a ON a.intent = i.id
                     WHERE g.status = ?3 AND (g.wake_at, g.intent) < (?4, ?1)
                     ORDER BY g.wake_at DESC, g.intent DESC LIMIT ?2"
                );
                let values = (after.id, limit, status.as_str(), after.wake_at);
                all(prepared(&connection, sql)?, values, take)
            }
        }
    }

    pub(crate) fn scopes(&self, prefix: &str, limit: usize) -> Result<Vec<String>, StoreError> {
        let connection = self.connection()?;
        let mut statement =
            prepared(&connection, "SELECT scope FROM intent WHERE scope > ?1 ORDER BY scope LIMIT 1")?;
        let mut scopes: Vec<String> = Vec::new();
        let mut from = before(prefix);
        while scopes.len() < limit {
            let next: Option<String> = ran(statement.query_row([&from], |row| row.get(0)).optional())?;
            match next.filter(|scope| scope.starts_with(prefix)) {
                Some(scope) => {
                    from.clone_from(&scope);
                    scopes.push(scope);
                }
                None => break,
            }
        }
        Ok(scopes)
    }

    /// Intents whose time has come, by the agenda.
    pub(crate) fn awake(
        &self,
        status: Status,
        now: Timestamp,
        limit: usize,
    ) -> Result<Vec<IntentId>, StoreError> {
        self.ids(
            "SELECT intent FROM agenda WHERE status = ?1 AND wake_at <= ?2 ORDER BY wake_at LIMIT ?3",
            (status.as_str(), now.as_millis(), limit as i64),
        )
    }

    /// Intents of a scope whose next attempt or lookup is due.
    pub(crate) fn due(
        &self,
        scope: &str,
        now: Timestamp,
        after: Option<(Timestamp, IntentId)>,
        limit: usize,
    ) -> Result<Vec<DueIntent>, StoreError> {
        let (at, id) = after.map_or((i64::MIN, i64::MIN), |(at, id)| (at.as_millis(), id.number()));
        let connection = self.connection()?;
        let statement = prepared(
            &connection,
            "SELECT g.due_at, g.intent, i.lane FROM agenda g CROSS JOIN intent i ON i.id = g.intent \
             WHERE g.scope = ?1 AND g.due_at <= ?2 AND (g.due_at, g.intent) > (?3, ?4) \
             ORDER BY g.due_at, g.intent LIMIT ?5",
        )?;
        all(statement, (scope, now.as_millis(), at, id, limit as i64), |row| {
            Ok(DueIntent {
                at: (Timestamp::from_millis(get(row, 0)?), IntentId::new(get(row, 1)?)),
                lane: text(row, 2)?.map(str::to_owned),
            })
        })
    }

    pub(crate) fn scopes_with_due(
        &self,
        after: &str,
        limit: usize,
    ) -> Result<Vec<(String, Timestamp)>, StoreError> {
        let connection = self.connection()?;
        let next = "SELECT scope, due_at FROM agenda WHERE scope > ?1 ORDER BY scope, due_at LIMIT 1";
        let mut statement = prepared(&connection, next)?;
        let mut scopes: Vec<(String, Timestamp)> = Vec::new();
        while scopes.len() < limit {
            let from = scopes.last().map_or(after, |(scope, _)| scope.as_str());
            let next = statement.query_row([from], |row| Ok((row.get(0)?, row.get(1)?))).optional();
            match ran(next)? {
                Some((scope, first)) => scopes.push((scope, Timestamp::from_millis(first))),
                None => break,
            }
        }
        Ok(scopes)
    }

    pub(crate) fn first_waiting(&self, lane: &str, now: Timestamp) -> Result<Option<IntentId>, StoreError> {
        let connection = self.connection()?;
        let first = prepared(
            &connection,
            "SELECT intent FROM lane_waiting WHERE lane = ?1 AND until > ?2 ORDER BY rank, intent LIMIT 1",
        )?;
        one(first, (lane, now.as_millis()), |row| get(row, 0).map(IntentId::new))
    }

    pub(crate) fn kept_too_long(&self, now: Timestamp, limit: usize) -> Result<Vec<IntentId>, StoreError> {
        self.ids(
            "SELECT id FROM intent WHERE keep_until <= ?1 ORDER BY keep_until LIMIT ?2",
            (now.as_millis(), limit as i64),
        )
    }

    fn ids(&self, sql: &str, values: impl Params) -> Result<Vec<IntentId>, StoreError> {
        let connection = self.connection()?;
        let statement = prepared(&connection, sql)?;
        all(statement, values, |row| get(row, 0).map(IntentId::new))
    }

    pub(crate) fn journal(&self, id: IntentId) -> Result<Vec<JournalRow>, StoreError> {
        let connection = self.connection()?;
        journal(&connection, id)
    }

    pub(crate) fn earlier(&self, id: IntentId) -> Result<Vec<EarlierAnswer>, StoreError> {
        let connection = self.connection()?;
        earlier(&connection, id)
    }

    pub(crate) fn request(&self, id: IntentId) -> Result<Option<Bytes>, StoreError> {
        let connection = self.connection()?;
        request(&connection, id)
    }

    pub(crate) fn tallies(&self, from_hour: i64, to_hour: i64) -> Result<Vec<(String, i64)>, StoreError> {
        let connection = self.connection()?;
        let statement = prepared(
            &connection,
            "SELECT name, n FROM tally WHERE hour = ?3 AND name LIKE 'standing: %' OR hour BETWEEN ?1 AND ?2",
        )?;
        all(statement, (from_hour, to_hour.min(NOW - 1), NOW), |row| Ok((get(row, 0)?, get(row, 1)?)))
    }

    pub(crate) fn notes(&self, kind: &str) -> Result<Vec<(String, String)>, StoreError> {
        let connection = self.connection()?;
        let mut statement =
            prepared(&connection, "SELECT name, value FROM note WHERE kind = ?1 ORDER BY name")?;
        let rows = ran(statement.query_map([kind], |row| Ok((row.get(0)?, row.get(1)?))))?;
        ran(rows.collect())
    }

    pub(crate) fn recovering_since(&self) -> Result<Option<Timestamp>, StoreError> {
        let connection = self.connection()?;
        let mut statement = prepared(&connection, "SELECT recovering_since FROM ledger")?;
        let since: Option<i64> = ran(statement.query_row([], |row| row.get(0)))?;
        Ok(since.map(Timestamp::from_millis))
    }
}

/// Changes whenever another connection, of any process, has written: not by what this one does.
pub(super) fn data_version(connection: &Connection) -> Result<i64, StoreError> {
    ran(prepared(connection, "PRAGMA data_version")?.query_row([], |row| row.get(0)))
}

/// The greatest text before all that start with the prefix.
fn before(prefix: &str) -> String {
    let mut text = prefix.to_owned();
    match text.pop() {
        // Scopes are ASCII without control characters, so that stepping back one byte and padding stays below.
        Some(last) => format!("{text}{}~~~~~~~~", char::from(last as u8 - 1)),
        None => text,
    }
}

/// The columns of an intent with its answer, in the order [`stored`] reads them.
macro_rules! select {
    ($more:literal) => {
        concat!(
            "SELECT i.id, i.version, i.scope, i.key, i.status, i.doubt, i.generation, i.fence, i.tries, i.recipe,
             i.fingerprint, i.policy, i.permit, i.claim_id, i.holder, i.granted_at, i.lease_until, i.send_by, i.due_at,
             i.external_id, i.source, i.work, i.step, i.lane, i.lane_version, i.requested_by, i.created_at,
             i.settled_at, i.tombstone, i.settle_receipt, i.detail, i.salt, i.journal_rows, i.journal_head,
             a.head, a.body, i.hash, i.request_digest, i.seal ",
            $more
        )
    };
}
pub(super) use select;

pub(super) fn journal(connection: &Connection, id: IntentId) -> Result<Vec<JournalRow>, StoreError> {
    let statement = prepared(
        connection,
        "SELECT number, at, actor, event, status, doubt, generation, fence, reason, words, digest, hash
         FROM journal WHERE intent = ?1 ORDER BY number",
    )?;
    all(statement, [id.number()], journal_row)
}

pub(super) fn earlier(connection: &Connection, id: IntentId) -> Result<Vec<EarlierAnswer>, StoreError> {
    let statement = prepared(
        connection,
        "SELECT generation, status, external_id, head, body, not_kept FROM earlier_answer
         WHERE intent = ?1 ORDER BY generation",
    )?;
    all(statement, [id.number()], |row| {
        Ok(EarlierAnswer {
            generation: get(row, 0)?,
            status: needed(text(row, 1)?.and_then(Status::from_word), "a status nobody knows")?,
            answer: Answer {
                external_id: text(row, 2)?.and_then(ExternalId::new),
                head: text(row, 3)?.unwrap_or_default().into(),
                body: match text(row, 5)? {
                    Some(not_kept) => codec::parse_not_kept(not_kept)?,
                    None => Body::Kept(get::<Option<Vec<u8>>>(row, 4)?.unwrap_or_default().into()),
                },
            },
        })
    })
}

pub(super) fn request(connection: &Connection, id: IntentId) -> Result<Option<Bytes>, StoreError> {
    let mut statement = prepared(
        connection,
        "SELECT r.body, h.body, r.length, i.request_digest, i.salt FROM request r JOIN intent i ON i.id = r.intent
         LEFT JOIN request_rest h ON h.intent = r.intent WHERE r.intent = ?1",
    )?;
    let kept = ran(statement
        .query_row([id.number()], |row| {
            let mut body: Vec<u8> = row.get(0)?;
            body.extend(row.get_ref(1)?.as_blob_or_null()?.unwrap_or_default());
            Ok((body, row.get::<_, i64>(2)?, row.get::<_, Option<[u8; 32]>>(3)?, row.get(4)?))
        })
        .optional())?;
    let Some((body, length, digest, salt)) = kept else { return Ok(None) };
    if body.len() as i64 != length {
        return Err(StoreError::Damaged(format!(
            "{} bytes of the request of {id} are there, and it had {length}",
            body.len()
        )));
    }
    if digest != Some(request_digest(Option::<[u8; 16]>::map(salt, Salt), &body)) {
        return Err(StoreError::Altered(format!("the request of {id}")));
    }
    Ok(Some(Bytes::from(body)))
}

pub(super) fn by_hash(
    connection: &Connection,
    rows: &RowCodec,
    hash: &NameHash,
) -> Result<Option<Stored>, StoreError> {
    let sql = select!("FROM intent i LEFT JOIN answer a ON a.intent = i.id WHERE i.hash = ?1");
    one(prepared(connection, sql)?, [hash], |row| stored(row, rows))
}

pub(super) fn by_id(
    connection: &Connection,
    rows: &RowCodec,
    id: IntentId,
) -> Result<Option<Stored>, StoreError> {
    let sql = select!("FROM intent i LEFT JOIN answer a ON a.intent = i.id WHERE i.id = ?1");
    one(prepared(connection, sql)?, [id.number()], |row| stored(row, rows))
}

pub(super) fn one<T>(
    mut statement: CachedStatement<'_>,
    values: impl Params,
    take: impl FnOnce(&Row<'_>) -> Result<T, StoreError>,
) -> Result<Option<T>, StoreError> {
    let mut rows = ran(statement.query(values))?;
    ran(rows.next())?.map(take).transpose()
}

pub(super) fn all<T>(
    mut statement: CachedStatement<'_>,
    values: impl Params,
    take: impl Fn(&Row<'_>) -> Result<T, StoreError>,
) -> Result<Vec<T>, StoreError> {
    let mut rows = ran(statement.query(values))?;
    let mut taken = Vec::new();
    while let Some(row) = ran(rows.next())? {
        taken.push(take(row)?);
    }
    Ok(taken)
}

/// One column.
pub(super) fn get<T: FromSql>(row: &Row<'_>, index: usize) -> Result<T, StoreError> {
    ran(row.get(index))
}

pub(super) fn text<'a>(row: &'a Row<'_>, index: usize) -> Result<Option<&'a str>, StoreError> {
    let value = ran(row.get_ref(index))?;
    value.as_str_or_null().map_err(|error| StoreError::Damaged(error.to_string()))
}

pub(super) fn bytes<const N: usize>(row: &Row<'_>, index: usize) -> Result<Option<[u8; N]>, StoreError> {
    let value = ran(row.get_ref(index))?;
    let value = value.as_blob_or_null().map_err(|error| StoreError::Damaged(error.to_string()))?;
    value.map(|value| value.try_into().map_err(|_| damaged("a blob of the wrong length"))).transpose()
}

fn damaged(what: &str) -> StoreError {
    StoreError::Damaged(what.to_owned())
}

pub(super) fn needed<T>(value: Option<T>, what: &str) -> Result<T, StoreError> {
    value.ok_or_else(|| damaged(what))
}

/// A row as a record.
pub(super) fn stored(row: &Row<'_>, rows: &RowCodec) -> Result<Stored, StoreError> {
    let invalid = |error: twicesafe_core::InvalidName| damaged(&error.to_string());
    let at = |index| Ok::<_, StoreError>(get::<Option<i64>>(row, index)?.map(Timestamp::from_millis));
    let name = match (text(row, 2)?, text(row, 3)?) {
        (Some(scope), Some(key)) => Some(Name::new(scope, key).map_err(invalid)?),
        _ => None,
    };
    let fingerprint = match (text(row, 9)?, bytes(row, 10)?) {
        (Some(recipe), Some(digest)) => Some(Fingerprint::stored(Recipe::named(recipe), digest)),
        _ => None,
    };
    let attempt = match text(row, 12)? {
        Some(kind) => Some(Attempt {
            kind: if kind == "act" { PermitKind::Act } else { PermitKind::Lookup },
            claim_id: CommandId::new(needed(bytes(row, 13)?, "a permit without a command")?),
            holder: Actor::new(needed(text(row, 14)?, "a permit without a holder")?).map_err(invalid)?,
            granted_at: needed(at(15)?, "a permit without a time")?,
            lease_until: needed(at(16)?, "a permit without a lease")?,
            send_by: needed(at(17)?, "a permit without a send-by")?,
        }),
        None => None,
    };
    let step = match (text(row, 21)?, text(row, 22)?) {
        (Some(work), Some(step)) => Some(Step::new(work, step).map_err(invalid)?),
        _ => None,
    };
    let place = match text(row, 23)? {
        Some(lane) => Some(Place { lane: LaneName::new(lane).map_err(invalid)?, version: get(row, 24)? }),
        None => None,
    };
    let receipt = ran(row.get_ref(29))?.as_blob_or_null().map_err(|error| damaged(&error.to_string()))?;
    let mut record = Record {
        name,
        salt: bytes(row, 31)?.map(Salt),
        generation: get(row, 6)?,
        status: needed(text(row, 4)?.and_then(Status::from_word), "a status nobody knows")?,
        doubt: get(row, 5)?,
        fingerprint,
        policy: rows.policies.policy(needed(text(row, 11)?, "an intent without a policy")?)?,
        fence: Fence::new(get::<i64>(row, 7)?.unsigned_abs()),
        tries: get(row, 8)?,
        attempt,
        due_at: at(18)?,
        first_sent_at: None,
        quiet_at: None,
        recovered_since: None,
        ask_until: None,
        asks: 0,
        kept: None,
        answer: None,
        source: text(row, 20)?.and_then(Source::from_word),
        replay_until: None,
        approval: None,
        place,
        waits_until: None,
        step,
        requested_by: Actor::new(needed(text(row, 25)?, "nobody asked for it")?).map_err(invalid)?,
        created_at: needed(at(26)?, "an intent without a time")?,
        settled_at: at(27)?,
        entombed_at: None,
        last_settle: receipt.map(codec::parse_receipt).transpose()?,
        last_evidence: None,
        last_decision: None,
    };
    let not_kept = text(row, 30)?.map(|detail| codec::put_detail(&mut record, detail)).transpose()?.flatten();
    if let Some(head) = text(row, 34)? {
        let body = get::<Option<Vec<u8>>>(row, 35)?;
        record.answer = Some(Answer {
            external_id: text(row, 19)?.and_then(ExternalId::new),
            head: head.into(),
            body: not_kept.unwrap_or_else(|| Body::Kept(body.unwrap_or_default().into())),
        });
    }
    let found = Stored {
        id: IntentId::new(get(row, 0)?),
        version: get(row, 1)?,
        record,
        journal_rows: get(row, 32)?,
        journal_head: needed(bytes(row, 33)?, "an intent without a journal")?,
        hash: None,
        request: bytes(row, 37)?,
        fits_seal: false,
    };
    let seal = ran(row.get_ref(38))?.as_blob().map_err(|error| damaged(&error.to_string()))?;
    let hash = needed(bytes(row, 36)?, "an intent without a hash")?;
    Ok(rows.checked(found, &hash, seal))
}

/// What a lane looks like to the intent `me`.
pub(super) fn lane(
    connection: &Connection,
    name: &str,
    me: IntentId,
    equals: Option<i64>,
    now: Timestamp,
) -> Result<Lane, StoreError> {
    let state = prepared(connection, "SELECT holder, applied FROM lane WHERE name = ?1")?;
    let known = one(state, [name], |row| Ok((get::<Option<i64>>(row, 0)?, get(row, 1)?)))?;
    let (holder, applied) = known.unwrap_or((None, None));
    let first = prepared(
        connection,
        "SELECT rank, intent, until FROM lane_waiting WHERE lane = ?1 AND intent <> ?2 AND until > ?3
         ORDER BY rank, intent LIMIT 1",
    )?;
    let waiting = |row: &Row<'_>| {
        Ok(Waiting {
            version: version_of(get(row, 0)?),
            intent: IntentId::new(get(row, 1)?),
            until: Timestamp::from_millis(get(row, 2)?),
        })
    };
    let first_waiting = one(first, (name, me.number(), now.as_millis()), waiting)?;
    let first_equal = match (first_waiting, equals) {
        (Some(_), Some(rank)) => {
            let equal = prepared(
                connection,
                "SELECT rank, intent, until FROM lane_waiting
                 WHERE lane = ?1 AND rank = ?4 AND intent <> ?2 AND until > ?3 ORDER BY intent LIMIT 1",
            )?;
            one(equal, (name, me.number(), now.as_millis(), rank), waiting)?
        }
        _ => None,
    };
    Ok(Lane { me, holder: holder.map(IntentId::new), applied, first_waiting, first_equal })
}

fn journal_row(row: &Row<'_>) -> Result<JournalRow, StoreError> {
    let actor =
        Actor::new(needed(text(row, 2)?, "nobody did it")?).map_err(|error| damaged(&error.to_string()))?;
    let entry = Entry {
        at: Timestamp::from_millis(get(row, 1)?),
        actor,
        event: needed(text(row, 3)?.and_then(Event::from_word), "an event nobody knows")?,
        status: needed(text(row, 4)?.and_then(Status::from_word), "a status nobody knows")?,
        doubt: get(row, 5)?,
        generation: get(row, 6)?,
        fence: Fence::new(get::<i64>(row, 7)?.unsigned_abs()),
        reason: text(row, 8)?.unwrap_or_default().into(),
        content: None,
    };
    Ok(JournalRow {
        number: get(row, 0)?,
        entry,
        words: needed(bytes(row, 9)?, "a journal row without its words' digest")?,
        digest: bytes(row, 10)?,
        hash: needed(bytes(row, 11)?, "a journal row without a hash")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_mapped_while_much_is_read_and_little_written() {
        let connection = Connection::open_in_memory().expect("a database");
        let mut reader = Reader { connection, is_mapped: true, commits: 0, reads: READS_WORTH_A_MAP };
        let mut is_mapped_after = |reads: u32, commits: u64| {
            (0..reads).for_each(|_| reader.make_ready(commits).expect("it can be set"));
            reader.is_mapped
        };
        assert!(is_mapped_after(100, 0), "nothing was written");
        assert!(is_mapped_after(1, 1), "the first one after a commit cannot know");
        assert!(!(2..100).any(|commits| is_mapped_after(3, commits)), "a commit for every few reads");
        assert!(!is_mapped_after(READS_WORTH_A_MAP, 100));
        assert!(is_mapped_after(10, 100), "it has become quiet");
    }
}
