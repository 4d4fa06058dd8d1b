//! When nobody knows: time is up, and somebody must decide (S23, S24).

use twicesafe_core::journal::Event;
use twicesafe_core::{
    Action, Answer, Ask, Counts, Finding, IntentId, Outcome, PermitKind, Policy, Recovery, Refusal, Reset,
    Source, Status, Verdict, WaitCause,
};
use twicesafe_store::{Applied, Filter, Order};

use crate::orders::{SCOPE, about, answered, claim, command, looked_up, permit, renew, settle};
use crate::world::World;

fn id(applied: &Applied) -> IntentId {
    applied.stored.as_ref().unwrap().id
}

fn status(applied: &Applied) -> Status {
    applied.stored.as_ref().unwrap().record.status
}

async fn expire(world: &World, id: IntentId) -> Applied {
    world.tell(Order::numbered(id, command("sweep", Action::Expire))).await
}

pub async fn s23_a_lapsed_lease_is_decided_by_whoever_meets_it_first(world: &World) {
    let policy = world.policy(Recovery::Person);
    let first = world.tell(claim("k", &policy)).await;
    world.pass(policy.lease).await;
    let told = world.tell(claim("k", &policy).by("second")).await;
    assert_eq!(told.verdict, Verdict::Review);
    assert!(told.stored.as_ref().unwrap().record.doubt);
    let journal = world.other.journal(id(&told)).await.unwrap();
    let lapsed = journal.last().unwrap();
    assert_eq!((lapsed.entry.event, lapsed.entry.actor.as_str()), (Event::Lapsed, "sweep"));
    let late = world.tell(settle(&first, answered("it worked"))).await;
    assert_eq!(status(&late), Status::Done, "the holder knows best (S11)");
}

pub async fn s23_a_sweep_finds_what_lapsed(world: &World) {
    let policy = world.policy(Recovery::Person);
    let mut ids = Vec::new();
    for key in ["a", "b", "c"] {
        ids.push(id(&world.tell(claim(key, &policy)).await));
    }
    let done = world.tell(claim("d", &policy)).await;
    world.tell(settle(&done, answered("in time"))).await;
    world.tell(claim("e", &Policy::default())).await;
    assert_eq!(world.other.awake(10).await.unwrap(), []);
    world.pass(policy.lease).await;
    assert_eq!(world.other.awake(10).await.unwrap(), ids);
    assert_eq!(world.other.awake(2).await.unwrap(), ids[..2]);
    for id in &ids {
        assert_eq!(status(&expire(world, *id).await), Status::Review);
        let again = expire(world, *id).await;
        assert!(matches!(again.verdict, Verdict::Noted(noted) if !noted.changed));
    }
    assert_eq!(world.other.awake(10).await.unwrap(), []);
}

/// Renewed, of a second attempt, of another generation: whatever lapses is found when it does, and not before.
pub async fn s23_a_sweep_finds_later_permits_too(world: &World) {
    let policy = Policy { attempts_max: 9, ..world.policy(Recovery::Repeat) };
    let awake = async || world.other.awake(10).await.unwrap();
    let pending = async || {
        let filter = Filter { status: Some(Status::Pending), ..Filter::default() };
        world.other.list(&filter, None, 10).await.unwrap().intents.len()
    };
    let first = world.tell(claim("k", &policy)).await;
    let id = id(&first);
    assert_eq!((awake().await.as_slice(), pending().await), (&[][..], 1));
    world.pass(policy.lease / 2).await;
    world.tell(about(&first, "caller", renew(&first))).await;
    world.pass(policy.lease * 3 / 4).await;
    assert_eq!((awake().await.as_slice(), pending().await), (&[][..], 1), "it was renewed");
    world.pass(policy.lease / 2).await;
    assert_eq!(awake().await, [id]);
    assert_eq!(status(&expire(world, id).await), Status::Retryable);
    assert_eq!((awake().await.as_slice(), pending().await), (&[][..], 0));

    let second = world.tell(claim("k", &policy)).await;
    assert_eq!(permit(&second).attempt, 2);
    assert_eq!((awake().await.as_slice(), pending().await), (&[][..], 1));
    world.pass(policy.lease).await;
    assert_eq!(awake().await, [id]);
    let third = world.tell(claim("k", &policy)).await;
    let done = world.tell(settle(&third, answered("at last"))).await;
    assert_eq!((awake().await.as_slice(), pending().await), (&[][..], 0));

    let reset = Reset { generation: 1, reason: "again".into() };
    world.tell(about(&done, "ann", Action::Reset(reset))).await;
    world.tell(claim("k", &policy)).await;
    assert_eq!((awake().await.as_slice(), pending().await), (&[][..], 1));
    world.pass(policy.lease).await;
    assert_eq!(awake().await, [id]);
}

pub async fn s24_repeat_is_tried_again(world: &World) {
    let policy = Policy { attempts_max: 2, ..world.policy(Recovery::Repeat) };
    world.tell(claim("k", &policy)).await;
    world.pass(policy.lease).await;
    let second = world.tell(claim("k", &policy)).await;
    assert_eq!((permit(&second).attempt, permit(&second).doubt), (2, true));
    let out = world.tell(settle(&second, Outcome::unknown("cut"))).await;
    assert_eq!(status(&out), Status::Review, "out of attempts with doubt");
}

