//! What two requests under one key are compared by (S4). The recipe is stored with the fingerprint, so that a route whose
//! recipe changes still recognises what it knew before.

use serde_json::Value;
use twicesafe_core::{canonical_json, canonical_json_of};
use twicesafe_ledger::{Fingerprint, Recipe};

use super::expression::{Expression, OF_REQUEST, Sight};
use super::sending::{Sending, is_json};

/// Everything: method, path, sorted query, type and body.
const WHOLE: &str = "http";
/// Only what these expressions give.
const ONLY: &str = "http only ";
/// Everything without these parts.
const WITHOUT: &str = "http without ";

/// The recipe of a route.
pub(crate) fn recipe(only: Option<&[String]>, without: Option<&[String]>) -> Recipe {
    let listed = |texts: &[String]| Value::from(texts).to_string();
    match (only, without) {
        (Some(only), _) => Recipe::named(&format!("{ONLY}{}", listed(only))),
        (None, Some(without)) => Recipe::named(&format!("{WITHOUT}{}", listed(without))),
        (None, None) => Recipe::named(WHOLE),
    }
}

/// Whether a recipe can be followed for a request: what it looks at must be there.
pub(crate) fn check(recipe: &Recipe, view: &Value) -> Result<(), String> {
    let Some(list) = recipe.as_str().strip_prefix(ONLY) else { return Ok(()) };
    let texts: Vec<String> = serde_json::from_str(list).map_err(|error| error.to_string())?;
    let sight = Sight { request: Some(view), ..Sight::default() };
    texts.iter().try_for_each(|text| Expression::parse(text, OF_REQUEST)?.value(&sight).map(drop))
}

/// The fingerprint of a request by a recipe; `None`: the recipe is not one of the gateway's, or cannot be followed here.
pub(crate) fn made(recipe: &Recipe, sending: &Sending, view: &Value) -> Option<Fingerprint> {
    let text = recipe.as_str();
    let bytes = if text == WHOLE {
        whole(sending, view)
    } else if let Some(list) = text.strip_prefix(ONLY) {
        let texts: Vec<String> = serde_json::from_str(list).ok()?;
        let sight = Sight { request: Some(view), ..Sight::default() };
        let value = |text: &String| Expression::parse(text, OF_REQUEST).ok()?.value(&sight).ok();
        let values: Vec<Value> = texts.iter().map(value).collect::<Option<_>>()?;
        canonical(&Value::Array(values))
    } else {
        let texts: Vec<String> = serde_json::from_str(text.strip_prefix(WITHOUT)?).ok()?;
        let mut view = view.clone();
        // Headers are not compared, but for the type of the body.
        let media_type = sending.media_type();
        if let Value::Object(members) = &mut view {
            members.remove("headers");
            members.remove("params");
            members.insert("type".to_owned(), media_type.into());
            if members.get("body").is_some_and(Value::is_null) {
                members.insert("bytes".to_owned(), blake3::hash(&sending.body).to_hex().as_str().into());
            }
        }
        texts.iter().for_each(|text| remove(&mut view, text));
        canonical(&view)
    };
    Some(Fingerprint::of(recipe, &bytes))
}

/// Whether a part can be left out: a plain path below the body or the query.
pub(crate) fn is_part(text: &str) -> bool {
    let below = |root: &str| text.strip_prefix(root).is_some_and(|rest| !rest.is_empty());
    (below("request.body.") || below("request.query."))
        && text
            .split('.')
            .all(|step| !step.is_empty() && step.chars().all(|c| c.is_alphanumeric() || "_-$".contains(c)))
}

