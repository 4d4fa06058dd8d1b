//! Callers that speak HTTP/2: everything is as over HTTP/1.1, many at a time over one connection.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::gateway::destination::Destination;
use crate::world::{Heard, World, claim, claim_with};

/// A connection.
#[derive(Clone)]
struct Two {
    sender: SendRequest<Full<Bytes>>,
    host: String,
}

impl Two {
    /// Without having agreed on it.
    async fn plain(world: &World) -> Self {
        let stream = TcpStream::connect(world.address).await.unwrap();
        Self::over(stream, &format!("http://{}", world.address)).await
    }

    async fn over<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(stream: S, host: &str) -> Self {
        let (sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        Self { sender, host: host.to_owned() }
    }

    async fn post(&self, path: &str, body: &Value) -> Heard {
        self.send("POST", path, &[("content-type", "application/json")], body.to_string()).await
    }

    async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Heard {
        let mut request = hyper::Request::builder().method(method).uri(format!("{}{path}", self.host));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(body.into())).unwrap();
        let response = self.sender.clone().send_request(request).await.unwrap();
        let (head, body) = response.into_parts();
        assert_eq!(head.version, hyper::Version::HTTP_2);
        let text = String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap();
        let headers = head.headers.iter();
        Heard {
            status: head.status.as_u16(),
            headers: headers.map(|(n, v)| (n.to_string(), v.to_str().unwrap().to_owned())).collect(),
            json: serde_json::from_str(&text).unwrap_or(Value::Null),
            text,
        }
    }
}

#[tokio::test]
async fn s1_many_over_one_connection_get_one_permit() {
    let world = World::new().await;
    let two = Two::plain(&world).await;
    let claims = (0..64).map(|_| {
        let two = two.clone();
        async move { two.post("/v1/claim", &claim("1")).await }
    });
    let heard = futures_util::future::join_all(claims).await;
    let permits: Vec<&Heard> = heard.iter().filter(|heard| heard.status == 201).collect();
    assert_eq!(permits.len(), 1, "{heard:?}");
    for heard in heard.iter().filter(|heard| heard.status != 201) {
        heard.refused(409, "TS0015");
    }
    // What was claimed over one protocol is known over the other.
    world.post("/v1/claim", &claim("1")).await.refused(409, "TS0015");
    world.stop().await;
}

#[tokio::test]
async fn with_tls_it_is_agreed_on() {
    let file = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tls").join(name);
    let yaml = format!(
        "tls: {{ certificate: {}, key: {} }}\n",
        file("cert.pem").display(),
        file("key.pem").display()
    );
    let world = World::configured(&yaml).await;
    let mut roots = rustls::RootCertStore::empty();
    CertificateDer::pem_file_iter(file("ca.pem")).unwrap().for_each(|ca| roots.add(ca.unwrap()).unwrap());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    for (offered, agreed) in
        [(vec!["h2", "http/1.1"], Some("h2")), (vec!["http/1.1"], Some("http/1.1")), (vec![], None)]
    {
        let mut config = config.clone();
        config.alpn_protocols = offered.iter().map(|name| name.as_bytes().to_vec()).collect();
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        let stream = TcpStream::connect(world.address).await.unwrap();
        let stream = connector.connect(ServerName::try_from("localhost").unwrap(), stream).await.unwrap();
        let protocol =
            stream.get_ref().1.alpn_protocol().map(|name| String::from_utf8_lossy(name).into_owned());
        assert_eq!(protocol.as_deref(), agreed);
        if agreed == Some("h2") {
            let two = Two::over(stream, &format!("https://localhost:{}", world.address.port())).await;
            assert_eq!(two.post("/v1/claim", &claim("tls")).await.status, 201);
        }
    }
    world.stop().await;
}

#[tokio::test]
async fn what_is_refused_over_one_is_refused_over_the_other() {
    let world = World::new().await;
    let mut two = Two::plain(&world).await;
    two.send("GET", "/v1/nowhere", &[], "").await.refused(404, "TS0071");
    let origin = [("content-type", "application/json"), ("origin", "https://elsewhere.example")];
    two.send("POST", "/v1/claim", &origin, claim("1").to_string()).await.refused(403, "TS0075");
    let many: Vec<(String, String)> = (0..150).map(|n| (format!("x-{n}"), "y".to_owned())).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    two.send("GET", "/healthz", &many, "").await.refused(431, "TS0005");
    let long = "y".repeat(40_000);
    assert_eq!(two.send("GET", "/healthz", &[("x", &long)], "").await.status, 431);
    let body = vec![b'x'; 9 << 20];
    two.send("POST", "/v1/claim", &[("content-type", "application/json")], body).await.refused(413, "TS0005");
    // The connection goes on.
    assert_eq!(two.send("GET", "/healthz", &[], "").await.status, 200);
    // A name that somebody else's DNS made point here.
    two.host = "http://elsewhere.example".to_owned();
    two.post("/v1/claim", &claim("1")).await.refused(403, "TS0075");
    assert_eq!(world.get("/v1/intents").await.json["intents"], json!([]), "nothing was stored");
    world.stop().await;
}

