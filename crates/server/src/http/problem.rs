//! What goes wrong, as callers see it: RFC 9457 problem documents with a code, a message and a hint (S27).

use std::time::Duration;

use hyper::StatusCode;
use hyper::header::{ALLOW, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use serde_json::{Map, Value, json};
use twicesafe_ledger::{Code, Error, InvalidName, InvalidPolicy, Refusal, StoreError};

use super::Response;

/// The code of what went wrong here, in the head of an answer: what a destination says about itself has none.
pub(crate) const ERROR: HeaderName = HeaderName::from_static("twicesafe-error");

/// When to ask again if the ledger is away: soon, because nothing was sent and nothing is lost.
const AWAY_RETRY_AFTER: Duration = Duration::from_secs(1);

/// When to come back if there is no room for a request.
const ROOM_RETRY_AFTER: Duration = Duration::from_secs(1);

/// Why a caller does not get what it asked for.
#[derive(Clone, Debug)]
pub(crate) struct Problem {
    pub(crate) status: StatusCode,
    pub(crate) code: Code,
    message: String,
    hint: String,
    retry_after: Option<Duration>,
    /// Methods that would have been taken.
    allow: Option<Box<str>>,
    /// What is known of the intent, and whatever else helps.
    facts: Map<String, Value>,
}

impl Problem {
    pub(crate) fn new(code: Code, message: impl Into<String>, hint: impl Into<String>) -> Self {
        let (message, hint) = (message.into(), hint.into());
        Self {
            status: status_of(code),
            code,
            message,
            hint,
            retry_after: None,
            allow: None,
            facts: Map::new(),
        }
    }

    /// The request cannot be understood.
    pub(crate) fn bad_request(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::new(Code::BadRequest, message, hint)
    }

    /// There is more to do than fits, for now.
    pub(super) fn overloaded(message: &str) -> Self {
        Self::new(Code::Overloaded, message, "Come back in a moment.").retry_after(ROOM_RETRY_AFTER)
    }

    #[must_use]
    pub(crate) fn with_status(mut self, status: StatusCode) -> Self {
        self.status = status;
        self
    }

    #[must_use]
    pub(crate) fn retry_after(mut self, after: Duration) -> Self {
        self.retry_after = Some(after);
        self
    }

    #[must_use]
    pub(crate) fn with(mut self, facts: Map<String, Value>) -> Self {
        self.facts.extend(facts);
        self
    }

    /// The address takes other methods only.
    #[must_use]
    pub(crate) fn allowing(mut self, methods: &str) -> Self {
        self.status = StatusCode::METHOD_NOT_ALLOWED;
        self.allow = Some(methods.into());
        self
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    pub(crate) fn into_response(self) -> Response {
        let mut document = json!({
            "type": format!("urn:twicesafe:error:{}", self.code),
            "title": self.code.title(),
            "status": self.status.as_u16(),
            "code": self.code.as_str(),
            "message": self.message,
            "hint": self.hint,
        });
        if let Value::Object(document) = &mut document {
            document.extend(self.facts);
        }
        let mut response = Response::json_with_type(
            self.status,
            "application/problem+json",
            serde_json::to_vec(&document).unwrap_or_default(),
        );
        response.headers.insert(ERROR, HeaderValue::from_static(self.code.as_str()));
        if let Some(after) = self.retry_after {
            response.headers.insert(RETRY_AFTER, HeaderValue::from(whole_seconds(after)));
        }
        if let Some(methods) = self.allow.and_then(|methods| HeaderValue::from_str(&methods).ok()) {
            response.headers.insert(ALLOW, methods);
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"twicesafe\""));
        }
        response
    }
}

/// At least a second: nothing is won by asking at once.
fn whole_seconds(span: Duration) -> u64 {
    span.as_millis().div_ceil(1000).max(1).try_into().unwrap_or(u64::MAX)
}

