//! What time alone does.

use std::sync::Arc;
use std::time::Duration;

use twicesafe_ledger::{
    Alert, Answer, ApprovalRule, Claimed, Error, Intent, Ledger, ManualClock, Open, Policy, Recovery,
    Refusal, Status,
};

use crate::world::{Folder, Shop};

async fn ledger_with_clock(folder: &Folder) -> (Ledger, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::at(1_800_000_000_000));
    (Open::at(&folder.sqlite()).clock(clock.clone()).open().await.unwrap(), clock)
}

fn order(key: &str, recovery: Recovery) -> Intent {
    Intent::new("shop/order", key).unwrap().policy(Policy::new(recovery)).wait(Duration::ZERO)
}

async fn status(ledger: &Ledger, intent: &Intent) -> (Status, bool) {
    let stored = ledger.store().find(intent.name()).await.unwrap().unwrap();
    (stored.record.status, stored.record.doubt)
}

/// Time passes in steps that are no jump.
async fn pass(ledger: &Ledger, clock: &ManualClock, span: Duration) {
    let step = Duration::from_secs(20);
    let mut left = span;
    while !left.is_zero() {
        clock.advance(left.min(step));
        ledger.store().now().await.unwrap();
        left = left.saturating_sub(step);
    }
}

#[tokio::test]
async fn s24_a_lapsed_lease_is_decided_by_class_and_never_runs_again_by_itself() {
    let folder = Folder::new();
    let (ledger, clock) = ledger_with_clock(&folder).await;
    let native = Recovery::NativeKey { retention: Duration::from_secs(86_400), lookup: None };
    let lookup = Recovery::Lookup(Default::default());
    let classes = [
        (Recovery::Person, Status::Review),
        (Recovery::Repeat, Status::Retryable),
        (native, Status::Retryable),
        (lookup, Status::Pending),
    ];
    let intents: Vec<_> =
        classes.iter().enumerate().map(|(i, (class, _))| order(&format!("o{i}"), class.clone())).collect();
    for intent in &intents {
        let Claimed::Proceed(permit) = ledger.claim(intent).await.unwrap() else { panic!() };
        // Its holder is gone: no heartbeat, no report.
        drop(permit);
    }
    let mut alarms = ledger.alarms();
    pass(&ledger, &clock, Duration::from_secs(59)).await;
    assert_eq!(ledger.sweep().await.unwrap().expired, 0);
    pass(&ledger, &clock, Duration::from_secs(1)).await;
    assert_eq!(ledger.sweep().await.unwrap().expired, 4);
    for (intent, (class, expected)) in intents.iter().zip(&classes) {
        assert_eq!(status(&ledger, intent).await, (*expected, true), "{class:?}");
    }
    assert!(matches!(alarms.recv().await.unwrap().alert, Alert::Review { blocks: None }));
    // Nobody can look up here: in the end a person has to.
    pass(&ledger, &clock, Duration::from_secs(3600)).await;
    assert_eq!(ledger.sweep().await.unwrap().expired, 1);
    assert_eq!(status(&ledger, &intents[3]).await, (Status::Review, true));
}

#[tokio::test]
async fn s30_an_approval_nobody_gave_in_time_is_a_rejection() {
    let folder = Folder::new();
    let (ledger, clock) = ledger_with_clock(&folder).await;
    let held = order("o", Recovery::Person)
        .approval(ApprovalRule { expires_after: Duration::from_secs(60), ..Default::default() });
    assert!(matches!(ledger.claim(&held).await.unwrap(), Claimed::Hold { .. }));
    pass(&ledger, &clock, Duration::from_secs(60)).await;
    ledger.sweep().await.unwrap();
    assert_eq!(status(&ledger, &held).await, (Status::Rejected, false));
}

