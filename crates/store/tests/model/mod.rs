//! Random commands, on a store and on the bare rules: told, believed and journalled must be the same.

mod reference;
mod step;
mod timeless;

use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::Arc;

use proptest::test_runner::Config;
use proptest_state_machine::{StateMachineTest, prop_state_machine};
use tokio::runtime::Runtime;
use twicesafe_core::{Command, IntentId, Verdict, WaitCause};
use twicesafe_store::{Order, Stored};

use crate::conformance::audit;
use crate::world::{Kind, World};
use reference::{Reference, Rules, TICK, name};
use step::{Step, Way};

prop_state_machine! {
    #![proptest_config(Config { cases: 1_500, ..Config::default() })]
    #[test]
    fn memory_keeps_the_rules(sequential 1..60 => OnStore<OnMemory>);
}

prop_state_machine! {
    #![proptest_config(Config { cases: 60, ..Config::default() })]
    #[test]
    fn sqlite_keeps_the_rules(sequential 1..60 => OnStore<OnSqlite>);
}

prop_state_machine! {
    #![proptest_config(Config { cases: 60, ..Config::default() })]
    #[test]
    fn remembering_keeps_the_rules(sequential 1..60 => OnStore<OnRemembering>);
}

prop_state_machine! {
    #![proptest_config(Config { cases: 12, max_shrink_iters: 200, ..Config::default() })]
    #[test]
    fn postgres_keeps_the_rules(sequential 1..60 => OnStore<OnPostgres>);
}

pub trait Which: 'static {
    const KIND: Kind;
    /// The database's own clock does not pass on command; policies are long enough for it not to matter.
    const TIME_PASSES: bool = true;
}

pub struct OnMemory;
pub struct OnSqlite;
pub struct OnRemembering;
pub struct OnPostgres;

impl Which for OnMemory {
    const KIND: Kind = Kind::Memory;
}

impl Which for OnSqlite {
    const KIND: Kind = Kind::Sqlite;
}

impl Which for OnRemembering {
    const KIND: Kind = Kind::Remembering;
}

impl Which for OnPostgres {
    const KIND: Kind = Kind::Postgres;
    const TIME_PASSES: bool = false;
}

/// A store, and what its caller last believed of each intent.
pub struct OnStore<W> {
    runtime: Runtime,
    world: World,
    believed: HashMap<usize, Arc<Stored>>,
    which: PhantomData<W>,
}

impl<W: Which> StateMachineTest for OnStore<W> {
    type SystemUnderTest = Self;
    type Reference = Rules<W>;

    fn init_test(_: &Reference) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let world = runtime.block_on(World::new(W::KIND));
        Self { runtime, world, believed: HashMap::new(), which: PhantomData }
    }

    fn apply(mut state: Self, reference: &Reference, step: Step) -> Self {
        match step {
            Step::Pass { ticks } => state.world.clock.as_ref().unwrap().advance(TICK * ticks),
            Step::Tell { intent, way, command } => state.tell(reference, intent, way, command),
        }
        state
    }

    fn teardown(state: Self, reference: Reference) {
        let Self { runtime, world, .. } = state;
        runtime.block_on(async {
            assert_eq!(audit(&world.other).await.len(), reference.intents.len());
            world.end().await;
        });
    }
}

impl<W: Which> OnStore<W> {
    fn tell(&mut self, reference: &Reference, intent: usize, way: Way, command: Command) {
        let order = match (way, self.believed.get(&intent)) {
            (Way::Number, Some(believed)) => Order::numbered(believed.id, command),
            (Way::Belief, Some(believed)) => Order::believing(believed.clone(), command),
            _ => Order::named(name(intent), command),
        };
        let applied = self.runtime.block_on(self.world.tell(order));
        let told = reference.told.as_ref().expect("the rules have spoken");
        assert!(!told.lane_changed_alone, "S15: a lane follows only from a record that changes");
        let (verdict, expected) = (self.in_names(&applied.verdict, &applied.stored), told.verdict.clone());
        let exact = self.world.clock.is_some();
        if exact {
            assert_eq!(verdict, expected);
        } else {
            assert_eq!(timeless::verdict(verdict), timeless::verdict(expected));
        }
        assert_eq!(applied.alerts, told.alerts);
        assert_eq!(applied.notices, told.notices);
        let known = reference.intents.get(&intent);
        assert_eq!(applied.stored.is_some(), known.is_some());
        let (Some(stored), Some(known)) = (&applied.stored, known) else {
            self.believed.remove(&intent);
            return;
        };
        let rows = self.runtime.block_on(self.world.other.journal(stored.id)).unwrap();
        let entries = rows.into_iter().map(|row| row.entry);
        if exact {
            assert_eq!(stored.record, known.record);
            assert_eq!(entries.collect::<Vec<_>>(), known.journal);
        } else {
            assert_eq!(timeless::record(stored.record.clone()), timeless::record(known.record.clone()));
            let journal = known.journal.iter().cloned().map(timeless::entry);
            assert!(entries.map(timeless::entry).eq(journal));
        }
        // Sometimes the caller holds on to what it heard first: beliefs may be old.
        if way != Way::Number || !self.believed.contains_key(&intent) {
            self.believed.insert(intent, stored.clone());
        }
    }

    /// The rules number intents by name; a store has numbers of its own.
    fn in_names(&self, verdict: &Verdict, told: &Option<Arc<Stored>>) -> Verdict {
        let mut verdict = verdict.clone();
        if let Verdict::Wait(wait) = &mut verdict
            && let WaitCause::Lane(Some(blocker)) = &mut wait.cause
        {
            let stored = self.runtime.block_on(self.world.other.find_id(*blocker)).unwrap().unwrap();
            let record = &stored.record;
            assert_ne!(Some(stored.id), told.as_ref().map(|told| told.id), "nobody waits for himself");
            let is_it = |intent: &usize| match &record.name {
                Some(known) => *known == name(*intent),
                // Forgotten, and still in the way until nothing of it can arrive.
                None => self.believed.get(intent).is_some_and(|believed| believed.id == stored.id),
            };
            let intent = (0..3).find(is_it).unwrap();
            *blocker = IntentId::new(intent as i64);
        }
        verdict
    }
}
