//! A ledger of its own for every test, and a destination that counts.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use twicesafe_ledger::{Actor, Answer, Intent, Ledger, Policy, Recovery, Trouble};

/// A folder that goes with the test.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("twicesafe-ledger-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub(crate) fn sqlite(&self) -> String {
        format!("sqlite:{}", self.file("ledger.db").display())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A PostgreSQL database of its own.
pub(crate) async fn postgres() -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let admin = std::env::var("TWICESAFE_TEST_POSTGRES")
        .expect("run scripts/test, which starts PostgreSQL and PgBouncer");
    let name = format!("ledger_{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let (client, connection) = tokio_postgres::connect(&admin, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client.batch_execute(&format!("CREATE DATABASE {name}")).await.unwrap();
    format!("{}/{name}", admin.rsplit_once('/').unwrap().0)
}

pub(crate) async fn memory() -> Ledger {
    Ledger::open("memory:").await.unwrap()
}

pub(crate) fn actor(name: &str) -> Actor {
    Actor::new(name).unwrap()
}

/// An intent with short times.
pub(crate) fn intent(recovery: Recovery) -> Intent {
    let mut policy = Policy::new(recovery);
    policy.in_flight_max = Duration::from_millis(1);
    policy.backoff.base = Duration::from_millis(1);
    Intent::new("shop/order", "order:1").unwrap().input("socks").policy(policy)
}

/// Counts what reaches it.
#[derive(Clone, Default)]
pub(crate) struct Shop(Arc<AtomicUsize>);

impl Shop {
    pub(crate) fn effects(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }

    /// Takes an order.
    pub(crate) fn take(&self) -> Result<Answer, Trouble> {
        let number = self.0.fetch_add(1, Ordering::SeqCst) + 1;
        Ok(Answer::of(format!("thank you for order {number}")).with_external_id(&format!("shop-{number}")))
    }
}
