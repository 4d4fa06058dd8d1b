//! The way to a destination: name, address, connection, one exchange. It tells what was certainly never sent from what may have
//! arrived (S16, S17), follows no redirect and tries nothing again by itself once a byte may have left (S22).

mod address;
mod connect;
mod goodbye;
mod habit;
mod pool;
mod tls;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::{Request, Response};

pub(crate) use connect::{Base, Upstream};
pub(crate) use pool::Lent;
pub(crate) use tls::client as tls_client;

/// How long it may take to reach a destination: name, connection and handshake together.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(10);
/// A connection that somebody may be about to close can swallow a request, and then nobody knows. What may be sent twice is
/// sent over any connection; what may not, only over one that was used a moment ago. Servers keep theirs for 2 s and more.
const IDLE_MAX: Duration = Duration::from_secs(30);
const IDLE_MAX_CAREFUL: Duration = Duration::from_millis(1500);
/// Connections that are kept for later, of one destination.
const IDLE_CONNECTIONS_MAX: usize = 256;
/// How often a connection that was closed before anything was written is replaced by another one.
const REPLACED_MAX: usize = 3;

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Nothing reached the destination.
    NotSent(String),
    /// Something may have.
    Unknown(String),
}

/// How much it would matter if a request were swallowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Care {
    /// It may be sent again.
    Little,
    /// Nobody would know whether it arrived.
    Great,
}

impl Care {
    fn idle_max(self) -> Duration {
        match self {
            Self::Little => IDLE_MAX,
            Self::Great => IDLE_MAX_CAREFUL,
        }
    }
}

impl Upstream {
    /// Makes a request and sends it, within a time. What is still looking for a connection when it is over has sent nothing
    /// (S16); after that nobody knows (S17).
    pub(crate) async fn exchange_within(
        &self,
        within: Duration,
        request: impl Future<Output = Result<Request<Full<Bytes>>, String>>,
        care: Care,
        may_send: impl Fn() -> Result<(), String>,
    ) -> Result<(Response<Incoming>, Lent), Failure> {
        let is_sent = AtomicBool::new(false);
        let noting = || {
            may_send()?;
            is_sent.store(true, Ordering::Relaxed);
            Ok(())
        };
        let exchange = async {
            let request = request.await.map_err(Failure::NotSent)?;
            self.exchange(request, care, noting).await
        };
        tokio::time::timeout(within, exchange).await.unwrap_or_else(|_| {
            let why = "it did not answer in time".to_owned();
            Err(if is_sent.load(Ordering::Relaxed) { Failure::Unknown(why) } else { Failure::NotSent(why) })
        })
    }

    /// Sends a request and gives the head of the answer. `may_send` is asked immediately before the first byte (S9).
    pub(crate) async fn exchange(
        &self,
        request: Request<Full<Bytes>>,
        care: Care,
        may_send: impl Fn() -> Result<(), String>,
    ) -> Result<(Response<Incoming>, Lent), Failure> {
        let mut request = request;
        for _ in 0..REPLACED_MAX {
            let connection = match self.pool().take(care).await {
                Some(connection) => connection,
                None => tokio::time::timeout(CONNECT_TIME_MAX, Box::pin(self.connect()))
                    .await
                    .unwrap_or_else(|_| Err("it could not be reached in time".to_owned()))
                    .map_err(Failure::NotSent)?,
            };
            may_send().map_err(Failure::NotSent)?;
            let (idle_for, goodbye) = (connection.idle_for(), connection.goodbye());
            match connection.send(request).await {
                Ok((response, connection)) => {
                    goodbye.iter().for_each(|goodbye| goodbye.answered());
                    return Ok((response, self.pool().lend(connection)));
                }
                Err(unsent) => {
                    if let Some(why) = goodbye.and_then(|goodbye| goodbye.refusal()) {
                        return Err(Failure::NotSent(why));
                    }
                    self.pool().closed(idle_for);
                    match unsent {
                        pool::Unsent::Given(back) => request = *back,
                        pool::Unsent::Failed(failure) => return Err(failure),
                    }
                }
            }
        }
        Err(Failure::NotSent("it closes every connection before anything can be sent".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::Arc;
    use std::sync::Mutex;
    use std::sync::atomic::AtomicUsize;
    use std::task::Poll;

    use hyper_util::rt::TokioIo;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// The first connection is kept from an earlier request, and closed at the very moment when something is to be sent.
    #[tokio::test]
    async fn s9_the_time_to_send_is_looked_at_again_for_every_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = listener.local_addr().expect("it has one");
        let base = Base::parse(&format!("http://{address}")).expect("it is one");
        let upstream = Upstream::new(base, true, tls_client(None).expect("nothing can be wrong"));
        let (near, _far) = tokio::io::duplex(1024);
        let handshake = hyper::client::conn::http1::handshake(TokioIo::new(near));
        let (sender, connection) = handshake.await.expect("nothing is sent yet");
        let mut connection = Box::pin(connection);
        // It says that it is ready, and goes on only when it is looked after.
        let polled = poll_fn(|context| Poll::Ready(connection.as_mut().poll(context).is_pending()));
        assert!(polled.await, "nobody closed it yet");
        let connection = Arc::new(Mutex::new(Some(connection)));
        upstream.pool().lend(pool::Connection::one(sender, None)).give_back();

        let heard = Arc::new(AtomicUsize::new(0));
        let counted = heard.clone();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut bytes = [0; 1024];
                if stream.read(&mut bytes).await.is_ok_and(|read| read > 0) {
                    counted.fetch_add(1, Ordering::SeqCst);
                    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
                }
            }
        });
        let asked = AtomicUsize::new(0);
        let may_send = || {
            drop(connection.lock().expect("nobody panics").take());
            match asked.fetch_add(1, Ordering::SeqCst) {
                0 => Ok(()),
                _ => Err("too late".to_owned()),
            }
        };
        let mut request = Request::new(Full::new(Bytes::from_static(b"one")));
        *request.uri_mut() = upstream.base().join("/").expect("it is an address");
        let sent = upstream.exchange(request, Care::Little, may_send).await;
        assert_eq!(sent.err(), Some(Failure::NotSent("too late".to_owned())));
        assert_eq!((asked.load(Ordering::SeqCst), heard.load(Ordering::SeqCst)), (2, 0));
    }
}
