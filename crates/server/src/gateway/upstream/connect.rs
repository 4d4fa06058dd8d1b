//! Connections: the base address and nothing else, private addresses only where they are named.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hyper::Uri;
use hyper::client::conn::{http1, http2};
use hyper::http::uri::{Authority, Scheme};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::address::is_private;
use super::goodbye::{Goodbye, Listening};
use super::pool::{Connection, Pool, Shared};

/// Addresses of a name that are tried.
const ADDRESSES_MAX: usize = 8;
/// How long one address may take, if there is another one.
const ADDRESS_TIME_MAX: Duration = Duration::from_secs(3);
/// Largest head of an answer.
const HEAD_BYTES_MAX: usize = 64 << 10;
const HEADERS_MAX: usize = 100;

/// What every address of a destination begins with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Base {
    is_secure: bool,
    authority: Authority,
    port: u16,
    /// Without a slash at its end.
    path: String,
}

impl Base {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        // Not quoted: some destinations have a secret in it.
        let wrong = || "this is not a base address; write https://api.example.com".to_owned();
        let uri: Uri = text.parse().map_err(|_| wrong())?;
        let is_secure = match uri.scheme() {
            Some(scheme) if *scheme == Scheme::HTTPS => true,
            Some(scheme) if *scheme == Scheme::HTTP => false,
            _ => return Err(wrong()),
        };
        let authority = uri.authority().ok_or_else(wrong)?.clone();
        if uri.query().is_some() || authority.as_str().contains('@') || authority.host().is_empty() {
            return Err(wrong());
        }
        let port = authority.port_u16().unwrap_or(if is_secure { 443 } else { 80 });
        Ok(Self { is_secure, authority, port, path: uri.path().trim_end_matches('/').to_owned() })
    }

    /// What tells it from others.
    pub(crate) fn text(&self) -> String {
        format!("{}{}", self.authority, self.path)
    }

    /// Returns it whole, without a slash at its end.
    pub(crate) fn address(&self) -> String {
        let scheme = if self.is_secure { "https" } else { "http" };
        format!("{scheme}://{}{}", self.authority, self.path)
    }

    /// Returns the steps of its path: some destinations have a secret in it.
    pub(crate) fn steps(&self) -> impl Iterator<Item = &str> {
        self.path.split('/')
    }

    /// The whole address of a path and query.
    pub(crate) fn join(&self, path_and_query: &str) -> Result<Uri, String> {
        format!("{}{path_and_query}", self.address())
            .parse()
            .map_err(|_| "the path or query has letters that an address cannot have".to_owned())
    }

    pub(crate) fn host(&self) -> &str {
        self.authority.host()
    }

    pub(crate) fn authority(&self) -> &str {
        self.authority.as_str()
    }

    /// Whether anybody between here and there can read what is sent.
    pub(crate) fn is_in_the_clear(&self) -> bool {
        let is_here = self.host().eq_ignore_ascii_case("localhost")
            || literal(self.host()).is_some_and(|address| address.is_loopback());
        !self.is_secure && !is_here
    }

    /// The host is an address, or says plainly that it is this machine.
    fn is_named_address(&self) -> bool {
        let host = self.host();
        host.eq_ignore_ascii_case("localhost") || literal(host).is_some()
    }
}

fn literal(host: &str) -> Option<IpAddr> {
    host.trim_start_matches('[').trim_end_matches(']').parse().ok()
}

/// The way to one destination.
pub(crate) struct Upstream {
    base: Base,
    allows_private: bool,
    tls: Option<Arc<rustls::ClientConfig>>,
    pool: Pool,
}

impl Upstream {
    pub(crate) fn new(base: Base, allows_private: bool, tls: Arc<rustls::ClientConfig>) -> Self {
        let allows_private = allows_private || base.is_named_address();
        let tls = base.is_secure.then_some(tls);
        Self { base, allows_private, tls, pool: Pool::default() }
    }

    pub(crate) fn base(&self) -> &Base {
        &self.base
    }

