//! Reads: passed on as they are, tried again freely as long as nothing has come back.

use std::time::{Duration, Instant};

use hyper::StatusCode;
use hyper::body::Incoming;
use hyper::header::{ACCEPT_ENCODING, CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue};
use twicesafe_ledger::Code;

use super::act::{self, drop_credentials};
use super::answer::{received, retry_after};
use super::mask::Masks;
use super::passing::{PASSED_BYTES_MAX, streamed};
use super::sending::is_between_two;
use super::upstream::{Care, Failure, Lent};
use super::{Arrival, gate, guarded};
use crate::http::{Problem, Request, Response};

/// Tries of one read.
pub(super) const TRIES_MAX: u32 = 3;
const PAUSE: Duration = Duration::from_millis(100);
/// The longest pause a destination may ask for.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(5);
/// When a caller should ask again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Passes a read on.
pub(super) async fn pass(
    arrival: Arrival<'_>,
    request: &mut Request,
    tries_max: u32,
) -> Result<Response, Problem> {
    // Credentials of ours could not be found in a body that is packed.
    let masks = arrival.destination.masks();
    let accepts = request.headers.get(ACCEPT_ENCODING).filter(|_| masks.is_empty()).cloned();
    let identity = (!masks.is_empty()).then_some(HeaderValue::from_static("identity"));
    let mut sending = arrival.sending(request, None);
    if !arrival.principal.reaches_everything() {
        arrival.principal.demand_scope(&guarded::scope_of_read(&arrival, &sending)?)?;
    }
    let destination = &arrival.destination;
    drop_credentials(destination, &mut sending.headers);
    let began = Instant::now();
    let mut tries = 0;
    loop {
        tries += 1;
        let exchange = async {
            let shut = |why: &str| Failure::NotSent(why.to_owned());
            let pass = destination.gate.enter(gate::Errand::Read).await.map_err(|closed| shut(closed.why))?;
            let mut request = act::request(destination, &sending).await.map_err(Failure::NotSent)?;
            match accepts.as_ref().or(identity.as_ref()) {
                Some(accepts) => drop(request.headers_mut().insert(ACCEPT_ENCODING, accepts.clone())),
                None => drop(request.headers_mut().remove(ACCEPT_ENCODING)),
            }
            let (upstream, may_send) = (&destination.upstream, || Ok(()));
            Ok::<_, Failure>((upstream.exchange(request, Care::Little, may_send).await, pass))
        };
        let exchanged = tokio::time::timeout(arrival.route.timeout, exchange).await;
        // Whoever asks waits no longer than for anything else here.
        let is_last = tries >= tries_max || began.elapsed() >= arrival.route.wait;
        // How often it was tried says nothing about the destination: one read counts once.
        let pause = match exchanged {
            Ok(Ok((Ok((response, lent)), pass))) => {
                match pause_after(&response, tries).filter(|_| !is_last) {
                    Some(pause) => pause,
                    None => {
                        pass.went(!response.status().is_server_error());
                        return passed(response, lent, arrival.route.timeout, destination.masks());
                    }
                }
            }
            Ok(Ok((Err(Failure::NotSent(why) | Failure::Unknown(why)), pass))) if is_last => {
                pass.went(false);
                return Err(away(&why));
            }
            Ok(Err(Failure::NotSent(why) | Failure::Unknown(why))) if is_last => return Err(away(&why)),
            Err(_) if is_last => {
                return Err(away("it did not answer in time").with_status(StatusCode::GATEWAY_TIMEOUT));
            }
            failed => {
                drop(failed);
                PAUSE * tries
            }
        };
        tokio::time::sleep(pause).await;
    }
}

/// How long to wait before another try, where an answer may be another one then. One that asks for more than a moment is its
/// caller's to wait for.
fn pause_after(response: &hyper::Response<Incoming>, tries: u32) -> Option<Duration> {
    let may_change = matches!(
        response.status(),
        StatusCode::TOO_MANY_REQUESTS
            | StatusCode::INTERNAL_SERVER_ERROR
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT
    );
    let asked = retry_after(response.headers()).unwrap_or_default();
    (may_change && asked <= RETRY_AFTER_MAX).then(|| asked.max(PAUSE * tries))
}

/// An answer as it is.
fn passed(
    response: hyper::Response<Incoming>,
    lent: Lent,
    silence_max: Duration,
    masks: Masks,
) -> Result<Response, Problem> {
    let announced = hyper::body::Body::size_hint(response.body()).lower();
    if announced > PASSED_BYTES_MAX {
        return Err(away(&format!("it has more than {PASSED_BYTES_MAX} bytes")));
    }
    let (head, body) = received(response, &masks).into_parts();
    let headers = passed_back(head.headers);
    Ok(Response { status: head.status, headers, body: streamed(body, lent, silence_max, masks) })
}

fn away(why: &str) -> Problem {
    let hint = "Nothing was recorded: ask again whenever you like.";
    Problem::new(Code::DestinationAway, format!("the destination gave no answer: {why}"), hint)
        .retry_after(RETRY_AFTER)
}

/// The headers of an answer that is passed on as it is.
pub(super) fn passed_back(headers: HeaderMap) -> HeaderMap {
    let mut last: Option<HeaderName> = None;
    let mut passed = HeaderMap::with_capacity(headers.len());
    for (name, value) in headers {
        // A name is given once for several values.
        last = name.or(last);
        if let Some(name) =
            last.as_ref().filter(|name| **name == CONTENT_LENGTH || !is_between_two(name.as_str()))
        {
            passed.append(name.clone(), value);
        }
    }
    passed
}
