//! Reads: which are tried again, and what ends an answer that does not end by itself.

use std::time::Instant;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::destination::read;
use super::*;

const ASK: &str = "/to/crm/contacts?external_id=a";

#[tokio::test]
async fn a_read_is_tried_again_wherever_the_next_answer_may_be_another_one() {
    let gateway = Gateway::with("auth: none\ntimeout: 200ms", PERSON, "").await;
    let ask = || gateway.world.get(ASK);
    for (first, second) in [
        (Do::Say(500, json!({})), Do::SayWith(429, "retry-after", "1")),
        (Do::ActAndHang, Do::ActAndClose),
        (Do::ActAndBabble, Do::Say(504, json!({}))),
    ] {
        let shown = format!("{first:?} {second:?}");
        gateway.crm.script_lookups([first, second]);
        assert_eq!(ask().await.status, 200, "{shown}");
    }
    for (once, status) in [
        (Do::SayWith(429, "retry-after", "60"), 429),
        (Do::Say(404, json!({})), 404),
        (Do::Say(501, json!({})), 501),
    ] {
        let before = gateway.crm.requests().len();
        gateway.crm.script_lookups([once]);
        assert_eq!(ask().await.status, status);
        assert_eq!(gateway.crm.requests().len(), before + 1, "{status} is for the caller to deal with");
    }
    gateway.crm.script_lookups([Do::ActAndHang, Do::ActAndHang, Do::ActAndHang]);
    let started = Instant::now();
    assert_eq!(ask().await.status, 504);
    assert!(started.elapsed() < Duration::from_secs(3), "three tries and no more");
    let impatient = Gateway::with("auth: none\ntimeout: 300ms\nwait: 100ms", PERSON, "").await;
    impatient.crm.script_lookups([Do::ActAndHang]);
    assert_eq!(impatient.world.get(ASK).await.status, 504, "nobody waits for another try");
}

#[tokio::test]
async fn a_read_that_was_tried_again_counts_once_for_the_circuit() {
    let gateway = Gateway::with("auth: none\ncircuit: { failures: 3 }", PERSON, "").await;
    for _ in 0..2 {
        gateway.crm.script_lookups((0..3).map(|_| Do::Say(500, json!({}))));
        assert_eq!(gateway.world.get(ASK).await.status, 500);
    }
    assert_eq!(gateway.world.get(ASK).await.status, 200);
}

#[tokio::test]
async fn s25_a_path_that_cannot_be_read_keeps_nobody_from_writing() {
    let gateway = Gateway::with("auth: none\ncircuit: { failures: 3 }", PERSON, "").await;
    gateway.crm.script_lookups((0..9).map(|_| Do::Say(500, json!({}))));
    for _ in 0..3 {
        assert_eq!(gateway.world.get(ASK).await.status, 500);
    }
    assert_eq!(gateway.world.get(ASK).await.status, 502, "reads are left alone for a while");
    for number in 0..5 {
        assert_eq!(gateway.post("/contacts", &contact(&number.to_string())).await.status, 201);
    }
    gateway.crm.check_effects(5);
}

/// Says this, and then the other again and again, as often as it can.
async fn endless(head: &'static str, again: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                read(&mut stream, &mut Vec::new()).await?;
                stream.write_all(head.as_bytes()).await.ok()?;
                while !again.is_empty() {
                    stream.write_all(again).await.ok()?;
                }
                tokio::time::sleep(Duration::from_secs(60)).await;
                Some(())
            });
        }
    });
    format!("destinations:\n  crm: {{ base: '{base}', auth: none, timeout: 300ms, routes: [] }}\n")
}

/// Reads an answer to its end: how many bytes, and the last of them.
async fn read_all(world: &World) -> (u64, Vec<u8>) {
    let mut stream = TcpStream::connect(world.address).await.unwrap();
    stream.write_all(b"GET /to/crm/x HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n").await.unwrap();
    let (mut bytes, mut last, mut part) = (0, Vec::new(), vec![0; 1 << 20]);
    while let Ok(read @ 1..) = stream.read(&mut part).await {
        bytes += read as u64;
        last.extend_from_slice(&part[..read]);
        last.drain(..last.len().saturating_sub(1000));
    }
    (bytes, last)
}

#[tokio::test]
async fn s21_a_read_that_is_too_large_or_falls_silent_is_cut_short_and_says_so() {
    const CHUNKED: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
    let announced = "HTTP/1.1 200 OK\r\ncontent-length: 2000000000\r\n\r\n";
    let world = World::configured(&endless(announced, b"").await).await;
    world.get("/to/crm/x").await.refused(502, "TS0092");
    let silent = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nmore\r\n";
    let world = World::configured(&endless(silent, b"").await).await;
    let started = Instant::now();
    let (_, last) = read_all(&world).await;
    assert!(last.ends_with(b"4\r\nmore\r\n"), "{}", String::from_utf8_lossy(&last));
    assert!(started.elapsed() < Duration::from_secs(5));
    static CHUNK: std::sync::LazyLock<Vec<u8>> =
        std::sync::LazyLock::new(|| [b"100000\r\n".as_slice(), &vec![b'x'; 1 << 20], b"\r\n"].concat());
    let world = World::configured(&endless(CHUNKED, &CHUNK).await).await;
    let (bytes, last) = read_all(&world).await;
    assert!((1 << 29..(1 << 30) + (1 << 24)).contains(&bytes), "{bytes}");
    assert!(!last.ends_with(b"0\r\n\r\n"), "it is not ended as if it were whole");
}

