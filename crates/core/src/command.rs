//! What somebody wants. Every command carries an id its caller made, so that it can be sent again (S12).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::answer::{Answer, Report};
use crate::fingerprint::Fingerprint;
use crate::lane::Place;
use crate::name::{Actor, Name, Step};
use crate::permit::{Fence, PermitSecret};
use crate::policy::Policy;

/// Identifies one command of one caller; made by the caller, the same when the command is sent again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommandId([u8; 16]);

impl CommandId {
    /// The id with those bytes.
    pub const fn new(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    pub const fn bytes(self) -> [u8; 16] {
        self.0
    }
}

impl fmt::Debug for CommandId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

/// Makes digests in the journal useless to who does not have it (S40), and permits impossible to guess (S48); deleted when an intent
/// is forgotten.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Salt(pub [u8; 16]);

impl fmt::Debug for Salt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Salt")
    }
}

/// What somebody wants of one intent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Command {
    /// The caller's id for this command.
    pub id: CommandId,
    /// Who wants it.
    pub actor: Actor,
    /// What they want.
    pub action: Action,
}

/// The commands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Let me act, or tell me what came of it.
    Claim(Box<Claim>),
    /// I am still at it.
    Renew(Renew),
    /// This is what came of it.
    Settle(Settle),
    /// Let me ask the destination whether it happened.
    Ask(Ask),
    /// A person says yes.
    Approve(Approve),
    /// A person says no.
    Reject(Reject),
    /// A person says what happened.
    Resolve(Resolve),
    /// A person wants it done afresh.
    Reset(Reset),
    /// A person says that it happened, on the word of the source of truth.
    Adopt(Box<Adopt>),
    /// Time has passed: is anything over?
    Expire,
    /// Drop what need not be kept any longer.
    Purge(Purge),
    /// Drop what could identify anybody.
    Forget(Forget),
    /// It was compensated.
    MarkUndone(MarkUndone),
}

/// Asks for a permit, or for the first answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Claim {
    /// What it is called.
    pub name: Name,
    /// What is asked for.
    pub fingerprint: Fingerprint,
    /// What is agreed, if this is the first claim.
    pub policy: Arc<Policy>,
    /// Where it stands in a lane.
    pub place: Option<Place>,
    /// Its place in a unit of work.
    pub step: Option<Step>,
    /// What would be sent, kept so that the server can send it later (S31). Without credentials.
    pub request: Option<Bytes>,
    /// Fresh and random.
    pub salt: Salt,
    /// Which process acts, where that says more than who asks: whether it still lives can be looked up.
    pub holder: Option<Actor>,
    /// What is wanted.
    pub grant: Grant,
    /// The generation that was read, where the claim carries on what is on record (S31). It is refused once the record has
    /// moved on, and never starts a generation.
    pub about: Option<u32>,
}

/// What a claim wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Grant {
    /// A permit.
    Permit,
    /// Only that the intent is accepted; somebody claims it when it is due.
    Accept {
        /// Not before that has passed.
        due_in: Duration,
    },
}

/// Extends a lease.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Renew {
    /// The permit.
    pub fence: Fence,
    /// Proves that the caller was given the permit.
    pub secret: PermitSecret,
    /// Which process acts, where that has become known only now.
    pub holder: Option<Actor>,
}

/// Reports what came of a permit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settle {
    /// The permit.
    pub fence: Fence,
    /// The generation it was for.
    pub generation: u32,
    /// Proves that the caller was given the permit.
    pub secret: PermitSecret,
    /// What came of it.
    pub report: Report,
}

/// Asks for a permit to look up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ask;

/// Says yes to one generation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Approve {
    /// The generation that was looked at.
    pub generation: u32,
    /// The input that was looked at (S30).
    pub fingerprint: Option<Fingerprint>,
}

/// Says no to one generation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reject {
    /// The generation that was looked at.
    pub generation: u32,
    /// Why.
    pub reason: Arc<str>,
}

/// Decides a review.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Resolve {
    /// The last permit given when the person looked: a decision about an earlier attempt does not hold for a later one.
    pub about: Fence,
    /// What the person found.
    pub resolution: Resolution,
    /// How they know.
    pub reason: Arc<str>,
}

/// What a person found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Resolution {
    /// It happened.
    Happened(Answer),
    /// It did not: try again.
    DidNotHappen,
    /// Leave it.
    GiveUp,
}

/// Starts a new generation of something settled (S29).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reset {
    /// The generation that was looked at.
    pub generation: u32,
    /// Why.
    pub reason: Arc<str>,
}

/// Records what happened according to the source of truth, whether or not the ledger has heard of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Adopt {
    /// What it is called.
    pub name: Name,
    /// What was asked for, if anybody knows; otherwise the next claim says.
    pub fingerprint: Option<Fingerprint>,
    /// What is agreed, if the ledger has not heard of it.
    pub policy: Arc<Policy>,
    /// What is known of what happened.
    pub answer: Answer,
    /// How they know.
    pub reason: Arc<str>,
    /// Fresh and random.
    pub salt: Salt,
}

/// Drops answers, then tombstones, when their time is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Purge {
    /// Other steps of its work are open. Filled in by the store, which can see them.
    pub work_is_open: bool,
}

/// Drops what could identify anybody.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Forget {
    /// Why.
    pub reason: Arc<str>,
}

/// Notes that an effect was compensated.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MarkUndone {
    /// The generation that was undone.
    pub generation: u32,
    /// By which intent, or how.
    pub reason: Arc<str>,
}

impl Action {
    /// The word for it.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Claim(_) => "claim",
            Self::Renew(_) => "renew",
            Self::Settle(_) => "settle",
            Self::Ask(_) => "ask",
            Self::Approve(_) => "approve",
            Self::Reject(_) => "reject",
            Self::Resolve(_) => "resolve",
            Self::Reset(_) => "reset",
            Self::Adopt(_) => "adopt",
            Self::Expire => "expire",
            Self::Purge(_) => "purge",
            Self::Forget(_) => "forget",
            Self::MarkUndone(_) => "mark undone",
        }
    }

    /// Whether it may be acknowledged before it is on disk (S7): a claim of what is declared harmless to repeat and has
    /// no lane, no version and no approval.
    pub fn may_be_relaxed(&self) -> bool {
        match self {
            Self::Claim(claim) => {
                claim.policy.claim_may_be_relaxed() && claim.place.is_none() && claim.grant == Grant::Permit
            }
            _ => false,
        }
    }
}
