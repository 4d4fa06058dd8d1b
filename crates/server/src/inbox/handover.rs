//! Handing one event over, under a permit: to an address, with an id, a time and a signature as Standard Webhooks have them, or
//! to one of the destinations as a guarded call of its own.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use hyper::{Method, StatusCode};
use ring::hmac;
use serde_json::{Value, json};
use twicesafe_ledger::{
    Answer, Attempt, Body, Code, Counts, Dossier, Error, Intent, IntentId, Key, Name, OnReview, Outcome,
    Policy, Refusal, Status, Trouble,
};

use super::event::{Event, in_header};
use super::meaning::{carried_by, replayed, stands_for};
use super::plan::{Inbox, Target};
use crate::access::Principal;
use crate::config::inboxes::Respond;
use crate::gateway::act::may_send;
use crate::gateway::answer::{Limits, Whole, received};
use crate::gateway::upstream::{Care, Failure, Lent, Upstream};
use crate::http::Request;
use crate::http::problem::ERROR;
use crate::server::Shared;

/// What a destination knows repetitions by, where its route says nothing else.
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// What the number of a call at a destination is called in an event's answer.
const CALL: &str = "twicesafe-call: ";
/// What was noted beside an answer for people, and is nothing that the target said.
pub(super) const NOTED: [&str; 2] = ["twicesafe-call", "twicesafe-same-as"];
/// What is kept of a target's answer where nobody is given it: enough to see what it said.
const ANSWER_KEPT_BYTES_MAX: usize = 4 << 10;
/// Largest answer of a destination that is read.
const ANSWER_READ_BYTES_MAX: usize = twicesafe_ledger::ANSWER_BYTES_MAX;
/// How long an event waits for another one that means the same.
const SAME_WAIT_MAX: Duration = Duration::from_secs(2);
/// When it is looked at again, if the other one is still under way then.
const SAME_RETRY_AFTER: Duration = Duration::from_secs(1);
/// When to ask again what waits for a person at a destination.
const PEOPLE_RETRY_AFTER: Duration = Duration::from_secs(300);

/// What else is known of an answer.
enum Stands {
    /// Its status says what came of it.
    Alone,
    /// Somebody else is waited for; nothing was sent.
    Waiting,
    /// Somebody said no; nothing was sent, or will be.
    Refused,
    /// The destination took it for something else; nothing was sent.
    Mistaken,
}

/// What a target said.
struct Said {
    whole: Whole,
    stands: Stands,
    reason: String,
    /// The call at a destination, which is an intent of its own.
    call: Option<IntentId>,
}

/// One event, where it goes.
pub(crate) struct Handover {
    pub(crate) shared: Arc<Shared>,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) event: Event,
    /// What the event is called.
    id: Key,
    /// Of the event's own attempt, whatever is carried out inside it.
    number: u32,
    is_late: bool,
    /// A person wanted it again.
    is_replay: bool,
    /// Whether the target did what a target should; what never came to an exchange says nothing about it.
    pub(crate) went: Mutex<Option<bool>>,
}

impl Handover {
    pub(crate) fn new(shared: Arc<Shared>, inbox: Arc<Inbox>, event: Event, attempt: &Attempt) -> Arc<Self> {
        let id = attempt.name().key.clone();
        let (number, is_late) = (attempt.number(), attempt.is_late());
        let is_replay = attempt.permit().generation > 1;
        Arc::new(Self { shared, inbox, event, id, number, is_late, is_replay, went: Mutex::default() })
    }

