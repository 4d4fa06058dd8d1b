//! Claim, renew, ask, settle: the table of S27, over a socket.

use std::time::Duration;

use serde_json::json;

use crate::world::{World, claim, claim_with, permit_in, renew, settle};

#[tokio::test]
async fn s27_the_first_claim_acts_and_every_other_gets_the_first_answer() {
    let world = World::new().await;
    let first = world.post("/v1/claim", &claim_with("1", json!({ "input": { "total": 120 } }))).await;
    assert_eq!((first.status, first.json["verdict"].as_str()), (201, Some("proceed")));
    assert_eq!((first.json["attempt"].as_u64(), first.json["status"].as_str()), (Some(1), Some("pending")));
    let permit = permit_in(&first);
    // Numbers that JSON libraries like to change are given back as they came.
    let answer = r#"{"id": "INV-17", "total": 120.10, "big": 12345678901234567890123}"#;
    let body = format!(
        r#"{{"intent":{},"fence":{},"secret":"{}","generation":1,"outcome":"answered","external_id":"INV-17","answer":{answer}}}"#,
        permit.0, permit.1, permit.2
    );
    let settled =
        world.send("POST", "/v1/settle", &[("content-type", "application/json")], body.as_bytes()).await;
    assert_eq!((settled.status, settled.json["status"].as_str()), (200, Some("done")));
    for input in [json!({ "total": 120 }), json!({ "total": 120 })] {
        let again = world.post("/v1/claim", &claim_with("1", json!({ "input": input }))).await;
        assert_eq!((again.status, again.json["verdict"].as_str()), (200, Some("replay")));
        assert_eq!(again.headers["idempotent-replayed"], "true");
        assert!(again.text.contains(answer), "byte for byte: {}", again.text);
        assert_eq!(again.json["answer"]["external_id"], "INV-17");
        assert!(again.json["expires_at"].is_string());
    }
    let other = world.post("/v1/claim", &claim_with("1", json!({ "input": { "total": 121 } }))).await;
    other.refused(422, "TS0010");
    assert_eq!(other.json["intent_status"], "done");
    world.stop().await;
}

#[tokio::test]
async fn s8_a_duplicate_waits_for_the_first_answer() {
    let world = World::new().await;
    let permit = world.permit(claim("1")).await;
    let at_once = world.post("/v1/claim", &claim("1")).await;
    at_once.refused(409, "TS0015");
    assert!(at_once.headers["retry-after"].parse::<u64>().unwrap() >= 1);
    assert_eq!(at_once.json["cause"], "pending");
    let waiting = claim_with("1", json!({ "wait_ms": 30_000 }));
    let (duplicate, ()) = tokio::join!(world.post("/v1/claim", &waiting), async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        world.post("/v1/settle", &settle(permit, "answered", json!({ "answer": "sent" }))).await;
    });
    assert_eq!((duplicate.status, &duplicate.json["answer"]["body"]), (200, &json!("sent")));
    world.stop().await;
}

#[tokio::test]
async fn s12_commands_can_be_sent_again() {
    let world = World::new().await;
    let body = claim_with("1", json!({ "command_id": "my first" }));
    let first = world.post("/v1/claim", &body).await;
    let again = world.post("/v1/claim", &body).await;
    assert_eq!((again.status, &again.json["permit"]["fence"]), (201, &first.json["permit"]["fence"]));
    world
        .post("/v1/claim", &claim_with("1", json!({ "command_id": "another" })))
        .await
        .refused(409, "TS0015");
    assert_eq!(permit_in(&first), permit_in(&again));
    let permit = permit_in(&first);
    let report = settle(permit, "answered", json!({ "answer": 1 }));
    assert_eq!(world.post("/v1/settle", &report).await.json["changed"], true);
    assert_eq!(world.post("/v1/settle", &report).await.json["changed"], false);
    world
        .post("/v1/settle", &settle(permit, "answered", json!({ "answer": 2 })))
        .await
        .refused(409, "TS0021");
    world.stop().await;
}

#[tokio::test]
async fn s12_a_decision_sent_again_is_no_second_one() {
    let world = World::new().await;
    let permit = world.permit(claim("1")).await;
    world.post("/v1/settle", &settle(permit, "answered", json!({}))).await;
    let reset = json!({ "scope": "billing/invoice.send", "key": "1", "generation": 1, "reason": "again", "command_id": "r" });
    assert_eq!(world.post("/v1/reset", &reset).await.json["changed"], true);
    assert_eq!(
        world.post("/v1/reset", &reset).await.json["changed"],
        false,
        "its answer was lost, and it came again"
    );
    let again = world.post("/v1/claim", &claim("1")).await;
    let second = json!({ "intent": permit.0, "fence": again.json["permit"]["fence"], "secret": again.json["permit"]["secret"], "generation": 2, "outcome": "answered" });
    assert_eq!(world.post("/v1/settle", &second).await.json["status"], "done");
    let late = world.post("/v1/reset", &reset).await;
    assert!(late.status == 409 || late.json["changed"] == false, "{late:?}");
    assert_eq!(world.post("/v1/claim", &claim("1")).await.status, 200, "it does not happen a third time");
    let no_generation = json!({ "scope": "billing/invoice.send", "key": "1", "reason": "again" });
    world.post("/v1/reset", &no_generation).await.refused(400, "TS0070");
    world.stop().await;
}

