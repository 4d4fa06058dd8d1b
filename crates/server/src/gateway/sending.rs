//! A request on its way to a destination: what expressions see of it, what is kept of it, what it is compared by.

use bytes::Bytes;
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Uri};
use serde_json::{Map, Value};
use twicesafe_ledger::Key;

use super::bypass::is_of_the_way_here;
use crate::http::request::pairs;

/// A request on its way to a destination.
#[derive(Clone, Debug)]
pub(crate) struct Sending {
    pub(crate) method: Method,
    /// As the destination gets it, from its base on.
    pub(crate) path: String,
    pub(crate) query: Option<String>,
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

    pub(crate) fn path_and_query(&self) -> String {
        match &self.query {
            Some(query) => format!("{}?{query}", self.path),
            None => self.path.clone(),
        }
    }

    /// As it is kept, for people to read and for the server to send: method and path, headers, body. Only headers that are
    /// known to hold no secret are kept (S22); `None`: without one of the others it would not be the same request.
    pub(crate) fn kept(&self, keep: &[String]) -> Result<Bytes, String> {
        use std::fmt::Write;
        let mut head = format!("{} {}\n", self.method, self.path_and_query());
        for (name, value) in &self.headers {
            if is_idle(name) || is_credential(name) {
                continue;
            }
            match std::str::from_utf8(value.as_bytes()) {
                Ok(value)
                    if is_harmless(name)
                        || keep.iter().any(|kept| kept.eq_ignore_ascii_case(name.as_str())) =>
                {
                    let _ = writeln!(head, "{name}: {value}");
                }
                _ => return Err(name.as_str().to_owned()),
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
            headers,
            body: kept.slice(end + 2..),
            callback,
        })
    }

    /// Whether anything in it says who the caller is.
    pub(crate) fn has_credentials(&self) -> bool {
        let query = pairs(self.query.as_deref().unwrap_or_default());
        self.headers.keys().any(is_credential) || query.iter().any(|(name, _)| is_credential_in_query(name))
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

/// What a header says: a key is the same with quotes and without (S2).
fn without_quotes(name: &HeaderName, value: &str) -> String {
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

/// Headers that say who somebody is, as far as names tell.
pub(crate) fn is_credential(name: &HeaderName) -> bool {
    let name = name.as_str();
    let is_word = |part: &str| matches!(part, "cookie" | "auth");
    // Every header of every request is looked at: by its first letter before anything else.
    let begins_one = |(from, first): (usize, &u8)| {
        let words: &[&str] = match first {
            b'a' => &["api-key", "apikey", "authori", "authent"],
            b'p' => &["password"],
            b's' => &["secret", "signature", "session"],
            b't' => &["token"],
            _ => return false,
        };
        words.iter().any(|word| name.as_bytes()[from..].starts_with(word.as_bytes()))
    };
    name.as_bytes().iter().enumerate().any(begins_one)
        || name.split(['-', '_', '.']).any(is_word)
        || name.ends_with("-key") && !KEYS_OF_THINGS.iter().any(|thing| name.ends_with(thing))
}

/// The same of parameters in an address.
fn is_credential_in_query(name: &str) -> bool {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let name: String = name.chars().map(plain).collect();
    HeaderName::from_bytes(name.trim_matches('-').as_bytes()).is_ok_and(|name| is_credential(&name))
}

/// Short names that addresses have for secrets.
const SHORT_SECRETS: [&str; 8] = ["key", "sig", "code", "hmac", "jwt", "pwd", "pass", "passwd"];

/// What is left of a query without what says who somebody is, as it is written.
pub(crate) fn without_credentials(query: &str) -> Option<String> {
    let is_secret = |(name, _): &(String, String)| {
        is_credential_in_query(name) || SHORT_SECRETS.contains(&name.to_ascii_lowercase().as_str())
    };
    let is_harmless = |part: &&str| !pairs(part).iter().any(is_secret);
    let left: Vec<&str> = query.split('&').filter(is_harmless).collect();
    (!left.is_empty()).then(|| left.join("&"))
}

/// Keys that name something and open nothing.
const KEYS_OF_THINGS: [&str; 8] = [
    "idempotency-key",
    "partition-key",
    "routing-key",
    "row-key",
    "sort-key",
    "deduplication-key",
    "dedupe-key",
    "object-key",
];

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
            | "stripe-account"
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
        Ok(text) if media_type == "application/x-www-form-urlencoded" => form_view(text),
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
    (media_type != "application/x-www-form-urlencoded")
        .then(|| format!("its body is `{media_type}`, and only JSON and forms have fields"))
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
                    if std::mem::discriminant(inner) != std::mem::discriminant(&empty) {
                        *inner = empty;
                    }
                    inner
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
            headers,
            body: body.into(),
            callback: None,
        }
    }

    #[test]
    fn credentials_are_told_by_their_names() {
        let secret = "authorization proxy-authorization www-authenticate cookie set-cookie x-auth x_auth_user x.auth \
            x-api-key apikey myapikeyid x-csrf-token xtoken tokens a-secret-b password x-hub-signature-256 sessionid \
            x-session stripe-signature x-access-key key-password private-key";
        let plain = "accept content-type x-github-event x-github-delivery author x-author idempotency-key sort-key \
            my-partition-key x-keys keyboard cookies-accepted x-api-version t s a p pass sess signa x-aut";
        for (names, expected) in [(secret, true), (plain, false)] {
            for name in names.split_whitespace() {
                assert_eq!(is_credential(&HeaderName::from_static(name)), expected, "{name}");
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
        assert_eq!((back.path_and_query(), &back.body), (kept.path_and_query(), &kept.body));
        assert_eq!(back.headers["stripe-version"], "2026");
        assert_eq!(sending(&[("x-mystery", "1")], "").kept(&[]), Err("x-mystery".to_owned()));
        assert!(sending(&[("x-mystery", "1")], "").kept(&["X-Mystery".to_owned()]).is_ok());
        assert!(Sending::from_kept(&Bytes::from_static(b"{\"some\":\"json\"}\n\n")).is_none());
    }
}
