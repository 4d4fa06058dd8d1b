//! Doubt and recovery by class: S23, S24, S26 (a person's decision), S43.

use std::time::Duration;

use twicesafe_core::journal::Event;
use twicesafe_core::{
    Alert, ApprovalRule, Counts, Finding, IntentId, Lane, Lookup, MachineClock, Outcome, Permit, Policy,
    Recovery, Refusal, Report, Resolution, STUCK_AFTER, Source, Status, Timestamp, Verdict, WaitCause,
};

use super::ledger::*;

#[test]
fn s23_a_refusal_after_doubt_goes_to_review() {
    let mut ledger = Ledger::new(Recovery::Repeat);
    ledger.lapse();
    let second = ledger.permit();
    assert!(second.doubt, "the holder is told");
    ledger.acted(&second, refused());
    ledger.check(Status::Review, true);
}

#[test]
fn s23_not_sent_does_not_clear_doubt() {
    let mut ledger = Ledger::new(Recovery::Repeat);
    ledger.lapse();
    let second = ledger.permit();
    ledger.acted(&second, not_sent());
    ledger.check(Status::Retryable, true);
}

/// An intent in doubt whose next attempt, the last there is, is begun.
fn last_attempt_in_doubt(recovery: Recovery) -> (Ledger, Permit) {
    let mut ledger = Ledger::agreed(Policy { attempts_max: 2, ..Policy::new(recovery) });
    ledger.lapse();
    let permit = ledger.permit();
    (ledger, permit)
}

#[test]
fn s23_not_sent_in_doubt_and_out_of_attempts_follows_the_class() {
    for (recovery, status) in [
        (Recovery::Repeat, Status::Review),
        (native_key(None), Status::Review),
        (native_key(Some(Lookup::default())), Status::Pending),
    ] {
        let (mut ledger, permit) = last_attempt_in_doubt(recovery);
        ledger.acted(&permit, not_sent());
        ledger.check(status, true);
        assert!(!matches!(ledger.claim(), Verdict::Proceed(_)), "nobody may send it again");
    }
}

#[test]
fn s24_not_sent_in_doubt_is_not_tried_again_after_the_destination_forgets_the_key() {
    let after_300_s =
        Outcome::NotSent { reason: "503".into(), retry_after: Some(300 * SECOND), counts: Counts::AsAttempt };
    // The key may be sent for 840 s, of which 60 s are over.
    for (passed, outcome) in [(779, not_sent()), (480, after_300_s)] {
        for (lookup, status) in [(None, Status::Review), (Some(Lookup::default()), Status::Pending)] {
            let mut ledger = Ledger::new(native_key(lookup));
            ledger.lapse();
            ledger.pass(SECOND * passed);
            let permit = ledger.permit();
            ledger.pass(SECOND);
            ledger.acted(&permit, outcome.clone());
            ledger.check(status, true);
        }
    }
}

#[test]
fn s23_an_answer_clears_doubt() {
    let mut ledger = Ledger::new(Recovery::Repeat);
    ledger.lapse();
    let second = ledger.permit();
    ledger.acted(&second, answered("a"));
    ledger.check(Status::Done, false);
}

#[test]
fn s24_person_an_unknown_outcome_and_a_lapsed_lease_go_to_review() {
    let mut ledger = Ledger::new(Recovery::Person);
    let permit = ledger.permit();
    ledger.acted(&permit, unknown());
    ledger.check(Status::Review, true);
    assert_eq!(ledger.alerts, [Alert::Review { blocks: None }]);
    let mut ledger = Ledger::new(Recovery::Person);
    ledger.permit();
    ledger.pass(60 * SECOND);
    assert_eq!(ledger.claim(), Verdict::Review, "whoever meets it first decides");
}

#[test]
fn s24_repeat_is_tried_again() {
    let mut ledger = Ledger::new(Recovery::Repeat);
    ledger.lapse();
    assert_eq!(ledger.last_event(), Event::Lapsed);
    ledger.check(Status::Retryable, true);
    assert_eq!(ledger.permit().attempt, 2);
}

