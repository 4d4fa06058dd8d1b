//! Bodies and queries, read strictly: what is not understood is said so, never skipped. What callers sent is not repeated to
//! them, so that it does not end up in logs.

use hyper::StatusCode;
use hyper::header::CONTENT_TYPE;
use serde::de::DeserializeOwned;
use twicesafe_ledger::{Actor, CommandId, PermitSecret, Timestamp};

use crate::config;
use crate::http::{Problem, Request};

/// The body of a request, as JSON of that form.
pub(super) fn body<T: DeserializeOwned>(request: &Request) -> Result<T, Problem> {
    let media_type =
        request.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let media_type = media_type.split(';').next().unwrap_or_default().trim();
    if !media_type.eq_ignore_ascii_case("application/json") {
        return Err(Problem::bad_request(
            "the body is not declared to be JSON",
            "Send it with `Content-Type: application/json`.",
        )
        .with_status(StatusCode::UNSUPPORTED_MEDIA_TYPE));
    }
    serde_json::from_slice(&request.body).map_err(|error| {
        let place = format!("line {}, column {}", error.line(), error.column());
        let message = match error.classify() {
            serde_json::error::Category::Data => format!("{place}: {}", told(&error.to_string())),
            serde_json::error::Category::Eof => format!("{place}: the JSON ends too early"),
            _ => format!("{place}: this is not JSON"),
        };
        Problem::bad_request(message, "What the body must look like: GET /openapi.json.")
    })
}

/// Longest message that is passed on; ours are shorter, unless a caller's own words are in it.
const MESSAGE_BYTES_MAX: usize = 2000;

/// What serde says, without the values it quotes.
fn told(message: &str) -> String {
    // The last one is serde's; what is before it may be a caller's own words.
    let message = message.rsplit_once(" at line ").map_or(message, |(message, _)| message);
    // A name of megabytes is neither repeated nor compared with others.
    if message.len() > MESSAGE_BYTES_MAX {
        return "a name or a value is far too long".to_owned();
    }
    if message.starts_with("unknown field")
        || message.starts_with("missing field")
        || message.starts_with("duplicate field")
    {
        return config::suggesting(message);
    }
    match message.rsplit_once("expected ") {
        Some((_, expected)) => format!("expected {expected}"),
        None => "a value is not of the right kind".to_owned(),
    }
}

/// The parameters of a query, each known and given once.
pub(super) struct Parameters(Vec<(String, String)>);

impl Parameters {
    pub(super) fn of(request: &Request, known: &[&str]) -> Result<Self, Problem> {
        let pairs = request.parameters();
        for (place, (name, _)) in pairs.iter().enumerate() {
            if !known.contains(&name.as_str()) {
                let quoted: Vec<String> = known.iter().map(|name| format!("`{name}`")).collect();
                let name: String = name.chars().take(60).collect();
                let message = format!("unknown parameter `{name}`, expected one of {}", quoted.join(", "));
                return Err(Problem::bad_request(config::suggesting(&message), "Leave it out."));
            }
            if pairs[..place].iter().any(|(before, _)| before == name) {
                return Err(Problem::bad_request(format!("`{name}` is given twice"), "Give it once."));
            }
        }
        Ok(Self(pairs))
    }

    pub(super) fn optional(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(given, _)| given == name).map(|(_, value)| value.as_str())
    }

    pub(super) fn required(&self, name: &str) -> Result<&str, Problem> {
        self.optional(name).filter(|value| !value.is_empty()).ok_or_else(|| {
            Problem::bad_request(
                format!("the parameter `{name}` is missing"),
                format!("Add {name}=... to the query."),
            )
        })
    }

    pub(super) fn read<T>(
        &self,
        name: &str,
        hint: &str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, Problem> {
        let Some(text) = self.optional(name) else { return Ok(None) };
        match read(text) {
            Some(value) => Ok(Some(value)),
            None => Err(Problem::bad_request(format!("the parameter `{name}` is not understood"), hint)),
        }
    }

    /// A time: RFC 3339.
    pub(super) fn time(&self, name: &str) -> Result<Option<Timestamp>, Problem> {
        self.read(name, "Write a time such as 2026-11-15T08:00:00Z.", |text| {
            let at: jiff::Timestamp = text.parse().ok()?;
            Some(Timestamp::from_millis(at.as_millisecond()))
        })
    }
}

/// What the contract says of these lengths.
pub(super) fn check_lengths(external_id: Option<&str>, reason: Option<&str>) -> Result<(), Problem> {
    let too_long =
        |text: Option<&str>, chars_max: usize| text.is_some_and(|text| text.chars().count() > chars_max);
    if too_long(external_id, 255) {
        return Err(Problem::bad_request(
            "`external_id` is longer than 255 characters",
            "Send what identifies it.",
        ));
    }
    if too_long(reason, 1000) {
        return Err(Problem::bad_request("`reason` is longer than 1000 characters", "Say it shorter."));
    }
    Ok(())
}

/// The id of a command: the caller's own, which two callers may both have thought of, or a fresh one.
pub(super) fn command_id(actor: &Actor, given: Option<&str>) -> Result<CommandId, Problem> {
    let mut bytes = [0; 16];
    match given {
        None => return Ok(twicesafe_ledger::new_command_id()),
        Some(text) if text.is_empty() || text.len() > 255 => {
            return Err(Problem::bad_request(
                "command_id has no bytes, or more than 255",
                "Send 1 to 255 bytes.",
            ));
        }
        Some(text) => {
            let mut hasher = blake3::Hasher::new_derive_key("twicesafe command id of an api caller v1");
            hasher.update(&(actor.as_str().len() as u64).to_be_bytes());
            hasher.update(actor.as_str().as_bytes()).update(text.as_bytes());
            bytes.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        }
    }
    Ok(CommandId::new(bytes))
}

/// What was told with a permit.
pub(super) fn permit_secret(text: &str) -> Result<PermitSecret, Problem> {
    let byte = |at: usize| u8::from_str_radix(text.get(at * 2..at * 2 + 2)?, 16).ok();
    let is_hex = text.len() == 32 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
    let bytes: Option<Vec<u8>> = (0..16).map(byte).collect();
    let bytes = bytes.filter(|_| is_hex).and_then(|bytes| bytes.try_into().ok());
    bytes.map(PermitSecret::new).ok_or_else(|| {
        Problem::bad_request(
            "`secret` is not 32 hexadecimal digits",
            "Give back `permit.secret` of the claim.",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s41_what_callers_sent_is_not_repeated() {
        for (said, told_) in [
            (r#"invalid type: string "hunter2", expected u64 at line 1 column 9"#, "expected u64"),
            (
                "unknown variant `hunter2`, expected one of `repeat`, `person`",
                "expected one of `repeat`, `person`",
            ),
            ("missing field `key` at line 1 column 2", "missing field `key`"),
            (
                "unknown field `scop`, expected `scope` or `key`",
                "unknown field `scop`, expected `scope` or `key`; did you mean `scope`?",
            ),
            ("something about hunter2", "a value is not of the right kind"),
        ] {
            assert_eq!(told(said), told_);
        }
    }

    #[test]
    fn s12_command_ids_of_different_callers_differ() {
        let actor = |name| Actor::new(name).expect("a name");
        let id = |name, text| command_id(&actor(name), Some(text)).expect("valid");
        assert_eq!(id("token:a", "1"), id("token:a", "1"));
        assert_ne!(id("token:a", "1"), id("token:b", "1"));
        assert_ne!(id("token:a", "b1"), id("token:ab", "1"));
        assert!(command_id(&actor("a"), Some("")).is_err());
    }
}
