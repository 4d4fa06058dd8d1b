//! Ledger time (S10), where the machine's clock makes it.

use std::time::Duration;

use twicesafe_core::{Action, Ask, Finding, Lookup, Outcome, Purge, Recovery, Refusal, Status, Verdict};

use twicesafe_store::CLOCK_SET_MAX;

use crate::orders::{about, answered, claim, looked_up, permit, renew, settle};
use crate::world::{Kind, World};

const HOUR_MILLIS: i64 = 3_600_000;

pub async fn s10_ledger_time_never_runs_backwards(world: &World) {
    let clock = world.clock.as_ref().unwrap();
    let policy = world.policy(Recovery::Person);
    let mut last = world.store.now().await.unwrap();
    for (n, jump) in [0, -HOUR_MILLIS, -10, 5, -20_000, -HOUR_MILLIS * 24].into_iter().enumerate() {
        clock.jump(jump);
        clock.advance(Duration::from_millis(1));
        let key = format!("k{n}");
        let claimed = world.tell(claim(&key, &policy)).await;
        assert!(claimed.at > last, "{jump}");
        let settled = world.other.apply_one(settle(&claimed, answered("done"))).await.unwrap();
        assert!(settled.at >= claimed.at, "{jump}: not for another store either");
        last = settled.at;
        assert!(world.store.now().await.unwrap() >= claimed.at);
        let reopened = world.open().await;
        assert!(reopened.now().await.unwrap() >= last, "{jump}: nor after a restart");
        last = reopened.now().await.unwrap().max(last);
    }
}

/// Whoever holds a permit, whoever asks and whoever starts only now agree on how much time has passed.
pub async fn s10_a_jump_ends_nothing(world: &World) {
    let clock = world.clock.as_ref().unwrap();
    let policy = world.policy(Recovery::Person);
    let alive = world.tell(claim("alive", &policy)).await;
    let dead = world.tell(claim("dead", &policy)).await;
    clock.jump(HOUR_MILLIS);
    for store in [&world.store, &world.other, &world.open().await] {
        for key in ["alive", "dead"] {
            let told = store.apply_one(claim(key, &policy).into()).await.unwrap();
            assert!(matches!(told.verdict, Verdict::Wait(_)), "{key}: {:?}", told.verdict);
        }
    }
    clock.advance(policy.lease / 2);
    let renewed = world.tell(about(&alive, "caller", renew(&alive))).await;
    assert_eq!(permit(&renewed).lease, policy.lease, "act_max is as far away as it was");
    clock.advance(policy.lease / 2);
    let expired = world.tell(about(&dead, "sweep", Action::Expire)).await;
    assert_eq!(expired.stored.unwrap().record.status, Status::Review, "its lease is over");
    let there = world.tell(about(&alive, "sweep", Action::Expire)).await;
    assert_eq!(there.stored.unwrap().record.status, Status::Pending, "it was renewed");
}

/// Who was idle while the clock jumped knows of it only by the clock, and must not take the others along.
pub async fn s10_who_was_idle_does_not_move_the_others(world: &World) {
    let clock = world.clock.as_ref().unwrap();
    let policy = world.policy(Recovery::Person);
    world.other.apply_one(claim("early", &policy).into()).await.unwrap();
    clock.advance(Duration::from_secs(3600));
    world.tell(claim("alive", &policy)).await;
    let lease_millis = i64::try_from(policy.lease.as_millis()).unwrap();
    clock.jump(2 * lease_millis);
    world.other.now().await.unwrap();
    for key in ["another", "alive"] {
        world.other.apply_one(claim(key, &policy).into()).await.unwrap();
    }
    for store in [&world.store, &world.other] {
        let told = store.apply_one(claim("alive", &policy).into()).await.unwrap();
        assert!(matches!(told.verdict, Verdict::Wait(_)), "its holder is at it: {:?}", told.verdict);
    }
}

/// "Not there" counts when nothing can arrive any more, not when a clock says so.
pub async fn s24_a_jump_does_not_make_a_lookup_count(world: &World) {
    let clock = world.clock.as_ref().unwrap();
    let lookup = Lookup { lag: Duration::ZERO, lookup_for: Duration::from_secs(86_400) };
    let policy = world.policy(Recovery::Lookup(lookup));
    let sent = world.tell(claim("a", &policy)).await;
    world.tell(settle(&sent, Outcome::unknown("no answer"))).await;
    clock.jump(HOUR_MILLIS);
    for store in [&world.store, &world.other, &world.open().await] {
        let asked = store.apply_one(about(&sent, "asker", Action::Ask(Ask))).await.unwrap();
        if let Verdict::Proceed(_) = asked.verdict {
            let told = store.apply_one(looked_up(&asked, Finding::NotFound)).await.unwrap();
            assert_eq!(told.stored.unwrap().record.status, Status::Pending, "it could still arrive");
        }
    }
    clock.advance(policy.in_flight_max * 2);
    let asked = world.tell(about(&sent, "asker", Action::Ask(Ask))).await;
    let told = world.tell(looked_up(&asked, Finding::NotFound)).await;
    assert_eq!(told.stored.unwrap().record.status, Status::Retryable);
}

