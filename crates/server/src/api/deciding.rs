//! What people decide.

use std::sync::Arc;

use hyper::StatusCode;
use twicesafe_ledger::{ANSWER_BYTES_MAX, Fence, Name, Noted, Refusal, Resolution, Stored};

use super::claims::json_answer;
use super::{Call, facts, parse};
use crate::http::{Problem, Response};
use crate::server::Shared;
use crate::wire::{DecisionRequest, FindingWord, NotedAnswer, ResolveRequest};

pub(super) async fn approve(shared: &Shared, call: &Call) -> Result<Response, Problem> {
    let (_, seen) = decision(shared, call).await?;
    noted(shared, &seen, shared.ledger.approve(&call.principal.actor, &seen).await).await
}

pub(super) async fn reject(shared: &Shared, call: &Call) -> Result<Response, Problem> {
    let (asked, seen) = decision(shared, call).await?;
    let reason = asked.reason.as_deref().unwrap_or_default();
    noted(shared, &seen, shared.ledger.reject(&call.principal.actor, &seen, reason).await).await
}

pub(super) async fn reset(shared: &Shared, call: &Call) -> Result<Response, Problem> {
    let (asked, seen) = decision(shared, call).await?;
    let reason = reason(&asked)?;
    noted(shared, &seen, shared.ledger.reset(&call.principal.actor, &seen, reason).await).await
}

pub(super) async fn forget(shared: &Shared, call: &Call) -> Result<Response, Problem> {
    let (asked, seen) = decision(shared, call).await?;
    let reason = reason(&asked)?;
    noted(shared, &seen, shared.ledger.forget(&call.principal.actor, &seen, reason).await).await
}

pub(super) async fn resolve(shared: &Shared, call: &Call) -> Result<Response, Problem> {
    let asked: ResolveRequest = parse::body(&call.request)?;
    if asked.reason.trim().is_empty() {
        return Err(no_reason());
    }
    let seen = seen(shared, call, &asked.scope, &asked.key).await?;
    if asked.fence.is_some_and(|fence| Fence::new(fence) != seen.record.fence) {
        return Err(Problem::from(Refusal::Moved).with(facts(&seen)));
    }
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
    let result = shared.ledger.resolve(&call.principal.actor, &seen, resolution, &asked.reason).await;
    noted(shared, &seen, result).await
}

/// A decision and what it is about, as it stands now.
async fn decision(shared: &Shared, call: &Call) -> Result<(DecisionRequest, Arc<Stored>), Problem> {
    let asked: DecisionRequest = parse::body(&call.request)?;
    let seen = seen(shared, call, &asked.scope, &asked.key).await?;
    if asked.generation.is_some_and(|generation| generation != seen.record.generation) {
        return Err(Problem::from(Refusal::Moved).with(facts(&seen)));
    }
    Ok((asked, seen))
}

async fn seen(shared: &Shared, call: &Call, scope: &str, key: &str) -> Result<Arc<Stored>, Problem> {
    let name = Name::new(scope, key)?;
    call.principal.demand_scope(name.scope.as_str())?;
    Ok(shared.ledger.existing(&name).await?)
}

fn reason(asked: &DecisionRequest) -> Result<&str, Problem> {
    asked.reason.as_deref().map(str::trim).filter(|reason| !reason.is_empty()).ok_or_else(no_reason)
}

fn no_reason() -> Problem {
    Problem::bad_request(
        "there is no reason",
        "Add `reason`: some words for those who read the journal later.",
    )
}

async fn noted(
    shared: &Shared,
    seen: &Stored,
    result: Result<Noted, twicesafe_ledger::Error>,
) -> Result<Response, Problem> {
    match result {
        Ok(noted) => {
            let now = shared.ledger.store().find_id(seen.id).await?;
            let stored = now.as_ref().unwrap_or(seen);
            Ok(Response::json(StatusCode::OK, &NotedAnswer::of(stored, noted.changed)))
        }
        Err(error) => Err(Problem::from(error).with(facts(seen))),
    }
}
