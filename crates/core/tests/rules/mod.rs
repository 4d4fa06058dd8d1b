//! The rules as scenarios: each test reads like the rule it checks and cites it.

mod adopting;
mod approval;
mod claiming;
mod doubt;
mod holding;
mod inbox;
mod keeping;
mod lanes;
mod ledger;
mod outcomes;
mod repeating;
