//! Which requests are the same intent: S2-S6.

use std::sync::Arc;

use super::*;
use twicesafe_ledger::ManualClock;
use twicesafe_server::Right;

#[tokio::test]
async fn s27_a_repetition_gets_the_first_answer_and_nothing_is_sent() {
    let gateway = Gateway::with_routes(PERSON).await;
    let first = gateway.post("/contacts", &contact("a")).await;
    assert_eq!((first.status, &first.json["id"]), (201, &json!("c_1")), "{first:?}");
    assert_eq!(first.headers.get("idempotent-replayed"), None);
    assert_eq!(first.headers.get("set-cookie"), None, "what is nobody's business is not kept (S22)");
    let again = gateway.post("/contacts", &contact("a")).await;
    assert_eq!((again.status, &again.text), (201, &first.text));
    assert_eq!(again.headers["idempotent-replayed"], "true");
    for name in ["twicesafe-intent", "twicesafe-attempt", "twicesafe-status", "twicesafe-expires"] {
        assert!(first.headers.contains_key(name) && again.headers.contains_key(name), "{name}");
    }
    assert_eq!(gateway.post("/contacts", &contact("b")).await.json["id"], "c_2");
    gateway.crm.check_effects(2);
    let known = gateway.wait_for(SCOPE, "a", "done").await;
    assert_eq!(known["external_id"], "c_1");
    let metrics = gateway.world.get("/metrics").await.text;
    for (result, count) in [("done", 2), ("replayed", 1)] {
        let line = format!(
            "twicesafe_destination_requests_total{{destination=\"crm\",result=\"{result}\"}} {count}\n"
        );
        assert!(metrics.contains(&line), "{metrics}");
    }
}

