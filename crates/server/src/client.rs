//! Requests of the server's own: alerts, callbacks and traces. No redirects, no retries by itself (S22).

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{HeaderName, HeaderValue};
use hyper::{Method, StatusCode, Uri};

use crate::gateway::upstream::{Base, Care, Failure, Upstream, tls_client};

/// Posts to a place the operator named; what comes back beside the status is not read. Such requests are few and far between:
/// no connection is kept. What is said of a failure does not name the address, which may hold a secret.
pub(crate) async fn post(
    uri: Uri,
    headers: impl IntoIterator<Item = (HeaderName, HeaderValue)>,
    body: impl Into<Bytes>,
) -> Result<StatusCode, String> {
    let base = match (uri.scheme_str(), uri.authority()) {
        (Some(scheme), Some(authority)) => Base::parse(&format!("{scheme}://{authority}")),
        _ => Err(String::new()),
    };
    let base = base.map_err(|_| "it has no address that could be reached".to_owned())?;
    let mut request = hyper::Request::new(Full::new(body.into()));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = uri;
    request.headers_mut().extend(headers);
    let upstream = Upstream::new(base, true, tls_client(None)?);
    match upstream.exchange(request, Care::Little, || Ok(())).await {
        Ok((response, _)) => Ok(response.status()),
        Err(Failure::NotSent(_)) => Err("it cannot be reached".to_owned()),
        Err(Failure::Unknown(_)) => Err("the connection broke before an answer".to_owned()),
    }
}
