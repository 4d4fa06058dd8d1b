//! What people decide: `approve`, `reject`, `resolve`, `reset`, `forget`.

use std::io::Write;
use std::sync::Arc;

use clap::Args;
use serde_json::json;
use twicesafe_core::journal::Event;
use twicesafe_core::legible;
use twicesafe_ledger::{
    Actor, Answer, Error, ExternalId, JournalRow, Ledger, Name, Noted, Refusal, Resolution, Status, Stored,
};

use super::{next, portrait, say};
use crate::failure::Failure;
use crate::output::print_json;
use crate::place;

/// Which intent a decision is about, and who decides.
#[derive(Args)]
pub(crate) struct About {
    /// The intent's scope.
    scope: String,
    /// Its key.
    key: String,
    /// Who decides, for the journal. Otherwise who runs this: user and host.
    #[arg(long = "as", value_name = "NAME")]
    who: Option<String>,
}

#[derive(Args)]
pub(crate) struct Approve {
    #[command(flatten)]
    about: About,
}

#[derive(Args)]
pub(crate) struct Reject {
    #[command(flatten)]
    about: About,
    /// Why.
    #[arg(long, value_name = "TEXT", value_parser = parse_reason)]
    reason: String,
}

#[derive(Args)]
pub(crate) struct Resolve {
    #[command(flatten)]
    about: About,
    #[command(flatten)]
    finding: Finding,
    /// What the destination calls it, where it happened.
    #[arg(long, value_name = "ID", conflicts_with_all = ["did_not_happen", "give_up"])]
    external_id: Option<String>,
    /// How you know.
    #[arg(long, value_name = "TEXT", value_parser = parse_reason)]
    reason: String,
}

#[derive(Args)]
#[group(required = true, multiple = false)]
pub(crate) struct Finding {
    /// It happened: whoever asks again is told that it is done.
    #[arg(long)]
    happened: bool,
    /// It did not: whoever asks again acts.
    #[arg(long)]
    did_not_happen: bool,
    /// Nobody can tell, and it is left at that: whoever asks again is refused.
    #[arg(long)]
    give_up: bool,
}

#[derive(Args)]
pub(crate) struct Reset {
    #[command(flatten)]
    about: About,
    /// Why it should happen again.
    #[arg(long, value_name = "TEXT", value_parser = parse_reason)]
    reason: String,
}

#[derive(Args)]
pub(crate) struct Forget {
    #[command(flatten)]
    about: About,
    /// Why.
    #[arg(long, value_name = "TEXT", value_parser = parse_reason)]
    reason: String,
}

pub(super) fn parse_reason(text: &str) -> Result<String, String> {
    match text.trim() {
        "" => Err("a reason is some words for those who read the journal later".to_owned()),
        words => Ok(words.to_owned()),
    }
}

pub(super) async fn approve(
    ledger: &Ledger,
    asked: Approve,
    json: bool,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let decision = Decision::about(ledger, &asked.about).await?;
    let noted = ledger.approve(&decision.who, &decision.seen).await;
    decision.tell(noted, Event::Approved, json, out).await
}

pub(super) async fn reject(
    ledger: &Ledger,
    asked: Reject,
    json: bool,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let decision = Decision::about(ledger, &asked.about).await?;
    let noted = ledger.reject(&decision.who, &decision.seen, &asked.reason).await;
    decision.tell(noted, Event::Rejected, json, out).await
}

pub(super) async fn resolve(
    ledger: &Ledger,
    asked: Resolve,
    json: bool,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let external_id = match &asked.external_id {
        Some(text) => {
            Some(ExternalId::new(text).ok_or_else(|| Failure::Usage("the external id is empty".to_owned()))?)
        }
        None => None,
    };
    let (resolution, event) = match asked.finding {
        Finding { happened: true, .. } => {
            (Resolution::Happened(Answer { external_id, ..Answer::default() }), Event::Happened)
        }
        Finding { did_not_happen: true, .. } => (Resolution::DidNotHappen, Event::DidNotHappen),
        Finding { .. } => (Resolution::GiveUp, Event::GivenUp),
    };
    let decision = Decision::about(ledger, &asked.about).await?;
    // What an event means is settled with it.
    let noted =
        twicesafe_server::resolve(ledger, &decision.who, &decision.seen, resolution.clone(), &asked.reason)
            .await;
    if let (Err(Error::Ledger(Refusal::WrongStatus(_))), Resolution::Happened(answer)) = (&noted, &resolution)
        && let Some(id) = &answer.external_id
        && portrait::external_id(&decision.seen.record) != Some(id.as_str())
    {
        return Err(decision.explained(Refusal::WrongStatus(decision.seen.record.status)));
    }
    decision.tell(noted, event, json, out).await
}

