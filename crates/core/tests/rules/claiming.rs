//! Who gets a permit: S5, S7, S8, S10, S14.

use twicesafe_core::journal::Event;
use twicesafe_core::{
    Action, ApprovalRule, Claim, Fence, Grant, Notice, OnMismatch, Policy, Recipe, Recovery, Refusal, Status,
    Verdict, Wait, WaitCause,
};

use super::ledger::*;

#[test]
fn s31_what_was_read_before_a_correction_does_not_replace_it() {
    let mut ledger = Ledger::new(Recovery::Person);
    let permit = ledger.permit();
    ledger.acted(&permit, not_sent());
    let read = Claim { about: Some(1), ..ledger.claim_of("input") };
    let permit = permit_in(ledger.claim_with("corrected"));
    assert_eq!(permit.generation, 2);
    ledger.acted(&permit, not_sent());
    let corrected = ledger.record.clone();
    check_refused(ledger.run("server", Action::Claim(Box::new(read))), Refusal::Moved);
    assert_eq!(ledger.record, corrected);
}

#[test]
fn s31_what_was_read_before_a_refusal_is_not_tried_again() {
    let mut ledger = Ledger::new(Recovery::Person);
    let permit = ledger.permit();
    ledger.acted(&permit, not_sent());
    let read = Claim { about: Some(1), ..ledger.claim_of("input") };
    let permit = ledger.permit();
    ledger.acted(&permit, refused());
    check_refused(ledger.run("server", Action::Claim(Box::new(read))), Refusal::Moved);
    ledger.check(Status::Failed, false);
}

#[test]
fn s31_what_was_read_of_an_intent_that_is_gone_makes_no_other() {
    let mut ledger = Ledger::new(Recovery::Person);
    let read = Claim { about: Some(1), ..ledger.claim_of("input") };
    check_refused(ledger.run("server", Action::Claim(Box::new(read))), Refusal::NoSuchIntent);
    assert!(ledger.record.is_none());
}

#[test]
fn s5_other_input_is_refused_while_something_was_or_may_have_been_sent() {
    let mut ledger = Ledger::new(Recovery::Person);
    let permit = ledger.permit();
    check_refused(ledger.claim_with("other"), Refusal::Mismatch);
    ledger.acted(&permit, unknown());
    ledger.check(Status::Review, true);
    check_refused(ledger.claim_with("other"), Refusal::Mismatch);
    ledger.acted(&permit, answered("a"));

    let mut ledger = Ledger::new(Recovery::Person);
    let permit = ledger.permit();
    ledger.acted(&permit, answered("a"));
    let before = ledger.record.clone();
    check_refused(ledger.claim_with("other"), Refusal::Mismatch);
    assert_eq!(ledger.record, before, "the original stays untouched");
    assert_eq!(replayed(ledger.claim()), "a");

    let mut ledger = Ledger::new(Recovery::Repeat);
    ledger.lapse();
    ledger.check(Status::Retryable, true);
    check_refused(ledger.claim_with("other"), Refusal::Mismatch);
}

#[test]
fn s5_other_input_after_an_end_without_effect_is_a_correction() {
    for outcome in [refused(), not_sent()] {
        let mut ledger = Ledger::new(Recovery::Person);
        let permit = ledger.permit();
        ledger.acted(&permit, outcome);
        let corrected = permit_in(ledger.claim_with("corrected"));
        assert_eq!((corrected.generation, corrected.fence), (2, Fence::new(2)));
        assert!(ledger.journal.iter().any(|entry| entry.event == Event::Corrected));
    }
}

#[test]
fn s5_a_body_written_by_an_ai_may_get_the_first_answer_marked() {
    let mut ledger =
        Ledger::agreed(Policy { on_mismatch: OnMismatch::Replay, ..Policy::new(Recovery::Person) });
    let permit = ledger.permit();
    ledger.acted(&permit, answered("a"));
    let Verdict::Replay(replay) = ledger.claim_with("other") else { panic!("no replay") };
    assert!(replay.mismatch);
}

#[test]
fn s24_who_wants_something_else_is_not_the_one_to_ask() {
    let mut ledger = Ledger::agreed(Policy { on_mismatch: OnMismatch::Replay, ..Policy::new(lookup()) });
    let permit = ledger.permit();
    ledger.acted(&permit, unknown());
    let cause = |verdict| match verdict {
        Verdict::Wait(wait) => Some(wait.cause),
        _ => None,
    };
    assert_eq!(cause(ledger.claim()), Some(WaitCause::LookupDue));
    assert_eq!(cause(ledger.claim_with("other")), Some(WaitCause::Pending));
}

