//! Events that mean the same, hints instead of events, and destinations as targets.

use super::*;
use crate::gateway::destination::Do;

#[tokio::test]
async fn events_that_mean_the_same_are_handed_over_once() {
    let inbox =
        Inbox::with("    intent: event.body.order\n    retries: { base: 10ms }\n    timeout: 2s\n").await;
    inbox.target.script([Do::Say(503, json!({})), Do::ActLate(Duration::from_millis(200))]);
    let body = order(1, 1);
    futures_util::future::join(inbox.send("paid_1", &body), inbox.send("approved_1", &body)).await;
    let started = std::time::Instant::now();
    while inbox.target.effects().is_empty() && started.elapsed() < SOON {
        inbox.pass(Duration::from_secs(1)).await;
    }
    inbox.pass(Duration::from_secs(5)).await;
    let shown = [inbox.status("paid_1", "done").await, inbox.status("approved_1", "done").await];
    inbox.target.check_effects(1);
    // It can be seen which of them did nothing of its own.
    let same: Vec<_> =
        shown.iter().filter(|shown| shown["answer"].to_string().contains("twicesafe-same-as")).collect();
    assert_eq!(same.len(), 1, "{shown:#?}");
    assert_eq!(shown[0]["means"], "1");
    inbox.send("shipped_1", &order(1, 1)).await;
    inbox.status("shipped_1", "done").await;
    inbox.target.check_effects(1);
    inbox.send("paid_2", &order(2, 1)).await;
    inbox.status("paid_2", "done").await;
    inbox.target.check_effects(2);
    // A person's replay is handed over, whatever it means.
    let replay = json!({ "inbox": "shop", "id": "shipped_1", "reason": "lost" });
    assert_eq!(inbox.world.post("/v1/inbox/replay", &replay).await.status, 200);
    inbox.status("shipped_1", "done").await;
    inbox.target.check_effects(3);
    // Whatever letters it has.
    for id in ["a", "b"] {
        inbox.send(id, &json!({ "order": "Zürich 100 %" })).await;
        inbox.status(id, "done").await;
    }
    inbox.target.check_effects(4);
    inbox.world.stop().await;
}