#[test]
fn s24_native_key_is_sent_again_only_within_the_destinations_memory() {
    let mut ledger = Ledger::new(native_key(None));
    ledger.lapse();
    ledger.check(Status::Retryable, true);
    // Retention 1000 s less a margin of 100 s and 60 s in flight, from the first permit on, of which 60 s are over.
    ledger.pass(779 * SECOND);
    assert_eq!(ledger.permit().send_within, SECOND, "send-by ends with the destination's memory");
    ledger.pass(60 * SECOND);
    ledger.expire();
    ledger.check(Status::Review, true);
}

#[test]
fn s24_native_key_beyond_the_horizon_goes_to_review_or_to_a_lookup() {
    for (lookup, status) in [(None, Status::Review), (Some(Lookup::default()), Status::Pending)] {
        let mut ledger = Ledger::new(native_key(lookup));
        ledger.lapse();
        ledger.check(Status::Retryable, true);
        ledger.pass(780 * SECOND);
        assert!(changed(ledger.expire()));
        assert_eq!(ledger.last_event(), Event::OutOfMeans);
        ledger.check(status, true);
    }
}

#[test]
fn s24_native_key_from_before_the_machine_was_started_waits_for_its_clock() {
    let started = |wait| {
        let mut ledger = Ledger::new(native_key(None));
        ledger.lapse();
        let before_start = ledger.moment.now;
        ledger.pass(10 * SECOND);
        ledger.moment.clock = MachineClock::Unset { before_start, wait };
        ledger
    };
    let mut ledger = started(600 * SECOND);
    let Verdict::Wait(wait) = ledger.claim() else { panic!("nobody knows how long it was off") };
    assert_eq!(wait.cause, WaitCause::NotDue);
    ledger.check(Status::Retryable, true);
    ledger.pass(60 * SECOND);
    ledger.moment.clock = MachineClock::Set;
    assert_eq!(ledger.permit().attempt, 2, "it was off for seconds");
    let mut ledger = started(600 * SECOND);
    ledger.moment.clock = MachineClock::Set;
    ledger.moment.ahead = 1000 * SECOND;
    assert_eq!(ledger.claim(), Verdict::Review, "it was off for longer than the destination remembers");
    let mut ledger = started(Duration::ZERO);
    assert_eq!(ledger.claim(), Verdict::Review, "nobody set it in time");
    assert_eq!(ledger.last_event(), Event::OutOfMeans);
}

#[test]
fn s24_the_destinations_memory_counts_anew_once_nothing_is_there() {
    let mut ledger = Ledger::new(native_key(Some(Lookup::default())));
    ledger.lapse();
    ledger.pass(780 * SECOND);
    ledger.expire();
    ledger.check(Status::Pending, true);
    ledger.looked_up(Finding::NotFound);
    ledger.check(Status::Retryable, false);
    ledger.lapse();
    ledger.check(Status::Retryable, true);
}

#[test]
fn s24_what_was_sent_after_the_start_or_needs_no_key_waits_for_no_clock() {
    for (recovery, since_start) in [(native_key(None), 0), (Recovery::Repeat, 30)] {
        let mut ledger = Ledger::new(recovery);
        let before_start = ledger.moment.now.minus(SECOND) + SECOND * since_start;
        ledger.lapse();
        ledger.moment.clock = MachineClock::Unset { before_start, wait: 600 * SECOND };
        assert_eq!(ledger.permit().attempt, 2);
    }
}

#[test]
fn s26_silent_lookups_are_further_and_further_apart() {
    let mut ledger = Ledger::new(lookup());
    ledger.lapse();
    ledger.moment.dice = u32::MAX;
    for seconds in [1, 2, 4] {
        ledger.looked_up(silent());
        let due_at = ledger.moment.now + (SECOND * seconds - MILLISECOND);
        assert_eq!(ledger.record().due_at, Some(due_at));
        assert!(matches!(ledger.ask(), Verdict::Wait(wait) if wait.until == due_at));
        ledger.moment.now = due_at;
    }
}

#[test]
fn s24_a_lookup_is_not_repeated_at_the_very_end_of_its_time() {
    let mut ledger = Ledger::new(lookup());
    ledger.lapse();
    ledger.pass(599 * SECOND);
    let permit = permit_in(ledger.ask());
    ledger.pass(SECOND);
    ledger.settle_as("asker", &permit, Report::Lookup(silent()));
    ledger.check(Status::Review, true);
}

