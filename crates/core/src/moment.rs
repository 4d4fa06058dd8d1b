//! Ledger time. Rules work in durations; a [`Timestamp`] only says where on the ledger's own clock something is.

use std::fmt;
use std::ops::Add;
use std::time::Duration;

/// A point on the ledger's clock, in milliseconds since the Unix epoch.
///
/// The ledger's clock belongs to the store (S10): the database's on PostgreSQL, a clock that never runs backwards on
/// SQLite. It is not the clock of the machine that asks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Timestamp(i64);

impl Timestamp {
    /// Later than anything that happens.
    pub const NEVER: Self = Self(i64::MAX);

    /// The point that many milliseconds after the Unix epoch.
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis)
    }

    /// Milliseconds since the Unix epoch.
    pub const fn as_millis(self) -> i64 {
        self.0
    }

    /// How long after `earlier` this is; zero if it is not after it.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// The point that much earlier, but not before the beginning of the type.
    pub fn minus(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(millis(span)))
    }
}

impl Add<Duration> for Timestamp {
    type Output = Self;

    fn add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(millis(span)))
    }
}

/// As people and programs read it: RFC 3339, UTC, whole seconds.
impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.div_euclid(1000);
        let (year, month, day) = date(seconds.div_euclid(86_400));
        if !(0..=9999).contains(&year) {
            return f.write_str("never");
        }
        let second = seconds.rem_euclid(86_400);
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
    }
}

/// The date so many days after 1 January 1970: years are counted from March on, so that a leap day is the last of its year, and
/// in fours of centuries, which all have the same days.
fn date(days: i64) -> (i64, i64, i64) {
    let since_march = days + 719_468;
    let (fours, day) = (since_march.div_euclid(146_097), since_march.rem_euclid(146_097));
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + 400 * fours + i64::from(month <= 2), month, day)
}

fn millis(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}

/// What the outside world contributes to a decision: the time, and one roll of the dice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Moment {
    /// Ledger time.
    pub now: Timestamp,
    /// How far the machine's clock is ahead of ledger time, which does not jump with it. It may be right, on a machine that was paused and does
    /// not know it: what a destination has forgotten by now is judged by the later of the two (S24).
    pub ahead: Duration,
    /// Uniform over all of `u32`; spreads retries (S26).
    pub dice: u32,
    /// Set while the ledger recovers from a lost tail: since when records may be missing (S43).
    pub recovering_since: Option<Timestamp>,
    /// The state of the machine's clock (S10).
    pub clock: MachineClock,
}

/// The state of a machine's clock. A clock without a battery starts at the time at which it was switched off.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum MachineClock {
    /// Somebody has set it since the machine was started, or nothing depends on it.
    #[default]
    Set,
    /// Nobody is known to have set it since the machine was started: how long the machine was off is not known.
    Unset {
        /// The last ledger time of which it is known that it was before the start.
        before_start: Timestamp,
        /// The time left in which somebody may still set it.
        wait: Duration,
    },
}

impl Moment {
    /// An ordinary moment: dice at zero, nothing lost.
    pub const fn at(now: Timestamp) -> Self {
        Self { now, ahead: Duration::ZERO, dice: 0, recovering_since: None, clock: MachineClock::Set }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(millis: i64, expected: &str) {
        assert_eq!(Timestamp::from_millis(millis).to_string(), expected);
    }

    #[test]
    fn times_are_shown_as_people_read_them() {
        check(0, "1970-01-01T00:00:00Z");
        check(-1, "1969-12-31T23:59:59Z");
        check(951_782_400_999, "2000-02-29T00:00:00Z");
        check(951_868_800_000, "2000-03-01T00:00:00Z");
        check(1_800_000_000_000, "2027-01-15T08:00:00Z");
        check(4_107_542_399_000, "2100-02-28T23:59:59Z");
        check(4_107_542_400_000, "2100-03-01T00:00:00Z");
        check(253_402_300_799_999, "9999-12-31T23:59:59Z");
        check(253_402_300_800_000, "never");
        assert_eq!(Timestamp::NEVER.to_string(), "never");
        check(i64::MIN, "never");
    }
}
