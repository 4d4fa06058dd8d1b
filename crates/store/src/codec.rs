//! How records are written down: policies as short text, the seldom parts as JSON, receipts as bytes.
//!
//! Everything here is the same for all databases, so that a ledger can be moved from one to another.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use twicesafe_core::{
    Actor, Answer, Approval, ApprovalRule, Backoff, Body, CommandId, Decision, ExternalId, Fence, Lookup,
    OnMismatch, OnReview, PermitKind, Policy, Receipt, Record, Recovery, Timestamp, VersionMeans,
};

use crate::error::StoreError;

fn damaged(what: &str) -> StoreError {
    StoreError::Damaged(what.to_owned())
}

/// Policies come in few kinds and many copies: each is written and read once.
#[derive(Default)]
pub(crate) struct Policies {
    texts: Mutex<HashMap<Arc<Policy>, Arc<str>>>,
    policies: Mutex<HashMap<String, Arc<Policy>>>,
}

/// Kinds of policies remembered; more are written and read anew each time.
const POLICIES_MAX: usize = 1000;

impl Policies {
    pub(crate) fn text(&self, policy: &Arc<Policy>) -> Arc<str> {
        let mut texts = self.texts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(text) = texts.get(policy) {
            return text.clone();
        }
        let text: Arc<str> = policy_text(policy).into();
        if texts.len() < POLICIES_MAX {
            texts.insert(policy.clone(), text.clone());
        }
        text
    }

    pub(crate) fn policy(&self, text: &str) -> Result<Arc<Policy>, StoreError> {
        let mut policies = self.policies.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(policy) = policies.get(text) {
            return Ok(policy.clone());
        }
        let policy = Arc::new(parse_policy(text).ok_or_else(|| damaged("a policy cannot be read"))?);
        if policies.len() < POLICIES_MAX {
            policies.insert(text.to_owned(), policy.clone());
        }
        Ok(policy)
    }
}

/// `person lease=60000 act_max=3600000 ...`, in milliseconds; what is not said is absent.
fn policy_text(policy: &Policy) -> String {
    use std::fmt::Write;
    let mut text = policy.recovery.as_str().to_owned();
    let mut put = |name: &str, value: u128| {
        let _ = write!(text, " {name}={value}");
    };
    if let Recovery::NativeKey { retention, .. } = &policy.recovery {
        put("native_retention", retention.as_millis());
    }
    if let Some(lookup) = policy.recovery.lookup() {
        put("lag", lookup.lag.as_millis());
        put("lookup_for", lookup.lookup_for.as_millis());
    }
    put("lease", policy.lease.as_millis());
    put("act_max", policy.act_max.as_millis());
    put("in_flight_max", policy.in_flight_max.as_millis());
    put("attempts", policy.attempts_max.into());
    put("backoff", policy.backoff.base.as_millis());
    put("backoff_cap", policy.backoff.cap.as_millis());
    put("retention", policy.retention.as_millis());
    put("tombstone", policy.tombstone.as_millis());
    if let Some(rule) = &policy.approval {
        put("approval_expires", rule.expires_after.as_millis());
        put("approval_people", rule.people.into());
        put("approval_own", u128::from(rule.requester_may_approve));
    }
    if policy.on_mismatch == OnMismatch::Replay {
        put("mismatch_replays", 1);
    }
    if policy.on_mismatch == OnMismatch::Note {
        put("mismatch_noted", 1);
    }
    if policy.version_means == VersionMeans::Snapshot {
        put("snapshot", 1);
    }
    if policy.on_review == OnReview::Pass {
        put("review_passes", 1);
    }
    if policy.unattended {
        put("unattended", 1);
    }
    text
}

fn parse_policy(text: &str) -> Option<Policy> {
    let mut words = text.split(' ');
    let class = words.next()?;
    let values: HashMap<&str, u64> = words
        .map(|word| word.split_once('=').and_then(|(name, value)| Some((name, value.parse().ok()?))))
        .collect::<Option<_>>()?;
    let number = |name: &str| values.get(name).copied();
    let span = |name: &str| number(name).map(Duration::from_millis);
    let flag = |name: &str| number(name) == Some(1);
    let lookup = span("lag").zip(span("lookup_for")).map(|(lag, lookup_for)| Lookup { lag, lookup_for });
    let recovery = match class {
        "repeat" => Recovery::Repeat,
        "native-key" => Recovery::NativeKey { retention: span("native_retention")?, lookup },
        "lookup" => Recovery::Lookup(lookup?),
        "person" => Recovery::Person,
        _ => return None,
    };
    let approval = match span("approval_expires") {
        Some(expires_after) => Some(ApprovalRule {
            expires_after,
            people: u8::try_from(number("approval_people")?).ok()?,
            requester_may_approve: flag("approval_own"),
        }),
        None => None,
    };
    Some(Policy {
        recovery,
        lease: span("lease")?,
        act_max: span("act_max")?,
        in_flight_max: span("in_flight_max")?,
        attempts_max: u32::try_from(number("attempts")?).ok()?,
        backoff: Backoff { base: span("backoff")?, cap: span("backoff_cap")? },
        retention: span("retention")?,
        tombstone: span("tombstone")?,
        approval,
        on_mismatch: match (flag("mismatch_replays"), flag("mismatch_noted")) {
            (true, _) => OnMismatch::Replay,
            (false, true) => OnMismatch::Note,
            (false, false) => OnMismatch::Refuse,
        },
        version_means: if flag("snapshot") { VersionMeans::Snapshot } else { VersionMeans::Order },
        on_review: if flag("review_passes") { OnReview::Pass } else { OnReview::Block },
        unattended: flag("unattended"),
    })
}

