//! A request, read whole before anything is done about it.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::{HeaderMap, Method, Uri};
use twicesafe_ledger::Code;

use super::Problem;
use super::listen::Drain;

/// Longest body of a request: an answer of the largest size that is kept, and what is around it.
pub(crate) const BODY_BYTES_MAX: usize = twicesafe_ledger::ANSWER_BYTES_MAX + (64 << 10);
/// How long a body may take to arrive.
const BODY_TIME_MAX: Duration = Duration::from_secs(30);
/// Room made at once for a body that says how long it is; what says so and does not come costs no more than this.
const BODY_ROOM: usize = 64 << 10;

/// A request.
pub(crate) struct Request {
    pub(crate) method: Method,
    pub(crate) uri: Uri,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) peer: SocketAddr,
    pub(crate) drain: Drain,
}

impl Request {
    pub(super) async fn read(
        request: hyper::Request<Incoming>,
        peer: SocketAddr,
        drain: Drain,
    ) -> Result<Self, Problem> {
        let (head, body) = request.into_parts();
        let body = match hyper::body::Body::is_end_stream(&body) {
            true => Bytes::new(),
            false => match tokio::time::timeout(BODY_TIME_MAX, whole(body)).await {
                Ok(body) => body?,
                Err(_) => {
                    let hint = "Send the whole body within 30 seconds.";
                    return Err(Problem::new(Code::TooSlow, "the body did not arrive in time", hint));
                }
            },
        };
        Ok(Self { method: head.method, uri: head.uri, headers: head.headers, body, peer, drain })
    }

    pub(crate) fn path(&self) -> &str {
        self.uri.path()
    }

    /// A header, if it is there and is text.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The parameters of the query, decoded.
    pub(crate) fn parameters(&self) -> Vec<(String, String)> {
        pairs(self.uri.query().unwrap_or_default())
    }
}

/// Names and values as in a query or a form.
pub(crate) fn pairs(text: &str) -> Vec<(String, String)> {
    let decoded = |text: &str| percent_decoded(&text.replace('+', " ")).into_owned();
    text.split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decoded(name), decoded(value))
        })
        .collect()
}

fn percent_decoded(text: &str) -> Cow<'_, str> {
    if !text.contains('%') {
        return text.into();
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let decoded = (*first == b'%')
            .then(|| after.get(..2))
            .flatten()
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match decoded {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned().into()
}

async fn whole(mut body: Incoming) -> Result<Bytes, Problem> {
    let too_large = || {
        let message = format!("the body has more than {BODY_BYTES_MAX} bytes");
        Problem::new(Code::InputTooLarge, message, "Send less; of a large answer, send what identifies it.")
    };
    let announced = hyper::body::Body::size_hint(&body).lower();
    if announced > BODY_BYTES_MAX as u64 {
        return Err(too_large());
    }
    let mut first: Option<Bytes> = None;
    let mut all = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| {
            Problem::bad_request("the body was cut short or badly framed", "Send the whole body again.")
        })?;
        let Ok(data) = frame.into_data() else { continue };
        match (&mut first, all.is_empty()) {
            (None, true) => first = Some(data),
            (before, _) => {
                if let Some(before) = before.take_if(|_| all.is_empty()) {
                    all.reserve(usize::try_from(announced).unwrap_or(BODY_ROOM).min(BODY_ROOM));
                    all.extend_from_slice(&before);
                }
                all.extend_from_slice(&data);
            }
        }
        if first.as_ref().map_or(all.len(), Bytes::len) > BODY_BYTES_MAX {
            return Err(too_large());
        }
    }
    Ok(first.unwrap_or_else(|| all.freeze()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_decoded_as_browsers_encode_them() {
        let decoded = pairs("scope=a%2Fb&key=order%3A1+x&&empty&bad=%zz%4");
        let decoded: Vec<(&str, &str)> = decoded.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        assert_eq!(decoded, [("scope", "a/b"), ("key", "order:1 x"), ("empty", ""), ("bad", "%zz%4")]);
    }
}
