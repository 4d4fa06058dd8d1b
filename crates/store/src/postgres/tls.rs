//! Connections that nobody between can read or change, as the address asks for it (`sslmode`, as with libpq).

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::config::{Host, SslMode, SslNegotiation};
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_postgres::{Config, Socket};
use tokio_rustls::TlsConnector;

use crate::error::StoreError;

/// Parameters of the address that are about TLS.
pub(super) const PARAMETERS: [&str; 4] = ["sslmode", "sslrootcert", "sslcert", "sslkey"];
/// What PostgreSQL calls itself where TLS comes before its own protocol.
const PROTOCOL: &[u8] = b"postgresql";

/// How much is asked of the server's certificate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Trust {
    /// Nothing: the line is encrypted, but nobody knows who is at its other end.
    Anybody,
    /// It comes from an authority.
    Authority,
    /// It comes from an authority, and is that of this host.
    Host,
}

/// Makes connections safe, if they are to be.
#[derive(Clone)]
pub(super) struct Tls(Arc<ClientConfig>);

/// Reads what the address says, and sets the configuration accordingly.
pub(super) fn of(config: &mut Config, said: &BTreeMap<String, String>) -> Result<Tls, StoreError> {
    let said = |name: &str| said.get(name).map(String::as_str);
    // As libpq has it, but for this machine itself, where there is nobody between.
    let mode = said("sslmode").unwrap_or(if is_local(config) { "disable" } else { "prefer" });
    let (mode, trust) = match mode {
        "disable" => (SslMode::Disable, Trust::Anybody),
        "prefer" => (SslMode::Prefer, Trust::Anybody),
        // With an authority of one's own `require` means that one.
        "require" if said("sslrootcert").is_some() => (SslMode::Require, Trust::Authority),
        "require" => (SslMode::Require, Trust::Anybody),
        "verify-ca" => (SslMode::Require, Trust::Authority),
        "verify-full" => (SslMode::Require, Trust::Host),
        _ => {
            return Err(refused("sslmode is one of disable, prefer, require, verify-ca and verify-full"));
        }
    };
    if mode != SslMode::Disable && trust == Trust::Anybody && !is_local(config) {
        tracing::warn!(
            "who answers for the database is not checked: sslmode=verify-full in the ledger's address does that"
        );
    }
    config.ssl_mode(mode);
    let own = match (said("sslcert"), said("sslkey")) {
        (None, None) => None,
        (Some(certificate), Some(key)) => Some((certificates(certificate)?, private_key(key)?)),
        _ => return Err(refused("sslcert and sslkey go together")),
    };
    let mut client = client(trust, said("sslrootcert").filter(|file| *file != "system"), own)?;
    if config.get_ssl_negotiation() == SslNegotiation::Direct {
        client.alpn_protocols = vec![PROTOCOL.to_vec()];
    }
    Ok(Tls(Arc::new(client)))
}

/// What libpq and we understand by TLS is asked for in ways that cannot be met.
fn refused(why: impl Into<String>) -> StoreError {
    StoreError::NotTrusted(why.into())
}

/// Whether the database is on this machine.
fn is_local(config: &Config) -> bool {
    let is_near = |host: &Host| match host {
        Host::Tcp(name) => {
            name == "localhost" || name.parse().is_ok_and(|address: IpAddr| address.is_loopback())
        }
        Host::Unix(_) => true,
    };
    match config.get_hostaddrs() {
        [] => config.get_hosts().iter().all(is_near),
        addresses => addresses.iter().all(IpAddr::is_loopback),
    }
}

fn certificates(file: &str) -> Result<Vec<CertificateDer<'static>>, StoreError> {
    let found: Vec<_> = CertificateDer::pem_file_iter(Path::new(file))
        .and_then(Iterator::collect)
        .map_err(|error| refused(format!("{file}: {error}")))?;
    if found.is_empty() {
        return Err(refused(format!("{file}: there is no certificate in it")));
    }
    Ok(found)
}

fn private_key(file: &str) -> Result<PrivateKeyDer<'static>, StoreError> {
    PrivateKeyDer::from_pem_file(Path::new(file)).map_err(|error| refused(format!("{file}: {error}")))
}

fn client(
    trust: Trust,
    authorities: Option<&str>,
    own: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
) -> Result<ClientConfig, StoreError> {
    let failed = |error: &dyn std::fmt::Display| refused(error.to_string());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let chain = match trust {
        Trust::Anybody => None,
        Trust::Authority | Trust::Host => {
            let mut roots = RootCertStore::empty();
            match authorities {
                Some(file) => {
                    for certificate in certificates(file)? {
                        roots.add(certificate).map_err(|error| refused(format!("{file}: {error}")))?;
                    }
                }
                None => {
                    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
                }
            }
            let verifier =
                WebPkiServerVerifier::builder_with_provider(roots.into(), provider.clone()).build();
            Some(verifier.map_err(|error| failed(&error))?)
        }
    };
    let verifier =
        Arc::new(Verifier { chain, checks_host: trust == Trust::Host, provider: provider.clone() });
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| failed(&error))?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    match own {
        None => Ok(builder.with_no_client_auth()),
        Some((chain, key)) => builder.with_client_auth_cert(chain, key).map_err(|error| failed(&error)),
    }
}

/// Checks as much of a certificate as was asked for.
#[derive(Debug)]
struct Verifier {
    chain: Option<Arc<WebPkiServerVerifier>>,
    checks_host: bool,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        host: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Some(chain) = &self.chain else { return Ok(ServerCertVerified::assertion()) };
        // The chain is checked before the name, so that a wrong name says that everything else is right.
        match chain.verify_server_cert(certificate, between, host, ocsp, now) {
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if !self.checks_host => Ok(ServerCertVerified::assertion()),
            result => result,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

impl MakeTlsConnect<Socket> for Tls {
    type Stream = Stream;
    type TlsConnect = Connecting;
    type Error = rustls::pki_types::InvalidDnsNameError;

    fn make_tls_connect(&mut self, host: &str) -> Result<Connecting, Self::Error> {
        // A socket in a folder has no name, and is never asked for one.
        let host = if host.is_empty() { "localhost" } else { host };
        Ok(Connecting { tls: self.0.clone().into(), host: ServerName::try_from(host.to_owned())? })
    }
}

pub(super) struct Connecting {
    tls: TlsConnector,
    host: ServerName<'static>,
}

impl TlsConnect<Socket> for Connecting {
    type Stream = Stream;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Stream>> + Send>>;

    fn connect(self, socket: Socket) -> Self::Future {
        Box::pin(async move { Ok(Stream(Box::new(self.tls.connect(self.host, socket).await?))) })
    }
}

/// Whether a handshake failed because of what the other side showed or lacks: trying again would not help.
pub(super) fn is_for_good(error: &tokio_postgres::Error) -> bool {
    let Some(cause) = std::error::Error::source(error) else { return false };
    match cause.downcast_ref::<io::Error>() {
        Some(failed) => failed.get_ref().is_some_and(|inner| inner.is::<rustls::Error>()),
        // It answered the question whether it can do TLS.
        None => cause.to_string() == "server does not support TLS",
    }
}

pub(super) struct Stream(Box<tokio_rustls::client::TlsStream<Socket>>);

impl TlsStream for Stream {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_shutdown(context)
    }
}