/// The word for what a permit is for.
pub(crate) fn permit_word(kind: PermitKind) -> &'static str {
    match kind {
        PermitKind::Act => "act",
        PermitKind::Lookup => "lookup",
    }
}

/// A receipt in 32 bytes: id, fence, digest.
pub(crate) fn receipt_bytes(receipt: &Receipt) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes[..16].copy_from_slice(&receipt.id.bytes());
    bytes[16..24].copy_from_slice(&receipt.fence.number().to_be_bytes());
    bytes[24..].copy_from_slice(&receipt.digest.to_be_bytes());
    bytes
}

pub(crate) fn parse_receipt(bytes: &[u8]) -> Result<Receipt, StoreError> {
    let part =
        |range: std::ops::Range<usize>| bytes.get(range).ok_or_else(|| damaged("a receipt is cut short"));
    let number =
        |range| Ok::<_, StoreError>(u64::from_be_bytes(part(range)?.try_into().expect("eight bytes")));
    Ok(Receipt {
        id: CommandId::new(part(0..16)?.try_into().expect("sixteen bytes")),
        fence: Fence::new(number(16..24)?),
        digest: number(24..32)?,
    })
}

/// What of a record is seldom there.
#[derive(Serialize, Deserialize, Default, PartialEq)]
#[serde(default, deny_unknown_fields)]
struct Detail {
    #[serde(skip_serializing_if = "Option::is_none")]
    first_sent_at: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    quiet_at: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    recovered_since: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ask_until: Option<i64>,
    #[serde(skip_serializing_if = "is_zero")]
    asks: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    kept: Option<KeptDetail>,
    #[serde(skip_serializing_if = "Option::is_none")]
    replay_until: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    approval: Option<ApprovalDetail>,
    #[serde(skip_serializing_if = "Option::is_none")]
    waits_until: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    entombed_at: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_evidence: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_decision: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body_not_kept: Option<(u64, String)>,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

#[derive(Serialize, Deserialize, PartialEq)]
struct KeptDetail {
    external_id: Option<String>,
    head: String,
    body: Option<String>,
    not_kept: Option<(u64, String)>,
}

#[derive(Serialize, Deserialize, PartialEq)]
struct ApprovalDetail {
    expires_at: i64,
    approved_by: Vec<String>,
    decision: Option<(bool, String)>,
}

/// The seldom parts of a record as JSON; `None` when there are none, as in most records.
pub(crate) fn detail_text(record: &Record) -> Option<String> {
    let detail = Detail {
        first_sent_at: record.first_sent_at.map(Timestamp::as_millis),
        quiet_at: record.quiet_at.map(Timestamp::as_millis),
        recovered_since: record.recovered_since.map(Timestamp::as_millis),
        ask_until: record.ask_until.map(Timestamp::as_millis),
        asks: record.asks,
        kept: record.kept.as_ref().map(|answer| KeptDetail {
            external_id: answer.external_id.as_ref().map(|id| id.as_str().to_owned()),
            head: answer.head.to_string(),
            body: answer.bytes().map(|bytes| hex(bytes)),
            not_kept: not_kept(answer),
        }),
        replay_until: record.replay_until.map(Timestamp::as_millis),
        approval: record.approval.as_ref().map(|approval| ApprovalDetail {
            expires_at: approval.expires_at.as_millis(),
            approved_by: approval.approved_by.iter().map(ToString::to_string).collect(),
            decision: approval.decision.as_ref().map(|decision| (decision.approved, decision.by.to_string())),
        }),
        waits_until: record.waits_until.map(Timestamp::as_millis),
        entombed_at: record.entombed_at.map(Timestamp::as_millis),
        last_evidence: record.last_evidence.map(|receipt| hex(&receipt_bytes(&receipt))),
        last_decision: record.last_decision.map(|receipt| hex(&receipt_bytes(&receipt))),
        body_not_kept: record.answer.as_ref().and_then(not_kept),
    };
    (detail != Detail::default())
        .then(|| serde_json::to_string(&detail).expect("plain data has no reason not to become JSON"))
}

/// Puts the seldom parts back. Returns what is known of an answer's body that was not kept.
pub(crate) fn put_detail(record: &mut Record, text: &str) -> Result<Option<Body>, StoreError> {
    let detail: Detail = serde_json::from_str(text).map_err(|error| damaged(&format!("detail: {error}")))?;
    let at = |millis: Option<i64>| millis.map(Timestamp::from_millis);
    let actor = |name: &str| Actor::new(name).map_err(|error| damaged(&error.to_string()));
    let receipt = |text: Option<String>| text.map(|text| parse_receipt(&unhex(&text)?)).transpose();
    record.first_sent_at = at(detail.first_sent_at);
    record.quiet_at = at(detail.quiet_at);
    record.recovered_since = at(detail.recovered_since);
    record.ask_until = at(detail.ask_until);
    record.asks = detail.asks;
    record.replay_until = at(detail.replay_until);
    record.waits_until = at(detail.waits_until);
    record.entombed_at = at(detail.entombed_at);
    record.last_evidence = receipt(detail.last_evidence)?;
    record.last_decision = receipt(detail.last_decision)?;
    if let Some(kept) = detail.kept {
        let body = match (kept.body, kept.not_kept) {
            (Some(body), _) => Body::Kept(Bytes::from(unhex(&body)?)),
            (None, what) => body_not_kept(what)?.unwrap_or_default(),
        };
        let external_id = kept.external_id.as_deref().and_then(ExternalId::new);
        record.kept = Some(Answer { external_id, head: kept.head.into(), body });
    }
    if let Some(approval) = detail.approval {
        record.approval = Some(Approval {
            expires_at: Timestamp::from_millis(approval.expires_at),
            approved_by: approval.approved_by.iter().map(|name| actor(name)).collect::<Result<_, _>>()?,
            decision: match approval.decision {
                Some((approved, by)) => Some(Decision { approved, by: actor(&by)? }),
                None => None,
            },
        });
    }
    body_not_kept(detail.body_not_kept)
}

/// What is left of a body that was too large to keep, as text: its length and its hash.
pub(crate) fn not_kept_text(answer: &Answer) -> Option<String> {
    not_kept(answer).map(|(bytes, digest)| format!("{bytes} {digest}"))
}

pub(crate) fn parse_not_kept(text: &str) -> Result<Body, StoreError> {
    let parts =
        text.split_once(' ').and_then(|(bytes, digest)| Some((bytes.parse().ok()?, digest.to_owned())));
    body_not_kept(parts)?.ok_or_else(|| damaged("what is left of a body cannot be read"))
}

fn not_kept(answer: &Answer) -> Option<(u64, String)> {
    match &answer.body {
        Body::NotKept { bytes, digest } => Some((*bytes, hex(digest))),
        Body::Kept(_) => None,
    }
}

fn body_not_kept(what: Option<(u64, String)>) -> Result<Option<Body>, StoreError> {
    let Some((bytes, digest)) = what else { return Ok(None) };
    let digest = unhex(&digest)?.try_into().map_err(|_| damaged("a digest is cut short"))?;
    Ok(Some(Body::NotKept { bytes, digest }))
}

/// Bytes as text.
pub(crate) fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    bytes
        .iter()
        .flat_map(|byte| [DIGITS[usize::from(byte >> 4)] as char, DIGITS[usize::from(byte & 15)] as char])
        .collect()
}

