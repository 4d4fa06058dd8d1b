//! Commands in few words.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use twicesafe_core::{
    Action, Actor, Answer, Claim, Command, CommandId, Finding, Fingerprint, Grant, LaneName, Name, Outcome,
    Permit, PermitSecret, Place, Policy, Recipe, Report, Salt, Settle, Step, Verdict,
};
use twicesafe_store::{Applied, Order};

pub const SCOPE: &str = "default/test/shop/charge.create";

pub fn name(key: &str) -> Name {
    Name::new(SCOPE, key).unwrap()
}

pub fn actor(text: &str) -> Actor {
    Actor::new(text).unwrap()
}

/// An id no other command has, in this process or in another.
pub fn fresh_id() -> CommandId {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let number = u128::from(NEXT.fetch_add(1, Ordering::Relaxed));
    CommandId::new((u128::from(std::process::id()) << 64 | number).to_be_bytes())
}

/// A claim in the making; an [`Order`] when it is done.
#[derive(Clone)]
pub struct Claiming {
    id: CommandId,
    actor: Actor,
    claim: Claim,
}

pub fn claim(key: &str, policy: &Policy) -> Claiming {
    let claim = Claim {
        name: name(key),
        fingerprint: Fingerprint::of(&Recipe::raw(), b"input"),
        policy: Arc::new(policy.clone()),
        place: None,
        step: None,
        request: None,
        salt: Salt([7; 16]),
        holder: None,
        grant: Grant::Permit,
        about: None,
    };
    Claiming { id: fresh_id(), actor: actor("caller"), claim }
}

impl Claiming {
    pub fn by(mut self, who: &str) -> Self {
        self.actor = actor(who);
        self
    }

    /// Another one acts than who asks.
    pub fn held_by(mut self, holder: &str) -> Self {
        self.claim.holder = Some(actor(holder));
        self
    }

    pub fn with_name(mut self, name: Name) -> Self {
        self.claim.name = name;
        self
    }

    pub fn with_input(mut self, recipe: &Recipe, input: &[u8]) -> Self {
        self.claim.fingerprint = Fingerprint::of(recipe, input);
        self
    }

    pub fn in_lane(mut self, lane: &str, version: Option<i64>) -> Self {
        self.claim.place = Some(Place { lane: LaneName::new(lane).unwrap(), version });
        self
    }

    pub fn in_work(mut self, work: &str, step: &str) -> Self {
        self.claim.step = Some(Step::new(work, step).unwrap());
        self
    }

    pub fn with_request(mut self, request: &'static [u8]) -> Self {
        self.claim.request = Some(Bytes::from_static(request));
        self
    }

    /// Only to be accepted, and claimed later.
    pub fn accepted(mut self, due_in: Duration) -> Self {
        self.claim.grant = Grant::Accept { due_in };
        self
    }
}

impl From<Claiming> for Order {
    fn from(claiming: Claiming) -> Self {
        let Claiming { id, actor, claim } = claiming;
        let name = claim.name.clone();
        Order::named(name, Command { id, actor, action: Action::Claim(Box::new(claim)) })
    }
}

pub fn command(who: &str, action: Action) -> Command {
    Command { id: fresh_id(), actor: actor(who), action }
}

/// A command about an intent, on what is believed of it since `applied`.
pub fn about(applied: &Applied, who: &str, action: Action) -> Order {
    Order::believing(applied.stored.clone().expect("there is an intent"), command(who, action))
}

/// A command about the intent with that key, on no belief.
pub fn on(key: &str, who: &str, action: Action) -> Order {
    Order::named(name(key), command(who, action))
}

pub fn permit(applied: &Applied) -> &Permit {
    match &applied.verdict {
        Verdict::Proceed(permit) => permit,
        other => panic!("a permit was expected, not {other:?}"),
    }
}

/// The report of who got that permit.
pub fn settle(permitted: &Applied, outcome: Outcome) -> Order {
    about(permitted, &who_got(permitted), Action::Settle(report(permit(permitted), Report::Act(outcome))))
}

/// The report of who got that permit to look up.
pub fn looked_up(permitted: &Applied, finding: Finding) -> Order {
    about(permitted, &who_got(permitted), Action::Settle(report(permit(permitted), Report::Lookup(finding))))
}

/// Whom a permit was given to: who has it, or else who asked for somebody who has it (S48).
fn who_got(permitted: &Applied) -> String {
    let record = &permitted.stored.as_ref().expect("there is an intent").record;
    let Permit { fence, generation, secret, .. } = *permit(permitted);
    let holder = &record.attempt.as_ref().expect("a permit is out").holder;
    let of = |actor| PermitSecret::of(record.salt.expect("a salt"), fence, generation, actor);
    if of(holder) == secret { holder.to_string() } else { "caller".to_owned() }
}

pub fn renew(permitted: &Applied) -> Action {
    let Permit { fence, secret, .. } = *permit(permitted);
    Action::Renew(twicesafe_core::Renew { fence, secret, holder: None })
}

pub fn report(permit: &Permit, report: Report) -> Settle {
    Settle { fence: permit.fence, generation: permit.generation, secret: permit.secret, report }
}

pub fn answered(body: &'static str) -> Outcome {
    Outcome::Answered(Answer::of(body))
}
