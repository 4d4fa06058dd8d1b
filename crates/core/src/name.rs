//! Names: what an intent is called ([`Scope`] and [`Key`]), who acts ([`Actor`]), and keys derived from names.
//!
//! All of them are checked once, when they are built; a built value is valid (S2, S3).

use std::fmt;
use std::sync::{Arc, OnceLock};

use blake3::Hasher;
use blake3::hazmat::{ContextKey, HasherExt, hash_derive_key_context};

use crate::code::Code;

/// Longest key (S2).
pub const KEY_BYTES_MAX: usize = 255;
/// Longest scope, work, step, lane or actor.
pub const NAME_BYTES_MAX: usize = 255;

/// Why a name was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} {problem}")]
pub struct InvalidName {
    what: &'static str,
    problem: Problem,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum Problem {
    #[error("is empty")]
    Empty,
    #[error("has {0} bytes; at most {1} are allowed")]
    TooLong(usize, usize),
    #[error("contains a control character")]
    Control,
    #[error("has the part `{0}`; parts are letters, digits and . _ : @ + = -, separated by single slashes")]
    Part(String),
    #[error("starts with a quote but is not a quoted string")]
    Quoting,
}

impl InvalidName {
    /// The stable code of this error.
    pub fn code(&self) -> Code {
        match (self.what, &self.problem) {
            ("key", Problem::Empty) => Code::KeyMissing,
            ("key", _) => Code::KeyInvalid,
            _ => Code::NameInvalid,
        }
    }

    fn new(what: &'static str, problem: Problem) -> Self {
        Self { what, problem }
    }
}

fn checked(what: &'static str, text: &str, bytes_max: usize) -> Result<Arc<str>, InvalidName> {
    let problem = if text.is_empty() {
        Problem::Empty
    } else if text.len() > bytes_max {
        Problem::TooLong(text.len(), bytes_max)
    } else if text.chars().any(char::is_control) {
        Problem::Control
    } else {
        return Ok(text.into());
    };
    Err(InvalidName::new(what, problem))
}

/// What is being done, where and for whom: tenant / account / destination / action, with parts that do not apply
/// left out, e.g. `default/live/stripe/charge.create` (S3).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Scope(Arc<str>);

impl Scope {
    /// Checks and takes a scope.
    pub fn new(text: &str) -> Result<Self, InvalidName> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "._:@+=-".contains(c);
        let scope = checked("scope", text, NAME_BYTES_MAX)?;
        match text.split('/').find(|part| part.is_empty() || !part.chars().all(allowed)) {
            Some(part) => Err(InvalidName::new("scope", Problem::Part(part.to_owned()))),
            None => Ok(Self(scope)),
        }
    }
}

/// The stable name of an intent inside its scope; the same on every retry, resume, redelivery and re-run.
///
/// Never a timestamp, a random id or the output of an AI step: those differ on the second run, and then everything
/// happens twice. [`Key::suspicion`] notices the common mistakes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<str>);

impl Key {
    /// Checks and takes a key: 1 to 255 bytes of UTF-8 without control characters (S2).
    pub fn new(text: &str) -> Result<Self, InvalidName> {
        checked("key", text, KEY_BYTES_MAX).map(Self)
    }

    /// Takes a key from an `Idempotency-Key` header, quoted (a structured-field string) or bare (S2).
    pub fn from_header(value: &str) -> Result<Self, InvalidName> {
        let value = value.trim_matches([' ', '\t']);
        let Some(rest) = value.strip_prefix('"') else { return Self::new(value) };
        let unquoted = || -> Option<String> {
            let mut text = String::with_capacity(rest.len());
            let mut chars = rest.chars();
            loop {
                match chars.next()? {
                    '"' => break,
                    '\\' => text.push(chars.next().filter(|c| matches!(c, '"' | '\\'))?),
                    other => text.push(other),
                }
            }
            chars.next().is_none().then_some(text)
        };
        Self::new(&unquoted().ok_or_else(|| InvalidName::new("key", Problem::Quoting))?)
    }

