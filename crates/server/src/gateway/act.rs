//! One attempt at a destination: the request as the destination wants it, one exchange, what it means.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crate::http::room::Taken;
use bytes::Bytes;
use http_body_util::Full;
use hyper::Request;
use hyper::header::{ACCEPT_ENCODING, HeaderMap, HeaderValue};
use serde_json::Value;
use twicesafe_ledger::{
    Answer, Attempt, Counts, Finding, Ledger, Meaning, Outcome, Recovery, StoreError, Trouble,
};

use super::answer::{Limits, Whole, received};
use super::expression::Sight;
use super::gate;
use super::outcome::{Seen, of_failure};
use super::passing::Handover;
use super::place::Place;
use super::plan::Destination;
use super::route::Route;
use super::sending::Sending;
use super::told;
use super::upstream::{Care, Failure};
use crate::config::destinations::When;
use crate::credentials::is_credential;

/// The header by which callers, and many destinations, tell repetitions.
const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// What is needed to carry an intent out, now or later.
#[derive(Clone)]
pub(crate) struct Errand {
    pub(crate) ledger: Ledger,
    pub(crate) destination: Arc<Destination>,
    pub(crate) route: Arc<Route>,
    pub(crate) sending: Arc<Sending>,
    /// What expressions see of the request.
    pub(crate) view: Arc<Value>,
    /// Who waits for the answer, if anybody does.
    pub(crate) caller: Option<Arc<Caller>>,
}

/// Somebody who waits for the answer.
pub(crate) struct Caller {
    pub(crate) handover: Handover,
    /// What the caller must see that is not the intent's answer (S16).
    pub(crate) aside: Mutex<Option<Aside>>,
    /// The room its body takes, as long as anybody may send it.
    pub(crate) _room: Option<Taken>,
}

/// What is told to the caller alone.
pub(crate) enum Aside {
    /// The destination does not know it.
    Answer(Whole),
    /// The request cannot be made out the way its route says.
    Unfit(String),
    /// Why the last attempt did not get there.
    NotSent(String),
}

impl Errand {
    /// Acts once, under a permit.
    pub(crate) async fn act(self, attempt: Attempt) -> Result<Answer, Trouble> {
        let outcome = match self.as_approved(&attempt).await {
            Ok(errand) => match errand.found_before(&attempt).await {
                Finding::Found(answer) => return Err(Trouble::found(answer)),
                Finding::NotFound => errand.exchanged(&attempt).await,
                Finding::Silent { reason } => {
                    Outcome::not_sent(&format!("the lookup before acting gave no answer: {reason}"))
                }
            },
            Err(why) => Outcome::not_sent(&why),
        };
        if let Outcome::NotSent { reason, counts: Counts::AsAttempt | Counts::AsWaiting, .. } = &outcome {
            self.put_aside(Aside::NotSent(reason.to_string()));
        }
        match outcome {
            Outcome::Answered(answer) => Ok(answer),
            // Nobody is there to mend it: it is tried again, and somebody is told in the end.
            Outcome::NotSent { reason, retry_after, counts: Counts::AsPassedOn } if self.caller.is_none() => {
                Err(Trouble::from_outcome(Outcome::NotSent {
                    reason,
                    retry_after,
                    counts: Counts::AsAttempt,
                }))
            }
            other => Err(Trouble::from_outcome(other)),
        }
    }

    /// What a person said yes to is what is on record, not what somebody brings along afterwards (S31).
    async fn as_approved(&self, attempt: &Attempt) -> Result<Self, String> {
        let stored = attempt.stored();
        if stored.record.policy.approval.is_none() && stored.record.approval.is_none() {
            return Ok(self.clone());
        }
        // Boxed, here and below: what seldom happens should not take room in everything that does.
        let on_record = Box::pin(self.on_record(attempt)).await?;
        on_record.ok_or_else(|| "what was approved is not on record any more".to_owned())
    }

    /// The same with the request that is on record, if one is.
    pub(super) async fn on_record(&self, attempt: &Attempt) -> Result<Option<Self>, String> {
        let kept = match self.ledger.store().request(attempt.stored().id).await {
            // It can still be looked up without.
            Err(StoreError::Damaged(_)) => None,
            kept => kept.map_err(|error| error.to_string())?,
        };
        Ok(kept.as_ref().and_then(Sending::from_kept).map(|sending| {
            let (_, parameters) = self.destination.route(&sending.method, &sending.path);
            let view = Arc::new(sending.view(&parameters));
            Self { sending: Arc::new(sending), view, ..self.clone() }
        }))
    }

