//! The connection is cut around a commit: the store applies again with the same ids, and the caller notices nothing (S12).

use twicesafe_core::{Outcome, Policy, Recovery, Status, Verdict};
use twicesafe_store::{Address, Options, Order, Store};

use super::proxy::{Cut, Proxy};
use crate::conformance::audit;
use crate::orders::{answered, claim, name, permit, settle};
use crate::world::Database;

/// A ledger behind a proxy.
struct Behind {
    database: Database,
    proxy: Proxy,
    store: Store,
}

impl Behind {
    async fn new() -> Self {
        let database = Database::create().await;
        let proxy = Proxy::start().await;
        let address = Address::Postgres(proxy.url(database.name()));
        let store = Store::open(&address, Options::default()).await.unwrap();
        Self { database, proxy, store }
    }

    /// Applies a command whose first commit is cut.
    async fn tell(&self, when: Cut, order: impl Into<Order>) -> twicesafe_store::Applied {
        let cuts = self.proxy.cuts();
        self.proxy.cut(when);
        let applied = self.store.apply_one(order.into()).await.expect("the caller does not notice");
        assert_eq!(self.proxy.cuts(), cuts + 1, "the connection was cut");
        applied
    }

    async fn end(self) {
        drop(self.store);
        let direct = Address::Postgres(self.database.url());
        let store = Store::open(&direct, Options::default()).await.unwrap();
        audit(&store).await;
        drop(store);
        self.database.delete().await;
    }
}

async fn check_that_nobody_notices(when: Cut) {
    let ledger = Behind::new().await;
    let policies = [("durable", Policy::default()), ("relaxed", Policy::new(Recovery::Repeat))];
    for (key, policy) in policies {
        for lane in [false, true] {
            let key = format!("{key} {lane}");
            let mut claiming = claim(&key, &policy);
            if lane {
                claiming = claiming.in_lane(&key, Some(1));
            }
            let claimed = ledger.tell(when, claiming).await;
            assert_eq!(permit(&claimed).fence.number(), 1, "{key}: the one permit there is");
            let settled = ledger.tell(when, settle(&claimed, answered("once"))).await;
            assert!(matches!(settled.verdict, Verdict::Noted(noted) if noted.status == Status::Done));
            let stored = ledger.store.find(&name(&key)).await.unwrap().unwrap();
            let rows = ledger.store.journal(stored.id).await.unwrap();
            assert_eq!(rows.len(), 2, "{key}: one row a transition");
        }
    }
    // In the middle of many, of which some are about the same intent.
    let orders: Vec<Order> =
        (0..60).map(|n| claim(&format!("k{}", n / 3), &Policy::default()).into()).collect();
    ledger.proxy.cut(when);
    let claimed = ledger.store.apply(orders).await;
    let permits: Vec<_> = claimed
        .into_iter()
        .map(Result::unwrap)
        .filter(|applied| matches!(applied.verdict, Verdict::Proceed(_)))
        .collect();
    assert_eq!(permits.len(), 20);
    ledger.proxy.cut(when);
    let reports = permits.iter().map(|claimed| settle(claimed, Outcome::unknown("cut"))).collect();
    for settled in ledger.store.apply(reports).await {
        let stored = settled.unwrap().stored.unwrap();
        assert_eq!(stored.record.status, Status::Review);
        assert_eq!(ledger.store.journal(stored.id).await.unwrap().len(), 2);
    }
    ledger.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s12_cut_before_the_commit() {
    check_that_nobody_notices(Cut::Before).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s12_cut_after_the_commit() {
    check_that_nobody_notices(Cut::After).await;
}

/// Again and again, while many are at work.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s12_cut_many_times_under_load() {
    let ledger = Behind::new().await;
    let callers = (0..8).map(|caller| {
        let store = ledger.store.clone();
        tokio::spawn(async move {
            for n in 0..25 {
                let key = format!("{caller} {n}");
                let claimed = store.apply_one(claim(&key, &Policy::default()).into()).await.unwrap();
                assert_eq!(permit(&claimed).fence.number(), 1);
                store.apply_one(settle(&claimed, answered("once"))).await.unwrap();
            }
        })
    });
    ledger.proxy.cut(Cut::Sometimes);
    futures_util::future::join_all(callers).await.into_iter().for_each(Result::unwrap);
    ledger.proxy.cut(Cut::Never);
    assert!(ledger.proxy.cuts() > 2, "{} cuts", ledger.proxy.cuts());
    let done = audit(&ledger.store).await;
    assert_eq!(done.len(), 200);
    for stored in done {
        assert_eq!(ledger.store.journal(stored.id).await.unwrap().len(), 2);
    }
    ledger.end().await;
}
