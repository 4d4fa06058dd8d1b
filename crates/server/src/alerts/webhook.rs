//! Alerts by webhook.

use hyper::Uri;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use serde_json::Value;

use crate::client::{self, NoStatus};

/// Posts JSON. Anything but a 2xx means that nobody knows whether it arrived.
pub(super) async fn post(url: &str, value: &Value, key: &str) -> Result<(), NoStatus> {
    let unsent = |why: &str| NoStatus::NotSent(why.to_owned());
    let uri: Uri = url.parse().map_err(|_| unsent("the webhook's URL is not understood"))?;
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static("application/json")),
        (
            HeaderName::from_static("idempotency-key"),
            HeaderValue::from_str(key).map_err(|_| unsent("the key is not text"))?,
        ),
    ];
    let status = client::post(uri, headers, value.to_string()).await?;
    match status.is_success() {
        true => Ok(()),
        false => Err(NoStatus::Unknown(format!("the webhook answered {}", status.as_u16()))),
    }
}
