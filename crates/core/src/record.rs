//! What the ledger believes about one intent.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::answer::{Answer, Source};
use crate::command::{CommandId, Salt};
use crate::fingerprint::Fingerprint;
use crate::lane::Place;
use crate::moment::Timestamp;
use crate::name::{Actor, Name, Step};
use crate::permit::{Fence, PermitKind};
use crate::policy::{Policy, Recovery, VersionMeans};

/// The time after which a due intent is stuck if its caller does not come back (S47).
pub const STUCK_AFTER: Duration = Duration::from_secs(600);

/// The status of an intent; the same words for people and machines.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Status {
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

impl Status {
    /// All of them, in the order of a life.
    pub const ALL: [Self; 10] = [
        Self::Held,
        Self::Ready,
        Self::Pending,
        Self::Retryable,
        Self::Review,
        Self::Done,
        Self::Failed,
        Self::Rejected,
        Self::Superseded,
        Self::Undone,
    ];

    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Ready => "ready",
            Self::Pending => "pending",
            Self::Retryable => "retryable",
            Self::Review => "review",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Rejected => "rejected",
            Self::Superseded => "superseded",
            Self::Undone => "undone",
        }
    }

    /// The status with that word.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == word)
    }

    /// Nothing more happens unless somebody asks for it.
    pub fn is_settled(self) -> bool {
        matches!(self, Self::Done | Self::Failed | Self::Rejected | Self::Superseded | Self::Undone)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// What the ledger believes about one intent. Everything a rule needs, and nothing a rule does not need.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Record {
    /// What it is called. `None` once it was forgotten.
    pub name: Option<Name>,
    /// What its digests and the secrets of its permits are made with. `None` once it was forgotten.
    pub salt: Option<Salt>,
    /// How many fresh starts there were, from 1.
    pub generation: u32,
    /// Where it stands.
    pub status: Status,
    /// Some attempt of this generation may have acted, and nobody knows (S23).
    pub doubt: bool,
    /// What was asked for; `None` after a reset, until the next claim says.
    pub fingerprint: Option<Fingerprint>,
    /// What was agreed.
    pub policy: Arc<Policy>,
    /// The last permit given, over all generations.
    pub fence: Fence,
    /// Attempts in this round.
    pub tries: u32,
    /// The permit that is out, if one is.
    pub attempt: Option<Attempt>,
    /// When the next attempt or lookup may go; `None`: when somebody asks.
    pub due_at: Option<Timestamp>,
    /// When the first attempt of this generation that may have acted was permitted.
    pub first_sent_at: Option<Timestamp>,
    /// When nothing of the attempts in doubt can arrive any more.
    pub quiet_at: Option<Timestamp>,
    /// The recovery of the ledger in which it was asked whether this happened before (S43).
    pub recovered_since: Option<Timestamp>,
    /// Lookups go on until then. Set exactly while the doubt is being looked up.
    pub ask_until: Option<Timestamp>,
    /// Lookups that gave no answer.
    pub asks: u32,
    /// What an earlier attempt answered while a later one was under way (S11).
    pub kept: Option<Answer>,
    /// What it ended in: the first answer, or the refusal.
    pub answer: Option<Answer>,
    /// How the answer came to be known.
    pub source: Option<Source>,
    /// A refusal is given again until then.
    pub replay_until: Option<Timestamp>,
    /// Who was asked for approval, and what they said; of this generation.
    pub approval: Option<Approval>,
    /// Where it stands in a lane.
    pub place: Option<Place>,
    /// Its place among those that wait for the lane is kept until then.
    pub waits_until: Option<Timestamp>,
    /// Its place in a unit of work.
    pub step: Option<Step>,
    /// Who asked for it first in this generation.
    pub requested_by: Actor,
    /// When it was first heard of.
    pub created_at: Timestamp,
    /// When it settled.
    pub settled_at: Option<Timestamp>,
    /// When the answer was purged; what is left refuses to act again (S28).
    pub entombed_at: Option<Timestamp>,
    /// The last report that was taken (S12).
    pub last_settle: Option<Receipt>,
    /// The last report that came too late (S11).
    pub last_evidence: Option<Receipt>,
    /// The last decision of a person (S12).
    pub last_decision: Option<Receipt>,
}

impl Record {
    /// Whether claiming it need only be visible to others, by what was agreed when it was first claimed (S7).
    pub fn claim_may_be_relaxed(&self) -> bool {
        self.policy.claim_may_be_relaxed() && self.place.is_none()
    }

    /// Whether its answer is no longer kept.
    pub fn is_tombstone(&self) -> bool {
        self.entombed_at.is_some()
    }

    /// Whether a person wants a snapshot carried out once more that nobody else comes back for: it does not compete by its version.
    pub(crate) fn is_wanted_again(&self) -> bool {
        self.generation > 1 && self.policy.unattended && self.policy.version_means == VersionMeans::Snapshot
    }

