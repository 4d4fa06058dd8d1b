//! What travels: requests and answers of the API as types. The OpenAPI document is made from them, and `--json` of the command
//! line uses the same.

use schemars::JsonSchema;
use serde::de::{Deserializer, Error, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use twicesafe_ledger::{
    Answer, Body, ExternalId, JournalRow, PermitKind, Record, Source, Status, Stored, Timestamp,
};

/// A time as people and programs read it: RFC 3339, UTC, whole seconds.
pub fn time(at: Timestamp) -> String {
    jiff::Timestamp::from_millisecond(at.as_millis())
        .map_or_else(|_| "never".to_owned(), |at| format!("{at:.0}"))
}

/// A whole number. JSON knows only numbers: `2` and `2.0` are the same.
fn whole<'de, D: Deserializer<'de>, T: TryFrom<i128>>(deserializer: D) -> Result<T, D::Error> {
    struct Whole;
    impl Visitor<'_> for Whole {
        type Value = i128;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a whole number in range")
        }

        fn visit_u64<E: Error>(self, number: u64) -> Result<i128, E> {
            Ok(number.into())
        }

        fn visit_i64<E: Error>(self, number: i64) -> Result<i128, E> {
            Ok(number.into())
        }

        fn visit_f64<E: Error>(self, number: f64) -> Result<i128, E> {
            // Beyond this, neighbours cannot be told apart.
            const EXACT_MAX: f64 = 9_007_199_254_740_992.0;
            match number.fract() == 0.0 && number.abs() <= EXACT_MAX {
                true => Ok(number as i128),
                false => Err(E::custom("expected a whole number in range")),
            }
        }
    }
    let number = deserializer.deserialize_any(Whole)?;
    T::try_from(number).map_err(|_| D::Error::custom("expected a whole number in range"))
}

fn whole_or_none<'de, D: Deserializer<'de>, T: TryFrom<i128>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    struct OrNone<T>(std::marker::PhantomData<T>);
    impl<'de, T: TryFrom<i128>> Visitor<'de> for OrNone<T> {
        type Value = Option<T>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a whole number in range, or nothing")
        }

        fn visit_none<E: Error>(self) -> Result<Option<T>, E> {
            Ok(None)
        }

        fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Option<T>, D::Error> {
            whole(deserializer).map(Some)
        }
    }
    deserializer.deserialize_option(OrNone(std::marker::PhantomData))
}

