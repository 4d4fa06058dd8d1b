//! PostgreSQL by TLS: what the address asks for is done, or nothing is.

use twicesafe_core::{Code, Policy};
use twicesafe_store::{Address, Options, Store};

use super::check_refused;
use crate::orders::{claim, permit};
use crate::world::{Database, needed};

/// The address of a new ledger, for one of the users who come by TLS only.
async fn address(user: &str, host: &str, parameters: &str) -> (Database, Address) {
    let database = Database::create().await;
    let url = database.url().replace("postgres@127.0.0.1", &format!("{user}@{host}"));
    let folder = needed("TWICESAFE_TEST_PG_CERTIFICATES");
    let parameters = parameters.replace("FOLDER", &folder.replace('/', "%2F"));
    let separator = if url.contains('?') { '&' } else { '?' };
    (database, Address::Postgres(format!("{url}{separator}{parameters}")))
}

async fn check_opens(user: &str, host: &str, parameters: &str) {
    let (_database, address) = address(user, host, parameters).await;
    let store = Store::open(&address, Options::default()).await.expect(parameters);
    permit(&store.apply_one(claim("a", &Policy::default()).into()).await.expect(parameters));
}

async fn check_is_refused(user: &str, host: &str, parameters: &str, expected: Code) {
    let (_database, address) = address(user, host, parameters).await;
    check_refused(&address, expected).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s41_the_line_is_encrypted_where_that_is_asked_for() {
    check_opens("encrypted", "127.0.0.1", "sslmode=require").await;
    check_opens("encrypted", "localhost", "sslmode=prefer").await;
    // Who is let in by TLS only tells that the others did come by TLS.
    check_is_refused("encrypted", "127.0.0.1", "sslmode=disable", Code::LedgerAway).await;
    check_is_refused("encrypted", "127.0.0.1", "application_name=plain", Code::LedgerAway).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s41_who_answers_is_checked_as_far_as_that_is_asked_for() {
    let own = "sslrootcert=FOLDER%2Fca.pem";
    check_opens("encrypted", "localhost", &format!("sslmode=verify-full&{own}")).await;
    check_opens("encrypted", "127.0.0.1", &format!("sslmode=verify-ca&{own}")).await;
    check_opens("encrypted", "127.0.0.1", &format!("sslmode=require&{own}")).await;
    let not_trusted = Code::LedgerNotTrusted;
    check_is_refused("encrypted", "127.0.0.1", &format!("sslmode=verify-full&{own}"), not_trusted).await;
    let another = "sslrootcert=FOLDER%2Fnamed.pem";
    check_is_refused("encrypted", "localhost", &format!("sslmode=verify-full&{another}"), not_trusted).await;
    check_is_refused("encrypted", "localhost", &format!("sslmode=verify-ca&{another}"), not_trusted).await;
    check_is_refused("encrypted", "localhost", &format!("sslmode=require&{another}"), not_trusted).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s41_the_server_may_want_to_know_who_asks() {
    let shown = "sslmode=require&sslcert=FOLDER%2Fnamed.pem&sslkey=FOLDER%2Fnamed.key";
    check_opens("named", "localhost", shown).await;
    check_is_refused("named", "localhost", "sslmode=require", Code::LedgerAway).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s41_a_server_without_tls_is_not_sent_anything_if_that_is_asked_for() {
    let pooler = needed("TWICESAFE_TEST_PGBOUNCER");
    check_refused(&Address::Postgres(format!("{pooler}?sslmode=require")), Code::LedgerNotTrusted).await;
    check_refused(&Address::Postgres(format!("{pooler}?sslmode=verify-full")), Code::LedgerNotTrusted).await;
}
