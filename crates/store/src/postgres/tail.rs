//! Notices that the database lost writes it had acknowledged (S43): a standby was promoted that had not received them all, or a backup
//! was restored beneath a server that runs.
//!
//! Each store remembers its last acknowledged writes, in memory and bounded. Every new connection, and every connection at
//! intervals, looks whether they are there. A statement that writes says on which timeline it belongs, so that a pooler that went over
//! to another server cannot have it written there before somebody has looked. Where one of the writes is missing, the ledger recovers since
//! the last write that is known to be there.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tokio_postgres::Client;
use tokio_postgres::types::{ToSql, Type};
use twicesafe_core::journal::Head;
use twicesafe_core::{Code, IntentId, Timestamp};

use super::columns::{at, get};
use super::connect::Failure;
use super::time::DatabaseTime;
use crate::plan::Stored;

/// So many of the last writes are looked for.
const LAST_MAX: usize = 64;
/// So many earlier ones are remembered beside them, to say since when writes are missing.
const EARLIER_MAX: usize = 256;
/// How far those are apart at least.
const EARLIER_EVERY: Duration = Duration::from_secs(1);

/// The timeline the server is on: the first eight digits of a file of its log. Empty: the server takes no writes.
const TIMELINE_SQL: &str = "SELECT CASE WHEN pg_catalog.pg_is_in_recovery() THEN ''
    ELSE left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8) END";

/// A write that the database acknowledged.
#[derive(Clone)]
struct Write {
    intent: IntentId,
    version: i64,
    head: Head,
    at: Timestamp,
    /// From then on the row may be deleted.
    keep_until: Timestamp,
}

impl Write {
    fn of(stored: &Stored, at: Timestamp) -> Self {
        let keep_until = stored.record.keep_until();
        Self { intent: stored.id, version: stored.version, head: stored.journal_head, at, keep_until }
    }
}

/// What a store remembers of what it has written.
pub(super) struct Tail {
    state: Mutex<State>,
    /// Where the tables are, once the ledger is open.
    schema: OnceLock<String>,
    time: Arc<DatabaseTime>,
}

#[derive(Default)]
struct State {
    last: VecDeque<Write>,
    earlier: VecDeque<Write>,
    timeline: String,
    /// When the ledger was opened.
    opened_at: Option<Timestamp>,
    /// Since when writes were found to be missing.
    lost_since: Option<Timestamp>,
}

impl Tail {
    pub(super) fn new(time: Arc<DatabaseTime>) -> Self {
        Self { state: Mutex::default(), schema: OnceLock::new(), time }
    }

    /// The ledger is open, and these are its tables.
    pub(super) fn opened(&self, schema: &str, now: Timestamp) {
        let _ = self.schema.set(schema.to_owned());
        self.lock().opened_at = Some(now);
    }

    /// The timeline writes belong on. Empty: nobody knows.
    pub(super) fn timeline(&self) -> String {
        self.lock().timeline.clone()
    }

    /// Since when writes were found to be missing, if any were.
    pub(super) fn lost_since(&self) -> Option<Timestamp> {
        self.lock().lost_since
    }

