//! One question to a model: sent once, its answer recorded as it passes. A stream is passed on event by event, but for the last
//! one: who has seen the end of an answer has an answer that is on record, and gets the same one again.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::gateway::gate;
use crate::http::room::Taken;
use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap};
use hyper::{Response, StatusCode};
use serde_json::Value;
use twicesafe_ledger::{ANSWER_BYTES_MAX, Answer, Attempt, Body as KeptBody, Code, Outcome, Trouble};

use super::expect::Expectation;
use super::flight::{End, Flight};
use super::frames::Frames;
use super::shape::{self, Ending, Findings, Shape, Stream};
use crate::config::destinations::Truncated;
use crate::gateway::act::{drop_credentials, may_send, request};
use crate::gateway::answer::{Whole, received};
use crate::gateway::mask::Masking;
use crate::gateway::plan::Destination;
use crate::gateway::reads::passed_back;
use crate::gateway::route::Route;
use crate::gateway::sending::Sending;
use crate::gateway::told;
use crate::gateway::upstream::{Care, Failure, Lent};
use crate::http::Problem;

/// How long a provider may keep a stream open after its last event.
const AFTER_LAST_TIME_MAX: Duration = Duration::from_secs(2);
/// When to ask again if the destination does not say.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Names under which more than the answer itself is kept with it.
pub(super) const MODEL: &str = "twicesafe-model";
pub(super) const USAGE: &str = "twicesafe-usage";
pub(super) const ID: &str = "twicesafe-id";
pub(super) const EVALUATION: &str = "twicesafe-evaluation";

/// Carries one question.
#[derive(Clone)]
pub(super) struct Recorder {
    pub(super) destination: Arc<Destination>,
    pub(super) route: Arc<Route>,
    pub(super) sending: Arc<Sending>,
    pub(super) flight: Arc<Flight>,
    pub(super) manner: Manner,
    /// What is shown once it is on record.
    pub(super) held: Arc<Mutex<Option<Held>>>,
    /// The room its body takes.
    pub(super) _room: Arc<Option<Taken>>,
}

/// What becomes of the answer.
#[derive(Clone)]
pub(super) enum Manner {
    /// It is pinned, if it is whole.
    Pin { shape: Shape, truncated: Truncated, expected: Option<Arc<Expected>> },
    /// It is passed on, and the journal says that it happened.
    Effect,
}

/// What an answer is held against, and what was asked.
pub(super) struct Expected {
    pub(super) all: Vec<Arc<Expectation>>,
    pub(super) request: Value,
}

/// What is shown once it is on record.
pub(super) struct Held {
    pub(super) body: Bytes,
    /// The end of a stream whose beginning was shown already; `None`: nothing was.
    pub(super) last: Option<Bytes>,
    pub(super) findings: Findings,
}

/// An answer that did not end.
enum Short {
    /// Its connection broke, or it took too long.
    Cut(&'static str),
    /// There is no room for it.
    Full,
}

impl Recorder {
    /// Asks once, under a permit.
    pub(super) async fn act(self, attempt: Attempt) -> Result<Answer, Trouble> {
        if !self.flight.is_untouched() {
            // Somebody has seen some of another answer.
            return Err(self.nothing(&attempt, "it was answered before", false));
        }
        // What breaks here must not be asked again and again, each time for money.
        match AssertUnwindSafe(self.asked(&attempt)).catch_unwind().await {
            Ok(answered) => answered,
            Err(_) => {
                self.away("its answer could not be read", RETRY_AFTER);
                Err(self.nothing(&attempt, "its answer could not be read", true))
            }
        }
    }

    async fn asked(&self, attempt: &Attempt) -> Result<Answer, Trouble> {
        let mut pass = match self.destination.gate.enter(gate::Errand::Write).await {
            Ok(pass) => pass,
            Err(shut) => {
                self.away(shut.why, shut.retry_after);
                return Err(self.nothing(attempt, shut.why, false));
            }
        };
        let (response, lent) = match self.exchange(attempt).await {
            Ok(answered) => answered,
            Err(failure) => {
                pass.went(false);
                let (Failure::NotSent(why) | Failure::Unknown(why)) = &failure;
                self.away(why, RETRY_AFTER);
                return Err(self.nothing(attempt, why, matches!(failure, Failure::Unknown(_))));
            }
        };
        // Its place is kept until its answer has ended.
        pass.goes(!response.status().is_server_error());
        if let (StatusCode::UNAUTHORIZED, Some(credentials)) =
            (response.status(), &self.destination.credentials)
        {
            credentials.refused().await;
        }
        let recorded = self.recorded(attempt, response, lent);
        tokio::time::timeout(super::ACT_TIME_MAX, recorded).await.unwrap_or_else(|_| {
            let why = "its answer did not end in time";
            self.away(why, RETRY_AFTER);
            Err(self.nothing(attempt, why, true))
        })
    }

