//! What people do with events: look, replay, park, forget.

use super::*;
use crate::gateway::destination::Do;
use twicesafe_server::Right;

fn about(id: &str) -> Value {
    json!({ "inbox": "shop", "id": id, "reason": "asked for" })
}

#[tokio::test]
async fn an_event_is_shown_with_what_arrived_and_what_became_of_it() {
    let inbox = Inbox::with("    lane: event.body.order\n").await;
    inbox.send("evt_1", &order(7, 1)).await;
    let shown = inbox.status("evt_1", "done").await;
    assert_eq!(shown["verified"], "standard-webhooks, secret 1");
    assert_eq!((&shown["object"], &shown["body"]), (&json!("7"), &json!(order(7, 1).to_string())));
    assert!(shown["headers"].as_array().unwrap().contains(&json!(["x-topic", "orders/create"])), "{shown}");
    assert_eq!(shown["deliveries"].as_array().unwrap().len(), 3);
    let listed = inbox.world.get("/v1/intents?scope=default/in/shop").await;
    assert_eq!(listed.json["intents"][0]["key"], "evt_1");
    let inboxes = inbox.world.get("/v1/inboxes").await.json;
    assert_eq!(inboxes["inboxes"][0]["counts"], json!({ "arrived": 1, "delivered": 1 }));
    inbox.world.get("/v1/inbox/event?inbox=shop&id=evt_9").await.refused(404, "TS0035");
    inbox.world.stop().await;
}

#[tokio::test]
async fn the_query_of_the_address_is_shown_and_handed_over_beside_the_event() {
    let inbox = Inbox::with(
        "    lane: event.body.order\n    version: event.body.version\n    deliver: TARGET/webhook?own=1\n",
    )
    .await;
    let body = order(7, 3).to_string();
    let (at_s, at) = (inbox.now_s(), inbox.now_s().to_string());
    let signature = signed(SECRET, "evt_1", at_s, body.as_bytes());
    let headers = [
        ("content-type", "application/json"),
        ("webhook-id", "evt_1"),
        ("webhook-timestamp", &at),
        ("webhook-signature", &signature),
    ];
    // What may be a secret is not kept (S41).
    let path = "/in/shop?flow=a%20b&access_token=s3cret&auth%5Btoken%5D=s3cret&sig=s3cret&step=2";
    assert_eq!(inbox.world.send("POST", path, &headers, body.as_bytes()).await.status, 200);
    let shown = inbox.status("evt_1", "done").await;
    assert_eq!((&shown["query"], &shown["version"]), (&json!("flow=a%20b&step=2"), &json!(3)));
    let requests = inbox.requests(1).await;
    assert_eq!(requests[0].line, "POST /webhook?own=1 HTTP/1.1");
    assert_eq!(requests[0].header("twicesafe-query"), Some("flow=a%20b&step=2"));
    assert_eq!(requests[0].header("webhook-id"), shown["webhook_id"].as_str());
    inbox.world.stop().await;
}

#[tokio::test]
async fn an_event_that_another_one_stood_for_says_which() {
    let inbox = Inbox::with("    intent: event.body.order\n").await;
    for id in ["paid", "approved"] {
        inbox.send(id, &order(1, 1)).await;
        inbox.status(id, "done").await;
    }
    let shown = [inbox.status("paid", "done").await, inbox.status("approved", "done").await];
    assert_eq!((&shown[0]["same_as"], &shown[1]["same_as"]), (&Value::Null, &json!("paid")));
    let webhook_id = inbox.requests(1).await[0].header("webhook-id").unwrap().to_owned();
    assert!(shown.iter().all(|shown| shown["webhook_id"] == webhook_id), "{shown:?}");
    inbox.world.stop().await;
}

#[tokio::test]
async fn s29_a_replay_is_handed_over_again_under_another_id() {
    let inbox = Inbox::new().await;
    inbox.send("evt_1", &order(1, 1)).await;
    inbox.status("evt_1", "done").await;
    inbox
        .world
        .post("/v1/inbox/replay", &json!({ "inbox": "shop", "id": "evt_1", "reason": " " }))
        .await
        .refused(400, "TS0070");
    assert_eq!(inbox.world.post("/v1/inbox/replay", &about("evt_1")).await.status, 200);
    let requests = inbox.requests(2).await;
    assert_eq!(requests[0].raw, requests[1].raw);
    assert_ne!(requests[0].header("webhook-id"), requests[1].header("webhook-id"));
    let shown = inbox.status("evt_1", "done").await;
    assert_eq!(shown["generation"], 2);
    assert!(shown["deliveries"].to_string().contains("asked for"));
    // A redelivery is still one.
    inbox.send("evt_1", &order(1, 1)).await;
    inbox.requests(2).await;
    inbox.world.stop().await;
}

