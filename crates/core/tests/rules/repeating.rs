//! Reports that come too late, and commands that come twice: S11, S12.

use twicesafe_core::journal::Event;
use twicesafe_core::{
    Action, Alert, ApprovalRule, Approve, Fence, MarkUndone, OnMismatch, Policy, Recovery, Refusal, Reject,
    Reset, Resolution, Resolve, Status, Verdict,
};

use super::ledger::*;

#[test]
fn s11_a_stale_answer_settles_review() {
    let mut ledger = Ledger::new(Recovery::Person);
    let stale = ledger.lapse();
    ledger.check(Status::Review, true);
    assert!(changed(ledger.acted(&stale, answered("a"))));
    ledger.check(Status::Done, false);
    assert_eq!(replayed(ledger.claim()), "a");
}

#[test]
fn s11_a_stale_answer_settles_retryable() {
    let mut ledger = Ledger::new(Recovery::Repeat);
    let stale = ledger.lapse();
    ledger.check(Status::Retryable, true);
    ledger.acted(&stale, answered("a"));
    ledger.check(Status::Done, false);
}

#[test]
fn s11_a_stale_answer_settles_a_lookup_under_way() {
    let mut ledger = Ledger::new(lookup());
    let stale = ledger.lapse();
    permit_in(ledger.ask());
    ledger.acted(&stale, answered("a"));
    ledger.check(Status::Done, false);
}

#[test]
fn s11_a_stale_answer_under_pending_is_kept_and_used_if_that_attempt_ends_unknown() {
    for outcome in [unknown(), not_sent(), refused()] {
        let mut ledger = Ledger::new(Recovery::Repeat);
        let stale = ledger.lapse();
        let second = ledger.permit();
        ledger.acted(&stale, answered("first"));
        assert_eq!(ledger.last_event(), Event::Kept);
        ledger.check(Status::Pending, true);
        ledger.acted(&second, outcome);
        ledger.check(Status::Done, false);
        assert_eq!(replayed(ledger.claim()), "first");
    }
    let mut ledger = Ledger::new(Recovery::Repeat);
    let stale = ledger.lapse();
    ledger.permit();
    ledger.acted(&stale, answered("first"));
    ledger.pass(60 * SECOND);
    ledger.expire();
    ledger.check(Status::Done, false);
}

#[test]
fn s11_a_kept_answer_gives_way_to_the_answer_of_the_attempt_under_way() {
    let mut ledger = Ledger::new(Recovery::Repeat);
    let stale = ledger.lapse();
    let second = ledger.permit();
    ledger.acted(&stale, answered("first"));
    ledger.acted(&second, answered("second"));
    assert_eq!(ledger.alerts, [Alert::DoubleEffect]);
    assert_eq!(replayed(ledger.claim()), "second");
}

#[test]
fn s11_a_stale_answer_with_another_external_id_on_done_alerts() {
    let mut ledger = Ledger::new(Recovery::Repeat);
    let stale = ledger.lapse();
    let second = ledger.permit();
    ledger.acted(&second, answered("second"));
    check_refused(ledger.acted(&stale, answered("first")), Refusal::StaleFence);
    assert_eq!(ledger.alerts, [Alert::DoubleEffect]);
    ledger.acted(&stale, answered("first"));
    assert_eq!(ledger.alerts, [], "alerted once");
    assert_eq!(replayed(ledger.claim()), "second");
}

#[test]
fn s11_the_same_effect_told_twice_is_no_double_one() {
    let mut ledger = Ledger::new(Recovery::Repeat);
    let stale = ledger.lapse();
    let second = ledger.permit();
    assert!(changed(ledger.acted(&stale, answered("a"))));
    assert!(!changed(ledger.acted(&stale, answered("a"))), "it was kept before");
    ledger.acted(&second, answered("a"));
    assert_eq!(ledger.alerts, []);

    let mut ledger = Ledger::new(Recovery::Repeat);
    let stale = ledger.lapse();
    let second = ledger.permit();
    ledger.acted(&second, answered("a"));
    check_refused(ledger.acted(&stale, answered("a")), Refusal::StaleFence);
    assert_eq!((ledger.last_event(), &*ledger.alerts), (Event::Evidence, &[][..]));
}

#[test]
fn s11_any_other_stale_report_is_evidence_only() {
    for outcome in [unknown(), not_sent(), refused()] {
        let mut ledger = Ledger::new(Recovery::Repeat);
        let stale = ledger.lapse();
        ledger.permit();
        check_refused(ledger.acted(&stale, outcome), Refusal::StaleFence);
        assert_eq!(ledger.last_event(), Event::Evidence);
        ledger.check(Status::Pending, true);
    }
}

#[test]
fn s11_a_late_report_of_the_last_permit_counts_as_long_as_nobody_noticed() {
    let mut ledger = Ledger::new(Recovery::Person);
    let permit = ledger.permit();
    ledger.pass(1000 * SECOND);
    ledger.acted(&permit, not_sent());
    ledger.check(Status::Retryable, false);
}

#[test]
fn s11_fences_grow_over_generations() {
    let mut ledger = Ledger::new(Recovery::Person);
    let first = ledger.permit();
    ledger.acted(&first, answered("a"));
    ledger.reset();
    let second = ledger.permit();
    assert_eq!((second.generation, second.fence), (2, Fence::new(2)));
}

#[test]
fn s12_a_claim_repeated_with_the_id_of_the_live_attempt_gets_the_same_permit() {
    let mut ledger = Ledger::new(Recovery::Person);
    let claim = Action::Claim(Box::new(ledger.claim_of("input")));
    let first = permit_in(ledger.apply(200, "caller", claim.clone()));
    ledger.pass(10 * SECOND);
    let again = permit_in(ledger.apply(200, "caller", claim));
    assert_eq!((again.fence, again.send_within), (first.fence, first.send_within - 10 * SECOND));
    assert_eq!(ledger.journal.len(), 1);
}

