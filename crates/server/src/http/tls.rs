//! TLS for listeners.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

/// What HTTP/2 is called where protocols are agreed on.
pub(super) const TWO: &[u8] = b"h2";

/// A certificate and its key, ready to be used.
#[derive(Clone)]
pub(crate) struct Tls(pub(super) TlsAcceptor);

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
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_no_client_auth()
            .with_single_cert(chain, key_der)
            .map_err(|error| shown(certificate, &error.to_string()))?;
        config.alpn_protocols = vec![TWO.to_vec(), b"http/1.1".to_vec()];
        Ok(Self(TlsAcceptor::from(Arc::new(config))))
    }
}
