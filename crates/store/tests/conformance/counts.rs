//! Counts are kept as things happen, and agree with a recount.

use twicesafe_core::journal::Event;
use twicesafe_core::{
    Action, Answer, Ask, Finding, Outcome, Policy, Recipe, Recovery, Reset, Status, Timestamp,
};
use twicesafe_store::{Order, Statistics, Store};

use crate::orders::{about, answered, claim, looked_up, settle};
use crate::world::World;

async fn counts(store: &Store) -> Statistics {
    store.statistics(Timestamp::default(), Timestamp::NEVER).await.unwrap()
}

pub async fn standing_counts_follow_every_change(world: &World) {
    let standing = async || {
        let counts = counts(&world.other).await;
        Status::ALL
            .into_iter()
            .filter(|status| counts.standing(*status) > 0)
            .map(|status| (status, counts.standing(status)))
            .collect::<Vec<_>>()
    };
    assert_eq!(standing().await, []);
    let a = world.tell(claim("a", &Policy::default())).await;
    let b = world.tell(claim("b", &Policy::default())).await;
    assert_eq!(standing().await, [(Status::Pending, 2)]);
    let a = world.tell(settle(&a, answered("a"))).await;
    world.tell(settle(&b, Outcome::unknown("cut"))).await;
    assert_eq!(standing().await, [(Status::Review, 1), (Status::Done, 1)]);
    world.tell(about(&a, "ann", Action::Reset(Reset { generation: 1, reason: "again".into() }))).await;
    assert_eq!(standing().await, [(Status::Ready, 1), (Status::Review, 1)]);
}

pub async fn events_are_counted_once(world: &World) {
    let claiming = Order::from(claim("k", &Policy::default()));
    let claimed = world.tell(claiming.clone()).await;
    let settling = settle(&claimed, answered("once"));
    for _ in 0..3 {
        world.tell(settling.clone()).await;
        world.tell(claiming.clone()).await;
    }
    let counts = counts(&world.store).await;
    assert_eq!((counts.events(Event::Claimed), counts.events(Event::Answered)), (1, 1));
    let later = world.store.now().await.unwrap() + std::time::Duration::from_secs(7200);
    let nothing = world.store.statistics(later, Timestamp::NEVER).await.unwrap();
    assert_eq!((nothing.events(Event::Claimed), nothing.standing(Status::Done)), (0, 1));
}

/// PostgreSQL keeps what was counted with what was written, and adds it up later.
pub async fn counts_are_the_same_before_and_after_they_are_added_up(world: &World) {
    let policy = Policy { lease: world.tick, act_max: world.tick, ..Policy::default() };
    let claims = |from: usize| (from..from + 8).map(|n| claim(&format!("k{n}"), &policy).into()).collect();
    let granted: Vec<Order> = world
        .store
        .apply(claims(0))
        .await
        .into_iter()
        .map(|claimed| settle(&claimed.unwrap(), answered("once")))
        .collect();
    // Half of these are there, which this store does not know yet.
    for told in world.other.apply(claims(4)).await {
        told.unwrap();
    }
    for settled in world.store.apply(granted).await {
        settled.unwrap();
    }
    let seen = async || {
        let counts = counts(&world.store).await;
        let standing = (counts.standing(Status::Done), counts.standing(Status::Pending));
        (counts.events(Event::Claimed), counts.events(Event::Answered), standing)
    };
    assert_eq!(seen().await, (12, 8, (8, 4)));
    world.store.flush().await.unwrap();
    assert_eq!(seen().await, (12, 8, (8, 4)));
    world.pass(world.tick * 2).await;
    let awake = world.store.awake(100).await.unwrap();
    assert_eq!(awake.len(), 4, "what was claimed was looked at");
    assert_eq!(seen().await, (12, 8, (8, 4)));
    world.other.flush().await.unwrap();
    assert_eq!(seen().await, (12, 8, (8, 4)));
}

pub async fn doors_can_count_what_they_care_about(world: &World) {
    let now = world.store.now().await.unwrap();
    for _ in 0..2 {
        world.store.count(now, "saved tokens/gpt-4o", 21);
    }
    world.store.count(now, &"é".repeat(400), 1);
    let all = counts(&world.store).await;
    let long = "é".repeat(97);
    let found: Vec<_> = all.of_doors().collect();
    assert_eq!(found, [("saved tokens/gpt-4o", 42), (long.as_str(), 1)]);
}

pub async fn replays_waits_and_mismatches_are_counted(world: &World) {
    let claimed = world.tell(claim("k", &Policy::default())).await;
    for _ in 0..3 {
        world.tell(claim("k", &Policy::default())).await;
    }
    for _ in 0..2 {
        world.tell(claim("k", &Policy::default()).with_input(&Recipe::raw(), b"other")).await;
    }
    world.tell(settle(&claimed, answered("once"))).await;
    for _ in 0..5 {
        world.tell(claim("k", &Policy::default())).await;
    }
    world.store.flush().await.unwrap();
    world.store.flush().await.unwrap();
    let counts = counts(&world.other).await;
    assert_eq!((counts.replays(), counts.waits(), counts.mismatches()), (5, 3, 2));
}

pub async fn recoveries_are_counted_with_their_time(world: &World) {
    let policy = world.policy(Recovery::Lookup(world.lookup()));
    let claimed = world.tell(claim("k", &policy)).await;
    let doubtful = world.tell(settle(&claimed, Outcome::unknown("cut"))).await;
    world.pass(world.tick * 2).await;
    let asking = world.tell(about(&doubtful, "sweep", Action::Ask(Ask))).await;
    world.tell(looked_up(&asking, Finding::Found(Answer::of("there")))).await;
    let (n, mean) = counts(&world.other).await.recoveries();
    assert_eq!(n, 1);
    assert!(mean.unwrap() >= world.tick * 2, "{mean:?}");
}
