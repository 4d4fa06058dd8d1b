//! Answers of destinations: read to their end within limits, kept without what is nobody's business, given again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use hyper::{Response, StatusCode};
use serde_json::{Map, Value};
use twicesafe_ledger::{ANSWER_BYTES_MAX, Answer, Body, ExternalId};

use super::mask::{Masking, Masks};
use super::passing::{PASSED_BYTES_MAX, Passed};
use super::sending::{body_view, is_json, listed_in_connection, without_mark};
use super::upstream::{Failure, Lent};

/// What the head of a kept answer begins with.
const HEAD: &str = "HTTP ";
/// What a destination may ask us to wait at most.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(24 * 3600);

/// How long an answer may take: until it has ended, or until it has shown to be large, and then in all.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) started: Instant,
    pub(crate) whole: Duration,
    pub(crate) large: Duration,
}

impl Limits {
    /// How long its next part may take.
    fn left(&self, is_large: bool) -> Duration {
        match is_large {
            false => self.whole.saturating_sub(self.started.elapsed()),
            true => self.large.saturating_sub(self.started.elapsed()).min(self.whole),
        }
    }
}

/// An answer that was read to its end.
#[derive(Clone, Debug)]
pub(crate) struct Whole {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Body,
}

impl Whole {
    pub(crate) fn of(status: StatusCode, headers: &HeaderMap, body: Body) -> Self {
        Self { status, headers: kept_headers(headers), body }
    }

    /// Reads an answer to its end. One that is cut short is none (S21); of one that is too large only its length and digest
    /// are kept, and whoever `passed` gives gets the whole of it, part by part (S20).
    pub(crate) async fn read(
        response: Response<Incoming>,
        lent: Lent,
        limits: Limits,
        masks: Masks,
        passed: impl Fn(&Response<()>) -> Option<Passed>,
    ) -> Result<Self, Failure> {
        let (head, mut body) = response.into_parts();
        let mut masking = Masking::new(masks);
        let mut is_at_end = false;
        let announced = hyper::body::Body::size_hint(&body).exact().unwrap_or_default();
        let announced = usize::try_from(announced).unwrap_or(usize::MAX).min(ANSWER_BYTES_MAX);
        let headers = kept_headers(&head.headers);
        let mut first: Option<Bytes> = None;
        let mut all = BytesMut::new();
        let mut large: Option<Large> = None;
        while !is_at_end {
            let frame = tokio::time::timeout(limits.left(large.is_some()), body.frame()).await;
            let frame = frame.map_err(|_| Failure::Unknown("its answer did not end in time".to_owned()))?;
            let data = match frame {
                Some(frame) => {
                    let cut = |_| Failure::Unknown("its answer was cut short".to_owned());
                    let Ok(data) = frame.map_err(cut)?.into_data() else { continue };
                    masking.push(data)
                }
                None => {
                    is_at_end = true;
                    masking.end()
                }
            };
            if data.is_empty() {
                continue;
            }
            if let Some(large) = &mut large {
                large.take(data).await?;
                continue;
            }
            let so_far = first.as_ref().map_or(all.len(), Bytes::len) + data.len();
            if so_far > ANSWER_BYTES_MAX {
                let mut shown = Response::new(());
                *shown.status_mut() = head.status;
                *shown.headers_mut() = headers.clone();
                let mut begun = Large { bytes: 0, hasher: blake3::Hasher::new(), passed: passed(&shown) };
                begun.take(first.take().unwrap_or_else(|| all.split().freeze())).await?;
                begun.take(data).await?;
                large = Some(begun);
                continue;
            }
            // Most answers are one part: those are not copied.
            match (first.take(), all.is_empty()) {
                (None, true) => first = Some(data),
                (before, _) => {
                    all.reserve(announced.saturating_sub(all.len()));
                    all.extend_from_slice(&before.unwrap_or_default());
                    all.extend_from_slice(&data);
                }
            }
        }
        lent.give_back();
        let body = match large {
            Some(large) => large.end(),
            None => Body::Kept(first.unwrap_or_else(|| all.freeze())),
        };
        Ok(Self { status: head.status, headers, body })
    }

    /// As expressions see it.
    pub(crate) fn view(&self) -> Value {
        let header = |(name, value): (&HeaderName, &HeaderValue)| {
            Some((name.as_str().to_owned(), Value::from(value.to_str().ok()?)))
        };
        let headers: Map<String, Value> = self.headers.iter().filter_map(header).collect();
        let body = match &self.body {
            // Many say that their JSON is text.
            Body::Kept(bytes) if looks_like_json(bytes) => body_view(String::new(), &without_mark(bytes)),
            Body::Kept(bytes) => body_view(self.media_type(), &without_mark(bytes)),
            Body::NotKept { .. } => Value::Null,
        };
        super::outcome::answer_view(self.status.as_u16(), Value::Object(headers), body)
    }

    /// Whether expressions see its body, as far as there is one. A page for people is not what an API answers.
    pub(crate) fn has_read_body(&self, view: &Value) -> bool {
        let Body::Kept(bytes) = &self.body else { return false };
        let media_type = self.media_type();
        let is_text = view["body"].is_string() && !bytes.trim_ascii_start().starts_with(b"\"");
        let says_json = is_json(&media_type) || looks_like_json(bytes);
        let is_other = is_text && (says_json || media_type.ends_with("html"));
        bytes.is_empty() || !view["body"].is_null() && !is_other || bytes.trim_ascii() == b"null"
    }

