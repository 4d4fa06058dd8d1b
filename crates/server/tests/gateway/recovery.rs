//! What is done when nobody knows: S23-S26, S31. On the system's clock, because the server itself goes on.

use super::*;
use twicesafe_ledger::{Ledger, ManualClock};

impl Gateway {
    async fn in_real_time(destination: &str, routes: &str) -> Self {
        let crm = Destination::new().await;
        let ledger = Ledger::open("memory:").await.unwrap();
        let nobody_looks = std::sync::Arc::new(ManualClock::at(0));
        let world = World::on(ledger, nobody_looks, &configuration(&crm, destination, routes, "")).await;
        Self { world, crm }
    }
}

const QUICK: &str = "  timeout: 200ms
  in_flight_max: 100ms
  retries: { base: 20ms, cap: 100ms }";

fn route(recovery: &str) -> String {
    format!(
        "- match: POST /contacts\n  action: contact.upsert\n  key: request.body.id\n  external_id: answer.body.id\n  recovery: {recovery}\n{QUICK}"
    )
}

const LOOKUP: &str = "{ lookup: { get: '/contacts?external_id={{ key }}', found: 'size(answer.body.items) > 0', \
                      external_id: 'answer.body.items[0].id', lag: 50ms, in_flight_max: 100ms } }";
const UPSERT: &str = "default/crm/contact.upsert";

/// Everything that acts and then does not answer.
fn faults() -> Vec<Do> {
    vec![
        Do::ActAndSay(500, json!({})),
        Do::ActAndClose,
        Do::ActAndHang,
        Do::ActAndCut,
        Do::ActAndBabble,
        Do::ActLate(Duration::from_millis(400)),
    ]
}

#[tokio::test]
async fn s24_a_native_key_is_sent_again_and_the_destination_deduplicates() {
    for fault in faults() {
        let gateway = Gateway::in_real_time("auth: none", &route("native-key")).await;
        gateway.crm.deduplicate();
        gateway.crm.script([fault.clone(), Do::ActAndSay(409, json!({ "error": "in progress" }))]);
        let heard = gateway.post("/contacts", &contact("a")).await;
        assert_eq!((heard.status, &heard.json["id"]), (201, &json!("c_1")), "{fault:?} {heard:?}");
        gateway.crm.check_effects(1);
        let keys: Vec<_> = gateway
            .crm
            .requests()
            .iter()
            .map(|request| request.header("idempotency-key").map(str::to_owned))
            .collect();
        assert!(keys.len() == 3 && keys[0].is_some() && keys.iter().all(|key| *key == keys[0]), "{keys:?}");
    }
}

#[tokio::test]
async fn s14_in_doubt_nothing_is_sent_without_the_key_that_the_route_has_lost() {
    let routes = |recovery: &str| {
        format!("{}\n  wait: 1ms", route(recovery)).replace("base: 20ms, cap: 100ms", "base: 10s, cap: 10s")
    };
    let gateway = Gateway::with_routes(&routes("native-key")).await;
    gateway.crm.script([Do::ActAndClose, Do::ActAndClose]);
    for id in ["a", "b"] {
        gateway.post("/contacts", &contact(id)).await.refused(409, "TS0015");
        gateway.wait_for(UPSERT, id, "retryable").await;
    }
    gateway.crm.check_effects(2);
    for lost in ["person", "repeat", LOOKUP] {
        let changed = configuration(&gateway.crm, "auth: none", &routes(lost), "");
        gateway.world.control.reload(crate::world::configuration(&changed)).await.unwrap();
        // One is sent by its caller, the other one by the server.
        gateway.pass(Duration::from_secs(60)).await;
        gateway.post("/contacts", &contact("a")).await.refused(423, "TS0016");
        gateway.wait_for(UPSERT, "b", "review").await;
        gateway.crm.check_effects(2);
    }
    // What was never in doubt goes on by the means of today.
    assert_eq!(gateway.post("/contacts", &contact("c")).await.status, 201);
    gateway.crm.check_effects(3);
}

#[tokio::test]
async fn s24_what_is_declared_harmless_is_tried_again_by_itself() {
    let gateway = Gateway::in_real_time("auth: none", &route("repeat")).await;
    gateway.crm.script([Do::ActAndClose, Do::ActAndSay(502, json!({}))]);
    let heard = gateway.post("/contacts", &contact("a")).await;
    assert_eq!((heard.status, heard.headers["twicesafe-attempt"].as_str()), (201, "3"), "{heard:?}");
}

