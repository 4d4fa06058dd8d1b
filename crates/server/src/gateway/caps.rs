//! Caps: what may be done in a day without asking a person. What goes beyond waits for one.
//!
//! A cap is a brake, not a transaction: servers that count at the same moment may each let something through. It is counted from
//! the ledger, so a restart forgets nothing.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use twicesafe_ledger::{Cursor, Filter, IntentId, Name, Status, StoreError, Timestamp};

use super::Arrival;
use super::expression::{Expression, Sight};
use super::route::Limit;
use super::sending::Sending;
use crate::http::Problem;

const DAY_MS: i64 = 24 * 3600 * 1000;
/// What is remembered of what was let through, and for how long it may take to be in the ledger.
const LET_THROUGH_MAX: usize = 10_000;
const LET_THROUGH_FOR: Duration = Duration::from_secs(60);
/// Keys of a day and scope that are remembered as counted; a repetition of one beyond that may ask a person once more.
const COUNTED_MAX: usize = 100_000;
/// Intents on a page.
const PAGE: usize = 500;

/// What was counted of today.
#[derive(Default)]
pub(crate) struct Counts(Mutex<HashMap<String, Today>>);

#[derive(Default)]
struct Today {
    day: i64,
    count: u64,
    /// By expression.
    sums: HashMap<String, f64>,
    /// Up to this number all are counted.
    newest: i64,
    /// What is counted, by key: a repetition is not counted again.
    counted: HashMap<String, Amounts>,
    /// What was let through here a moment ago and is not in the ledger yet, by key.
    let_through: HashMap<String, (Instant, Amounts)>,
}

/// The amounts of one request, by expression.
type Amounts = HashMap<String, f64>;

/// An intent that is not counted yet; without amounts it does not count.
struct News {
    number: i64,
    name: Name,
    amounts: Option<Amounts>,
}

/// Whether a write goes beyond what may be done today under its scope.
pub(super) async fn are_reached(
    arrival: &Arrival<'_>,
    name: &Name,
    sight: &Sight<'_>,
) -> Result<bool, Problem> {
    let limits = &arrival.route.caps;
    let own = amounts(limits, sight).map_err(|why| super::guarded::not_worked_out("caps", &why))?;
    let day = counted(arrival, name.scope.as_str()).await?;
    let mut counts = arrival.shared.caps.lock();
    let today = counts.entry(name.scope.as_str().to_owned()).or_default();
    if today.day != day {
        *today = Today { day, ..Today::default() };
    }
    today.let_through.retain(|_, (at, _)| at.elapsed() < LET_THROUGH_FOR);
    let earlier = today.counted.get(name.key.as_str());
    let others = || today.let_through.iter().filter(|(key, _)| key.as_str() != name.key.as_str());
    let is_reached = limits.iter().any(|limit| match limit {
        Limit::Count(most) => {
            let counted = today.count - u64::from(earlier.is_some());
            counted + others().count() as u64 >= *most
        }
        Limit::Sum(expression, most) => {
            let of = |amounts: &Amounts| amounts.get(expression.text()).copied().unwrap_or_default();
            let known =
                today.sums.get(expression.text()).copied().unwrap_or_default() - earlier.map_or(0.0, of);
            let sum = known + others().map(|(_, (_, amounts))| of(amounts)).sum::<f64>() + of(&own);
            // What was more than any cap can be taken away from nothing.
            sum.is_nan() || sum > *most
        }
    });
    if !is_reached {
        match today.counted.get_mut(name.key.as_str()) {
            Some(counted) => raise(counted, &own, &mut today.sums),
            None if today.let_through.len() < LET_THROUGH_MAX => {
                today.let_through.insert(name.key.as_str().to_owned(), (Instant::now(), own));
            }
            None => {}
        }
    }
    Ok(is_reached)
}

/// A request that was refused may be corrected, and then it is another amount that is done. Never less than was counted: what comes
/// again may be refused again, and then the first amount stands.
fn raise(counted: &mut Amounts, own: &Amounts, sums: &mut HashMap<String, f64>) {
    for (text, amount) in own {
        let before = counted.entry(text.clone()).or_default();
        if *amount > *before {
            *sums.entry(text.clone()).or_default() += *amount - *before;
            *before = *amount;
        }
    }
}

