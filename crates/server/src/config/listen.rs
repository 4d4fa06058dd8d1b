//! Where the server listens.

use std::borrow::Cow;
use std::fmt;
use std::net::SocketAddr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};

/// Where the server listens unless told otherwise.
const DEFAULT: &str = "127.0.0.1:4080";

/// One address for everything, or two: what the world needs apart from what operators need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listen {
    /// Approval links and pages, and the doors of automations.
    pub public: SocketAddr,
    /// The API, figures and metrics.
    pub admin: SocketAddr,
}

impl Listen {
    /// Everything at one address.
    pub fn at(address: SocketAddr) -> Self {
        Self { public: address, admin: address }
    }

    /// Whether both are one.
    pub fn is_one(&self) -> bool {
        self.public == self.admin
    }
}

impl Default for Listen {
    fn default() -> Self {
        Self::at(DEFAULT.parse().expect("the default is an address"))
    }
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Two {
    public: String,
    admin: String,
}

/// An address from what a person wrote: `127.0.0.1:4080`, `[::1]:4080`, `:4080`, `localhost:4080`.
pub(crate) fn parse(text: &str) -> Result<SocketAddr, String> {
    let full = match text.strip_prefix(':') {
        Some(port) => format!("0.0.0.0:{port}"),
        None => text.replacen("localhost:", "127.0.0.1:", 1),
    };
    full.parse().map_err(|_| format!("`{text}` is not an address to listen on; write 127.0.0.1:4080"))
}

impl std::str::FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse(text).map(Self::at)
    }
}

impl<'de> Deserialize<'de> for Listen {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneOrTwo;
        impl<'de> Visitor<'de> for OneOrTwo {
            type Value = Listen;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an address such as 127.0.0.1:4080, or `public:` and `admin:`")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Listen, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Listen, A::Error> {
                let two = Two::deserialize(MapAccessDeserializer::new(map))?;
                let address = |text: &str| parse(text).map_err(A::Error::custom);
                Ok(Listen { public: address(&two.public)?, admin: address(&two.admin)? })
            }
        }
        deserializer.deserialize_any(OneOrTwo)
    }
}

impl JsonSchema for Listen {
    fn schema_name() -> Cow<'static, str> {
        "Listen".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "An address, or two.",
            "default": DEFAULT,
            "oneOf": [
                { "type": "string", "examples": [DEFAULT] },
                {
                    "type": "object",
                    "additionalProperties": false,
                    "required": ["public", "admin"],
                    "properties": { "public": { "type": "string" }, "admin": { "type": "string" } }
                }
            ]
        })
    }
}
