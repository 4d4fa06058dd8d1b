//! What an answer means, and what callers are told: S16-S21, S27.

use super::*;

async fn check(step: Do, told: u16, code: Option<&str>, status: &str, effects: usize) {
    let gateway = Gateway::with_routes(PERSON).await;
    gateway.crm.script([step.clone()]);
    let heard = gateway.post("/contacts", &contact("a")).await;
    assert_eq!((heard.status, heard.json["code"].as_str()), (told, code), "{step:?}: {heard:?}");
    gateway.wait_for(SCOPE, "a", status).await;
    gateway.crm.check_effects(effects);
}

#[tokio::test]
async fn s17_whatever_is_not_an_answer_leaves_doubt_and_never_looks_like_one() {
    for step in [
        Do::ActAndSay(500, json!({})),
        Do::ActAndSay(503, json!({})),
        Do::ActAndSay(408, json!({})),
        Do::ActAndHang,
        Do::ActAndClose,
        Do::ActAndCut,
        Do::ActAndBabble,
        Do::ActAndNeverEnd,
        Do::ActLate(Duration::from_millis(600)),
        Do::ActAndSay(207, json!({})),
    ] {
        check(step, 423, Some("TS0016"), "review", 1).await;
    }
}

#[tokio::test]
async fn s17_review_is_told_to_everybody_and_nothing_is_sent_again() {
    let gateway = Gateway::with_routes(PERSON).await;
    gateway.crm.script([Do::ActAndSay(500, json!({ "secret": "inside" }))]);
    for _ in 0..3 {
        let heard = gateway.post("/contacts", &contact("a")).await;
        heard.refused(423, "TS0016");
        assert!(!heard.text.contains("inside"));
    }
    gateway.crm.check_effects(1);
    let fence = gateway.wait_for(SCOPE, "a", "review").await["fence"].as_u64().unwrap();
    let body = json!({ "scope": SCOPE, "key": "a", "fence": fence, "finding": "happened", "external_id": "c_1", "reason": "seen" });
    let resolved = gateway.world.post("/v1/resolve", &body).await;
    assert_eq!(resolved.status, 200, "{resolved:?}");
    let told = gateway.post("/contacts", &contact("a")).await;
    assert_eq!((told.status, told.headers["twicesafe-source"].as_str()), (200, "person"), "{told:?}");
    assert_eq!(told.json["external_id"], "c_1");
    gateway.crm.check_effects(1);
}

#[tokio::test]
async fn s18_a_refusal_is_passed_and_given_again_for_a_short_time_only() {
    let gateway = Gateway::with_routes(PERSON).await;
    let no = json!({ "error": "name is missing" });
    gateway.crm.script([Do::Say(400, no.clone()), Do::Say(404, no.clone())]);
    for replayed in [false, true] {
        let heard = gateway.post("/contacts", &contact("a")).await;
        assert_eq!((heard.status, &heard.json), (400, &no));
        assert_eq!(heard.headers.contains_key("idempotent-replayed"), replayed);
    }
    assert_eq!(gateway.crm.requests().len(), 1);
    assert_eq!(gateway.post("/contacts", &contact("b")).await.status, 404);
    assert_eq!(gateway.post("/contacts", &contact("b")).await.status, 201, "the cause may be fixed by now");
    gateway.pass(Duration::from_secs(31)).await;
    assert_eq!(gateway.post("/contacts", &contact("a")).await.status, 201);
    gateway.crm.check_effects(2);
}

#[tokio::test]
async fn s16_who_the_caller_is_is_between_the_two_of_them() {
    let gateway = Gateway::with_routes(PERSON).await;
    for status in [401, 403, 407] {
        gateway.crm.script([Do::Say(status, json!({ "error": "who are you" }))]);
        let heard = gateway.post("/contacts", &contact("a")).await;
        assert_eq!((heard.status, heard.json["error"].as_str()), (status, Some("who are you")), "{heard:?}");
        assert_eq!(heard.headers["twicesafe-attempt"], "0", "it counts as no attempt");
        gateway.wait_for(SCOPE, "a", "retryable").await;
    }
    assert_eq!(gateway.post("/contacts", &contact("a")).await.status, 201);
    gateway.crm.check_effects(1);
}

