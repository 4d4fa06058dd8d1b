//! What people and scripts do with events: put one in, look at one, have it handed over again, set it aside, forget it.

use std::sync::Arc;

use bytes::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use twicesafe_ledger::{
    Actor, By, Dossier, Error, Intent, IntentId, Ledger, Name, Noted, Refusal, Resolution, Status, Stored,
    destination_key,
};

use super::arrival::{Arriving, due_in, period};
use super::event::{self, Event};
use super::handover::calls;
use super::meaning::{carrier, meant, replayed, resolve, stands_for};
use super::plan::TENANT;
use super::{Inbox, Inboxes};
use crate::config::Configuration;
use crate::error::ServerError;
use crate::gateway::Pausable;
use crate::server::Shared;
use crate::wire::InboxView;

/// The scope of an inbox's events.
pub fn scope_of(inbox: &str) -> String {
    format!("{TENANT}/in/{inbox}")
}

/// An event that somebody puts in by hand.
#[derive(Clone, Debug)]
pub struct Putting {
    /// The inbox.
    pub inbox: String,
    /// Its id; otherwise what the inbox calls it.
    pub id: Option<String>,
    /// Its body.
    pub body: Bytes,
    /// The type of its body.
    pub media_type: String,
}

/// Puts an event into an inbox, as if it had arrived: commits it, and says which intent it is and whether it is new.
pub async fn put_event(
    ledger: &Ledger,
    configuration: &Configuration,
    putting: Putting,
) -> Result<Vec<(IntentId, String, bool)>, ServerError> {
    let wrong = |words: String| ServerError::Event(words);
    // Whoever puts an event into one of them need not know the secrets of the others.
    let mut configuration = configuration.clone();
    configuration.inboxes.retain(|name, _| *name == putting.inbox);
    let inboxes = Inboxes::read(&configuration).map_err(|wrong| {
        let first = wrong.first().map(|wrong| format!("{}: {}", wrong.about, wrong.words));
        ServerError::Configuration(first.unwrap_or_default())
    })?;
    let inbox = inboxes.get(&putting.inbox).ok_or_else(|| ServerError::NoSuchInbox(putting.inbox.clone()))?;
    if putting.body.len() > inbox.bytes_max {
        return Err(ServerError::EventTooLarge(inbox.bytes_max));
    }
    let now_ms = ledger.store().now().await?.as_millis();
    let mut headers = HeaderMap::new();
    let media_type = HeaderValue::from_str(&putting.media_type)
        .map_err(|_| wrong("the type of the body is not one".to_owned()))?;
    headers.insert(CONTENT_TYPE, media_type);
    let view = event::view(&headers, |_| true, None, Some(&putting.body));
    let verified = format!("put in by {}", ledger.actor());
    let arriving =
        Arriving { inbox, verified: &verified, headers, query: None, period: period(inbox, now_ms) };
    let taken = match &putting.id {
        Some(id) => arriving.event(&view, putting.body, Some(id)).map(|taken| vec![taken]),
        None => arriving.events(&view, &putting.body),
    };
    let taken = taken.map_err(|problem| wrong(problem.message().to_owned()))?;
    let intents: Vec<Intent> = taken.into_iter().map(|taken| taken.intent).collect();
    let accepted = ledger.accept_all(&intents, due_in(inbox, now_ms)).await?;
    let told = accepted.into_iter().zip(&intents).filter_map(|(accepted, intent)| {
        let id = accepted.stored?.id;
        Some((id, intent.name().key.as_str().to_owned(), accepted.is_new))
    });
    Ok(told.collect())
}

/// An event, everything about it.
pub struct EventAt {
    /// What is believed of it, its journal and its request.
    pub dossier: Dossier,
    /// Its headers, as they are handed over.
    pub headers: Vec<(String, String)>,
    /// Its body, if it is kept.
    pub body: Option<Bytes>,
    /// How its sender was known.
    pub verified: Option<String>,
    /// The object it is about.
    pub object: Option<String>,
    /// What it means to the business.
    pub means: Option<String>,
    /// The object's version.
    pub version: Option<i64>,
    /// The query of the address it was sent to.
    pub query: Option<String>,
    /// What the target knows it by.
    pub webhook_id: Option<String>,
    /// The event that means the same and was handed over in place of this one, or is in review.
    pub same_as: Option<String>,
}

