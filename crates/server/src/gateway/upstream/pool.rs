//! Connections to one destination: used, lent out with an answer, kept for the next request.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper::header::{CONNECTION, HOST, HeaderValue};
use hyper::{Request, Response, Uri, Version};

use super::goodbye::Goodbye;
use super::habit::Habit;
use super::{Care, Failure, IDLE_CONNECTIONS_MAX};
use crate::http::hands;

/// How long a connection that was used a moment ago may take to be ready again.
const READY_TIME_MAX: Duration = Duration::from_millis(100);

/// A connection that is open.
pub(super) enum Connection {
    One(Own),
    /// Shared by many at a time.
    Two(Shared),
}

/// One for many requests at a time.
#[derive(Clone)]
pub(super) struct Shared {
    pub(super) sender: http2::SendRequest<Full<Bytes>>,
    pub(super) goodbye: Arc<Goodbye>,
}

/// One for one request at a time.
pub(super) struct Own {
    sender: http1::SendRequest<Full<Bytes>>,
    /// Where it is looked after. Used from elsewhere, two threads wake each other for every request.
    hand: Option<usize>,
    /// Answers that were read from it to their end.
    answers: u32,
    /// How long it was idle when it was taken; none: it is new.
    idle_for: Option<Duration>,
    /// The destination said that it closes it.
    is_last: bool,
    goodbye: Option<Arc<Goodbye>>,
}

/// Why a request did not go out, or why nobody knows.
pub(super) enum Unsent {
    /// The connection was closed before anything of it was written: here it is again.
    Given(Box<Request<Full<Bytes>>>),
    Failed(Failure),
}

impl Connection {
    /// A new one, made here.
    pub(super) fn one(sender: http1::SendRequest<Full<Bytes>>, goodbye: Option<Arc<Goodbye>>) -> Self {
        let hand = hands::here();
        Self::One(Own { sender, hand, answers: 0, idle_for: None, is_last: false, goodbye })
    }

    /// What it was ended with, if it speaks TLS.
    pub(super) fn goodbye(&self) -> Option<Arc<Goodbye>> {
        match self {
            Self::One(own) => own.goodbye.clone(),
            Self::Two(shared) => Some(shared.goodbye.clone()),
        }
    }

    /// How long it was idle when it was taken, where it is used again and nobody else uses it.
    pub(super) fn idle_for(&self) -> Option<Duration> {
        match self {
            Self::One(own) => own.idle_for,
            Self::Two(_) => None,
        }
    }

    pub(super) async fn send(
        mut self,
        request: Request<Full<Bytes>>,
    ) -> Result<(Response<Incoming>, Self), Unsent> {
        let whole = request.uri().clone();
        // Without a body the head is all there is, and may have gone out before the goodbye was heard.
        let has_body = hyper::body::Body::size_hint(request.body()).exact() != Some(0);
        let sent = match &mut self {
            Self::One(own) => own.sender.try_send_request(in_old_form(request)).await,
            Self::Two(shared) => shared.sender.try_send_request(request).await,
        };
        match sent {
            Ok(response) => {
                if let Self::One(own) = &mut self {
                    own.is_last = says_goodbye(&response);
                }
                Ok((response, self))
            }
            Err(mut error) => Err(match error.take_message() {
                Some(mut request) => {
                    *request.uri_mut() = whole;
                    Unsent::Given(Box::new(request))
                }
                None => Unsent::Failed(judged(error.error(), has_body)),
            }),
        }
    }

    fn is_closed(&self) -> bool {
        match self {
            Self::One(own) => own.sender.is_closed(),
            Self::Two(shared) => shared.sender.is_closed(),
        }
    }

    async fn is_ready(&mut self) -> bool {
        let is_ready_now = match self {
            Self::One(own) => own.sender.is_ready(),
            Self::Two(shared) => shared.sender.is_ready(),
        };
        if is_ready_now {
            return true;
        }
        let ready = async {
            match self {
                Self::One(own) => own.sender.ready().await,
                Self::Two(shared) => shared.sender.ready().await,
            }
        };
        matches!(tokio::time::timeout(READY_TIME_MAX, ready).await, Ok(Ok(())))
    }
}

/// HTTP/1.1 wants the path in the first line and the name in a header.
fn in_old_form(mut request: Request<Full<Bytes>>) -> Request<Full<Bytes>> {
    let host = request.uri().authority().and_then(|name| HeaderValue::from_str(name.as_str()).ok());
    if let Some(host) = host {
        request.headers_mut().insert(HOST, host);
    }
    let path = request.uri().path_and_query().cloned();
    *request.uri_mut() = path.map_or_else(Uri::default, Uri::from);
    request
}

/// Whether nothing comes over this connection any more. Who says so is no one who closes connections unawares.
fn says_goodbye(response: &Response<Incoming>) -> bool {
    let says = |word: &str| {
        let lines = response.headers().get_all(CONNECTION).iter().filter_map(|line| line.to_str().ok());
        lines.flat_map(|line| line.split(',')).any(|said| said.trim().eq_ignore_ascii_case(word))
    };
    says("close") || response.version() == Version::HTTP_10 && !says("keep-alive")
}

