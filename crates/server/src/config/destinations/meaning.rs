//! What an answer means, where its status does not say (S16-S19).

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use twicesafe_ledger::Meaning;

/// What an answer means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Means {
    /// It happened.
    Answered,
    /// The destination said no, and did nothing.
    Refused,
    /// It was certainly not taken; another try is safe.
    NotSent,
    /// It may or may not have happened.
    Unknown,
    /// It happened in part: a person looks.
    Partial,
    /// The caller must mend something first; counts as no attempt.
    PassedOn,
}

impl From<Means> for Meaning {
    fn from(means: Means) -> Self {
        match means {
            Means::Answered => Self::Answered,
            Means::Refused => Self::Refused,
            Means::NotSent => Self::NotSent,
            Means::Unknown => Self::Unknown,
            Means::Partial => Self::Partial,
            Means::PassedOn => Self::PassedOn,
        }
    }
}

/// One line of the table.
#[derive(Clone, Debug, PartialEq, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Reading {
    /// Only for this status; otherwise for all.
    pub status: Option<u16>,
    /// Only when this holds: `answer.body.ok == false`.
    pub when: Option<String>,
    /// What it means then.
    pub means: Means,
}

/// The table: `{503: not-sent}`, or a list of readings of which the first that fits counts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcomes(pub Vec<Reading>);

impl<'de> Deserialize<'de> for Outcomes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Table;
        impl<'de> Visitor<'de> for Table {
            type Value = Outcomes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("{STATUS: MEANING}, or a list of {status, when, means}")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Outcomes, A::Error> {
                let table = BTreeMap::<u16, Means>::deserialize(MapAccessDeserializer::new(map))?;
                let reading = |(status, means)| Reading { status: Some(status), when: None, means };
                Ok(Outcomes(table.into_iter().map(reading).collect()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Outcomes, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(list)).map(Outcomes)
            }
        }
        deserializer.deserialize_any(Table)
    }
}

impl JsonSchema for Outcomes {
    fn schema_name() -> Cow<'static, str> {
        "Outcomes".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let (means, reading) = (generator.subschema_for::<Means>(), generator.subschema_for::<Reading>());
        json_schema!({
            "description": "What a status or a body means.",
            "oneOf": [
                { "type": "object", "propertyNames": { "pattern": "^[1-5][0-9][0-9]$" }, "additionalProperties": means },
                { "type": "array", "items": reading }
            ]
        })
    }
}
