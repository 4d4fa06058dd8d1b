//! Ledger time (S10).
//!
//! On a shared database its clock decides. Here the machine's does, with two repairs: it never runs backwards, and a
//! jump suspends expiry for one lease, so that whoever is alive can say so with a heartbeat.

use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use twicesafe_core::{Moment, Policy, Timestamp};

/// How far the system clock may run away from the monotonic one between two looks before that counts as a jump.
pub const CLOCK_JUMP_MAX: Duration = Duration::from_secs(30);

/// The clocks of a machine.
pub trait Clock: Send + Sync + 'static {
    /// The system clock, in milliseconds since the Unix epoch. May jump.
    fn system_millis(&self) -> i64;
    /// A clock that only ticks, from an arbitrary start.
    fn monotonic(&self) -> Duration;
}

/// The clocks of this machine.
#[derive(Debug)]
pub struct SystemClock(Instant);

impl Default for SystemClock {
    fn default() -> Self {
        Self(Instant::now())
    }
}

impl Clock for SystemClock {
    fn system_millis(&self) -> i64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
    }

    fn monotonic(&self) -> Duration {
        self.0.elapsed()
    }
}

/// Clocks that move when told to, for tests.
#[derive(Debug)]
pub struct ManualClock {
    system_millis: AtomicI64,
    monotonic_millis: AtomicI64,
}

impl ManualClock {
    /// Starts at that many milliseconds since the Unix epoch.
    pub fn at(millis: i64) -> Self {
        Self { system_millis: AtomicI64::new(millis), monotonic_millis: AtomicI64::new(0) }
    }

    /// Lets time pass.
    pub fn advance(&self, span: Duration) {
        let millis = i64::try_from(span.as_millis()).unwrap_or(i64::MAX);
        self.system_millis.fetch_add(millis, Ordering::SeqCst);
        self.monotonic_millis.fetch_add(millis, Ordering::SeqCst);
    }

    /// Sets the system clock wrong, by that many milliseconds, without time passing.
    pub fn jump(&self, millis: i64) {
        self.system_millis.fetch_add(millis, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn system_millis(&self) -> i64 {
        self.system_millis.load(Ordering::SeqCst)
    }

    fn monotonic(&self) -> Duration {
        Duration::from_millis(self.monotonic_millis.load(Ordering::SeqCst).unsigned_abs())
    }
}

/// Makes ledger time out of a machine's clocks.
pub(crate) struct LedgerTime {
    clock: std::sync::Arc<dyn Clock>,
    last: Mutex<Last>,
}

#[derive(Clone, Copy)]
struct Last {
    system_millis: i64,
    monotonic: Duration,
    ledger: Timestamp,
    paused_at: Option<Timestamp>,
}

/// Ledger time, and whether to trust it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    pub(crate) now: Timestamp,
    paused_at: Option<Timestamp>,
}

impl LedgerTime {
    pub(crate) fn new(clock: std::sync::Arc<dyn Clock>) -> Self {
        let system_millis = clock.system_millis();
        let ledger = Timestamp::from_millis(system_millis);
        let last = Last { system_millis, monotonic: clock.monotonic(), ledger, paused_at: None };
        Self { clock, last: Mutex::new(last) }
    }

    /// The time now: not before `recorded`, the last time the ledger wrote down, and never standing still.
    pub(crate) fn read(&self, recorded: Timestamp) -> Reading {
        let mut last = self.last.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let (system_millis, monotonic) = (self.clock.system_millis(), self.clock.monotonic());
        let passed = monotonic.saturating_sub(last.monotonic);
        let passed_millis = i64::try_from(passed.as_millis()).unwrap_or(i64::MAX);
        let drift = system_millis - last.system_millis - passed_millis;
        let jumped_millis = (drift.unsigned_abs() > CLOCK_JUMP_MAX.as_millis() as u64).then_some(drift);
        let ledger = Timestamp::from_millis(system_millis).max(last.ledger + passed).max(recorded);
        let paused_at = if jumped_millis.is_some() { Some(ledger) } else { last.paused_at };
        *last = Last { system_millis, monotonic, ledger, paused_at };
        if let Some(millis) = jumped_millis {
            tracing::warn!(code = "TS0048", millis, "the clock jumped; nothing expires for one lease");
        }
        Reading { now: ledger, paused_at }
    }
}

impl Reading {
    /// A reading of a clock that is trusted.
    pub(crate) fn trusted(now: Timestamp) -> Self {
        Self { now, paused_at: None }
    }

    /// The moment of a decision about an intent with that policy.
    pub(crate) fn moment(
        &self,
        policy: Option<&Policy>,
        recovering_since: Option<Timestamp>,
        dice: u32,
    ) -> Moment {
        let lease = policy.map_or(Duration::ZERO, |policy| policy.lease);
        let expiry = self.paused_at.is_none_or(|paused_at| self.now >= paused_at + lease);
        Moment { now: self.now, expiry, dice, recovering_since }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn setup() -> (Arc<ManualClock>, LedgerTime) {
        let clock = Arc::new(ManualClock::at(1_000_000));
        (clock.clone(), LedgerTime::new(clock))
    }

    #[test]
    fn s10_ledger_time_never_runs_backwards_and_never_stands_still() {
        let (clock, time) = setup();
        clock.advance(Duration::from_secs(1));
        let before = time.read(Timestamp::default()).now;
        clock.jump(-500_000);
        clock.advance(Duration::from_secs(2));
        assert_eq!(time.read(Timestamp::default()).now, before + Duration::from_secs(2));
        assert_eq!(time.read(Timestamp::from_millis(9_000_000)).now.as_millis(), 9_000_000);
    }

    #[test]
    fn s10_a_jump_suspends_expiry_for_one_lease() {
        let (clock, time) = setup();
        let policy = Policy::default();
        let expiry = || time.read(Timestamp::default()).moment(Some(&policy), None, 0).expiry;
        assert!(expiry());
        clock.jump(3_600_000);
        assert!(!expiry());
        clock.advance(policy.lease - Duration::from_millis(1));
        assert!(!expiry());
        clock.advance(Duration::from_millis(1));
        assert!(expiry());
    }

    #[test]
    fn s10_a_small_correction_is_no_jump() {
        let (clock, time) = setup();
        clock.jump(20_000);
        assert_eq!(time.read(Timestamp::default()).paused_at, None);
    }
}
