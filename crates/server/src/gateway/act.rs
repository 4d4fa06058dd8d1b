//! One attempt at a destination: the request as the destination wants it, one exchange, what it means.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::Request;
use hyper::header::{ACCEPT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderValue};
use serde_json::Value;
use twicesafe_ledger::{Answer, Attempt, Body, Finding, Outcome, Recovery, Trouble};

use super::answer::Whole;
use super::expression::Sight;
use super::outcome::{Seen, of_failure};
use super::passing::Handover;
use super::place::Place;
use super::plan::{Asking, Destination, Route};
use super::sending::{Sending, is_credential};
use super::upstream::{Care, Failure};
use crate::config::destinations::When;

/// The header by which callers, and many destinations, tell repetitions.
const IDEMPOTENCY_KEY: &str = "idempotency-key";
/// Largest answer of a lookup.
const LOOKUP_BYTES_MAX: usize = 4 << 20;

/// What is needed to carry an intent out, now or later.
#[derive(Clone)]
pub(crate) struct Errand {
    pub(crate) destination: Arc<Destination>,
    pub(crate) route: Arc<Route>,
    pub(crate) sending: Arc<Sending>,
    /// What expressions see of the request.
    pub(crate) view: Arc<Value>,
    pub(crate) handover: Handover,
    /// An answer the caller must see that is not the intent's: who it says to be was not taken (S16).
    pub(crate) passed_on: Arc<Mutex<Option<Whole>>>,
}

impl Errand {
    pub(crate) fn new(
        destination: Arc<Destination>,
        route: Arc<Route>,
        sending: Sending,
        view: Value,
    ) -> Self {
        Self {
            destination,
            route,
            sending: Arc::new(sending),
            view: Arc::new(view),
            handover: Handover::default(),
            passed_on: Arc::default(),
        }
    }

    /// Acts once, under a permit.
    pub(crate) async fn act(self, attempt: Attempt) -> Result<Answer, Trouble> {
        match self.exchanged(&attempt).await {
            Outcome::Answered(answer) => Ok(answer),
            other => Err(Trouble::from_outcome(other)),
        }
    }

