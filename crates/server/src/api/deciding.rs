//! What people decide. Each decision says what it is about; the same one sent again is no second one (S12).

use std::sync::Arc;

use hyper::StatusCode;
use twicesafe_ledger::{ANSWER_BYTES_MAX, By, Code, Fence, Name, Noted, Resolution, Stored};

use super::claims::json_answer;
use super::{Call, facts, parse};
use crate::http::{Problem, Response};
use crate::server::Shared;
use crate::wire::{DecisionRequest, FindingWord, NotedAnswer, ReasonedRequest, ResolveRequest};

pub(super) async fn approve(shared: &Shared, call: &Call<'_>) -> Result<Response, Problem> {
    let Decision { by, seen, .. } = decision(shared, call).await?;
    if seen.record.policy.approval.as_ref().is_none_or(|rule| !rule.requester_may_approve) {
        demand_token(call)?;
    }
    noted(shared, &seen, shared.ledger.approve(by, &seen).await).await
}

pub(super) async fn reject(shared: &Shared, call: &Call<'_>) -> Result<Response, Problem> {
    let Decision { by, seen, reason } = decision(shared, call).await?;
    noted(shared, &seen, shared.ledger.reject(by, &seen, &reason).await).await
}

pub(super) async fn reset(shared: &Shared, call: &Call<'_>) -> Result<Response, Problem> {
    let Decision { by, seen, reason } = reasoned(shared, call).await?;
    noted(shared, &seen, shared.ledger.reset(by, &seen, &reason).await).await
}

pub(super) async fn forget(shared: &Shared, call: &Call<'_>) -> Result<Response, Problem> {
    let Decision { by, seen, reason } = reasoned(shared, call).await?;
    noted(shared, &seen, shared.ledger.forget(by, &seen, &reason).await).await
}

pub(super) async fn resolve(shared: &Shared, call: &Call<'_>) -> Result<Response, Problem> {
    let asked: ResolveRequest = parse::body(call.request)?;
    let reason = needed(&asked.reason)?;
    parse::check_lengths(asked.external_id.as_deref(), Some(reason))?;
    let by = by(call, asked.command_id.as_deref())?;
    let mut seen = (*seen(shared, call, &asked.scope, &asked.key).await?).clone();
    demand_somebody(shared, call)?;
    seen.record.fence = Fence::new(asked.fence);
    let resolution = match asked.finding {
        FindingWord::Happened => {
            let answer = json_answer(asked.answer.as_deref()).limited(ANSWER_BYTES_MAX);
            Resolution::Happened(match &asked.external_id {
                Some(id) => answer.with_external_id(id),
                None => answer,
            })
        }
        FindingWord::DidNotHappen => Resolution::DidNotHappen,
        FindingWord::GiveUp => Resolution::GiveUp,
    };
    let result = crate::inbox::resolve(&shared.ledger, by, &seen, resolution, reason).await;
    noted(shared, &seen, result).await
}

struct Decision {
    by: By,
    /// As the person says to have seen it.
    seen: Stored,
    reason: String,
}

async fn decision(shared: &Shared, call: &Call<'_>) -> Result<Decision, Problem> {
    let asked: DecisionRequest = parse::body(call.request)?;
    parse::check_lengths(None, asked.reason.as_deref())?;
    let by = by(call, asked.command_id.as_deref())?;
    let mut seen = (*seen(shared, call, &asked.scope, &asked.key).await?).clone();
    demand_somebody(shared, call)?;
    seen.record.generation = asked.generation;
    Ok(Decision { by, seen, reason: asked.reason.unwrap_or_default() })
}

/// A decision that must give a reason.
async fn reasoned(shared: &Shared, call: &Call<'_>) -> Result<Decision, Problem> {
    let asked: ReasonedRequest = parse::body(call.request)?;
    let reason = needed(&asked.reason)?.to_owned();
    parse::check_lengths(None, Some(&reason))?;
    let by = by(call, asked.command_id.as_deref())?;
    let mut seen = (*seen(shared, call, &asked.scope, &asked.key).await?).clone();
    demand_somebody(shared, call)?;
    seen.record.generation = asked.generation;
    Ok(Decision { by, seen, reason })
}

fn by(call: &Call<'_>, command_id: Option<&str>) -> Result<By, Problem> {
    let who = call.principal.actor.clone();
    Ok(By { id: parse::command_id(&who, command_id)?, who })
}

async fn seen(shared: &Shared, call: &Call<'_>, scope: &str, key: &str) -> Result<Arc<Stored>, Problem> {
    let name = Name::new(scope, key)?;
    call.principal.demand_to_change(name.scope.as_str())?;
    Ok(shared.ledger.existing(&name).await?)
}

/// Refuses a decision without a token where the configuration asks people: without tokens callers only say who they are, and
/// whoever asked could decide under another name (S30).
fn demand_somebody(shared: &Shared, call: &Call<'_>) -> Result<(), Problem> {
    match shared.destinations().ask_people() {
        true => demand_token(call),
        false => Ok(()),
    }
}

fn demand_token(call: &Call<'_>) -> Result<(), Problem> {
    match call.principal.token() {
        Some(_) => Ok(()),
        None => Err(Problem::new(
            Code::TokenMissing,
            "a decision needs a person, and without a token nobody knows who sent this",
            "Decide with `twicesafe approve`, `reject` or `resolve` or by the link in the alert, or make a token: twicesafe token create \
             --rights approve.",
        )),
    }
}

fn needed(reason: &str) -> Result<&str, Problem> {
    match reason.trim() {
        "" => Err(Problem::bad_request(
            "there is no reason",
            "Add `reason`: some words for those who read the journal later.",
        )),
        reason => Ok(reason),
    }
}

async fn noted(
    shared: &Shared,
    seen: &Stored,
    result: Result<Noted, twicesafe_ledger::Error>,
) -> Result<Response, Problem> {
    let now = shared.ledger.store().find_id(seen.id).await?;
    let stored = now.as_ref().unwrap_or(seen);
    match result {
        Ok(noted) => Ok(Response::json(StatusCode::OK, &NotedAnswer::of(stored, noted.changed))),
        Err(error) => Err(Problem::from(error).with(facts(stored))),
    }
}
