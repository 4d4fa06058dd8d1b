//! What an attempt's end means: S18, S20, S26.

use std::time::Duration;

use twicesafe_core::{
    Alert, Answer, Backoff, Body, Counts, Outcome, Policy, Recovery, Refusal, Status, Verdict, Wait,
    WaitCause,
};

use super::ledger::*;

fn agreed(base: u64, cap: u64, attempts_max: u32) -> Ledger {
    let backoff = Backoff { base: Duration::from_secs(base), cap: Duration::from_secs(cap) };
    Ledger::agreed(Policy { backoff, attempts_max, ..Policy::new(Recovery::Person) })
}

#[test]
fn s18_a_refusal_is_replayed_for_a_short_time_only() {
    let mut ledger = Ledger::new(Recovery::Person);
    let permit = ledger.permit();
    ledger.acted(&permit, Outcome::Refused { answer: Answer::of("no"), replay_for: 10 * SECOND });
    ledger.check(Status::Failed, false);
    let Verdict::Replay(replay) = ledger.claim() else { panic!("no replay") };
    assert!(replay.refused);
    ledger.pass(10 * SECOND);
    assert_eq!(ledger.permit().generation, 2, "causes get fixed");
}

#[test]
fn s18_a_refusal_with_a_time_of_zero_is_tried_again_at_once() {
    let mut ledger = Ledger::new(Recovery::Person);
    let permit = ledger.permit();
    ledger.acted(&permit, refused());
    assert_eq!(ledger.permit().generation, 2);
}

#[test]
fn s20_an_answer_over_the_limit_is_done_and_its_replay_says_so() {
    let mut ledger = Ledger::new(Recovery::Person);
    let permit = ledger.permit();
    ledger.acted(&permit, Outcome::Answered(Answer::of("too long").limited(3)));
    ledger.check(Status::Done, false);
    let Verdict::Replay(replay) = ledger.claim() else { panic!("no replay") };
    assert!(matches!(replay.answer.unwrap().body, Body::NotKept { bytes: 8, .. }));
}

#[test]
fn s20_an_outcome_that_was_never_stored_leaves_doubt() {
    let mut ledger = Ledger::new(Recovery::Person);
    ledger.lapse();
    ledger.check(Status::Review, true);
    assert_eq!(ledger.claim(), Verdict::Review);
}

#[test]
fn s16_what_the_caller_must_mend_counts_as_no_attempt() {
    let mut ledger = agreed(1, 8, 1);
    let permit = ledger.permit();
    let passed_on = Outcome::NotSent { reason: "401".into(), retry_after: None, counts: Counts::AsPassedOn };
    ledger.acted(&permit, passed_on);
    ledger.check(Status::Retryable, false);
    assert_eq!((ledger.record().tries, ledger.record().due_at), (0, None), "nobody tries by himself");
    assert_eq!(ledger.permit().attempt, 1);
}

#[test]
fn s26_what_waits_for_somebody_else_does_not_come_sooner_than_was_asked_for() {
    let mut ledger = agreed(2, 2, 2);
    ledger.moment.dice = u32::MAX;
    let permit = ledger.permit();
    let retry_after = Some(60 * SECOND);
    ledger.acted(&permit, Outcome::NotSent { reason: "held".into(), retry_after, counts: Counts::AsWaiting });
    assert_eq!(ledger.record().due_at, Some(ledger.moment.now + (62 * SECOND - MILLISECOND)));
}

#[test]
fn s26_what_waits_for_somebody_else_counts_as_no_attempt_and_is_due_again() {
    let mut ledger = agreed(1, 2, 2);
    for (asked, wait) in [(Some(60), 60), (Some(0), 1), (None, 1), (Some(3), 3), (Some(3), 3)] {
        let permit = ledger.permit();
        assert_eq!(permit.attempt, 1);
        let retry_after = asked.map(|asked| asked * SECOND);
        ledger.acted(
            &permit,
            Outcome::NotSent { reason: "held".into(), retry_after, counts: Counts::AsWaiting },
        );
        ledger.check(Status::Retryable, false);
        assert_eq!(ledger.record().tries, 0);
        assert_eq!(ledger.record().due_at, Some(ledger.moment.now + wait * SECOND));
        assert!(ledger.alerts.is_empty(), "nobody has run out of anything");
        ledger.pass(wait * SECOND);
    }
}

