//! Arrival: raw bytes verified, arrays split, questions answered, events committed, and only then acknowledged (S36-S38).

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Method, StatusCode};
use serde::Serialize;
use serde_json::{Value, json};
use twicesafe_ledger::{Accepted, Code, Intent, IntentId, Key, LaneName, Name, Status, StoreError, Stored};

use super::PREFIX;
use super::bound;
use super::event::{self, EVENTS_MAX, Event, Facts};
use super::fresh::Arrived;
use super::handover::NOTED;
use super::plan::Inbox;
use super::verify::{Doubtful, Signed};
use crate::access::{Right, check_without_links};
use crate::config::inboxes::{Respond, SameBody};
use crate::credentials::without_credentials;
use crate::gateway::answer_kept;
use crate::gateway::expression::{Expression, Sight};
use crate::http::{Problem, Request, Response};
use crate::server::Shared;
use crate::version::version_of;

/// How long a sender waits for the target's answer, where it is to get it and nobody knows how long it would wait.
const WAIT_DEFAULT: Duration = Duration::from_secs(25);
/// How long an event is tried to be stored before its sender is told to come again, where nobody knows how long it would wait. Many give
/// up after 10 s.
const COMMIT_WITHIN_DEFAULT: Duration = Duration::from_secs(8);
/// Longest expression that a message repeats.
const EXPRESSION_SHOWN_BYTES_MAX: usize = 80;
/// What is left to the way back.
const WAIT_MARGIN: Duration = Duration::from_millis(500);

/// What tells people and targets that an event was taken without its object, its version or its meaning.
const WITHOUT: &str = "twicesafe-without";

/// An event and the intent it is.
pub(super) struct Taken {
    pub(super) intent: Intent,
    pub(super) event: Event,
}

/// Answers whatever comes to `/in/`.
pub(crate) async fn answer(shared: &Arc<Shared>, request: &mut Request) -> Result<Response, Problem> {
    let name = request.path().strip_prefix(PREFIX).unwrap_or_default();
    // Some senders end every address with a slash.
    let name = name.strip_suffix('/').unwrap_or(name);
    let inbox = shared.inboxes().get(name).cloned().ok_or_else(|| {
        Problem::new(
            Code::NoSuchInbox,
            "there is no inbox with that name",
            "Name it under `inboxes:` in the configuration; the address is /in/NAME.",
        )
    })?;
    if inbox.is_asked_unsigned
        && let Some(response) = handshake(&inbox, &asked(&inbox, request))
    {
        return Ok(response);
    }
    if request.method != Method::POST {
        return Err(crate::api::wrong_method("POST"));
    }
    if !inbox.verifier.has_ways() {
        check_without_links(request)?;
        let principal = shared.access.principal(request).await?;
        principal.demand(Right::Act)?;
        principal.demand_to_change(inbox.scope.as_str())?;
    }
    request.belongs_to_inbox(&inbox.name);
    let read = request.read_body(inbox.bytes_max).await;
    let started = Instant::now();
    let within = inbox.answers_within.map(|within| within.saturating_sub(WAIT_MARGIN));
    let committing = async {
        let arrival = match read {
            Ok(()) => taken(shared, &inbox, request).await,
            Err(problem) => Err(problem),
        };
        match arrival.map_err(|problem| not_taken(shared, &inbox, problem))? {
            Arrival::Answered(response) => Ok(Committed::Nothing(response)),
            Arrival::Events { taken, due_in } => {
                if inbox.same_body == SameBody::Known
                    && bound::came_before(shared, &inbox, &request.body, &taken).await?
                {
                    shared.metrics.inbox(&inbox.name, "duplicate", taken.len() as u64);
                    if inbox.repeated.is_time() {
                        let inbox = &inbox.name;
                        tracing::warn!(
                            inbox,
                            "an event came again under another id, with the same body: it is not handed over"
                        );
                    }
                    return Ok(Committed::Nothing(acknowledged(0, taken.len())));
                }
                commit(shared, &inbox, taken, due_in).await.map(Committed::Events)
            }
        }
    };
    // A sender that has given up hears of no 503.
    let committed = tokio::time::timeout(within.unwrap_or(COMMIT_WITHIN_DEFAULT), committing).await;
    let accepted = match committed {
        Ok(Ok(Committed::Nothing(response))) => return Ok(response),
        Ok(Ok(Committed::Events(accepted))) => accepted,
        Ok(Err(problem)) => return Err(problem),
        Err(_) => {
            // It may be stored all the same; then it is known when it comes again.
            inbox.fresh.miss();
            return Err(StoreError::Away(format!(
                "an event for `{}` could not be stored in time",
                inbox.name
            ))
            .into());
        }
    };
    // Head and body keep the connection's buffer while the sender waits.
    (request.headers, request.body) = Default::default();
    let known = accepted.iter().filter(|accepted| !accepted.is_new).count();
    match (inbox.respond, accepted.as_slice()) {
        (Respond::Target, [only]) => {
            let within = within.unwrap_or(WAIT_DEFAULT).saturating_sub(started.elapsed());
            Ok(Box::pin(awaited(shared, only, request, within)).await)
        }
        _ => Ok(acknowledged(accepted.len() - known, known)),
    }
}

