//! What callers send takes bounded time (S51).

use std::time::{Duration, Instant};

use super::*;

/// More than anything here may take, where a machine has other things to do.
const BOUND: Duration = Duration::from_secs(1);

#[tokio::test]
async fn s20_an_expression_that_takes_too_long_is_refused_and_nobody_waits() {
    let gateway = Gateway::with_routes(
        "- match: POST /contacts
  action: contact.create
  key: request.body.id
  recovery: person
  approve: request.body.items.exists(i, request.body.items.exists(j, j.n == i.n + 100000))",
    )
    .await;
    let items: Vec<Value> = (0..4000).map(|number| json!({ "n": number })).collect();
    let body = json!({ "id": "many", "items": items });
    let started = Instant::now();
    let (first, second, alive) = tokio::join!(
        gateway.post("/contacts", &body),
        gateway.post("/contacts", &body),
        gateway.world.get("/healthz")
    );
    assert!(started.elapsed() < 3 * BOUND, "{:?}", started.elapsed());
    assert_eq!(alive.status, 200);
    for heard in [first, second] {
        assert!((400..500).contains(&heard.status), "{heard:?}");
        assert!(heard.text.contains("more than 500000 steps"), "{heard:?}");
    }
    gateway.crm.check_effects(0);
    let few = json!({ "id": "few", "items": [{ "n": 1 }, { "n": 2 }] });
    assert_eq!(gateway.post("/contacts", &few).await.status, 201);
    gateway.crm.check_effects(1);
}

#[test]
fn s20_a_pattern_from_a_request_is_refused_when_the_configuration_is_read() {
    let yaml = "destinations:
  crm:
    base: http://127.0.0.1:9
    auth: none
    routes:
      - match: POST /contacts
        action: contact.create
        key: request.body.id
        recovery: person
        approve: request.body.name.matches(request.body.pattern)
";
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let configuration = crate::world::configuration(yaml);
    let advice = runtime.block_on(twicesafe_server::config::check(&configuration, None));
    let said: Vec<String> =
        advice.into_iter().filter(|advice| advice.is_error).map(|advice| advice.words).collect();
    assert!(
        said.iter().any(|words| words.contains("the pattern of `matches` must be written out")),
        "{said:?}"
    );
}

#[tokio::test]
async fn s20_a_long_boundary_costs_nothing() {
    let gateway =
        Gateway::with_routes("- match: POST /contacts\n  action: contact.create\n  recovery: person").await;
    let boundary = "a".repeat(30_000);
    let body = format!("{}b", "a".repeat(29_999)).repeat(30);
    let media_type = format!("multipart/form-data; boundary={boundary}");
    let headers = [("content-type", media_type.as_str()), ("idempotency-key", "k-1")];
    let started = Instant::now();
    let heard = gateway.world.send("POST", "/to/crm/contacts", &headers, body.as_bytes()).await;
    assert_ne!(heard.status, 0);
    assert!(started.elapsed() < BOUND, "{:?}", started.elapsed());
}
