//! Moving a ledger out of a database, and into one. Both have a connection of their own, and one transaction.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};
use twicesafe_core::{IntentId, Noted, Status, Timestamp, Verdict};

use super::columns::{self, Line, at, get, needed};
use super::connect::{Failure, Link};
use super::open::MIGRATION_LOCK;
use super::read::{earlier_answer, journal_row, kept_request};
use super::write::{self, Outcome};
use super::{Postgres, Shared, read};
use crate::codec;
use crate::error::StoreError;
use crate::plan::{Change, JournalRow};
use crate::query::EarlierAnswer;
use crate::tally::{self, Tally};
use crate::transfer::{Count, Exported, Facts, LaneState, Parcel, unhashed};
use crate::{BATCH_MAX, HashKey};

impl Postgres {
    pub(crate) async fn export(&self) -> Result<Snapshot, StoreError> {
        let within = Within::begin(self, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await?;
        let sql = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint, recovering_since, hash_key,
                   (SELECT CASE WHEN is_called THEN last_value + $1 ELSE last_value END - 1 FROM @intent_number) FROM @ledger";
        let rows = within.rows(sql, &[(&(BATCH_MAX as i64), Type::INT8)]).await?;
        let row = needed(rows.first(), "a ledger that knows nothing of itself")?;
        let facts = Facts {
            at: Timestamp::from_millis(get(row, 0)?),
            recovering_since: at(row, 1)?,
            hash_key: HashKey::kept(get(row, 2)?)?,
            last_intent: get(row, 3)?,
            sealed_key: self.shared.keys.sealed().to_vec(),
        };
        Ok(Snapshot { within, facts })
    }

    pub(crate) async fn import(&self, facts: &Facts) -> Result<Importing, StoreError> {
        let within = Within::begin(self, "BEGIN ISOLATION LEVEL READ COMMITTED").await?;
        // Whoever opens the ledger meanwhile waits, and then finds the key that belongs to it.
        within.rows("SELECT pg_advisory_xact_lock($1)", &[(&MIGRATION_LOCK, Type::INT8)]).await?;
        within.rows("LOCK TABLE @intent, @lane, @ledger IN SHARE ROW EXCLUSIVE MODE", &[]).await?;
        let sql = "SELECT EXISTS (SELECT FROM @intent) OR EXISTS (SELECT FROM @lane)";
        if get(needed(within.rows(sql, &[]).await?.first(), "no answer")?, 0)? {
            return Err(StoreError::NotEmpty);
        }
        Ok(Importing { within, facts: facts.clone() })
    }
}

/// A connection inside a transaction, which ends with it.
struct Within {
    shared: Arc<Shared>,
    client: Arc<Client>,
    _link: Link,
}

impl Within {
    async fn begin(postgres: &Postgres, statement: &str) -> Result<Self, StoreError> {
        let link = postgres.readers.another_link();
        let client = link.client().await.map_err(Failure::into_error)?;
        client.batch_execute(statement).await.map_err(failed)?;
        Ok(Self { shared: postgres.shared.clone(), client, _link: link })
    }

    async fn rows(&self, sql: &str, values: &[(&(dyn ToSql + Sync), Type)]) -> Result<Vec<Row>, StoreError> {
        self.client.query_typed(&self.shared.within(sql), values).await.map_err(failed)
    }
}

fn failed(error: tokio_postgres::Error) -> StoreError {
    Failure::from(error).into_error()
}

/// A ledger as it was at one moment.
pub(crate) struct Snapshot {
    within: Within,
    facts: Facts,
}

impl Snapshot {
    pub(crate) fn facts(&self) -> &Facts {
        &self.facts
    }

    pub(crate) async fn intents(
        &self,
        scope: Option<&str>,
        after: IntentId,
        limit: usize,
    ) -> Result<Vec<Exported>, StoreError> {
        let sql = "SELECT ?, i.keep_until FROM @belief i
                   WHERE i.id > $1 AND ($3 IS NULL OR i.scope = $3 OR right($3, 1) = '/' AND starts_with(i.scope, $3))
                   ORDER BY i.id LIMIT $2";
        let sql = sql.replace('?', &columns::selected());
        let (after, limit) = (after.number(), limit as i64);
        let values: [(&(dyn ToSql + Sync), Type); 3] =
            [(&after, Type::INT8), (&limit, Type::INT8), (&scope, Type::TEXT)];
        let rows = self.within.rows(&sql, &values).await?;
        let mut intents = Vec::with_capacity(rows.len());
        for row in &rows {
            intents.push(Exported {
                stored: columns::stored(row, &self.within.shared.rows)?,
                hash: Some(columns::hash(row)?),
                keep_until: Timestamp::from_millis(get(row, row.len() - 1)?),
                journal: Vec::new(),
                earlier: Vec::new(),
                request: None,
            });
        }
        let ids: Vec<i64> = intents.iter().map(|intent| intent.stored.id.number()).collect();
        let mut journals = self.journals(&ids).await?;
        let mut earlier = self.earlier(&ids).await?;
        let mut requests = self.requests(&ids).await?;
        for (intent, id) in intents.iter_mut().zip(ids) {
            intent.journal = journals.remove(&id).unwrap_or_default();
            intent.earlier = earlier.remove(&id).unwrap_or_default();
            intent.request = requests.remove(&id);
        }
        Ok(intents)
    }

