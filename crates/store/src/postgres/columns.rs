//! The columns of an intent, once: what is written into them, and in which order they are sent and read.

use std::sync::Arc;

use tokio_postgres::Row;
use tokio_postgres::types::FromSql;
use twicesafe_core::{
    Actor, Answer, Attempt, Body, CommandId, ExternalId, Fence, Fingerprint, IntentId, LaneName, Name,
    PermitKind, Place, Recipe, Record, Salt, Source, Status, Step, Timestamp, Verdict,
};

use super::Shared;
use super::rows::{Field, Inner, Rows};
use crate::NameHash;
use crate::codec;
use crate::error::StoreError;
use crate::plan::{Agenda, Change, JournalRow, Stored};
use crate::seal::{RowCodec, Seal};
use crate::tally::Tally;

/// A change on its way into the table.
pub(super) struct Line {
    pub(super) change: Change,
    /// The number the intent has, or is to get. `None`: the database gives it one.
    pub(super) id: Option<IntentId>,
    /// Of its name, as far as it is known.
    hash: Option<NameHash>,
    /// What is counted with it.
    pub(super) tally: Tally,
    policy: Option<Arc<str>>,
    detail: Option<String>,
    claim_id: Option<[u8; 16]>,
    receipt: Option<[u8; 32]>,
    seal: Option<Seal>,
    /// What is added to its journal.
    entries: Rows,
    /// When it was decided.
    pub(super) at: Timestamp,
}

impl Line {
    pub(super) fn new(
        change: Change,
        id: Option<IntentId>,
        hash: Option<NameHash>,
        shared: &Shared,
        (at, verdict): (Timestamp, &Verdict),
    ) -> Self {
        let mut tally = Tally::default();
        change.count(at, &mut tally);
        tally.verdict(at, verdict);
        let record = change.after.as_ref().map(|after| &after.record);
        let first = change.before.is_none();
        let policy = record.filter(|_| first).map(|record| shared.rows.policies.text(&record.policy));
        let detail = record.and_then(codec::detail_text);
        let claim_id =
            record.and_then(|record| record.attempt.as_ref()).map(|attempt| attempt.claim_id.bytes());
        let receipt = record.and_then(|record| record.last_settle.as_ref()).map(codec::receipt_bytes);
        let seal = change.after.as_ref().zip(change.hash(hash, &shared.hasher));
        let seal = seal.map(|(after, hash)| shared.rows.seal(after, &hash));
        let mut entries = Rows::of(&shared.row_types.entry);
        change.journal.iter().for_each(|row| entries.push(entry_fields(row)));
        Self { id, hash, tally, policy, detail, claim_id, receipt, seal, entries, at, change }
    }

    /// The hash of its name, for what is not there yet.
    pub(super) fn hash(&self) -> Option<NameHash> {
        self.hash.filter(|_| self.change.before.is_none())
    }

    fn after(&self) -> Option<&Stored> {
        self.change.after.as_deref()
    }

    fn record(&self) -> Option<&Record> {
        self.after().map(|after| &after.record)
    }

    /// The record, for columns that are written once.
    fn first(&self) -> Option<&Record> {
        self.record().filter(|_| self.change.before.is_none())
    }

    fn name(&self) -> Option<&Name> {
        self.record()?.name.as_ref()
    }

    fn fingerprint(&self) -> Option<&Fingerprint> {
        self.record()?.fingerprint.as_ref()
    }

    fn wake_at(&self) -> Option<Timestamp> {
        self.after().and_then(wake_at)
    }

    fn attempt(&self) -> Option<&Attempt> {
        self.record()?.attempt.as_ref()
    }

    fn external_id(&self) -> Option<&ExternalId> {
        self.record()?.answer.as_ref()?.external_id.as_ref()
    }

    fn step(&self) -> Option<&Step> {
        self.first()?.step.as_ref()
    }

    fn place(&self) -> Option<&Place> {
        self.first()?.place.as_ref()
    }

    /// The answer, where it has to be written.
    fn answer(&self) -> Option<&Answer> {
        self.record()?.answer.as_ref().filter(|_| self.change.answer_changes())
    }
}

