//! What two requests under one key are compared by (S4). The recipe is stored with the fingerprint, so that a route whose
//! recipe changes still recognises what it knew before.

use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderName};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use twicesafe_core::{canonical_json, canonical_json_of};
use twicesafe_ledger::{Fingerprint, Recipe, Record};

use super::content::{self, ContentType};
use super::expression::{Expression, OF_REQUEST, Sight};
use super::sending::{FORM, Sending, is_idle, is_json, selects_account, without_quotes};
use crate::credentials::{is_credential, without_credentials};
use crate::http::request::{pairs, percent_decoded};

/// What the name of a recipe begins with. Another way of making fingerprints needs another name.
const NAME: &str = "http2";
/// Stands for all headers: an expression may read any of them.
const ANY_HEADER: &str = "*";

/// What a route says about what is compared, beside what always is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Compared {
    /// Only what these expressions give.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) only: Option<Vec<String>>,
    /// All without these parts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) without: Option<Vec<String>>,
    /// Headers, beside those that choose an account by their names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) headers: Vec<String>,
    /// Parts that decide something about the request, compared whatever `only` says.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) reads: Vec<Vec<String>>,
    /// Parameters of the query that are named like credentials and are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) open: Vec<String>,
}

impl Compared {
    /// Adds what expressions read that decide whom a request acts for, whether a person is asked, or what an answer means.
    pub(crate) fn add_reads(&mut self, reads: impl IntoIterator<Item = Vec<String>>) {
        for path in reads {
            match path.first().map(String::as_str) {
                Some("headers") => {
                    self.headers.push(path.get(1).map_or(ANY_HEADER, String::as_str).to_owned())
                }
                Some(_) => self.reads.push(path),
                None => {
                    self.headers.push(ANY_HEADER.to_owned());
                    let all = ["method", "path", "query", "body"];
                    self.reads.extend(all.map(|part| vec![part.to_owned()]));
                }
            }
        }
    }

    /// The recipe that says so.
    pub(crate) fn recipe(mut self) -> Recipe {
        for name in &mut self.headers {
            name.make_ascii_lowercase();
        }
        if self.headers.iter().any(|name| name == ANY_HEADER) {
            self.headers = vec![ANY_HEADER.to_owned()];
        }
        // Those are compared anyway.
        let is_named =
            |name: &String| !HeaderName::from_bytes(name.as_bytes()).is_ok_and(|name| selects_account(&name));
        self.headers.retain(is_named);
        if self.only.is_none() {
            self.reads.clear();
        }
        for list in [&mut self.headers, &mut self.open] {
            list.sort();
            list.dedup();
        }
        self.reads.sort();
        self.reads.dedup();
        match self == Self::default() {
            true => Recipe::named(NAME),
            false => Recipe::named(&format!("{NAME} {}", serde_json::to_string(&self).unwrap_or_default())),
        }
    }

    /// What a recipe says; `None`: it is not one of the gateway's.
    fn of(recipe: &Recipe) -> Option<Self> {
        match recipe.as_str().strip_prefix(NAME)? {
            "" => Some(Self::default()),
            written => serde_json::from_str(written.strip_prefix(' ')?).ok(),
        }
    }

    fn compares_header(&self, name: &HeaderName) -> bool {
        selects_account(name)
            || self.headers.iter().any(|own| own == name.as_str())
            || self.headers.first().is_some_and(|first| first == ANY_HEADER)
                && !is_idle(name)
                && !is_credential(name)
                && name != "idempotency-key"
    }
}

/// Returns whether a record is of a call of the gateway: only the gateway compares by its recipes. What somebody claims through the API in a
/// scope like the gateway's is theirs to carry out, and nothing is sent or asked for it with the credentials of a destination (S48).
pub(crate) fn is_of_a_call(record: &Record) -> bool {
    record.fingerprint.as_ref().is_some_and(|print| Compared::of(print.recipe()).is_some())
}

/// Whether a recipe can be followed for a request: what it looks at must be there.
pub(crate) fn check(recipe: &Recipe, view: &Value) -> Result<(), String> {
    let Some(texts) = Compared::of(recipe).and_then(|compared| compared.only) else { return Ok(()) };
    let sight = Sight { request: Some(view), ..Sight::default() };
    texts.iter().try_for_each(|text| Expression::parse(text, OF_REQUEST)?.value(&sight).map(drop))
}