/// Asks for leave to act, or for the first answer.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClaimRequest {
    /// What is being done, where and for whom: names separated by slashes.
    #[schemars(length(min = 1, max = 255), regex(pattern = r"^[A-Za-z0-9._:@+=-]+(/[A-Za-z0-9._:@+=-]+)*$"))]
    pub(crate) scope: String,
    /// The stable name of this intent: the same on every retry. Never a timestamp, a random id or the output of an AI step.
    #[schemars(length(min = 1, max = 255), regex(pattern = r"^[^\x00-\x1f\x7f-\x9f]+$"))]
    pub(crate) key: String,
    /// Your id for this claim. The same claim sent again with it gets the same permit.
    #[schemars(length(min = 1, max = 255))]
    pub(crate) command_id: Option<String>,
    /// What is asked for, as JSON. The same key with other input is refused.
    #[schemars(with = "Option<serde_json::Value>")]
    pub(crate) input: Option<Box<RawValue>>,
    /// What is asked for, as a digest of your own, in place of `input`.
    #[schemars(length(min = 1, max = 255))]
    pub(crate) fingerprint: Option<String>,
    /// What would be sent, shown to who approves it. Otherwise that is `input`.
    #[schemars(with = "Option<serde_json::Value>")]
    pub(crate) request: Option<Box<RawValue>>,
    /// What may be done when nobody knows whether it happened.
    #[serde(default)]
    pub(crate) recovery: RecoveryClass,
    /// For `native-key`: how long the destination remembers keys; an hour unless said otherwise.
    #[schemars(range(max = 3_153_600_000_000_u64))]
    #[serde(default, deserialize_with = "whole_or_none")]
    pub(crate) native_key_retention_ms: Option<u64>,
    /// For `lookup`: how long what happened may stay invisible.
    #[schemars(range(max = 3_153_600_000_000_u64))]
    #[serde(default, deserialize_with = "whole_or_none")]
    pub(crate) lookup_lag_ms: Option<u64>,
    /// For `lookup`: how long to go on asking.
    #[schemars(range(max = 3_153_600_000_000_u64))]
    #[serde(default, deserialize_with = "whole_or_none")]
    pub(crate) lookup_for_ms: Option<u64>,
    /// How long after it was sent a request can still arrive.
    #[schemars(range(max = 3_153_600_000_000_u64))]
    #[serde(default, deserialize_with = "whole_or_none")]
    pub(crate) in_flight_max_ms: Option<u64>,
    /// How long a permit is good without a renewal; 60 s unless said otherwise.
    #[schemars(range(min = 2, max = 3_153_600_000_000_u64))]
    #[serde(default, deserialize_with = "whole_or_none")]
    pub(crate) lease_ms: Option<u64>,
    /// How long renewals can keep one attempt alive.
    #[schemars(range(min = 2, max = 3_153_600_000_000_u64))]
    #[serde(default, deserialize_with = "whole_or_none")]
    pub(crate) act_max_ms: Option<u64>,
    /// Attempts in one round; 5 unless said otherwise.
    #[schemars(range(min = 1))]
    #[serde(default, deserialize_with = "whole_or_none")]
    pub(crate) attempts: Option<u32>,
    /// How long the answer is kept after settling; 30 days unless said otherwise.
    #[schemars(range(min = 1, max = 3_153_600_000_000_u64))]
    #[serde(default, deserialize_with = "whole_or_none")]
    pub(crate) retention_ms: Option<u64>,
    /// A person must say yes first.
    pub(crate) approval: Option<ApprovalRequest>,
    /// What the same key with other input gets.
    #[serde(default)]
    pub(crate) on_mismatch: OnMismatch,
    /// The unit of work this is a step of, together with `step`.
    #[schemars(length(min = 1, max = 255))]
    pub(crate) work: Option<String>,
    /// Which step.
    #[schemars(length(min = 1, max = 255))]
    pub(crate) step: Option<String>,
    /// A shared entity: one intent at a time touches it.
    #[schemars(length(min = 1, max = 255))]
    pub(crate) lane: Option<String>,
    /// The entity's version.
    #[serde(default, deserialize_with = "whole_or_none")]
    pub(crate) version: Option<i64>,
    /// What the version means.
    #[serde(default)]
    pub(crate) version_means: VersionMeans,
    /// Whether an intent in review keeps its lane.
    #[serde(default)]
    pub(crate) on_review: OnReview,
    /// How long to wait for another's answer, a lane or a due time; 25 s unless said otherwise, at most 60 s.
    #[schemars(range(max = 60_000))]
    #[serde(default, deserialize_with = "whole_or_none")]
    pub(crate) wait_ms: Option<u64>,
}

/// What may be done when nobody knows whether it happened.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum RecoveryClass {
    /// Doing it again is declared harmless.
    Repeat,
    /// The destination deduplicates by key.
    NativeKey,
    /// The destination can be asked.
    Lookup,
    /// Nobody can tell but a person.
    #[default]
    Person,
}

/// A person must say yes first.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ApprovalRequest {
    /// Nobody said yes in time: rejected. A day unless said otherwise.
    #[schemars(range(min = 1, max = 3_153_600_000_000_u64))]
    #[serde(default, deserialize_with = "whole_or_none")]
    pub(crate) expires_after_ms: Option<u64>,
    /// How many different people must say yes.
    #[schemars(range(min = 1))]
    #[serde(default, deserialize_with = "whole_or_none")]
    pub(crate) people: Option<u8>,
    /// Whether who asked may say yes.
    #[serde(default)]
    pub(crate) requester_may_approve: bool,
}

/// What the same key with other input gets.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum OnMismatch {
    /// A refusal.
    #[default]
    Refuse,
    /// The first answer, marked.
    Replay,
}

/// What a version means.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum VersionMeans {
    /// A place in an order.
    #[default]
    Order,
    /// The whole state: an older one is superseded.
    Snapshot,
}

/// Whether an intent in review keeps its lane.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum OnReview {
    /// The lane waits.
    #[default]
    Block,
    /// The others pass.
    Pass,
}