#[tokio::test]
async fn s24_a_lookup_finds_what_happened_and_nothing_is_sent_again() {
    for fault in faults() {
        let gateway = Gateway::in_real_time("auth: none", &route(LOOKUP)).await;
        gateway.crm.script([fault.clone()]);
        let heard = gateway.post("/contacts", &contact("a")).await;
        assert_eq!(
            (heard.status, heard.headers["twicesafe-source"].as_str()),
            (200, "lookup"),
            "{fault:?} {heard:?}"
        );
        assert_eq!(gateway.wait_for(UPSERT, "a", "done").await["external_id"], "c_1");
        gateway.crm.check_effects(1);
    }
}

#[tokio::test]
async fn s24_not_found_counts_only_when_nothing_can_arrive_any_more() {
    let gateway = Gateway::in_real_time("auth: none", &route(LOOKUP)).await;
    // It did not act, though nobody could know.
    gateway.crm.script([Do::Say(500, json!({}))]);
    let started = std::time::Instant::now();
    let heard = gateway.post("/contacts", &contact("a")).await;
    assert_eq!((heard.status, &heard.json["id"]), (201, &json!("c_1")), "{heard:?}");
    assert!(started.elapsed() >= Duration::from_millis(150), "in flight and lag come first");
    gateway.crm.check_effects(1);
}

#[tokio::test]
async fn s24_a_lookup_that_gives_no_answer_is_no_answer() {
    let lookup = LOOKUP.replace("lag: 50ms", "lookup_for: 400ms, lag: 50ms");
    let gateway = Gateway::in_real_time("auth: none", &route(&lookup)).await;
    gateway.crm.script([Do::ActAndClose]);
    let errors = [500, 403, 200].into_iter().map(|status| Do::Say(status, json!({ "unexpected": true })));
    gateway.crm.script_lookups(errors.cycle().take(60));
    gateway.post("/contacts", &contact("a")).await.refused(423, "TS0016");
    gateway.crm.check_effects(1);
}

#[tokio::test]
async fn s24_what_is_no_success_or_not_everything_is_no_answer() {
    let lookup = LOOKUP.replace("lag: 50ms", "conclusive: '!answer.body.more', lookup_for: 400ms, lag: 50ms");
    let outcomes = "\n  outcomes: [ { status: 200, when: 'answer.body.ok == false', means: refused } ]";
    let gateway = Gateway::in_real_time("auth: none", &format!("{}{outcomes}", route(&lookup))).await;
    for (id, said) in [
        ("refused", json!({ "ok": false, "items": [], "more": false })),
        ("cut", json!({ "ok": true, "items": [], "more": true })),
    ] {
        gateway.crm.script([Do::ActAndClose]);
        gateway.crm.script_lookups(std::iter::repeat_n(Do::Say(200, said), 60));
        gateway.post("/contacts", &contact(id)).await.refused(423, "TS0016");
    }
    gateway.crm.check_effects(2);
    // What shows the thing itself does, whatever else it says.
    let gateway = Gateway::in_real_time("auth: none", &format!("{}{outcomes}", route(&lookup))).await;
    gateway.crm.script([Do::ActAndClose]);
    gateway.crm.script_lookups([Do::Say(200, json!({ "ok": false, "items": [{ "id": "c_3" }] }))]);
    let found = gateway.post("/contacts", &contact("found")).await;
    assert_eq!((found.status, found.headers["twicesafe-source"].as_str()), (200, "lookup"), "{found:?}");
}

#[tokio::test]
async fn s25_a_lookup_before_acting_adopts_what_is_there() {
    let lookup = LOOKUP.replace("lag: 50ms", "when: before, lag: 50ms");
    let gateway = Gateway::in_real_time("auth: none", &route(&lookup)).await;
    // Somebody else made it.
    let elsewhere = hand(&gateway.crm, &contact("a")).await;
    assert!(elsewhere.contains("201"));
    let heard = gateway.post("/contacts", &contact("a")).await;
    assert_eq!((heard.status, &heard.json["items"][0]["id"]), (200, &json!("c_1")), "{heard:?}");
    assert_eq!(heard.headers["twicesafe-source"], "lookup", "nothing was sent");
    assert_eq!(gateway.post("/contacts", &contact("a")).await.headers["twicesafe-source"], "lookup");
    let shown = gateway.world.get("/v1/intent?scope=default/crm/contact.upsert&key=a").await.json;
    assert_eq!(shown["source"], "lookup", "{shown}");
    gateway.crm.check_effects(1);
    let made = gateway.post("/contacts", &contact("b")).await;
    assert_eq!((made.status, made.headers.get("twicesafe-source")), (201, None));
    gateway.crm.check_effects(2);
}

