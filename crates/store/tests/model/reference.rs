//! The reference: `decide` over a map, and nothing else.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::time::Duration;

use proptest::prelude::*;
use proptest_state_machine::ReferenceStateMachine;
use twicesafe_core::journal::Entry;
use twicesafe_core::{
    Action, After, Alert, Command, IntentId, Lane, Moment, Name, Notice, Record, Timestamp, Verdict, Waiting,
    decide,
};

use super::Which;
use super::step::{Step, any_step};

/// The unit of the policies' times.
pub const TICK: Duration = Duration::from_secs(10);
/// When the worlds start.
const START: Timestamp = Timestamp::from_millis(1_790_000_000_000);

/// What the rules say, so far.
#[derive(Clone, Debug)]
pub struct Reference {
    pub now: Timestamp,
    pub intents: BTreeMap<usize, Known>,
    pub told: Option<Told>,
    arrivals: i64,
    holder: Option<usize>,
    applied: Option<i64>,
}

#[derive(Clone, Debug)]
pub struct Known {
    pub record: Record,
    pub journal: Vec<Entry>,
    arrival: i64,
}

/// What the last command was told.
#[derive(Clone, Debug)]
pub struct Told {
    pub verdict: Verdict,
    pub alerts: Vec<Alert>,
    pub notices: Vec<Notice>,
    /// The lane changed and the record did not: no store writes that.
    pub lane_changed_alone: bool,
}

pub fn name(intent: usize) -> Name {
    Name::new("default/model", &format!("intent {intent}")).unwrap()
}

pub struct Rules<W>(PhantomData<W>);

impl<W: Which> ReferenceStateMachine for Rules<W> {
    type State = Reference;
    type Transition = Step;

    fn init_state() -> BoxedStrategy<Reference> {
        let intents = BTreeMap::new();
        Just(Reference { now: START, intents, told: None, arrivals: 0, holder: None, applied: None }).boxed()
    }

    fn transitions(state: &Reference) -> BoxedStrategy<Step> {
        any_step(state, W::TIME_PASSES)
    }

    fn apply(mut state: Reference, step: &Step) -> Reference {
        match step {
            Step::Pass { ticks } => state.now = state.now + TICK * *ticks,
            Step::Tell { intent, command, .. } => state.tell(*intent, command),
        }
        state
    }
}

impl Reference {
    fn tell(&mut self, intent: usize, command: &Command) {
        let known = self.intents.get(&intent);
        let place = match (known, &command.action) {
            (Some(known), _) => known.record.place.as_ref(),
            (None, Action::Claim(claim)) => claim.place.as_ref(),
            (None, _) => None,
        };
        let arrival = known.map_or(self.arrivals + 1, |known| known.arrival);
        let lane = place.map(|place| self.lane(intent, arrival, place));
        let transition =
            decide(known.map(|known| &known.record), lane.as_ref(), command, &Moment::at(self.now));
        let mut verdict = transition.verdict;
        if let Verdict::Wait(wait) = &mut verdict
            && let twicesafe_core::WaitCause::Lane(Some(blocker)) = &mut wait.cause
        {
            *blocker = IntentId::new(self.by_arrival(*blocker) as i64);
        }
        let (was_placed, was_named) =
            known.map_or((false, false), |known| (known.record.place.is_some(), known.record.name.is_some()));
        let lane_changed_alone = transition.lane.is_some() && transition.after == After::Unchanged;
        if let Some(lane) = transition.lane {
            self.holder = lane
                .holder
                .map(|holder| if holder.number() == arrival { intent } else { self.by_arrival(holder) });
            self.applied = lane.applied;
        }
        match transition.after {
            After::Unchanged => {}
            After::Remove => drop(self.intents.remove(&intent)),
            After::Write(record) => {
                let mut journal = self.intents.remove(&intent).map_or_else(Vec::new, |known| known.journal);
                // What the destination said is in the journal as a digest only.
                journal.extend(transition.entries.into_iter().map(|entry| Entry { content: None, ..entry }));
                if was_named && record.name.is_none() {
                    // Only who has forgotten it is told (S40).
                    journal.iter_mut().rev().skip(1).for_each(Entry::forget);
                }
                self.arrivals = self.arrivals.max(arrival);
                self.intents.insert(intent, Known { record: *record, journal, arrival });
            }
        }
        let is_placed = |known: &Known| known.record.place.is_some();
        if was_placed && self.holder.is_none() && !self.intents.values().any(is_placed) {
            // The lane goes with the last who is in it (S15).
            self.applied = None;
        }
        let (alerts, notices) = (transition.alerts, transition.notices);
        self.told = Some(Told { verdict, alerts, notices, lane_changed_alone });
    }

    /// The lane as it looks to one of its intents. Stores number intents as they arrive.
    fn lane(&self, me: usize, arrival: i64, mine: &twicesafe_core::Place) -> Lane {
        let others = self.intents.iter().filter(|(intent, _)| **intent != me);
        let waiting = others.filter_map(|(_, known)| {
            let version = known.record.place.as_ref()?.version;
            let until = known.record.waits_until.filter(|until| *until > self.now)?;
            Some(Waiting { version, intent: IntentId::new(known.arrival), until })
        });
        let waiting: Vec<Waiting> = waiting.collect();
        let first_waiting = waiting.iter().min().copied();
        let mine = mine.version;
        let first_equal = waiting.iter().filter(|other| other.version == mine).min().copied();
        let holder = self.holder.map(|holder| IntentId::new(self.intents[&holder].arrival));
        Lane { me: IntentId::new(arrival), holder, applied: self.applied, first_waiting, first_equal }
    }

    fn by_arrival(&self, id: IntentId) -> usize {
        let (intent, _) = self.intents.iter().find(|(_, known)| known.arrival == id.number()).unwrap();
        *intent
    }
}
