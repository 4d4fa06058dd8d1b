//! A question that has one answer: its name, who follows whom, whether the answer is as expected, and how it is told.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use serde_json::Value;
use twicesafe_ledger::{Backoff, Body as KeptBody, Code, Intent, Key, Name, Policy, Recovery, Scope};

use super::flight::{Beginning, OnRecord};
use super::frames::Frames;
use super::lead::Leading;
use super::record::{self, EVALUATION, Expected, Manner, Recorder, is_event_stream};
use super::saved::Cost;
use super::shape::{self, Shape};
use super::{ACT_TIME_MAX, ATTEMPTS_MAX, Expectation, LEASE, Pinned, Pins, ROUNDS_MAX};
use crate::api::facts;
use crate::gateway::answer::Whole;
use crate::gateway::{Arrival, told};
use crate::http::{Body, Problem, Request, Response};
use crate::server::Shared;

/// Something that has one answer.
pub(super) struct Question {
    pub(super) shape: Shape,
    /// What makes it this question and no other, but for its sample.
    pub(super) words: blake3::Hasher,
    pub(super) scope: Scope,
    pub(super) work: Option<String>,
    pub(super) sample: u32,
    pub(super) expected: Vec<Arc<Expectation>>,
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

    pub(super) async fn answered(
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

pub(super) fn still_asked(retry_after: Duration) -> Problem {
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
        cost.save(shared, Some(&pins.prices), 1);
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
            let mut frames = Frames::default();
            let mut all: VecDeque<Bytes> = frames.push(&bytes).into();
            all.push_back(frames.rest());
            all.retain(|frame| !frame.is_empty());
            Body::stream(futures_util::stream::iter(all.into_iter().map(Ok)))
        }
        false => Body::whole(bytes),
    };
    Response { status: whole.status, headers, body }
}