/// Extends a lease.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RenewRequest {
    /// The intent's number.
    #[serde(deserialize_with = "whole")]
    pub(crate) intent: i64,
    /// The permit's number.
    #[schemars(range(max = 9_223_372_036_854_775_807_u64))]
    #[serde(deserialize_with = "whole")]
    pub(crate) fence: u64,
    /// Your id for this command.
    #[schemars(length(min = 1, max = 255))]
    pub(crate) command_id: Option<String>,
}

/// Asks for leave to look up whether an intent in doubt happened.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AskRequest {
    /// The intent's number.
    #[serde(deserialize_with = "whole")]
    pub(crate) intent: i64,
    /// Your id for this command.
    #[schemars(length(min = 1, max = 255))]
    pub(crate) command_id: Option<String>,
}

/// Says what came of a permit.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SettleRequest {
    /// The intent's number.
    #[serde(deserialize_with = "whole")]
    pub(crate) intent: i64,
    /// The permit's number.
    #[schemars(range(max = 9_223_372_036_854_775_807_u64))]
    #[serde(deserialize_with = "whole")]
    pub(crate) fence: u64,
    /// The permit's generation.
    #[serde(deserialize_with = "whole")]
    pub(crate) generation: u32,
    /// What came of it.
    pub(crate) outcome: OutcomeWord,
    /// What the destination said, as JSON; given again to everybody who asks.
    #[schemars(with = "Option<serde_json::Value>")]
    pub(crate) answer: Option<Box<RawValue>>,
    /// What was made, in the destination's own words.
    #[schemars(length(max = 255))]
    pub(crate) external_id: Option<String>,
    /// Why, for `not-sent`, `unknown` and `silent`.
    #[schemars(length(max = 1000))]
    pub(crate) reason: Option<String>,
    /// When the destination asked to be tried again, for `not-sent` and `unknown`.
    #[schemars(range(max = 3_153_600_000_000_u64))]
    #[serde(default, deserialize_with = "whole_or_none")]
    pub(crate) retry_after_ms: Option<u64>,
    /// How long a refusal is given again to the same input, for `refused`.
    #[schemars(range(max = 3_153_600_000_000_u64))]
    #[serde(default, deserialize_with = "whole_or_none")]
    pub(crate) replay_for_ms: Option<u64>,
    /// Your id for this command.
    #[schemars(length(min = 1, max = 255))]
    pub(crate) command_id: Option<String>,
}

/// What came of a permit.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum OutcomeWord {
    /// It happened, and this is the answer.
    Answered,
    /// The destination said no.
    Refused,
    /// It certainly did not happen.
    NotSent,
    /// It may or may not have happened.
    Unknown,
    /// Of a lookup: it happened.
    Found,
    /// Of a lookup: it is not there.
    NotFound,
    /// Of a lookup: it gave no answer.
    Silent,
}

/// Which intent, and why.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct DecisionRequest {
    /// The intent's scope.
    #[schemars(length(min = 1, max = 255), regex(pattern = r"^[A-Za-z0-9._:@+=-]+(/[A-Za-z0-9._:@+=-]+)*$"))]
    pub(crate) scope: String,
    /// Its key.
    #[schemars(length(min = 1, max = 255), regex(pattern = r"^[^\x00-\x1f\x7f-\x9f]+$"))]
    pub(crate) key: String,
    /// The generation you looked at: a decision about an earlier one does not hold for a later one.
    #[serde(deserialize_with = "whole")]
    pub(crate) generation: u32,
    /// Your id for this decision. The same one sent again with it is no second decision.
    #[schemars(length(min = 1, max = 255))]
    pub(crate) command_id: Option<String>,
    /// Why, for those who read the journal later.
    #[schemars(length(max = 1000))]
    pub(crate) reason: Option<String>,
}

/// Which intent, and why.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReasonedRequest {
    /// The intent's scope.
    #[schemars(length(min = 1, max = 255), regex(pattern = r"^[A-Za-z0-9._:@+=-]+(/[A-Za-z0-9._:@+=-]+)*$"))]
    pub(crate) scope: String,
    /// Its key.
    #[schemars(length(min = 1, max = 255), regex(pattern = r"^[^\x00-\x1f\x7f-\x9f]+$"))]
    pub(crate) key: String,
    /// The generation you looked at: a decision about an earlier one does not hold for a later one.
    #[serde(deserialize_with = "whole")]
    pub(crate) generation: u32,
    /// Your id for this decision. The same one sent again with it is no second decision.
    #[schemars(length(min = 1, max = 255))]
    pub(crate) command_id: Option<String>,
    /// Why, for those who read the journal later.
    #[schemars(length(min = 1, max = 1000), regex(pattern = r"[^\x00-\x20\x7f-\xa0]"))]
    pub(crate) reason: String,
}