/// Posts to the destination without the gateway.
async fn hand(crm: &Destination, body: &Value) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(crm.address).await.unwrap();
    let body = body.to_string();
    let head = format!("POST /contacts HTTP/1.1\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut said = vec![0; 1000];
    let read = stream.read(&mut said).await.unwrap();
    String::from_utf8_lossy(&said[..read]).into_owned()
}

#[tokio::test]
async fn s25_a_stamp_lets_a_lookup_find_it() {
    let routes = format!(
        "- match: POST /contacts
  action: contact.upsert
  key: request.body.order
  stamp: {{ body: id }}
  recovery: {{ lookup: {{ get: '/contacts?external_id={{{{ destination_key }}}}', found: 'size(answer.body.items) > 0', lag: 50ms, in_flight_max: 100ms }} }}
{QUICK}"
    );
    let gateway = Gateway::in_real_time("auth: none", &routes).await;
    gateway.crm.script([Do::ActAndClose]);
    let heard = gateway.post("/contacts", &json!({ "order": "o-1" })).await;
    assert_eq!((heard.status, heard.headers["twicesafe-source"].as_str()), (200, "lookup"), "{heard:?}");
    gateway.crm.check_effects(1);
    assert_eq!(gateway.crm.effects()[0].body["id"].as_str().map(str::len), Some(32));
}

#[tokio::test]
async fn s31_what_is_due_again_is_sent_by_the_server_itself() {
    let gateway = Gateway::in_real_time(
        "auth: { bearer: secret-of-ours }",
        &format!("{}\n  wait: 1ms", route("native-key")),
    )
    .await;
    gateway.crm.script([Do::SayWith(429, "retry-after", "1")]);
    let heard = gateway.post("/contacts", &contact("a")).await;
    heard.refused(409, "TS0015");
    gateway.wait_for(UPSERT, "a", "done").await;
    gateway.crm.check_effects(1);
    let sent = &gateway.crm.effects()[0];
    assert_eq!(sent.header("authorization"), Some("Bearer secret-of-ours"));
    assert_eq!((sent.header("content-type"), &sent.body["name"]), (Some("application/json"), &json!("Ada")));
}

#[tokio::test]
async fn s31_headers_that_expressions_look_at_are_kept() {
    let routes = format!("{}\n  account: request.headers['X-Mode']\n  wait: 1ms", route("native-key"));
    let gateway = Gateway::in_real_time("auth: { bearer: ours }", &routes).await;
    gateway.crm.script([Do::SayWith(429, "retry-after", "1")]);
    let headers = [("x-mode", "live"), ("x-stripe-client-user-agent", "{}"), ("x-author", "ada")];
    let routes = [&headers[..2], &headers[1..2]];
    gateway.post_with("/contacts", routes[0], &contact("a")).await.refused(409, "TS0015");
    gateway.wait_for("default/live/crm/contact.upsert", "a", "done").await;
    assert_eq!(gateway.crm.effects()[0].header("x-mode"), Some("live"));
    // A name with a word in it that others use for credentials.
    gateway.post_with("/contacts", &[headers[0], headers[2]], &contact("b")).await;
    assert_eq!(gateway.crm.effects()[1].header("x-author"), Some("ada"));
}

