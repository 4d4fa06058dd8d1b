//! Who is asked and told.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::Secret;
use crate::access::Right;

/// A person, or a group that shares a channel.
#[derive(Clone, Debug, Default, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Person {
    /// Where alerts go: a Slack-compatible webhook, `mailto:ADDRESS`, `{webhook: URL}`, or several of these.
    pub alert: Channels,
    /// What the person may decide: `approve` what is held, `review` what may or may not have happened.
    pub rights: Vec<Right>,
    /// Only about these scopes, and what is below them; otherwise about all.
    pub scopes: Vec<String>,
}

impl Person {
    /// Whether something about a scope is this person's business.
    pub fn cares_for(&self, scope: &str) -> bool {
        let within = |wanted: &String| {
            let wanted = wanted.trim_end_matches('/');
            scope == wanted || scope.strip_prefix(wanted).is_some_and(|rest| rest.starts_with('/'))
        };
        self.scopes.is_empty() || self.scopes.iter().any(within)
    }
}

/// Where alerts go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Channels(pub Vec<Alert>);

/// One way to tell somebody.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Alert {
    /// A Slack-compatible webhook: gets `{"text": ...}`.
    Slack(Secret),
    /// Any other webhook: gets everything as JSON.
    Webhook(Secret),
    /// A mail address.
    Mail(String),
}

#[derive(Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Named {
    slack: Option<Secret>,
    webhook: Option<Secret>,
    mail: Option<String>,
}

impl Alert {
    fn parse(text: &str) -> Self {
        match text.strip_prefix("mailto:") {
            Some(address) => Self::Mail(address.to_owned()),
            None => Self::Slack(text.into()),
        }
    }
}

impl<'de> Deserialize<'de> for Alert {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct One;
        impl<'de> Visitor<'de> for One {
            type Value = Alert;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(EXPECTED)
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Alert, E> {
                Ok(Alert::parse(text))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Alert, A::Error> {
                named(map)
            }
        }
        deserializer.deserialize_any(One)
    }
}

const EXPECTED: &str =
    "a webhook's URL, mailto:ADDRESS, {webhook: URL}, {slack: URL}, {mail: ADDRESS}, or a list of these";

fn named<'de, A: MapAccess<'de>>(map: A) -> Result<Alert, A::Error> {
    match Named::deserialize(MapAccessDeserializer::new(map))? {
        Named { slack: Some(url), webhook: None, mail: None } => Ok(Alert::Slack(url)),
        Named { slack: None, webhook: Some(url), mail: None } => Ok(Alert::Webhook(url)),
        Named { slack: None, webhook: None, mail: Some(address) } => Ok(Alert::Mail(address)),
        _ => {
            Err(A::Error::custom("exactly one of slack, webhook and mail is needed; use a list for several"))
        }
    }
}

impl<'de> Deserialize<'de> for Channels {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Several;
        impl<'de> Visitor<'de> for Several {
            type Value = Channels;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(EXPECTED)
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Channels, E> {
                Ok(Channels(vec![Alert::parse(text)]))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Channels, A::Error> {
                Ok(Channels(vec![named(map)?]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Channels, A::Error> {
                let mut channels = Vec::new();
                while let Some(alert) = list.next_element()? {
                    channels.push(alert);
                }
                Ok(Channels(channels))
            }
        }
        deserializer.deserialize_any(Several)
    }
}

impl JsonSchema for Channels {
    fn schema_name() -> Cow<'static, str> {
        "Alert".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let one = serde_json::json!([
            { "type": "string", "examples": ["${SLACK_HOOK}", "mailto:ops@example.com"] },
            {
                "type": "object",
                "additionalProperties": false,
                "minProperties": 1,
                "maxProperties": 1,
                "properties": {
                    "slack": { "type": "string" },
                    "webhook": { "type": "string" },
                    "mail": { "type": "string" }
                }
            }
        ]);
        let mut any = one.as_array().cloned().unwrap_or_default();
        any.push(serde_json::json!({ "type": "array", "items": { "oneOf": one } }));
        json_schema!({ "description": "Where alerts go.", "oneOf": any })
    }
}