#[tokio::test]
async fn s29_a_replay_of_an_older_snapshot_is_handed_over_and_says_so() {
    let rules = "    lane: event.body.order\n    version: event.body.version\n    version_means: snapshot\n";
    let inbox = Inbox::with(rules).await;
    inbox.send("evt_5", &order(1, 5)).await;
    inbox.status("evt_5", "done").await;
    inbox.send("evt_3", &order(1, 3)).await;
    inbox.status("evt_3", "superseded").await;
    inbox.send("evt_7", &order(1, 7)).await;
    inbox.requests(2).await;
    for (number, id) in [(3, "evt_5"), (4, "evt_3"), (5, "evt_7")] {
        assert_eq!(inbox.world.post("/v1/inbox/replay", &about(id)).await.status, 200);
        inbox.status(id, "done").await;
        let requests = inbox.requests(number).await;
        assert_eq!(requests[number - 1].header("twicesafe-replay"), Some("true"));
        assert_eq!(requests[0].header("twicesafe-replay"), None);
    }
    assert_eq!(super::versions(&inbox.requests(5).await), [5, 7, 5, 3, 7]);
    // It was no newer state: what is older than the newest still is.
    inbox.send("evt_6", &order(1, 6)).await;
    inbox.status("evt_6", "superseded").await;
    inbox.world.stop().await;
}

#[tokio::test]
async fn a_replay_of_what_was_not_settled_is_no_finding_and_has_a_reason() {
    let inbox = Inbox::with("    retries: { attempts: 1, base: 1h }\n").await;
    inbox.target.script([Do::Say(500, json!({})), Do::Say(404, json!({}))]);
    for (id, status) in [("doubtful", "review"), ("out", "retryable")] {
        inbox.send(id, &order(1, 1)).await;
        inbox.status(id, status).await;
    }
    // Something may still arrive: nothing is changed before it cannot.
    let too_early = inbox.world.post("/v1/inbox/replay", &about("doubtful")).await;
    let message = too_early.refused(409, "TS0033").json["message"].as_str().unwrap();
    assert!(
        message.starts_with("a request could still arrive until 20"),
        "a time people can read: {message}"
    );
    inbox.status("doubtful", "review").await;
    inbox.pass(Duration::from_secs(60)).await;
    for id in ["doubtful", "out"] {
        assert_eq!(inbox.world.post("/v1/inbox/replay", &about(id)).await.status, 200);
        let shown = inbox.status(id, "done").await;
        let journal = shown["deliveries"].to_string();
        assert!(journal.contains("asked for") && !journal.contains("did not happen"), "{journal}");
    }
    let requests = inbox.requests(4).await;
    let ids: std::collections::HashSet<_> =
        requests.iter().map(|request| request.header("webhook-id")).collect();
    assert_eq!(ids.len(), 4, "each under an id of its own");
    inbox.world.stop().await;
}

