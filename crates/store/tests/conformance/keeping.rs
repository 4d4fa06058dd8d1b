//! How long things are kept, and what is left of them (S28, S40).

use twicesafe_core::{
    Action, Answer, Body, Forget, IntentId, Outcome, Policy, Purge, Recovery, Refusal, Reset, Status,
    Timestamp, Verdict,
};
use twicesafe_store::{Applied, Filter, Order};

use crate::orders::{SCOPE, about, answered, claim, command, name, permit, settle};
use crate::world::World;

/// Answers are kept for two ticks after settling, tombstones for two more.
fn short_lived(world: &World) -> Policy {
    Policy {
        lease: world.tick,
        act_max: world.tick,
        retention: world.tick * 2,
        tombstone: world.tick * 2,
        ..Policy::default()
    }
}

/// Whoever remembers it must find it by its name: it has another number now, and an answer that is not sent along unasked.
pub async fn s28_what_went_and_came_back_is_another_one(world: &World) {
    let policy = Policy {
        retention: std::time::Duration::ZERO,
        tombstone: std::time::Duration::ZERO,
        ..short_lived(world)
    };
    let long = Answer::of(vec![b'x'; 9000]);
    let claimed = world.tell(claim("k", &policy)).await;
    let first = world.tell(settle(&claimed, answered("short"))).await.stored.unwrap().id;
    let replayed = world.tell(claim("k", &policy)).await;
    assert!(matches!(replayed.verdict, Verdict::Replay(_)), "{:?}", replayed.verdict);
    world.pass(std::time::Duration::from_millis(10)).await;
    for _ in 0..2 {
        let action = Action::Purge(Purge { work_is_open: false });
        world.other.apply_one(Order::numbered(first, command("sweep", action))).await.unwrap();
    }
    assert!(world.other.find_id(first).await.unwrap().is_none());
    let forever = Policy { retention: world.tick * 100, ..policy.clone() };
    let anew = world.other.apply_one(claim("k", &forever).into()).await.unwrap();
    world.other.apply_one(settle(&anew, Outcome::Answered(long.clone()))).await.unwrap();
    let told = world.tell(claim("k", &policy)).await;
    let Verdict::Replay(replay) = told.verdict else { panic!("{:?}", told.verdict) };
    assert_eq!(replay.answer, Some(long));
}

async fn purge(world: &World, id: IntentId) -> Applied {
    world.tell(Order::numbered(id, command("sweep", Action::Purge(Purge { work_is_open: false })))).await
}

fn changed(applied: &Applied) -> bool {
    matches!(applied.verdict, Verdict::Noted(noted) if noted.changed)
}

pub async fn s28_answers_then_tombstones_go(world: &World) {
    let policy = short_lived(world);
    let claimed = world.tell(claim("k", &policy).with_request(b"POST")).await;
    let id = claimed.stored.as_ref().unwrap().id;
    let answer = Answer { head: "200".into(), ..Answer::of("body").with_external_id("ch_1") };
    world.tell(settle(&claimed, Outcome::Answered(answer))).await;
    let open = world.tell(claim("open", &policy)).await;
    assert!(!changed(&purge(world, id).await), "too early");
    assert_eq!(world.other.kept_too_long(10).await.unwrap(), []);

    world.pass(world.tick * 3).await;
    let found = world.other.kept_too_long(10).await.unwrap();
    assert_eq!(found, [id, open.stored.as_ref().unwrap().id]);
    assert_eq!(world.other.kept_too_long(1).await.unwrap(), [id]);
    assert!(!changed(&purge(world, found[1]).await), "open statuses never expire silently");
    let buried = purge(world, id).await;
    let record = &buried.stored.as_ref().unwrap().record;
    assert!(record.is_tombstone() && record.name.is_some() && record.fingerprint.is_some());
    let left = record.answer.as_ref().unwrap();
    assert_eq!(left.external_id.as_ref().unwrap().as_str(), "ch_1");
    assert_eq!((&*left.head, &left.body), ("", &Body::default()));
    assert_eq!(world.other.dossier(&name("k")).await.unwrap().unwrap().request, None);
    let told = world.tell(claim("k", &policy)).await;
    assert_eq!(told.verdict, Verdict::Refuse(Refusal::Purged));

    world.pass(world.tick * 2).await;
    assert!(world.other.kept_too_long(10).await.unwrap().contains(&id));
    let gone = purge(world, id).await;
    assert!(changed(&gone) && gone.stored.is_none());
    assert!(world.other.find_id(id).await.unwrap().is_none());
    assert!(world.other.find(&name("k")).await.unwrap().is_none());
    let fresh = world.tell(claim("k", &policy)).await;
    assert_eq!(permit(&fresh).fence.number(), 1, "after its tombstone a key is new");
    assert_ne!(fresh.stored.unwrap().id, id, "but numbers are never used again");
    let belief = about(&buried, "ann", Action::Forget(Forget { reason: "asked to".into() }));
    assert_eq!(world.tell(belief).await.verdict, Verdict::Refuse(Refusal::NoSuchIntent));
}

