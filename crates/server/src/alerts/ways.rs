//! Ways to people, and which of them fail: one that does is left alone for a while, so that it does not keep the others waiting.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use twicesafe_ledger::Timestamp;

/// How long a way that fails is left alone: at first, and at most.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(5 * 60);

/// A person, and which of their channels.
pub(super) type Way = (String, usize);

/// The ways that fail.
#[derive(Default)]
pub(super) struct Ways(Mutex<HashMap<Way, Pause>>);

struct Pause {
    since: Timestamp,
    span: Duration,
}

impl Ways {
    pub(super) fn are_left_alone(&self, way: &Way, now: Timestamp) -> bool {
        self.failing().get(way).is_some_and(|pause| now < pause.since + pause.span)
    }

    /// A try of that time failed. Says whether it is the first that did.
    pub(super) fn failed(&self, way: &Way, at: Timestamp) -> bool {
        let mut failing = self.failing();
        match failing.get_mut(way) {
            // It was under way when the others failed, and says nothing new.
            Some(pause) if at < pause.since + pause.span => false,
            Some(pause) => {
                *pause = Pause { since: at, span: (pause.span * 2).min(PAUSE_MAX) };
                false
            }
            None => {
                failing.insert(way.clone(), Pause { since: at, span: PAUSE_MIN });
                true
            }
        }
    }

    /// A try went well. Says whether the last one had failed.
    pub(super) fn worked(&self, way: &Way) -> bool {
        self.failing().remove(way).is_some()
    }

    fn failing(&self) -> MutexGuard<'_, HashMap<Way, Pause>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_that_fails_is_left_alone_longer_and_longer_and_only_the_first_failure_is_news() {
        let (ways, way) = (Ways::default(), ("ops".to_owned(), 0));
        let mut now = Timestamp::from_millis(1_800_000_000_000);
        assert!(!ways.are_left_alone(&way, now) && ways.failed(&way, now));
        let mut pauses = Vec::new();
        for _ in 0..12 {
            let failed_at = now;
            assert!(!ways.failed(&way, now), "one that was under way with it");
            while ways.are_left_alone(&way, now) {
                now = now + PAUSE_MIN;
            }
            pauses.push(now.since(failed_at).as_secs());
            assert!(!ways.failed(&way, now), "nothing new");
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]);
        assert!(ways.worked(&way) && !ways.worked(&way));
        assert!(!ways.are_left_alone(&way, now));
    }
}
