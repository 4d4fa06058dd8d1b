//! The text form of an export: JSON, one line a part. `docs/export-format.md` describes it.
//!
//! Fields are named like the columns of the tables. Bytes are written in hex.

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use twicesafe_core::journal::{Entry, Event};
use twicesafe_core::{
    Actor, Answer, Attempt, Body, CommandId, ExternalId, Fence, Fingerprint, IntentId, LaneName, Name,
    PermitKind, Place, Recipe, Record, Salt, Source, Status, Step, Timestamp,
};

use super::{Count, Exported, Facts, LaneState};
use crate::HashKey;
use crate::codec::{self, Policies, hex, unhex};
use crate::error::StoreError;
use crate::plan::{JournalRow, Stored};
use crate::query::EarlierAnswer;
use crate::seal::request_digest;
use crate::store::fault_in;
use crate::tally;

/// The version of the format that is written, and the only one that is read.
pub const FORMAT_VERSION: u32 = 3;

/// What is wrong with a line.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct BadLine(String);

impl BadLine {
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }
}

impl From<StoreError> for BadLine {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Damaged(what) => Self(what),
            other => Self(other.to_string()),
        }
    }
}

impl From<twicesafe_core::InvalidName> for BadLine {
    fn from(error: twicesafe_core::InvalidName) -> Self {
        Self(error.to_string())
    }
}

impl From<serde_json::Error> for BadLine {
    fn from(error: serde_json::Error) -> Self {
        // Of the text it was given, which is one line of a file.
        let text = error.to_string();
        let what = text.split(" at line ").next().unwrap_or_default();
        Self(format!("{what} (column {})", error.column()))
    }
}

/// The first line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Header {
    /// Of everything.
    Whole(Facts),
    /// Of one scope: to be read, not to be imported.
    Excerpt {
        /// Which scope, or all below it where it ends with a slash.
        scope: String,
        /// When, in ledger time.
        at: Timestamp,
    },
}

#[derive(Serialize, Deserialize)]
struct HeaderLine {
    twicesafe: String,
    version: u32,
    at: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    excerpt: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hash_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_intent: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    recovering_since: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sealed_key: Option<String>,
}

impl Header {
    /// The header as a line, without its end.
    pub fn to_text(&self) -> String {
        let mut line = HeaderLine {
            twicesafe: "export".to_owned(),
            version: FORMAT_VERSION,
            at: 0,
            excerpt: None,
            hash_key: None,
            last_intent: None,
            recovering_since: None,
            sealed_key: None,
        };
        match self {
            Self::Whole(facts) => {
                line.at = facts.at.as_millis();
                line.hash_key = Some(hex(facts.hash_key.bytes()));
                line.last_intent = Some(facts.last_intent);
                line.sealed_key = Some(hex(&facts.sealed_key));
                line.recovering_since = facts.recovering_since.map(Timestamp::as_millis);
            }
            Self::Excerpt { scope, at } => {
                line.at = at.as_millis();
                line.excerpt = Some(scope.clone());
            }
        }
        text_of(&line)
    }

    /// A header from its line.
    pub fn from_text(text: &str) -> Result<Self, BadLine> {
        #[derive(Deserialize)]
        struct Mark {
            twicesafe: String,
            version: u32,
        }
        // Another version may have other fields: look at the version before anything else.
        let mark: Option<Mark> = serde_json::from_str(text).ok();
        let mark = mark.filter(|mark| mark.twicesafe == "export");
        let mark = mark.ok_or_else(|| BadLine::new("this is not an export of a Twicesafe ledger"))?;
        if mark.version != FORMAT_VERSION {
            let version = mark.version;
            return Err(BadLine(format!(
                "the export has format version {version}; this program knows {FORMAT_VERSION}"
            )));
        }
        let line: HeaderLine = serde_json::from_str(text)?;
        let at = Timestamp::from_millis(line.at);
        if let Some(scope) = line.excerpt {
            return Ok(Self::Excerpt { scope, at });
        }
        let hash_key = line.hash_key.ok_or_else(|| BadLine::new("the hash key is missing"))?;
        Ok(Self::Whole(Facts {
            at,
            last_intent: line.last_intent.ok_or_else(|| BadLine::new("the last number is missing"))?,
            recovering_since: line.recovering_since.map(Timestamp::from_millis),
            hash_key: HashKey::kept(&unhex(&hash_key)?)?,
            sealed_key: unhex(&line.sealed_key.unwrap_or_default())?,
        }))
    }
}

