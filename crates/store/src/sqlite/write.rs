//! Writing: one change at a time, inside the writer's transaction.

use rusqlite::{Connection, Statement, params};
use twicesafe_core::{Lane, Timestamp};

use super::open::{prepared, ran};
use crate::NameHash;
use crate::clock::Noted;
use crate::codec;
use crate::error::StoreError;
use crate::plan::{Agenda, Change, JournalRow, Queued, Stored};
use crate::seal::RowCodec;
use crate::tally::Tally;

/// Lengths of bodies of which one fills more than half of a page of 4 KB, and half of one no more than a third.
const HALVED: std::ops::RangeInclusive<usize> = 2_029..=2_680;

/// What writes changes, prepared once: finding a statement by its text takes a third as long as running it.
pub(super) struct Statements<'c> {
    connection: &'c Connection,
    /// One for each place in this file that asks for one.
    prepared: Vec<(&'static str, Statement<'c>)>,
}

impl<'c> Statements<'c> {
    pub(super) fn new(connection: &'c Connection) -> Self {
        Self { connection, prepared: Vec::new() }
    }

    fn get(&mut self, sql: &'static str) -> Result<&mut Statement<'c>, StoreError> {
        let place = match self.prepared.iter().position(|(text, _)| std::ptr::eq(*text, sql)) {
            Some(place) => place,
            None => {
                self.prepared.push((sql, ran(self.connection.prepare(sql))?));
                self.prepared.len() - 1
            }
        };
        Ok(&mut self.prepared[place].1)
    }
}

/// Whether a change was written, or the belief behind it turned out to be wrong.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Written {
    Yes,
    BeliefWasWrong,
}

pub(super) fn change(
    statements: &mut Statements<'_>,
    rows: &RowCodec,
    hash: Option<&NameHash>,
    change: &Change,
) -> Result<Written, StoreError> {
    let id = change.id().number();
    let changed = match (&change.before, &change.after) {
        (None, Some(after)) => insert(statements, rows, hash.expect("a first claim has a name"), after)?,
        (Some(before), Some(after)) => update(statements, rows, hash, before, after)?,
        (Some(before), None) => {
            let statement = statements.get("DELETE FROM intent WHERE id = ?1 AND version = ?2")?;
            ran(statement.execute((id, before.version)))?
        }
        (None, None) => 1,
    };
    if changed == 0 {
        return Ok(Written::BeliefWasWrong);
    }
    answers(statements, id, change)?;
    agenda(statements, id, change)?;
    queue(statements, id, change)?;
    if let (Some(lane_after), Some(place)) = (&change.lane, change.place()) {
        lane(statements, place.lane.as_str(), lane_after)?;
    }
    if let Some(lane) = change.left_lane() {
        free_lane(statements, lane)?;
    }
    if change.forgets() {
        let sql = "UPDATE journal SET actor = ?2, reason = '' WHERE intent = ?1";
        ran(statements.get(sql)?.execute((id, twicesafe_core::Actor::forgotten().as_str())))?;
    }
    requests(statements, id, change)?;
    if change.after.is_none() {
        let statement = statements.get("DELETE FROM journal WHERE intent = ?1")?;
        ran(statement.execute([id]))?;
    }
    for row in &change.journal {
        journal(statements, id, row)?;
    }
    Ok(Written::Yes)
}

