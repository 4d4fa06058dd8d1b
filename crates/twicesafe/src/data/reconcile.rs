//! `twicesafe reconcile`: what the source of truth says, compared with what the ledger says.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::{BufRead, Write};
use std::sync::Arc;

use clap::Args;
use serde_json::{Value, json};
use twicesafe_core::journal::Event;
use twicesafe_ledger::{
    Actor, Adoption, Answer, ExternalId, Filter, Key, Ledger, Name, Policy, Scope, Status, Stored, Timestamp,
};

use super::csv::{BadRow, Row, Rows};
use super::{bad_line, count, open, say};
use crate::failure::Failure;
use crate::output::{Table, parse_time, print_json, time};
use crate::{Common, place};

/// Most keys in a file; they are kept in memory.
const KEYS_MAX: usize = 5_000_000;
/// Intents read at a time, and adopted at a time.
const PAGE: usize = 200;

const REMEDY: &str = "A file has a first line with column names, `key` among them, and one line a key.";

#[derive(Args)]
pub(crate) struct Reconcile {
    /// The scope to compare.
    #[arg(long)]
    scope: String,
    /// What the source of truth says, as CSV with a first line of column names: `key`, and `external_id` if it has one; -
    /// for stdin.
    #[arg(value_name = "FILE.csv")]
    file: String,
    /// Records what is missing as having happened. What is mismatched is never touched.
    #[arg(long, requires = "reason")]
    adopt: bool,
    /// How you know, for the journal.
    #[arg(long, value_name = "TEXT", requires = "adopt")]
    reason: Option<String>,
    /// Counts as extra only what was done at or after that time: 2026-11-15T08:00:00Z, 2026-11-15 or 2h (ago).
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Counts as extra only what was done before that time.
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
}

pub(super) async fn run(asked: Reconcile, common: &Common, out: &mut impl Write) -> Result<(), Failure> {
    let scope = Scope::new(&asked.scope)?;
    if asked.reason.as_ref().is_some_and(|reason| reason.trim().is_empty()) {
        return Err(Failure::Usage("a reason says how you know; this one is empty".to_owned()));
    }
    let said = Said::read(open(&asked.file)?)?;
    let ledger = place::open(common).await?;
    let now = ledger.store().now().await?;
    let moment = |text: &Option<String>| {
        text.as_ref().map(|text| parse_time(text, now)).transpose().map_err(Failure::Usage)
    };
    let (since, until) = (moment(&asked.since)?, moment(&asked.until)?);
    let in_time =
        |at: Timestamp| since.is_none_or(|since| at >= since) && until.is_none_or(|until| at < until);
    let mut comparison = compare(&ledger, &scope, said, in_time).await?;
    if let Some(reason) = asked.reason.filter(|_| asked.adopt) {
        adopt(&ledger, &scope, &mut comparison, &reason).await?;
    }
    if common.json {
        print_json(out, &comparison.as_json(&scope))?;
    } else if !comparison.is_empty() {
        comparison.table().print(out)?;
    }
    out.flush()?;
    comparison.tell()
}

/// What the source of truth says happened.
struct Said {
    happened: HashMap<String, Happened>,
}

struct Happened {
    line: u64,
    external_id: Option<ExternalId>,
}

impl Said {
    fn read(input: impl BufRead) -> Result<Self, Failure> {
        let mut rows = Rows::new(input);
        let bad = |BadRow { line, problem }| bad_line(line, problem, REMEDY);
        let header = rows.next().map_err(bad)?.ok_or_else(|| bad_line(1, "the file is empty", REMEDY))?;
        let column = |name: &str| header.fields.iter().position(|field| field.trim() == name);
        let key_column =
            column("key").ok_or_else(|| bad_line(header.line, "there is no column `key`", REMEDY))?;
        let id_column = column("external_id");
        let mut happened: HashMap<String, Happened> = HashMap::new();
        while let Some(Row { line, fields }) = rows.next().map_err(bad)? {
            if fields.len() != header.fields.len() {
                let found = count(fields.len() as u64, "field", "fields");
                let problem = format!("{found}, where the first line has {}", header.fields.len());
                return Err(bad_line(line, problem, REMEDY));
            }
            if happened.len() == KEYS_MAX {
                return Err(bad_line(line, format!("more than {KEYS_MAX} keys"), "Compare in parts."));
            }
            let key = Key::new(&fields[key_column]).map_err(|error| bad_line(line, error, REMEDY))?;
            let external_id = id_column.and_then(|column| ExternalId::new(&fields[column]));
            match happened.entry(key.to_string()) {
                Entry::Occupied(first) => {
                    let problem = format!("the key `{key}` is on line {} already", first.get().line);
                    return Err(bad_line(
                        line,
                        problem,
                        "A key stands for one thing: find out which line is right.",
                    ));
                }
                Entry::Vacant(place) => drop(place.insert(Happened { line, external_id })),
            }
        }
        Ok(Self { happened })
    }
}

