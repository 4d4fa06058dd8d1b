//! What callers ask.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::numbers::{whole, whole_or_none};
use super::texts::{external_id_or_none, reason, reason_or_none};

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
    /// The permit's secret, as it was told with it.
    #[schemars(length(equal = 32), regex(pattern = r"^[0-9a-fA-F]{32}$"))]
    pub(crate) secret: String,
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
    /// The permit's secret, as it was told with it.
    #[schemars(length(equal = 32), regex(pattern = r"^[0-9a-fA-F]{32}$"))]
    pub(crate) secret: String,
    /// The permit's generation.
    #[serde(deserialize_with = "whole")]
    pub(crate) generation: u32,
    /// What came of it.
    pub(crate) outcome: OutcomeWord,
    /// What the destination said, as JSON; given again to everybody who asks.
    #[schemars(with = "Option<serde_json::Value>")]
    pub(crate) answer: Option<Box<RawValue>>,
    /// What was made, in the destination's own words.
    #[schemars(length(max = 255), regex(pattern = r"^[^\x00-\x1f\x7f-\x9f]*$"))]
    #[serde(default, deserialize_with = "external_id_or_none")]
    pub(crate) external_id: Option<String>,
    /// Why, for `not-sent`, `unknown` and `silent`.
    #[schemars(length(max = 1000), regex(pattern = r"^[^\x00]*$"))]
    #[serde(default, deserialize_with = "reason_or_none")]
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
    /// Of a lookup, also of one before acting: it happened.
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
    #[schemars(length(max = 1000), regex(pattern = r"^[^\x00]*$"))]
    #[serde(default, deserialize_with = "reason_or_none")]
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
    #[schemars(length(min = 1, max = 1000), regex(pattern = r"^[^\x00]*[^\x00-\x20\x7f-\xa0][^\x00]*$"))]
    #[serde(deserialize_with = "reason")]
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
    #[schemars(length(max = 255), regex(pattern = r"^[^\x00-\x1f\x7f-\x9f]*$"))]
    #[serde(default, deserialize_with = "external_id_or_none")]
    pub(crate) external_id: Option<String>,
    /// For `happened`: what the destination said, as JSON.
    #[schemars(with = "Option<serde_json::Value>")]
    pub(crate) answer: Option<Box<RawValue>>,
    /// How you know.
    #[schemars(length(min = 1, max = 1000), regex(pattern = r"^[^\x00]*[^\x00-\x20\x7f-\xa0][^\x00]*$"))]
    #[serde(deserialize_with = "reason")]
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