fn insert(
    statements: &mut Statements<'_>,
    rows: &RowCodec,
    hash: &NameHash,
    stored: &Stored,
) -> Result<usize, StoreError> {
    let statement = statements.get(
        "INSERT INTO intent (id, hash, version, scope, key, status, doubt, generation, fence, tries, recipe, fingerprint,
             policy, permit, claim_id, holder, granted_at, lease_until, send_by, due_at, work, step, lane, lane_version,
             requested_by, created_at, settled_at, tombstone, detail, salt, journal_rows, journal_head, keep_until,
             external_id, source, settle_receipt, request_digest, seal)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22,
             ?23, ?24, ?25, ?26, ?27, ?28, ?29, ?30, ?31, ?32, ?33, ?34, ?35, ?36, ?37, ?38)
         ON CONFLICT (hash) DO NOTHING",
    )?;
    let record = &stored.record;
    let attempt = record.attempt.as_ref();
    let millis = |at: Option<Timestamp>| at.map(Timestamp::as_millis);
    ran(statement.execute(params![
        stored.id.number(),
        &hash[..],
        stored.version,
        record.name.as_ref().map(|name| name.scope.as_str()),
        record.name.as_ref().map(|name| name.key.as_str()),
        record.status.as_str(),
        record.doubt,
        record.generation,
        record.fence.number() as i64,
        record.tries,
        record.fingerprint.as_ref().map(|fingerprint| fingerprint.recipe().as_str()),
        record.fingerprint.as_ref().map(|fingerprint| &fingerprint.digest()[..]),
        &*rows.policies.text(&record.policy),
        attempt.map(|attempt| codec::permit_word(attempt.kind)),
        attempt.map(|attempt| attempt.claim_id.bytes()),
        attempt.map(|attempt| attempt.holder.as_str()),
        millis(attempt.map(|attempt| attempt.granted_at)),
        millis(attempt.map(|attempt| attempt.lease_until)),
        millis(attempt.map(|attempt| attempt.send_by)),
        millis(record.due_at),
        record.step.as_ref().map(|step| step.work()),
        record.step.as_ref().map(|step| step.step()),
        record.place.as_ref().map(|place| place.lane.as_str()),
        record.place.as_ref().and_then(|place| place.version),
        record.requested_by.as_str(),
        record.created_at.as_millis(),
        millis(record.settled_at),
        record.is_tombstone(),
        codec::detail_text(record),
        stored.record.salt.map(|salt| salt.0),
        stored.journal_rows,
        &stored.journal_head[..],
        record.keep_until().as_millis(),
        record.answer.as_ref().and_then(|answer| answer.external_id.as_ref()).map(|id| id.as_str()),
        record.source.map(|source| source.as_str()),
        record.last_settle.as_ref().map(codec::receipt_bytes),
        stored.request,
        rows.seal(stored, hash),
    ]))
}

fn update(
    statements: &mut Statements<'_>,
    rows: &RowCodec,
    hash: Option<&NameHash>,
    before: &Stored,
    after: &Stored,
) -> Result<usize, StoreError> {
    let statement = statements.get(
        "UPDATE intent SET version = ?3, status = ?4, doubt = ?5, generation = ?6, fence = ?7, tries = ?8, recipe = ?9,
             fingerprint = ?10, permit = ?11, claim_id = ?12, holder = ?13, granted_at = ?14, lease_until = ?15,
             send_by = ?16, due_at = ?17, external_id = ?18, source = ?19, requested_by = ?20, settled_at = ?21,
             tombstone = ?22, settle_receipt = ?23, detail = ?24, salt = ?25, journal_rows = ?26, journal_head = ?27,
             request_digest = ?28, seal = ?29
         WHERE id = ?1 AND version = ?2",
    )?;
    let record = &after.record;
    let attempt = record.attempt.as_ref();
    let millis = |at: Option<Timestamp>| at.map(Timestamp::as_millis);
    let changed = ran(statement.execute(params![
        after.id.number(),
        before.version,
        after.version,
        record.status.as_str(),
        record.doubt,
        record.generation,
        record.fence.number() as i64,
        record.tries,
        record.fingerprint.as_ref().map(|fingerprint| fingerprint.recipe().as_str()),
        record.fingerprint.as_ref().map(|fingerprint| &fingerprint.digest()[..]),
        attempt.map(|attempt| codec::permit_word(attempt.kind)),
        attempt.map(|attempt| attempt.claim_id.bytes()),
        attempt.map(|attempt| attempt.holder.as_str()),
        millis(attempt.map(|attempt| attempt.granted_at)),
        millis(attempt.map(|attempt| attempt.lease_until)),
        millis(attempt.map(|attempt| attempt.send_by)),
        millis(record.due_at),
        record.answer.as_ref().and_then(|answer| answer.external_id.as_ref()).map(|id| id.as_str()),
        record.source.map(|source| source.as_str()),
        record.requested_by.as_str(),
        millis(record.settled_at),
        record.is_tombstone(),
        record.last_settle.as_ref().map(codec::receipt_bytes),
        codec::detail_text(record),
        after.record.salt.map(|salt| salt.0),
        after.journal_rows,
        &after.journal_head[..],
        after.request,
        hash.map(|hash| rows.seal(after, hash)),
    ]))?;
    // Apart, because these are in indexes, which SQLite would write again even if nothing changed.
    if changed == 1
        && (before.record.name != record.name || before.record.is_tombstone() != record.is_tombstone())
    {
        let statement =
            statements.get("UPDATE intent SET scope = ?2, key = ?3, keep_until = ?4 WHERE id = ?1")?;
        ran(statement.execute(params![
            after.id.number(),
            record.name.as_ref().map(|name| name.scope.as_str()),
            record.name.as_ref().map(|name| name.key.as_str()),
            record.keep_until().as_millis(),
        ]))?;
    }
    if changed == 1 && (&before.record.place, &before.record.step) != (&record.place, &record.step) {
        let sql = "UPDATE intent SET work = ?2, step = ?3, lane = ?4, lane_version = ?5 WHERE id = ?1";
        ran(statements.get(sql)?.execute(params![
            after.id.number(),
            record.step.as_ref().map(|step| step.work()),
            record.step.as_ref().map(|step| step.step()),
            record.place.as_ref().map(|place| place.lane.as_str()),
            record.place.as_ref().and_then(|place| place.version),
        ]))?;
    }
    Ok(changed)
}

