//! Requests of the server's own: alerts and traces. No redirects, no retries by itself (S22).

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{HeaderName, HeaderValue};
use hyper::{Method, StatusCode, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

/// Sends small things to places the operator named.
#[derive(Clone)]
pub(crate) struct Client(hyper_util::client::legacy::Client<HttpsConnector<HttpConnector>, Full<Bytes>>);

impl Client {
    pub(crate) fn new() -> Self {
        let connector = match HttpsConnectorBuilder::new()
            .with_provider_and_native_roots(rustls::crypto::ring::default_provider())
        {
            Ok(builder) => builder,
            Err(error) => {
                tracing::warn!("no certificates of this system can be used, https will fail: {error}");
                let nobody = rustls::ClientConfig::builder_with_provider(
                    rustls::crypto::ring::default_provider().into(),
                )
                .with_safe_default_protocol_versions()
                .expect("the provider knows the protocol's versions")
                .with_root_certificates(rustls::RootCertStore::empty())
                .with_no_client_auth();
                HttpsConnectorBuilder::new().with_tls_config(nobody)
            }
        };
        let connector = connector.https_or_http().enable_http1().build();
        Self(
            hyper_util::client::legacy::Client::builder(TokioExecutor::new())
                .retry_canceled_requests(false)
                .build(connector),
        )
    }

    /// Posts; what comes back beside the status is not read.
    pub(crate) async fn post(
        &self,
        uri: Uri,
        headers: impl IntoIterator<Item = (HeaderName, HeaderValue)>,
        body: impl Into<Bytes>,
    ) -> Result<StatusCode, String> {
        let mut request = hyper::Request::new(Full::new(body.into()));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = uri;
        request.headers_mut().extend(headers);
        // The address may hold a secret: errors of this client do not name it.
        self.0.request(request).await.map(|response| response.status()).map_err(|error| {
            match error.is_connect() {
                true => "it cannot be reached".to_owned(),
                false => "the connection broke before an answer".to_owned(),
            }
        })
    }
}
