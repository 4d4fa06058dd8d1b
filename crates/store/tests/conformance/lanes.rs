//! Lanes: one entity is touched by one intent at a time, and never by an older version (S15).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use twicesafe_core::{
    Action, Answer, Backoff, Forget, IntentId, LaneName, OnMismatch, OnReview, Outcome, Policy, Recovery,
    Refusal, Resolution, Resolve, Status, Verdict, VersionMeans, WaitCause,
};
use twicesafe_store::{Applied, Order};

use crate::orders::{SCOPE, about, answered, claim, command, permit, settle};
use crate::world::World;

fn id(applied: &Applied) -> IntentId {
    applied.stored.as_ref().unwrap().id
}

/// The intent one waits for, if one waits for a lane.
fn blocker(applied: &Applied) -> Option<IntentId> {
    match &applied.verdict {
        Verdict::Wait(wait) => match wait.cause {
            WaitCause::Lane(by) => by,
            other => panic!("waits for {other:?}, not for a lane"),
        },
        Verdict::Proceed(_) => None,
        other => panic!("{other:?} was not expected"),
    }
}

async fn claim_in_lane(world: &World, key: &str, policy: &Policy, version: Option<i64>) -> Applied {
    world.tell(claim(key, policy).in_lane("contact:881", version)).await
}

pub async fn s15_one_at_a_time(world: &World) {
    let policy = Policy::default();
    let a = claim_in_lane(world, "a", &policy, None).await;
    let b = claim_in_lane(world, "b", &policy, None).await;
    assert_eq!(blocker(&b), Some(id(&a)));
    permit(&world.tell(claim("c", &policy).in_lane("contact:882", None)).await);
    permit(&world.tell(claim("d", &policy)).await);
    world.tell(settle(&a, answered("a"))).await;
    permit(&claim_in_lane(world, "b", &policy, None).await);
}

pub async fn s15_what_waits_is_sorted_by_version(world: &World) {
    let policy = Policy::default();
    let mut holder = claim_in_lane(world, "holder", &policy, Some(1)).await;
    let arrivals = [("v9", Some(9)), ("v5", Some(5)), ("none", None), ("v-3", Some(-3)), ("v5 too", Some(5))];
    for (key, version) in arrivals {
        assert_eq!(blocker(&claim_in_lane(world, key, &policy, version).await), Some(id(&holder)), "{key}");
    }
    let in_order = [("none", None), ("v-3", Some(-3)), ("v5", Some(5)), ("v5 too", Some(5)), ("v9", Some(9))];
    for (n, (key, version)) in in_order.into_iter().enumerate() {
        world.tell(settle(&holder, answered("done"))).await;
        for (later, version) in &in_order[n + 1..] {
            let told = claim_in_lane(world, later, &policy, *version).await;
            assert!(blocker(&told).is_some(), "{later} must not go before {key}");
        }
        holder = claim_in_lane(world, key, &policy, version).await;
        permit(&holder);
    }
}

pub async fn s15_a_place_lapses_unless_it_is_asked_for_again(world: &World) {
    let lease = world.tick * 8;
    let policy = Policy { lease, act_max: lease, ..Policy::default() };
    let holder = claim_in_lane(world, "holder", &Policy::default(), Some(1)).await;
    let gone = claim_in_lane(world, "gone", &policy, Some(2)).await;
    assert_eq!(blocker(&gone), Some(id(&holder)));
    let there = claim_in_lane(world, "there", &policy, Some(3)).await;
    assert_eq!(blocker(&there), Some(id(&holder)));
    world.pass(world.tick * 5).await;
    claim_in_lane(world, "there", &policy, Some(3)).await;
    world.tell(settle(&holder, answered("done"))).await;
    let last = claim_in_lane(world, "last", &policy, Some(4)).await;
    assert_eq!(blocker(&last), Some(id(&gone)), "its place is still kept");
    world.pass(world.tick * 3).await;
    let last = claim_in_lane(world, "last", &policy, Some(4)).await;
    assert_eq!(blocker(&last), Some(id(&there)), "the place of the one that went away has lapsed");
    permit(&claim_in_lane(world, "there", &policy, Some(3)).await);
}

pub async fn s15_an_older_snapshot_is_superseded(world: &World) {
    let policy = Policy { version_means: VersionMeans::Snapshot, ..Policy::default() };
    let newer = claim_in_lane(world, "newer", &policy, Some(5)).await;
    world.tell(settle(&newer, answered("v5"))).await;
    let older = claim_in_lane(world, "older", &policy, Some(4)).await;
    assert_eq!(older.verdict, Verdict::Refuse(Refusal::Superseded));
    assert_eq!(older.stored.unwrap().record.status, Status::Superseded);
    permit(&claim_in_lane(world, "equal", &policy, Some(5)).await);
}

