//! Metrics in the text format of Prometheus: what this process did, and where intents stand in the ledger.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use twicesafe_ledger::{Statistics, Status, Verdict};

use crate::api::ROUTES;
use crate::gateway::pins::saved;

/// Upper bounds of the buckets that durations are counted in.
const BUCKETS_MS: [u64; 12] = [1, 2, 5, 10, 25, 50, 100, 250, 1000, 5000, 25_000, 60_000];
const VERDICTS: [&str; 6] = ["proceed", "replay", "wait", "hold", "review", "refuse"];
/// Requests that are no operation of the API: pages, links, health.
const OTHER: &str = "other";

/// Counts of this process.
pub(crate) struct Metrics {
    routes: Vec<Counted>,
    verdicts: [AtomicU64; VERDICTS.len()],
    /// What was answered for destinations, by destination and what it came to. As many as an operator named.
    destinations: Mutex<BTreeMap<(String, &'static str), u64>>,
    /// What was not spent twice, by model and what it is.
    saved: Mutex<BTreeMap<String, BTreeMap<&'static str, u64>>>,
    /// What became of events, by inbox. As many as an operator named.
    inboxes: Mutex<BTreeMap<String, InboxCounts>>,
}

/// What became of the events of one inbox, in this process.
#[derive(Clone, Debug, Default)]
pub(crate) struct InboxCounts {
    pub(crate) counts: BTreeMap<&'static str, u64>,
    /// How long the last event that was taken up had waited for it.
    pub(crate) lag: Duration,
}

#[derive(Default)]
struct Counted {
    /// By hundreds of the status.
    statuses: [AtomicU64; 6],
    buckets: [AtomicU64; BUCKETS_MS.len() + 1],
    micros: AtomicU64,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        Self {
            routes: (0..=ROUTES.len()).map(|_| Counted::default()).collect(),
            verdicts: Default::default(),
            destinations: Mutex::default(),
            saved: Mutex::default(),
            inboxes: Mutex::default(),
        }
    }

    /// Counts one request for a destination.
    pub(crate) fn destination(&self, name: &str, what: &'static str) {
        let mut counts = self.destinations.lock().unwrap_or_else(PoisonError::into_inner);
        *counts.entry((name.to_owned(), what)).or_default() += 1;
    }

    /// The name a model is counted under: there is room for so many.
    pub(crate) fn model(&self, name: &str) -> String {
        let saved = self.saved.lock().unwrap_or_else(PoisonError::into_inner);
        saved::counted_model(name, saved.keys())
    }

    /// Counts what was not spent twice.
    pub(crate) fn saved(&self, what: &'static str, model: &str, n: u64) {
        let mut saved = self.saved.lock().unwrap_or_else(PoisonError::into_inner);
        *saved.entry(model.to_owned()).or_default().entry(what).or_default() += n;
    }

    /// Counts events of an inbox.
    pub(crate) fn inbox(&self, name: &str, what: &'static str, count: u64) {
        if count > 0 {
            self.of_inbox(name, |of_inbox| *of_inbox.counts.entry(what).or_default() += count);
        }
    }

    pub(crate) fn inbox_lag(&self, name: &str, lag: Duration) {
        self.of_inbox(name, |of_inbox| of_inbox.lag = lag);
    }

    pub(crate) fn inbox_counts(&self, name: &str) -> InboxCounts {
        self.inboxes.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned().unwrap_or_default()
    }

    fn of_inbox(&self, name: &str, change: impl FnOnce(&mut InboxCounts)) {
        let mut inboxes = self.inboxes.lock().unwrap_or_else(PoisonError::into_inner);
        match inboxes.get_mut(name) {
            Some(of_inbox) => change(of_inbox),
            None => change(inboxes.entry(name.to_owned()).or_default()),
        }
    }

