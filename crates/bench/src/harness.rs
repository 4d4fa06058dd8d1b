//! Callers that carry out effects one after the other, and what that took.

use std::sync::Arc;
use std::time::{Duration, Instant};

/// Keys that exist before a measurement with repeated keys only.
pub(crate) const FILLED: u64 = 10_000;

pub(crate) struct Load {
    pub(crate) callers: usize,
    /// How many of a hundred effects are repetitions of an earlier key.
    pub(crate) repeated_percent: u64,
    /// Keys are chance, as UUIDs are, and not counted.
    pub(crate) by_chance: bool,
    pub(crate) span: Duration,
}

/// Something effects can be guarded with.
pub(crate) trait Subject: Clone + Send + Sync + 'static {
    /// Carries out one effect, or gets its answer back; adds the time each op took.
    fn effect(
        &self,
        key: Key,
        took: &mut Vec<Duration>,
    ) -> impl Future<Output = Result<(), Box<dyn std::error::Error + Send + Sync>>> + Send;
}

/// Which effect: of which caller, and the how-manieth.
#[derive(Clone, Copy)]
pub(crate) struct Key {
    /// Who asks, which decides about the connection.
    pub(crate) asked_by: usize,
    pub(crate) caller: usize,
    pub(crate) number: u64,
    pub(crate) by_chance: bool,
}

impl Key {
    pub(crate) fn text(self) -> String {
        let counted = format!("order:{}:{}", self.caller, self.number);
        match self.by_chance {
            true => blake3::hash(counted.as_bytes()).to_hex()[..32].to_owned(),
            false => counted,
        }
    }
}

/// What one run came to.
#[derive(Clone)]
pub(crate) struct Run {
    pub(crate) ops_per_second: f64,
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
}

pub(crate) async fn run<S: Subject>(load: &Load, subject: &S) -> Result<Run, Box<dyn std::error::Error>> {
    let started = Instant::now();
    let end = started + load.span;
    let all_repeated = load.repeated_percent == 100;
    let failed = Arc::new(std::sync::Mutex::new(None));
    let callers: Vec<_> = (0..load.callers)
        .map(|caller| {
            let (subject, failed, percent) = (subject.clone(), failed.clone(), load.repeated_percent);
            let by_chance = load.by_chance;
            tokio::spawn(async move {
                let mut took = Vec::with_capacity(1 << 16);
                let mut dice = 0x9E37_79B9_7F4A_7C15_u64 ^ ((caller as u64 + 1) << 17);
                let mut fresh = 0;
                while Instant::now() < end {
                    dice ^= dice << 13;
                    dice ^= dice >> 7;
                    dice ^= dice << 17;
                    let key = if all_repeated {
                        Key { asked_by: caller, caller: 0, number: (dice >> 8) % FILLED, by_chance: false }
                    } else if fresh > 0 && dice % 100 < percent {
                        Key { asked_by: caller, caller, number: (dice >> 8) % fresh, by_chance }
                    } else {
                        fresh += 1;
                        Key { asked_by: caller, caller, number: fresh - 1, by_chance }
                    };
                    if let Err(error) = subject.effect(key, &mut took).await {
                        *failed.lock().unwrap_or_else(std::sync::PoisonError::into_inner) =
                            Some(error.to_string());
                        break;
                    }
                }
                took
            })
        })
        .collect();
    let mut took = Vec::new();
    for caller in callers {
        took.extend(caller.await?);
    }
    if let Some(error) = failed.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take() {
        return Err(error.into());
    }
    let seconds = started.elapsed().as_secs_f64();
    took.sort_unstable();
    let at = |share: f64| took.get((took.len() as f64 * share) as usize).copied().unwrap_or_default();
    Ok(Run { ops_per_second: took.len() as f64 / seconds, p50: at(0.5), p99: at(0.99) })
}