/// Says what happened to an intent in review.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ResolveRequest {
    /// The intent's scope.
    #[schemars(length(min = 1, max = 255), regex(pattern = r"^[A-Za-z0-9._:@+=-]+(/[A-Za-z0-9._:@+=-]+)*$"))]
    pub(crate) scope: String,
    /// Its key.
    #[schemars(length(min = 1, max = 255), regex(pattern = r"^[^\x00-\x1f\x7f-\x9f]+$"))]
    pub(crate) key: String,
    /// What you found.
    pub(crate) finding: FindingWord,
    /// The last permit's number when you looked: a decision about an earlier attempt does not hold for a later one.
    #[schemars(range(max = 9_223_372_036_854_775_807_u64))]
    #[serde(deserialize_with = "whole")]
    pub(crate) fence: u64,
    /// Your id for this decision. The same one sent again with it is no second decision.
    #[schemars(length(min = 1, max = 255))]
    pub(crate) command_id: Option<String>,
    /// For `happened`: what the destination calls it.
    #[schemars(length(max = 255))]
    pub(crate) external_id: Option<String>,
    /// For `happened`: what the destination said, as JSON.
    #[schemars(with = "Option<serde_json::Value>")]
    pub(crate) answer: Option<Box<RawValue>>,
    /// How you know.
    #[schemars(length(min = 1, max = 1000), regex(pattern = r"[^\x00-\x20\x7f-\xa0]"))]
    pub(crate) reason: String,
}

/// What a person found.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum FindingWord {
    /// It happened.
    Happened,
    /// It did not: try again.
    DidNotHappen,
    /// Leave it.
    GiveUp,
}

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
            lease_ms: millis(permit.lease),
            send_within_ms: millis(permit.send_within),
            destination_key,
            doubt: permit.doubt,
            late: permit.late,
        }
    }
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
            tombstone: record.tombstone,
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

/// An inbox.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct InboxView {
    /// What it is called.
    pub(crate) name: String,
    /// The scope of its events: list them with `GET /v1/intents?scope=`.
    pub(crate) scope: String,
    /// How its senders are known.
    pub(crate) sender: String,
    /// Why it is paused, if it is.
    pub(crate) paused: Option<String>,
    /// What became of its events, as far as this process saw: `arrived`, `duplicate`, `delivered`, ...
    pub(crate) counts: std::collections::BTreeMap<String, u64>,
    /// How long the last event that was taken up had waited; 0 when none waits.
    pub(crate) lag_ms: u64,
}

/// All inboxes.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct InboxesView {
    /// By name.
    pub(crate) inboxes: Vec<InboxView>,
}

/// An event: what arrived, how its sender was known, and what became of it.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct EventView<'a> {
    /// Where it stands.
    #[serde(flatten)]
    pub(crate) intent: IntentView,
    /// How its sender was known.
    pub(crate) verified: Option<String>,
    /// The object it is about.
    pub(crate) object: Option<String>,
    /// What it means to the business.
    pub(crate) means: Option<String>,
    /// Its headers, as far as they are kept.
    pub(crate) headers: Vec<(String, String)>,
    /// Its body, if it is kept.
    pub(crate) body: Option<String>,
    /// What the target answered.
    pub(crate) answer: Option<AnswerView<'a>>,
    /// Every attempt, and everything else that became of it.
    pub(crate) deliveries: Vec<JournalView>,
}

/// A decision about an event.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct EventRequest {
    /// The inbox.
    pub(crate) inbox: String,
    /// The event's id.
    pub(crate) id: String,
    /// Why, for those who read the journal later.
    pub(crate) reason: String,
}

/// An inbox to pause or to let go on.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct InboxRequest {
    /// The inbox.
    pub(crate) inbox: String,
    /// Why.
    #[serde(default)]
    pub(crate) reason: String,
}
