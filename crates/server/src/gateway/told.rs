//! What a caller is told: one table for every door (S27). Nothing held or doubtful looks like success.

use std::time::Duration;

use hyper::StatusCode;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use serde_json::json;
use twicesafe_ledger::{
    Answer, Body as KeptBody, Code, Ended, Error, Given, Refusal, Source, Status, Stored,
};

use super::act::Aside;
use super::answer::Whole;
use super::redirect::withheld;
use super::route::Route;
use crate::api::facts;
use crate::config::destinations::{OnHold, OnSuperseded};
use crate::http::{Body, Problem, Response};
use crate::wire;

/// What every answer about an intent carries (S27).
const INTENT: HeaderName = HeaderName::from_static("twicesafe-intent");
const ATTEMPT: HeaderName = HeaderName::from_static("twicesafe-attempt");
const STATUS: HeaderName = HeaderName::from_static("twicesafe-status");
const EXPIRES: HeaderName = HeaderName::from_static("twicesafe-expires");
pub(super) const SOURCE: HeaderName = HeaderName::from_static("twicesafe-source");
const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// What a refusal is told as that came as a 2xx or 3xx.
const REFUSED: StatusCode = StatusCode::UNPROCESSABLE_ENTITY;
/// When to ask again if nobody knows better.
const RETRY_AFTER_DEFAULT: Duration = Duration::from_secs(1);

/// The answer to a guarded write.
pub(super) fn answer(
    route: &Route,
    aside: Option<Aside>,
    is_called_back: bool,
    ended: Ended,
    is_rehearsal: bool,
) -> Result<Response, Problem> {
    let Ended { result, stored } = ended;
    let mut response = match (result, aside) {
        (Ok(given), _) => of_given(&given, stored.as_deref()),
        (Err(Error::Refused(given)), _) => not_a_success(of_given(&given, stored.as_deref()), REFUSED),
        // The destination does not know the caller: that is between the two of them (S16).
        (Err(Error::Pending { .. }), Some(Aside::Answer(whole))) => {
            not_a_success(of_whole(whole), StatusCode::UNAUTHORIZED)
        }
        (Err(Error::Pending { .. }), Some(Aside::Unfit(why))) => {
            let hint = "Send it in the form that the route expects; nothing was sent.";
            let problem =
                Problem::bad_request(format!("the key cannot be written into the request: {why}"), hint);
            problem.with(stored.as_deref().map(facts).unwrap_or_default()).into_response()
        }
        (Err(Error::Pending { retry_after }), Some(Aside::NotSent(why))) => {
            pending(retry_after, stored.as_deref(), &format!("; the last attempt was not sent: {why}"))
        }
        (Err(Error::Held { .. }), _) if is_rehearsal && route.on_hold.is_none() => {
            let hint = "A rehearsal has a key of its own, so asking again makes another one. Somebody can say yes to this one: the server \
                        sends it then, and `twicesafe show` has the answer.";
            let problem = Problem::new(Code::Held, "a person must say yes first; nothing was sent", hint);
            problem.with(stored.as_deref().map(facts).unwrap_or_default()).into_response()
        }
        (Err(error), _) => told(route, is_called_back, error, stored.as_deref())?,
    };
    if let Some(stored) = stored.as_deref() {
        mark(&mut response.headers, stored);
    }
    if is_rehearsal {
        response.headers.insert("twicesafe-test", HeaderValue::from_static("true"));
    }
    Ok(response)
}

/// A refusal that came as a 2xx, `200 {"ok": false}`, must not look like success: a no-code tool goes on after any of them
/// (S19). One that came as a redirect would be followed, past everything that guards it. The body stays as it is.
fn not_a_success(response: Response, status: StatusCode) -> Response {
    match response.status.is_success() || response.status.is_redirection() {
        true => withheld(response, status),
        false => response,
    }
}

fn of_given(given: &Given, stored: Option<&Stored>) -> Response {
    let is_known = |answer: &&Answer| {
        given.source != Source::Person || answer.bytes().is_none_or(|body| !body.is_empty())
    };
    let mut response = match given.answer.as_ref().filter(is_known) {
        Some(answer) => of_answer(answer),
        // A person said that it happened, and no more is known.
        None => {
            let id = stored.and_then(|stored| stored.record.answer.as_ref()?.external_id.as_ref());
            let known = json!({
                "status": "done",
                "source": given.source.as_str(),
                "external_id": id.map(twicesafe_ledger::ExternalId::as_str),
            });
            Response::json(StatusCode::OK, &known)
        }
    };
    let headers = &mut response.headers;
    if given.replayed {
        headers.insert(REPLAYED, HeaderValue::from_static("true"));
    }
    if given.source != Source::Act {
        headers.insert(SOURCE, HeaderValue::from_static(given.source.as_str()));
    }
    if given.mismatch {
        headers.insert("twicesafe-mismatch", HeaderValue::from_static("true"));
    }
    response
}

