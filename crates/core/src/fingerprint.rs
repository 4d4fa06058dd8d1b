//! The hash of what was asked for, together with the recipe it was made by (S4, S5).

use std::fmt;
use std::sync::Arc;

use crate::name::Domain;

/// How an input is turned into a fingerprint. It is stored with the fingerprint, and later requests under the same
/// key are compared under *that* recipe: changing a route's recipe must not make every live key mismatch (S4).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Recipe(Arc<str>);

impl Recipe {
    /// The input as it is, byte for byte.
    pub fn raw() -> Self {
        Self("raw".into())
    }

    /// The input as JSON in canonical form (RFC 8785), so that spaces and the order of names do not matter. An input
    /// that has no faithful canonical form (not JSON, duplicate names, integers beyond 2^53) is taken byte for byte.
    pub fn json() -> Self {
        Self("json".into())
    }

    /// A recipe a door made up, for instance the list of fields it looks at. The door must be able to follow it again.
    pub fn named(text: &str) -> Self {
        Self(text.into())
    }

    /// Its text, as stored.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Identifies an input without keeping it.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Fingerprint {
    recipe: Recipe,
    digest: [u8; 32],
}

impl Fingerprint {
    /// The fingerprint of an input by one of the two recipes known here, `raw` and `json`; by any other recipe the
    /// parts are what its door made of the input, hashed as they are.
    pub fn of(recipe: &Recipe, input: &[u8]) -> Self {
        static DOMAIN: Domain = Domain::new("twicesafe fingerprint v2");
        let mut hasher = DOMAIN.hasher();
        // The input first: whole pieces of it are hashed several at a time from where the hash begins.
        match (recipe.as_str() == "json").then(|| canonical_json(input)).flatten() {
            Some(canonical) => hasher.update(&canonical).update(b"j"),
            None => hasher.update(input).update(b"r"),
        };
        Self { recipe: recipe.clone(), digest: hasher.finalize().into() }
    }

    /// A fingerprint as it was stored.
    pub fn stored(recipe: Recipe, digest: [u8; 32]) -> Self {
        Self { recipe, digest }
    }

    /// How it was made.
    pub fn recipe(&self) -> &Recipe {
        &self.recipe
    }

    /// The hash.
    pub fn digest(&self) -> &[u8; 32] {
        &self.digest
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.recipe.as_str(), &blake3::Hash::from(self.digest).to_hex()[..8])
    }
}

const EXACT_INTEGER_MAX: u64 = 1 << 53;

/// A JSON text in canonical form (RFC 8785); `None` where it has no faithful one: not JSON, duplicate names, integers beyond
/// 2^53.
pub fn canonical_json(input: &[u8]) -> Option<Vec<u8>> {
    canonical_json_of(&serde_json::from_slice(input).ok()?, input)
}

/// The same, of a text that was read already.
pub fn canonical_json_of(value: &serde_json::Value, input: &[u8]) -> Option<Vec<u8>> {
    let mut names = 0;
    if !is_exact(value, &mut names) || names != names_in(input) {
        return None;
    }
    match is_plain(value) {
        true => serde_json::to_vec(value).ok(),
        false => serde_json_canonicalizer::to_vec(value).ok(),
    }
}

/// Whether it is canonical as it is written anyway: whole numbers, and names in ASCII that come in order.
fn is_plain(value: &serde_json::Value) -> bool {
    match value {
        serde_json::Value::Number(number) => !number.is_f64(),
        serde_json::Value::Array(items) => items.iter().all(is_plain),
        serde_json::Value::Object(members) => {
            members.keys().all(|name| name.is_ascii())
                && members.keys().is_sorted()
                && members.values().all(is_plain)
        }
        _ => true,
    }
}

/// Whether the JSON text that `value` was read from has the same name twice in one object: readers differ in which they take.
pub fn has_duplicate_names(value: &serde_json::Value, input: &[u8]) -> bool {
    let mut names = 0;
    count_names(value, &mut names);
    names != names_in(input)
}

/// Counts all names, wherever they stand.
fn count_names(value: &serde_json::Value, names: &mut usize) {
    match value {
        serde_json::Value::Array(items) => items.iter().for_each(|item| count_names(item, names)),
        serde_json::Value::Object(members) => {
            *names += members.len();
            members.values().for_each(|item| count_names(item, names));
        }
        _ => {}
    }
}

