//! Reading. Two connections do it for everybody: many questions can be under way on one.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use bytes::Bytes;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};
use twicesafe_core::journal::{Entry, Event};
use twicesafe_core::{Actor, Answer, Body, ExternalId, Fence, IntentId, Salt, Status, Timestamp};

use super::Shared;
use super::columns::{self, at, bytes, damaged, get, needed, number};
use super::connect::{Failure, Link, Patience, Place};
use super::home::Home;
use crate::NameHash;
use crate::codec;
use crate::error::StoreError;
use crate::plan::{JournalRow, Stored};
use crate::query::{Cursor, DueIntent, EarlierAnswer, Path};
use crate::seal::request_digest;

/// Connections for reading.
const READERS: usize = 2;
/// About so many intents are looked at with one statement: of new ones, of which most need nothing, and of others, which are
/// written anew as long as something is to be done about them.
const NEW_LOOKS_MAX: i64 = 5000;
const LOOKS_MAX: i64 = 200;
/// So many reminders are looked at with one statement at most; as in `ledger_remind`.
const REMINDERS_MAX: i64 = 200;
/// Most statements about reminders in a row; what is left is for the next sweep.
const REMINDINGS_MAX: usize = 100;

/// Parameters of a statement with their types, so that it needs no preparation.
type Parameters<'a> = &'a [(&'a (dyn ToSql + Sync), Type)];

pub(super) struct Readers {
    shared: Arc<Shared>,
    links: Vec<Link>,
    next: AtomicUsize,
}

impl Readers {
    pub(super) fn new(shared: Arc<Shared>, place: &Place, home: &Arc<Home>) -> Self {
        let links = (0..READERS).map(|_| Link::new(place.clone(), home.clone())).collect();
        Self { shared, links, next: AtomicUsize::new(0) }
    }

    /// A connection beside these.
    pub(super) fn another_link(&self) -> Link {
        self.links[0].another()
    }

    /// Runs something on one of the connections, again if the connection was lost. Only for what may be repeated.
    pub(super) async fn run<T, Doing>(&self, what: impl Fn(Arc<Client>) -> Doing) -> Result<T, StoreError>
    where
        Doing: Future<Output = Result<T, Failure>>,
    {
        let link = &self.links[self.next.fetch_add(1, Ordering::Relaxed) % READERS];
        let mut patience = Patience::since(Instant::now());
        loop {
            let attempt = patience.bound(async { what(link.client().await?).await }).await;
            match attempt {
                Err(failure) if matches!(failure, Failure::Lost(_)) || failure.is_in_the_way() => {
                    if matches!(failure, Failure::Lost(_)) {
                        link.drop_client().await;
                    }
                    if !patience.pause().await {
                        return Err(failure.into_error());
                    }
                }
                other => return other.map_err(Failure::into_error),
            }
        }
    }

    /// Runs a statement; `@` stands before the names of our tables.
    pub(super) async fn rows(&self, sql: &str, values: Parameters<'_>) -> Result<Vec<Row>, StoreError> {
        let sql = &self.shared.within(sql);
        self.run(|client| async move { Ok(client.query_typed(sql, values).await?) }).await
    }

    pub(super) async fn look(
        &self,
        hashes: &[NameHash],
        ids: &[IntentId],
    ) -> Result<Option<Stored>, StoreError> {
        let found = self.run(|client| async move { look(&client, &self.shared, hashes, ids).await }).await?;
        Ok(found.into_iter().next().map(|(_, stored)| stored))
    }

    pub(super) async fn versions(&self, ids: &[IntentId]) -> Result<Vec<(IntentId, i64)>, StoreError> {
        let numbers: Vec<i64> = ids.iter().map(|id| id.number()).collect();
        let sql = "SELECT n.id, i.version FROM unnest($1) n (id) LEFT JOIN @intent i ON i.id = n.id";
        let rows = self.rows(sql, &[(&numbers, Type::INT8_ARRAY)]).await?;
        rows.iter()
            .map(|row| {
                let version: Option<i64> = get(row, 1)?;
                Ok((IntentId::new(get(row, 0)?), version.unwrap_or(i64::MAX)))
            })
            .collect()
    }

    pub(super) async fn page(
        &self,
        path: &Path,
        after: Option<Cursor>,
        limit: usize,
    ) -> Result<Vec<(Stored, Cursor)>, StoreError> {
        let limit = limit as i64;
        let Cursor { wake_at, id } = after.unwrap_or(Cursor::START);
        let (id, limit) = ((&id as _, Type::INT8), (&limit as _, Type::INT8));
        let rows = match path {
            Path::All => {
                let sql = "SELECT ?, NULL::bigint FROM @belief i WHERE i.id < $1 ORDER BY i.id DESC LIMIT $2";
                self.page_rows(sql, &[id, limit]).await?
            }
            Path::Scope(scope) => {
                let sql = "SELECT ?, NULL::bigint FROM @belief i WHERE i.id < $1 AND i.scope = $3
                           ORDER BY i.id DESC LIMIT $2";
                self.page_rows(sql, &[id, limit, (scope, Type::TEXT)]).await?
            }
            Path::Work(work) => {
                let sql = "SELECT ?, NULL::bigint FROM @belief i WHERE i.id < $1 AND i.work = $3
                           ORDER BY i.id DESC LIMIT $2";
                self.page_rows(sql, &[id, limit, (work, Type::TEXT)]).await?
            }
            Path::Status(status @ Status::Pending) => {
                let sql = "SELECT ?, w.at FROM (SELECT w.id, w.at FROM (
                               SELECT g.intent AS id, g.wake_at AS at FROM @agenda g WHERE g.status = $3
                               UNION ALL
                               SELECT p.id, p.wake_at FROM (
                                   SELECT DISTINCT n.id FROM @reminder r CROSS JOIN LATERAL unnest(r.intents) x
                                   CROSS JOIN LATERAL generate_series(lower(x), upper(x) - 1) n (id)
                                   WHERE r.kind IN ('new', 'wake')) n
                               CROSS JOIN LATERAL (
                                   SELECT p.id, p.wake_at FROM @intent p WHERE p.id = n.id OFFSET 0) p
                               WHERE p.wake_at IS NOT NULL) w
                               WHERE (w.at, w.id) < ($4, $1) ORDER BY w.at DESC, w.id DESC LIMIT $2) w
                           CROSS JOIN LATERAL (SELECT i.* FROM @belief i WHERE i.id = w.id OFFSET 0) i
                           ORDER BY w.at DESC, w.id DESC";
                let values = [id, limit, (&status.as_str() as _, Type::TEXT), (&wake_at as _, Type::INT8)];
                self.page_rows(sql, &values).await?
            }
            Path::Status(status) => {
                let sql = "SELECT ?, g.wake_at FROM @agenda g JOIN @belief i ON i.id = g.intent
                           WHERE g.status = $3 AND (g.wake_at, g.intent) < ($4, $1)
                           ORDER BY g.wake_at DESC, g.intent DESC LIMIT $2";
                let values = [id, limit, (&status.as_str() as _, Type::TEXT), (&wake_at as _, Type::INT8)];
                self.page_rows(sql, &values).await?
            }
        };
        rows.iter()
            .map(|row| {
                let stored = columns::stored(row, &self.shared.rows)?;
                let wake_at: Option<i64> = get(row, row.len() - 1)?;
                let cursor = Cursor { wake_at: wake_at.unwrap_or(i64::MAX), id: stored.id.number() };
                Ok((stored, cursor))
            })
            .collect()
    }

    /// `?` stands for the columns of an intent.
    async fn page_rows(&self, sql: &str, values: Parameters<'_>) -> Result<Vec<Row>, StoreError> {
        self.rows(&sql.replace('?', &columns::selected()), values).await
    }

    /// Scopes that start with the prefix. Goes from one to the next, because there are few scopes and many intents.
    pub(super) async fn scopes(&self, prefix: &str, limit: usize) -> Result<Vec<String>, StoreError> {
        let sql = "WITH RECURSIVE below (scope) AS (
                       (SELECT scope FROM @intent WHERE scope >= $1 ORDER BY scope LIMIT 1)
                       UNION ALL
                       SELECT (SELECT i.scope FROM @intent i WHERE i.scope > b.scope ORDER BY i.scope LIMIT 1)
                       FROM below b WHERE starts_with(b.scope, $1))
                   SELECT scope FROM below WHERE starts_with(scope, $1) LIMIT $2";
        let rows = self.rows(sql, &[(&prefix, Type::TEXT), (&(limit as i64), Type::INT8)]).await?;
        rows.iter().map(|row| get(row, 0)).collect()
    }

    /// Intents whose time has come, by the agenda, and by the reminders of permits that are out.
    pub(super) async fn awake(
        &self,
        status: Status,
        now: Timestamp,
        limit: usize,
    ) -> Result<Vec<IntentId>, StoreError> {
        let sql = "SELECT intent FROM @agenda WHERE status = $1 AND wake_at <= $2 ORDER BY wake_at LIMIT $3";
        let (until, most) = (now.as_millis(), limit as i64);
        let values: Parameters<'_> =
            &[(&status.as_str(), Type::TEXT), (&until, Type::INT8), (&most, Type::INT8)];
        let rows = self.rows(sql, values).await?;
        let mut awake: Vec<IntentId> =
            rows.iter().map(|row| get(row, 0).map(IntentId::new)).collect::<Result<_, _>>()?;
        if status == Status::Pending {
            let left = limit - awake.len();
            awake.extend(self.remind(&["new", "wake"], now, left).await?);
        }
        Ok(awake)
    }

    /// Looks at intents of reminders whose time has come; those of the last kind for whom it is true. Reminders of the kinds
    /// before it become such of the last one.
    async fn remind(
        &self,
        kinds: &[&str],
        now: Timestamp,
        limit: usize,
    ) -> Result<Vec<IntentId>, StoreError> {
        let mut due: Vec<i64> = Vec::new();
        for kind in kinds {
            let most = if *kind == "new" { NEW_LOOKS_MAX } else { LOOKS_MAX };
            for _ in 0..REMINDINGS_MAX {
                let looked_at;
                (looked_at, due) = self.told(kind, now, most).await?;
                if !due.is_empty() || looked_at == 0 {
                    break;
                }
            }
        }
        Ok(due.into_iter().take(limit).map(IntentId::new).collect())
    }

    /// Looks at reminders once: at how many, and who is to be told of it.
    async fn told(&self, kind: &str, now: Timestamp, most: i64) -> Result<(i64, Vec<i64>), StoreError> {
        let sql = "SELECT looked_at, due FROM @ledger_remind($1, $2, $3)";
        let values: Parameters<'_> =
            &[(&kind, Type::TEXT), (&now.as_millis(), Type::INT8), (&most, Type::INT8)];
        let rows = self.rows(sql, values).await?;
        let row = needed(rows.first(), "reminders without an answer")?;
        Ok((get(row, 0)?, get(row, 1)?))
    }

    /// Intents of a scope whose next attempt or lookup is due.
    pub(super) async fn due(
        &self,
        scope: &str,
        now: Timestamp,
        after: Option<(Timestamp, IntentId)>,
        limit: usize,
    ) -> Result<Vec<DueIntent>, StoreError> {
        let sql = "SELECT g.due_at, g.intent, i.lane
                   FROM (SELECT due_at, intent FROM @agenda
                         WHERE scope = $1 AND due_at <= $2 AND (due_at, intent) > ($3, $4)
                         ORDER BY due_at, intent LIMIT $5) g
                   JOIN @intent i ON i.id = g.intent ORDER BY g.due_at, g.intent";
        let (at, id) = after.map_or((i64::MIN, i64::MIN), |(at, id)| (at.as_millis(), id.number()));
        let (now, limit) = (now.as_millis(), limit as i64);
        let values: [(&(dyn ToSql + Sync), Type); 5] = [
            (&scope, Type::TEXT),
            (&now, Type::INT8),
            (&at, Type::INT8),
            (&id, Type::INT8),
            (&limit, Type::INT8),
        ];
        let rows = self.rows(sql, &values).await?;
        let line = |row: &Row| {
            Ok(DueIntent {
                at: (Timestamp::from_millis(get(row, 0)?), IntentId::new(get(row, 1)?)),
                lane: get(row, 2)?,
            })
        };
        rows.iter().map(line).collect()
    }

    pub(super) async fn scopes_with_due(
        &self,
        after: &str,
        limit: usize,
    ) -> Result<Vec<(String, Timestamp)>, StoreError> {
        let sql = "WITH RECURSIVE below (scope) AS (
                       (SELECT scope FROM @agenda WHERE scope > $1 ORDER BY scope LIMIT 1)
                       UNION ALL
                       SELECT (SELECT g.scope FROM @agenda g WHERE g.scope > b.scope ORDER BY g.scope LIMIT 1)
                       FROM below b WHERE b.scope IS NOT NULL)
                   SELECT b.scope, (SELECT g.due_at FROM @agenda g WHERE g.scope = b.scope ORDER BY g.due_at LIMIT 1)
                   FROM below b WHERE b.scope IS NOT NULL LIMIT $2";
        let rows = self.rows(sql, &[(&after, Type::TEXT), (&(limit as i64), Type::INT8)]).await?;
        rows.iter().map(|row| Ok((get(row, 0)?, Timestamp::from_millis(get(row, 1)?)))).collect()
    }

    pub(super) async fn first_waiting(
        &self,
        lane: &str,
        now: Timestamp,
    ) -> Result<Option<IntentId>, StoreError> {
        let sql =
            "SELECT intent FROM @lane_waiting WHERE lane = $1 AND until > $2 ORDER BY rank, intent LIMIT 1";
        let rows = self.rows(sql, &[(&lane, Type::TEXT), (&now.as_millis(), Type::INT8)]).await?;
        rows.first().map(|row| get(row, 0).map(IntentId::new)).transpose()
    }

    pub(super) async fn kept_too_long(
        &self,
        now: Timestamp,
        limit: usize,
    ) -> Result<Vec<IntentId>, StoreError> {
        self.remind(&["new", "keep"], now, limit).await
    }

    /// Adds to the tally what was counted with something else than a claim, and with claims whose reminder is due: where nobody
    /// sweeps, those who ask for figures do this.
    pub(super) async fn add_up(&self, now: Timestamp) -> Result<(), StoreError> {
        for _ in 0..REMINDINGS_MAX {
            if self.told("count", now, LOOKS_MAX).await?.0 < REMINDERS_MAX {
                break;
            }
        }
        self.remind(&["new"], now, 0).await.map(drop)
    }

    pub(super) async fn journal(&self, id: IntentId) -> Result<Vec<JournalRow>, StoreError> {
        let sql =
            "SELECT number, at, actor, event, status, doubt, generation, fence, reason, words, digest, hash
                   FROM @journal WHERE intent = $1 ORDER BY number";
        let rows = self.rows(sql, &[(&id.number(), Type::INT8)]).await?;
        rows.iter().map(journal_row).collect()
    }

    pub(super) async fn earlier(&self, id: IntentId) -> Result<Vec<EarlierAnswer>, StoreError> {
        let sql = "SELECT generation, status, external_id, head, body, not_kept FROM @earlier_answer
                   WHERE intent = $1 ORDER BY generation";
        let rows = self.rows(sql, &[(&id.number(), Type::INT8)]).await?;
        rows.iter().map(earlier_answer).collect()
    }

    pub(super) async fn request(&self, id: IntentId) -> Result<Option<Bytes>, StoreError> {
        let sql = "SELECT request, request_digest, salt FROM @intent WHERE id = $1 AND request IS NOT NULL";
        let rows = self.rows(sql, &[(&id.number(), Type::INT8)]).await?;
        rows.first().map(|row| kept_request(row, id)).transpose()
    }

    pub(super) async fn tallies(
        &self,
        from_hour: i64,
        to_hour: i64,
    ) -> Result<Vec<(String, i64)>, StoreError> {
        let sql = "SELECT name, sum(n)::bigint FROM @tallied WHERE hour = 0 OR hour BETWEEN $1 AND $2 GROUP BY name";
        let rows = self.rows(sql, &[(&from_hour, Type::INT8), (&to_hour, Type::INT8)]).await?;
        rows.iter().map(|row| Ok((get(row, 0)?, get(row, 1)?))).collect()
    }
}

