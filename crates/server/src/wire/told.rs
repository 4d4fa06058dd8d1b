//! What callers are told.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use twicesafe_ledger::{
    Answer, Body, ExternalId, JournalRow, PermitKind, PermitSecret, Record, Source, Status, Stored,
};

use super::time;

/// What a claim is told when it may act, or when there is an answer.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ClaimAnswer<'a> {
    /// `proceed`: act now, once. `replay`: it is done, and this is the first answer.
    pub(crate) verdict: &'static str,
    /// The intent's number.
    pub(crate) intent: i64,
    /// Where it stands.
    pub(crate) status: StatusWord,
    /// Which generation of the intent.
    pub(crate) generation: u32,
    /// Which attempt of this round.
    pub(crate) attempt: u32,
    /// When the permit lapses, or until when the answer is kept.
    pub(crate) expires_at: Option<String>,
    /// The permit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) permit: Option<Permit>,
    /// The first answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) answer: Option<AnswerView<'a>>,
    /// How the answer came to be known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) source: Option<&'static str>,
    /// The input differs from the first one, and the intent says to answer all the same.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) mismatch: bool,
    /// What you should know beside.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) notices: Vec<NoticeView>,
}

/// Leave to act, or to ask, once.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Permit {
    /// `act` or `lookup`.
    pub(crate) kind: &'static str,
    /// Its number; settle with it.
    pub(crate) fence: u64,
    /// Which generation of the intent; settle with it.
    pub(crate) generation: u32,
    /// Proves that the permit is yours; renew and settle with it.
    pub(crate) secret: String,
    /// How long it is good without a renewal, counted from when you sent the claim.
    pub(crate) lease_ms: u64,
    /// How long the first byte may still leave, counted likewise.
    pub(crate) send_within_ms: u64,
    /// A key for destinations that deduplicate themselves: the same for every attempt of a generation.
    pub(crate) destination_key: Option<String>,
    /// An earlier attempt may have acted: a refusal now does not mean that nothing happened.
    pub(crate) doubt: bool,
    /// A newer version was applied already.
    pub(crate) late: bool,
}

impl Permit {
    pub(crate) fn of(permit: &twicesafe_core::Permit, destination_key: Option<String>) -> Self {
        let millis = |span: std::time::Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        Self {
            kind: match permit.kind {
                PermitKind::Act => "act",
                PermitKind::Lookup => "lookup",
            },
            fence: permit.fence.number(),
            generation: permit.generation,
            secret: hex(permit.secret),
            lease_ms: millis(permit.lease),
            send_within_ms: millis(permit.send_within),
            destination_key,
            doubt: permit.doubt,
            late: permit.late,
        }
    }
}

fn hex(secret: PermitSecret) -> String {
    secret.bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Something to know.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct NoticeView {
    /// Its code.
    pub(crate) code: &'static str,
    /// What it says.
    pub(crate) message: String,
}

/// A stored answer.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct AnswerView<'a> {
    /// What was made, in the destination's own words.
    pub(crate) external_id: Option<&'a str>,
    /// What was said, if it is JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<serde_json::Value>")]
    pub(crate) body: Option<&'a RawValue>,
    /// What was said, if it is other text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) text: Option<&'a str>,
    /// What was said, in base64, if it is neither.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) base64: Option<String>,
    /// What the door it came by keeps beside: status and headers, an exit status.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(crate) head: &'a str,
    /// Whether the body was too large to keep.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) body_not_kept: bool,
}

/// What the head of an answer says that came through the API.
pub(crate) const JSON_HEAD: &str = "json";

impl<'a> AnswerView<'a> {
    pub(crate) fn of(answer: &'a Answer) -> Self {
        let mut view = Self {
            external_id: answer.external_id.as_ref().map(ExternalId::as_str),
            body: None,
            text: None,
            base64: None,
            head: if &*answer.head == JSON_HEAD { "" } else { &answer.head },
            body_not_kept: false,
        };
        match &answer.body {
            Body::NotKept { .. } => view.body_not_kept = true,
            Body::Kept(bytes) if bytes.is_empty() => {}
            Body::Kept(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) if &*answer.head == JSON_HEAD => {
                    view.body = serde_json::from_str(text).ok();
                }
                Ok(text) => view.text = Some(text),
                Err(_) => {
                    use base64::Engine;
                    view.base64 = Some(base64::engine::general_purpose::STANDARD.encode(bytes));
                }
            },
        }
        view
    }
}

