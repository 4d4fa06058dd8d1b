//! Refuses requests that a destination could take for other ones than were guarded (S46): methods that are not known, headers
//! and parameters that name another method or another address, and NUL.

use std::collections::BTreeMap;

use hyper::Method;
use hyper::header::{CONTENT_TYPE, HeaderName};
use serde::de::IgnoredAny;
use twicesafe_ledger::Code;

use super::sending::{is_json, media_type};
use crate::http::request::pairs;
use crate::http::{Problem, Request};

/// The methods that are passed on.
const METHODS: [Method; 7] =
    [Method::GET, Method::HEAD, Method::OPTIONS, Method::POST, Method::PUT, Method::PATCH, Method::DELETE];
pub(super) const METHODS_SHOWN: &str = "GET, HEAD, OPTIONS, POST, PUT, PATCH, DELETE";

/// Headers by which servers take another method, or another address, than the request line has. Some servers read `_` as `-`.
const OVERRIDING_HEADERS: [&str; 14] = [
    "x-http-method-override",
    "x-http-method",
    "x-method-override",
    "x-original-method",
    "x-override-method",
    "x-original-url",
    "x-original-uri",
    "x-original-path",
    "x-rewrite-url",
    "x-rewrite-uri",
    "x-override-url",
    "x-proxy-url",
    "x-http-destinationurl",
    "request-uri",
];

/// Headers that proxies in front of this server add by themselves, and that make another address of one elsewhere. They are not
/// passed on.
const OF_THE_WAY_HERE: [&str; 6] = [
    "x-forwarded-host",
    "x-forwarded-method",
    "x-forwarded-path",
    "x-forwarded-prefix",
    "x-forwarded-uri",
    "x-original-host",
];

/// Parameters of a query, a form or a JSON object that name another method. The overriding headers are also read there.
const OVERRIDING_PARAMETERS: [&str; 2] = ["_method", "_httpmethod"];

/// Most bytes of a parameter's name that are looked at: no name of a method is longer.
const NAME_BYTES_MAX: usize = 256;

/// Whether a method is passed on. Methods are told apart by case.
pub(super) fn is_known(method: &Method) -> bool {
    METHODS.contains(method)
}

/// Whether servers take a header for another method or another address.
pub(crate) fn is_overriding(name: &HeaderName) -> bool {
    is_in(&OVERRIDING_HEADERS, name.as_str())
}

/// Whether a header speaks of the way to this server.
pub(super) fn is_of_the_way_here(name: &HeaderName) -> bool {
    is_in(&OF_THE_WAY_HERE, name.as_str())
}

fn is_in(list: &[&str], name: &str) -> bool {
    let same = |byte: u8| if byte == b'_' { b'-' } else { byte };
    let is_it = |other: &str| {
        other.len() == name.len() && other.bytes().zip(name.bytes()).all(|(other, own)| other == same(own))
    };
    // All of them begin with one of two letters, and few other headers do.
    name.starts_with(['x', 'r']) && list.iter().any(|other| is_it(other))
}

/// Refuses a head that a destination could take for another one.
pub(super) fn check_head(request: &Request) -> Result<(), Problem> {
    if !is_known(&request.method) {
        return Err(crate::api::wrong_method(METHODS_SHOWN));
    }
    if let Some(name) = request.headers.keys().find(|name| is_overriding(name)) {
        return Err(another(format!("the header `{name}` makes another request of this one")));
    }
    if request.headers.get_all(CONTENT_TYPE).iter().count() > 1 {
        return Err(another(
            "it has more than one Content-Type, and servers differ in which they take".to_owned(),
        ));
    }
    let query = request.uri.query().unwrap_or_default();
    if [request.path(), query].iter().any(|text| text.contains("%00")) {
        return Err(another("its address has a NUL (`%00`), where some servers end it".to_owned()));
    }
    check_names(pairs(query).into_iter().map(|(name, _)| name), "query")
}

