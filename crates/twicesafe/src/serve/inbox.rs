//! `twicesafe inbox`: what arrives, what became of it, and what people do about it.

use std::io::{Read, Write};
use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::json;
use twicesafe_core::{Actor, Code, legible};
use twicesafe_ledger::{Cursor, Error, Filter, Ledger, Refusal, Status, Stored};
use twicesafe_server::config::{self, Configuration};
use twicesafe_server::{Pausable, Putting, ServerError};

use super::say;
use crate::failure::Failure;
use crate::output::{Table, print_json, time};
use crate::{Common, place};

/// Largest event that is read from a file.
const EVENT_BYTES_MAX: u64 = 8 << 20;

/// Commands about inboxes.
/// Pages that are looked through for what ran out of attempts.
const DEAD_PAGES_MAX: usize = 1000;

#[derive(Subcommand)]
pub(crate) enum Inbox {
    /// Lists the inboxes, or the events of one, newest first.
    List(List),
    /// Shows an event: headers, body, how its sender was known, deliveries.
    Show(Named),
    /// Puts an event in, as if it had arrived. Its body is read from stdin.
    Put(Put),
    /// Has an event handed over again.
    Replay(Decided),
    /// Sets an event aside: it is not handed over, whatever arrives again, until it is replayed.
    Park(Decided),
    /// Drops everything of an event that could identify anybody. Its redelivery is still known.
    Forget(Decided),
    /// Pauses an inbox: it takes events and hands none over.
    Pause(Pause),
    /// Lets an inbox go on.
    Resume(OfInbox),
    /// Lists the providers that are known, or shows one.
    Providers(Providers),
}

#[derive(Args)]
pub(crate) struct List {
    /// The events of this inbox; otherwise the inboxes.
    inbox: Option<String>,
    /// With this status: ready, pending, retryable, review, done, superseded, ...
    #[arg(long)]
    status: Option<String>,
    /// Only what needs somebody: in review, or out of attempts.
    #[arg(long, conflicts_with = "status")]
    dead: bool,
    /// At most that many.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=1000))]
    limit: u16,
    /// Goes on where an earlier list ended.
    #[arg(long, value_name = "CURSOR")]
    after: Option<String>,
    /// The configuration file. Otherwise TWICESAFE_CONFIG, then twicesafe.yaml.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct Named {
    /// The inbox.
    inbox: String,
    /// The event's id.
    id: String,
}

#[derive(Args)]
pub(crate) struct Put {
    /// The inbox.
    inbox: String,
    /// The event's id; otherwise what `id:` of the inbox says. The same id again is the same event.
    #[arg(long)]
    id: Option<String>,
    /// The type of its body.
    #[arg(long, value_name = "TYPE", default_value = "application/json")]
    content_type: String,
    /// The configuration file. Otherwise TWICESAFE_CONFIG, then twicesafe.yaml.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct Decided {
    /// The inbox.
    inbox: String,
    /// The event's id.
    id: String,
    /// Why, for those who read the journal later.
    #[arg(long)]
    reason: String,
    /// Who decides. Otherwise who is logged in.
    #[arg(long = "as", value_name = "WHO")]
    who: Option<String>,
}

#[derive(Args)]
pub(crate) struct Pause {
    /// The inbox.
    inbox: String,
    /// Why.
    #[arg(long, default_value = "no reason was given")]
    reason: String,
}

#[derive(Args)]
pub(crate) struct OfInbox {
    /// The inbox.
    inbox: String,
}

#[derive(Args)]
pub(crate) struct Providers {
    /// A provider to show whole. Otherwise all are listed.
    name: Option<String>,
}

pub(super) async fn run(asked: Inbox, common: &Common, out: &mut impl Write) -> Result<(), Failure> {
    match asked {
        Inbox::List(asked) => list(&asked, common, out).await,
        Inbox::Show(asked) => show(&asked, common, out).await,
        Inbox::Put(asked) => put(&asked, common, out).await,
        Inbox::Replay(asked) => decided(&asked, "replay", common, out).await,
        Inbox::Park(asked) => decided(&asked, "park", common, out).await,
        Inbox::Forget(asked) => decided(&asked, "forget", common, out).await,
        Inbox::Pause(asked) => {
            check_name(&asked.inbox, None)?;
            let ledger = place::open(common).await?;
            let paused = twicesafe_server::pause(&ledger, Pausable::Inbox, &asked.inbox, &asked.reason);
            paused.await?;
            say("Servers hand nothing over within two seconds. What arrives is taken and waits.");
            Ok(())
        }
        Inbox::Resume(asked) => {
            check_name(&asked.inbox, None)?;
            let ledger = place::open(common).await?;
            let resumed = twicesafe_server::resume(&ledger, Pausable::Inbox, &asked.inbox);
            resumed.await?;
            say("It goes on within two seconds.");
            Ok(())
        }
        Inbox::Providers(asked) => providers(&asked, common, out),
    }
}