#[test]
fn s4_another_recipe_is_told_the_stored_one() {
    let mut ledger = Ledger::new(Recovery::Person);
    ledger.permit();
    let mut claim = ledger.claim_of("input");
    claim.fingerprint = twicesafe_core::Fingerprint::of(&Recipe::json(), b"input");
    let verdict = ledger.run("caller", Action::Claim(Box::new(claim)));
    assert_eq!(verdict, Verdict::Recompute(Recipe::raw()));
}

#[test]
fn s7_only_a_repeatable_claim_without_lane_or_approval_may_be_relaxed() {
    let check = |ledger: &Ledger, expected: bool| {
        assert_eq!(Action::Claim(Box::new(ledger.claim_of("input"))).may_be_relaxed(), expected);
    };
    check(&Ledger::new(Recovery::Repeat), true);
    check(&Ledger::new(Recovery::Person), false);
    check(&Ledger::new(lookup()), false);
    check(&Ledger::new(native_key(None)), false);
    let approval = Some(ApprovalRule::default());
    check(&Ledger::agreed(Policy { approval, ..Policy::new(Recovery::Repeat) }), false);
    let lane = twicesafe_core::Lane::untouched(twicesafe_core::IntentId::new(1));
    check(&Ledger::new(Recovery::Repeat).in_lane(lane, None), false);
    let mut accept = Ledger::new(Recovery::Repeat).claim_of("input");
    accept.grant = Grant::Accept { due_in: SECOND };
    assert!(!Action::Claim(Box::new(accept)).may_be_relaxed());
    assert!(!Action::Expire.may_be_relaxed());
}

#[test]
fn s8_a_duplicate_waits_while_a_permit_is_out() {
    let mut ledger = Ledger::new(Recovery::Person);
    let permit = ledger.permit();
    let until = ledger.moment.now + ledger.policy.lease;
    assert_eq!(ledger.claim(), Verdict::Wait(Wait { until, cause: WaitCause::Pending }));
    ledger.acted(&permit, answered("a"));
    assert_eq!(replayed(ledger.claim()), "a");
}

#[test]
fn s9_send_by_is_the_lease_minus_a_margin() {
    let permit = Ledger::new(Recovery::Person).permit();
    assert_eq!((permit.lease, permit.send_within), (60 * SECOND, 54 * SECOND));
}

#[test]
fn s10_heartbeats_extend_a_lease_at_most_until_act_max() {
    let mut ledger = Ledger::agreed(Policy { act_max: 100 * SECOND, ..Policy::new(Recovery::Person) });
    let permit = ledger.permit();
    ledger.pass(50 * SECOND);
    assert_eq!(permit_in(ledger.renew(&permit)).lease, 50 * SECOND, "until act_max, no longer");
    ledger.pass(50 * SECOND);
    check_refused(ledger.renew(&permit), Refusal::StaleFence);
    ledger.check(Status::Review, true);
}

#[test]
fn s10_a_stale_permit_cannot_be_renewed() {
    let mut ledger = Ledger::new(Recovery::Repeat);
    let stale = ledger.lapse();
    ledger.permit();
    check_refused(ledger.renew(&stale), Refusal::StaleFence);
}

#[test]
fn s14_the_policy_of_the_first_claim_stands() {
    let mut ledger = Ledger::new(Recovery::Person);
    ledger.permit();
    let first = ledger.policy.clone();
    ledger.policy = Policy { attempts_max: 9, ..Policy::new(Recovery::Repeat) }.into();
    ledger.claim();
    assert_eq!(ledger.notices, [Notice::PolicyDiffers]);
    assert_eq!(ledger.record().policy, first);
    ledger.pass(60 * SECOND);
    ledger.expire();
    ledger.check(Status::Review, true);
}

#[test]
fn s6_a_key_made_anew_on_every_run_is_noticed() {
    let mut ledger = Ledger::new(Recovery::Person);
    let mut claim = ledger.claim_of("input");
    claim.name = twicesafe_core::Name::new("shop", "1789473600").unwrap();
    ledger.run("caller", Action::Claim(Box::new(claim)));
    assert!(matches!(ledger.notices[..], [Notice::SuspiciousKey(_)]));
}

#[test]
fn an_accepted_intent_waits_for_its_due_time() {
    let mut ledger = Ledger::new(Recovery::Person);
    let accept =
        twicesafe_core::Claim { grant: Grant::Accept { due_in: 10 * SECOND }, ..ledger.claim_of("input") };
    let until = ledger.moment.now + 10 * SECOND;
    let verdict = ledger.run("caller", Action::Claim(Box::new(accept)));
    assert_eq!(verdict, Verdict::Wait(Wait { until, cause: WaitCause::Accepted }));
    ledger.check(Status::Ready, false);
    assert_eq!(ledger.claim(), Verdict::Wait(Wait { until, cause: WaitCause::NotDue }));
    ledger.pass(10 * SECOND);
    ledger.permit();
}
