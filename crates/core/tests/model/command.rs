//! The commands of the model, with ids that make a repetition recognisable and answers that can be told apart.

use std::sync::{Arc, LazyLock};

use twicesafe_core::{
    Action, Actor, Answer, Body, Claim, CommandId, Counts, Fence, Finding, Fingerprint, Grant, LaneName,
    Name, Outcome, PermitSecret, Place, Recipe, Record, Report, Resolution, Resolve, Salt, Settle,
};

use super::step::Bounds;
use super::world::{Believed, Caller, Intent, Seen};

/// What a holder reports.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Said {
    Answered,
    Refused,
    NotSent,
    PassedOn,
    Unknown,
    Found,
    NotFound,
    Silent,
}

/// What a person decides.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Found {
    Happened,
    DidNotHappen,
    GiveUp,
}

/// What a command is about.
pub struct Known {
    pub fence: Fence,
    pub generation: u32,
}

impl Known {
    pub fn of(intent: &Intent) -> Self {
        match &intent.believed {
            Some(Believed(record)) => Self { fence: record.fence, generation: record.generation },
            None => Self { fence: Fence::default(), generation: 0 },
        }
    }
}

impl Bounds {
    /// What a server claims that read the intent a while ago (S31).
    pub fn claim_again(&self, intent: usize, seen: Seen) -> Action {
        let mut action = self.claim(intent, seen.input);
        if let Action::Claim(claim) = &mut action {
            claim.about = Some(seen.generation.into());
        }
        action
    }

    pub fn claim(&self, intent: usize, input: u8) -> Action {
        let place = self.versions.get(intent).map(|version| Place { lane: LANE.clone(), version: *version });
        Action::Claim(Box::new(Claim {
            name: NAME.clone(),
            fingerprint: Fingerprint::stored(RECIPE.clone(), [input; 32]),
            policy: self.policy.clone(),
            place,
            step: None,
            request: None,
            salt: SALT,
            holder: None,
            grant: Grant::Permit,
            about: None,
        }))
    }
}

/// Ids that differ wherever the ledger could take one command for another: an id is only remembered by a command that
/// changes the fence or the generation.
pub fn command_id(action: &Action, known: &Known) -> CommandId {
    let mut id = [0; 16];
    id[..2].copy_from_slice(&[small(known.fence.number()), small(known.generation.into())]);
    let kind = action.as_str().as_bytes();
    id[2..2 + kind.len()].copy_from_slice(kind);
    CommandId::new(id)
}

pub fn settle(holder: Caller, said: Said) -> Settle {
    let (fence, generation) = match holder {
        Caller::Acting { fence, generation, .. } | Caller::Asking { fence, generation, .. } => {
            (fence, generation)
        }
        Caller::Idle => (0, 0),
    };
    let report = match said {
        Said::Answered => Report::Act(Outcome::Answered(answer(fence, generation))),
        Said::Refused => Report::Act(Outcome::refused(answer(REFUSAL, generation))),
        Said::NotSent => Report::Act(Outcome::not_sent("")),
        Said::PassedOn => {
            let reason = NO_REASON.clone();
            let counts = Counts::AsPassedOn;
            Report::Act(Outcome::NotSent { reason, retry_after: None, counts })
        }
        Said::Unknown => Report::Act(Outcome::unknown("")),
        Said::Found => Report::Lookup(Finding::Found(answer(BY_LOOKUP, generation))),
        Said::NotFound => Report::Lookup(Finding::NotFound),
        Said::Silent => Report::Lookup(Finding::Silent { reason: NO_REASON.clone() }),
    };
    let (fence, generation) = (Fence::new(fence.into()), generation.into());
    Settle { fence, generation, secret: secret(fence, generation), report }
}

/// What the caller was told with a permit.
pub fn secret(fence: Fence, generation: u32) -> PermitSecret {
    PermitSecret::of(SALT, fence, generation, &CALLER)
}

pub const SALT: Salt = Salt([0; 16]);

/// Somebody who was given no permit, and may have heard of the secret of another's.
pub fn stranger() -> Actor {
    STRANGER.clone()
}

pub fn resolve(about: Fence, found: Found) -> Resolve {
    let resolution = match found {
        Found::Happened => Resolution::Happened(answer(BY_PERSON, 0)),
        Found::DidNotHappen => Resolution::DidNotHappen,
        Found::GiveUp => Resolution::GiveUp,
    };
    Resolve { about, resolution, reason: NO_REASON.clone() }
}

const REFUSAL: u8 = 100;
const BY_LOOKUP: u8 = 101;
const BY_PERSON: u8 = 102;

/// An answer that can be told from others by its mark: the fence it came by, or how it became known.
fn answer(mark: u8, generation: u8) -> Answer {
    Answer::of(vec![mark, generation])
}

pub fn mark_of(answer: Option<&Answer>) -> u8 {
    match answer.map(|answer| &answer.body) {
        Some(Body::Kept(bytes)) => bytes.first().copied().unwrap_or_default(),
        _ => 0,
    }
}

pub fn generation_of(record: &Record) -> u8 {
    small(record.generation.into())
}

pub fn small(number: u64) -> u8 {
    u8::try_from(number).unwrap()
}

pub fn actor_of(action: &Action) -> Actor {
    match action {
        Action::Approve(_) | Action::Reject(_) | Action::Resolve(_) | Action::Reset(_) => PERSON.clone(),
        _ => CALLER.clone(),
    }
}

static CALLER: LazyLock<Actor> = LazyLock::new(|| Actor::new("caller").unwrap());
static STRANGER: LazyLock<Actor> = LazyLock::new(|| Actor::new("stranger").unwrap());
static PERSON: LazyLock<Actor> = LazyLock::new(|| Actor::new("person").unwrap());
static NAME: LazyLock<Name> = LazyLock::new(|| Name::new("shop", "order:1").unwrap());
static RECIPE: LazyLock<Recipe> = LazyLock::new(Recipe::raw);
static LANE: LazyLock<LaneName> = LazyLock::new(|| LaneName::new("contact:881").unwrap());
static NO_REASON: LazyLock<Arc<str>> = LazyLock::new(|| "".into());
