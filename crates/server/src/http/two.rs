//! HTTP/2: many requests at a time over one connection, none of which may take more than it could over one of its own.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::Method;
use hyper::body::{Body as _, Frame, Incoming, SizeHint};
use hyper::header::{CONTENT_LENGTH, COOKIE, HOST, HeaderValue};
use hyper::http::request::Parts;
use hyper::rt::Executor;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::connections::{Answering, Presence};
use super::listen::{Drain, HEAD_BYTES_MAX, HEAD_TIME_MAX};
use super::stall::{STALL_MAX, Stalling};
use super::{Body, Cut, Problem};

/// How connections begin that speak it without having agreed on it, as far as no other protocol begins so.
const START: &[u8] = b"PRI ";
/// When to look again at a connection that has begun with less than that: soon at first, then less and less often.
const START_PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));
/// Most requests at a time over one connection.
const STREAMS_MAX: u32 = 100;
/// What may be under way to us before somebody reads it: for one request, and over one connection.
const STREAM_BYTES: u32 = 64 << 10;
const CONNECTION_BYTES: u32 = 128 << 10;
/// Answers are given to the connection in pieces of this size, the next when there is room for it.
const PIECE_BYTES: usize = 16 << 10;
/// How often the other end is asked whether it is there, and how long it may take to say so.
const ALIVE_EVERY: Duration = Duration::from_secs(20);
/// How long a connection may take to end that nobody uses.
const LEAVE_TIME_MAX: Duration = Duration::from_secs(2);
/// How old a connection may become. The end of an answer may be kept by one whose other end takes nothing, and nobody can tell.
const AGE_MAX: Duration = Duration::from_secs(3600);

/// Whether a connection begins as HTTP/2 does.
pub(super) async fn begins(stream: &TcpStream) -> bool {
    let mut start = [0; START.len()];
    let mut pause = START_PAUSES.0;
    loop {
        match stream.peek(&mut start).await {
            Ok(0) | Err(_) => return false,
            Ok(count) if count < START.len() && START.starts_with(&start[..count]) => {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(START_PAUSES.1);
            }
            Ok(_) => return start == START,
        }
    }
}

/// How long the other end may do nothing.
#[derive(Clone, Copy)]
pub(super) struct Patience {
    /// Without a request.
    idle: Duration,
    /// Without room for the next piece of an answer.
    stall: Duration,
    /// When asked to leave.
    leave: Duration,
    /// How old it may become.
    age: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { idle: HEAD_TIME_MAX, stall: STALL_MAX, leave: LEAVE_TIME_MAX, age: AGE_MAX }
    }
}

/// Answers what comes over a connection until it ends. Each request takes a place until it is answered.
pub(super) async fn serve<S, F>(
    stream: S,
    answer: impl Fn(hyper::Request<Incoming>) -> F + Send,
    places: Arc<Semaphore>,
    presence: Arc<Presence>,
    mut drain: Drain,
    patience: Patience,
) -> hyper::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Future<Output = hyper::Response<Body>> + Send + 'static,
{
    let streams = Streams { stall: patience.stall, counts: Arc::default() };
    let service = service_fn(|request: hyper::Request<Incoming>| {
        let (is_head, place) = (request.method() == Method::HEAD, places.clone().try_acquire_owned().ok());
        let presence = presence.clone();
        let answering = answer(request);
        async move {
            let Some(counted) = presence.answering() else { return std::future::pending().await };
            let given = GIVEN.with(Arc::clone);
            let mut response = match &place {
                Some(_) => answering.await,
                None => Problem::overloaded("too many requests are under way").into_response().into_hyper(),
            };
            if is_head {
                without_body(&mut response);
            }
            let pieces =
                |body| Pieces { body, rest: Bytes::new(), given, _place: place, _answering: counted };
            Ok::<_, Infallible>(response.map(pieces))
        }
    });
    let mut builder = http2::Builder::new(streams.clone());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(u32::try_from(HEAD_BYTES_MAX).expect("a small number"))
        .initial_stream_window_size(STREAM_BYTES)
        .initial_connection_window_size(CONNECTION_BYTES)
        .max_send_buf_size(PIECE_BYTES)
        .keep_alive_interval(ALIVE_EVERY)
        .keep_alive_timeout(ALIVE_EVERY);
    let stalling = TokioIo::new(Stalling::new(stream, patience.stall));
    let mut connection = std::pin::pin!(builder.serve_connection(stalling, service));
    tokio::select! {
        ended = connection.as_mut() => return ended,
        () = drain.begun() => {}
        () = streams.idle(patience.idle) => {}
        () = tokio::time::sleep(patience.age) => {}
    }
    connection.as_mut().graceful_shutdown();
    tokio::select! {
        ended = connection => ended,
        // What came meanwhile is answered. Whoever does not even say goodbye is not waited for.
        () = streams.idle(patience.leave) => Ok(()),
    }
}

