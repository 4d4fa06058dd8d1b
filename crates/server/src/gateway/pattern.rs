//! Which requests a route is about: `POST /contacts/{id}/notes`.

use std::fmt;

use hyper::Method;

use super::bypass::{METHODS_SHOWN, is_known};
use super::loose::{self, loose_path};

/// Longest path that is looked at.
pub(crate) const PATH_BYTES_MAX: usize = 4096;

/// Method and path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pattern {
    /// None: any.
    method: Option<Method>,
    steps: Vec<Step>,
    /// Whatever follows.
    is_open: bool,
    /// Its steps as a destination could read them that is less strict (S46).
    loose: Vec<Step>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Text(String),
    Parameter(String),
}

impl Pattern {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let wrong = |why: &str| Err(format!("`{text}` {why}; write POST /contacts/{{id}}"));
        let Some((method, path)) = text.trim().split_once(char::is_whitespace) else {
            return wrong("is not a method and a path");
        };
        let method = match method {
            "ANY" | "*" => None,
            name if name.chars().all(|c| c.is_ascii_uppercase()) => {
                let method = Method::from_bytes(name.as_bytes()).ok().filter(is_known);
                Some(method.ok_or_else(|| {
                    format!("`{name}` is not a method that is passed on; those are {METHODS_SHOWN}")
                })?)
            }
            _ => return wrong("does not begin with a method in capital letters, or ANY"),
        };
        let Some(path) = path.trim().strip_prefix('/') else { return wrong("has a path without a slash") };
        // As of a request: with a slash at the end it is no other address.
        let path = path.strip_suffix('/').unwrap_or(path);
        let mut steps: Vec<Step> = Vec::new();
        let mut is_open = false;
        for step in path.split('/') {
            if is_open {
                return wrong("has something after *");
            }
            match step.strip_prefix('{').map(|rest| rest.strip_suffix('}')) {
                Some(Some(name))
                    if !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '_') =>
                {
                    steps.push(Step::Parameter(name.to_owned()));
                }
                Some(_) => return wrong("has braces that hold no name"),
                None if step == "*" => is_open = true,
                None if step.contains(['*', '?', '#', '{', '}']) => {
                    return wrong("has letters that a path cannot have");
                }
                None => steps.push(Step::Text(step.to_owned())),
            }
        }
        let loosely = |step: &Step| match step {
            Step::Text(text) => loose_path(text).into_iter().map(Step::Text).collect(),
            Step::Parameter(_) => vec![step.clone()],
        };
        let loose = steps.iter().flat_map(loosely).collect();
        Ok(Self { method, steps, is_open, loose })
    }

    /// Whether a destination that is less strict could take a request for one of these, by the [`loose_path`] of its path.
    pub(crate) fn could_be(&self, method: &Method, path: &[String]) -> bool {
        let has_room = match self.is_open {
            true => self.loose.len() <= path.len(),
            false => self.loose.len() == path.len(),
        };
        let is_step = |(own, text): (&Step, &String)| match own {
            Step::Text(own) => own == text,
            Step::Parameter(_) => true,
        };
        self.method.as_ref().is_none_or(|own| own == method)
            && has_room
            && self.loose.iter().zip(path).all(is_step)
    }

    /// Whether it says all of a path in words: one that matches has no other reading.
    pub(crate) fn is_all_words(&self) -> bool {
        !self.is_open && self.steps.iter().all(|step| matches!(step, Step::Text(_)))
    }

    /// Whether it says in words whatever the other does. Then an operator tells the two apart on purpose.
    pub(crate) fn says_as_much_as(&self, other: &Self) -> bool {
        let says = |(own, other): (&Step, &Step)| {
            matches!(own, Step::Text(_)) || matches!(other, Step::Parameter(_))
        };
        self.steps.len() >= other.steps.len() && self.steps.iter().zip(&other.steps).all(says)
    }

    /// The values of its parameters, if the request is one of these.
    pub(crate) fn parameters(&self, method: &Method, path: &str) -> Option<Vec<(String, String)>> {
        if self.method.as_ref().is_some_and(|own| own != method) {
            return None;
        }
        // A slash at the end makes no other address of it, or it would be a way around a route.
        let path = path.strip_suffix('/').filter(|path| !path.is_empty()).unwrap_or(path);
        let mut given = path.strip_prefix('/')?.split('/');
        let mut parameters = Vec::new();
        for step in &self.steps {
            let text = given.next()?;
            match step {
                Step::Text(own) if own == text => {}
                Step::Parameter(name) if !text.is_empty() => parameters.push((name.clone(), text.to_owned())),
                _ => return None,
            }
        }
        (self.is_open || given.next().is_none()).then_some(parameters)
    }

    /// Whether every request that the other is about is one of these.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        let has_room = match self.is_open {
            true => self.steps.len() <= other.steps.len(),
            false => self.steps.len() == other.steps.len() && !other.is_open,
        };
        let is_step = |(own, other): (&Step, &Step)| match (own, other) {
            (Step::Text(own), Step::Text(other)) => own == other,
            (Step::Text(_), Step::Parameter(_)) => false,
            (Step::Parameter(_), Step::Text(other)) => !other.is_empty(),
            (Step::Parameter(_), Step::Parameter(_)) => true,
        };
        (self.method.is_none() || self.method == other.method)
            && has_room
            && self.steps.iter().zip(&other.steps).all(is_step)
    }

    /// What writes to its addresses would be called without a route.
    pub(crate) fn made_action(&self) -> MadeAction {
        let steps = self.steps.iter().map(|step| match step {
            Step::Text(text) => Some(text.as_str()),
            Step::Parameter(_) => None,
        });
        let steps: Vec<Option<&str>> = steps.collect();
        let only: Option<Vec<&str>> = steps.iter().copied().collect();
        if let (Some(method), Some(only), false) = (&self.method, only, self.is_open) {
            return MadeAction(super::guarded::made_action(method, &format!("/{}", only.join("/"))));
        }
        let text = |step: &Option<&str>| step.map_or_else(|| ANY.to_owned(), super::guarded::made_step);
        let method =
            self.method.as_ref().map_or(ANY.to_owned(), |method| method.as_str().to_ascii_lowercase());
        let steps = std::iter::once(method).chain(steps.iter().map(text));
        let steps: Vec<String> = steps.chain(self.is_open.then(|| REST.to_owned())).collect();
        MadeAction(steps.join("."))
    }

    /// Whether what is posted there may end with that step.
    pub(crate) fn may_post_to(&self, last: &str) -> bool {
        match self.steps.last() {
            _ if self.method.as_ref().is_some_and(|method| *method != Method::POST) => false,
            _ if self.is_open => true,
            Some(Step::Text(text)) => text == last,
            Some(Step::Parameter(_)) => true,
            None => false,
        }
    }

    /// Whether it is about something that only reads, by its method.
    pub(crate) fn reads(&self) -> bool {
        self.method.as_ref().is_some_and(is_read)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.method.as_ref().map_or("ANY", Method::as_str))?;
        f.write_str(" ")?;
        for step in &self.steps {
            match step {
                Step::Text(text) => write!(f, "/{text}")?,
                Step::Parameter(name) => write!(f, "/{{{name}}}")?,
            }
        }
        f.write_str(if self.is_open { "/*" } else { "" })
    }
}

