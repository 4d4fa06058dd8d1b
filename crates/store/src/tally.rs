//! Counts, kept as things happen: nobody wants to wait for a scan of ten million rows to see a figure.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use twicesafe_core::journal::{Entry, Event};
use twicesafe_core::{Actor, Record, Timestamp, Verdict};

const HOUR_MILLIS: i64 = 3_600_000;

/// In place of an hour: how many intents stand where now.
pub(crate) const NO_HOUR: i64 = 0;
/// An hour that never comes.
pub(crate) const HOUR_MAX: i64 = 1_000_000_000;

/// Changes of counts that were not written yet, by hour and name, in their order: a handful, so they are looked through.
#[derive(Default, Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Tally(Vec<(i64, Cow<'static, str>, i64)>);

/// The names of the counts that are not names of journal events.
pub(crate) const REPLAYS: &str = "replays";
pub(crate) const WAITS: &str = "waits";
pub(crate) const MISMATCHES: &str = "mismatches";
pub(crate) const REVIEWS: &str = "reviews";
pub(crate) const RECOVERIES: &str = "recoveries";
pub(crate) const RECOVERY_MILLIS: &str = "recovery milliseconds";
const TOMBSTONE: &str = "standing: tombstone";
/// What the names of counts begin with that doors keep for themselves.
const OF_DOORS: &str = "door: ";
/// Longest name of such a count.
const NAME_BYTES_MAX: usize = 200;

impl Tally {
    fn add(&mut self, hour: i64, name: impl Into<Cow<'static, str>>, n: i64) {
        let name = name.into();
        match self.0.binary_search_by(|(its_hour, its_name, _)| (its_hour, its_name).cmp(&(&hour, &name))) {
            Ok(place) => self.0[place].2 += n,
            Err(place) => self.0.insert(place, (hour, name, n)),
        }
    }

    /// Counts something of a door's.
    pub(crate) fn of_door(&mut self, at: Timestamp, name: &str, n: i64) {
        let mut name = format!("{OF_DOORS}{name}");
        name.truncate(name.floor_char_boundary(NAME_BYTES_MAX));
        self.add(hour_of(at), name, n);
    }

    /// Adds a count of another ledger.
    pub(crate) fn take_over(&mut self, count: &crate::transfer::Count) {
        self.add(count.hour, count.name.clone(), count.n);
    }

    pub(crate) fn event(&mut self, at: Timestamp, name: &'static str) {
        self.add(hour_of(at), name, 1);
    }

    /// What the journal says. Decisions are counted as people's; those the server makes by itself are not.
    pub(crate) fn journal(&mut self, at: Timestamp, entry: &Entry) {
        let is_decision = matches!(entry.event, Event::GivenUp | Event::Reset);
        if !is_decision || entry.actor != Actor::sweep() {
            self.event(at, entry.event.as_str());
        }
    }

    /// What a claim was told, where that is not a journal event.
    pub(crate) fn verdict(&mut self, at: Timestamp, verdict: &Verdict) {
        match verdict {
            Verdict::Replay(_) => self.event(at, REPLAYS),
            // What is accepted waits for whoever carries it out: nothing was prevented.
            Verdict::Wait(wait) if wait.cause == twicesafe_core::WaitCause::Accepted => {}
            Verdict::Wait(_) => self.event(at, WAITS),
            Verdict::Refuse(twicesafe_core::Refusal::Mismatch) => self.event(at, MISMATCHES),
            _ => {}
        }
    }

    pub(crate) fn standing(&mut self, record: &Record, n: i64) {
        self.add(NO_HOUR, if record.is_tombstone() { TOMBSTONE } else { standing_name(record.status) }, n);
    }

    pub(crate) fn recovery(&mut self, at: Timestamp, took: Duration) {
        self.event(at, RECOVERIES);
        self.add(hour_of(at), RECOVERY_MILLIS, i64::try_from(took.as_millis()).unwrap_or(i64::MAX));
    }

