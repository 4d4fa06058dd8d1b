//! The commands of operators, on every kind of store: what they print, what they say, how they end.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on stops here")]

mod deciding;
mod guide;
mod looking;
mod manual;
mod proving;
pub(crate) mod world;
