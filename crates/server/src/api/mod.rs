//! The API: claim, settle, look, decide, for any language. One table of routes is what is served and what the OpenAPI document
//! says.

mod claims;
mod deciding;
mod events;
mod inboxes;
mod looking;
mod openapi;
mod parse;

use std::sync::Arc;
use std::time::Duration;

use hyper::Method;
use serde_json::{Map, Value, json};
use twicesafe_ledger::{Code, Stored};

pub(crate) use claims::SHOWN_BYTES_MAX;
pub(crate) use events::Listeners;
pub(crate) use openapi::document;

use crate::access::{Principal, Right};
use crate::http::request::{BODY_BYTES_MAX, SMALL_BODY_BYTES_MAX};
use crate::http::{Problem, Request, Response};
use crate::server::Shared;
use crate::wire;

/// When to send again what the ledger could not take: soon, because callers wait.
const WITHOUT_LEDGER_RETRY_AFTER: Duration = Duration::from_secs(1);

/// A request and who sent it.
pub(crate) struct Call<'a> {
    pub(crate) request: &'a mut Request,
    pub(crate) principal: Principal,
}

/// What can be asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Operation {
    Claim,
    Renew,
    Ask,
    Settle,
    Intents,
    Intent,
    Work,
    Approvals,
    Review,
    Approve,
    Reject,
    Resolve,
    Reset,
    Forget,
    Stats,
    Events,
    Inboxes,
    InboxEvent,
    Replay,
    Park,
    ForgetEvent,
    PauseInbox,
    ResumeInbox,
}

impl Operation {
    /// Only answers and what is asked for can be large.
    fn body_bytes_max(self) -> usize {
        match self {
            Self::Claim | Self::Settle | Self::Resolve => BODY_BYTES_MAX,
            _ => SMALL_BODY_BYTES_MAX,
        }
    }
}

/// One line of the table.
pub(crate) struct Route {
    pub(crate) method: Method,
    pub(crate) path: &'static str,
    pub(crate) operation: Operation,
    /// What one must be allowed to; nothing: any right will do, within one's scopes.
    pub(crate) right: Option<Right>,
    pub(crate) summary: &'static str,
}

macro_rules! routes {
    ($($method:ident $path:literal $operation:ident $right:expr, $summary:literal)*) => {
        /// Everything there is under `/v1`.
        pub(crate) const ROUTES: &[Route] = &[$(Route {
            method: Method::$method, path: $path, operation: Operation::$operation, right: $right, summary: $summary,
        }),*];
    };
}

routes! {
    POST "/v1/claim" Claim Some(Right::Act), "Asks for leave to act, or for the first answer."
    POST "/v1/renew" Renew Some(Right::Act), "Extends the lease of a permit: I am still at it."
    POST "/v1/settle" Settle Some(Right::Act), "Says what came of a permit."
    POST "/v1/ask" Ask Some(Right::Act), "Asks for leave to look up whether an intent in doubt happened."
    GET "/v1/intents" Intents None, "Lists intents, newest first."
    GET "/v1/intent" Intent None, "Shows everything about one intent, with its journal."
    GET "/v1/work" Work None, "Lists the steps of a unit of work, newest first."
    GET "/v1/approvals" Approvals None, "Lists what waits for a person's yes."
    GET "/v1/review" Review None, "Lists what may or may not have happened and waits for a person's finding, and what is stuck."
    POST "/v1/approve" Approve Some(Right::Approve), "Says yes to an intent that is held."
    POST "/v1/reject" Reject Some(Right::Approve), "Says no to an intent that is held, or accepted and not under way."
    POST "/v1/resolve" Resolve Some(Right::Review), "Says what happened to an intent in review."
    POST "/v1/reset" Reset Some(Right::Admin), "Starts a settled intent afresh: the next claim acts again."
    POST "/v1/forget" Forget Some(Right::Admin), "Drops key, answers and request of a settled intent; it still does not happen again."
    GET "/v1/stats" Stats None, "Figures, each with its definition."
    GET "/v1/events" Events None, "What becomes of intents, as server-sent events."
    GET "/v1/inboxes" Inboxes None, "Lists inboxes, and what became of their events as far as this process saw."
    GET "/v1/inbox/event" InboxEvent None, "Shows an event: headers, body, how its sender was known, deliveries."
    POST "/v1/inbox/replay" Replay Some(Right::Review), "Has an event handed over again."
    POST "/v1/inbox/park" Park Some(Right::Review), "Sets an event aside: it is not handed over until it is replayed."
    POST "/v1/inbox/forget" ForgetEvent Some(Right::Admin), "Drops everything of an event that could identify anybody; its redelivery is still known."
    POST "/v1/inbox/pause" PauseInbox Some(Right::Admin), "Pauses an inbox: it takes events and hands none over."
    POST "/v1/inbox/resume" ResumeInbox Some(Right::Admin), "Lets an inbox go on."
}