    pub(crate) fn verdict(&self, verdict: &Verdict) {
        let place = match verdict {
            Verdict::Proceed(_) => 0,
            Verdict::Replay(_) => 1,
            Verdict::Wait(_) => 2,
            Verdict::Hold(_) => 3,
            Verdict::Review => 4,
            _ => 5,
        };
        self.verdicts[place].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts one request; `route` is its place in the table, if it has one.
    pub(crate) fn request(&self, route: Option<usize>, status: u16, took: Duration) {
        let counted = &self.routes[route.unwrap_or(ROUTES.len())];
        counted.statuses[usize::from(status / 100).min(5)].fetch_add(1, Ordering::Relaxed);
        let millis = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        let bucket = BUCKETS_MS.iter().position(|bound| millis < *bound).unwrap_or(BUCKETS_MS.len());
        counted.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        counted.micros.fetch_add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// All of it as text. Without statistics the ledger is away.
    pub(crate) fn text(&self, standing: Option<&Statistics>) -> String {
        let mut text = String::new();
        let head = |text: &mut String, name: &str, kind: &str, help: &str| {
            let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        };
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let name = |place: usize| ROUTES.get(place).map_or(OTHER, |route| route.path);

        head(&mut text, "twicesafe_claims_total", "counter", "Claims, by what they were told.");
        for (verdict, count) in VERDICTS.iter().zip(&self.verdicts) {
            let _ = writeln!(text, "twicesafe_claims_total{{verdict=\"{verdict}\"}} {}", read(count));
        }
        head(
            &mut text,
            "twicesafe_destination_requests_total",
            "counter",
            "Requests for destinations, by what they came to: read, observed, replayed, refused here, or where the intent stood.",
        );
        for ((name, what), count) in self.destinations.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let _ = writeln!(
                text,
                "twicesafe_destination_requests_total{{destination=\"{name}\",result=\"{what}\"}} {count}"
            );
        }
        let saved = self.saved.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for (what, name, help) in [
            (
                saved::ANSWERS,
                "twicesafe_saved_answers_total",
                "Answers of AI models that were given again instead of paid again.",
            ),
            (
                saved::TOKENS,
                "twicesafe_saved_tokens_total",
                "Tokens that were not paid again, as far as providers say.",
            ),
            (
                saved::MICRODOLLARS,
                "twicesafe_saved_microdollars_total",
                "Millionths of a dollar that were not paid again, where prices are known.",
            ),
        ] {
            head(&mut text, name, "counter", help);
            for (model, counts) in &saved {
                if let Some(count) = counts.get(what) {
                    let _ = writeln!(text, "{name}{{model=\"{model}\"}} {count}");
                }
            }
        }
        head(
            &mut text,
            "twicesafe_inbox_events_total",
            "counter",
            "Events by inbox: arrived (that is, verified; duplicate and incomplete ones are among them), unverified, refused (too large, or without an id), delivered, failed (attempts), superseded.",
        );
        let inboxes = self.inboxes.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for (name, of_inbox) in &inboxes {
            for (what, count) in &of_inbox.counts {
                let _ = writeln!(
                    text,
                    "twicesafe_inbox_events_total{{inbox=\"{name}\",result=\"{what}\"}} {count}"
                );
            }
        }
        head(
            &mut text,
            "twicesafe_inbox_lag_seconds",
            "gauge",
            "How long the oldest event waits that is due, or that was not taken and is tried again; 0 when none does.",
        );
        for (name, of_inbox) in &inboxes {
            let seconds = of_inbox.lag.as_secs_f64();
            let _ = writeln!(text, "twicesafe_inbox_lag_seconds{{inbox=\"{name}\"}} {seconds}");
        }
        head(
            &mut text,
            "twicesafe_requests_total",
            "counter",
            "Requests, by path and hundreds of the status.",
        );
        for (place, counted) in self.routes.iter().enumerate() {
            for (hundreds, count) in counted.statuses.iter().enumerate().filter(|(_, count)| read(count) > 0)
            {
                let _ = writeln!(
                    text,
                    "twicesafe_requests_total{{path=\"{}\",status=\"{hundreds}xx\"}} {}",
                    name(place),
                    read(count)
                );
            }
        }
        head(
            &mut text,
            "twicesafe_request_duration_seconds",
            "histogram",
            "How long requests took, waiting included.",
        );
        for (place, counted) in self.routes.iter().enumerate() {
            let buckets: Vec<u64> = counted.buckets.iter().map(read).collect();
            let total: u64 = buckets.iter().sum();
            if total == 0 {
                continue;
            }
            let path = name(place);
            let mut below = 0;
            for (bound, count) in BUCKETS_MS.iter().zip(&buckets) {
                below += count;
                let bound = *bound as f64 / 1000.0;
                let _ = writeln!(
                    text,
                    "twicesafe_request_duration_seconds_bucket{{path=\"{path}\",le=\"{bound}\"}} {below}"
                );
            }
            let seconds = read(&counted.micros) as f64 / 1_000_000.0;
            let _ = write!(
                text,
                "twicesafe_request_duration_seconds_bucket{{path=\"{path}\",le=\"+Inf\"}} {total}\n\
                 twicesafe_request_duration_seconds_sum{{path=\"{path}\"}} {seconds}\n\
                 twicesafe_request_duration_seconds_count{{path=\"{path}\"}} {total}\n"
            );
        }
        head(&mut text, "twicesafe_ledger_up", "gauge", "Whether the ledger can be read.");
        let _ = writeln!(text, "twicesafe_ledger_up {}", u8::from(standing.is_some()));
        if let Some(standing) = standing {
            head(
                &mut text,
                "twicesafe_intents",
                "gauge",
                "Intents in the ledger, by status; those whose answer is no longer kept as tombstone.",
            );
            for status in Status::ALL {
                let _ =
                    writeln!(text, "twicesafe_intents{{status=\"{status}\"}} {}", standing.standing(status));
            }
            let _ = writeln!(text, "twicesafe_intents{{status=\"tombstone\"}} {}", standing.tombstones());
        }
        text
    }
}
