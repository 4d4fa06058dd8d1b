//! Texts as they come in JSON. What could not be kept as it is, is refused.

use serde::Deserialize;
use serde::de::{Deserializer, Error};

/// A reason: not every database keeps NUL.
pub(super) fn reason<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = String::deserialize(deserializer)?;
    match text.contains('\0') {
        true => Err(D::Error::custom("expected a text without NUL characters")),
        false => Ok(text),
    }
}

pub(super) fn reason_or_none<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    #[derive(Deserialize)]
    struct Reason(#[serde(deserialize_with = "reason")] String);
    Ok(Option::<Reason>::deserialize(deserializer)?.map(|Reason(text)| text))
}

/// What something is called elsewhere: the ledger would drop control characters.
pub(super) fn external_id_or_none<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<String>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    match text.as_ref().is_some_and(|text| text.chars().any(char::is_control)) {
        true => Err(D::Error::custom("expected a text without control characters")),
        false => Ok(text),
    }
}