/// Any other line.
#[derive(Clone, Debug, PartialEq)]
pub enum Line {
    /// An intent.
    Intent(Box<Exported>),
    /// A lane.
    Lane(LaneState),
    /// A count.
    Count(Count),
    /// Whether everything is there.
    End(Totals),
    /// The last one: the seal of those before it.
    Seal(String),
}

/// How many lines of each kind there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Totals {
    /// Intents.
    pub intents: u64,
    /// Lanes.
    pub lanes: u64,
    /// Counts.
    pub counts: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Written {
    Intent(Box<IntentLine>),
    Lane(LaneLine),
    Count(CountLine),
    End(Totals),
    Seal(String),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LaneLine {
    name: String,
    holder: Option<i64>,
    applied: Option<i64>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CountLine {
    hour: i64,
    name: String,
    n: i64,
}

#[derive(Serialize, Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct IntentLine {
    id: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hash: Option<String>,
    version: i64,
    scope: Option<String>,
    key: Option<String>,
    status: String,
    doubt: bool,
    generation: u32,
    fence: u64,
    tries: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    recipe: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fingerprint: Option<String>,
    policy: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    permit: Option<PermitLine>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    due_at: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    answer: Option<AnswerLine>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    source: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    work: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    step: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lane: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lane_version: Option<i64>,
    requested_by: String,
    created_at: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    settled_at: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    settle_receipt: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    detail: Option<serde_json::Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    salt: Option<String>,
    journal_rows: u32,
    journal_head: String,
    keep_until: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    request: Option<String>,
    /// Its record did not fit its seal when it was exported.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    altered: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    earlier_answers: Vec<EarlierLine>,
    journal: Vec<EntryLine>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PermitLine {
    kind: String,
    claim_id: String,
    holder: String,
    granted_at: i64,
    lease_until: i64,
    send_by: i64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct AnswerLine {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    external_id: Option<String>,
    head: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    body: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    not_kept: Option<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct EarlierLine {
    generation: u32,
    status: String,
    answer: AnswerLine,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct EntryLine {
    number: u32,
    at: i64,
    actor: String,
    event: String,
    status: String,
    doubt: bool,
    generation: u32,
    fence: u64,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    reason: String,
    words: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    hash: String,
}

/// Writes and reads lines.
#[derive(Default)]
pub struct LineCodec {
    policies: Policies,
}

impl LineCodec {
    /// A line as text, without its end.
    pub fn to_text(&self, line: &Line) -> String {
        text_of(&match line {
            Line::Intent(intent) => Written::Intent(Box::new(self.intent_line(intent))),
            Line::Lane(lane) => Written::Lane(LaneLine {
                name: lane.name.clone(),
                holder: lane.holder.map(IntentId::number),
                applied: lane.applied,
            }),
            Line::Count(count) => Written::Count(CountLine {
                hour: count.hour,
                name: count.name.clone().into_owned(),
                n: count.n,
            }),
            Line::End(totals) => Written::End(*totals),
            Line::Seal(seal) => Written::Seal(seal.clone()),
        })
    }

    /// A line from its text, with everything in it checked that can be checked by itself, its journal too.
    pub fn from_text(&self, text: &str) -> Result<Line, BadLine> {
        Ok(match serde_json::from_str(text)? {
            Written::Intent(line) => Line::Intent(Box::new(self.exported(*line)?)),
            Written::Lane(line) => Line::Lane(LaneState {
                name: LaneName::new(&line.name)?.as_str().to_owned(),
                holder: line.holder.map(IntentId::new),
                applied: line.applied,
            }),
            Written::Count(line) => {
                let name = tally::known_name(&line.name)
                    .filter(|_| line.hour != tally::NO_HOUR && line.hour < tally::HOUR_MAX);
                let name =
                    name.ok_or_else(|| BadLine(format!("a count of `{}`, which nobody knows", line.name)))?;
                Line::Count(Count { hour: line.hour, name, n: line.n })
            }
            Written::End(totals) => Line::End(totals),
            Written::Seal(seal) => Line::Seal(seal),
        })
    }

    fn intent_line(&self, exported: &Exported) -> IntentLine {
        let Exported { stored, hash, keep_until, journal, earlier, request } = exported;
        let record = &stored.record;
        let millis = |at: Option<Timestamp>| at.map(Timestamp::as_millis);
        IntentLine {
            id: stored.id.number(),
            hash: hash.as_ref().map(|hash| hex(hash)),
            version: stored.version,
            scope: record.name.as_ref().map(|name| name.scope.to_string()),
            key: record.name.as_ref().map(|name| name.key.to_string()),
            status: record.status.to_string(),
            doubt: record.doubt,
            generation: record.generation,
            fence: record.fence.number(),
            tries: record.tries,
            recipe: record.fingerprint.as_ref().map(|print| print.recipe().as_str().to_owned()),
            fingerprint: record.fingerprint.as_ref().map(|print| hex(print.digest())),
            policy: self.policies.text(&record.policy).to_string(),
            permit: record.attempt.as_ref().map(|attempt| PermitLine {
                kind: codec::permit_word(attempt.kind).to_owned(),
                claim_id: hex(&attempt.claim_id.bytes()),
                holder: attempt.holder.to_string(),
                granted_at: attempt.granted_at.as_millis(),
                lease_until: attempt.lease_until.as_millis(),
                send_by: attempt.send_by.as_millis(),
            }),
            due_at: millis(record.due_at),
            answer: record.answer.as_ref().map(answer_line),
            source: record.source.map(|source| source.as_str().to_owned()),
            work: record.step.as_ref().map(|step| step.work().to_owned()),
            step: record.step.as_ref().map(|step| step.step().to_owned()),
            lane: record.place.as_ref().map(|place| place.lane.to_string()),
            lane_version: record.place.as_ref().and_then(|place| place.version),
            requested_by: record.requested_by.to_string(),
            created_at: record.created_at.as_millis(),
            settled_at: millis(record.settled_at),
            settle_receipt: record.last_settle.as_ref().map(|receipt| hex(&codec::receipt_bytes(receipt))),
            detail: codec::detail_text(record)
                .map(|text| serde_json::from_str(&text).expect("it was just written as JSON")),
            salt: stored.record.salt.map(|salt| hex(&salt.0)),
            journal_rows: stored.journal_rows,
            journal_head: hex(&stored.journal_head),
            keep_until: keep_until.as_millis(),
            request: request.as_ref().map(|request| hex(request)),
            altered: !stored.fits_seal,
            earlier_answers: earlier.iter().map(earlier_line).collect(),
            journal: journal.iter().map(entry_line).collect(),
        }
    }

    fn exported(&self, line: IntentLine) -> Result<Exported, BadLine> {
        let at = |millis: Option<i64>| millis.map(Timestamp::from_millis);
        let name = match (&line.scope, &line.key) {
            (Some(scope), Some(key)) => Some(Name::new(scope, key)?),
            (None, None) => None,
            _ => return Err(BadLine::new("a scope without a key, or a key without a scope")),
        };
        let fingerprint = match (line.recipe, line.fingerprint) {
            (Some(recipe), Some(digest)) => {
                Some(Fingerprint::stored(Recipe::named(&recipe), array(&digest)?))
            }
            _ => None,
        };
        let step = match (line.work, line.step) {
            (Some(work), Some(step)) => Some(Step::new(&work, &step)?),
            _ => None,
        };
        let place = match line.lane {
            Some(lane) => Some(Place { lane: LaneName::new(&lane)?, version: line.lane_version }),
            None => None,
        };
        let settle_receipt = line.settle_receipt.map(|text| unhex(&text)).transpose()?;
        let salt = line.salt.map(|text| array(&text).map(Salt)).transpose()?;
        let mut record = Record {
            name,
            salt,
            generation: line.generation,
            status: status(&line.status)?,
            doubt: line.doubt,
            fingerprint,
            policy: self.policies.policy(&line.policy)?,
            fence: Fence::new(line.fence),
            tries: line.tries,
            attempt: line.permit.map(attempt).transpose()?,
            due_at: at(line.due_at),
            first_sent_at: None,
            quiet_at: None,
            recovered_since: None,
            ask_until: None,
            asks: 0,
            kept: None,
            answer: line.answer.map(answer).transpose()?,
            source: match line.source {
                Some(word) => Some(
                    Source::from_word(&word)
                        .ok_or_else(|| BadLine(format!("a source `{word}`, which nobody knows")))?,
                ),
                None => None,
            },
            replay_until: None,
            approval: None,
            place,
            waits_until: None,
            step,
            requested_by: Actor::new(&line.requested_by)?,
            created_at: Timestamp::from_millis(line.created_at),
            settled_at: at(line.settled_at),
            entombed_at: None,
            last_settle: settle_receipt.as_deref().map(codec::parse_receipt).transpose()?,
            last_evidence: None,
            last_decision: None,
        };
        if let Some(detail) = line.detail {
            codec::put_detail(&mut record, &detail.to_string())?;
        }
        let journal: Vec<JournalRow> = line.journal.into_iter().map(entry).collect::<Result<_, _>>()?;
        let journal_head = array(&line.journal_head)?;
        let hash = line.hash.map(|text| array(&text)).transpose()?;
        let request = line.request.map(|text| unhex(&text)).transpose()?.map(Bytes::from);
        if let Some(fault) = fault_in(&journal, line.journal_rows, &journal_head, salt) {
            return Err(BadLine(format!("row {} of the journal: {}", fault.number, fault.what)));
        }
        Ok(Exported {
            stored: Stored {
                id: IntentId::new(line.id),
                version: line.version,
                hash: hash.filter(|_| record.name.is_none()),
                request: request.as_ref().map(|request| request_digest(salt, request)),
                fits_seal: !line.altered,
                record,
                journal_rows: line.journal_rows,
                journal_head,
            },
            hash,
            keep_until: Timestamp::from_millis(line.keep_until),
            journal,
            earlier: line.earlier_answers.into_iter().map(earlier).collect::<Result<_, _>>()?,
            request,
        })
    }
}

fn text_of(line: &impl Serialize) -> String {
    serde_json::to_string(line).expect("plain data has no reason not to become JSON")
}

fn array<const N: usize>(text: &str) -> Result<[u8; N], BadLine> {
    unhex(text)?.try_into().map_err(|_| BadLine(format!("bytes that are not {N}")))
}

fn status(word: &str) -> Result<Status, BadLine> {
    Status::from_word(word).ok_or_else(|| BadLine(format!("a status `{word}`, which nobody knows")))
}

fn attempt(line: PermitLine) -> Result<Attempt, BadLine> {
    Ok(Attempt {
        kind: match line.kind.as_str() {
            "act" => PermitKind::Act,
            "lookup" => PermitKind::Lookup,
            other => return Err(BadLine(format!("a permit `{other}`, which nobody knows"))),
        },
        claim_id: CommandId::new(array(&line.claim_id)?),
        holder: Actor::new(&line.holder)?,
        granted_at: Timestamp::from_millis(line.granted_at),
        lease_until: Timestamp::from_millis(line.lease_until),
        send_by: Timestamp::from_millis(line.send_by),
    })
}

fn answer_line(answer: &Answer) -> AnswerLine {
    AnswerLine {
        external_id: answer.external_id.as_ref().map(|id| id.as_str().to_owned()),
        head: answer.head.to_string(),
        body: answer.bytes().map(|body| hex(body)),
        not_kept: codec::not_kept_text(answer),
    }
}

fn answer(line: AnswerLine) -> Result<Answer, BadLine> {
    Ok(Answer {
        external_id: line.external_id.as_deref().and_then(ExternalId::new),
        head: Arc::from(line.head),
        body: match (line.body, line.not_kept) {
            (Some(body), _) => Body::Kept(unhex(&body)?.into()),
            (None, Some(not_kept)) => codec::parse_not_kept(&not_kept)?,
            (None, None) => Body::default(),
        },
    })
}

fn earlier_line(earlier: &EarlierAnswer) -> EarlierLine {
    EarlierLine {
        generation: earlier.generation,
        status: earlier.status.to_string(),
        answer: answer_line(&earlier.answer),
    }
}

fn earlier(line: EarlierLine) -> Result<EarlierAnswer, BadLine> {
    Ok(EarlierAnswer {
        generation: line.generation,
        status: status(&line.status)?,
        answer: answer(line.answer)?,
    })
}

fn entry_line(row: &JournalRow) -> EntryLine {
    let entry = &row.entry;
    EntryLine {
        number: row.number,
        at: entry.at.as_millis(),
        actor: entry.actor.to_string(),
        event: entry.event.to_string(),
        status: entry.status.to_string(),
        doubt: entry.doubt,
        generation: entry.generation,
        fence: entry.fence.number(),
        reason: entry.reason.to_string(),
        words: hex(&row.words),
        digest: row.digest.as_ref().map(|digest| hex(digest)),
        hash: hex(&row.hash),
    }
}

fn entry(line: EntryLine) -> Result<JournalRow, BadLine> {
    let event = Event::from_word(&line.event)
        .ok_or_else(|| BadLine(format!("an event `{}`, which nobody knows", line.event)))?;
    Ok(JournalRow {
        number: line.number,
        entry: Entry {
            at: Timestamp::from_millis(line.at),
            actor: Actor::new(&line.actor)?,
            event,
            status: status(&line.status)?,
            doubt: line.doubt,
            generation: line.generation,
            fence: Fence::new(line.fence),
            reason: line.reason.into(),
            content: None,
        },
        words: array(&line.words)?,
        digest: line.digest.map(|text| array(&text)).transpose()?,
        hash: array(&line.hash)?,
    })
}
