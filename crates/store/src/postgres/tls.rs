//! Connections that nobody between can read or change, as far as the address asks for it: `sslmode` and what belongs to it have the
//! names and values they have for libpq.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::config::{ChannelBinding as Binding, Host, SslMode, SslNegotiation};
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_postgres::{Config, Socket};
use tokio_rustls::TlsConnector;

use crate::error::StoreError;

/// Parameters of the address that are about TLS.
pub(super) const PARAMETERS: [&str; 4] = ["sslmode", "sslrootcert", "sslcert", "sslkey"];
/// The value of `sslrootcert` that means the authorities of this system.
const SYSTEM: &str = "system";
/// What tokio-postgres says when the server answers that it cannot do TLS.
const CANNOT: &str = "server does not support TLS";
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
pub(super) struct Tls {
    client: Arc<ClientConfig>,
    /// Why the other side was not trusted, in one attempt.
    refused: Arc<Mutex<Option<String>>>,
}

/// Reads what the address says, and sets the configuration accordingly.
pub(super) fn of(config: &mut Config, said: &BTreeMap<String, String>) -> Result<Tls, StoreError> {
    let said = |name: &str| said.get(name).map(String::as_str);
    let file = said("sslrootcert").filter(|file| *file != SYSTEM);
    let (mode, trust) = asked_for(config, said("sslmode"), said("sslrootcert"))?;
    let is_direct = config.get_ssl_negotiation() == SslNegotiation::Direct;
    if is_direct && mode != SslMode::Require {
        return Err(refused("sslnegotiation=direct needs sslmode=require or more"));
    }
    if config.get_channel_binding() == Binding::Require {
        return Err(refused("channel_binding=require is not known here"));
    }
    if mode == SslMode::Prefer {
        tracing::warn!(
            "who answers for the database is not checked, and the line is plain where it cannot do TLS: \
             sslmode=verify-full in the ledger's address asks for both"
        );
    }
    config.ssl_mode(mode);
    if config.get_hosts().is_empty() {
        // What is only a number is its own name.
        for address in config.get_hostaddrs().to_vec() {
            config.host(address.to_string());
        }
    }
    let own = match (said("sslcert"), said("sslkey")) {
        (None, None) => None,
        (Some(certificate), Some(key)) => Some((certificates(certificate)?, private_key(key)?)),
        _ => return Err(refused("sslcert and sslkey go together")),
    };
    let mut client = client(trust, file, own)?;
    if is_direct {
        client.alpn_protocols = vec![PROTOCOL.to_vec()];
    }
    Ok(Tls { client: Arc::new(client), refused: Arc::default() })
}

/// Whether there is to be TLS, and whom it is to be with.
fn asked_for(
    config: &Config,
    mode: Option<&str>,
    authorities: Option<&str>,
) -> Result<(SslMode, Trust), StoreError> {
    if config.get_ssl_mode() != SslMode::Prefer {
        // It was read elsewhere, so that what belongs to it may have been, too.
        return Err(refused("sslmode is written in a way that is not understood"));
    }
    match (mode, authorities) {
        // As libpq has it, but for this machine itself, where there is nobody between.
        (None, None) if is_local(config) => Ok((SslMode::Disable, Trust::Anybody)),
        (None | Some("prefer"), None) => Ok((SslMode::Prefer, Trust::Anybody)),
        (Some("disable"), None) => Ok((SslMode::Disable, Trust::Anybody)),
        (Some("require"), None) => Ok((SslMode::Require, Trust::Anybody)),
        (None | Some("verify-full"), _) => Ok((SslMode::Require, Trust::Host)),
        // Everybody can have a certificate of one of the authorities that systems know.
        (Some("require" | "verify-ca"), None | Some(SYSTEM)) => Err(refused(
            "without an authority of your own (sslrootcert=FILE) only sslmode=verify-full tells who answers",
        )),
        (Some("require" | "verify-ca"), Some(_)) => Ok((SslMode::Require, Trust::Authority)),
        (Some("disable" | "prefer"), Some(_)) => {
            Err(refused("sslrootcert needs sslmode=verify-full, verify-ca or require"))
        }
        _ => Err(refused("sslmode is one of disable, prefer, require, verify-ca and verify-full")),
    }
}

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
                    if roots.is_empty() {
                        let why = "this system has no certificates of authorities (install ca-certificates)";
                        return Err(refused(why));
                    }
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

impl Tls {
    /// For one attempt, which finds out for itself whom it does not trust.
    pub(super) fn once(&self) -> Self {
        Self { client: self.client.clone(), refused: Arc::default() }
    }

    /// Why the other side is not as safe as was asked for, if that is why the attempt failed: of several addresses the last one
    /// may have failed for another reason.
    pub(super) fn why_refused(&self, failed: &tokio_postgres::Error) -> Option<String> {
        let noted = self.refused.lock().unwrap_or_else(PoisonError::into_inner).take();
        let cannot = || std::error::Error::source(failed).filter(|cause| cause.to_string() == CANNOT);
        noted.or_else(|| cannot().map(ToString::to_string))
    }
}

impl MakeTlsConnect<Socket> for Tls {
    type Stream = Stream;
    type TlsConnect = Connecting;
    type Error = Infallible;

    fn make_tls_connect(&mut self, host: &str) -> Result<Connecting, Infallible> {
        Ok(Connecting { tls: self.clone(), host: host.to_owned() })
    }
}

pub(super) struct Connecting {
    tls: Tls,
    host: String,
}

impl TlsConnect<Socket> for Connecting {
    type Stream = Stream;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Stream>> + Send>>;

    fn connect(self, socket: Socket) -> Self::Future {
        let Self { tls, host } = self;
        Box::pin(async move {
            let host = ServerName::try_from(host).map_err(io::Error::other)?;
            match TlsConnector::from(tls.client).connect(host, socket).await {
                Ok(stream) => Ok(Stream(Box::new(stream))),
                Err(error) => {
                    if error.get_ref().is_some_and(|inner| inner.is::<rustls::Error>()) {
                        *tls.refused.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
                    }
                    Err(error)
                }
            }
        })
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
