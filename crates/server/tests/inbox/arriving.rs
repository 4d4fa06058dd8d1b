//! Arrival: verified, committed, acknowledged (S36-S38).

use super::*;
use crate::gateway::destination::Do;
use twicesafe_server::Right;

#[tokio::test]
async fn s36_what_is_signed_is_taken_and_handed_over() {
    let inbox = Inbox::with(&format!("    signing_secret: {TARGET_SECRET}\n")).await;
    let body = json!({ "order": 1, "text": "ünï" });
    let heard = inbox.send("evt_1", &body).await;
    assert_eq!((heard.status, &heard.json), (200, &json!({ "accepted": 1, "known": 0 })));
    let requests = inbox.requests(1).await;
    let got = &requests[0];
    assert_eq!(got.line, "POST /webhook HTTP/1.1");
    assert_eq!((&got.body, got.raw.as_slice()), (&body, body.to_string().as_bytes()));
    assert_eq!(got.header("content-type"), Some("application/json"));
    assert_eq!(got.header("x-topic"), Some("orders/create"));
    assert_eq!(got.header("twicesafe-event"), Some("evt_1"));
    // The target can verify it as the Standard Webhooks say.
    let id = got.header("webhook-id").unwrap();
    let at = got.header("webhook-timestamp").unwrap().parse().unwrap();
    assert_eq!(got.header("webhook-signature"), Some(signed(TARGET_SECRET, id, at, &got.raw).as_str()));
    inbox.status("evt_1", "done").await;
    inbox.world.stop().await;
}