/// What became of a request in time.
enum Committed {
    Nothing(Response),
    Events(Vec<Accepted>),
}

/// Stores events, and has those that are new handed over.
async fn commit(
    shared: &Shared,
    inbox: &Inbox,
    taken: Vec<Taken>,
    due_in: Duration,
) -> Result<Vec<Accepted>, Problem> {
    let (intents, events): (Vec<Intent>, Vec<Event>) =
        taken.into_iter().map(|taken| (taken.intent, taken.event)).unzip();
    // Some of them may be stored though others could not be.
    let accepted = shared.ledger.accept_all(&intents, due_in).await.inspect_err(|_| inbox.fresh.miss())?;
    let lacking = events.iter().filter(|event| event.headers.contains_key(WITHOUT)).count();
    shared.metrics.inbox(&inbox.name, "incomplete", lacking as u64);
    let known = accepted.iter().filter(|accepted| !accepted.is_new).count();
    shared.metrics.inbox(&inbox.name, "duplicate", known as u64);
    for (accepted, event) in accepted.iter().zip(events) {
        match (accepted, due_in.is_zero()) {
            (Accepted { is_new: true, stored: Some(stored), .. }, true) => {
                inbox.fresh.put(Arrived { stored: stored.clone(), event });
            }
            // What is handed over then is what came first, and not this (S38).
            (Accepted { is_opened: true, .. }, _) => inbox.fresh.miss(),
            _ => {}
        }
    }
    Ok(accepted)
}

fn not_taken(shared: &Shared, inbox: &Inbox, problem: Problem) -> Problem {
    let what = match problem.code {
        Code::NotVerified | Code::OutOfTime => "unverified",
        _ => "refused",
    };
    shared.metrics.inbox(&inbox.name, what, 1);
    if inbox.not_taken.is_time() {
        let (inbox, code) = (&inbox.name, problem.code.as_str());
        tracing::warn!(inbox, code, "an event was not taken: {}", problem.message());
    }
    problem
}

/// Known ids get the same: senders disable hooks that answer anything else (S37).
fn acknowledged(accepted: usize, known: usize) -> Response {
    #[derive(Serialize)]
    struct Acknowledgement {
        accepted: usize,
        known: usize,
    }
    Response::json(StatusCode::OK, &Acknowledgement { accepted, known })
}

/// What came.
enum Arrival {
    Answered(Response),
    Events { taken: Vec<Taken>, due_in: Duration },
}