/// What there is under these hashes and numbers, each with the hash of its name.
pub(super) async fn look(
    client: &Client,
    shared: &Shared,
    hashes: &[NameHash],
    ids: &[IntentId],
) -> Result<Vec<(NameHash, Stored)>, Failure> {
    let hashes: Vec<&[u8]> = hashes.iter().map(|hash| &hash[..]).collect();
    let ids: Vec<i64> = ids.iter().map(|id| id.number()).collect();
    let values: Parameters<'_> = &[(&hashes, Type::BYTEA_ARRAY), (&ids, Type::INT8_ARRAY)];
    let rows = client.query_typed(&shared.look_sql, values).await?;
    let found: Result<_, StoreError> =
        rows.iter().map(|row| Ok((columns::hash(row)?, columns::stored(row, &shared.rows)?))).collect();
    Ok(found?)
}

/// The call of `ledger_look`.
pub(super) fn look_sql(schema: &str) -> String {
    format!("SELECT {} FROM {schema}ledger_look($1, $2) i", columns::selected())
}

/// Which of these units of work have open steps.
pub(super) async fn open_works(
    client: &Client,
    shared: &Shared,
    works: &[&str],
) -> Result<HashSet<String>, Failure> {
    let sql = shared.within(
        "SELECT w.work FROM unnest($1) w (work) WHERE EXISTS (SELECT FROM @intent i WHERE i.work = w.work
         AND i.status IN ('held', 'ready', 'pending', 'retryable', 'review'))",
    );
    let rows = client.query_typed(&sql, &[(&works, Type::TEXT_ARRAY)]).await?;
    let works: Result<_, StoreError> = rows.iter().map(|row| get(row, 0)).collect();
    Ok(works?)
}

