//! The columns of an intent, once: what is written into them, and in which order they are sent and read.

use std::sync::Arc;

use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, ToSql, Type};
use twicesafe_core::{
    Actor, Answer, Attempt, Body, CommandId, ExternalId, Fence, Fingerprint, IntentId, LaneName, Name,
    PermitKind, Place, Recipe, Record, Salt, Source, Status, Step, Timestamp, Verdict,
};

use crate::NameHash;
use crate::codec::{self, Policies};
use crate::error::StoreError;
use crate::plan::{Change, Stored};
use crate::tally::Tally;

/// A change on its way into the table.
pub(super) struct Line {
    pub(super) change: Change,
    /// The number the intent has, or is to get. `None`: the database gives it one.
    pub(super) id: Option<IntentId>,
    /// Of its name; for what is not there yet.
    hash: Option<NameHash>,
    /// What is counted with it.
    pub(super) tally: Tally,
    policy: Option<Arc<str>>,
    detail: Option<String>,
    claim_id: Option<[u8; 16]>,
    receipt: Option<[u8; 32]>,
}

impl Line {
    pub(super) fn new(
        change: Change,
        id: Option<IntentId>,
        hash: Option<NameHash>,
        policies: &Policies,
        (at, verdict): (Timestamp, &Verdict),
    ) -> Self {
        let mut tally = Tally::default();
        change.count(at, &mut tally);
        tally.verdict(at, verdict);
        let record = change.after.as_ref().map(|after| &after.record);
        let first = change.before.is_none();
        let policy = record.filter(|_| first).map(|record| policies.text(&record.policy));
        let detail = record.and_then(codec::detail_text);
        let claim_id =
            record.and_then(|record| record.attempt.as_ref()).map(|attempt| attempt.claim_id.bytes());
        let receipt = record.and_then(|record| record.last_settle.as_ref()).map(codec::receipt_bytes);
        Self { id, hash: hash.filter(|_| first), tally, policy, detail, claim_id, receipt, change }
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

    fn attempt(&self) -> Option<&Attempt> {
        self.record()?.attempt.as_ref()
    }

    /// The answer, where it has to be written.
    fn answer(&self) -> Option<&Answer> {
        self.record()?.answer.as_ref().filter(|_| self.change.answer_changes())
    }
}

/// One column: its name, and what is written into it.
pub(super) enum Column {
    Text(&'static str, fn(&Line) -> Option<&str>),
    Bytes(&'static str, fn(&Line) -> Option<&[u8]>),
    Int(&'static str, fn(&Line) -> Option<i64>),
    Bool(&'static str, fn(&Line) -> Option<bool>),
}

use Column::{Bool, Bytes, Int, Text};

/// All columns but the number, in the order of the table and of the parameters of `ledger_apply`.
pub(super) const COLUMNS: [Column; 38] = [
    Bytes("hash", |line| line.hash.as_ref().map(|hash| &hash[..])),
    Int("version", |line| Some(line.after()?.version)),
    Text("scope", |line| Some(line.record()?.name.as_ref()?.scope.as_str())),
    Text("key", |line| Some(line.record()?.name.as_ref()?.key.as_str())),
    Text("status", |line| Some(line.record()?.status.as_str())),
    Bool("doubt", |line| Some(line.record()?.doubt)),
    Int("generation", |line| Some(line.record()?.generation.into())),
    Int("fence", |line| Some(line.record()?.fence.number() as i64)),
    Int("tries", |line| Some(line.record()?.tries.into())),
    Text("recipe", |line| Some(line.record()?.fingerprint.as_ref()?.recipe().as_str())),
    Bytes("fingerprint", |line| Some(&line.record()?.fingerprint.as_ref()?.digest()[..])),
    Text("policy", |line| line.policy.as_deref()),
    Text("permit", |line| Some(permit_word(line.attempt()?.kind))),
    Bytes("claim_id", |line| line.claim_id.as_ref().map(|id| &id[..])),
    Text("holder", |line| Some(line.attempt()?.holder.as_str())),
    Int("granted_at", |line| Some(line.attempt()?.granted_at.as_millis())),
    Int("lease_until", |line| Some(line.attempt()?.lease_until.as_millis())),
    Int("send_by", |line| Some(line.attempt()?.send_by.as_millis())),
    Int("due_at", |line| Some(line.record()?.due_at?.as_millis())),
    Text("external_id", |line| Some(line.record()?.answer.as_ref()?.external_id.as_ref()?.as_str())),
    Text("source", |line| Some(line.record()?.source?.as_str())),
    Text("work", |line| Some(line.first()?.step.as_ref()?.work())),
    Text("step", |line| Some(line.first()?.step.as_ref()?.step())),
    Text("lane", |line| Some(line.first()?.place.as_ref()?.lane.as_str())),
    Int("lane_version", |line| line.first()?.place.as_ref()?.version),
    Text("requested_by", |line| Some(line.record()?.requested_by.as_str())),
    Int("created_at", |line| Some(line.first()?.created_at.as_millis())),
    Int("settled_at", |line| Some(line.record()?.settled_at?.as_millis())),
    Bool("tombstone", |line| Some(line.record()?.tombstone)),
    Bytes("settle_receipt", |line| line.receipt.as_ref().map(|receipt| &receipt[..])),
    Text("detail", |line| line.detail.as_deref()),
    Bytes("salt", |line| Some(&line.after()?.salt.as_ref()?.0[..])),
    Int("journal_rows", |line| Some(line.after()?.journal_rows.into())),
    Bytes("journal_head", |line| Some(&line.after()?.journal_head[..])),
    Int("keep_until", |line| Some(line.record()?.keep_until().as_millis())),
    Text("answer_head", |line| Some(&line.answer()?.head)),
    Bytes("answer_body", |line| Some(&line.answer()?.bytes()?[..])),
    Bytes("request", |line| line.change.request.as_deref()),
];

fn permit_word(kind: PermitKind) -> &'static str {
    match kind {
        PermitKind::Act => "act",
        PermitKind::Lookup => "lookup",
    }
}

impl Column {
    fn name(&self) -> &'static str {
        match self {
            Text(name, _) | Bytes(name, _) | Int(name, _) | Bool(name, _) => name,
        }
    }

    /// What is written into it over a batch.
    pub(super) fn values<'a>(&self, lines: &'a [Line]) -> Values<'a> {
        match self {
            Text(_, value) => Values::Text(lines.iter().map(value).collect()),
            Bytes(_, value) => Values::Bytes(lines.iter().map(value).collect()),
            Int(_, value) => Values::Int(lines.iter().map(value).collect()),
            Bool(_, value) => Values::Bool(lines.iter().map(value).collect()),
        }
    }
}

/// The values of a column over a batch, as the array that is sent.
#[derive(Debug)]
pub(super) enum Values<'a> {
    Text(Vec<Option<&'a str>>),
    Bytes(Vec<Option<&'a [u8]>>),
    Int(Vec<Option<i64>>),
    Bool(Vec<Option<bool>>),
}

impl Values<'_> {
    /// The parameter and its type. All types are built in: one that had to be looked up would cost a named statement.
    pub(super) fn parameter(&self) -> (&(dyn ToSql + Sync), Type) {
        match self {
            Self::Text(values) => (values, Type::TEXT_ARRAY),
            Self::Bytes(values) => (values, Type::BYTEA_ARRAY),
            Self::Int(values) => (values, Type::INT8_ARRAY),
            Self::Bool(values) => (values, Type::BOOL_ARRAY),
        }
    }
}

/// One column of a row.
pub(super) fn get<'a, T: FromSql<'a>>(row: &'a Row, index: usize) -> Result<T, StoreError> {
    row.try_get(index).map_err(|error| StoreError::Damaged(error.to_string()))
}

pub(super) fn number(row: &Row, index: usize) -> Result<u32, StoreError> {
    u32::try_from(get::<i64>(row, index)?).map_err(|_| damaged("a number out of range"))
}

pub(super) fn at(row: &Row, index: usize) -> Result<Option<Timestamp>, StoreError> {
    Ok(get::<Option<i64>>(row, index)?.map(Timestamp::from_millis))
}

pub(super) fn bytes<const N: usize>(row: &Row, index: usize) -> Result<Option<[u8; N]>, StoreError> {
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
pub(super) fn stored(row: &Row, policies: &Policies) -> Result<Stored, StoreError> {
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
        generation: number(row, 7)?,
        status: needed(text(5)?.and_then(Status::from_word), "a status nobody knows")?,
        doubt: get(row, 6)?,
        fingerprint,
        policy: policies.policy(get(row, 12)?)?,
        fence: Fence::new(get::<i64>(row, 8)?.unsigned_abs()),
        tries: number(row, 9)?,
        attempt,
        due_at: at(row, 19)?,
        first_sent_at: None,
        quiet_at: None,
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
        tombstone: get(row, 29)?,
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
    Ok(Stored {
        id: IntentId::new(get(row, 0)?),
        version: get(row, 2)?,
        record,
        salt: bytes(row, 32)?.map(Salt),
        journal_rows: number(row, 33)?,
        journal_head: needed(bytes(row, 34)?, "an intent without a journal")?,
    })
}

/// The hash of its name, in the same row.
pub(super) fn hash(row: &Row) -> Result<NameHash, StoreError> {
    needed(bytes(row, 1)?, "an intent without a hash")
}

/// What is selected for [`stored`], from an `intent i`: all but the request, which only one reader wants.
pub(super) fn selected() -> String {
    let names = COLUMNS.iter().map(Column::name).filter(|name| *name != "request");
    std::iter::once("id").chain(names).map(|name| format!("i.{name}")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words between two places of the migration.
    fn words(from: &str, to: &str) -> Vec<String> {
        let sql = super::super::open::MIGRATIONS[0];
        let start = sql.find(from).expect("there") + from.len();
        let end = start + sql[start..].find(to).expect("there");
        let plain: String = sql[start..end].lines().flat_map(|line| line.split("--").next()).collect();
        plain.split(',').map(|item| item.split_whitespace().next().unwrap_or_default().to_owned()).collect()
    }

    #[test]
    fn columns_are_in_the_order_of_the_table_and_of_the_parameters() {
        let names: Vec<&str> = COLUMNS.iter().map(Column::name).collect();
        let table = words("CREATE TABLE intent (", ") WITH");
        assert_eq!(table[0], "id");
        assert_eq!(table[1..], names);
        let parameters = words("new_id bigint[],", "journal_change");
        let parameters: Vec<&str> = parameters.iter().filter_map(|name| name.strip_prefix("new_")).collect();
        assert_eq!(parameters, names);
    }
}