#[tokio::test]
async fn s36_what_is_not_signed_right_is_only_counted() {
    let inbox = Inbox::new().await;
    let (at, body) = (inbox.now_s(), br#"{"order":1}"#);
    let right = signed(SECRET, "evt_1", at, body);
    let other = signed(TARGET_SECRET, "evt_1", at, body);
    for (id, at, signature, body) in [
        ("evt_1", at, other.as_str(), body.as_slice()),
        ("evt_1", at, &right, br#"{"order":2}"#),
        ("evt_2", at, &right, body),
        ("evt_1", at + 1, &right, body),
        ("evt_1", at, "v1,", body),
        ("evt_1", at, "v1,AAAA", body),
        ("evt_1", at, right.trim_start_matches("v1,"), body),
        ("evt_1", at, "", body),
    ] {
        inbox.send_signed(id, at, signature, body).await.refused(401, "TS0111");
    }
    let unsigned = inbox.world.post("/in/shop", &json!({ "order": 1 })).await;
    unsigned.refused(401, "TS0111");
    assert_eq!(inbox.world.get("/v1/intents").await.json["intents"], json!([]));
    let metrics = inbox.world.get("/metrics").await.text;
    assert!(
        metrics.contains(r#"twicesafe_inbox_events_total{inbox="shop",result="unverified"} 9"#),
        "{metrics}"
    );
    inbox.requests(0).await;
    inbox.world.stop().await;
}

#[tokio::test]
async fn s36_several_secrets_and_several_signatures_while_one_is_being_replaced() {
    let inbox = Inbox::with(&format!("    secrets: [{TARGET_SECRET}, {SECRET}]\n")).await;
    let (at, body) = (inbox.now_s(), b"{}");
    let old = signed(SECRET, "evt_1", at, body);
    assert_eq!(inbox.send_signed("evt_1", at, &old, body).await.status, 200);
    let new = signed(TARGET_SECRET, "evt_2", at, body);
    let list = format!("v1a,unknown v1,AAAA {new}");
    assert_eq!(inbox.send_signed("evt_2", at, &list, body).await.status, 200);
    let shown = inbox.status("evt_2", "done").await;
    assert_eq!(shown["verified"], "standard-webhooks, secret 1");
    inbox.requests(2).await;
    inbox.world.stop().await;
}

#[tokio::test]
async fn s36_a_skewed_clock_is_explained_and_an_old_event_is_not_taken() {
    let inbox = Inbox::new().await;
    let now = inbox.now_s();
    let old = inbox.send_at("evt_1", &json!({}), now - 412).await;
    let words = old.refused(401, "TS0112").json["message"].as_str().unwrap();
    assert!(words.contains("412 s before") && words.contains("300 s are allowed"), "{words}");
    let early = inbox.send_at("evt_1", &json!({}), now + 3600).await;
    assert!(early.refused(401, "TS0112").json["message"].as_str().unwrap().contains("3600 s after"));
    assert_eq!(inbox.send_at("evt_1", &json!({}), now - 299).await.status, 200);
    inbox.requests(1).await;
    // What is known is known, whoever says it again (S37); but the signature must be right.
    let again = inbox.send_at("evt_1", &json!({}), now - 412).await;
    assert_eq!((again.status, again.json), (200, json!({ "accepted": 0, "known": 1 })));
    inbox.send_signed("evt_1", now - 412, "v1,AAAA", b"{}").await.refused(401, "TS0111");
    inbox.send_at("evt_2", &json!({}), now - 412).await.refused(401, "TS0112");
    let metrics = inbox.world.get("/metrics").await.text;
    for counted in [r#"result="arrived"} 2"#, r#"result="duplicate"} 1"#] {
        assert!(metrics.contains(counted), "{counted}: {metrics}");
    }
    inbox.world.stop().await;
}

#[tokio::test]
async fn s37_a_known_id_is_always_acknowledged_and_handed_over_once() {
    let inbox = Inbox::with("    retention: 1d\n").await;
    let body = order(1, 1);
    let many = (0..8).map(|_| inbox.send("evt_1", &body));
    let heard = futures_util::future::join_all(many).await;
    assert!(heard.iter().all(|heard| heard.status == 200), "{heard:#?}");
    let accepted: i64 = heard.iter().map(|heard| heard.json["accepted"].as_i64().unwrap()).sum();
    assert_eq!(accepted, 1);
    inbox.requests(1).await;
    inbox.status("evt_1", "done").await;
    // Redelivered after days: signed anew, with its answer gone, and after it was forgotten.
    for days in [1, 3, 60] {
        inbox.pass(Duration::from_secs(days * 86_400)).await;
        inbox.world.ledger.sweep().await.unwrap();
        assert_eq!(inbox.send("evt_1", &body).await.json, json!({ "accepted": 0, "known": 1 }));
    }
    let shown = inbox.world.get("/v1/inbox/event?inbox=shop&id=evt_1").await;
    assert_eq!((&shown.json["status"], &shown.json["body"]), (&json!("done"), &Value::Null), "{shown:?}");
    inbox.requests(1).await;
    inbox.world.stop().await;
}

#[tokio::test]
async fn s37_a_paused_inbox_takes_events_and_hands_none_over() {
    let inbox = Inbox::new().await;
    let paused = inbox.world.post("/v1/inbox/pause", &json!({ "inbox": "shop", "reason": "moving" })).await;
    assert_eq!(paused.json["paused"], "moving");
    assert_eq!(inbox.send("evt_1", &order(1, 1)).await.status, 200);
    tokio::time::sleep(Duration::from_millis(700)).await;
    inbox.requests(0).await;
    assert_eq!(inbox.world.get("/v1/inboxes").await.json["inboxes"][0]["paused"], "moving");
    inbox.world.post("/v1/inbox/resume", &json!({ "inbox": "shop" })).await;
    inbox.requests(1).await;
    inbox.world.stop().await;
}

#[tokio::test]
async fn s37_without_the_ledger_nothing_is_acknowledged() {
    let folder = std::env::temp_dir().join(format!("twicesafe-inbox-full-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let address = format!("sqlite:{}", folder.join("ledger.db").display());
    let clock = std::sync::Arc::new(twicesafe_ledger::ManualClock::at(1_800_000_000_000));
    let ledger =
        twicesafe_ledger::Open::at(&address).clock(clock.clone()).bytes_max(1 << 20).open().await.unwrap();
    let target = Destination::new().await;
    let world = World::on(ledger, clock, &configuration(&target, "", "")).await;
    world.post("/v1/inbox/pause", &json!({ "inbox": "shop" })).await;
    let inbox = Inbox { world, target };
    let large = json!({ "text": "x".repeat(100_000) });
    let mut taken = 0;
    let refused = loop {
        let heard = inbox.send(&format!("evt_{taken}"), &large).await;
        match heard.status {
            200 => taken += 1,
            _ => break heard,
        }
    };
    refused.refused(503, "TS0044");
    assert!(refused.headers["retry-after"].parse::<u64>().unwrap() >= 1);
    assert!(taken > 0);
    // What was acknowledged is there; what was refused is not.
    assert_eq!(inbox.status(&format!("evt_{}", taken - 1), "ready").await["status"], "ready");
    inbox.world.get(&format!("/v1/inbox/event?inbox=shop&id=evt_{taken}")).await.refused(404, "TS0035");
    inbox.world.stop().await;
    std::fs::remove_dir_all(folder).unwrap();
}

#[tokio::test]
async fn s38_only_the_id_decides_and_a_differing_body_is_journalled() {
    let inbox = Inbox::new().await;
    inbox.send("evt_1", &order(1, 1)).await;
    inbox.status("evt_1", "done").await;
    for _ in 0..2 {
        assert_eq!(inbox.send("evt_1", &order(1, 2)).await.status, 200);
    }
    let shown = inbox.status("evt_1", "done").await;
    let events: Vec<&str> =
        shown["deliveries"].as_array().unwrap().iter().map(|row| row["event"].as_str().unwrap()).collect();
    assert_eq!(events, ["accepted", "claimed", "answered", "differed"]);
    let requests = inbox.requests(1).await;
    assert_eq!(versions(&requests), [1]);
    inbox.world.stop().await;
}

#[tokio::test]
async fn s38_arrays_are_split_and_each_element_is_known_by_itself() {
    let provider = "    provider:
      signature: { header: x-signature, algorithm: secret }
      id: event.body.eventId
      array: true
    secrets: [s3cret]
    lane: event.body.objectId
";
    let inbox = Inbox::with(provider).await;
    let send = |body: &'static str| {
        let headers = [("content-type", "application/json"), ("x-signature", "s3cret")];
        async move { (headers, body) }
    };
    let (headers, body) =
        send(r#"[ {"eventId": 1, "objectId": 7, "amount": 1.50} , {"eventId":2,"objectId":7} ]"#).await;
    let heard = inbox.world.send("POST", "/in/shop", &headers, body.as_bytes()).await;
    assert_eq!(heard.json, json!({ "accepted": 2, "known": 0 }), "{heard:?}");
    let heard = inbox
        .world
        .send("POST", "/in/shop", &headers, br#"[{"eventId":2,"objectId":7},{"eventId":3,"objectId":7}]"#)
        .await;
    assert_eq!(heard.json, json!({ "accepted": 1, "known": 1 }));
    let requests = inbox.requests(3).await;
    assert_eq!(requests[0].raw, br#"{"eventId": 1, "objectId": 7, "amount": 1.50}"#);
    inbox.world.send("POST", "/in/shop", &headers, b"{}").await.refused(400, "TS0113");
    assert_eq!(inbox.world.send("POST", "/in/shop", &headers, b"[]").await.status, 200);
    // One that has no name does not take the others with it: some senders never send them again.
    for (new, known) in [(2, 0), (0, 2)] {
        let heard =
            inbox.world.send("POST", "/in/shop", &headers, br#"[{"eventId":4},{"objectId":7}]"#).await;
        assert_eq!(heard.json, json!({ "accepted": new, "known": known }), "{heard:?}");
    }
    inbox.requests(5).await;
    inbox.world.stop().await;
}

#[tokio::test]
async fn s38_an_element_without_a_meaning_keeps_its_id() {
    let provider = "    provider:
      signature: { header: x-signature, algorithm: secret }
      id: event.body.eventId
      array: true
    secrets: [s3cret]
    intent: event.body.order
";
    let inbox = Inbox::with(provider).await;
    let headers = [("content-type", "application/json"), ("x-signature", "s3cret")];
    // Senders write the number of the attempt into it.
    for (attempt, new, known) in [(0, 2, 0), (1, 0, 2)] {
        let body = json!([{ "eventId": 1, "order": 7 }, { "eventId": 2, "attemptNumber": attempt }]);
        let heard = inbox.world.send("POST", "/in/shop", &headers, body.to_string().as_bytes()).await;
        assert_eq!(heard.json, json!({ "accepted": new, "known": known }), "{heard:?}");
    }
    inbox.status("2", "done").await;
    inbox.requests(2).await;
    inbox.world.stop().await;
}

#[tokio::test]
async fn s38_one_action_at_shopify_may_be_several_events() {
    let inbox = Inbox::with("    provider: shopify\n    secrets: [shop-secret]\n").await;
    let body = br#"{"id":1}"#;
    let key = hmac::Key::new(hmac::HMAC_SHA256, b"shop-secret");
    let signature = STANDARD.encode(hmac::sign(&key, body));
    for (topic, new) in [("orders/create", 1), ("orders/paid", 1), ("orders/create", 0)] {
        let headers = [
            ("content-type", "application/json"),
            ("x-shopify-hmac-sha256", signature.as_str()),
            ("x-shopify-event-id", "98880550-7158-44d4-b7cd-2c97c8a091b5"),
            ("x-shopify-topic", topic),
        ];
        let heard = inbox.world.send("POST", "/in/shop", &headers, body).await;
        assert_eq!(heard.json, json!({ "accepted": new, "known": 1 - new }), "{topic}: {heard:?}");
    }
    inbox.requests(2).await;
    // Without the id of the event that of its delivery counts; without both it says so in a few words.
    let both = [("content-type", "application/json"), ("x-shopify-hmac-sha256", signature.as_str())];
    for (new, known) in [(1, 0), (0, 1)] {
        let headers = [both[0], both[1], ("x-shopify-webhook-id", "w-1")];
        let heard = inbox.world.send("POST", "/in/shop", &headers, body).await;
        assert_eq!(heard.json, json!({ "accepted": new, "known": known }), "{heard:?}");
    }
    let nameless = inbox.world.send("POST", "/in/shop", &both, body).await;
    let message = nameless.refused(400, "TS0113").json["message"].as_str().unwrap();
    assert!(message.len() < 150 && message.contains("`id:` of `shop`"), "{message}");
    inbox.requests(3).await;
    inbox.world.stop().await;
}

#[tokio::test]
async fn without_a_provider_a_token_is_shown_as_usual() {
    let more = "  jobs:\n    id: event.body.id\n    deliver: TARGET/jobs\n";
    let inbox = Inbox::and("", more).await;
    let token = inbox.world.token("cron", &[twicesafe_server::Right::Act]).await;
    let bearer = format!("Bearer {token}");
    let json_type = ("content-type", "application/json");
    let heard =
        inbox.world.send("POST", "/in/jobs", &[json_type, ("authorization", &bearer)], br#"{"id":1}"#).await;
    assert_eq!(heard.status, 200, "{heard:?}");
    inbox.world.send("POST", "/in/jobs", &[json_type], br#"{"id":2}"#).await.refused(401, "TS0072");
    let requests = inbox.requests(1).await;
    assert!(!format!("{requests:?}").contains(&token), "it goes no further");
    inbox.world.stop().await;
}

#[tokio::test]
async fn what_is_too_large_or_cannot_be_read_is_told_so() {
    let inbox = Inbox::new().await;
    // Most senders listen only after they have sent everything.
    let body = vec![b'a'; 3 << 20];
    inbox.send_signed("large", inbox.now_s(), "v1,AAAA", &body).await.refused(413, "TS0005");
    let at = inbox.now_s();
    let by_body = Inbox::with("    id: event.body.id\n").await;
    for (body, words) in [("{bad", "not JSON"), ("", "empty")] {
        let signature = signed(SECRET, "x", at, body.as_bytes());
        let heard = by_body.send_signed("x", at, &signature, body.as_bytes()).await;
        let message = heard.refused(400, "TS0113").json["message"].as_str().unwrap();
        assert!(message.contains(words), "{message}");
    }
    inbox.world.stop().await;
    by_body.world.stop().await;
}

#[tokio::test]
async fn handshakes_are_answered_and_are_no_events() {
    let inbox = Inbox::with("    provider: slack\n    secrets: [slack-secret]\n").await;
    let send = async |body: &str| {
        let at = inbox.now_s().to_string();
        let key = hmac::Key::new(hmac::HMAC_SHA256, b"slack-secret");
        let signature = hmac::sign(&key, format!("v0:{at}:{body}").as_bytes());
        let hex: String = signature.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        let signature = format!("v0={hex}");
        let headers = [
            ("content-type", "application/json"),
            ("x-slack-request-timestamp", at.as_str()),
            ("x-slack-signature", signature.as_str()),
        ];
        inbox.world.send("POST", "/in/shop", &headers, body.as_bytes()).await
    };
    let heard = send(r#"{"type":"url_verification","challenge":"3eZbrw1aBm2rZg"}"#).await;
    assert_eq!((heard.status, heard.text.as_str()), (200, "3eZbrw1aBm2rZg"));
    assert_eq!(send(r#"{"type":"event_callback","event_id":"Ev1"}"#).await.json["accepted"], 1);
    inbox.requests(1).await;
    assert_eq!(inbox.world.get("/v1/intents").await.json["intents"].as_array().unwrap().len(), 1);
    inbox.world.stop().await;
}

#[tokio::test]
async fn discord_asks_in_two_ways_whether_anybody_is_there() {
    let key = ring::signature::Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap();
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let public = hex(ring::signature::KeyPair::public_key(&key).as_ref());
    let rules =
        format!("    provider: discord\n    secrets: ['{public}']\n    id: event.body.event.timestamp\n");
    let inbox = Inbox::with(&rules).await;
    let send = async |body: &str, signed: &str| {
        let at = inbox.now_s().to_string();
        let signature = hex(key.sign(format!("{at}{signed}").as_bytes()).as_ref());
        let headers = [
            ("content-type", "application/json"),
            ("x-signature-timestamp", at.as_str()),
            ("x-signature-ed25519", signature.as_str()),
        ];
        inbox.world.send("POST", "/in/shop", &headers, body.as_bytes()).await
    };
    let ping = r#"{"version":1,"application_id":"1","type":0}"#;
    let heard = send(ping, ping).await;
    assert_eq!((heard.status, heard.text.as_str()), (204, ""));
    let interaction = r#"{"id":"2","application_id":"1","token":"t","type":1,"version":1}"#;
    let heard = send(interaction, interaction).await;
    assert_eq!((heard.status, &heard.json), (200, &json!({ "type": 1 })));
    // Whoever cannot sign learns nothing, as Discord tests.
    send(ping, "something else").await.refused(401, "TS0111");
    let event = r#"{"version":1,"application_id":"1","type":1,"event":{"type":"APPLICATION_AUTHORIZED","timestamp":"2026-11-16T05:00:00.000000Z"}}"#;
    assert_eq!(send(event, event).await.json["accepted"], 1);
    inbox.requests(1).await;
    assert_eq!(inbox.world.get("/v1/intents").await.json["intents"].as_array().unwrap().len(), 1);
    inbox.world.stop().await;
}

#[tokio::test]
async fn what_does_not_fit_is_refused_with_its_reason() {
    let inbox = Inbox::with("    bytes_max: 1000\n    id: event.body.id\n").await;
    inbox.world.post("/in/other", &json!({})).await.refused(404, "TS0110");
    inbox.world.get("/in/shop").await.refused(405, "TS0071");
    inbox.send("evt_1", &json!({ "text": "x".repeat(2000) })).await.refused(413, "TS0005");
    for body in [json!({}), json!({ "id": null }), json!({ "id": "" }), json!({ "id": 1.5 }), json!([])] {
        inbox.send("evt_1", &body).await.refused(400, "TS0113");
    }
    assert_eq!(inbox.world.get("/v1/intents").await.json["intents"], json!([]));
    inbox.world.stop().await;
}

#[tokio::test]
async fn without_a_provider_a_token_is_needed() {
    let target = Destination::new().await;
    let yaml = format!("inboxes:\n  cron:\n    id: event.body.id\n    deliver: {}/hook\n", target.base());
    let world = World::configured(&yaml).await;
    let token = world.token("cron", &[Right::Act]).await;
    let other = world.token("other", &[Right::Review]).await;
    let body = json!({ "id": "a" });
    assert_eq!(world.post_as(&token, "/in/cron", &body).await.status, 200);
    world.post_as(&other, "/in/cron", &body).await.refused(403, "TS0074");
    world.post("/in/cron", &body).await.refused(401, "TS0072");
    world.stop().await;
}

#[tokio::test]
async fn s38_what_waits_is_handed_over_as_it_came_first() {
    let inbox = Inbox::with("    retries: { base: 1h }\n").await;
    inbox.target.script([Do::Say(503, json!({}))]);
    inbox.send("evt_1", &order(1, 1)).await;
    inbox.status("evt_1", "retryable").await;
    assert_eq!(inbox.send("evt_1", &order(1, 2)).await.json, json!({ "accepted": 0, "known": 1 }));
    let started = std::time::Instant::now();
    while inbox.target.requests().len() < 2 && started.elapsed() < SOON {
        inbox.pass(Duration::from_secs(3600)).await;
    }
    assert_eq!(versions(&inbox.requests(2).await), [1, 1]);
    inbox.world.stop().await;
}

#[tokio::test]
async fn s36_the_id_that_is_used_is_the_one_that_is_signed() {
    let inbox = Inbox::new().await;
    let (at_s, body) = (inbox.now_s(), order(1, 1).to_string());
    let signature = signed(SECRET, "evt_1", at_s, body.as_bytes());
    let at = at_s.to_string();
    for other in ["evt_1", "evt_2", "evt_3"] {
        let headers = [
            ("content-type", "application/json"),
            ("webhook-id", "evt_1"),
            ("webhook-id", other),
            ("webhook-timestamp", &at),
            ("webhook-signature", &signature),
        ];
        assert_eq!(inbox.world.send("POST", "/in/shop", &headers, body.as_bytes()).await.status, 200);
    }
    inbox.requests(1).await;
    inbox.world.stop().await;
    // Svix signs under one of two names; the other one is anybody's.
    let inbox = Inbox::with("    provider: svix\n").await;
    for other in ["evt_2", "evt_3"] {
        let headers = [
            ("content-type", "application/json"),
            ("webhook-id", "evt_1"),
            ("svix-id", other),
            ("webhook-timestamp", &at),
            ("webhook-signature", &signature),
        ];
        assert_eq!(inbox.world.send("POST", "/in/shop", &headers, body.as_bytes()).await.status, 200);
    }
    inbox.requests(1).await;
    inbox.world.stop().await;
}

#[tokio::test]
async fn large_events_are_read_as_far_as_they_may_be_large() {
    let inbox = Inbox::with("    bytes_max: 4000000\n    id: event.body.id\n").await;
    let body = json!({ "id": "large", "text": "x".repeat(2_000_000) });
    assert_eq!(inbox.send("w", &body).await.json, json!({ "accepted": 1, "known": 0 }));
    inbox.status("large", "done").await;
    inbox.world.stop().await;
}

#[tokio::test]
async fn an_address_may_end_with_a_slash() {
    let provider = "    provider: { signature: { header: x-signature, algorithm: secret }, id: event.body.id }\n    secrets: [s3cret]\n";
    let inbox = Inbox::with(provider).await;
    let headers = [("content-type", "application/json"), ("x-signature", "s3cret")];
    assert_eq!(inbox.world.send("POST", "/in/shop/", &headers, br#"{"id":1}"#).await.status, 200);
    inbox.world.send("POST", "/in/shop//", &headers, br#"{"id":1}"#).await.refused(404, "TS0110");
    inbox.requests(1).await;
    inbox.world.stop().await;
}

#[tokio::test]
async fn s37_a_sender_hears_in_time_that_the_ledger_is_away() {
    let provider = "    provider:
      signature: { header: x-signature, algorithm: secret }
      id: event.body.id
      answers_within: 2s
    secrets: [s3cret]
";
    let target = Destination::new().await;
    let (world, folder) = World::in_folder("away", &configuration(&target, provider, "")).await;
    let inbox = Inbox { world, target };
    let headers = [("content-type", "application/json"), ("x-signature", "s3cret")];
    let other = rusqlite::Connection::open(folder.join("ledger.db")).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let started = std::time::Instant::now();
    let heard = inbox.world.send("POST", "/in/shop", &headers, br#"{"id":1}"#).await;
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    heard.refused(503, "TS0040");
    assert!(heard.headers.contains_key("retry-after"), "{heard:?}");
    other.execute_batch("ROLLBACK").unwrap();
    // It may have been stored all the same: then it is known.
    assert_eq!(inbox.world.send("POST", "/in/shop", &headers, br#"{"id":1}"#).await.status, 200);
    inbox.status("1", "done").await;
    inbox.requests(1).await;
    inbox.world.stop().await;
    std::fs::remove_dir_all(folder).unwrap();
}

#[tokio::test]
async fn s36_a_question_that_nobody_signs_is_answered_and_lets_no_event_in() {
    let rules = "    provider:
      signature: { header: X-Hub-Signature-256, prefix: \"sha256=\", algorithm: hmac-sha256, encoding: hex }
      id: event.body.id
      handshake:
        when: \"'hub.challenge' in event.query && event.query['hub.verify_token'] == 'mine'\"
        answer: event.query['hub.challenge']
        unsigned: true
";
    let inbox = Inbox::with(rules).await;
    for method in ["GET", "POST"] {
        let heard =
            inbox.world.send(method, "/in/shop?hub.verify_token=mine&hub.challenge=a%3Cb", &[], b"").await;
        assert_eq!((heard.status, heard.text.as_str()), (200, "a<b"), "{heard:?}");
        assert_eq!(heard.headers["content-type"], "text/plain; charset=utf-8");
        assert_eq!(heard.headers["x-content-type-options"], "nosniff", "a browser makes no page of it");
    }
    // Anything else is as before, and what comes along with a question is no event.
    inbox
        .world
        .send("GET", "/in/shop?hub.verify_token=other&hub.challenge=1", &[], b"")
        .await
        .refused(405, "TS0071");
    let json = [("content-type", "application/json")];
    inbox
        .world
        .send("POST", "/in/shop?hub.verify_token=other&hub.challenge=1", &json, b"{\"id\": 1}")
        .await
        .refused(401, "TS0111");
    let asked = inbox
        .world
        .send("POST", "/in/shop?hub.verify_token=mine&hub.challenge=1", &json, b"{\"id\": 1}")
        .await;
    assert_eq!((asked.status, asked.text.as_str()), (200, "1"));
    assert_eq!(inbox.world.get("/v1/intents?scope=default/in/shop").await.json["intents"], json!([]));
    inbox.requests(0).await;
    inbox.world.stop().await;
    // Who signs nothing at all has a token, and asks without it.
    let asks = "  jobs: { provider: { id: event.body.id, handshake: { when: has(event.query.validationToken), answer: event.query.validationToken, unsigned: true } }, deliver: \"TARGET/jobs\" }\n";
    let jobs = Inbox::and("", asks).await;
    let heard = jobs
        .world
        .send("POST", "/in/jobs?validationToken=a%20b", &[("content-type", "text/plain")], b"")
        .await;
    assert_eq!((heard.status, heard.text.as_str()), (200, "a b"), "{heard:?}");
    jobs.world.stop().await;
}