/// What stands for any step, and for whatever follows.
const ANY: &str = "*";
const REST: &str = "**";

/// What writes without a route are called: a name, or many with something in common: `post.contacts.*.notes`.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct MadeAction(String);

impl MadeAction {
    /// Whether it is that one and no other.
    pub(crate) fn is(&self, action: &str) -> bool {
        self.0 == action
    }

    /// Whether that is one of them.
    pub(crate) fn has(&self, action: &str) -> bool {
        let mut given = action.split('.');
        for step in self.0.split('.') {
            match (step, given.next()) {
                (REST, _) => return true,
                (ANY, Some(_)) => {}
                (step, Some(given)) if step == given => {}
                _ => return false,
            }
        }
        given.next().is_none()
    }
}

/// A path with a parameter in place of each step that looks like the name of one thing: `/contacts/881/notes` is `/contacts/{id}/notes`.
pub(crate) fn folded(path: &str) -> String {
    let mut number = 0;
    let fold = |step: &str| match looks_like_an_id(step) {
        false => step.to_owned(),
        true => {
            number += 1;
            if number == 1 { "{id}".to_owned() } else { format!("{{id{number}}}") }
        }
    };
    path.split('/').map(fold).collect::<Vec<_>>().join("/")
}

/// Numbers, UUIDs, `cus_9s6XKzkNRiz8i3`, addresses; and not `v1`, `2024-10`, `documents:commit`, `verify_2fa` or words.
fn looks_like_an_id(step: &str) -> bool {
    let digits = |text: &str| text.bytes().filter(u8::is_ascii_digit).count();
    let is_chance = |text: &str, bytes_min: usize| {
        text.len() >= bytes_min && digits(text) >= 2 && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
    };
    let is_only_digits = !step.is_empty() && digits(step) == step.len();
    let is_mostly_digits = step.len() >= 16 && digits(step) >= step.len() / 4;
    let has_prefix = step.rsplit_once('_').is_some_and(|(_, rest)| is_chance(rest, 8));
    let is_no_name = step.contains(['@', '%', '*', '?', '#', '{', '}']);
    is_only_digits || is_mostly_digits || is_chance(step, 15) || has_prefix || is_no_name
}

