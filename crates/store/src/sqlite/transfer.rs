//! Moving a ledger out of a SQLite file, and into one.

use rusqlite::{Connection, params};
use tokio::sync::{mpsc, oneshot};
use twicesafe_core::{IntentId, Timestamp};

use super::open::{map, prepared, ran, readable};
use super::read::{all, bytes, get, needed, one, select, stored, text};
use super::{Errand, Shared, Sqlite, gone, read, write};
use crate::HashKey;
use crate::codec;
use crate::error::StoreError;
use crate::plan::Change;
use crate::seal::RowCodec;
use crate::tally::{self, Tally};
use crate::transfer::{Count, Exported, Facts, LaneState, Parcel, unhashed};

/// Parcels that wait for the writer.
const PARCELS_MAX: usize = 4;

impl Sqlite {
    pub(crate) fn export(&self) -> Result<Snapshot, StoreError> {
        let connection = readable(&self.shared.path)?;
        map(&connection, true)?;
        // Until the connection goes, it sees what was there at its first look.
        ran(connection.execute_batch("BEGIN"))?;
        let sql = "SELECT n, recovering_since, hash_key FROM ledger, tally WHERE hour = ?1 AND name = 'last intent'";
        let facts = one(prepared(&connection, sql)?, [write::NOW], |row| {
            Ok(Facts {
                at: self.now(),
                last_intent: get(row, 0)?,
                recovering_since: get::<Option<i64>>(row, 1)?.map(Timestamp::from_millis),
                hash_key: HashKey::kept(&get::<Vec<u8>>(row, 2)?)?,
                sealed_key: self.shared.keys.sealed().to_vec(),
            })
        })?;
        let facts = needed(facts, "a ledger that knows nothing of itself")?;
        Ok(Snapshot { connection, facts, rows: RowCodec::new(&self.shared.keys) })
    }

    /// Starts an import on the writer's thread, in one transaction. Others wait meanwhile.
    pub(crate) async fn import(&self, facts: &Facts) -> Result<Importing, StoreError> {
        let (parcels, taken) = mpsc::channel(PARCELS_MAX);
        let (reply, answer) = oneshot::channel();
        let (begun, started) = oneshot::channel();
        let (shared, of_import) = (self.shared.clone(), facts.clone());
        let what = move |connection: &Connection| {
            begin(connection, &of_import)?;
            let _ = begun.send(());
            fill(connection, &shared, taken)
        };
        self.send(Errand::Run(Box::new(what), reply))?;
        let importing = Importing { parcels, answer, shared: self.shared.clone(), facts: facts.clone() };
        match started.await {
            Ok(()) => Ok(importing),
            Err(_) => Err(importing.why_it_ended().await),
        }
    }
}

/// A ledger as it was at one moment.
pub(crate) struct Snapshot {
    connection: Connection,
    facts: Facts,
    rows: RowCodec,
}

impl Snapshot {
    pub(crate) fn facts(&self) -> &Facts {
        &self.facts
    }

    pub(crate) fn intents(
        &self,
        scope: Option<&str>,
        after: IntentId,
        limit: usize,
    ) -> Result<Vec<Exported>, StoreError> {
        let sql = select!(
            ", i.hash, i.keep_until FROM intent i LEFT JOIN answer a ON a.intent = i.id
             WHERE i.id > ?1 AND (?3 IS NULL OR i.scope = ?3 OR ?3 LIKE '%/' AND substr(i.scope, 1, length(?3)) = ?3)
             ORDER BY i.id LIMIT ?2"
        );
        let values = (after.number(), limit as i64, scope);
        let mut intents = all(prepared(&self.connection, sql)?, values, |row| {
            Ok(Exported {
                stored: stored(row, &self.rows)?,
                hash: bytes(row, 39)?,
                keep_until: Timestamp::from_millis(get(row, 40)?),
                journal: Vec::new(),
                earlier: Vec::new(),
                request: None,
            })
        })?;
        for intent in &mut intents {
            let id = intent.stored.id;
            intent.journal = read::journal(&self.connection, id)?;
            intent.earlier = read::earlier(&self.connection, id)?;
            intent.request = read::request(&self.connection, id)?;
        }
        Ok(intents)
    }

    pub(crate) fn lanes(&self, after: &str, limit: usize) -> Result<Vec<LaneState>, StoreError> {
        let sql = "SELECT name, holder, applied FROM lane WHERE name > ?1 ORDER BY name LIMIT ?2";
        all(prepared(&self.connection, sql)?, (after, limit as i64), |row| {
            Ok(LaneState {
                name: needed(text(row, 0)?, "a lane without a name")?.to_owned(),
                holder: get::<Option<i64>>(row, 1)?.map(IntentId::new),
                applied: get(row, 2)?,
            })
        })
    }

    pub(crate) fn counts(&self) -> Result<Vec<Count>, StoreError> {
        let sql = "SELECT hour, name, n FROM tally WHERE hour <> ?1 AND n <> 0 ORDER BY hour, name";
        all(prepared(&self.connection, sql)?, [write::NOW], |row| {
            let name = text(row, 1)?.and_then(tally::known_name);
            Ok(Count { hour: get(row, 0)?, name: needed(name, "a count nobody knows")?, n: get(row, 2)? })
        })
    }
}