/// The route for a request, or why there is none.
fn route(request: &Request) -> Result<&'static Route, Problem> {
    let mut allowed = Vec::new();
    for route in ROUTES.iter().filter(|route| route.path == request.path()) {
        if route.method == request.method {
            return Ok(route);
        }
        allowed.push(route.method.as_str());
    }
    Err(match allowed.is_empty() {
        true => nothing_here(),
        false => wrong_method(&allowed.join(", ")),
    })
}

pub(crate) fn nothing_here() -> Problem {
    Problem::new(Code::NoSuchPage, "there is nothing at this address", "What there is: GET /openapi.json.")
}

pub(crate) fn wrong_method(allowed: &str) -> Problem {
    Problem::new(Code::NoSuchPage, "this address does not take that method", format!("Use {allowed}."))
        .allowing(allowed)
}

/// Does what was asked for, by who may ask for it.
pub(crate) async fn answer(shared: &Arc<Shared>, request: &mut Request) -> Result<Response, Problem> {
    let route = self::route(request)?;
    let answered = match shared.access.principal(request).await {
        Ok(principal) => answer_to(shared, route, Call { request, principal }).await,
        Err(problem) => Err(problem),
    };
    answered.map_err(|problem| without_ledger(route, problem))
}

/// What it means for a caller that the ledger could not be used (S20).
fn without_ledger(route: &Route, problem: Problem) -> Problem {
    let hint = match route.operation {
        Operation::Claim | Operation::Ask => "Nothing was sent. Send the same again when the ledger is back.",
        Operation::Settle => "The report was not stored. Send the same settle again when the ledger is back.",
        Operation::Renew => "The lease was not extended. Renew again, and begin nothing after its end.",
        _ if route.method == Method::POST => {
            "The decision was not stored. Send the same again, with the same `command_id` where it has one."
        }
        _ => return problem,
    };
    match problem.code {
        Code::LedgerAway
        | Code::LedgerReadOnly
        | Code::UnsafeDurability
        | Code::LedgerUnfit
        | Code::LedgerNotTrusted
        | Code::DiskFull
        | Code::Overloaded => {
            Problem::new(problem.code, problem.message(), hint).retry_after(WITHOUT_LEDGER_RETRY_AFTER)
        }
        _ => problem,
    }
}

async fn answer_to(shared: &Arc<Shared>, route: &Route, call: Call<'_>) -> Result<Response, Problem> {
    if let Some(right) = route.right {
        call.principal.demand(right)?;
    }
    call.request.read_body(route.operation.body_bytes_max()).await?;
    match route.operation {
        // All others are boxed: what thousands wait in should be small.
        Operation::Claim => claims::claim(shared, call).await,
        Operation::Renew => Box::pin(claims::renew(shared, &call)).await,
        Operation::Ask => Box::pin(claims::ask(shared, &call)).await,
        Operation::Settle => Box::pin(claims::settle(shared, &call)).await,
        Operation::Intents => Box::pin(looking::intents(shared, &call)).await,
        Operation::Intent => Box::pin(looking::intent(shared, &call)).await,
        Operation::Work => Box::pin(looking::work(shared, &call)).await,
        Operation::Approvals => Box::pin(looking::approvals(shared, &call)).await,
        Operation::Review => Box::pin(looking::review(shared, &call)).await,
        Operation::Approve => Box::pin(deciding::approve(shared, &call)).await,
        Operation::Reject => Box::pin(deciding::reject(shared, &call)).await,
        Operation::Resolve => Box::pin(deciding::resolve(shared, &call)).await,
        Operation::Reset => Box::pin(deciding::reset(shared, &call)).await,
        Operation::Forget => Box::pin(deciding::forget(shared, &call)).await,
        Operation::Stats => Box::pin(looking::stats(shared, &call)).await,
        Operation::Events => events::listen(shared, &call),
        Operation::Inboxes => inboxes::list(shared, &call),
        Operation::InboxEvent => Box::pin(inboxes::event(shared, &call)).await,
        Operation::Replay => Box::pin(inboxes::replay(shared, &call)).await,
        Operation::Park => Box::pin(inboxes::park(shared, &call)).await,
        Operation::ForgetEvent => Box::pin(inboxes::forget(shared, &call)).await,
        Operation::PauseInbox => Box::pin(inboxes::pause(shared, &call)).await,
        Operation::ResumeInbox => Box::pin(inboxes::resume(shared, &call)).await,
    }
}

/// What every answer about an intent carries (S27).
pub(crate) fn facts(stored: &Stored) -> Map<String, Value> {
    let record = &stored.record;
    let facts = [
        ("intent", json!(stored.id.number())),
        ("intent_status", json!(record.status.as_str())),
        ("generation", json!(record.generation)),
        ("attempt", json!(record.tries)),
        ("expires_at", json!(wire::expiry(record))),
    ];
    facts.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}