pub async fn s15_equal_snapshots_take_turns_as_they_came(world: &World) {
    for (object, version) in [("contact:1", Some(5)), ("contact:2", None)] {
        let policy = Policy { version_means: VersionMeans::Snapshot, ..Policy::default() };
        let claim = async |key: &str, version| {
            world.tell(claim(&format!("{object} {key}"), &policy).in_lane(object, version)).await
        };
        let holder = claim("holder", Some(1)).await;
        let mut arrived = Vec::new();
        for (key, version) in
            [("older", Some(3)), ("first", version), ("second", version), ("third", version)]
        {
            let told = claim(key, version).await;
            assert_eq!(blocker(&told), Some(id(&holder)), "{key}");
            arrived.push(id(&told));
        }
        world.tell(settle(&holder, answered("v1"))).await;
        assert_eq!(blocker(&claim("third", version).await), Some(arrived[1]));
        assert_eq!(blocker(&claim("second", version).await), Some(arrived[1]));
        let first = claim("first", version).await;
        permit(&first);
        world.tell(settle(&first, answered("first"))).await;
        assert_eq!(blocker(&claim("third", version).await), Some(arrived[2]));
        // A newer one waits for none of them.
        permit(&claim("newer", Some(6)).await);
    }
}

pub async fn s15_a_late_one_is_marked(world: &World) {
    let policy = Policy::default();
    let newer = claim_in_lane(world, "newer", &policy, Some(5)).await;
    assert!(!permit(&newer).late);
    world.tell(settle(&newer, answered("v5"))).await;
    let older = claim_in_lane(world, "older", &policy, Some(4)).await;
    assert!(permit(&older).late);
    world.tell(settle(&older, answered("v4"))).await;
    assert!(permit(&claim_in_lane(world, "again", &policy, Some(4)).await).late, "v5 is still the newest");
}

pub async fn s15_doubt_holds_the_lane(world: &World) {
    let native = Recovery::NativeKey { retention: Recovery::NATIVE_RETENTION_UNKNOWN, lookup: None };
    let policy = world.policy(native);
    let a = claim_in_lane(world, "a", &policy, None).await;
    world.tell(settle(&a, Outcome::not_sent("no route"))).await;
    let b = claim_in_lane(world, "b", &policy, None).await;
    permit(&b);
    let doubtful = world.tell(settle(&b, Outcome::unknown("cut"))).await;
    assert_eq!(doubtful.stored.unwrap().record.status, Status::Retryable);
    let c = claim_in_lane(world, "c", &policy, None).await;
    assert_eq!(blocker(&c), Some(id(&b)), "backoff freed it, doubt does not");
    let b = claim_in_lane(world, "b", &policy, None).await;
    world.tell(settle(&b, answered("b"))).await;
    permit(&claim_in_lane(world, "c", &policy, None).await);
}

pub async fn s15_a_review_blocks_or_lets_pass(world: &World) {
    let policy = Policy::default();
    let a = claim_in_lane(world, "a", &policy, None).await;
    let review = world.tell(settle(&a, Outcome::unknown("cut"))).await;
    assert_eq!(blocker(&claim_in_lane(world, "b", &policy, None).await), Some(id(&a)));
    let resolution = Resolution::Happened(Answer::of("seen"));
    let resolve = Resolve { about: permit(&a).fence, resolution, reason: "looked".into() };
    world.tell(about(&review, "ann", Action::Resolve(resolve))).await;
    let b = claim_in_lane(world, "b", &policy, None).await;
    world.tell(settle(&b, answered("b"))).await;

    let passing = Policy { on_review: OnReview::Pass, ..policy };
    let c = claim_in_lane(world, "c", &passing, None).await;
    world.tell(settle(&c, Outcome::unknown("cut"))).await;
    permit(&claim_in_lane(world, "d", &passing, None).await);
}

/// Something that was sent in doubt may arrive after the answer. However long the lane is closed for that: forgetting the
/// intent meanwhile must not close it for good.
pub async fn s15_a_forgotten_intent_does_not_keep_its_lane(world: &World) {
    let policy = world.policy(Recovery::Repeat);
    let a = claim_in_lane(world, "a", &policy, None).await;
    world.tell(settle(&a, Outcome::unknown("cut"))).await;
    let mut a = claim_in_lane(world, "a", &policy, None).await;
    while !matches!(a.verdict, Verdict::Proceed(_)) {
        world.pass(world.tick).await;
        a = claim_in_lane(world, "a", &policy, None).await;
    }
    let done = world.tell(settle(&a, answered("a"))).await;
    let forgotten =
        world.tell(about(&done, "ann", Action::Forget(Forget { reason: "asked to".into() }))).await;
    assert!(forgotten.stored.unwrap().record.is_tombstone());
    world.pass(policy.in_flight_max + world.tick).await;
    for intent in world.other.awake(10).await.unwrap() {
        world.tell(Order::numbered(intent, command("sweep", Action::Expire))).await;
    }
    permit(&claim_in_lane(world, "b", &policy, None).await);
}

