//! Permits belong to who got them (S48).

use std::time::Duration;

use serde_json::json;
use twicesafe_server::Right;

use crate::gateway::destination::{Destination, Do};
use crate::world::{Permit, World, claim_with, permit_in, renew, settle};

const GUESS: &str = "00000000000000000000000000000000";

#[tokio::test]
async fn s48_nobody_but_who_claimed_settles_or_renews() {
    let world = World::new().await;
    let mine = world.token("mine", &[Right::Act]).await;
    let theirs = world.token("theirs", &[Right::Act]).await;
    let body = claim_with("1", json!({ "command_id": "1", "lease_ms": 1000, "recovery": "repeat" }));
    let permit = permit_in(&world.post_as(&mine, "/v1/claim", &body).await);
    let (intent, fence, _) = permit;
    let invented = json!({ "answer": "invented" });
    // The number of a permit can be guessed; what is told with it cannot, and is good for nobody else.
    for (token, permit) in
        [(&mine, (intent, fence, GUESS)), (&theirs, (intent, fence, GUESS)), (&theirs, permit)]
    {
        world
            .post_as(token, "/v1/settle", &settle(permit, "answered", invented.clone()))
            .await
            .refused(403, "TS0025");
        world.post_as(token, "/v1/renew", &renew(permit)).await.refused(403, "TS0025");
    }
    // A claim whose answer was lost gets the same permit with the same secret (S12).
    let again = permit_in(&world.post_as(&mine, "/v1/claim", &body).await);
    assert_eq!(again, permit);
    // Another caller's command of that name is another command.
    assert_eq!(world.post_as(&theirs, "/v1/claim", &body_without_wait(&body)).await.status, 409);
    assert_eq!(world.post_as(&mine, "/v1/renew", &renew(permit)).await.status, 200);
    // Late reports, too.
    world.clock.advance(Duration::from_secs(2));
    let next = loop {
        let heard = world.post_as(&mine, "/v1/claim", &body_of_another(&body)).await;
        match heard.status {
            201 => break permit_in(&heard),
            _ => assert_eq!(heard.json["cause"], "not-due", "{heard:?}"),
        }
        world.clock.advance(Duration::from_secs(1));
    };
    world
        .post_as(&theirs, "/v1/settle", &settle((intent, fence, GUESS), "answered", invented))
        .await
        .refused(403, "TS0025");
    assert_ne!(next.2, permit.2);
    let settled = world.post_as(&mine, "/v1/settle", &settle(next, "answered", json!({ "answer": 1 }))).await;
    assert_eq!((settled.status, settled.json["status"].as_str()), (200, Some("done")), "{settled:?}");
    let shown = world.get_as(&mine, "/v1/intent?scope=billing/invoice.send&key=1").await;
    assert_eq!(shown.json["answer"]["body"], json!(1));
    assert!(
        !shown.text.contains(permit.2) && !shown.text.contains(next.2),
        "it is told once: {}",
        shown.text
    );
    world.stop().await;
}

fn body_without_wait(body: &serde_json::Value) -> serde_json::Value {
    let mut body = body.clone();
    body["wait_ms"] = json!(0);
    body
}

fn body_of_another(body: &serde_json::Value) -> serde_json::Value {
    let mut body = body.clone();
    body["command_id"] = json!("2");
    body["wait_ms"] = json!(0);
    body
}

#[tokio::test]
async fn s48_a_call_of_the_gateway_is_not_settled_renewed_or_looked_up_by_others() {
    const LOOKUP: &str = "- match: POST /contacts
        action: contact.create
        key: request.body.id
        recovery: { lookup: { get: '/contacts?id={{ key }}', found: 'size(answer.body.items) > 0' } }
        timeout: 10s";
    let crm = Destination::new().await;
    crm.script([Do::ActLate(Duration::from_millis(700)), Do::ActAndClose]);
    let yaml = format!(
        "destinations:\n  crm:\n    base: {}\n    auth: none\n    routes:\n      {LOOKUP}\n",
        crm.base()
    );
    let world = World::configured(&yaml).await;
    let (mine, theirs) =
        (world.token("mine", &[Right::Act]).await, world.token("theirs", &[Right::Act]).await);
    let call = |id: &'static str| {
        let (mine, address) = (mine.clone(), &world);
        async move { address.post_as(&mine, "/to/crm/contacts", &json!({ "id": id })).await }
    };
    let meddle = async {
        let intent = loop {
            let list = world.get_as(&mine, "/v1/intents?status=pending").await;
            if let Some(intent) = list.json["intents"][0]["intent"].as_i64() {
                break intent;
            }
        };
        for token in [&mine, &theirs] {
            let guess: Permit = (intent, 1, GUESS);
            let invented = settle(guess, "answered", json!({ "external_id": "invented" }));
            world.post_as(token, "/v1/settle", &invented).await.refused(403, "TS0025");
            world.post_as(token, "/v1/renew", &renew(guess)).await.refused(403, "TS0025");
            world.post_as(token, "/v1/ask", &json!({ "intent": intent })).await.refused(403, "TS0025");
        }
    };
    let (answered, ()) = tokio::join!(call("a"), meddle);
    assert_eq!(answered.status, 201, "{answered:?}");
    assert!(!answered.text.contains("invented"));
    assert_eq!(crm.effects().len(), 1);
    world.stop().await;
}

