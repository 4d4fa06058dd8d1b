//! How long things are kept, and fresh starts: S28, S29, S32, S40.

use twicesafe_core::{
    Action, ApprovalRule, Forget, IntentId, Lane, MarkUndone, Policy, Purge, Recovery, Refusal, Resolution,
    Status, VersionMeans, compensation_key, destination_key,
};

use super::ledger::*;

const PURGE: Action = Action::Purge(Purge { work_is_open: false });

fn done() -> Ledger {
    let mut ledger = Ledger::new(Recovery::Person);
    let permit = ledger.permit();
    ledger.acted(&permit, answered("a"));
    ledger
}

#[test]
fn s28_an_answer_is_purged_after_its_retention_and_leaves_a_tombstone() {
    let mut ledger = done();
    ledger.pass(ledger.policy.retention - MILLISECOND);
    assert!(!changed(ledger.run("sweep", PURGE)));
    ledger.pass(MILLISECOND);
    assert!(!changed(ledger.run("sweep", Action::Purge(Purge { work_is_open: true }))));
    assert!(changed(ledger.run("sweep", PURGE)));
    check_refused(ledger.claim(), Refusal::Purged);
    let left = ledger.record().answer.clone().unwrap();
    assert_eq!((left.external_id.unwrap().as_str(), left.body), ("a", Default::default()));
    assert!(!changed(ledger.run("sweep", PURGE)));
    ledger.pass(ledger.policy.tombstone);
    assert!(changed(ledger.run("sweep", PURGE)));
    assert_eq!(ledger.record, None, "after the tombstone a key is new");
    ledger.permit();
}

#[test]
fn s28_a_clock_that_is_years_ahead_does_not_take_answer_and_tombstone_at_once() {
    let mut ledger = done();
    ledger.pass(ledger.policy.retention + ledger.policy.tombstone * 2);
    assert!(changed(ledger.run("sweep", PURGE)));
    assert!(!changed(ledger.run("sweep", PURGE)), "its time counts from now on");
    check_refused(ledger.claim(), Refusal::Purged);
}

#[test]
fn s28_a_tombstone_answers_gone_whatever_it_was() {
    let refused_once = || {
        let mut ledger = Ledger::new(Recovery::Person);
        let permit = ledger.permit();
        ledger.acted(&permit, refused());
        ledger.check(Status::Failed, false);
        ledger
    };
    let given_up = || {
        let mut ledger = Ledger::new(Recovery::Person);
        ledger.lapse();
        ledger.resolve(Resolution::GiveUp);
        ledger.check(Status::Failed, true);
        ledger
    };
    let rejected = || {
        let approval = Some(ApprovalRule::default());
        let mut ledger = Ledger::agreed(Policy { approval, ..Policy::new(Recovery::Person) });
        ledger.claim();
        ledger.reject("ada");
        ledger.check(Status::Rejected, false);
        ledger
    };
    let superseded = || {
        let policy = Policy { version_means: VersionMeans::Snapshot, ..Policy::new(Recovery::Person) };
        let lane = Lane { applied: Some(2), ..Lane::untouched(IntentId::new(1)) };
        let mut ledger = Ledger::agreed(policy).in_lane(lane, Some(1));
        check_refused(ledger.claim(), Refusal::Superseded);
        ledger.check(Status::Superseded, false);
        ledger
    };
    let undone = || {
        let mut ledger = done();
        ledger.run("ada", Action::MarkUndone(MarkUndone { generation: 1, reason: "refund".into() }));
        ledger.check(Status::Undone, false);
        ledger
    };
    let ends: [&dyn Fn() -> Ledger; 6] = [&done, &refused_once, &given_up, &rejected, &superseded, &undone];
    for end in ends {
        let mut ledger = end();
        ledger.pass(ledger.policy.retention);
        assert!(changed(ledger.run("sweep", PURGE)), "{}", ledger.status());
        let status = ledger.status();
        check_refused(ledger.claim(), Refusal::Purged);
        check_refused(ledger.claim_with("corrected"), Refusal::Purged);
        assert_eq!((ledger.status(), ledger.record().attempt.is_some()), (status, false));
    }
}

#[test]
fn s28_open_statuses_never_expire_silently() {
    let mut ledger = Ledger::new(Recovery::Person);
    ledger.lapse();
    ledger.pass(ledger.policy.retention * 20);
    assert!(!changed(ledger.run("sweep", PURGE)));
    ledger.check(Status::Review, true);
}

#[test]
fn s29_reset_starts_a_new_generation_of_what_is_settled_or_a_tombstone() {
    let mut ledger = done();
    ledger.reset();
    ledger.check(Status::Ready, false);
    let permit = permit_in(ledger.claim_with("something else"));
    assert_eq!(permit.generation, 2);
    let name = ledger.record().name.clone().unwrap();
    assert_ne!(destination_key(&name, 1), destination_key(&name, 2));
    assert_ne!(compensation_key(&name, 1), compensation_key(&name, 2));

    let mut ledger = done();
    ledger.pass(ledger.policy.retention);
    ledger.run("sweep", PURGE);
    ledger.reset();
    assert_eq!(ledger.permit().generation, 2);
}

#[test]
fn s29_reset_is_refused_while_pending_or_in_review() {
    let mut ledger = Ledger::new(Recovery::Person);
    ledger.permit();
    check_refused(ledger.reset(), Refusal::WrongStatus(Status::Pending));
    ledger.pass(60 * SECOND);
    check_refused(ledger.reset(), Refusal::WrongStatus(Status::Review));
}

#[test]
fn s32_only_what_is_done_is_undone_and_it_answers_gone_until_reset() {
    let mark = Action::MarkUndone(MarkUndone { generation: 1, reason: "refund".into() });
    let mut ledger = Ledger::new(Recovery::Person);
    ledger.permit();
    check_refused(ledger.run("ada", mark.clone()), Refusal::WrongStatus(Status::Pending));
    ledger.pass(60 * SECOND);
    check_refused(ledger.run("ada", mark.clone()), Refusal::WrongStatus(Status::Review));
    ledger.resolve(Resolution::Happened(answer("a")));
    assert!(changed(ledger.run("ada", mark.clone())));
    ledger.check(Status::Undone, false);
    check_refused(ledger.claim(), Refusal::Undone);
    check_refused(ledger.claim_with("other"), Refusal::Mismatch);
    ledger.reset();
    ledger.permit();
    check_refused(ledger.run("ada", mark), Refusal::Moved);
}

#[test]
fn s40_forgetting_keeps_only_what_stops_it_from_happening_again() {
    let forget = Action::Forget(Forget { reason: "asked to".into() });
    let mut ledger = Ledger::new(Recovery::Person);
    let permit = ledger.permit();
    check_refused(ledger.run("ada", forget.clone()), Refusal::WrongStatus(Status::Pending));
    ledger.acted(&permit, answered("a"));
    assert!(changed(ledger.run("ada", forget.clone())));
    assert!(!changed(ledger.run("ada", forget)));
    assert_eq!((&ledger.record().name, &ledger.record().fingerprint), (&None, &None));
    check_refused(ledger.claim(), Refusal::Purged);
}
