//! What is agreed about an intent when it is first claimed, and frozen then (S14).

use std::time::Duration;

use crate::code::Code;

/// The agreement about one intent. Built with [`Policy::new`] and the `with` methods, checked when it is used.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Policy {
    /// What may be done about an unknown outcome: a property of the destination.
    pub recovery: Recovery,
    /// How long a permit is good for without a heartbeat.
    pub lease: Duration,
    /// How long heartbeats can keep one attempt alive at most (S10).
    pub act_max: Duration,
    /// How long after it was sent a request can still arrive (S9).
    pub in_flight_max: Duration,
    /// Attempts in one round.
    pub attempts_max: u32,
    /// How retries are spread.
    pub backoff: Backoff,
    /// How long the answer is kept after settling (S28).
    pub retention: Duration,
    /// How long the tombstone stays after that.
    pub tombstone: Duration,
    /// Whether a person must say yes first.
    pub approval: Option<ApprovalRule>,
    /// What the same key with other input gets.
    pub on_mismatch: OnMismatch,
    /// What a version means in this intent's lane.
    pub version_means: VersionMeans,
    /// Whether an intent in review keeps its lane.
    pub on_review: OnReview,
    /// No caller comes back for it: the server alone carries it on, as it does events of an inbox. Then it keeps its place
    /// in its lane while it waits for its next attempt (S15), and being accepted again reopens it when it ran out of
    /// attempts (S38).
    pub unattended: bool,
}

/// What may be done about an unknown outcome.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Recovery {
    /// Doing it again is declared harmless: an upsert by external id, an LLM call. Never inferred; a create is never
    /// this.
    Repeat,
    /// The destination deduplicates by key.
    NativeKey {
        /// For how long it does.
        retention: Duration,
        /// What is left when that is over; without it, a person.
        lookup: Option<Lookup>,
    },
    /// The destination can be asked whether it happened.
    Lookup(Lookup),
    /// Nobody can tell but a person.
    Person,
}

impl Recovery {
    /// The retention to assume when a destination does not publish its own (S24).
    pub const NATIVE_RETENTION_UNKNOWN: Duration = Duration::from_secs(3600);

    /// The word for the class.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Repeat => "repeat",
            Self::NativeKey { .. } => "native-key",
            Self::Lookup(_) => "lookup",
            Self::Person => "person",
        }
    }

    /// The agreement about lookups, where there is one.
    pub fn lookup(&self) -> Option<&Lookup> {
        match self {
            Self::NativeKey { lookup, .. } => lookup.as_ref(),
            Self::Lookup(lookup) => Some(lookup),
            Self::Repeat | Self::Person => None,
        }
    }
}

/// How a destination can be asked.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Lookup {
    /// How long what happened may stay invisible to a lookup.
    pub lag: Duration,
    /// How long to go on asking when the lookup gives no answer.
    pub lookup_for: Duration,
}

impl Default for Lookup {
    fn default() -> Self {
        Self { lag: Duration::from_secs(5), lookup_for: Duration::from_secs(3600) }
    }
}

/// Exponential backoff with full jitter (S26).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Backoff {
    /// Bound of the first wait.
    pub base: Duration,
    /// Bound of every wait, also of what a destination asks for.
    pub cap: Duration,
}

impl Backoff {
    pub(crate) fn wait(&self, tries: u32, retry_after: Option<Duration>, dice: u32) -> Duration {
        let bound = self.base.saturating_mul(1 << tries.saturating_sub(1).min(20)).min(self.cap);
        let spread = u64::try_from(bound.as_millis()).unwrap_or(u64::MAX);
        let jittered = Duration::from_millis(((u128::from(spread) * u128::from(dice)) >> 32) as u64);
        retry_after.map_or(jittered, |asked| (asked + jittered).min(self.cap))
    }
}

/// What must be true before a held intent may go on (S30).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ApprovalRule {
    /// Nobody said yes in time: rejected.
    pub expires_after: Duration,
    /// How many different people must say yes.
    pub people: u8,
    /// Whether who asked may say yes.
    pub requester_may_approve: bool,
}