/// What a command that is not a claim comes to.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct NotedAnswer {
    /// The intent's number.
    pub(crate) intent: i64,
    /// Where it stands now.
    pub(crate) status: StatusWord,
    /// Whether anything changed: `false` for a command that was taken before.
    pub(crate) changed: bool,
    /// Which generation.
    pub(crate) generation: u32,
    /// Which attempt of this round.
    pub(crate) attempt: u32,
    /// When it may be tried again, if it may.
    pub(crate) due_at: Option<String>,
    /// Until when the answer is kept, if there is one.
    pub(crate) expires_at: Option<String>,
}

impl NotedAnswer {
    pub(crate) fn of(stored: &Stored, changed: bool) -> Self {
        let record = &stored.record;
        Self {
            intent: stored.id.number(),
            status: record.status.into(),
            changed,
            generation: record.generation,
            attempt: record.tries,
            due_at: record.due_at.map(time),
            expires_at: expiry(record),
        }
    }
}

/// When what is known of an intent runs out: a lease, an approval, or the time its answer is kept.
pub(crate) fn expiry(record: &Record) -> Option<String> {
    let kept_until = || Some(record.settled_at? + record.policy.retention);
    let at = match (record.status, &record.attempt) {
        (Status::Held, _) => record.approval.as_ref().map(|approval| approval.expires_at),
        (_, Some(attempt)) => Some(attempt.lease_until),
        _ => kept_until(),
    };
    at.map(time)
}

/// The status of an intent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum StatusWord {
    /// Waits for a person; nothing sent.
    Held,
    /// Accepted, nothing sent, may be claimed at its due time.
    Ready,
    /// An attempt or a lookup is under way.
    Pending,
    /// No attempt under way, another one is safe.
    Retryable,
    /// May or may not have happened; a person decides.
    Review,
    /// It happened.
    Done,
    /// Refused for good, or given up.
    Failed,
    /// A person said no, or nobody said yes in time.
    Rejected,
    /// A newer version was already applied.
    Superseded,
    /// Done, then compensated.
    Undone,
}

impl From<Status> for StatusWord {
    fn from(status: Status) -> Self {
        match status {
            Status::Held => Self::Held,
            Status::Ready => Self::Ready,
            Status::Pending => Self::Pending,
            Status::Retryable => Self::Retryable,
            Status::Review => Self::Review,
            Status::Done => Self::Done,
            Status::Failed => Self::Failed,
            Status::Rejected => Self::Rejected,
            Status::Superseded => Self::Superseded,
            Status::Undone => Self::Undone,
        }
    }
}

/// An intent in a list.
#[derive(Debug, Serialize, JsonSchema)]
pub struct IntentView {
    /// The intent's number.
    pub intent: i64,
    /// Its scope; nothing once it was forgotten.
    pub scope: Option<String>,
    /// Its key; nothing once it was forgotten.
    pub key: Option<String>,
    /// Where it stands.
    pub status: StatusWord,
    /// Some attempt may have acted, and nobody knows.
    pub doubt: bool,
    /// The answer is no longer kept; it still does not happen again.
    pub tombstone: bool,
    /// How many fresh starts there were, from 1.
    pub generation: u32,
    /// The last permit's number.
    pub fence: u64,
    /// Attempts in this round.
    pub attempts: u32,
    /// What was made, in the destination's own words.
    pub external_id: Option<String>,
    /// The unit of work it is a step of.
    pub work: Option<String>,
    /// Which step.
    pub step: Option<String>,
    /// Its lane.
    pub lane: Option<String>,
    /// Its version in the lane.
    pub version: Option<i64>,
    /// Who asked for it.
    pub requested_by: String,
    /// When it was first heard of.
    pub created_at: String,
    /// When the next attempt or lookup may go.
    pub due_at: Option<String>,
    /// When it settled.
    pub settled_at: Option<String>,
    /// When its lease, its approval or the time its answer is kept ends.
    pub expires_at: Option<String>,
}