#[test]
fn s5_the_id_of_the_live_attempt_is_no_leave_for_other_input() {
    let mut ledger = Ledger::new(Recovery::Person);
    let claim = |ledger: &Ledger, input: &str| Action::Claim(Box::new(ledger.claim_of(input)));
    let first = claim(&ledger, "input");
    permit_in(ledger.apply(200, "caller", first.clone()));
    let other = claim(&ledger, "other");
    check_refused(ledger.apply(200, "caller", other.clone()), Refusal::Mismatch);
    permit_in(ledger.apply(200, "caller", first));

    // Where the key alone decides, it is the same claim.
    let mut ledger =
        Ledger::agreed(Policy { on_mismatch: OnMismatch::Replay, ..Policy::new(Recovery::Person) });
    let first = claim(&ledger, "input");
    let fence = permit_in(ledger.apply(200, "caller", first)).fence;
    assert_eq!(permit_in(ledger.apply(200, "caller", other)).fence, fence);
}

#[test]
fn s12_an_ask_repeated_gets_the_same_permit() {
    let mut ledger = Ledger::new(lookup());
    ledger.lapse();
    let ask = Action::Ask(twicesafe_core::Ask);
    let first = permit_in(ledger.apply(200, "asker", ask.clone()));
    assert_eq!(permit_in(ledger.apply(200, "asker", ask.clone())), first);
    assert!(matches!(ledger.apply(201, "other", ask), Verdict::Wait(_)));
}

#[test]
fn s12_a_settle_repeated_is_a_no_op_and_with_another_outcome_a_conflict() {
    let mut ledger = Ledger::new(Recovery::Person);
    let permit = ledger.permit();
    assert!(changed(ledger.acted(&permit, answered("a"))));
    let before = ledger.record.clone();
    assert!(!changed(ledger.acted(&permit, answered("a"))));
    check_refused(ledger.acted(&permit, answered("b")), Refusal::SettledOtherwise);
    check_refused(ledger.acted(&permit, unknown()), Refusal::SettledOtherwise);
    assert_eq!(ledger.record, before);
}

#[test]
fn s12_a_resolve_repeated_is_a_no_op_and_with_another_decision_a_conflict() {
    let mut ledger = Ledger::new(Recovery::Person);
    ledger.lapse();
    ledger.pass(100 * SECOND);
    let resolve =
        |resolution| Action::Resolve(Resolve { about: Fence::new(1), resolution, reason: "".into() });
    assert!(changed(ledger.apply(200, "ada", resolve(Resolution::DidNotHappen))));
    assert!(!changed(ledger.apply(200, "ada", resolve(Resolution::DidNotHappen))));
    check_refused(ledger.apply(200, "ada", resolve(Resolution::GiveUp)), Refusal::Moved);
    check_refused(
        ledger.apply(201, "ada", resolve(Resolution::GiveUp)),
        Refusal::WrongStatus(Status::Retryable),
    );
    ledger.permit();
    check_refused(ledger.apply(202, "ada", resolve(Resolution::GiveUp)), Refusal::Moved);
}

#[test]
fn s12_a_reset_repeated_is_a_no_op() {
    let mut ledger = Ledger::new(Recovery::Person);
    let permit = ledger.permit();
    ledger.acted(&permit, answered("a"));
    let reset = Action::Reset(Reset { generation: 1, reason: "again".into() });
    assert!(changed(ledger.apply(200, "ada", reset.clone())));
    assert!(!changed(ledger.apply(200, "ada", reset.clone())));
    check_refused(ledger.apply(201, "ada", reset), Refusal::Moved);
    assert_eq!(ledger.record().generation, 2);
}

#[test]
fn s12_approve_and_reject_repeated_are_no_ops() {
    let approval = Some(ApprovalRule::default());
    let approve = Action::Approve(Approve { generation: 1, fingerprint: None });
    let reject = Action::Reject(Reject { generation: 1, reason: "no".into() });
    for decision in [approve, reject] {
        let mut ledger =
            Ledger::agreed(Policy { approval: approval.clone(), ..Policy::new(Recovery::Person) });
        ledger.claim();
        assert!(changed(ledger.apply(200, "ada", decision.clone())));
        let before = ledger.record.clone();
        assert!(!changed(ledger.apply(200, "ada", decision)));
        assert_eq!(ledger.record, before);
    }
}

#[test]
fn s12_mark_undone_and_expire_repeated_are_no_ops() {
    let mut ledger = Ledger::new(Recovery::Person);
    let permit = ledger.permit();
    ledger.acted(&permit, answered("a"));
    let mark = Action::MarkUndone(MarkUndone { generation: 1, reason: "refund".into() });
    assert!(changed(ledger.run("ada", mark.clone())));
    assert!(!changed(ledger.run("ada", mark)));
    let mut ledger = Ledger::new(Recovery::Person);
    ledger.lapse();
    assert!(!changed(ledger.expire()));
}

#[test]
fn s29_a_late_result_of_an_old_generation_stays_with_it() {
    let mut ledger = Ledger::new(Recovery::Person);
    let old = ledger.lapse();
    ledger.resolve(Resolution::GiveUp);
    let quiet_at = ledger.record().quiet_at.unwrap();
    check_refused(ledger.reset(), Refusal::TooEarly(quiet_at));
    ledger.moment.now = quiet_at;
    ledger.reset();
    check_refused(ledger.acted(&old, answered("late")), Refusal::StaleFence);
    ledger.check(Status::Ready, false);
}
