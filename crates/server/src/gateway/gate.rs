//! How much a destination is given at a time, and when it is left alone for a while. What does not get through is not sent,
//! and tried again later: correctness does not depend on it.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::config::destinations::{Circuit, Limits};

/// Requests at the same time, unless said otherwise.
const CONCURRENCY_DEFAULT: u32 = 256;
/// How long a request stands in line.
const IN_LINE_TIME_MAX: Duration = Duration::from_secs(10);
const FAILURES_DEFAULT: u32 = 10;
const PAUSE_DEFAULT: Duration = Duration::from_secs(10);
/// Objects that are known to fail. When there are more, all are forgotten, and count again.
const FAILING_MAX: usize = 10_000;
/// After a pause those that failed let others go first for so long.
const OTHERS_FIRST: Duration = Duration::from_secs(1);

/// What somebody wants at a destination. Each has a circuit of its own: a path that nobody can read says nothing about writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Errand {
    Read,
    Lookup,
    Write,
}

/// The way in.
#[derive(Debug)]
pub(crate) struct Gate {
    places: Arc<Semaphore>,
    /// When the next one may go, where there are only so many a second.
    pace: Option<(Duration, Mutex<Instant>)>,
    failures_max: u32,
    pause: Duration,
    circuits: [Mutex<State>; 3],
}

#[derive(Debug, Default)]
struct State {
    failures: u32,
    open_until: Option<Instant>,
    /// One is let through to see whether the destination is back.
    is_trying: bool,
    /// Objects whose last exchange failed. That may be their own fault: each counts once, and is no proof that the destination is away.
    failing: HashSet<Arc<str>>,
}

impl State {
    /// Whether a failure says something new about the destination.
    fn is_news(&mut self, about: Option<&Arc<str>>) -> bool {
        let Some(about) = about else { return true };
        if self.failing.len() >= FAILING_MAX {
            self.failing.clear();
        }
        self.failing.insert(about.clone())
    }
}

/// Why one does not get through.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Shut {
    pub(crate) why: &'static str,
    pub(crate) retry_after: Duration,
}

impl Gate {
    pub(crate) fn new(limits: &Limits, circuit: &Circuit) -> Self {
        let concurrency = limits.concurrency.unwrap_or(CONCURRENCY_DEFAULT).clamp(1, 100_000);
        let pace = limits.per_second.filter(|per_second| *per_second > 0);
        Self {
            places: Arc::new(Semaphore::new(concurrency as usize)),
            pace: pace.map(|per_second| (Duration::from_secs(1) / per_second, Mutex::new(Instant::now()))),
            failures_max: circuit.failures.unwrap_or(FAILURES_DEFAULT),
            pause: circuit.pause.map_or(PAUSE_DEFAULT, |span| span.0),
            circuits: Default::default(),
        }
    }