#[tokio::test]
async fn s31_credentials_of_callers_are_not_kept_and_the_next_caller_acts() {
    let route = route("native-key").replace("cap: 100ms", "cap: 5s");
    let gateway = Gateway::in_real_time("wait: 1ms", &route).await;
    gateway.crm.script([Do::SayWith(429, "retry-after", "1")]);
    let own = [("authorization", "Bearer of-the-caller")];
    gateway.post_with("/contacts", &own, &contact("a")).await.refused(409, "TS0015");
    tokio::time::sleep(Duration::from_millis(1500)).await;
    gateway.wait_for(UPSERT, "a", "retryable").await;
    gateway.crm.check_effects(0);
    let shown = gateway.world.get(&format!("/v1/intent?scope={UPSERT}&key=a")).await;
    assert!(!shown.text.contains("of-the-caller"));
    assert_eq!(gateway.post_with("/contacts", &own, &contact("a")).await.status, 201);
    assert_eq!(gateway.crm.effects()[0].header("authorization"), Some("Bearer of-the-caller"));
}

#[tokio::test]
async fn s31_what_is_not_on_record_is_looked_up_and_left_to_the_next_caller() {
    let gateway = Gateway::in_real_time("auth: { bearer: ours }\nwait: 1ms", &route(LOOKUP)).await;
    // It did not act, and the request has a header that nobody may keep.
    gateway.crm.script([Do::Say(500, json!({}))]);
    let odd = [("x-mystery", "1")];
    gateway.post_with("/contacts", &odd, &contact("a")).await.refused(409, "TS0015");
    gateway.wait_for(UPSERT, "a", "retryable").await;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    gateway.wait_for(UPSERT, "a", "retryable").await;
    let reads: Vec<_> =
        gateway.crm.requests().into_iter().filter(|request| request.line.starts_with("GET ")).collect();
    assert!(!reads.is_empty() && reads.iter().all(|read| read.line.contains("external_id=a")), "{reads:?}");
    gateway.crm.check_effects(0);
    assert_eq!(gateway.post_with("/contacts", &odd, &contact("a")).await.status, 201);
    gateway.crm.check_effects(1);
}

#[tokio::test]
async fn s31_what_cannot_be_read_is_not_in_the_way_of_what_can() {
    let crm = Destination::new().await;
    let yaml = configuration(&crm, "auth: { bearer: ours }\nwait: 1ms", &route("person"), "");
    let (world, folder) = World::in_folder("unreadable", &yaml).await;
    let gateway = Gateway { world, crm };
    gateway.crm.script([Do::SayWith(429, "retry-after", "1"), Do::SayWith(429, "retry-after", "2")]);
    for id in ["unreadable", "whole"] {
        gateway.post("/contacts", &contact(id)).await.refused(409, "TS0015");
        gateway.wait_for(UPSERT, id, "retryable").await;
    }
    let other = rusqlite::Connection::open(folder.join("ledger.db")).unwrap();
    let spoil = "UPDATE intent SET policy = 'broken' WHERE key = 'unreadable'";
    assert_eq!(other.execute(spoil, ()).unwrap(), 1);
    gateway.pass(Duration::from_secs(60)).await;
    gateway.wait_for(UPSERT, "whole", "done").await;
    gateway.crm.check_effects(1);
    gateway.world.stop().await;
    std::fs::remove_dir_all(folder).unwrap();
}

