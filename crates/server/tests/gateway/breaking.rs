//! Connections that end with a GOAWAY or a TLS alert: some of them prove that nothing was looked at (S16), others do not (S17).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use ring::aead;
use rustls::ConnectionTrafficSecrets;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::server::TlsStream;

use super::http2::{file, tls, world};
use super::*;

// Frames of HTTP/2.
const PREFACE_BYTES: usize = 24;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
/// The flag by which a request ends, and settings are acknowledged.
const END_OR_ACK: u8 = 1;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A destination over HTTP/2 that reads the first request to its end, acts, and sends a GOAWAY which says that `last` is the
/// last stream it looked at. It answers later requests.
async fn ending_with_goaway(last: u32, taken: Arc<AtomicUsize>) -> u16 {
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(tls("h2", false)));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, taken) = (acceptor.clone(), taken.clone());
            tokio::spawn(async move {
                let stream = acceptor.accept(stream).await.ok()?;
                speak_frames(stream, last, &taken).await
            });
        }
    });
    port
}

async fn speak_frames(mut stream: TlsStream<TcpStream>, last: u32, taken: &AtomicUsize) -> Option<()> {
    stream.read_exact(&mut [0; PREFACE_BYTES]).await.ok()?;
    stream.write_all(&frame(SETTINGS, 0, 0, &[])).await.ok()?;
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await.ok()?;
        let [a, b, c, kind, flags, id @ ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        stream.read_exact(&mut payload).await.ok()?;
        match kind {
            SETTINGS if flags & END_OR_ACK == 0 => {
                stream.write_all(&frame(SETTINGS, END_OR_ACK, 0, &[])).await.ok()?;
            }
            HEADERS | DATA if flags & END_OR_ACK != 0 => {
                if taken.fetch_add(1, Ordering::SeqCst) == 0 {
                    let payload = [last.to_be_bytes(), [0; 4]].concat();
                    stream.write_all(&frame(GOAWAY, 0, 0, &payload)).await.ok()?;
                    stream.shutdown().await.ok()?;
                    return None;
                }
                // `:status: 200`, with all flags that end something.
                stream.write_all(&frame(HEADERS, 5, u32::from_be_bytes(id), &[0x88])).await.ok()?;
            }
            _ => {}
        }
    }
}

#[tokio::test]
async fn s16_a_goaway_proves_nothing_about_a_request_without_a_body() {
    let taken = Arc::new(AtomicUsize::new(0));
    let world = world(ending_with_goaway(0, taken.clone()).await, &format!("ca: {}", file("ca.pem"))).await;
    for _ in 0..2 {
        world.send("DELETE", "/to/crm/contacts/7", &[], b"").await.refused(423, "TS0016");
    }
    assert_eq!(taken.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn s16_a_goaway_proves_nothing_about_the_stream_that_it_names() {
    let taken = Arc::new(AtomicUsize::new(0));
    let world = world(ending_with_goaway(1, taken.clone()).await, &format!("ca: {}", file("ca.pem"))).await;
    for _ in 0..2 {
        world.post("/to/crm/contacts", &contact("a")).await.refused(423, "TS0016");
    }
    assert_eq!(taken.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn s16_a_stream_above_the_one_that_a_goaway_names_was_not_looked_at() {
    let taken = Arc::new(AtomicUsize::new(0));
    let world = world(ending_with_goaway(0, taken.clone()).await, &format!("ca: {}", file("ca.pem"))).await;
    let heard = world.post("/to/crm/contacts", &contact("a")).await;
    assert_eq!((heard.status, heard.headers["twicesafe-attempt"].as_str()), (200, "2"), "{heard:?}");
    assert_eq!(taken.load(Ordering::SeqCst), 2);
}

/// A destination over HTTP/1.1 that answers the first request of each connection, acts on the second one and then sends the
/// alert `access_denied`, as it would for a certificate that it does not take. It does so once.
struct Denying {
    acted: AtomicUsize,
    has_denied: AtomicBool,
}

impl Denying {
    async fn start() -> (u16, Arc<Self>) {
        let mut config = tls("http/1.1", false);
        config.enable_secret_extraction = true;
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let denying = Arc::new(Self { acted: AtomicUsize::new(0), has_denied: AtomicBool::new(false) });
        let shared = denying.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, denying) = (acceptor.clone(), shared.clone());
                tokio::spawn(async move { denying.serve(acceptor.accept(stream).await.ok()?).await });
            }
        });
        (port, denying)
    }

    async fn serve(&self, mut stream: TlsStream<TcpStream>) -> Option<()> {
        let mut buffer = Vec::new();
        for number in 0.. {
            destination::read(&mut stream, &mut buffer).await?;
            self.acted.fetch_add(1, Ordering::SeqCst);
            if number > 0 && !self.has_denied.swap(true, Ordering::SeqCst) {
                let (mut plain, secure) = stream.into_inner();
                let (sequence, secrets) = secure.dangerous_extract_secrets().unwrap().tx;
                plain.write_all(&denied(sequence, &secrets)).await.ok()?;
                return plain.shutdown().await.ok();
            }
            stream.write_all(b"HTTP/1.1 201 Created\r\ncontent-length: 0\r\n\r\n").await.ok()?;
        }
        None
    }
}

/// Returns the fatal alert `access_denied` as a record of TLS 1.3: the library has no function that sends it.
fn denied(sequence: u64, secrets: &ConnectionTrafficSecrets) -> Vec<u8> {
    const FATAL: u8 = 2;
    const ACCESS_DENIED: u8 = 49;
    const ALERT: u8 = 21;
    let (algorithm, key, iv) = match secrets {
        ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (&aead::AES_128_GCM, key, iv),
        ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (&aead::AES_256_GCM, key, iv),
        ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (&aead::CHACHA20_POLY1305, key, iv),
        _ => panic!("there are no others"),
    };
    let mut nonce: [u8; 12] = iv.as_ref().try_into().unwrap();
    nonce[4..].iter_mut().zip(sequence.to_be_bytes()).for_each(|(byte, other)| *byte ^= other);
    let mut record = vec![FATAL, ACCESS_DENIED, ALERT];
    let length = u8::try_from(record.len() + algorithm.tag_len()).unwrap();
    let head = [23, 3, 3, 0, length];
    let key = aead::LessSafeKey::new(aead::UnboundKey::new(algorithm, key.as_ref()).unwrap());
    let nonce = aead::Nonce::assume_unique_for_key(nonce);
    key.seal_in_place_append_tag(nonce, aead::Aad::from(head), &mut record).unwrap();
    [&head[..], &record].concat()
}

#[tokio::test]
async fn s17_an_alert_after_an_answer_proves_nothing_about_what_was_sent_since() {
    let (port, denying) = Denying::start().await;
    let world = world(port, &format!("ca: {}", file("ca.pem"))).await;
    for number in 0..50 {
        let body = contact(&number.to_string());
        let heard = world.post("/to/crm/contacts", &body).await;
        if !denying.has_denied.load(Ordering::SeqCst) {
            assert_eq!(heard.status, 201, "{heard:?}");
            // A connection is used again after a rest.
            tokio::time::sleep(Duration::from_millis(70)).await;
            continue;
        }
        heard.refused(423, "TS0016");
        world.post("/to/crm/contacts", &body).await.refused(423, "TS0016");
        assert_eq!(denying.acted.load(Ordering::SeqCst), number + 1, "it was sent again");
        return;
    }
    panic!("no connection was used a second time");
}
