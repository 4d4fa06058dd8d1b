//! What people decide. Every decision says what it is about, so that one made about an earlier state does not hold for a
//! later one.

use twicesafe_core::{
    Action, Actor, Approve, Command, Forget, MarkUndone, Name, Noted, Refusal, Reject, Reset, Resolution,
    Resolve, Verdict,
};
use twicesafe_store::{Order, Stored};

use crate::error::Error;
use crate::ledger::{Ledger, new_command_id};

impl Ledger {
    /// Says yes to what is held now, as it was looked at.
    pub async fn approve(&self, who: &Actor, seen: &Stored) -> Result<Noted, Error> {
        let fingerprint = seen.record.fingerprint.clone();
        self.decide(who, seen, Action::Approve(Approve { generation: seen.record.generation, fingerprint }))
            .await
    }

    /// Says no to what is held now.
    pub async fn reject(&self, who: &Actor, seen: &Stored, reason: &str) -> Result<Noted, Error> {
        let reject = Reject { generation: seen.record.generation, reason: reason.into() };
        self.decide(who, seen, Action::Reject(reject)).await
    }

    /// Says what happened to an intent in review.
    pub async fn resolve(
        &self,
        who: &Actor,
        seen: &Stored,
        resolution: Resolution,
        reason: &str,
    ) -> Result<Noted, Error> {
        let resolve = Resolve { about: seen.record.fence, resolution, reason: reason.into() };
        self.decide(who, seen, Action::Resolve(resolve)).await
    }

    /// Starts a new generation of something settled: the next claim may act again.
    pub async fn reset(&self, who: &Actor, seen: &Stored, reason: &str) -> Result<Noted, Error> {
        let reset = Reset { generation: seen.record.generation, reason: reason.into() };
        self.decide(who, seen, Action::Reset(reset)).await
    }

    /// Notes that an effect was compensated.
    pub async fn mark_undone(&self, who: &Actor, seen: &Stored, reason: &str) -> Result<Noted, Error> {
        let mark = MarkUndone { generation: seen.record.generation, reason: reason.into() };
        self.decide(who, seen, Action::MarkUndone(mark)).await
    }

    /// Drops bodies, salt and key text; the intent still does not happen again.
    pub async fn forget(&self, who: &Actor, seen: &Stored, reason: &str) -> Result<Noted, Error> {
        self.decide(who, seen, Action::Forget(Forget { reason: reason.into() })).await
    }

    /// The intent with that name, or the refusal that there is none.
    pub async fn existing(&self, name: &Name) -> Result<std::sync::Arc<Stored>, Error> {
        self.look(name).await?.ok_or(Error::Ledger(Refusal::NoSuchIntent))
    }

    async fn decide(&self, who: &Actor, seen: &Stored, action: Action) -> Result<Noted, Error> {
        let command = Command { id: new_command_id(), actor: who.clone(), action };
        let applied = self.apply(Order::numbered(seen.id, command)).await?;
        match applied.verdict {
            Verdict::Noted(noted) => Ok(noted),
            Verdict::Refuse(refusal) => Err(refusal.into()),
            other => unreachable!("a decision is noted or refused, not {other:?}"),
        }
    }
}
