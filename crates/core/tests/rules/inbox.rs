//! What arrives and is carried on by the server alone: S38, and what S15 means for it.

use std::time::Duration;

use twicesafe_core::journal::Event;
use twicesafe_core::{
    Action, Alert, Grant, IntentId, Lane, OnMismatch, OnReview, Policy, Recovery, Refusal, Resolution,
    Status, Timestamp, Verdict, Waiting,
};

use super::ledger::*;

const ME: IntentId = IntentId::new(1);
const OTHER: IntentId = IntentId::new(2);

fn event() -> Policy {
    Policy {
        on_mismatch: OnMismatch::Note,
        unattended: true,
        attempts_max: 2,
        ..Policy::new(Recovery::Repeat)
    }
}

/// Arrives, or arrives again.
fn arrive(ledger: &mut Ledger, input: &str) -> Verdict {
    let mut claim = ledger.claim_of(input);
    claim.grant = Grant::Accept { due_in: Duration::ZERO };
    ledger.run("sender", Action::Claim(Box::new(claim)))
}

/// Uses all attempts up.
fn exhaust(ledger: &mut Ledger, outcome: fn() -> twicesafe_core::Outcome) {
    for _ in 0..2 {
        ledger.pass(600 * SECOND);
        let permit = ledger.permit();
        ledger.acted(&permit, outcome());
    }
    ledger.pass(600 * SECOND);
}

#[test]
fn s38_only_the_key_decides_and_a_difference_is_journalled_once() {
    for settle in [false, true] {
        let mut ledger = Ledger::agreed(event());
        arrive(&mut ledger, "first");
        if settle {
            let permit = permit_in(ledger.claim_with("first"));
            ledger.acted(&permit, answered("a"));
        }
        let before = ledger.record().clone();
        arrive(&mut ledger, "second");
        assert_eq!(ledger.last_event(), Event::Differed);
        let rows = ledger.journal.len();
        arrive(&mut ledger, "second");
        arrive(&mut ledger, "first");
        assert_eq!(ledger.journal.len(), rows, "it is known");
        let after = ledger.record();
        assert_eq!(
            (after.generation, after.status, &after.fingerprint),
            (1, before.status, &before.fingerprint)
        );
    }
}

#[test]
fn s38_a_redelivery_reopens_what_ran_out_of_attempts() {
    for (outcome, status) in [(unknown as fn() -> _, Status::Review), (not_sent, Status::Retryable)] {
        let mut ledger = Ledger::agreed(event());
        arrive(&mut ledger, "input");
        exhaust(&mut ledger, outcome);
        assert_eq!((ledger.record().status, ledger.record().due_at), (status, None));
        assert!(matches!(arrive(&mut ledger, "input"), Verdict::Wait(_)));
        assert_eq!(ledger.record().due_at, Some(ledger.moment.now));
        assert_eq!(ledger.record().doubt, status == Status::Review, "doubt is not forgotten");
        let permit = ledger.permit();
        assert_eq!(permit.attempt, 1);
        ledger.acted(&permit, answered("a"));
        ledger.check(Status::Done, false);
    }
}

#[test]
fn s38_a_review_that_needs_a_person_is_not_reopened() {
    // Nobody knows, and repeating is not harmless: attempts are not what it ran out of.
    let mut ledger = Ledger::agreed(Policy { attempts_max: 1, recovery: Recovery::Person, ..event() });
    arrive(&mut ledger, "input");
    let permit = ledger.permit();
    ledger.acted(&permit, unknown());
    assert_eq!(arrive(&mut ledger, "input"), Verdict::Review);
    // A caller that comes back is not a redelivery.
    let mut ledger = Ledger::agreed(event());
    arrive(&mut ledger, "input");
    exhaust(&mut ledger, unknown);
    assert_eq!(ledger.claim(), Verdict::Review);
    let mut ledger = Ledger::agreed(Policy { unattended: false, ..event() });
    arrive(&mut ledger, "input");
    exhaust(&mut ledger, unknown);
    assert_eq!(arrive(&mut ledger, "input"), Verdict::Review);
}

#[test]
fn s38_what_a_person_parked_stays_so_until_a_person_resets_it() {
    let mut waiting = Ledger::agreed(event());
    arrive(&mut waiting, "input");
    waiting.reject("ada");
    waiting.check(Status::Rejected, false);

    let mut doubtful = Ledger::agreed(event());
    arrive(&mut doubtful, "input");
    let permit = doubtful.permit();
    doubtful.acted(&permit, unknown());
    doubtful.reject("ada");
    doubtful.check(Status::Failed, true);

    let mut reviewed = Ledger::agreed(event());
    arrive(&mut reviewed, "input");
    exhaust(&mut reviewed, unknown);
    reviewed.resolve(Resolution::GiveUp);
    reviewed.check(Status::Failed, true);

    for (ledger, refusal) in [
        (&mut waiting, Refusal::Rejected),
        (&mut doubtful, Refusal::GivenUp),
        (&mut reviewed, Refusal::GivenUp),
    ] {
        let status = ledger.record().status;
        for input in ["input", "other"] {
            assert_eq!(arrive(ledger, input), Verdict::Refuse(refusal.clone()));
        }
        assert_eq!((ledger.record().status, ledger.record().generation), (status, 1));
    }
}

#[test]
fn s38_nobody_parks_what_is_under_way() {
    let mut ledger = Ledger::agreed(event());
    arrive(&mut ledger, "input");
    ledger.permit();
    assert_eq!(ledger.reject("ada"), Verdict::Refuse(Refusal::WrongStatus(Status::Pending)));
}