    async fn journals(&self, ids: &[i64]) -> Result<HashMap<i64, Vec<JournalRow>>, StoreError> {
        let sql =
            "SELECT number, at, actor, event, status, doubt, generation, fence, reason, words, digest, hash, intent
                   FROM @journal WHERE intent = ANY ($1) ORDER BY intent, number";
        let mut journals: HashMap<i64, Vec<JournalRow>> = HashMap::new();
        for row in &self.within.rows(sql, &[(&ids, Type::INT8_ARRAY)]).await? {
            journals.entry(get(row, 12)?).or_default().push(journal_row(row)?);
        }
        Ok(journals)
    }

    async fn earlier(&self, ids: &[i64]) -> Result<HashMap<i64, Vec<EarlierAnswer>>, StoreError> {
        let sql = "SELECT generation, status, external_id, head, body, not_kept, intent FROM @earlier_answer
                   WHERE intent = ANY ($1) ORDER BY intent, generation";
        let mut earlier: HashMap<i64, Vec<EarlierAnswer>> = HashMap::new();
        for row in &self.within.rows(sql, &[(&ids, Type::INT8_ARRAY)]).await? {
            earlier.entry(get(row, 6)?).or_default().push(earlier_answer(row)?);
        }
        Ok(earlier)
    }

    async fn requests(&self, ids: &[i64]) -> Result<HashMap<i64, Bytes>, StoreError> {
        let sql = "SELECT request, request_digest, salt, id FROM @intent WHERE id = ANY ($1) AND request IS NOT NULL";
        let rows = self.within.rows(sql, &[(&ids, Type::INT8_ARRAY)]).await?;
        let request = |row: &Row| {
            let id = get(row, 3)?;
            Ok((id, kept_request(row, IntentId::new(id))?))
        };
        rows.iter().map(request).collect()
    }

    pub(crate) async fn lanes(&self, after: &str, limit: usize) -> Result<Vec<LaneState>, StoreError> {
        let sql = "SELECT name, holder, applied FROM @lane WHERE name > $1 ORDER BY name LIMIT $2";
        let rows = self.within.rows(sql, &[(&after, Type::TEXT), (&(limit as i64), Type::INT8)]).await?;
        let lane = |row: &Row| {
            let holder = get::<Option<i64>>(row, 1)?.map(IntentId::new);
            Ok(LaneState { name: get(row, 0)?, holder, applied: get(row, 2)? })
        };
        rows.iter().map(lane).collect()
    }

    pub(crate) async fn counts(&self) -> Result<Vec<Count>, StoreError> {
        let sql = "SELECT hour, name, sum(n)::bigint FROM @tallied WHERE hour <> 0 GROUP BY hour, name
                   HAVING sum(n) <> 0 ORDER BY hour, name";
        let rows = self.within.rows(sql, &[]).await?;
        let count = |row: &Row| {
            let name = needed(tally::known_name(get(row, 1)?), "a count nobody knows")?;
            Ok(Count { hour: get(row, 0)?, name, n: get(row, 2)? })
        };
        rows.iter().map(count).collect()
    }
}

/// An import under way.
pub(crate) struct Importing {
    within: Within,
    facts: Facts,
}

impl Importing {
    pub(crate) async fn put(&mut self, parcel: Parcel) -> Result<(), StoreError> {
        match parcel {
            Parcel::Intents(intents) => self.intents(intents).await,
            Parcel::Lanes(lanes) => {
                let names: Vec<&str> = lanes.iter().map(|lane| lane.name.as_str()).collect();
                let holders: Vec<Option<i64>> =
                    lanes.iter().map(|lane| lane.holder.map(IntentId::number)).collect();
                let applied: Vec<Option<i64>> = lanes.iter().map(|lane| lane.applied).collect();
                let sql = "INSERT INTO @lane (name, holder, applied) SELECT * FROM unnest($1, $2, $3)";
                let values: [(&(dyn ToSql + Sync), Type); 3] =
                    [(&names, Type::TEXT_ARRAY), (&holders, Type::INT8_ARRAY), (&applied, Type::INT8_ARRAY)];
                self.within.rows(sql, &values).await.map(drop)
            }
            Parcel::Counts(counts) => {
                let mut tally = Tally::default();
                counts.iter().for_each(|count| tally.take_over(count));
                self.changes(&[], &tally).await.map(drop)
            }
        }
    }

