//! A person says yes first: S30.

use twicesafe_core::{
    Action, Actor, Alert, ApprovalRule, Approve, Fingerprint, Hold, Policy, Recipe, Recovery, Refusal,
    Resolution, Resolve, STUCK_AFTER, Status, Verdict,
};

use super::ledger::*;

fn held(rule: ApprovalRule) -> Ledger {
    let mut ledger = Ledger::agreed(Policy { approval: Some(rule), ..Policy::new(Recovery::Repeat) });
    let expires_at = ledger.moment.now + 24 * 3600 * SECOND;
    assert_eq!(ledger.claim(), Verdict::Hold(Hold { expires_at }));
    assert_eq!(ledger.alerts, [Alert::Held]);
    ledger.check(Status::Held, false);
    ledger
}

#[test]
fn s47_what_was_approved_and_is_not_begun_is_stuck_after_a_while() {
    let rule = ApprovalRule { requester_may_approve: true, ..ApprovalRule::default() };
    let mut ledger = Ledger::agreed(Policy { approval: Some(rule), ..Policy::default() });
    ledger.claim();
    ledger.approve("ada");
    ledger.check(Status::Ready, false);
    ledger.pass(STUCK_AFTER.saturating_sub(MILLISECOND));
    assert!(!ledger.record().is_stuck(ledger.moment.now));
    ledger.pass(MILLISECOND);
    assert!(ledger.record().is_stuck(ledger.moment.now));
    let about = ledger.record().fence;
    let happened = Resolve { about, resolution: Resolution::Happened(answer("a")), reason: "seen".into() };
    check_refused(ledger.run("ada", Action::Resolve(happened)), Refusal::WrongStatus(Status::Ready));
    ledger.permit();
}

#[test]
fn s30_an_approval_is_good_for_all_attempts_of_its_generation_and_no_other() {
    let mut ledger = held(ApprovalRule::default());
    assert!(changed(ledger.approve("ada")));
    ledger.check(Status::Ready, false);
    ledger.lapse();
    let second = ledger.permit();
    ledger.acted(&second, answered("a"));
    ledger.reset();
    assert!(matches!(ledger.claim(), Verdict::Hold(_)));
}

#[test]
fn s30_a_new_generation_is_asked_about_anew() {
    for outcome in [refused(), not_sent()] {
        let mut ledger = Ledger::new(Recovery::Person);
        let permit = ledger.permit();
        ledger.acted(&permit, outcome);
        // What was harmless comes back as something that is not.
        let approval = Some(ApprovalRule::default());
        ledger.policy = Policy { approval, ..Policy::new(Recovery::Person) }.into();
        assert!(matches!(ledger.claim_with("corrected"), Verdict::Hold(_)));
        ledger.policy = Policy::new(Recovery::Person).into();
        assert!(matches!(ledger.claim_with("corrected"), Verdict::Hold(_)), "and stays asked about");
    }
}

#[test]
fn s30_an_approval_is_bound_to_fingerprint_and_generation() {
    let mut ledger = held(ApprovalRule::default());
    let approve = |generation, input: &str| {
        let fingerprint = Some(Fingerprint::of(&Recipe::raw(), input.as_bytes()));
        Action::Approve(Approve { generation, fingerprint })
    };
    check_refused(ledger.run("ada", approve(1, "other")), Refusal::Moved);
    check_refused(ledger.run("ada", approve(2, "input")), Refusal::Moved);
    assert!(changed(ledger.run("ada", approve(1, "input"))));
}

#[test]
fn s30_who_asked_may_not_approve_unless_agreed() {
    let mut ledger = held(ApprovalRule::default());
    check_refused(ledger.approve("caller"), Refusal::OwnRequest);
    let mut ledger = held(ApprovalRule { requester_may_approve: true, ..ApprovalRule::default() });
    assert!(changed(ledger.approve("caller")));
}

#[test]
fn s30_who_comes_by_another_way_is_still_the_same_person() {
    let mut ledger = held(ApprovalRule { people: 2, ..ApprovalRule::default() });
    check_refused(ledger.approve("person:caller"), Refusal::OwnRequest);
    assert!(changed(ledger.approve("person:ada")));
    assert!(!changed(ledger.approve("ada")));
    ledger.check(Status::Held, false);
    assert!(changed(ledger.approve("token:ada")), "a token is nobody we know");
    ledger.check(Status::Ready, false);
}

#[test]
fn s30_two_people_are_two_different_people() {
    let mut ledger = held(ApprovalRule { people: 2, ..ApprovalRule::default() });
    assert!(changed(ledger.approve("ada")));
    ledger.check(Status::Held, false);
    assert!(!changed(ledger.approve("ada")));
    ledger.check(Status::Held, false);
    assert!(changed(ledger.approve("grace")));
    ledger.check(Status::Ready, false);
}

#[test]
fn s30_nobody_said_yes_in_time() {
    let mut ledger = held(ApprovalRule::default());
    ledger.pass(24 * 3600 * SECOND);
    check_refused(ledger.approve("ada"), Refusal::WrongStatus(Status::Rejected));
    assert_eq!(ledger.alerts, [Alert::ApprovalExpired]);
    check_refused(ledger.claim(), Refusal::Rejected);
}

#[test]
fn s30_the_first_decision_stands() {
    let by = |who| Refusal::DecidedOtherwise(Actor::new(who).unwrap());
    let mut ledger = held(ApprovalRule::default());
    ledger.approve("ada");
    check_refused(ledger.reject("grace"), by("ada"));
    assert!(!changed(ledger.approve("grace")));
    ledger.check(Status::Ready, false);

    let mut ledger = held(ApprovalRule::default());
    ledger.reject("ada");
    check_refused(ledger.approve("grace"), by("ada"));
    ledger.check(Status::Rejected, false);
    check_refused(ledger.claim(), Refusal::Rejected);
    assert!(matches!(ledger.claim_with("corrected"), Verdict::Hold(_)), "a corrected request asks anew");
}