#[tokio::test]
async fn an_event_without_its_meaning_stands_for_itself_and_says_so() {
    let inbox = Inbox::with("    intent: event.body.order\n").await;
    for id in ["nothing_1", "nothing_2"] {
        assert_eq!(inbox.send(id, &json!({})).await.json, json!({ "accepted": 1, "known": 0 }));
        let shown = inbox.status(id, "done").await;
        assert_eq!(shown["means"], Value::Null);
        assert!(
            shown["headers"].as_array().unwrap().contains(&json!(["twicesafe-without", "intent"])),
            "{shown}"
        );
    }
    let requests = inbox.requests(2).await;
    assert_eq!(requests[0].header("twicesafe-without"), Some("intent"));
    let metrics = inbox.world.get("/metrics").await.text;
    assert!(metrics.contains(r#"{inbox="shop",result="incomplete"} 2"#), "{metrics}");
    // However long it is, it is one.
    for id in ["long_1", "long_2"] {
        inbox.send(id, &json!({ "order": "x".repeat(300) })).await;
        inbox.status(id, "done").await;
    }
    inbox.target.check_effects(3);
    inbox.world.stop().await;
}

#[tokio::test]
async fn who_waits_for_another_that_means_the_same_looks_again_soon() {
    let inbox = Inbox::with("    lane: event.body.lane\n    intent: event.body.order\n").await;
    inbox.target.script([Do::ActLate(Duration::from_secs(3))]);
    inbox.send("paid", &json!({ "order": 1, "lane": "a" })).await;
    inbox.requests(1).await;
    inbox.send("approved", &json!({ "order": 1, "lane": "b" })).await;
    inbox.send("behind", &json!({ "order": 2, "lane": "b" })).await;
    inbox.status("paid", "done").await;
    // A second to wait, and at most two of backoff: nothing like a lease.
    inbox.pass(Duration::from_secs(4)).await;
    inbox.status("approved", "done").await;
    inbox.status("behind", "done").await;
    inbox.target.check_effects(2);
    inbox.world.stop().await;
}

#[tokio::test]
async fn hints_say_only_that_an_object_has_changed_once_a_period_and_nothing_is_lost() {
    let inbox = Inbox::with("    lane: event.body.order\n    hint: 60s\n    retries: { base: 10ms }\n").await;
    for (id, about) in [("a", 1), ("b", 1), ("c", 2)] {
        assert_eq!(inbox.send(id, &json!({ "order": about, "secret": "x" })).await.status, 200);
    }
    tokio::time::sleep(Duration::from_millis(700)).await;
    inbox.requests(0).await;
    inbox.target.script([Do::Say(503, json!({}))]);
    inbox.pass(Duration::from_secs(60)).await;
    let started = std::time::Instant::now();
    while inbox.target.effects().len() < 2 && started.elapsed() < SOON {
        inbox.pass(Duration::from_millis(500)).await;
    }
    inbox.pass(Duration::from_secs(5)).await;
    for id in ["a", "b", "c"] {
        inbox.status(id, "done").await;
    }
    let mut objects: Vec<_> = inbox.target.effects().iter().map(|effect| effect.body.clone()).collect();
    objects.sort_by_key(|body| body["object"].to_string());
    assert_eq!(
        objects,
        [
            json!({ "type": "changed", "inbox": "shop", "object": "1" }),
            json!({ "type": "changed", "inbox": "shop", "object": "2" })
        ]
    );
    // What arrives after the hint is told by the next one.
    inbox.send("d", &json!({ "order": 1 })).await;
    inbox.pass(Duration::from_secs(60)).await;
    inbox.status("d", "done").await;
    inbox.target.check_effects(3);
    inbox.world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn events_that_mean_the_same_do_not_wait_for_a_lease() {
    let rules = "    intent: event.body.order\n    retries: { base: 2s }\n    timeout: 2s\n";
    let target = Destination::new().await;
    // In a file: others look while the first one's claim is being written.
    let (world, folder) = World::in_folder("inbox-same", &configuration(&target, rules, "")).await;
    let inbox = Inbox { world, target };
    for round in 1..=8 {
        inbox.target.script([Do::Say(429, json!({})), Do::ActLate(Duration::from_millis(200))]);
        let ids: Vec<String> = (0..100).map(|number| format!("evt_{round}_{number}")).collect();
        for id in &ids {
            inbox.send(id, &order(round, 1)).await;
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
        // All of them are due at the same time, and one is first.
        let started = std::time::Instant::now();
        while inbox.target.effects().len() < round as usize && started.elapsed() < SOON {
            inbox.pass(Duration::from_secs(1)).await;
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
        for _ in 0..5 {
            inbox.pass(Duration::from_secs(1)).await;
        }
        for id in &ids {
            inbox.status(id, "done").await;
        }
        inbox.target.check_effects(round as usize);
    }
    inbox.world.stop().await;
    std::fs::remove_dir_all(folder).unwrap();
}

#[tokio::test]
async fn who_waits_for_a_destination_gets_its_answer_and_nothing_of_ours() {
    let more = "destinations:
  crm:
    base: TARGET
    auth: none
    routes:
      - { match: POST /contacts, action: contact.create, key: request.body.order, recovery: person }
";
    let inbox = Inbox::and("    deliver: { to: crm/contacts }\n    respond: target\n", more).await;
    for is_repeated in [false, true] {
        let heard = inbox.send("evt_1", &order(1, 1)).await;
        assert_eq!((heard.status, heard.json.clone()), (201, json!({ "id": "c_1" })), "{heard:?}");
        assert_eq!(heard.headers.contains_key("idempotent-replayed"), is_repeated, "{heard:?}");
        assert_eq!(heard.headers.get("twicesafe-call"), None, "{heard:?}");
    }
    inbox.target.check_effects(1);
    inbox.world.stop().await;
}

#[tokio::test]
async fn a_destination_gets_a_guarded_call() {
    let more = "destinations:
  crm:
    base: TARGET
    auth: none
    routes:
      - { match: POST /contacts, action: contact.create, key: request.body.order, recovery: person }
";
    let inbox = Inbox::and("    deliver: { to: crm/contacts }\n    retries: { base: 10ms }\n", more).await;
    inbox.target.script([Do::Say(429, json!({}))]);
    inbox.send("evt_1", &order(1, 1)).await;
    let started = std::time::Instant::now();
    while inbox.target.effects().is_empty() && started.elapsed() < SOON {
        inbox.pass(Duration::from_secs(2)).await;
    }
    inbox.pass(Duration::from_secs(10)).await;
    inbox.status("evt_1", "done").await;
    inbox.target.check_effects(1);
    assert_eq!(inbox.target.effects()[0].line, "POST /contacts HTTP/1.1");
    let guarded = inbox.world.get("/v1/intent?scope=default/crm/contact.create&key=1").await;
    assert_eq!(guarded.json["status"], "done", "{guarded:?}");
    // Another event about the same, by the route's key: the destination is not asked again.
    inbox.send("evt_2", &order(1, 1)).await;
    inbox.status("evt_2", "done").await;
    inbox.target.check_effects(1);
    inbox.world.stop().await;
}

#[tokio::test]
async fn events_that_mean_the_same_and_were_never_handed_over_are_replayed_as_one() {
    for answer in [500, 404] {
        let inbox =
            Inbox::with("    intent: event.body.order\n    retries: { attempts: 1, base: 10ms }\n").await;
        inbox.target.script([Do::Say(answer, json!({})), Do::Say(answer, json!({}))]);
        let status = if answer == 500 { "review" } else { "retryable" };
        for id in ["paid", "shipped"] {
            inbox.send(id, &order(1, 1)).await;
            inbox.status(id, status).await;
            inbox.pass(Duration::from_secs(60)).await;
        }
        for id in ["paid", "shipped"] {
            let replay = json!({ "inbox": "shop", "id": id, "reason": "it is back" });
            assert_eq!(inbox.world.post("/v1/inbox/replay", &replay).await.status, 200);
            inbox.status(id, "done").await;
        }
        inbox.target.check_effects(1);
        inbox.world.stop().await;
    }
}

#[tokio::test]
async fn what_somebody_said_no_to_is_not_asked_about_again() {
    let more = "destinations:
  crm:
    base: TARGET
    auth: none
    routes:
      - { match: POST /contacts, action: contact.create, recovery: person, approve: true, on_hold: accepted }
";
    let inbox = Inbox::and("    deliver: { to: crm/contacts }\n    retries: { base: 10ms }\n", more).await;
    inbox.send("evt_1", &order(1, 1)).await;
    inbox.status("evt_1", "retryable").await;
    let held = inbox.world.get("/v1/approvals").await.json["intents"][0].clone();
    let no = json!({ "scope": held["scope"], "key": held["key"], "generation": held["generation"], "reason": "never" });
    inbox.world.decide("ann", "reject", &no).await;
    inbox.pass(Duration::from_secs(400)).await;
    let shown = inbox.status("evt_1", "failed").await;
    // Its sender knows nothing of that.
    inbox.send("evt_1", &order(1, 1)).await;
    inbox.pass(Duration::from_secs(400)).await;
    assert_eq!(inbox.status("evt_1", "failed").await["generation"], shown["generation"]);
    assert_eq!(inbox.world.get("/v1/approvals").await.json["intents"], json!([]));
    inbox.target.check_effects(0);
    inbox.world.stop().await;
}

#[tokio::test]
async fn a_hint_that_fails_for_good_does_not_keep_the_next_ones() {
    let rules = "    lane: event.body.order\n    hint: 60s\n    retries: { attempts: 1, base: 10ms }\n";
    let inbox = Inbox::with(rules).await;
    for answer in [500, 404] {
        inbox.target.script([Do::Say(answer, json!({}))]);
        let (bad, good) = (format!("bad-{answer}"), format!("good-{answer}"));
        inbox.send(&bad, &order(1, 1)).await;
        inbox.pass(Duration::from_secs(61)).await;
        inbox.status(&bad, if answer == 500 { "review" } else { "retryable" }).await;
        inbox.send(&good, &order(1, 1)).await;
        inbox.pass(Duration::from_secs(61)).await;
        let park = json!({ "inbox": "shop", "id": bad, "reason": "it is over" });
        assert_eq!(inbox.world.post("/v1/inbox/park", &park).await.status, 200);
        inbox.pass(Duration::from_secs(61)).await;
        inbox.status(&good, "done").await;
    }
    inbox.world.stop().await;
}

#[tokio::test]
async fn what_a_destination_takes_for_something_else_is_not_done() {
    let more = "destinations:
  crm:
    base: TARGET
    auth: none
    routes:
      - { match: POST /contacts, action: contact.create, key: request.body.order, recovery: person }
";
    let inbox = Inbox::and("    deliver: { to: crm/contacts }\n", more).await;
    inbox.send("evt_1", &order(1, 1)).await;
    inbox.status("evt_1", "done").await;
    inbox.send("evt_2", &order(1, 2)).await;
    let shown = inbox.status("evt_2", "review").await;
    assert!(shown["deliveries"].to_string().contains("TS0010"), "{shown}");
    inbox.target.check_effects(1);
    // What is paused there waits, and what is wrong with it is said.
    let what = twicesafe_server::Pausable::Destination;
    twicesafe_server::pause(&inbox.world.ledger, what, "crm", "moving house").await.unwrap();
    tokio::time::sleep(Duration::from_millis(1300)).await;
    inbox.send("evt_3", &order(3, 1)).await;
    let shown = inbox.status("evt_3", "retryable").await;
    assert!(shown["deliveries"].to_string().contains("TS0093"), "{shown}");
    assert_eq!(shown["attempts"], 0, "{shown}");
    inbox.target.check_effects(1);
    inbox.world.stop().await;
}

#[tokio::test]
async fn what_a_destination_is_not_done_with_is_not_done() {
    let more = "destinations:
  crm:
    base: TARGET
    auth: none
    routes:
      - { match: POST /contacts, action: contact.create, key: request.body.order, recovery: person, approve: true, on_hold: accepted }
";
    let rules = "    deliver: { to: crm/contacts }\n    retries: { attempts: 1, base: 10ms }\n";
    let inbox = Inbox::and(rules, more).await;
    inbox.send("evt_1", &order(1, 1)).await;
    let waiting = inbox.status("evt_1", "retryable").await;
    assert!(!waiting["due_at"].is_null(), "waiting for a person uses up no attempt: {waiting}");
    let held = inbox.world.get("/v1/intent?scope=default/crm/contact.create&key=1").await;
    assert_eq!(held.json["status"], "held");
    let generation = held.json["generation"].as_u64().unwrap();
    let token = inbox
        .world
        .token_for(
            "ann",
            &[twicesafe_server::Right::Approve, twicesafe_server::Right::Act],
            None,
            &[],
            Some("ann"),
        )
        .await;
    let yes = json!({ "scope": "default/crm/contact.create", "key": "1", "generation": generation });
    assert_eq!(inbox.world.post_as(&token, "/v1/approve", &yes).await.status, 200);
    let started = std::time::Instant::now();
    while inbox.target.effects().is_empty() && started.elapsed() < SOON {
        inbox.pass(Duration::from_secs(2)).await;
    }
    inbox.target.check_effects(1);
    inbox.pass(Duration::from_secs(2 * 3600)).await;
    let done = async || {
        inbox.world.get_as(&token, "/v1/inbox/event?inbox=shop&id=evt_1").await.json["status"] == "done"
    };
    let started = std::time::Instant::now();
    while !done().await {
        assert!(started.elapsed() < SOON, "the event is done when what it stands for is");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    inbox.target.check_effects(1);
    inbox.world.stop().await;
}

#[tokio::test]
async fn s28_what_was_handed_over_long_ago_is_not_handed_over_again() {
    let inbox = Inbox::with("    intent: event.body.order\n    retention: 1d\n").await;
    inbox.send("paid", &order(1, 1)).await;
    inbox.status("paid", "done").await;
    for _ in 0..3 {
        inbox.pass(Duration::from_secs(24 * 3600)).await;
        tokio::time::sleep(Duration::from_millis(1100)).await;
    }
    inbox.send("shipped", &order(1, 1)).await;
    inbox.status("shipped", "done").await;
    inbox.target.check_effects(1);
    inbox.world.stop().await;
}

#[tokio::test]
async fn what_many_events_stand_for_is_not_sent_again_for_each_of_them() {
    let inbox = Inbox::with(
        "    intent: event.body.order\n    retries: { base: 1h }\n    circuit: { failures: 0 }\n",
    )
    .await;
    inbox.target.script((0..50).map(|_| Do::Say(500, json!({}))));
    for number in 0..20 {
        inbox.send(&format!("evt_{number}"), &order(1, 1)).await;
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    let asked = inbox.target.requests().len();
    assert!(asked <= 3, "{asked} requests for one thing that is not due");
    inbox.world.stop().await;
}

#[tokio::test]
async fn s40_what_an_event_stood_for_is_forgotten_with_it() {
    let inbox = Inbox::with("    intent: event.body.email\n").await;
    inbox.send("evt_1", &json!({ "email": "ann@example.com" })).await;
    inbox.status("evt_1", "done").await;
    let listed = async || inbox.world.get("/v1/intents?scope=default/intent/in/shop").await;
    let before = listed().await;
    assert_eq!(before.json["intents"].as_array().unwrap().len(), 1);
    assert!(!before.text.contains("ann@example.com"), "{before:?}");
    let about = json!({ "inbox": "shop", "id": "evt_1", "reason": "asked for" });
    assert_eq!(inbox.world.post("/v1/inbox/forget", &about).await.status, 200);
    assert_eq!(listed().await.json["intents"], json!([]));
    inbox.world.stop().await;
}

#[tokio::test]
async fn s40_what_an_event_did_at_a_destination_is_forgotten_with_it() {
    let more = "destinations:
  crm:
    base: TARGET
    auth: none
    routes:
      - { match: POST /contacts, action: contact.create, recovery: person }
      - { match: POST /asked, action: contact.ask, recovery: person, approve: true, on_hold: accepted }
";
    for (path, is_held) in [("contacts", false), ("asked", true)] {
        let rules = format!(
            "    lane: event.body.email\n    deliver: {{ to: crm/{path} }}\n    retries: {{ base: 10ms }}\n"
        );
        let inbox = Inbox::and(&rules, more).await;
        let body = json!({ "email": "ann@example.com" });
        inbox.send("evt_1", &body).await;
        let about = json!({ "inbox": "shop", "id": "evt_1", "reason": "asked for" });
        if is_held {
            inbox.status("evt_1", "retryable").await;
            // Somebody is asked about it: nothing is changed.
            inbox.world.post("/v1/inbox/forget", &about).await.refused(409, "TS0034");
            inbox.status("evt_1", "retryable").await;
            let held = inbox.world.get("/v1/approvals").await.json["intents"][0].clone();
            let no = json!({ "scope": held["scope"], "key": held["key"], "generation": held["generation"], "reason": "never" });
            inbox.world.decide("ann", "reject", &no).await;
        } else {
            inbox.status("evt_1", "done").await;
        }
        let about_both = inbox.world.get("/v1/intents").await.json;
        let ids: Vec<i64> = about_both["intents"]
            .as_array()
            .unwrap()
            .iter()
            .map(|shown| shown["intent"].as_i64().unwrap())
            .collect();
        assert_eq!(ids.len(), 2, "{about_both}");
        assert_eq!(inbox.world.post("/v1/inbox/forget", &about).await.status, 200);
        let store = inbox.world.ledger.store();
        for id in ids {
            let id = twicesafe_ledger::IntentId::new(id);
            assert_eq!(store.request(id).await.unwrap(), None);
            let record = store.find_id(id).await.unwrap().unwrap().record;
            assert!(record.name.is_none(), "{record:?}");
        }
        assert_eq!(inbox.send("evt_1", &body).await.json, json!({ "accepted": 0, "known": 1 }));
        inbox.world.stop().await;
    }
}
