//! Whom the server trusts, and how it shows who it is.

use std::sync::{Arc, OnceLock};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use crate::config::destinations::DestinationTls;

/// What TLS connections to a destination are made with.
pub(crate) fn client(files: Option<&DestinationTls>) -> Result<Arc<ClientConfig>, String> {
    // Most destinations need nothing of their own, and reading the system's authorities takes a while.
    static PLAIN: OnceLock<Arc<ClientConfig>> = OnceLock::new();
    match files {
        None => Ok(PLAIN.get_or_init(|| made(None).expect("nothing of an operator's goes into it")).clone()),
        Some(files) => made(Some(files)),
    }
}

fn made(files: Option<&DestinationTls>) -> Result<Arc<ClientConfig>, String> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    let (taken, _) = roots.add_parsable_certificates(found.certs);
    if taken == 0 && files.is_none_or(|files| files.ca.is_none()) {
        tracing::warn!(
            "this system has no certificates of authorities: https will fail (install ca-certificates)"
        );
    }
    if let Some(path) = files.and_then(|files| files.ca.as_ref()) {
        let shown = |why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
        let extra: Vec<CertificateDer<'static>> =
            CertificateDer::pem_file_iter(path).and_then(Iterator::collect).map_err(|error| shown(&error))?;
        if extra.is_empty() {
            return Err(shown(&"there is no certificate in it"));
        }
        for certificate in extra {
            roots.add(certificate).map_err(|error| shown(&error))?;
        }
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots);
    let own = files.and_then(|files| files.certificate.as_ref().zip(files.key.as_ref()));
    let mut config = match own {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(certificate)
                .and_then(Iterator::collect)
                .map_err(|error| format!("{}: {error}", certificate.display()))?;
            let key =
                PrivateKeyDer::from_pem_file(key).map_err(|error| format!("{}: {error}", key.display()))?;
            builder.with_client_auth_cert(chain, key).map_err(|error| error.to_string())?
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
