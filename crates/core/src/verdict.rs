//! What a caller is told.

use crate::answer::{Answer, Source};
use crate::code::Code;
use crate::fingerprint::Recipe;
use crate::lane::IntentId;
use crate::moment::Timestamp;
use crate::name::Actor;
use crate::permit::Permit;
use crate::record::Status;

/// What a caller is told.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Verdict {
    /// Act now, or ask now, once.
    Proceed(Permit),
    /// It is settled; this is the first answer.
    Replay(Replay),
    /// Not now.
    Wait(Wait),
    /// A person must say yes first.
    Hold(Hold),
    /// It may or may not have happened; a person decides.
    Review,
    /// No.
    Refuse(Refusal),
    /// Taken note of.
    Noted(Noted),
    /// Say it again with the fingerprint made by this recipe (S4).
    Recompute(Recipe),
}

/// The first answer, given again.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Replay {
    /// What the destination said. `None`: a person said that it happened, and no more is known.
    pub answer: Option<Answer>,
    /// How it came to be known.
    pub source: Source,
    /// The destination had said no.
    pub refused: bool,
    /// The input differs from the first one, and the policy says to answer all the same (S5).
    pub mismatch: bool,
}

/// Not now.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Wait {
    /// Asking again before then is in vain, unless somebody settles it earlier.
    pub until: Timestamp,
    /// What for.
    pub cause: WaitCause,
}

/// What a caller waits for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum WaitCause {
    /// An attempt or a lookup is under way.
    Pending,
    /// Its lookup is due: whoever can ask the destination should.
    LookupDue,
    /// It is not due yet.
    NotDue,
    /// Another intent has its lane.
    Lane(Option<IntentId>),
    /// Accepted; somebody claims it when it is due.
    Accepted,
}

/// A person must say yes first.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Hold {
    /// Nobody said yes by then: rejected.
    pub expires_at: Timestamp,
}

/// Taken note of.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Noted {
    /// Where the intent stands now.
    pub status: Status,
    /// Whether anything changed: `false` for a command that was taken before, or had nothing to do.
    pub changed: bool,
}

/// Why not.
#[derive(Clone, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum Refusal {
    /// The key was used for something else.
    #[error("this key was used with other input")]
    Mismatch,
    /// A person said no, or nobody said yes in time.
    #[error("a person said no, or nobody said yes in time")]
    Rejected,
    /// A newer version was applied.
    #[error("a newer version was already applied")]
    Superseded,
    /// It was undone.
    #[error("it was done and then undone")]
    Undone,
    /// The answer is no longer kept.
    #[error("it is settled, and its answer is no longer kept")]
    Purged,
    /// A person gave it up without knowing whether it happened.
    #[error("a person gave it up without knowing whether it happened")]
    GivenUp,
    /// The permit is not the current one.
    #[error("this permit is over: it lapsed, or its attempt was settled")]
    StaleFence,
    /// The permit was given to somebody else.
    #[error("this permit was given to somebody else")]
    NotHolder,
    /// The permit was settled with something else.
    #[error("this permit was settled with another outcome")]
    SettledOtherwise,
    /// Heartbeats cannot keep it alive any longer.
    #[error("the attempt has taken as long as its policy allows")]
    ActMax,
    /// The opposite was decided before.
    #[error("{0} decided otherwise before")]
    DecidedOtherwise(Actor),
    /// Who asked may not approve.
    #[error("who asked for it may not approve it")]
    OwnRequest,
    /// What was looked at has changed since.
    #[error("it has changed since it was looked at")]
    Moved,
    /// A request could still arrive.
    #[error("a request could still arrive until {0}")]
    TooEarly(Timestamp),
    /// Its status does not allow it.
    #[error("this cannot be done to an intent that is {0}")]
    WrongStatus(Status),
    /// Its record was changed by something else than the ledger (S49).
    #[error("its record does not fit its seal: something else than Twicesafe has changed it")]
    Altered,
    /// There is no such intent.
    #[error("there is no such intent")]
    NoSuchIntent,
}

impl Refusal {
    /// The stable code of this refusal.
    pub fn code(&self) -> Code {
        match self {
            Self::Mismatch => Code::Mismatch,
            Self::Rejected => Code::Rejected,
            Self::Superseded => Code::Superseded,
            Self::Undone | Self::Purged => Code::Gone,
            Self::GivenUp => Code::GivenUp,
            Self::StaleFence => Code::StaleFence,
            Self::NotHolder => Code::NotHolder,
            Self::SettledOtherwise => Code::SettledOtherwise,
            Self::ActMax => Code::ActMax,
            Self::DecidedOtherwise(_) => Code::DecidedOtherwise,
            Self::OwnRequest => Code::OwnRequest,
            Self::Moved => Code::Moved,
            Self::TooEarly(_) => Code::TooEarly,
            Self::WrongStatus(_) => Code::WrongStatus,
            Self::Altered => Code::RecordAltered,
            Self::NoSuchIntent => Code::NoSuchIntent,
        }
    }
}
