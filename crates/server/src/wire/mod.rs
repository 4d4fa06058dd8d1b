//! What travels: requests and answers of the API as types. The OpenAPI document is made from them, and `--json` of the command
//! line uses the same.

mod asked;
mod inboxes;
mod numbers;
mod texts;
mod told;

use twicesafe_ledger::Timestamp;

pub(crate) use asked::*;
pub(crate) use inboxes::*;
pub use told::*;

/// A time as people and programs read it.
pub fn time(at: Timestamp) -> String {
    at.to_string()
}