#[tokio::test]
async fn s27_what_is_remembered_is_told_as_what_is_read_and_no_longer_than_it_holds() {
    let folder = std::env::temp_dir().join(format!("twicesafe-remembered-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (crm, clock) = (Destination::new().await, Arc::new(ManualClock::at(1_800_000_000_000)));
    let address = format!("sqlite:{}", folder.join("ledger").display());
    let open = || twicesafe_ledger::Open::at(&address).clock(clock.clone());
    let yaml = configuration(&crm, "auth: none", PERSON, "");
    let world = World::on(open().remembering().open().await.unwrap(), clock.clone(), &yaml).await;
    let ask =
        async |id: &str, name: &str| world.post("/to/crm/contacts", &json!({ "id": id, "name": name })).await;
    let first = ask("a", "Ann").await;
    let headers = |heard: &Heard| {
        let mut headers = heard.headers.clone();
        headers.retain(|name, _| !["date", "content-length", "idempotent-replayed"].contains(&name.as_str()));
        headers
    };
    for _ in 0..5 {
        let again = ask("a", "Ann").await;
        assert_eq!((again.status, &again.text), (first.status, &first.text));
        assert_eq!(again.headers["idempotent-replayed"], "true");
        assert_eq!(headers(&again), headers(&first));
    }
    ask("a", "Bob").await.refused(422, "TS0010");
    crm.check_effects(1);
    // Another process has it done anew: what is remembered is over.
    let other = open().open().await.unwrap();
    let name = twicesafe_ledger::Name::new(SCOPE, "a").unwrap();
    let stored = other.existing(&name).await.unwrap();
    let by = twicesafe_ledger::By::from(other.actor());
    other.reset(by, &stored, "a test").await.unwrap();
    assert_eq!(ask("a", "Ann").await.headers.get("idempotent-replayed"), None);
    crm.check_effects(2);
    world.stop().await;
    std::fs::remove_dir_all(&folder).unwrap();
}

#[tokio::test]
async fn s8_twenty_at_once_are_one_effect() {
    let gateway = Gateway::with_routes(&PERSON.replace("300ms", "5s")).await;
    gateway.crm.script([Do::ActLate(Duration::from_millis(200))]);
    let body = contact("a");
    let all = (0..20).map(|_| gateway.post("/contacts", &body));
    let heard = futures_util::future::join_all(all).await;
    assert!(heard.iter().all(|heard| heard.status == 201 && heard.json["id"] == "c_1"), "{heard:?}");
    gateway.crm.check_effects(1);
}

#[tokio::test]
async fn s2_without_a_key_nothing_is_stored_and_nothing_sent() {
    let gateway = Gateway::with_routes(PERSON).await;
    for body in
        [json!({}), json!({ "id": null }), json!({ "id": "" }), json!({ "id": 0.5 }), json!({ "id": ["a"] })]
    {
        gateway.post("/contacts", &body).await.refused(400, "TS0001");
    }
    gateway.post("/contacts", &json!({ "id": "x".repeat(300) })).await.refused(400, "TS0002");
    let bad = gateway
        .world
        .send("POST", "/to/crm/contacts", &[("content-type", "application/json")], b"{nonsense")
        .await;
    bad.refused(400, "TS0001");
    assert_eq!(gateway.world.get("/v1/intents").await.json["intents"], json!([]));
    gateway.crm.check_effects(0);
}

#[tokio::test]
async fn a_write_without_a_route_needs_a_key_and_is_told_what_to_paste() {
    let gateway = Gateway::with_routes(PERSON).await;
    let refused = gateway.post("/deals", &json!({ "x": 1 })).await;
    refused.refused(400, "TS0001");
    let hint = refused.json["hint"].as_str().unwrap();
    assert!(hint.contains("match: POST /deals") && hint.contains("action: post.deals"), "{hint}");
    let refused = gateway.post("/deals/881/notes", &json!({ "x": 1 })).await;
    let hint = refused.json["hint"].as_str().unwrap();
    assert!(hint.contains("match: POST /deals/{id}/notes, action: post.deals._id_.notes"), "{hint}");
    for (key, expected) in [("\"order-1\"", "c_1"), ("order-1", "c_1"), ("order-2", "c_2")] {
        let heard = gateway.post_with("/deals", &[("idempotency-key", key)], &json!({ "x": 1 })).await;
        assert_eq!((heard.status, &heard.json["id"]), (201, &json!(expected)), "{key}");
    }
    let elsewhere = gateway.post_with("/notes", &[("idempotency-key", "order-1")], &json!({ "x": 1 })).await;
    assert_eq!(elsewhere.json["id"], "c_3", "the same key for something else is something else");
    gateway.crm.check_effects(3);
}

#[tokio::test]
async fn s5_the_same_key_with_another_request_is_refused_unless_nothing_happened() {
    let gateway = Gateway::with_routes(PERSON).await;
    gateway.post("/contacts", &contact("a")).await;
    gateway.post("/contacts", &json!({ "id": "a", "name": "Eve" })).await.refused(422, "TS0010");
    gateway.crm.script([Do::Say(422, json!({ "error": "no mail address" }))]);
    assert_eq!(gateway.post("/contacts", &contact("b")).await.status, 422);
    let corrected = gateway.post("/contacts", &json!({ "id": "b", "name": "Bob" })).await;
    assert_eq!(corrected.status, 201, "{corrected:?}");
    gateway.crm.check_effects(2);
}

#[tokio::test]
async fn s4_what_a_route_ignores_may_differ_and_an_ai_may_write_the_rest() {
    let routes = "- match: POST /contacts
  action: contact.create
  key: [request.body.id, request.body.line]
  ignore: request.body.sent_at
- match: POST /mails
  action: mail.send
  key: request.body.id
  on_mismatch: replay";
    let gateway = Gateway::with_routes(routes).await;
    for at in ["1", "2"] {
        let body = json!({ "id": "a", "line": 1, "sent_at": at });
        assert_eq!(gateway.post("/contacts", &body).await.json["id"], "c_1");
    }
    assert_eq!(gateway.post("/contacts", &json!({ "id": "a", "line": 2 })).await.json["id"], "c_2");
    gateway.post("/contacts", &json!({ "id": "a" })).await.refused(400, "TS0001");
    for text in ["Dear Ada", "Hello Ada"] {
        let heard = gateway.post("/mails", &json!({ "id": "m", "text": text })).await;
        assert_eq!(heard.json["id"], "c_3");
        assert_eq!(heard.headers.contains_key("twicesafe-mismatch"), text == "Hello Ada");
    }
    gateway.crm.check_effects(3);
}

#[tokio::test]
async fn s3_tenants_and_accounts_are_apart_and_secrets_are_not() {
    let gateway = Gateway::with(
        "auth: none\ntenants: [default, acme]",
        "- match: POST /contacts
  action: contact.create
  key: request.body.id
  account: request.headers['x-account']
  keep: [x-account]",
        "",
    )
    .await;
    let ours = gateway.world.token("ours", &[Right::Act]).await;
    let theirs = gateway.world.token_for("theirs", &[Right::Act], Some("acme"), &[], None).await;
    let send = |token: String, account: &'static str, secret: &'static str| {
        let gateway = &gateway;
        async move {
            let headers =
                [("twicesafe-token", token.as_str()), ("x-account", account), ("authorization", secret)];
            gateway.post_with("/contacts", &headers, &contact("a")).await
        }
    };
    assert_eq!(send(ours.clone(), "live", "Bearer 1").await.json["id"], "c_1");
    assert_eq!(
        send(ours.clone(), "live", "Bearer 2").await.json["id"],
        "c_1",
        "a rotated secret still replays"
    );
    assert_eq!(send(ours.clone(), "test", "Bearer 1").await.json["id"], "c_2");
    assert_eq!(send(theirs, "live", "Bearer 1").await.json["id"], "c_3");
    gateway.crm.check_effects(3);
    let sent = gateway.crm.effects();
    assert!(
        sent.iter().all(|effect| effect.header("twicesafe-token").is_none()),
        "ours is not for the destination"
    );
    gateway.post("/contacts", &contact("a")).await.refused(401, "TS0072");
    let reader = gateway.world.token("reader", &[Right::Review]).await;
    send(reader, "live", "").await.refused(403, "TS0074");
}

#[tokio::test]
async fn s2_of_two_keys_nobody_knows_which_counts() {
    let routes = "- match: POST /contacts\n  action: contact.create";
    let gateway = Gateway::with_routes(routes).await;
    for keys in [["aa", "bb"], ["bb", "aa"]] {
        let keys = keys.map(|key| ("idempotency-key", key));
        gateway.post_with("/contacts", &keys, &contact("a")).await.refused(400, "TS0002");
    }
    gateway.crm.check_effects(0);
    for keys in [["k\u{e4}", "k\u{e4}"], ["k\u{e4}", "k\u{e4}"]] {
        let keys = keys.map(|key| ("idempotency-key", key));
        assert_eq!(gateway.post_with("/contacts", &keys, &contact("a")).await.status, 201);
    }
    gateway.crm.check_effects(1);
}

#[tokio::test]
async fn s29_a_callers_own_key_is_never_passed_on() {
    let native = PERSON.replace("recovery: person", "recovery: { native-key: { header: X-Once } }");
    for (routes, place) in [(PERSON, "idempotency-key"), (&native, "x-once")] {
        let gateway = Gateway::with_routes(routes).await;
        let mut keys = Vec::new();
        for generation in 1..=2 {
            for own in ["of-the-caller", "\"of-the-caller-too\""] {
                let heard = gateway.post_with("/contacts", &[("idempotency-key", own)], &contact("a")).await;
                assert_eq!(heard.status, 201, "{heard:?}");
            }
            gateway.crm.check_effects(generation);
            let sent = &gateway.crm.effects()[generation - 1];
            assert!(!format!("{sent:?}").contains("of-the-caller"), "{sent:?}");
            keys.push(sent.header(place).unwrap().to_owned());
            let about = json!({ "scope": SCOPE, "key": "a", "generation": generation });
            gateway.world.decide("ann", "reset", &about).await;
        }
        // A key that outlives the reset would have the destination give the old answer again.
        assert!(keys.iter().all(|key| key.len() == 32) && keys[0] != keys[1], "{keys:?}");
        // Who sends none gets none added, but for the destination's own.
        gateway.post("/contacts", &contact("b")).await;
        let sent = gateway.crm.effects().remove(2);
        assert_eq!(
            (sent.header("idempotency-key"), sent.header("x-once").is_some()),
            (None, place == "x-once")
        );
    }
}

#[tokio::test]
async fn keys_may_name_headers() {
    let routes = "- { match: POST /contacts, action: contact.create, key: Idempotency-Key }
- { match: POST /deals, action: deal.create, key: [X-Order-Id, request.body.line] }
- { match: POST /notes, action: note.create, key: \"request.headers['X-Order-Id']\" }";
    let gateway = Gateway::with_routes(routes).await;
    let headers = [("idempotency-key", "k"), ("x-order-id", "o")];
    for path in ["/contacts", "/deals", "/notes"] {
        let body = json!({ "id": path, "line": 1 });
        gateway.post(path, &body).await.refused(400, "TS0001");
        for replayed in [None, Some("true")] {
            let heard = gateway.post_with(path, &headers, &body).await;
            let said = heard.headers.get("idempotent-replayed").map(String::as_str);
            assert_eq!((heard.status, said), (201, replayed), "{path} {heard:?}");
        }
    }
    gateway.crm.check_effects(3);
}

#[tokio::test]
async fn s2_a_key_is_the_same_however_it_is_written() {
    let routes = "- { match: POST /deals, action: deal.create, key: [Idempotency-Key, request.body.line], fingerprint: request.body.name }
- { match: POST /refunds, action: refund.create, key: [request.body.order, request.body.line], fingerprint: request.body.name }";
    let gateway = Gateway::with_routes(routes).await;
    for (key, effects) in [("order-1", 1), ("\"order-1\"", 1), ("order-2", 2)] {
        let heard = gateway
            .post_with("/deals", &[("idempotency-key", key)], &json!({ "line": 1, "name": "n" }))
            .await;
        assert_eq!(heard.status, 201, "{heard:?}");
        gateway.crm.check_effects(effects);
    }
    for body in
        [json!({ "order": 7, "line": 1, "name": "n" }), json!({ "order": "7", "line": 1.0, "name": "n" })]
    {
        assert_eq!(gateway.post("/refunds", &body).await.status, 201);
    }
    let form = [("content-type", "application/x-www-form-urlencoded")];
    let heard = gateway.world.send("POST", "/to/crm/refunds", &form, b"order=7&line=1&name=n").await;
    assert_eq!(heard.headers["idempotent-replayed"], "true", "{heard:?}");
    gateway.crm.check_effects(3);
}

#[tokio::test]
async fn s3_an_account_is_taken_for_nothing_else_in_a_scope() {
    let routes = "- match: POST /contacts
  action: contact.create
  key: request.body.id
  account: request.headers['x-account']";
    let more = "  shop:\n    base: http://127.0.0.1:1\n";
    let gateway = Gateway::with("auth: { bearer: ours }", routes, more).await;
    let token = gateway.world.token_for("shop", &[Right::Act], None, &["default/shop"], None).await;
    for account in ["shop", "shop/x", "in", "observe", "..", "rehearsal"] {
        let headers = [("twicesafe-token", token.as_str()), ("x-account", account)];
        let heard = gateway.post_with("/contacts", &headers, &contact("a")).await;
        assert!([400, 403].contains(&heard.status), "{account} {heard:?}");
        let heard = gateway.world.send("GET", "/to/crm/contacts", &headers, b"").await;
        assert_eq!(heard.status, 403, "{account} {heard:?}");
    }
    gateway.crm.check_effects(0);
    let wide = gateway.world.token_for("all", &[Right::Act], None, &[], None).await;
    let headers = [("twicesafe-token", wide.as_str()), ("x-account", "a/b")];
    let heard = gateway.post_with("/contacts", &headers, &contact("a")).await;
    assert_eq!(heard.status, 201, "{heard:?}");
    assert_eq!(gateway.crm.effects()[0].header("x-account"), Some("a/b"));
    let heard = gateway.world.ledger.store().scopes("default/a").await.unwrap();
    assert_eq!(heard, ["default/a=2Fb/crm/contact.create"]);
}

#[tokio::test]
async fn s4_what_is_compared_must_be_there() {
    let routes = "- match: POST /contacts
  action: contact.create
  key: request.body.id
  fingerprint: [request.body.amount]";
    let gateway = Gateway::with_routes(routes).await;
    let heard = gateway.post("/contacts", &contact("a")).await;
    heard.refused(400, "TS0091");
    assert!(heard.json["message"].as_str().unwrap().contains("request.body.amount"), "{heard:?}");
    gateway.crm.check_effects(0);
}

#[tokio::test]
async fn a_rehearsal_and_another_account_are_not_in_the_way() {
    let routes = "- match: PUT /contacts/{id}
  action: contact.put
  account: request.headers['x-mode']
  key: [request.params.id, request.body.version]
  lane: request.params.id
  version: request.body.version
  version_means: snapshot
  recovery: person";
    let gateway = Gateway::with_routes(routes).await;
    let put = async |mode: &str, test: &str, version: i64| {
        let headers = [("content-type", "application/json"), ("x-mode", mode), ("twicesafe-test", test)];
        let body = json!({ "version": version }).to_string();
        gateway.world.send("PUT", "/to/crm/contacts/7", &headers, body.as_bytes()).await
    };
    assert_eq!(put("live", "true", 10).await.status, 201);
    assert_eq!(put("sandbox", "", 9).await.status, 201);
    assert_eq!(put("live", "", 5).await.status, 201);
    put("live", "", 4).await.refused(412, "TS0012");
    put("sandbox", "", 8).await.refused(412, "TS0012");
    gateway.crm.check_effects(3);
}

#[tokio::test]
async fn a_rehearsal_is_done_each_time_and_leaves_the_key_alone() {
    let gateway = Gateway::with_routes(PERSON).await;
    for neither in ["1", "yes"] {
        let heard = gateway.post_with("/contacts", &[("twicesafe-test", neither)], &contact("a")).await;
        assert_eq!((heard.status, gateway.crm.effects().len()), (400, 0), "{heard:?}");
    }
    let gateway = Gateway::with_routes(PERSON).await;
    for expected in ["c_1", "c_2"] {
        let heard = gateway.post_with("/contacts", &[("twicesafe-test", "true")], &contact("a")).await;
        assert_eq!(
            (heard.json["id"].as_str(), heard.headers["twicesafe-test"].as_str()),
            (Some(expected), "true")
        );
    }
    let real = gateway.post("/contacts", &contact("a")).await;
    assert_eq!((real.json["id"].as_str(), real.headers.get("idempotent-replayed")), (Some("c_3"), None));
}

#[tokio::test]
async fn forms_have_fields_too() {
    let gateway = Gateway::with_routes(
        "- match: POST /v1/charges
  action: charge.create
  key: request.body.metadata.order_id
  recovery: { native-key: { body: metadata.twicesafe } }",
    )
    .await;
    for _ in 0..2 {
        let form = [("content-type", "application/x-www-form-urlencoded")];
        let heard =
            gateway.world.send("POST", "/to/crm/v1/charges", &form, b"amount=5&metadata[order_id]=7").await;
        assert_eq!(heard.json["id"], "c_1", "{heard:?}");
    }
    let sent = String::from_utf8(gateway.crm.effects()[0].raw.clone()).unwrap();
    assert!(sent.starts_with("amount=5&metadata[order_id]=7&metadata%5Btwicesafe%5D="), "{sent}");
}

#[tokio::test]
async fn what_two_readers_would_read_differently_is_refused() {
    let gateway = Gateway::with_routes(PERSON).await;
    let json = [("content-type", "application/json")];
    let twice = gateway.world.send("POST", "/to/crm/contacts", &json, br#"{"id":"a","id":"b"}"#).await;
    twice.refused(400, "TS0070");
    let form = [("content-type", "application/x-www-form-urlencoded")];
    gateway.world.send("POST", "/to/crm/contacts", &form, b"id=a&id=b").await.refused(400, "TS0001");
    let another = [("x-http-method-override", "DELETE")];
    gateway.world.send("GET", "/to/crm/contacts/7", &another, b"").await.refused(400, "TS0100");
    assert_eq!(gateway.world.send("TRACE", "/to/crm/contacts", &[], b"").await.status, 405);
    gateway.crm.check_effects(0);
}

#[tokio::test]
async fn s24_a_native_key_arrives_whatever_its_header_is_called() {
    let routes = "- match: POST /contacts
  action: contact.create
  key: request.body.id
  stamp: { header: X-External-Token }
  recovery: { native-key: { header: X-Idempotency-Key, bytes_max: 20 } }";
    let gateway = Gateway::with("auth: { bearer: ours }", routes, "").await;
    let own = [("x-api-key", "of the caller")];
    assert_eq!(gateway.post_with("/contacts", &own, &contact("a")).await.status, 201);
    let sent = gateway.crm.effects()[0].clone();
    assert_eq!(sent.header("x-idempotency-key").map(str::len), Some(20), "{sent:?}");
    assert_eq!(sent.header("x-external-token").map(str::len), Some(20));
    assert_eq!((sent.header("authorization"), sent.header("x-api-key")), (Some("Bearer ours"), None));
}

#[tokio::test]
async fn nothing_leaves_its_destination() {
    let gateway = Gateway::with_routes(PERSON).await;
    for path in
        ["/../secret", "/a/%2e%2e/secret", "/./x", "/a%zz", "//contacts", "/contacts;x", "/a%2f..%2fb"]
    {
        let headers = [("idempotency-key", "k")];
        gateway.post_with(path, &headers, &json!({})).await.refused(400, "TS0070");
    }
    gateway.world.post("/to/elsewhere/x", &json!({})).await.refused(404, "TS0090");
    let origin = [("origin", "https://evil.example"), ("idempotency-key", "k")];
    gateway.post_with("/contacts", &origin, &contact("a")).await.refused(403, "TS0075");
    let link = [("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")];
    gateway.world.send("GET", "/to/crm/contacts", &link, b"").await.refused(403, "TS0075");
    gateway.crm.check_effects(0);
}
