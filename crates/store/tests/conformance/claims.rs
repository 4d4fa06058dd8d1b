//! Who gets a permit, and who does not.

use futures_util::future::join_all;
use twicesafe_core::journal::Event;
use twicesafe_core::{
    Action, Actor, Answer, Forget, IntentId, MarkUndone, Notice, OnMismatch, Outcome, Permit, Policy, Recipe,
    Recovery, Refusal, Renew, Replay, Report, Reset, Status, Timestamp, Verdict, WaitCause,
};
use twicesafe_store::{Applied, Order};

use crate::orders::{about, answered, claim, command, name, on, permit, renew, report, settle};
use crate::world::World;

/// Applies the orders all at once, half of them through each store.
async fn at_once(world: &World, orders: Vec<Order>) -> Vec<Applied> {
    let applying = orders.into_iter().enumerate().map(|(n, order)| {
        let store = if n % 2 == 0 { world.store.clone() } else { world.other.clone() };
        tokio::spawn(async move { store.apply_one(order).await.unwrap() })
    });
    join_all(applying).await.into_iter().map(Result::unwrap).collect()
}

pub async fn s1_64_callers_of_one_key_get_one_permit(world: &World) {
    for recovery in [Recovery::Person, Recovery::Repeat] {
        let key = recovery.as_str();
        let policy = Policy::new(recovery.clone());
        let orders = (0..64).map(|n| claim(key, &policy).by(&format!("caller {n}")).into()).collect();
        let told = at_once(world, orders).await;
        let permits = told.iter().filter(|applied| matches!(applied.verdict, Verdict::Proceed(_))).count();
        assert_eq!(permits, 1, "{key}");
        let waiting = |applied: &Applied| matches!(&applied.verdict, Verdict::Wait(wait) if wait.cause == WaitCause::Pending);
        assert_eq!(told.iter().filter(|applied| waiting(applied)).count(), 63, "{key}");
    }
}

pub async fn s5_other_input_is_refused_while_something_may_have_been_sent(world: &World) {
    let policy = Policy::default();
    let with_approval = Policy { approval: Some(Default::default()), ..policy.clone() };
    world.tell(claim("held", &with_approval)).await;
    let claimed = world.tell(claim("pending", &policy)).await;
    permit(&claimed);
    let claimed = world.tell(claim("review", &policy)).await;
    world.tell(settle(&claimed, Outcome::unknown("cut"))).await;
    let claimed = world.tell(claim("done", &policy)).await;
    world.tell(settle(&claimed, answered("first"))).await;
    let claimed = world.tell(claim("undone", &policy)).await;
    let done = world.tell(settle(&claimed, answered("first"))).await;
    let mark = MarkUndone { generation: 1, reason: "refunded".into() };
    world.tell(about(&done, "undo", Action::MarkUndone(mark))).await;
    let native = Recovery::NativeKey { retention: Recovery::NATIVE_RETENTION_UNKNOWN, lookup: None };
    let claimed = world.tell(claim("retryable", &Policy::new(native))).await;
    world.tell(settle(&claimed, Outcome::unknown("cut"))).await;

    for key in ["held", "pending", "review", "done", "undone", "retryable"] {
        let before = world.other.find(&name(key)).await.unwrap().unwrap();
        assert_eq!(before.record.status.as_str(), key);
        let refused = world.tell(claim(key, &policy).with_input(&Recipe::raw(), b"other")).await;
        assert_eq!(refused.verdict, Verdict::Refuse(Refusal::Mismatch), "{key}");
        assert_eq!(*refused.stored.unwrap(), before, "{key} stays untouched");
    }
}

pub async fn s5_other_input_is_a_correction_where_nothing_was_sent(world: &World) {
    let policy = Policy::default();
    let claimed = world.tell(claim("k", &policy)).await;
    world.tell(settle(&claimed, Outcome::refused(Default::default()))).await;
    let corrected = world.tell(claim("k", &policy).with_input(&Recipe::raw(), b"better").by("ann")).await;
    assert_eq!(permit(&corrected).generation, 2);
    let stored = corrected.stored.unwrap();
    assert_eq!(stored.record.requested_by.as_str(), "ann");
    let journal = world.other.journal(stored.id).await.unwrap();
    assert!(journal.iter().any(|row| row.entry.event == Event::Corrected));

    // A body written by an AI differs every time; its route says that the first answer is good for all of them.
    let replaying = Policy { on_mismatch: OnMismatch::Replay, ..policy };
    let claimed = world.tell(claim("ai", &replaying)).await;
    world.tell(settle(&claimed, answered("first"))).await;
    let replayed = world.tell(claim("ai", &replaying).with_input(&Recipe::raw(), b"other words")).await;
    assert!(
        matches!(replayed.verdict, Verdict::Replay(Replay { mismatch: true, refused: false, .. })),
        "{:?}",
        replayed.verdict
    );
}

