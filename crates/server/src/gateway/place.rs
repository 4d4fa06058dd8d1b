//! Places in a request where a key of ours can stand: a header, a field of the body, a parameter.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use bytes::Bytes;
use hyper::header::{HeaderName, HeaderValue};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use super::sending::{Sending, is_json};
use super::template::percent_encode;
use crate::http::request::pairs;

/// A place in a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Header(HeaderName),
    /// A path of fields.
    Body(Vec<String>),
    /// The same, but for the first one in a JSON text, where the body is a form.
    BodyWithJson(Vec<String>),
    Query(String),
}

impl Place {
    pub(crate) fn header(name: &str) -> Result<Self, String> {
        HeaderName::from_bytes(name.as_bytes())
            .map(Self::Header)
            .map_err(|_| format!("`{name}` is not a header"))
    }

    pub(crate) fn read(
        header: Option<&str>,
        body: Option<&str>,
        query: Option<&str>,
    ) -> Result<Self, String> {
        match (header, body, query) {
            (Some(name), None, None) => Self::header(name),
            (None, Some(path), None) => {
                let steps: Vec<String> = path.split('.').map(str::to_owned).collect();
                match steps.iter().any(String::is_empty) || steps.len() > 8 {
                    true => Err(format!("`{path}` is not a field; write metadata.key")),
                    false => Ok(Self::Body(steps)),
                }
            }
            (None, None, Some(name)) if !name.is_empty() => Ok(Self::Query(name.to_owned())),
            _ => Err("exactly one of header, body and query is needed".to_owned()),
        }
    }

    /// Where the body is a form, its first field holds JSON.
    pub(crate) fn with_json_in_forms(self) -> Self {
        match self {
            Self::Body(steps) => Self::BodyWithJson(steps),
            other => other,
        }
    }

    /// Writes a text there. An error: there is no such place in this request.
    pub(crate) fn write(&self, sending: &mut Sending, text: &str) -> Result<(), String> {
        match self {
            Self::Header(name) => {
                let value = HeaderValue::from_str(text)
                    .map_err(|_| format!("the key cannot be in the header {name}"))?;
                sending.headers.insert(name.clone(), value);
                Ok(())
            }
            Self::Query(name) => {
                sending.change_query(|before| {
                    let is_other = |part: &&str| !part.is_empty() && part.split('=').next() != Some(name);
                    let mut query = String::new();
                    for other in before.split('&').filter(is_other) {
                        query.push_str(other);
                        query.push('&');
                    }
                    percent_encode(name, &mut query);
                    query.push('=');
                    percent_encode(text, &mut query);
                    query
                });
                Ok(())
            }
            Self::Body(_) | Self::BodyWithJson(_) => self.write_value(sending, Value::from(text)),
        }
    }

    /// Writes a value to a field of the body; a form has texts only.
    fn write_value(&self, sending: &mut Sending, value: Value) -> Result<(), String> {
        let (Self::Body(steps) | Self::BodyWithJson(steps)) = self else {
            return Err("this is not a field of the body".to_owned());
        };
        let media_type = sending.media_type();
        sending.body = if is_json(&media_type) {
            with_json_field(&sending.body, steps, value)?
        } else if media_type != "application/x-www-form-urlencoded" {
            return Err(format!("a body of type `{media_type}` has no fields; send JSON or a form"));
        } else if let (Self::BodyWithJson(_), [first, rest @ ..]) = (self, steps.as_slice())
            && !rest.is_empty()
        {
            let before = form_field(&sending.body, first)?.unwrap_or_default();
            let text = with_json_field(before.as_bytes(), rest, value)
                .map_err(|why| format!("the field `{first}` of the form: {why}"))?;
            with_form_field(&sending.body, &steps[..1], &String::from_utf8_lossy(&text))?
        } else {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            with_form_field(&sending.body, steps, &text)?
        };
        Ok(())
    }
}

/// Fields of the body that must say something fixed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fixed(Vec<(Place, Value)>);

impl Fixed {
    pub(crate) fn read(written: &BTreeMap<String, Value>) -> Result<Self, String> {
        let field =
            |(path, value): (&String, &Value)| Ok((Place::read(None, Some(path), None)?, value.clone()));
        Ok(Self(written.iter().map(field).collect::<Result<_, String>>()?))
    }