    async fn changes(&self, lines: &[Line], tally: &Tally) -> Result<Vec<Outcome>, StoreError> {
        let written =
            write::changes(&self.within.client, &self.within.shared, lines, &[], tally, false).await;
        written.map(|written| written.outcomes).map_err(Failure::into_error)
    }

    async fn intents(&self, intents: Vec<Exported>) -> Result<(), StoreError> {
        self.earlier(&intents).await?;
        let (mut lines, mut kept): (Vec<Line>, Vec<(i64, i64)>) = Default::default();
        for Exported { stored, hash, keep_until, journal, earlier: _, request } in intents {
            let (id, hash) = (stored.id, hash.ok_or_else(unhashed)?);
            if keep_until != stored.record.keep_until() {
                kept.push((id.number(), keep_until.as_millis()));
            }
            let mut standing = Tally::default();
            standing.standing(&stored.record, 1);
            let change = Change { before: None, after: Some(stored.into()), journal, lane: None, request };
            let noted = Verdict::Noted(Noted { status: Status::Done, changed: true });
            let mut line =
                Line::new(change, Some(id), Some(hash), &self.within.shared, (self.facts.at, &noted));
            // What happened is counted where it happened, not here.
            line.tally = standing;
            lines.push(line);
        }
        let written = self.changes(&lines, &Tally::default()).await?;
        if !written.iter().all(|outcome| matches!(outcome, Outcome::Written(_))) {
            return Err(StoreError::Damaged("two intents have the same hash".into()));
        }
        let (ids, until): (Vec<i64>, Vec<i64>) = kept.into_iter().unzip();
        let sql =
            "UPDATE @intent i SET keep_until = n.until FROM unnest($1, $2) n (id, until) WHERE i.id = n.id";
        self.within.rows(sql, &[(&ids, Type::INT8_ARRAY), (&until, Type::INT8_ARRAY)]).await.map(drop)
    }

    async fn earlier(&self, intents: &[Exported]) -> Result<(), StoreError> {
        let sql =
            "INSERT INTO @earlier_answer (intent, generation, status, external_id, head, body, not_kept)
                   VALUES ($1, $2, $3, $4, $5, $6, $7)";
        for (id, earlier) in intents
            .iter()
            .flat_map(|intent| intent.earlier.iter().map(|earlier| (intent.stored.id.number(), earlier)))
        {
            let answer = &earlier.answer;
            let external_id = answer.external_id.as_ref().map(|id| id.as_str());
            let body = answer.bytes().map(|body| &body[..]);
            let values: [(&(dyn ToSql + Sync), Type); 7] = [
                (&id, Type::INT8),
                (&i64::from(earlier.generation), Type::INT8),
                (&earlier.status.as_str(), Type::TEXT),
                (&external_id, Type::TEXT),
                (&&*answer.head, Type::TEXT),
                (&body, Type::BYTEA),
                (&codec::not_kept_text(answer), Type::TEXT),
            ];
            self.within.rows(sql, &values).await?;
        }
        Ok(())
    }

    pub(crate) async fn finish(self) -> Result<(), StoreError> {
        let Self { within, facts } = self;
        let sql = "UPDATE @ledger SET hash_key = $1, recovering_since = $2";
        let (key, since) = (facts.hash_key.bytes(), facts.recovering_since.map(Timestamp::as_millis));
        within.rows(sql, &[(&key, Type::BYTEA), (&since, Type::INT8)]).await?;
        if facts.last_intent > 0 {
            // The next batch starts there.
            let sql = "SELECT setval('@intent_number', greatest($1 + 1, (
                           SELECT CASE WHEN is_called THEN last_value + $2 ELSE last_value END FROM @intent_number)), false)";
            let values: [(&(dyn ToSql + Sync), Type); 2] =
                [(&facts.last_intent, Type::INT8), (&(BATCH_MAX as i64), Type::INT8)];
            within.rows(sql, &values).await?;
        }
        within.client.batch_execute("COMMIT").await.map_err(failed)?;
        within.shared.hasher.go_over_to(facts.hash_key);
        read::sample(&within.client, &within.shared).await.map_err(Failure::into_error)
    }
}