pub async fn s4_another_recipe_is_told_the_first_one(world: &World) {
    let recipe = Recipe::named("fields: amount, 'to', \u{20ac}");
    let first = claim("k", &Policy::default()).with_input(&recipe, b"parts");
    world.tell(first).await;
    let told = world.tell(claim("k", &Policy::default())).await;
    assert_eq!(told.verdict, Verdict::Recompute(recipe));
}

pub async fn s7_a_claim_is_visible_to_everybody_at_once(world: &World) {
    for recovery in [Recovery::Repeat, Recovery::Person] {
        let order = Order::from(claim(recovery.as_str(), &Policy::new(recovery.clone())));
        let relaxed = order.command.action.may_be_relaxed();
        assert_eq!(relaxed, recovery == Recovery::Repeat, "only what is harmless need not be durable");
        let claimed = world.store.apply_one(order).await.unwrap();
        permit(&claimed);
        let found = world.other.find(&name(recovery.as_str())).await.unwrap();
        assert_eq!(found.as_ref(), claimed.stored.as_deref());
        let second = claim(recovery.as_str(), &Policy::new(recovery.clone()));
        let told = world.other.apply_one(second.into()).await.unwrap();
        assert!(matches!(told.verdict, Verdict::Wait(_)), "{:?}", told.verdict);
    }
}

/// Repetitions come beside first claims, in one batch, with answers small and large.
pub async fn s1_repetitions_among_first_claims_get_the_first_answer(world: &World) {
    let policy = Policy::default();
    let sizes = [0, 1, 1_000, 8_192, 8_193, 300_000];
    let body = |size: usize| bytes::Bytes::from(vec![size as u8; size]);
    for size in sizes {
        let claimed = world.tell(claim(&format!("of {size}"), &policy)).await;
        world.tell(settle(&claimed, Outcome::Answered(Answer::of(body(size))))).await;
    }
    let keys: Vec<String> = (0..60)
        .map(|n| if n % 3 == 0 { format!("of {}", sizes[n / 3 % 6]) } else { format!("new {n}") })
        .collect();
    let told = at_once(world, keys.iter().map(|key| claim(key, &policy).into()).collect()).await;
    for (key, applied) in keys.iter().zip(told) {
        match (key.strip_prefix("of "), applied.verdict) {
            (Some(size), Verdict::Replay(Replay { answer: Some(answer), .. })) => {
                assert_eq!(answer.bytes(), Some(&body(size.parse().unwrap())), "{key}");
            }
            (None, Verdict::Proceed(_)) => {}
            (_, other) => panic!("{key}: {other:?}"),
        }
    }
    let statistics = world.store.statistics(Timestamp::default(), Timestamp::NEVER).await.unwrap();
    assert_eq!(statistics.events(Event::Claimed), 46, "6 that were settled and 40 that were not");
}

/// However often an answer was given again here, what somebody else did about it is seen by the next claim.
pub async fn s29_what_others_changed_is_seen_at_once(world: &World) {
    let policy = Policy::default();
    let replayed = async |key: &str| {
        let told = world.store.apply_one(claim(key, &policy).into()).await.unwrap();
        match told.verdict {
            Verdict::Replay(replay) => replay.answer.and_then(|answer| answer.bytes().cloned()),
            other => panic!("{key}: {other:?}"),
        }
    };
    let answers = ["first", "second", "third", "fourth"];
    for (round, answer) in (1..).zip(answers) {
        for key in ["reset here", "reset elsewhere", "left alone"] {
            let claimed = world.store.apply_one(claim(key, &policy).into()).await.unwrap();
            if let Verdict::Proceed(_) = claimed.verdict {
                world.store.apply_one(settle(&claimed, answered(answer))).await.unwrap();
            }
            for _ in 0..3 {
                let expected = if key == "left alone" { answers[0] } else { answer };
                assert_eq!(replayed(key).await.as_deref(), Some(expected.as_bytes()), "{key}");
            }
        }
        for (store, key) in [(&world.store, "reset here"), (&world.other, "reset elsewhere")] {
            let reset = Reset { generation: round, reason: "again".into() };
            let told = store.apply_one(on(key, "ann", Action::Reset(reset))).await.unwrap();
            assert!(told.changed, "{key}: {:?}", told.verdict);
        }
    }
    let forget = Forget { reason: "asked to".into() };
    let gone = world.other.apply_one(on("left alone", "ann", Action::Forget(forget))).await.unwrap();
    assert!(gone.changed, "{:?}", gone.verdict);
    let told = world.store.apply_one(claim("left alone", &policy).into()).await.unwrap();
    assert_eq!(told.verdict, Verdict::Refuse(Refusal::Purged));
}