fn amounts(limits: &[Limit], sight: &Sight<'_>) -> Result<Amounts, String> {
    let mut all = Amounts::new();
    for limit in limits {
        if let Limit::Sum(expression, _) = limit {
            all.insert(expression.text().to_owned(), amount(expression, sight)?);
        }
    }
    Ok(all)
}

/// A number that is not negative: nobody makes room for others by taking something back.
fn amount(expression: &Expression, sight: &Sight<'_>) -> Result<f64, String> {
    let value = expression.value(sight)?;
    let number = value.as_f64().or_else(|| value.as_str()?.parse().ok());
    number
        .filter(|number| number.is_finite() && *number >= 0.0)
        .ok_or_else(|| format!("`{}` is not a number, or is negative", expression.text()))
}

/// Counts what was done today, going on from where it was counted last. Says which day it is.
async fn counted(arrival: &Arrival<'_>, scope: &str) -> Result<i64, Problem> {
    let store = arrival.shared.ledger.store();
    let day = store.now().await?.as_millis().div_euclid(DAY_MS);
    let known =
        arrival.shared.caps.lock().get(scope).filter(|today| today.day == day).map(|today| today.newest);
    let counted_before = known.unwrap_or_default();
    let since = Timestamp::from_millis(day * DAY_MS);
    let filter = Filter { scope: Some(scope.to_owned()), created_from: Some(since), ..Filter::default() };
    let mut after: Option<Cursor> = None;
    let mut news: Vec<News> = Vec::new();
    'pages: loop {
        let page = store.list(&filter, after, PAGE).await?;
        for stored in &page.intents {
            if stored.id.number() <= counted_before {
                break 'pages;
            }
            // What a person was asked about is not done without asking.
            let counts = stored.record.approval.is_none() && stored.record.status != Status::Superseded;
            if let Some(name) = stored.record.name.as_ref() {
                let amounts = match counts {
                    true => Some(amounts_on_record(arrival, stored.id).await?),
                    false => None,
                };
                news.push(News { number: stored.id.number(), name: name.clone(), amounts });
            }
        }
        after = page.next;
        if after.is_none() {
            break;
        }
        // A day can be long: others on this thread have their turn meanwhile.
        tokio::task::yield_now().await;
    }
    let mut all = arrival.shared.caps.lock();
    // What is of another day is of no use any more.
    all.retain(|_, today| today.day == day);
    let today = all.entry(scope.to_owned()).or_default();
    if today.day != day {
        *today = Today { day, ..Today::default() };
    }
    let newest_before = today.newest;
    for News { number, name, amounts } in news {
        // Somebody else may have counted meanwhile.
        if number <= newest_before {
            continue;
        }
        today.newest = today.newest.max(number);
        today.let_through.remove(name.key.as_str());
        if let Some(amounts) = amounts {
            today.count += 1;
            for (text, amount) in &amounts {
                *today.sums.entry(text.clone()).or_default() += amount;
            }
            if today.counted.len() < COUNTED_MAX {
                today.counted.insert(name.key.as_str().to_owned(), amounts);
            }
        }
    }
    Ok(day)
}

/// The amounts of a request on record. What cannot be worked out any more counts as more than any cap.
async fn amounts_on_record(arrival: &Arrival<'_>, id: IntentId) -> Result<Amounts, Problem> {
    let limits = &arrival.route.caps;
    if !limits.iter().any(|limit| matches!(limit, Limit::Sum(..))) {
        return Ok(Amounts::new());
    }
    let request = match arrival.shared.ledger.store().request(id).await {
        Err(StoreError::Damaged(_)) => None,
        request => request?,
    };
    let worked_out = request.as_ref().and_then(Sending::from_kept).and_then(|sending| {
        let (_, parameters) = arrival.destination.route(&sending.method, &sending.path);
        let view = sending.view(&parameters);
        amounts(limits, &Sight { request: Some(&view), ..Sight::default() }).ok()
    });
    let unknown = || {
        let of = |limit: &Limit| match limit {
            Limit::Sum(expression, _) => Some((expression.text().to_owned(), f64::INFINITY)),
            Limit::Count(_) => None,
        };
        limits.iter().filter_map(of).collect()
    };
    Ok(worked_out.unwrap_or_else(unknown))
}

impl Counts {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Today>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
