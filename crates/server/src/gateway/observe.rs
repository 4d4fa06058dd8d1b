//! Observing: everything is passed on, and what would have been prevented or refused is recorded, so that a team can watch its
//! process for two weeks before anything is guarded. What the ledger cannot take is passed on all the same.

use std::borrow::Cow;

use hyper::StatusCode;
use serde_json::{Value, json};
use twicesafe_ledger::{
    Answer, Claimed, Code, Error, Fingerprint, Intent, Policy, Recipe, Recovery, Refusal,
};

use super::act::Errand;
use super::answer::Whole;
use super::expression::Sight;
use super::guarded::{self, made_action};
use super::sending::Sending;
use super::upstream::{Care, Failure};
use super::{Arrival, act, fingerprint, told};
use crate::http::{Problem, Request, Response};

/// The part of scopes under which what is observed is recorded.
pub(super) const OBSERVED: &str = "observe";

/// Passes a write on and records what guarding would have done.
pub(super) async fn answer(arrival: Arrival<'_>, request: &mut Request) -> Result<Response, Problem> {
    let header_key = request.headers.get("idempotency-key").cloned();
    let sending = arrival.sending(request, None);
    let view = sending.view(&arrival.parameters);
    let (intent, finding) = recorded(&arrival, &sending, &view, header_key.as_ref());
    if let Some(finding) = finding {
        record(&arrival, &sending, "refused", finding);
    }
    let ledger = arrival.shared.ledger.acting_as(&arrival.principal.actor);
    let claimed = match &intent {
        Some(intent) => Some(ledger.claim(intent).await),
        None => None,
    };
    let permit = match claimed {
        Some(Ok(Claimed::Proceed(permit))) => Some(permit),
        Some(Ok(Claimed::Replay(_))) => {
            record(&arrival, &sending, "prevented", json!({ "why": "it was done before" }));
            None
        }
        Some(Ok(Claimed::Wait { .. })) => {
            record(
                &arrival,
                &sending,
                "prevented",
                json!({ "why": "the same was under way, or had just failed" }),
            );
            None
        }
        Some(Ok(Claimed::Refused(_))) => {
            record(&arrival, &sending, "prevented", json!({ "why": "it had just been refused" }));
            None
        }
        Some(Ok(Claimed::Review)) => {
            record(&arrival, &sending, "prevented", json!({ "why": "nobody knew whether it had happened" }));
            None
        }
        Some(Err(Error::Ledger(Refusal::Mismatch))) => {
            record(
                &arrival,
                &sending,
                "refused",
                json!({ "why": "the key was used with another request", "code": "TS0010" }),
            );
            None
        }
        Some(Ok(Claimed::Hold { .. }) | Err(_)) | None => None,
    };
    let exchanged = exchange(&arrival, &sending).await;
    let errand = Errand::new(arrival.destination.clone(), arrival.route.clone(), sending, view);
    if let Some(permit) = permit {
        let outcome = errand.observed(permit.attempt(), &exchanged).await;
        let settled = match outcome {
            twicesafe_ledger::Outcome::Answered(answer) => permit.settle(Ok(answer)).await,
            other => permit.settle(Err(twicesafe_ledger::Trouble::from_outcome(other))).await,
        };
        if let Err(error) = settled {
            tracing::debug!("what was observed could not be recorded: {error}");
        }
    }
    match exchanged {
        Ok(whole) => Ok(told::of_whole(whole)),
        Err(Failure::NotSent(why) | Failure::Unknown(why)) => Err(Problem::new(
            Code::DestinationAway,
            format!("the destination gave no answer: {why}"),
            "Nothing is guarded here yet: ask as you always did.",
        )
        .with_status(StatusCode::BAD_GATEWAY)),
    }
}

async fn exchange(arrival: &Arrival<'_>, sending: &Sending) -> Result<Whole, Failure> {
    let exchange = async {
        let request = act::request(&arrival.destination, sending).await.map_err(Failure::NotSent)?;
        let (response, lent) = arrival.destination.upstream.exchange(request, Care::Great, || Ok(())).await?;
        Whole::read(response, lent, |_| None).await
    };
    let exchanged = tokio::time::timeout(arrival.route.timeout, exchange).await;
    exchanged.unwrap_or_else(|_| Err(Failure::Unknown("it did not answer in time".to_owned())))
}

/// The intent a guarded write would be, in a scope of its own; without a key, by what is asked for. And why it would be
/// refused, if it would.
fn recorded(
    arrival: &Arrival<'_>,
    sending: &Sending,
    view: &Value,
    header: Option<&hyper::header::HeaderValue>,
) -> (Option<Intent>, Option<Value>) {
    let sight = Sight { request: Some(view), ..Sight::default() };
    let named = guarded::named(arrival, sending, sight, header);
    let print = fingerprint::made(&arrival.route.recipe, sending, view);
    let (key, finding) = match (&named, &print) {
        (Ok(name), _) => (name.key.as_str().to_owned(), None),
        (Err(problem), Some(print)) => {
            let key = format!("fingerprint:{}", blake3::Hash::from(*print.digest()).to_hex());
            (key, Some(json!({ "why": problem.message(), "code": problem.code.as_str() })))
        }
        (Err(problem), None) => {
            return (None, Some(json!({ "why": problem.message(), "code": problem.code.as_str() })));
        }
    };
    let scope = scope(arrival, sending, "seen");
    let policy = Policy::new(Recovery::Repeat);
    let intent = Intent::new(&scope, &key).ok().map(|intent| {
        let print = print.unwrap_or_else(|| Fingerprint::of(&Recipe::raw(), b""));
        intent.policy(policy).fingerprint(print.recipe().clone(), move |_| Some(print.clone()))
    });
    (intent, finding)
}

fn action<'a>(arrival: &'a Arrival<'_>, sending: &Sending) -> Cow<'a, str> {
    match &arrival.route.action {
        Some(action) => action.as_str().into(),
        None => made_action(&sending.method, &arrival.path).into(),
    }
}

fn scope(arrival: &Arrival<'_>, sending: &Sending, what: &str) -> String {
    let (tenant, destination) = (arrival.principal.tenant(), &arrival.destination.name);
    format!("{tenant}/{OBSERVED}/{destination}/{}/{what}", action(arrival, sending))
}

/// Records something that guarding would have done: one intent each, done at once.
fn record(arrival: &Arrival<'_>, sending: &Sending, what: &'static str, finding: Value) {
    let scope = scope(arrival, sending, what);
    let key = format!("{:032x}", u128::from_be_bytes(twicesafe_ledger::new_command_id().bytes()));
    let mut found = finding;
    if let Value::Object(members) = &mut found {
        members.insert("match".to_owned(), json!(format!("{} {}", sending.method, arrival.path)));
        members.insert("has_route".to_owned(), json!(arrival.route.action.is_some()));
    }
    let ledger = arrival.shared.ledger.acting_as(&arrival.principal.actor);
    let Ok(intent) = Intent::new(&scope, &key) else { return };
    let intent = intent.policy(Policy::new(Recovery::Repeat));
    // Nobody waits for it: what is observed must not be slower than what is not.
    tokio::spawn(async move {
        let answer = Answer { head: crate::wire::JSON_HEAD.into(), ..Answer::of(found.to_string()) };
        if let Err(error) = ledger.run(intent, move |_| async move { Ok(answer) }).await {
            tracing::warn!(code = %error.code(), "what was observed could not be recorded: {error}");
        }
    });
}