/// One column: its name, and what is written into it.
pub(super) struct Column(&'static str, fn(&Line) -> Field<'_>);

/// Whether a permit is out: then it is no line of the agenda, and this is when a reminder has to come.
pub(super) fn wake_at(stored: &Stored) -> Option<Timestamp> {
    let line = Agenda::of(stored)?;
    (line.status == Status::Pending && line.due_at.is_none()).then_some(line.wake_at)
}

fn entry_fields(row: &JournalRow) -> [Field<'_>; 12] {
    let entry = &row.entry;
    [
        Field::int(Some(row.number)),
        Field::at(Some(entry.at)),
        Field::Text(Some(entry.actor.as_str())),
        Field::Text(Some(entry.event.as_str())),
        Field::Text(Some(entry.status.as_str())),
        Field::Bool(Some(entry.doubt)),
        Field::int(Some(entry.generation)),
        Field::Int(Some(entry.fence.number() as i64)),
        Field::Text(Some(&entry.reason)),
        Field::bytes(Some(&row.words)),
        Field::bytes(row.digest.as_ref()),
        Field::bytes(Some(&row.hash)),
    ]
}

/// The columns of an intent, in their order.
pub(super) const COLUMNS: [Column; 43] = [
    Column("id", |line| Field::int(line.id.map(IntentId::number))),
    Column("hash", |line| Field::bytes(line.hash.as_ref())),
    Column("version", |line| Field::int(line.after().map(|after| after.version))),
    Column("scope", |line| Field::text(line.name().map(|name| name.scope.as_str()))),
    Column("key", |line| Field::text(line.name().map(|name| name.key.as_str()))),
    Column("status", |line| Field::text(line.record().map(|record| record.status.as_str()))),
    Column("doubt", |line| Field::Bool(line.record().map(|record| record.doubt))),
    Column("generation", |line| Field::int(line.record().map(|record| record.generation))),
    Column("fence", |line| Field::int(line.record().map(|record| record.fence.number() as i64))),
    Column("tries", |line| Field::int(line.record().map(|record| record.tries))),
    Column("recipe", |line| Field::text(line.fingerprint().map(|fingerprint| fingerprint.recipe().as_str()))),
    Column("fingerprint", |line| Field::bytes(line.fingerprint().map(|fingerprint| fingerprint.digest()))),
    Column("policy", |line| Field::text(line.policy.as_deref())),
    Column("permit", |line| Field::text(line.attempt().map(|attempt| codec::permit_word(attempt.kind)))),
    Column("claim_id", |line| Field::bytes(line.claim_id.as_ref())),
    Column("holder", |line| Field::text(line.attempt().map(|attempt| attempt.holder.as_str()))),
    Column("granted_at", |line| Field::at(line.attempt().map(|attempt| attempt.granted_at))),
    Column("lease_until", |line| Field::at(line.attempt().map(|attempt| attempt.lease_until))),
    Column("send_by", |line| Field::at(line.attempt().map(|attempt| attempt.send_by))),
    Column("due_at", |line| Field::at(line.record().and_then(|record| record.due_at))),
    Column("external_id", |line| Field::text(line.external_id().map(ExternalId::as_str))),
    Column("source", |line| Field::text(line.record().and_then(|record| record.source).map(Source::as_str))),
    Column("work", |line| Field::text(line.step().map(Step::work))),
    Column("step", |line| Field::text(line.step().map(Step::step))),
    Column("lane", |line| Field::text(line.place().map(|place| place.lane.as_str()))),
    Column("lane_version", |line| Field::int(line.place().and_then(|place| place.version))),
    Column("requested_by", |line| Field::text(line.record().map(|record| record.requested_by.as_str()))),
    Column("created_at", |line| Field::at(line.first().map(|record| record.created_at))),
    Column("settled_at", |line| Field::at(line.record().and_then(|record| record.settled_at))),
    Column("tombstone", |line| Field::Bool(line.record().map(|record| record.is_tombstone()))),
    Column("settle_receipt", |line| Field::bytes(line.receipt.as_ref())),
    Column("detail", |line| Field::text(line.detail.as_deref())),
    Column("salt", |line| {
        Field::bytes(line.record().and_then(|record| record.salt.as_ref()).map(|salt| &salt.0))
    }),
    Column("journal_rows", |line| Field::int(line.after().map(|after| after.journal_rows))),
    Column("journal_head", |line| Field::bytes(line.after().map(|after| &after.journal_head))),
    Column("keep_until", |line| Field::at(line.record().map(Record::keep_until))),
    Column("answer_head", |line| Field::text(line.answer().map(|answer| &*answer.head))),
    Column("answer_body", |line| Field::Bytes(line.answer().and_then(Answer::bytes).map(|body| &body[..]))),
    Column("request_digest", |line| Field::bytes(line.after().and_then(|after| after.request.as_ref()))),
    Column("seal", |line| Field::bytes(line.seal.as_ref())),
    Column("request", |line| Field::Bytes(line.change.request.as_deref())),
    Column("wake_at", |line| Field::at(line.wake_at())),
    Column("entries", |line| Field::Rows(&line.entries)),
];
/// So many of them, the first, are read.
const READ: usize = COLUMNS.len() - 3;

