//! Ledger time (S10).
//!
//! On a shared database its clock decides. Here the machine's do: the system clock says what time it is, and one that only ticks
//! how much of it has passed. Where the two disagree, ledger time goes on with the ticks and follows the system clock slowly, so
//! that nothing lapses, arrives too late or is purged because somebody set a clock. What was written down last tells a process that
//! starts later how far the clocks were then.

use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use twicesafe_core::{MachineClock, Timestamp};

/// How far the system clock may be from ledger time before somebody is told.
pub const CLOCK_JUMP_MAX: Duration = Duration::from_secs(30);
/// So much faster than it passes ledger time goes while the system clock is ahead: a twentieth. Less than the margin between send-by
/// and the end of a lease, so that whoever counts by its own clock is not overtaken (S9).
const CATCHING_UP: u32 = 20;
/// How often it is noted where the clocks are, while ledger time follows: in shorter spans a twentieth is lost in rounding.
const NOTED_EVERY: Duration = Duration::from_secs(1);
/// So long after it was held against what the ledger wrote down ledger time goes on by itself.
const COMPARED_AGO_MAX: Duration = Duration::from_secs(1);

/// So long after the machine was started it is waited for its clock to be set, where nothing says that it is.
pub const CLOCK_SET_MAX: Duration = Duration::from_secs(15 * 60);

/// The clocks of a machine.
pub trait Clock: Send + Sync + 'static {
    /// The system clock, in milliseconds since the Unix epoch. May jump.
    fn system_millis(&self) -> i64;
    /// A clock that only ticks, also while the machine sleeps, since the machine was started.
    fn monotonic(&self) -> Duration;
    /// Which start of the machine that is: the same number for all who share `monotonic`, and another one after the next start.
    fn boot(&self) -> i64;
    /// Whether the system clock is known to have been set since the machine was started.
    fn is_set(&self) -> bool {
        true
    }
}

/// The clocks of this machine.
#[derive(Debug)]
pub struct SystemClock {
    boot: i64,
    /// It stays set.
    was_set: std::sync::atomic::AtomicBool,
    /// The second in which that was last looked at.
    looked_at: AtomicI64,
}

impl Default for SystemClock {
    fn default() -> Self {
        // A container may have its own start of time.
        let start = std::fs::read("/proc/sys/kernel/random/boot_id");
        let namespace = std::fs::read_link("/proc/self/ns/time").unwrap_or_default();
        let boot = match start {
            Ok(start) => {
                let hash = blake3::Hasher::new()
                    .update(&start)
                    .update(namespace.as_os_str().as_encoded_bytes())
                    .finalize();
                i64::from_be_bytes(hash.as_bytes()[..8].try_into().expect("a hash has 32 bytes"))
            }
            // Nobody else's, as far as anybody can tell.
            Err(_) => i64::from_be_bytes(crate::random()),
        };
        Self { boot, was_set: false.into(), looked_at: (-1).into() }
    }
}

impl Clock for SystemClock {
    fn system_millis(&self) -> i64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
    }

    fn monotonic(&self) -> Duration {
        Tick::now().0
    }

    fn boot(&self) -> i64 {
        self.boot
    }

    /// A clock with a battery set it when the kernel started, or a time service says that it did. The kernel would know more
    /// (`adjtimex`), and cannot be asked without unsafe code. In a container neither may be visible: then it counts as not set.
    fn is_set(&self) -> bool {
        if !cfg!(target_os = "linux") || self.was_set.load(Ordering::Relaxed) {
            return true;
        }
        // Asked with every command.
        let second = i64::try_from(self.monotonic().as_secs()).unwrap_or(i64::MAX);
        if self.looked_at.swap(second, Ordering::Relaxed) == second {
            return false;
        }
        let is_set = std::path::Path::new(SET_BY_SERVICE).exists() || set_by_battery();
        self.was_set.store(is_set, Ordering::Relaxed);
        is_set
    }
}

/// What systemd's time service makes when it has set the clock.
const SET_BY_SERVICE: &str = "/run/systemd/timesync/synchronized";

/// Whether the kernel set the system clock from a clock with a battery when it started.
fn set_by_battery() -> bool {
    let Ok(clocks) = std::fs::read_dir("/sys/class/rtc") else { return false };
    clocks.filter_map(Result::ok).any(|clock| {
        std::fs::read_to_string(clock.path().join("hctosys")).is_ok_and(|text| text.trim() == "1")
    })
}

/// A moment on a clock that only ticks, also while the machine sleeps. `Instant` does not, on Linux.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tick(Duration);