/// A stream that was refused, or begun after the destination said goodbye, was not looked at (S16). Everything else may have
/// been.
fn judged(error: &hyper::Error, has_body: bool) -> Failure {
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        if let Some(h2) = inner.downcast_ref::<h2::Error>()
            && (h2.reason() == Some(h2::Reason::REFUSED_STREAM)
                || has_body && h2.is_go_away() && h2.is_remote())
        {
            return Failure::NotSent("the destination did not take the stream".to_owned());
        }
        source = inner.source();
    }
    // What hyper says may quote what was received; its kind is enough.
    let why = match error {
        error if error.is_timeout() => "it did not answer in time",
        error if error.is_incomplete_message() => "it closed the connection before it answered",
        error if error.is_parse() => "what it answered is not HTTP",
        _ => "the connection broke before it answered",
    };
    Failure::Unknown(why.to_owned())
}

/// Connections kept for later.
#[derive(Clone, Default)]
pub(super) struct Pool(Arc<Mutex<Kept>>);

#[derive(Default)]
struct Kept {
    habit: Habit,
    /// The one used last is at the end.
    idle: Vec<Idle>,
    shared: Option<(Instant, Shared)>,
}

struct Idle {
    used: Instant,
    connection: Own,
}

impl Pool {
    fn kept(&self) -> std::sync::MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection that was used a moment ago; how long that is depends on how much it would matter if it were closed.
    /// Where nobody would know whether a request arrived, only one of this thread: of another it could be written later than
    /// it was allowed to be (S9).
    pub(super) async fn take(&self, care: Care) -> Option<Connection> {
        let idle_max = care.idle_max();
        loop {
            let mut connection = {
                let mut kept = self.kept();
                kept.shared.take_if(|(_, shared)| shared.sender.is_closed());
                match &mut kept.shared {
                    Some((used, shared)) if used.elapsed() < idle_max => {
                        *used = Instant::now();
                        Connection::Two(shared.clone())
                    }
                    _ => match kept.one(care) {
                        Some(own) => Connection::One(own),
                        None => return None,
                    },
                }
            };
            if !connection.is_closed() && connection.is_ready().await {
                return Some(connection);
            }
            match connection {
                Connection::Two(_) => self.kept().shared = None,
                Connection::One(own) if own.sender.is_closed() => self.closed(own.idle_for),
                Connection::One(_) => {}
            }
        }
    }

    /// A connection that had been idle for so long was closed, and nothing was answered.
    pub(super) fn closed(&self, idle_for: Option<Duration>) {
        if let Some(idle_for) = idle_for {
            self.kept().habit.closed(idle_for, Instant::now());
        }
    }

    /// A new connection that others may use too.
    pub(super) fn share(&self, shared: &Shared) {
        self.kept().shared = Some((Instant::now(), shared.clone()));
    }

    /// Keeps a connection with the answer that is read from it.
    pub(super) fn lend(&self, connection: Connection) -> Lent {
        Lent { connection: Some(connection), pool: self.clone() }
    }

    /// Drops what has been idle for too long.
    pub(super) fn tidy(&self) {
        self.kept().tidy();
    }
}

impl Kept {
    /// The connection used last that is fit.
    fn one(&mut self, care: Care) -> Option<Own> {
        let now = Instant::now();
        let idle_for = |idle: &Idle| now.saturating_duration_since(idle.used);
        if self.habit == Habit::Unknown
            && let Some(closed) = self.idle.iter().rev().find(|idle| idle.connection.sender.is_closed())
        {
            self.habit.closed(idle_for(closed), now);
        }
        let fit = match (self.habit.needs_new(now), care) {
            (true, _) => None,
            (false, Care::Great) => {
                let (here, least) = (hands::here(), self.habit.rested_min());
                let is_fit = |idle: &Idle| {
                    idle.connection.hand == here && (least..care.idle_max()).contains(&idle_for(idle))
                };
                self.idle.iter().rposition(is_fit)
            }
            (false, Care::Little) => {
                let here = hands::here();
                let is_fit = |idle: &Idle| idle_for(idle) < care.idle_max();
                let near = self.idle.iter().rposition(|idle| idle.connection.hand == here && is_fit(idle));
                // One of another thread is still better than a new one.
                near.or_else(|| self.idle.iter().rposition(is_fit))
            }
        };
        let Some(at) = fit else {
            self.tidy();
            return None;
        };
        let idle = self.idle.remove(at);
        let idle_for = Some(idle_for(&idle));
        Some(Own { idle_for, ..idle.connection })
    }

    fn tidy(&mut self) {
        self.idle.retain(|idle| idle.used.elapsed() < super::IDLE_MAX && !idle.connection.sender.is_closed());
        self.shared.take_if(|(used, shared)| used.elapsed() >= super::IDLE_MAX || shared.sender.is_closed());
    }
}

/// The connection an answer is read from. Given back when the answer was read to its end; otherwise it is closed.
pub(crate) struct Lent {
    connection: Option<Connection>,
    pool: Pool,
}

impl Lent {
    /// The answer was read to its end.
    pub(crate) fn give_back(mut self) {
        if let Some(Connection::One(mut connection)) = self.connection.take() {
            let (mut kept, now) = (self.pool.kept(), Instant::now());
            connection.answers = connection.answers.saturating_add(1);
            kept.habit.answered(connection.answers);
            let is_open = !connection.is_last && !connection.sender.is_closed() && !kept.habit.needs_new(now);
            if is_open && kept.idle.len() < IDLE_CONNECTIONS_MAX {
                kept.idle.push(Idle { used: now, connection });
            }
        }
    }
}