#[tokio::test]
async fn s15_a_confined_token_neither_blocks_nor_supersedes_nor_lists_what_is_not_its_own() {
    const ROUTES: &str =
        "- { match: POST /contacts, action: contact.create, key: request.body.id, recovery: person,
          lane: request.body.contact, version: request.body.version, version_means: snapshot }";
    let crm = Destination::new().await;
    let yaml = format!(
        "destinations:\n  crm:\n    base: {}\n    auth: none\n    routes:\n      {ROUTES}\n",
        crm.base()
    );
    let world = World::configured(&yaml).await;
    let ours = world.token("ours", &[Right::Act]).await;
    let sandbox = world.token_for("sandbox", &[Right::Act], None, &["sandbox/"], None).await;
    let body = |scope: &str, key: &str, lane: &str, version: i64| {
        json!({ "scope": scope, "key": key, "lane": lane, "version": version, "version_means": "snapshot",
                "work": "order:1", "step": "crm", "wait_ms": 0 })
    };
    // One is applied with the largest version there is, one holds its lane.
    for (key, lane) in [("1", "contact:881"), ("2", "contact:882")] {
        let claimed = world.post_as(&sandbox, "/v1/claim", &body("sandbox/x", key, lane, i64::MAX)).await;
        assert_eq!(claimed.status, 201, "{claimed:?}");
        if key == "1" {
            let report = settle(permit_in(&claimed), "answered", json!({}));
            assert_eq!(world.post_as(&sandbox, "/v1/settle", &report).await.status, 200);
        }
    }
    for (key, lane) in [("1", "contact:881"), ("2", "contact:882")] {
        let claimed = world.post_as(&ours, "/v1/claim", &body("crm", key, lane, 1)).await;
        assert_eq!(claimed.status, 201, "{claimed:?}");
    }
    // Lanes of destinations and inboxes cannot be named by anybody.
    for lane in ["to:crm:881", "in:shop:881", "to:crm@4:acme:881"] {
        for (token, scope) in [(&sandbox, "sandbox/x"), (&ours, "crm")] {
            let claimed = world.post_as(token, "/v1/claim", &body(scope, "3", lane, i64::MAX)).await;
            claimed.refused(403, "TS0074");
        }
    }
    let contact = json!({ "id": "c1", "contact": "881", "version": 1 });
    assert_eq!(world.post_as(&ours, "/to/crm/contacts", &contact).await.status, 201);
    // Each sees the steps of its own work of that name.
    for (token, scope, steps) in [(&sandbox, "sandbox/x", 2), (&ours, "crm", 2)] {
        for path in ["/v1/work?id=order:1", "/v1/intents?work=order:1"] {
            let heard = world.get_as(token, path).await;
            let intents = heard.json["intents"].as_array().unwrap();
            assert_eq!(intents.len(), steps, "{heard:?}");
            assert!(intents.iter().all(|intent| intent["scope"] == scope), "{heard:?}");
        }
    }
    world.stop().await;
}

#[tokio::test]
async fn s48_a_claim_in_a_scope_like_the_gateways_makes_the_server_ask_nobody() {
    let crm = Destination::new().await;
    let yaml = format!(
        "destinations:
  crm:
    base: {}
    auth: {{ bearer: ours }}
    routes:
      - match: POST /contacts
        action: contact.create
        key: request.body.id
        recovery: {{ lookup: {{ get: '/contacts?external_id={{{{ key }}}}', found: 'size(answer.body.items) > 0', lag: 1ms,
                               in_flight_max: 1ms }} }}
",
        crm.base()
    );
    let world = World::configured(&yaml).await;
    let sandbox = world.token_for("sandbox", &[Right::Act], None, &["sandbox/"], None).await;
    let ours = world.token("ours", &[Right::Act]).await;
    for (token, scope) in [(&sandbox, "sandbox/crm/contact.create"), (&ours, "default/crm/contact.create")] {
        let body =
            json!({ "scope": scope, "key": "1", "wait_ms": 0, "recovery": "lookup", "in_flight_max_ms": 1 });
        let permit = permit_in(&world.post_as(token, "/v1/claim", &body).await);
        let settled = world.post_as(token, "/v1/settle", &settle(permit, "unknown", json!({}))).await;
        assert_eq!(settled.status, 200, "{settled:?}");
    }
    // A call of the gateway in doubt is looked up meanwhile, so that the server has had its chance.
    crm.script([Do::ActAndClose]);
    let headers =
        [("content-type", "application/json"), ("twicesafe-token", &*ours), ("twicesafe-wait", "0")];
    world.send("POST", "/to/crm/contacts", &headers, br#"{"id": "call"}"#).await;
    let is_asked_about = |what: &str| {
        let asked = format!("external_id={what}");
        crm.requests().iter().any(|request| request.line.contains(&asked))
    };
    for _ in 0..500 {
        if is_asked_about("call") {
            break;
        }
        world.clock.advance(Duration::from_secs(1));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(is_asked_about("call") && !is_asked_about("1"), "{:?}", crm.requests());
    world.stop().await;
}