    /// Whether the request that was kept before is still what is wanted (S31). It belongs to its generation; but what nobody
    /// comes back for is carried out again as it was.
    pub fn wants_the_same(&self, before: &Self) -> bool {
        let is_carried_on = self.policy.unattended && self.fingerprint == before.fingerprint;
        !self.is_tombstone() && (self.generation == before.generation || is_carried_on)
    }
}

/// A permit that is out.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Attempt {
    /// For acting or for asking.
    pub kind: PermitKind,
    /// The command that got it (S12).
    pub claim_id: CommandId,
    /// Who has it.
    pub holder: Actor,
    /// When it was given.
    pub granted_at: Timestamp,
    /// When it lapses without a heartbeat.
    pub lease_until: Timestamp,
    /// When the first byte must have left.
    pub send_by: Timestamp,
}

/// Remembers one command, so that the same command again changes nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Receipt {
    /// The command.
    pub id: CommandId,
    /// The permit it was about.
    pub fence: Fence,
    /// What it said.
    pub digest: u64,
}

impl Receipt {
    pub(crate) fn same_report(&self, other: &Self) -> bool {
        (self.fence, self.digest) == (other.fence, other.digest)
    }
}

/// A request for approval and what became of it (S30).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Approval {
    /// Nobody said yes by then: rejected.
    pub expires_at: Timestamp,
    /// Who said yes.
    pub approved_by: Vec<Actor>,
    /// What was decided, and by whom.
    pub decision: Option<Decision>,
}

/// The decision that stands.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Decision {
    /// Yes or no.
    pub approved: bool,
    /// By whom: the last of those who said yes, or who said no.
    pub by: Actor,
}

impl Record {
    /// Whether somebody has leave to act right now, as far as the ledger knows.
    pub(crate) fn acting(&self) -> Option<&Attempt> {
        self.attempt.as_ref().filter(|attempt| attempt.kind == PermitKind::Act)
    }

    pub(crate) fn is_approved(&self) -> bool {
        let yes = |approval: &Approval| approval.decision.as_ref().is_some_and(|decision| decision.approved);
        self.approval.as_ref().map_or(self.policy.approval.is_none(), yes)
    }

    /// Until when a request with the native key may still arrive and be deduplicated (S24).
    pub(crate) fn native_horizon(&self) -> Option<Timestamp> {
        match self.policy.recovery {
            Recovery::NativeKey { retention, .. } if self.doubt => {
                let margin = (retention / 10).max(std::time::Duration::from_millis(1));
                self.first_sent_at.map(|first| first + retention.saturating_sub(margin))
            }
            _ => None,
        }
    }

    /// Whether its lane is closed to others (S15).
    pub fn holds_lane(&self) -> bool {
        match self.status {
            Status::Review => self.policy.on_review == crate::policy::OnReview::Block,
            Status::Pending => true,
            // Something of it can still arrive, and must not come after what the next one does.
            status if status.is_settled() => self.quiet_at.is_some(),
            _ => self.doubt,
        }
    }

    /// When time alone changes something; [`Timestamp::NEVER`] if it does not.
    pub fn wake_at(&self) -> Timestamp {
        let never = Timestamp::NEVER;
        match self.status {
            Status::Held => self.approval.as_ref().map_or(never, |approval| approval.expires_at),
            Status::Pending => match &self.attempt {
                Some(attempt) => attempt.lease_until,
                None => self.ask_until.unwrap_or(never),
            },
            Status::Retryable => {
                self.native_horizon().map_or(never, |horizon| horizon.minus(self.policy.in_flight_max))
            }
            status if status.is_settled() && self.place.is_some() => self.quiet_at.unwrap_or(never),
            _ => never,
        }
    }

    /// Whether nothing more happens by itself although it is open, and nobody was told so (S47). A caller who heard that nothing
    /// happened was told; so was somebody about what is held, in review or out of attempts.
    pub fn is_stuck(&self, now: Timestamp) -> bool {
        let is_out_of_attempts = self.tries >= self.policy.attempts_max;
        match (self.status, self.due_at) {
            (Status::Retryable, None) => !is_out_of_attempts && (self.doubt || self.policy.unattended),
            // What nobody comes back for is carried on by a server, which has its own means to say that it cannot.
            (Status::Ready | Status::Retryable, Some(due_at)) if !self.policy.unattended => {
                (self.doubt || self.status == Status::Ready) && now >= due_at + STUCK_AFTER
            }
            _ => false,
        }
    }

    /// When it should be looked at for purging; a little later than the rule asks for, and set once, so that settling
    /// does not touch what finds it.
    pub fn keep_until(&self) -> Timestamp {
        match self.entombed_at {
            Some(entombed_at) => entombed_at + self.policy.tombstone,
            None => self.created_at + self.policy.retention + self.policy.act_max,
        }
    }
}
