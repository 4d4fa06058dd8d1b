//! What belongs to destinations: `catalog`, `spec`, `pause`, `resume`, `observed`.

use std::io::Write;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde_json::json;
use twicesafe_core::Code;
use twicesafe_server::{Observed, Pausable, catalog, config};

use super::say;
use crate::failure::Failure;
use crate::output::{Table, print_json};
use crate::{Common, place};

#[derive(Args)]
pub(crate) struct Catalog {
    /// An entry to show whole. Otherwise all are listed.
    name: Option<String>,
}

/// Lists what is known of common destinations, or shows one.
pub(super) fn catalog(asked: &Catalog, common: &Common, out: &mut impl Write) -> Result<(), Failure> {
    let Some(name) = &asked.name else {
        let mut table = Table::new(&["name", "title", "routes", "recovery", "base"]);
        for (name, entry) in catalog::entries() {
            let base = entry.destination.base.as_ref().and_then(|base| base.reveal().ok());
            let recoveries = catalog::recoveries(entry);
            if common.json {
                let line = json!({ "name": name, "title": entry.title, "routes": entry.destination.routes.len(),
                    "recovery": recoveries, "base": base });
                print_json(out, &line)?;
                continue;
            }
            table.row(vec![
                (*name).to_owned(),
                entry.title.clone(),
                entry.destination.routes.len().to_string(),
                recoveries.join(", "),
                base.unwrap_or_else(|| "(yours)".to_owned()),
            ]);
        }
        if !common.json {
            table.print(out)?;
        }
        return Ok(());
    };
    let entry = catalog::entry(name).map_err(Failure::Usage)?;
    let source = catalog::source(name).unwrap_or_default();
    if common.json {
        let facts: Vec<_> =
            entry.facts.iter().map(|fact| json!({ "says": fact.says, "verified": fact.verified })).collect();
        let question = |question: &catalog::Question| {
            json!({ "asks": question.asks, "action": question.action, "misses": question.misses,
                "not_found": question.not_found.as_str(), "verified": question.verified })
        };
        let lookups: Vec<_> = entry.lookups.iter().map(question).collect();
        return Ok(print_json(
            out,
            &json!({ "name": name, "title": entry.title, "facts": facts, "lookups": lookups, "entry": source }),
        )?);
    }
    writeln!(out, "{}\n", entry.title)?;
    let how_known = |verified: bool| if verified { "verified" } else { "believed" };
    for fact in &entry.facts {
        writeln!(out, "  {} {}", how_known(fact.verified), fact.says)?;
    }
    if entry.lookups.is_empty() {
        writeln!(out, "\n  lookups  none is known")?;
    } else {
        writeln!(out, "\n  lookups")?;
    }
    for question in &entry.lookups {
        let says = match question.not_found {
            catalog::NotFound::Counts => "not found counts",
            catalog::NotFound::Never => "not found never counts",
        };
        let used = question.action.as_ref().map_or_else(String::new, |action| format!(" (by {action})"));
        let known = how_known(question.verified);
        writeln!(out, "  {known} {}{used}; {says}; it does not show: {}", question.asks, question.misses)?;
    }
    let body = source.split_once("\ndestination:\n").map_or("", |(_, body)| body);
    Ok(write!(out, "\n{body}")?)
}