/// Bytes from their text.
pub(crate) fn unhex(text: &str) -> Result<Vec<u8>, StoreError> {
    let digit = |byte: u8| (byte as char).to_digit(16).map(|digit| digit as u8);
    let pairs = text.as_bytes().chunks(2);
    pairs
        .map(|pair| match pair {
            [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
            _ => None,
        })
        .collect::<Option<_>>()
        .ok_or_else(|| damaged("bytes are not written in hex"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_survive_being_written_down() {
        let lookup = Lookup { lag: Duration::from_secs(3), lookup_for: Duration::from_secs(900) };
        let native = |lookup| Recovery::NativeKey { retention: Duration::from_secs(86_400), lookup };
        let classes = [
            Recovery::Repeat,
            Recovery::Person,
            Recovery::Lookup(lookup.clone()),
            native(None),
            native(Some(lookup)),
        ];
        for recovery in classes {
            let mut policy = Policy::new(recovery);
            assert_eq!(parse_policy(&policy_text(&policy)), Some(policy.clone()));
            policy.approval =
                Some(ApprovalRule { people: 2, requester_may_approve: true, ..Default::default() });
            policy.on_mismatch = OnMismatch::Replay;
            policy.version_means = VersionMeans::Snapshot;
            policy.on_review = OnReview::Pass;
            assert_eq!(parse_policy(&policy_text(&policy)), Some(policy));
        }
        assert_eq!(parse_policy("person lease=x"), None);
        assert_eq!(parse_policy("perhaps"), None);
    }

    #[test]
    fn hex_survives() {
        let bytes: Vec<u8> = (0..=255).collect();
        assert_eq!(unhex(&hex(&bytes)).expect("valid"), bytes);
        assert!(unhex("abc").is_err() && unhex("zz").is_err());
    }
}