pub async fn s24_a_native_key_is_sent_again_only_in_time(world: &World) {
    // A tenth is margin: nothing is sent after seven ticks, because it may be in flight for two.
    let native = Recovery::NativeKey { retention: world.tick * 10, lookup: None };
    let policy = Policy { attempts_max: 9, ..world.policy(native) };
    let first = world.tell(claim("k", &policy)).await;
    world.tell(settle(&first, Outcome::unknown("cut"))).await;
    let due = world.other.due(SCOPE, None, 10).await.unwrap();
    assert_eq!(due.iter().map(|line| line.at.1).collect::<Vec<_>>(), [id(&first)]);
    assert_eq!(world.other.due(SCOPE, due.last().map(|line| line.at), 10).await.unwrap(), []);
    let second = world.tell(claim("k", &policy)).await;
    assert!(permit(&second).doubt);
    let doubtful = world.tell(settle(&second, Outcome::unknown("cut"))).await;
    assert_eq!(status(&doubtful), Status::Retryable);
    assert_eq!(world.other.awake(10).await.unwrap(), []);
    world.pass(world.tick * 7).await;
    assert_eq!(world.other.awake(10).await.unwrap(), [id(&first)]);
    assert_eq!(status(&expire(world, id(&first)).await), Status::Review);
}

pub async fn s24_a_lookup_is_due_and_counts_when_nothing_can_arrive(world: &World) {
    let policy = world.policy(Recovery::Lookup(world.lookup()));
    let claimed = world.tell(claim("k", &policy)).await;
    let doubtful = world.tell(settle(&claimed, Outcome::unknown("cut"))).await;
    let due = async || {
        let due = world.other.due(SCOPE, None, 10).await.unwrap();
        due.into_iter().map(|line| line.at.1).collect::<Vec<_>>()
    };
    assert_eq!(due().await, [id(&claimed)]);
    let told = world.tell(claim("k", &policy)).await;
    assert!(matches!(told.verdict, Verdict::Wait(wait) if wait.cause == WaitCause::LookupDue));

    let asking = world.tell(about(&doubtful, "sweep", Action::Ask(Ask))).await;
    assert_eq!(permit(&asking).kind, PermitKind::Lookup);
    assert_eq!(due().await, []);
    let acting = settle(&asking, answered("with the wrong kind of permit"));
    assert_ne!(status(&world.tell(acting.clone()).await), Status::Review);
    let early = world.tell(claim("early", &policy)).await;
    let early = world.tell(settle(&early, Outcome::unknown("cut"))).await;
    let asking = world.tell(about(&early, "sweep", Action::Ask(Ask))).await;
    let early = world.tell(looked_up(&asking, Finding::NotFound)).await;
    assert_eq!(status(&early), Status::Pending, "it could still arrive");
    assert_eq!(due().await, []);
    world.pass(world.tick * 4).await;
    assert_eq!(due().await, [id(&early)]);
    let asking = world.tell(about(&early, "sweep", Action::Ask(Ask))).await;
    let gone = world.tell(looked_up(&asking, Finding::NotFound)).await;
    let record = &gone.stored.as_ref().unwrap().record;
    assert_eq!((record.status, record.doubt), (Status::Retryable, false));
    permit(&world.tell(claim("early", &policy)).await);

    let claimed = world.tell(claim("found", &policy)).await;
    let doubtful = world.tell(settle(&claimed, Outcome::unknown("cut"))).await;
    let asking = world.tell(about(&doubtful, "sweep", Action::Ask(Ask))).await;
    let found = world.tell(looked_up(&asking, Finding::Found(Answer::of("there")))).await;
    assert_eq!(found.stored.as_ref().unwrap().record.source, Some(Source::Lookup));
    let asked_again = world.tell(about(&found, "sweep", Action::Ask(Ask))).await;
    assert_eq!(asked_again.verdict, Verdict::Refuse(Refusal::WrongStatus(Status::Done)));
}

pub async fn s26_retries_and_accepted_intents_come_due(world: &World) {
    let policy = world.policy(Recovery::Person);
    let accepted = world.tell(claim("later", &policy).accepted(world.tick * 2).with_request(b"POST")).await;
    assert!(matches!(accepted.verdict, Verdict::Wait(wait) if wait.cause == WaitCause::Accepted));
    let claimed = world.tell(claim("again", &policy)).await;
    let reason = "busy".into();
    let busy = Outcome::NotSent { reason, retry_after: Some(world.tick * 2), counts: Counts::AsAttempt };
    let retryable = world.tell(settle(&claimed, busy)).await;
    let due = async || {
        let due = world.other.due(SCOPE, None, 10).await.unwrap();
        due.into_iter().map(|line| line.at.1).collect::<Vec<_>>()
    };
    assert_eq!(due().await, []);
    for key in ["later", "again"] {
        let told = world.tell(claim(key, &policy)).await;
        assert!(matches!(told.verdict, Verdict::Wait(wait) if wait.cause == WaitCause::NotDue), "{key}");
    }
    world.pass(world.tick * 2).await;
    let mut there = due().await;
    there.sort();
    assert_eq!(there, [id(&accepted), id(&retryable)]);
    for key in ["later", "again"] {
        permit(&world.tell(claim(key, &policy)).await);
    }
    assert_eq!(due().await, []);
}
