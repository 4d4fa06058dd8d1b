//! `twicesafe pins`: answers of AI models that are on record. Looked at, and forgotten.

use std::io::Write;
use twicesafe_core::legible;

use clap::{Args, Subcommand};
use serde_json::json;
use twicesafe_ledger::{Actor, Body, Filter, Ledger, Status, Stored};

use super::decide::parse_reason;
use super::{PAGE, portrait, say};
use crate::failure::Failure;
use crate::output::{Table, print_json, time};
use crate::place;

#[derive(Subcommand)]
pub(crate) enum Pins {
    /// Lists them, newest first.
    List(List),
    /// Shows the answer of one.
    Show(Show),
    /// Drops the answers of one, or of all of a work; the same question gets another answer then.
    Forget(Forget),
}

#[derive(Args)]
pub(crate) struct List {
    /// Of this work.
    #[arg(long, value_name = "ID")]
    work: Option<String>,
    /// Whose, where no work is named.
    #[arg(long, default_value = "default")]
    tenant: String,
    /// At most that many.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=1000))]
    limit: u16,
}

#[derive(Args)]
pub(crate) struct Show {
    /// Its scope, as the list has it.
    scope: String,
    /// Its key.
    key: String,
}

#[derive(Args)]
pub(crate) struct Forget {
    #[command(flatten)]
    which: Which,
    /// Why.
    #[arg(long, value_name = "TEXT", value_parser = parse_reason)]
    reason: String,
    /// Who decides, for the journal. Otherwise who runs this: user and host.
    #[arg(long = "as", value_name = "NAME")]
    who: Option<String>,
}

#[derive(Args)]
#[group(required = true, multiple = true)]
pub(crate) struct Which {
    /// All of this work.
    #[arg(long, value_name = "ID", conflicts_with_all = ["scope", "key"])]
    work: Option<String>,
    /// The scope of one, as the list has it.
    #[arg(requires = "key")]
    scope: Option<String>,
    /// Its key.
    key: Option<String>,
}

pub(super) async fn run(
    ledger: &Ledger,
    asked: Pins,
    json: bool,
    out: &mut impl Write,
) -> Result<(), Failure> {
    match asked {
        Pins::List(asked) => list(ledger, &asked, json, out).await,
        Pins::Show(asked) => show(ledger, &asked, json, out).await,
        Pins::Forget(asked) => forget(ledger, &asked, json, out).await,
    }
}

async fn list(ledger: &Ledger, asked: &List, json: bool, out: &mut impl Write) -> Result<(), Failure> {
    let limit = usize::from(asked.limit);
    let mut pins = match &asked.work {
        Some(work) => of_work(ledger, work).await?,
        None => newest(ledger, &asked.tenant, limit).await?,
    };
    let is_all = pins.len() <= limit;
    pins.truncate(limit);
    let mut table = Table::new(&["created", "scope", "key", "status", "model", "id", "work / step"]);
    for stored in &pins {
        let record = &stored.record;
        let [scope, key] = portrait::scope_and_key(stored);
        let (model, usage) = (noted(stored, "twicesafe-model"), noted(stored, "twicesafe-usage"));
        let id = noted(stored, "twicesafe-id").unwrap_or_default();
        if json {
            let evaluation = noted(stored, "twicesafe-evaluation");
            let line = json!({ "created": time(record.created_at), "scope": scope, "key": key, "status": record.status.as_str(),
                "model": model, "usage": usage, "evaluation": evaluation, "id": id, "work": portrait::work(record) });
            print_json(out, &line)?;
            continue;
        }
        let row =
            [time(record.created_at), scope, key, portrait::status(record), model.unwrap_or_default(), id];
        table.row(row.into_iter().chain([portrait::work(record)]).collect());
    }
    if !json && table.is_empty() {
        say("No answers of AI models are pinned there.");
    } else if !json {
        table.print(out)?;
    }
    if !is_all {
        say("There are more: name a work, or raise --limit.");
    }
    Ok(())
}