/// Takes a sample of the database's clock.
pub(super) async fn sample(client: &Client, shared: &Shared) -> Result<(), Failure> {
    let sql = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint, recovering_since FROM @ledger";
    let row = client.query_typed_one(&shared.within(sql), &[]).await?;
    shared.time.sample(Timestamp::from_millis(get(&row, 0)?), at(&row, 1)?);
    Ok(())
}

pub(super) fn earlier_answer(row: &Row) -> Result<EarlierAnswer, StoreError> {
    Ok(EarlierAnswer {
        generation: number(row, 0)?,
        status: needed(Status::from_word(get(row, 1)?), "a status nobody knows")?,
        answer: Answer {
            external_id: get::<Option<&str>>(row, 2)?.and_then(ExternalId::new),
            head: get::<&str>(row, 3)?.into(),
            body: match get(row, 5)? {
                Some(not_kept) => codec::parse_not_kept(not_kept)?,
                None => Body::Kept(get::<Option<Vec<u8>>>(row, 4)?.unwrap_or_default().into()),
            },
        },
    })
}

/// A request, with its digest and the salt of that behind it.
pub(super) fn kept_request(row: &Row, id: IntentId) -> Result<Bytes, StoreError> {
    let (body, salt): (&[u8], _) = (get(row, 0)?, bytes(row, 2)?.map(Salt));
    if bytes(row, 1)? != Some(request_digest(salt, body)) {
        return Err(StoreError::Altered(format!("the request of {id}")));
    }
    Ok(Bytes::copy_from_slice(body))
}

pub(super) fn journal_row(row: &Row) -> Result<JournalRow, StoreError> {
    let entry = Entry {
        at: Timestamp::from_millis(get(row, 1)?),
        actor: Actor::new(get(row, 2)?).map_err(|error| damaged(&error.to_string()))?,
        event: needed(Event::from_word(get(row, 3)?), "an event nobody knows")?,
        status: needed(Status::from_word(get(row, 4)?), "a status nobody knows")?,
        doubt: get(row, 5)?,
        generation: number(row, 6)?,
        fence: Fence::new(get::<i64>(row, 7)?.unsigned_abs()),
        reason: get::<&str>(row, 8)?.into(),
        content: None,
    };
    Ok(JournalRow {
        number: number(row, 0)?,
        entry,
        words: needed(bytes(row, 9)?, "a journal row without its words' digest")?,
        digest: bytes(row, 10)?,
        hash: needed(bytes(row, 11)?, "a journal row without a hash")?,
    })
}