pub async fn s11_fences_grow_over_attempts_and_generations(world: &World) {
    let policy = world.policy(Recovery::Person);
    let mut fences = Vec::new();
    let mut generations = Vec::new();
    let endings =
        [Outcome::not_sent("no route"), Outcome::refused(Default::default()), answered("a"), answered("b")];
    for ending in endings {
        let claimed = world.tell(claim("k", &policy)).await;
        fences.push(permit(&claimed).fence.number());
        generations.push(permit(&claimed).generation);
        let settled = world.tell(settle(&claimed, ending)).await;
        let record = &settled.stored.as_ref().unwrap().record;
        if record.status == Status::Done {
            let reset = Reset { generation: record.generation, reason: "again".into() };
            world.tell(about(&settled, "ann", Action::Reset(reset))).await;
        }
    }
    assert_eq!(fences, [1, 2, 3, 4]);
    assert_eq!(generations, [1, 1, 2, 3]);
}

pub async fn s11_a_stale_report_cannot_write(world: &World) {
    let policy = world.policy(Recovery::Repeat);
    let first = world.tell(claim("k", &policy)).await;
    world.pass(policy.lease).await;
    let second = world.tell(claim("k", &policy)).await;
    assert_eq!(permit(&second).fence.number(), 2);

    let renewed = about(&first, "caller", renew(&first));
    assert_eq!(world.tell(renewed).await.verdict, Verdict::Refuse(Refusal::StaleFence));
    let stale = world.tell(settle(&first, Outcome::not_sent("too late"))).await;
    assert_eq!(stale.verdict, Verdict::Refuse(Refusal::StaleFence));
    let record = &stale.stored.as_ref().unwrap().record;
    assert_eq!((record.status, record.fence.number()), (Status::Pending, 2));
    assert!(record.last_evidence.is_some(), "but it is kept as evidence");

    world.tell(settle(&second, answered("second"))).await;
    let stale = world.tell(settle(&first, answered("first"))).await;
    assert_eq!(stale.verdict, Verdict::Refuse(Refusal::StaleFence));
    let answer = stale.stored.unwrap().record.answer.clone().unwrap();
    assert_eq!(answer.bytes().unwrap(), "second");
}

pub async fn s12_the_same_claim_gets_the_same_permit(world: &World) {
    let order = Order::from(claim("k", &Policy::default()));
    let told = at_once(world, vec![order; 16]).await;
    assert!(told.iter().all(|applied| permit(applied).fence.number() == 1));
    let id = told[0].stored.as_ref().unwrap().id;
    assert_eq!(world.other.journal(id).await.unwrap().len(), 1);

    let settled = world.tell(settle(&told[0], answered("once"))).await;
    assert_eq!(settled.stored.unwrap().record.status, Status::Done);
}

pub async fn s12_the_same_report_is_taken_once(world: &World) {
    let claimed = world.tell(claim("k", &Policy::default())).await;
    let order = settle(&claimed, answered("once"));
    let told = at_once(world, vec![order.clone(); 16]).await;
    let changed = |applied: &&Applied| matches!(applied.verdict, Verdict::Noted(noted) if noted.changed);
    assert_eq!(told.iter().filter(changed).count(), 1);
    let unchanged = |applied: &&Applied| matches!(applied.verdict, Verdict::Noted(noted) if !noted.changed);
    assert_eq!(told.iter().filter(unchanged).count(), 15);

    let otherwise = settle(&claimed, Outcome::unknown("another story"));
    assert_eq!(world.tell(otherwise).await.verdict, Verdict::Refuse(Refusal::SettledOtherwise));
    let id = claimed.stored.unwrap().id;
    assert_eq!(world.other.journal(id).await.unwrap().len(), 2);
}