/// Looks at an event.
pub async fn event_named(ledger: &Ledger, inbox: &str, id: &str) -> Result<EventAt, Error> {
    let name = Name::new(&scope_of(inbox), id)?;
    let dossier = ledger.dossier(&name).await?.ok_or(Refusal::NoSuchIntent)?;
    let event = dossier.request.as_ref().and_then(Event::from_kept);
    let header = |(name, value): (&hyper::header::HeaderName, &HeaderValue)| {
        (name.as_str().to_owned(), String::from_utf8_lossy(value.as_bytes()).into_owned())
    };
    let (webhook_id, same_as) = known_as(ledger, inbox, &dossier, event.as_ref(), &name).await?;
    Ok(EventAt {
        headers: event.iter().flat_map(|event| event.headers.iter().map(header)).collect(),
        body: event.as_ref().map(|event| event.body.clone()),
        verified: event.as_ref().map(|event| event.facts.verified.clone()),
        object: event.as_ref().and_then(|event| event.facts.object.clone()),
        version: dossier.stored.record.place.as_ref().and_then(|place| place.version),
        query: event.as_ref().and_then(|event| event.query.clone()),
        webhook_id: event.as_ref().map(|_| webhook_id),
        same_as,
        means: event.and_then(|event| event.facts.means),
        dossier,
    })
}

/// What the target knows an event by, and the event that was handed over in its place, if another one was.
async fn known_as(
    ledger: &Ledger,
    inbox: &str,
    dossier: &Dossier,
    event: Option<&Event>,
    name: &Name,
) -> Result<(String, Option<String>), Error> {
    let stored = &dossier.stored;
    let generation = stored.record.generation;
    let stands_for = match event {
        Some(event) => stands_for(inbox, &event.facts, &name.key, replayed(ledger, stored).await?)?,
        None => None,
    };
    let Some(means) = stands_for else { return Ok((key_of(name, generation), None)) };
    let Some(meant) = ledger.look(&means).await? else { return Ok((key_of(&means, 1), None)) };
    let carrier = carrier(ledger, &meant).await?.filter(|carrier| *carrier != stored.id);
    let other = match carrier {
        // What is not carried out yet may still be this one's to carry out.
        Some(other) if matches!(meant.record.status, Status::Done | Status::Review) => {
            ledger.store().find_id(other).await?
        }
        _ => None,
    };
    let called =
        |other: Stored| other.record.name.map_or_else(|| other.id.to_string(), |name| name.key.to_string());
    Ok((key_of(&means, meant.record.generation), other.map(called)))
}

fn key_of(name: &Name, generation: u32) -> String {
    format!("msg_{}", destination_key(name, generation))
}

/// What a replay says when there is nothing to hand over.
pub const BODY_GONE: &str =
    "the body of this event is gone: it was forgotten, or kept as long as the inbox keeps events";
/// What can be done then.
pub const BODY_GONE_HINT: &str = "It cannot be handed over again. If you have its body, put it in under another id: twicesafe inbox put INBOX --id ID < event.json";

/// Has an event handed over again, in a new generation and with another id for its target (S29). What was not settled is set aside
/// first: a person decided, and that is no finding about whether it arrived.
pub async fn replay_event(
    ledger: &Ledger,
    who: &Actor,
    inbox: &str,
    id: &str,
    reason: &str,
) -> Result<Arc<Stored>, Error> {
    let name = Name::new(&scope_of(inbox), id)?;
    let dossier = ledger.dossier(&name).await?.ok_or(Refusal::NoSuchIntent)?;
    let record = &dossier.stored.record;
    let ledger = ledger.acting_as(who);
    match record.status {
        // Nothing would be done that is not done anyway.
        Status::Pending | Status::Held => return Err(Refusal::WrongStatus(record.status).into()),
        // It may have arrived, and is tried again by itself with the id that its target knows it by.
        Status::Retryable if record.due_at.is_some() && record.doubt => {
            return Err(Refusal::WrongStatus(record.status).into());
        }
        _ => {}
    }
    let request = dossier.request.as_ref().ok_or(Refusal::Purged)?;
    // What may still arrive is waited for, before anything is changed.
    let now = ledger.store().now().await?;
    let in_flight = |stored: &Stored| match stored.record.quiet_at.filter(|quiet_at| *quiet_at > now) {
        Some(quiet_at) => Err(Refusal::TooEarly(quiet_at)),
        None => Ok(()),
    };
    in_flight(&dossier.stored)?;
    // What it stands for may be in review, too, or was given up: for others it is begun anew as well.
    if let Some(meant) = meant(&ledger, inbox, &dossier.stored, Some(request)).await?
        && matches!(meant.record.status, Status::Review | Status::Failed)
    {
        in_flight(&meant)?;
        if meant.record.status == Status::Review {
            decided_with_another(&ledger, &dossier.stored, &meant).await?;
            ledger.resolve(By::from(who), &meant, Resolution::GiveUp, reason).await?;
        }
        // Unless what comes next stands for itself: then nobody would carry this one out.
        if record.status != Status::Done && replayed(&ledger, &dossier.stored).await?.is_none() {
            let name = meant.record.name.as_ref().ok_or(Refusal::Purged)?;
            let given_up = ledger.existing(name).await?;
            ledger.reset(By::from(who), &given_up, reason).await?;
        }
    }
    if !record.status.is_settled() {
        park_event(&ledger, who, inbox, id, reason).await?;
    }
    // Its request stays with it, and it is due at once.
    let settled = ledger.existing(&name).await?;
    ledger.reset(By::from(who), &settled, reason).await?;
    ledger.existing(&name).await
}

