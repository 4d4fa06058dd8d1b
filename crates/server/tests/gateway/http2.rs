//! Destinations that speak HTTP/2 over TLS, with an authority of their own.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpListener;
use twicesafe_ledger::{Ledger, ManualClock};

use super::*;

pub(super) fn file(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tls").join(name).display().to_string()
}

/// Refuses the first streams, resets the next ones, answers the rest. Counts what it acted on.
async fn destination(refused: usize, reset: usize, acted: Arc<AtomicUsize>) -> u16 {
    destination_for(refused, reset, acted, None).await
}

/// Returns what a server with our certificate needs, which may ask who comes.
pub(super) fn tls(protocol: &str, asks_who: bool) -> rustls::ServerConfig {
    let chain: Vec<CertificateDer<'static>> =
        CertificateDer::pem_file_iter(file("cert.pem")).unwrap().map(Result::unwrap).collect();
    let key = PrivateKeyDer::from_pem_file(file("key.pem")).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = rustls::RootCertStore::empty();
    CertificateDer::pem_file_iter(file("ca.pem")).unwrap().for_each(|ca| roots.add(ca.unwrap()).unwrap());
    let verifier =
        rustls::server::WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
            .build();
    let builder =
        rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let builder = match asks_who {
        true => builder.with_client_cert_verifier(verifier.unwrap()),
        false => builder.with_no_client_auth(),
    };
    let mut config = builder.with_single_cert(chain, key).unwrap();
    config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    config
}

/// The same; where it asks who comes, callers must show a certificate of our authority, over that protocol.
async fn destination_for(
    refused: usize,
    reset: usize,
    acted: Arc<AtomicUsize>,
    asks_who: Option<&'static str>,
) -> u16 {
    let config = tls(asks_who.unwrap_or("h2"), asks_who.is_some());
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let seen = Arc::new(AtomicUsize::new(0));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, seen, acted) = (acceptor.clone(), seen.clone(), acted.clone());
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                let mut connection = h2::server::handshake(stream).await.unwrap();
                while let Some(Ok((_, mut respond))) = connection.accept().await {
                    let number = seen.fetch_add(1, Ordering::SeqCst);
                    if number < refused {
                        respond.send_reset(h2::Reason::REFUSED_STREAM);
                        continue;
                    }
                    acted.fetch_add(1, Ordering::SeqCst);
                    if number < refused + reset {
                        respond.send_reset(h2::Reason::INTERNAL_ERROR);
                        continue;
                    }
                    let head = hyper::Response::builder().status(201).body(()).unwrap();
                    let mut body = respond.send_response(head, false).unwrap();
                    body.send_data(r#"{"access_token":"t"}"#.into(), true).unwrap();
                }
            });
        }
    });
    port
}

pub(super) async fn world(port: u16, tls: &str) -> World {
    world_with(port, "none", tls).await
}

async fn world_with(port: u16, auth: &str, tls: &str) -> World {
    let yaml = format!(
        "destinations:
  crm:
    base: https://localhost:{port}
    auth: {auth}
    tls: {{ {tls} }}
    retries: {{ base: 10ms, cap: 20ms }}
    circuit: {{ failures: 0 }}
    wait: 2s
    routes:
      - {{ match: POST /contacts, action: contact.create, key: request.body.id, recovery: person }}
      - {{ match: 'DELETE /contacts/{{id}}', action: contact.delete, key: request.params.id, recovery: person }}
"
    );
    let ledger = Ledger::open("memory:").await.unwrap();
    World::on(ledger, Arc::new(ManualClock::at(0)), &yaml).await
}

#[tokio::test]
async fn s16_a_refused_stream_was_not_looked_at_and_goes_again() {
    let acted = Arc::new(AtomicUsize::new(0));
    let world = world(destination(2, 0, acted.clone()).await, &format!("ca: {}", file("ca.pem"))).await;
    let heard = world.post("/to/crm/contacts", &contact("a")).await;
    assert_eq!((heard.status, heard.headers["twicesafe-attempt"].as_str()), (201, "3"), "{heard:?}");
    assert_eq!(acted.load(Ordering::SeqCst), 1);
    assert_eq!(world.post("/to/crm/contacts", &contact("b")).await.status, 201);
    assert_eq!(world.post("/to/crm/contacts", &contact("a")).await.headers["idempotent-replayed"], "true");
    assert_eq!(acted.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn s17_a_stream_that_was_reset_may_have_acted() {
    let acted = Arc::new(AtomicUsize::new(0));
    let world = world(destination(0, 1, acted.clone()).await, &format!("ca: {}", file("ca.pem"))).await;
    for _ in 0..2 {
        world.post("/to/crm/contacts", &contact("a")).await.refused(423, "TS0016");
    }
    assert_eq!(acted.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn s16_a_certificate_nobody_trusts_stops_everything_before_it_is_sent() {
    let acted = Arc::new(AtomicUsize::new(0));
    let port = destination(0, 0, acted.clone()).await;
    let yaml = format!(
        "destinations:\n  crm: {{ base: 'https://localhost:{port}', auth: none, wait: 200ms, routes: [ {{ match: POST /contacts, action: contact.create, key: request.body.id }} ] }}\n"
    );
    let world = World::configured(&yaml).await;
    let heard = world.post("/to/crm/contacts", &contact("a")).await;
    heard.refused(409, "TS0015");
    assert_eq!((heard.json["intent_status"].as_str(), acted.load(Ordering::SeqCst)), (Some("retryable"), 0));
}

#[tokio::test]
async fn s16_a_destination_that_asks_who_comes_is_shown_a_certificate_and_without_one_nothing_was_sent() {
    let acted = Arc::new(AtomicUsize::new(0));
    let (ca, certificate, key) = (file("ca.pem"), file("cert.pem"), file("key.pem"));
    for protocol in ["http/1.1", "h2"] {
        let port = destination_for(0, 0, acted.clone(), Some(protocol)).await;
        let nobody = world(port, &format!("ca: {ca}")).await;
        for id in 0..20 {
            let heard = nobody.post("/to/crm/contacts", &contact(&id.to_string())).await;
            heard.refused(409, "TS0015");
            assert_eq!(heard.json["intent_status"], "retryable", "{protocol}: {heard:?}");
            assert!(heard.text.contains("client certificate"), "{protocol}: {heard:?}");
        }
    }
    assert_eq!(acted.load(Ordering::SeqCst), 0);
    let port = destination_for(0, 0, acted.clone(), Some("h2")).await;
    let known = world(port, &format!("ca: {ca}, certificate: {certificate}, key: {key}")).await;
    assert_eq!(known.post("/to/crm/contacts", &contact("a")).await.status, 201);
    assert_eq!(acted.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn tokens_are_fetched_from_whom_the_destination_is_trusted_by() {
    let acted = Arc::new(AtomicUsize::new(0));
    let port = destination(0, 0, acted.clone()).await;
    let auth = |url: &str| format!("{{ oauth: {{ token_url: '{url}', client_id: me, client_secret: s }} }}");
    let tls = format!("ca: {}", file("ca.pem"));
    let trusting = world_with(port, &auth(&format!("https://localhost:{port}/token")), &tls).await;
    let heard = trusting.post("/to/crm/contacts", &contact("a")).await;
    assert_eq!(heard.status, 201, "{heard:?}");
    let lost = world_with(port, &auth("http://127.0.0.1:1/token"), &tls).await;
    let heard = lost.post("/to/crm/contacts", &contact("a")).await;
    heard.refused(409, "TS0015");
    assert!(heard.text.contains("no token was given: cannot connect to 127.0.0.1:1"), "{heard:?}");
}
