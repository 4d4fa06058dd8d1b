//! PostgreSQL by TLS: what the address asks for is done, or nothing is.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use twicesafe_core::{Code, Policy};
use twicesafe_store::{Address, Options, Store};

use super::check_refused;
use crate::orders::{claim, permit};
use crate::world::{Database, needed};

/// The question whether the server can do TLS.
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];

/// The address of a new ledger, for one of the users who come by TLS only. `localhost` may have other addresses, where nobody listens.
fn address(database: &Database, user: &str, host: &str, parameters: &str) -> Address {
    let url = database.url();
    let (_, place) = url.split_once("postgres@127.0.0.1").expect("the address of the tests' server");
    let folder = needed("TWICESAFE_TEST_PG_CERTIFICATES").replace('/', "%2F");
    let parameters = parameters.replace("FOLDER", &folder);
    Address::Postgres(format!("postgres://{user}@{host}{place}?hostaddr=127.0.0.1&{parameters}"))
}

async fn check_opens(user: &str, host: &str, parameters: &str) {
    let database = Database::create().await;
    let address = address(&database, user, host, parameters);
    let store = Store::open(&address, Options::default()).await.expect(parameters);
    permit(&store.apply_one(claim("a", &Policy::default()).into()).await.expect(parameters));
    drop(store);
    database.delete().await;
}

async fn check_is_refused(user: &str, host: &str, parameters: &str, expected: Code) {
    let database = Database::create().await;
    check_refused(&address(&database, user, host, parameters), expected).await;
    database.delete().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s41_the_line_is_encrypted_where_that_is_asked_for() {
    check_opens("encrypted", "127.0.0.1", "sslmode=require").await;
    check_opens("encrypted", "localhost", "sslmode=prefer").await;
    // Who is let in by TLS only tells that the others did come by TLS.
    check_is_refused("encrypted", "127.0.0.1", "sslmode=disable", Code::LedgerAway).await;
    check_is_refused("encrypted", "127.0.0.1", "application_name=plain", Code::LedgerAway).await;
    // Where nobody insists, a server that does not want TLS is taken as it is.
    check_opens("plain", "127.0.0.1", "sslmode=prefer").await;
    check_is_refused("plain", "127.0.0.1", "sslmode=require", Code::LedgerAway).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s41_who_answers_is_checked_as_far_as_that_is_asked_for() {
    let own = "sslrootcert=FOLDER%2Fca.pem";
    check_opens("encrypted", "localhost", own).await;
    check_opens("encrypted", "localhost", &format!("sslmode=verify-full&{own}")).await;
    check_opens("encrypted", "127.0.0.1", &format!("sslmode=verify-ca&{own}")).await;
    check_opens("encrypted", "127.0.0.1", &format!("sslmode=require&{own}")).await;
    let not_trusted = Code::LedgerNotTrusted;
    check_is_refused("encrypted", "127.0.0.1", own, not_trusted).await;
    check_is_refused("encrypted", "127.0.0.1", &format!("sslmode=verify-full&{own}"), not_trusted).await;
    let another = "sslrootcert=FOLDER%2Fnamed.pem";
    check_is_refused("encrypted", "localhost", &format!("sslmode=verify-full&{another}"), not_trusted).await;
    check_is_refused("encrypted", "localhost", &format!("sslmode=verify-ca&{another}"), not_trusted).await;
    check_is_refused("encrypted", "localhost", &format!("sslmode=require&{another}"), not_trusted).await;
}

/// Of several places the last one may fail for another reason, and that must not hide why.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s41_a_certificate_that_is_not_trusted_is_told_beside_a_place_that_is_away() {
    let database = Database::create().await;
    let url = database.url().replace("postgres@127.0.0.1", "encrypted@127.0.0.1");
    let (server, name) = url.rsplit_once('/').expect("a name");
    let folder = needed("TWICESAFE_TEST_PG_CERTIFICATES");
    let ca = format!("sslmode=verify-full&sslrootcert={folder}/ca.pem");
    check_refused(&Address::Postgres(format!("{server},127.0.0.1:1/{name}?{ca}")), Code::LedgerNotTrusted)
        .await;
    database.delete().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s41_the_server_may_want_to_know_who_asks() {
    let shown = "sslmode=require&sslcert=FOLDER%2Fnamed.pem&sslkey=FOLDER%2Fnamed.key";
    check_opens("named", "localhost", shown).await;
    check_is_refused("named", "localhost", "sslmode=require", Code::LedgerAway).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s41_a_server_without_tls_is_sent_nothing_but_the_question_if_that_is_asked_for() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut question = [0; 8];
        socket.read_exact(&mut question).await.unwrap();
        socket.write_all(b"N").await.unwrap();
        let mut more = Vec::new();
        socket.read_to_end(&mut more).await.unwrap();
        (question, more)
    });
    let url = format!("postgres://me:s3cret@127.0.0.1:{port}/ledger?sslmode=require");
    check_refused(&Address::Postgres(url), Code::LedgerNotTrusted).await;
    let (question, more) = server.await.unwrap();
    assert_eq!(question, SSL_REQUEST);
    assert!(more.is_empty(), "{more:?}");
}

/// A server whose TLS is of no use is taken as it is where nobody insists on it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s41_where_nobody_insists_a_handshake_that_fails_is_gone_without() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let address = Address::Postgres(format!("postgres://me@127.0.0.1:{port}/ledger?sslmode=prefer"));
    let opening = tokio::spawn(async move { Store::open(&address, Options::default()).await.err() });
    let (mut asked, _) = listener.accept().await.unwrap();
    let mut question = [0; 8];
    asked.read_exact(&mut question).await.unwrap();
    assert_eq!(question, SSL_REQUEST);
    asked.write_all(b"Sthis is no handshake").await.unwrap();
    let (mut plain, _) = listener.accept().await.unwrap();
    let mut start = vec![0; 64];
    let length = plain.read(&mut start).await.unwrap();
    assert!(String::from_utf8_lossy(&start[..length]).contains("user"), "it introduces itself");
    opening.abort();
}
