//! Connections: accepted up to a limit, slow ones ended, drained when the server stops.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};

use super::hands::Hands;
use super::request::Room;
use super::stall::{STALL_MAX, Stalling};
use super::{Body, Request, Response, Tls};

/// Most connections at a time; who comes beyond that waits to be accepted.
const CONNECTIONS_MAX: usize = 20_000;
/// How long the head of a request may take, and how long a connection may stay idle.
const HEAD_TIME_MAX: Duration = Duration::from_secs(30);
/// Largest head of a request.
const HEAD_BYTES_MAX: usize = 32 << 10;
const HEADERS_MAX: usize = 100;
/// How long a TLS handshake may take.
const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(10);
/// Pause after a failure to accept, which is mostly a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

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

    pub(crate) fn is_secure(&self) -> bool {
        self.tls.is_some()
    }

    /// Accepts until the drain begins, then waits for what is under way.
    pub(crate) async fn serve<D: Door>(self, door: Arc<D>, drain: Drain, room: Room, hands: Arc<Hands>) {
        let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        let mut begun = drain.clone();
        loop {
            let place = places.clone().acquire_owned().await.expect("nobody closes it");
            let accepted = tokio::select! {
                accepted = self.socket.accept() => accepted,
                () = begun.begun() => break,
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!("a connection was not accepted: {error}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
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
            hands.give(async move {
                // Whoever looks after it is also who hears of what arrives.
                let stream = match TcpStream::from_std(stream) {
                    Ok(stream) => stream,
                    Err(error) => return tracing::warn!("a connection was lost: {error}"),
                };
                match tls {
                    None => connection(stream, peer, door, drain, room).await,
                    // Boxed: whoever does without TLS would otherwise hold room for it.
                    Some(tls) => Box::pin(secured(stream, peer, tls, door, drain, room)).await,
                }
                drop(place);
            });
        }
        drop(self.socket);
        // Every place is free when the last connection has ended.
        let _ = places.acquire_many(u32::try_from(CONNECTIONS_MAX).expect("a small number")).await;
    }
}

async fn secured<D: Door>(
    stream: TcpStream,
    peer: SocketAddr,
    tls: Tls,
    door: Arc<D>,
    drain: Drain,
    room: Room,
) {
    match tokio::time::timeout(HANDSHAKE_TIME_MAX, tls.0.accept(stream)).await {
        Ok(Ok(stream)) => connection(stream, peer, door, drain, room).await,
        Ok(Err(error)) => tracing::debug!("a TLS handshake failed: {error}"),
        Err(_) => tracing::debug!("a TLS handshake took too long"),
    }
}

async fn connection<S, D>(stream: S, peer: SocketAddr, door: Arc<D>, mut drain: Drain, room: Room)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    D: Door,
{
    let of_requests = drain.clone();
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let (door, drain, room) = (door.clone(), of_requests.clone(), room.clone());
        async move {
            let mut request = Request::new(request, peer, drain, room);
            let mut response = door.answer(&mut request).await;
            if request.is_unread() {
                // Who was refused early need not be listened to.
                response
                    .headers
                    .insert(hyper::header::CONNECTION, hyper::header::HeaderValue::from_static("close"));
            }
            Ok::<hyper::Response<Body>, Infallible>(response.into_hyper())
        }
    });
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME_MAX)
        .max_buf_size(HEAD_BYTES_MAX)
        .max_headers(HEADERS_MAX)
        .half_close(false);
    // Pinned where it is made: moved, it would be given room twice.
    let mut connection =
        std::pin::pin!(builder.serve_connection(TokioIo::new(Stalling::new(stream, STALL_MAX)), service));
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = drain.begun() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!("a connection ended: {error}");
    }
}