/// Where there is a configuration, it must know the inbox.
fn check_name(name: &str, given: Option<&std::path::Path>) -> Result<(), Failure> {
    let Some(path) = place::configuration(given) else { return Ok(()) };
    match config::load(&path)?.inboxes.contains_key(name) {
        true => Ok(()),
        false => Err(ServerError::NoSuchInbox(name.to_owned()).into()),
    }
}

/// What is not there may be looked for in an inbox that is not there.
fn not_there(inbox: &str, error: Error) -> Failure {
    match &error {
        Error::Ledger(Refusal::NoSuchIntent) => check_name(inbox, None).err().unwrap_or(error.into()),
        _ => error.into(),
    }
}

fn configuration(given: Option<&std::path::Path>) -> Result<Configuration, Failure> {
    match place::configuration(given) {
        Some(path) => Ok(config::load(&path)?),
        None => Err(Failure::coded(
            Code::ConfigurationInvalid,
            "there is no twicesafe.yaml here",
            "Name the file with --config, or write one: twicesafe init.",
        )),
    }
}

async fn list(asked: &List, common: &Common, out: &mut impl Write) -> Result<(), Failure> {
    let Some(inbox) = &asked.inbox else { return inboxes(asked, common, out).await };
    let status = match &asked.status {
        Some(word) => {
            let words = || {
                Failure::Usage(format!("a status is one of {}", Status::ALL.map(Status::as_str).join(", ")))
            };
            Some(Status::from_word(word).ok_or_else(words)?)
        }
        None => None,
    };
    let after = match &asked.after {
        Some(text) => {
            let wrong = || Failure::Usage("a cursor is what an earlier list ended with".to_owned());
            Some(Cursor::from_text(text).ok_or_else(wrong)?)
        }
        None => None,
    };
    let ledger = match &asked.config {
        Some(path) => {
            let address = place::find_with(common, &config::load(path)?)?;
            place::open_at(&address, &place::whoami()).await?
        }
        None => place::open(common).await?,
    };
    let scope = Some(twicesafe_server::scope_of(inbox));
    let statuses =
        if asked.dead { vec![Some(Status::Review), Some(Status::Retryable)] } else { vec![status] };
    let mut table = Table::new(&["event", "status", "attempts", "object", "arrived", "due"]);
    let (mut next, mut is_empty) = (None, true);
    for status in statuses {
        let filter = Filter { scope: scope.clone(), status, ..Filter::default() };
        let is_dead = |stored: &Stored| !asked.dead || stored.record.due_at.is_none();
        let (mut found, mut after) = (Vec::new(), after);
        // Those that are only waiting for their time may stand before them.
        for _ in 0..if asked.dead { DEAD_PAGES_MAX } else { 1 } {
            let page = ledger.store().list(&filter, after, usize::from(asked.limit)).await?;
            after = page.next;
            for stored in page.intents.into_iter().filter(is_dead) {
                // Nobody is needed where what it means was done through another event, and nothing waits for it.
                let may_be_done = asked.dead
                    && stored.record.status == Status::Retryable
                    && stored.record.waits_until.is_none();
                if !may_be_done || !twicesafe_server::is_done_otherwise(&ledger, inbox, &stored).await? {
                    found.push(stored);
                }
            }
            if after.is_none() || found.len() >= usize::from(asked.limit) {
                break;
            }
        }
        is_empty &= found.is_empty();
        for stored in &found {
            let record = &stored.record;
            let id = record.name.as_ref().map_or("(forgotten)", |name| name.key.as_str());
            let object = record.place.as_ref().map_or("", |place| place.lane.as_str());
            let object = object.strip_prefix(&format!("in:{inbox}:")).unwrap_or(object);
            if common.json {
                let line = json!({ "event": id, "status": record.status.as_str(), "attempts": record.tries,
                    "object": (!object.is_empty()).then_some(object), "arrived": time(record.created_at),
                    "due": record.due_at.map(time) });
                print_json(out, &line)?;
                continue;
            }
            table.row(vec![
                id.to_owned(),
                record.status.as_str().to_owned(),
                record.tries.to_string(),
                object.to_owned(),
                time(record.created_at),
                record.due_at.map(time).unwrap_or_default(),
            ]);
        }
        next = after.or(next);
    }
    if is_empty {
        check_name(inbox, asked.config.as_deref())?;
    }
    if !common.json {
        table.print(out)?;
    }
    match next {
        Some(next) if !asked.dead => say(&format!("There are more: --after {}", next.to_text())),
        Some(_) => say("There may be more; raise --limit."),
        None => {}
    }
    Ok(())
}