/// What differs.
#[derive(Default)]
struct Comparison {
    keys: u64,
    agree: u64,
    missing: Vec<Missing>,
    mismatched: Vec<Mismatched>,
    extra: Vec<Extra>,
}

/// In the file, and not done in the ledger.
struct Missing {
    line: u64,
    key: String,
    external_id: Option<ExternalId>,
    /// `None`: the ledger has not heard of it.
    status: Option<Status>,
    /// What became of adopting it; `None`: nobody asked for that.
    adopted: Option<Result<(), String>>,
}

/// In both, by different names.
struct Mismatched {
    line: u64,
    key: String,
    in_file: ExternalId,
    in_ledger: ExternalId,
}

/// Done in the ledger, and not in the file.
struct Extra {
    key: String,
    external_id: Option<ExternalId>,
    done_at: Timestamp,
}

async fn compare(
    ledger: &Ledger,
    scope: &Scope,
    Said { mut happened }: Said,
    in_time: impl Fn(Timestamp) -> bool,
) -> Result<Comparison, Failure> {
    let store = ledger.store();
    let mut comparison = Comparison { keys: happened.len() as u64, ..Comparison::default() };
    let filter = Filter { scope: Some(scope.to_string()), ..Filter::default() };
    let mut after = None;
    loop {
        let page = store.list(&filter, after, PAGE).await?;
        for stored in &page.intents {
            let Some(name) = &stored.record.name else { continue };
            match happened.remove(name.key.as_str()) {
                Some(said) => comparison.add(name.key.as_str(), said, Some(stored)),
                None => comparison.add_extra(name.key.as_str(), stored, &in_time),
            }
        }
        match page.next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    // Not listed: unheard of, forgotten, or come since. A forgotten one is still found by its name.
    for (key, said) in happened {
        let name = Name { scope: scope.clone(), key: Key::new(&key)? };
        comparison.add(&key, said, store.find(&name).await?.as_ref());
    }
    comparison.missing.sort_by_key(|missing| missing.line);
    comparison.mismatched.sort_by_key(|mismatched| mismatched.line);
    comparison.extra.reverse();
    Ok(comparison)
}

/// What the ledger calls what was made.
fn external_id(stored: &Stored) -> Option<&ExternalId> {
    stored.record.answer.as_ref()?.external_id.as_ref()
}

impl Comparison {
    fn add(&mut self, key: &str, Happened { line, external_id: in_file }: Happened, found: Option<&Stored>) {
        let key = key.to_owned();
        match found.filter(|found| found.record.status == Status::Done) {
            None => {
                let status = found.map(|found| found.record.status);
                self.missing.push(Missing { line, key, external_id: in_file, status, adopted: None });
            }
            Some(done) => match (in_file, external_id(done)) {
                (Some(in_file), Some(in_ledger)) if in_file != *in_ledger => {
                    let in_ledger = in_ledger.clone();
                    self.mismatched.push(Mismatched { line, key, in_file, in_ledger });
                }
                _ => self.agree += 1,
            },
        }
    }

    fn add_extra(&mut self, key: &str, stored: &Stored, in_time: impl Fn(Timestamp) -> bool) {
        let record = &stored.record;
        let done_at = record.settled_at.filter(|at| record.status == Status::Done && in_time(*at));
        if let Some(done_at) = done_at {
            self.extra.push(Extra {
                key: key.to_owned(),
                external_id: external_id(stored).cloned(),
                done_at,
            });
        }
    }

    fn is_empty(&self) -> bool {
        self.missing.is_empty() && self.mismatched.is_empty() && self.extra.is_empty()
    }

    fn table(&self) -> Table {
        let mut table =
            Table::new(&["difference", "key", "status", "id in the file", "id in the ledger", "remark"]);
        let text = |id: &Option<ExternalId>| id.as_ref().map(|id| id.as_str().to_owned()).unwrap_or_default();
        for missing in &self.missing {
            let remark = match &missing.adopted {
                Some(Ok(())) => "adopted".to_owned(),
                Some(Err(why)) => format!("not adopted: {why}"),
                None => String::new(),
            };
            let status = missing.status.map_or("unknown", Status::as_str).to_owned();
            let id = text(&missing.external_id);
            table.row(vec!["missing".to_owned(), missing.key.clone(), status, id, String::new(), remark]);
        }
        for mismatched in &self.mismatched {
            let ids = [&mismatched.in_file, &mismatched.in_ledger].map(|id| id.as_str().to_owned());
            let row = ["mismatched".to_owned(), mismatched.key.clone(), "done".to_owned()];
            table.row(row.into_iter().chain(ids).chain([String::new()]).collect());
        }
        for extra in &self.extra {
            let row = ["extra".to_owned(), extra.key.clone(), "done".to_owned(), String::new()];
            let done = format!("done {}", time(extra.done_at));
            table.row(row.into_iter().chain([text(&extra.external_id), done]).collect());
        }
        table
    }

    fn as_json(&self, scope: &Scope) -> Value {
        let id = |id: &Option<ExternalId>| id.as_ref().map(|id| id.as_str().to_owned());
        let missing = |missing: &Missing| {
            let (adopted, why) = match &missing.adopted {
                Some(Ok(())) => (true, None),
                Some(Err(why)) => (false, Some(why)),
                None => (false, None),
            };
            json!({
                "key": missing.key, "line": missing.line, "status": missing.status.map_or("unknown", Status::as_str),
                "external_id": id(&missing.external_id), "adopted": adopted, "not_adopted_because": why,
            })
        };
        let mismatched = |mismatched: &Mismatched| {
            json!({
                "key": mismatched.key, "line": mismatched.line,
                "external_id_in_file": mismatched.in_file.as_str(),
                "external_id_in_ledger": mismatched.in_ledger.as_str(),
            })
        };
        let extra = |extra: &Extra| json!({ "key": extra.key, "external_id": id(&extra.external_id), "done_at": time(extra.done_at) });
        json!({
            "scope": scope.as_str(),
            "keys": self.keys,
            "agree": self.agree,
            "missing": self.missing.iter().map(missing).collect::<Vec<_>>(),
            "mismatched": self.mismatched.iter().map(mismatched).collect::<Vec<_>>(),
            "extra": self.extra.iter().map(extra).collect::<Vec<_>>(),
        })
    }

    /// Says how many differ; what was adopted does not any more.
    fn tell(&self) -> Result<(), Failure> {
        let adopted =
            self.missing.iter().filter(|missing| matches!(missing.adopted, Some(Ok(())))).count() as u64;
        let missing = self.missing.len() as u64 - adopted;
        let (mismatched, extra) = (self.mismatched.len() as u64, self.extra.len() as u64);
        let mut words = format!("{} in the file: {} agree", count(self.keys, "key", "keys"), self.agree);
        if adopted > 0 {
            words += &format!(", {adopted} adopted");
        }
        words += &format!(", {missing} missing, {mismatched} mismatched; {extra} extra in the ledger.");
        if missing + mismatched + extra == 0 {
            say(&words);
            return Ok(());
        }
        if missing > 0 && self.missing.iter().all(|missing| missing.adopted.is_none()) {
            words += " If the file is right about what is missing, add --adopt --reason TEXT.";
        }
        Err(Failure::Found(words))
    }
}

async fn adopt(
    ledger: &Ledger,
    scope: &Scope,
    comparison: &mut Comparison,
    reason: &str,
) -> Result<(), Failure> {
    let who = Actor::new(&place::whoami())?;
    let policy = Arc::new(Policy::default());
    for missing in comparison.missing.chunks_mut(PAGE) {
        let (mut taken, mut adoptions) = (Vec::new(), Vec::new());
        for missing in missing {
            let name = Name { scope: scope.clone(), key: Key::new(&missing.key)? };
            if was_reset(ledger, &name).await? {
                let why = "it was reset, and the file may mean what happened before";
                missing.adopted = Some(Err(why.to_owned()));
                continue;
            }
            let answer = Answer { external_id: missing.external_id.clone(), ..Answer::default() };
            adoptions.push(Adoption { name, policy: policy.clone(), answer });
            taken.push(missing);
        }
        for (missing, result) in taken.into_iter().zip(ledger.adopt(&who, adoptions, reason).await) {
            missing.adopted = Some(match result {
                Ok(_) => Ok(()),
                Err(twicesafe_ledger::Error::Ledger(refusal)) => Err(refusal.to_string()),
                Err(error) => return Err(error.into()),
            });
        }
    }
    Ok(())
}

/// Whether somebody wanted it done afresh: then the source of truth does not say which time it means.
async fn was_reset(ledger: &Ledger, name: &Name) -> Result<bool, Failure> {
    let Some(stored) = ledger.store().find(name).await?.filter(|stored| stored.record.generation > 1) else {
        return Ok(false);
    };
    let journal = ledger.store().journal(stored.id).await?;
    Ok(journal.iter().any(|row| row.entry.event == Event::Reset))
}