/// The fingerprint of a request by a recipe; `None`: the recipe is not one of the gateway's, or cannot be followed here.
pub(crate) fn made(recipe: &Recipe, sending: &Sending, view: &Value) -> Option<Fingerprint> {
    let compared = Compared::of(recipe)?;
    let mut all = Parts(Vec::with_capacity(sending.body.len() + 128));
    match &compared.only {
        Some(texts) => {
            all.put(b"only");
            put_only(texts, &compared.reads, sending, view, &mut all)?;
        }
        None => {
            all.put(b"all");
            put_request(&compared, sending, view, &mut all);
        }
    }
    let mut headers: Vec<_> =
        sending.headers.iter().filter(|(name, _)| compared.compares_header(name)).collect();
    // Values of one name stay in their order.
    headers.sort_by_key(|(name, _)| name.as_str());
    for (name, value) in headers {
        all.put(name.as_str().as_bytes());
        match value.to_str() {
            Ok(text) => all.put(without_quotes(name, text).as_bytes()),
            Err(_) => all.put(value.as_bytes()),
        }
    }
    Some(Fingerprint::of(recipe, &all.0))
}

/// Bytes of several parts, each with its length: no two lists of parts are the same bytes.
struct Parts(Vec<u8>);

impl Parts {
    fn put(&mut self, part: &[u8]) {
        self.0.extend_from_slice(&(part.len() as u64).to_be_bytes());
        self.0.extend_from_slice(part);
    }

    fn put_list<T: AsRef<[u8]>>(&mut self, parts: &[T]) {
        self.put(&(parts.len() as u64).to_be_bytes());
        parts.iter().for_each(|part| self.put(part.as_ref()));
    }
}

fn put_only(
    texts: &[String],
    reads: &[Vec<String>],
    sending: &Sending,
    view: &Value,
    all: &mut Parts,
) -> Option<()> {
    let sight = Sight { request: Some(view), ..Sight::default() };
    let parse = |text: &String| Expression::parse(text, OF_REQUEST).ok();
    let expressions: Vec<Expression> = texts.iter().map(parse).collect::<Option<_>>()?;
    let values = expressions.iter().map(|expression| expression.value(&sight).ok());
    all.put(&canonical(&Value::Array(values.collect::<Option<_>>()?)));
    for path in reads {
        let found = path.iter().try_fold(view, |here, step| here.get(step));
        all.put(path.join(".").as_bytes());
        // What is absent is not what is null.
        all.put(&found.map(canonical).unwrap_or_default());
    }
    let is_of_body = |path: &Vec<String>| path.first().is_none_or(|first| first == "body");
    let sees_body = reads.iter().any(is_of_body)
        || expressions.iter().any(|expression| expression.reads().iter().any(is_of_body));
    if sees_body && !is_faithful(sending, view) {
        all.put(&sending.body);
    }
    Some(())
}

/// Whether what expressions see of a JSON body is all that it says: numbers of any length are read as near ones.
fn is_faithful(sending: &Sending, view: &Value) -> bool {
    let body = &view["body"];
    !(body.is_object() || body.is_array())
        || sending.media_type() == FORM
        || canonical_json_of(body, &sending.body).is_some()
}