/// Removes a lane that nobody is in: its text goes with the last intent that names it (S15, S40).
fn free_lane(statements: &mut Statements<'_>, name: &str) -> Result<(), StoreError> {
    let statement = statements.get(
        "DELETE FROM lane WHERE name = ?1 AND holder IS NULL
         AND NOT EXISTS (SELECT 1 FROM lane_waiting WHERE lane = ?1) AND NOT EXISTS (SELECT 1 FROM intent WHERE lane = ?1)",
    )?;
    ran(statement.execute([name])).map(drop)
}

fn answers(statements: &mut Statements<'_>, id: i64, change: &Change) -> Result<(), StoreError> {
    if let Some(before) = change.archived() {
        let statement = statements.get(
            "INSERT OR REPLACE INTO earlier_answer (intent, generation, status, external_id, head, body, not_kept)
             SELECT intent, ?2, ?3, ?4, head, body, ?5 FROM answer WHERE intent = ?1",
        )?;
        let answer = before.record.answer.as_ref();
        let external_id = answer.and_then(|answer| answer.external_id.as_ref());
        ran(statement.execute(params![
            id,
            before.record.generation,
            before.record.status.as_str(),
            external_id.map(|id| id.as_str()),
            answer.and_then(codec::not_kept_text),
        ]))?;
    }
    if change.answer_changes() {
        match change.after.as_ref().and_then(|after| after.record.answer.as_ref()) {
            Some(answer) => {
                let statement = statements
                    .get("INSERT OR REPLACE INTO answer (intent, head, body) VALUES (?1, ?2, ?3)")?;
                let executed =
                    statement.execute(params![id, &*answer.head, answer.bytes().map(|body| &body[..])]);
                statement.clear_bindings();
                ran(executed)?;
            }
            None => {
                ran(statements.get("DELETE FROM answer WHERE intent = ?1")?.execute([id]))?;
            }
        }
    }
    let was_buried = change.before.as_ref().is_some_and(|before| before.record.is_tombstone());
    if !was_buried && change.after.as_ref().is_some_and(|after| after.record.is_tombstone()) {
        ran(statements.get("DELETE FROM earlier_answer WHERE intent = ?1")?.execute([id]))?;
    }
    Ok(())
}

fn requests(statements: &mut Statements<'_>, id: i64, change: &Change) -> Result<(), StoreError> {
    if change.drops_request() {
        ran(statements.get("DELETE FROM request WHERE intent = ?1")?.execute([id]))?;
    }
    if change.drops_request() || change.before.is_some() && change.request.is_some() {
        ran(statements.get("DELETE FROM request_rest WHERE intent = ?1")?.execute([id]))?;
    }
    let (Some(body), Some(after)) = (&change.request, &change.after) else { return Ok(()) };
    let (half, rest) = halved(body);
    let statement = statements
        .get("INSERT OR REPLACE INTO request (intent, generation, length, body) VALUES (?1, ?2, ?3, ?4)")?;
    let executed = statement.execute(params![id, after.record.generation, body.len() as i64, half]);
    statement.clear_bindings();
    ran(executed)?;
    if !rest.is_empty() {
        let statement =
            statements.get("INSERT OR REPLACE INTO request_rest (intent, body) VALUES (?1, ?2)")?;
        let executed = statement.execute(params![id, rest]);
        statement.clear_bindings();
        ran(executed)?;
    }
    Ok(())
}

/// A body of which a page would hold only one, in two halves of which a page holds three; any other whole.
fn halved(body: &[u8]) -> (&[u8], &[u8]) {
    body.split_at(if HALVED.contains(&body.len()) { body.len().div_ceil(2) } else { body.len() })
}

