//! What travels: requests and answers of the API as types. The OpenAPI document is made from them, and `--json` of the command
//! line uses the same.

mod asked;
mod inboxes;
mod numbers;
mod told;

use twicesafe_ledger::Timestamp;

pub(crate) use asked::*;
pub(crate) use inboxes::*;
pub use told::*;

/// A time as people and programs read it: RFC 3339, UTC, whole seconds.
pub fn time(at: Timestamp) -> String {
    jiff::Timestamp::from_millisecond(at.as_millis())
        .map_or_else(|_| "never".to_owned(), |at| format!("{at:.0}"))
}