/// Methods that change nothing.
pub(crate) fn is_read(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE)
}

/// A path in one form: letters that need not be encoded are not. `None`: it would leave its place, or is too long.
pub(crate) fn canonical_path(path: &str) -> Option<String> {
    if path.len() > PATH_BYTES_MAX || path.contains('\\') {
        return None;
    }
    let bytes = path.as_bytes();
    let mut canonical = String::with_capacity(path.len());
    let mut at = 0;
    while at < bytes.len() {
        let decoded = (bytes[at] == b'%')
            .then(|| bytes.get(at + 1..at + 3))
            .flatten()
            .and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok());
        match decoded {
            Some(byte) if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) => {
                canonical.push(char::from(byte));
                at += 3;
            }
            Some(byte) => {
                canonical.push_str(&format!("%{byte:02X}"));
                at += 3;
            }
            None if bytes[at] == b'%' => return None,
            None => {
                canonical.push(char::from(bytes[at]));
                at += 1;
            }
        }
    }
    // Some servers cut steps at `;`, and decode slashes before they look at dots.
    let leaves = |step: &str| {
        let dots = step.replace("%2F", "/").replace("%5C", "/");
        step.contains(';') || dots.split('/').any(|part| part == "." || part == "..")
    };
    // Many trim what they are asked for: a step that is nothing but blanks is an empty one.
    let has_empty_steps = canonical.contains("//") || canonical.split('/').any(loose::is_blank);
    (!canonical.split('/').any(leaves) && !has_empty_steps && canonical.is_ascii()).then_some(canonical)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_that_stands_behind_one_for_more_is_known() {
        for (first, second, covers) in [
            ("POST /*", "POST /s", true),
            ("POST /*", "POST /", true),
            ("ANY /*", "POST /a/{id}/*", true),
            ("POST /s", "POST /s", true),
            ("POST /a/{x}", "POST /a/{y}", true),
            ("POST /a/{x}", "POST /a/b", true),
            ("POST /a/*", "POST /a", true),
            ("POST /a/{x}", "POST /a/", false),
            ("POST /a/", "POST /a", true),
            ("POST /a/b", "POST /a/{x}", false),
            ("POST /a/{x}", "POST /a/*", false),
            ("POST /a/{x}", "POST /a/b/c", false),
            ("POST /*", "ANY /s", false),
            ("PUT /*", "POST /s", false),
        ] {
            let [first, second] = [first, second].map(|text| Pattern::parse(text).expect(text));
            assert_eq!(first.covers(&second), covers, "{first:?} {second:?}");
        }
    }

    #[test]
    fn addresses_of_single_things_are_folded() {
        for (path, expected) in [
            ("/contacts", "/contacts"),
            ("/contacts/881/notes", "/contacts/{id}/notes"),
            ("/v1/customers/cus_9s6XKzkNRiz8i3", "/v1/customers/{id}"),
            ("/admin/api/2024-10/orders.json", "/admin/api/2024-10/orders.json"),
            ("/a/0b5e1c0a-9f3e-4c57-8f0c-1f2a3b4c5d6e/b/7", "/a/{id}/b/{id2}"),
            ("/people/ann@example.com", "/people/{id}"),
            ("/line_items", "/line_items"),
            ("/accounts/0015g00000XyZabAAF", "/accounts/{id}"),
            ("/documents:commit", "/documents:commit"),
            ("/users/verify_2fa", "/users/verify_2fa"),
            ("/oauth2-to-saml2-bridge", "/oauth2-to-saml2-bridge"),
            ("/", "/"),
        ] {
            assert_eq!(folded(path), expected);
            assert!(Pattern::parse(&format!("POST {expected}")).is_ok());
        }
    }

    #[test]
    fn patterns_are_methods_and_paths() {
        let check = |pattern: &str, method: Method, path: &str, expected: Option<&[(&str, &str)]>| {
            let found = Pattern::parse(pattern).expect("it is right").parameters(&method, path);
            let found: Option<Vec<_>> =
                found.as_ref().map(|all| all.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect());
            assert_eq!(found.as_deref(), expected, "{pattern} {path}");
        };
        check("POST /contacts", Method::POST, "/contacts", Some(&[]));
        check("POST /contacts", Method::PUT, "/contacts", None);
        check("POST /contacts", Method::POST, "/contacts/", Some(&[]));
        check("POST /contacts/", Method::POST, "/contacts/", Some(&[]));
        check("POST /contacts/", Method::POST, "/contacts", Some(&[]));
        check("POST /c/{id}/notes", Method::POST, "/c/7/notes", Some(&[("id", "7")]));
        check("POST /c/{id}/notes", Method::POST, "/c//notes", None);
        check("ANY /api/*", Method::PATCH, "/api/a/b", Some(&[]));
        check("POST /", Method::POST, "/", Some(&[]));
        for wrong in ["/contacts", "post /x", "POST x", "POST /a/*/b", "POST /{}", "POST /a?b", "P0ST /x"] {
            assert!(Pattern::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn s3_what_had_no_route_is_found_again_whatever_it_was_about() {
        for (pattern, action, expected) in [
            ("POST /contacts", "post.contacts", true),
            ("POST /contacts", "post.contacts.1", false),
            ("POST /contacts", "put.contacts", false),
            ("POST /contacts/{id}/notes", "post.contacts.881.notes", true),
            ("POST /contacts/{id}/notes", "post.contacts.a_b.notes", true),
            ("POST /contacts/{id}/notes", "post.contacts.881.tags", false),
            ("POST /contacts/{id}/notes", "post.contacts.881", false),
            ("ANY /a/*", "delete.a.b.c", true),
            ("ANY /a/*", "delete.a", true),
            ("POST /v1.2/{id}", "post.v1_2.7", true),
        ] {
            let made = Pattern::parse(pattern).expect("it is right").made_action();
            assert_eq!(made.has(action), expected, "{pattern} {action}");
        }
    }

    #[test]
    fn a_path_has_one_form_and_stays_in_its_place() {
        assert_eq!(canonical_path("/v1/%63harges/a%2fb").as_deref(), Some("/v1/charges/a%2Fb"));
        for wrong in [
            "/a/../b",
            "/a/%2e%2e/b",
            "/./x",
            "/a%zz",
            "/a%2",
            "/a\\b",
            "//a",
            "/a//b",
            "/a;x",
            "/a%2F..%2Fb",
            "/a%5c..%5cb",
            "/a/%20",
            "/a/%20%09/b",
            "/a/%00",
        ] {
            assert_eq!(canonical_path(wrong), None, "{wrong}");
        }
    }
}
