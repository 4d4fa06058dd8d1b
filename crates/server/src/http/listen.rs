//! Connections: accepted up to a limit, slow ones ended, drained when the server stops.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::body::Incoming;
use hyper::header::{CONNECTION, HeaderValue, RETRY_AFTER};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};

use super::connections::{Connections, Presence};
use super::hands::Hands;
use super::head::{self, Coded, Ours, Talk};
use super::room::Room;
use super::stall::{STALL_MAX, Stalling};
use super::{Body, Problem, Request, Response, Tls, tls, two};

/// Most requests at a time of those that share their connection with others; who comes beyond that is told so.
const REQUESTS_MAX: usize = 20_000;
/// How long the head of a request may take, and how long a connection may stay idle.
pub(super) const HEAD_TIME_MAX: Duration = Duration::from_secs(30);
/// How long the head of a first request may still take once the server stops.
const LAST_HEAD_TIME_MAX: Duration = Duration::from_secs(1);
/// Largest head of a request.
pub(super) const HEAD_BYTES_MAX: usize = 32 << 10;
pub(super) const HEADERS_MAX: usize = 100;
/// How long a TLS handshake may take.
const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(10);
/// Pause after a failure to accept that no idle connection could be ended for.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Pause until an idle connection that was ended has closed its socket.
const ENDING_PAUSE: Duration = Duration::from_millis(1);
/// How seldom a failure to accept is told.
const ACCEPT_TOLD_EVERY: Duration = Duration::from_secs(10);

/// Something that answers requests.
pub(crate) trait Door: Send + Sync + 'static {
    /// Answers.
    fn answer(&self, request: &mut Request) -> impl Future<Output = Response> + Send;
}

/// Tells when the server begins to stop.
#[derive(Clone)]
pub(crate) struct Drain(watch::Receiver<bool>);

impl Drain {
    /// A drain and what opens it.
    pub(crate) fn new() -> (watch::Sender<bool>, Self) {
        let (sender, receiver) = watch::channel(false);
        (sender, Self(receiver))
    }

    /// Waits until the server begins to stop.
    pub(crate) async fn begun(&mut self) {
        // A sender that is gone means the same.
        let _ = self.0.wait_for(|begun| *begun).await;
    }

    pub(crate) fn has_begun(&self) -> bool {
        *self.0.borrow()
    }
}

/// What a listener has to serve connections with.
pub(crate) struct Means {
    pub(crate) room: Room,
    pub(crate) hands: Arc<Hands>,
    pub(crate) connections: Arc<Connections>,
    /// Most connections at a time.
    pub(crate) connections_max: usize,
    /// The number of the listener.
    pub(crate) number: usize,
}

/// A socket that listens.
pub(crate) struct Listener {
    socket: TcpListener,
    tls: Option<Tls>,
}

impl Listener {
    pub(crate) async fn bind(address: SocketAddr, tls: Option<Tls>) -> std::io::Result<Self> {
        Ok(Self { socket: TcpListener::bind(address).await?, tls })
    }

    pub(crate) fn address(&self) -> std::io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Accepts until the drain begins, then waits for what is under way. Where there is no room for another connection, the
    /// ones that were idle for longest are ended.
    pub(crate) async fn serve<D: Door>(self, door: Arc<D>, drain: Drain, means: Means) {
        let Means { room, hands, connections, connections_max, number } = means;
        let places = Arc::new(Semaphore::new(connections_max));
        let requests = Arc::new(Semaphore::new(REQUESTS_MAX));
        let mut begun = drain.clone();
        let mut told: Option<Instant> = None;
        loop {
            let accepting = async {
                let place = loop {
                    match places.clone().try_acquire_owned() {
                        Ok(place) => break place,
                        Err(_) => drop(connections.end_idle(Some(number))),
                    }
                    let freed = places.clone().acquire_owned();
                    if let Ok(Ok(place)) = tokio::time::timeout(ACCEPT_PAUSE, freed).await {
                        break place;
                    }
                };
                (place, self.socket.accept().await)
            };
            let (place, accepted) = tokio::select! {
                accepted = accepting => accepted,
                () = begun.begun() => break,
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    if told.is_none_or(|at| at.elapsed() >= ACCEPT_TOLD_EVERY) {
                        tracing::warn!("a connection was not accepted: {error}");
                        told = Some(Instant::now());
                    }
                    // This is mostly a lack of file descriptors, whoever has them.
                    let ended = connections.end_idle(None);
                    tokio::time::sleep(if ended > 0 { ENDING_PAUSE } else { ACCEPT_PAUSE }).await;
                    continue;
                }
            };
            // Answers are small and somebody waits for each.
            let _ = stream.set_nodelay(true);
            let stream = match stream.into_std() {
                Ok(stream) => stream,
                Err(error) => {
                    tracing::warn!("a connection was lost: {error}");
                    continue;
                }
            };
            let (door, drain, tls, room) = (door.clone(), drain.clone(), self.tls.clone(), room.clone());
            let registered = connections.register(number);
            let (number, presence) = (registered.number(), registered.presence.clone());
            let caller = Caller { peer, door, drain, room, requests: requests.clone(), presence };
            let ends = hands.give(async move {
                // Whoever looks after it is also who hears of what arrives.
                let stream = match TcpStream::from_std(stream) {
                    Ok(stream) => stream,
                    Err(error) => return tracing::warn!("a connection was lost: {error}"),
                };
                let ended = match tls {
                    None => caller.plain(stream).await,
                    // Boxed: whoever does without TLS would otherwise hold room for it.
                    Some(tls) => Box::pin(caller.secured(stream, &tls)).await,
                };
                if let Err(error) = ended {
                    tracing::debug!("a connection ended: {error}");
                }
                drop((registered, place));
            });
            connections.ends(number, ends);
        }
        drop(self.socket);
        // Every place is free when the last connection has ended.
        let _ = places.acquire_many(u32::try_from(connections_max).expect("a small number")).await;
    }
}

