//! Questions people ask: lists, pages, scopes, works.

use twicesafe_core::{Action, Answer, Name, Outcome, Policy, Recovery, Reject, Status, Timestamp};
use twicesafe_store::{Cursor, Filter, SCATTERED_MAX, Stored};

use super::audit::everything;
use crate::orders::{about, claim, name, permit, settle};
use crate::world::World;

const SCOPES: [&str; 4] =
    ["default/live/stripe/charge", "default/live/mail", "default/live.old/mail", "other/mail"];

/// Intents of many kinds, in several scopes and works.
async fn fill(world: &World) -> Vec<Stored> {
    let policy = world.policy(Recovery::Person);
    let with_approval = Policy { approval: Some(Default::default()), ..policy.clone() };
    for n in 0..36 {
        let scope = SCOPES[n % SCOPES.len()];
        let policy = if n % 9 == 0 { &with_approval } else { &policy };
        let policy = Policy {
            lease: policy.lease * (1 + n as u32 % 3) * 20,
            act_max: policy.lease * 200,
            ..policy.clone()
        };
        policy.check().unwrap();
        let mut claiming = claim("k", &policy).with_name(Name::new(scope, &format!("k{n:02}%_x")).unwrap());
        if n % 3 == 0 {
            claiming = claiming.in_work(&format!("work {}", n % 2), &format!("step {n}"));
        }
        let claimed = world.tell(claiming).await;
        let answer = Answer::default().with_external_id(&format!("ch_{n}"));
        match n % 9 {
            0 if n % 2 == 0 => {
                let reject = Reject { generation: 1, reason: "no".into() };
                world.tell(about(&claimed, "ann", Action::Reject(reject))).await;
            }
            1 | 2 => drop(world.tell(settle(&claimed, Outcome::Answered(answer))).await),
            3 => drop(world.tell(settle(&claimed, Outcome::refused(answer))).await),
            4 => drop(world.tell(settle(&claimed, Outcome::unknown("cut"))).await),
            5 => drop(world.tell(settle(&claimed, Outcome::not_sent("no route"))).await),
            _ => {}
        }
        if n % 6 == 5 {
            world.pass(world.tick / 10).await;
        }
    }
    let mut all = everything(&world.other, &Filter::default(), 1000).await;
    assert_eq!(all.len(), 36);
    assert!(all.is_sorted_by_key(|stored| std::cmp::Reverse(stored.id)), "newest first");
    all.sort_by_key(|stored| stored.id);
    all
}

/// Checks a filter against what it means.
async fn check(world: &World, all: &[Stored], filter: Filter, meaning: impl Fn(&Stored) -> bool) {
    for page in [1, 3, 1000] {
        let mut found = everything(&world.other, &filter, page).await;
        found.sort_by_key(|stored| stored.id);
        let expected: Vec<_> = all.iter().filter(|stored| meaning(stored)).cloned().collect();
        assert_eq!(found, expected, "{filter:?}, {page} a page");
    }
}

fn scope(stored: &Stored) -> &str {
    stored.record.name.as_ref().unwrap().scope.as_str()
}

fn work(stored: &Stored) -> Option<&str> {
    stored.record.step.as_ref().map(|step| step.work())
}

pub async fn every_filter_finds_its_own(world: &World) {
    let all = &fill(world).await;
    let none = Filter::default;
    for one in SCOPES.into_iter().chain(["default", "nothing/here"]) {
        let filter = Filter { scope: Some(one.into()), ..none() };
        check(world, all, filter, |stored| scope(stored) == one).await;
    }
    for prefix in ["default/", "default/live/", "default/live.old/", "nothing/"] {
        let filter = Filter { scope: Some(prefix.into()), ..none() };
        check(world, all, filter, |stored| scope(stored).starts_with(prefix)).await;
    }
    for status in Status::ALL {
        let filter = Filter { status: Some(status), ..none() };
        check(world, all, filter, |stored| stored.record.status == status).await;
        let filter = Filter { status: Some(status), scope: Some("default/".into()), ..none() };
        check(world, all, filter, |stored| {
            stored.record.status == status && scope(stored).starts_with("default/")
        })
        .await;
    }
    for one in ["work 0", "work 1", "work 2"] {
        let filter = Filter { work: Some(one.into()), ..none() };
        check(world, all, filter, |stored| work(stored) == Some(one)).await;
        let filter = Filter { work: Some(one.into()), status: Some(Status::Done), ..none() };
        check(world, all, filter, |stored| work(stored) == Some(one) && stored.record.status == Status::Done)
            .await;
    }
    for text in ["k0", "%_", "_x", "1%", "%", "ch_1", "CH_1", "absent"] {
        let filter = Filter { containing: Some(text.into()), ..none() };
        check(world, all, filter, |stored| {
            let id = stored.record.answer.as_ref().and_then(|answer| answer.external_id.as_ref());
            let key = stored.record.name.as_ref().unwrap().key.as_str();
            key.contains(text) || id.is_some_and(|id| id.as_str().contains(text))
        })
        .await;
    }
    let (from, before) = (all[6].record.created_at, all[30].record.created_at);
    assert!(all[0].record.created_at < from && from < before);
    let filter = Filter { created_from: Some(from), created_before: Some(before), ..none() };
    check(world, all, filter, |stored| (from..before).contains(&stored.record.created_at)).await;
    let filter = Filter { created_from: Some(Timestamp::NEVER), ..none() };
    check(world, all, filter, |_| false).await;
}