#[tokio::test]
async fn s28_answers_then_tombstones_are_purged_and_the_key_is_new_after_that() {
    let folder = Folder::new();
    let (ledger, clock) = ledger_with_clock(&folder).await;
    let policy = Policy {
        retention: Duration::from_secs(600),
        tombstone: Duration::from_secs(1200),
        ..Policy::default()
    };
    let brief = order("o", Recovery::Person).policy(policy);
    let shop = Shop::default();
    let act = |shop: &Shop| {
        let shop = shop.clone();
        move |_| async move { shop.take() }
    };
    ledger.run(brief.clone(), act(&shop)).await.unwrap();
    pass(&ledger, &clock, Duration::from_secs(700)).await;
    assert_eq!(ledger.sweep().await.unwrap().purged, 0, "looked at a little later than the rule asks for");
    pass(&ledger, &clock, Duration::from_secs(3600)).await;
    assert_eq!(
        ledger.sweep().await.unwrap().purged,
        1,
        "the answer; the tombstone's time counts from here on"
    );
    assert_eq!(ledger.sweep().await.unwrap().purged, 0);
    pass(&ledger, &clock, Duration::from_secs(3600)).await;
    assert_eq!(ledger.sweep().await.unwrap().purged, 1);
    assert!(!ledger.run(brief.clone(), act(&shop)).await.unwrap().replayed);
    let longer = order("p", Recovery::Person)
        .policy(Policy { retention: Duration::from_secs(600), ..Policy::default() });
    ledger.run(longer.clone(), act(&shop)).await.unwrap();
    pass(&ledger, &clock, Duration::from_secs(4300)).await;
    ledger.sweep().await.unwrap();
    let error = ledger.run(longer, act(&shop)).await.unwrap_err();
    assert!(matches!(error, Error::Ledger(Refusal::Purged)), "{error}");
}

#[tokio::test]
async fn s10_a_clock_that_jumps_does_not_end_leases_at_once() {
    let folder = Folder::new();
    let (ledger, clock) = ledger_with_clock(&folder).await;
    let intent = order("o", Recovery::Person);
    let Claimed::Proceed(permit) = ledger.claim(&intent).await.unwrap() else { panic!() };
    clock.jump(3_600_000);
    assert_eq!(ledger.sweep().await.unwrap().expired, 0, "the holder may be alive");
    clock.jump(-7_200_000);
    assert_eq!(ledger.sweep().await.unwrap().expired, 0);
    permit.settle(Ok(Answer::of("done"))).await.unwrap();
    assert_eq!(status(&ledger, &intent).await, (Status::Done, false));
    let other = order("p", Recovery::Person);
    let Claimed::Proceed(permit) = ledger.claim(&other).await.unwrap() else { panic!() };
    drop(permit);
    pass(&ledger, &clock, Duration::from_secs(121)).await;
    assert_eq!(ledger.sweep().await.unwrap().expired, 1, "time goes on all the same");
}

#[tokio::test]
async fn s31_what_is_due_is_handed_to_whoever_can_act() {
    let folder = Folder::new();
    let (ledger, clock) = ledger_with_clock(&folder).await;
    let later = order("o", Recovery::Person).request("socks");
    assert!(matches!(ledger.accept(&later, Duration::from_secs(10)).await.unwrap(), Claimed::Wait { .. }));
    let handed = std::sync::Mutex::new(Vec::new());
    let hand = async |stored: Arc<twicesafe_ledger::Stored>| handed.lock().unwrap().push(stored.id);
    assert_eq!(ledger.each_due(later.name().scope.as_str(), &hand).await.unwrap(), 0);
    pass(&ledger, &clock, Duration::from_secs(10)).await;
    assert_eq!(ledger.each_due(later.name().scope.as_str(), &hand).await.unwrap(), 1);
    let dossier = ledger.dossier(later.name()).await.unwrap().unwrap();
    assert_eq!(dossier.request.unwrap(), "socks");
    assert!(matches!(ledger.claim(&later).await.unwrap(), Claimed::Proceed(_)));
}
