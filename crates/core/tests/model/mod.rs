//! The model check: the *real* `decide`, in every world that can be reached within bounds.
//!
//! Sending and arriving are steps of their own, which can be late; leases lapse between any two steps; callers crash;
//! replies and messages get lost; reports come late; commands come twice. What is asserted is not what the ledger believes
//! but what happened at the destination.

mod command;
mod mutation;
mod promise;
mod step;
mod world;

use std::sync::Arc;
use std::time::{Duration, Instant};

use stateright::{Checker, HasDiscoveries, Model, Property};
use twicesafe_core::{ApprovalRule, Backoff, Lookup, OnReview, Policy, Recovery, VersionMeans};

use mutation::Mutation;
use promise::PROMISES;
use step::{Bounds, Step};
pub use world::times;
use world::{World, ticks};

impl Model for Bounds {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        vec![self.start()]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        self.steps(world, steps);
    }

    fn next_state(&self, world: &World, step: Step) -> Option<World> {
        self.after(world, step)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        PROMISES.iter().map(|(name, holds)| Property::always(name, *holds)).collect()
    }
}

fn policy(recovery: Recovery) -> Policy {
    Policy {
        lease: ticks(2),
        act_max: ticks(2),
        in_flight_max: ticks(1),
        attempts_max: 2,
        backoff: Backoff { base: Duration::ZERO, cap: Duration::ZERO },
        ..Policy::new(recovery)
    }
}

fn lookup() -> Lookup {
    Lookup { lag: ticks(1), lookup_for: ticks(5) }
}

fn classes() -> Vec<(&'static str, Policy)> {
    let native_key = |lookup| Recovery::NativeKey { retention: ticks(6), lookup };
    let approval = Some(ApprovalRule { expires_after: ticks(2), ..ApprovalRule::default() });
    vec![
        ("repeat", policy(Recovery::Repeat)),
        ("native-key", policy(native_key(None))),
        ("native-key with lookup", policy(native_key(Some(lookup())))),
        ("lookup", policy(Recovery::Lookup(lookup()))),
        ("person", policy(Recovery::Person)),
        ("person with approval", Policy { approval, ..policy(Recovery::Person) }),
    ]
}

fn one_intent(policy: Policy) -> Bounds {
    // A corrected request makes no difference to what a native key does, but doubles the largest worlds.
    let inputs = if matches!(policy.recovery, Recovery::NativeKey { .. }) { 1 } else { 2 };
    Bounds {
        policy: Arc::new(policy),
        versions: Vec::new(),
        callers: 2,
        permits: vec![3],
        generations: 2,
        inputs,
        passes_on: false,
        carries_on: false,
        left_out: None,
    }
}

/// Visits every world, or stops at the first that breaks a promise; gives the promises broken.
fn check(name: &str, bounds: Bounds, stop: HasDiscoveries) -> Vec<&'static str> {
    let started = Instant::now();
    let left_out = bounds.left_out;
    let checker = bounds.checker().threads(2).finish_when(stop).spawn_bfs().join();
    let broken = checker.discoveries();
    println!(
        "model {name:<36} {:>9} states {:>8} unique, depth {:>2}, {:>5.1} s",
        checker.state_count(),
        checker.unique_state_count(),
        checker.max_depth(),
        started.elapsed().as_secs_f64(),
    );
    for (promise, path) in broken.iter().filter(|_| left_out.is_none()) {
        println!("  broken: {promise}");
        path.clone().into_vec().iter().for_each(|(world, step)| println!("    {world}\n  {step:?}"));
    }
    broken.into_keys().collect()
}

#[test]
fn one_intent_keeps_its_promises() {
    for (name, policy) in classes() {
        let broken = check(name, one_intent(policy), HasDiscoveries::Any);
        assert!(broken.is_empty(), "{name}: {broken:?}");
    }
}

/// Leases that are renewed, up to `act_max`: one input, so that the worlds stay few enough.
#[test]
fn a_renewed_lease_keeps_its_promises() {
    for (name, policy) in classes() {
        let bounds = Bounds { inputs: 1, generations: 1, ..one_intent(renewed(policy)) };
        let broken = check(&format!("{name}, renewed"), bounds, HasDiscoveries::Any);
        assert!(broken.is_empty(), "{name}: {broken:?}");
    }
}

fn renewed(policy: Policy) -> Policy {
    Policy { act_max: policy.lease * 2, ..policy }
}

fn a_lane(recovery: Recovery, versions: [i64; 2], permits: [u64; 2]) -> Bounds {
    let policy =
        Policy { version_means: VersionMeans::Snapshot, on_review: OnReview::Block, ..policy(recovery) };
    Bounds {
        versions: versions.map(Some).into(),
        callers: 1,
        permits: permits.into(),
        generations: 1,
        inputs: 1,
        ..one_intent(policy)
    }
}

#[test]
fn a_lane_keeps_its_promises() {
    let lookup = Lookup { lag: ticks(0), lookup_for: ticks(3) };
    for (name, recovery) in
        [("repeat", Recovery::Repeat), ("lookup", Recovery::Lookup(lookup)), ("person", Recovery::Person)]
    {
        for (versions, permits) in [([1, 2], [2, 1]), ([2, 1], [2, 1]), ([1, 1], [1, 2])] {
            let bounds = a_lane(recovery.clone(), versions, permits);
            let name = format!("lane, {name}, versions {versions:?}");
            let broken = check(&name, bounds, HasDiscoveries::Any);
            assert!(broken.is_empty(), "{name}: {broken:?}");
        }
    }
}