pub async fn s15_many_callers_of_one_lane_take_turns(world: &World) {
    let inside = Arc::new(AtomicUsize::new(0));
    let turns = (0..12).map(|n| {
        let store = if n % 2 == 0 { world.store.clone() } else { world.other.clone() };
        let inside = inside.clone();
        tokio::spawn(async move {
            loop {
                let order = claim(&format!("k{n}"), &Policy::default()).in_lane("lane", None);
                let told = store.apply_one(order.into()).await.unwrap();
                if let Verdict::Proceed(_) = told.verdict {
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "somebody else is there");
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    store.apply_one(settle(&told, answered("done"))).await.unwrap();
                    return;
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        })
    });
    let turns = futures_util::future::join_all(turns);
    let ended = tokio::time::timeout(Duration::from_secs(30), turns).await.expect("everybody gets a turn");
    ended.into_iter().for_each(Result::unwrap);
}

pub async fn s15_what_was_accepted_waits_in_order_and_keeps_its_place(world: &World) {
    let policy = Policy {
        unattended: true,
        on_mismatch: OnMismatch::Note,
        backoff: Backoff { base: Duration::ZERO, cap: Duration::ZERO },
        ..world.policy(Recovery::Repeat)
    };
    let arrive = async |key: &str, version| {
        world.tell(claim(key, &policy).in_lane("in:shop:1", Some(version)).accepted(Duration::ZERO)).await
    };
    let lane = LaneName::new("in:shop:1").unwrap();
    assert_eq!(world.other.first_waiting(&lane).await.unwrap(), None);
    let second = arrive("v2", 2).await;
    let first = arrive("v1", 1).await;
    arrive("v3", 3).await;
    assert_eq!(world.other.first_waiting(&lane).await.unwrap(), Some(id(&first)));
    let again =
        async |key: &str, version| world.tell(claim(key, &policy).in_lane("in:shop:1", Some(version))).await;
    assert_eq!(blocker(&again("v2", 2).await), Some(id(&first)));
    let attempt = again("v1", 1).await;
    assert_eq!(world.other.first_waiting(&lane).await.unwrap(), Some(id(&second)));
    world.tell(settle(&attempt, Outcome::not_sent("refused"))).await;
    assert_eq!(world.other.first_waiting(&lane).await.unwrap(), Some(id(&first)));
    assert_eq!(
        blocker(&again("v2", 2).await),
        Some(id(&first)),
        "it waits for its next attempt, and keeps its place"
    );
    let attempt = again("v1", 1).await;
    world.tell(settle(&attempt, answered("a"))).await;
    permit(&again("v2", 2).await);
}

pub async fn s31_the_agenda_is_read_page_by_page(world: &World) {
    let policy = world.policy(Recovery::Repeat);
    let mut accepted = Vec::new();
    for n in 0..5 {
        let request = claim(&format!("k{n}"), &policy).with_request(b"what arrived").accepted(world.tick * n);
        accepted.push(id(&world.tell(request).await));
    }
    world.pass(world.tick * 4).await;
    let mut after = None;
    let mut seen = Vec::new();
    loop {
        let page = world.other.due(SCOPE, after, 2).await.unwrap();
        seen.extend(page.iter().map(|line| line.at.1));
        after = page.last().map(|line| line.at);
        if page.len() < 2 {
            break;
        }
    }
    assert_eq!(seen, accepted);
    assert_eq!(world.other.due("default/test/shop/other", None, 2).await.unwrap(), []);
    let scopes = async |after: &str| world.other.scopes_with_due(after, 9).await.unwrap();
    let first = world.other.due(SCOPE, None, 1).await.unwrap()[0].at.0;
    assert_eq!(scopes("").await, [(SCOPE.to_owned(), first)]);
    assert_eq!(scopes(SCOPE).await, []);
    assert_eq!(world.other.request(accepted[0]).await.unwrap().unwrap(), "what arrived");
    let claimed = world.tell(claim("k0", &policy)).await;
    world.tell(settle(&claimed, answered("a"))).await;
    assert_eq!(world.other.due(SCOPE, None, 9).await.unwrap().len(), 4);
}