impl Column {
    pub(super) fn value<'a>(&self, line: &'a Line) -> Field<'a> {
        self.1(line)
    }
}

/// What has columns to be read: a row of an answer, or a row inside a value of one.
pub(super) trait Columns {
    fn column<'a, T: FromSql<'a>>(&'a self, index: usize) -> Result<T, StoreError>;
}

impl Columns for Row {
    fn column<'a, T: FromSql<'a>>(&'a self, index: usize) -> Result<T, StoreError> {
        self.try_get(index).map_err(|error| StoreError::Damaged(error.to_string()))
    }
}

impl Columns for Inner<'_> {
    fn column<'a, T: FromSql<'a>>(&'a self, index: usize) -> Result<T, StoreError> {
        let field = self.field(index).filter(|(of, _)| T::accepts(of));
        let (of, value) = field.ok_or_else(|| damaged("a row with other columns than ours"))?;
        T::from_sql_nullable(&of, value).map_err(|error| StoreError::Damaged(error.to_string()))
    }
}

/// One column of a row.
pub(super) fn get<'a, T: FromSql<'a>>(row: &'a impl Columns, index: usize) -> Result<T, StoreError> {
    row.column(index)
}

pub(super) fn number(row: &impl Columns, index: usize) -> Result<u32, StoreError> {
    u32::try_from(get::<i64>(row, index)?).map_err(|_| damaged("a number out of range"))
}

pub(super) fn at(row: &impl Columns, index: usize) -> Result<Option<Timestamp>, StoreError> {
    Ok(get::<Option<i64>>(row, index)?.map(Timestamp::from_millis))
}

pub(super) fn bytes<const N: usize>(row: &impl Columns, index: usize) -> Result<Option<[u8; N]>, StoreError> {
    let value: Option<&[u8]> = get(row, index)?;
    value.map(|value| value.try_into().map_err(|_| damaged("bytes of the wrong length"))).transpose()
}

pub(super) fn damaged(what: &str) -> StoreError {
    StoreError::Damaged(what.to_owned())
}

pub(super) fn needed<T>(value: Option<T>, what: &str) -> Result<T, StoreError> {
    value.ok_or_else(|| damaged(what))
}

