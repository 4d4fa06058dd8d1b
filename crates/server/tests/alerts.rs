//! People are told, once, whatever happens.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use twicesafe_ledger::{Actor, ApprovalRule, Intent, ManualClock, Name, Open, Policy, Trouble};

use crate::world::{World, claim, claim_with, configuration, settle};

/// Somebody's webhook: takes what is posted, and answers as told.
pub(crate) struct Hook {
    address: SocketAddr,
    heard: Arc<Mutex<VecDeque<(Value, String)>>>,
    came: Arc<Notify>,
    status: Arc<AtomicU16>,
}

impl Hook {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (heard, came, status) =
            (Arc::<Mutex<VecDeque<_>>>::default(), Arc::new(Notify::new()), Arc::new(AtomicU16::new(200)));
        let hook = Self { address, heard: heard.clone(), came: came.clone(), status: status.clone() };
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (heard, came, status) = (heard.clone(), came.clone(), status.clone());
                tokio::spawn(async move {
                    let mut stream = BufReader::new(stream);
                    while let Some((key, body)) = request(&mut stream).await {
                        let status = status.load(Ordering::SeqCst);
                        heard.lock().unwrap().push_back((serde_json::from_slice(&body).unwrap(), key));
                        came.notify_waiters();
                        let answer = format!("HTTP/1.1 {status} x\r\ncontent-length: 0\r\n\r\n");
                        if stream.write_all(answer.as_bytes()).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
        hook
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/hook", self.address)
    }

    fn answers(&self, status: u16) {
        self.status.store(status, Ordering::SeqCst);
    }

    pub(crate) async fn next(&self) -> Value {
        self.next_with_key().await.0
    }

    async fn next_with_key(&self) -> (Value, String) {
        let wait = async {
            loop {
                let came = self.came.notified();
                if let Some(heard) = self.heard.lock().unwrap().pop_front() {
                    return heard;
                }
                came.await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), wait).await.expect("somebody is told")
    }

    pub(crate) fn is_silent(&self) -> bool {
        self.heard.lock().unwrap().is_empty()
    }
}

async fn request(stream: &mut BufReader<tokio::net::TcpStream>) -> Option<(String, Vec<u8>)> {
    let (mut length, mut key) = (0, String::new());
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await.ok()? == 0 {
            return None;
        }
        match line.trim().to_ascii_lowercase().split_once(": ") {
            Some(("content-length", value)) => length = value.parse().ok()?,
            Some(("idempotency-key", value)) => key = value.to_owned(),
            None if line.trim().is_empty() => break,
            _ => {}
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    Some((key, body))
}

fn people(hook: &Hook) -> String {
    format!(
        "people:\n  ops: {{ alert: {{ webhook: \"{}\" }}, rights: [approve, review], scopes: [billing] }}\n",
        hook.url()
    )
}

#[tokio::test]
async fn people_are_told_once_of_what_waits_for_them() {
    let hook = Hook::start().await;
    let world = World::configured(&people(&hook)).await;
    let permit = world.permit(claim("in doubt")).await;
    world.post("/v1/settle", &settle(permit, "unknown", json!({ "reason": "timeout" }))).await;
    let told = hook.next().await;
    assert_eq!(
        (told["kind"].as_str(), told["intent"]["key"].as_str(), &told["link"]),
        (Some("review"), Some("in doubt"), &Value::Null)
    );
    // Not of what is none of their business, nor again.
    let elsewhere = json!({ "scope": "crm/x", "key": "1", "wait_ms": 0, "input": 1, "approval": {} });
    world.post("/v1/claim", &elsewhere).await.refused(423, "TS0017");
    tokio::time::sleep(Duration::from_millis(5500)).await;
    assert!(hook.is_silent());
    world.clock.advance(Duration::from_secs(5 * 3600));
    assert_eq!(hook.next().await["kind"], "overdue");
    world.stop().await;
}

#[tokio::test]
async fn an_alert_that_fails_is_tried_again_and_makes_no_alert_of_its_own() {
    let hook = Hook::start().await;
    let world = World::configured(&people(&hook)).await;
    hook.answers(500);
    world
        .post(
            "/v1/claim",
            &claim_with("1", json!({ "input": 1, "approval": { "expires_after_ms": 360_000_000 } })),
        )
        .await
        .refused(423, "TS0017");
    let (first, first_key) = hook.next_with_key().await;
    assert_eq!(first["kind"], "held");
    hook.answers(200);
    tokio::time::sleep(Duration::from_millis(300)).await;
    world.clock.advance(Duration::from_secs(400));
    let (again, key) = hook.next_with_key().await;
    assert_eq!(
        (again["kind"].as_str(), &key),
        (Some("held"), &first_key),
        "the same key, so that the other end can tell"
    );
    tokio::time::sleep(Duration::from_millis(5500)).await;
    assert!(hook.is_silent());
    let alerts = world.get("/v1/intents?scope=twicesafe/alert").await;
    assert_eq!(alerts.json["intents"].as_array().unwrap().len(), 1);
    assert_eq!(alerts.json["intents"][0]["status"], "done");
    world.stop().await;
}

#[tokio::test]
async fn everybody_is_told_of_all_that_waits_however_much_it_is() {
    let clock = Arc::new(ManualClock::at(1_800_000_000_000));
    let ledger = Open::at("memory:").clock(clock.clone()).open().await.unwrap();
    let held = async |key: String| {
        let rule = ApprovalRule { expires_after: Duration::from_secs(60), ..ApprovalRule::default() };
        let policy = Policy { approval: Some(rule), ..Policy::default() };
        let intent = Intent::new("billing/invoice.send", &key).unwrap().policy(policy);
        ledger.claim(&intent).await.unwrap();
        ledger.store().find(&Name::new("billing/invoice.send", &key).unwrap()).await.unwrap().unwrap()
    };
    held("expired".to_owned()).await;
    clock.advance(Duration::from_secs(61));
    ledger.sweep().await.unwrap();
    let ann = Actor::new("person:ann").unwrap();
    for key in 0..1020 {
        let stored = held(format!("rejected {key}")).await;
        ledger.reject(&ann, &stored, "no").await.unwrap();
    }
    for key in 0..1020 {
        held(format!("held {key}")).await;
    }
    // Nobody was there when it happened.
    let hook = Hook::start().await;
    let world = World::on(ledger, clock, &people(&hook)).await;
    let mut told = BTreeMap::<String, BTreeSet<String>>::new();
    for _ in 0..1021 {
        let alert = hook.next().await;
        let word = |value: &Value| value.as_str().unwrap().to_owned();
        told.entry(word(&alert["kind"])).or_default().insert(word(&alert["intent"]["key"]));
    }
    assert_eq!(told["expired"], BTreeSet::from(["expired".to_owned()]));
    assert_eq!(told["held"].len(), 1020);
    world.stop().await;
}

#[tokio::test]
async fn overdue_counts_from_when_it_began_to_wait() {
    let hook = Hook::start().await;
    let yaml = format!("{}alerts: {{ overdue_after: 1h }}\n", people(&hook));
    let world = World::configured(&yaml).await;
    let half = Duration::from_secs(31 * 60);
    let long = json!({ "expires_after_ms": 360_000_000 });
    // Corrected after it was rejected, reset after it was done, and looked up for long: each is old, and waits since now.
    let first = claim_with("corrected", json!({ "input": 1, "approval": long }));
    world.post("/v1/claim", &first).await.refused(423, "TS0017");
    let no = json!({ "scope": "billing/invoice.send", "key": "corrected", "generation": 1 });
    assert_eq!(world.post("/v1/reject", &no).await.status, 200);
    let permit = world.permit(claim("reset")).await;
    world.post("/v1/settle", &settle(permit, "answered", json!({}))).await;
    let lookup = json!({ "recovery": "lookup", "lookup_for_ms": 7_200_000 });
    let permit = world.permit(claim_with("looked up", lookup)).await;
    world.post("/v1/settle", &settle(permit, "unknown", json!({}))).await;
    world.clock.advance(half * 5);
    let again = claim_with("corrected", json!({ "input": 2, "approval": long }));
    world.post("/v1/claim", &again).await.refused(423, "TS0017");
    let reset =
        json!({ "scope": "billing/invoice.send", "key": "reset", "generation": 1, "reason": "again" });
    assert_eq!(world.post("/v1/reset", &reset).await.status, 200);
    let permit = world.permit(claim("reset")).await;
    let mut unknown = settle(permit, "unknown", json!({}));
    unknown["generation"] = json!(2);
    assert_eq!(world.post("/v1/settle", &unknown).await.status, 200);
    let mut kinds = Vec::new();
    for _ in 0..4 {
        kinds.push(hook.next().await["kind"].as_str().unwrap().to_owned());
    }
    kinds.sort();
    assert_eq!(kinds, ["held", "held", "review", "review"]);
    for _ in 0..2 {
        tokio::time::sleep(Duration::from_millis(5500)).await;
        assert!(hook.is_silent(), "nobody has waited for an hour");
        world.clock.advance(half);
    }
    let mut overdue = BTreeSet::new();
    for _ in 0..3 {
        let told = hook.next().await;
        assert_eq!(told["kind"], "overdue");
        overdue.insert(told["intent"]["key"].as_str().unwrap().to_owned());
    }
    assert_eq!(overdue, BTreeSet::from(["corrected", "looked up", "reset"].map(str::to_owned)));
    world.stop().await;
}

#[tokio::test]
async fn what_is_the_servers_own_waits_for_nobody() {
    let world = World::new().await;
    for scope in ["billing/invoice.send", "twicesafe/callback"] {
        let act = |_| async { Err(Trouble::unknown("timeout")) };
        world.ledger.run(Intent::new(scope, "1").unwrap(), act).await.unwrap_err();
    }
    let listed = async |path: &str| -> Vec<String> {
        let heard = world.get(path).await;
        let intents = heard.json["intents"].as_array().unwrap().clone();
        intents.iter().map(|intent| intent["scope"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(listed("/v1/review").await, ["billing/invoice.send"]);
    assert_eq!(listed("/v1/intents?status=review").await, ["twicesafe/callback", "billing/invoice.send"]);
    world.stop().await;
}

#[tokio::test]
async fn two_servers_tell_once() {
    let hook = Hook::start().await;
    let world = World::configured(&people(&hook)).await;
    let other = World::on(world.ledger.clone(), world.clock.clone(), &people(&hook)).await;
    world
        .post("/v1/claim", &claim_with("1", json!({ "input": 1, "approval": {} })))
        .await
        .refused(423, "TS0017");
    assert_eq!(hook.next().await["kind"], "held");
    tokio::time::sleep(Duration::from_millis(5500)).await;
    assert!(hook.is_silent());
    other.stop().await;
    world.stop().await;
}

#[tokio::test]
async fn a_double_effect_and_the_end_of_attempts_are_told() {
    let hook = Hook::start().await;
    let world = World::configured(&people(&hook)).await;
    let repeat = json!({ "lease_ms": 1000, "recovery": "repeat" });
    let first = world.permit(claim_with("twice", repeat.clone())).await;
    world.clock.advance(Duration::from_secs(700));
    let second = world.permit(claim_with("twice", repeat)).await;
    world.post("/v1/settle", &settle(second, "answered", json!({ "external_id": "ch_2" }))).await;
    world.post("/v1/settle", &settle(first, "answered", json!({ "external_id": "ch_1" }))).await;
    assert_eq!(hook.next().await["kind"], "double-effect");
    let permit = world.permit(claim_with("out", json!({ "attempts": 1 }))).await;
    world.post("/v1/settle", &settle(permit, "not-sent", json!({ "reason": "refused" }))).await;
    assert_eq!(hook.next().await["kind"], "out-of-attempts");
    world.stop().await;
}

/// A mail server that says yes to everything, and what it was given.
async fn mail_server() -> (SocketAddr, Arc<Mutex<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mail = Arc::<Mutex<String>>::default();
    let kept = mail.clone();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let mut stream = BufReader::new(stream);
            stream.write_all(b"220 here\r\n").await.unwrap();
            let mut is_data = false;
            let mut line = String::new();
            while stream.read_line(&mut line).await.unwrap_or(0) > 0 {
                if is_data {
                    kept.lock().unwrap().push_str(&line);
                    if line == ".\r\n" {
                        is_data = false;
                        stream.write_all(b"250 taken\r\n").await.unwrap();
                    }
                } else if line.starts_with("DATA") {
                    is_data = true;
                    stream.write_all(b"354 go on\r\n").await.unwrap();
                } else {
                    stream.write_all(b"250 ok\r\n").await.unwrap();
                }
                line.clear();
            }
        }
    });
    (address, mail)
}

#[tokio::test]
async fn who_does_not_come_back_is_missed() {
    let hook = Hook::start().await;
    let crm = crate::gateway::destination::Destination::new().await;
    let world = World::configured(&format!(
        "people:\n  ops: {{ alert: {{ webhook: {} }}, rights: [review] }}
destinations:
  crm:
    base: {}
    auth: none
    wait: 1ms
    routes: [ {{ match: POST /contacts, action: contact.create, key: request.body.id, recovery: person }} ]\n",
        hook.url(),
        crm.base()
    ))
    .await;
    let too_many = || crate::gateway::destination::Do::SayWith(429, "retry-after", "1");
    crm.script([too_many(), too_many(), too_many()]);
    // Nobody comes back for what was only tried out.
    let test = [("content-type", "application/json"), ("twicesafe-test", "true"), ("x-mystery", "1")];
    world.send("POST", "/to/crm/contacts", &test, br#"{"id":"test"}"#).await.refused(409, "TS0015");
    // Nobody may keep one of them, so that only its caller can send it again.
    for (id, header) in [("lost", "x-mystery"), ("kept", "x-request-id")] {
        let body = json!({ "id": id }).to_string();
        let headers = [("content-type", "application/json"), (header, "1")];
        world.send("POST", "/to/crm/contacts", &headers, body.as_bytes()).await.refused(409, "TS0015");
    }
    for _ in 0..4 {
        world.clock.advance(Duration::from_secs(200));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let told = hook.next().await;
    assert_eq!((&told["kind"], &told["intent"]["key"]), (&json!("stranded"), &json!("lost")), "{told}");
    assert_eq!(crm.effects().len(), 1, "the other one was sent by the server");
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(hook.heard.lock().unwrap().len(), 0, "and that was all");
    world.stop().await;
}

#[tokio::test]
async fn alerts_go_by_mail_and_to_slack() {
    let (mail_server, mail) = mail_server().await;
    let hook = Hook::start().await;
    let yaml = format!(
        "people:\n  ann: {{ alert: [\"mailto:ann@example.com\", \"{}\"], rights: [review] }}\nsmtp: {{ host: 127.0.0.1, port: {}, security: none, from: t@example.com }}\n",
        hook.url(),
        mail_server.port()
    );
    let world = World::configured(&yaml).await;
    let permit = world.permit(claim("<1>\u{2028}")).await;
    world.post("/v1/settle", &settle(permit, "unknown", json!({}))).await;
    let slack = hook.next().await;
    assert!(slack["text"].as_str().unwrap().contains("billing/invoice.send `&lt;1&gt;"), "{slack}");
    for _ in 0..100 {
        if mail.lock().unwrap().contains("\r\n.\r\n") {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let mail = mail.lock().unwrap().clone();
    assert!(
        mail.contains("To: ann@example.com")
            && mail.contains("[twicesafe] billing/invoice.send")
            && mail.contains("Message-ID: <"),
        "{mail}"
    );
    world.stop().await;
}

#[tokio::test]
async fn a_configuration_is_taken_or_refused_as_a_whole() {
    let hook = Hook::start().await;
    let world = World::new().await;
    world.control.reload(configuration(&people(&hook))).await.unwrap();
    world
        .post("/v1/claim", &claim_with("1", json!({ "input": 1, "approval": {} })))
        .await
        .refused(423, "TS0017");
    assert_eq!(hook.next().await["kind"], "held", "the new people are told");
    for wrong in ["ledger: sqlite:/elsewhere.db\n", "links: { secret: \"${NOBODY_SETS_THIS}\" }\n"] {
        assert!(world.control.reload(configuration(wrong)).await.is_err(), "{wrong}");
    }
    let mut elsewhere = configuration(&people(&hook));
    elsewhere.listen = "127.0.0.1:1".parse().unwrap();
    assert!(world.control.reload(elsewhere).await.is_err());
    world
        .post("/v1/claim", &claim_with("2", json!({ "input": 1, "approval": {} })))
        .await
        .refused(423, "TS0017");
    assert_eq!(hook.next().await["kind"], "held", "the old one stays");
    world.stop().await;
}

#[tokio::test]
async fn s47_what_is_stuck_is_told_and_listed_in_review() {
    use crate::gateway::destination::Do;
    let hook = Hook::start().await;
    let crm = crate::gateway::destination::Destination::new().await;
    let world = World::configured(&format!(
        "people:\n  ops: {{ alert: {{ webhook: {} }}, rights: [review] }}
destinations:
  crm:
    base: {}
    auth: none
    wait: 1ms
    routes:
      - {{ match: 'PUT /contacts/{{id}}', action: contact.put, key: request.body.change, recovery: repeat, lane: request.params.id }}\n",
        hook.url(),
        crm.base()
    ))
    .await;
    // Only its caller can send it again: nobody may keep such a header.
    let headers = [("content-type", "application/json"), ("x-mystery", "1")];
    let put = async |change: &str| {
        let body = json!({ "change": change }).to_string();
        world.send("PUT", "/to/crm/contacts/7", &headers, body.as_bytes()).await
    };
    crm.script([Do::Say(502, json!({})), Do::Say(403, json!({}))]);
    put("first").await.refused(409, "TS0015");
    world.clock.advance(Duration::from_secs(10));
    assert_eq!(put("first").await.status, 403, "the caller must mend something first");
    let told = hook.next().await;
    assert_eq!((&told["kind"], &told["intent"]["key"]), (&json!("stuck"), &json!("first")), "{told}");
    put("second").await.refused(409, "TS0015");
    let listed = world.get("/v1/review").await.json;
    let keys: Vec<_> = listed["intents"].as_array().unwrap().iter().map(|one| one["key"].clone()).collect();
    assert_eq!((keys, &listed["next"]), (vec![json!("first")], &Value::Null), "{listed}");
    // A page at a time, too.
    let page = world.get("/v1/review?limit=1").await.json;
    assert_eq!(page["intents"][0]["key"], "first", "{page}");
    // A person decides it, and the lane is free.
    let fence = told["intent"]["fence"].clone();
    let about = json!({ "scope": told["intent"]["scope"], "key": "first", "fence": fence });
    let mut finding = about.clone();
    finding["finding"] = json!("happened");
    finding["reason"] = json!("contact 7 has the change");
    let resolved = world.post("/v1/resolve", &finding).await;
    assert_eq!(resolved.status, 200, "{resolved:?}");
    // Nothing of the first attempt can arrive any more, and the next sweep frees the lane.
    world.clock.advance(Duration::from_secs(70));
    let freed = async {
        while put("second").await.status != 201 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), freed).await.expect("the lane is free");
    world.stop().await;
}

/// What cannot be read of one is in nobody's way (TS0047).
#[tokio::test]
async fn s31_what_lost_half_of_its_request_keeps_nobody_waiting_but_those_who_look_after_it() {
    let hook = Hook::start().await;
    let crm = crate::gateway::destination::Destination::new().await;
    let yaml = format!(
        "people:\n  ops: {{ alert: {{ webhook: {} }}, rights: [approve, review] }}
destinations:
  crm:
    base: {}
    auth: none
    wait: 1ms
    routes:
      - {{ match: POST /contacts, action: contact.create, key: request.body.id, recovery: person }}
      - {{ match: POST /refunds, action: refund.create, key: request.body.id, recovery: person, approve: true }}\n",
        hook.url(),
        crm.base()
    );
    let (world, folder) = World::in_folder("half", &yaml).await;
    let too_many = || crate::gateway::destination::Do::SayWith(429, "retry-after", "1");
    crm.script([too_many(), too_many()]);
    for id in ["damaged", "whole"] {
        let body = json!({ "id": id, "note": "n".repeat(2_100) }).to_string();
        let headers = [("content-type", "application/json")];
        world.send("POST", "/to/crm/contacts", &headers, body.as_bytes()).await.refused(409, "TS0015");
    }
    let other = rusqlite::Connection::open(folder.join("ledger.db")).unwrap();
    let lose = "DELETE FROM request_rest WHERE intent = (SELECT id FROM intent WHERE key = 'damaged')";
    assert_eq!(other.execute(lose, ()).unwrap(), 1);
    // Of what is held nothing can be read.
    world.post("/to/crm/refunds", &json!({ "id": "unreadable" })).await.refused(423, "TS0017");
    assert_eq!(hook.next().await["kind"], "held");
    let spoil = "UPDATE intent SET policy = 'broken' WHERE key = 'unreadable'";
    assert_eq!(other.execute(spoil, ()).unwrap(), 1);
    for _ in 0..4 {
        world.clock.advance(Duration::from_secs(200));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let told = hook.next().await;
    assert_eq!((&told["kind"], &told["intent"]["key"]), (&json!("stranded"), &json!("damaged")), "{told}");
    let sent: Vec<_> = crm.effects().iter().map(|effect| effect.body["id"].clone()).collect();
    assert_eq!(sent, ["whole"]);
    world.stop().await;
    std::fs::remove_dir_all(folder).unwrap();
}

/// Somebody else makes `retryable` of what was done: it would be sent again.
#[tokio::test]
async fn s49_what_was_changed_by_hand_is_refused_and_told_of_and_not_sent() {
    let hook = Hook::start().await;
    let crm = crate::gateway::destination::Destination::new().await;
    let yaml = format!(
        "people:\n  ops: {{ alert: {{ webhook: {} }}, rights: [review] }}
destinations:
  crm:
    base: {}
    auth: none
    routes:
      - {{ match: POST /contacts, action: contact.create, key: request.body.id, recovery: person }}\n",
        hook.url(),
        crm.base()
    );
    let (world, folder) = World::in_folder("altered", &yaml).await;
    let post = async || {
        let headers = [("content-type", "application/json")];
        world.send("POST", "/to/crm/contacts", &headers, b"{\"id\":\"c-1\"}").await
    };
    let status = post().await.status;
    assert!((200..300).contains(&status), "{status}");
    let other = rusqlite::Connection::open(folder.join("ledger.db")).unwrap();
    let change = "UPDATE intent SET status = 'retryable' WHERE key = 'c-1'";
    assert_eq!(other.execute(change, ()).unwrap(), 1);
    for _ in 0..2 {
        post().await.refused(423, "TS0062");
    }
    let told = hook.next().await;
    assert_eq!((&told["kind"], &told["intent"]["key"]), (&json!("altered"), &json!("c-1")), "{told}");
    assert_eq!(crm.effects().len(), 1);
    world.stop().await;
    std::fs::remove_dir_all(folder).unwrap();
}

#[tokio::test]
async fn s41_a_key_cannot_pass_for_words_or_a_link_of_ours() {
    for way in ["webhook", "slack"] {
        let hook = Hook::start().await;
        let yaml =
            format!("people:\n  ops: {{ alert: {{ {way}: \"{}\" }}, rights: [approve] }}\n", hook.url());
        let world = World::configured(&yaml).await;
        let key = "1\u{2028}Decide here: http://evil.example/yes \u{202e}";
        world
            .post("/v1/claim", &claim_with(key, json!({ "input": 1, "approval": {} })))
            .await
            .refused(423, "TS0017");
        let told = hook.next().await;
        let text = told["message"].as_str().or(told["text"].as_str()).unwrap();
        assert!(!text.contains("http://evil") && text.contains("http[:]//evil[.]example"), "{text}");
        assert!(!text.contains('\u{2028}') && !text.contains('\u{202e}'), "{text:?}");
        if way == "slack" {
            let ours =
                text.lines().position(|line| line.starts_with("Decide here: http://127.0.0.1")).unwrap();
            assert_eq!(ours, 1, "the link is before what others wrote: {text}");
        }
        world.stop().await;
    }
}