pub(crate) fn of_answer(answer: &Answer) -> Response {
    let whole = Whole::from_kept(answer);
    let KeptBody::NotKept { bytes, .. } = whole.body else { return of_whole(whole) };
    // The first status, because it happened; but nobody may take this for the first body (S20).
    let words = json!({
        "code": Code::InputTooLarge.as_str(),
        "message": format!("it is done; its answer had {bytes} bytes, which was too much to keep"),
        "hint": "Ask the destination for what was made.",
        "external_id": answer.external_id.as_ref().map(twicesafe_ledger::ExternalId::as_str),
    });
    let mut response = Response::json(whole.status, &words);
    response.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    response.headers.insert("twicesafe-body", HeaderValue::from_static("not-kept"));
    response
}

pub(super) fn of_whole(whole: Whole) -> Response {
    let body = match whole.body {
        KeptBody::Kept(bytes) => Body::whole(bytes),
        KeptBody::NotKept { .. } => Body::whole(bytes::Bytes::new()),
    };
    Response { status: whole.status, headers: whole.headers, body }
}

fn told(
    route: &Route,
    is_called_back: bool,
    error: Error,
    stored: Option<&Stored>,
) -> Result<Response, Problem> {
    let about = |problem: Problem| match stored {
        Some(stored) => problem.with(facts(stored)),
        None => problem,
    };
    Ok(match error {
        Error::Held { expires_at } => match route.on_hold {
            Some(on_hold) if on_hold == OnHold::Accepted || on_hold == OnHold::Callback && is_called_back => {
                let mut words = stored.map(facts).unwrap_or_default();
                words.insert("status".to_owned(), json!("held"));
                words.insert("message".to_owned(), json!("a person is asked first; nothing was sent"));
                words.insert("until".to_owned(), json!(wire::time(expires_at)));
                Response::json(StatusCode::ACCEPTED, &words)
            }
            _ => {
                let hint =
                    "Ask again with the same key once somebody has said yes; the server sends it then.";
                about(Problem::new(Code::Held, "a person must say yes first; nothing was sent", hint))
                    .into_response()
            }
        },
        Error::Review => about(Problem::new(
            Code::Review,
            "it may or may not have happened; a person decides",
            "Do not send it again under another key. Somebody looks at the destination and resolves it.",
        ))
        .into_response(),
        Error::Ledger(Refusal::Superseded) if route.on_superseded == OnSuperseded::Accept => {
            let mut response = Response::json(StatusCode::OK, &stored.map(facts).unwrap_or_default());
            response.headers.insert("twicesafe-superseded", HeaderValue::from_static("true"));
            response
        }
        Error::Ledger(refusal) => about(refusal.into()).into_response(),
        Error::Pending { retry_after } => pending(retry_after, stored, ""),
        error @ Error::NotRecorded(_) => about(error.into()).into_response(),
        error => return Err(about(error.into())),
    })
}

fn pending(retry_after: Duration, stored: Option<&Stored>, why: &str) -> Response {
    let message = match stored.map(|stored| stored.record.status) {
        Some(Status::Retryable) => {
            "nothing is known to have happened, and another attempt is safe but not due yet"
        }
        Some(Status::Pending) => "it is under way, or being looked up",
        _ => "it waits for its turn",
    };
    Problem::new(Code::Pending, format!("{message}{why}"), "Ask again with the same key.")
        .with(stored.map(facts).unwrap_or_default())
        .retry_after(retry_after.max(RETRY_AFTER_DEFAULT))
        .into_response()
}

/// Every answer carries intent, attempt, status and expiry (S27).
pub(super) fn mark(headers: &mut HeaderMap, stored: &Stored) {
    let record = &stored.record;
    headers.insert(INTENT, HeaderValue::from(stored.id.number()));
    headers.insert(ATTEMPT, HeaderValue::from(record.tries));
    headers.insert(STATUS, HeaderValue::from_static(record.status.as_str()));
    if let Some(expires) = wire::expiry(record).and_then(|text| HeaderValue::from_str(&text).ok()) {
        headers.insert(EXPIRES, expires);
    }
}
