//! The last moment to send (S9): counted on the holder's own clock, from before the claim or the renewal was submitted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use twicesafe_ledger::{Attempt, Claimed, Error, Grant, Ledger, ManualClock, Open, Policy, Recovery, Status};

use crate::world::{Folder, actor, intent};

/// A ledger in a file. Its own clock stands still, so that no lease lapses: only the holder's clock runs.
async fn open(folder: &Folder) -> (Ledger, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::at(1_800_000_000_000));
    (Open::at(&folder.sqlite()).clock(clock.clone()).open().await.unwrap(), clock)
}

fn leased(lease: Duration) -> twicesafe_ledger::Intent {
    intent(Recovery::Person).policy(Policy { lease, act_max: Duration::from_secs(60), ..Policy::default() })
}

/// Blocks the thread. Joined with a command, which is polled first, it lets the command be submitted at once and its reply be read
/// only after `span`.
async fn delay_replies(span: Duration) {
    std::thread::sleep(span);
}

const LEASE: Duration = Duration::from_millis(900);

#[tokio::test]
async fn s9_after_a_slow_claim_nothing_is_sent_and_no_act_begins() {
    for retrying in [false, true] {
        let folder = Folder::new();
        let (ledger, _) = open(&folder).await;
        let acted = Arc::new(AtomicBool::new(false));
        let noting = acted.clone();
        let act = move |_: Attempt| {
            noting.store(true, Ordering::SeqCst);
            async { Err(twicesafe_ledger::Trouble::not_sent("it began all the same")) }
        };
        let asked = leased(LEASE).wait(Duration::ZERO);
        let running = async {
            match retrying {
                true => ledger.run_retrying(asked, act).await,
                false => ledger.run(asked, act).await,
            }
        };
        let (result, ()) = tokio::join!(running, delay_replies(LEASE));
        assert!(matches!(result, Err(Error::Pending { .. })), "{result:?}");
        assert!(!acted.load(Ordering::SeqCst), "an act began too late (retrying: {retrying})");
        let stored = ledger.existing(intent(Recovery::Person).name()).await.unwrap();
        assert_eq!((stored.record.status, stored.record.doubt), (Status::Retryable, false));
    }
}

#[tokio::test]
async fn s9_the_time_to_send_counts_from_before_the_claim() {
    for by_id in [false, true] {
        let folder = Folder::new();
        let (ledger, _) = open(&folder).await;
        let asked = leased(LEASE);
        let claiming = async {
            match by_id {
                true => ledger.claim_with(&asked, twicesafe_ledger::new_command_id(), Grant::Permit).await,
                false => ledger.claim(&asked).await,
            }
        };
        let (claimed, ()) = tokio::join!(claiming, delay_replies(LEASE));
        let Claimed::Proceed(permit) = claimed.unwrap() else { panic!("nobody else has it") };
        assert!(
            permit.attempt().check_send().is_err(),
            "the reply took as long as the lease (by id: {by_id})"
        );
    }
}

#[tokio::test]
async fn s9_the_time_to_send_counts_from_before_a_renewal() {
    let folder = Folder::new();
    let (ledger, clock) = open(&folder).await;
    let lease = Duration::from_millis(1500);
    let Claimed::Proceed(permit) = ledger.claim(&leased(lease)).await.unwrap() else { panic!() };
    let attempt = permit.attempt().clone();
    attempt.check_send().unwrap();
    // Somebody else writes to the file for so long that the first renewal, after a third of the lease, is answered late: when what it
    // extends the lease by is over.
    let other = rusqlite::Connection::open(folder.file("ledger.db")).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    clock.advance(Duration::from_millis(1));
    let before = attempt.stored().version;
    tokio::time::sleep(lease + lease * 3 / 4).await;
    assert_eq!(attempt.stored().version, before, "nothing was renewed meanwhile");
    other.execute_batch("ROLLBACK").unwrap();
    while attempt.stored().version == before {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(attempt.check_send().is_err(), "the renewal was submitted long ago");
    // The next one is answered at once.
    let renewed = async {
        while attempt.check_send().is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), renewed).await.expect("the lease is renewed again");
}

#[tokio::test]
async fn s9_the_time_to_send_counts_from_before_the_holder_is_named() {
    let folder = Folder::new();
    let (ledger, _) = open(&folder).await;
    let Claimed::Proceed(permit) = ledger.claim(&leased(LEASE)).await.unwrap() else { panic!() };
    let attempt = permit.attempt();
    attempt.check_send().unwrap();
    let (named, ()) = tokio::join!(ledger.name_holder(attempt, actor("process 7")), delay_replies(LEASE));
    named.unwrap();
    assert!(attempt.check_send().is_err(), "the reply took as long as the lease");
}