#[test]
fn s24_native_key_without_doubt_has_no_horizon() {
    let mut ledger = Ledger::new(native_key(None));
    let permit = ledger.permit();
    ledger.acted(&permit, not_sent());
    ledger.pass(5000 * SECOND);
    assert_eq!(ledger.permit().send_within, 54 * SECOND);
}

#[test]
fn s24_lookup_found_is_done_and_marked() {
    let mut ledger = Ledger::new(lookup());
    ledger.lapse();
    ledger.check(Status::Pending, true);
    let Verdict::Wait(wait) = ledger.claim() else { panic!("no wait") };
    assert_eq!(wait.cause, WaitCause::LookupDue);
    ledger.looked_up(Finding::Found(answer("a")));
    ledger.check(Status::Done, false);
    assert_eq!(ledger.record().source, Some(Source::Lookup));
    assert_eq!(replayed(ledger.claim()), "a");
}

#[test]
fn s24_who_asks_meets_what_has_lapsed() {
    let mut ledger = Ledger::new(lookup());
    ledger.permit();
    ledger.pass(ledger.policy.lease);
    permit_in(ledger.ask());
    ledger.check(Status::Pending, true);
}

/// When a "not there" begins to count: send-by, in_flight_max, lag, and the millisecond of ledger time's grain.
fn counts_from(ledger: &Ledger) -> Timestamp {
    ledger.moment.now + 54 * SECOND + 60 * SECOND + 5 * SECOND + MILLISECOND
}

#[test]
fn s25_who_may_act_may_find_that_it_is_there_already() {
    let mut ledger = Ledger::new(Recovery::Person);
    let permit = ledger.permit();
    let found = Report::Lookup(Finding::Found(answer("a")));
    assert!(changed(ledger.settle(&permit, found.clone())));
    ledger.check(Status::Done, false);
    assert_eq!(ledger.record().source, Some(Source::Lookup));
    assert!(!changed(ledger.settle(&permit, found)), "said again");
    assert_eq!(replayed(ledger.claim()), "a");
}

#[test]
fn s25_who_may_act_cannot_say_that_a_lookup_found_nothing() {
    let mut ledger = Ledger::new(Recovery::Person);
    let permit = ledger.permit();
    for finding in [Finding::NotFound, silent()] {
        check_refused(ledger.settle(&permit, Report::Lookup(finding)), Refusal::StaleFence);
    }
    ledger.check(Status::Pending, false);
}

#[test]
fn s25_what_is_found_beside_another_effect_is_a_double_one() {
    let mut ledger = Ledger::new(Recovery::Repeat);
    let late = ledger.lapse();
    let next = ledger.permit();
    ledger.acted(&late, answered("a"));
    ledger.settle(&next, Report::Lookup(Finding::Found(answer("b"))));
    assert_eq!(ledger.alerts, [Alert::DoubleEffect]);
}

#[test]
fn s24_not_found_counts_only_when_nothing_can_arrive_any_more() {
    let mut ledger = Ledger::new(lookup());
    let counts_from = counts_from(&ledger);
    ledger.lapse();
    ledger.looked_up(Finding::NotFound);
    ledger.check(Status::Pending, true);
    assert_eq!(ledger.record().due_at, Some(counts_from), "asks again when it would count");
    ledger.moment.now = counts_from.minus(MILLISECOND);
    assert!(matches!(ledger.ask(), Verdict::Wait(_)));
    ledger.moment.now = counts_from;
    ledger.looked_up(Finding::NotFound);
    ledger.check(Status::Retryable, false);
    assert_eq!(ledger.permit().attempt, 2);
}

#[test]
fn s26_what_is_not_there_is_due_at_once_unless_it_is_out_of_attempts() {
    for attempts_max in [1, 2] {
        let mut ledger = Ledger::agreed(Policy { attempts_max, ..Policy::new(lookup()) });
        let counts_from = counts_from(&ledger);
        ledger.lapse();
        ledger.moment.now = counts_from;
        ledger.looked_up(Finding::NotFound);
        ledger.check(Status::Retryable, false);
        let (due_at, alerts) = match attempts_max {
            1 => (None, vec![Alert::OutOfAttempts]),
            _ => (Some(counts_from), vec![]),
        };
        assert_eq!((ledger.record().due_at, &ledger.alerts), (due_at, &alerts));
    }
}

