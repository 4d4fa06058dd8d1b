//! Adopting what the source of truth says has happened: S5, S11, S12, S15, S26.

use std::sync::Arc;

use twicesafe_core::journal::Event;
use twicesafe_core::{
    Action, Adopt, Answer, ApprovalRule, Forget, IntentId, Lane, Name, Policy, Purge, Recovery, Refusal,
    Resolution, Salt, Source, Status, Verdict,
};

use super::ledger::*;

fn adoption(ledger: &Ledger, answer: Answer) -> Action {
    Action::Adopt(Box::new(Adopt {
        name: Name::new("shop/mail", "order:10492").unwrap(),
        fingerprint: None,
        policy: Arc::clone(&ledger.policy),
        answer,
        reason: "the shop's export of May".into(),
        salt: Salt([0; 16]),
    }))
}

fn adopt(ledger: &mut Ledger, id: &str) -> Verdict {
    let action = adoption(ledger, Answer::default().with_external_id(id));
    ledger.run("ada", action)
}

#[test]
fn s26_what_the_ledger_never_heard_of_is_done_without_a_permit() {
    let mut ledger = Ledger::new(Recovery::Person);
    assert!(changed(adopt(&mut ledger, "a")));
    ledger.check(Status::Done, false);
    assert_eq!(ledger.last_event(), Event::Adopted);
    assert_eq!((ledger.record().fence.number(), ledger.record().source), (0, Some(Source::Person)));
    assert_eq!(replayed(ledger.claim()), "a");
    check_refused(ledger.claim_with("other input"), Refusal::Mismatch);
}

#[test]
fn s12_adopting_again_changes_nothing() {
    let mut ledger = Ledger::new(Recovery::Person);
    let action = adoption(&ledger, Answer::default().with_external_id("a"));
    assert!(changed(ledger.apply(7, "ada", action.clone())));
    assert!(!changed(ledger.apply(7, "ada", action.clone())));
    assert!(!changed(ledger.apply(8, "bob", action.clone())));
    ledger.reset();
    assert!(changed(ledger.apply(9, "ada", action.clone())));
    assert!(!changed(ledger.apply(9, "ada", action)));
    assert_eq!(ledger.journal.len(), 3);
}

#[test]
fn s26_what_is_ready_retryable_failed_or_in_review_is_settled() {
    let mut ledger = Ledger::new(Recovery::Person);
    let permit = ledger.permit();
    ledger.acted(&permit, not_sent());
    ledger.check(Status::Retryable, false);
    assert!(changed(adopt(&mut ledger, "a")));
    ledger.check(Status::Done, false);

    let mut ledger = Ledger::new(Recovery::Person);
    let permit = ledger.permit();
    ledger.acted(&permit, answered("a"));
    ledger.reset();
    ledger.check(Status::Ready, false);
    assert!(changed(adopt(&mut ledger, "b")));
    assert_eq!(replayed(ledger.claim()), "b");

    let mut ledger = Ledger::new(Recovery::Person);
    ledger.lapse();
    ledger.check(Status::Review, true);
    assert!(changed(adopt(&mut ledger, "a")));
    ledger.check(Status::Done, false);

    let mut ledger = Ledger::new(Recovery::Person);
    ledger.lapse();
    ledger.resolve(Resolution::GiveUp);
    ledger.check(Status::Failed, true);
    assert!(changed(adopt(&mut ledger, "a")));
    ledger.check(Status::Done, false);
    assert_eq!(replayed(ledger.claim()), "a");
}

#[test]
fn s11_what_is_done_is_not_changed_and_another_id_is_refused() {
    let mut ledger = Ledger::new(Recovery::Person);
    let permit = ledger.permit();
    ledger.acted(&permit, answered("a"));
    let before = ledger.record().clone();
    assert!(!changed(adopt(&mut ledger, "a")));
    assert!(!changed(adopt(&mut ledger, "")));
    check_refused(adopt(&mut ledger, "b"), Refusal::SettledOtherwise);
    assert_eq!(*ledger.record(), before);

    let mut ledger = Ledger::new(Recovery::Person);
    adopt(&mut ledger, "");
    assert!(!changed(adopt(&mut ledger, "b")), "nothing is added to what is done");
    assert_eq!(ledger.record().answer, Some(Answer::default()));
}

#[test]
fn s23_while_somebody_else_has_the_next_word_it_is_refused() {
    let mut ledger = Ledger::new(Recovery::Person);
    ledger.permit();
    check_refused(adopt(&mut ledger, "a"), Refusal::WrongStatus(Status::Pending));

    let mut ledger = Ledger::new(lookup());
    ledger.lapse();
    check_refused(adopt(&mut ledger, "a"), Refusal::WrongStatus(Status::Pending));

    let mut ledger = Ledger::new(native_key(None));
    ledger.lapse();
    ledger.check(Status::Retryable, true);
    check_refused(adopt(&mut ledger, "a"), Refusal::WrongStatus(Status::Retryable));

    let approval = Some(ApprovalRule::default());
    let mut ledger = Ledger::agreed(Policy { approval, ..Policy::default() });
    ledger.claim();
    check_refused(adopt(&mut ledger, "a"), Refusal::WrongStatus(Status::Held));
    ledger.reject("ada");
    check_refused(adopt(&mut ledger, "a"), Refusal::WrongStatus(Status::Rejected));
}

#[test]
fn s28_a_tombstone_stays_one() {
    let mut ledger = Ledger::new(Recovery::Person);
    adopt(&mut ledger, "a");
    ledger.pass(ledger.policy.retention);
    ledger.run("sweep", Action::Purge(Purge { work_is_open: false }));
    assert!(!changed(adopt(&mut ledger, "a")));
    check_refused(adopt(&mut ledger, "b"), Refusal::SettledOtherwise);

    let mut ledger = Ledger::new(Recovery::Person);
    let permit = ledger.permit();
    ledger.acted(&permit, refused());
    ledger.run("ada", Action::Forget(Forget { reason: "asked to".into() }));
    check_refused(adopt(&mut ledger, "a"), Refusal::Purged);
}

#[test]
fn s15_its_lane_is_freed_and_its_version_counts() {
    let mut ledger = Ledger::new(Recovery::Person).in_lane(Lane::untouched(IntentId::new(1)), Some(5));
    ledger.lapse();
    assert_eq!(ledger.lane.as_ref().unwrap().holder, Some(IntentId::new(1)));
    adopt(&mut ledger, "a");
    let lane = ledger.lane.unwrap();
    assert_eq!((lane.holder, lane.applied), (None, Some(5)));
}