/// A row of the table, all columns in their order, as a record.
pub(super) fn stored(row: &impl Columns, rows: &RowCodec) -> Result<Stored, StoreError> {
    let invalid = |error: twicesafe_core::InvalidName| damaged(&error.to_string());
    let text = |index| get::<Option<&str>>(row, index);
    let name = match (text(3)?, text(4)?) {
        (Some(scope), Some(key)) => Some(Name::new(scope, key).map_err(invalid)?),
        _ => None,
    };
    let fingerprint = match (text(10)?, bytes(row, 11)?) {
        (Some(recipe), Some(digest)) => Some(Fingerprint::stored(Recipe::named(recipe), digest)),
        _ => None,
    };
    let attempt = match text(13)? {
        Some(kind) => Some(Attempt {
            kind: if kind == "act" { PermitKind::Act } else { PermitKind::Lookup },
            claim_id: CommandId::new(needed(bytes(row, 14)?, "a permit without a command")?),
            holder: Actor::new(needed(text(15)?, "a permit without a holder")?).map_err(invalid)?,
            granted_at: needed(at(row, 16)?, "a permit without a time")?,
            lease_until: needed(at(row, 17)?, "a permit without a lease")?,
            send_by: needed(at(row, 18)?, "a permit without a send-by")?,
        }),
        None => None,
    };
    let step = match (text(22)?, text(23)?) {
        (Some(work), Some(step)) => Some(Step::new(work, step).map_err(invalid)?),
        _ => None,
    };
    let place = match text(24)? {
        Some(lane) => Some(Place { lane: LaneName::new(lane).map_err(invalid)?, version: get(row, 25)? }),
        None => None,
    };
    let mut record = Record {
        name,
        salt: bytes(row, 32)?.map(Salt),
        generation: number(row, 7)?,
        status: needed(text(5)?.and_then(Status::from_word), "a status nobody knows")?,
        doubt: get(row, 6)?,
        fingerprint,
        policy: rows.policies.policy(get(row, 12)?)?,
        fence: Fence::new(get::<i64>(row, 8)?.unsigned_abs()),
        tries: number(row, 9)?,
        attempt,
        due_at: at(row, 19)?,
        first_sent_at: None,
        quiet_at: None,
        recovered_since: None,
        ask_until: None,
        asks: 0,
        kept: None,
        answer: None,
        source: text(21)?.and_then(Source::from_word),
        replay_until: None,
        approval: None,
        place,
        waits_until: None,
        step,
        requested_by: Actor::new(get(row, 26)?).map_err(invalid)?,
        created_at: Timestamp::from_millis(get(row, 27)?),
        settled_at: at(row, 28)?,
        entombed_at: None,
        last_settle: get::<Option<&[u8]>>(row, 30)?.map(codec::parse_receipt).transpose()?,
        last_evidence: None,
        last_decision: None,
    };
    let not_kept = text(31)?.map(|detail| codec::put_detail(&mut record, detail)).transpose()?.flatten();
    if let Some(head) = text(36)? {
        let body = || get::<Option<&[u8]>>(row, 37).map(|body| body.unwrap_or_default().to_vec().into());
        record.answer = Some(Answer {
            external_id: text(20)?.and_then(ExternalId::new),
            head: head.into(),
            body: match not_kept {
                Some(not_kept) => not_kept,
                None => Body::Kept(body()?),
            },
        });
    }
    let found = Stored {
        id: IntentId::new(get(row, 0)?),
        version: get(row, 2)?,
        record,
        journal_rows: number(row, 33)?,
        journal_head: needed(bytes(row, 34)?, "an intent without a journal")?,
        hash: None,
        request: bytes(row, 38)?,
        fits_seal: false,
    };
    Ok(rows.checked(found, &hash(row)?, get(row, 39)?))
}

/// The hash of its name, in the same row.
pub(super) fn hash(row: &impl Columns) -> Result<NameHash, StoreError> {
    needed(bytes(row, 1)?, "an intent without a hash")
}

/// What is selected for [`stored`], from a `belief i`.
pub(super) fn selected() -> String {
    COLUMNS[..READ].iter().map(|Column(name, _)| format!("i.{name}")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_has_enough_numbers() {
        let sql = super::super::open::MIGRATIONS[0];
        assert!(sql.contains(&format!("CREATE SEQUENCE intent_number INCREMENT BY {};", crate::BATCH_MAX)));
    }

    #[test]
    fn columns_are_in_the_order_of_the_table() {
        let sql = super::super::open::MIGRATIONS[0];
        let table = sql.split_once("CREATE TABLE intent (").and_then(|(_, rest)| rest.split_once("\n)"));
        let lines =
            table.expect("there is a table").0.lines().filter_map(|line| line.split_whitespace().next());
        let names: Vec<&str> = COLUMNS.iter().map(|Column(name, _)| *name).collect();
        assert_eq!(lines.collect::<Vec<_>>(), names);
    }
}