    async fn exchanged(&self, attempt: &Attempt) -> Outcome {
        let destination_key = self.destination_key(attempt);
        if let Some(asking) = self.route.lookup.as_ref().filter(|asking| asking.when == When::Before)
            && !attempt.in_doubt()
        {
            match self.ask(asking, attempt.name().key.as_str(), &destination_key).await {
                Finding::Found(answer) => return Outcome::Answered(answer),
                Finding::NotFound => {}
                Finding::Silent { reason } => {
                    return Outcome::not_sent(&format!("the lookup before acting gave no answer: {reason}"));
                }
            }
        }
        let sending = match self.made_out(attempt, &destination_key) {
            Ok(sending) => sending,
            Err(why) => return passed_over(&why),
        };
        let place = match self.destination.gate.enter().await {
            Ok(place) => place,
            Err(shut) => {
                let reason = shut.why.into();
                return Outcome::NotSent { reason, retry_after: Some(shut.retry_after), passed_on: false };
            }
        };
        let care = match self.route.policy.recovery {
            Recovery::Repeat | Recovery::NativeKey { .. } => Care::Little,
            Recovery::Lookup(_) | Recovery::Person => Care::Great,
        };
        let may_send =
            || attempt.check_send().map_err(|_| "TS0023: too late to send under this permit".to_owned());
        let exchange = async {
            let request = self.request(&sending).await.map_err(Failure::NotSent)?;
            let (response, lent) = self.destination.upstream.exchange(request, care, may_send).await?;
            Whole::read(response, lent, |head| self.handover.begin(head)).await
        };
        let exchanged = tokio::time::timeout(self.route.timeout, exchange).await;
        drop(place);
        let whole = match exchanged
            .unwrap_or_else(|_| Err(Failure::Unknown("it did not answer in time".to_owned())))
        {
            Ok(whole) => whole,
            Err(failure) => {
                self.destination.gate.went(false);
                return of_failure(&failure);
            }
        };
        self.destination.gate.went(!whole.status.is_server_error());
        self.judged(attempt, whole).await
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
            in_doubt: attempt.in_doubt(),
        };
        let outcome = self.route.table.outcome(&seen, kept);
        if let Outcome::NotSent { passed_on: true, .. } = &outcome {
            if let (401, Some(credentials)) = (whole.status.as_u16(), &self.destination.credentials) {
                credentials.refused().await;
            }
            *self.passed_on.lock().unwrap_or_else(PoisonError::into_inner) = Some(whole);
        }
        outcome
    }

    /// What an exchange that was only watched would have meant.
    pub(crate) async fn observed(&self, attempt: &Attempt, exchanged: &Result<Whole, Failure>) -> Outcome {
        match exchanged {
            Ok(whole) => self.judged(attempt, whole.clone()).await,
            Err(failure) => of_failure(failure),
        }
    }

    /// Asks whether it happened (S24).
    pub(crate) async fn look_up(self, attempt: Attempt) -> Finding {
        let destination_key = self.destination_key(&attempt);
        match &self.route.lookup {
            Some(asking) => self.ask(asking, attempt.name().key.as_str(), &destination_key).await,
            None => Finding::Silent { reason: "the route says no more how to ask".into() },
        }
    }

    async fn ask(&self, asking: &Asking, key: &str, destination_key: &str) -> Finding {
        let silent = |why: String| Finding::Silent { reason: why.into() };
        let sight = Sight {
            request: Some(&self.view),
            answer: None,
            key: Some(key),
            destination_key: Some(destination_key),
        };
        let asked = tokio::time::timeout(self.route.timeout, self.asked(asking, &sight)).await;
        let whole = match asked.unwrap_or_else(|_| Err("it did not answer in time".to_owned())) {
            Ok(whole) => whole,
            Err(why) => return silent(why),
        };
        let status = whole.status.as_u16();
        if status == 404 {
            return Finding::NotFound;
        }
        if !whole.status.is_success() {
            return silent(format!("it answered {status}"));
        }
        let view = whole.view();
        let sight = Sight { answer: Some(&view), ..sight };
        let found = asking.found.as_ref().map_or(Ok(true), |found| found.holds(&sight));
        match found {
            Ok(true) => {
                let id = asking.external_id.as_ref().and_then(|expression| expression.name(&sight).ok());
                Finding::Found(whole.kept(id.map(|id| id.to_string()).as_deref()))
            }
            Ok(false) => Finding::NotFound,
            // An answer that cannot be understood is none: an error is not a "no".
            Err(why) => silent(why),
        }
    }

    async fn asked(&self, asking: &Asking, sight: &Sight<'_>) -> Result<Whole, String> {
        let address = asking.address.filled_in_address(sight)?;
        let (path, query) = match address.split_once('?') {
            Some((path, query)) => (path.to_owned(), Some(query.to_owned())),
            None => (address, None),
        };
        let mut headers = HeaderMap::new();
        // A destination that versions its API, or acts for several accounts, is asked the same way.
        let same = |name: &hyper::header::HeaderName| {
            name.as_str().ends_with("-version") || name == "stripe-account"
        };
        headers.extend(
            self.sending
                .headers
                .iter()
                .filter(|(name, _)| same(name) || is_credential(name))
                .map(|(n, v)| (n.clone(), v.clone())),
        );
        for (name, template) in &asking.headers {
            let text = template.filled(sight)?;
            let value = HeaderValue::from_str(&text).map_err(|_| format!("`{name}` cannot hold that"))?;
            headers.insert(name.clone(), value);
        }
        let body = match &asking.body {
            Some(document) => {
                headers.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static("application/json"));
                Bytes::from(document.filled(sight)?.to_string())
            }
            None => Bytes::new(),
        };
        let sending = Sending { method: asking.method.clone(), path, query, headers, body, callback: None };
        let request = self.request(&sending).await?;
        let _place = self.destination.gate.enter().await.map_err(|shut| shut.why.to_owned())?;
        let exchanged = self.destination.upstream.exchange(request, Care::Little, || Ok(())).await;
        let (response, lent) = exchanged.map_err(|failure| match failure {
            Failure::NotSent(why) | Failure::Unknown(why) => why,
        })?;
        let (head, body) = response.into_parts();
        let collected = Limited::new(body, LOOKUP_BYTES_MAX).collect().await;
        let body =
            collected.map_err(|_| "the lookup's answer was cut short or too large".to_owned())?.to_bytes();
        lent.give_back();
        Ok(Whole::of(head.status, &head.headers, Body::Kept(body)))
    }

    /// The key this destination is given: the same for every attempt of a generation (S29), as long as it may be.
    fn destination_key(&self, attempt: &Attempt) -> String {
        let mut key = attempt.destination_key();
        if let Some(bytes) = self.route.native_key.as_ref().and_then(|native| native.bytes_max) {
            key.truncate(bytes);
        }
        key
    }

    /// The request as the destination gets it: with our key, and stamped.
    fn made_out(&self, attempt: &Attempt, destination_key: &str) -> Result<Sending, String> {
        let mut sending = (*self.sending).clone();
        if let Some(stamp) = &self.route.stamp {
            let sight = Sight {
                request: Some(&self.view),
                answer: None,
                key: Some(attempt.name().key.as_str()),
                destination_key: Some(destination_key),
            };
            stamp.with.write(&mut sending)?;
            stamp.place.write(&mut sending, &stamp.text.filled(&sight)?)?;
        }
        // A caller's own key would outlive a reset: the destination gets one that ends with the generation (S29).
        if sending.headers.contains_key(IDEMPOTENCY_KEY) {
            Place::header(IDEMPOTENCY_KEY)?.write(&mut sending, destination_key)?;
        }
        if let Some(native) = &self.route.native_key {
            native.with.write(&mut sending)?;
            native.place.write(&mut sending, destination_key)?;
        }
        Ok(sending)
    }

    /// The request with everything that is not the caller's.
    async fn request(&self, sending: &Sending) -> Result<Request<Full<Bytes>>, String> {
        request(&self.destination, sending).await
    }
}