    /// What a lookup before acting says, where the route has one. In doubt it was asked already.
    async fn found_before(&self, attempt: &Attempt) -> Finding {
        match self.route.lookup.as_ref().filter(|asking| asking.when == When::Before) {
            Some(asking) if !attempt.in_doubt() => {
                let destination_key = self.destination_key(attempt);
                Box::pin(self.ask(asking, attempt.name().key.as_str(), &destination_key)).await
            }
            _ => Finding::NotFound,
        }
    }

    async fn exchanged(&self, attempt: &Attempt) -> Outcome {
        if let Some(why) = self.differs(attempt) {
            return Outcome::Unknown { reason: why.into(), retry_after: None, park: true };
        }
        let destination_key = self.destination_key(attempt);
        let sending = match self.made_out(attempt, &destination_key) {
            Ok(sending) => sending,
            Err(why) => {
                self.put_aside(Aside::Unfit(why.clone()));
                return passed_over(&why);
            }
        };
        let pass = match self.destination.gate.enter(gate::Errand::Write).await {
            Ok(pass) => pass,
            Err(shut) => {
                let (reason, retry_after) = (shut.why.into(), Some(shut.retry_after));
                return Outcome::NotSent { reason, retry_after, counts: Counts::AsWaiting };
            }
        };
        let exchanged = self.exchange(attempt, &sending).await;
        pass.went(exchanged.as_ref().is_ok_and(|whole| !whole.status.is_server_error()));
        match exchanged {
            Ok(whole) => self.judged(attempt, whole).await,
            Err(failure) => of_failure(&failure),
        }
    }

    async fn exchange(&self, attempt: &Attempt, sending: &Sending) -> Result<Whole, Failure> {
        let care = match self.route.policy.recovery {
            Recovery::Repeat | Recovery::NativeKey { .. } => Care::Little,
            Recovery::Lookup(_) | Recovery::Person => Care::Great,
        };
        let started = Instant::now();
        let request = request(&self.destination, sending);
        let (upstream, timeout) = (&self.destination.upstream, self.route.timeout);
        let (response, lent) = upstream.exchange_within(timeout, request, care, || may_send(attempt)).await?;
        let masks = self.destination.masks();
        let response = received(response, &masks);
        let limits = Limits { started, whole: self.route.timeout, large: self.route.policy.act_max };
        let begin = |head: &hyper::Response<()>| self.hand_over(attempt, head);
        Whole::read(response, lent, limits, masks, begin).await
    }

    /// Begins to hand a large answer over, if it is one that says that it happened: whatever else is settled first (S27).
    fn hand_over(&self, attempt: &Attempt, head: &hyper::Response<()>) -> Option<super::passing::Passed> {
        let caller = self.caller.as_ref()?;
        let nothing = super::outcome::answer_view(head.status().as_u16(), Value::Null, Value::Null);
        let sight = Sight { request: Some(&self.view), answer: Some(&nothing), ..Sight::default() };
        let (status, in_doubt) = (head.status().as_u16(), attempt.in_doubt());
        let seen = Seen { status, retry_after: None, sight, has_read_body: false, in_doubt };
        (self.route.table.meaning(&seen) == Meaning::Answered).then_some(())?;
        let mut headers = head.headers().clone();
        told::mark(&mut headers, &attempt.stored());
        caller.handover.begin(head.status(), headers)
    }

    /// What an answer means.
    async fn judged(&self, attempt: &Attempt, whole: Whole) -> Outcome {
        let answer_view = whole.view();
        let sight = Sight { request: Some(&self.view), answer: Some(&answer_view), ..Sight::default() };
        // What was made may not be named in every answer: a refusal has none.
        let external_id = self.route.external_id.as_ref().and_then(|expression| expression.name(&sight).ok());
        let kept = whole.kept(external_id.map(|id| id.to_string()).as_deref());
        let seen = Seen {
            status: whole.status.as_u16(),
            retry_after: whole.retry_after(),
            sight,
            has_read_body: whole.has_read_body(&answer_view),
            in_doubt: attempt.in_doubt(),
        };
        let outcome = self.route.table.outcome(&seen, kept);
        if let Outcome::NotSent { counts: Counts::AsPassedOn, .. } = &outcome {
            if let (401, Some(credentials)) = (whole.status.as_u16(), &self.destination.credentials) {
                Box::pin(credentials.refused()).await;
            }
            self.put_aside(Aside::Answer(whole));
        }
        outcome
    }

