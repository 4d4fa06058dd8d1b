//! Looking, figures, events, pages.

use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::world::{World, claim, claim_with, settle};

#[tokio::test]
async fn lists_come_in_pages() {
    let world = World::new().await;
    for number in 0..7 {
        let permit = world.permit(claim(&format!("order:{number}"))).await;
        if number % 2 == 0 {
            world.post("/v1/settle", &settle(permit, "answered", json!({}))).await;
        }
    }
    let mut keys = Vec::new();
    let mut path = "/v1/intents?limit=3&scope=billing%2Finvoice.send".to_owned();
    loop {
        let page = world.get(&path).await;
        assert_eq!(page.status, 200, "{page:?}");
        let intents = page.json["intents"].as_array().unwrap();
        assert!(intents.len() <= 3);
        keys.extend(intents.iter().map(|intent| intent["key"].as_str().unwrap().to_owned()));
        match page.json["next"].as_str() {
            Some(next) => path = format!("/v1/intents?limit=3&scope=billing%2Finvoice.send&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(keys, ["6", "5", "4", "3", "2", "1", "0"].map(|n| format!("order:{n}")));
    assert_eq!(world.get("/v1/intents?status=pending").await.json["intents"].as_array().unwrap().len(), 3);
    assert_eq!(
        world.get("/v1/intents?containing=order:4").await.json["intents"].as_array().unwrap().len(),
        1
    );
    for bad in [
        "limit=0",
        "limit=x",
        "status=gone",
        "cursor=zz",
        "created_from=yesterday",
        "scop=x",
        "limit=1&limit=2",
    ] {
        world.get(&format!("/v1/intents?{bad}")).await.refused(400, "TS0070");
    }
    world.stop().await;
}

#[tokio::test]
async fn one_intent_is_shown_with_its_journal() {
    let world = World::new().await;
    let permit = world
        .permit(claim_with(
            "o 1",
            json!({ "work": "order:1", "step": "invoice", "request": { "to": "ann" } }),
        ))
        .await;
    world
        .post("/v1/settle", &settle(permit, "answered", json!({ "answer": [1, 2], "external_id": "INV-1" })))
        .await;
    let shown = world.get("/v1/intent?scope=billing/invoice.send&key=o+1").await;
    assert_eq!(
        (shown.status, &shown.json["status"], &shown.json["answer"]["body"]),
        (200, &json!("done"), &json!([1, 2]))
    );
    assert_eq!(shown.json["request"], r#"{"to":"ann"}"#);
    let events: Vec<_> =
        shown.json["journal"].as_array().unwrap().iter().map(|row| row["event"].clone()).collect();
    assert_eq!(events, ["claimed", "answered"]);
    let work = world.get("/v1/work?id=order:1").await;
    assert_eq!(work.json["intents"][0]["step"], "invoice");
    world.get("/v1/intent?scope=billing/invoice.send&key=nobody").await.refused(404, "TS0035");
    world.get("/v1/intent?scope=billing/invoice.send").await.refused(400, "TS0070");
    world.get("/v1/intent?scope=a//b&key=x").await.refused(400, "TS0003");
    world.stop().await;
}

#[tokio::test]
async fn figures_and_metrics_count_what_happened() {
    let world = World::new().await;
    let permit = world.permit(claim("1")).await;
    world.post("/v1/settle", &settle(permit, "answered", json!({}))).await;
    for _ in 0..3 {
        world.post("/v1/claim", &claim("1")).await;
    }
    let stats = world.get("/v1/stats").await;
    assert_eq!(stats.json["figures"]["duplicates_prevented"]["value"], 3);
    assert_eq!(stats.json["now"]["done"], 1);
    let metrics = world.get("/metrics").await;
    for line in [
        "twicesafe_claims_total{verdict=\"replay\"} 3",
        "twicesafe_intents{status=\"done\"} 1",
        "twicesafe_ledger_up 1",
        "twicesafe_requests_total{path=\"/v1/claim\",status=\"2xx\"} 4",
    ] {
        assert!(metrics.text.lines().any(|there| there == line), "{line}\n{}", metrics.text);
    }
    world.stop().await;
}

#[tokio::test]
async fn events_tell_what_becomes_of_intents() {
    let world = World::new().await;
    let mut stream = TcpStream::connect(world.address).await.unwrap();
    let head = format!("GET /v1/events?scope=billing HTTP/1.1\r\nhost: {}\r\n\r\n", world.address);
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut heard = String::new();
    let mut buffer = [0; 4096];
    let read = stream.read(&mut buffer).await.unwrap();
    heard.push_str(&String::from_utf8_lossy(&buffer[..read]));
    assert!(heard.contains("text/event-stream"), "{heard}");
    world
        .post("/v1/claim", &json!({ "scope": "crm/contact.create", "key": "elsewhere", "wait_ms": 0 }))
        .await;
    let permit = world.permit(claim("1")).await;
    world.post("/v1/settle", &settle(permit, "answered", json!({}))).await;
    while heard.matches("event: intent").count() < 2 {
        let read =
            tokio::time::timeout(Duration::from_secs(5), stream.read(&mut buffer)).await.unwrap().unwrap();
        heard.push_str(&String::from_utf8_lossy(&buffer[..read]));
    }
    assert!(
        heard.contains(r#""status":"pending""#)
            && heard.contains(r#""status":"done""#)
            && !heard.contains("elsewhere")
    );
    world.stop().await;
}

#[tokio::test]
async fn pages_and_health() {
    let world = World::new().await;
    assert_eq!(world.get("/healthz").await.json["status"], "alive");
    assert_eq!(world.get("/readyz").await.json["status"], "ready");
    assert!(world.get("/").await.text.contains("Twicesafe"));
    assert_eq!(world.get("/openapi.json").await.json["openapi"], "3.1.0");
    world.get("/nothing").await.refused(404, "TS0071");
    let wrong = world.send("DELETE", "/v1/claim", &[], b"").await;
    wrong.refused(405, "TS0071");
    assert_eq!(wrong.headers["allow"], "POST");
    world.stop().await;
}
