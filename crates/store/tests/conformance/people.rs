//! People: approvals, reviews, resets (S12, S26, S29, S30, S32).

use futures_util::future::join_all;
use twicesafe_core::{
    Action, Alert, Answer, ApprovalRule, Approve, Fence, Fingerprint, MarkUndone, Outcome, Policy, Recipe,
    Recovery, Refusal, Reject, Replay, Reset, Resolution, Resolve, Source, Status, Verdict,
};
use twicesafe_store::{Applied, Order};

use crate::orders::{about, answered, claim, on, permit, settle};
use crate::world::World;

fn status(applied: &Applied) -> Status {
    applied.stored.as_ref().unwrap().record.status
}

fn changed(applied: &Applied) -> bool {
    matches!(applied.verdict, Verdict::Noted(noted) if noted.changed)
}

fn approve(generation: u32) -> Action {
    Action::Approve(Approve { generation, fingerprint: None })
}

fn reject() -> Action {
    Action::Reject(Reject { generation: 1, reason: "too much".into() })
}

fn resolve(fence: u64, resolution: Resolution) -> Action {
    Action::Resolve(Resolve { about: Fence::new(fence), resolution, reason: "looked".into() })
}

fn with_approval(policy: Policy) -> Policy {
    Policy { approval: Some(ApprovalRule::default()), ..policy }
}

pub async fn s30_nothing_goes_before_a_person_said_yes(world: &World) {
    let policy = with_approval(world.policy(Recovery::Person));
    let held = world.tell(claim("k", &policy).by("asker")).await;
    assert_eq!((status(&held), &*held.alerts), (Status::Held, &[Alert::Held][..]));
    let told = world.tell(claim("k", &policy)).await;
    assert!(matches!(told.verdict, Verdict::Hold(_)) && told.alerts.is_empty());
    let own = world.tell(about(&held, "asker", approve(1))).await;
    assert_eq!(own.verdict, Verdict::Refuse(Refusal::OwnRequest));
    assert_eq!(world.tell(about(&held, "ann", approve(2))).await.verdict, Verdict::Refuse(Refusal::Moved));
    let other_input = Some(Fingerprint::of(&Recipe::raw(), b"other"));
    let seen_otherwise = Action::Approve(Approve { generation: 1, fingerprint: other_input });
    assert_eq!(
        world.tell(about(&held, "ann", seen_otherwise)).await.verdict,
        Verdict::Refuse(Refusal::Moved)
    );

    assert_eq!(status(&world.tell(about(&held, "ann", approve(1))).await), Status::Ready);
    let claimed = world.tell(claim("k", &policy)).await;
    world.tell(settle(&claimed, Outcome::not_sent("no route"))).await;
    let again = world.tell(claim("k", &policy)).await;
    assert_eq!(permit(&again).attempt, 2, "one yes is good for all attempts of its generation");
    world.tell(settle(&again, Outcome::refused(Answer::default()))).await;
    let next = world.tell(claim("k", &policy)).await;
    assert!(matches!(next.verdict, Verdict::Hold(_)), "but not for the next generation");
}

pub async fn s30_nobody_said_yes_in_time(world: &World) {
    let rule = ApprovalRule { expires_after: world.tick * 3, ..ApprovalRule::default() };
    let policy = Policy { approval: Some(rule), ..world.policy(Recovery::Person) };
    let held = world.tell(claim("k", &policy)).await;
    assert_eq!(world.other.awake(10).await.unwrap(), []);
    world.pass(world.tick * 3).await;
    assert_eq!(world.other.awake(10).await.unwrap(), [held.stored.as_ref().unwrap().id]);
    let expired = world.tell(about(&held, "sweep", Action::Expire)).await;
    assert_eq!((status(&expired), &*expired.alerts), (Status::Rejected, &[Alert::ApprovalExpired][..]));
    let told = world.tell(claim("k", &policy)).await;
    assert_eq!(told.verdict, Verdict::Refuse(Refusal::Rejected));
    let late = world.tell(about(&held, "ann", approve(1))).await;
    assert_eq!(late.verdict, Verdict::Refuse(Refusal::WrongStatus(Status::Rejected)));
}

pub async fn s30_the_first_decision_stands(world: &World) {
    let policy = with_approval(Policy::default());
    let held = world.tell(claim("k", &policy)).await;
    world.tell(about(&held, "ann", approve(1))).await;
    assert!(!changed(&world.tell(about(&held, "bob", approve(1))).await));
    let opposite = world.tell(about(&held, "bob", reject())).await;
    let Verdict::Refuse(Refusal::DecidedOtherwise(first)) = opposite.verdict else {
        panic!("{:?}", opposite.verdict)
    };
    assert_eq!(first.as_str(), "ann");

    for n in 0..8 {
        let key = format!("race {n}");
        world.tell(claim(&key, &policy)).await;
        let (yes, no) = tokio::join!(
            world.store.apply_one(on(&key, "ann", approve(1))),
            world.other.apply_one(on(&key, "bob", reject())),
        );
        let (yes, no) = (yes.unwrap(), no.unwrap());
        assert!(changed(&yes) != changed(&no), "{:?} and {:?}", yes.verdict, no.verdict);
    }
}

