//! Ledger time (S10), where the machine's clock makes it.

use std::time::Duration;

use twicesafe_core::{Action, Recovery, Renew, Status, Verdict};

use crate::orders::{about, answered, claim, permit, settle};
use crate::world::World;

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

pub async fn s10_a_jump_suspends_expiry(world: &World) {
    let clock = world.clock.as_ref().unwrap();
    let policy = world.policy(Recovery::Person);
    let alive = world.tell(claim("alive", &policy)).await;
    let dead = world.tell(claim("dead", &policy)).await;
    clock.jump(HOUR_MILLIS);
    for key in ["alive", "dead"] {
        let told = world.tell(claim(key, &policy)).await;
        assert!(matches!(told.verdict, Verdict::Wait(_)), "{key}: {:?}", told.verdict);
    }
    let renewed = world
        .tell(about(&alive, "caller", Action::Renew(Renew { fence: permit(&alive).fence, holder: None })))
        .await;
    assert!(matches!(renewed.verdict, Verdict::Proceed(_) | Verdict::Refuse(_)));
    world.pass(policy.lease).await;
    let expired = world.tell(about(&dead, "sweep", Action::Expire)).await;
    assert_eq!(expired.stored.unwrap().record.status, Status::Review, "one lease later time counts again");
}
