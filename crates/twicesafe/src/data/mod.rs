//! Moving a ledger, and comparing it with the source of truth.

use std::io::Write;

use clap::Subcommand;

use crate::Common;
use crate::failure::Failure;

/// Commands about a ledger as a whole.
#[derive(Subcommand)]
pub(crate) enum Data {}

pub(crate) async fn run(data: Data, _common: &Common, _out: &mut impl Write) -> Result<(), Failure> {
    match data {}
}