    /// Hands the event over once.
    pub(crate) async fn act(self: &Arc<Self>, attempt: &Attempt) -> Outcome {
        let facts = &self.event.facts;
        let again = match replayed(&self.shared.ledger, &attempt.stored()).await {
            Ok(again) => again,
            Err(error) => return Outcome::not_sent(&error.to_string()),
        };
        let name = match stands_for(&self.inbox.name, facts, &self.id, again) {
            Ok(Some(name)) => name,
            Ok(None) => return self.send(attempt, self.event.body.clone()).await,
            Err(error) => return Outcome::not_sent(&error.to_string()),
        };
        let intent = Intent::named(name).policy(self.nested_policy()).holder(carried_by(attempt.stored().id));
        let (intent, body) = match (facts.hinted(), &facts.means) {
            (Some((object, _)), _) => {
                let hint = json!({ "type": "changed", "inbox": self.inbox.name, "object": object });
                let hint = Bytes::from(hint.to_string());
                (intent.input(hint.clone()), hint)
            }
            (None, means) => (intent.input(means.clone().unwrap_or_default()), self.event.body.clone()),
        };
        self.once(attempt, intent, body).await
    }

    /// The event's own agreement says how often it is tried again. Many events may stand for one thing: it is not sent again
    /// for each of them, but when it is due, and that is sooner than they are.
    fn nested_policy(&self) -> Policy {
        let mut policy = self.inbox.policy.clone();
        policy.attempts_max = u32::MAX;
        policy.backoff.base /= 4;
        policy.backoff.cap /= 4;
        policy
    }

