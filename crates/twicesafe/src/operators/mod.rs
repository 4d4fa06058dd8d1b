//! The operator's tools: look, decide, prove.

use std::io::Write;

use clap::Subcommand;

use crate::Common;
use crate::failure::Failure;

/// Commands of operators.
#[derive(Subcommand)]
pub(crate) enum Operate {}

pub(crate) async fn run(operate: Operate, _common: &Common, _out: &mut impl Write) -> Result<(), Failure> {
    match operate {}
}
