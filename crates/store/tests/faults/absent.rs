//! A database that is not there, or goes away: a coded error within a bounded time, never a hang.

use std::time::Duration;

use tokio::net::TcpListener;
use twicesafe_core::{Code, Policy};
use twicesafe_store::{Address, Options, Store};

use super::check_refused;
use super::proxy::{Cut, Proxy};
use crate::orders::claim;
use crate::world::{Database, at, postgres_url};

/// Nobody is kept waiting for longer than that.
const WAIT_MAX: Duration = Duration::from_secs(25);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_is_not_there_is_away() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let mute = Address::Postgres(format!("postgres://postgres@127.0.0.1:{port}/ledger"));
    let refusing = Address::Postgres("postgres://postgres@127.0.0.1:1/ledger".into());
    let no_such = Address::Postgres(at(&postgres_url(), "no_such_database"));
    tokio::join!(
        in_time(check_refused(&mute, Code::LedgerAway)),
        in_time(check_refused(&refusing, Code::LedgerAway)),
        in_time(check_refused(&no_such, Code::LedgerAway)),
        goes_away(),
    );
}

async fn in_time<T>(answer: impl Future<Output = T>) -> T {
    tokio::time::timeout(WAIT_MAX, answer).await.expect("an answer in time")
}

/// It was there, and is no more; and then it is back.
async fn goes_away() {
    let database = Database::create().await;
    let proxy = Proxy::start().await;
    let store =
        Store::open(&Address::Postgres(proxy.url(database.name())), Options::default()).await.unwrap();
    store.apply_one(claim("before", &Policy::default()).into()).await.unwrap();
    proxy.cut(Cut::Everything);
    let database = database.left();
    let told = in_time(store.apply_one(claim("during", &Policy::default()).into())).await;
    assert_eq!(told.unwrap_err().code(), Code::LedgerAway);
    let database = database.back().await;
    proxy.cut(Cut::Never);
    store.apply_one(claim("after", &Policy::default()).into()).await.unwrap();
    drop(store);
    database.delete().await;
}