fn put_request(compared: &Compared, sending: &Sending, view: &Value, all: &mut Parts) {
    let left_out = compared.without.as_deref().unwrap_or_default();
    let below =
        |root: &str| left_out.iter().filter_map(move |text| text.strip_prefix(root)).collect::<Vec<_>>();
    all.put(sending.method.as_str().as_bytes());
    all.put(sending.path.as_bytes());
    all.put_list(&query(sending, &compared.open, &below("request.query.")));
    let encodings = sending.headers.get_all(CONTENT_ENCODING).iter();
    all.put_list(&encodings.map(|value| value.as_bytes()).collect::<Vec<_>>());
    let types: Vec<&[u8]> =
        sending.headers.get_all(CONTENT_TYPE).iter().map(|value| value.as_bytes()).collect();
    let read = match types.as_slice() {
        [] => Some(ContentType { media_type: String::new(), parameters: Vec::new() }),
        [only] => std::str::from_utf8(only).ok().and_then(ContentType::parse),
        _ => None,
    };
    let Some(mut of_type) = read else {
        // Two who read it might take the body for different things.
        all.put_list(&types);
        all.put(b"raw");
        return all.put(&sending.body);
    };
    let media_type = of_type.media_type.clone();
    let is_text_of_fields = is_json(&media_type) || media_type == FORM;
    let is_usual = |(name, value): &(String, String)| {
        name == "charset" && ["utf-8", "utf8"].iter().any(|usual| value.eq_ignore_ascii_case(usual))
    };
    if is_text_of_fields {
        // It is what it is without, too.
        of_type.parameters.retain(|parameter| !is_usual(parameter));
    }
    let is_plain = of_type.parameters.iter().all(|(name, _)| name != "charset");
    let parts = match media_type.starts_with("multipart/") {
        true => {
            let boundary = of_type.take("boundary");
            let parts = boundary.as_ref().and_then(|boundary| content::parts(&sending.body, boundary));
            if let (None, Some(boundary)) = (&parts, boundary) {
                of_type.parameters.push(("boundary".to_owned(), boundary));
            }
            parts
        }
        false => None,
    };
    let parameters = of_type.parameters.iter().flat_map(|(name, value)| [name.clone(), lowered(name, value)]);
    all.put(media_type.as_bytes());
    all.put_list(&parameters.collect::<Vec<_>>());
    let fields = below("request.body.");
    if let Some(parts) = parts {
        all.put(b"parts");
        all.put_list(&parts);
    } else if let Some(canonical) = is_plain.then(|| json(sending, view, &media_type, &fields)).flatten() {
        all.put(b"json");
        all.put(&canonical);
    } else if let Some(form) = form(sending, &media_type, &fields).filter(|_| is_plain) {
        all.put(b"form");
        all.put_list(&form);
    } else {
        all.put(b"raw");
        all.put(&sending.body);
    }
}

fn lowered(name: &str, value: &str) -> String {
    match name {
        "charset" => value.to_ascii_lowercase(),
        _ => value.to_owned(),
    }
}

/// The parts of a query, without credentials and those left out. The order of different names does not matter; that of the values
/// of one name does, and so does that of names which readers put together: `a[x]`, `a.y`, `A`.
fn query(sending: &Sending, open: &[String], left_out: &[&str]) -> Vec<String> {
    let Some(query) = without_credentials(sending.query_to_send(), open) else { return Vec::new() };
    let name = |part: &str| {
        let name = part.split('=').next().unwrap_or_default().replace('+', " ");
        percent_decoded(&name).into_owned()
    };
    let parts = query.split('&').filter(|part| !part.is_empty());
    let mut parts: Vec<(String, &str)> = parts.map(|part| (name(part), part)).collect();
    parts.retain(|(name, _)| !left_out.contains(&name.as_str()));
    parts.sort_by_key(|(name, _)| name.split(['[', '.']).next().unwrap_or_default().to_ascii_lowercase());
    parts.into_iter().map(|(_, part)| part.to_owned()).collect()
}

/// A JSON body in its one form (RFC 8785), without some fields; `None`: it has no such form.
fn json(sending: &Sending, view: &Value, media_type: &str, left_out: &[&str]) -> Option<Vec<u8>> {
    let may_be_json = is_json(media_type) || media_type.is_empty() && !left_out.is_empty();
    may_be_json.then_some(())?;
    let body = &view["body"];
    let canonical_whole = match body {
        // Read already.
        Value::Object(_) | Value::Array(_) => canonical_json_of(body, &sending.body),
        _ => canonical_json(&sending.body),
    }?;
    if left_out.is_empty() || !body.is_object() {
        return Some(canonical_whole);
    }
    let mut body = body.clone();
    left_out.iter().for_each(|path| remove(&mut body, path));
    Some(canonical(&body))
}

/// The fields of a form, without some of them. Those of one name, and those that readers put together, stay in their order.
fn form(sending: &Sending, media_type: &str, left_out: &[&str]) -> Option<Vec<String>> {
    (media_type == FORM && !left_out.is_empty()).then_some(())?;
    let text = std::str::from_utf8(&sending.body).ok()?;
    let is_below = |name: &str, other: &str| {
        let mut steps = name.split('[').map(|step| step.trim_end_matches(']'));
        other.split('.').all(|step| steps.next() == Some(step))
    };
    let mut fields: Vec<(String, String)> = pairs(text);
    fields.retain(|(name, _)| !left_out.iter().any(|other| is_below(name, other)));
    fields.sort_by_key(|(name, _)| name.split('[').next().unwrap_or_default().to_owned());
    Some(fields.into_iter().flat_map(|(name, value)| [name, value]).collect())
}

