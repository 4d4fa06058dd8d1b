//! Secrets: named in the configuration, kept elsewhere.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserialize, Deserializer};

use crate::error::ServerError;

/// Longest secret in a file.
const SECRET_BYTES_MAX: u64 = 64 << 10;

/// A secret, or text with secrets in it: `${ENV}` stands for a variable of the environment, `file:PATH` for the content of a
/// file. Printed as dots.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// What it stands for.
    pub fn reveal(&self) -> Result<String, ServerError> {
        if let Some(path) = self.0.strip_prefix("file:") {
            return from_file(path);
        }
        let mut text = String::new();
        let mut rest = self.0.as_str();
        while let Some((before, after)) = rest.split_once("${") {
            let (name, after) = after.split_once('}').ok_or_else(|| {
                ServerError::Secret(format!("`${{{}` has no closing brace", first_letters(after)))
            })?;
            text.push_str(before);
            text.push_str(
                &std::env::var(name).ok().filter(|value| !value.is_empty()).ok_or_else(|| {
                    ServerError::Secret(format!("the environment variable {name} is not set"))
                })?,
            );
            rest = after;
        }
        text.push_str(rest);
        Ok(text)
    }

    /// Whether it stands in the configuration itself.
    pub(crate) fn is_written_out(&self) -> bool {
        !self.0.starts_with("file:") && !self.0.contains("${")
    }
}

fn first_letters(text: &str) -> &str {
    &text[..text.floor_char_boundary(12)]
}

fn from_file(path: &str) -> Result<String, ServerError> {
    let wrong =
        |why: &dyn fmt::Display| ServerError::Secret(format!("the secret file {path} cannot be used: {why}"));
    let size = std::fs::metadata(path).map_err(|error| wrong(&error))?.len();
    if size > SECRET_BYTES_MAX {
        return Err(wrong(&format!("it has more than {SECRET_BYTES_MAX} bytes")));
    }
    let text = std::fs::read_to_string(path).map_err(|error| wrong(&error))?;
    match text.trim_end_matches(['\n', '\r']) {
        "" => Err(wrong(&"it is empty")),
        secret => Ok(secret.to_owned()),
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

impl From<&str> for Secret {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self)
    }
}

impl JsonSchema for Secret {
    fn schema_name() -> Cow<'static, str> {
        "Secret".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A secret: ${ENV} for a variable of the environment, file:PATH for the content of a file.",
            "type": "string",
            "examples": ["${SLACK_HOOK}", "file:/run/secrets/smtp"]
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s41_secrets_come_from_outside_and_are_not_shown() {
        let secret = Secret::from("https://hooks/${PATH}/x");
        assert_eq!(format!("{secret:?}"), "…");
        let path = std::env::var("PATH").expect("there is a path");
        assert_eq!(secret.reveal().expect("it is set"), format!("https://hooks/{path}/x"));
        assert_eq!(Secret::from("plain").reveal().expect("nothing to look up"), "plain");
        for wrong in ["${NOBODY_SETS_THIS}", "${PATH", "file:/nowhere/at/all"] {
            assert!(Secret::from(wrong).reveal().is_err(), "{wrong}");
        }
    }
}
