//! Tests of the library: effects counted, processes killed, both stores.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop where it is")]

mod leaving;
mod people;
mod processes;
mod readme;
mod run;
mod send_by;
mod sweeps;
mod transaction;
mod unrecorded;
mod world;