/// Whether a part can be left out: a plain path below the body or the query.
pub(crate) fn is_part(text: &str) -> bool {
    let below = |root: &str| text.strip_prefix(root).is_some_and(|rest| !rest.is_empty());
    (below("request.body.") || below("request.query."))
        && text
            .split('.')
            .all(|step| !step.is_empty() && step.chars().all(|c| c.is_alphanumeric() || "_-$".contains(c)))
}

/// Whether leaving out a part, as `is_part` has it, would leave out something of what is read, or something it is in.
pub(crate) fn is_read_by(part: &str, read: &[String]) -> bool {
    part.split('.').skip(1).zip(read).all(|(step, other)| step == other)
}

fn remove(body: &mut Value, path: &str) {
    let mut steps: Vec<&str> = path.split('.').collect();
    let Some(last) = steps.pop() else { return };
    let mut here = body;
    for step in steps {
        match here.get_mut(step) {
            Some(inner) => here = inner,
            None => return,
        }
    }
    if let Value::Object(members) = here {
        members.remove(last);
    }
}

fn canonical(value: &Value) -> Vec<u8> {
    let text = value.to_string().into_bytes();
    canonical_json(&text).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::{HeaderMap, HeaderValue};

    fn sending(media_type: &str, query: &str, body: &str) -> Sending {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_str(media_type).expect("it is text"));
        Sending {
            method: hyper::Method::POST,
            path: "/x".to_owned(),
            query: Some(query.to_owned()),
            whole_query: None,
            headers,
            body: body.to_owned().into(),
            callback: None,
        }
    }

    fn check(recipe: &Recipe, left: &Sending, right: &Sending, same: bool) {
        let of = |sending: &Sending| made(recipe, sending, &sending.view(&[])).expect("it can be followed");
        assert_eq!(of(left) == of(right), same, "{left:?} {right:?}");
    }

    fn recipe(only: &[&str], without: &[&str]) -> Recipe {
        let texts = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let some = |list: &[&str]| Some(texts(list)).filter(|list| !list.is_empty());
        Compared { only: some(only), without: some(without), ..Compared::default() }.recipe()
    }

    #[test]
    fn s4_the_whole_request_is_compared_in_canonical_form() {
        let recipe = recipe(&[], &[]);
        let one = sending("application/json", "b=2&a=1", r#"{"a":1,"b":2}"#);
        check(
            &recipe,
            &one,
            &sending("application/json; charset=utf-8", "a=1&b=2", r#"{ "b":2, "a":1 }"#),
            true,
        );
        check(&recipe, &one, &sending("application/json", "a=1", r#"{"a":1,"b":2}"#), false);
        check(&recipe, &one, &sending("text/plain", "a=1&b=2", r#"{"a":1,"b":2}"#), false);
        check(&recipe, &one, &sending("application/json", "a=1&b=2", r#"{"a":1,"b":3}"#), false);
        let utf16 = "application/json; charset=utf-16le";
        check(&recipe, &one, &sending(utf16, "a=1&b=2", r#"{"a":1,"b":2}"#), false);
        let text = |of_type: &str| sending(of_type, "", "a");
        check(&recipe, &text("text/plain; charset=latin1"), &text("text/plain; charset=LATIN1"), true);
        check(&recipe, &text("text/plain; charset=latin1"), &text("text/plain; charset=utf-7"), false);
        check(&recipe, &text("text/plain; x=\"1"), &text("text/plain; x=\"2"), false);
    }

    #[test]
    fn s4_values_of_one_name_keep_their_order() {
        for recipe in [recipe(&[], &[]), recipe(&[], &["request.query.at", "request.body.at"])] {
            let form = |query: &str, body: &str| sending(FORM, query, body);
            for (left, right, same) in [
                ("amount=1&amount=100", "amount=100&amount=1", false),
                ("amount=1&Amount=100", "Amount=100&amount=1", false),
                ("amount=1&amoun%74=100", "amoun%74=100&amount=1", false),
                ("a[]=1&b=x&a[]=2", "b=x&a[]=1&a[]=2", true),
                ("a[][x]=1&a[][y]=2", "a[][y]=2&a[][x]=1", false),
                ("b=1&a=2&c=3", "c=3&b=1&a=2", true),
                ("a=1&api_key=old", "a=1&api_key=new", true),
            ] {
                check(&recipe, &form(left, "x=1"), &form(right, "x=1"), same);
            }
            check(
                &recipe,
                &form("", "metadata=5&metadata[a]=1"),
                &form("", "metadata=6&metadata[a]=1"),
                false,
            );
            check(&recipe, &form("", "x=1&x=2"), &form("", "x=2&x=1"), false);
        }
    }

    #[test]
    fn s4_a_boundary_never_makes_two_bodies_equal() {
        let recipe = recipe(&[], &[]);
        let part = |boundary: &str, text: &str| {
            sending(
                &format!("multipart/form-data; boundary={boundary}"),
                "",
                &format!("--{boundary}\r\n\r\n{text}\r\n--{boundary}--"),
            )
        };
        check(&recipe, &part("abc", "same"), &part("xyz123", "same"), true);
        check(&recipe, &part("abc", "same"), &part("\"xyz 123\"", "same"), false);
        check(&recipe, &part("abc", "same"), &part("abc", "other"), false);
        check(&recipe, &part("x0", "1"), &part("0", "1000"), false);
        check(&recipe, &part("0", "1"), &part("0", "1000"), false);
        let quoted =
            sending("multipart/form-data; boundary=\"xyz 123\"", "", "--xyz 123\r\n\r\nsame\r\n--xyz 123--");
        check(&recipe, &part("abc", "same"), &quoted, true);
    }

    #[test]
    fn s4_a_route_may_compare_less() {
        let only = recipe(&["request.body.amount"], &[]);
        let without = recipe(&[], &["request.body.sent_at", "request.body.meta.trace"]);
        let one = sending("application/json", "", r#"{"amount":1,"sent_at":"a","meta":{"trace":1,"x":2}}"#);
        let two = sending("application/json", "", r#"{"amount":1,"sent_at":"b","meta":{"trace":9,"x":2}}"#);
        let three = sending("application/json", "", r#"{"amount":2,"sent_at":"a","meta":{"trace":1,"x":2}}"#);
        check(&only, &one, &two, true);
        check(&only, &one, &three, false);
        check(&without, &one, &two, true);
        check(&without, &one, &three, false);
        let form = |body: &str| sending(FORM, "", body);
        check(&without, &form("a=1&sent_at=1&meta[trace]=1"), &form("meta[trace]=2&a=1&sent_at=2"), true);
        check(&without, &form("a=1&sent_at=1"), &form("a=2&sent_at=1"), false);
        let long = |amount: &str| {
            sending("application/json", "", &format!(r#"{{"amount":{amount},"sent_at":"a"}}"#))
        };
        for recipe in [&only, &without] {
            let (left, right) =
                (long("123456789012345678901234567890"), long("123456789012345678901234567891"));
            check(recipe, &left, &right, false);
        }
        assert!(
            is_part("request.body.sent_at")
                && !is_part("request.headers.date")
                && !is_part("request.body.a[0]")
        );
        assert!(made(&Recipe::json(), &one, &one.view(&[])).is_none());
    }

    #[test]
    fn s4_headers_that_choose_an_account_or_decide_something_are_compared() {
        let with = |name: &'static str, value: &'static str| {
            let mut one = sending("application/json", "", "{}");
            one.headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
            one
        };
        let mut read = Compared { only: Some(vec!["request.path".to_owned()]), ..Compared::default() };
        read.add_reads([
            vec!["headers".to_owned(), "X-Tier".to_owned()],
            vec!["body".to_owned(), "n".to_owned()],
        ]);
        let mut any = Compared::default();
        any.add_reads([vec!["headers".to_owned()]]);
        for (recipe, name, same) in [
            (recipe(&[], &[]), "x-tenant-id", false),
            (recipe(&["request.path"], &[]), "stripe-account", false),
            (recipe(&[], &["request.body.a"]), "x-org-id", false),
            (recipe(&[], &[]), "x-tier", true),
            (recipe(&[], &[]), "authorization", true),
            (recipe(&[], &[]), "x-account-token", true),
            (read.recipe(), "x-tier", false),
            (any.clone().recipe(), "x-tier", false),
            (any.clone().recipe(), "user-agent", true),
            (any.recipe(), "authorization", true),
        ] {
            check(&recipe, &with(name, "a"), &with(name, "a"), true);
            check(&recipe, &with(name, "a"), &with(name, "b"), same);
        }
    }
}
