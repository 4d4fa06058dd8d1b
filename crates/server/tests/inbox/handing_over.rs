//! Handing over: tried again with the same id until the target says done, or somebody must look.

use super::*;
use crate::gateway::destination::Do;

#[tokio::test]
async fn what_is_not_taken_is_handed_over_again_with_the_same_id() {
    let inbox = Inbox::with("    timeout: 300ms\n    retries: { base: 10ms }\n").await;
    inbox.target.script([
        Do::Say(404, json!({})),
        Do::Say(503, json!({})),
        Do::ActAndHang,
        Do::ActAndClose,
        Do::Say(301, json!({})),
    ]);
    inbox.send("evt_1", &order(1, 1)).await;
    let started = std::time::Instant::now();
    while inbox.target.requests().len() < 6 && started.elapsed() < SOON {
        inbox.pass(Duration::from_secs(1)).await;
    }
    let requests = inbox.requests(6).await;
    let ids: Vec<_> = requests.iter().map(|request| request.header("webhook-id").unwrap()).collect();
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    let attempts: Vec<_> =
        requests.iter().map(|request| request.header("twicesafe-attempt").unwrap()).collect();
    assert_eq!(attempts, ["1", "2", "3", "4", "5", "6"]);
    inbox.status("evt_1", "done").await;
    inbox.world.stop().await;
}

#[tokio::test]
async fn s26_retry_after_is_obeyed() {
    let inbox = Inbox::with("    retries: { base: 10ms }\n").await;
    inbox.target.script([Do::SayWith(429, "retry-after", "100")]);
    inbox.send("evt_1", &order(1, 1)).await;
    inbox.requests(1).await;
    inbox.pass(Duration::from_secs(90)).await;
    tokio::time::sleep(Duration::from_millis(800)).await;
    inbox.requests(1).await;
    inbox.pass(Duration::from_secs(11)).await;
    inbox.requests(2).await;
    inbox.world.stop().await;
}

#[tokio::test]
async fn an_inbox_is_behind_while_what_was_not_taken_waits_for_its_next_attempt() {
    let inbox = Inbox::with("    retries: { base: 10h, cap: 10h }\n").await;
    inbox.target.script([Do::Say(404, json!({})), Do::Say(404, json!({}))]);
    for id in ["evt_1", "evt_2"] {
        inbox.send(id, &order(1, 1)).await;
        inbox.status(id, "retryable").await;
    }
    let lag_ms = async || inbox.world.get("/v1/inboxes").await.json["inboxes"][0]["lag_ms"].as_u64().unwrap();
    inbox.pass(Duration::from_secs(5)).await;
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert!(lag_ms().await >= 5000, "{}", lag_ms().await);
    for id in ["evt_1", "evt_2"] {
        let park = json!({ "inbox": "shop", "id": id, "reason": "nobody wants it" });
        assert_eq!(inbox.world.post("/v1/inbox/park", &park).await.status, 200);
    }
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert_eq!(lag_ms().await, 0);
    inbox.world.stop().await;
}

#[tokio::test]
async fn s38_a_redelivery_reopens_what_ran_out_of_attempts() {
    for (status, answer) in [("review", 500), ("retryable", 404)] {
        let inbox = Inbox::with("    retries: { attempts: 2, base: 10ms }\n").await;
        inbox.target.script([Do::Say(answer, json!({})), Do::Say(answer, json!({}))]);
        inbox.send("evt_1", &order(1, 1)).await;
        inbox.requests(1).await;
        inbox.pass(Duration::from_secs(1)).await;
        inbox.requests(2).await;
        inbox.status("evt_1", status).await;
        inbox.pass(Duration::from_secs(86_400)).await;
        tokio::time::sleep(Duration::from_millis(600)).await;
        inbox.requests(2).await;
        let heard = inbox.send("evt_1", &order(1, 1)).await;
        assert_eq!((heard.status, &heard.json["known"]), (200, &json!(1)));
        inbox.requests(3).await;
        inbox.status("evt_1", "done").await;
        inbox.world.stop().await;
    }
}

