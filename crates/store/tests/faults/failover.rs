//! A primary that dies, and an asynchronous standby that is promoted in its place (S43).

use std::process::Command;
use std::time::{Duration, Instant};

use twicesafe_core::{Policy, Recovery, Verdict};
use twicesafe_store::{Address, Options, Store};

use crate::orders::{answered, claim, settle};
use crate::world::needed;

/// How long a standby may take to receive what the primary has.
const RECEIVED_MAX: Duration = Duration::from_secs(20);

/// A primary and its standby, gone with the test.
struct Pair {
    name: &'static str,
    ports: (u16, u16),
}

impl Pair {
    async fn start(name: &'static str) -> Self {
        let told = run("start", name).await;
        let mut ports = told.split_whitespace().map(|port| port.parse().unwrap());
        Self { name, ports: (ports.next().unwrap(), ports.next().unwrap()) }
    }

    async fn told(&self, what: &'static str) {
        run(what, self.name).await;
    }

    /// Whichever of the two takes writes.
    fn address(&self) -> Address {
        let (primary, standby) = self.ports;
        Address::Postgres(format!(
            "postgres://postgres@127.0.0.1:{primary},127.0.0.1:{standby}/postgres?target_session_attrs=read-write"
        ))
    }

    /// Waits until the standby has as many intents as that.
    async fn received(&self, intents: i64) {
        let url = format!("postgres://postgres@127.0.0.1:{}/postgres", self.ports.1);
        let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        let since = Instant::now();
        let sql = "SELECT count(*) FROM intent WHERE status = 'done'";
        while client.query_one(sql, &[]).await.is_ok_and(|row| row.get::<_, i64>(0) < intents) {
            assert!(since.elapsed() < RECEIVED_MAX, "the standby does not receive it");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        let _ = Command::new(needed("TWICESAFE_TEST_PG_PAIR")).args(["stop", self.name]).status();
    }
}

async fn run(what: &'static str, name: &'static str) -> String {
    let run = move || Command::new(needed("TWICESAFE_TEST_PG_PAIR")).args([what, name]).output();
    let output = tokio::task::spawn_blocking(run).await.unwrap().unwrap();
    assert!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn by_person() -> Policy {
    Policy::new(Recovery::Person)
}

/// Claims and settles: the effect happened, and the database acknowledged it.
async fn happens(store: &Store, key: &str) {
    let claimed = store.apply_one(claim(key, &by_person()).into()).await.unwrap();
    assert!(matches!(claimed.verdict, Verdict::Proceed(_)), "{:?}", claimed.verdict);
    store.apply_one(settle(&claimed, answered("once"))).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s43_a_failover_that_loses_the_tail_is_noticed_and_nothing_lost_happens_again() {
    let pair = Pair::start("lossy").await;
    let store = Store::open(&pair.address(), Options::default()).await.unwrap();
    happens(&store, "received").await;
    pair.received(1).await;
    pair.told("cut").await;
    let before = store.now().await.unwrap();
    happens(&store, "lost").await;
    pair.told("fail").await;
    let again = store.apply_one(claim("lost", &by_person()).into()).await.unwrap();
    assert!(matches!(again.verdict, Verdict::Review), "it happened already: {:?}", again.verdict);
    let since = store.recovering_since().await.unwrap().expect("it recovers");
    assert!(since <= before, "since the last write that is there");
    assert_eq!(store.lost_since(), Some(since), "and somebody can be told");
    let known = store.apply_one(claim("received", &by_person()).into()).await.unwrap();
    assert!(matches!(known.verdict, Verdict::Replay(_)), "{:?}", known.verdict);
    // A person ended it: it is not found again by the next look.
    store.recover_since(None).await.unwrap();
    let other = Store::open(&pair.address(), Options::default()).await.unwrap();
    happens(&other, "afterwards").await;
    assert_eq!(store.recovering_since().await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s43_a_failover_that_loses_nothing_is_no_recovery() {
    let pair = Pair::start("whole").await;
    let store = Store::open(&pair.address(), Options::default()).await.unwrap();
    for n in 0..3 {
        happens(&store, &format!("k{n}")).await;
    }
    pair.received(3).await;
    pair.told("fail").await;
    happens(&store, "afterwards").await;
    assert_eq!(store.recovering_since().await.unwrap(), None);
    assert_eq!(store.lost_since(), None);
}
