//! Reads: passed on as they are, tried again freely as long as nothing has come back.

use std::time::Duration;

use hyper::StatusCode;
use hyper::header::HeaderName;
use twicesafe_ledger::Code;

use super::passing::streamed;
use super::sending::is_between_two;
use super::upstream::{Care, Failure};
use super::{Arrival, act};
use crate::http::{Problem, Request, Response};

/// Tries of one read.
const TRIES_MAX: u32 = 3;
const PAUSE: Duration = Duration::from_millis(100);
/// When a caller should ask again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Passes a read on.
pub(super) async fn pass(arrival: Arrival<'_>, request: &mut Request) -> Result<Response, Problem> {
    request.read_body(super::REQUEST_BYTES_MAX).await?;
    let accepts = request.headers.get(hyper::header::ACCEPT_ENCODING).cloned();
    let sending = arrival.sending(request, None);
    let destination = &arrival.destination;
    let mut tries = 0;
    loop {
        tries += 1;
        let exchange = async {
            let _place =
                destination.gate.enter().await.map_err(|shut| Failure::NotSent(shut.why.to_owned()))?;
            let mut request = act::request(destination, &sending).await.map_err(Failure::NotSent)?;
            if let Some(accepts) = &accepts {
                request.headers_mut().insert(hyper::header::ACCEPT_ENCODING, accepts.clone());
            }
            destination.upstream.exchange(request, Care::Little, || Ok(())).await
        };
        let exchanged = tokio::time::timeout(arrival.route.timeout, exchange).await;
        let (why, is_slow) = match exchanged {
            Ok(Ok((response, lent))) => {
                let status = response.status();
                destination.gate.went(!status.is_server_error());
                let may_change = matches!(
                    status,
                    StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT
                );
                if !may_change || tries >= TRIES_MAX {
                    let (head, body) = response.into_parts();
                    let is_kept = |name: &HeaderName| {
                        name == hyper::header::CONTENT_LENGTH || !is_between_two(name.as_str())
                    };
                    let headers = head.headers.into_iter().scan(None, |last, (name, value)| {
                        // Names are given once for several values.
                        if name.is_some() {
                            *last = name;
                        }
                        Some((last.clone(), value))
                    });
                    let headers = headers.filter_map(|(name, value)| Some((name?, value)));
                    let headers = headers.filter(|(name, _)| is_kept(name)).collect();
                    return Ok(Response { status: head.status, headers, body: streamed(body, lent) });
                }
                (String::new(), false)
            }
            Ok(Err(Failure::NotSent(why) | Failure::Unknown(why))) => {
                destination.gate.went(false);
                (why, false)
            }
            Err(_) => {
                destination.gate.went(false);
                ("it did not answer in time".to_owned(), true)
            }
        };
        if tries >= TRIES_MAX || is_slow {
            let hint = "This was a read: ask again whenever you like.";
            let status = if is_slow { StatusCode::GATEWAY_TIMEOUT } else { StatusCode::BAD_GATEWAY };
            return Err(Problem::new(
                Code::DestinationAway,
                format!("the destination gave no answer: {why}"),
                hint,
            )
            .with_status(status)
            .retry_after(RETRY_AFTER));
        }
        tokio::time::sleep(PAUSE * tries).await;
    }
}