/// The answer to a HEAD: hyper leaves the body out by itself only over HTTP/1.1.
fn without_body(response: &mut hyper::Response<Body>) {
    if let Some(bytes) = response.body().size_hint().exact() {
        response.headers_mut().entry(CONTENT_LENGTH).or_insert(HeaderValue::from(bytes));
    }
    *response.body_mut() = Body::whole(Bytes::new());
}

/// Makes a request look as it would over HTTP/1.1: nobody else has to know.
pub(super) fn as_one(head: &mut Parts) {
    if let Some(host) = head.uri.authority().and_then(|name| HeaderValue::from_str(name.as_str()).ok()) {
        head.headers.insert(HOST, host);
    }
    if let Some(path) = head.uri.path_and_query().cloned() {
        head.uri = path.into();
    }
    // They may come one at a time, so that they can be compressed.
    let cookies: Vec<&[u8]> = head.headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if cookies.len() > 1
        && let Ok(together) = HeaderValue::from_bytes(&cookies.join(&b"; "[..]))
    {
        head.headers.insert(COOKIE, together);
    }
}

tokio::task_local! {
    /// Of the request that is answered.
    static GIVEN: Arc<Given>;
}

/// How far an answer was given to its connection.
#[derive(Default)]
struct Given {
    pieces: AtomicUsize,
    /// Nothing more is taken before there is room: who is waited for is the other end.
    waits_for_room: AtomicBool,
}

impl Given {
    /// Ends when the other end makes no room for too long.
    async fn stalled(&self, stall: Duration) {
        loop {
            let before = self.pieces.load(Ordering::Relaxed);
            tokio::time::sleep(stall).await;
            if self.waits_for_room.load(Ordering::Relaxed) && self.pieces.load(Ordering::Relaxed) == before {
                return;
            }
        }
    }
}

/// Looks after the requests of a connection.
#[derive(Clone)]
struct Streams {
    stall: Duration,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    under_way: AtomicUsize,
    /// How often one began or ended.
    changes: AtomicUsize,
}

