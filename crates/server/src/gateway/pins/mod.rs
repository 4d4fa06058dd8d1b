//! Answers of AI models, pinned per work: the same question in the same work has one answer, byte for byte, and is paid for
//! once (S33). Whoever asks the same meanwhile follows the same flight; whoever asks later gets what is on record.

mod expect;
mod flight;
mod frames;
mod record;
pub(crate) mod saved;
mod shape;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use serde_json::{Value, json};
use twicesafe_ledger::{
    Actor, Backoff, Body as KeptBody, Code, Ended, Error, Intent, Key, Ledger, Name, Policy, Recovery,
    Refusal, Resolution, Scope,
};

use super::answer::Whole;
use super::expression::Sight;
use super::plan::Notes;
use super::route::Word;
use super::sending::{Sending, is_credential, is_idle};
use super::{Arrival, guarded, observe, reads, told};
use crate::api::facts;
use crate::config::destinations::{Mode, PinRules, Price, Truncated};
use crate::http::request::percent_decoded;
use crate::http::{Body, Problem, Request, Response};
use crate::server::Shared;
pub(crate) use expect::Expectation;
pub(crate) use flight::Flights;
use flight::{Beginning, End, Flight, Follower, OnRecord, Open};
use record::{EVALUATION, Expected, Held, Manner, Recorder, is_event_stream};
use saved::Cost;
use shape::Shape;

/// Largest question: pictures travel in them.
pub(super) const REQUEST_BYTES_MAX: usize = 32 << 20;
/// How long a model may take to begin, and from one part of its answer to the next, unless said otherwise.
pub(super) const TIMEOUT_DEFAULT: Duration = Duration::from_secs(600);
/// Questions at the same time, unless said otherwise: each of them is mostly waiting.
pub(super) const CONCURRENCY_DEFAULT: u32 = 10_000;
/// How long a flight is believed to live without a sign of life. Short, because a re-run waits for it after a crash, and what
/// is asked twice does no harm.
const LEASE: Duration = Duration::from_secs(10);
/// How long one answer may take in all.
const ACT_TIME_MAX: Duration = Duration::from_secs(2 * 3600);
/// Every question may be asked again as often as somebody likes.
const ATTEMPTS_MAX: u32 = 1_000_000;
/// Highest number of a sample.
const SAMPLE_MAX: u32 = 1_000_000;
/// What is journalled about calls that were only passed on.
const PASSED_RETENTION: Duration = Duration::from_secs(30 * 24 * 3600);
/// Rounds in which what is over is dropped and asked anew.
const ROUNDS_MAX: usize = 3;
/// What makes the hash of credentials useless to who does not have the ledger.
const CREDENTIALS_PURPOSE: &str = "twicesafe 2026-11 credentials of pins";

/// Pins of one destination.
#[derive(Debug)]
pub(crate) struct Pins {
    window: Option<Duration>,
    truncated: Truncated,
    ignored: Vec<String>,
    prices: BTreeMap<String, Price>,
}

impl Pins {
    pub(super) fn read(rules: PinRules, notes: &mut Notes) -> Self {
        if rules.window.is_some_and(|span| span.0.is_zero()) {
            notes.take::<()>(
                "pins.window",
                Err("a window has some length; leave it out to pass such calls".to_owned()),
            );
        }
        for (model, price) in &rules.prices {
            let all = [Some(price.input), price.cached_input, Some(price.output)];
            if all.into_iter().flatten().any(|price| !price.is_finite() || price < 0.0) {
                notes.take::<()>(
                    &format!("pins.prices.{model}"),
                    Err("a price is a number from 0 on".to_owned()),
                );
            }
        }
        Self {
            window: rules.window.map(|span| span.0),
            truncated: rules.truncated.unwrap_or(Truncated::Pass),
            ignored: rules.ignore_headers.iter().map(|name| name.to_ascii_lowercase()).collect(),
            prices: rules.prices,
        }
    }

    pub(super) fn has_window(&self) -> bool {
        self.window.is_some()
    }

    /// Headers that do not change the answer.
    fn ignores(&self, name: &str) -> bool {
        matches!(
            name,
            "accept" | "content-type" | "x-client-request-id" | "x-should-retry" | "idempotency-key"
        ) || self.ignored.iter().any(|ignored| ignored == name)
    }
}

/// Whether a scope holds pins.
pub fn is_pin(scope: &str) -> bool {
    scope.rsplit('/').next().is_some_and(|action| action.starts_with("pin."))
}

