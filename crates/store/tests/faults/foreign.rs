//! Databases that cannot be a ledger, or must not be.

use twicesafe_core::Code;
use twicesafe_store::{Address, Options, Store};

use super::check_refused;
use crate::world::Database;

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