#[derive(Args)]
pub(crate) struct SpecOf {
    /// Only this one: DESTINATION/ACTION, or a destination.
    route: Option<String>,
    /// The configuration file. Otherwise TWICESAFE_CONFIG, then twicesafe.yaml.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// Prints the idempotency spec of routes.
pub(super) fn spec(asked: &SpecOf, common: &Common, out: &mut impl Write) -> Result<(), Failure> {
    let Some(path) = place::configuration(asked.config.as_deref()) else {
        return Err(Failure::coded(
            Code::ConfigurationInvalid,
            "there is no twicesafe.yaml here",
            "Name the file with --config, or write one: twicesafe init.",
        ));
    };
    let all = twicesafe_server::specs(&config::load(&path)?)?;
    let is_wanted = |route: &str| {
        asked.route.as_ref().is_none_or(|wanted| route == wanted || route.starts_with(&format!("{wanted}/")))
    };
    let wanted: Vec<_> = all.iter().filter(|spec| is_wanted(&spec.route)).collect();
    if wanted.is_empty() {
        let known: Vec<&str> = all.iter().map(|spec| spec.route.as_str()).collect();
        let file = path.display();
        return Err(Failure::Usage(match (&asked.route, known.is_empty()) {
            (Some(route), false) => format!(
                "{file} has no route that writes called `{route}`; name one of {}, or none for all of them",
                known.join(", ")
            ),
            _ => format!("{file} has no route that writes; name some under `destinations:`"),
        }));
    }
    for (number, spec) in wanted.into_iter().enumerate() {
        if common.json {
            print_json(out, &json!(spec))?;
            continue;
        }
        if number > 0 {
            writeln!(out)?;
        }
        writeln!(out, "{}", spec.route)?;
        for (what, value) in [
            ("action protected", &spec.action_protected),
            ("business intent", &spec.business_intent),
            ("key fields", &spec.key_fields),
            ("storage", &spec.storage),
            ("replay window", &spec.replay_window),
            ("result record", &spec.result_record),
            ("resume rule", &spec.resume_rule),
            ("approval", &spec.approval),
            ("owner", &spec.owner),
            ("source", &spec.source),
        ] {
            writeln!(out, "  {what:17} {value}")?;
        }
    }
    Ok(())
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum What {
    /// A destination, by its name.
    Destination,
    /// A token, by its name or id.
    Token,
    /// An inbox, by its name.
    Inbox,
}

impl From<What> for Pausable {
    fn from(what: What) -> Self {
        match what {
            What::Destination => Self::Destination,
            What::Token => Self::Token,
            What::Inbox => Self::Inbox,
        }
    }
}

#[derive(Args)]
pub(crate) struct Pause {
    /// What to pause; nothing: lists what is paused.
    #[arg(requires = "name")]
    what: Option<What>,
    /// Its name; of a token also its id.
    name: Option<String>,
    /// Why; callers are told.
    #[arg(long, default_value = "no reason was given")]
    reason: String,
}

pub(super) async fn pause(asked: &Pause, common: &Common, out: &mut impl Write) -> Result<(), Failure> {
    let ledger = place::open(common).await?;
    if let (Some(what), Some(name)) = (asked.what, &asked.name) {
        twicesafe_server::pause(&ledger, what.into(), name, &asked.reason).await?;
        let what = what.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
        say(&format!(
            "Servers take nothing for the {what} `{name}` within two seconds, and send nothing that waits."
        ));
    }
    for (what, reason) in
        twicesafe_server::paused(&ledger).await.map_err(twicesafe_server::ServerError::from)?
    {
        match common.json {
            true => print_json(out, &json!({ "paused": what, "reason": reason }))?,
            false => writeln!(out, "{what}  {reason}")?,
        }
    }
    Ok(())
}

#[derive(Args)]
pub(crate) struct Resume {
    /// What to resume.
    what: What,
    /// Its name; of a token also its id.
    name: String,
}

pub(super) async fn resume(asked: &Resume, common: &Common) -> Result<(), Failure> {
    let ledger = place::open(common).await?;
    twicesafe_server::resume(&ledger, asked.what.into(), &asked.name).await?;
    say("It goes on within two seconds.");
    Ok(())
}

#[derive(Args)]
pub(crate) struct ObservedAt {
    /// Only this destination.
    destination: Option<String>,
    /// Whose.
    #[arg(long, default_value = "default")]
    tenant: String,
}

/// What observing found, and what to write to have it guarded.
pub(super) async fn observed(
    asked: &ObservedAt,
    common: &Common,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let ledger = place::open(common).await?;
    let all = twicesafe_server::observed(&ledger, &asked.tenant, asked.destination.as_deref()).await?;
    if common.json {
        return Ok(all.iter().try_for_each(|one| print_json(out, &json!(one)))?);
    }
    if all.is_empty() {
        say("Nothing was observed: a destination with `mode: observe` passes everything on and records it.");
        return Ok(());
    }
    let mut table =
        Table::new(&["destination", "action", "intents", "would be prevented", "would be refused"]);
    for one in &all {
        let total =
            |by_why: &std::collections::BTreeMap<String, usize>| by_why.values().sum::<usize>().to_string();
        table.row(vec![
            one.destination.clone(),
            one.action.clone(),
            one.seen.to_string(),
            total(&one.prevented),
            total(&one.refused),
        ]);
    }
    table.print(out)?;
    for one in &all {
        for (what, by_why) in [("prevented", &one.prevented), ("refused", &one.refused)] {
            for (why, count) in by_why {
                writeln!(out, "{}/{} {what} {count}: {why}", one.destination, one.action)?;
            }
        }
    }
    Ok(write!(out, "\nTo guard them:\n\n{}", Observed::configuration(&all))?)
}