#[tokio::test]
async fn a_target_that_fails_is_left_alone_for_a_while() {
    let rules = "    retries: { base: 1ms, cap: 1ms }\n    circuit: { failures: 3, pause: 1500ms }\n    limits: { concurrency: 1 }\n";
    let inbox = Inbox::with(rules).await;
    inbox.target.script((0..3).map(|_| Do::Say(503, json!({}))));
    for id in 0..8 {
        inbox.send(&format!("evt_{id}"), &order(id, 1)).await;
        inbox.world.clock.advance(Duration::from_millis(10));
    }
    inbox.requests(3).await;
    tokio::time::sleep(Duration::from_millis(700)).await;
    inbox.requests(3).await;
    inbox.world.clock.advance(Duration::from_secs(1));
    inbox.requests(11).await;
    for id in 0..8 {
        let shown = inbox.status(&format!("evt_{id}"), "done").await;
        assert!(shown["attempts"].as_u64().unwrap_or(0) <= 4, "{shown}");
    }
    inbox.world.stop().await;
}

#[tokio::test]
async fn respond_target_gives_the_targets_answer_and_repetitions_the_first() {
    let inbox = Inbox::with("    respond: target\n").await;
    inbox
        .target
        .script([Do::ActAndSay(201, json!({ "ticket": 17 })), Do::ActAndSay(201, json!({ "ticket": 18 }))]);
    let first = inbox.send("evt_1", &order(1, 1)).await;
    assert_eq!((first.status, &first.json), (201, &json!({ "ticket": 17 })));
    let again = inbox.send("evt_1", &order(1, 1)).await;
    assert_eq!((again.status, &again.json), (201, &json!({ "ticket": 17 })));
    assert_eq!(again.headers["idempotent-replayed"], "true");
    inbox.requests(1).await;
    inbox.world.stop().await;
}