/// What is kept beside an answer.
fn noted(stored: &Stored, name: &str) -> Option<String> {
    let head = &stored.record.answer.as_ref()?.head;
    head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")).map(str::to_owned)
}

fn is_pin(stored: &Stored) -> bool {
    let name = stored.record.name.as_ref();
    name.is_some_and(|name| twicesafe_server::is_pin(name.scope.as_str()))
}

async fn of_work(ledger: &Ledger, work: &str) -> Result<Vec<Stored>, Failure> {
    let filter = Filter { work: Some(work.to_owned()), ..Filter::default() };
    let mut pins = Vec::new();
    let mut after = None;
    loop {
        let page = ledger.store().list(&filter, after, PAGE).await?;
        pins.extend(page.intents.into_iter().filter(is_pin));
        after = page.next;
        if after.is_none() {
            return Ok(pins);
        }
    }
}

/// The newest ones of a tenant, and one more if there are more.
async fn newest(ledger: &Ledger, tenant: &str, limit: usize) -> Result<Vec<Stored>, Failure> {
    let scopes = ledger.store().scopes(&format!("{tenant}/")).await?;
    let mut pins = Vec::new();
    for scope in scopes.into_iter().filter(|scope| twicesafe_server::is_pin(scope)) {
        let filter = Filter { scope: Some(scope), ..Filter::default() };
        pins.extend(ledger.store().list(&filter, None, limit + 1).await?.intents);
    }
    pins.sort_by_key(|stored| std::cmp::Reverse(stored.id));
    pins.truncate(limit + 1);
    Ok(pins)
}

async fn show(ledger: &Ledger, asked: &Show, json: bool, out: &mut impl Write) -> Result<(), Failure> {
    let stored = existing(ledger, &asked.scope, &asked.key).await?;
    let answer = stored.record.answer.as_ref().filter(|_| stored.record.status == Status::Done);
    let Some(answer) = answer else {
        return Err(Failure::Usage(format!("it has no answer; it is {}", stored.record.status)));
    };
    let body = match &answer.body {
        Body::Kept(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Body::NotKept { bytes, .. } => format!("({bytes} bytes, not kept)"),
    };
    match json {
        true => print_json(out, &json!({ "head": &*answer.head, "body": body }))?,
        false => writeln!(out, "{}\n{}", legible::block(&answer.head), legible::block(&body))?,
    }
    Ok(())
}

async fn existing(ledger: &Ledger, scope: &str, key: &str) -> Result<std::sync::Arc<Stored>, Failure> {
    let stored = ledger.existing(&twicesafe_ledger::Name::new(scope, key)?).await?;
    match is_pin(&stored) {
        true => Ok(stored),
        false => Err(Failure::Usage(
            "that is an effect, and no answer of an AI model; see `twicesafe show`".to_owned(),
        )),
    }
}

async fn forget(ledger: &Ledger, asked: &Forget, json: bool, out: &mut impl Write) -> Result<(), Failure> {
    let who = match &asked.who {
        Some(who) => Actor::new(who)?,
        None => Actor::new(&place::whoami())?,
    };
    let pins = match &asked.which {
        Which { work: Some(work), .. } => of_work(ledger, work).await?,
        Which { scope: Some(scope), key: Some(key), .. } => {
            vec![existing(ledger, scope, key).await?.as_ref().clone()]
        }
        Which { .. } => return Err(Failure::Usage("name a work, or a scope and a key".to_owned())),
    };
    let (settled, open): (Vec<_>, Vec<_>) =
        pins.into_iter().partition(|stored| stored.record.status.is_settled());
    for stored in &settled {
        ledger.forget(&who, stored, &asked.reason).await?;
    }
    match json {
        true => print_json(out, &json!({ "forgotten": settled.len(), "under_way": open.len() }))?,
        false => writeln!(out, "forgotten {}", settled.len())?,
    }
    if !open.is_empty() {
        say(&format!("{} are under way or were never answered, and hold no answer.", open.len()));
    }
    Ok(())
}