#[tokio::test]
async fn a_stream_may_last_as_long_as_it_speaks() {
    let gateway = Gateway::with("auth: none\ntimeout: 200ms", PERSON, "").await;
    gateway.crm.script_lookups([Do::ActAndNeverEnd]);
    let mut stream = TcpStream::connect(gateway.world.address).await.unwrap();
    stream.write_all(format!("GET {ASK} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n").as_bytes()).await.unwrap();
    let started = Instant::now();
    let mut part = [0; 1000];
    while started.elapsed() < Duration::from_secs(1) {
        assert_ne!(stream.read(&mut part).await.unwrap(), 0);
    }
}

/// What a destination was asked, by its request lines.
fn lines(gateway: &Gateway) -> Vec<String> {
    let of = |request: super::destination::Effect| request.line.trim_end_matches(" HTTP/1.1").to_owned();
    gateway.crm.requests().into_iter().map(of).collect()
}

#[tokio::test]
async fn s44_a_get_that_is_not_listed_is_a_write() {
    let listed = "\n- { match: GET /seen, read: true }";
    let cared_for = |word: &str| PERSON.replace("recovery: person", &format!("recovery: person\n  {word}"));
    for (destination, routes) in [
        ("auth: none\nreads: listed", format!("{PERSON}{listed}")),
        ("auth: none", format!("{}{listed}", cared_for("approve: request.body.amount > 1"))),
        ("auth: none", format!("{}{listed}", cared_for("caps: [ { count: 5 } ]"))),
        ("auth: none", format!("{}{listed}", cared_for("moves_money: true"))),
        ("auth: none\nmoves_money: true", format!("{PERSON}{listed}")),
    ] {
        let gateway = Gateway::with(destination, &routes, "").await;
        assert_eq!(gateway.world.get("/to/crm/seen").await.status, 200, "{destination}");
        let head = gateway.world.send("HEAD", "/to/crm/seen", &[], b"").await;
        assert!(head.status < 300, "a HEAD reads what a GET reads: {head:?}");
        let refused = gateway.world.get("/to/crm/refund?id=1").await;
        assert!(refused.status >= 400, "{destination}: {refused:?}");
        assert_eq!(lines(&gateway), ["GET /seen", "HEAD /seen"], "{destination}");
    }
    for (destination, routes) in [
        ("auth: none\nreads: by-method", cared_for("moves_money: true")),
        ("auth: none", cared_for("moves_money: false")),
        ("auth: none", cared_for("approve: false")),
    ] {
        let gateway = Gateway::with(destination, &routes, "").await;
        assert_eq!(gateway.world.get("/to/crm/x").await.status, 200, "{destination} {routes}");
    }
}

#[tokio::test]
async fn s44_a_write_by_get_is_sent_once_and_answered_from_the_ledger() {
    let routes = "- { match: GET /refund, action: refund.create, key: request.query.id, recovery: person }";
    let gateway = Gateway::with("auth: none\nreads: listed", routes, "").await;
    gateway.crm.script_lookups([Do::ActAndSay(200, json!({ "id": 1 })), Do::ActAndSay(500, json!({}))]);
    for replayed in [false, true] {
        let heard = gateway.world.get("/to/crm/refund?id=1").await;
        assert_eq!(
            (heard.status, heard.headers.contains_key("idempotent-replayed")),
            (200, replayed),
            "{heard:?}"
        );
    }
    for _ in 0..2 {
        gateway.world.get("/to/crm/refund?id=2").await.refused(423, "TS0016");
    }
    assert_eq!(lines(&gateway), ["GET /refund?id=1", "GET /refund?id=2"]);
}

#[tokio::test]
async fn s44_messengers_that_act_on_a_get_are_asked_once() {
    for (entry, write, read, other) in [
        ("telegram", "/sendMessage?chat_id=1&text=a", "/getMe", "/sendVoice?chat_id=1"),
        ("slack", "/api/chat.postMessage?channel=C1&text=a", "/api/auth.test", "/api/chat.unfurl?channel=C1"),
    ] {
        let gateway = Gateway::with(&format!("use: {entry}\nauth: none"), "[]", "").await;
        gateway.crm.script_lookups([Do::ActAndSay(500, json!({}))]);
        for _ in 0..2 {
            let path = format!("/to/crm{write}");
            let heard = gateway.world.send("GET", &path, &[("idempotency-key", "a")], b"").await;
            heard.refused(423, "TS0016");
        }
        let heard = gateway.world.get(&format!("/to/crm{other}")).await;
        assert!(heard.status >= 400, "{entry}: {heard:?}");
        assert_eq!(gateway.world.get(&format!("/to/crm{read}")).await.status, 200);
        assert_eq!(lines(&gateway), [format!("GET {write}"), format!("GET {read}")]);
    }
}
