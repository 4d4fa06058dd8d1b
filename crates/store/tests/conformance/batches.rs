//! Commands that arrive together share a transaction, and nothing else.

use twicesafe_core::{
    Action, Actor, Answer, Code, Fence, Outcome, PermitSecret, Policy, Report, Salt, Settle, Status, Verdict,
    WaitCause,
};
use twicesafe_store::{Applied, Order, QUEUE_MAX};

use crate::orders::{answered, claim, name, on, permit, settle};
use crate::world::World;

async fn apply(world: &World, orders: Vec<Order>) -> Vec<Applied> {
    world.store.apply(orders).await.into_iter().map(Result::unwrap).collect()
}

fn settle_by_number(key: &str, fence: u64, outcome: Outcome) -> Order {
    // Orders of these tests have one salt.
    let secret = PermitSecret::of(Salt([7; 16]), Fence::new(fence), 1, &Actor::new("caller").unwrap());
    let settle = Settle { fence: Fence::new(fence), generation: 1, secret, report: Report::Act(outcome) };
    on(key, "caller", Action::Settle(settle))
}

/// What was told, in one word.
fn word(applied: &Applied) -> &'static str {
    match &applied.verdict {
        Verdict::Proceed(_) => "proceed",
        Verdict::Replay(_) => "replay",
        Verdict::Wait(_) => "wait",
        Verdict::Noted(noted) => noted.status.as_str(),
        other => panic!("{other:?} was not expected"),
    }
}

pub async fn commands_about_one_intent_keep_their_order(world: &World) {
    let policy = world.policy(twicesafe_core::Recovery::Person);
    let keys = ["a", "b", "c"];
    let steps: [&dyn Fn(&str) -> Order; 7] = [
        &|key| claim(key, &policy).into(),
        &|key| claim(key, &policy).into(),
        &|key| settle_by_number(key, 1, Outcome::not_sent("no route")),
        &|key| claim(key, &policy).into(),
        &|key| settle_by_number(key, 1, Outcome::not_sent("the same again")),
        &|key| settle_by_number(key, 2, answered("once")),
        &|key| claim(key, &policy).into(),
    ];
    let orders = steps.iter().flat_map(|step| keys.map(step)).collect();
    let told = apply(world, orders).await;
    for (n, key) in keys.iter().enumerate() {
        let words: Vec<&str> = told.iter().skip(n).step_by(keys.len()).map(word).collect();
        assert_eq!(words, ["proceed", "wait", "retryable", "proceed", "pending", "done", "replay"], "{key}");
    }

    // Also of an intent that was known before.
    let claimed = world.tell(claim("known", &policy)).await;
    let told = apply(world, vec![settle(&claimed, answered("once")), claim("known", &policy).into()]).await;
    assert_eq!(told.iter().map(word).collect::<Vec<_>>(), ["done", "replay"]);
}

pub async fn a_batch_may_mention_an_intent_many_times(world: &World) {
    let orders = (0..40).map(|_| claim("k", &Policy::default()).in_lane("lane", None).into()).collect();
    let told = apply(world, orders).await;
    permit(&told[0]);
    let pending = |applied: &Applied| matches!(&applied.verdict, Verdict::Wait(wait) if wait.cause == WaitCause::Pending);
    assert!(told[1..].iter().all(pending));
}

pub async fn s12_the_same_batch_again_changes_nothing(world: &World) {
    let mut orders = Vec::new();
    for n in 0..50 {
        let key = format!("k{n}");
        let lane = format!("lane {}", n % 50);
        orders.push(claim(&key, &Policy::default()).in_lane(&lane, Some(n)).into());
        orders.push(settle_by_number(&key, 1, answered("once")));
    }
    let (here, there) = tokio::join!(world.store.apply(orders.clone()), world.other.apply(orders.clone()));
    assert!(here.iter().chain(&there).all(Result::is_ok));
    apply(world, orders).await;
    for n in 0..50 {
        let stored = world.other.find(&name(&format!("k{n}"))).await.unwrap().unwrap();
        assert_eq!((stored.record.status, stored.record.fence.number()), (Status::Done, 1));
        assert_eq!(world.other.journal(stored.id).await.unwrap().len(), 2, "one row a transition");
    }
}

pub async fn a_thousand_at_once_are_not_too_many(world: &World) {
    let n = 1000;
    assert!(n < QUEUE_MAX);
    let told =
        apply(world, (0..n).map(|n| claim(&format!("k{n}"), &Policy::default()).into()).collect()).await;
    let orders = told.iter().map(|claimed| settle(claimed, answered("once"))).collect();
    let settled = apply(world, orders).await;
    assert!(settled.iter().all(|applied| word(applied) == "done"));
}

/// PostgreSQL cannot keep the character NUL in text. Whoever cannot keep it must say so, and let the others pass.
pub async fn a_word_that_cannot_be_kept_does_not_take_its_batch_with_it(world: &World) {
    let mut orders = Vec::new();
    for (key, head) in [("a", "yes"), ("b", "y\0es"), ("c", "yes")] {
        let claimed = world.tell(claim(key, &Policy::default())).await;
        let answer = Answer { head: head.into(), ..Answer::default() };
        orders.push(settle(&claimed, Outcome::Answered(answer)));
    }
    let told = world.store.apply(orders).await;
    assert_eq!(word(told[0].as_ref().unwrap()), "done");
    assert_eq!(word(told[2].as_ref().unwrap()), "done");
    let b = world.other.find(&name("b")).await.unwrap().unwrap();
    match &told[1] {
        Ok(_) => assert_eq!(b.record.status, Status::Done),
        Err(error) => {
            assert_eq!((error.code(), b.record.status), (Code::ValueRefused, Status::Pending));
        }
    }
}

/// A sweep that finds nothing applies nothing, every second, for ever.
pub async fn nothing_at_all_is_a_batch_too(world: &World) {
    for _ in 0..20 {
        assert!(world.store.apply(Vec::new()).await.is_empty());
    }
    permit(&world.tell(claim("after nothing", &Policy::default())).await);
}
