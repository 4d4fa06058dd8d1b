//! `twicesafe stats`: figures, each with its definition. They are counted as things happen, so that nobody waits for a
//! scan; by the hour, so that there are few of them.

use std::io::Write;
use std::time::Duration;

use clap::Args;
use twicesafe_ledger::{Ledger, Status};
use twicesafe_server::figures;

use super::{agreement, say};
use crate::failure::Failure;
use crate::output::{Table, parse_time, print_json, span, time};

/// How far back figures go unless somebody says otherwise: a month, however old the ledger is.
const SPAN_DEFAULT: Duration = Duration::from_secs(30 * 24 * 3600);

#[derive(Args)]
pub(crate) struct Stats {
    /// From the hour of that time on: 2026-11-15T08:00:00Z, 2026-11-15, or how long ago (2h). Otherwise for 30 days.
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Up to the hour of that time, which counts in full.
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
}

pub(super) async fn run(
    ledger: &Ledger,
    asked: Stats,
    json: bool,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let store = ledger.store();
    let now = store.now().await?;
    let moment = |text: &Option<String>| {
        text.as_ref().map(|text| parse_time(text, now)).transpose().map_err(Failure::Usage)
    };
    let until = moment(&asked.until)?.unwrap_or(now);
    let since = moment(&asked.since)?.unwrap_or_else(|| until.minus(SPAN_DEFAULT));
    let counts = store.statistics(since, until).await?;
    if json {
        let mut value = figures::as_json(&counts);
        value.extend([("since".to_owned(), time(since).into()), ("until".to_owned(), time(until).into())]);
        return Ok(print_json(out, &value.into())?);
    }
    let mut table = Table::new(&["figure", "value", "definition"]);
    let mut row =
        |name: String, value: String, definition: &str| table.row(vec![name, value, definition.to_owned()]);
    for figure in figures::happened(&counts) {
        let value = match (figure.is_span, figure.value) {
            (false, count) => count.to_string(),
            (true, 0) => "-".to_owned(),
            (true, millis) => span(Duration::from_millis(millis)),
        };
        row(figure.name.to_owned(), value, figure.definition);
    }
    for (model, saved) in figures::saved(&counts) {
        row(format!("saved {model}"), saved.answers.to_string(), SAVED);
        row(format!("saved {model} tokens"), saved.tokens.to_string(), SAVED_TOKENS);
        row(format!("saved {model} dollars"), saved.dollars(), SAVED_DOLLARS);
    }
    for status in Status::ALL {
        row(format!("now {status}"), counts.standing(status).to_string(), agreement::meaning(status));
    }
    row("now tombstones".to_owned(), counts.tombstones().to_string(), TOMBSTONES);
    table.print(out)?;
    let (from, to) = (time(since), time(until));
    say(&format!("Counted by the hour, from the hour of {from} to that of {to}; \"now\" is now."));
    Ok(())
}

const SAVED: &str =
    "answers of that AI model given again instead of paid again; may be too low after a crash";
const SAVED_TOKENS: &str = "their tokens, as far as the provider said how many";
const SAVED_DOLLARS: &str = "their price, where the catalog or the configuration knows one";
const TOMBSTONES: &str = "settled, answer no longer kept; they still do not happen again";
