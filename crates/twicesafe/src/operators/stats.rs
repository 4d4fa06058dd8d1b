//! `twicesafe stats`: figures, each with its definition. They are counted as things happen, so that nobody waits for a
//! scan; by the hour, so that there are few of them.

use std::io::Write;
use std::time::Duration;

use clap::Args;
use serde_json::{Map, Value, json};
use twicesafe_core::journal::Event;
use twicesafe_ledger::{Ledger, Statistics, Status, Timestamp};

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

/// One figure.
struct Figure {
    name: &'static str,
    value: u64,
    /// For people, where that is not the number.
    words: Option<String>,
    definition: &'static str,
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
    let happened = happened(&counts);
    if json {
        return Ok(print_json(out, &as_json(&counts, &happened, since, until))?);
    }
    let mut table = Table::new(&["figure", "value", "definition"]);
    let mut row =
        |name: String, value: String, definition: &str| table.row(vec![name, value, definition.to_owned()]);
    for figure in happened {
        let value = figure.words.unwrap_or_else(|| figure.value.to_string());
        row(figure.name.to_owned(), value, figure.definition);
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

const TOMBSTONES: &str = "settled, answer no longer kept; they still do not happen again";

fn happened(counts: &Statistics) -> Vec<Figure> {
    let figure = |name, value, definition| Figure { name, value, words: None, definition };
    let event = |name, event, definition| figure(name, counts.events(event), definition);
    let people = [
        Event::Approved,
        Event::Rejected,
        Event::Happened,
        Event::DidNotHappen,
        Event::GivenUp,
        Event::Reset,
        Event::Forgotten,
    ];
    let (recoveries, mean) = counts.recoveries();
    vec![
        figure(
            "duplicates prevented",
            counts.replays() + counts.waits(),
            "claims answered from the ledger or told to wait instead of acting; who asks again counts again",
        ),
        figure(
            "replays",
            counts.replays(),
            "claims answered with the first answer; may be too low after a crash",
        ),
        figure("waits", counts.waits(), "claims told to wait: an attempt was under way, or it was not due"),
        figure(
            "mismatches",
            counts.mismatches(),
            "claims refused because their key had been used with other input",
        ),
        event("attempts", Event::Claimed, "permits to act that were given"),
        event("effects", Event::Answered, "attempts that the destination answered: it happened"),
        figure(
            "doubts",
            counts.events(Event::Unknown) + counts.events(Event::Lapsed),
            "attempts after which nobody knew whether they had acted",
        ),
        figure("reviews", counts.reviews(), "times that only a person could say whether it had happened"),
        figure(
            "recoveries",
            recoveries,
            "times that doubt ended in knowledge: by an answer, a lookup or a person",
        ),
        Figure {
            name: "mean recovery time",
            value: mean.map_or(0, |mean| u64::try_from(mean.as_millis()).unwrap_or(u64::MAX)),
            words: Some(mean.map_or_else(|| "-".to_owned(), span)),
            definition: "from the permit of the first attempt in doubt to knowledge",
        },
        event(
            "actions behind approval",
            Event::Held,
            "intents held until a person said yes or no, nothing sent before",
        ),
        event("approvals expired", Event::Expired, "of these, nobody said yes in time"),
        figure(
            "decisions by people",
            people.into_iter().map(|event| counts.events(event)).sum(),
            "approved, rejected, resolved, reset and forgotten, together",
        ),
        event("approved", Event::Approved, "a person said yes"),
        event("rejected", Event::Rejected, "a person said no"),
        event("resolved: it happened", Event::Happened, "a person found that it had happened"),
        event("resolved: it did not", Event::DidNotHappen, "a person found that it had not happened"),
        event("resolved: given up", Event::GivenUp, "a person left it without knowing"),
        event("reset", Event::Reset, "a person had it done afresh"),
        event("forgotten", Event::Forgotten, "a person had key, answers and request dropped"),
    ]
}

fn as_json(counts: &Statistics, figures: &[Figure], since: Timestamp, until: Timestamp) -> Value {
    let entry = |figure: &Figure| {
        let name = figure.name.replace(": ", "_").replace(' ', "_");
        let name = if figure.words.is_some() { format!("{name}_ms") } else { name };
        (name, json!({ "value": figure.value, "definition": figure.definition }))
    };
    let standing = |status: Status| (status.to_string(), json!(counts.standing(status)));
    let now =
        Status::ALL.into_iter().map(standing).chain([("tombstones".to_owned(), json!(counts.tombstones()))]);
    json!({
        "since": time(since),
        "until": time(until),
        "figures": figures.iter().map(entry).collect::<Map<_, _>>(),
        "now": now.collect::<Map<_, _>>(),
    })
}
