//! Caps: what may be done in a day without asking a person. What goes beyond waits for one.
//!
//! A cap is a brake, not a transaction: servers that count at the same moment may each let one through. It is counted from
//! the ledger, so a restart forgets nothing.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use twicesafe_ledger::{Cursor, Filter, Status, Timestamp};

use super::Arrival;
use super::expression::{Expression, Sight};
use super::plan::Limit;
use super::sending::Sending;
use crate::http::Problem;

const DAY_MS: i64 = 24 * 3600 * 1000;
/// Intents on a page.
const PAGE: usize = 500;

/// What was counted of today.
#[derive(Default)]
pub(crate) struct Counts(Mutex<HashMap<String, Today>>);

#[derive(Clone, Default)]
struct Today {
    day: i64,
    count: u64,
    /// By expression.
    sums: HashMap<String, f64>,
    /// Up to this number all are counted.
    newest: i64,
}

/// Whether a write goes beyond what may be done today under its scope.
pub(super) async fn are_reached(
    arrival: &Arrival<'_>,
    scope: &str,
    sight: &Sight<'_>,
) -> Result<bool, Problem> {
    let limits = &arrival.route.caps;
    if limits.is_empty() {
        return Ok(false);
    }
    let today = counted(arrival, scope).await?;
    for limit in limits {
        let is_reached = match limit {
            Limit::Count(most) => today.count >= *most,
            Limit::Sum(expression, most) => {
                let own =
                    amount(expression, sight).map_err(|why| super::guarded::not_worked_out("caps", &why))?;
                today.sums.get(expression.text()).copied().unwrap_or_default() + own > *most
            }
        };
        if is_reached {
            return Ok(true);
        }
    }
    Ok(false)
}

fn amount(expression: &Expression, sight: &Sight<'_>) -> Result<f64, String> {
    let value = expression.value(sight)?;
    let number = value.as_f64().or_else(|| value.as_str()?.parse().ok());
    number
        .filter(|number| number.is_finite())
        .ok_or_else(|| format!("`{}` is not a number", expression.text()))
}

/// Counts what was done today, going on from where it was counted last.
async fn counted(arrival: &Arrival<'_>, scope: &str) -> Result<Today, Problem> {
    let store = arrival.shared.ledger.store();
    let day = store.now().await?.as_millis().div_euclid(DAY_MS);
    let known = arrival.shared.caps.lock().get(scope).filter(|today| today.day == day).cloned();
    let mut today = known.unwrap_or(Today { day, ..Today::default() });
    let since = Timestamp::from_millis(day * DAY_MS);
    let counted_before = today.newest;
    let filter = Filter { scope: Some(scope.to_owned()), created_from: Some(since), ..Filter::default() };
    let mut after: Option<Cursor> = None;
    'pages: loop {
        let page = store.list(&filter, after, PAGE).await?;
        for stored in &page.intents {
            if stored.id.number() <= counted_before {
                break 'pages;
            }
            today.newest = today.newest.max(stored.id.number());
            // What a person was asked about is not done without asking.
            let counts = stored.record.approval.is_none() && stored.record.status != Status::Superseded;
            if let Some(intent) = stored.record.name.as_ref().filter(|_| counts) {
                today.count += 1;
                add_amounts(arrival, intent, &mut today).await?;
            }
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    arrival.shared.caps.lock().insert(scope.to_owned(), today.clone());
    Ok(today)
}

async fn add_amounts(
    arrival: &Arrival<'_>,
    intent: &twicesafe_ledger::Name,
    today: &mut Today,
) -> Result<(), Problem> {
    let sums: Vec<&Expression> = arrival
        .route
        .caps
        .iter()
        .filter_map(|limit| match limit {
            Limit::Sum(expression, _) => Some(expression),
            Limit::Count(_) => None,
        })
        .collect();
    if sums.is_empty() {
        return Ok(());
    }
    let dossier = arrival.shared.ledger.store().dossier(intent).await?;
    let Some(sending) = dossier.and_then(|dossier| Sending::from_kept(&dossier.request?)) else {
        return Ok(());
    };
    let view = sending.view(&[]);
    let sight = Sight { request: Some(&view), ..Sight::default() };
    for expression in sums {
        *today.sums.entry(expression.text().to_owned()).or_default() +=
            amount(expression, &sight).unwrap_or_default();
    }
    Ok(())
}

impl Counts {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Today>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
