//! `twicesafe run`, on every kind of store. What happened is counted from outside, in files that the commands write
//! to.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on stops here")]

mod batch;
mod exits;
mod guide;
mod input;
mod killed;
mod ledgers;
mod overlap;
mod signals;
mod syncs;
mod together;
mod world;