fn is_exact(value: &serde_json::Value, names: &mut usize) -> bool {
    match value {
        serde_json::Value::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(n), _) => n <= EXACT_INTEGER_MAX,
            (_, Some(n)) => n.unsigned_abs() <= EXACT_INTEGER_MAX,
            // Written as a fraction, or an integer so large that it was read as one.
            _ => number.as_f64().is_some_and(|n| n.fract() != 0.0 || n.abs() <= EXACT_INTEGER_MAX as f64),
        },
        serde_json::Value::Array(items) => items.iter().all(|item| is_exact(item, names)),
        serde_json::Value::Object(members) => {
            *names += members.len();
            members.values().all(|item| is_exact(item, names))
        }
        _ => true,
    }
}

/// Counts the names in a JSON text known to be well formed. The parser keeps the last of two equal names; a count that
/// differs from the parsed tree's means that one was dropped.
fn names_in(input: &[u8]) -> usize {
    let (mut names, mut in_string, mut escaped) = (0, false, false);
    for byte in input {
        match (in_string, byte) {
            (true, _) if escaped => escaped = false,
            (true, b'\\') => escaped = true,
            (_, b'"') => in_string = !in_string,
            (false, b':') => names += 1,
            _ => {}
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(left: &str, right: &str, same: bool) {
        let of = |text: &str| Fingerprint::of(&Recipe::json(), text.as_bytes());
        assert_eq!(of(left) == of(right), same, "{left} and {right}");
    }

    #[test]
    fn s4_json_is_compared_in_canonical_form() {
        check(r#"{"a":1,"b":[2,"x"]}"#, r#"{ "b": [2, "x"], "a": 1.0 }"#, true);
        check(r#"{"a":1}"#, r#"{"a":2}"#, false);
        check(r#"{"a:":"\":"}"#, r#"{ "a:" : "\":" }"#, true);
        check(r#"{"a":9007199254740992}"#, r#"{ "a": 9007199254740992 }"#, true);
    }

    /// They are kept beside every intent and compared with later ones: they must never change under the same recipe (S4).
    #[test]
    fn s4_a_fingerprint_is_what_it_always_was() {
        let of = |recipe: Recipe| {
            blake3::Hash::from(*Fingerprint::of(&recipe, br#"{ "b": 1, "a": "x" }"#).digest()).to_hex()
        };
        assert_eq!(
            of(Recipe::raw()).as_str(),
            "8e412a78d60320f07be06bf75e8c27a7f56415d17d7e064d9bc8a0a686a2b6d3"
        );
        assert_eq!(
            of(Recipe::json()).as_str(),
            "8cdc540366c80013c247094dc7acf9aac79c96dca5a138158b7f7b91bd8366c7"
        );
    }

    #[test]
    fn s4_json_without_a_faithful_form_is_compared_byte_for_byte() {
        check(r#"{"a":1,"a":2}"#, r#"{"a":2}"#, false);
        check(r#"{"a":9007199254740993}"#, r#"{"a":9007199254740992}"#, false);
        check(r#"{"a":9007199254740993}"#, r#"{"a":9007199254740993 }"#, false);
        check(r#"{"a":-9007199254740993}"#, r#"{ "a":-9007199254740993}"#, false);
        check(r#"{"a":123456789012345678901234567890}"#, r#"{ "a":123456789012345678901234567890}"#, false);
        check("not json", "not json", true);
        check("not json", "not  json", false);
    }

    #[test]
    fn s4_there_is_one_canonical_form() {
        let every_character: String = ('\0'..='\u{a0}').chain("\u{2028}\u{ffff}\u{10000}".chars()).collect();
        for value in [
            serde_json::json!({ "b": every_character, "a": [1, -2, 0, 9_007_199_254_740_992_u64, null, true] }),
            serde_json::json!({ every_character: "a name" }),
            serde_json::json!({ "\u{e000}": 1, "\u{10000}": 2, "z": { "b": 1, "B": 2, "": 3 } }),
            serde_json::json!([1.5, 1e15, -0.0, 1.0, 1e-7, [[]], {}]),
        ] {
            let text = serde_json::to_vec(&value).expect("JSON");
            let canonical = serde_json_canonicalizer::to_vec(&value).expect("canonical");
            assert_eq!(canonical_json(&text), Some(canonical), "{value}");
        }
    }

    #[test]
    fn s4_a_raw_input_is_never_equal_to_a_canonical_one() {
        assert_ne!(
            Fingerprint::of(&Recipe::raw(), b"{}").digest(),
            Fingerprint::of(&Recipe::json(), b"{}").digest()
        );
    }
}