    /// Waits in line, not for ever.
    pub(crate) async fn enter(&self, errand: Errand) -> Result<Pass<'_>, Shut> {
        let pass = self.pass(errand, None).await?;
        self.paced().await?;
        Ok(pass)
    }

    /// Waits for its turn, where there are only so many a second.
    pub(crate) async fn paced(&self) -> Result<(), Shut> {
        if let Some(wait) = self.turn() {
            if wait > IN_LINE_TIME_MAX {
                let why = "too much is under way to this destination";
                return Err(Shut { why, retry_after: wait });
            }
            tokio::time::sleep(wait).await;
        }
        Ok(())
    }

    /// Gives a place to write, to one who does not know yet whether there is anything to send: that takes no turn.
    /// `about`: the object, where one that fails says nothing about the others (S39).
    pub(crate) async fn enter_for_now(&self, about: Option<Arc<str>>) -> Result<Pass<'_>, Shut> {
        self.pass(Errand::Write, about).await
    }

    async fn pass(&self, errand: Errand, about: Option<Arc<str>>) -> Result<Pass<'_>, Shut> {
        let is_probe = self.check_circuit(errand, about.as_ref())?;
        let mut pass = Pass { gate: self, errand, about, is_probe, _place: None };
        let crowded =
            Shut { why: "too much is under way to this destination", retry_after: Duration::from_secs(1) };
        let place = match self.places.clone().try_acquire_owned() {
            Ok(place) => place,
            Err(_) => {
                let entering = tokio::time::timeout(IN_LINE_TIME_MAX, self.places.clone().acquire_owned());
                let Ok(Ok(place)) = entering.await else { return Err(crowded) };
                place
            }
        };
        pass._place = Some(place);
        Ok(pass)
    }

    /// How long to wait for one's turn, where there are only so many a second.
    fn turn(&self) -> Option<Duration> {
        let (every, next) = self.pace.as_ref()?;
        let mut next = next.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let mine = (*next).max(now);
        let wait = mine - now;
        // Who would have to wait too long takes no turn.
        if wait <= IN_LINE_TIME_MAX {
            *next = mine + *every;
        }
        Some(wait)
    }

    fn state(&self, errand: Errand) -> std::sync::MutexGuard<'_, State> {
        self.circuits[errand as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether nothing is written to the destination now, or one is seeing whether it is back: nothing else would get through.
    pub(crate) fn is_shut(&self) -> bool {
        let state = self.state(Errand::Write);
        state.open_until.is_some_and(|until| state.is_trying || until > Instant::now())
    }

    /// For how long nobody who writes gets through.
    pub(crate) fn shut_for(&self) -> Option<Duration> {
        let left = self.state(Errand::Write).open_until?.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }

    /// Says whether this is the one that sees whether the destination is back. Of objects that did not fail all may see.
    fn check_circuit(&self, errand: Errand, about: Option<&Arc<str>>) -> Result<bool, Shut> {
        let mut state = self.state(errand);
        let Some(until) = state.open_until else { return Ok(false) };
        let has_failed = about.map(|about| state.failing.contains(about));
        let until = if has_failed == Some(true) { until + OTHERS_FIRST } else { until };
        let left = until.saturating_duration_since(Instant::now());
        let why = "the destination failed too often and is left alone for a while";
        match (left.is_zero(), state.is_trying) {
            (true, _) if has_failed == Some(false) => Ok(false),
            (true, false) => {
                state.is_trying = true;
                Ok(true)
            }
            (true, true) => Err(Shut { why, retry_after: Duration::from_secs(1) }),
            (false, _) => Err(Shut { why, retry_after: left }),
        }
    }

    fn went(&self, errand: Errand, well: bool, about: Option<&Arc<str>>, was_probe: bool) {
        let mut state = self.state(errand);
        if well {
            (state.failures, state.open_until, state.is_trying) = (0, None, false);
            if let Some(about) = about {
                state.failing.remove(about);
            }
            return;
        }
        if was_probe {
            state.is_trying = false;
        }
        if state.is_news(about) {
            state.failures = state.failures.saturating_add(1);
        }
        if self.failures_max > 0 && (was_probe || state.failures >= self.failures_max) {
            state.open_until = Some(Instant::now() + self.pause);
            state.failures = 0;
        }
    }
}

/// Leave to send something now.
#[derive(Debug)]
pub(crate) struct Pass<'a> {
    gate: &'a Gate,
    errand: Errand,
    about: Option<Arc<str>>,
    is_probe: bool,
    _place: Option<OwnedSemaphorePermit>,
}