/// Refuses a body that names another method.
pub(super) fn check_body(request: &Request) -> Result<(), Problem> {
    let body = &request.body;
    if body.is_empty() {
        return Ok(());
    }
    let media_type = media_type(&request.headers);
    // Some servers take a body without a type for a form.
    if media_type.starts_with("application/x-www-form-urlencoded") || media_type.is_empty() {
        let text = String::from_utf8_lossy(body);
        check_names(pairs(&text).into_iter().map(|(name, _)| name), "form")?;
    }
    if media_type.starts_with("multipart/") {
        return check_names(parts_named(body), "form");
    }
    let begins = body.trim_ascii_start().first();
    if (is_json(&media_type) || media_type.is_empty() || begins == Some(&b'{'))
        && let Ok(members) = serde_json::from_slice::<BTreeMap<String, IgnoredAny>>(body)
    {
        return check_names(members.into_keys(), "body");
    }
    Ok(())
}

/// What follows `name=` in the parts of a form.
fn parts_named(body: &[u8]) -> impl Iterator<Item = String> {
    const NAME: &[u8] = b"name=";
    let at = |from: usize| from + NAME.len();
    let ends = |byte: &u8| matches!(byte, b'"' | b'\r' | b'\n' | b';');
    body.windows(NAME.len()).enumerate().filter(|(_, window)| window.eq_ignore_ascii_case(NAME)).map(
        move |(from, _)| {
            let value = &body[at(from)..];
            let value = &value[..value.len().min(NAME_BYTES_MAX)];
            let value = value.strip_prefix(b"\"").unwrap_or(value);
            let end = value.iter().position(ends).unwrap_or(value.len());
            // Some servers drop backslashes in a quoted name.
            String::from_utf8_lossy(&value[..end]).replace('\\', "")
        },
    )
}

fn check_names(names: impl Iterator<Item = String>, place: &str) -> Result<(), Problem> {
    match names.into_iter().find(|name| names_a_method(name)) {
        None => Ok(()),
        Some(name) => {
            Err(another(format!("`{}` in its {place} makes another request of this one", name.trim())))
        }
    }
}

/// Whether servers read a parameter as the method. Some of them take dots and blanks in names for `_`, and ignore brackets.
fn names_a_method(name: &str) -> bool {
    let name = name.split('[').next().unwrap_or_default().trim();
    if name.len() > 32 {
        return false;
    }
    let plain = |c: char| if matches!(c, '.' | ' ' | '-') { '_' } else { c.to_ascii_lowercase() };
    let plain: String = name.chars().map(plain).collect();
    let is_header = |header: &str| header.contains("method") && header.replace('-', "_") == plain;
    OVERRIDING_PARAMETERS.contains(&plain.as_str())
        || OVERRIDING_HEADERS.iter().any(|header| is_header(header))
}

/// The request could be taken for another one.
pub(super) fn another(why: String) -> Problem {
    let hint = "Send the method, the path and the body that are meant, as the destination has them, and leave out what names others.";
    Problem::new(Code::CouldBeAnother, why, hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s46_headers_that_make_another_request_are_known_with_either_stroke() {
        for (name, expected) in [
            ("x-http-method-override", true),
            ("x_http_method_override", true),
            ("x-http_method", true),
            ("x-original-url", true),
            ("x-rewrite-url", true),
            ("request-uri", true),
            ("x-request-id", false),
            ("x-http-method-overrides", false),
            ("x-forwarded-for", false),
            ("accept", false),
        ] {
            assert_eq!(is_overriding(&HeaderName::from_static(name)), expected, "{name}");
        }
        assert!(is_of_the_way_here(&HeaderName::from_static("x-forwarded-uri")));
    }

    #[test]
    fn s46_parameters_that_name_a_method_are_known_as_servers_write_them() {
        for name in [
            "_method",
            "_METHOD",
            " _method",
            ".method",
            "_HttpMethod",
            "X-HTTP-Method-Override",
            "_method[]",
        ] {
            assert!(names_a_method(name), "{name}");
        }
        for name in ["method", "payment_method", "_methods", "x-original-url", ""] {
            assert!(!names_a_method(name), "{name}");
        }
        let form = b"--b\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n--b\r\ncontent-disposition: form-data; \
            NAME=_method\r\n\r\nDELETE\r\n--b--";
        assert_eq!(parts_named(form).collect::<Vec<_>>(), ["a", "_method"]);
    }
}
