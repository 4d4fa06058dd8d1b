//! How the server identifies itself at a destination.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};

use super::super::Secret;

/// How the server identifies itself at a destination.
#[derive(Clone, Debug, PartialEq)]
pub enum Auth {
    /// Nobody need say who they are.
    None,
    /// `Authorization: Bearer ...`.
    Bearer(Secret),
    /// `Authorization: Basic ...`.
    Basic(Basic),
    /// A header of its own.
    Header(HeaderSecret),
    /// A token by client credentials, refreshed when it expires.
    OAuth(OAuth),
}

/// User and password.
#[derive(Clone, Debug, PartialEq, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Basic {
    /// Who.
    pub user: Secret,
    /// May be left out where the user is the secret.
    #[serde(default = "empty")]
    pub password: Secret,
}

fn empty() -> Secret {
    "".into()
}

/// A header with a secret.
#[derive(Clone, Debug, PartialEq, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HeaderSecret {
    /// `X-Api-Key`.
    pub name: String,
    /// What it carries.
    pub value: Secret,
}

/// OAuth 2 client credentials.
#[derive(Clone, Debug, PartialEq, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OAuth {
    /// Where tokens are given.
    pub token_url: String,
    /// Who asks for them.
    pub client_id: Secret,
    /// How it proves that.
    pub client_secret: Secret,
    /// Where it proves that: in the form, or as user and password in the `header`.
    #[serde(default)]
    pub credentials: OAuthCredentials,
    /// What the token is for.
    pub scope: Option<String>,
    /// Whom the token is for.
    pub audience: Option<String>,
}

impl Auth {
    /// What it holds that nobody should see.
    pub(crate) fn secrets(&self) -> Vec<(&'static str, &Secret)> {
        match self {
            Self::None => Vec::new(),
            Self::Bearer(secret) => vec![("bearer", secret)],
            Self::Basic(basic) => vec![("basic.password", &basic.password)],
            Self::Header(header) => vec![("header.value", &header.value)],
            Self::OAuth(oauth) => vec![("oauth.client_secret", &oauth.client_secret)],
        }
    }
}

/// Where a client shows its id and secret.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OAuthCredentials {
    /// In the form.
    #[default]
    Form,
    /// As user and password.
    Header,
}

#[derive(Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Named {
    bearer: Option<Secret>,
    basic: Option<Basic>,
    header: Option<HeaderSecret>,
    oauth: Option<OAuth>,
}

impl<'de> Deserialize<'de> for Auth {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct One;
        impl<'de> Visitor<'de> for One {
            type Value = Auth;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("none, {bearer: SECRET}, {basic: ...}, {header: ...} or {oauth: ...}")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Auth, E> {
                match text {
                    "none" => Ok(Auth::None),
                    _ => Err(E::custom(
                        "write none, {bearer: SECRET}, {basic: ...}, {header: ...} or {oauth: ...}",
                    )),
                }
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Auth, A::Error> {
                let named = Named::deserialize(MapAccessDeserializer::new(map))?;
                let mut ways = [
                    named.bearer.map(Auth::Bearer),
                    named.basic.map(Auth::Basic),
                    named.header.map(Auth::Header),
                    named.oauth.map(Auth::OAuth),
                ]
                .into_iter()
                .flatten();
                match (ways.next(), ways.next()) {
                    (Some(way), None) => Ok(way),
                    _ => Err(A::Error::custom("exactly one of bearer, basic, header and oauth is needed")),
                }
            }
        }
        deserializer.deserialize_any(One)
    }
}

impl JsonSchema for Auth {
    fn schema_name() -> Cow<'static, str> {
        "Auth".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let (secret, basic, header, oauth) = (
            generator.subschema_for::<Secret>(),
            generator.subschema_for::<Basic>(),
            generator.subschema_for::<HeaderSecret>(),
            generator.subschema_for::<OAuth>(),
        );
        json_schema!({
            "description": "How the server identifies itself at a destination.",
            "oneOf": [
                { "const": "none" },
                {
                    "type": "object",
                    "additionalProperties": false,
                    "minProperties": 1,
                    "maxProperties": 1,
                    "properties": { "bearer": secret, "basic": basic, "header": header, "oauth": oauth }
                }
            ]
        })
    }
}