async fn taken(shared: &Shared, inbox: &Inbox, request: &Request) -> Result<Arrival, Problem> {
    let query = request.uri.query();
    let now_ms = shared.ledger.store().system_millis();
    // Spans of time are the ledger's: several servers must agree on them.
    let ledger_ms = match inbox.hint {
        Some(_) => shared.ledger.store().now().await?.as_millis(),
        None => 0,
    };
    let body = inbox.reads_bodies().then_some(&request.body);
    let reads_header = |name: &str| inbox.reads(&["headers", name]);
    let look = || event::view(&request.headers, reads_header, query, body);
    let mut view = inbox.verifier.reads_events().then(look);
    let mut verified = inbox.sender.clone();
    let mut out_of_time = None;
    if inbox.verifier.has_ways() {
        let signed = Signed {
            method: request.method.as_str(),
            query,
            headers: &request.headers,
            body: &request.body,
            view: view.as_ref().unwrap_or(&Value::Null),
            now_ms,
        };
        match inbox.verifier.verify(&signed) {
            Ok(secret) => verified = format!("{verified}, secret {secret}"),
            Err(skewed @ Doubtful::Skewed { .. }) => out_of_time = Some(not_verified(skewed)),
            Err(doubtful) => return Err(not_verified(doubtful)),
        }
    }
    let view = view.take().unwrap_or_else(look);
    if out_of_time.is_none()
        && let Some(response) = handshake(inbox, &view)
    {
        return Ok(Arrival::Answered(response));
    }
    let arriving = Arriving {
        inbox,
        verified: &verified,
        headers: event::kept_headers(&request.headers, &inbox.verifier),
        query,
        period: period(inbox, ledger_ms),
    };
    let taken = arriving.events(&view, &request.body)?;
    let count = |what| shared.metrics.inbox(&inbox.name, what, taken.len() as u64);
    if let Some(problem) = out_of_time {
        // What is known is known, whoever says it again (S37): nothing is done about it, and the sender need not go on.
        for one in &taken {
            if shared.ledger.look(one.intent.name()).await?.is_none() {
                return Err(problem);
            }
        }
        count("arrived");
        count("duplicate");
        return Ok(Arrival::Answered(acknowledged(0, taken.len())));
    }
    count("arrived");
    Ok(Arrival::Events { taken, due_in: due_in(inbox, ledger_ms) })
}

/// What is seen of a question that nobody has signed: its headers and its query.
fn asked(inbox: &Inbox, request: &Request) -> Value {
    let reads_header = |name: &str| inbox.reads(&["headers", name]);
    event::view(&request.headers, reads_header, request.uri.query(), None)
}

fn handshake(inbox: &Inbox, view: &Value) -> Option<Response> {
    let (when, answer) = inbox.handshake.as_ref()?;
    let sight = Sight { event: Some(view), ..Sight::default() };
    when.holds(&sight).ok().filter(|holds| *holds)?;
    Some(match answer.value(&sight).ok()? {
        Value::Null => Response::empty(StatusCode::NO_CONTENT),
        Value::String(text) => Response::whole(StatusCode::OK, "text/plain; charset=utf-8", text).harmless(),
        other => Response::json(StatusCode::OK, &other).harmless(),
    })
}

/// What the events of one request have in common.
pub(super) struct Arriving<'a> {
    pub(super) inbox: &'a Inbox,
    pub(super) verified: &'a str,
    pub(super) headers: hyper::HeaderMap,
    pub(super) query: Option<&'a str>,
    pub(super) period: Option<i64>,
}

