//! `twicesafe journal`: proof that nothing was changed or taken away (S40).

mod seal;
mod verify;

use std::io::{self, IsTerminal, Write};

use clap::Subcommand;
use twicesafe_ledger::{Filter, Ledger, Store, Stored};

use super::PAGE;
use crate::failure::Failure;

#[derive(Subcommand)]
pub(crate) enum Journal {
    /// Checks that every row of the journal follows from the one before it and that none is missing.
    Verify(verify::Verify),
    /// Prints a seal: what the journal holds now, one line an intent. Kept elsewhere, it shows later what was taken
    /// away: twicesafe journal verify --seal FILE.
    Seal,
}

pub(super) async fn run(
    ledger: &Ledger,
    asked: Journal,
    json: bool,
    out: &mut impl Write,
) -> Result<(), Failure> {
    match asked {
        Journal::Verify(asked) => verify::run(ledger, asked, json, out).await,
        Journal::Seal => seal::run(ledger, out).await,
    }
}

/// Hands over every intent, newest first, page by page.
async fn walk(
    store: &Store,
    filter: &Filter,
    what: &str,
    mut take: impl AsyncFnMut(Stored) -> Result<(), Failure>,
) -> Result<u64, Failure> {
    let (mut seen, mut after) = (0, None);
    let mut progress = Progress::new(what);
    loop {
        let page = store.list(filter, after, PAGE).await?;
        for stored in page.intents {
            take(stored).await?;
            seen += 1;
        }
        progress.show(seen);
        after = page.next;
        if after.is_none() {
            return Ok(seen);
        }
    }
}

/// How far it has come, on one line of a terminal that goes away again.
struct Progress<'a> {
    what: &'a str,
    watched: bool,
}

impl<'a> Progress<'a> {
    fn new(what: &'a str) -> Self {
        Self { what, watched: io::stderr().is_terminal() }
    }

    fn show(&mut self, n: u64) {
        if self.watched {
            let _ = write!(io::stderr(), "\r\u{1b}[K{n} intents {}", self.what);
        }
    }
}

impl Drop for Progress<'_> {
    fn drop(&mut self) {
        if self.watched {
            let _ = write!(io::stderr(), "\r\u{1b}[K");
        }
    }
}
