//! What a call is: a question that has one answer in its work, a write like any other, or something that only passes.

use std::sync::Arc;

use hyper::header::HeaderMap;
use serde_json::{Value, json};
use twicesafe_ledger::Scope;

use super::question::Question;
use super::shape::Shape;
use super::{CREDENTIALS_PURPOSE, Expectation, Pins, SAMPLE_MAX};
use crate::credentials::{credentials_of, is_credential, without_credentials};
use crate::gateway::expression::Sight;
use crate::gateway::route::Word;
use crate::gateway::sending::{is_idle, passed_on};
use crate::gateway::{Arrival, guarded};
use crate::http::{Problem, Request};

/// What a caller says about its call.
pub(super) struct Wish {
    /// As it calls it.
    pub(super) work: Option<String>,
    pub(super) sample: u32,
    pub(super) expected: Vec<Arc<Expectation>>,
}

impl Wish {
    pub(super) fn read(
        arrival: &Arrival<'_>,
        request: &Request,
        of_path: Option<String>,
    ) -> Result<Self, Problem> {
        let of_header = own(request, "twicesafe-work")?;
        let of_route = match (&arrival.route.work, &of_path, of_header) {
            (Some(Word::Fixed(work)), None, None) => Some(work.clone()),
            (Some(Word::Given(expression)), None, None) => {
                let body = serde_json::from_slice::<Value>(&request.body).unwrap_or_default();
                let view = json!({ "body": body, "path": arrival.path, "method": request.method.as_str() });
                let sight = Sight { request: Some(&view), ..Sight::default() };
                let work = expression.name(&sight).map_err(|why| guarded::not_worked_out("work", &why))?;
                Some(work.to_string())
            }
            _ => None,
        };
        let work = match (of_header, of_path) {
            (Some(header), Some(path)) if header != path => {
                return Err(Problem::bad_request(
                    "the header Twicesafe-Work and the path name different works",
                    "Name it in one of them.",
                ));
            }
            (header, path) => path.or_else(|| header.map(str::to_owned)).or(of_route),
        };
        Ok(Self { work, sample: sample(request)?, expected: expected(arrival, request)? })
    }
}

/// A header of ours. One that is there and cannot be read must not be passed over: its caller relies on it.
fn own<'a>(request: &'a Request, name: &str) -> Result<Option<&'a str>, Problem> {
    let Some(value) = request.headers.get(name) else { return Ok(None) };
    match value.to_str() {
        // An unset variable somewhere: what its caller relies on is not there.
        Ok(text) if text.trim().is_empty() => Err(Problem::bad_request(
            format!("the header {name} is empty"),
            "Look whether the variable it is made of is set; or leave the header out.",
        )),
        Ok(text) => Ok(Some(text)),
        Err(_) => Err(Problem::bad_request(
            format!("the header {name} has letters that headers cannot carry"),
            "Use ASCII: in JSON other letters can be escaped, and a work can stand in the address, percent-encoded.",
        )),
    }
}

/// What a call is.
pub(super) enum Call {
    /// Something that has one answer in its work.
    Question(Box<Question>),
    /// A write with a key or a route of its own, guarded like any other.
    Written,
    /// A question that nothing is known of: passed on.
    Plain,
    /// A write without a key: passed on, and journalled.
    Effect,
}