impl Streams {
    /// Ends when there was no request for so long.
    async fn idle(&self, idle: Duration) {
        let changes = || self.counts.changes.load(Ordering::Relaxed);
        loop {
            let before = changes();
            tokio::time::sleep(idle).await;
            if self.counts.under_way.load(Ordering::Relaxed) == 0 && changes() == before {
                return;
            }
        }
    }
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Streams {
    fn execute(&self, stream: F) {
        let (under_way, stall) = (UnderWay::begin(&self.counts), self.stall);
        tokio::spawn(async move {
            let given = Arc::new(Given::default());
            tokio::select! {
                () = GIVEN.scope(given.clone(), stream) => {}
                () = given.stalled(stall) => tracing::debug!("an answer was not taken in time"),
            }
            drop(under_way);
        });
    }
}

/// Counts as long as it is there.
struct UnderWay(Arc<Counts>);

impl UnderWay {
    fn begin(counts: &Arc<Counts>) -> Self {
        counts.under_way.fetch_add(1, Ordering::Relaxed);
        counts.changes.fetch_add(1, Ordering::Relaxed);
        Self(counts.clone())
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.changes.fetch_add(1, Ordering::Relaxed);
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

/// An answer in pieces: given whole, it would be kept by the connection for as long as the other end likes.
struct Pieces {
    body: Body,
    rest: Bytes,
    given: Arc<Given>,
    _place: Option<OwnedSemaphorePermit>,
    _answering: Answering,
}

impl hyper::body::Body for Pieces {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        let frame = match self.rest.is_empty() {
            false => Poll::Ready(Some(Ok(std::mem::take(&mut self.rest)))),
            true => Pin::new(&mut self.body)
                .poll_frame(context)
                .map(|frame| frame.map(|frame| frame.map(|frame| frame.into_data().unwrap_or_default()))),
        };
        self.given.waits_for_room.store(frame.is_ready(), Ordering::Relaxed);
        self.given.pieces.fetch_add(1, Ordering::Relaxed);
        frame.map(|frame| {
            frame.map(|data| {
                data.map(|mut data| {
                    self.rest = data.split_off(data.len().min(PIECE_BYTES));
                    Frame::data(data)
                })
            })
        })
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (mut hint, rest) = (self.body.size_hint(), self.rest.len() as u64);
        match hint.exact() {
            Some(exact) => hint = SizeHint::with_exact(exact + rest),
            None => hint.set_lower(hint.lower() + rest),
        }
        hint
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{DuplexStream, duplex};

    use super::*;

    const PATIENCE: Patience = Patience {
        idle: Duration::from_millis(400),
        stall: Duration::from_secs(1),
        leave: Duration::from_millis(300),
        age: Duration::from_secs(60),
    };
    const MUCH: usize = 1 << 20;
    const ENDED_WITHIN: Duration = Duration::from_secs(20);

    /// A server that answers everything with much, and what is left of it when it has ended.
    fn serving(theirs: DuplexStream) -> tokio::task::JoinHandle<()> {
        let answer = |_| async { hyper::Response::new(Body::whole(Bytes::from(vec![0; MUCH]))) };
        tokio::spawn(async move {
            let (_open, drain) = Drain::new();
            let _ =
                serve(theirs, answer, Arc::new(Semaphore::new(10)), Arc::default(), drain, PATIENCE).await;
        })
    }

    type Sender = h2::client::SendRequest<Bytes>;

    /// A client that takes so much of an answer before it has been read.
    async fn client(window: u32) -> (Sender, tokio::task::JoinHandle<()>, tokio::task::JoinHandle<()>) {
        let (ours, theirs) = duplex(1 << 20);
        let serving = serving(theirs);
        let connecting = h2::client::Builder::new().initial_window_size(window).handshake(ours).await;
        let (sender, connection) = connecting.expect("it speaks HTTP/2");
        let connection = tokio::spawn(async { drop(connection.await) });
        (sender, serving, connection)
    }

    async fn asked(sender: &Sender) -> h2::RecvStream {
        let mut sender = sender.clone().ready().await.expect("there is room for a request");
        let request = hyper::Request::get("http://localhost/").body(()).expect("a request");
        let (answer, _) = sender.send_request(request, true).expect("it is sent");
        answer.await.expect("an answer").into_body()
    }

    #[test]
    fn a_request_looks_as_over_one() {
        let request = hyper::Request::get("http://here:1/a/b?c=d")
            .header("host", "elsewhere")
            .header("cookie", "e=1")
            .header("cookie", "f=2");
        let (mut head, ()) = request.body(()).expect("a request").into_parts();
        as_one(&mut head);
        assert_eq!(head.uri, "/a/b?c=d");
        assert_eq!(head.headers.get_all(HOST).iter().collect::<Vec<_>>(), ["here:1"]);
        assert_eq!(head.headers.get_all(COOKIE).iter().collect::<Vec<_>>(), ["e=1; f=2"]);
    }

    #[tokio::test]
    async fn an_answer_comes_whole_through_a_small_window() {
        let (sender, _serving, _connection) = client(1000).await;
        let mut body = asked(&sender).await;
        let mut read = 0;
        while let Some(data) = body.data().await {
            let count = data.expect("more of it").len();
            body.flow_control().release_capacity(count).expect("it was read");
            read += count;
        }
        assert_eq!(read, MUCH);
    }

    #[tokio::test]
    async fn who_reads_slowly_is_waited_for() {
        let (sender, _serving, _connection) = client(200 << 10).await;
        let mut body = asked(&sender).await;
        let mut read = 0;
        while let Some(data) = body.data().await {
            let count = data.expect("more of it").len();
            body.flow_control().release_capacity(count).expect("it was read");
            if read / (100 << 10) != (read + count) / (100 << 10) {
                tokio::time::sleep(PATIENCE.stall / 4).await;
            }
            read += count;
        }
        assert_eq!(read, MUCH);
    }

    #[tokio::test]
    async fn who_takes_nothing_is_cut_off() {
        let (sender, serving, _connection) = client(0).await;
        let mut bodies = Vec::new();
        for _ in 0..3 {
            bodies.push(asked(&sender).await);
        }
        for mut body in bodies {
            let cut = body.data().await.expect("an end").expect_err("nothing can come");
            assert_eq!(cut.reason(), Some(h2::Reason::CANCEL));
        }
        tokio::time::timeout(ENDED_WITHIN, serving).await.expect("it ends by itself").expect("no panic");
    }

    #[tokio::test]
    async fn who_asks_nothing_is_left() {
        let (sender, serving, connection) = client(1000).await;
        tokio::time::timeout(ENDED_WITHIN, serving).await.expect("it ends by itself").expect("no panic");
        tokio::time::timeout(ENDED_WITHIN, connection).await.expect("and is told so").expect("no panic");
        drop(sender);
    }

    #[tokio::test]
    async fn who_does_not_even_begin_is_left() {
        let (ours, theirs) = duplex(1000);
        tokio::time::timeout(ENDED_WITHIN, serving(theirs))
            .await
            .expect("it ends by itself")
            .expect("no panic");
        drop(ours);
    }
}
