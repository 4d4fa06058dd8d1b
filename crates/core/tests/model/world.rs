//! The world the rules live in: what the ledger believes, who holds which permit, what is in flight, and what happened
//! at the destination. Small enough to be enumerated.
//!
//! `now` is always [`NOW`]: when time passes, everything else moves into the past. Whatever is too long ago to make a
//! difference is moved up to the edge of where it does, so that there are finitely many worlds.
//!
//! One tick is one millisecond, the grain of ledger time. Two things a tick apart on the ledger's clock may be nearly two
//! ticks apart, or hardly any; each bound is taken in its worse sense.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::time::Duration;

use twicesafe_core::{PermitKind, Policy, Record, Recovery, Timestamp};

pub const NOW: Timestamp = Timestamp::from_millis(1_000);

pub const fn ticks(count: u64) -> Duration {
    Duration::from_millis(count)
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct World {
    pub intents: Vec<Intent>,
    /// What the store knows of the lane that all intents share, if they do.
    pub holder: Option<u8>,
    pub applied: Option<i64>,
    /// The newest version that took effect at the destination.
    pub newest: Option<i64>,
    /// A rule was broken on the way here.
    pub fault: Option<Fault>,
}

/// Rules about steps, as opposed to rules about states.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Fault {
    SentWhileForbidden,
    RepetitionDiffers,
    NewGenerationAfterEffect,
    OlderAfterNewer,
    EqualOvertaken,
    NotJournalled,
    LaneChangedAlone,
    CorrectionReplaced,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Intent {
    pub believed: Option<Believed>,
    /// Interchangeable, hence sorted.
    pub callers: Vec<Caller>,
    pub messages: Vec<Message>,
    /// By generation, from 1.
    pub effects: Vec<Effects>,
    /// Somebody was told of what it is in now: by an alert, or by hearing that nothing happened (S47).
    pub told: bool,
    /// What a server read of it, to carry it on.
    pub seen: Option<Seen>,
}

/// What was read of an intent.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Seen {
    pub generation: u8,
    pub input: u8,
}

/// A record, hashed by what can differ between two worlds of one model.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Believed(pub Box<Record>);

impl Hash for Believed {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let record = &*self.0;
        (record.generation, record.status, record.doubt, record.fence, record.tries).hash(state);
        record.fingerprint.as_ref().map(|fingerprint| fingerprint.digest()[0]).hash(state);
        record.attempt.hash(state);
        (record.due_at, record.first_sent_at, record.quiet_at, record.recovered_since, record.ask_until)
            .hash(state);
        (&record.kept, &record.answer, record.source, &record.approval).hash(state);
        (record.replay_until, record.waits_until, record.settled_at).hash(state);
        (record.last_settle, record.last_evidence, record.last_decision).hash(state);
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Caller {
    Idle,
    /// Holds a permit to act, live or long over.
    Acting {
        fence: u8,
        generation: u8,
        /// Ticks in which the first byte may still leave; below zero: too late (S9).
        send_within: i8,
        stage: Stage,
    },
    /// Holds a permit to ask.
    Asking {
        fence: u8,
        generation: u8,
        saw: Option<Saw>,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Stage {
    Unsent,
    Sent,
    Heard { refused: bool },
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Saw {
    It,
    Nothing,
}

/// A request under way to the destination. What does not arrive in time is lost.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Message {
    pub fence: u8,
    pub generation: u8,
    /// Ticks in which it may still arrive.
    pub left: u8,
}

/// What the destination has of one generation, after its own deduplication.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Effects {
    /// Counted up to 2: too many.
    pub count: u8,
    /// Ticks since the last of them, as far back as it matters.
    pub age: u8,
    /// The answer that callers were given first, by its mark.
    pub told: Option<u8>,
}

impl fmt::Display for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, intent) in self.intents.iter().enumerate() {
            match &intent.believed {
                Some(Believed(record)) => {
                    let Record { status, doubt, fence, generation, quiet_at, .. } = &**record;
                    write!(
                        f,
                        "#{index} {status}, doubt {doubt}, fence {fence}, generation {generation}, {quiet_at:?}; "
                    )?;
                }
                None => write!(f, "#{index} unknown; ")?,
            }
            let effects: Vec<_> = intent.effects.iter().map(|effects| effects.count).collect();
            write!(f, "{:?}, {:?}, effects {effects:?} ", intent.callers, intent.messages)?;
        }
        Ok(())
    }
}

