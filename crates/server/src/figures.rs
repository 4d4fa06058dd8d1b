//! The figures people care about, each with its definition: the same on the command line and in the API.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use twicesafe_ledger::journal::Event;
use twicesafe_ledger::{Statistics, Status};

use crate::gateway::pins::saved as pins;

/// One figure.
#[derive(Clone, Debug)]
pub struct Figure {
    /// What it is called.
    pub name: &'static str,
    /// How many, or how many milliseconds.
    pub value: u64,
    /// Whether it is a span of time.
    pub is_span: bool,
    /// What is counted.
    pub definition: &'static str,
}

/// What happened in the time the counts are of.
pub fn happened(counts: &Statistics) -> Vec<Figure> {
    let figure = |name, value, definition| Figure { name, value, is_span: false, definition };
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
            is_span: true,
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

/// What one AI model was not paid for twice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Saved {
    /// Answers that were given again.
    pub answers: u64,
    /// Their tokens, as far as the provider said how many.
    pub tokens: u64,
    /// Millionths of a dollar, where a price is known.
    pub microdollars: u64,
}

impl Saved {
    /// In dollars, as people write it.
    pub fn dollars(&self) -> String {
        format!("{}.{:06}", self.microdollars / 1_000_000, self.microdollars % 1_000_000)
    }
}

/// What was not spent twice, by model. May be too low after a crash.
pub fn saved(counts: &Statistics) -> BTreeMap<String, Saved> {
    let mut all: BTreeMap<String, Saved> = BTreeMap::new();
    for (name, n) in counts.of_doors() {
        let mut put = |prefix: &str, place: fn(&mut Saved) -> &mut u64| {
            if let Some(model) = name.strip_prefix(prefix) {
                *place(all.entry(model.to_owned()).or_default()) += n;
            }
        };
        put(pins::ANSWERS, |saved| &mut saved.answers);
        put(pins::TOKENS, |saved| &mut saved.tokens);
        put(pins::MICRODOLLARS, |saved| &mut saved.microdollars);
    }
    all
}

/// The figures and where intents stand now, for programs.
pub fn as_json(counts: &Statistics) -> Map<String, Value> {
    let entry = |figure: Figure| {
        let name = figure.name.replace(": ", "_").replace(' ', "_");
        let name = if figure.is_span { format!("{name}_ms") } else { name };
        (name, json!({ "value": figure.value, "definition": figure.definition }))
    };
    let figures: Map<_, _> = happened(counts).into_iter().map(entry).collect();
    let standing = |status: Status| (status.to_string(), json!(counts.standing(status)));
    let tombstones = ("tombstones".to_owned(), json!(counts.tombstones()));
    let now: Map<_, _> = Status::ALL.into_iter().map(standing).chain([tombstones]).collect();
    let of_model = |(model, saved): (String, Saved)| {
        (model, json!({ "answers": saved.answers, "tokens": saved.tokens, "usd": saved.dollars() }))
    };
    let saved: Map<_, _> = saved(counts).into_iter().map(of_model).collect();
    let parts = [("figures", figures), ("now", now), ("saved", saved)];
    parts.into_iter().map(|(name, part)| (name.to_owned(), part.into())).collect()
}