impl Pass<'_> {
    /// Notes how the exchange went. What never came to an exchange says nothing about the destination.
    pub(crate) fn went(mut self, well: bool) {
        self.goes(well);
    }

    /// Notes how it goes so far; the place is kept until the end.
    pub(crate) fn goes(&mut self, well: bool) {
        self.gate.went(self.errand, well, self.about.as_ref(), self.is_probe);
        self.is_probe = false;
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        if self.is_probe {
            self.gate.state(self.errand).is_trying = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Span;

    #[tokio::test]
    async fn a_destination_that_fails_is_left_alone_and_then_tried_by_one() {
        let circuit = Circuit { failures: Some(2), pause: Some(Span(Duration::from_millis(50))) };
        let gate = Gate::new(&Limits::default(), &circuit);
        gate.enter(Errand::Write).await.expect("it is open").went(false);
        gate.enter(Errand::Write).await.expect("it is open").went(false);
        assert!(gate.enter(Errand::Write).await.is_err());
        tokio::time::sleep(Duration::from_millis(60)).await;
        let probe = gate.enter(Errand::Write).await.ok();
        assert!(probe.is_some(), "one may see whether it is back");
        assert!(gate.enter(Errand::Write).await.is_err(), "and only one");
        drop(probe);
        let probe = gate.enter(Errand::Write).await.expect("one that came to nothing makes room for another");
        probe.went(true);
        assert!(gate.enter(Errand::Write).await.is_ok());
    }

    #[tokio::test]
    async fn s39_an_object_that_fails_counts_once_and_lets_others_see_first() {
        let circuit = Circuit { failures: Some(2), pause: Some(Span(Duration::from_millis(500))) };
        let gate = Gate::new(&Limits::default(), &circuit);
        let enter = async |object: &str| gate.enter_for_now(Some(object.into())).await;
        for _ in 0..5 {
            enter("bad").await.expect("one object says nothing about the others").went(false);
        }
        enter("worse").await.expect("it is open").went(false);
        assert!(enter("good").await.is_err(), "two of them do");
        assert!(gate.shut_for().is_some());
        tokio::time::sleep(Duration::from_millis(510)).await;
        assert_eq!(gate.shut_for(), None);
        assert!(enter("bad").await.is_err(), "others see first");
        enter("good").await.expect("it did not fail").went(true);
        for object in ["bad", "worse", "bad"] {
            enter(object).await.expect("what was known to fail is no news").went(false);
        }
        assert!(enter("good").await.is_ok());
    }

    #[tokio::test]
    async fn objects_that_failed_see_one_at_a_time_when_there_are_no_others() {
        let circuit = Circuit { failures: Some(2), pause: Some(Span(Duration::from_millis(50))) };
        let gate = Gate::new(&Limits::default(), &circuit);
        let enter = async |object: &str| gate.enter_for_now(Some(object.into())).await;
        for object in ["one", "two"] {
            enter(object).await.expect("it is open").went(false);
        }
        tokio::time::sleep(OTHERS_FIRST + Duration::from_millis(60)).await;
        let probe = enter("one").await.expect("somebody must see");
        assert!(enter("two").await.is_err(), "and only one");
        probe.went(false);
        assert!(gate.shut_for().is_some(), "it is not back");
    }

    #[tokio::test]
    async fn only_so_many_a_second() {
        let gate = Gate::new(&Limits { concurrency: None, per_second: Some(50) }, &Circuit::default());
        let started = Instant::now();
        for _ in 0..6 {
            drop(gate.enter(Errand::Write).await.expect("there is room"));
        }
        assert!(started.elapsed() >= Duration::from_millis(95));
    }

    #[tokio::test]
    async fn s25_what_cannot_be_read_can_be_written() {
        let circuit = Circuit { failures: Some(2), pause: Some(Span(Duration::from_secs(60))) };
        let gate = Gate::new(&Limits::default(), &circuit);
        for _ in 0..2 {
            gate.enter(Errand::Read).await.expect("it is open").went(false);
        }
        assert!(gate.enter(Errand::Read).await.is_err());
        assert!(!gate.is_shut());
        gate.enter(Errand::Lookup).await.expect("it is open").went(true);
        gate.enter(Errand::Write).await.expect("it is open").went(true);
        assert!(gate.enter(Errand::Read).await.is_err(), "nor does a write say anything about reads");
    }
}