impl World {
    pub fn pass_a_tick(&mut self, policy: &Policy) {
        let age_max = memory_of_destination(policy);
        for intent in &mut self.intents {
            if let Some(Believed(record)) = &mut intent.believed {
                for time in times(record).filter(|time| **time != Timestamp::NEVER) {
                    *time = time.minus(ticks(1));
                }
            }
            for caller in &mut intent.callers {
                if let Caller::Acting { send_within, .. } = caller {
                    *send_within = (*send_within - 1).max(-1);
                }
            }
            intent.messages.retain(|message| message.left > 0);
            intent.messages.iter_mut().for_each(|message| message.left -= 1);
            for effects in intent.effects.iter_mut().filter(|effects| effects.count > 0) {
                effects.age = (effects.age + 1).min(age_max);
            }
        }
    }

    /// Makes worlds that cannot be told apart the same.
    pub fn normalise(&mut self, policy: &Policy) {
        for intent in &mut self.intents {
            intent.callers.sort_unstable();
            if let Some(Believed(record)) = &mut intent.believed {
                forget_what_is_over(record, policy);
                intent.told &= !record.status.is_settled();
            }
        }
    }
}

/// How long the destination's state depends on when something arrived.
fn memory_of_destination(policy: &Policy) -> u8 {
    let longest = match &policy.recovery {
        Recovery::NativeKey { retention, lookup } => {
            (*retention).max(lookup.as_ref().map_or(Duration::ZERO, |lookup| lookup.lag + ticks(1)))
        }
        Recovery::Lookup(lookup) => lookup.lag + ticks(1),
        Recovery::Repeat | Recovery::Person => Duration::ZERO,
    };
    u8::try_from(longest.as_millis()).unwrap()
}

/// Every point in time a record knows.
pub fn times(record: &mut Record) -> impl Iterator<Item = &mut Timestamp> {
    let attempt = record
        .attempt
        .as_mut()
        .map(|attempt| [&mut attempt.granted_at, &mut attempt.lease_until, &mut attempt.send_by]);
    let approval = record.approval.as_mut().map(|approval| &mut approval.expires_at);
    [
        &mut record.due_at,
        &mut record.first_sent_at,
        &mut record.quiet_at,
        &mut record.recovered_since,
        &mut record.ask_until,
        &mut record.replay_until,
        &mut record.waits_until,
        &mut record.settled_at,
        &mut record.entombed_at,
    ]
    .into_iter()
    .flatten()
    .chain(attempt.into_iter().flatten())
    .chain(approval)
    .chain([&mut record.created_at])
}

/// Moves what is too long ago to make a difference up to where it would begin to.
fn forget_what_is_over(record: &mut Record, policy: &Policy) {
    let lag = policy.recovery.lookup().map_or(Duration::ZERO, |lookup| lookup.lag);
    let quiet_floor = NOW.minus(lag);
    let first_floor = match policy.recovery {
        Recovery::NativeKey { retention, .. } => NOW.minus(retention),
        _ => NOW,
    };
    let granted_floor =
        if policy.act_max > policy.lease { first_floor.min(NOW.minus(policy.act_max)) } else { first_floor };
    record.created_at = NOW;
    record.asks = 0; // the models have no backoff, so that only the time of the next lookup counts
    record.settled_at = record.settled_at.map(|_| NOW);
    for time in [&mut record.due_at, &mut record.ask_until, &mut record.replay_until, &mut record.waits_until]
    {
        *time = time.map(|time| time.max(NOW));
    }
    record.first_sent_at = record.first_sent_at.map(|time| time.max(first_floor));
    let quiet_at = record.quiet_at;
    record.quiet_at = quiet_at.map(|time| time.max(quiet_floor));
    if let Some(approval) = &mut record.approval {
        approval.expires_at = if approval.decision.is_some() { NOW } else { approval.expires_at.max(NOW) };
    }
    let Some(attempt) = &mut record.attempt else { return };
    attempt.lease_until = attempt.lease_until.max(NOW);
    match attempt.kind {
        PermitKind::Act => {
            attempt.send_by = attempt.send_by.max(quiet_floor.minus(policy.in_flight_max + ticks(1)));
            attempt.granted_at = attempt.granted_at.max(granted_floor);
        }
        PermitKind::Lookup => {
            attempt.send_by = NOW;
            // All that matters is whether a "not there" of this lookup counts.
            let counts = quiet_at.is_none_or(|quiet_at| attempt.granted_at >= quiet_at + lag);
            let quiet_at = record.quiet_at.unwrap_or(NOW);
            attempt.granted_at = if counts { NOW } else { (quiet_at + lag).minus(ticks(1)) };
        }
    }
}