#[tokio::test]
async fn respond_target_never_says_no_to_what_is_on_record() {
    let provider = "    provider:
      signature: { header: x-signature, algorithm: secret }
      id: event.body.id
      answers_within: 1s
    secrets: [s3cret]
    respond: target
    timeout: 20s
";
    let inbox = Inbox::with(provider).await;
    inbox.target.script([Do::ActLate(Duration::from_millis(1500))]);
    let headers = [("content-type", "application/json"), ("x-signature", "s3cret")];
    let heard = inbox.world.send("POST", "/in/shop", &headers, br#"{"id":"a"}"#).await;
    assert_eq!((heard.status, &heard.json["status"]), (202, &json!("pending")));
    inbox.status("a", "done").await;
    inbox.requests(1).await;
    inbox.world.stop().await;
    // Nor that it was taken where it was not, and not only when the sender's time is over.
    let inbox = Inbox::with("    respond: target\n    retries: { attempts: 1 }\n").await;
    for (status, stands) in [(500, "review"), (404, "retryable")] {
        inbox.target.script([Do::Say(status, json!({}))]);
        let started = std::time::Instant::now();
        let heard = inbox.send(&format!("e_{status}"), &order(1, 1)).await;
        assert_eq!((heard.status, &heard.json["status"]), (202, &json!(stands)), "{heard:?}");
        assert!(started.elapsed() < Duration::from_secs(5));
    }
    inbox.world.stop().await;
}

#[tokio::test]
async fn what_arrived_once_prevented_nothing() {
    let inbox = Inbox::new().await;
    for id in ["a", "b"] {
        inbox.send(id, &order(1, 1)).await;
        inbox.status(id, "done").await;
    }
    let prevented =
        async || inbox.world.get("/v1/stats").await.json["figures"]["duplicates_prevented"]["value"].clone();
    assert_eq!(prevented().await, 0);
    inbox.send("a", &order(1, 1)).await;
    assert_eq!(prevented().await, 1);
    // What `curl -d` calls a form may be JSON all the same.
    let jobs = Inbox::and("", "  jobs: { id: event.body.id, deliver: \"TARGET/jobs\" }\n").await;
    let form = [("content-type", "application/x-www-form-urlencoded")];
    assert_eq!(jobs.world.send("POST", "/in/jobs", &form, br#" {"id": 7}"#).await.status, 200);
    jobs.world.stop().await;
    inbox.world.stop().await;
}

#[tokio::test]
async fn json_is_read_with_a_mark_before_it_and_where_it_is_called_text_and_handed_over_as_it_came() {
    let jobs = Inbox::and("", "  jobs: { id: event.body.id, deliver: \"TARGET/jobs\" }\n").await;
    let (marked, plain) = ("\u{feff}{\"id\": 7}", " {\"id\": 8}");
    for (media_type, body) in [("application/json; charset=utf-8", marked), ("text/plain", plain)] {
        let headers = [("content-type", media_type)];
        let heard = jobs.world.send("POST", "/in/jobs", &headers, body.as_bytes()).await;
        assert_eq!((heard.status, &heard.json["accepted"]), (200, &json!(1)), "{heard:?}");
    }
    let mut requests = jobs.requests(2).await;
    requests.sort_by_key(|request| std::cmp::Reverse(request.raw.len()));
    for (request, (media_type, body)) in
        requests.iter().zip([("application/json; charset=utf-8", marked), ("text/plain", plain)])
    {
        assert_eq!(
            (request.raw.as_slice(), request.header("content-type")),
            (body.as_bytes(), Some(media_type))
        );
    }
    // Text that is none is not made to be.
    let refused = jobs.world.send("POST", "/in/jobs", &[("content-type", "text/plain")], b"id=9").await;
    refused.refused(400, "TS0113");
    jobs.world.stop().await;
}

#[tokio::test]
async fn s36_the_name_of_a_scheme_is_the_same_in_small_letters() {
    let rules = "    provider: postmark\n    secrets: [\"user:pw\"]\n    id: event.body.id\n";
    let inbox = Inbox::with(rules).await;
    for (number, scheme) in ["Basic", "basic", "BASIC"].into_iter().enumerate() {
        let shown = format!("{scheme} {}", STANDARD.encode("user:pw"));
        let headers = [("content-type", "application/json"), ("authorization", shown.as_str())];
        let body = json!({ "id": number }).to_string();
        assert_eq!(
            inbox.world.send("POST", "/in/shop", &headers, body.as_bytes()).await.status,
            200,
            "{shown}"
        );
    }
    let wrong = format!("basic {}", STANDARD.encode("user:other"));
    let headers = [("content-type", "application/json"), ("authorization", wrong.as_str())];
    inbox.world.send("POST", "/in/shop", &headers, b"{\"id\": 9}").await.refused(401, "TS0111");
    inbox.requests(3).await;
    inbox.world.stop().await;
}

#[tokio::test]
async fn s31_what_was_left_behind_is_handed_over_by_the_next_server() {
    let inbox = Inbox::new().await;
    inbox.world.post("/v1/inbox/pause", &json!({ "inbox": "shop" })).await;
    for id in 0..40 {
        assert_eq!(inbox.send(&format!("evt_{id}"), &order(id, 1)).await.status, 200);
    }
    let Inbox { world, target } = inbox;
    let (ledger, clock) = (world.ledger.clone(), world.clock.clone());
    world.stop().await;
    twicesafe_server::resume(&ledger, twicesafe_server::Pausable::Inbox, "shop").await.unwrap();
    let world = World::on(ledger, clock, &configuration(&target, "", "")).await;
    let inbox = Inbox { world, target };
    let requests = inbox.requests(40).await;
    let mut orders: Vec<_> = requests.iter().map(|request| request.body["order"].as_u64().unwrap()).collect();
    orders.sort_unstable();
    assert_eq!(orders, (0..40).collect::<Vec<_>>());
    inbox.world.stop().await;
}

#[tokio::test]
async fn s41_neither_secrets_nor_signatures_are_stored_or_handed_over() {
    let inbox = Inbox::new().await;
    let (at, body) = (inbox.now_s().to_string(), "{}");
    let signature = signed(SECRET, "evt_1", inbox.now_s(), body.as_bytes());
    let headers = [
        ("content-type", "application/json"),
        ("webhook-id", "evt_1"),
        ("webhook-timestamp", at.as_str()),
        ("webhook-signature", signature.as_str()),
        ("authorization", "Bearer hidden-1"),
        ("cookie", "hidden-2"),
        ("x-api-key", "hidden-3"),
    ];
    assert_eq!(inbox.world.send("POST", "/in/shop", &headers, body.as_bytes()).await.status, 200);
    let requests = inbox.requests(1).await;
    let shown = inbox.world.get("/v1/intent?scope=default/in/shop&key=evt_1").await.text;
    for secret in ["hidden-", signature.trim_start_matches("v1,"), SECRET] {
        assert!(!shown.contains(secret), "{shown}");
        assert!(!requests[0].headers.iter().any(|(_, value)| value.contains(secret)), "{:?}", requests[0]);
    }
    inbox.world.stop().await;
}

#[tokio::test]
async fn s41_a_signature_is_neither_stored_nor_handed_over_whatever_its_header_is_called() {
    let provider = "    provider:
      signature: { header: x-proof, algorithm: secret }
      id: event.body.id
    secrets: [hidden-proof]
";
    let inbox = Inbox::with(provider).await;
    let headers = [("content-type", "application/json"), ("x-proof", "hidden-proof"), ("x-topic", "orders")];
    let heard = inbox.world.send("POST", "/in/shop", &headers, br#"{"id":"a"}"#).await;
    assert_eq!(heard.status, 200, "{heard:?}");
    let sent = &inbox.requests(1).await[0];
    assert_eq!((sent.header("x-proof"), sent.header("x-topic")), (None, Some("orders")), "{sent:?}");
    assert!(!format!("{sent:?}").contains("hidden-proof"), "{sent:?}");
    let name = twicesafe_ledger::Name::new("default/in/shop", "a").unwrap();
    let stored = inbox.world.ledger.existing(&name).await.unwrap();
    let kept = inbox.world.ledger.store().request(stored.id).await.unwrap().unwrap();
    let kept = String::from_utf8_lossy(&kept);
    assert!(kept.contains("x-topic: orders") && !kept.contains("proof"), "{kept}");
    inbox.world.stop().await;
}

#[tokio::test]
async fn s39_what_failed_is_tried_again_however_much_arrives() {
    let inbox = Inbox::with("    retries: { base: 1ms, cap: 1ms }\n").await;
    inbox.target.script([Do::Say(503, json!({}))]);
    inbox.send("failing", &order(1, 1)).await;
    let started = std::time::Instant::now();
    for number in 0.. {
        // Never a moment of rest.
        inbox.send(&format!("other_{number}"), &order(2, number)).await;
        inbox.world.clock.advance(Duration::from_millis(10));
        let requests = inbox.target.requests();
        if requests.iter().filter(|request| request.body["order"] == 1).count() == 2 {
            break;
        }
        assert!(started.elapsed() < SOON, "it waits until nothing arrives any more");
    }
    inbox.world.stop().await;
}

#[tokio::test]
async fn s39_what_is_turned_away_takes_no_turn_from_others() {
    let rules = "    lane: event.body.order\n    version: event.body.version\n    retries: { base: 1h }\n    limits: { per_second: 2 }\n    circuit: { failures: 0 }\n";
    let inbox = Inbox::with(rules).await;
    inbox.target.script([Do::Say(503, json!({}))]);
    inbox.send("poisoned", &order(1, 1)).await;
    inbox.status("poisoned", "retryable").await;
    inbox.send("behind", &order(1, 2)).await;
    let started = std::time::Instant::now();
    for number in 0..6 {
        inbox.send(&format!("other_{number}"), &order(10 + number, 1)).await;
    }
    for number in 0..6 {
        inbox.status(&format!("other_{number}"), "done").await;
    }
    assert!(started.elapsed() < Duration::from_secs(6), "{:?}", started.elapsed());
    inbox.world.stop().await;
}

/// No further attempt mends it (TS0047).
#[tokio::test]
async fn an_event_that_is_damaged_is_somebodys_to_look_at_and_the_others_are_handed_over() {
    let target = Destination::new().await;
    let rules = "    retries: { base: 10ms }\n";
    let (world, folder) = World::in_folder("lost-half", &configuration(&target, rules, "")).await;
    let inbox = Inbox { world, target };
    inbox.target.script([Do::Say(503, json!({})), Do::Say(503, json!({}))]);
    for id in ["damaged", "whole"] {
        // As long as what is kept in two halves.
        inbox.send(id, &json!({ "id": id, "note": "n".repeat(1_900) })).await;
        inbox.status(id, "retryable").await;
    }
    let other = rusqlite::Connection::open(folder.join("ledger.db")).unwrap();
    let lose = "DELETE FROM request_rest WHERE intent = (SELECT id FROM intent WHERE key = 'damaged')";
    assert_eq!(other.execute(lose, ()).unwrap(), 1);
    inbox.pass(Duration::from_secs(60)).await;
    inbox.status("whole", "done").await;
    let started = std::time::Instant::now();
    loop {
        let review = inbox.world.get("/v1/intents?status=review").await;
        if review.json["intents"][0]["key"] == "damaged" {
            break;
        }
        assert!(started.elapsed() < SOON, "nobody is asked: {review:#?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let handed_over: Vec<_> = inbox.requests(3).await.iter().map(|one| one.body["id"].clone()).collect();
    assert_eq!(handed_over, ["damaged", "whole", "whole"]);
    inbox.world.stop().await;
    std::fs::remove_dir_all(folder).unwrap();
}

#[tokio::test]
async fn s46_nothing_that_no_signature_covers_makes_another_request_of_an_event() {
    let inbox = Inbox::new().await;
    let (body, at) = (order(1, 1).to_string(), inbox.now_s());
    let (signature, at) = (signed(SECRET, "evt_1", at, body.as_bytes()), at.to_string());
    let headers = [
        ("content-type", "application/json"),
        ("webhook-id", "evt_1"),
        ("webhook-timestamp", &at),
        ("webhook-signature", &signature),
        ("x-http-method-override", "DELETE"),
        ("X_Original_URL", "/admin"),
        ("x-topic", "orders/create"),
    ];
    inbox.world.send("POST", "/in/shop", &headers, body.as_bytes()).await;
    let sent = &inbox.requests(1).await[0];
    let passed = ["x-http-method-override", "x_original_url", "x-topic"].map(|name| sent.header(name));
    assert_eq!(passed, [None, None, Some("orders/create")]);
    inbox.world.stop().await;
}

#[tokio::test]
async fn s22_a_target_that_shows_what_it_was_sent_shows_no_credentials_of_ours() {
    let rules = "    deliver: { url: TARGET/webhook, headers: { authorization: 'Bearer very-secret-0123' } }\n    respond: target\n";
    let inbox = Inbox::with(rules).await;
    inbox.target.script([Do::ActAndSay(200, json!({ "sent": "Bearer very-secret-0123" }))]);
    let heard = inbox.send("evt_1", &order(1, 1)).await;
    assert_eq!((heard.status, &heard.json["sent"]), (200, &json!("Bearer ****************")), "{heard:?}");
    let shown = inbox.status("evt_1", "done").await.to_string();
    assert!(!shown.contains("very-secret"), "{shown}");
    assert_eq!(inbox.requests(1).await[0].header("authorization"), Some("Bearer very-secret-0123"));
    inbox.world.stop().await;
}