    /// One key out of several fields. `domain` says what the fields are, so that `(order, 12)` and `(refund, 12)`
    /// differ; every part carries its length, so that `("ab", "c")` and `("a", "bc")` differ (S2).
    pub fn composed(domain: &str, parts: &[KeyPart<'_>]) -> Result<Self, InvalidName> {
        static DOMAIN: Domain = Domain::new("twicesafe key of parts v1");
        let mut hasher = DOMAIN.hasher();
        put(&mut hasher, domain.as_bytes());
        for part in parts {
            match part {
                KeyPart::Text("") => return Err(InvalidName::new("key", Problem::Empty)),
                KeyPart::Text(text) => put(hasher.update(b"t"), text.as_bytes()),
                KeyPart::Integer(number) => put(hasher.update(b"i"), &number.to_be_bytes()),
            }
        }
        if parts.is_empty() {
            return Err(InvalidName::new("key", Problem::Empty));
        }
        Self::new(&format!("{domain}:{}", hex_32(&hasher)))
    }

    /// What about this key's shape suggests that it will differ on the second run (S6).
    pub fn suspicion(&self) -> Option<KeySuspicion> {
        let text = self.0.as_bytes();
        let digits = |part: &[u8]| !part.is_empty() && part.iter().all(u8::is_ascii_digit);
        let uuid = text.len() == 36
            && text.iter().enumerate().all(|(i, c)| match i {
                8 | 13 | 18 | 23 => *c == b'-',
                _ => c.is_ascii_hexdigit(),
            });
        if uuid && text[14] == b'4' {
            Some(KeySuspicion::RandomUuid)
        } else if digits(text) && matches!((text.len(), text[0]), (10 | 13, b'1' | b'2')) {
            Some(KeySuspicion::Epoch)
        } else if text.len() >= 16
            && digits(&text[..4])
            && text[4] == b'-'
            && matches!(text[10], b'T' | b' ')
            && text[13] == b':'
        {
            Some(KeySuspicion::DateTime)
        } else {
            None
        }
    }
}

/// A field that goes into a composed key. Fractions cannot be expressed: `0.1 + 0.2` is not a stable name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyPart<'a> {
    /// Text, taken as it is.
    Text(&'a str),
    /// An exact integer.
    Integer(i64),
}

/// Why a key value looks as if it were made anew on every run (S6).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum KeySuspicion {
    /// The key is a version 4 UUID.
    #[error("it is a random UUID")]
    RandomUuid,
    /// The key is a number of seconds or milliseconds of our time.
    #[error("it is a Unix time")]
    Epoch,
    /// The key is a date with a time.
    #[error("it is a date and time")]
    DateTime,
}

/// Who does something: a person, a token, a process. Written into the journal.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Actor(Arc<str>);

impl Actor {
    /// Checks and takes a name.
    pub fn new(text: &str) -> Result<Self, InvalidName> {
        checked("actor", text, NAME_BYTES_MAX).map(Self)
    }

    /// Stands for whoever was forgotten (S40).
    pub fn forgotten() -> Self {
        Self("forgotten".into())
    }

    /// The ledger itself, when time alone moves an intent.
    pub fn sweep() -> Self {
        Self("sweep".into())
    }

    /// Whether both are the same person: a server calls somebody it knows `person:ann`, at the command line she is `ann`.
    pub fn is_same_person(&self, other: &Self) -> bool {
        fn own_name(actor: &Actor) -> &str {
            actor.0.strip_prefix("person:").unwrap_or(&actor.0)
        }
        own_name(self) == own_name(other)
    }
}

macro_rules! text {
    ($($name:ident),*) => {$(
        impl $name {
            /// The text of this name.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &*self.0)
            }
        }
    )*};
}
pub(crate) use text;
text!(Scope, Key, Actor);

/// The name of an intent.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Name {
    /// What is being done, where and for whom.
    pub scope: Scope,
    /// The stable name inside the scope.
    pub key: Key,
}

impl Name {
    /// Checks and takes a name.
    pub fn new(scope: &str, key: &str) -> Result<Self, InvalidName> {
        Ok(Self { scope: Scope::new(scope)?, key: Key::new(key)? })
    }
}

/// The place of an intent in a unit of work.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Step {
    work: Arc<str>,
    step: Arc<str>,
}

impl Step {
    /// Checks and takes the name of the work and of the step in it.
    pub fn new(work: &str, step: &str) -> Result<Self, InvalidName> {
        Ok(Self {
            work: checked("work", work, NAME_BYTES_MAX)?,
            step: checked("step", step, NAME_BYTES_MAX)?,
        })
    }

    /// The unit of work.
    pub fn work(&self) -> &str {
        &self.work
    }

    /// The step in it.
    pub fn step(&self) -> &str {
        &self.step
    }
}

/// The key sent to a destination that deduplicates by itself: the same for every attempt of a generation, another one
/// for the next (S29). It depends on the name alone, so that a ledger restored elsewhere derives it again.
pub fn destination_key(name: &Name, generation: u32) -> String {
    static DOMAIN: Domain = Domain::new("twicesafe destination key v1");
    derived(&DOMAIN, name, generation)
}

/// The key of the intent that undoes this generation of an intent (S32).
pub fn compensation_key(name: &Name, generation: u32) -> Key {
    static DOMAIN: Domain = Domain::new("twicesafe compensation key v1");
    Key(format!("undo:{}", derived(&DOMAIN, name, generation)).into())
}

fn derived(domain: &Domain, name: &Name, generation: u32) -> String {
    let mut hasher = domain.hasher();
    put(&mut hasher, name.scope.as_str().as_bytes());
    put(&mut hasher, name.key.as_str().as_bytes());
    hasher.update(&generation.to_be_bytes());
    hex_32(&hasher)
}

/// What a hash is about, so that none can be mistaken for one about something else.
pub(crate) struct Domain {
    name: &'static str,
    /// Its own hash, with which each of the others begins.
    key: OnceLock<ContextKey>,
}

