//! What may be done about an unknown outcome: a property of the destination (S23-S26).

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};

use super::super::Span;

/// The recovery class, and how.
#[derive(Clone, Debug, PartialEq)]
pub enum RecoveryRules {
    /// Doing it again is declared harmless.
    Repeat,
    /// The destination deduplicates by key; when it no longer knows the key, it can perhaps be asked.
    NativeKey(NativeKeyRules, Option<LookupRules>),
    /// The destination can be asked.
    Lookup(LookupRules),
    /// Nobody can tell but a person.
    Person,
}

impl RecoveryRules {
    /// The word for the class.
    pub fn class(&self) -> &'static str {
        match self {
            Self::Repeat => "repeat",
            Self::NativeKey(..) => "native-key",
            Self::Lookup(_) => "lookup",
            Self::Person => "person",
        }
    }
}

/// Where a destination takes a key of ours, and what it promises.
#[derive(Clone, Debug, Default, PartialEq, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NativeKeyRules {
    /// In a header; `Idempotency-Key` unless a place is named.
    pub header: Option<String>,
    /// In a field of the body: `idempotency_key`.
    pub body: Option<String>,
    /// In the query.
    pub query: Option<String>,
    /// Fields of the body that must say something else for the key to count: `{enforce_nonce: true}`.
    #[schemars(with = "BTreeMap<String, serde_json::Value>")]
    pub with: BTreeMap<String, serde_json::Value>,
    /// Longest key it takes.
    pub bytes_max: Option<usize>,
    /// For how long it remembers; an hour is assumed where nothing is published.
    pub retention: Option<Span>,
}

/// How a destination is asked whether it happened.
#[derive(Clone, Debug, Default, PartialEq, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LookupRules {
    /// Path and query of a GET, with `{{ key }}` and other expressions in it.
    pub get: Option<String>,
    /// Path and query of a POST that only looks.
    pub post: Option<String>,
    /// What such a POST carries, with expressions in its texts.
    #[schemars(with = "Option<serde_json::Value>")]
    pub body: Option<serde_json::Value>,
    /// Headers, with expressions in them.
    pub headers: BTreeMap<String, String>,
    /// Whether the answer says that it happened; otherwise every 2xx does. 404 says that it did not.
    pub found: Option<String>,
    /// Whether not finding it says that it did not happen, such as `!answer.body.has_more`; otherwise it always does. What the
    /// route's `outcomes` take for no success is no answer in any case.
    pub conclusive: Option<String>,
    /// What was made, in the lookup's answer.
    pub external_id: Option<String>,
    /// How long what happened may stay invisible; 5s unless said otherwise.
    pub lag: Option<Span>,
    /// How long a request may be under way; 60s unless said otherwise.
    pub in_flight_max: Option<Span>,
    /// How long to go on asking when there is no answer; 1h unless said otherwise.
    pub lookup_for: Option<Span>,
    /// `doubt`: when nobody knows. `before`: also before acting, to adopt what is there already.
    pub when: When,
}

/// When a destination is asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum When {
    /// When nobody knows whether it happened.
    #[default]
    Doubt,
    /// Also before acting.
    Before,
}

#[derive(Default, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct Named {
    #[serde(alias = "native_key", rename = "native-key")]
    native_key: Option<NativeKeyRules>,
    lookup: Option<LookupRules>,
}

const EXPECTED: &str = "repeat, native-key, person, {native-key: ...} or {lookup: ...}";

impl<'de> Deserialize<'de> for RecoveryRules {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Class;
        impl<'de> Visitor<'de> for Class {
            type Value = RecoveryRules;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(EXPECTED)
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<RecoveryRules, E> {
                match text {
                    "repeat" => Ok(RecoveryRules::Repeat),
                    "native-key" => Ok(RecoveryRules::NativeKey(NativeKeyRules::default(), None)),
                    "person" => Ok(RecoveryRules::Person),
                    "lookup" => Err(E::custom("a lookup needs to know how: {lookup: {get: ...}}")),
                    _ => Err(E::custom(format!("`{text}` is not a recovery class; write {EXPECTED}"))),
                }
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<RecoveryRules, A::Error> {
                match Named::deserialize(MapAccessDeserializer::new(map))? {
                    Named { native_key: Some(native), lookup } => {
                        Ok(RecoveryRules::NativeKey(native, lookup))
                    }
                    Named { native_key: None, lookup: Some(lookup) } => Ok(RecoveryRules::Lookup(lookup)),
                    _ => Err(A::Error::custom(format!("write {EXPECTED}"))),
                }
            }
        }
        deserializer.deserialize_any(Class)
    }
}

impl JsonSchema for RecoveryRules {
    fn schema_name() -> Cow<'static, str> {
        "Recovery".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let named = generator.subschema_for::<Named>();
        json_schema!({
            "description": "What may be done about an unknown outcome.",
            "oneOf": [{ "enum": ["repeat", "native-key", "person"] }, named]
        })
    }
}