pub async fn s14_what_was_agreed_first_stands(world: &World) {
    let first = Policy { attempts_max: 3, ..Policy::default() };
    let second = Policy { attempts_max: 4, ..Policy::new(Recovery::Repeat) };
    let claimed = world.tell(claim("k", &first)).await;
    assert!(claimed.notices.is_empty());
    let told = world.tell(claim("k", &second)).await;
    assert_eq!(told.notices, [Notice::PolicyDiffers]);
    assert_eq!(*told.stored.unwrap().record.policy, first);
    world.tell(settle(&claimed, answered("once"))).await;
    let told = world.tell(claim("k", &second)).await;
    assert_eq!(told.notices, [Notice::PolicyDiffers]);
    let told = world.tell(claim("k", &first)).await;
    assert!(told.notices.is_empty());
}

/// A renewal has no journal entry, so that neither version nor journal tells who of two wrote it.
pub async fn s11_of_two_who_believe_the_same_only_one_writes_what_it_decided(world: &World) {
    let claimed = world.tell(claim("k", &Policy::default())).await;
    let renewing = |who: &str| {
        let holder = Some(Actor::new(who).unwrap());
        let Permit { fence, secret, .. } = *permit(&claimed);
        about(&claimed, "caller", Action::Renew(Renew { fence, secret, holder }))
    };
    for who in ["x", "y"] {
        let renewed = world.other.apply_one(renewing(who)).await.unwrap().stored.unwrap();
        let stored = world.store.find(&name("k")).await.unwrap().unwrap();
        assert_eq!(stored.record.attempt.as_ref().unwrap().holder.as_str(), who);
        assert_eq!(*renewed, stored, "what was told is what is kept");
    }
    // At the same instant, with the same words: whoever is second decides again.
    let (x, y) = tokio::join!(world.store.apply_one(renewing("a")), world.other.apply_one(renewing("b")));
    let (x, y) = (x.unwrap().stored.unwrap(), y.unwrap().stored.unwrap());
    assert_ne!(x.version, y.version);
}

pub async fn a_wrong_belief_is_put_right(world: &World) {
    let claimed = world.tell(claim("k", &Policy::default())).await;
    let old = claimed.stored.clone().unwrap();
    let done = world.other.apply_one(settle(&claimed, answered("once"))).await.unwrap();
    assert_eq!(done.stored.as_ref().unwrap().version, old.version + 1);

    // Decided on the old belief nothing would be written, so that no failed write gives it away.
    let mut order = Order::from(claim("k", &Policy::default()));
    order.believed = Some(old);
    let told = world.tell(order).await;
    assert!(matches!(told.verdict, Verdict::Replay(_)), "{:?}", told.verdict);
    // Here something would.
    let told = world.tell(settle(&claimed, Outcome::not_sent("another story"))).await;
    assert_eq!(told.verdict, Verdict::Refuse(Refusal::SettledOtherwise));

    let reset = Reset { generation: 1, reason: "again".into() };
    world.tell(about(&done, "ann", Action::Reset(reset))).await;
    let again = world.tell(claim("k", &Policy::default())).await;
    assert_eq!(permit(&again).generation, 2);
}

pub async fn an_intent_that_is_gone_is_not_invented(world: &World) {
    let nobody = IntentId::new(4711);
    let claiming = Order::from(claim("k", &Policy::default()));
    let gone = report(
        permit(&world.tell(claim("other", &Policy::default())).await),
        Report::Act(Outcome::not_sent("whose?")),
    );
    let orders = vec![
        Order::numbered(nobody, claiming.command),
        Order::numbered(nobody, command("sweep", Action::Expire)),
        on("k", "sweep", Action::Expire),
        on("k", "caller", Action::Settle(gone)),
        on("k", "ann", Action::Reset(Reset { generation: 1, reason: "again".into() })),
    ];
    for order in orders {
        let told = world.tell(order.clone()).await;
        assert_eq!(told.verdict, Verdict::Refuse(Refusal::NoSuchIntent), "{order:?}");
        assert!(told.stored.is_none());
    }
    assert!(world.other.find(&name("k")).await.unwrap().is_none());
    permit(&world.tell(claim("k", &Policy::default())).await);
}