    fn put_aside(&self, aside: Aside) {
        if let Some(caller) = &self.caller {
            *caller.aside.lock().unwrap_or_else(PoisonError::into_inner) = Some(aside);
        }
    }

    /// What an exchange that was only watched would have meant.
    pub(crate) async fn observed(&self, attempt: &Attempt, exchanged: &Result<Whole, Failure>) -> Outcome {
        match exchanged {
            Ok(whole) => self.judged(attempt, whole.clone()).await,
            Err(failure) => of_failure(failure),
        }
    }

    /// What was agreed at the first claim is what may be done about doubt (S14); where the route has lost the means for it,
    /// nobody sends anything by other ones.
    fn differs(&self, attempt: &Attempt) -> Option<&'static str> {
        let was_native_key = matches!(attempt.stored().record.policy.recovery, Recovery::NativeKey { .. });
        (attempt.in_doubt() && was_native_key && self.route.native_key.is_none()).then_some(
            "an earlier attempt had a key that the destination knows, and the route has none any more",
        )
    }

    /// The key this destination is given: the same for every attempt of a generation (S29), as long as it may be.
    pub(super) fn destination_key(&self, attempt: &Attempt) -> String {
        let mut key = attempt.destination_key();
        if let Some(bytes) = self.route.native_key.as_ref().and_then(|native| native.bytes_max) {
            key.truncate(bytes);
        }
        key
    }

    /// The request as the destination gets it: with our key, and stamped.
    fn made_out(&self, attempt: &Attempt, destination_key: &str) -> Result<Sending, String> {
        let mut sending = (*self.sending).clone();
        // First, so that nothing of ours is taken for the caller's.
        drop_credentials(&self.destination, &mut sending.headers);
        // A caller's own key would outlive a reset: the destination gets one that ends with the generation (S29).
        if sending.headers.contains_key(IDEMPOTENCY_KEY) {
            Place::header(IDEMPOTENCY_KEY)?.write(&mut sending, destination_key)?;
        }
        if let Some(stamp) = &self.route.stamp {
            let sight = Sight {
                request: Some(&self.view),
                answer: None,
                event: None,
                key: Some(attempt.name().key.as_str()),
                destination_key: Some(destination_key),
            };
            stamp.with.write(&mut sending)?;
            stamp.place.write(&mut sending, &stamp.text.filled(&sight)?)?;
        }
        if let Some(native) = &self.route.native_key {
            native.with.write(&mut sending)?;
            native.place.write(&mut sending, destination_key)?;
        }
        Ok(sending)
    }
}

/// Whether a permit still lets the first byte leave (S9).
pub(crate) fn may_send(attempt: &Attempt) -> Result<(), String> {
    attempt.check_send().map_err(|_| "TS0023: too late to send under this permit".to_owned())
}

/// Where the server identifies itself, callers do not.
pub(super) fn drop_credentials(destination: &Destination, headers: &mut HeaderMap) {
    if destination.credentials.is_some() {
        let names: Vec<_> = headers.keys().filter(|name| is_credential(name)).cloned().collect();
        names.into_iter().for_each(|name| drop(headers.remove(name)));
    }
}

/// A request as it leaves: to the destination's base and nowhere else, with its own credentials where it has some.
pub(super) async fn request(
    destination: &Destination,
    sending: &Sending,
) -> Result<Request<Full<Bytes>>, String> {
    let mut request = Request::new(Full::new(sending.body.clone()));
    *request.method_mut() = sending.method.clone();
    *request.uri_mut() = destination.upstream.base().join(&sending.address_to_send())?;
    let headers = request.headers_mut();
    *headers = sending.headers.clone();
    // What is kept must be readable for whoever asks again, and for expressions.
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    for (name, value) in &destination.headers {
        headers.insert(name.clone(), value.clone());
    }
    if let Some(credentials) = &destination.credentials
        && let Some((name, value)) = credentials.shown().await?
    {
        headers.insert(name, value);
    }
    Ok(request)
}

/// The request cannot be made out this way: the caller must change it, and nothing was sent.
fn passed_over(why: &str) -> Outcome {
    match Outcome::not_sent(why) {
        Outcome::NotSent { reason, retry_after, .. } => {
            Outcome::NotSent { reason, retry_after, counts: Counts::AsPassedOn }
        }
        other => other,
    }
}