#[test]
fn s15_an_event_keeps_its_place_while_it_is_tried_again() {
    let mut ledger = Ledger::agreed(event()).in_lane(Lane::untouched(ME), Some(5));
    arrive(&mut ledger, "input");
    assert_eq!(ledger.record().waits_until, Some(Timestamp::NEVER));
    let permit = ledger.permit();
    ledger.acted(&permit, not_sent());
    assert_eq!(ledger.lane.as_ref().unwrap().holder, None, "nothing of it can arrive");
    assert_eq!(ledger.record().waits_until, Some(Timestamp::NEVER), "but the next in order waits for it");

    let mut next = Ledger::agreed(event()).in_lane(Lane::untouched(OTHER), Some(6));
    let first = Waiting { version: Some(5), intent: ME, until: Timestamp::NEVER };
    next.lane.as_mut().unwrap().first_waiting = Some(first);
    assert!(matches!(next.claim(), Verdict::Wait(_)));
}

#[test]
fn s15_out_of_attempts_it_blocks_or_lets_the_others_pass_like_a_review() {
    for (on_review, keeps) in [(OnReview::Block, true), (OnReview::Pass, false)] {
        let policy = Policy { on_review, ..event() };
        let mut ledger = Ledger::agreed(policy).in_lane(Lane::untouched(ME), Some(5));
        arrive(&mut ledger, "input");
        exhaust(&mut ledger, not_sent);
        assert_eq!(ledger.record().waits_until.is_some(), keeps);
        assert!(ledger.alerts.contains(&Alert::OutOfAttempts));
    }
}

#[test]
fn s26_only_being_accepted_again_begins_a_new_round() {
    let mut ledger = Ledger::agreed(event());
    arrive(&mut ledger, "input");
    exhaust(&mut ledger, not_sent);
    // Who carries it on by itself, with an old copy of the record, is nobody who asks again.
    assert!(matches!(ledger.claim(), Verdict::Wait(_)));
    assert_eq!((ledger.record().status, ledger.record().tries), (Status::Retryable, 2));
    arrive(&mut ledger, "input");
    assert_eq!(ledger.permit().attempt, 1);
}

#[test]
fn s29_a_reset_event_is_wanted_again_as_it_was_and_at_once() {
    let mut ledger = Ledger::agreed(event()).in_lane(Lane::untouched(ME), Some(5));
    arrive(&mut ledger, "input");
    let permit = ledger.permit();
    ledger.acted(&permit, answered("a"));
    let fingerprint = ledger.record().fingerprint.clone();
    let before = ledger.record().clone();
    ledger.reset();
    let record = ledger.record();
    assert!(record.wants_the_same(&before), "its request is still the one");
    assert_eq!((record.status, record.generation, &record.fingerprint), (Status::Ready, 2, &fingerprint));
    assert_eq!((record.due_at, record.waits_until), (Some(ledger.moment.now), Some(Timestamp::NEVER)));
    // A redelivery with another body changes nothing about that.
    arrive(&mut ledger, "other");
    assert_eq!(ledger.record().fingerprint, fingerprint);
    // Who comes back itself says what it wants.
    let mut attended = Ledger::agreed(Policy { unattended: false, ..event() });
    let permit = attended.permit();
    attended.acted(&permit, answered("a"));
    let before = attended.record().clone();
    attended.reset();
    assert!(!attended.record().wants_the_same(&before), "who comes back says what is wanted (S31)");
    assert_eq!((attended.record().due_at, &attended.record().fingerprint), (None, &None));
}

#[test]
fn s29_a_reset_snapshot_is_not_superseded_by_what_was_applied_before() {
    let policy = Policy { version_means: twicesafe_core::VersionMeans::Snapshot, ..event() };
    for (mine, before) in [(5, None), (3, Some(5)), (3, Some(3))] {
        let mut lane = Lane::untouched(ME);
        lane.applied = before;
        let mut ledger = Ledger::agreed(policy.clone()).in_lane(lane, Some(mine));
        arrive(&mut ledger, "input");
        match before.is_some_and(|before| before > mine) {
            true => assert_eq!(ledger.claim(), Verdict::Refuse(Refusal::Superseded)),
            false => {
                let permit = ledger.permit();
                ledger.acted(&permit, answered("a"));
            }
        }
        ledger.reset();
        // Nor by what is applied before it gets its turn.
        ledger.lane.as_mut().unwrap().applied = Some(9);
        let permit = ledger.permit();
        ledger.acted(&permit, answered("b"));
        assert_eq!(ledger.lane.as_ref().unwrap().applied, Some(9), "{mine}: it says nothing about versions");
    }
    // What was never applied still is a version.
    let mut ledger = Ledger::agreed(policy).in_lane(Lane::untouched(ME), Some(7));
    arrive(&mut ledger, "input");
    ledger.reject("ann");
    ledger.reset();
    let permit = ledger.permit();
    ledger.acted(&permit, answered("a"));
    assert_eq!(ledger.lane.as_ref().unwrap().applied, Some(7));
}

#[test]
fn s15_a_review_that_is_reopened_does_not_come_after_a_newer_state() {
    let policy = Policy {
        version_means: twicesafe_core::VersionMeans::Snapshot,
        on_review: OnReview::Pass,
        ..event()
    };
    let mut ledger = Ledger::agreed(policy).in_lane(Lane::untouched(ME), Some(1));
    arrive(&mut ledger, "input");
    exhaust(&mut ledger, unknown);
    ledger.check(Status::Review, true);
    ledger.lane.as_mut().unwrap().applied = Some(2);
    assert_eq!(arrive(&mut ledger, "input"), Verdict::Refuse(Refusal::Superseded));
    assert_eq!(ledger.record().status, Status::Superseded);
}