pub async fn what_nothing_can_be_called_finds_nothing(world: &World) {
    fill(world).await;
    let scope = |text: &str| Filter { scope: Some(text.to_owned()), ..Filter::default() };
    let work = Filter { work: Some("work\0".to_owned()), ..Filter::default() };
    for filter in [scope("\0"), scope("default\0/"), work] {
        assert!(world.store.list(&filter, None, 10).await.unwrap().intents.is_empty(), "{filter:?}");
    }
}

pub async fn pages_join_without_gap_or_overlap(world: &World) {
    let mut all = fill(world).await;
    all.reverse();
    let mut seen = Vec::new();
    let mut after = None;
    loop {
        let page = world.other.list(&Filter::default(), after, 7).await.unwrap();
        assert!(page.intents.len() <= 7);
        seen.extend(page.intents);
        let Some(next) = page.next else { break };
        assert_eq!(Cursor::from_text(&next.to_text()), Some(next), "a cursor can be handed out");
        after = Some(next);
    }
    assert_eq!(seen, all);
    assert_eq!(Cursor::from_text("nonsense"), None);
}

pub async fn lists_by_time_join_too(world: &World) {
    fill(world).await;
    let filter = Filter { status: Some(Status::Pending), ..Filter::default() };
    let whole = everything(&world.other, &filter, 1000).await;
    assert!(whole.len() > 5);
    assert!(whole.is_sorted_by_key(|stored| std::cmp::Reverse((stored.record.wake_at(), stored.id))));
    for page in 1..5 {
        assert_eq!(everything(&world.other, &filter, page).await, whole, "{page} a page");
    }
}

pub async fn a_filter_that_matches_little_reads_no_more_than_people_wait_for(world: &World) {
    let claims = (0..SCATTERED_MAX + 1500).map(|n| {
        let name = Name::new(["a/b", "a/c"][n % 2], &format!("k{n}")).unwrap();
        claim("k", &Policy::default()).with_name(name).into()
    });
    for claimed in world.store.apply(claims.collect()).await {
        claimed.unwrap();
    }
    for scope in ["a/", "a/b"] {
        // The oldest of all.
        let filter = Filter { scope: Some(scope.into()), containing: Some("k0".into()), ..Filter::default() };
        let found = everything(&world.other, &filter, 10).await;
        assert_eq!(found.len(), 1, "{scope}");
        let page = world.other.list(&filter, None, 10).await.unwrap();
        assert_eq!((page.intents.is_empty(), page.next.is_some()), (scope == "a/", scope == "a/"), "{scope}");
    }
}

pub async fn scopes_are_found_by_prefix(world: &World) {
    let scopes = ["a", "a-b", "a.b", "a/b", "a/b/c", "a0", "aB", "ab", "b/a", "B/a"];
    for scope in scopes {
        let name = Name::new(scope, "k").unwrap();
        permit(&world.tell(claim("k", &Policy::default()).with_name(name.clone())).await);
        let second = Name::new(scope, "another").unwrap();
        permit(&world.tell(claim("k", &Policy::default()).with_name(second)).await);
    }
    for prefix in ["", "a", "a/", "a/b", "a.", "A", "b/", "B", "z", "a_", "a%"] {
        let mut expected: Vec<&str> = scopes.into_iter().filter(|scope| scope.starts_with(prefix)).collect();
        expected.sort_unstable();
        assert_eq!(world.other.scopes(prefix).await.unwrap(), expected, "{prefix:?}");
    }
}

pub async fn the_steps_of_a_work_are_listed_oldest_first(world: &World) {
    for n in 0..5 {
        world
            .tell(claim(&format!("k{n}"), &Policy::default()).in_work("order 7", &format!("step {n}")))
            .await;
        world.tell(claim(&format!("o{n}"), &Policy::default()).in_work("order 77", "step")).await;
    }
    let steps = world.other.work("order 7").await.unwrap();
    let names: Vec<_> = steps.into_iter().map(|stored| stored.record.name.unwrap()).collect();
    assert_eq!(names, [0, 1, 2, 3, 4].map(|n| name(&format!("k{n}"))));
    assert!(world.other.work("order").await.unwrap().is_empty());
}
