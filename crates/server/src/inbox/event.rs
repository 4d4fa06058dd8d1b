//! An event: what expressions see of it, what is kept of it.

use bytes::Bytes;
use hyper::Method;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use serde_json::{Map, Value};

use super::verify::Verifier;
use crate::credentials::is_credential;
use crate::gateway::bypass::is_overriding;
use crate::gateway::sending::{Sending, body_view_within, is_between_two, is_idle, without_mark};
use crate::http::request::{pairs, percent_decoded};

/// Events in one request.
pub(crate) const EVENTS_MAX: usize = 1000;

/// What was noted of an event when it arrived: kept with it, shown to people, not handed over.
const OWN: &str = "twicesafe-";
const VERIFIED: &str = "twicesafe-verified";
const PERIOD: &str = "twicesafe-period";
const OBJECT: &str = "twicesafe-object";
const MEANS: &str = "twicesafe-means";

/// An event as it arrived, or as it was kept.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) query: Option<String>,
    /// Those that are handed over with it.
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) facts: Facts,
}

/// What was noted of an event when it arrived.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    /// How its sender was known.
    pub(crate) verified: String,
    /// The object it is about.
    pub(crate) object: Option<String>,
    /// What it means to the business.
    pub(crate) means: Option<String>,
    /// The span of time in which it arrived, where only hints are handed over.
    pub(crate) period: Option<i64>,
}

impl Facts {
    /// The object and the span of time, where only a hint is handed over.
    pub(crate) fn hinted(&self) -> Option<(&str, i64)> {
        self.object.as_deref().zip(self.period)
    }
}

/// What expressions see of an event; without its body and those headers that none of them reads.
pub(crate) fn view(
    headers: &HeaderMap,
    reads_header: impl Fn(&str) -> bool,
    query: Option<&str>,
    body: Option<&Bytes>,
) -> Value {
    let header = |(name, value): (&HeaderName, &HeaderValue)| {
        let name = name.as_str();
        // Some senders call an id a token; what proves who somebody is stays out.
        let is_secret = matches!(name, "authorization" | "proxy-authorization" | "cookie");
        let is_seen = !is_secret && reads_header(name);
        is_seen.then_some((name.to_owned(), Value::from(value.to_str().ok()?)))
    };
    // Of several with one name the first counts, as it does where signatures are checked.
    let mut seen = Map::new();
    for (name, value) in headers.iter().filter_map(header) {
        seen.entry(name).or_insert(value);
    }
    let text = |(name, value): (String, String)| (name, Value::String(value));
    let query: Map<String, Value> = pairs(query.unwrap_or_default()).into_iter().map(text).collect();
    let read = |body| body_view_within(read_as(headers, body), &without_mark(body), usize::MAX);
    view_with(seen.into(), query.into(), body.map_or(Value::Null, read))
}

/// Moved together: `json!` would copy a body of any size.
fn view_with(headers: Value, query: Value, body: Value) -> Value {
    let parts = [("headers", headers), ("query", query), ("body", body)];
    parts.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Why expressions see no fields of a body, if they do not.
pub(crate) fn why_unread(headers: &HeaderMap, body: &Bytes) -> Option<String> {
    crate::gateway::sending::why_unread(&read_as(headers, body), &without_mark(body), usize::MAX)
}

/// The view of one event of several: the body is its own.
pub(crate) fn view_of_one(whole: &Value, body: Value) -> Value {
    view_with(whole["headers"].clone(), whole["query"].clone(), body)
}

/// The type of a body. What begins like JSON is neither a form nor text, whatever `curl -d` says or a sender that says nothing better.
fn read_as(headers: &HeaderMap, body: &Bytes) -> String {
    let media_type = media_type(headers);
    let begins_like_json =
        without_mark(body).trim_ascii_start().first().is_some_and(|byte| b"{[".contains(byte));
    let says_little = matches!(media_type.as_str(), "application/x-www-form-urlencoded" | "text/plain");
    match says_little && begins_like_json {
        true => "application/json".to_owned(),
        false => media_type,
    }
}

fn media_type(headers: &HeaderMap) -> String {
    let text = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// The headers of a request that are kept and handed over: none that prove who somebody is, none that concern only the way.
pub(crate) fn kept_headers(headers: &HeaderMap, verifier: &Verifier) -> HeaderMap {
    let is_kept = |name: &HeaderName| {
        let text = name.as_str();
        !is_between_two(text)
            && !is_idle(name)
            // No signature covers them, and the target could take the event for another request (S46).
            && !is_overriding(name)
            && !is_credential(name)
            && !verifier.is_signature(name)
            && !text.starts_with(OWN)
            // What is handed over has an id, a time and a signature of our own under these names.
            && !matches!(text, "webhook-id" | "webhook-timestamp" | "accept")
    };
    let kept = headers.iter().filter(|(name, value)| is_kept(name) && value.to_str().is_ok());
    kept.map(|(name, value)| (name.clone(), value.clone())).collect()
}

impl Event {
    /// As it is kept, for people to read and for the server to hand over.
    pub(crate) fn kept(&self, inbox: &str) -> Bytes {
        use std::fmt::Write;
        let mut head = format!("POST /in/{inbox}");
        if let Some(query) = &self.query {
            head.push('?');
            head.push_str(query);
        }
        head.push('\n');
        for (name, value) in &self.headers {
            if let Ok(value) = value.to_str() {
                let _ = writeln!(head, "{name}: {value}");
            }
        }
        let facts = &self.facts;
        let period = facts.period.map(|period| period.to_string());
        let noted = [
            (VERIFIED, Some(facts.verified.as_str())),
            (OBJECT, facts.object.as_deref()),
            (MEANS, facts.means.as_deref()),
            (PERIOD, period.as_deref()),
        ];
        for (name, value) in noted {
            if let Some(value) = value {
                let _ = writeln!(head, "{name}: {}", in_header(value));
            }
        }
        head.push('\n');
        let mut kept = head.into_bytes();
        kept.extend_from_slice(&self.body);
        kept.into()
    }

    /// An event as it was kept; `None`: it is none.
    pub(crate) fn from_kept(kept: &Bytes) -> Option<Self> {
        let Sending { method, query, mut headers, body, .. } = Sending::from_kept(kept)?;
        (method == Method::POST).then_some(())?;
        let mut noted = |name: &str| {
            headers.remove(name).and_then(|value| Some(percent_decoded(value.to_str().ok()?).into_owned()))
        };
        let facts = Facts {
            verified: noted(VERIFIED).unwrap_or_default(),
            object: noted(OBJECT),
            means: noted(MEANS),
            period: noted(PERIOD).and_then(|period| period.parse().ok()),
        };
        Some(Self { query, headers, body, facts })
    }
}

/// Text as a header can hold it: what is not plain is written in percents.
pub(crate) fn in_header(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => plain.push(char::from(byte)),
            _ => plain.push_str(&format!("%{byte:02X}")),
        }
    }
    plain
}