    pub(crate) fn with_json_in_forms(self) -> Self {
        Self(self.0.into_iter().map(|(place, value)| (place.with_json_in_forms(), value)).collect())
    }

    pub(crate) fn write(&self, sending: &mut Sending) -> Result<(), String> {
        self.0.iter().try_for_each(|(place, value)| place.write_value(sending, value.clone()))
    }
}

/// A field of a form, if it is there once.
fn form_field(body: &[u8], name: &str) -> Result<Option<String>, String> {
    let form = std::str::from_utf8(body).map_err(|_| "the form is not text".to_owned())?;
    let mut found = pairs(form).into_iter().filter(|(own, _)| own == name).map(|(_, value)| value);
    match (found.next(), found.next()) {
        (first, None) => Ok(first),
        _ => Err(format!("the form has `{name}` twice")),
    }
}

fn with_form_field(body: &[u8], steps: &[String], text: &str) -> Result<Bytes, String> {
    let before = std::str::from_utf8(body).map_err(|_| "the form is not text".to_owned())?;
    let mut name = steps[0].clone();
    steps[1..].iter().for_each(|step| name.push_str(&format!("[{step}]")));
    let (mut encoded, mut field) = (String::new(), String::new());
    percent_encode(&name, &mut encoded);
    percent_encode(text, &mut field);
    let is_other = |part: &&str| {
        let own = part.split('=').next().unwrap_or_default();
        !part.is_empty() && own != name && !own.eq_ignore_ascii_case(&encoded)
    };
    let mut form: Vec<String> = before.split('&').filter(is_other).map(str::to_owned).collect();
    form.push(format!("{encoded}={field}"));
    Ok(form.join("&").into())
}

/// A JSON text with a value at a place. The rest stays as it is written: read and written again, numbers with more digits than a
/// machine has would become other ones.
fn with_json_field(body: &[u8], steps: &[String], value: Value) -> Result<Bytes, String> {
    let text = std::str::from_utf8(body).map_err(|_| "the body is not JSON".to_owned())?;
    let text = if text.is_empty() { "{}" } else { text };
    let (at, replacement) = replacement(text, steps, &value).map_err(|unfit| match unfit {
        Unfit::NoJson => "the body is not JSON".to_owned(),
        Unfit::NoPlace => format!("there is no place for `{}` in the body", steps.join(".")),
        Unfit::Twice(name) => format!("the body has `{name}` twice, and readers differ in which they take"),
    })?;
    Ok([&text[..at.start], &replacement, &text[at.end..]].concat().into())
}

/// Why a value cannot be put into a JSON text.
enum Unfit {
    NoJson,
    NoPlace,
    Twice(String),
}

/// Which part of a JSON text becomes what.
fn replacement(text: &str, steps: &[String], value: &Value) -> Result<(Range<usize>, String), Unfit> {
    let Some((step, rest)) = steps.split_first() else { return Ok((0..text.len(), value.to_string())) };
    let whole: &RawValue = serde_json::from_str(text).map_err(|_| Unfit::NoJson)?;
    if !whole.get().starts_with('{') {
        return Err(Unfit::NoPlace);
    }
    let Members(members) = serde_json::from_str(text).map_err(|_| Unfit::NoJson)?;
    let mut same = members.iter().filter(|(name, _)| name == step).map(|(_, member)| member.get());
    match (same.next(), same.next()) {
        (Some(_), Some(_)) => Err(Unfit::Twice(step.clone())),
        (Some(member), None) => {
            let start = member.as_ptr() as usize - text.as_ptr() as usize;
            let (at, replacement) = replacement(member, rest, value)?;
            Ok((start + at.start..start + at.end, replacement))
        }
        (None, _) => {
            let nested = rest
                .iter()
                .rev()
                .fold(value.clone(), |inner, step| Value::from_iter([(step.clone(), inner)]));
            let end = text.rfind('}').ok_or(Unfit::NoJson)?;
            let comma = if members.is_empty() { "" } else { "," };
            Ok((end..end, format!("{comma}{}:{nested}", Value::from(step.as_str()))))
        }
    }
}