fn remove(view: &mut Value, path: &str) {
    let mut steps: Vec<&str> = path.split('.').skip(1).collect();
    let Some(last) = steps.pop() else { return };
    let mut here = view;
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

fn whole(sending: &Sending, view: &Value) -> Vec<u8> {
    let media_type = sending.media_type();
    let mut query: Vec<&str> =
        sending.query.as_deref().unwrap_or_default().split('&').filter(|part| !part.is_empty()).collect();
    query.sort_unstable();
    let mut all = Vec::with_capacity(sending.body.len() + 128);
    let mut put = |field: &[u8]| {
        all.extend_from_slice(&(field.len() as u64).to_be_bytes());
        all.extend_from_slice(field);
    };
    put(sending.method.as_str().as_bytes());
    put(sending.path.as_bytes());
    put(query.join("&").as_bytes());
    put(media_type.as_bytes());
    let canonical = || match &view["body"] {
        // Read already.
        body @ (Value::Object(_) | Value::Array(_)) => canonical_json_of(body, &sending.body),
        _ => canonical_json(&sending.body),
    };
    match is_json(&media_type).then(canonical).flatten() {
        Some(canonical) => put(&canonical),
        None => match boundary(sending) {
            Some(boundary) => put(&without(&sending.body, boundary.as_bytes())),
            None => put(&sending.body),
        },
    }
    all
}

/// What separates the parts of a multipart body: made anew by every client for every request.
fn boundary(sending: &Sending) -> Option<String> {
    let text = sending.headers.get(hyper::header::CONTENT_TYPE)?.to_str().ok()?;
    text.to_ascii_lowercase().starts_with("multipart/").then_some(())?;
    let named =
        text.split(';').map(str::trim).find(|part| part.to_ascii_lowercase().starts_with("boundary="))?;
    Some(named[9..].trim_matches('"').to_owned()).filter(|boundary| !boundary.is_empty())
}

fn without(body: &[u8], word: &[u8]) -> Vec<u8> {
    let mut rest = body;
    let mut left = Vec::with_capacity(body.len());
    while let Some(at) = rest.windows(word.len()).position(|window| window == word) {
        left.extend_from_slice(&rest[..at]);
        rest = &rest[at + word.len()..];
    }
    left.extend_from_slice(rest);
    left
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};

    fn sending(media_type: &str, query: &str, body: &str) -> Sending {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_str(media_type).expect("it is text"));
        Sending {
            method: hyper::Method::POST,
            path: "/x".to_owned(),
            query: Some(query.to_owned()),
            headers,
            body: body.to_owned().into(),
            callback: None,
        }
    }

    fn check(recipe: &Recipe, left: &Sending, right: &Sending, same: bool) {
        let of = |sending: &Sending| made(recipe, sending, &sending.view(&[])).expect("it can be followed");
        assert_eq!(of(left) == of(right), same, "{left:?} {right:?}");
    }

    #[test]
    fn s4_the_whole_request_is_compared_in_canonical_form() {
        let recipe = recipe(None, None);
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
        let part = |boundary: &str, text: &str| {
            sending(
                &format!("multipart/form-data; boundary={boundary}"),
                "",
                &format!("--{boundary}\r\n\r\n{text}\r\n--{boundary}--"),
            )
        };
        check(&recipe, &part("abc", "same"), &part("xyz123", "same"), true);
        check(&recipe, &part("abc", "same"), &part("abc", "other"), false);
    }

    #[test]
    fn s4_a_route_may_compare_less() {
        let texts = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let only = recipe(Some(&texts(&["request.body.amount"])), None);
        let without = recipe(None, Some(&texts(&["request.body.sent_at", "request.body.meta.trace"])));
        let one = sending("application/json", "", r#"{"amount":1,"sent_at":"a","meta":{"trace":1,"x":2}}"#);
        let two = sending("application/json", "", r#"{"amount":1,"sent_at":"b","meta":{"trace":9,"x":2}}"#);
        let three = sending("application/json", "", r#"{"amount":2,"sent_at":"a","meta":{"trace":1,"x":2}}"#);
        check(&only, &one, &two, true);
        check(&only, &one, &three, false);
        check(&without, &one, &two, true);
        check(&without, &one, &three, false);
        assert!(
            is_part("request.body.sent_at")
                && !is_part("request.headers.date")
                && !is_part("request.body.a[0]")
        );
        assert!(made(&Recipe::json(), &one, &one.view(&[])).is_none());
    }
}