async fn inboxes(asked: &List, common: &Common, out: &mut impl Write) -> Result<(), Failure> {
    let configuration = configuration(asked.config.as_deref())?;
    let ledger = place::open(common).await?;
    let paused = twicesafe_server::paused(&ledger).await.map_err(ServerError::from)?;
    let mut table = Table::new(&["inbox", "address", "paused"]);
    for name in configuration.inboxes.keys() {
        let why =
            paused.iter().find(|(what, _)| *what == format!("inbox:{name}")).map(|(_, why)| why.clone());
        match common.json {
            true => {
                print_json(out, &json!({ "inbox": name, "address": format!("/in/{name}"), "paused": why }))?
            }
            false => table.row(vec![name.clone(), format!("/in/{name}"), why.unwrap_or_default()]),
        }
    }
    match common.json {
        true => Ok(()),
        false => Ok(table.print(out)?),
    }
}

async fn show(asked: &Named, common: &Common, out: &mut impl Write) -> Result<(), Failure> {
    let ledger = place::open(common).await?;
    let event = twicesafe_server::event_named(&ledger, &asked.inbox, &asked.id).await;
    let event = event.map_err(|error| not_there(&asked.inbox, error))?;
    let record = &event.dossier.stored.record;
    let body = event.body.as_ref().map(|body| String::from_utf8_lossy(body).into_owned());
    let answer = record.answer.as_ref().map(|answer| answer.head.to_string());
    if common.json {
        let delivery = |row: &twicesafe_ledger::JournalRow| {
            let entry = &row.entry;
            json!({ "at": time(entry.at), "event": entry.event.as_str(), "status": entry.status.as_str(),
                "reason": &*entry.reason, "actor": entry.actor.as_str() })
        };
        let deliveries: Vec<_> = event.dossier.journal.iter().map(delivery).collect();
        let shown = json!({ "event": asked.id, "status": record.status.as_str(), "generation": record.generation,
            "attempts": record.tries, "verified": event.verified, "object": event.object, "version": event.version, "means": event.means,
            "query": event.query, "webhook_id": event.webhook_id, "same_as": event.same_as,
            "headers": event.headers, "body": body, "answer": answer, "deliveries": deliveries });
        return Ok(print_json(out, &shown)?);
    }
    writeln!(out, "{} {}: {}", asked.inbox, legible::line(&asked.id), record.status)?;
    let facts = [
        ("verified", event.verified),
        ("object", event.object),
        ("version", event.version.map(|version| version.to_string())),
        ("means", event.means),
        ("query", event.query),
        ("webhook-id", event.webhook_id),
    ];
    for (what, value) in facts.into_iter().filter_map(|(what, value)| Some((what, value?))) {
        writeln!(out, "  {what:10} {}", legible::line(&value))?;
    }
    for (name, value) in &event.headers {
        writeln!(out, "  {name}: {}", legible::line(value))?;
    }
    match body {
        Some(body) => writeln!(out, "\n{}\n", legible::block(&body))?,
        None => writeln!(out, "\n(its body is not kept any more)\n")?,
    }
    for row in &event.dossier.journal {
        let entry = &row.entry;
        writeln!(
            out,
            "  {} {:10} {:10} {}",
            time(entry.at),
            entry.event.as_str(),
            entry.status,
            legible::line(&entry.reason)
        )?;
    }
    let answer = answer.filter(|answer| !answer.is_empty());
    match event.same_as.as_deref().map(legible::line) {
        Some(other) if record.status == Status::Done => {
            writeln!(out, "\n`{other}` means the same and was handed over: this has its answer.")?;
        }
        Some(other) if record.status == Status::Retryable && record.due_at.is_none() => {
            writeln!(out, "\n`{other}` means the same and was handed over: replay this to have its answer.")?;
        }
        Some(other) => writeln!(
            out,
            "\n`{other}` means the same and is decided first: twicesafe inbox show {} {other}",
            asked.inbox
        )?,
        None => {}
    }
    if let Some(answer) = answer {
        writeln!(out, "\nThe target answered: {}", legible::line(answer.lines().next().unwrap_or_default()))?;
    }
    Ok(())
}