/// One table for every door (S27).
pub(crate) fn status_of(code: Code) -> StatusCode {
    match code {
        Code::Mismatch => StatusCode::UNPROCESSABLE_ENTITY,
        Code::Rejected
        | Code::NotHolder
        | Code::OwnRequest
        | Code::NotAllowed
        | Code::NoRoute
        | Code::OtherSite
        | Code::LinkInvalid => StatusCode::FORBIDDEN,
        Code::Superseded => StatusCode::PRECONDITION_FAILED,
        Code::Gone => StatusCode::GONE,
        Code::Review | Code::Held | Code::GivenUp | Code::RecordAltered => StatusCode::LOCKED,
        Code::Refused => StatusCode::FAILED_DEPENDENCY,
        Code::Pending
        | Code::StaleFence
        | Code::SettledOtherwise
        | Code::ActMax
        | Code::DecidedOtherwise
        | Code::Moved
        | Code::TooEarly
        | Code::WrongStatus => StatusCode::CONFLICT,
        Code::NoSuchIntent
        | Code::NoSuchPage
        | Code::TokenUnknown
        | Code::NoSuchDestination
        | Code::NoSuchInbox => StatusCode::NOT_FOUND,
        Code::DestinationAway => StatusCode::BAD_GATEWAY,
        Code::NotRecorded => StatusCode::INSUFFICIENT_STORAGE,
        Code::ExpectationFailed => StatusCode::UNPROCESSABLE_ENTITY,
        Code::InputTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        Code::TokenMissing | Code::TokenRefused | Code::NotVerified | Code::OutOfTime => {
            StatusCode::UNAUTHORIZED
        }
        Code::TooSlow => StatusCode::REQUEST_TIMEOUT,
        Code::LedgerAway
        | Code::LedgerNotOurs
        | Code::LedgerNewer
        | Code::LedgerReadOnly
        | Code::DiskFull
        | Code::NetworkFileSystem
        | Code::LedgerSecondName
        | Code::LedgerSecret
        | Code::UnsafeDurability
        | Code::LedgerUnfit
        | Code::StartAgain
        | Code::OtherDatabase
        | Code::LedgerNotTrusted
        | Code::LedgerDamaged
        | Code::ClockJumped
        | Code::Paused
        | Code::Overloaded => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::BAD_REQUEST,
    }
}

/// What a caller does whose write was sent and is not on record.
const NOT_RECORDED_HINT: &str =
    "Do not do it by hand. Ask again with the same key when the ledger is back: nothing is sent twice.";

impl Problem {
    /// It was sent, or may have been, and the ledger could not be written afterwards (S20).
    pub(crate) fn not_recorded(error: &StoreError, hint: &str) -> Self {
        tracing::error!(code = %Code::NotRecorded, cause = %error.code(), "what came of an act is not recorded: {error}");
        let message = format!("it was sent, and what came of it is not recorded: {}", error.code().title());
        Self::new(Code::NotRecorded, message, hint).retry_after(AWAY_RETRY_AFTER)
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        let hint = match &refusal {
            Refusal::Mismatch => "Another thing needs another key; the same thing must have the same input.",
            Refusal::Rejected | Refusal::Undone | Refusal::Purged | Refusal::GivenUp => {
                "If it should be done afresh, somebody with the right to do so resets it."
            }
            Refusal::Superseded => "Nothing to do: a newer version is in place.",
            Refusal::OwnRequest => "Ask somebody else.",
            Refusal::Moved | Refusal::WrongStatus(_) => "Look at the intent again, then decide.",
            Refusal::TooEarly(_) => "Wait until then, look at the destination again, and decide.",
            Refusal::Altered => "Tell who runs the ledger: twicesafe journal verify.",
            Refusal::NoSuchIntent => "Check scope and key.",
            Refusal::DecidedOtherwise(_) => "The first decision stands; talk to who made it.",
            Refusal::NotHolder => {
                "Send fence, generation and secret as they were told to you, with the token that claimed."
            }
            Refusal::StaleFence | Refusal::SettledOtherwise | Refusal::ActMax => {
                "Claim again with the same key: the answer says where the intent stands. The report was kept in the journal."
            }
        };
        Self::new(refusal.code(), refusal.to_string(), hint)
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        // What a database says about itself is for its operators, in the log; callers need not know its inside.
        tracing::error!(code = %error.code(), "{error}");
        let problem = Self::new(error.code(), error.code().title(), error.remedy());
        match problem.status {
            StatusCode::SERVICE_UNAVAILABLE => problem.retry_after(AWAY_RETRY_AFTER),
            _ => problem,
        }
    }
}

impl From<InvalidName> for Problem {
    fn from(error: InvalidName) -> Self {
        let hint = "A key is 1 to 255 bytes of text; a scope is names separated by slashes.";
        Self::new(error.code(), error.to_string(), hint)
    }
}

impl From<InvalidPolicy> for Problem {
    fn from(error: InvalidPolicy) -> Self {
        Self::new(error.code(), error.to_string(), "Change the figures so that they fit together.")
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        match error {
            Error::Ledger(refusal) => refusal.into(),
            Error::Store(error) => error.into(),
            Error::NotRecorded(error) => Self::not_recorded(&error, NOT_RECORDED_HINT),
            Error::Name(error) => error.into(),
            Error::Policy(error) => error.into(),
            Error::Pending { retry_after } => {
                Self::new(Code::Pending, error.to_string(), "Ask again with the same key.")
                    .retry_after(retry_after)
            }
            Error::TooLarge { .. } => Self::new(error.code(), error.to_string(), "Send less."),
            Error::Refused(_) | Error::Review | Error::Held { .. } | Error::Recipe(_) => {
                Self::new(error.code(), error.to_string(), "Look at the intent.")
            }
        }
    }
}
