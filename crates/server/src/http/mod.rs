//! HTTP itself: connections, limits, requests read whole, answers and problems. It knows no route.

mod body;
mod connections;
pub(crate) mod hands;
mod head;
mod listen;
pub(crate) mod problem;
pub(crate) mod request;
pub(crate) mod room;
mod stall;
mod tls;
mod two;

use bytes::Bytes;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::{HeaderMap, StatusCode};
use serde::Serialize;

pub(crate) use body::{Body, Cut, Elsewhere, Part};
pub(crate) use connections::{Connections, connections_max, raise_files_max};
pub(crate) use hands::Hands;
pub(crate) use listen::{Door, Drain, Listener, Means};
pub(crate) use problem::Problem;
pub(crate) use request::Request;
pub(crate) use tls::Tls;

/// What a caller gets.
pub(crate) struct Response {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Body,
}

impl Response {
    pub(crate) fn json(status: StatusCode, value: &impl Serialize) -> Self {
        let bytes = serde_json::to_vec(value).expect("what is told has only text for names");
        Self::json_with_type(status, "application/json", bytes)
    }

    pub(crate) fn json_with_type(status: StatusCode, media_type: &'static str, bytes: Vec<u8>) -> Self {
        Self::whole(status, media_type, bytes)
    }

    pub(crate) fn whole(status: StatusCode, media_type: &'static str, bytes: impl Into<Bytes>) -> Self {
        let mut headers = HeaderMap::with_capacity(4);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
        // Where an intent stands is true only now.
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        Self { status, headers, body: Body::whole(bytes.into()) }
    }

    pub(crate) fn empty(status: StatusCode) -> Self {
        Self { status, headers: HeaderMap::new(), body: Body::whole(Bytes::new()) }
    }

    #[must_use]
    pub(crate) fn header(mut self, name: &'static str, value: HeaderValue) -> Self {
        self.headers.insert(name, value);
        self
    }

    /// What others wrote is data. Opened in a browser, it must not act in the name of this server.
    #[must_use]
    pub(crate) fn harmless(self) -> Self {
        let (policy, sniffing) = (HeaderValue::from_static("sandbox"), HeaderValue::from_static("nosniff"));
        self.header("content-security-policy", policy).header("x-content-type-options", sniffing)
    }

    fn into_hyper(self) -> hyper::Response<Body> {
        let mut response = hyper::Response::new(self.body);
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers;
        response
    }
}