#[test]
fn s26_what_waits_in_doubt_is_not_asked_more_often() {
    let backoff = Backoff { base: Duration::ZERO, cap: Duration::ZERO };
    let mut ledger = Ledger::agreed(Policy { backoff, attempts_max: 2, ..Policy::new(Recovery::Repeat) });
    let permit = ledger.permit();
    ledger.acted(&permit, Outcome::unknown("cut"));
    for (asked, wait) in [(Some(60), 60), (None, 1), (None, 1)] {
        let permit = ledger.permit();
        let retry_after = asked.map(|asked| asked * SECOND);
        ledger.acted(
            &permit,
            Outcome::NotSent { reason: "held".into(), retry_after, counts: Counts::AsWaiting },
        );
        ledger.check(Status::Retryable, true);
        assert_eq!(ledger.record().due_at, Some(ledger.moment.now + wait * SECOND));
        ledger.pass(wait * SECOND);
    }
}

#[test]
fn s26_backoff_doubles_up_to_its_cap_with_full_jitter() {
    let mut ledger = agreed(1, 4, 9);
    for bound in [1, 2, 4, 4, 4] {
        let permit = ledger.permit();
        let before = ledger.record.clone();
        for (dice, wait) in [(0, 0), (u32::MAX, bound * 1000 - 1), (1 << 31, bound * 500)] {
            ledger.record = before.clone();
            ledger.moment.dice = dice;
            ledger.acted(&permit, not_sent());
            let wait = Duration::from_millis(wait);
            assert_eq!(ledger.record().due_at, Some(ledger.moment.now + wait), "dice {dice}");
        }
        let until = ledger.record().due_at.unwrap();
        assert_eq!(ledger.claim(), Verdict::Wait(Wait { until, cause: WaitCause::NotDue }));
        ledger.pass(4 * SECOND);
    }
}

#[test]
fn s26_retry_after_is_obeyed_and_capped() {
    for (asked, wait) in [(3, 3), (60, 8)] {
        let mut ledger = agreed(1, 8, 9);
        let permit = ledger.permit();
        let retry_after = Some(asked * SECOND);
        ledger.acted(
            &permit,
            Outcome::NotSent { reason: "429".into(), retry_after, counts: Counts::AsAttempt },
        );
        assert_eq!(ledger.record().due_at, Some(ledger.moment.now + wait * SECOND));
    }
}

#[test]
fn s26_out_of_attempts_without_doubt_stays_retryable_and_the_next_claim_starts_a_round() {
    let mut ledger = agreed(0, 0, 2);
    for left in [true, false] {
        let permit = ledger.permit();
        ledger.acted(&permit, not_sent());
        ledger.check(Status::Retryable, false);
        assert_eq!(ledger.record().due_at.is_some(), left);
        assert_eq!(ledger.alerts.contains(&Alert::OutOfAttempts), !left);
    }
    assert_eq!(ledger.permit().attempt, 1);
}

#[test]
fn s23_out_of_attempts_in_doubt_goes_to_review() {
    let mut ledger = Ledger::agreed(Policy { attempts_max: 1, ..Policy::new(Recovery::Repeat) });
    let permit = ledger.permit();
    ledger.acted(&permit, unknown());
    ledger.check(Status::Review, true);
}

#[test]
fn s19_a_partial_outcome_goes_to_review_whatever_the_class() {
    for recovery in [Recovery::Repeat, lookup(), native_key(None)] {
        let mut ledger = Ledger::new(recovery);
        let permit = ledger.permit();
        ledger.acted(&permit, Outcome::Unknown { reason: "207".into(), retry_after: None, park: true });
        ledger.check(Status::Review, true);
    }
}

#[test]
fn a_command_about_nothing_is_refused() {
    let mut ledger = Ledger::new(Recovery::Person);
    check_refused(ledger.expire(), Refusal::NoSuchIntent);
    check_refused(ledger.ask(), Refusal::NoSuchIntent);
}