    pub(super) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Closes connections nobody has used for a while.
    pub(crate) fn tidy(&self) {
        self.pool.tidy();
    }

    pub(super) async fn connect(&self) -> Result<Connection, String> {
        let stream = self.reach().await?;
        // What is sent is written at once and somebody waits for it.
        let _ = stream.set_nodelay(true);
        let Some(tls) = &self.tls else { return self.one(stream, None).await };
        let host = self.base.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let name =
            ServerName::try_from(host).map_err(|_| "its name cannot be in a certificate".to_owned())?;
        let stream = TlsConnector::from(tls.clone())
            .connect(name, stream)
            .await
            .map_err(|error| format!("no secure connection: {error}"))?;
        let is_two = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        let goodbye = Arc::new(Goodbye::default());
        let stream = Listening::new(stream, goodbye.clone());
        if is_two { self.two(stream, goodbye).await } else { self.one(stream, Some(goodbye)).await }
    }

    async fn one<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        &self,
        stream: S,
        goodbye: Option<Arc<Goodbye>>,
    ) -> Result<Connection, String> {
        let (sender, connection) = http1::Builder::new()
            .max_headers(HEADERS_MAX)
            .max_buf_size(HEAD_BYTES_MAX)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| error.to_string())?;
        tokio::spawn(kept_up(connection));
        Ok(Connection::one(sender, goodbye))
    }

    async fn two<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        &self,
        stream: S,
        goodbye: Arc<Goodbye>,
    ) -> Result<Connection, String> {
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(Duration::from_secs(20))
            .max_header_list_size(u32::try_from(HEAD_BYTES_MAX).unwrap_or(u32::MAX))
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| error.to_string())?;
        tokio::spawn(kept_up(connection));
        let shared = Shared { sender, goodbye };
        self.pool.share(&shared);
        Ok(Connection::Two(shared))
    }

    async fn reach(&self) -> Result<TcpStream, String> {
        let addresses = self.addresses().await?;
        let mut why = String::new();
        let several = addresses.len() > 1;
        for address in addresses {
            let connecting = TcpStream::connect(address);
            let connected = match several {
                true => tokio::time::timeout(ADDRESS_TIME_MAX, connecting)
                    .await
                    .unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into())),
                false => connecting.await,
            };
            match connected {
                Ok(stream) => return Ok(stream),
                Err(error) => why = format!("cannot connect to {}: {error}", self.base.authority()),
            }
        }
        Err(why)
    }

    /// Where the name leads, as far as it may.
    async fn addresses(&self) -> Result<Vec<SocketAddr>, String> {
        let host = self.base.host();
        let found: Vec<SocketAddr> = match literal(host) {
            Some(address) => vec![SocketAddr::new(address, self.base.port)],
            None => tokio::net::lookup_host((host, self.base.port))
                .await
                .map_err(|error| format!("the name {host} cannot be resolved: {error}"))?
                .take(ADDRESSES_MAX)
                .collect(),
        };
        let count = found.len();
        let allowed: Vec<SocketAddr> =
            found.into_iter().filter(|at| self.allows_private || !is_private(at.ip())).collect();
        match (allowed.is_empty(), count) {
            (false, _) => Ok(allowed),
            (true, 0) => Err(format!("the name {host} leads nowhere")),
            (true, _) => Err(format!(
                "the name {host} leads to a private address; if that is meant, say `private: true` beside its address"
            )),
        }
    }
}

/// Does what a connection needs, until it ends.
async fn kept_up(connection: impl Future<Output = hyper::Result<()>>) {
    if let Err(error) = connection.await {
        tracing::debug!("a connection to a destination ended: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_is_an_address_and_no_more() {
        let base = Base::parse("https://api.example.com/v1/").expect("it is right");
        assert_eq!(base.join("/x?y=1").expect("it fits").to_string(), "https://api.example.com/v1/x?y=1");
        for wrong in ["api.example.com", "ftp://x", "https://", "https://u:p@x", "https://x/?q", "/path"] {
            assert!(Base::parse(wrong).is_err(), "{wrong}");
        }
    }
}