/// A request as it leaves: to the destination's base and nowhere else, with its own credentials where it has some.
pub(crate) async fn request(
    destination: &Destination,
    sending: &Sending,
) -> Result<Request<Full<Bytes>>, String> {
    let mut request = Request::new(Full::new(sending.body.clone()));
    *request.method_mut() = sending.method.clone();
    *request.uri_mut() = destination.upstream.base().join(&sending.path_and_query())?;
    let headers = request.headers_mut();
    *headers = sending.headers.clone();
    // What is kept must be readable for whoever asks again.
    headers.remove(ACCEPT_ENCODING);
    headers.extend(destination.headers.iter().map(|(name, value)| (name.clone(), value.clone())));
    if let Some(credentials) = &destination.credentials {
        let names: Vec<_> = headers.keys().filter(|name| is_credential(name)).cloned().collect();
        for name in names {
            if !destination.headers.contains_key(&name) {
                headers.remove(name);
            }
        }
        if let Some((name, value)) = credentials.shown().await? {
            headers.insert(name, value);
        }
    }
    Ok(request)
}

/// The request cannot be made out this way: the caller must change it, and nothing was sent.
fn passed_over(why: &str) -> Outcome {
    match Outcome::not_sent(why) {
        Outcome::NotSent { reason, retry_after, .. } => {
            Outcome::NotSent { reason, retry_after, passed_on: true }
        }
        other => other,
    }
}
