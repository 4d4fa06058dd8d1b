//! A request: its head at once, its body when it is clear who sends it and what for.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::EXPECT;
use hyper::{HeaderMap, Method, Uri, Version};
use twicesafe_ledger::Code;

use super::connections::Presence;
use super::listen::Drain;
use super::room::{Room, Taken};
use super::{Problem, two};

/// Longest body of a request: an answer of the largest size that is kept, and what is around it.
pub(crate) const BODY_BYTES_MAX: usize = twicesafe_ledger::ANSWER_BYTES_MAX + (64 << 10);
/// Longest body where nobody has much to say.
pub(crate) const SMALL_BODY_BYTES_MAX: usize = 64 << 10;
/// How long a body may take to arrive.
const BODY_TIME_MAX: Duration = Duration::from_secs(30);
/// What is read of a body that is too large before that is said, for how long, and how long the next piece is waited for.
const DRAIN_BYTES_MAX: usize = 32 << 20;
const DRAIN_TIME_MAX: Duration = Duration::from_secs(5);
const DRAIN_PAUSE_MAX: Duration = Duration::from_millis(200);
/// Room made at once for a body that says how long it is; what says so and does not come costs no more than this.
const BODY_ROOM: usize = 64 << 10;

/// A request.
pub(crate) struct Request {
    pub(crate) method: Method,
    pub(crate) uri: Uri,
    pub(crate) headers: HeaderMap,
    /// Empty until it is read.
    pub(crate) body: Bytes,
    pub(crate) peer: SocketAddr,
    pub(crate) drain: Drain,
    incoming: Option<Incoming>,
    room: Room,
    /// The inbox whose share of the room its body takes.
    inbox: Option<Arc<str>>,
    presence: Arc<Presence>,
    /// The room its body takes, as long as anything of it is kept.
    pub(crate) taken: Option<Taken>,
}

impl Request {
    pub(super) fn new(
        request: hyper::Request<Incoming>,
        peer: SocketAddr,
        drain: Drain,
        room: Room,
        presence: Arc<Presence>,
    ) -> Self {
        let (mut head, body) = request.into_parts();
        if head.version == Version::HTTP_2 {
            two::as_one(&mut head);
        }
        let incoming = Some(body).filter(|body| !hyper::body::Body::is_end_stream(body));
        Self {
            method: head.method,
            uri: head.uri,
            headers: head.headers,
            body: Bytes::new(),
            peer,
            drain,
            incoming,
            room,
            inbox: None,
            presence,
            taken: None,
        }
    }

    /// A request of the server's own, that goes the way of all others, and what ends it: dropped, nobody waits any more.
    pub(crate) fn made(
        method: Method,
        uri: Uri,
        headers: HeaderMap,
        body: Bytes,
    ) -> (tokio::sync::watch::Sender<bool>, Self) {
        let (open, drain) = Drain::new();
        let peer = SocketAddr::from(([127, 0, 0, 1], 0));
        let (incoming, room, inbox, presence, taken) = (None, Room::of(0), None, Arc::default(), None);
        (open, Self { method, uri, headers, body, peer, drain, incoming, room, inbox, presence, taken })
    }

    /// Has its body take from the share of an inbox.
    pub(crate) fn belongs_to_inbox(&mut self, name: &str) {
        self.inbox = Some(name.into());
    }

    /// Reads the body, whole.
    pub(crate) async fn read_body(&mut self, bytes_max: usize) -> Result<(), Problem> {
        let Some(body) = self.incoming.take() else { return Ok(()) };
        let announced = usize::try_from(hyper::body::Body::size_hint(&body).lower()).unwrap_or(usize::MAX);
        if announced > bytes_max {
            if !self.headers.contains_key(EXPECT) {
                drained(body).await;
            }
            return Err(too_large(bytes_max));
        }
        // It takes room as it comes: announced is not sent.
        let mut taken = self.room.begin(self.peer.ip(), self.inbox.clone());
        let arriving = self.presence.arriving();
        let read = whole(body, announced, bytes_max, &mut taken, &self.presence);
        let read = tokio::time::timeout(BODY_TIME_MAX, read).await;
        drop(arriving);
        match read {
            Ok(body) => {
                self.taken = Some(taken);
                self.body = body?;
                Ok(())
            }
            Err(_) => {
                let hint = "Send the whole body within 30 seconds.";
                Err(Problem::new(Code::TooSlow, "the body did not arrive in time", hint))
            }
        }
    }

    /// Whether there is a body that nobody has read to its end.
    pub(crate) fn is_unread(&self) -> bool {
        self.incoming.is_some()
    }

    pub(crate) fn path(&self) -> &str {
        self.uri.path()
    }

    /// A header, if it is there and is text.
    pub(crate) fn header(&self, name: impl hyper::header::AsHeaderName) -> Option<&str> {
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

pub(crate) fn percent_decoded(text: &str) -> Cow<'_, str> {
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

fn too_large(bytes_max: usize) -> Problem {
    let message = format!("the body has more than {bytes_max} bytes");
    Problem::new(
        Code::InputTooLarge,
        message,
        "Send less, or raise the limit where there is one to raise (an inbox has `bytes_max`); of a large answer, send what identifies it.",
    )
}

async fn whole(
    mut body: Incoming,
    announced: usize,
    bytes_max: usize,
    taken: &mut Taken,
    presence: &Presence,
) -> Result<Bytes, Problem> {
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
                    all.reserve(announced.min(BODY_ROOM).min(4 * before.len()));
                    all.extend_from_slice(&before);
                }
                all.extend_from_slice(&data);
            }
        }
        let length = first.as_ref().map_or(all.len(), Bytes::len);
        if length > bytes_max {
            drop((first, all));
            drained(body).await;
            return Err(too_large(bytes_max));
        }
        presence.touch();
        taken.up_to(length)?;
    }
    Ok(first.unwrap_or_else(|| all.freeze()))
}

/// Reads on for a while: many senders listen only after they have sent everything, and would see a broken connection in place of
/// what was wrong.
async fn drained(mut body: Incoming) {
    let (mut bytes, started) = (0, Instant::now());
    while bytes <= DRAIN_BYTES_MAX && started.elapsed() <= DRAIN_TIME_MAX {
        let Ok(Some(Ok(frame))) = tokio::time::timeout(DRAIN_PAUSE_MAX, body.frame()).await else { return };
        bytes += frame.data_ref().map_or(0, Bytes::len);
    }
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