    fn media_type(&self) -> String {
        super::sending::media_type(&self.headers)
    }

    /// When the destination asks to be tried again.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        retry_after(&self.headers)
    }

    /// As it is kept.
    pub(crate) fn kept(&self, external_id: Option<&str>) -> Answer {
        let mut head = format!("{HEAD}{}\n", self.status.as_u16());
        for (name, value) in &self.headers {
            if let Ok(value) = value.to_str() {
                head.push_str(&format!("{name}: {value}\n"));
            }
        }
        Answer {
            external_id: external_id.and_then(ExternalId::new),
            head: Arc::from(head),
            body: self.body.clone(),
        }
    }

    /// An answer as it was kept. One that came by another door (a person, the API) is told as JSON.
    pub(crate) fn from_kept(answer: &Answer) -> Self {
        let mut lines = answer.head.lines();
        let status = lines.next().and_then(|line| line.strip_prefix(HEAD)?.parse().ok());
        let mut headers = HeaderMap::new();
        let status = match status.and_then(|status: u16| StatusCode::from_u16(status).ok()) {
            Some(status) => {
                for (name, value) in lines.filter_map(|line| line.split_once(": ")) {
                    if let (Ok(name), Ok(value)) =
                        (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_str(value))
                    {
                        headers.append(name, value);
                    }
                }
                status
            }
            None => {
                headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
                StatusCode::OK
            }
        };
        Self { status, headers, body: answer.body.clone() }
    }
}

fn looks_like_json(body: &Bytes) -> bool {
    without_mark(body).trim_ascii_start().first().is_some_and(|byte| b"{[".contains(byte))
}

/// When a destination asks to be tried again.
pub(super) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?;
    let span = match text.trim().parse::<u64>() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => {
            let at = jiff::fmt::rfc2822::parse(text.trim()).ok()?.timestamp();
            let left = at.duration_since(jiff::Timestamp::now());
            Duration::try_from(left).unwrap_or_default()
        }
    };
    Some(span.min(RETRY_AFTER_MAX))
}

/// An answer too large to keep.
struct Large {
    bytes: u64,
    hasher: blake3::Hasher,
    passed: Option<Passed>,
}

impl Large {
    async fn take(&mut self, data: Bytes) -> Result<(), Failure> {
        self.bytes += data.len() as u64;
        if self.bytes > PASSED_BYTES_MAX {
            return Err(Failure::Unknown(format!("its answer has more than {PASSED_BYTES_MAX} bytes")));
        }
        self.hasher.update(&data);
        if let Some(passed) = &mut self.passed {
            passed.pass(data).await;
        }
        Ok(())
    }

    fn end(self) -> Body {
        if let Some(passed) = self.passed {
            passed.end();
        }
        Body::NotKept { bytes: self.bytes, digest: self.hasher.finalize().into() }
    }
}

/// Headers that would do something to who trusts this server, in the name of a destination: they are not passed on.
const OF_ORIGINS: [&str; 6] =
    ["set-cookie", "set-cookie2", "alt-svc", "refresh", "strict-transport-security", "clear-site-data"];

/// Returns an answer without what is nobody's business (S22): credentials of ours are masked in its head, and what concerns only
/// the connection, what sets cookies and what looks like ours is not in it.
pub(crate) fn received<B>(mut response: Response<B>, masks: &Masks) -> Response<B> {
    let headers = response.headers_mut();
    let listed = listed_in_connection(headers);
    let is_dropped = |name: &HeaderName| {
        let name = name.as_str();
        name.starts_with("twicesafe-")
            || OF_ORIGINS.contains(&name)
            || listed.iter().any(|other| other == name)
    };
    let dropped: Vec<HeaderName> = headers.keys().filter(|name| is_dropped(name)).cloned().collect();
    dropped.iter().for_each(|name| drop(headers.remove(name)));
    masks.mask_headers(headers);
    response
}

/// Headers of answers that are kept and shown: an allow-list, because nobody knows what else is in the others (S22).
fn kept_headers(headers: &HeaderMap) -> HeaderMap {
    let is_kept = |name: &HeaderName| {
        matches!(
            name.as_str(),
            "content-type"
                | "content-language"
                | "content-disposition"
                | "content-encoding"
                | "etag"
                | "last-modified"
                | "location"
                | "link"
                | "retry-after"
                | "request-id"
                | "x-request-id"
                | "x-message-id"
                | "x-idempotency-lookup"
                | "original-request"
                | "www-authenticate"
                | "allow"
        ) || name.as_str().ends_with("-version")
    };
    headers
        .iter()
        .filter(|(name, _)| is_kept(name))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s22_a_kept_answer_comes_back_as_it_was() {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert("set-cookie", HeaderValue::from_static("secret"));
        headers.insert("date", HeaderValue::from_static("now"));
        headers.insert("stripe-version", HeaderValue::from_static("2026-01-01"));
        let whole = Whole {
            status: StatusCode::CREATED,
            headers: kept_headers(&headers),
            body: Body::Kept(Bytes::from_static(b"{}")),
        };
        let kept = whole.kept(Some("ch_1"));
        assert!(!kept.head.contains("secret") && !kept.head.contains("date"));
        let back = Whole::from_kept(&kept);
        assert_eq!((back.status, back.headers.len()), (StatusCode::CREATED, 2));
        assert_eq!(Whole::from_kept(&Answer::of("{}")).status, StatusCode::OK);
    }
}