#[tokio::test]
async fn s38_a_redelivery_never_reopens_what_a_person_parked_or_forgot() {
    let inbox = Inbox::with("    retries: { attempts: 1 }\n").await;
    inbox.target.script([Do::Say(500, json!({})), Do::Say(404, json!({}))]);
    // In review; out of attempts; waiting.
    inbox.send("review", &order(1, 1)).await;
    inbox.status("review", "review").await;
    inbox.send("retryable", &order(1, 1)).await;
    inbox.status("retryable", "retryable").await;
    inbox.world.post("/v1/inbox/pause", &json!({ "inbox": "shop" })).await;
    inbox.send("ready", &order(1, 1)).await;
    inbox.send("forgotten", &order(1, 1)).await;
    for (id, status) in [("review", "failed"), ("retryable", "rejected"), ("ready", "rejected")] {
        let parked = inbox.world.post("/v1/inbox/park", &about(id)).await;
        assert_eq!((parked.status, &parked.json["intent_status"]), (200, &json!(status)), "{id}: {parked:?}");
    }
    assert_eq!(inbox.world.post("/v1/inbox/forget", &about("forgotten")).await.status, 200);
    inbox.world.post("/v1/inbox/resume", &json!({ "inbox": "shop" })).await;
    for id in ["review", "retryable", "ready", "forgotten"] {
        for body in [order(1, 1), order(1, 2)] {
            assert_eq!(inbox.send(id, &body).await.json, json!({ "accepted": 0, "known": 1 }), "{id}");
        }
    }
    tokio::time::sleep(Duration::from_millis(700)).await;
    inbox.requests(2).await;
    let forgotten = inbox.world.get("/v1/inbox/event?inbox=shop&id=forgotten").await;
    assert_eq!((&forgotten.json["body"], &forgotten.json["headers"]), (&Value::Null, &json!([])));
    // A person can have them all the same, but for what was forgotten.
    inbox.pass(Duration::from_secs(60)).await;
    inbox.world.ledger.sweep().await.unwrap();
    for id in ["review", "retryable", "ready"] {
        let replayed = inbox.world.post("/v1/inbox/replay", &about(id)).await;
        assert_eq!(replayed.status, 200, "{id}: {replayed:?}");
        inbox.status(id, "done").await;
    }
    inbox.world.post("/v1/inbox/replay", &about("forgotten")).await.refused(410, "TS0013");
    inbox.requests(5).await;
    inbox.world.stop().await;
}

#[tokio::test]
async fn a_dead_letter_is_told_to_the_owner_and_can_be_replayed() {
    let hooks = Destination::new().await;
    let more = format!(
        "people:\n  ann: {{ alert: {{ webhook: \"{0}/ann\" }}, rights: [review] }}\n  bob: {{ alert: {{ webhook: \"{0}/bob\" }}, rights: [review] }}\n",
        hooks.base()
    );
    let inbox = Inbox::and("    owner: ann\n    retries: { attempts: 1 }\n", &more).await;
    inbox.target.script([Do::Say(500, json!({}))]);
    inbox.send("evt_1", &order(1, 1)).await;
    inbox.status("evt_1", "review").await;
    let started = std::time::Instant::now();
    while hooks.requests().is_empty() && started.elapsed() < SOON {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    let told: Vec<_> = hooks.requests().iter().map(|request| request.line.clone()).collect();
    assert_eq!(told, ["POST /ann HTTP/1.1"]);
    inbox.pass(Duration::from_secs(60)).await;
    assert_eq!(inbox.world.post("/v1/inbox/replay", &about("evt_1")).await.status, 200);
    inbox.status("evt_1", "done").await;
    inbox.world.stop().await;
}

#[tokio::test]
async fn s3_rights_are_needed() {
    let inbox = Inbox::new().await;
    inbox.send("evt_1", &order(1, 1)).await;
    let act = inbox.world.token("n8n", &[Right::Act]).await;
    for path in ["replay", "park", "forget"] {
        inbox.world.post_as(&act, &format!("/v1/inbox/{path}"), &about("evt_1")).await.refused(403, "TS0074");
    }
    inbox.world.post_as(&act, "/v1/inbox/pause", &json!({ "inbox": "shop" })).await.refused(403, "TS0074");
    let stranger = inbox.world.token_for("stranger", &Right::ALL, Some("acme"), &[], None).await;
    inbox.world.post_as(&stranger, "/v1/inbox/replay", &about("evt_1")).await.refused(403, "TS0074");
    assert_eq!(inbox.world.get_as(&stranger, "/v1/inboxes").await.json["inboxes"], json!([]));
    inbox.world.stop().await;
}

#[tokio::test]
async fn what_was_forgotten_cannot_be_handed_over_again_and_says_so() {
    let inbox = Inbox::new().await;
    inbox.send("evt_1", &order(1, 1)).await;
    inbox.status("evt_1", "done").await;
    assert_eq!(inbox.world.post("/v1/inbox/forget", &about("evt_1")).await.status, 200);
    let refused = inbox.world.post("/v1/inbox/replay", &about("evt_1")).await;
    let told = refused.refused(410, "TS0013");
    assert!(told.text.contains("the body of this event is gone"), "{told:?}");
    assert!(!told.text.contains("reset"), "{told:?}");
    inbox.requests(1).await;
    inbox.world.stop().await;
}
