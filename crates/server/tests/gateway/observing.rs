//! Watching before guarding: everything is passed on, and what would have been prevented is on record.

use twicesafe_server::Observed;

use super::*;

/// What was observed, when so many findings are on record: they are written beside the answers.
async fn observed(gateway: &Gateway, findings: usize) -> Vec<Observed> {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    loop {
        let all = twicesafe_server::observed(&gateway.world.ledger, "default", None).await.unwrap();
        let counted = |one: &Observed| one.prevented.values().chain(one.refused.values()).sum::<usize>();
        let found: usize = all.iter().map(counted).sum();
        if found >= findings || tokio::time::Instant::now() > deadline {
            assert_eq!(found, findings, "{all:?}");
            return all;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn what_is_observed_is_passed_on_and_recorded() {
    let routes = "- match: POST /contacts
  action: contact.create
  key: request.body.id
  timeout: 300ms";
    let gateway = Gateway::with("mode: observe", routes, "").await;
    for expected in ["c_1", "c_2"] {
        let heard = gateway.post("/contacts", &contact("a")).await;
        assert_eq!((heard.status, heard.json["id"].as_str()), (201, Some(expected)), "{heard:?}");
    }
    gateway.post("/contacts", &json!({ "id": "a", "name": "Eve" })).await;
    gateway.post("/contacts", &json!({ "name": "nobody" })).await;
    gateway.post("/deals", &json!({ "x": 1 })).await;
    gateway.post("/deals", &json!({ "x": 1 })).await;
    gateway.crm.script([Do::Say(500, json!({ "raw": true }))]);
    let raw = gateway.post("/contacts", &contact("e")).await;
    assert_eq!((raw.status, &raw.json), (500, &json!({ "raw": true })), "nothing is changed");
    gateway.crm.check_effects(6);
    observed(&gateway, 6).await;
    let count = async |action: &str, what: &str| {
        let path = format!("/v1/intents?scope=default/observe/crm/{action}/{what}");
        gateway.world.get(&path).await.json["intents"].as_array().map(Vec::len)
    };
    assert_eq!(count("contact.create", "prevented").await, Some(1));
    assert_eq!(
        count("contact.create", "refused").await,
        Some(2),
        "another request under one key, and no key"
    );
    assert_eq!(count("post.deals", "prevented").await, Some(1), "without a key by what is asked for");
    assert_eq!(count("post.deals", "refused").await, Some(2));
    assert_eq!(count("contact.create", "seen").await, Some(3));
}

#[tokio::test]
async fn what_is_observed_does_not_wait_for_a_ledger_that_is_away() {
    let crm = Destination::new().await;
    let yaml = configuration(&crm, "mode: observe\nauth: none", PERSON, "");
    let (world, folder) = World::in_folder("observed-away", &yaml).await;
    let other = rusqlite::Connection::open(folder.join("ledger.db")).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let started = std::time::Instant::now();
    for id in ["a", "b", "c"] {
        assert_eq!(world.post("/to/crm/contacts", &contact(id)).await.status, 201);
    }
    assert!(started.elapsed() < Duration::from_secs(3), "one of them waited, and not for long");
    other.execute_batch("ROLLBACK").unwrap();
    // Nobody can tell who may do what any more: what passes without being recorded goes on as it was last known.
    other.execute_batch("ALTER TABLE note RENAME TO gone").unwrap();
    tokio::time::sleep(Duration::from_millis(2_100)).await;
    assert_eq!(world.post("/to/crm/contacts", &contact("d")).await.status, 201);
    assert_eq!(world.get("/to/crm/contacts").await.status, 200);
    crm.check_effects(4);
    other.execute_batch("ALTER TABLE gone RENAME TO note").unwrap();
    world.stop().await;
    std::fs::remove_dir_all(folder).unwrap();
}

#[tokio::test]
async fn what_is_suggested_fits_what_was_observed() {
    let gateway = Gateway::with("mode: observe", "[]", "").await;
    let keyed = [("idempotency-key", "k")];
    gateway.post_with("/charges", &keyed, &contact("a")).await;
    gateway.post_with("/charges", &keyed, &contact("b")).await;
    gateway.post("/deals", &contact("a")).await;
    gateway.world.send("DELETE", "/to/crm/things/881", &[], b"").await;
    let text = Observed::configuration(&observed(&gateway, 3).await);
    let route = |matched: &str| {
        let from = text.split(&format!("match: {matched}\n")).nth(1).unwrap_or_else(|| panic!("{text}"));
        from.split("- match").next().unwrap().to_owned()
    };
    assert!(!route("POST /charges").contains("key:"), "its callers send one: {text}");
    assert!(route("POST /deals").contains("key: request.body.SOME_STABLE_ID"), "{text}");
    assert!(route("DELETE /things/{id}").contains("key: request.params.id"), "{text}");
}

#[tokio::test]
async fn what_nobody_would_have_known_of_would_not_have_been_sent_again() {
    let routes = "- match: POST /contacts
  action: contact.create
  key: request.body.id
  approve: request.body.amount > 100
  timeout: 300ms
- match: PUT /contacts
  action: contact.put
  key: request.body.id
  recovery: repeat
  timeout: 300ms";
    let gateway = Gateway::with("mode: observe\nauth: none", routes, "").await;
    for method in ["POST", "PUT"] {
        for _ in 0..3 {
            gateway.crm.script([Do::ActAndSay(500, json!({}))]);
            let body = json!({ "id": "a", "amount": 500 }).to_string();
            let json = [("content-type", "application/json")];
            let heard = gateway.world.send(method, "/to/crm/contacts", &json, body.as_bytes()).await;
            assert_eq!(heard.status, 500);
            // What may be repeated is, after a while.
            gateway.pass(Duration::from_secs(600)).await;
        }
    }
    let observed = observed(&gateway, 5).await;
    let of = |action: &str| observed.iter().find(|one| one.action == action).unwrap();
    let created = of("contact.create");
    assert_eq!(created.prevented.values().sum::<usize>(), 2, "{created:?}");
    assert!(created.prevented.contains_key("nobody knew whether it had happened"));
    assert_eq!(created.refused["a person would have been asked first"], 3);
    assert_eq!(of("contact.put").prevented.len(), 0);
    let review = gateway.world.get("/v1/intents?status=review").await;
    assert_eq!(review.json["intents"], json!([]), "nobody is asked about what is only watched");
}

#[tokio::test]
async fn what_would_be_refused_for_another_reason_than_its_key_is_told() {
    let routes = "- match: POST /contacts
  action: contact.create
  key: request.body.id
  approve: request.body.amount > 100
  lane: request.body.account";
    let gateway = Gateway::with("mode: observe\nauth: none", routes, "").await;
    let json = [("content-type", "application/json")];
    let send = async |headers: &[(&str, &str)], body: &str| {
        let headers: Vec<_> = json.iter().chain(headers).copied().collect();
        let heard = gateway.world.send("POST", "/to/crm/contacts", &headers, body.as_bytes()).await;
        assert_eq!(heard.status, 201, "everything is passed on: {heard:?}");
    };
    send(&[], r#"{"id":"a","amount":1,"account":"x"}"#).await;
    send(&[], r#"{"id":"b","account":"x"}"#).await;
    // Nobody would be asked about what is refused, what is refused each time is not prevented the second time, and what is put right
    // is not refused any more.
    send(&[], r#"{"id":"c","amount":500}"#).await;
    send(&[], r#"{"id":"c","amount":50,"account":"x"}"#).await;
    for _ in 0..2 {
        send(&[], r#"{"id":"d","id":"d","amount":1,"account":"x"}"#).await;
        let two_keys = [("idempotency-key", "one"), ("idempotency-key", "other")];
        send(&two_keys, r#"{"id":"e","amount":1,"account":"x"}"#).await;
    }
    for _ in 0..2 {
        // In an editor.
        send(&[("twicesafe-test", "true")], r#"{"id":"f","amount":500}"#).await;
    }
    gateway.crm.check_effects(10);
    let observed = observed(&gateway, 6).await;
    let [created] = &observed[..] else { panic!("{observed:?}") };
    assert_eq!((created.seen, created.prevented.len()), (6, 0), "{created:?}");
    for (why, times) in [
        ("`approve` cannot be worked out", 1),
        ("`lane` cannot be worked out", 1),
        ("the same name twice", 2),
        ("two different headers", 2),
    ] {
        let told: Vec<_> = created.refused.iter().filter(|(told, _)| told.contains(why)).collect();
        assert!(matches!(told[..], [(_, n)] if *n == times), "{why}: {created:?}");
    }
    assert_eq!(created.refused.len(), 4, "{created:?}");
}

#[tokio::test]
async fn writes_without_a_route_are_told_together_where_one_route_would_do() {
    let gateway = Gateway::with("mode: observe", "[]", "").await;
    let json = [("content-type", "application/json"), ("idempotency-key", "k")];
    for path in ["/to/crm/contacts/881/notes", "/to/crm/contacts/882/notes", "/to/crm/contacts/882/notes"] {
        gateway.world.send("POST", path, &json, br#"{"text":"called"}"#).await;
    }
    gateway.post("/contacts/883/notes", &json!({ "text": "called" })).await;
    gateway.post("/contacts/merge/notes", &json!({ "text": "called" })).await;
    let observed = observed(&gateway, 3).await;
    let [notes, merged] = &observed[..] else { panic!("{observed:?}") };
    assert_eq!(notes.r#match.as_deref(), Some("POST /contacts/{id}/notes"));
    assert_eq!((notes.seen, notes.prevented.values().sum::<usize>()), (3, 1), "{notes:?}");
    assert_eq!(notes.refused.values().sum::<usize>(), 1, "{notes:?}");
    assert_eq!(merged.r#match.as_deref(), Some("POST /contacts/merge/notes"));
    let routes = Observed::configuration(&observed);
    let places = ["match: POST /contacts/merge/notes\n", "match: POST /contacts/{id}/notes\n"];
    let [Some(merged), Some(notes)] = places.map(|place| routes.find(place)) else { panic!("{routes}") };
    assert!(merged < notes, "the first that matches counts: {routes}");
}
