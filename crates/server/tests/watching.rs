//! What lets people watch the server, and TLS.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use twicesafe_server::Server;

use crate::alerts::Hook;
use crate::world::{Heard, World, claim, configuration};

#[tokio::test]
async fn traces_continue_the_callers() {
    let hook = Hook::start().await;
    let world =
        World::configured(&format!("traces: {{ otlp: \"{}\", headers: {{ x-key: secret }} }}\n", hook.url()))
            .await;
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let headers = [("content-type", "application/json"), ("traceparent", parent)];
    world.send("POST", "/v1/claim", &headers, claim("1").to_string().as_bytes()).await;
    let told = hook.next().await;
    let span = &told["resourceSpans"][0]["scopeSpans"][0]["spans"][0];
    assert_eq!(span["traceId"], "0af7651916cd43dd8448eb211c80319c");
    assert_eq!(span["parentSpanId"], "b7ad6b7169203331");
    assert_eq!(span["name"], "POST /v1/claim");
    let nanos = |field: &str| span[field].as_str().unwrap().parse::<u64>().unwrap();
    assert!(nanos("startTimeUnixNano") <= nanos("endTimeUnixNano"));
    let status =
        span["attributes"].as_array().unwrap().iter().find(|one| one["key"] == "http.response.status_code");
    assert_eq!(status.unwrap()["value"], json!({ "intValue": "201" }));
    assert!(!told.to_string().contains("billing"), "neither scopes nor keys leave: {told}");
    world.stop().await;
}

fn tls_files() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/tls")
}

/// Somebody who trusts the authority of these files, connected.
async fn secured(world: &World) -> tokio_rustls::client::TlsStream<TcpStream> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(tls_files().join("ca.pem")).unwrap()).unwrap();
    let config = rustls::ClientConfig::builder_with_provider(rustls::crypto::ring::default_provider().into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(world.address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap()
}

#[tokio::test]
async fn a_renewed_certificate_is_shown_after_a_reload_and_a_bad_one_is_not() {
    let folder = std::env::temp_dir().join(format!("twicesafe-server-tls-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let [certificate, key] = ["cert.pem", "key.pem"].map(|name| {
        std::fs::copy(tls_files().join(name), folder.join(name)).unwrap();
        folder.join(name)
    });
    let yaml = format!("tls: {{ certificate: \"{}\", key: \"{}\" }}\n", certificate.display(), key.display());
    let world = World::configured(&yaml).await;
    let shown = async || secured(&world).await.get_ref().1.peer_certificates().unwrap().len();
    assert_eq!(shown().await, 1);
    // The same certificate, together with the one of its authority.
    let [own, authority] = ["cert.pem", "ca.pem"].map(|name| std::fs::read(tls_files().join(name)).unwrap());
    std::fs::write(&certificate, [&*own, &*authority].concat()).unwrap();
    assert_eq!(shown().await, 1, "not before somebody says so");
    world.control.reload(configuration(&yaml)).await.unwrap();
    assert_eq!(shown().await, 2);
    for wrong in [b"rubbish".to_vec(), authority] {
        std::fs::write(&certificate, wrong).unwrap();
        assert_eq!(
            world.control.reload(configuration(&yaml)).await.unwrap_err().code().unwrap().as_str(),
            "TS0080"
        );
        assert_eq!(shown().await, 2, "the old one stays");
    }
    world.stop().await;
    std::fs::remove_dir_all(folder).unwrap();
}

#[tokio::test]
async fn the_server_speaks_tls() {
    let at = |name: &str| tls_files().join(name).display().to_string();
    let yaml = format!("tls: {{ certificate: \"{}\", key: \"{}\" }}\n", at("cert.pem"), at("key.pem"));
    let world = World::configured(&yaml).await;
    let mut stream = secured(&world).await;
    stream.write_all(b"GET /readyz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes).await;
    assert_eq!(Heard::parse(&bytes).json["status"], "ready");
    assert_eq!(world.get("/readyz").await.status, 0, "in the clear there is no answer");
    world.stop().await;
    let wrong = configuration(&format!(
        "tls: {{ certificate: \"{}\", key: \"{}\" }}\n",
        at("key.pem"),
        at("key.pem")
    ));
    let world = World::new().await;
    assert_eq!(
        Server::start(world.ledger.clone(), wrong).await.map(drop).unwrap_err().code().unwrap().as_str(),
        "TS0080"
    );
    world.stop().await;
}

#[tokio::test]
async fn the_public_listener_shows_nothing_of_the_api() {
    let world = World::new().await;
    let mut two = configuration("");
    two.listen.public = "127.0.0.1:0".parse().unwrap();
    two.listen.admin = "127.0.0.2:0".parse().unwrap();
    let server = Server::start(world.ledger.clone(), two).await.unwrap();
    let addresses: Vec<_> = server.addresses();
    assert_eq!(addresses.len(), 2);
    let control = server.control();
    let serving = tokio::spawn(server.serve());
    let ask = |place: usize, path: &'static str| {
        let address = addresses[place].0.split("//").nth(1).unwrap().to_owned();
        async move {
            let mut stream = TcpStream::connect(&address).await.unwrap();
            let head = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
            stream.write_all(head.as_bytes()).await.unwrap();
            let mut bytes = Vec::new();
            stream.read_to_end(&mut bytes).await.unwrap();
            Heard::parse(&bytes).status
        }
    };
    for (path, public, admin) in [
        ("/healthz", 200, 200),
        ("/", 200, 200),
        ("/v1/intents", 404, 200),
        ("/metrics", 404, 200),
        ("/openapi.json", 404, 200),
        ("/approve/a.b", 403, 404),
    ] {
        assert_eq!((ask(0, path).await, ask(1, path).await), (public, admin), "{path}");
    }
    control.stop();
    serving.await.unwrap();
    world.stop().await;
}

#[tokio::test]
async fn a_client_that_sends_a_byte_now_and_then_is_cut_off() {
    let world = World::new().await;
    let started = Instant::now();
    let mut head = TcpStream::connect(world.address).await.unwrap();
    let mut body = TcpStream::connect(world.address).await.unwrap();
    head.write_all(b"POST /v1/claim HTTP/1.1\r\nhost: localhost\r\n").await.unwrap();
    body.write_all(b"POST /v1/claim HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n{").await.unwrap();
    let dribbling = async {
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            if head.write_all(b"x: y\r\n").await.is_err() {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(45), dribbling).await.expect("the head must come in time");
    let mut bytes = Vec::new();
    tokio::time::timeout(Duration::from_secs(45), body.read_to_end(&mut bytes))
        .await
        .expect("so must the body")
        .unwrap();
    Heard::parse(&bytes).refused(408, "TS0077");
    assert!(started.elapsed() > Duration::from_secs(25));
    world.stop().await;
}

#[tokio::test]
async fn one_look_at_the_ledger_is_enough_for_all_who_ask_within_a_second() {
    let world = World::new().await;
    let ready = async || world.get("/readyz").await.json["status"] == "ready";
    let has_looked = async || {
        let notes = world.ledger.store().notes("ready").await.unwrap();
        // Whoever looks writes it again.
        world.ledger.store().put_note("ready", "server", None).await.unwrap();
        !notes.is_empty()
    };
    assert!(ready().await && has_looked().await);
    for _ in 0..20 {
        assert!(ready().await);
    }
    assert!(!has_looked().await, "anybody may ask, and must not make it write");
    tokio::time::sleep(Duration::from_millis(1100)).await;
    assert!(ready().await && has_looked().await);
    world.stop().await;
}