    /// Carries out what the event stands for, unless another one did: then this gets its answer.
    async fn once(self: &Arc<Self>, attempt: &Attempt, intent: Intent, body: Bytes) -> Outcome {
        let said = Arc::new(Mutex::new(None));
        let (this, heard, outer) = (self.clone(), said.clone(), attempt.clone());
        // Not for long: others have something else to hand over meanwhile. What is not due is not waited for at all.
        let is_under_way = match self.shared.ledger.look(intent.name()).await {
            Ok(known) => known.is_none_or(|known| known.record.status != Status::Retryable),
            Err(error) => return Outcome::not_sent(&error.to_string()),
        };
        let name = intent.name().clone();
        let intent = intent.wait(if is_under_way { SAME_WAIT_MAX } else { Duration::ZERO });
        let ran = self.shared.ledger.run(intent, move |inner| async move {
            // Under both permits: the event's must still hold, too.
            outer.check_send()?;
            let outcome = this.send(&inner, body).await;
            *heard.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome.clone());
            match outcome {
                Outcome::Answered(answer) => Ok(answer),
                other => Err(Trouble::from_outcome(other)),
            }
        });
        let ran = ran.await;
        if let Some(outcome) = said.lock().unwrap_or_else(PoisonError::into_inner).take() {
            return outcome;
        }
        match ran {
            Ok(given) => {
                let mut answer = given.answer.unwrap_or_default();
                if answer.head.is_empty() {
                    answer.head = "HTTP 200\n".into();
                }
                // Nobody should take this for a handover of its own.
                answer.head = format!("{}twicesafe-same-as: {}\n", answer.head, given.intent.number()).into();
                Outcome::Answered(answer)
            }
            Err(Error::Pending { .. }) => {
                let retry_after = self.same_retry_after(&name).await;
                let reason = "another event that means the same is being handed over".into();
                Outcome::NotSent { reason, retry_after: Some(retry_after), counts: Counts::AsWaiting }
            }
            Err(Error::Refused(given)) => {
                let (answer, replay_for) = (given.answer.unwrap_or_default(), self.inbox.policy.retention);
                Outcome::Refused { answer, replay_for }
            }
            // It was handed over so long ago that its answer is not kept any more, or was forgotten.
            Err(Error::Ledger(Refusal::Purged)) => {
                let head = "HTTP 200\ntwicesafe-same-as: no longer kept\n".into();
                Outcome::Answered(Answer { head, ..Answer::default() })
            }
            // Where what is in review lets others of its object pass, so does this one: it waits for its own decision (S15).
            Err(Error::Review) if self.inbox.policy.on_review == OnReview::Pass => Outcome::Unknown {
                reason: "another event that means the same is in review".into(),
                retry_after: None,
                park: true,
            },
            // Nothing of this one was sent: what is in doubt is the other one's attempt, and a person decides about that.
            Err(Error::Review) => Outcome::NotSent {
                reason: "another event that means the same is in review".into(),
                retry_after: Some(PEOPLE_RETRY_AFTER),
                counts: Counts::AsWaiting,
            },
            // Somebody gave it up, for all events that mean it.
            Err(Error::Ledger(Refusal::GivenUp)) => {
                let body = Body::Kept("a person gave up what this event means".into());
                let answer =
                    Answer { head: "HTTP 409\ncontent-type: text/plain\n".into(), body, ..Answer::default() };
                Outcome::Refused { answer, replay_for: self.inbox.policy.retention }
            }
            Err(error) => Outcome::not_sent(&error.to_string()),
        }
    }

    /// When to ask again for what another event is handing over: its lease says nothing about when it is through. What is not
    /// due by then is not asked for.
    async fn same_retry_after(&self, name: &Name) -> Duration {
        let ledger = &self.shared.ledger;
        let (Ok(Some(known)), Ok(now)) = (ledger.look(name).await, ledger.store().now().await) else {
            return SAME_RETRY_AFTER;
        };
        let is_retried = known.record.status == Status::Retryable;
        match known.record.due_at.filter(|due_at| is_retried && *due_at > now) {
            Some(due_at) => due_at.since(now),
            None => SAME_RETRY_AFTER,
        }
    }

    async fn send(&self, attempt: &Attempt, body: Bytes) -> Outcome {
        let answered = match &self.inbox.target {
            Target::Url { upstream, path_and_query, method, headers, masks } => {
                let posted = self.post(attempt, upstream, path_and_query, method, headers, body).await;
                let posted = match posted {
                    Ok((response, lent, limits)) => {
                        Whole::read(received(response, masks), lent, limits, masks.clone(), |_| None).await
                    }
                    Err(failure) => Err(failure),
                };
                posted.map(|whole| {
                    let reason = format!("the target answered {}", whole.status.as_u16());
                    Said { whole, stands: Stands::Alone, reason, call: None }
                })
            }
            Target::Destination { name, path_and_query, method } => {
                self.call(attempt, name, path_and_query, method, body).await
            }
        };
        match answered {
            Ok(Said { whole, stands, reason, call }) => {
                let is_well = !(whole.status.is_server_error()
                    || matches!(whole.status.as_u16(), 404 | 408 | 410 | 425 | 429));
                self.note(is_well);
                let outcome = self.judged(&whole, stands, reason.into());
                match call {
                    Some(call) => naming(outcome, call),
                    None => outcome,
                }
            }
            Err(Failure::NotSent(why)) => {
                self.note(false);
                Outcome::not_sent(&why)
            }
            Err(Failure::Unknown(why)) => {
                self.note(false);
                Outcome::unknown(&why)
            }
        }
    }

    fn note(&self, went: bool) {
        *self.went.lock().unwrap_or_else(PoisonError::into_inner) = Some(went);
    }

    /// 2xx says that it was taken. Anything else says that it was not, and is tried again: a target that is being set up anew
    /// answers 404. After 408 and 5xx nobody knows how far it came.
    fn judged(&self, whole: &Whole, stands: Stands, reason: Arc<str>) -> Outcome {
        let status = whole.status;
        let counts = match stands {
            Stands::Alone => Counts::AsAttempt,
            Stands::Waiting => Counts::AsWaiting,
            // For as long as it is known: when its sender delivers it again, nobody is asked again.
            Stands::Refused => {
                let replay_for = self.inbox.policy.retention;
                return Outcome::Refused { answer: whole.kept(None), replay_for };
            }
            Stands::Mistaken => return Outcome::Unknown { reason, retry_after: None, park: true },
        };
        if status.is_success() {
            let answer = whole.kept(None);
            return Outcome::Answered(match self.inbox.respond {
                Respond::Target => answer,
                Respond::Accepted => answer.limited(ANSWER_KEPT_BYTES_MAX),
            });
        }
        let retry_after = whole.retry_after();
        match status.is_server_error() || status == StatusCode::REQUEST_TIMEOUT {
            true => Outcome::Unknown { reason, retry_after, park: false },
            false => Outcome::NotSent { reason, retry_after, counts },
        }
    }

    async fn post(
        &self,
        attempt: &Attempt,
        upstream: &Upstream,
        path_and_query: &str,
        method: &Method,
        fixed: &HeaderMap,
        body: Bytes,
    ) -> Result<(hyper::Response<Incoming>, Lent, Limits), Failure> {
        let mut request = hyper::Request::new(Full::new(body.clone()));
        *request.method_mut() = method.clone();
        *request.uri_mut() = upstream.base().join(path_and_query).map_err(Failure::NotSent)?;
        *request.headers_mut() = self.headers(attempt, &body);
        for (name, value) in fixed {
            request.headers_mut().insert(name.clone(), value.clone());
        }
        let started = Instant::now();
        let timeout = self.inbox.timeout;
        let request = std::future::ready(Ok(request));
        let exchange = upstream.exchange_within(timeout, request, Care::Little, || may_send(attempt));
        let (response, lent) = exchange.await?;
        let limits = Limits { started, whole: timeout, large: timeout };
        Ok((response, lent, limits))
    }

    /// A guarded call at a destination, under its own key: what is done there is done once, whatever becomes of the event.
    async fn call(
        &self,
        attempt: &Attempt,
        name: &str,
        path_and_query: &str,
        method: &Method,
        body: Bytes,
    ) -> Result<Said, Failure> {
        let uri = format!("/to/{name}{path_and_query}");
        let uri = uri.parse().map_err(|_| Failure::NotSent("the path is no address".to_owned()))?;
        // Only what says what the body is: a destination has headers of its own, and knows its key.
        let mut headers = self.headers(attempt, &body);
        let own = [(CONTENT_TYPE, CONTENT_TYPE.as_str()), (IDEMPOTENCY_KEY, "webhook-id")];
        let own = own.map(|(name, from)| headers.remove(from).map(|value| (name, value)));
        let headers: HeaderMap = own.into_iter().flatten().collect();
        may_send(attempt).map_err(Failure::NotSent)?;
        let (open, mut request) = Request::made(method.clone(), uri, headers, body);
        let principal = Principal::anybody(self.shared.ledger.actor().clone());
        let called = crate::gateway::carried(&self.shared, principal, &mut request);
        // The guard waits as long as its route says, and settles whatever is under way.
        let response = match called.await {
            Ok(response) => response,
            Err(problem) => problem.into_response(),
        };
        drop(open);
        let (status, mut kept) = (response.status, response.headers.clone());
        let stands = kept.get("twicesafe-status").and_then(|value| value.to_str().ok()).map(str::to_owned);
        // A destination may have problems of its own: what is kept of its answers has no such header.
        let code = kept.get(ERROR).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let is_own = code.is_some();
        let read = Limited::new(response.body, ANSWER_READ_BYTES_MAX).collect().await;
        let body = read.map_err(|_| Failure::Unknown("its answer was cut short".to_owned()))?.to_bytes();
        let own: Value = is_own.then(|| serde_json::from_slice(&body).ok()).flatten().unwrap_or_default();
        let code = code.as_deref();
        let reason = match (stands.as_deref(), code, own["message"].as_str()) {
            (_, Some(code), Some(message)) => format!("{name}: {message} ({code})"),
            (Some(stands @ ("held" | "review" | "rejected")), ..) => format!("{name}: it is {stands} there"),
            _ => format!("{name} answered {}", status.as_u16()),
        };
        let (status, stands) = match stands.as_deref() {
            // What is on record is about something else.
            _ if code == Some(Code::Mismatch.as_str()) => (StatusCode::CONFLICT, Stands::Mistaken),
            Some("done") if status.is_success() => (status, Stands::Alone),
            // It is done: that is what became of the event, whatever the status says.
            Some("done" | "superseded" | "undone") => (StatusCode::OK, Stands::Alone),
            // Somebody said no, or nobody yes in time.
            Some("rejected") => (StatusCode::CONFLICT, Stands::Refused),
            // Somebody is asked there, who may take their time; the server sends it then.
            Some("held" | "review") => {
                kept.insert(RETRY_AFTER, HeaderValue::from(PEOPLE_RETRY_AFTER.as_secs()));
                (StatusCode::CONFLICT, Stands::Waiting)
            }
            Some(_) => (StatusCode::CONFLICT, Stands::Alone),
            // It is paused, or the ledger is away.
            None if is_own && status == StatusCode::SERVICE_UNAVAILABLE => {
                (StatusCode::CONFLICT, Stands::Waiting)
            }
            // Nothing of what the guard could not do was done: it is asked again. What it only passed on may have been done.
            None if is_own && status != StatusCode::BAD_GATEWAY => (StatusCode::CONFLICT, Stands::Alone),
            None => (status, Stands::Alone),
        };
        let call = kept.get("twicesafe-intent").and_then(|number| number.to_str().ok()?.parse().ok());
        let whole = Whole::of(status, &kept, Body::Kept(body.clone()));
        Ok(Said { whole, stands, reason, call: call.map(IntentId::new) })
    }

    /// The event's own headers, and what the target knows it by: an id that is the same on every attempt, a time, a signature.
    fn headers(&self, attempt: &Attempt, body: &[u8]) -> HeaderMap {
        let mut headers = self.event.headers.clone();
        let is_hint = self.event.facts.hinted().is_some();
        if is_hint {
            // A hint is not the event.
            headers.clear();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        if self.inbox.is_array {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        let id = format!("msg_{}", attempt.destination_key());
        let seconds = jiff::Timestamp::now().as_second();
        let mut put = |name: &'static str, value: &str| {
            if let Ok(value) = HeaderValue::from_str(value) {
                headers.insert(name, value);
            }
        };
        put("user-agent", concat!("twicesafe/", env!("CARGO_PKG_VERSION")));
        put("webhook-id", &id);
        put("webhook-timestamp", &seconds.to_string());
        put("twicesafe-inbox", &self.inbox.name);
        put("twicesafe-attempt", &self.number.to_string());
        put("twicesafe-event", &in_header(self.id.as_str()));
        if let Some(query) = self.event.query.as_deref().filter(|_| !is_hint) {
            put("twicesafe-query", query);
        }
        if self.is_late {
            put("twicesafe-late", "true");
        }
        if self.is_replay {
            put("twicesafe-replay", "true");
        }
        if let Some(key) = &self.inbox.signing {
            let mut signing = hmac::Context::with_key(key);
            signing.update(format!("{id}.{seconds}.").as_bytes());
            signing.update(body);
            put("webhook-signature", &format!("v1,{}", STANDARD.encode(signing.sign())));
        }
        headers
    }
}

/// Says which call at a destination it was: who forgets the event must find it.
fn naming(mut outcome: Outcome, call: IntentId) -> Outcome {
    match &mut outcome {
        Outcome::Answered(answer) | Outcome::Refused { answer, .. } => {
            answer.head = format!("{}{CALL}{call}\n", answer.head).into();
        }
        Outcome::NotSent { reason, .. } | Outcome::Unknown { reason, .. } => {
            *reason = format!("{call}: {reason}").into();
        }
    }
    outcome
}

/// The calls at destinations that an event led to.
pub(super) fn calls(dossier: &Dossier) -> BTreeSet<IntentId> {
    let answers = dossier.earlier.iter().map(|earlier| &earlier.answer).chain(&dossier.stored.record.answer);
    let in_answers =
        answers.flat_map(|answer| answer.head.lines().filter_map(|line| line.strip_prefix(CALL)));
    let in_journal = dossier.journal.iter().filter_map(|row| Some(row.entry.reason.split_once(": ")?.0));
    let number = |text: &str| text.strip_prefix('#')?.parse().ok().map(IntentId::new);
    in_answers.chain(in_journal).filter_map(number).collect()
}