    async fn exchange(&self, attempt: &Attempt) -> Result<(Response<Incoming>, Lent), Failure> {
        let mut sending = (*self.sending).clone();
        drop_credentials(&self.destination, &mut sending.headers);
        let care = if self.is_effect() { Care::Great } else { Care::Little };
        let request = request(&self.destination, &sending);
        let (upstream, timeout) = (&self.destination.upstream, self.route.timeout);
        upstream.exchange_within(timeout, request, care, || may_send(attempt)).await
    }

    fn is_effect(&self) -> bool {
        matches!(self.manner, Manner::Effect)
    }

    async fn recorded(
        &self,
        attempt: &Attempt,
        response: Response<Incoming>,
        lent: Lent,
    ) -> Result<Answer, Trouble> {
        let masks = self.destination.masks();
        let (head, body) = received(response, &masks).into_parts();
        let incoming = Reading { body, lent, wait_max: self.route.timeout, masking: Masking::new(masks) };
        let is_readable = head.headers.get(CONTENT_ENCODING).is_none_or(|encoding| encoding == "identity");
        let media_type = head.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let is_stream = media_type.is_some_and(is_event_stream);
        match &self.manner {
            Manner::Pin { shape, .. } if head.status == StatusCode::OK && is_readable => match is_stream {
                true => self.stream(attempt, *shape, &head.headers, incoming).await,
                false => self.whole(attempt, *shape, &head.headers, incoming).await,
            },
            _ => self.passed(attempt, head.status, &head.headers, incoming).await,
        }
    }

    /// Passes an answer on that is not pinned: errors, effects, what nobody here can read.
    async fn passed(
        &self,
        attempt: &Attempt,
        status: StatusCode,
        headers: &HeaderMap,
        mut incoming: Reading,
    ) -> Result<Answer, Trouble> {
        if status.is_success() && self.expected().is_some() {
            self.begin_unpinned(attempt, headers, "its answer cannot be read here")?;
        }
        let mut shown = shown(headers, attempt);
        if let Some(length) = headers.get(CONTENT_LENGTH) {
            shown.insert(CONTENT_LENGTH, length.clone());
        }
        self.flight.begin(status, shown);
        let mut hasher = blake3::Hasher::new();
        let mut bytes = 0;
        let ended = loop {
            match incoming.part().await {
                Ok(Some(data)) => {
                    bytes += data.len() as u64;
                    hasher.update(&data);
                    if self.flight.reserve(data.len()).is_err() {
                        break Err(Short::Full);
                    }
                    self.flight.push(data);
                }
                Ok(None) => break Ok(()),
                Err(short) => break Err(short),
            }
        };
        if let Err(short) = ended {
            self.flight.end(End::Cut);
            return Err(self.nothing(attempt, short.why(), true));
        }
        incoming.lent.give_back();
        self.flight.end(End::Whole);
        let body = KeptBody::NotKept { bytes, digest: hasher.finalize().into() };
        let answer = Whole::of(status, headers, body).kept(None);
        match (self.is_effect(), status.as_u16()) {
            (true, 200..=299) => Ok(answer),
            (true, 408 | 425 | 500..) => Err(Trouble::unknown(format!("it answered {status}"))),
            (true, _) => Err(Trouble::refused(answer).replay_for(Duration::ZERO)),
            (false, _) => Err(self.nothing(attempt, &format!("it answered {status}"), true)),
        }
    }

    async fn whole(
        &self,
        attempt: &Attempt,
        shape: Shape,
        headers: &HeaderMap,
        mut incoming: Reading,
    ) -> Result<Answer, Trouble> {
        let mut all = BytesMut::new();
        loop {
            let part = match incoming.part().await {
                Ok(Some(data)) => {
                    self.flight.reserve(data.len()).map(|()| Some(data)).map_err(|_| Short::Full)
                }
                other => other,
            };
            match part {
                Ok(Some(data)) => all.extend_from_slice(&data),
                Ok(None) => break,
                Err(short) => {
                    self.away(short.why(), RETRY_AFTER);
                    return Err(self.nothing(attempt, short.why(), true));
                }
            }
            if all.len() > ANSWER_BYTES_MAX {
                return self.too_large(attempt, headers, all.freeze(), incoming).await;
            }
        }
        incoming.lent.give_back();
        let body = all.freeze();
        let parsed: Value = serde_json::from_slice(&body).unwrap_or_default();
        let findings = shape.read(&parsed);
        self.judged(attempt, headers, body, None, findings, &parsed)
    }