    /// Remembers writes that are acknowledged, in their order.
    pub(super) fn acknowledged<'a>(&self, writes: impl Iterator<Item = (&'a Stored, Timestamp)>) {
        let mut state = self.lock();
        for (stored, at) in writes {
            let write = Write::of(stored, at);
            // Only its last version must be there.
            state.last.retain(|before| before.intent != write.intent);
            state.last.push_back(write);
            if state.last.len() > LAST_MAX
                && let Some(oldest) = state.last.pop_front()
                && state.earlier.back().is_none_or(|before| oldest.at >= before.at + EARLIER_EVERY)
            {
                state.earlier.push_back(oldest);
                if state.earlier.len() > EARLIER_MAX {
                    state.earlier.pop_front();
                }
            }
        }
    }

    /// Looks whether what was acknowledged is there. If not, puts the ledger into recovery, and tells somebody.
    pub(super) async fn check(&self, client: &Client) -> Result<(), Failure> {
        let row = client.query_typed_one(TIMELINE_SQL, &[]).await?;
        let timeline: String = get(&row, 0)?;
        let writes: Vec<Write> = {
            let state = self.lock();
            state.earlier.iter().chain(&state.last).cloned().collect()
        };
        if timeline.is_empty() {
            return Ok(());
        }
        if let (Some(schema), false) = (self.schema.get(), writes.is_empty()) {
            self.look_for(client, schema, &writes, &timeline).await?;
        }
        self.lock().timeline = timeline;
        Ok(())
    }

    async fn look_for(
        &self,
        client: &Client,
        schema: &str,
        writes: &[Write],
        timeline: &str,
    ) -> Result<(), Failure> {
        let ids: Vec<i64> = writes.iter().map(|write| write.intent.number()).collect();
        let versions: Vec<i64> = writes.iter().map(|write| write.version).collect();
        let heads: Vec<&[u8]> = writes.iter().map(|write| write.head.as_slice()).collect();
        let keep: Vec<i64> = writes.iter().map(|write| write.keep_until.as_millis()).collect();
        // A number may have been given to another intent since: the journal tells.
        let sql = format!(
            "SELECT n.place FROM unnest($1, $2, $3, $4) WITH ORDINALITY n (id, version, head, keep_until, place)
             WHERE n.keep_until > (extract(epoch FROM clock_timestamp()) * 1000)::bigint
             AND NOT EXISTS (SELECT FROM {schema}intent i WHERE i.id = n.id
                 AND (i.version > n.version OR i.version = n.version AND i.journal_head = n.head))"
        );
        let values: [(&(dyn ToSql + Sync), Type); 4] = [
            (&ids, Type::INT8_ARRAY),
            (&versions, Type::INT8_ARRAY),
            (&heads, Type::BYTEA_ARRAY),
            (&keep, Type::INT8_ARRAY),
        ];
        let rows = client.query_typed(&sql, &values).await?;
        let mut missing = Vec::new();
        for row in &rows {
            missing.push(usize::try_from(get::<i64>(row, 0)? - 1).unwrap_or_default());
        }
        if !missing.is_empty() {
            self.recover(client, schema, writes, &missing, timeline).await?;
        }
        Ok(())
    }

    async fn recover(
        &self,
        client: &Client,
        schema: &str,
        writes: &[Write],
        missing: &[usize],
        timeline: &str,
    ) -> Result<(), Failure> {
        let is_missing = |place: &usize| missing.contains(place);
        let first = missing.iter().map(|place| writes[*place].at).min().unwrap_or_default();
        let there = (0..writes.len()).filter(|place| !is_missing(place)).map(|place| writes[place].at);
        let opened_at = self.lock().opened_at.unwrap_or_default();
        let since = there.filter(|at| *at < first).max().unwrap_or(opened_at);
        let sql = format!(
            "UPDATE {schema}ledger SET recovering_since = least(coalesce(recovering_since, $1), $1)
             RETURNING (extract(epoch FROM clock_timestamp()) * 1000)::bigint, recovering_since"
        );
        let row = client.query_typed_one(&sql, &[(&since.as_millis(), Type::INT8)]).await?;
        self.time.sample(Timestamp::from_millis(get(&row, 0)?), at(&row, 1)?);
        tracing::error!(
            code = Code::TailLost.as_str(),
            missing = missing.len(),
            %since,
            timeline,
            "the database lost writes that it had acknowledged; the ledger recovers"
        );
        let mut state = self.lock();
        state.lost_since = Some(state.lost_since.map_or(since, |before| before.min(since)));
        let lost: Vec<&Write> = missing.iter().map(|place| &writes[*place]).collect();
        let stays = |write: &Write| {
            !lost.iter().any(|lost| lost.intent == write.intent && lost.version == write.version)
        };
        state.last.retain(stays);
        state.earlier.retain(stays);
        Ok(())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