#[test]
fn s24_what_counts_is_when_the_lookup_began() {
    let mut ledger = Ledger::new(lookup());
    let counts_from = counts_from(&ledger);
    ledger.lapse();
    let early = permit_in(ledger.ask());
    ledger.moment.now = counts_from;
    ledger.settle(&early, Report::Lookup(Finding::NotFound));
    ledger.check(Status::Pending, true);
}

#[test]
fn s24_a_silent_lookup_is_repeated_until_its_time_is_over() {
    let mut ledger = Ledger::new(lookup());
    ledger.lapse();
    ledger.looked_up(silent());
    ledger.check(Status::Pending, true);
    permit_in(ledger.ask());
    ledger.pass(60 * SECOND);
    assert!(changed(ledger.expire()), "a lookup not heard of again is silent too");
    ledger.check(Status::Pending, true);
    ledger.pass(540 * SECOND);
    ledger.expire();
    ledger.check(Status::Review, true);
    assert_eq!(ledger.last_event(), Event::OutOfMeans);
}

#[test]
fn s24_nothing_is_looked_up_that_is_not_in_doubt() {
    let mut ledger = Ledger::new(lookup());
    let permit = ledger.permit();
    assert!(matches!(ledger.ask(), Verdict::Wait(_)));
    ledger.acted(&permit, not_sent());
    check_refused(ledger.ask(), Refusal::WrongStatus(Status::Retryable));
}

#[test]
fn s26_a_person_says_that_it_happened() {
    let mut ledger = Ledger::new(Recovery::Person);
    ledger.lapse();
    ledger.resolve(Resolution::Happened(answer("a")));
    ledger.check(Status::Done, false);
    assert_eq!(ledger.record().source, Some(Source::Person));
    assert_eq!(replayed(ledger.claim()), "a");
}

#[test]
fn s26_a_person_cannot_say_that_it_did_not_while_it_could_still_arrive() {
    let mut ledger = Ledger::new(Recovery::Person);
    let permit = ledger.permit();
    ledger.acted(&permit, unknown());
    // Sent at this very millisecond's end, it arrives as late as in the millisecond 60 s later.
    let quiet_at = ledger.moment.now + 60 * SECOND + MILLISECOND;
    ledger.pass(60 * SECOND);
    check_refused(ledger.resolve(Resolution::DidNotHappen), Refusal::TooEarly(quiet_at));
    ledger.pass(MILLISECOND);
    ledger.resolve(Resolution::DidNotHappen);
    ledger.check(Status::Retryable, false);
    assert_eq!(ledger.permit().attempt, 1);
}

#[test]
fn s26_what_a_person_gives_up_stays_in_doubt() {
    let mut ledger = Ledger::new(Recovery::Person);
    ledger.lapse();
    ledger.resolve(Resolution::GiveUp);
    ledger.check(Status::Failed, true);
    check_refused(ledger.claim(), Refusal::GivenUp);
    check_refused(ledger.claim_with("other"), Refusal::Mismatch);
}

#[test]
fn s47_what_is_passed_on_in_doubt_is_stuck_and_said_to_be() {
    for (recovery, in_lane) in
        [(Recovery::Repeat, true), (Recovery::Repeat, false), (native_key(None), false)]
    {
        let mut ledger = Ledger::new(recovery);
        if in_lane {
            ledger = ledger.in_lane(Lane::untouched(IntentId::new(1)), None);
        }
        let permit = ledger.permit();
        ledger.acted(&permit, unknown());
        assert_eq!(ledger.alerts, [], "it is due again");
        let permit = ledger.permit();
        ledger.acted(&permit, passed_on());
        ledger.check(Status::Retryable, true);
        assert_eq!((ledger.record().due_at, &*ledger.alerts), (None, &[Alert::Stuck][..]));
        assert!(ledger.record().is_stuck(ledger.moment.now));
        // A person decides it like a review.
        ledger.pass(60 * SECOND + MILLISECOND);
        ledger.resolve(Resolution::DidNotHappen);
        ledger.check(Status::Retryable, false);
        assert!(!ledger.record().is_stuck(ledger.moment.now));
        ledger.permit();
    }
}

