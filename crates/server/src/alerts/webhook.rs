//! Alerts by webhook.

use hyper::Uri;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use serde_json::Value;

use crate::client;

/// Posts JSON. Anything but a 2xx means that nobody knows whether it arrived.
pub(super) async fn post(url: &str, value: &Value, key: &str) -> Result<(), String> {
    let uri: Uri = url.parse().map_err(|_| "the webhook's URL is not understood".to_owned())?;
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static("application/json")),
        (
            HeaderName::from_static("idempotency-key"),
            HeaderValue::from_str(key).map_err(|_| "the key is not text".to_owned())?,
        ),
    ];
    let status = client::post(uri, headers, value.to_string()).await?;
    match status.is_success() {
        true => Ok(()),
        false => Err(format!("the webhook answered {}", status.as_u16())),
    }
}