#[tokio::test]
async fn s19_redirects_are_never_followed() {
    let gateway = Gateway::with_routes(PERSON).await;
    let elsewhere = "http://169.254.169.254/latest";
    for status in [307, 308] {
        gateway.crm.script([Do::SayWith(status, "location", elsewhere)]);
        let id = status.to_string();
        for _ in 0..2 {
            let heard = gateway.post("/contacts", &contact(&id)).await;
            // Nor by the caller, past the gateway.
            assert_eq!((heard.status, heard.headers.get("location")), (422, None), "{heard:?}");
            assert_eq!(heard.headers["twicesafe-original-status"], id);
            assert_eq!(heard.headers["twicesafe-original-location"], elsewhere);
        }
        gateway.wait_for(SCOPE, &id, "failed").await;
    }
    gateway.crm.script([Do::SayWith(201, "idempotent-replayed", "true")]);
    let first = gateway.post("/contacts", &contact("first")).await;
    assert_eq!((first.status, first.headers.get("idempotent-replayed")), (201, None), "that is ours to say");
    gateway.crm.script([Do::SayWith(303, "location", elsewhere)]);
    let heard = gateway.post("/contacts", &contact("303")).await;
    assert_eq!((heard.status, heard.headers.get("location")), (200, None), "it is done, and leads nowhere");
    assert_eq!(heard.headers["twicesafe-original-location"], elsewhere);
    gateway.wait_for(SCOPE, "303", "done").await;
}

#[tokio::test]
async fn s19_a_redirect_after_a_write_may_say_that_it_was_done() {
    for status in [300, 301, 302, 304] {
        check(Do::ActAndSay(status, json!({})), 423, Some("TS0016"), "review", 1).await;
    }
    let gateway =
        Gateway::with_routes(&format!("{PERSON}\n  outcomes: {{ 301: refused, 302: answered }}")).await;
    gateway.crm.script([Do::Say(301, json!({})), Do::ActAndSay(302, json!({}))]);
    assert_eq!(gateway.post("/contacts", &contact("a")).await.status, 422);
    gateway.wait_for(SCOPE, "a", "failed").await;
    gateway.post("/contacts", &contact("b")).await;
    gateway.wait_for(SCOPE, "b", "done").await;
}

