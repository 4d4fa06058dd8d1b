//! Spans of time as people write them.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserialize, Deserializer, Error, Visitor};

/// A span of time: `300ms`, `25s`, `5m`, `2h`, `30d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span(pub Duration);

/// A span from what a person wrote: `300ms`, `25s`, `5m`, `2h`, `30d`.
pub fn parse_span(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is not a span; write 300ms, 25s, 5m, 2h or 30d");
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let millis = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(wrong()),
    };
    number.checked_mul(millis).map(Duration::from_millis).ok_or_else(wrong)
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Span;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a span such as 300ms, 25s, 5m, 2h or 30d")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Span, E> {
                parse_span(text).map(Span).map_err(E::custom)
            }
        }
        deserializer.deserialize_str(Text)
    }
}

impl JsonSchema for Span {
    fn schema_name() -> Cow<'static, str> {
        "Span".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A span of time.",
            "type": "string",
            "pattern": "^[0-9]+(ms|s|m|h|d)$",
            "examples": ["25s", "24h"]
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_read_as_people_write_them() {
        assert_eq!(parse_span("300ms"), Ok(Duration::from_millis(300)));
        assert_eq!(parse_span("2h"), Ok(Duration::from_secs(7200)));
        for bad in ["", "5", "h", "5 h", "-5s", "99999999999999999999s", "1.5h"] {
            assert!(parse_span(bad).is_err(), "{bad:?}");
        }
    }
}
