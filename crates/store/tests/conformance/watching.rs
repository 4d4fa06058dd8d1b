//! Waiting for an intent to change (S8).

use std::time::Duration;

use futures_util::future::join_all;
use twicesafe_core::Policy;
use twicesafe_store::{Applied, Store};

use crate::orders::{answered, claim, settle};
use crate::world::World;

/// Waits for another version than the one that came with `applied`.
async fn changed(store: &Store, applied: &Applied) {
    let stored = applied.stored.as_ref().unwrap();
    let waiting = store.changed(stored.id, stored.version);
    tokio::time::timeout(Duration::from_secs(10), waiting).await.expect("the change is noticed");
}

pub async fn s8_a_change_through_another_store_is_noticed(world: &World) {
    let claimed = world.tell(claim("k", &Policy::default())).await;
    let settling = async {
        tokio::time::sleep(Duration::from_millis(30)).await;
        world.store.apply_one(settle(&claimed, answered("done"))).await.unwrap()
    };
    tokio::join!(changed(&world.other, &claimed), changed(&world.other, &claimed), settling);
}

pub async fn s8_a_change_through_the_same_store_is_noticed(world: &World) {
    let claimed = world.tell(claim("k", &Policy::default())).await;
    let settling = async {
        tokio::task::yield_now().await;
        world.store.apply_one(settle(&claimed, answered("done"))).await.unwrap()
    };
    tokio::join!(changed(&world.store, &claimed), settling);
}

pub async fn s8_a_change_whose_caller_went_away_is_noticed(world: &World) {
    let claimed = world.tell(claim("k", &Policy::default())).await;
    let settling = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        // It is asked for, and nobody waits for the answer.
        let asked = world.store.apply_one(settle(&claimed, answered("done")));
        let _ = tokio::time::timeout(Duration::ZERO, asked).await;
    };
    tokio::join!(changed(&world.store, &claimed), settling);
}

pub async fn s8_a_change_that_came_before_the_wait_is_noticed(world: &World) {
    let claimed = world.tell(claim("k", &Policy::default())).await;
    let quiet = world.tell(claim("quiet", &Policy::default())).await;
    // Somebody who waits already, for something that does not change, must not keep others from noticing.
    let (store, stored) = (world.store.clone(), quiet.stored.unwrap());
    let waiting = tokio::spawn(async move { store.changed(stored.id, stored.version).await });
    world.tell(settle(&claimed, answered("done"))).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    changed(&world.store, &claimed).await;
    changed(&world.other, &claimed).await;
    assert!(!waiting.is_finished());
    waiting.abort();
}

pub async fn s8_many_wait_for_many(world: &World) {
    let mut claimed = Vec::new();
    for n in 0..20 {
        claimed.push(world.tell(claim(&format!("k{n}"), &Policy::default())).await);
    }
    let waiting = join_all(claimed.iter().flat_map(|applied| {
        [changed(&world.store, applied), changed(&world.other, applied), changed(&world.other, applied)]
    }));
    let settling =
        world.store.apply(claimed.iter().map(|applied| settle(applied, answered("done"))).collect());
    tokio::join!(waiting, settling);
}