pub async fn s28_nothing_goes_while_its_work_is_open(world: &World) {
    let policy = short_lived(world);
    let first = world.tell(claim("first", &policy).in_work("order 10", "charge")).await;
    world.tell(settle(&first, answered("charged"))).await;
    let second = world.tell(claim("second", &policy).in_work("order 10", "mail")).await;
    let (first, id) = (first.stored.unwrap().id, second.stored.as_ref().unwrap().id);
    let other = world.tell(claim("other", &policy).in_work("order 1", "charge")).await;
    world.tell(settle(&other, answered("charged"))).await;
    world.pass(world.tick * 3).await;
    assert!(!changed(&purge(world, first).await));
    assert!(changed(&purge(world, other.stored.unwrap().id).await), "its own work is not open");
    world.tell(settle(&second, answered("mailed"))).await;
    assert!(changed(&purge(world, first).await));
    assert!(!changed(&purge(world, id).await), "its own time is not over");
}

pub async fn s28_what_cannot_go_yet_is_looked_at_later(world: &World) {
    let policy = short_lived(world);
    let open = world.tell(claim("open", &policy)).await.stored.unwrap().id;
    world.pass(world.tick * 3).await;
    assert_eq!(world.other.kept_too_long(10).await.unwrap(), [open]);
    let later = world.store.now().await.unwrap() + world.tick * 2;
    world.store.keep_until(vec![(open, later), (IntentId::new(4711), later)]).await.unwrap();
    assert_eq!(world.other.kept_too_long(10).await.unwrap(), []);
    world.pass(world.tick * 2).await;
    assert_eq!(world.other.kept_too_long(10).await.unwrap(), [open]);
    world.store.keep_until(vec![(open, Timestamp::NEVER)]).await.unwrap();
    assert_eq!(world.other.kept_too_long(10).await.unwrap(), []);
}

pub async fn s40_what_is_forgotten_still_deduplicates(world: &World) {
    let policy = world.policy(Recovery::Person);
    let forget = || Action::Forget(Forget { reason: "asked to".into() });
    let claimed = world.tell(claim("k", &policy).with_request(b"POST").in_work("w", "s")).await;
    let told = world.tell(about(&claimed, "ann", forget())).await;
    assert_eq!(told.verdict, Verdict::Refuse(Refusal::WrongStatus(Status::Pending)));
    let done = world.tell(settle(&claimed, answered("secret"))).await;
    let forgotten = world.tell(about(&done, "ann", forget())).await;
    let record = &forgotten.stored.as_ref().unwrap().record;
    assert!(record.name.is_none() && record.fingerprint.is_none() && record.last_settle.is_none());
    assert!(!changed(&world.tell(about(&done, "ann", forget())).await));
    let dossier = world.other.dossier(&name("k")).await.unwrap().expect("the hash still finds it");
    assert_eq!((dossier.request, dossier.earlier.len()), (None, 0));
    assert_eq!(world.tell(claim("k", &policy)).await.verdict, Verdict::Refuse(Refusal::Purged));
    let filter = Filter { scope: Some(SCOPE.into()), ..Filter::default() };
    assert!(world.other.list(&filter, None, 10).await.unwrap().intents.is_empty());
}

pub async fn s40_what_is_forgotten_can_start_afresh(world: &World) {
    let policy = Policy::default();
    let claimed = world.tell(claim("k", &policy).with_request(b"first")).await;
    let done = world.tell(settle(&claimed, answered("secret"))).await;
    let forgotten =
        world.tell(about(&done, "ann", Action::Forget(Forget { reason: "asked to".into() }))).await;
    let reset = Action::Reset(Reset { generation: 1, reason: "back again".into() });
    let fresh = world.tell(about(&forgotten, "ann", reset)).await;
    assert!(fresh.stored.unwrap().record.name.is_none(), "nobody has said the name again");
    let claimed = world.tell(claim("k", &policy).with_request(b"second")).await;
    assert_eq!(permit(&claimed).generation, 2);
    assert_eq!(claimed.stored.as_ref().unwrap().record.name, Some(name("k")));
    let dossier = world.other.dossier(&name("k")).await.unwrap().unwrap();
    assert_eq!(dossier.request.as_deref(), Some(&b"second"[..]));
    world.tell(settle(&claimed, answered("new"))).await;
    let filter = Filter { scope: Some(SCOPE.into()), ..Filter::default() };
    assert_eq!(world.other.list(&filter, None, 10).await.unwrap().intents.len(), 1);
}