    /// Too large to keep: passed on, and not pinned.
    async fn too_large(
        &self,
        attempt: &Attempt,
        headers: &HeaderMap,
        so_far: Bytes,
        mut incoming: Reading,
    ) -> Result<Answer, Trouble> {
        self.begin_unpinned(attempt, headers, "its answer is too large to be pinned")?;
        self.flight.push(so_far);
        let end = loop {
            match incoming.part().await {
                Ok(Some(data)) => match self.flight.reserve(data.len()) {
                    Ok(()) => self.flight.push(data),
                    Err(_) => break End::Cut,
                },
                Ok(None) => {
                    incoming.lent.give_back();
                    break End::Whole;
                }
                Err(_) => break End::Cut,
            }
        };
        self.flight.end(end);
        Err(self.nothing(attempt, "its answer is too large to be pinned", true))
    }

    async fn stream(
        &self,
        attempt: &Attempt,
        shape: Shape,
        headers: &HeaderMap,
        mut incoming: Reading,
    ) -> Result<Answer, Trouble> {
        // What must be as expected is shown when it is known to be (S35).
        let is_shown = self.expected().is_none();
        let mut frames = Frames::default();
        let mut stream = Stream::new(shape);
        // Events are shared with those who follow, not copied.
        let mut all: Vec<Bytes> = Vec::new();
        let mut bytes = 0;
        let mut first_of_last: Option<usize> = None;
        let ended = loop {
            let data = match incoming.part().await {
                Ok(Some(data)) => data,
                Ok(None) => break Ok(true),
                // It has said all it had to say.
                Err(Short::Cut(_)) if first_of_last.is_some() => break Ok(false),
                Err(short) => break Err(short),
            };
            bytes += data.len();
            if self.flight.reserve(data.len()).is_err() || bytes > ANSWER_BYTES_MAX && !is_shown {
                break Err(Short::Full);
            }
            for frame in frames.push(&data) {
                if first_of_last.is_none() && stream.take(&frame) {
                    first_of_last = Some(all.len());
                    incoming.wait_max = AFTER_LAST_TIME_MAX;
                }
                if first_of_last.is_none() && is_shown {
                    // With its first event: what breaks before that is an error, and not half an answer.
                    if !self.flight.has_begun() {
                        self.flight.begin(StatusCode::OK, shown(headers, attempt));
                    }
                    self.flight.push(frame.clone());
                }
                all.push(frame);
            }
        };
        let is_at_end = match ended {
            Ok(is_at_end) => is_at_end,
            Err(short) => {
                self.away(short.why(), RETRY_AFTER);
                return Err(self.nothing(attempt, short.why(), true));
            }
        };
        if is_at_end {
            incoming.lent.give_back();
        }
        let last: Vec<Bytes> = all[first_of_last.unwrap_or(all.len())..].to_vec();
        let rest = frames.rest();
        let last = Bytes::from([last.concat().as_slice(), &rest].concat());
        let findings = stream.end();
        if bytes > ANSWER_BYTES_MAX {
            let why = "its answer is too large to be pinned";
            self.begin_unpinned(attempt, headers, why)?;
            self.flight.push(last);
            self.flight.end(if findings.ending == Ending::Cut { End::Cut } else { End::Whole });
            return Err(self.nothing(attempt, why, true));
        }
        let body = Bytes::from([all.concat().as_slice(), &rest].concat());
        let last = self.flight.has_begun().then_some(last);
        self.judged(attempt, headers, body, last, findings, &Value::Null)
    }

    fn expected(&self) -> Option<&Expected> {
        match &self.manner {
            Manner::Pin { expected, .. } => expected.as_deref(),
            Manner::Effect => None,
        }
    }

