//! Callers that leave, and runtimes that end, at every moment: what was not sent is not in doubt.

use std::future::Future;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use twicesafe_ledger::{Claimed, Intent, Ledger, Status};

use crate::world::{Folder, Shop, postgres};

fn order(key: &str) -> Intent {
    Intent::new("shop/order", key).unwrap().wait(Duration::from_secs(5))
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

type Running<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

fn running<'a>(ledger: &'a Ledger, intent: Intent, shop: &Shop) -> Running<'a> {
    let shop = shop.clone();
    Box::pin(async move { drop(ledger.run(intent, move |_| async move { shop.take() }).await) })
}

async fn poll_once(running: &mut Running<'_>) {
    std::future::poll_fn(|context| Poll::Ready(running.as_mut().poll(context).is_ready())).await;
}

async fn standing(ledger: &Ledger, key: &str) -> Option<(Status, bool, u32)> {
    let stored = ledger.store().find(order(key).name()).await.unwrap()?;
    Some((stored.record.status, stored.record.doubt, stored.record.tries))
}

/// Where nothing was sent: it is not there, or may be claimed again.
fn is_untouched(standing: Option<(Status, bool, u32)>) -> bool {
    matches!(standing, None | Some((Status::Retryable, false, _)))
}

#[tokio::test]
async fn s13_a_permit_whose_caller_left_before_it_heard_of_it_is_given_back() {
    let folder = Folder::new();
    for address in [folder.sqlite(), postgres().await] {
        let (ledger, shop) = (Ledger::open(&address).await.unwrap(), Shop::default());
        let mut run = running(&ledger, order("order:1"), &shop);
        poll_once(&mut run).await;
        // The claim is told meanwhile, and nobody listens.
        while standing(&ledger, "order:1").await.is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        drop(run);
        tokio::time::timeout(Duration::from_secs(5), ledger.at_rest()).await.unwrap();
        let now = standing(&ledger, "order:1").await;
        assert!(matches!(now, Some((Status::Retryable, false, _))), "{now:?}");
        assert_eq!(shop.effects(), 0);
        // Whoever comes next acts.
        running(&ledger, order("order:1"), &shop).await;
        assert_eq!(shop.effects(), 1);
    }
}

#[tokio::test]
async fn s13_a_claim_that_is_not_waited_for_leaves_nothing_in_doubt() {
    let folder = Folder::new();
    let ledger = Ledger::open(&folder.sqlite()).await.unwrap();
    let intent = order("order:1");
    let mut claiming = Box::pin(ledger.claim(&intent));
    std::future::poll_fn(|context| Poll::Ready(claiming.as_mut().poll(context).is_ready())).await;
    drop(claiming);
    tokio::time::timeout(Duration::from_secs(5), ledger.at_rest()).await.unwrap();
    assert!(is_untouched(standing(&ledger, "order:1").await));
    // Who has a permit in hand keeps it.
    let Claimed::Proceed(_permit) = ledger.claim(&order("order:2")).await.unwrap() else { panic!() };
    ledger.at_rest().await;
    assert_eq!(standing(&ledger, "order:2").await, Some((Status::Pending, false, 1)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s13_callers_that_leave_at_any_moment_leave_no_doubt_about_what_was_not_sent() {
    const CALLERS: usize = 384;
    let folder = Folder::new();
    let (ledger, shop) = (Ledger::open(&folder.sqlite()).await.unwrap(), Shop::default());
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let (ledger, shop) = (ledger.clone(), shop.clone());
            tokio::spawn(async move {
                let run = running(&ledger, order(&format!("order:{caller}")), &shop);
                // From before the claim is written until after it is answered.
                let _ = tokio::time::timeout(Duration::from_micros(40 * caller as u64), run).await;
            })
        })
        .collect();
    for caller in callers {
        caller.await.unwrap();
    }
    tokio::time::timeout(Duration::from_secs(30), ledger.at_rest()).await.unwrap();
    let mut done = 0;
    for caller in 0..CALLERS {
        match standing(&ledger, &format!("order:{caller}")).await {
            Some((Status::Done, ..)) => done += 1,
            other => assert!(is_untouched(other), "{caller}: {other:?}"),
        }
    }
    assert_eq!(done, shop.effects());
}

/// Nobody asks for it: the runtime is dropped as it is when `main` returns.
#[test]
fn s13_a_runtime_that_ends_leaves_no_doubt_about_what_was_not_sent() {
    let folder = Folder::new();
    let later = runtime();
    for address in [folder.sqlite(), later.block_on(postgres())] {
        let ledger = later.block_on(Ledger::open(&address)).unwrap();
        let shop = Shop::default();
        for turn in 0..40 {
            let key = format!("order:{turn}");
            let ending = runtime();
            ending.block_on(async {
                let (ledger, shop, intent) = (ledger.clone(), shop.clone(), order(&key));
                tokio::spawn(async move { running(&ledger, intent, &shop).await });
                for _ in 0..turn % 4 {
                    tokio::task::yield_now().await;
                }
                tokio::time::sleep(Duration::from_micros(100 * turn)).await;
            });
            drop(ending);
            // At once, and without waiting for a lease.
            match later.block_on(standing(&ledger, &key)) {
                Some((Status::Done, ..)) => {}
                other => assert!(is_untouched(other), "{address} {turn}: {other:?}"),
            }
        }
        let done = later.block_on(ledger.store().list(
            &twicesafe_ledger::Filter { status: Some(Status::Done), ..Default::default() },
            None,
            100,
        ));
        assert_eq!(done.unwrap().intents.len(), shop.effects());
    }
}