fn agenda(statements: &mut Statements<'_>, id: i64, change: &Change) -> Result<(), StoreError> {
    let before = change.before.as_ref().and_then(|stored| Agenda::of(stored));
    let after = change.after.as_ref().and_then(|stored| Agenda::of(stored));
    if before == after {
        return Ok(());
    }
    if let Some(line) = before {
        let statement =
            statements.get("DELETE FROM agenda WHERE status = ?1 AND wake_at = ?2 AND intent = ?3")?;
        ran(statement.execute((line.status.as_str(), line.wake_at.as_millis(), id)))?;
    }
    if let (Some(line), Some(stored)) = (after, &change.after) {
        let statement = statements
            .get("INSERT INTO agenda (status, wake_at, intent, due_at, scope) VALUES (?1, ?2, ?3, ?4, ?5)")?;
        let (due_at, scope) = (line.due_at.map(Timestamp::as_millis), line.scope(stored));
        ran(statement.execute((line.status.as_str(), line.wake_at.as_millis(), id, due_at, scope)))?;
    }
    Ok(())
}

fn queue(statements: &mut Statements<'_>, id: i64, change: &Change) -> Result<(), StoreError> {
    let before = change.before.as_ref().and_then(|stored| Queued::of(stored));
    let after = change.after.as_ref().and_then(|stored| Queued::of(stored));
    if before == after {
        return Ok(());
    }
    if let Some(place) = before {
        let statement =
            statements.get("DELETE FROM lane_waiting WHERE lane = ?1 AND rank = ?2 AND intent = ?3")?;
        ran(statement.execute((place.lane, place.rank, id)))?;
    }
    if let Some(place) = after {
        let statement =
            statements.get("INSERT INTO lane_waiting (lane, rank, intent, until) VALUES (?1, ?2, ?3, ?4)")?;
        ran(statement.execute((place.lane, place.rank, id, place.until.as_millis())))?;
    }
    Ok(())
}

fn lane(statements: &mut Statements<'_>, name: &str, lane: &Lane) -> Result<(), StoreError> {
    let statement =
        statements.get("INSERT OR REPLACE INTO lane (name, holder, applied) VALUES (?1, ?2, ?3)")?;
    ran(statement.execute((name, lane.holder.map(|holder| holder.number()), lane.applied))).map(drop)
}

fn journal(statements: &mut Statements<'_>, id: i64, row: &JournalRow) -> Result<(), StoreError> {
    let statement = statements.get(
        "INSERT INTO journal (intent, number, at, actor, event, status, doubt, generation, fence, reason, words, digest, hash)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)",
    )?;
    let entry = &row.entry;
    ran(statement.execute(params![
        id,
        row.number,
        entry.at.as_millis(),
        entry.actor.as_str(),
        entry.event.as_str(),
        entry.status.as_str(),
        entry.doubt,
        entry.generation,
        entry.fence.number() as i64,
        &*entry.reason,
        &row.words[..],
        row.digest.as_ref().map(|digest| &digest[..]),
        &row.hash[..],
    ]))
    .map(drop)
}

/// What is kept under the hour that never comes is so now.
pub(super) const NOW: i64 = crate::tally::HOUR_MAX;

/// Keeps when something was last written, and the highest number given to an intent.
pub(super) fn last(connection: &Connection, at: Noted, intent: i64) -> Result<(), StoreError> {
    let mut statement = prepared(connection, "UPDATE tally SET n = ?3 WHERE hour = ?1 AND name = ?2")?;
    let tick = i64::try_from(at.monotonic.as_millis()).unwrap_or(i64::MAX);
    let facts = [
        ("last at", at.at.as_millis()),
        ("last tick", tick),
        ("last boot", at.boot),
        ("last intent", intent),
    ];
    for (name, n) in facts {
        if ran(statement.execute((NOW, name, n)))? != 1 {
            return Err(StoreError::Damaged(format!("the ledger does not know its `{name}`")));
        }
    }
    Ok(())
}

pub(super) fn tally(connection: &Connection, tally: &Tally) -> Result<(), StoreError> {
    let mut statement = prepared(
        connection,
        "INSERT INTO tally (hour, name, n) VALUES (?1, ?2, ?3) ON CONFLICT (hour, name) DO UPDATE SET n = n + ?3",
    )?;
    tally.rows().try_for_each(|(hour, name, n)| {
        let hour = if hour == crate::tally::NO_HOUR { NOW } else { hour };
        ran(statement.execute((hour, name, n))).map(drop)
    })
}
