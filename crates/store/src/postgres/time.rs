//! Ledger time (S10): the database's clock decides. Every answer of the database brings a sample of it along; between two
//! samples this machine's monotonic clock counts on.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use twicesafe_core::Timestamp;

/// How old a sample may be before another one is taken first.
const SAMPLE_AGE_MAX: Duration = Duration::from_secs(1);
/// A sample that is behind by less was only slow to arrive; one that is behind by more means that the clock was set back.
const DELAY_MAX: Duration = Duration::from_secs(1);

/// What the database last said about itself.
#[derive(Default)]
pub(super) struct DatabaseTime(Mutex<Option<Sample>>);

#[derive(Clone, Copy)]
struct Sample {
    /// The database's clock at `at`.
    now: Timestamp,
    at: Instant,
    taken: Instant,
    recovering_since: Option<Timestamp>,
}

impl Sample {
    fn at(&self, at: Instant) -> Timestamp {
        self.now + at.saturating_duration_since(self.at)
    }
}

impl DatabaseTime {
    /// Takes a sample that has just arrived.
    pub(super) fn sample(&self, now: Timestamp, recovering_since: Option<Timestamp>) {
        self.sample_at(now, recovering_since, Instant::now());
    }

    fn sample_at(&self, now: Timestamp, recovering_since: Option<Timestamp>, at: Instant) {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = Sample { now, at, taken: at, recovering_since };
        *last = Some(match *last {
            Some(before) if before.at(at) > now && before.at(at) < now + DELAY_MAX => {
                Sample { taken: at, recovering_since, ..before }
            }
            _ => fresh,
        });
    }

    /// The time now, and since when records may be missing. `None`: the last sample is too old.
    pub(super) fn read(&self) -> Option<(Timestamp, Option<Timestamp>)> {
        self.read_at(Instant::now())
    }

    fn read_at(&self, at: Instant) -> Option<(Timestamp, Option<Timestamp>)> {
        let sample = (*self.0.lock().unwrap_or_else(PoisonError::into_inner))?;
        (at.saturating_duration_since(sample.taken) < SAMPLE_AGE_MAX)
            .then(|| (sample.at(at), sample.recovering_since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s10_the_databases_clock_decides_and_a_late_sample_does_not_set_it_back() {
        let (time, start) = (DatabaseTime::default(), Instant::now());
        let millis = Duration::from_millis;
        let now = |at: Duration| time.read_at(start + at).map(|(now, _)| now.as_millis());
        assert_eq!(now(millis(0)), None);
        time.sample_at(Timestamp::from_millis(5000), None, start);
        assert_eq!(now(millis(300)), Some(5300));
        time.sample_at(Timestamp::from_millis(5250), None, start + millis(300));
        assert_eq!(now(millis(300)), Some(5300));
        time.sample_at(Timestamp::from_millis(5700), None, start + millis(600));
        assert_eq!(now(millis(600)), Some(5700));
        time.sample_at(Timestamp::from_millis(1000), None, start + millis(700));
        assert_eq!(now(millis(700)), Some(1000));
        assert_eq!(now(millis(1700)), None);
    }
}
