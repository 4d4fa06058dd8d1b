//! What observing found: how much would have been prevented or refused, why, and what to write to have it guarded.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Serialize;
use twicesafe_ledger::{Code, Error, Filter, Ledger};

use super::observe::OBSERVED;
use super::route::STABLE_ID;

/// Most that is counted of one kind; there may be more.
const COUNTED_MAX: usize = 10_000;
const PAGE: usize = 1000;

/// What was seen of one action.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Observed {
    /// Where it went.
    pub destination: String,
    /// What it is called.
    pub action: String,
    /// Different intents.
    pub seen: usize,
    /// Repetitions that would not have been sent, by why.
    pub prevented: BTreeMap<String, usize>,
    /// Requests that would have been refused, by why.
    pub refused: BTreeMap<String, usize>,
    /// Method and path of one of them.
    pub r#match: Option<String>,
    /// Whether a route names it.
    pub has_route: bool,
    /// Whether some came without the key they would need.
    #[serde(skip)]
    lacks_keys: bool,
}

/// What observing found for a tenant, at one destination or at all.
pub async fn observed(
    ledger: &Ledger,
    tenant: &str,
    destination: Option<&str>,
) -> Result<Vec<Observed>, Error> {
    let below = match destination {
        Some(destination) => format!("{tenant}/{OBSERVED}/{destination}/"),
        None => format!("{tenant}/{OBSERVED}/"),
    };
    let mut all: BTreeMap<(String, String), Observed> = BTreeMap::new();
    for scope in ledger.store().scopes(&below).await? {
        let parts: Vec<&str> = scope.split('/').collect();
        let [_, _, destination, action, what] = parts.as_slice() else { continue };
        let entry = all.entry(((*destination).to_owned(), (*action).to_owned())).or_default();
        (entry.destination, entry.action) = ((*destination).to_owned(), (*action).to_owned());
        count(ledger, &scope, what, entry).await?;
    }
    Ok(all.into_values().collect())
}

async fn count(ledger: &Ledger, scope: &str, what: &str, entry: &mut Observed) -> Result<(), Error> {
    let filter = Filter { scope: Some(scope.to_owned()), ..Filter::default() };
    let (mut after, mut counted) = (None, 0);
    while counted < COUNTED_MAX {
        let page = ledger.store().list(&filter, after, PAGE).await?;
        counted += page.intents.len();
        for stored in &page.intents {
            if what == "seen" {
                entry.seen += 1;
                continue;
            }
            let answer = stored.record.answer.as_ref().and_then(|answer| answer.bytes());
            let found: serde_json::Value =
                answer.and_then(|bytes| serde_json::from_slice(bytes).ok()).unwrap_or_default();
            let why = found["why"].as_str().unwrap_or("unknown").to_owned();
            let kind = if what == "prevented" { &mut entry.prevented } else { &mut entry.refused };
            *kind.entry(why).or_default() += 1;
            entry.lacks_keys |= found["code"] == Code::KeyMissing.as_str();
            entry.has_route = found["has_route"].as_bool().unwrap_or_default();
            entry.r#match = found["match"].as_str().map(str::to_owned);
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    Ok(())
}

impl Observed {
    /// What its key could be made of; nothing where all callers send one.
    fn key(&self, matched: &str) -> Option<String> {
        let deleted =
            matched.strip_prefix("DELETE ").and_then(|path| path.rsplit_once('{')?.1.strip_suffix('}'));
        self.lacks_keys.then(|| match deleted {
            Some(parameter) => format!("request.params.{parameter}"),
            None => format!("request.body.{STABLE_ID}"),
        })
    }

    /// What to write to have these guarded.
    pub fn configuration(all: &[Self]) -> String {
        let mut text = String::from("destinations:\n");
        let mut last = "";
        // The first route that matches counts: one for a single address stands before one for many.
        let mut all: Vec<&Self> = all.iter().collect();
        all.sort_by_cached_key(|one| {
            let matched = one.r#match.as_ref().map(|text| text.replace('{', "\u{7f}"));
            (&one.destination, matched)
        });
        for one in &all {
            if one.destination != last {
                let _ = writeln!(text, "  {}:\n    mode: guard", one.destination);
                last = &one.destination;
                if all
                    .iter()
                    .any(|other| other.destination == last && !other.has_route && other.r#match.is_some())
                {
                    text.push_str("    routes:\n");
                }
            }
            if let (false, Some(matched)) = (one.has_route, &one.r#match) {
                let _ = writeln!(text, "      - match: {matched}\n        action: {}", one.action);
                if let Some(key) = one.key(matched) {
                    let _ = writeln!(text, "        key: {key}");
                }
                text.push_str("        recovery: person\n");
            }
        }
        text
    }
}