impl Arriving<'_> {
    /// One intent an element (S38). All or none: what cannot be named is not lost silently.
    pub(super) fn events(self, view: &Value, body: &Bytes) -> Result<Vec<Taken>, Problem> {
        if !self.inbox.is_array {
            return Ok(vec![self.event(view, body.clone(), None)?]);
        }
        let Value::Array(items) = &view["body"] else {
            let hint = "Send them as the provider does, or describe the provider without `array: true`.";
            return Err(Problem::new(Code::EventUnnamed, "the body is not a JSON array of events", hint));
        };
        if items.len() > EVENTS_MAX {
            let message = format!("there are more than {EVENTS_MAX} events in one request");
            return Err(Problem::new(Code::InputTooLarge, message, "Send fewer at a time."));
        }
        let texts = event::elements(body);
        debug_assert_eq!(texts.len(), items.len(), "every element has its text");
        let one = |(item, text): (&Value, Bytes)| {
            let view = event::view_of_one(view, item.clone());
            self.event(&view, text.clone(), None).or_else(|problem| {
                // Refused, the others would be lost with it: it is called by what it says.
                if self.inbox.unnamed.is_time() {
                    let inbox = &self.inbox.name;
                    tracing::warn!(
                        inbox,
                        "one of several events is called by what it says: {}",
                        problem.message()
                    );
                }
                let id = format!("unnamed:{}", blake3::hash(&text).to_hex());
                self.event(&view, text, Some(&id))
            })
        };
        items.iter().zip(texts).map(one).collect()
    }

    /// The intent that an event is. `id` goes before what the inbox would call it.
    pub(super) fn event(&self, view: &Value, body: Bytes, id: Option<&str>) -> Result<Taken, Problem> {
        let inbox = self.inbox;
        let sight = Sight { event: Some(view), ..Sight::default() };
        let id = match id {
            Some(id) => id.to_owned(),
            None => inbox.id.name(&sight).map_err(|why| unnamed(self.explained(&why, &body)))?.to_string(),
        };
        let name = Name {
            scope: inbox.scope.clone(),
            key: Key::new(&id).map_err(|error| unnamed(error.to_string()))?,
        };
        let mut lacking = Lacking { inbox, tells: None, fields: Vec::new() };
        let text = |expression: &Expression| expression.name(&sight).map(|named| named.to_string());
        let object = lacking.noted("lane", inbox.lane.as_ref(), text);
        // Hints have no versions: they tell to look, and the last look sees everything.
        let version = inbox.version.as_ref().filter(|_| object.is_some() && inbox.hint.is_none());
        let version = lacking.noted("version", version, |expression| {
            let text = text(expression)?;
            version_of(&text)
                .ok_or_else(|| format!("`{}` is neither a whole number nor a time", expression.text()))
        });
        let means = lacking.noted("intent", inbox.means.as_ref(), text);
        let mut intent = Intent::named(name).policy(inbox.policy.clone()).input(body.clone());
        if let Some(object) = &object {
            intent = intent.lane(&lane(inbox, object), version)?;
        }
        let facts = Facts { verified: self.verified.to_owned(), object, means, period: self.period };
        let mut headers = self.headers.clone();
        if let Ok(fields) = HeaderValue::from_str(&lacking.fields.join(", "))
            && !lacking.fields.is_empty()
        {
            headers.insert(WITHOUT, fields);
        }
        let event = Event {
            query: self.query.and_then(|query| without_credentials(query, &[])),
            headers,
            body,
            facts,
        };
        let intent = intent.request(event.kept(&inbox.name));
        Ok(Taken { intent, event })
    }

    /// What could not be found, and why there was nothing to look at, if there was not.
    fn explained(&self, why: &str, body: &Bytes) -> String {
        let inbox = self.inbox;
        let why = match inbox.id.text().len() > EXPRESSION_SHOWN_BYTES_MAX {
            true => {
                format!("none of the headers and fields is there that `id:` of `{}` is made of", inbox.name)
            }
            false => why.to_owned(),
        };
        match event::why_unread(&self.headers, body) {
            Some(unread) => format!("{why}; {unread}"),
            None => why,
        }
    }
}

/// What an event is taken without: refused, it would be lost.
struct Lacking<'a> {
    inbox: &'a Inbox,
    /// Whether the log is to tell of this event: it does so seldom, and then of all that it lacks.
    tells: Option<bool>,
    fields: Vec<&'static str>,
}

impl Lacking<'_> {
    fn noted<T>(
        &mut self,
        field: &'static str,
        expression: Option<&Expression>,
        read: impl FnOnce(&Expression) -> Result<T, String>,
    ) -> Option<T> {
        match read(expression?) {
            Ok(value) => Some(value),
            Err(why) => {
                if *self.tells.get_or_insert_with(|| self.inbox.incomplete.is_time()) {
                    let inbox = &self.inbox.name;
                    tracing::warn!(inbox, "an event is handed over without its `{field}`: {why}");
                }
                self.fields.push(field);
                None
            }
        }
    }
}

/// An object's lane. What is no name, because it is long or has control characters, has one all the same.
fn lane(inbox: &Inbox, object: &str) -> String {
    let lane = format!("in:{}:{object}", inbox.name);
    match LaneName::new(&lane) {
        Ok(_) => lane,
        Err(_) => format!("in:{}:#{}", inbox.name, blake3::hash(object.as_bytes()).to_hex()),
    }
}

