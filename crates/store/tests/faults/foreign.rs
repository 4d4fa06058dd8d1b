//! Databases that cannot be a ledger, or must not be.

use std::process::Command;
use std::time::{Duration, Instant};

use twicesafe_core::{Code, Policy, Verdict};
use twicesafe_store::{Address, Options, Store};

use super::check_refused;
use crate::orders::{answered, claim, name, permit, settle};
use crate::world::{Database, alone, needed};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_of_another_program_is_not_ours() {
    let database = Database::create().await;
    database.run("CREATE TABLE ledger (account text, amount int); INSERT INTO ledger VALUES ('a', 1)").await;
    check_refused(&Address::Postgres(database.url()), Code::LedgerNotOurs).await;
    // It stays as it was.
    database.run("INSERT INTO ledger VALUES ('b', 2)").await;
    database.delete().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ledger_of_a_newer_version_is_left_alone() {
    let database = Database::create().await;
    let address = Address::Postgres(database.url());
    drop(Store::open(&address, Options::default()).await.unwrap());
    database.run("UPDATE ledger SET schema_version = 99").await;
    check_refused(&address, Code::LedgerNewer).await;
    database.delete().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s42_a_database_that_loses_what_it_acknowledged_is_refused() {
    let database = Database::create().await;
    let name = database.name();
    database.run(&format!("ALTER DATABASE {name} SET synchronous_commit = off")).await;
    check_refused(&Address::Postgres(database.url()), Code::UnsafeDurability).await;
    database.run(&format!("ALTER DATABASE {name} SET synchronous_commit = on")).await;
    Store::open(&Address::Postgres(database.url()), Options::default()).await.unwrap();
    database.delete().await;
}

/// What it could not hold it would not hold after the act (S20).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s20_a_database_that_cannot_hold_every_text_is_refused() {
    for encoding in ["LATIN1", "SQL_ASCII"] {
        let database =
            Database::create_with(&format!("ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0")).await;
        check_refused(&Address::Postgres(database.url()), Code::LedgerUnfit).await;
        database.run("CREATE TABLE intent (nothing_of_ours int)").await;
        database.delete().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_search_path_without_a_schema_is_told_what_to_do() {
    let database = Database::create().await;
    let nowhere = Address::Postgres(format!("{}?options=-csearch_path%3Dnowhere", database.url()));
    check_refused(&nowhere, Code::LedgerUnfit).await;
    database.run("CREATE SCHEMA nowhere").await;
    drop(Store::open(&nowhere, Options::default()).await.unwrap());
    database.delete().await;
}

/// As after a move by logical replication, which does not take the sequence along.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s1_a_number_that_is_given_twice_makes_no_second_permit() {
    let database = Database::create().await;
    let open = async || Store::open(&Address::Postgres(database.url()), Options::default()).await.unwrap();
    let store = open().await;
    let claimed = store.apply_one(claim("k", &Policy::default()).into()).await.unwrap();
    let number = claimed.stored.as_ref().unwrap().id.number();
    store.apply_one(settle(&claimed, answered("once"))).await.unwrap();
    database.run(&format!("SELECT setval('intent_number', {number}, false)")).await;
    let again = open().await.apply_one(claim("k", &Policy::default()).into()).await.unwrap();
    assert!(matches!(again.verdict, Verdict::Replay(_)), "{:?}", again.verdict);
    database.delete().await;
}

/// The code that a claim is refused with.
async fn refused(store: &Store, key: &str) -> Option<Code> {
    store.apply_one(claim(key, &Policy::default()).into()).await.err().map(|error| error.code())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s42_every_new_connection_asks_whether_the_database_loses_what_it_acknowledged() {
    let database = Database::create().await;
    let store = Store::open(&Address::Postgres(database.url()), Options::default()).await.unwrap();
    assert_eq!(refused(&store, "before").await, None);
    let end_all = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
                   WHERE datname = current_database() AND pid <> pg_backend_pid()";
    let set =
        |value| format!("ALTER DATABASE {} SET synchronous_commit = {value}; {end_all}", database.name());
    database.run(&set("off")).await;
    for key in ["a", "b"] {
        assert_eq!(refused(&store, key).await, Some(Code::UnsafeDurability));
    }
    assert_eq!(store.find(&name("before")).await.unwrap_err().code(), Code::UnsafeDurability);
    database.run(&set("on")).await;
    assert!(store.find(&name("a")).await.unwrap().is_none(), "nothing was stored");
    assert_eq!(refused(&store, "a").await, None, "and it goes on by itself");
    drop(store);
    database.delete().await;
}

/// `fsync` can be turned off while connections stay, and for good by a restart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s42_fsync_turned_off_beneath_an_open_ledger_stops_it() {
    let restart = needed("TWICESAFE_TEST_PG_RESTART");
    let alone = alone().await;
    let database = Database::create_alone(&alone).await;
    let store = Store::open(&Address::Postgres(database.url()), Options::default()).await.unwrap();
    permit(&store.apply_one(claim("before", &Policy::default()).into()).await.unwrap());
    database.run("ALTER SYSTEM SET fsync = off").await;
    database.run("SELECT pg_reload_conf()").await;
    let reloaded = soon(&store, "reloaded", Some(Code::UnsafeDurability)).await;
    let output = tokio::task::spawn_blocking(move || Command::new("sh").args(["-c", &restart]).output());
    let restarted_well = output.await.unwrap().unwrap().status.success();
    let restarted = soon(&store, "restarted", Some(Code::UnsafeDurability)).await;
    database.run("ALTER SYSTEM RESET fsync").await;
    database.run("SELECT pg_reload_conf()").await;
    let mended = soon(&store, "mended", None).await;
    assert!(reloaded, "noticed without a new connection");
    assert!(restarted_well && restarted, "noticed by the next connection");
    assert!(mended, "and it goes on by itself");
    drop(store);
    database.delete().await;
}

/// `synchronous_commit` can be turned off beneath connections that stay.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s42_a_connection_that_stays_is_asked_again_at_intervals() {
    let alone = alone().await;
    let database = Database::create_alone(&alone).await;
    let store = Store::open(&Address::Postgres(database.url()), Options::default()).await.unwrap();
    permit(&store.apply_one(claim("before", &Policy::default()).into()).await.unwrap());
    database.run("ALTER SYSTEM SET synchronous_commit = off").await;
    database.run("SELECT pg_reload_conf()").await;
    let noticed = soon(&store, "off", Some(Code::UnsafeDurability)).await;
    database.run("ALTER SYSTEM RESET synchronous_commit").await;
    database.run("SELECT pg_reload_conf()").await;
    let mended = soon(&store, "on", None).await;
    assert!(noticed && mended, "noticed {noticed}, mended {mended}");
    drop(store);
    database.delete().await;
}

/// Whether claims come to that before long: a server takes a moment to tell all of its processes.
async fn soon(store: &Store, what: &str, expected: Option<Code>) -> bool {
    let since = Instant::now();
    for n in 0.. {
        if refused(store, &format!("{what} {n}")).await == expected {
            return true;
        }
        if since.elapsed() > Duration::from_secs(10) {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    false
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_takes_no_writes_is_refused_at_once() {
    let database = Database::create().await;
    let address = Address::Postgres(database.url());
    let name = database.name();
    drop(Store::open(&address, Options::default()).await.unwrap());
    database.run(&format!("ALTER DATABASE {name} SET default_transaction_read_only = on")).await;
    check_refused(&address, Code::LedgerReadOnly).await;
    database.delete().await;
}
