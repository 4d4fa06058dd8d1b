//! One entity is touched by one intent at a time: S15.

use twicesafe_core::journal::Event;
use twicesafe_core::{
    Alert, IntentId, Lane, LaneName, OnReview, Policy, Recovery, Refusal, Resolution, Status, Verdict,
    VersionMeans, Wait, WaitCause, Waiting,
};

use super::ledger::*;

const ME: IntentId = IntentId::new(1);
const OTHER: IntentId = IntentId::new(2);

fn lane(policy: Policy) -> Ledger {
    Ledger::agreed(policy).in_lane(Lane::untouched(ME), Some(5))
}

fn holder(ledger: &Ledger) -> Option<IntentId> {
    ledger.lane.as_ref().unwrap().holder
}

fn check_waits(ledger: &mut Ledger) {
    let wait = Wait { until: ledger.moment.now, cause: WaitCause::Lane(Some(OTHER)) };
    assert_eq!(ledger.claim(), Verdict::Wait(wait));
}

#[test]
fn s15_a_version_is_applied_by_what_is_done_or_given_up_in_doubt_and_by_nothing_else() {
    let applied = |ledger: &Ledger| ledger.lane.as_ref().unwrap().applied;
    for (outcome, status, version) in [
        (answered("a"), Status::Done, Some(5)),
        (refused(), Status::Failed, None),
        (not_sent(), Status::Retryable, None),
        (unknown(), Status::Review, None),
    ] {
        let mut ledger = lane(Policy::new(Recovery::Person));
        let permit = ledger.permit();
        assert_eq!(applied(&ledger), None, "it may still be refused");
        ledger.acted(&permit, outcome);
        assert_eq!((ledger.status(), applied(&ledger)), (status, version));
        if status == Status::Review {
            ledger.resolve(Resolution::GiveUp);
            assert_eq!(applied(&ledger), Some(5), "it may have been applied");
        }
    }
}

#[test]
fn s15_a_lane_is_held_by_pending_and_by_doubt() {
    let mut ledger = lane(Policy::new(Recovery::Repeat));
    ledger.lapse();
    ledger.check(Status::Retryable, true);
    assert_eq!(holder(&ledger), Some(ME));
    ledger.pass(60 * SECOND);
    let permit = ledger.permit();
    ledger.acted(&permit, answered("a"));
    assert_eq!(holder(&ledger), None);
    assert_eq!(ledger.lane.unwrap().applied, Some(5));
}

#[test]
fn s15_backoff_without_doubt_frees_the_lane() {
    let mut ledger = lane(Policy::default());
    let permit = ledger.permit();
    assert_eq!(holder(&ledger), Some(ME));
    ledger.acted(&permit, not_sent());
    assert_eq!(holder(&ledger), None);
}

#[test]
fn s15_review_blocks_or_passes() {
    for (on_review, held) in [(OnReview::Block, Some(ME)), (OnReview::Pass, None)] {
        let mut ledger = lane(Policy { on_review, ..Policy::default() });
        ledger.lapse();
        assert_eq!(holder(&ledger), held);
        let blocks = held.map(|_| LaneName::new("contact:881").unwrap());
        ledger.alerts.clear();
        let mut ledger = lane(Policy { on_review, ..Policy::default() });
        let permit = ledger.permit();
        ledger.acted(&permit, unknown());
        assert_eq!(ledger.alerts, [Alert::Review { blocks }]);
    }
}

#[test]
fn s15_who_finds_the_lane_taken_waits() {
    let mut ledger = lane(Policy::default());
    ledger.lane.as_mut().unwrap().holder = Some(OTHER);
    check_waits(&mut ledger);
    assert_eq!(ledger.last_event(), Event::Queued);
    ledger.lane.as_mut().unwrap().holder = None;
    ledger.permit();
}

#[test]
fn s15_an_older_snapshot_is_superseded() {
    let mut ledger = lane(Policy { version_means: VersionMeans::Snapshot, ..Policy::default() });
    ledger.lane.as_mut().unwrap().applied = Some(6);
    check_refused(ledger.claim(), Refusal::Superseded);
    ledger.check(Status::Superseded, false);
}

