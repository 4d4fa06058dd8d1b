//! Whether a destination leaves connections open after its answers. One that closes them and does not say so swallows what is
//! sent over them meanwhile, and then nobody knows (S17): it gets a new connection for everything.

use std::time::{Duration, Instant};

use super::IDLE_MAX_CAREFUL;

/// How long it is remembered that a destination closes connections.
const REMEMBERED_FOR: Duration = Duration::from_secs(300);
/// Where nothing is known, what may not be sent twice goes over a connection that has stayed open for so long after its answer.
const RESTED_MIN: Duration = Duration::from_millis(50);

/// What was seen of a destination.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Habit {
    #[default]
    Unknown,
    /// A connection gave a second answer.
    Keeps,
    /// One was closed soon after an answer.
    Closes { until: Instant },
}

impl Habit {
    /// Whether everything needs a new connection.
    pub(super) fn needs_new(&mut self, now: Instant) -> bool {
        match *self {
            Self::Closes { until } if now < until => true,
            Self::Closes { .. } => {
                *self = Self::Unknown;
                false
            }
            Self::Unknown | Self::Keeps => false,
        }
    }

    /// How long a connection must have been idle for what may not be sent twice.
    pub(super) fn rested_min(self) -> Duration {
        if self == Self::Keeps { Duration::ZERO } else { RESTED_MIN }
    }

    /// A connection gave one answer more.
    pub(super) fn answered(&mut self, answers: u32) {
        if *self == Self::Unknown && answers > 1 {
            *self = Self::Keeps;
        }
    }

    /// A connection was closed so long after its last answer, at most. What was idle for longer than anything delicate would
    /// be sent over says nothing.
    pub(super) fn closed(&mut self, idle_for: Duration, now: Instant) {
        if idle_for < IDLE_MAX_CAREFUL {
            *self = Self::Closes { until: now + REMEMBERED_FOR };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_closes_soon_is_remembered_and_what_answers_twice_is_trusted() {
        let start = Instant::now();
        let soon = Duration::from_millis(3);
        let mut habit = Habit::default();
        habit.answered(1);
        assert_eq!((habit, habit.rested_min()), (Habit::Unknown, RESTED_MIN));
        habit.answered(2);
        assert_eq!((habit, habit.rested_min()), (Habit::Keeps, Duration::ZERO));
        habit.closed(IDLE_MAX_CAREFUL, start);
        assert_eq!(habit, Habit::Keeps, "every server closes what is idle for long");
        habit.closed(soon, start);
        assert!(habit.needs_new(start) && habit.needs_new(start + REMEMBERED_FOR - soon));
        habit.answered(9);
        assert!(habit.needs_new(start), "what was under way before says nothing");
        assert!(!habit.needs_new(start + REMEMBERED_FOR));
        assert_eq!(habit, Habit::Unknown, "and then it is seen again");
    }
}