/// The members of an object as they are written.
struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct All;
        impl<'de> Visitor<'de> for All {
            type Value = Vec<(String, &'de RawValue)>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(members)
            }
        }
        deserializer.deserialize_map(All).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::{CONTENT_TYPE, HeaderMap};

    fn check(
        place: &Place,
        media_type: &'static str,
        body: &'static str,
        expected: Result<(&str, Option<&str>), ()>,
    ) {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
        let query = Some("requestid=old&a=1".to_owned());
        let mut sending = Sending {
            method: hyper::Method::POST,
            path: "/".to_owned(),
            query,
            whole_query: None,
            headers,
            body: body.into(),
            callback: None,
        };
        let written = place.write(&mut sending, "k 1").map_err(drop);
        let got = written.map(|()| (String::from_utf8_lossy(&sending.body).into_owned(), sending.query));
        let expected = expected.map(|(body, query)| (body.to_owned(), query.map(str::to_owned)));
        assert_eq!(got, expected);
    }

    #[test]
    fn a_key_is_written_where_the_destination_wants_it() {
        let query = Some("requestid=old&a=1");
        let body = Place::read(None, Some("metadata.key"), None).expect("it is right");
        check(&body, "application/json", r#"{"a":1}"#, Ok((r#"{"a":1,"metadata":{"key":"k 1"}}"#, query)));
        check(&body, "application/json", "", Ok((r#"{"metadata":{"key":"k 1"}}"#, query)));
        check(&body, "application/json", r#"{"metadata":7}"#, Err(()));
        check(&body, "application/json", "[1]", Err(()));
        check(&body, "text/plain", "x", Err(()));
        let form = "application/x-www-form-urlencoded";
        check(&body, form, "a=1&metadata[key]=old", Ok(("a=1&metadata%5Bkey%5D=k%201", query)));
        let text = body.with_json_in_forms();
        check(&text, "application/json", r#"{"a":1}"#, Ok((r#"{"a":1,"metadata":{"key":"k 1"}}"#, query)));
        check(&text, form, "a=1", Ok(("a=1&metadata=%7B%22key%22%3A%22k%201%22%7D", query)));
        let both = "a=1&metadata=%7B%22b%22%3A2%2C%22key%22%3A%22k%201%22%7D";
        check(&text, form, "metadata=%7B%22b%22%3A2%7D&a=1", Ok((both, query)));
        check(&text, form, "metadata=text", Err(()));
        check(&text, form, "metadata=%7B%7D&metadata=%7B%7D", Err(()));
        let parameter = Place::read(None, None, Some("requestid")).expect("it is right");
        check(&parameter, "text/plain", "x", Ok(("x", Some("a=1&requestid=k%201"))));
        assert!(Place::read(Some("a"), Some("b"), None).is_err());
    }

    #[test]
    fn what_a_key_is_written_beside_stays_as_it_was() {
        let body = Place::read(None, Some("metadata.key"), None).expect("it is right");
        for (before, after) in [
            (
                r#"{ "sum": 1234567890.123456789, "id": 18446744073709551617, "a": 1.0 }"#,
                r#"{ "sum": 1234567890.123456789, "id": 18446744073709551617, "a": 1.0 ,"metadata":{"key":"k 1"}}"#,
            ),
            (
                r#"{"z":1,"metadata": {"key" : 7, "b":2e3},"a":"}"}"#,
                r#"{"z":1,"metadata": {"key" : "k 1", "b":2e3},"a":"}"}"#,
            ),
            (r#"{"meta\u0064ata":{ }}"#, r#"{"meta\u0064ata":{ "key":"k 1"}}"#),
            ("\n{}\n", "\n{\"metadata\":{\"key\":\"k 1\"}}\n"),
            (r#"{"a":1,"a":2}"#, r#"{"a":1,"a":2,"metadata":{"key":"k 1"}}"#),
        ] {
            check(&body, "application/json", before, Ok((after, Some("requestid=old&a=1"))));
        }
        for unfit in [r#"{"metadata":{},"metadata":{}}"#, r#"{"metadata":null}"#, "{} {}", "{\"a\":}", "{"] {
            check(&body, "application/json", unfit, Err(()));
        }
    }
}