#[test]
fn s15_equal_snapshots_apply_in_the_order_of_their_arrival() {
    const EARLIER: IntentId = IntentId::new(0);
    for version in [Some(5), None] {
        let policy = Policy { version_means: VersionMeans::Snapshot, ..Policy::default() };
        let mut ledger = Ledger::agreed(policy).in_lane(Lane::untouched(ME), version);
        let until = ledger.moment.now + SECOND;
        let wait = |intent, version| Some(Waiting { version, intent, until });
        let lane = ledger.lane.as_mut().unwrap();
        // An older one in front of it changes nothing about that.
        lane.first_waiting = wait(OTHER, version.map(|version| version - 1));
        lane.first_equal = wait(EARLIER, version);
        let waits = Wait { until: ledger.moment.now, cause: WaitCause::Lane(Some(EARLIER)) };
        assert_eq!(ledger.claim(), Verdict::Wait(waits));
        // Neither an older one nor an equal one that came later is waited for.
        ledger.lane.as_mut().unwrap().first_equal = wait(OTHER, version);
        ledger.permit();
    }
}

#[test]
fn s15_order_delivers_a_late_one_marked_late_and_equal_versions_as_they_come() {
    for (applied, late) in [(6, true), (5, false), (4, false)] {
        let mut ledger = lane(Policy::default());
        ledger.lane.as_mut().unwrap().applied = Some(applied);
        assert_eq!(ledger.permit().late, late);
    }
}

#[test]
fn s15_order_sorts_what_waits_as_long_as_its_place_is_kept() {
    let mut ledger = lane(Policy::default());
    let until = ledger.moment.now + SECOND;
    ledger.lane.as_mut().unwrap().first_waiting = Some(Waiting { version: Some(4), intent: OTHER, until });
    check_waits(&mut ledger);
    ledger.pass(SECOND);
    ledger.permit();
}

#[test]
fn s15_who_holds_the_lane_in_doubt_does_not_wait_for_those_that_wait_for_it() {
    let mut ledger = lane(Policy::new(Recovery::NativeKey { retention: 86_400 * SECOND, lookup: None }));
    let permit = ledger.permit();
    ledger.acted(&permit, unknown());
    let until = ledger.moment.now + 600 * SECOND;
    ledger.lane.as_mut().unwrap().first_waiting = Some(Waiting { version: Some(4), intent: OTHER, until });
    ledger.permit();
}

#[test]
fn s15_a_lane_stays_closed_until_the_last_of_several_attempts_cannot_arrive() {
    let mut ledger = lane(Policy::new(Recovery::Repeat));
    let first = ledger.permit();
    ledger.acted(&first, unknown());
    let second = ledger.permit();
    ledger.acted(&second, unknown());
    let quiet_at = ledger.moment.now + 60 * SECOND + MILLISECOND;
    ledger.acted(&first, answered("late"));
    ledger.check(Status::Done, false);
    assert_eq!(holder(&ledger), Some(ME), "the second one may still arrive");
    assert_eq!(ledger.record().wake_at(), quiet_at);
    ledger.moment.now = quiet_at;
    ledger.expire();
    assert_eq!((holder(&ledger), ledger.lane.unwrap().applied), (None, Some(5)));
}

#[test]
fn s15_giving_up_frees_the_lane_when_nothing_can_arrive_any_more() {
    let mut ledger = lane(Policy::default());
    let permit = ledger.permit();
    ledger.acted(&permit, unknown());
    ledger.resolve(Resolution::GiveUp);
    assert_eq!(holder(&ledger), Some(ME));
    ledger.pass(60 * SECOND + MILLISECOND);
    ledger.expire();
    assert_eq!(holder(&ledger), None);
    assert_eq!(ledger.lane.unwrap().applied, Some(5), "it may have been applied");
}

#[test]
fn s15_a_lane_follows_only_from_a_record_that_changes() {
    let mut ledger = lane(Policy { on_review: OnReview::Pass, ..Policy::default() });
    let permit = ledger.permit();
    ledger.acted(&permit, unknown());
    ledger.lane.as_mut().unwrap().holder = Some(OTHER);
    ledger.resolve(Resolution::GiveUp);
    assert_eq!(holder(&ledger), Some(OTHER), "another one passed meanwhile");
    // The other one settles while something of this one can still arrive.
    ledger.lane.as_mut().unwrap().holder = None;
    let before = (ledger.record.clone(), ledger.lane.clone());
    check_refused(ledger.claim(), Refusal::GivenUp);
    assert_eq!(
        (ledger.record.clone(), ledger.lane.clone()),
        before,
        "nothing is written, so nothing changes"
    );
}

#[test]
fn s43_who_is_in_doubt_from_the_start_takes_no_lane_away() {
    let mut ledger = Ledger::new(lookup()).in_lane(Lane::untouched(ME), None);
    ledger.lane.as_mut().unwrap().holder = Some(OTHER);
    ledger.moment.recovering_since = Some(ledger.moment.now);
    ledger.claim();
    ledger.check(Status::Pending, true);
    assert_eq!(holder(&ledger), Some(OTHER));
}