    pub(crate) fn merge(&mut self, other: Self) {
        if self.is_empty() {
            *self = other;
            return;
        }
        for (hour, name, n) in other.0 {
            self.add(hour, name, n);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What changed, in the order of keys.
    pub(crate) fn rows(&self) -> impl Iterator<Item = (i64, &str, i64)> {
        self.0.iter().filter(|(.., n)| *n != 0).map(|(hour, name, n)| (*hour, &**name, *n))
    }
}

pub(crate) fn hour_of(at: Timestamp) -> i64 {
    at.as_millis().div_euclid(HOUR_MILLIS)
}

/// A name of a count as it is kept here: of a journal event, or of something else that is counted by the hour.
pub(crate) fn known_name(name: &str) -> Option<Cow<'static, str>> {
    if name.starts_with(OF_DOORS) && name.len() <= NAME_BYTES_MAX {
        return Some(Cow::Owned(name.to_owned()));
    }
    let others = [REPLAYS, WAITS, MISMATCHES, REVIEWS, RECOVERIES, RECOVERY_MILLIS];
    let other = others.into_iter().find(|other| *other == name);
    let known = other.or_else(|| Event::from_word(name).map(|event| event.as_str()));
    known.map(Cow::Borrowed)
}

pub(crate) fn standing_name(status: twicesafe_core::Status) -> &'static str {
    use twicesafe_core::Status::*;
    match status {
        Held => "standing: held",
        Ready => "standing: ready",
        Pending => "standing: pending",
        Retryable => "standing: retryable",
        Review => "standing: review",
        Done => "standing: done",
        Failed => "standing: failed",
        Rejected => "standing: rejected",
        Superseded => "standing: superseded",
        Undone => "standing: undone",
    }
}

/// Figures of a ledger.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    counts: BTreeMap<String, i64>,
}

impl Statistics {
    pub(crate) fn from_rows(rows: impl Iterator<Item = (String, i64)>) -> Self {
        let mut counts = BTreeMap::new();
        for (name, n) in rows {
            *counts.entry(name).or_default() += n;
        }
        counts.retain(|_, n| *n != 0);
        Self { counts }
    }

    fn count(&self, name: &str) -> u64 {
        self.counts.get(name).copied().unwrap_or(0).max(0).unsigned_abs()
    }

    /// Intents with that status now.
    pub fn standing(&self, status: twicesafe_core::Status) -> u64 {
        self.count(standing_name(status))
    }

    /// Tombstones now.
    pub fn tombstones(&self) -> u64 {
        self.count(TOMBSTONE)
    }

    /// Journal events with that word in the time asked for.
    pub fn events(&self, event: twicesafe_core::journal::Event) -> u64 {
        self.count(event.as_str())
    }

    /// Claims answered with a stored answer instead of an effect. Counted without waiting for a sync: may be too low
    /// after a crash (S40).
    pub fn replays(&self) -> u64 {
        self.count(REPLAYS)
    }

    /// Claims told to wait because another attempt was under way or it was not due.
    pub fn waits(&self) -> u64 {
        self.count(WAITS)
    }

    /// Claims refused because their key had been used with other input.
    pub fn mismatches(&self) -> u64 {
        self.count(MISMATCHES)
    }

    /// How often an intent came into review.
    pub fn reviews(&self) -> u64 {
        self.count(REVIEWS)
    }

    /// What doors have counted, by the names they gave. May be too low after a crash.
    pub fn of_doors(&self) -> impl Iterator<Item = (&str, u64)> {
        self.counts
            .iter()
            .filter_map(|(name, n)| Some((name.strip_prefix(OF_DOORS)?, n.max(&0).unsigned_abs())))
    }

    /// How often doubt ended in knowledge, and the mean time that took.
    pub fn recoveries(&self) -> (u64, Option<Duration>) {
        let n = self.count(RECOVERIES);
        (n, self.count(RECOVERY_MILLIS).checked_div(n).map(Duration::from_millis))
    }
}
