//! A request on its way to a destination: what expressions see of it, what is kept of it, what it is compared by.

use bytes::Bytes;
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Uri};
use serde_json::{Map, Value};
use twicesafe_ledger::Key;

use super::bypass::is_of_the_way_here;
use crate::credentials::{is_credential, is_credential_in_query};
use crate::http::request::pairs;

/// A request on its way to a destination.
#[derive(Clone, Debug)]
pub(crate) struct Sending {
    pub(crate) method: Method,
    /// As the destination gets it, from its base on.
    pub(crate) path: String,
    /// Without credentials (S45): what is seen, compared and kept.
    pub(crate) query: Option<String>,
    /// As its caller wrote it, where that has credentials: it is sent, and nothing else.
    pub(crate) whole_query: Option<String>,
    /// What is passed on.
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// Where the answer is posted, if it comes later.
    pub(crate) callback: Option<String>,
}

/// An object of values that are there already, which `json!` would copy once more.
pub(crate) fn object<const N: usize>(members: [(&str, Value); N]) -> Value {
    Value::Object(members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}

impl Sending {
    /// What expressions see. Who the caller says to be is not among it: secrets change, intents do not (S3).
    pub(crate) fn view(&self, parameters: &[(String, String)]) -> Value {
        self.view_seen(parameters, true)
    }

    /// The same, for expressions that do not speak of headers.
    pub(crate) fn view_seen(&self, parameters: &[(String, String)], sees_headers: bool) -> Value {
        let mut query = Value::Object(Map::new());
        for (name, value) in pairs(self.query.as_deref().unwrap_or_default()) {
            put(&mut query, &[name.as_str()], value);
        }
        let header = |(name, value): (&HeaderName, &HeaderValue)| {
            (!is_credential(name)).then_some(())?;
            Some((name.as_str().to_owned(), Value::from(without_quotes(name, value.to_str().ok()?))))
        };
        let headers: Map<String, Value> = match sees_headers {
            true => self.headers.iter().filter_map(header).collect(),
            false => Map::new(),
        };
        let parameters: Map<String, Value> =
            parameters.iter().map(|(name, value)| (name.clone(), Value::from(value.as_str()))).collect();
        object([
            ("method", Value::from(self.method.as_str())),
            ("path", Value::from(self.path.as_str())),
            ("params", parameters.into()),
            ("query", query),
            ("headers", headers.into()),
            ("body", body_view(self.media_type(), &self.body)),
        ])
    }

    /// Returns whether its body is packed, so that neither expressions nor people can read it.
    pub(crate) fn is_packed(&self) -> bool {
        let encodings = self.headers.get_all(CONTENT_ENCODING).iter();
        encodings.into_iter().any(|encoding| !encoding.as_bytes().eq_ignore_ascii_case(b"identity"))
    }

    /// The type of its body, without parameters, in small letters.
    pub(crate) fn media_type(&self) -> String {
        media_type(&self.headers)
    }

    /// Returns path and query as the destination gets them, with the credentials of the query.
    pub(crate) fn address_to_send(&self) -> String {
        joined(&self.path, self.whole_query.as_ref().or(self.query.as_ref()))
    }

    /// Returns the query as the destination gets it.
    pub(crate) fn query_to_send(&self) -> &str {
        self.whole_query.as_ref().or(self.query.as_ref()).map_or("", String::as_str)
    }

    /// Changes the query, with and without its credentials.
    pub(crate) fn change_query(&mut self, change: impl Fn(&str) -> String) {
        self.query = Some(change(self.query.as_deref().unwrap_or_default()));
        self.whole_query = self.whole_query.as_deref().map(change);
    }

    /// As it is kept, for people to read and for the server to send: method and path, headers, body. Only headers that are
    /// known to hold no secret are kept (S22), and no credentials (S45). An error names what the request would not be the same
    /// without.
    pub(crate) fn kept(&self, keep: &[String]) -> Result<Bytes, NotKept> {
        use std::fmt::Write;
        if let Some(query) = &self.whole_query {
            let open = pairs(self.query.as_deref().unwrap_or_default());
            let is_open = |name: &String| open.iter().any(|(open, _)| open == name);
            let mut names = pairs(query).into_iter().map(|(name, _)| name);
            let first = names.find(|name| is_credential_in_query(name) && !is_open(name));
            return Err(NotKept::Parameter(first.unwrap_or_default()));
        }
        let mut head = format!("{} {}\n", self.method, joined(&self.path, self.query.as_ref()));
        for (name, value) in &self.headers {
            if is_idle(name) || is_credential(name) {
                continue;
            }
            match std::str::from_utf8(value.as_bytes()) {
                Ok(value)
                    if is_harmless(name)
                        || selects_account(name)
                        || keep.iter().any(|kept| kept.eq_ignore_ascii_case(name.as_str())) =>
                {
                    let _ = writeln!(head, "{name}: {value}");
                }
                _ => return Err(NotKept::Header(name.as_str().to_owned())),
            }
        }
        if let Some(callback) = &self.callback {
            let _ = writeln!(head, "{CALLBACK}: {callback}");
        }
        head.push('\n');
        let mut kept = head.into_bytes();
        kept.extend_from_slice(&self.body);
        Ok(kept.into())
    }

    /// A request as it was kept; `None`: it is not one of the gateway's.
    pub(crate) fn from_kept(kept: &Bytes) -> Option<Self> {
        let end = kept.windows(2).position(|pair| pair == b"\n\n")?;
        let head = std::str::from_utf8(&kept[..end]).ok()?;
        let mut lines = head.lines();
        let (method, address) = lines.next()?.split_once(' ')?;
        let uri: Uri = address.parse().ok().filter(|_| address.starts_with('/'))?;
        let mut headers = HeaderMap::new();
        let mut callback = None;
        for line in lines {
            let (name, value) = line.split_once(": ")?;
            match name {
                CALLBACK => callback = Some(value.to_owned()),
                _ => {
                    headers.append(
                        HeaderName::from_bytes(name.as_bytes()).ok()?,
                        HeaderValue::from_bytes(value.as_bytes()).ok()?,
                    );
                }
            }
        }
        Some(Self {
            method: Method::from_bytes(method.as_bytes()).ok()?,
            path: uri.path().to_owned(),
            query: uri.query().map(str::to_owned),
            // Nothing on record has any.
            whole_query: None,
            headers,
            body: kept.slice(end + 2..),
            callback,
        })
    }

    /// Whether anything in it says who the caller is.
    pub(crate) fn has_credentials(&self) -> bool {
        self.headers.keys().any(is_credential) || self.whole_query.is_some()
    }

    /// Whether two who read its JSON might read different values.
    pub(crate) fn is_ambiguous(&self, view: &Value) -> bool {
        let body = &view["body"];
        let is_json = || {
            let media_type = self.media_type();
            is_json(&media_type) || media_type.is_empty()
        };
        (body.is_object() || body.is_array())
            && is_json()
            && twicesafe_core::has_duplicate_names(body, &self.body)
    }
}

/// What keeps a request from being kept: without it, it would be another one.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NotKept {
    /// A header that may hold a secret.
    Header(String),
    /// A parameter of the query that is named like a credential.
    Parameter(String),
}