#[tokio::test]
async fn s19_a_table_says_what_a_body_means() {
    let routes = format!(
        "{PERSON}
  outcomes:
    - {{ status: 200, when: \"answer.body.ok == false\", means: refused }}
    - {{ status: 503, means: not-sent }}"
    );
    let gateway = Gateway::with_routes(&routes).await;
    gateway.crm.script([Do::Say(200, json!({ "ok": false })), Do::Say(503, json!({}))]);
    let heard = gateway.post("/contacts", &contact("a")).await;
    assert_eq!(
        (heard.status, heard.headers["twicesafe-original-status"].as_str()),
        (422, "200"),
        "no 2xx for a no"
    );
    assert_eq!(heard.json, json!({ "ok": false }));
    gateway.wait_for(SCOPE, "a", "failed").await;
    let body = contact("b");
    let heard = gateway.post("/contacts", &body);
    assert!(
        tokio::time::timeout(Duration::from_millis(200), heard).await.is_err(),
        "it is tried again, not told"
    );
    gateway.wait_for(SCOPE, "b", "retryable").await;
}

#[tokio::test]
async fn s19_what_cannot_be_read_is_not_taken_for_a_success() {
    let table = "outcomes: [ { status: 200, when: \"answer.body.ok == false\", means: refused } ]";
    let gateway = Gateway::with_routes(&format!("{PERSON}\n  {table}")).await;
    let no = br#"{"ok":false}"#;
    // That is what gzip makes of it.
    let packed = b"\x1f\x8b\x08\0\0\0\0\0\0\x03\xab\x56\xca\xcf\x56\xb2\x4a\x4b\xcc\x29\x4e\xad\x05\0\x69\x3e\x17\x3a\x0c\0\0\0";
    let large = format!("{{\"ok\":true,\"text\":\"{}\"}}", "x".repeat(2_000_000));
    let page = b"<html>We will be back soon</html>";
    for (id, of_type, body, status) in [
        ("plain", "content-type: text/plain", no.to_vec(), "failed"),
        ("html", "content-type: text/html", no.to_vec(), "failed"),
        ("packed", "content-type: application/json\r\ncontent-encoding: gzip", packed.to_vec(), "review"),
        ("large", "content-type: application/json", large.into_bytes(), "review"),
        ("page", "content-type: text/html", page.to_vec(), "review"),
        ("marked", "content-type: application/json", "\u{feff}{\"ok\":false}".as_bytes().to_vec(), "failed"),
        ("broken", "content-type: application/json", br#"{"ok":false"#.to_vec(), "review"),
        ("empty", "content-type: text/plain", Vec::new(), "done"),
        ("words", "content-type: text/plain", b"ok".to_vec(), "done"),
    ] {
        gateway.crm.script([Do::ActAndSayAs(of_type, body)]);
        let heard = gateway.post("/contacts", &contact(id)).await;
        assert_eq!(heard.status < 300, status == "done", "{id} {heard:?}");
        gateway.wait_for(SCOPE, id, status).await;
    }
    assert!(gateway.crm.effects().iter().all(|effect| effect.header("accept-encoding") == Some("identity")));
}

#[tokio::test]
async fn s16_a_destination_that_is_not_there_was_not_sent_anything() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let yaml = format!(
        "destinations:\n  crm:\n    base: http://{nobody}\n    auth: none\n    wait: 300ms\n    routes:\n      - {}\n",
        PERSON.trim_start_matches("- ").replace('\n', "\n      ")
    );
    let world = World::configured(&yaml).await;
    let heard = world.post("/to/crm/contacts", &contact("a")).await;
    heard.refused(409, "TS0015");
    assert!(heard.json["message"].as_str().unwrap().contains("cannot connect to 127.0.0.1"), "{heard:?}");
    assert_eq!(heard.json["intent_status"], "retryable");
    assert!(heard.headers.contains_key("retry-after"));
    world.get("/to/crm/contacts").await.refused(502, "TS0092");
}

#[tokio::test]
async fn s20_an_answer_too_large_to_keep_reaches_its_caller_and_is_marked_later() {
    let gateway = Gateway::with_routes(&PERSON.replace("300ms", "20s")).await;
    let bytes = 9 << 20;
    gateway.crm.script([Do::ActAndSayMuch(bytes)]);
    let first = gateway.post("/contacts", &contact("a")).await;
    assert_eq!(first.status, 201);
    // The answer comes in parts of unknown number.
    assert!(first.text.matches('x').count() == bytes, "{}", first.text.len());
    gateway.wait_for(SCOPE, "a", "done").await;
    let again = gateway.post("/contacts", &contact("a")).await;
    assert_eq!((again.status, again.headers["twicesafe-body"].as_str()), (201, "not-kept"), "{again:?}");
    assert_eq!(again.json["code"], "TS0005");
    gateway.crm.check_effects(1);
}

#[tokio::test]
async fn s13_a_caller_that_leaves_does_not_undo_what_was_sent() {
    let gateway = Gateway::with_routes(&PERSON.replace("300ms", "5s")).await;
    gateway.crm.script([Do::ActLate(Duration::from_millis(300))]);
    let body = contact("a");
    let left = tokio::time::timeout(Duration::from_millis(100), gateway.post("/contacts", &body)).await;
    assert!(left.is_err(), "the caller left before the answer came");
    gateway.wait_for(SCOPE, "a", "done").await;
    let again = gateway.post("/contacts", &body).await;
    assert_eq!((again.status, again.headers["idempotent-replayed"].as_str()), (201, "true"));
    gateway.crm.check_effects(1);
}

#[tokio::test]
async fn s7_what_cannot_be_recorded_is_not_sent() {
    let folder = std::env::temp_dir().join(format!("twicesafe-gateway-full-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let address = format!("sqlite:{}", folder.join("ledger.db").display());
    let ledger = twicesafe_ledger::Open::at(&address).bytes_max(1_000_000).open().await.unwrap();
    let crm = Destination::new().await;
    let clock = std::sync::Arc::new(twicesafe_ledger::ManualClock::at(0));
    let world = World::on(ledger, clock, &configuration(&crm, "auth: none", PERSON, "")).await;
    let mut done = 0;
    let refused = loop {
        let body = json!({ "id": done.to_string(), "text": "x".repeat(40_000) });
        let heard = world.post("/to/crm/contacts", &body).await;
        match heard.status {
            201 => done += 1,
            _ => break heard,
        }
        assert!(done < 1000, "a ledger with a limit fills up");
    };
    refused.refused(503, "TS0044");
    assert!(refused.headers.contains_key("retry-after"));
    crm.check_effects(done);
    let replayed = world.post("/to/crm/contacts", &json!({ "id": "0", "text": "x".repeat(40_000) })).await;
    assert_eq!((replayed.status, replayed.headers["idempotent-replayed"].as_str()), (201, "true"));
    world.stop().await;
    std::fs::remove_dir_all(folder).unwrap();
}

#[tokio::test]
async fn s19_a_graphql_mutation_that_failed_below_its_field_may_have_run() {
    let of_a_field = json!({ "message": "cannot return null", "path": ["issueCreate", "issue"] });
    let before_it_ran = json!({ "message": "syntax error", "locations": [{ "line": 1, "column": 2 }] });
    let undefined = json!({ "message": "no such field", "path": ["mutation", "x"], "extensions": { "code": "undefinedField" } });
    let said_no =
        json!({ "data": { "orderCreate": { "order": null, "userErrors": [{ "message": "no" }] } } });
    for (entry, path, refusals) in [
        ("linear", "/graphql", vec![json!({ "errors": [before_it_ran] })]),
        ("github", "/graphql", vec![json!({ "errors": [before_it_ran] })]),
        ("shopify", "/admin/api/2026-01/graphql.json", vec![said_no, json!({ "errors": [undefined] })]),
    ] {
        let gateway = Gateway::with(&format!("use: {entry}\nauth: none"), "[]", "").await;
        let doubtful = [
            json!({ "data": null, "errors": [of_a_field] }),
            json!({ "data": { "issueCreate": null }, "errors": [of_a_field] }),
            json!({ "data": { "a": { "id": 1 }, "b": null }, "errors": [of_a_field] }),
            json!({ "data": null, "errors": [before_it_ran] }),
        ];
        let doubts = doubtful.len();
        for (number, answer) in doubtful.into_iter().enumerate() {
            gateway.crm.script([Do::ActAndSay(200, answer.clone())]);
            for _ in 0..2 {
                let key = format!("doubt-{number}");
                let heard = gateway
                    .post_with(path, &[("idempotency-key", &key)], &json!({ "query": "mutation" }))
                    .await;
                assert_eq!(heard.json["code"], "TS0016", "{entry} {answer}: {heard:?}");
            }
        }
        for (number, answer) in refusals.into_iter().enumerate() {
            gateway.crm.script([Do::Say(200, answer.clone())]);
            let key = format!("no-{number}");
            let heard =
                gateway.post_with(path, &[("idempotency-key", &key)], &json!({ "query": "mutation" })).await;
            assert_eq!(heard.status, 422, "{entry} {answer}: {heard:?}");
        }
        gateway.crm.script([Do::ActAndSay(200, json!({ "data": { "issueCreate": { "success": true } } }))]);
        let heard =
            gateway.post_with(path, &[("idempotency-key", "yes")], &json!({ "query": "mutation" })).await;
        assert_eq!(heard.status, 200, "{entry}: {heard:?}");
        gateway.crm.check_effects(doubts + 1);
    }
}

#[tokio::test]
async fn s27_what_was_sent_and_is_not_recorded_has_a_status_of_its_own() {
    let crm = Destination::new().await;
    crm.script([Do::ActAndSay(201, json!({ "id": "c_1", "notes": "x".repeat(1_000_000) }))]);
    let folder = std::env::temp_dir().join(format!("twicesafe-unrecorded-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let clock = Arc::new(twicesafe_ledger::ManualClock::at(1_800_000_000_000));
    let open = twicesafe_ledger::Open::at(&format!("sqlite:{}", folder.join("ledger.db").display()));
    let patient = PERSON.replace("300ms", "20s");
    // There is room for a claim, and none for that answer.
    let ledger = open.clock(clock.clone()).bytes_max(400_000).settle_patience(Duration::ZERO).open().await;
    let world = World::on(ledger.unwrap(), clock, &configuration(&crm, "auth: none", &patient, "")).await;
    let told = world.post("/to/crm/contacts", &contact("a")).await;
    told.refused(507, "TS0024");
    let words = told.text.to_ascii_lowercase();
    assert!(words.contains("it was sent") && !words.contains("nothing was sent"), "{}", told.text);
    assert!(told.json["hint"].as_str().unwrap().starts_with("Do not do it by hand"), "{}", told.text);
    assert!(told.headers.contains_key("retry-after"), "{told:?}");
    assert_eq!((told.headers["twicesafe-status"].as_str(), crm.effects().len()), ("pending", 1));
    world.clock.advance(Duration::from_secs(120));
    assert_eq!(world.post("/to/crm/contacts", &contact("a")).await.status, 423, "a person decides");
    assert_eq!(crm.effects().len(), 1);
    world.stop().await;
    std::fs::remove_dir_all(folder).unwrap();
}