/// An import under way.
pub(crate) struct Importing {
    /// `None` says that everything was brought.
    parcels: mpsc::Sender<Option<Parcel>>,
    answer: oneshot::Receiver<Result<(), StoreError>>,
    shared: std::sync::Arc<Shared>,
    facts: Facts,
}

impl Importing {
    pub(crate) async fn put(&mut self, parcel: Parcel) -> Result<(), StoreError> {
        match self.parcels.send(Some(parcel)).await {
            Ok(()) => Ok(()),
            Err(_) => Err((&mut self.answer).await.ok().and_then(Result::err).unwrap_or_else(gone)),
        }
    }

    pub(crate) async fn finish(self) -> Result<(), StoreError> {
        let _ = self.parcels.send(None).await;
        self.answer.await.unwrap_or_else(|_| Err(gone()))?;
        self.shared.hasher.go_over_to(self.facts.hash_key);
        Ok(())
    }

    async fn why_it_ended(self) -> StoreError {
        self.answer.await.ok().and_then(Result::err).unwrap_or_else(gone)
    }
}

fn begin(connection: &Connection, facts: &Facts) -> Result<(), StoreError> {
    let sql = "SELECT EXISTS (SELECT 1 FROM intent) OR EXISTS (SELECT 1 FROM lane)";
    let filled: bool = ran(prepared(connection, sql)?.query_row([], |row| row.get(0)))?;
    if filled {
        return Err(StoreError::NotEmpty);
    }
    let since = facts.recovering_since.map(Timestamp::as_millis);
    let mut statement = prepared(connection, "UPDATE ledger SET hash_key = ?1, recovering_since = ?2")?;
    ran(statement.execute(params![facts.hash_key.bytes(), since]))?;
    let sql = "UPDATE tally SET n = max(n, ?3) WHERE hour = ?1 AND name = ?2";
    let mut statement = prepared(connection, sql)?;
    ran(statement.execute((write::NOW, "last at", facts.at.as_millis())))?;
    ran(statement.execute((write::NOW, "last intent", facts.last_intent)))?;
    // Where its time was counted, the clocks were others.
    let sql = "UPDATE tally SET n = 0 WHERE hour = ?1 AND name = 'last boot'";
    ran(prepared(connection, sql)?.execute([write::NOW])).map(drop)
}

/// Writes what comes until it is said that everything has come.
fn fill(
    connection: &Connection,
    shared: &Shared,
    mut parcels: mpsc::Receiver<Option<Parcel>>,
) -> Result<(), StoreError> {
    let mut statements = write::Statements::new(connection);
    loop {
        match parcels.blocking_recv() {
            Some(Some(Parcel::Intents(intents))) => {
                let mut tally = Tally::default();
                for intent in intents {
                    tally.standing(&intent.stored.record, 1);
                    put_intent(connection, &mut statements, shared, intent)?;
                }
                write::tally(connection, &tally)?;
            }
            Some(Some(Parcel::Lanes(lanes))) => {
                let sql = "INSERT INTO lane (name, holder, applied) VALUES (?1, ?2, ?3)";
                let mut statement = prepared(connection, sql)?;
                for lane in lanes {
                    ran(statement.execute((lane.name, lane.holder.map(IntentId::number), lane.applied)))?;
                }
            }
            Some(Some(Parcel::Counts(counts))) => {
                let mut tally = Tally::default();
                counts.iter().for_each(|count| tally.take_over(count));
                write::tally(connection, &tally)?;
            }
            Some(None) => return Ok(()),
            None => return Err(StoreError::Away("the import was given up".into())),
        }
    }
}

fn put_intent(
    connection: &Connection,
    statements: &mut write::Statements<'_>,
    shared: &Shared,
    intent: Exported,
) -> Result<(), StoreError> {
    let Exported { stored, hash, keep_until, journal, earlier, request } = intent;
    let (id, hash) = (stored.id.number(), hash.ok_or_else(unhashed)?);
    let usual = stored.record.keep_until();
    let change = Change { before: None, after: Some(stored.into()), journal, lane: None, request };
    if write::change(statements, &shared.rows, Some(&hash), &change)? != write::Written::Yes {
        return Err(StoreError::Damaged("two intents have the same hash".into()));
    }
    if keep_until != usual {
        let mut statement = prepared(connection, "UPDATE intent SET keep_until = ?2 WHERE id = ?1")?;
        ran(statement.execute((id, keep_until.as_millis())))?;
    }
    for earlier in earlier {
        let mut statement = prepared(
            connection,
            "INSERT INTO earlier_answer (intent, generation, status, external_id, head, body, not_kept)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        )?;
        let answer = &earlier.answer;
        ran(statement.execute(params![
            id,
            earlier.generation,
            earlier.status.as_str(),
            answer.external_id.as_ref().map(|id| id.as_str()),
            &*answer.head,
            answer.bytes().map(|body| &body[..]),
            codec::not_kept_text(answer),
        ]))?;
    }
    Ok(())
}