fn joined(path: &str, query: Option<&String>) -> String {
    match query {
        Some(query) => format!("{path}?{query}"),
        None => path.to_owned(),
    }
}

/// What a header says: a key is the same with quotes and without (S2).
pub(crate) fn without_quotes(name: &HeaderName, value: &str) -> String {
    let key = if name == "idempotency-key" { Key::from_header(value).ok() } else { None };
    key.map_or_else(|| value.to_owned(), |key| key.as_str().to_owned())
}

/// Where an answer that comes later is posted.
pub(crate) const CALLBACK: &str = "twicesafe-callback";

/// The headers of a caller's request that are passed on: not those between two machines only, not ours.
pub(crate) fn passed_on(headers: &HeaderMap) -> HeaderMap {
    let listed = listed_in_connection(headers);
    let is_passed = |name: &HeaderName| {
        !is_between_two(name.as_str())
            && !name.as_str().starts_with("twicesafe-")
            && !is_of_the_way_here(name)
            && !listed.iter().any(|other| other == name.as_str())
    };
    headers
        .iter()
        .filter(|(name, _)| is_passed(name))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

/// Returns the headers that are said to concern only the connection.
pub(crate) fn listed_in_connection(headers: &HeaderMap) -> Vec<String> {
    headers
        .get_all(hyper::header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(',').map(|name| name.trim().to_ascii_lowercase()))
        .collect()
}

/// Headers between two machines only.
pub(crate) fn is_between_two(name: &str) -> bool {
    matches!(
        name,
        "connection"
            | "keep-alive"
            | "proxy-authenticate"
            | "proxy-authorization"
            | "proxy-connection"
            | "te"
            | "trailer"
            | "transfer-encoding"
            | "upgrade"
            | "host"
            | "content-length"
            | "expect"
            | "http2-settings"
    )
}

/// Headers that change nothing about what is asked for.
pub(crate) fn is_idle(name: &HeaderName) -> bool {
    let name = name.as_str();
    matches!(
        name,
        "user-agent"
            | "accept-encoding"
            | "cache-control"
            | "pragma"
            | "traceparent"
            | "tracestate"
            | "baggage"
            | "dnt"
            | "priority"
            | "origin"
            | "referer"
            | "via"
            | "forwarded"
            | "x-real-ip"
            | "x-request-id"
            | "x-correlation-id"
            | "date"
            | "accept-language"
            | "sentry-trace"
            | "x-amzn-trace-id"
            | "x-cloud-trace-context"
            | "b3"
            | "newrelic"
            | "uber-trace-id"
            | "elastic-apm-traceparent"
    ) || name.ends_with("client-user-agent")
        || name.ends_with("client-info")
        || name.ends_with("api-client")
        || name.ends_with("-telemetry")
        || ["sec-", "x-forwarded-", "x-stainless-", "x-datadog-", "x-b3-", "x-instana-", "x-envoy-", "cf-"]
            .iter()
            .any(|begin| name.starts_with(begin))
}

/// Words that begin a part of the name of a header that chooses whom a request acts for, and whole names without one.
const ACCOUNT_WORDS: [&str; 11] = [
    "account",
    "behalf",
    "impersonat",
    "merchant",
    "org",
    "project",
    "shop",
    "subaccount",
    "sudo",
    "tenant",
    "workspace",
];
const ACCOUNT_NAMES: [&str; 5] = [
    "amazon-advertising-api-scope",
    "callerobjectid",
    "login-customer-id",
    "mscrmcallerid",
    "stripe-context",
];

/// Tells whether a header chooses whom a request acts for, as far as its name tells: another value makes another request (S4).
pub(crate) fn selects_account(name: &HeaderName) -> bool {
    let text = name.as_str();
    // The name of a vendor is not that of one of its shops.
    let is_word = |part: &str| part != "shopify" && ACCOUNT_WORDS.iter().any(|word| part.starts_with(word));
    (ACCOUNT_NAMES.contains(&text) || text.split(['-', '_', '.']).any(is_word))
        && !is_credential(name)
        && !is_idle(name)
}

/// Headers that hold no secret and matter.
fn is_harmless(name: &HeaderName) -> bool {
    let name = name.as_str();
    matches!(
        name,
        "idempotency-key"
            | "accept"
            | "content-type"
            | "content-language"
            | "content-encoding"
            | "prefer"
            | "if-match"
            | "if-none-match"
            | "if-modified-since"
            | "if-unmodified-since"
            | "paypal-request-id"
    ) || name.ends_with("-version")
}

pub(crate) fn media_type(headers: &HeaderMap) -> String {
    let text = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

pub(crate) fn is_json(media_type: &str) -> bool {
    media_type == "application/json" || media_type.ends_with("+json")
}

/// The type of a form as browsers send it.
pub(crate) const FORM: &str = "application/x-www-form-urlencoded";

/// Largest body that expressions see.
pub(crate) const VIEWED_BYTES_MAX: usize = 1 << 20;

/// A body without the mark that some senders begin UTF-8 with. It is handed over with it, as it was signed.
pub(crate) fn without_mark(body: &Bytes) -> Bytes {
    let mark = "\u{feff}".as_bytes();
    if body.starts_with(mark) { body.slice(mark.len()..) } else { body.clone() }
}

/// A body as expressions see it: JSON and forms by their fields, other text as it is, and nothing of the rest.
pub(crate) fn body_view(media_type: String, body: &Bytes) -> Value {
    // A tree of values takes many times the room of its text.
    body_view_within(media_type, body, VIEWED_BYTES_MAX)
}

/// The same, for bodies that may be larger.
pub(crate) fn body_view_within(media_type: String, body: &Bytes, bytes_max: usize) -> Value {
    if body.is_empty() || body.len() > bytes_max {
        return Value::Null;
    }
    if (is_json(&media_type) || media_type.is_empty())
        && let Ok(value) = serde_json::from_slice(body)
    {
        return value;
    }
    match std::str::from_utf8(body) {
        Ok(text) if media_type == FORM => form_view(text),
        Ok(text) => Value::from(text),
        Err(_) => Value::Null,
    }
}

/// Why expressions see no fields of a body, if they do not.
pub(crate) fn why_unread(media_type: &str, body: &Bytes, bytes_max: usize) -> Option<String> {
    if body.len() > bytes_max {
        return Some(format!(
            "its body has more than {bytes_max} bytes, and expressions do not look into it"
        ));
    }
    if is_json(media_type) || media_type.is_empty() {
        let error = serde_json::from_slice::<Value>(body).err()?;
        return Some(match body.is_empty() {
            true => "its body is empty".to_owned(),
            false => format!("its body is not JSON that can be read: {error}"),
        });
    }
    (media_type != FORM).then(|| format!("its body is `{media_type}`, and only JSON and forms have fields"))
}

/// Brackets in one name of a form; a name with more of them is taken as it is.
const FORM_DEPTH_MAX: usize = 16;

/// Names of a form may have brackets: `metadata[order_id]=7` is `metadata.order_id`, `items[]=x` a list.
fn form_view(text: &str) -> Value {
    let mut form = Value::Object(Map::new());
    for (name, value) in pairs(text) {
        let steps: Vec<&str> = name.split('[').map(|step| step.trim_end_matches(']')).collect();
        match steps.len() <= FORM_DEPTH_MAX {
            true => put(&mut form, &steps, value),
            false => put(&mut form, &[name.as_str()], value),
        }
    }
    form
}

fn put(form: &mut Value, steps: &[&str], value: String) {
    let mut here = form;
    for (number, step) in steps.iter().enumerate() {
        let next = steps.get(number + 1);
        let empty = match next {
            None => Value::String(value.clone()),
            Some(&"") => Value::Array(Vec::new()),
            Some(_) => Value::Object(Map::new()),
        };
        here = match here {
            Value::Array(items) => {
                items.push(empty);
                let Some(last) = items.last_mut() else { return };
                last
            }
            Value::Object(members) => match (members.get_mut(*step), next) {
                // Of two of the same name some read the first and some the last: here they are a list, and no name.
                (Some(Value::Array(items)), None) => return items.push(empty),
                (Some(first), None) => {
                    *first = Value::Array(vec![first.take(), empty]);
                    return;
                }
                _ => {
                    let inner = members.entry(*step).or_insert_with(|| empty.clone());
                    if std::mem::discriminant(inner) == std::mem::discriminant(&empty) {
                        inner
                    } else {
                        // Nothing is lost: values of different kinds under one name are a list of them.
                        if !inner.is_array() {
                            *inner = Value::Array(vec![inner.take()]);
                        }
                        let Value::Array(items) = inner else { return };
                        items.push(empty);
                        let Some(last) = items.last_mut() else { return };
                        last
                    }
                }
            },
            _ => return,
        };
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn sending(headers: &[(&'static str, &'static str)], body: &'static str) -> Sending {
        let headers = headers
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect();
        Sending {
            method: Method::POST,
            path: "/v1/charges".to_owned(),
            query: Some("a=1".to_owned()),
            whole_query: None,
            headers,
            body: body.into(),
            callback: None,
        }
    }

    #[test]
    fn s4_headers_that_choose_an_account_are_told_by_their_names() {
        let chosen = "x-tenant-id xero-tenant-id tenant stripe-account stripe-context x-goog-user-project x-org-id \
            openai-organization x-workspace x_account_id x-shopify-shop-domain accountid x-impersonate-user sudo";
        let others = "x-account-token x-tenant-key x-original-url origin x-shopify-topic content-type x-forwarded-account \
            idempotency-key workflow accept authorization";
        for (names, expected) in [(chosen, true), (others, false)] {
            for name in names.split_whitespace() {
                assert_eq!(selects_account(&HeaderName::from_static(name)), expected, "{name}");
            }
        }
    }

    #[test]
    fn expressions_see_forms_and_json_and_no_credentials() {
        let form = sending(
            &[
                ("content-type", "application/x-www-form-urlencoded"),
                ("authorization", "Bearer s"),
                ("x-a", "b"),
            ],
            "amount=5&metadata[order_id]=7&items[]=x&items[]=y&deep[a][b]=c&deep[a]=clash",
        );
        let view = form.view(&[("id".to_owned(), "9".to_owned())]);
        assert_eq!(
            view["body"],
            json!({ "amount": "5", "metadata": { "order_id": "7" }, "items": ["x", "y"], "deep": { "a": [{ "b": "c" }, "clash"] } })
        );
        assert_eq!(view["params"]["id"], "9");
        assert_eq!(
            view["headers"],
            json!({ "content-type": "application/x-www-form-urlencoded", "x-a": "b" })
        );
        assert_eq!(form_view("a=1&a[b]=2&a[c]=3"), json!({ "a": ["1", { "b": "2" }, { "c": "3" }] }));
        assert_eq!(form_view("a[]=1&a[b]=2&a=3"), json!({ "a": ["1", { "b": "2" }, "3"] }));
        let deep = "a".to_owned() + &"[b]".repeat(100_000);
        assert_eq!(form_view(&format!("{deep}=1")), json!({ deep: "1" }));
        assert_eq!(body_view("application/json".to_owned(), &"{bad".into()), json!("{bad"));
    }

    #[test]
    fn s22_what_is_kept_has_no_secrets_and_comes_back_whole() {
        let kept = sending(
            &[
                ("content-type", "application/json"),
                ("authorization", "Bearer s"),
                ("stripe-version", "2026"),
            ],
            "{\"a\":1}\n\n{",
        );
        let bytes = kept.kept(&[]).expect("nothing unknown is in it");
        assert!(!String::from_utf8_lossy(&bytes).contains("Bearer"));
        let back = Sending::from_kept(&bytes).expect("it is ours");
        assert_eq!((back.address_to_send(), &back.body), (kept.address_to_send(), &kept.body));
        assert_eq!(back.headers["stripe-version"], "2026");
        assert_eq!(
            sending(&[("x-mystery", "1")], "").kept(&[]),
            Err(NotKept::Header("x-mystery".to_owned()))
        );
        assert!(sending(&[("x-mystery", "1")], "").kept(&["X-Mystery".to_owned()]).is_ok());
        assert!(Sending::from_kept(&Bytes::from_static(b"{\"some\":\"json\"}\n\n")).is_none());
    }
}