pub async fn s12_a_resolution_is_taken_once(world: &World) {
    let claimed = world.tell(claim("k", &Policy::default())).await;
    let review = world.tell(settle(&claimed, Outcome::unknown("cut"))).await;
    let order = about(&review, "ann", resolve(1, Resolution::Happened(Answer::of("seen"))));
    let told = join_all((0..8).map(|n| {
        let store = if n % 2 == 0 { world.store.clone() } else { world.other.clone() };
        let order = order.clone();
        async move { store.apply_one(order).await.unwrap() }
    }))
    .await;
    assert_eq!(told.iter().filter(|applied| changed(applied)).count(), 1);
    assert!(told.iter().all(|applied| matches!(applied.verdict, Verdict::Noted(_))));

    let mut otherwise = order.clone();
    otherwise.command.action = resolve(1, Resolution::GiveUp);
    assert_eq!(world.tell(otherwise).await.verdict, Verdict::Refuse(Refusal::Moved));
    let somebody_else = about(&review, "bob", resolve(1, Resolution::GiveUp));
    let told = world.tell(somebody_else).await;
    assert_eq!(told.verdict, Verdict::Refuse(Refusal::WrongStatus(Status::Done)));
}

pub async fn s26_a_person_decides_a_review(world: &World) {
    let policy = world.policy(Recovery::Person);
    let in_review = async |key: &str| {
        let claimed = world.tell(claim(key, &policy)).await;
        world.tell(settle(&claimed, Outcome::unknown("cut"))).await
    };
    let happened = in_review("happened").await;
    let answer = Answer::default().with_external_id("INV-7");
    world.tell(about(&happened, "ann", resolve(1, Resolution::Happened(answer.clone())))).await;
    let told = world.tell(claim("happened", &policy)).await;
    let expected = Replay { answer: Some(answer), source: Source::Person, refused: false, mismatch: false };
    assert_eq!(told.verdict, Verdict::Replay(expected));

    let given_up = in_review("given up").await;
    let told = world.tell(about(&given_up, "ann", resolve(1, Resolution::GiveUp))).await;
    assert_eq!((status(&told), told.stored.unwrap().record.doubt), (Status::Failed, true));
    let told = world.tell(claim("given up", &policy)).await;
    assert_eq!(told.verdict, Verdict::Refuse(Refusal::GivenUp));

    let not = in_review("did not").await;
    let early = world.tell(about(&not, "ann", resolve(1, Resolution::DidNotHappen))).await;
    assert!(matches!(early.verdict, Verdict::Refuse(Refusal::TooEarly(_))), "{:?}", early.verdict);
    let moved = world.tell(about(&not, "ann", resolve(2, Resolution::DidNotHappen))).await;
    assert_eq!(moved.verdict, Verdict::Refuse(Refusal::Moved));
    world.pass(policy.in_flight_max + world.tick).await;
    let told = world.tell(about(&not, "ann", resolve(1, Resolution::DidNotHappen))).await;
    assert_eq!(status(&told), Status::Retryable);
    assert!(!permit(&world.tell(claim("did not", &policy)).await).doubt);
}

pub async fn s29_a_reset_starts_a_generation(world: &World) {
    let policy = Policy::default();
    let reset = |generation| Action::Reset(Reset { generation, reason: "again".into() });
    let claimed = world.tell(claim("k", &policy)).await;
    let told = world.tell(about(&claimed, "ann", reset(1))).await;
    assert_eq!(told.verdict, Verdict::Refuse(Refusal::WrongStatus(Status::Pending)));
    let done = world.tell(settle(&claimed, answered("first"))).await;
    let order = about(&done, "ann", reset(1));
    let fresh = world.tell(order.clone()).await;
    assert!(changed(&fresh) && status(&fresh) == Status::Ready);
    assert!(!changed(&world.tell(order.clone()).await), "the same command again is taken once (S12)");
    assert!(!changed(&world.tell(Order { believed: None, ..order }).await));
    assert_eq!(world.tell(about(&done, "bob", reset(1))).await.verdict, Verdict::Refuse(Refusal::Moved));

    let second = world.tell(claim("k", &policy).with_input(&Recipe::json(), b"{}")).await;
    assert_eq!((permit(&second).generation, permit(&second).fence.number()), (2, 2));
    let late = world.tell(settle(&claimed, answered("another answer"))).await;
    assert_eq!(late.verdict, Verdict::Refuse(Refusal::StaleFence), "it stays with its generation");
    assert_eq!(status(&late), Status::Pending);
}

pub async fn s32_what_was_undone_stays_undone(world: &World) {
    let policy = Policy::default();
    let undo = || Action::MarkUndone(MarkUndone { generation: 1, reason: "refund 17".into() });
    let claimed = world.tell(claim("k", &policy)).await;
    let told = world.tell(about(&claimed, "flow", undo())).await;
    assert_eq!(told.verdict, Verdict::Refuse(Refusal::WrongStatus(Status::Pending)));
    let done = world.tell(settle(&claimed, answered("first"))).await;
    let undone = world.tell(about(&done, "flow", undo())).await;
    assert_eq!(status(&undone), Status::Undone);
    assert!(!changed(&world.tell(about(&done, "flow", undo())).await));
    assert_eq!(world.tell(claim("k", &policy)).await.verdict, Verdict::Refuse(Refusal::Undone));
    world.tell(about(&undone, "ann", Action::Reset(Reset { generation: 1, reason: "again".into() }))).await;
    permit(&world.tell(claim("k", &policy)).await);
}