async fn put(asked: &Put, common: &Common, out: &mut impl Write) -> Result<(), Failure> {
    let configuration = configuration(asked.config.as_deref())?;
    let address = place::find_with(common, &configuration)?;
    let ledger = place::open_at(&address, &place::whoami()).await?;
    let mut body = Vec::new();
    std::io::stdin().lock().take(EVENT_BYTES_MAX + 1).read_to_end(&mut body)?;
    let putting = Putting {
        inbox: asked.inbox.clone(),
        id: asked.id.clone(),
        body: body.into(),
        media_type: asked.content_type.clone(),
    };
    for (_, id, is_new) in twicesafe_server::put_event(&ledger, &configuration, putting).await? {
        match common.json {
            true => print_json(out, &json!({ "event": id, "new": is_new }))?,
            false => writeln!(out, "{}{}", legible::line(&id), if is_new { "" } else { "  (known)" })?,
        }
    }
    Ok(())
}

async fn decided(asked: &Decided, what: &str, common: &Common, out: &mut impl Write) -> Result<(), Failure> {
    let ledger: Ledger = place::open(common).await?;
    let who = match &asked.who {
        Some(who) => Actor::new(who)?,
        None => Actor::new(&place::whoami())?,
    };
    let Decided { inbox, id, reason, .. } = asked;
    if reason.trim().is_empty() {
        return Err(Failure::Usage("give a reason: --reason \"why\"".to_owned()));
    }
    let status = match what {
        "replay" => {
            let replayed = twicesafe_server::replay_event(&ledger, &who, inbox, id, reason).await;
            replayed.map(|stored| stored.record.status)
        }
        "park" => {
            twicesafe_server::park_event(&ledger, &who, inbox, id, reason).await.map(|noted| noted.status)
        }
        _ => twicesafe_server::forget_event(&ledger, &who, inbox, id, reason).await.map(|noted| noted.status),
    };
    let status = status.map_err(|error| match error {
        Error::Ledger(Refusal::Purged) if what == "replay" => {
            Failure::coded(Code::Gone, twicesafe_server::BODY_GONE, twicesafe_server::BODY_GONE_HINT)
        }
        error => not_there(inbox, error),
    })?;
    match common.json {
        true => Ok(print_json(out, &json!({ "event": id, "status": status.as_str() }))?),
        false => Ok(writeln!(out, "{inbox} {}: {status}", legible::line(id))?),
    }
}

fn providers(asked: &Providers, common: &Common, out: &mut impl Write) -> Result<(), Failure> {
    let Some(name) = &asked.name else {
        let mut table = Table::new(&["name", "title", "id"]);
        for (name, entry) in twicesafe_server::providers() {
            let id = entry.provider.id.clone();
            match common.json {
                true => print_json(out, &json!({ "name": name, "title": entry.title, "id": id }))?,
                false => table.row(vec![
                    (*name).to_owned(),
                    entry.title.clone(),
                    id.unwrap_or_else(|| "(write `id:`)".to_owned()),
                ]),
            }
        }
        return match common.json {
            true => Ok(()),
            false => Ok(table.print(out)?),
        };
    };
    let entry = twicesafe_server::provider(name).map_err(Failure::Usage)?;
    let source = twicesafe_server::provider_source(name).unwrap_or_default();
    if common.json {
        let facts: Vec<_> =
            entry.facts.iter().map(|fact| json!({ "says": fact.says, "verified": fact.verified })).collect();
        let shown = json!({ "name": name, "title": entry.title, "facts": facts, "entry": source });
        return Ok(print_json(out, &shown)?);
    }
    writeln!(out, "{}\n", entry.title)?;
    for fact in &entry.facts {
        writeln!(out, "  {} {}", if fact.verified { "verified" } else { "believed" }, fact.says)?;
    }
    let body = source.split_once("\nprovider:\n").map_or("", |(_, body)| body);
    Ok(write!(out, "\n{body}")?)
}