/// Refuses where what an event means is in review with another one: that is to be decided, and then holds for this one.
async fn decided_with_another(ledger: &Ledger, event: &Stored, meant: &Stored) -> Result<(), Error> {
    let Some(other) = carrier(ledger, meant).await?.filter(|carrier| *carrier != event.id) else {
        return Ok(());
    };
    let other = ledger.store().find_id(other).await?.map(|other| other.record.status);
    match other.filter(|status| !status.is_settled()) {
        Some(status) => Err(Refusal::WrongStatus(status).into()),
        None => Ok(()),
    }
}

/// Sets an event aside: it is not handed over, whatever arrives again, until somebody has it replayed (S38).
pub async fn park_event(
    ledger: &Ledger,
    who: &Actor,
    inbox: &str,
    id: &str,
    reason: &str,
) -> Result<Noted, Error> {
    let stored = ledger.existing(&Name::new(&scope_of(inbox), id)?).await?;
    match stored.record.status {
        Status::Review => resolve(ledger, who, &stored, Resolution::GiveUp, reason).await,
        _ => ledger.reject(By::from(who), &stored, reason).await,
    }
}

/// Drops everything of an event that could identify anybody, also at the destination it was handed to; its redelivery is still known.
/// One that waits is set aside first.
pub async fn forget_event(
    ledger: &Ledger,
    who: &Actor,
    inbox: &str,
    id: &str,
    reason: &str,
) -> Result<Noted, Error> {
    let name = Name::new(&scope_of(inbox), id)?;
    let dossier = ledger.dossier(&name).await?.ok_or(Refusal::NoSuchIntent)?;
    let (stored, request) = (&dossier.stored, &dossier.request);
    let mut along = Vec::new();
    for call in calls(&dossier) {
        let Some(call) = ledger.store().find_id(call).await? else { continue };
        if !call.record.status.is_settled() {
            return Err(Refusal::WrongStatus(call.record.status).into());
        }
        along.push(Arc::new(call));
    }
    // What it stands for keeps the target's answer.
    let meant = meant(ledger, inbox, stored, request.as_ref()).await?;
    along.extend(meant.filter(|meant| meant.record.status.is_settled()));
    if !stored.record.status.is_settled() {
        park_event(ledger, who, inbox, id, reason).await?;
    }
    for intent in along {
        ledger.forget(By::from(who), &intent, reason).await?;
    }
    ledger.forget(By::from(who), stored, reason).await
}

/// How an inbox stands, for people.
pub(crate) struct Standing;

impl Standing {
    pub(crate) fn of(shared: &Shared, inbox: &Inbox) -> InboxView {
        let counted = shared.metrics.inbox_counts(&inbox.name);
        InboxView {
            name: inbox.name.clone(),
            scope: inbox.scope.as_str().to_owned(),
            sender: inbox.sender.clone(),
            paused: shared.pauses.why(Pausable::Inbox, &inbox.name),
            counts: counted.counts.iter().map(|(what, count)| ((*what).to_owned(), *count)).collect(),
            lag_ms: u64::try_from(counted.lag.as_millis()).unwrap_or(u64::MAX),
        }
    }
}
