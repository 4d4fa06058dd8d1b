//! Inboxes and their events: looking, and what people decide about them.

use hyper::StatusCode;
use serde_json::json;
use twicesafe_ledger::{Code, Error, Refusal, Stored};

use super::parse::{self, Parameters};
use super::{Call, facts};
use crate::gateway::{self, Pausable};
use crate::http::{Problem, Response};
use crate::inbox::{self, Standing};
use crate::server::Shared;
use crate::wire::{AnswerView, EventRequest, EventView, InboxRequest, InboxesView, IntentView, JournalView};

pub(super) fn list(shared: &Shared, call: &Call<'_>) -> Result<Response, Problem> {
    Parameters::of(call.request, &[])?;
    let inboxes = shared.inboxes();
    let reached = inboxes.iter().filter(|inbox| call.principal.reaches(&inbox::scope_of(&inbox.name)));
    let inboxes = reached.map(|inbox| Standing::of(shared, inbox)).collect();
    Ok(Response::json(StatusCode::OK, &InboxesView { inboxes }))
}

pub(super) async fn event(shared: &Shared, call: &Call<'_>) -> Result<Response, Problem> {
    let asked = Parameters::of(call.request, &["inbox", "id"])?;
    let name = asked.required("inbox")?;
    call.principal.demand_scope(&inbox::scope_of(name))?;
    let event = inbox::event_named(&shared.ledger, name, asked.required("id")?).await?;
    let stored = &event.dossier.stored;
    let shown = EventView {
        intent: IntentView::of(stored),
        verified: event.verified,
        object: event.object,
        means: event.means,
        version: event.version,
        query: event.query,
        webhook_id: event.webhook_id,
        same_as: event.same_as,
        headers: event.headers,
        body: event.body.map(|body| String::from_utf8_lossy(&body).into_owned()),
        answer: stored.record.answer.as_ref().map(AnswerView::of),
        deliveries: event.dossier.journal.iter().map(JournalView::of).collect(),
    };
    Ok(Response::json(StatusCode::OK, &shown))
}

pub(super) async fn replay(shared: &Shared, call: &Call<'_>) -> Result<Response, Problem> {
    let asked = decision(call)?;
    let who = &call.principal.actor;
    let replayed = inbox::replay_event(&shared.ledger, who, &asked.inbox, &asked.id, &asked.reason).await;
    let stored = replayed.map_err(|error| match error {
        Error::Ledger(Refusal::Purged) => Problem::new(Code::Gone, inbox::BODY_GONE, inbox::BODY_GONE_HINT),
        error => error.into(),
    })?;
    if let Some(inbox) = shared.inboxes().get(&asked.inbox) {
        inbox.fresh.miss();
    }
    Ok(told(&stored))
}

pub(super) async fn park(shared: &Shared, call: &Call<'_>) -> Result<Response, Problem> {
    let asked = decision(call)?;
    let who = &call.principal.actor;
    inbox::park_event(&shared.ledger, who, &asked.inbox, &asked.id, &asked.reason).await?;
    stands(shared, &asked).await
}

pub(super) async fn forget(shared: &Shared, call: &Call<'_>) -> Result<Response, Problem> {
    let asked = decision(call)?;
    let who = &call.principal.actor;
    inbox::forget_event(&shared.ledger, who, &asked.inbox, &asked.id, &asked.reason).await?;
    stands(shared, &asked).await
}

pub(super) async fn pause(shared: &Shared, call: &Call<'_>) -> Result<Response, Problem> {
    let asked = known(shared, call)?;
    let reason = if asked.reason.is_empty() { "no reason was given" } else { &asked.reason };
    gateway::pause(&shared.ledger, Pausable::Inbox, &asked.inbox, reason).await?;
    shared.pauses.refresh(&shared.ledger).await?;
    Ok(Response::json(StatusCode::OK, &json!({ "inbox": asked.inbox, "paused": reason })))
}

pub(super) async fn resume(shared: &Shared, call: &Call<'_>) -> Result<Response, Problem> {
    let asked = known(shared, call)?;
    gateway::resume(&shared.ledger, Pausable::Inbox, &asked.inbox).await?;
    shared.pauses.refresh(&shared.ledger).await?;
    Ok(Response::json(StatusCode::OK, &json!({ "inbox": asked.inbox, "paused": null })))
}

fn known(shared: &Shared, call: &Call<'_>) -> Result<InboxRequest, Problem> {
    let asked: InboxRequest = parse::body(call.request)?;
    parse::check_lengths(None, Some(&asked.reason))?;
    call.principal.demand_to_change(&inbox::scope_of(&asked.inbox))?;
    match shared.inboxes().get(&asked.inbox) {
        Some(_) => Ok(asked),
        None => Err(Problem::new(
            Code::NoSuchInbox,
            "there is no inbox with that name",
            "GET /v1/inboxes lists them.",
        )),
    }
}

/// A decision about an event, which must give a reason.
fn decision(call: &Call<'_>) -> Result<EventRequest, Problem> {
    let asked: EventRequest = parse::body(call.request)?;
    parse::check_lengths(None, Some(&asked.reason))?;
    call.principal.demand_to_change(&inbox::scope_of(&asked.inbox))?;
    match asked.reason.trim().is_empty() {
        false => Ok(asked),
        true => Err(Problem::bad_request(
            "there is no reason",
            "Add `reason`: some words for those who read the journal later.",
        )),
    }
}

async fn stands(shared: &Shared, asked: &EventRequest) -> Result<Response, Problem> {
    let name = twicesafe_ledger::Name::new(&inbox::scope_of(&asked.inbox), &asked.id)?;
    Ok(told(&*shared.ledger.existing(&name).await?))
}

fn told(stored: &Stored) -> Response {
    Response::json(StatusCode::OK, &facts(stored))
}
