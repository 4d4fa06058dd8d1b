//! Ledger time (S10): the database's clock decides. Every answer of the database brings a sample of it along; between two
//! samples a clock of this machine counts on that only ticks, also while the machine sleeps: a sample from before must not pass for a
//! fresh one.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use twicesafe_core::Timestamp;

use crate::Tick;

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
    at: Tick,
    taken: Tick,
    recovering_since: Option<Timestamp>,
}

impl Sample {
    fn at(&self, at: Tick) -> Timestamp {
        self.now + at.since(self.at)
    }
}

impl DatabaseTime {
    /// Takes a sample that has just arrived.
    pub(super) fn sample(&self, now: Timestamp, recovering_since: Option<Timestamp>) {
        self.sample_at(now, recovering_since, Tick::now());
    }

    fn sample_at(&self, now: Timestamp, recovering_since: Option<Timestamp>, at: Tick) {
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
        self.read_at(Tick::now())
    }

    fn read_at(&self, at: Tick) -> Option<(Timestamp, Option<Timestamp>)> {
        let sample = (*self.0.lock().unwrap_or_else(PoisonError::into_inner))?;
        (at.since(sample.taken) < SAMPLE_AGE_MAX).then(|| (sample.at(at), sample.recovering_since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s10_the_databases_clock_decides_and_a_late_sample_does_not_set_it_back() {
        let (time, start) = (DatabaseTime::default(), Tick::now());
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
