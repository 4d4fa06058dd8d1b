//! What an event stands for, where others may stand for it, too: an intent of its own. It is carried out by one of them, and what a
//! person finds out about that one is found out about it.

use std::sync::Arc;

use bytes::Bytes;
use twicesafe_ledger::journal::Event as Moved;
use twicesafe_ledger::{
    Actor, By, Error, IntentId, InvalidName, Key, KeyPart, Ledger, Name, Noted, Resolution, Scope, Status,
    Stored,
};

use super::event::{Event, Facts};
use super::inbox_of;
use super::plan::TENANT;

/// What the holder of such an intent begins with: the number of the event that carries it out follows.
const HOLDER: &str = "event ";

/// The generation of an event that was handed over before, and is again because a person wanted it.
pub(super) async fn replayed(ledger: &Ledger, stored: &Stored) -> Result<Option<u32>, Error> {
    let generation = stored.record.generation;
    let Some(name) = stored.record.name.as_ref().filter(|_| generation > 1) else { return Ok(None) };
    let dossier = ledger.store().dossier(name).await?;
    let earlier = dossier.iter().flat_map(|dossier| &dossier.earlier);
    Ok(earlier.into_iter().any(|earlier| earlier.status == Status::Done).then_some(generation))
}

/// What an event stands for, if others may stand for it, too: what it means, or that its object has changed in a span of time. What was
/// handed over and is wanted again (`replayed`) stands for itself, whatever others have meant before.
pub(super) fn stands_for(
    inbox: &str,
    facts: &Facts,
    id: &Key,
    replayed: Option<u32>,
) -> Result<Option<Name>, InvalidName> {
    let (kind, mut parts) = match (facts.hinted(), &facts.means) {
        (Some((object, period)), _) => ("hint", vec![KeyPart::Text(object), KeyPart::Integer(period)]),
        (None, Some(means)) => ("intent", vec![KeyPart::Text(means)]),
        (None, None) => return Ok(None),
    };
    if let Some(generation) = replayed {
        parts.extend([KeyPart::Text(id.as_str()), KeyPart::Integer(i64::from(generation))]);
    }
    let scope = Scope::new(&format!("{}/{kind}/in/{inbox}", TENANT))?;
    Ok(Some(Name { scope, key: Key::composed(kind, &parts)? }))
}

/// The intent that an event stands for, as it was kept, if others may stand for it, too.
pub(super) async fn meant(
    ledger: &Ledger,
    inbox: &str,
    stored: &Stored,
    request: Option<&Bytes>,
) -> Result<Option<Arc<Stored>>, Error> {
    let event = request.and_then(Event::from_kept);
    let (Some(event), Some(name)) = (event, &stored.record.name) else { return Ok(None) };
    let again = replayed(ledger, stored).await?;
    match stands_for(inbox, &event.facts, &name.key, again)? {
        Some(name) => ledger.look(&name).await,
        None => Ok(None),
    }
}

/// How the event that carries it out is named beside it: by number, so that who forgets the event need not look for it.
pub(super) fn carried_by(event: IntentId) -> Actor {
    Actor::new(&format!("{HOLDER}{event}")).expect("a number is a name")
}

/// The event that carried out last what it and others stand for.
pub(super) async fn carrier(ledger: &Ledger, meant: &Stored) -> Result<Option<IntentId>, Error> {
    let journal = ledger.store().journal(meant.id).await?;
    let last = journal.iter().rfind(|row| row.entry.event == Moved::Claimed);
    let number =
        |reason: &str| reason.strip_prefix("by ")?.strip_prefix(HOLDER)?.strip_prefix('#')?.parse().ok();
    Ok(last.and_then(|row| number(&row.entry.reason)).map(IntentId::new))
}

/// Whether what an event means was done, whatever became of the event.
pub async fn is_done_otherwise(ledger: &Ledger, inbox: &str, stored: &Stored) -> Result<bool, Error> {
    let request = ledger.store().request(stored.id).await?;
    let meant = meant(ledger, inbox, stored, request.as_ref()).await?;
    Ok(meant.is_some_and(|meant| meant.record.status == Status::Done))
}

/// Says what happened to an intent in review. If that is an event, what it means is settled first: whoever finds out about the one has
/// found out about the other, and should this end in between, the event still waits for them.
pub async fn resolve(
    ledger: &Ledger,
    by: impl Into<By>,
    seen: &Stored,
    resolution: Resolution,
    reason: &str,
) -> Result<Noted, Error> {
    let by = by.into();
    if let Some(meant) = in_doubt_with(ledger, seen, &resolution).await? {
        ledger.resolve(By::from(&by.who), &meant, resolution.clone(), reason).await?;
    }
    ledger.resolve(by, seen, resolution, reason).await
}

/// What an event in review means, if that is in review, too, and the finding holds for it. That it happened does, whoever carried it
/// out last; anything else is known only of the event that did.
async fn in_doubt_with(
    ledger: &Ledger,
    seen: &Stored,
    resolution: &Resolution,
) -> Result<Option<Arc<Stored>>, Error> {
    let Some(inbox) = seen.record.name.as_ref().and_then(|name| inbox_of(name.scope.as_str())) else {
        return Ok(None);
    };
    let now = ledger.store().find_id(seen.id).await?;
    // Whoever saw something else is told so, and nothing is settled.
    let is_as_seen =
        |now: &Stored| now.record.status == Status::Review && now.record.fence == seen.record.fence;
    let Some(event) = now.filter(is_as_seen) else { return Ok(None) };
    let request = ledger.store().request(event.id).await?;
    let meant = meant(ledger, inbox, &event, request.as_ref()).await?;
    let Some(meant) = meant.filter(|meant| meant.record.status == Status::Review) else { return Ok(None) };
    let holds = match resolution {
        Resolution::Happened(_) => true,
        _ => carrier(ledger, &meant).await?.is_none_or(|carrier| carrier == event.id),
    };
    Ok(holds.then_some(meant))
}

/// Whether people are told of such an intent by the event that carried it out: its own name says nothing to anybody. Where that one was
/// decided about, and this was not, they are told of it all the same.
pub(crate) async fn is_told_by_its_event(ledger: &Ledger, stored: &Stored) -> bool {
    let scope = stored.record.name.as_ref().map_or("", |name| name.scope.as_str());
    let of_tenant = scope.strip_prefix(TENANT).and_then(|rest| rest.strip_prefix('/'));
    if !of_tenant.is_some_and(|rest| rest.starts_with("intent/in/") || rest.starts_with("hint/in/")) {
        return false;
    }
    let Ok(Some(event)) = carrier(ledger, stored).await else { return false };
    let event = ledger.store().find_id(event).await;
    event.is_ok_and(|event| event.is_some_and(|event| !event.record.status.is_settled()))
}