impl Default for ApprovalRule {
    fn default() -> Self {
        Self { expires_after: Duration::from_secs(24 * 3600), people: 1, requester_may_approve: false }
    }
}

/// What the same key with other input gets (S5).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum OnMismatch {
    /// A refusal.
    Refuse,
    /// The first answer, marked. For bodies written by an AI.
    Replay,
    /// What it would get with the first input: only the key decides, and the difference is journalled. For events, whose
    /// senders change bodies between attempts (S38).
    Note,
}

/// What a version means (S15).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum VersionMeans {
    /// The whole state at that version: an older one is superseded.
    Snapshot,
    /// A place in an order: what waits is sorted, a late one is delivered and marked late.
    Order,
}

/// Whether an intent in review keeps its lane (S15).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum OnReview {
    /// The lane waits for the person's decision.
    Block,
    /// The others pass.
    Pass,
}

/// Why a policy was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} {problem}")]
pub struct InvalidPolicy {
    field: &'static str,
    problem: &'static str,
}

impl InvalidPolicy {
    /// The stable code of this error.
    pub fn code(&self) -> Code {
        Code::PolicyInvalid
    }
}

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(24 * 3600);
/// Spans beyond this are mistakes, and would overflow arithmetic on timestamps.
const SPAN_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

impl Policy {
    /// The defaults, with that recovery.
    pub fn new(recovery: Recovery) -> Self {
        Self {
            recovery,
            lease: 60 * SECOND,
            act_max: 3600 * SECOND,
            in_flight_max: 60 * SECOND,
            attempts_max: 5,
            backoff: Backoff { base: SECOND, cap: 300 * SECOND },
            retention: 30 * DAY,
            tombstone: 365 * DAY,
            approval: None,
            on_mismatch: OnMismatch::Refuse,
            version_means: VersionMeans::Order,
            on_review: OnReview::Block,
            unattended: false,
        }
    }

    /// Checks that the figures fit together.
    pub fn check(&self) -> Result<(), InvalidPolicy> {
        let wrong = |field, problem| Err(InvalidPolicy { field, problem });
        let lookup = self.recovery.lookup();
        let spans =
            [self.lease, self.act_max, self.in_flight_max, self.retention, self.tombstone, self.backoff.cap];
        let of_approval = self.approval.as_ref().map(|rule| &rule.expires_after);
        let of_native_key = match &self.recovery {
            Recovery::NativeKey { retention, .. } => Some(retention),
            _ => None,
        };
        let of_lookup = lookup.into_iter().flat_map(|lookup| [&lookup.lookup_for, &lookup.lag]);
        if self.lease < Duration::from_millis(2) {
            wrong("lease", "must be at least 2 ms")
        } else if self.act_max < self.lease {
            wrong("act_max", "must not be shorter than the lease")
        } else if self.attempts_max == 0 {
            wrong("attempts_max", "must be at least 1")
        } else if self.retention.is_zero() {
            wrong("retention", "must not be zero")
        } else if spans
            .iter()
            .chain(of_lookup)
            .chain(of_approval)
            .chain(of_native_key)
            .any(|span| *span > SPAN_MAX)
        {
            wrong("a duration", "is longer than a hundred years")
        } else if lookup.is_some_and(|l| l.lookup_for < self.in_flight_max + l.lag) {
            wrong("lookup_for", "must cover in_flight_max and lag, or no lookup could ever count")
        } else if self.approval.as_ref().is_some_and(|rule| rule.people == 0 || rule.expires_after.is_zero())
        {
            wrong("approval", "needs at least one person and some time")
        } else {
            Ok(())
        }
    }

    /// The part of the lease in which nothing new may be sent, against clocks of different speed (S9).
    pub(crate) fn send_margin(&self) -> Duration {
        (self.lease / 10).max(Duration::from_millis(1))
    }

    /// Whether claiming need only be visible to others, not durable, before sending (S7).
    pub(crate) fn claim_may_be_relaxed(&self) -> bool {
        self.recovery == Recovery::Repeat && self.approval.is_none()
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self::new(Recovery::Person)
    }
}
