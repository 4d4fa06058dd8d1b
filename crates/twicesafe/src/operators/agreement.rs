//! What was agreed about an intent, in words and as JSON.

use serde_json::{Value, json};
use twicesafe_ledger::{OnMismatch, OnReview, Policy, Recovery, Status, VersionMeans};

use crate::output::span;

/// The policy in words, one sentence a line.
pub(super) fn in_words(policy: &Policy, has_lane: bool) -> Vec<String> {
    let mut lines = vec![recovery(&policy.recovery)];
    lines.push(format!(
        "A permit lasts {} without a heartbeat and {} at most; a request can arrive up to {} after it was sent.",
        span(policy.lease),
        span(policy.act_max),
        span(policy.in_flight_max)
    ));
    lines.push(format!(
        "Up to {} a round, at most {} apart.",
        count(policy.attempts_max.into(), "attempt", "attempts"),
        span(policy.backoff.cap)
    ));
    lines.push(format!(
        "The answer is kept for {} after settling, and then for {} that it was settled.",
        span(policy.retention),
        span(policy.tombstone)
    ));
    if let Some(rule) = &policy.approval {
        lines.push(format!(
            "{} must say yes within {} before anything is sent; who asked {}.",
            count(rule.people.into(), "person", "people"),
            span(rule.expires_after),
            if rule.requester_may_approve { "may be one of them" } else { "may not" }
        ));
    }
    if policy.on_mismatch == OnMismatch::Replay {
        lines.push("Other input under this key gets the first answer, marked.".to_owned());
    }
    if policy.on_mismatch == OnMismatch::Note {
        lines.push("Only the key decides; other input is journalled and changes nothing.".to_owned());
    }
    if has_lane {
        lines.push(format!(
            "In its lane {}; in review {}.",
            match policy.version_means {
                VersionMeans::Snapshot => "an older version is superseded",
                VersionMeans::Order => "versions are a place in the queue",
            },
            match policy.on_review {
                OnReview::Block => "it keeps the others waiting",
                OnReview::Pass => "it lets the others pass",
            }
        ));
    }
    lines
}

fn recovery(recovery: &Recovery) -> String {
    let when = "When nobody knows whether it happened:";
    match recovery {
        Recovery::Repeat => format!("{when} it is done again, which is declared harmless (repeat)."),
        Recovery::NativeKey { retention, lookup } => format!(
            "{when} it is sent again with the same key, which the destination knows for {} (native-key); after that {}.",
            span(*retention),
            if lookup.is_some() { "the destination is asked" } else { "a person decides" }
        ),
        Recovery::Lookup(lookup) => format!(
            "{when} the destination is asked, for up to {} (lookup); after that a person decides.",
            span(lookup.lookup_for)
        ),
        Recovery::Person => format!("{when} a person decides (person)."),
    }
}

/// The policy for programs.
pub(super) fn as_json(policy: &Policy) -> Value {
    let millis = |span: std::time::Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    json!({
        "recovery": policy.recovery.as_str(),
        "lease_ms": millis(policy.lease),
        "act_max_ms": millis(policy.act_max),
        "in_flight_max_ms": millis(policy.in_flight_max),
        "attempts_max": policy.attempts_max,
        "retention_ms": millis(policy.retention),
        "tombstone_ms": millis(policy.tombstone),
        "approval": policy.approval.as_ref().map(|rule| json!({
            "people": rule.people,
            "expires_after_ms": millis(rule.expires_after),
            "requester_may_approve": rule.requester_may_approve,
        })),
        "on_mismatch": match policy.on_mismatch {
            OnMismatch::Refuse => "refuse",
            OnMismatch::Replay => "replay",
            OnMismatch::Note => "note",
        },
        "version_means": match policy.version_means {
            VersionMeans::Snapshot => "snapshot",
            VersionMeans::Order => "order",
        },
        "on_review": match policy.on_review {
            OnReview::Block => "block",
            OnReview::Pass => "pass",
        },
    })
}

/// What a status means.
pub(super) fn meaning(status: Status) -> &'static str {
    match status {
        Status::Held => "waits for a person; nothing sent",
        Status::Ready => "accepted, nothing sent",
        Status::Pending => "an attempt or a lookup is under way",
        Status::Retryable => "no attempt under way, another one is safe",
        Status::Review => "may or may not have happened; a person decides",
        Status::Done => "it happened",
        Status::Failed => "refused for good, or given up",
        Status::Rejected => "a person said no, or nobody said yes in time",
        Status::Superseded => "a newer version was already applied",
        Status::Undone => "done, then compensated",
    }
}

/// A number with its noun.
pub(super) fn count(n: u64, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}
