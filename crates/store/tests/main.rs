//! The conformance suite: one set of rules that every store must keep, and the faults it must survive.
//!
//! * `conformance`: rules, run against memory, SQLite, PostgreSQL and PostgreSQL behind PgBouncer;
//! * `model`: random commands, compared with the bare rules of the core;
//! * `processes`: several processes on one ledger, and processes that are killed;
//! * `guards`: effects guarded inside the caller's own PostgreSQL transaction;
//! * `faults`: connections that are cut, a database that goes away, files that are not ours.
//!
//! `scripts/test` starts the databases this needs.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests panic on surprise, and children talk to their parents through stdout"
)]
#![allow(unreachable_pub, missing_docs, reason = "nothing outside this binary sees these items")]

mod conformance;
mod faults;
mod guards;
mod model;
mod orders;
mod processes;
mod world;
