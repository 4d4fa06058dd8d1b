//! TLS for listeners.

use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio_rustls::TlsAcceptor;

/// What HTTP/2 is called where protocols are agreed on.
pub(super) const TWO: &[u8] = b"h2";

/// What listeners secure connections with. Which certificate they show can change while they listen.
#[derive(Clone)]
pub(crate) struct Tls(pub(super) TlsAcceptor, Arc<Shown>);

impl Tls {
    /// Reads a certificate chain and a private key, both PEM.
    pub(crate) fn read(certificate: &Path, key: &Path) -> Result<Self, String> {
        let shown = |path: &Path, what: &str| format!("{}: {what}", path.display());
        let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(certificate)
            .and_then(Iterator::collect)
            .map_err(|error| shown(certificate, &error.to_string()))?;
        if chain.is_empty() {
            return Err(shown(certificate, "there is no certificate in it"));
        }
        let key_der = PrivateKeyDer::from_pem_file(key).map_err(|error| shown(key, &error.to_string()))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let pair = CertifiedKey::from_der(chain, key_der, &provider)
            .map_err(|error| shown(certificate, &error.to_string()))?;
        let shown = Arc::new(Shown(RwLock::new(Arc::new(pair))));
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_no_client_auth()
            .with_cert_resolver(shown.clone());
        config.alpn_protocols = vec![TWO.to_vec(), b"http/1.1".to_vec()];
        Ok(Self(TlsAcceptor::from(Arc::new(config)), shown))
    }

    /// Shows the certificate of another to whoever connects from now on.
    pub(crate) fn show_that_of(&self, other: &Self) {
        let pair = other.1.now();
        *self.1.0.write().unwrap_or_else(PoisonError::into_inner) = pair;
    }
}

/// The certificate that is shown now.
#[derive(Debug)]
struct Shown(RwLock<Arc<CertifiedKey>>);

impl Shown {
    fn now(&self) -> Arc<CertifiedKey> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl ResolvesServerCert for Shown {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.now())
    }
}
