//! Bad input and bad weather: each a coded answer, nothing lost, nothing leaked.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::world::{Heard, World, claim, claim_with, permit_in, settle};

const JSON: (&str, &str) = ("content-type", "application/json");

#[tokio::test]
async fn what_is_not_understood_is_refused_and_not_repeated() {
    let world = World::new().await;
    for (body, code) in [
        ("", "TS0070"),
        ("{", "TS0070"),
        ("nonsense", "TS0070"),
        ("[]", "TS0070"),
        (r#"{"scope":"a","key":"hunter2","scope":"b"}"#, "TS0070"),
        (r#"{"scope":"a","key":12}"#, "TS0070"),
        (r#"{"scope":"a","key":null}"#, "TS0070"),
        (r#"{"scope":"a"}"#, "TS0070"),
        (r#"{"scope":"a","key":""}"#, "TS0001"),
        (r#"{"scope":"a","key":"a\nb"}"#, "TS0002"),
        (r#"{"scope":"a b","key":"hunter2"}"#, "TS0003"),
        (r#"{"scope":"","key":"hunter2"}"#, "TS0003"),
        (r#"{"scope":"a","key":"hunter2","lease_ms":0}"#, "TS0004"),
        (r#"{"scope":"a","key":"hunter2","recovery":"hunter2"}"#, "TS0070"),
        (r#"{"scope":"a","key":"hunter2","unknown":"hunter2"}"#, "TS0070"),
        (r#"{"scope":"a","key":"hunter2","work":"w"}"#, "TS0070"),
        (r#"{"scope":"a","key":"hunter2","input":1,"fingerprint":"f"}"#, "TS0070"),
        (r#"{"scope":"a","key":"hunter2","wait_ms":600000}"#, "TS0070"),
        (r#"{"scope":"a","key":"hunter2","attempts":0}"#, "TS0004"),
        (r#"{"scope":"a","key":"b","wait_ms":"x expected hunter2 at line 1"}"#, "TS0070"),
    ] {
        let heard = world.send("POST", "/v1/claim", &[JSON], body.as_bytes()).await;
        heard.refused(400, code);
        assert!(!heard.text.contains("hunter2"), "{body} is not repeated: {}", heard.text);
    }
    let name = format!(r#"{{"{}":1}}"#, "hunter2".repeat(500_000));
    let heard = world.send("POST", "/v1/claim", &[JSON], name.as_bytes()).await;
    assert!(heard.refused(400, "TS0070").text.len() < 1000);
    let huge = r#"{"scope":"a","key":"k","input":1,"approval":{"expires_after_ms":18446744073709551615}}"#;
    world.send("POST", "/v1/claim", &[JSON], huge.as_bytes()).await.refused(400, "TS0070");
    let long = format!(r#"{{"scope":"a","key":"{}"}}"#, "k".repeat(300));
    world.send("POST", "/v1/claim", &[JSON], long.as_bytes()).await.refused(400, "TS0002");
    let deep =
        format!(r#"{{"scope":"a","key":"k","input":{}1{}}}"#, "[".repeat(100_000), "]".repeat(100_000));
    let heard = world.send("POST", "/v1/claim", &[JSON], deep.as_bytes()).await;
    assert!(matches!(heard.status, 201 | 400), "{}", heard.status);
    world.send("POST", "/v1/claim", &[JSON], &[0xff, 0xfe, 0x00]).await.refused(400, "TS0070");
    assert_eq!(
        world.get("/v1/intents?scope=a&containing=hunter2").await.json["intents"],
        json!([]),
        "nothing was stored"
    );
    world.stop().await;
}

#[tokio::test]
async fn texts_that_could_not_be_kept_are_refused_by_every_ledger_alike() {
    let world = World::new().await;
    let permit = world.permit(claim("1")).await;
    for fields in
        [json!({ "reason": "a\0b" }), json!({ "external_id": "a\0b" }), json!({ "external_id": "a\nb" })]
    {
        let outcome = if fields["reason"].is_null() { "answered" } else { "unknown" };
        let heard = world.post("/v1/settle", &settle(permit, outcome, fields)).await;
        assert!(
            heard.refused(400, "TS0070").json["message"]
                .as_str()
                .unwrap()
                .contains("expected a text without")
        );
    }
    // Some lines are a reason too.
    let reason = json!({ "reason": "first\nthen\tthis" });
    assert_eq!(world.post("/v1/settle", &settle(permit, "unknown", reason)).await.status, 200);
    let about = |fields: Value| {
        let mut body = json!({ "scope": "billing/invoice.send", "key": "1", "reason": "a\0b" });
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        body
    };
    let generation = json!({ "generation": 1 });
    for (path, fields) in [
        ("/v1/approve", &generation),
        ("/v1/reject", &generation),
        ("/v1/reset", &generation),
        ("/v1/forget", &generation),
        ("/v1/resolve", &json!({ "fence": permit.1, "finding": "give-up" })),
    ] {
        world.post(path, &about(fields.clone())).await.refused(400, "TS0070");
    }
    for path in ["/v1/inbox/replay", "/v1/inbox/park", "/v1/inbox/forget"] {
        let body = json!({ "inbox": "shop", "id": "1", "reason": "a\0b" });
        world.post(path, &body).await.refused(400, "TS0070");
    }
    world.post("/v1/inbox/pause", &json!({ "inbox": "shop", "reason": "\0" })).await.refused(400, "TS0070");
    for query in
        ["intents?scope=%00", "intents?work=%00", "intents?containing=%00", "review?scope=%00", "work?id=%00"]
    {
        world.get(&format!("/v1/{query}")).await.refused(400, "TS0070");
    }
    world.stop().await;
}

#[tokio::test]
async fn oversized_requests_are_refused_early() {
    let world = World::new().await;
    let announced = b"POST /v1/claim HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 99999999999\r\n\r\n";
    world.raw(announced).await.refused(413, "TS0005");
    let mut endless = b"POST /v1/claim HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
    for _ in 0..9 {
        endless.extend(b"100000\r\n");
        endless.extend(vec![b'x'; 0x10_0000]);
        endless.extend(b"\r\n");
    }
    assert!(matches!(world.raw(&endless).await.status, 413 | 0), "refused, or cut off while sending");
    let bomb = format!("GET / HTTP/1.1\r\nhost: localhost\r\n{}\r\n", "x: y\r\n".repeat(500));
    world.raw(bomb.as_bytes()).await.refused(431, "TS0005");
    let long = format!("GET /{} HTTP/1.1\r\nhost: localhost\r\n\r\n", "a".repeat(100_000));
    world.raw(long.as_bytes()).await.refused(431, "TS0005");
    world.raw(b"\x16\x03\x01 not http at all\r\n\r\n").await.refused(400, "TS0070");
    // Also after something else was answered, and a waiter's answer stays its own.
    let second = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let mut stream = TcpStream::connect(world.address).await.unwrap();
    stream.write_all(second).await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    stream.write_all(b"nonsense\r\n\r\n").await.unwrap();
    let mut heard = Vec::new();
    stream.read_to_end(&mut heard).await.unwrap();
    let heard = String::from_utf8(heard).unwrap();
    let (first, rest) = heard.split_once("HTTP/1.1 400").unwrap();
    assert!(first.starts_with("HTTP/1.1 200") && !first.contains("TS0"), "{first}");
    assert!(rest.contains("\r\ntwicesafe-error: TS0070\r\n") && rest.contains("\r\ndate: "), "{rest}");
    let broken = b"POST /v1/claim HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n";
    assert_eq!(world.raw(broken).await.status, 400);
    let framed = |how: &str| {
        let head = "POST /v1/claim HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
        format!("{head}{how}\r\n\r\n2\r\n{{}}\r\n0\r\n\r\n")
    };
    for other in ["gzip, chunked", "chunked, chunked", "identity\r\ntransfer-encoding: chunked"] {
        let other = framed(&format!("transfer-encoding: {other}"));
        let heard = world.raw(other.as_bytes()).await;
        assert_eq!(heard.refused(501, "TS0070").headers["connection"], "close");
    }
    for chunked in ["transfer-encoding: Chunked", "content-length: 9\r\ntransfer-encoding: chunked"] {
        let heard = world.raw(framed(chunked).as_bytes()).await;
        assert!(heard.text.contains("missing field `scope`"), "its chunks are read, and no more: {heard:?}");
    }
    assert_eq!(world.get("/healthz").await.status, 200);
    world.stop().await;
}

/// Sends all of a body of the largest size but so many bytes, as far as it is taken.
async fn send_large(world: &World, but: usize) -> TcpStream {
    let mut stream = TcpStream::connect(world.address).await.unwrap();
    let bytes = 8 << 20;
    let head = format!(
        "POST /v1/settle HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {bytes}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let body = vec![b'x'; bytes - but];
    let _ = tokio::time::timeout(Duration::from_secs(10), stream.write_all(&body)).await;
    stream
}

#[tokio::test]
async fn all_large_bodies_together_have_a_limit() {
    let world = World::new().await;
    // 256 MiB, of which one address has three quarters, as bodies of 8 MiB.
    let mut taking = Vec::new();
    for _ in 0..26 {
        taking.push(send_large(&world, 1).await);
    }
    let heard = async || {
        let mut stream = send_large(&world, 0).await;
        let mut heard = vec![0; 2048];
        let read = tokio::time::timeout(Duration::from_secs(10), stream.read(&mut heard)).await;
        Heard::parse(&heard[..read.unwrap().unwrap()])
    };
    let refused = heard().await;
    assert!(refused.refused(503, "TS0050").headers["retry-after"].parse::<u64>().unwrap() >= 1);
    // What is small does not wait for what is large.
    assert_eq!(world.post("/v1/claim", &claim("small")).await.status, 201);
    // Whoever goes leaves its room to others.
    taking.clear();
    let started = std::time::Instant::now();
    let mut read = heard().await;
    while read.status == 503 && started.elapsed() < Duration::from_secs(10) {
        tokio::time::sleep(Duration::from_millis(50)).await;
        read = heard().await;
    }
    read.refused(400, "TS0070");
    world.stop().await;
}

#[tokio::test]
async fn s13_a_caller_that_leaves_takes_nothing_with_it() {
    let world = World::new().await;
    let body = claim_with("1", json!({ "command_id": "mine" })).to_string();
    let request = format!(
        "POST /v1/claim HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(world.address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    drop(stream);
    tokio::time::sleep(Duration::from_millis(200)).await;
    // Whether or not it got that far, the same command gets leave to act, and another one does not get a second.
    let again = world.send("POST", "/v1/claim", &[JSON], body.as_bytes()).await;
    assert_eq!((again.status, &again.json["permit"]["fence"]), (201, &json!(1)));
    world.post("/v1/claim", &claim("1")).await.refused(409, "TS0015");
    world.stop().await;
}

#[tokio::test]
async fn a_server_that_stops_answers_those_who_wait() {
    let world = World::new().await;
    world.permit(claim("1")).await;
    let address = world.address;
    let waiting = claim_with("1", json!({ "wait_ms": 60_000 })).to_string();
    let request = format!(
        "POST /v1/claim HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{waiting}",
        waiting.len()
    );
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut idle = TcpStream::connect(address).await.unwrap();
    idle.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut half = TcpStream::connect(address).await.unwrap();
    half.write_all(b"GET /hea").await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    tokio::time::timeout(Duration::from_secs(5), world.stop())
        .await
        .expect("neither idle connections nor half a request hold it up");
    let mut heard = Vec::new();
    stream.read_to_end(&mut heard).await.unwrap();
    let heard = Heard::parse(&heard);
    heard.refused(409, "TS0015");
    assert_eq!(heard.headers["retry-after"], "1", "others can be asked at once");
    assert!(TcpStream::connect(address).await.is_err(), "nobody is accepted any more");
}

#[tokio::test]
async fn s20_without_its_ledger_the_server_fails_closed() {
    let folder = std::env::temp_dir().join(format!("twicesafe-server-full-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("ledger.db");
    let clock = std::sync::Arc::new(twicesafe_ledger::ManualClock::at(1_800_000_000_000));
    let ledger = twicesafe_ledger::Open::at(&format!("sqlite:{}", path.display()))
        .bytes_max(400_000)
        .open()
        .await
        .unwrap();
    let world = World::on(ledger, clock, "").await;
    let mut permits = Vec::new();
    let refused = loop {
        let number = permits.len();
        assert!(number < 5000, "a ledger with a limit fills up");
        let heard = world
            .post("/v1/claim", &claim_with(&number.to_string(), json!({ "request": "x".repeat(2000) })))
            .await;
        match heard.status {
            201 => permits.push(heard),
            _ => break heard,
        }
    };
    refused.refused(503, "TS0044");
    assert!(refused.headers["retry-after"].parse::<u64>().unwrap() >= 1);
    assert!(refused.json["hint"].as_str().unwrap().starts_with("Nothing was sent."), "{refused:?}");
    let answer = json!({ "answer": "x".repeat(500_000) });
    let report = world.post("/v1/settle", &settle(permit_in(&permits[0]), "answered", answer)).await;
    let hint = report.refused(507, "TS0024").json["hint"].as_str().unwrap();
    assert!(hint.starts_with("Send the same settle again") && !hint.contains("othing was sent"), "{hint}");
    assert!(report.headers["retry-after"].parse::<u64>().unwrap() >= 1);
    assert!(
        !refused.text.contains("sqlite") && !refused.text.contains(path.to_str().unwrap()),
        "{}",
        refused.text
    );
    // What was acknowledged is there; what was refused is not.
    let number = permits.len();
    assert_eq!(
        world.get(&format!("/v1/intent?scope=billing/invoice.send&key={}", number - 1)).await.status,
        200
    );
    world.get(&format!("/v1/intent?scope=billing/invoice.send&key={number}")).await.refused(404, "TS0035");
    world.stop().await;
    std::fs::remove_dir_all(folder).unwrap();
}

/// Opens a connection from one of the addresses of this machine.
async fn connected_from(peer: &str, world: &World) -> TcpStream {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind(format!("{peer}:0").parse().unwrap()).unwrap();
    socket.connect(world.address).await.unwrap()
}

/// An inbox that needs a token, so that any body that is read is told so.
const UNSIGNED_INBOXES: &str = r#"
inboxes:
  one:
    provider: github
    secrets: ["0123456789abcdef"]
    deliver: "http://127.0.0.1:9/x"
  two:
    provider: github
    secrets: ["0123456789abcdef0"]
    deliver: "http://127.0.0.1:9/x"
"#;

fn announcing(inbox: &str, bytes: usize) -> String {
    format!("POST /in/{inbox} HTTP/1.1\r\nhost: here\r\nconnection: close\r\ncontent-length: {bytes}\r\n\r\n")
}

/// What an event of that length is told.
async fn told(world: &World, peer: &str, inbox: &str, bytes: usize) -> Heard {
    let mut stream = connected_from(peer, world).await;
    let _ = stream.write_all(announcing(inbox, bytes).as_bytes()).await;
    let _ = stream.write_all(&vec![b'x'; bytes]).await;
    let mut heard = Vec::new();
    let _ = tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut heard)).await;
    Heard::parse(&heard)
}

#[tokio::test]
async fn s19_bodies_that_are_announced_and_not_sent_take_no_room() {
    let world = World::configured(UNSIGNED_INBOXES).await;
    let mut silent = Vec::new();
    for _ in 0..300 {
        let mut stream = connected_from("127.0.0.2", &world).await;
        stream.write_all(announcing("one", 1 << 20).as_bytes()).await.unwrap();
        silent.push(stream);
    }
    for peer in ["127.0.0.1", "127.0.0.2"] {
        told(&world, peer, "one", 1 << 20).await.refused(401, "TS0111");
    }
    drop(silent);
    world.stop().await;
}

#[tokio::test]
async fn s19_who_sends_all_but_the_end_takes_no_more_than_a_share() {
    let world = World::configured(UNSIGNED_INBOXES).await;
    let mut stuck = Vec::new();
    let part = vec![b'x'; (1 << 20) - 1];
    for _ in 0..160 {
        let mut stream = connected_from("127.0.0.2", &world).await;
        stream.write_all(announcing("one", 1 << 20).as_bytes()).await.unwrap();
        // One that finds no room is told so, and its connection is closed.
        let _ = tokio::time::timeout(Duration::from_secs(5), stream.write_all(&part)).await;
        stuck.push(stream);
    }
    let heard = told(&world, "127.0.0.1", "one", 1 << 20).await;
    heard.refused(503, "TS0050");
    assert!(heard.json["message"].as_str().unwrap().contains("this inbox"), "{heard:?}");
    for peer in ["127.0.0.1", "127.0.0.2"] {
        told(&world, peer, "two", 1 << 20).await.refused(401, "TS0111");
    }
    drop(stuck);
    world.stop().await;
}

#[tokio::test]
async fn s25_a_full_disk_is_not_ready() {
    let folder = std::env::temp_dir().join(format!("twicesafe-full-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let address = format!("sqlite:{}", folder.join("ledger.db").display());
    let clock = std::sync::Arc::new(twicesafe_ledger::ManualClock::at(1_800_000_000_000));
    let open = || twicesafe_ledger::Open::at(&address).clock(clock.clone());
    let world = World::on(open().bytes_max(1 << 20).open().await.unwrap(), clock.clone(), "").await;
    assert_eq!(world.get("/readyz").await.status, 200);
    let input = "x".repeat(20_000);
    let mut number = 0;
    loop {
        let body = claim_with(&number.to_string(), json!({ "input": input, "request": input }));
        let heard = world.post("/v1/claim", &body).await;
        if heard.status == 503 {
            heard.refused(503, "TS0044");
            break;
        }
        let permit = permit_in(&heard);
        let settled = world.post("/v1/settle", &settle(permit, "answered", json!({ "answer": input }))).await;
        if settled.status == 503 {
            break;
        }
        number += 1;
        assert!(number < 1000, "the disk is never full");
    }
    // The answer holds for a second.
    let started = std::time::Instant::now();
    let mut heard = world.get("/readyz").await;
    while heard.status == 200 && started.elapsed() < Duration::from_secs(5) {
        tokio::time::sleep(Duration::from_millis(100)).await;
        heard = world.get("/readyz").await;
    }
    heard.refused(503, "TS0044");
    assert!(heard.headers.contains_key("retry-after"));
    world.stop().await;
    let world = World::on(open().open().await.unwrap(), clock.clone(), "").await;
    assert_eq!(world.get("/readyz").await.status, 200, "there is room again");
    world.stop().await;
    std::fs::remove_dir_all(&folder).unwrap();
}