/// A machine that was paused for two days does not know it, until somebody sets its clock: the destination has forgotten the key.
pub async fn s24_a_destination_may_have_forgotten_what_the_clock_says_it_has(world: &World) {
    let clock = world.clock.as_ref().unwrap();
    let retention = Duration::from_secs(24 * 3600);
    let policy = world.policy(Recovery::NativeKey { retention, lookup: None });
    let sent = world.tell(claim("settled", &policy)).await;
    world.tell(settle(&sent, Outcome::unknown("no answer"))).await;
    let alive = world.tell(claim("alive", &policy)).await;
    world.tell(settle(&alive, Outcome::unknown("no answer"))).await;
    let alive = world.tell(claim("alive", &policy)).await;
    permit(&alive);
    clock.jump(48 * HOUR_MILLIS);
    for store in [&world.store, &world.other, &world.open().await] {
        let told = store.apply_one(claim("settled", &policy).into()).await.unwrap();
        assert_eq!(told.verdict, Verdict::Review, "nobody can tell any more");
    }
    let renewed = world.tell(about(&alive, "caller", renew(&alive))).await;
    assert_eq!(permit(&renewed).send_within, Duration::ZERO, "who waits for its turn sends nothing");
    world.tell(settle(&renewed, Outcome::unknown("no answer"))).await;
    assert_eq!(world.tell(claim("alive", &policy)).await.verdict, Verdict::Review);
}

/// A machine whose clock is two years ahead when it starts takes answers, but nothing is done twice (S28).
pub async fn s28_a_clock_that_is_years_ahead_makes_no_key_new(world: &World) {
    let clock = world.clock.as_ref().unwrap();
    let policy = world.policy(Recovery::Person);
    let sent = world.tell(claim("a", &policy)).await;
    world.tell(settle(&sent, answered("done"))).await;
    clock.restart();
    clock.jump(2 * 365 * 24 * HOUR_MILLIS);
    let store = world.open().await;
    for _ in 0..3 {
        store.apply_one(about(&sent, "sweep", Action::Purge(Purge { work_is_open: false }))).await.unwrap();
    }
    let told = store.apply_one(claim("a", &policy).into()).await.unwrap();
    assert_eq!(told.verdict, Verdict::Refuse(Refusal::Purged));
}

/// A machine without a battery was off for two days, and is started before its clock is set: nobody knows that the destination has
/// forgotten the key.
#[tokio::test]
async fn s24_a_native_key_waits_for_the_clock_of_a_machine_that_was_off() {
    for kind in [Kind::Sqlite, Kind::Remembering] {
        let world = World::new(kind).await;
        let clock = world.clock.as_ref().unwrap();
        let retention = Duration::from_secs(24 * 3600);
        let policy = world.policy(Recovery::NativeKey { retention, lookup: None });
        for key in ["a", "b", "c"] {
            let sent = world.tell(claim(key, &policy)).await;
            world.tell(settle(&sent, Outcome::unknown("no answer"))).await;
        }
        clock.advance(Duration::from_secs(1));
        clock.restart();
        clock.set(false);
        let told = async |store: &twicesafe_store::Store, key| {
            store.apply_one(claim(key, &policy).into()).await.unwrap().verdict
        };
        for store in [world.open().await, world.open().await] {
            assert!(matches!(told(&store, "a").await, Verdict::Wait(_)), "{kind:?}");
        }
        clock.advance(Duration::from_secs(60));
        let store = world.open().await;
        assert!(matches!(told(&store, "a").await, Verdict::Wait(_)), "{kind:?}: still");
        let new = store.apply_one(claim("new", &policy).into()).await.unwrap();
        store.apply_one(settle(&new, Outcome::unknown("no answer"))).await.unwrap();
        clock.advance(Duration::from_secs(1));
        let again = told(&store, "new").await;
        assert!(matches!(again, Verdict::Proceed(_)), "{kind:?}: sent since the start: {again:?}");
        // Nobody sets it: without the key.
        clock.advance(CLOCK_SET_MAX);
        assert_eq!(told(&store, "b").await, Verdict::Review, "{kind:?}");
        // Somebody does, and it was two days.
        clock.jump(48 * HOUR_MILLIS);
        clock.set(true);
        assert_eq!(told(&store, "c").await, Verdict::Review, "{kind:?}");
        world.end().await;
    }
}