#[tokio::test]
async fn s31_what_is_damaged_is_looked_up_all_the_same() {
    let crm = Destination::new().await;
    let yaml = configuration(&crm, "auth: { bearer: ours }\nwait: 1ms", &route(LOOKUP), "");
    let (world, folder) = World::in_folder("lookup", &yaml).await;
    let gateway = Gateway { world, crm };
    // The caller asks in vain.
    gateway.crm.script([Do::ActAndHang]);
    gateway.crm.script_lookups([Do::Say(503, json!({}))]);
    let body = json!({ "id": "a", "note": "n".repeat(2_100) });
    gateway.post("/contacts", &body).await.refused(409, "TS0015");
    let other = rusqlite::Connection::open(folder.join("ledger.db")).unwrap();
    assert_eq!(other.execute("DELETE FROM request_rest", ()).unwrap(), 1);
    let started = std::time::Instant::now();
    loop {
        gateway.pass(Duration::from_secs(1)).await;
        let done = gateway.world.get("/v1/intents?status=done").await;
        if done.json["intents"][0]["key"] == "a" {
            break;
        }
        assert!(started.elapsed() < Duration::from_secs(20), "nobody looks it up");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    gateway.crm.check_effects(1);
    gateway.world.stop().await;
    std::fs::remove_dir_all(folder).unwrap();
}

#[tokio::test]
async fn s23_after_doubt_a_404_means_that_it_is_gone() {
    let routes = format!(
        "- match: DELETE /contacts/{{id}}
  action: contact.delete
  key: request.params.id
  recovery: repeat
  after_doubt: {{ 404: answered }}
{QUICK}"
    );
    let gateway = Gateway::in_real_time("auth: none", &routes).await;
    gateway.crm.script([Do::ActAndClose, Do::Say(404, json!({}))]);
    let heard = gateway.world.send("DELETE", "/to/crm/contacts/7", &[], b"").await;
    assert_eq!((heard.status, heard.headers["twicesafe-status"].as_str()), (404, "done"), "{heard:?}");
    gateway.crm.check_effects(1);
}

#[tokio::test]
async fn s15_one_at_a_time_touches_an_entity_and_an_older_version_does_not_count() {
    let routes = format!(
        "- match: PUT /contacts/{{id}}
  action: contact.put
  key: [request.params.id, request.body.version]
  lane: \"'contact:' + request.params.id\"
  version: request.body.version
  version_means: snapshot
  recovery: repeat
{}",
        QUICK.replace("200ms", "2s")
    );
    let gateway = Gateway::in_real_time("auth: none", &routes).await;
    let put = |version: i64| {
        let body = json!({ "version": version }).to_string();
        let gateway = &gateway;
        async move {
            let json = [("content-type", "application/json")];
            gateway.world.send("PUT", "/to/crm/contacts/7", &json, body.as_bytes()).await
        }
    };
    gateway.crm.script([Do::ActLate(Duration::from_millis(200))]);
    let (second, third) = tokio::join!(put(2), async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let third = put(3).await;
        (third, gateway.crm.effects().len())
    });
    assert_eq!((second.status, third.0.status, third.1), (201, 201, 2));
    put(1).await.refused(412, "TS0012");
    gateway.crm.check_effects(2);
    let versions: Vec<_> =
        gateway.crm.effects().iter().map(|effect| effect.body["version"].as_i64()).collect();
    assert_eq!(versions, [Some(2), Some(3)]);
}

/// A gateway in front of a Slack that acts and answers 500, where nothing takes long.
async fn slack() -> Gateway {
    let destination = "use: slack\nauth: none\ntimeout: 300ms\nin_flight_max: 100ms\nretries: { base: 20ms, cap: 100ms }\nwait: 20s";
    Gateway::in_real_time(destination, "[]").await
}

const POST_MESSAGE: &str = "/api/chat.postMessage";

#[tokio::test]
async fn s24_slack_a_reply_in_a_thread_is_looked_for_in_its_thread() {
    for thread in [None, Some(destination::THREAD)] {
        let gateway = slack().await;
        gateway.crm.script([Do::ActAndSay(500, json!({}))]);
        let mut body = json!({ "channel": "C1", "text": "it is done" });
        if let Some(thread) = thread {
            body["thread_ts"] = thread.into();
        }
        let heard = gateway.post_with(POST_MESSAGE, &[("idempotency-key", "a")], &body).await;
        assert_eq!(
            (heard.status, heard.headers["twicesafe-source"].as_str()),
            (200, "lookup"),
            "{thread:?} {heard:?}"
        );
        gateway.crm.check_effects(1);
        let scope = "default/crm/message.post";
        assert_eq!(gateway.wait_for(scope, "a", "done").await["external_id"], "1700000001.000100");
    }
}

#[tokio::test]
async fn s24_slack_what_a_lookup_cannot_show_does_not_count_as_not_there() {
    for (path, body) in [
        // Slack takes arguments from both.
        (format!("{POST_MESSAGE}?thread_ts={}", destination::THREAD), json!({ "channel": "C1" })),
        (POST_MESSAGE.to_owned(), json!({ "channel": "C1", "thread_ts": destination::REPLY })),
        (POST_MESSAGE.to_owned(), json!({ "channel": "C1", "thread_ts": "" })),
    ] {
        let gateway = slack().await;
        gateway.crm.script([Do::ActAndSay(500, json!({}))]);
        let post = gateway.post_with(&path, &[("idempotency-key", "a")], &body);
        // It goes on asking for an hour, and posts nothing meanwhile.
        assert!(tokio::time::timeout(Duration::from_secs(2), post).await.is_err(), "{path} {body}");
        gateway.crm.check_effects(1);
    }
}
