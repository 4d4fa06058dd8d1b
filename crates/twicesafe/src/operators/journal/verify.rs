//! Checking chains, and what a seal says of them.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};
use twicesafe_core::IntentId;
use twicesafe_core::journal::Event;
use twicesafe_ledger::{Filter, Ledger, Store, StoreError, Stored, Timestamp};

use super::seal::{Line, Seal};
use super::walk;
use crate::failure::Failure;
use crate::operators::{agreement, portrait, say};
use crate::output::{Table, print_json};

#[derive(Args)]
pub(crate) struct Verify {
    /// Only of this scope, or of all below it if it ends with a slash.
    #[arg(long, conflicts_with = "seal")]
    scope: Option<String>,
    /// Also compares with what `twicesafe journal seal` printed earlier: nothing may have been taken away since.
    #[arg(long, value_name = "FILE")]
    seal: Option<PathBuf>,
}

/// What is wrong, and where.
struct Fault {
    intent: IntentId,
    name: [String; 2],
    row: u32,
    what: String,
}

pub(super) async fn run(
    ledger: &Ledger,
    asked: Verify,
    json: bool,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let store = ledger.store();
    let seal = asked.seal.as_deref().map(Seal::read).transpose()?;
    let mut faults = Vec::new();
    let (mut intents, mut rows) = (0_u64, 0_u64);
    // A store lists only so many scopes below a prefix; here none may be left out.
    let (exact, below) = match asked.scope {
        Some(scope) if scope.ends_with('/') => (None, Some(scope)),
        scope => (scope, None),
    };
    let filter = Filter { scope: exact, ..Filter::default() };
    let is_asked_for = |stored: &Stored| match &below {
        Some(below) => stored.record.name.as_ref().is_some_and(|name| name.scope.as_str().starts_with(below)),
        None => true,
    };
    walk(store, &filter, "checked", async |stored| {
        if is_asked_for(&stored) {
            intents += 1;
            rows += u64::from(stored.journal_end().0);
            faults.extend(chain(store, stored).await?);
        }
        Ok(())
    })
    .await?;
    let removed = match &seal {
        Some(seal) => against(store, seal, &mut faults).await?,
        None => 0,
    };
    faults.sort_by_key(|fault| (fault.intent, fault.row));
    let sealed = seal.as_ref().map(|seal| seal.lines.len());
    if json {
        let value = json!({
            "intents": intents,
            "rows": rows,
            "sealed": sealed,
            "removed_since_seal": seal.as_ref().map(|_| removed),
            "faults": faults.iter().map(Fault::as_json).collect::<Value>(),
        });
        print_json(out, &value)?;
    } else if !faults.is_empty() {
        let mut table = Table::new(&["intent", "scope", "key", "row", "what"]);
        for fault in &faults {
            let [scope, key] = fault.name.clone();
            table.row(vec![fault.intent.to_string(), scope, key, fault.row.to_string(), fault.what.clone()]);
        }
        table.print(out)?;
    }
    let checked = format!(
        "{} with {} checked",
        agreement::count(intents, "intent", "intents"),
        agreement::count(rows, "journal row", "journal rows")
    );
    let compared = sealed.map_or_else(String::new, |sealed| {
        format!(", {sealed} compared with the seal, {removed} purged since then")
    });
    if !store.has_secret() && !json {
        say("The ledger has no secret: who can read it can seal what they change (TS0059).");
    }
    if faults.is_empty() {
        if !json {
            say(&format!("{checked}{compared}: whole."));
        }
        return Ok(());
    }
    let found = agreement::count(faults.len() as u64, "fault", "faults");
    Err(Failure::Found(format!(
        "{checked}{compared}: {found}. Keep a copy of the ledger, then find out who wrote to it."
    )))
}

/// Checks the chain of one intent.
async fn chain(store: &Store, stored: Stored) -> Result<Option<Fault>, Failure> {
    let found = match store.verify_journal(&stored).await {
        Ok(found) => found.map(|fault| (fault.number, fault.what.to_owned())),
        // A row that says what no row can say.
        Err(StoreError::Damaged(what)) => Some((0, what)),
        Err(error) => return Err(error.into()),
    };
    let Some((row, what)) = found else { return Ok(None) };
    // It may have been written between the two reads; then its chain is judged as it is now.
    match store.find_id(stored.id).await? {
        Some(now) if now.version != stored.version => Box::pin(chain(store, now)).await,
        None => Ok(None),
        Some(_) => Ok(Some(Fault { intent: stored.id, name: portrait::scope_and_key(&stored), row, what })),
    }
}

/// Compares with a seal. Says how many intents are gone that may be.
async fn against(store: &Store, seal: &Seal, faults: &mut Vec<Fault>) -> Result<u64, Failure> {
    let now = store.now().await?;
    let mut gone = Vec::new();
    for line in &seal.lines {
        let id = IntentId::new(line.intent);
        let rows = match store.journal(id).await {
            Ok(rows) => rows,
            // Said already, by the check of its chain.
            Err(StoreError::Damaged(_)) => continue,
            Err(error) => return Err(error.into()),
        };
        let stored = store.find_id(id).await?;
        let mut fault = |row, what: &str| {
            let name =
                stored.as_ref().map_or_else(|| ["(gone)".to_owned(), String::new()], portrait::scope_and_key);
            faults.push(Fault { intent: id, name, row, what: what.to_owned() });
        };
        let at_seal = line.rows.checked_sub(1).and_then(|last| rows.get(last as usize));
        match at_seal {
            Some(_) if stored.is_none() => fault(line.rows, "it is gone, and its journal is not"),
            None if stored.is_none() && now < line.kept_until => {
                fault(line.rows, "it is gone, before purging could have removed it");
            }
            None if stored.is_none() => gone.push(line),
            None => fault(line.rows, "rows that were sealed are gone"),
            Some(row) if row.hash != line.head => {
                fault(line.rows, "the chain does not pass through the sealed hash")
            }
            Some(_) => {}
        }
    }
    let removed = purged_since(store, seal.at, now).await?;
    if gone.len() as u64 > removed {
        faults.extend(gone.iter().map(|line| gone_too_many(line, removed)));
    }
    Ok(gone.len() as u64)
}

/// How many intents purging has removed, by its own count.
async fn purged_since(store: &Store, since: Timestamp, now: Timestamp) -> Result<u64, Failure> {
    Ok(store.statistics(since, now).await?.events(Event::Removed))
}

fn gone_too_many(line: &Line, removed: u64) -> Fault {
    let what = format!("it is gone; purging has removed only {removed} since the seal, and more are gone");
    Fault {
        intent: IntentId::new(line.intent),
        name: ["(gone)".to_owned(), String::new()],
        row: line.rows,
        what,
    }
}

impl Fault {
    fn as_json(&self) -> Value {
        let [scope, key] = &self.name;
        json!({
            "intent": self.intent.number(),
            "scope": scope,
            "key": key,
            "row": self.row,
            "what": self.what,
        })
    }
}