/// Somebody who connected.
struct Caller<D> {
    peer: SocketAddr,
    door: Arc<D>,
    drain: Drain,
    room: Room,
    /// Places for requests that share their connection with others.
    requests: Arc<Semaphore>,
    presence: Arc<Presence>,
}

impl<D: Door> Caller<D> {
    async fn plain(self, stream: TcpStream) -> hyper::Result<()> {
        let mut drain = self.drain.clone();
        let begun = tokio::select! {
            biased;
            begun = tokio::time::timeout(HEAD_TIME_MAX, two::begins(&stream)) => begun,
            // Who has just come is still answered.
            () = drain.begun() => tokio::time::timeout(LAST_HEAD_TIME_MAX, two::begins(&stream)).await,
        };
        let Ok(speaks_two) = begun else { return Ok(()) };
        match speaks_two {
            true => Box::pin(self.two(stream)).await,
            false => self.one(stream).await,
        }
    }

    async fn secured(self, stream: TcpStream, tls: &Tls) -> hyper::Result<()> {
        let stream = match tokio::time::timeout(HANDSHAKE_TIME_MAX, tls.0.accept(stream)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => {
                tracing::debug!("a TLS handshake failed: {error}");
                return Ok(());
            }
            Err(_) => {
                tracing::debug!("a TLS handshake took too long");
                return Ok(());
            }
        };
        match stream.get_ref().1.alpn_protocol() {
            Some(protocol) if protocol == tls::TWO => self.two(stream).await,
            _ => self.one(stream).await,
        }
    }

    async fn one<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(self, stream: S) -> hyper::Result<()> {
        let mut drain = self.drain.clone();
        let talk = Arc::new(Talk::default());
        let service = service_fn(|request: hyper::Request<Incoming>| {
            talk.asked();
            let (door, talk) = (self.door.clone(), talk.clone());
            let refused = head::badly_framed(request.headers());
            let request = self.request(request);
            let presence = self.presence.clone();
            async move {
                let Some(answering) = presence.answering() else { return std::future::pending().await };
                let response = match refused {
                    Some(problem) => closing(problem),
                    None => answered(&*door, request, true).await,
                };
                Ok::<hyper::Response<Ours>, Infallible>(response.map(|body| Ours {
                    body,
                    talk,
                    _answering: Some(answering),
                }))
            }
        });
        let mut builder = http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIME_MAX)
            .max_buf_size(HEAD_BYTES_MAX)
            .max_headers(HEADERS_MAX)
            .half_close(false);
        let mut stream = Coded::new(Stalling::new(stream, STALL_MAX), talk.clone());
        let ended = {
            // Pinned where it is made: moved, it would be given room twice.
            let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(&mut stream), service));
            tokio::select! {
                // What is there is read first: hyper would close a connection that has said nothing yet.
                biased;
                ended = connection.as_mut() => ended,
                () = drain.begun() => {
                    connection.as_mut().graceful_shutdown();
                    match talk.has_begun() {
                        true => connection.await,
                        // Half a request is not waited for as long as it could take.
                        false => tokio::time::timeout(LAST_HEAD_TIME_MAX, connection.as_mut()).await.unwrap_or(Ok(())),
                    }
                }
            }
        };
        stream.end(&ended).await;
        ended
    }

    async fn two<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(self, stream: S) -> hyper::Result<()> {
        let drain = self.drain.clone();
        let answer = |request: hyper::Request<Incoming>| {
            let is_too_long = request.headers().len() > HEADERS_MAX;
            let (door, request) = (self.door.clone(), self.request(request));
            async move {
                match is_too_long {
                    true => head::too_large().into_response().into_hyper(),
                    false => answered(&*door, request, false).await,
                }
            }
        };
        let places = self.requests.clone();
        two::serve(stream, answer, places, self.presence.clone(), drain, two::Patience::default()).await
    }

    fn request(&self, request: hyper::Request<Incoming>) -> Request {
        Request::new(request, self.peer, self.drain.clone(), self.room.clone(), self.presence.clone())
    }
}

/// Nothing more is read from who is told this.
fn closing(problem: Problem) -> hyper::Response<Body> {
    let mut response = problem.into_response();
    response.headers.insert(CONNECTION, HeaderValue::from_static("close"));
    response.into_hyper()
}

async fn answered<D: Door>(door: &D, mut request: Request, can_close: bool) -> hyper::Response<Body> {
    let mut response = door.answer(&mut request).await;
    if can_close && request.is_unread() {
        // Who was refused early need not be listened to.
        response.headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    if response.headers.contains_key(RETRY_AFTER) && request.drain.has_begun() {
        // Another server, or the next one here, can be asked at once.
        response.headers.insert(RETRY_AFTER, HeaderValue::from(1));
    }
    response.into_hyper()
}