/// How the paths end whose answers are pinned.
pub(super) const LAST_STEPS: [&str; 4] = ["completions", "responses", "embeddings", "messages"];

/// The work in a path, for clients that can set only a base address: `/@order-10492/v1/chat/completions`.
pub(super) fn work_in_path(path: &str) -> Result<(Option<String>, String), Problem> {
    let Some(rest) = path.strip_prefix("/@").or_else(|| path.strip_prefix("/%40")) else {
        return Ok((None, path.to_owned()));
    };
    let (work, rest) = rest.split_once('/').unwrap_or((rest, ""));
    let work = percent_decoded(work);
    // What stands for bytes that are no text.
    match !work.is_empty() && !work.contains('\u{fffd}') {
        true => Ok((Some(work.into_owned()), format!("/{rest}"))),
        false => Err(Problem::bad_request(
            "the work in the path is empty or badly encoded",
            "Write /to/DESTINATION/@WORK/v1, with the work's own name.",
        )),
    }
}

/// Whether a caller got an answer that was paid for before.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pinned {
    Hit,
    Miss,
    Pass,
}

impl Pinned {
    fn as_str(self) -> &'static str {
        match self {
            Self::Hit => "hit",
            Self::Miss => "miss",
            Self::Pass => "pass",
        }
    }
}

/// Answers a call that may be a question to a model.
pub(super) async fn answer(
    arrival: Arrival<'_>,
    pins: &Pins,
    request: &mut Request,
    work_of_path: Option<String>,
) -> Result<Response, Problem> {
    let (shared, name) = (arrival.shared.clone(), arrival.destination.name.clone());
    let wish = Wish::read(&arrival, request, work_of_path)?;
    let (answered, what) = match Call::read(&arrival, pins, request, &wish)? {
        Call::Question(question) => match Box::pin(question.answered(&arrival, pins, request)).await {
            Ok((response, pinned)) => (Ok(response), pinned.as_str()),
            Err(problem) => (Err(problem), "refused here"),
        },
        Call::Plain => (Box::pin(reads::pass(arrival, request, 1)).await, Pinned::Pass.as_str()),
        Call::Effect => (Box::pin(passed(&arrival, request, wish)).await, Pinned::Pass.as_str()),
        Call::Written => {
            if let Some(work) = wish.work.as_deref().and_then(|work| HeaderValue::from_str(work).ok()) {
                request.headers.insert("twicesafe-work", work);
            }
            return match arrival.route.mode {
                Mode::Guard => Box::pin(guarded::answer(arrival, request)).await,
                Mode::Observe => Box::pin(observe::answer(arrival, request)).await,
            };
        }
    };
    shared.metrics.destination(&name, what);
    match answered {
        Ok(response) => Ok(response.header("twicesafe-pinned", HeaderValue::from_static(what))),
        // SDKs would ask again at once, and be told the same (S27).
        Err(problem) if problem.code == Code::Pending => {
            Ok(problem.into_response().header("x-should-retry", HeaderValue::from_static("false")))
        }
        Err(problem) => Err(problem),
    }
}

/// What a caller says about its call.
struct Wish {
    /// As it calls it.
    work: Option<String>,
    sample: u32,
    expected: Vec<Arc<Expectation>>,
}