#[tokio::test]
async fn a_head_has_no_body() {
    let world = World::new().await;
    let two = Two::plain(&world).await;
    for path in ["/healthz", "/", "/v1/intents", "/nothing"] {
        let (one, two) = (world.send("HEAD", path, &[], b"").await, two.send("HEAD", path, &[], "").await);
        assert_eq!((one.status, &*one.text), (two.status, &*two.text), "{path}");
        assert_eq!(one.headers["content-length"], two.headers["content-length"], "{path}");
    }
    world.stop().await;
}

#[tokio::test]
async fn who_has_just_come_is_answered_before_the_server_stops() {
    let world = World::new().await;
    let (address, control) = (world.address, world.control.clone());
    let mut stream = TcpStream::connect(address).await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    control.stop();
    tokio::time::sleep(Duration::from_millis(50)).await;
    stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut heard = Vec::new();
    tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut heard).await.unwrap();
    assert_eq!(Heard::parse(&heard).status, 200);
    world.stop().await;
}

#[tokio::test]
async fn a_destination_cannot_tell_the_difference() {
    let crm = Destination::new().await;
    let world = World::configured(&format!(
        "destinations:
  crm:
    base: {}
    auth: none
    routes:
      - {{ match: POST /contacts, action: contact.create, key: request.body.id, recovery: person }}\n",
        crm.base()
    ))
    .await;
    let two = Two::plain(&world).await;
    let body = json!({ "id": "1", "note": "x".repeat(1_000_000) });
    let first = two.post("/to/crm/contacts", &body).await;
    let again = world.post("/to/crm/contacts", &body).await;
    assert_eq!((first.status, first.text.as_str()), (again.status, again.text.as_str()));
    assert_eq!(again.headers.get("idempotent-replayed").map(String::as_str), Some("true"), "{again:?}");
    crm.check_effects(1);
    let effect = crm.effects().remove(0);
    assert_eq!(effect.line, "POST /contacts HTTP/1.1");
    assert_eq!(effect.body, body);
    assert_eq!(effect.header("host").map(str::to_owned), Some(crm.address.to_string()));
    world.stop().await;
}

#[tokio::test]
async fn a_server_that_stops_answers_those_who_wait() {
    let world = World::new().await;
    let two = Two::plain(&world).await;
    assert_eq!(two.post("/v1/claim", &claim("1")).await.status, 201);
    let waiting = {
        let two = two.clone();
        tokio::spawn(
            async move { two.post("/v1/claim", &claim_with("1", json!({ "wait_ms": 60_000 }))).await },
        )
    };
    // Some that say nothing, not enough to tell what they speak, or no more than that.
    let _silent = TcpStream::connect(world.address).await.unwrap();
    let mut slow = Vec::new();
    for start in ["PR", "PRI *"] {
        let mut stream = TcpStream::connect(world.address).await.unwrap();
        stream.write_all(start.as_bytes()).await.unwrap();
        slow.push(stream);
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    tokio::time::timeout(Duration::from_secs(8), world.stop()).await.expect("nobody holds it up");
    waiting.await.unwrap().refused(409, "TS0015");
}

#[tokio::test]
async fn a_beginning_may_come_in_pieces() {
    let world = World::new().await;
    for request in
        ["POST /v1/nowhere HTTP/1.1\r\nhost: localhost\r\n\r\n", "P", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"]
    {
        let mut stream = TcpStream::connect(world.address).await.unwrap();
        let (first, rest) = request.split_at(1);
        stream.write_all(first.as_bytes()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        stream.write_all(rest.as_bytes()).await.unwrap();
        let mut heard = [0; 9];
        let read = tokio::io::AsyncReadExt::read_exact(&mut stream, &mut heard);
        let patience = Duration::from_millis(if request == "P" { 500 } else { 10_000 });
        match (tokio::time::timeout(patience, read).await, request) {
            (heard, "P") => assert!(heard.is_err(), "it is waited for"),
            (Ok(Ok(_)), request) if request.starts_with("PRI") => assert_eq!(heard[3], 4, "settings"),
            (Ok(Ok(_)), _) => assert_eq!(&heard, b"HTTP/1.1 "),
            (other, request) => panic!("{request}: {other:?}"),
        }
    }
    world.stop().await;
}