impl IntentView {
    /// An intent for programs.
    pub fn of(stored: &Stored) -> Self {
        let record = &stored.record;
        let name = record.name.as_ref();
        Self {
            intent: stored.id.number(),
            scope: name.map(|name| name.scope.to_string()),
            key: name.map(|name| name.key.to_string()),
            status: record.status.into(),
            doubt: record.doubt,
            tombstone: record.is_tombstone(),
            generation: record.generation,
            fence: record.fence.number(),
            attempts: record.tries,
            external_id: record
                .answer
                .as_ref()
                .and_then(|answer| answer.external_id.as_ref())
                .map(|id| id.as_str().to_owned()),
            work: record.step.as_ref().map(|step| step.work().to_owned()),
            step: record.step.as_ref().map(|step| step.step().to_owned()),
            lane: record.place.as_ref().map(|place| place.lane.as_str().to_owned()),
            version: record.place.as_ref().and_then(|place| place.version),
            requested_by: record.requested_by.as_str().to_owned(),
            created_at: time(record.created_at),
            due_at: record.due_at.map(time),
            settled_at: record.settled_at.map(time),
            expires_at: expiry(record),
        }
    }
}

/// Intents, and where to go on.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct PageView {
    /// The intents.
    pub(crate) intents: Vec<IntentView>,
    /// Give this as `cursor` for the next page; nothing: there is none.
    pub(crate) next: Option<String>,
}

/// Everything about one intent.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ShownIntent<'a> {
    #[serde(flatten)]
    pub(crate) intent: IntentView,
    /// How the answer came to be known.
    pub(crate) source: Option<&'static str>,
    /// The recovery class.
    pub(crate) recovery: &'static str,
    /// What the destination said.
    pub(crate) answer: Option<AnswerView<'a>>,
    /// What would be sent, if it was kept.
    pub(crate) request: Option<String>,
    /// Who said yes so far, of what is or was held.
    pub(crate) approved_by: Vec<String>,
    /// Every transition.
    pub(crate) journal: Vec<JournalView>,
}

/// One row of the journal.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct JournalView {
    /// Its place in the chain, from 1.
    pub(crate) row: u32,
    /// When.
    pub(crate) at: String,
    /// Who.
    pub(crate) actor: String,
    /// What.
    pub(crate) event: String,
    /// Where the intent stood afterwards.
    pub(crate) status: StatusWord,
    /// Whether there was doubt afterwards.
    pub(crate) doubt: bool,
    /// Which generation.
    pub(crate) generation: u32,
    /// The last permit's number.
    pub(crate) fence: u64,
    /// Why.
    pub(crate) reason: String,
    /// The hash that ends the chain here.
    pub(crate) hash: String,
}

impl JournalView {
    pub(crate) fn of(row: &JournalRow) -> Self {
        let entry = &row.entry;
        Self {
            row: row.number,
            at: time(entry.at),
            actor: entry.actor.as_str().to_owned(),
            event: entry.event.as_str().to_owned(),
            status: entry.status.into(),
            doubt: entry.doubt,
            generation: entry.generation,
            fence: entry.fence.number(),
            reason: entry.reason.to_string(),
            hash: blake3::Hash::from(row.hash).to_hex().to_string(),
        }
    }
}

/// The word for how an answer came to be known.
pub(crate) fn source_word(source: Option<Source>) -> Option<&'static str> {
    source.map(Source::as_str)
}

/// A problem: RFC 9457 with a stable code. Only here for the OpenAPI document.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ProblemView {
    /// `urn:twicesafe:error:` and the code.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    /// What the code is about.
    pub(crate) title: String,
    /// The HTTP status.
    pub(crate) status: u16,
    /// The stable code.
    pub(crate) code: String,
    /// What happened.
    pub(crate) message: String,
    /// What to do.
    pub(crate) hint: String,
    /// The intent's number, where one is concerned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) intent: Option<i64>,
    /// Where it stands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) intent_status: Option<StatusWord>,
    /// Which attempt of this round.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) attempt: Option<u32>,
    /// Which generation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) generation: Option<u32>,
    /// When its lease, its approval or the time its answer is kept ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) expires_at: Option<String>,
}