impl Call {
    pub(super) fn read(
        arrival: &Arrival<'_>,
        pins: &Pins,
        request: &Request,
        wish: &Wish,
    ) -> Result<Self, Problem> {
        let is_keyed = request.headers.contains_key("idempotency-key");
        let unpinned = |otherwise, why: &str| match (is_keyed, wish.expected.is_empty()) {
            (_, false) => Err(Problem::bad_request(
                format!(
                    "an answer that is expected to have a form must be kept to be held against it, and {why}"
                ),
                "Send the header Twicesafe-Work, or use the address /to/DESTINATION/@WORK/..., or declare `pins.window`; \
                 expect nothing of calls that do more than ask.",
            )),
            (true, true) => Ok(Self::Written),
            (false, true) => Ok(otherwise),
        };
        let Some(shape) = Shape::of(&request.method, &arrival.path) else {
            // What an operator says of a route holds for it, approvals and caps not least.
            let is_routed = arrival.route.action.is_some() && wish.expected.is_empty();
            return if is_routed { Ok(Self::Written) } else { unpinned(Self::Effect, "this is no prompt") };
        };
        let Ok(Value::Object(body)) = serde_json::from_slice(&request.body) else {
            if wish.work.is_some() {
                return Err(Problem::bad_request(
                    "the body cannot be read as a JSON object, so nobody could tell whether the same is asked again",
                    "Send plain JSON, not compressed; or send no work, and it is passed on as it is.",
                ));
            }
            // It is the provider's to refuse.
            return unpinned(Self::Plain, "its body cannot be read");
        };
        if shape.effect(&body).is_some() {
            return unpinned(Self::Effect, "this call does more than ask");
        }
        let body = Value::Object(body);
        if twicesafe_core::has_duplicate_names(&body, &request.body) {
            return Err(Problem::bad_request(
                "the body has the same name twice in one object, and nobody knows which of them counts",
                "Send every name once.",
            ));
        }
        if wish.work.is_none() && pins.window.is_none() {
            return unpinned(Self::Plain, "this call has no work");
        }
        let work = wish.work.as_deref().map(|work| arrival.principal.own_name(work)).transpose()?;
        let canonical = twicesafe_core::canonical_json_of(&body, &request.body);
        let mut words = blake3::Hasher::new_derive_key("twicesafe 2026-11 key of a pin");
        let mut put = |bytes: &[u8]| {
            words.update(&(bytes.len() as u64).to_le_bytes());
            words.update(bytes);
        };
        // Which form the body is in is part of it: nobody can forge one by the other.
        put(if canonical.is_some() { b"canonical" } else { b"raw" });
        put(canonical.as_deref().unwrap_or(&request.body));
        put(arrival.destination.upstream.base().text().as_bytes());
        put(arrival.path.as_bytes());
        let (query, open) = (request.uri.query().unwrap_or_default(), &arrival.route.open);
        put(without_credentials(query, open).unwrap_or_default().as_bytes());
        let headers = passed_on(&request.headers);
        let mut heads: Vec<_> = headers
            .iter()
            .filter(|(name, _)| !is_idle(name) && !is_credential(name) && !pins.ignores(name.as_str()))
            .map(|(name, value)| (name.as_str().as_bytes(), value.as_bytes()))
            .collect();
        heads.sort_unstable();
        for (name, value) in heads {
            put(name);
            put(value);
        }
        put(work.as_deref().unwrap_or_default().as_bytes());
        put(if work.is_some() { b"work" } else { b"window" });
        put(&credentials(arrival, pins, &headers, credentials_of(query, open)));
        let scope = format!("{}/{}/{}", arrival.principal.tenant(), arrival.destination.name, shape.action());
        arrival.principal.demand_to_change(&scope)?;
        let (scope, sample, expected) = (Scope::new(&scope)?, wish.sample, wish.expected.clone());
        Ok(Self::Question(Box::new(Question { shape, words, scope, work, sample, expected })))
    }
}

/// Answers are nobody else's: who shows other credentials has pins of its own. Where the server shows its own, they are those
/// of the destination. Hashed with a key of the ledger's: nobody finds out what they were.
fn credentials<'a>(
    arrival: &Arrival<'_>,
    pins: &Pins,
    headers: &HeaderMap,
    of_query: impl Iterator<Item = &'a str>,
) -> [u8; 32] {
    let key = arrival.shared.ledger.store().derived_key(CREDENTIALS_PURPOSE);
    let mut hasher = blake3::Hasher::new_keyed(&key);
    let mut put = |bytes: &[u8]| {
        hasher.update(&(bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    };
    if arrival.destination.credentials.is_none() {
        let mut shown: Vec<_> =
            headers.iter().filter(|(name, _)| is_credential(name) && !pins.ignores(name.as_str())).collect();
        shown.sort_by_key(|(name, value)| (name.as_str(), value.as_bytes()));
        for (name, value) in shown {
            put(name.as_str().as_bytes());
            put(value.as_bytes());
        }
    }
    // They are sent, whoever the server says to be.
    of_query.for_each(|part| put(part.as_bytes()));
    hasher.finalize().into()
}

fn sample(request: &Request) -> Result<u32, Problem> {
    let Some(text) = own(request, "twicesafe-sample")? else { return Ok(1) };
    text.parse().ok().filter(|sample| (1..=SAMPLE_MAX).contains(sample)).ok_or_else(|| {
        Problem::bad_request(
            format!("Twicesafe-Sample is a number from 1 to {SAMPLE_MAX}"),
            "1, or no header, is the first answer; 2 asks for another one on purpose.",
        )
    })
}

fn expected(arrival: &Arrival<'_>, request: &Request) -> Result<Vec<Arc<Expectation>>, Problem> {
    let mut all: Vec<_> = arrival.route.expect.iter().cloned().collect();
    if let Some(text) = own(request, "twicesafe-expect")? {
        let own = Expectation::of_header(text).map_err(|why| {
            Problem::bad_request(
                format!("Twicesafe-Expect is not a JSON Schema: {why}"),
                "Send a schema of what the model is to write, as one line of JSON.",
            )
        })?;
        all.push(Arc::new(own));
    }
    Ok(all)
}