/// A destination that may ask the caller to mend something first, in doubt too.
fn passed_on(policy: Policy) -> Bounds {
    Bounds { passes_on: true, inputs: 1, generations: 1, ..one_intent(policy) }
}

#[test]
fn what_is_passed_on_keeps_its_promises() {
    for (name, policy) in classes() {
        let broken = check(&format!("{name}, passed on"), passed_on(policy), HasDiscoveries::Any);
        assert!(broken.is_empty(), "{name}: {broken:?}");
    }
    let lane = Bounds { passes_on: true, ..a_lane(Recovery::Repeat, [1, 2], [2, 1]) };
    let broken = check("lane, repeat, passed on", lane, HasDiscoveries::Any);
    assert!(broken.is_empty(), "{broken:?}");
    let promise = "S47: every open intent is scheduled, held, or somebody was told";
    for policy in
        [policy(Recovery::Repeat), policy(Recovery::NativeKey { retention: ticks(6), lookup: None })]
    {
        let bounds = Bounds { left_out: Some(Mutation::Stuck), ..passed_on(policy) };
        let broken = check("passed on without Stuck", bounds, HasDiscoveries::AnyOf([promise].into()));
        assert!(broken.contains(&promise), "it goes unnoticed: {broken:?}");
    }
}

/// A server that reads what is open, and claims it later.
fn carried_on(recovery: Recovery) -> Bounds {
    Bounds {
        carries_on: true,
        callers: 1,
        permits: vec![3],
        generations: 3,
        inputs: 2,
        ..one_intent(policy(recovery))
    }
}

#[test]
fn what_is_carried_on_keeps_its_promises() {
    for recovery in [Recovery::Person, Recovery::Repeat] {
        let name = format!("{}, carried on", recovery.as_str());
        let broken = check(&name, carried_on(recovery), HasDiscoveries::Any);
        assert!(broken.is_empty(), "{name}: {broken:?}");
    }
    let promise = "S31: a corrected request is never replaced by what was read before it";
    let bounds = Bounds { left_out: Some(Mutation::About), ..carried_on(Recovery::Person) };
    let broken = check("carried on without About", bounds, HasDiscoveries::AnyOf([promise].into()));
    assert!(broken.contains(&promise), "it goes unnoticed: {broken:?}");
}

fn a_lane_that_lets_pass(left_out: Option<Mutation>) -> Bounds {
    let lane = a_lane(Recovery::Person, [1, 2], [1, 1]);
    let policy = Policy { on_review: OnReview::Pass, ..(*lane.policy).clone() };
    Bounds { policy: Arc::new(policy), left_out, ..lane }
}

#[test]
fn a_lane_that_lets_pass_keeps_its_promises() {
    let broken = check("lane, person, review lets pass", a_lane_that_lets_pass(None), HasDiscoveries::Any);
    assert!(broken.is_empty(), "{broken:?}");
}

/// The promise each rule is there for, by the class in which leaving it out breaks that promise.
#[test]
fn a_rule_left_out_is_noticed() {
    const TWICE: &str = "at most one effect per generation";
    let lookup = || policy(Recovery::Lookup(lookup()));
    let person = || policy(Recovery::Person);
    let native_key = || policy(Recovery::NativeKey { retention: ticks(6), lookup: None });
    for (left_out, class, policy, promise) in [
        (Mutation::Fence, "lookup", lookup(), TWICE),
        (Mutation::Doubt, "lookup", lookup(), TWICE),
        (Mutation::Holder, "person", person(), "S48: nobody but who got a permit renews or settles it"),
        (Mutation::Doubt, "person", person(), TWICE),
        (Mutation::SendBy, "lookup", lookup(), TWICE),
        (Mutation::SendBy, "person", person(), TWICE),
        (Mutation::CommandId, "person", person(), "S12: a command repeated at once changes nothing"),
        (Mutation::RenewedSendBy, "native-key", renewed(native_key()), "S8: never two permits to act"),
        (Mutation::Horizon, "native-key", renewed(native_key()), TWICE),
    ] {
        let bounds = Bounds { left_out: Some(left_out), inputs: 1, ..one_intent(policy) };
        let stop = HasDiscoveries::AnyOf([promise].into());
        let broken = check(&format!("{class} without {left_out:?}"), bounds, stop);
        println!("  without {left_out:?}, broken: {}", broken.join("; "));
        assert!(broken.contains(&promise), "{left_out:?} goes unnoticed: {broken:?}");
    }
}

#[test]
fn a_rule_of_lanes_left_out_is_noticed() {
    let promise = "S15: equal versions in the order of their arrival";
    let bounds = Bounds { left_out: Some(Mutation::Equals), ..a_lane(Recovery::Repeat, [1, 1], [1, 2]) };
    let broken = check("lane without Equals", bounds, HasDiscoveries::AnyOf([promise].into()));
    assert!(broken.contains(&promise), "it goes unnoticed: {broken:?}");
    let promise = "S15: a lane follows only from a record that changes";
    let bounds = a_lane_that_lets_pass(Some(Mutation::LaneWithRecord));
    let broken = check("lane without LaneWithRecord", bounds, HasDiscoveries::AnyOf([promise].into()));
    assert!(broken.contains(&promise), "it goes unnoticed: {broken:?}");
}