pub(super) async fn reset(
    ledger: &Ledger,
    asked: Reset,
    json: bool,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let decision = Decision::about(ledger, &asked.about).await?;
    let noted = ledger.reset(&decision.who, &decision.seen, &asked.reason).await;
    decision.tell(noted, Event::Reset, json, out).await
}

pub(super) async fn forget(
    ledger: &Ledger,
    asked: Forget,
    json: bool,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let decision = Decision::about(ledger, &asked.about).await?;
    let noted = ledger.forget(&decision.who, &decision.seen, &asked.reason).await;
    decision.tell(noted, Event::Forgotten, json, out).await
}

/// A decision about an intent as it was seen.
struct Decision<'a> {
    ledger: &'a Ledger,
    name: Name,
    who: Actor,
    seen: Arc<Stored>,
}

impl<'a> Decision<'a> {
    async fn about(ledger: &'a Ledger, about: &About) -> Result<Self, Failure> {
        let name = Name::new(&about.scope, &about.key)?;
        let who = match &about.who {
            Some(who) => Actor::new(who)?,
            None => Actor::new(&place::whoami())?,
        };
        let seen = ledger.existing(&name).await?;
        Ok(Self { ledger, name, who, seen })
    }

    /// Says where the intent stands now. The same decision again is no error, and says that nothing changed (S12).
    async fn tell(
        &self,
        noted: Result<Noted, Error>,
        event: Event,
        json: bool,
        out: &mut impl Write,
    ) -> Result<(), Failure> {
        let noted = match noted {
            Ok(noted) => noted,
            Err(Error::Ledger(Refusal::WrongStatus(status))) if self.was_decided(event).await? => {
                Noted { status, changed: false }
            }
            Err(Error::Ledger(refusal)) => return Err(self.explained(refusal)),
            Err(error) => return Err(error.into()),
        };
        let (scope, key) = (&self.name.scope, &self.name.key);
        if json {
            let value = json!({
                "scope": scope.as_str(),
                "key": key.as_str(),
                "status": noted.status.as_str(),
                "changed": noted.changed,
                "decided_by": self.who.as_str(),
            });
            return Ok(print_json(out, &value)?);
        }
        writeln!(out, "{scope} {}: {}", legible::line(key.as_str()), noted.status)?;
        if !noted.changed {
            say(&format!("Nothing changed: \"{event}\" was decided before."));
        } else if let Some(now) = self.ledger.look(&self.name).await? {
            if noted.status == Status::Held {
                say("That was a yes; more people must say yes.");
            }
            say(&format!("Next: {}", next::step(&now, self.ledger.store().now().await?)));
        }
        Ok(())
    }

    /// Whether the last that people decided about this intent was just this.
    async fn was_decided(&self, event: Event) -> Result<bool, Failure> {
        let rows = self.ledger.store().journal(self.seen.id).await?;
        let last = rows.iter().rfind(|row| !is_footnote(row));
        Ok(last.is_some_and(|row| row.entry.event == event))
    }

    /// A refusal with what an operator needs to go on.
    fn explained(&self, refusal: Refusal) -> Failure {
        match refusal {
            Refusal::TooEarly(_) => Failure::coded(
                refusal.code(),
                refusal.to_string(),
                "Wait until then, look at the destination again, and decide.",
            ),
            Refusal::WrongStatus(_) | Refusal::Moved => Failure::coded(
                refusal.code(),
                refusal.to_string(),
                format!("Look again: {}", next::command("show", &self.name, "")),
            ),
            refusal => Error::from(refusal).into(),
        }
    }
}

/// Rows that are about an intent without moving it.
fn is_footnote(row: &JournalRow) -> bool {
    matches!(row.entry.event, Event::Evidence | Event::Quiet)
}