    /// An answer that came to its end: pinned if it is whole, and otherwise only passed on (S33).
    fn judged(
        &self,
        attempt: &Attempt,
        headers: &HeaderMap,
        body: Bytes,
        last: Option<Bytes>,
        findings: Findings,
        parsed: &Value,
    ) -> Result<Answer, Trouble> {
        let Manner::Pin { truncated, expected, .. } = &self.manner else {
            return Err(self.nothing(attempt, "it is no question", true));
        };
        let is_pinned = match findings.ending {
            Ending::Whole => true,
            Ending::Truncated => *truncated == Truncated::Pin,
            Ending::Refused | Ending::Failed | Ending::Cut => false,
        };
        if !is_pinned {
            let is_whole = findings.ending != Ending::Cut;
            let why = match findings.ending {
                Ending::Truncated => "its answer ran into the limit of tokens",
                Ending::Refused => "the provider stopped its answer",
                Ending::Failed => "its answer is an error, or not understood",
                _ => "its answer was cut short",
            };
            if !is_whole {
                self.away(why, RETRY_AFTER);
                return Err(self.nothing(attempt, why, true));
            }
            self.begin_unpinned(attempt, headers, why)?;
            self.flight.push(last.unwrap_or(body));
            self.flight.end(End::Whole);
            return Err(self.nothing(attempt, why, true));
        }
        let mut kept_headers = headers.clone();
        kept_headers.remove(CONTENT_LENGTH);
        let mut whole = Whole::of(StatusCode::OK, &kept_headers, KeptBody::Kept(body.clone()));
        let mut note = |name: &'static str, text: String| {
            if let Ok(value) = text.parse() {
                whole.headers.insert(name, value);
            }
        };
        if let Some(model) = &findings.model {
            note(MODEL, model.clone());
        }
        // Not as an external id: two answers to one question are no double effect.
        if let Some(id) = &findings.id {
            note(ID, id.clone());
        }
        if let Some(usage) = &findings.usage {
            note(USAGE, super::saved::kept_usage(usage));
        }
        if let Some(expected) = expected {
            let answers = shape::views(parsed, &findings.outputs);
            for expectation in &expected.all {
                if let Ok(value) = expectation.evaluate(&expected.request, &answers).kept().parse() {
                    whole.headers.append(EVALUATION, value);
                }
            }
        }
        let answer = whole.kept(None);
        *self.held.lock().unwrap_or_else(PoisonError::into_inner) = Some(Held { body, last, findings });
        Ok(answer)
    }

    /// Begins to show an answer that is not pinned. Where a form is expected there is none to show: it was held against nothing.
    fn begin_unpinned(&self, attempt: &Attempt, headers: &HeaderMap, why: &str) -> Result<(), Trouble> {
        if self.flight.has_begun() {
            return Ok(());
        }
        if self.expected().is_none() {
            self.flight.begin(StatusCode::OK, shown(headers, attempt));
            return Ok(());
        }
        let hint =
            "Nothing was pinned: ask again, with a prompt or a limit that leaves room for a whole answer.";
        let problem = Problem::new(
            Code::ExpectationFailed,
            format!("the answer is not what was expected: {why}"),
            hint,
        );
        self.flight.end(End::Problem(Arc::new(problem)));
        Err(self.nothing(attempt, why, true))
    }

    /// Tells those who wait that there is no answer; those who have seen some of it, that it is not all.
    fn away(&self, why: &str, retry_after: Duration) {
        if self.flight.has_begun() {
            return self.flight.end(End::Cut);
        }
        let hint = "Nothing was pinned: ask again whenever you like.";
        let problem =
            Problem::new(Code::DestinationAway, format!("the destination gave no answer: {why}"), hint)
                .retry_after(retry_after);
        self.flight.end(End::Problem(Arc::new(problem)));
    }

    /// There is nothing to pin, and the next one may ask at once. What was only a question leaves nothing open; an effect may
    /// have happened.
    fn nothing(&self, attempt: &Attempt, why: &str, may_have_happened: bool) -> Trouble {
        match self.is_effect() {
            true if may_have_happened => Trouble::unknown(why),
            false if attempt.in_doubt() => Trouble::not_sent(why).passed_on(),
            _ => {
                let answer = Answer { head: why.into(), ..Answer::default() };
                Trouble::from_outcome(Outcome::Refused { answer, replay_for: Duration::ZERO })
            }
        }
    }
}

impl Short {
    fn why(&self) -> &'static str {
        match self {
            Self::Cut(why) => why,
            Self::Full => "its answer is larger than there is room for",
        }
    }
}

/// An answer that is being read.
struct Reading {
    body: Incoming,
    lent: Lent,
    /// How long its next part may take.
    wait_max: Duration,
    masking: Masking,
}

impl Reading {
    async fn part(&mut self) -> Result<Option<Bytes>, Short> {
        loop {
            let frame = tokio::time::timeout(self.wait_max, self.body.frame()).await;
            let frame = frame.map_err(|_| Short::Cut("its answer did not go on in time"))?;
            match frame {
                None => return Ok(Some(self.masking.end()).filter(|rest| !rest.is_empty())),
                Some(Err(_)) => return Err(Short::Cut("its answer was cut short")),
                Some(Ok(frame)) => {
                    let data = frame.into_data().map(|data| self.masking.push(data)).unwrap_or_default();
                    if !data.is_empty() {
                        return Ok(Some(data));
                    }
                }
            }
        }
    }
}

pub(super) fn is_event_stream(media_type: &str) -> bool {
    media_type.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("text/event-stream"))
}

/// The headers of an answer that is passed on as it arrives.
fn shown(headers: &HeaderMap, attempt: &Attempt) -> HeaderMap {
    let mut shown = passed_back(headers.clone());
    shown.remove(CONTENT_LENGTH);
    told::mark(&mut shown, &attempt.stored());
    shown
}