/// The elements of a JSON array as they stand in its text: nothing is written anew. The text was read as JSON before.
pub(crate) fn elements(text: &Bytes) -> Vec<Bytes> {
    let (mut depth, mut is_text, mut is_escaped) = (0_usize, false, false);
    let mut start = None;
    let mut all = Vec::new();
    for (at, byte) in text.iter().enumerate() {
        if is_text {
            match byte {
                _ if is_escaped => is_escaped = false,
                b'\\' => is_escaped = true,
                b'"' => is_text = false,
                _ => {}
            }
            continue;
        }
        match byte {
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            b'"' => is_text = true,
            _ => {}
        }
        let ends = depth == 0 || depth == 1 && *byte == b',';
        match start {
            Some(from) if ends => {
                all.push(trimmed(text, from, at));
                start = (depth == 1).then_some(at + 1);
            }
            None if depth == 1 => start = Some(at + 1),
            _ => {}
        }
        if depth == 0 && start.is_none() && !all.is_empty() {
            break;
        }
    }
    all.retain(|element| !element.is_empty());
    all
}

fn trimmed(text: &Bytes, from: usize, to: usize) -> Bytes {
    let part = &text[from..to];
    let leading = part.len() - part.trim_ascii_start().len();
    let trailing = part.len() - part.trim_ascii_end().len();
    match leading + trailing >= part.len() {
        true => Bytes::new(),
        false => text.slice(from + leading..to - trailing),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s38_arrays_are_split_without_writing_anything_anew() {
        let split = |text: &'static str| {
            let parts = elements(&Bytes::from_static(text.as_bytes()));
            parts.iter().map(|part| String::from_utf8_lossy(part).into_owned()).collect::<Vec<_>>()
        };
        assert_eq!(
            split(r#" [ {"a": 1.0e2, "b": [1,2]} , {"c":"x],\"{[,"},[3], 4 ,"a,b" ] "#),
            [r#"{"a": 1.0e2, "b": [1,2]}"#, r#"{"c":"x],\"{[,"}"#, "[3]", "4", r#""a,b""#]
        );
        assert_eq!(split("[]"), Vec::<String>::new());
        assert_eq!(split("[ ]"), Vec::<String>::new());
        assert_eq!(split("[1]"), ["1"]);
    }

    #[test]
    fn what_is_kept_comes_back_whole() {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let facts = Facts {
            verified: "stripe, secret 1".to_owned(),
            object: Some("Zürich\n100 %25".to_owned()),
            means: None,
            period: Some(7),
        };
        let event = Event { query: Some("a=1".to_owned()), headers, body: "{}\n\n".into(), facts };
        let back = Event::from_kept(&event.kept("shop")).expect("it is one");
        assert_eq!((back.facts, back.body, back.query), (event.facts, event.body, event.query));
        assert_eq!(back.headers, event.headers);
    }
}