#[test]
fn s47_what_is_passed_on_without_doubt_was_told_to_its_caller() {
    let mut ledger = Ledger::new(Recovery::Repeat);
    let permit = ledger.permit();
    ledger.acted(&permit, passed_on());
    assert_eq!(ledger.alerts, []);
    let mut ledger = Ledger::agreed(Policy { unattended: true, ..Policy::new(Recovery::Repeat) });
    let permit = ledger.permit();
    ledger.acted(&permit, passed_on());
    assert_eq!(ledger.alerts, [Alert::Stuck], "nobody comes back for it");
}

#[test]
fn s47_what_nobody_comes_back_for_is_stuck_after_a_while() {
    let mut ledger = Ledger::new(Recovery::Repeat);
    ledger.lapse();
    let due_at = ledger.record().due_at.unwrap();
    let is_stuck_at = |ledger: &Ledger, at| ledger.record().is_stuck(at);
    assert!(!is_stuck_at(&ledger, (due_at + STUCK_AFTER).minus(MILLISECOND)));
    assert!(is_stuck_at(&ledger, due_at + STUCK_AFTER));
    ledger.pass(STUCK_AFTER + 60 * SECOND);
    ledger.resolve(Resolution::Happened(answer("a")));
    ledger.check(Status::Done, false);
}

#[test]
fn s43_an_unknown_key_is_doubtful_while_the_ledger_recovers() {
    let lookup_too = native_key(Some(Lookup::default()));
    for (recovery, status) in
        [(Recovery::Person, Status::Review), (lookup(), Status::Pending), (lookup_too, Status::Pending)]
    {
        let mut ledger = Ledger::agreed(Policy::new(recovery));
        ledger.moment.recovering_since = Some(ledger.moment.now.minus(900 * SECOND));
        assert!(!matches!(ledger.claim(), Verdict::Proceed(_)));
        ledger.check(status, true);
        assert_eq!(ledger.journal[0].event, Event::Recovering);
    }
}

#[test]
fn s43_repeat_and_a_fresh_enough_native_key_go_on_while_the_ledger_recovers() {
    for (recovery, doubt) in [(Recovery::Repeat, false), (native_key(None), true)] {
        let mut ledger = Ledger::new(recovery);
        ledger.moment.recovering_since = Some(ledger.moment.now.minus(60 * SECOND));
        assert_eq!(ledger.permit().doubt, doubt);
    }
}

#[test]
fn s43_a_known_key_is_doubtful_too_once_in_a_recovery() {
    let approved = |mut ledger: Ledger| {
        ledger.claim();
        ledger.approve("ann");
        ledger.check(Status::Ready, false);
        ledger
    };
    let retryable = |mut ledger: Ledger| {
        let permit = ledger.permit();
        ledger.acted(&permit, not_sent());
        ledger.check(Status::Retryable, false);
        ledger
    };
    let asks = Policy { approval: Some(ApprovalRule::default()), ..Policy::default() };
    for mut ledger in [approved(Ledger::agreed(asks)), retryable(Ledger::new(Recovery::Person))] {
        ledger.pass(3600 * SECOND);
        // What came of it since may be lost: the next one must not act again.
        ledger.moment.recovering_since = Some(ledger.moment.now.minus(900 * SECOND));
        assert!(!matches!(ledger.claim(), Verdict::Proceed(_)));
        ledger.check(Status::Review, true);
        ledger.pass(3600 * SECOND);
        ledger.resolve(Resolution::DidNotHappen);
        // Somebody has looked: it is not asked about again in this recovery, but in the next one.
        let permit = ledger.permit();
        ledger.acted(&permit, not_sent());
        ledger.pass(3600 * SECOND);
        ledger.moment.recovering_since = Some(ledger.moment.now.minus(1800 * SECOND));
        assert!(!matches!(ledger.claim(), Verdict::Proceed(_)));
        ledger.check(Status::Review, true);
    }
}

#[test]
fn s43_a_permit_that_was_lost_with_the_tail_still_tells_that_it_happened() {
    let mut ledger = Ledger::new(Recovery::Person);
    let first = ledger.permit();
    ledger.acted(&first, not_sent());
    ledger.pass(3600 * SECOND);
    let before = ledger.record.clone();
    let lost = ledger.permit();
    ledger.record = before;
    ledger.acted(&lost, answered("inv_1"));
    ledger.check(Status::Done, false);
    assert_eq!(ledger.record().fence, lost.fence, "no later permit has its number");
}
