//! What people decide. Every decision says what it is about, so that one made about an earlier state does not hold for a
//! later one.

use std::sync::Arc;

use twicesafe_core::{
    Action, Actor, Adopt, Answer, Approve, Command, CommandId, Forget, MarkUndone, Name, Noted, Policy,
    Purge, Refusal, Reject, Reset, Resolution, Resolve, Salt, Verdict,
};
use twicesafe_store::{Applied, Order, Stored};

use crate::error::Error;
use crate::ledger::{Ledger, new_command_id, random};

/// Something that happened, according to the source of truth.
#[derive(Clone, Debug)]
pub struct Adoption {
    /// What it is called.
    pub name: Name,
    /// What is agreed, if the ledger has not heard of it.
    pub policy: Arc<Policy>,
    /// What is known of what happened.
    pub answer: Answer,
}

/// Who decides, and their id for the decision: the same again is the same decision (S12).
#[derive(Clone, Debug)]
pub struct By {
    /// Who.
    pub who: Actor,
    /// Their id for it.
    pub id: CommandId,
}

impl From<&Actor> for By {
    fn from(who: &Actor) -> Self {
        Self { who: who.clone(), id: new_command_id() }
    }
}

impl Ledger {
    /// Says yes to what is held now, as it was looked at.
    pub async fn approve(&self, by: impl Into<By>, seen: &Stored) -> Result<Noted, Error> {
        let fingerprint = seen.record.fingerprint.clone();
        self.decide(
            by.into(),
            seen,
            Action::Approve(Approve { generation: seen.record.generation, fingerprint }),
        )
        .await
    }

    /// Says no to what is held now.
    pub async fn reject(&self, by: impl Into<By>, seen: &Stored, reason: &str) -> Result<Noted, Error> {
        let reject = Reject { generation: seen.record.generation, reason: reason.into() };
        self.decide(by.into(), seen, Action::Reject(reject)).await
    }

    /// Says what happened to an intent in review.
    pub async fn resolve(
        &self,
        by: impl Into<By>,
        seen: &Stored,
        resolution: Resolution,
        reason: &str,
    ) -> Result<Noted, Error> {
        let resolve = Resolve { about: seen.record.fence, resolution, reason: reason.into() };
        self.decide(by.into(), seen, Action::Resolve(resolve)).await
    }

    /// Starts a new generation of something settled: the next claim may act again.
    pub async fn reset(&self, by: impl Into<By>, seen: &Stored, reason: &str) -> Result<Noted, Error> {
        let reset = Reset { generation: seen.record.generation, reason: reason.into() };
        self.decide(by.into(), seen, Action::Reset(reset)).await
    }

    /// Notes that an effect was compensated.
    pub async fn mark_undone(&self, by: impl Into<By>, seen: &Stored, reason: &str) -> Result<Noted, Error> {
        let mark = MarkUndone { generation: seen.record.generation, reason: reason.into() };
        self.decide(by.into(), seen, Action::MarkUndone(mark)).await
    }

    /// Drops bodies, salt and key text; the intent still does not happen again.
    pub async fn forget(&self, by: impl Into<By>, seen: &Stored, reason: &str) -> Result<Noted, Error> {
        self.decide(by.into(), seen, Action::Forget(Forget { reason: reason.into() })).await
    }

    /// Drops what need not be kept any longer, now and not at the next sweep: the answer, and the tombstone with it where that
    /// has no time of its own.
    pub async fn purge(&self, seen: &Stored) -> Result<(), Error> {
        for _ in 0..2 {
            let action = Action::Purge(Purge { work_is_open: false });
            let command = Command { id: new_command_id(), actor: Actor::sweep(), action };
            self.apply(Order::numbered(seen.id, command)).await?;
        }
        Ok(())
    }

    /// Records what happened according to the source of truth, whether or not the ledger has heard of it. Each is noted or
    /// refused by itself; all share a transaction.
    pub async fn adopt(
        &self,
        who: &Actor,
        adoptions: Vec<Adoption>,
        reason: &str,
    ) -> Vec<Result<Noted, Error>> {
        let reason: Arc<str> = reason.into();
        let order = |Adoption { name, policy, answer }| {
            let salt = Salt(random());
            let adopt = Adopt {
                name: Name::clone(&name),
                fingerprint: None,
                policy,
                answer,
                reason: reason.clone(),
                salt,
            };
            let action = Action::Adopt(Box::new(adopt));
            Order::named(name, Command { id: new_command_id(), actor: who.clone(), action })
        };
        let results = self.store().apply(adoptions.into_iter().map(order).collect()).await;
        let noted = |applied: Applied| {
            self.raise(&applied);
            noted(applied.verdict)
        };
        results.into_iter().map(|result| result.map_err(Error::from).and_then(noted)).collect()
    }

    /// The intent with that name, or the refusal that there is none.
    pub async fn existing(&self, name: &Name) -> Result<std::sync::Arc<Stored>, Error> {
        self.look(name).await?.ok_or(Error::Ledger(Refusal::NoSuchIntent))
    }

    async fn decide(&self, By { who, id }: By, seen: &Stored, action: Action) -> Result<Noted, Error> {
        let command = Command { id, actor: who, action };
        let applied = self.apply(Order::numbered(seen.id, command)).await?;
        noted(applied.verdict)
    }
}

fn noted(verdict: Verdict) -> Result<Noted, Error> {
    match verdict {
        Verdict::Noted(noted) => Ok(noted),
        Verdict::Refuse(refusal) => Err(refusal.into()),
        other => unreachable!("a decision is noted or refused, not {other:?}"),
    }
}