impl Domain {
    pub(crate) const fn new(name: &'static str) -> Self {
        Self { name, key: OnceLock::new() }
    }

    pub(crate) fn hasher(&self) -> Hasher {
        Hasher::new_from_context_key(self.key.get_or_init(|| hash_derive_key_context(self.name)))
    }
}

/// Adds a field with its length, so that neighbouring fields cannot be shifted into each other.
pub(crate) fn put(hasher: &mut Hasher, field: &[u8]) {
    hasher.update(&(field.len() as u64).to_be_bytes()).update(field);
}

fn hex_32(hasher: &Hasher) -> String {
    hasher.finalize().to_hex()[..32].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_key(text: &str, expected: Result<&str, Code>) {
        let got = Key::from_header(text);
        assert_eq!(got.as_ref().map(Key::as_str).map_err(InvalidName::code), expected, "{text:?}");
    }

    #[test]
    fn s29_keys_are_the_same_in_every_version() {
        // Destinations know effects by these: whoever changes one makes them twice.
        let name = Name::new("default/live/stripe/charge.create", "order-12").expect("a name");
        assert_eq!(destination_key(&name, 1), "014f8182ad537be2696ffd58157a61e6");
        assert_eq!(compensation_key(&name, 2).as_str(), "undo:50280961d6bba2fee337daba4efb52c7");
        let composed = Key::composed("order", &[KeyPart::Text("12"), KeyPart::Integer(3)]).expect("a key");
        assert_eq!(composed.as_str(), "order:fa74b925edcf3811242ca708bfd74692");
        let domain = Domain::new("twicesafe report v1");
        let again = Hasher::new_derive_key("twicesafe report v1");
        assert_eq!(domain.hasher().update(b"a").finalize(), again.clone().update(b"a").finalize());
    }

    #[test]
    fn s2_keys_are_bounded_text_quoted_or_bare() {
        check_key("order:10492", Ok("order:10492"));
        check_key("\"order:10492\"", Ok("order:10492"));
        check_key(r#""say \"hi\" \\""#, Ok(r#"say "hi" \"#));
        check_key("  bare ", Ok("bare"));
        check_key("", Err(Code::KeyMissing));
        check_key("\"\"", Err(Code::KeyMissing));
        check_key("\"open", Err(Code::KeyInvalid));
        check_key("\"a\"b", Err(Code::KeyInvalid));
        check_key("a\u{7}b", Err(Code::KeyInvalid));
        check_key(&"k".repeat(255), Ok(&"k".repeat(255)));
        check_key(&"k".repeat(256), Err(Code::KeyInvalid));
        check_key(&"ü".repeat(128), Err(Code::KeyInvalid));
    }

    #[test]
    fn s2_composed_keys_cannot_be_shifted_into_each_other() {
        let key = |domain, parts: &[KeyPart<'_>]| Key::composed(domain, parts).expect("valid").to_string();
        use KeyPart::{Integer, Text};
        assert_ne!(key("a", &[Text("ab"), Text("c")]), key("a", &[Text("a"), Text("bc")]));
        assert_ne!(key("order", &[Integer(12)]), key("refund", &[Integer(12)]));
        assert_ne!(key("order", &[Integer(12)]), key("order", &[Text("12")]));
        assert_eq!(key("order", &[Integer(12), Text("x")]), key("order", &[Integer(12), Text("x")]));
        assert!(Key::composed("order", &[]).is_err());
        assert!(Key::composed("order", &[Text("")]).is_err());
    }

    #[test]
    fn s3_scopes_are_named_parts() {
        assert!(Scope::new("default/live/stripe/charge.create").is_ok());
        for bad in ["", "/a", "a/", "a//b", "a b", "a/é", &"s".repeat(256)] {
            assert!(Scope::new(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn s6_keys_made_anew_on_every_run_are_noticed() {
        let suspicion = |text| Key::new(text).expect("valid").suspicion();
        assert_eq!(suspicion("0b9e5d0a-3c1f-4b7e-9f3d-2a6c8e1d4f5b"), Some(KeySuspicion::RandomUuid));
        assert_eq!(suspicion("1789473600"), Some(KeySuspicion::Epoch));
        assert_eq!(suspicion("1789473600123"), Some(KeySuspicion::Epoch));
        assert_eq!(suspicion("2026-11-15T08:49:09Z"), Some(KeySuspicion::DateTime));
        for good in
            ["order:10492", "10492", "2026-11-15", "0190b9e5-3c1f-7b7e-9f3d-2a6c8e1d4f5b", "9789473600"]
        {
            assert_eq!(suspicion(good), None, "{good}");
        }
    }

    #[test]
    fn s29_derived_keys_contain_the_generation() {
        let name = Name::new("default/shop", "order:1").expect("valid");
        assert_eq!(destination_key(&name, 1), destination_key(&name, 1));
        assert_ne!(destination_key(&name, 1), destination_key(&name, 2));
        assert_ne!(compensation_key(&name, 1), compensation_key(&name, 2));
    }
}