/// The number of the span of time an event arrives in, where only hints are handed over.
pub(super) fn period(inbox: &Inbox, now_ms: i64) -> Option<i64> {
    let span = i64::try_from(inbox.hint?.as_millis()).ok()?;
    Some(now_ms.div_euclid(span))
}

/// A hint is due when its span is over: it then tells of everything that arrived in it.
pub(super) fn due_in(inbox: &Inbox, now_ms: i64) -> Duration {
    let Some(span) = inbox.hint.and_then(|span| i64::try_from(span.as_millis()).ok()) else {
        return Duration::ZERO;
    };
    Duration::from_millis((span - now_ms.rem_euclid(span)).unsigned_abs())
}

/// Waits for the target's answer, as long as the sender would; then says that it is on record.
async fn awaited(shared: &Shared, accepted: &Accepted, request: &Request, within: Duration) -> Response {
    let Some(first) = accepted.stored.clone() else { return acknowledged(0, 1) };
    let mut drain = request.drain.clone();
    let settled = tokio::select! {
        settled = settled(shared, first) => settled,
        () = tokio::time::sleep(within) => None,
        () = drain.begun() => None,
    };
    let Some(stored) = settled else {
        return Response::json(StatusCode::ACCEPTED, &json!({ "accepted": 1, "status": "pending" }));
    };
    let record = &stored.record;
    let mut response = match (record.status, &record.answer) {
        (Status::Done, Some(answer)) if !record.is_tombstone() => {
            let mut response = answer_kept(answer).harmless();
            NOTED.iter().for_each(|noted| drop(response.headers.remove(*noted)));
            response
        }
        // There is no answer, and there may never be one: it is on record all the same.
        (status, _) => {
            Response::json(StatusCode::ACCEPTED, &json!({ "accepted": 1, "status": status.as_str() }))
        }
    };
    if !accepted.is_opened {
        response.headers.insert("idempotent-replayed", HeaderValue::from_static("true"));
    }
    response.headers.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static("application/octet-stream"));
    response
}

async fn settled(shared: &Shared, first: Arc<Stored>) -> Option<Arc<Stored>> {
    let mut stored = first;
    let waits_for_a_person = |stored: &Stored| {
        let record = &stored.record;
        record.status == Status::Review || record.status == Status::Retryable && record.due_at.is_none()
    };
    while !stored.record.status.is_settled() && !waits_for_a_person(&stored) {
        let store = shared.ledger.store();
        let (id, version): (IntentId, i64) = (stored.id, stored.version);
        store.changed(id, version).await;
        stored = Arc::new(store.find_id(id).await.ok()??);
    }
    Some(stored)
}

fn unnamed(why: impl std::fmt::Display) -> Problem {
    let hint = "Change `id:` of the inbox to a field that every event has; nothing was stored.";
    Problem::new(Code::EventUnnamed, format!("the event cannot be named: {why}"), hint)
}

fn not_verified(why: Doubtful) -> Problem {
    match why {
        Doubtful::Unsigned(header) => Problem::new(
            Code::NotVerified,
            format!("the event is not signed: there is no header {header} that can be used"),
            "Only who has the secret can send events here. Look whether a proxy drops the header.",
        ),
        Doubtful::Wrong => Problem::new(
            Code::NotVerified,
            "the signature is not right with any of the inbox's secrets",
            "Compare the secret at the sender with `secrets:`; the body must arrive as it was sent, and `url:` must be the \
             address that the sender has.",
        ),
        Doubtful::Timeless => Problem::new(
            Code::NotVerified,
            "the event does not say when it was sent",
            "Look whether a proxy drops the header that says so.",
        ),
        Doubtful::Skewed { by_s, tolerance_s } => {
            let (by, way) = (by_s.abs(), if by_s > 0 { "before" } else { "after" });
            Problem::new(
                Code::OutOfTime,
                format!(
                    "the signature is right, but it was made {by} s {way} the time of this server; {tolerance_s} s are allowed"
                ),
                "If this is no replay of an old event, one of the two clocks is wrong: look at this server's first (NTP).",
            )
        }
    }
}
