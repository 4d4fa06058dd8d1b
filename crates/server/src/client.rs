//! Requests of the server's own: alerts, callbacks and traces. No redirects, no retries by itself (S22).

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{HeaderName, HeaderValue};
use hyper::{Method, StatusCode, Uri};

use crate::gateway::upstream::{Base, Care, Failure, Upstream, tls_client};

/// Why there is no status. It does not name the address, which may hold a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoStatus {
    /// Nothing was sent.
    #[error("{0}")]
    NotSent(String),
    /// Something may have arrived.
    #[error("{0}")]
    Unknown(String),
}

/// Posts to a place the operator named; what comes back beside the status is not read. Such requests are few and far between:
/// no connection is kept.
pub(crate) async fn post(
    uri: Uri,
    headers: impl IntoIterator<Item = (HeaderName, HeaderValue)>,
    body: impl Into<Bytes>,
) -> Result<StatusCode, NoStatus> {
    let base = match (uri.scheme_str(), uri.authority()) {
        (Some(scheme), Some(authority)) => Base::parse(&format!("{scheme}://{authority}")),
        _ => Err(String::new()),
    };
    let base = base.map_err(|_| NoStatus::NotSent("it has no address that could be reached".to_owned()))?;
    let mut request = hyper::Request::new(Full::new(body.into()));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = uri;
    request.headers_mut().extend(headers);
    let upstream = Upstream::new(base, true, tls_client(None).map_err(NoStatus::NotSent)?);
    match upstream.exchange(request, Care::Little, || Ok(())).await {
        Ok((response, _)) => Ok(response.status()),
        Err(Failure::NotSent(_)) => Err(NoStatus::NotSent("it cannot be reached".to_owned())),
        Err(Failure::Unknown(_)) => {
            Err(NoStatus::Unknown("the connection broke before an answer".to_owned()))
        }
    }
}
