//! Moving a ledger, and comparing it with the source of truth.
//!
//! * `export`, `import`: everything a ledger knows, as lines of JSON (`docs/export-format.md`);
//! * `reconcile`: what the source of truth says, compared with what the ledger says; `csv` reads its file.

mod csv;
mod export;
mod import;
mod reconcile;

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};

use clap::Subcommand;
use twicesafe_core::Code;

use crate::Common;
use crate::failure::Failure;
use crate::output::say;

/// Commands about a ledger as a whole.
#[derive(Subcommand)]
pub(crate) enum Data {
    /// Writes everything the ledger knows to stdout, as lines of JSON: a backup, or a ledger on its way to another store.
    Export(export::Export),
    /// Fills an empty ledger with what `export` wrote.
    Import(import::Import),
    /// Compares a scope with the source of truth: what is missing, extra or mismatched. Exits with 1 if anything is.
    Reconcile(reconcile::Reconcile),
}

pub(crate) async fn run(data: Data, common: &Common, out: &mut impl Write) -> Result<(), Failure> {
    match data {
        Data::Export(asked) => export::run(asked, common, out).await,
        Data::Import(asked) => import::run(asked, common, out).await,
        Data::Reconcile(asked) => reconcile::run(asked, common, out).await,
    }
}

/// Opens a file for reading; `-` is stdin.
fn open(path: &str) -> Result<Box<dyn BufRead>, Failure> {
    if path == "-" {
        return Ok(Box::new(BufReader::new(io::stdin())));
    }
    match File::open(path) {
        Ok(file) => Ok(Box::new(BufReader::with_capacity(1 << 16, file))),
        Err(error) => Err(unreadable(&error)),
    }
}

fn unreadable(error: &io::Error) -> Failure {
    let remedy = "Check the path and whether you may read it. Nothing was changed.";
    Failure::coded(Code::BadInputFile, format!("the file cannot be read: {error}"), remedy)
}

/// A line that is not as it should be. Nothing of the file was taken.
fn bad_line(line: u64, problem: impl std::fmt::Display, remedy: &str) -> Failure {
    Failure::coded(
        Code::BadInputFile,
        format!("line {line}: {problem}"),
        format!("Nothing was changed. {remedy}"),
    )
}

/// A number with its noun.
fn count(n: u64, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}