impl Wish {
    fn read(arrival: &Arrival<'_>, request: &Request, of_path: Option<String>) -> Result<Self, Problem> {
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
enum Call {
    /// Something that has one answer in its work.
    Question(Box<Question>),
    /// A write with a key or a route of its own, guarded like any other.
    Written,
    /// A question that nothing is known of: passed on.
    Plain,
    /// A write without a key: passed on, and journalled.
    Effect,
}

/// Something that has one answer.
struct Question {
    shape: Shape,
    /// What makes it this question and no other, but for its sample.
    words: blake3::Hasher,
    scope: Scope,
    work: Option<String>,
    sample: u32,
    expected: Vec<Arc<Expectation>>,
}

impl Call {
    fn read(arrival: &Arrival<'_>, pins: &Pins, request: &Request, wish: &Wish) -> Result<Self, Problem> {
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
        let canonical = twicesafe_core::canonical_json(&request.body);
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
        put(request.uri.query().unwrap_or_default().as_bytes());
        let headers = super::sending::passed_on(&request.headers);
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
        put(&credentials(arrival, pins, &headers));
        let scope = format!("{}/{}/{}", arrival.principal.tenant(), arrival.destination.name, shape.action());
        arrival.principal.demand_to_change(&scope)?;
        let (scope, sample, expected) = (Scope::new(&scope)?, wish.sample, wish.expected.clone());
        Ok(Self::Question(Box::new(Question { shape, words, scope, work, sample, expected })))
    }
}

/// Answers are nobody else's: who shows other credentials has pins of its own. Where the server shows its own, they are those
/// of the destination. Hashed with a key of the ledger's: nobody finds out what they were.
fn credentials(arrival: &Arrival<'_>, pins: &Pins, headers: &HeaderMap) -> [u8; 32] {
    let key = arrival.shared.ledger.store().derived_key(CREDENTIALS_PURPOSE);
    let mut hasher = blake3::Hasher::new_keyed(&key);
    if arrival.destination.credentials.is_none() {
        let mut shown: Vec<_> =
            headers.iter().filter(|(name, _)| is_credential(name) && !pins.ignores(name.as_str())).collect();
        shown.sort_by_key(|(name, value)| (name.as_str(), value.as_bytes()));
        for (name, value) in shown {
            for bytes in [name.as_str().as_bytes(), value.as_bytes()] {
                hasher.update(&(bytes.len() as u64).to_le_bytes());
                hasher.update(bytes);
            }
        }
    }
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

impl Question {
    /// Its name, by the number of its sample and of the answers before that were not as expected.
    fn name(&self, before: u32) -> Result<Name, Problem> {
        let mut hasher = self.words.clone();
        hasher.update(&self.sample.to_le_bytes());
        if before > 0 {
            hasher.update(&before.to_le_bytes());
        }
        let key = Key::new(&format!("pin:{}", &hasher.finalize().to_hex()[..40]))?;
        Ok(Name { scope: self.scope.clone(), key })
    }

    async fn answered(
        &self,
        arrival: &Arrival<'_>,
        pins: &Pins,
        request: &mut Request,
    ) -> Result<(Response, Pinned), Problem> {
        let room = Arc::new(request.taken.take());
        let sending = Arc::new(arrival.sending(request, None));
        let view = match self.expected.is_empty() {
            true => Value::Null,
            false => sending.view(&arrival.parameters),
        };
        // Head and body keep the connection's buffer while the caller waits.
        (request.headers, request.uri) = Default::default();
        let samples = self.expected.iter().map(|expected| expected.samples).max().unwrap_or(1);
        let mut before = 0;
        let mut followed = 0;
        loop {
            let name = self.name(before)?;
            let (mut follower, open) = arrival.shared.flights.join(&name, self.expected.is_empty());
            let is_first = open.is_some();
            if let Some(open) = open {
                let recorder = Recorder {
                    destination: arrival.destination.clone(),
                    route: arrival.route.clone(),
                    sending: sending.clone(),
                    flight: open.flight.clone(),
                    manner: Manner::Pin {
                        shape: self.shape,
                        truncated: pins.truncated,
                        expected: (!self.expected.is_empty()).then(|| {
                            Arc::new(Expected { all: self.expected.clone(), request: view.clone() })
                        }),
                    },
                    held: Arc::default(),
                    _room: room.clone(),
                };
                let leading = Leading {
                    shared: arrival.shared.clone(),
                    ledger: arrival.shared.ledger.acting_as(&arrival.principal.actor),
                    open,
                    recorder,
                    intent: self.intent(arrival, pins, name)?,
                    wait: arrival.route.timeout,
                    drain: request.drain.clone(),
                    prices: pins.prices.clone(),
                };
                tokio::spawn(leading.lead());
            }
            match follower.beginning().await {
                Beginning::Given(given) => {
                    let evaluated = self.evaluated(&given, &view);
                    if let Some((path, words)) = evaluated {
                        before += 1;
                        if before < samples {
                            continue;
                        }
                        return Err(not_as_expected(&path, &words, before, &given));
                    }
                    let pinned = if given.replayed || !is_first { Pinned::Hit } else { Pinned::Miss };
                    return Ok((told_of(arrival.shared, pins, &given, pinned), pinned));
                }
                // Another one's flight, who expects nothing: what comes of it is held against it when it is whole (S35).
                Beginning::Live(status, _) if status.is_success() && !self.expected.is_empty() => {
                    followed += 1;
                    if followed > ROUNDS_MAX {
                        return Err(still_asked(Duration::from_secs(1)));
                    }
                    follower.end().await;
                }
                Beginning::Live(status, headers) => {
                    let is_hit = !is_first && status.is_success();
                    let pinned = if is_hit { Pinned::Hit } else { Pinned::Miss };
                    return Ok((Response { status, headers, body: follower.body() }, pinned));
                }
                // Another one's, who expected something.
                Beginning::Problem(problem)
                    if problem.code == Code::ExpectationFailed
                        && self.expected.is_empty()
                        && followed < ROUNDS_MAX =>
                {
                    followed += 1;
                }
                Beginning::Problem(problem) => return Err((*problem).clone()),
                Beginning::Cut => {
                    return Err(Problem::new(
                        Code::DestinationAway,
                        "the destination gave no answer",
                        "Nothing was pinned: ask again whenever you like.",
                    )
                    .retry_after(Duration::from_secs(1)));
                }
            }
        }
    }

    fn intent(&self, arrival: &Arrival<'_>, pins: &Pins, name: Name) -> Result<Intent, Problem> {
        let mut policy = Policy::new(Recovery::Repeat);
        policy.lease = LEASE;
        policy.act_max = ACT_TIME_MAX.max(arrival.route.timeout);
        policy.in_flight_max = Duration::ZERO;
        policy.attempts_max = ATTEMPTS_MAX;
        // Whoever asks again, asks again at once.
        policy.backoff = Backoff { base: Duration::ZERO, cap: Duration::ZERO };
        policy.retention = match (&self.work, pins.window) {
            (None, Some(window)) => window,
            _ => arrival.route.policy.retention,
        };
        // What is no longer kept may be asked anew.
        policy.tombstone = Duration::ZERO;
        let input = name.key.as_str().to_owned();
        let mut intent = Intent::named(name).policy(policy).input(input);
        if let Some(work) = &self.work {
            let step = match self.sample {
                1 => self.shape.action().to_owned(),
                sample => format!("{} sample {sample}", self.shape.action()),
            };
            intent = intent.step(work, &step)?;
        }
        Ok(intent)
    }

    /// Where and why an answer is not as expected. What it was held against when it came is on record; anything else it is held
    /// against now.
    fn evaluated(&self, given: &OnRecord, view: &Value) -> Option<(String, String)> {
        if self.expected.is_empty() {
            return None;
        }
        let whole = Whole::from_kept(&given.answer);
        let kept = || whole.headers.get_all(EVALUATION).iter().filter_map(|value| value.to_str().ok());
        self.expected.iter().find_map(|expected| {
            let remembered = kept().find_map(|kept| expected.remembered(kept));
            let evaluation = remembered.unwrap_or_else(|| {
                let bytes = given.answer.bytes().cloned().unwrap_or_default();
                let is_stream = is_stream(&whole.headers);
                let findings = self.shape.read_kept(is_stream, &bytes);
                let body =
                    if is_stream { Value::Null } else { serde_json::from_slice(&bytes).unwrap_or_default() };
                expected.evaluate(view, &shape::views(&body, &findings.outputs))
            });
            evaluation.violation
        })
    }
}

fn still_asked(retry_after: Duration) -> Problem {
    Problem::new(
        Code::Pending,
        "another one asks the same, and its answer has not come yet",
        "Ask again; the answer will be the same for both.",
    )
    .retry_after(retry_after)
}

fn is_stream(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).is_some_and(is_event_stream)
}

fn not_as_expected(path: &str, words: &str, answers: u32, given: &OnRecord) -> Problem {
    let mut known = given.stored.as_deref().map(facts).unwrap_or_default();
    known.insert("path".to_owned(), path.into());
    known.insert("answers".to_owned(), answers.into());
    Problem::new(
        Code::ExpectationFailed,
        format!("the answer is not what was expected, at {path}: {words}"),
        "The answer is on record, and the same question in the same work gets it again. Ask with Twicesafe-Sample: 2 for \
         another one, allow more of them with `expect.samples`, or change the prompt.",
    )
    .with(known)
}

/// An answer that is on record.
fn told_of(shared: &Shared, pins: &Pins, given: &OnRecord, pinned: Pinned) -> Response {
    let whole = Whole::from_kept(&given.answer);
    let mut headers = whole.headers;
    headers.remove(EVALUATION);
    headers.remove(record::ID);
    let cost = Cost::taken_from(&mut headers);
    if pinned == Pinned::Hit {
        cost.save(shared, &pins.prices, 1);
        headers.insert("idempotent-replayed", HeaderValue::from_static("true"));
        if let Some(tokens) = cost.tokens() {
            headers.insert("twicesafe-saved-tokens", HeaderValue::from(tokens));
        }
        let dollars = cost.microdollars(&pins.prices).map(|micros| format!("{:.6}", micros as f64 / 1e6));
        if let Some(value) = dollars.and_then(|text| HeaderValue::from_str(&text).ok()) {
            headers.insert("twicesafe-saved-usd", value);
        }
    }
    if let Some(stored) = &given.stored {
        told::mark(&mut headers, stored);
    }
    let bytes = match whole.body {
        KeptBody::Kept(bytes) => bytes,
        KeptBody::NotKept { .. } => Bytes::new(),
    };
    let body = match is_stream(&headers) {
        // As it came: event by event.
        true => {
            let mut frames = frames::Frames::default();
            let mut all: VecDeque<Bytes> = frames.push(&bytes).into();
            all.push_back(frames.rest());
            all.retain(|frame| !frame.is_empty());
            Body::stream(futures_util::stream::iter(all.into_iter().map(Ok)))
        }
        false => Body::whole(bytes),
    };
    Response { status: whole.status, headers, body }
}

/// The one who carries a flight.
struct Leading {
    shared: Arc<Shared>,
    ledger: Ledger,
    open: Open,
    recorder: Recorder,
    intent: Intent,
    wait: Duration,
    drain: crate::http::Drain,
    prices: BTreeMap<String, Price>,
}

impl Leading {
    async fn lead(self) {
        let ended = self.carried().await;
        let Self { shared, open, recorder, prices, .. } = self;
        let flight = open.flight.clone();
        let held = recorder.held.lock().unwrap_or_else(PoisonError::into_inner).take();
        // Who comes from now on finds the answer on record.
        let close = |end: End| {
            flight.end(end);
            drop(open);
        };
        match (ended.result, held) {
            (Ok(given), held) => {
                let Some(answer) = given.answer else { return close(End::Cut) };
                let is_ours = held.as_ref().is_some_and(|held| answer.bytes() == Some(&held.body));
                match held {
                    Some(Held { last: Some(last), findings, .. }) if is_ours => {
                        flight.push(last);
                        let followers = flight.joined().saturating_sub(1);
                        close(End::Whole);
                        Cost::new(findings.model.as_deref(), findings.usage).save(
                            &shared,
                            &prices,
                            followers as u64,
                        );
                    }
                    // What was shown is not what is on record: nobody may take it for whole.
                    Some(Held { last: Some(_), .. }) => close(End::Cut),
                    _ => {
                        let replayed = given.replayed || !is_ours;
                        close(End::Given(Arc::new(OnRecord { answer, replayed, stored: ended.stored })));
                    }
                }
            }
            (Err(_), _) if flight.has_begun() => close(End::Cut),
            (Err(error), _) => {
                let problem: Problem = match error {
                    Error::Pending { retry_after } => still_asked(retry_after),
                    error => error.into(),
                };
                close(End::Problem(Arc::new(problem)));
            }
        }
    }

    /// Asks, or gets what is on record. What is there no longer, or for too long, is asked anew.
    async fn carried(&self) -> Ended {
        let mut ended = self.round().await;
        for _ in 1..ROUNDS_MAX {
            let anew = match &ended.result {
                Err(Error::Ledger(Refusal::Purged)) => self.begin_anew().await,
                // Another one's answer is on record by now, and nobody has seen anything else.
                Err(Error::Ledger(Refusal::StaleFence | Refusal::SettledOtherwise))
                    if self.open.flight.is_untouched() =>
                {
                    *self.recorder.held.lock().unwrap_or_else(PoisonError::into_inner) = None;
                    Ok(())
                }
                Ok(given) if given.replayed && self.is_over(given.kept_until).await => match &ended.stored {
                    Some(stored) => self.ledger.purge(stored).await,
                    None => Ok(()),
                },
                _ => break,
            };
            if let Err(error) = anew {
                return Ended { result: Err(error), ..ended };
            }
            ended = self.round().await;
        }
        ended
    }

    async fn round(&self) -> Ended {
        let mut drain = self.drain.clone();
        let patience = async {
            tokio::select! {
                () = tokio::time::sleep(self.wait) => {}
                () = drain.begun() => {}
                // Nobody is there to wait for it.
                () = self.open.flight.left_alone() => {}
            }
        };
        let recorder = self.recorder.clone();
        self.ledger.carry_out(&self.intent, patience, move |attempt| recorder.clone().act(attempt)).await
    }

    async fn is_over(&self, kept_until: Option<twicesafe_ledger::Timestamp>) -> bool {
        match (kept_until, self.ledger.store().now().await) {
            (Some(kept_until), Ok(now)) => now >= kept_until,
            _ => false,
        }
    }

    /// An answer that was forgotten or is no longer kept: asking again does no harm (S24), and gives another one.
    async fn begin_anew(&self) -> Result<(), Error> {
        let Some(stored) = self.ledger.look(self.intent.name()).await? else { return Ok(()) };
        if !stored.record.tombstone {
            // Somebody else was first.
            return Ok(());
        }
        match self.ledger.reset(&Actor::sweep(), &stored, "its answer is no longer kept").await {
            Ok(_) | Err(Error::Ledger(Refusal::Moved | Refusal::WrongStatus(_) | Refusal::NoSuchIntent)) => {
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}

/// Passes a write on that nobody gave a key: each time it comes it goes, and the journal says so.
async fn passed(arrival: &Arrival<'_>, request: &mut Request, wish: Wish) -> Result<Response, Problem> {
    let room = Arc::new(request.taken.take());
    let sending: Arc<Sending> = Arc::new(arrival.sending(request, None));
    let action = format!("passed.{}", guarded::made_action(&sending.method, &arrival.path));
    let scope = Scope::new(&format!("{}/{}/{action}", arrival.principal.tenant(), arrival.destination.name))?;
    arrival.principal.demand_to_change(scope.as_str())?;
    let random = u128::from_be_bytes(twicesafe_ledger::new_command_id().bytes());
    let key = Key::new(&format!("passed:{random:032x}"))?;
    let mut policy = Policy::new(Recovery::Person);
    policy.retention = arrival.route.policy.retention.min(PASSED_RETENTION);
    policy.act_max = ACT_TIME_MAX.max(arrival.route.timeout);
    // Nobody compares it with anything.
    let input = key.as_str().to_owned();
    let mut intent = Intent::named(Name { scope, key }).policy(policy).input(input);
    if let Some(work) = &wish.work {
        intent = intent.step(&arrival.principal.own_name(work)?, &action)?;
    }
    let (flight, follower) = Flight::alone(&arrival.shared.flights);
    let recorder = Recorder {
        destination: arrival.destination.clone(),
        route: arrival.route.clone(),
        sending,
        flight: flight.clone(),
        manner: Manner::Effect,
        held: Arc::default(),
        _room: room,
    };
    let ledger = arrival.shared.ledger.acting_as(&arrival.principal.actor);
    tokio::spawn(async move {
        let acting = recorder.clone();
        let ended = ledger
            .carry_out(&intent, std::future::ready(()), move |attempt| acting.clone().act(attempt))
            .await;
        if let (Err(Error::Review), Some(stored)) = (&ended.result, &ended.stored) {
            // It may have happened, and its caller was told what was heard. Nobody can ask for it again by its key: there is
            // nothing a person could decide.
            let why = "it was passed on without a key";
            if let Err(error) = ledger.resolve(&Actor::sweep(), stored, Resolution::GiveUp, why).await {
                tracing::warn!(code = %error.code(), "what was passed on is left in review: {error}");
            }
        }
        flight.end(match ended.result {
            Err(error) => End::Problem(Arc::new(error.into())),
            Ok(_) => End::Cut,
        });
    });
    following(follower).await
}

async fn following(mut follower: Follower) -> Result<Response, Problem> {
    match follower.beginning().await {
        Beginning::Live(status, headers) => Ok(Response { status, headers, body: follower.body() }),
        Beginning::Problem(problem) => Err((*problem).clone()),
        Beginning::Given(_) | Beginning::Cut => Err(Problem::new(
            Code::DestinationAway,
            "the destination gave no answer",
            "Look at what was made there before you send it again.",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_work_can_stand_in_the_path() {
        let split = |path: &str| work_in_path(path).map(|(work, rest)| (work.unwrap_or_default(), rest)).ok();
        let named = |work: &str, rest: &str| Some((work.to_owned(), rest.to_owned()));
        assert_eq!(split("/v1/models"), named("", "/v1/models"));
        assert_eq!(split("/@order-10492/v1/chat/completions"), named("order-10492", "/v1/chat/completions"));
        assert_eq!(split("/@a%2Fb%20c/v1"), named("a/b c", "/v1"));
        assert_eq!(split("/%40a/v1"), named("a", "/v1"));
        assert_eq!(split("/@a"), named("a", "/"));
        for wrong in ["/@/v1", "/@%ff/v1"] {
            assert_eq!(split(wrong), None, "{wrong}");
        }
    }
}