#[tokio::test]
async fn s24_a_lapsed_lease_is_decided_by_class() {
    let world = World::new().await;
    world.permit(claim_with("person", json!({ "lease_ms": 1000 }))).await;
    world.permit(claim_with("repeat", json!({ "lease_ms": 1000, "recovery": "repeat" }))).await;
    let (intent, ..) = world
        .permit(claim_with(
            "lookup",
            json!({ "lease_ms": 1000, "recovery": "lookup", "in_flight_max_ms": 0, "lookup_lag_ms": 0 }),
        ))
        .await;
    world.clock.advance(Duration::from_secs(2));
    world.post("/v1/claim", &claim("person")).await.refused(423, "TS0016");
    world.clock.advance(Duration::from_secs(600));
    world.permit(claim_with("repeat", json!({ "recovery": "repeat" }))).await;
    let due = world
        .post("/v1/claim", &claim_with("lookup", json!({ "recovery": "lookup", "wait_ms": 20_000 })))
        .await;
    due.refused(409, "TS0015");
    assert_eq!(due.json["cause"], "lookup-due", "whoever waits may be the one who can ask: told at once");
    let asked = world.post("/v1/ask", &json!({ "intent": intent })).await;
    assert_eq!((asked.status, &asked.json["permit"]["kind"]), (200, &json!("lookup")));
    let permit = permit_in(&asked);
    let found = world.post("/v1/settle", &settle(permit, "found", json!({ "external_id": "ch_1" }))).await;
    assert_eq!(found.json["status"], "done");
    let replay = world.post("/v1/claim", &claim_with("lookup", json!({ "recovery": "lookup" }))).await;
    assert_eq!((replay.status, &replay.json["source"]), (200, &json!("lookup")));
    world.stop().await;
}

#[tokio::test]
async fn s11_a_permit_that_is_over_cannot_write() {
    let world = World::new().await;
    let permit = world.permit(claim_with("1", json!({ "lease_ms": 1000, "recovery": "repeat" }))).await;
    assert_eq!(world.post("/v1/renew", &renew(permit)).await.status, 200);
    world.clock.advance(Duration::from_secs(700));
    let next = world.permit(claim_with("1", json!({ "lease_ms": 1000, "recovery": "repeat" }))).await;
    assert!(next.1 > permit.1);
    world.post("/v1/renew", &renew(permit)).await.refused(409, "TS0020");
    let late = world.post("/v1/settle", &settle(permit, "not-sent", json!({}))).await;
    late.refused(409, "TS0020");
    assert_eq!(
        world.post("/v1/settle", &settle(next, "answered", json!({ "answer": 2 }))).await.json["status"],
        "done"
    );
    world.stop().await;
}

#[tokio::test]
async fn outcomes_lead_where_the_rules_say() {
    let world = World::new().await;
    for (key, outcome, fields, status) in [
        ("a", "answered", json!({}), "done"),
        ("b", "refused", json!({ "answer": { "error": "card declined" } }), "failed"),
        ("c", "not-sent", json!({ "reason": "connection refused" }), "retryable"),
        ("d", "unknown", json!({ "reason": "timeout" }), "review"),
    ] {
        let permit = world.permit(claim(key)).await;
        let settled = world.post("/v1/settle", &settle(permit, outcome, fields)).await;
        assert_eq!(settled.json["status"], status, "{key}: {settled:?}");
    }
    let permit = world.permit(claim("e")).await;
    world
        .post("/v1/settle", &settle(permit, "refused", json!({ "answer": "no", "replay_for_ms": 60_000 })))
        .await;
    let refused = world.post("/v1/claim", &claim("e")).await;
    refused.refused(424, "TS0018");
    assert_eq!(refused.json["answer"]["body"], "no");
    world.post("/v1/claim", &claim("d")).await.refused(423, "TS0016");
    let resolved = json!({ "scope": "billing/invoice.send", "key": "d", "finding": "happened", "fence": 1, "external_id": "INV-9", "reason": "I looked" });
    assert_eq!(world.post("/v1/resolve", &resolved).await.json["status"], "done");
    let replay = world.post("/v1/claim", &claim("d")).await;
    assert_eq!(
        (replay.status, &replay.json["source"], &replay.json["answer"]["external_id"]),
        (200, &json!("person"), &json!("INV-9"))
    );
    let reset = json!({ "scope": "billing/invoice.send", "key": "d", "reason": "again", "generation": 1 });
    assert_eq!(world.post("/v1/reset", &reset).await.status, 200);
    assert_eq!(world.post("/v1/claim", &claim("d")).await.json["generation"], 2);
    world.stop().await;
}

#[tokio::test]
async fn s15_lanes_and_versions() {
    let world = World::new().await;
    let at = |key: &str, version: i64| {
        claim_with(key, json!({ "lane": "crm:contact:881", "version": version, "version_means": "snapshot" }))
    };
    let second = world.permit(at("v2", 2)).await;
    let first = world.post("/v1/claim", &at("v1", 1)).await;
    first.refused(409, "TS0015");
    assert_eq!(first.json["cause"], "lane");
    world.post("/v1/settle", &settle(second, "answered", json!({}))).await;
    world.post("/v1/claim", &at("v1", 1)).await.refused(412, "TS0012");
    world.post("/v1/claim", &claim_with("x", json!({ "version": 1 }))).await.refused(400, "TS0070");
    world.stop().await;
}

#[tokio::test]
async fn s6_a_key_that_looks_made_up_is_noticed() {
    let world = World::new().await;
    let heard = world.post("/v1/claim", &claim("6f1c9a4e-3b7d-4c2a-9e1f-0a2b3c4d5e6f")).await;
    assert_eq!((heard.status, &heard.json["notices"][0]["code"]), (201, &json!("TS0007")));
    let heard = world.post("/v1/claim", &claim_with("policy", json!({ "attempts": 3 }))).await;
    assert_eq!(heard.json.get("notices"), None);
    world.stop().await;
}
