//! Tests of the rules: the model check, scenarios that cite the rule they check, and properties.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests panic on surprise and print what they counted"
)]
#![allow(unreachable_pub, missing_docs, reason = "nothing outside this binary sees these items")]

mod model;
mod properties;
mod rules;
