//! Traces: one span a request, continuing the caller's, sent in bunches to an OTLP receiver as JSON over HTTP.

use std::time::{Duration, SystemTime};

use hyper::Uri;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::client;
use crate::config::Traces;

/// Spans that wait to be sent; beyond that they are dropped, because serving comes first.
const WAITING_MAX: usize = 4096;
/// Most spans sent at a time, and how long the first of them waits for more.
const BUNCH_MAX: usize = 512;
const BUNCH_EVERY: Duration = Duration::from_secs(1);
const SEND_TIME_MAX: Duration = Duration::from_secs(10);

/// One request, as a trace shows it.
pub(crate) struct Span {
    trace: [u8; 16],
    id: [u8; 8],
    parent: Option<[u8; 8]>,
    started: SystemTime,
}

impl Span {
    /// Continues the caller's trace if it sent one that is sampled; a caller that says not to sample is not traced.
    pub(crate) fn start(traceparent: Option<&str>) -> Option<Self> {
        let started = SystemTime::now();
        let mut id = [0; 8];
        getrandom::fill(&mut id).ok()?;
        match traceparent.and_then(parse) {
            Some((_, _, false)) => None,
            Some((trace, parent, true)) => Some(Self { trace, id, parent: Some(parent), started }),
            None => {
                let mut trace = [0; 16];
                getrandom::fill(&mut trace).ok()?;
                Some(Self { trace, id, parent: None, started })
            }
        }
    }
}

/// `00-<trace>-<parent>-<flags>`, as W3C Trace Context has it.
fn parse(text: &str) -> Option<([u8; 16], [u8; 8], bool)> {
    let mut parts = text.split('-');
    let (version, trace, parent, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    if version.len() != 2 || version == "ff" || version == "00" && parts.next().is_some() {
        return None;
    }
    let (trace, parent, [flags]) = (bytes::<16>(trace)?, bytes::<8>(parent)?, bytes::<1>(flags)?);
    (trace != [0; 16] && parent != [0; 8]).then_some((trace, parent, flags & 1 == 1))
}

fn bytes<const N: usize>(text: &str) -> Option<[u8; N]> {
    let lower = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    if text.len() != 2 * N || !text.bytes().all(lower) {
        return None;
    }
    let mut bytes = [0; N];
    for (place, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * place..2 * place + 2], 16).ok()?;
    }
    Some(bytes)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Takes spans that have ended.
#[derive(Clone)]
pub(crate) struct Tracer(mpsc::Sender<Value>);

impl Tracer {
    /// Sends spans to the receiver until nobody traces any more.
    pub(crate) fn start(traces: &Traces) -> Result<Self, String> {
        let uri: Uri = format!("{}/v1/traces", traces.otlp.trim_end_matches('/'))
            .parse()
            .map_err(|_| "traces.otlp is not a URL".to_owned())?;
        let mut headers = vec![(CONTENT_TYPE, HeaderValue::from_static("application/json"))];
        for (name, value) in &traces.headers {
            let value = value.reveal().map_err(|error| error.to_string())?;
            headers.push((
                HeaderName::from_bytes(name.as_bytes())
                    .map_err(|_| format!("`{name}` is not the name of a header"))?,
                HeaderValue::from_str(&value)
                    .map_err(|_| format!("the value of `{name}` is not one of a header"))?,
            ));
        }
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        tokio::spawn(send(receiver, uri, headers));
        Ok(Self(sender))
    }

    /// Ends a span.
    pub(crate) fn end(&self, span: &Span, name: &str, method: &str, route: &str, status: u16) {
        let nanos = |at: SystemTime| {
            at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos().to_string()
        };
        let text = |key: &str, value: &str| json!({ "key": key, "value": { "stringValue": value } });
        let mut told = json!({
            "traceId": hex(&span.trace),
            "spanId": hex(&span.id),
            "name": name,
            "kind": 2,
            "startTimeUnixNano": nanos(span.started),
            "endTimeUnixNano": nanos(SystemTime::now()),
            "attributes": [
                text("http.request.method", method),
                text("http.route", route),
                { "key": "http.response.status_code", "value": { "intValue": status.to_string() } },
            ],
            "status": { "code": if status >= 500 { 2 } else { 0 } },
        });
        if let Some(parent) = &span.parent {
            told["parentSpanId"] = json!(hex(parent));
        }
        // Full: this one is not worth holding anybody up.
        let _ = self.0.try_send(told);
    }
}

async fn send(mut spans: mpsc::Receiver<Value>, uri: Uri, headers: Vec<(HeaderName, HeaderValue)>) {
    let mut failing = false;
    while let Some(first) = spans.recv().await {
        tokio::time::sleep(BUNCH_EVERY).await;
        let mut bunch = vec![first];
        while bunch.len() < BUNCH_MAX
            && let Ok(span) = spans.try_recv()
        {
            bunch.push(span);
        }
        let told = json!({
            "resourceSpans": [{
                "resource": { "attributes": [{ "key": "service.name", "value": { "stringValue": "twicesafe" } }] },
                "scopeSpans": [{
                    "scope": { "name": "twicesafe", "version": env!("CARGO_PKG_VERSION") },
                    "spans": bunch,
                }],
            }],
        });
        let sent =
            tokio::time::timeout(SEND_TIME_MAX, client::post(uri.clone(), headers.clone(), told.to_string()))
                .await;
        let why = match sent {
            Ok(Ok(status)) if status.is_success() => None,
            Ok(Ok(status)) => Some(format!("it answered {}", status.as_u16())),
            Ok(Err(why)) => Some(why.to_string()),
            Err(_) => Some("it took too long".to_owned()),
        };
        // Said once, not once a second.
        if let Some(why) = &why
            && !failing
        {
            tracing::warn!("traces cannot be sent: {why}");
        }
        failing = why.is_some();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_callers_trace_is_continued() {
        let span =
            Span::start(Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")).expect("sampled");
        assert_eq!(hex(&span.trace), "0af7651916cd43dd8448eb211c80319c");
        assert_eq!(span.parent.map(|parent| hex(&parent)).as_deref(), Some("b7ad6b7169203331"));
        assert!(Span::start(Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00")).is_none());
        for garbage in [
            "",
            "00",
            "00-0-0-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
        ] {
            assert!(Span::start(Some(garbage)).is_some_and(|span| span.parent.is_none()), "{garbage}");
        }
    }
}