impl Tick {
    /// The moment it is.
    pub fn now() -> Self {
        #[cfg(target_os = "linux")]
        const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Boottime;
        #[cfg(not(target_os = "linux"))]
        const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Monotonic;
        let now = rustix::time::clock_gettime(CLOCK);
        Self(Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0)))
    }

    /// How long ago it was.
    pub fn elapsed(self) -> Duration {
        Self::now().since(self)
    }

    /// How long after the other one it is.
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl std::ops::Add<Duration> for Tick {
    type Output = Self;

    fn add(self, span: Duration) -> Self {
        Self(self.0 + span)
    }
}

/// Clocks that move when told to, for tests.
#[derive(Debug)]
pub struct ManualClock {
    system_millis: AtomicI64,
    monotonic_millis: AtomicI64,
    boot: AtomicI64,
    is_unset: std::sync::atomic::AtomicBool,
}

impl ManualClock {
    /// Starts at that many milliseconds since the Unix epoch.
    pub fn at(millis: i64) -> Self {
        let boot = i64::from_be_bytes(crate::random()).into();
        Self {
            system_millis: AtomicI64::new(millis),
            monotonic_millis: AtomicI64::new(0),
            boot,
            is_unset: false.into(),
        }
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

    /// Says whether the system clock is known to be set.
    pub fn set(&self, is_set: bool) {
        self.is_unset.store(!is_set, Ordering::SeqCst);
    }

    /// Starts the machine anew.
    pub fn restart(&self) {
        self.monotonic_millis.store(0, Ordering::SeqCst);
        self.boot.fetch_add(1, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn system_millis(&self) -> i64 {
        self.system_millis.load(Ordering::SeqCst)
    }

    fn monotonic(&self) -> Duration {
        Duration::from_millis(self.monotonic_millis.load(Ordering::SeqCst).unsigned_abs())
    }

    fn boot(&self) -> i64 {
        self.boot.load(Ordering::SeqCst)
    }

    fn is_set(&self) -> bool {
        !self.is_unset.load(Ordering::SeqCst)
    }
}

/// Makes ledger time out of a machine's clocks.
pub(crate) struct LedgerTime {
    clock: std::sync::Arc<dyn Clock>,
    last: Mutex<Last>,
    /// Somebody was told that the system clock is elsewhere.
    told: std::sync::atomic::AtomicBool,
}

#[derive(Default)]
struct Last {
    /// The last time it was.
    at: Timestamp,
    /// Where the clocks are counted from.
    from: Option<Noted>,
    /// When it was last held against what the ledger wrote down, on the clock that only ticks.
    compared: Option<Duration>,
}

impl Last {
    fn keep(&mut self, noted: Noted, system: Timestamp) {
        let is_due = |before: &Noted| noted.monotonic.saturating_sub(before.monotonic) >= NOTED_EVERY;
        let before =
            self.from.filter(|before| noted.at != system && before.boot == noted.boot && !is_due(before));
        (self.at, self.from) = (noted.at, Some(before.unwrap_or(noted)));
    }
}

/// Where the clocks were at a ledger time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Noted {
    pub(crate) at: Timestamp,
    pub(crate) monotonic: Duration,
    pub(crate) boot: i64,
    /// How far the system clock was ahead of it; not written down.
    pub(crate) ahead: Duration,
}

impl Noted {
    /// A ledger time of which nobody knows where the clocks were.
    pub(crate) fn time(at: Timestamp) -> Self {
        Self { at, monotonic: Duration::ZERO, boot: 0, ahead: Duration::ZERO }
    }

    /// The earliest and the latest it can be now, as far as that is known.
    fn bounds(&self, monotonic: Duration, boot: i64) -> (Timestamp, Timestamp) {
        match monotonic.checked_sub(self.monotonic).filter(|_| boot == self.boot) {
            Some(passed) => (self.at + passed, self.at + passed + passed / CATCHING_UP),
            None => (self.at, Timestamp::NEVER),
        }
    }
}

impl LedgerTime {
    pub(crate) fn new(clock: std::sync::Arc<dyn Clock>) -> Self {
        Self { clock, last: Mutex::default(), told: false.into() }
    }

    /// What is known of the system clock. `before_start`: the last ledger time before the machine was started.
    pub(crate) fn machine_clock(&self, before_start: Timestamp) -> MachineClock {
        // One with an empty battery starts years ago, and is set all the same.
        let is_behind = Timestamp::from_millis(self.clock.system_millis()) < before_start;
        if !is_behind && self.clock.is_set() {
            return MachineClock::Set;
        }
        MachineClock::Unset { before_start, wait: CLOCK_SET_MAX.saturating_sub(self.clock.monotonic()) }
    }

    /// The time now: not before what the ledger wrote down last, if anything, and never standing still.
    pub(crate) fn read(&self, written: Option<Noted>) -> Timestamp {
        self.read_noted(written).at
    }

    /// The time now, and where the clocks are.
    pub(crate) fn read_noted(&self, written: Option<Noted>) -> Noted {
        let mut last = self.lock();
        let (noted, system) = self.reckon(&last, written);
        last.keep(noted, system);
        if written.is_some() {
            last.compared = Some(noted.monotonic);
        }
        drop(last);
        self.compare(system, noted.at);
        noted
    }

    /// The time now, if it was held against what the ledger wrote down a moment ago. Whoever has not looked for long may be
    /// elsewhere than the others, after a jump of the clock, and must look before anything is written at such a time (S10).
    pub(crate) fn read_lately(&self) -> Option<Noted> {
        let mut last = self.lock();
        let (noted, system) = self.reckon(&last, None);
        let ago = noted.monotonic.checked_sub(last.compared?)?;
        (ago <= COMPARED_AGO_MAX).then(|| {
            last.keep(noted, system);
            noted
        })
    }

    /// The time now, for who only looks: what is written later does not follow from it.
    pub(crate) fn glance(&self) -> Timestamp {
        self.reckon(&self.lock(), None).0.at
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Last> {
        self.last.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// The time now, where the clocks are, and what the system's says.
    fn reckon(&self, last: &Last, written: Option<Noted>) -> (Noted, Timestamp) {
        let (monotonic, boot) = (self.clock.monotonic(), self.clock.boot());
        let system = Timestamp::from_millis(self.clock.system_millis());
        let (mut earliest, mut latest) = (last.at, Timestamp::NEVER);
        for noted in [written, last.from].into_iter().flatten() {
            let bounds = noted.bounds(monotonic, boot);
            earliest = earliest.max(bounds.0);
            latest = latest.min(bounds.1);
        }
        let now = system.min(latest).max(earliest);
        (Noted { at: now, monotonic, boot, ahead: system.since(now) }, system)
    }

    /// Tells somebody, once, when the system clock is far from ledger time.
    fn compare(&self, system: Timestamp, now: Timestamp) {
        let apart = system.as_millis().abs_diff(now.as_millis());
        let is_far = u128::from(apart) > CLOCK_JUMP_MAX.as_millis();
        if is_far == self.told.load(Ordering::Relaxed) {
            return;
        }
        self.told.store(is_far, Ordering::Relaxed);
        if is_far {
            tracing::warn!(
                code = "TS0048",
                clock = %system,
                ledger = %now,
                "the clock jumped; ledger time goes on, and follows it slowly"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    const MINUTE: Duration = Duration::from_secs(60);

    fn setup() -> (Arc<ManualClock>, LedgerTime) {
        let clock = Arc::new(ManualClock::at(1_000_000));
        let time = LedgerTime::new(clock.clone());
        time.read(None);
        (clock, time)
    }

    #[test]
    fn s10_ledger_time_never_runs_backwards_and_never_stands_still() {
        let (clock, time) = setup();
        clock.advance(Duration::from_secs(1));
        let before = time.read(None);
        clock.jump(-500_000);
        clock.advance(Duration::from_secs(2));
        assert_eq!(time.read(None), before + Duration::from_secs(2));
        let written = Noted::time(Timestamp::from_millis(9_000_000));
        assert_eq!(time.read(Some(written)).as_millis(), 9_000_000);
    }

    #[test]
    fn s10_a_jump_forward_is_followed_slowly() {
        let (clock, time) = setup();
        let before = time.read(None);
        clock.jump(3_600_000);
        assert_eq!(time.read(None), before, "no time has passed");
        for _ in 0..600 {
            clock.advance(MINUTE / 600);
            time.read(None);
        }
        let followed = time.read(None);
        assert!(followed > before + MINUTE && followed <= before + MINUTE + MINUTE / 20, "{followed}");
        for _ in 0..20 * 60 {
            clock.advance(MINUTE);
            time.read(None);
        }
        assert_eq!(time.read(None).as_millis(), clock.system_millis(), "it has caught up");
    }

    #[test]
    fn s10_who_starts_after_a_jump_goes_on_where_others_are() {
        for jump in [3_600_000, -3_600_000] {
            let (clock, time) = setup();
            let written = time.read_noted(None);
            clock.jump(jump);
            clock.advance(MINUTE);
            let later = LedgerTime::new(clock.clone()).read(Some(written));
            let passed = Duration::from_millis(later.as_millis().abs_diff(written.at.as_millis()));
            assert!((MINUTE..=MINUTE + MINUTE / 20).contains(&passed), "{jump}: {passed:?}");
        }
    }

    #[test]
    fn s10_after_the_machine_was_started_anew_its_clock_is_believed() {
        let (clock, time) = setup();
        let written = time.read_noted(None);
        clock.restart();
        clock.jump(3_600_000);
        assert_eq!(LedgerTime::new(clock.clone()).read(Some(written)), written.at + 60 * MINUTE);
        clock.jump(-7_200_000);
        assert_eq!(LedgerTime::new(clock).read(Some(written)), written.at, "but never runs backwards");
    }
}
