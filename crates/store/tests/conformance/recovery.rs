//! A ledger that lost its tail is told so, and doubts what it does not know (S43).

use twicesafe_core::{Action, Outcome, Policy, Recovery, Resolution, Resolve, Status, Verdict, WaitCause};

use crate::orders::{about, answered, claim, permit, settle};
use crate::world::World;

pub async fn s43_a_ledger_that_lost_its_tail_doubts_what_it_does_not_know(world: &World) {
    let policy = world.policy(Recovery::Person);
    let known = world.tell(claim("known", &policy)).await;
    let retryable = world.tell(claim("retryable", &policy)).await;
    world.tell(settle(&retryable, Outcome::not_sent("no route"))).await;
    assert_eq!(world.other.recovering_since().await.unwrap(), None);
    let since = world.store.now().await.unwrap();
    world.store.recover_since(Some(since)).await.unwrap();
    assert_eq!(world.other.recovering_since().await.unwrap(), Some(since));

    let unknown = world.tell(claim("person", &policy)).await;
    assert_eq!(unknown.verdict, Verdict::Review);
    let record = &unknown.stored.as_ref().unwrap().record;
    assert_eq!((record.doubt, record.first_sent_at), (true, Some(since)));
    let lookup = world.policy(Recovery::Lookup(world.lookup()));
    let told = world.other.apply_one(claim("lookup", &lookup).into()).await.unwrap();
    assert!(matches!(told.verdict, Verdict::Wait(wait) if wait.cause == WaitCause::LookupDue));
    permit(&world.tell(claim("repeat", &Policy::new(Recovery::Repeat))).await);
    let told = world.tell(settle(&known, Outcome::not_sent("no route"))).await;
    assert_eq!(told.stored.unwrap().record.status, Status::Retryable, "what went on since is not doubted");
    permit(&world.tell(claim("known", &policy)).await);
    let doubted = world.tell(claim("retryable", &policy)).await;
    assert_eq!(doubted.verdict, Verdict::Review, "it may have gone on, and the ledger forgot");
    let again = world.other.find_id(doubted.stored.unwrap().id).await.unwrap().unwrap();
    assert_eq!(again.record.recovered_since, Some(since));

    world.other.recover_since(None).await.unwrap();
    assert_eq!(world.store.recovering_since().await.unwrap(), None);
    let fresh = world.tell(claim("fresh", &policy)).await;
    world.tell(settle(&fresh, answered("done"))).await;
    world.pass(policy.in_flight_max + world.tick).await;
    let resolve =
        Resolve { about: Default::default(), resolution: Resolution::DidNotHappen, reason: "looked".into() };
    world.tell(about(&unknown, "ann", Action::Resolve(resolve))).await;
    permit(&world.tell(claim("person", &policy)).await);
}
