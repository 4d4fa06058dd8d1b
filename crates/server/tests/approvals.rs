//! Approvals: held until a person says yes, by API or by link (S30, S31).

use std::time::Duration;

use serde_json::{Value, json};
use twicesafe_server::Right;

use crate::alerts::Hook;
use crate::world::{Heard, World, claim_with, permit_in, settle};

fn held(key: &str) -> Value {
    claim_with(
        key,
        json!({ "input": { "amount": 900, "to": "<b>ann</b>" }, "approval": { "expires_after_ms": 3_600_000 } }),
    )
}

fn about(key: &str) -> Value {
    json!({ "scope": "billing/invoice.send", "key": key, "reason": "because", "generation": 1 })
}

#[tokio::test]
async fn s30_who_asked_may_not_approve_and_the_first_decision_stands() {
    let world = World::new().await;
    let asks = world.token("asks", &[Right::Act, Right::Approve]).await;
    let ann = world.token_for("ann", &[Right::Approve], None, &[], Some("ann")).await;
    let bob = world.token_for("bob", &[Right::Approve], None, &[], Some("bob")).await;
    let waits = world.post_as(&asks, "/v1/claim", &held("1")).await;
    waits.refused(423, "TS0017");
    assert_eq!(waits.json["intent_status"], "held");
    assert_eq!(world.get_as(&ann, "/v1/approvals").await.json["intents"][0]["key"], "1");
    world.post_as(&asks, "/v1/approve", &about("1")).await.refused(403, "TS0031");
    assert_eq!(world.post_as(&ann, "/v1/approve", &about("1")).await.json["changed"], true);
    assert_eq!(
        world.post_as(&bob, "/v1/approve", &about("1")).await.json["changed"],
        false,
        "the same again is no news"
    );
    let opposite = world.post_as(&bob, "/v1/reject", &about("1")).await;
    opposite.refused(409, "TS0030");
    assert!(opposite.json["message"].as_str().unwrap().contains("person:ann"), "it names the first");
    let goes = world.post_as(&asks, "/v1/claim", &held("1")).await;
    assert_eq!(goes.status, 201);
    let permit = permit_in(&goes);
    world.post_as(&asks, "/v1/settle", &settle(permit, "answered", json!({}))).await;
    // Rejected, and expired.
    world.post_as(&asks, "/v1/claim", &held("2")).await.refused(423, "TS0017");
    assert_eq!(world.post_as(&ann, "/v1/reject", &about("2")).await.json["status"], "rejected");
    world.post_as(&asks, "/v1/claim", &held("2")).await.refused(403, "TS0011");
    world.post_as(&asks, "/v1/claim", &held("3")).await.refused(423, "TS0017");
    world.clock.advance(Duration::from_secs(3601));
    world.post_as(&ann, "/v1/approve", &about("3")).await.refused(409, "TS0034");
    world.post_as(&asks, "/v1/claim", &held("3")).await.refused(403, "TS0011");
    world.stop().await;
}

#[tokio::test]
async fn s30_two_people_where_asked_for() {
    let world = World::new().await;
    let asks = world.token("asks", &[Right::Act]).await;
    let ann = world.token_for("ann", &[Right::Approve], None, &[], Some("ann")).await;
    let phone = world.token_for("anns-phone", &[Right::Approve], None, &[], Some("ann")).await;
    let bob = world.token_for("bob", &[Right::Approve], None, &[], Some("bob")).await;
    let body = claim_with("1", json!({ "input": 1, "approval": { "people": 2 } }));
    world.post_as(&asks, "/v1/claim", &body).await.refused(423, "TS0017");
    assert_eq!(world.post_as(&ann, "/v1/approve", &about("1")).await.json["status"], "held");
    assert_eq!(
        world.post_as(&phone, "/v1/approve", &about("1")).await.json["status"],
        "held",
        "one person is one person"
    );
    assert_eq!(world.post_as(&bob, "/v1/approve", &about("1")).await.json["status"], "ready");
    assert_eq!(world.post_as(&asks, "/v1/claim", &body).await.status, 201);
    world.stop().await;
}

#[tokio::test]
async fn s30_what_people_are_shown_is_what_they_say_yes_to() {
    let world = World::new().await;
    let nothing = claim_with("0", json!({ "fingerprint": "f", "approval": {} }));
    world.post("/v1/claim", &nothing).await.refused(400, "TS0070");
    let large = claim_with("0", json!({ "input": "x".repeat(300_000), "approval": {} }));
    world.post("/v1/claim", &large).await.refused(400, "TS0070");
    for (key, said) in
        [("1", json!({ "input": { "order": 1 } })), ("2", json!({ "fingerprint": "f" })), ("3", json!({}))]
    {
        let shown = |pay: u32| {
            let mut fields = said.clone();
            fields["request"] = json!({ "pay": pay });
            fields["approval"] = json!({});
            claim_with(key, fields)
        };
        world.post("/v1/claim", &shown(1)).await.refused(423, "TS0017");
        world.post("/v1/claim", &shown(1_000_000)).await.refused(422, "TS0010");
        world.decide("boss", "approve", &about(key)).await;
        world.post("/v1/claim", &shown(1)).await;
        // The permit is out now, and is for what was said yes to.
        world.post("/v1/claim", &shown(1_000_000)).await.refused(422, "TS0010");
    }
    world.stop().await;
}

/// The path of the link in an alert.
fn path_of(message: &Value) -> String {
    let link = message["link"].as_str().unwrap();
    link[link.find("/approve/").unwrap()..].to_owned()
}

async fn press(world: &World, path: &str, decision: &str) -> Heard {
    // As a browser sends it.
    let origin = format!("http://{}", world.address);
    let form = [
        ("content-type", "application/x-www-form-urlencoded"),
        ("origin", &*origin),
        ("sec-fetch-site", "same-origin"),
    ];
    world.send("POST", path, &form, decision.as_bytes()).await
}

#[tokio::test]
async fn s30_a_link_shows_what_would_be_sent_and_decides_when_pressed() {
    let hook = Hook::start().await;
    let yaml = format!("people:\n  ann: {{ alert: {{ webhook: \"{}\" }}, rights: [approve] }}\n", hook.url());
    let world = World::configured(&yaml).await;
    world.post("/v1/claim", &held("1")).await.refused(423, "TS0017");
    let path = path_of(&hook.next().await);
    for _ in 0..2 {
        let page = world.get(&path).await;
        assert_eq!(page.status, 200);
        assert!(
            page.text.contains("{&quot;amount&quot;:900,&quot;to&quot;:&quot;&lt;b&gt;ann&lt;/b&gt;&quot;}"),
            "{}",
            page.text
        );
        assert!(page.headers["content-security-policy"].contains("default-src 'none'"));
        assert_eq!(page.headers["x-frame-options"], "DENY");
        assert_eq!(page.headers["referrer-policy"], "same-origin");
    }
    world.post("/v1/claim", &held("1")).await.refused(423, "TS0017");
    // A page of another site cannot press it.
    let evil = [("content-type", "application/x-www-form-urlencoded"), ("origin", "https://evil.example")];
    world.send("POST", &path, &evil, b"decision=yes").await.refused(403, "TS0075");
    assert_eq!(press(&world, &path, "nonsense").await.status, 400);
    assert_eq!(press(&world, &path, "decision=no&reason=a%00b").await.status, 400);
    let pressed = press(&world, &path, "decision=yes").await;
    assert!(pressed.status == 200 && pressed.text.contains("That was a yes"), "{pressed:?}");
    let again = press(&world, &path, "decision=yes").await;
    assert!(again.status == 200 && again.text.contains("approved before"), "{again:?}");
    assert_eq!(press(&world, &path, "decision=no&reason=x").await.status, 409);
    assert_eq!(world.post("/v1/claim", &held("1")).await.status, 201);
    let shown = world.get("/v1/intent?scope=billing/invoice.send&key=1").await;
    assert_eq!(shown.json["approved_by"], json!(["person:ann"]));
    world.stop().await;
}

#[tokio::test]
async fn s30_a_link_that_is_forged_expired_or_about_something_else_decides_nothing() {
    let hook = Hook::start().await;
    let yaml = format!(
        "links: {{ expire: 10m }}\npeople:\n  ann: {{ alert: {{ webhook: \"{}\" }}, rights: [approve] }}\n",
        hook.url()
    );
    let world = World::configured(&yaml).await;
    world.post("/v1/claim", &held("1")).await.refused(423, "TS0017");
    let path = path_of(&hook.next().await);
    for forged in [
        format!("{path}x"),
        path.replace("/approve/e", "/approve/f"),
        "/approve/a.b".to_owned(),
        "/approve/".to_owned(),
    ] {
        assert_eq!(press(&world, &forged, "decision=yes").await.status, 403, "{forged}");
    }
    // Rejected, reset and asked for again with other input: the old link is about something else.
    world
        .send(
            "POST",
            "/v1/reject",
            &[("content-type", "application/json"), ("twicesafe-actor", "bob")],
            about("1").to_string().as_bytes(),
        )
        .await;
    assert_eq!(world.post("/v1/reset", &about("1")).await.status, 200);
    let other = claim_with("1", json!({ "input": { "amount": 9_000_000 }, "approval": {} }));
    world.post("/v1/claim", &other).await.refused(423, "TS0017");
    assert_eq!(press(&world, &path, "decision=yes").await.status, 409);
    let fresh = path_of(&hook.next().await);
    world.clock.advance(Duration::from_secs(601));
    assert_eq!(press(&world, &fresh, "decision=yes").await.status, 410, "expired");
    assert_eq!(world.get(&fresh).await.status, 410);
    world.post("/v1/claim", &other).await.refused(423, "TS0017");
    // Who is no longer in the configuration may not decide.
    world.control.reload(crate::world::configuration("")).await.unwrap();
    assert_eq!(press(&world, &fresh, "decision=yes").await.status, 410);
    world.stop().await;
}

#[tokio::test]
async fn s30_who_asked_may_not_approve_by_link_either() {
    let hook = Hook::start().await;
    let yaml = format!("people:\n  ann: {{ alert: {{ webhook: \"{}\" }}, rights: [approve] }}\n", hook.url());
    let world = World::configured(&yaml).await;
    let headers = [("content-type", "application/json"), ("twicesafe-actor", "person:ann")];
    world.send("POST", "/v1/claim", &headers, held("1").to_string().as_bytes()).await.refused(423, "TS0017");
    let path = path_of(&hook.next().await);
    let pressed = press(&world, &path, "decision=yes").await;
    assert!(pressed.status == 409 && pressed.text.contains("may not approve"), "{pressed:?}");
    world.stop().await;
}

#[tokio::test]
async fn s30_without_a_token_nobody_decides_over_the_api() {
    let refund = "destinations:
  shop:
    base: http://127.0.0.1:9
    auth: none
    routes:
      - { match: POST /refunds, action: refund.create, key: request.body.id, recovery: person, approve: true }
";
    let world = World::configured(refund).await;
    let asked = json!({ "id": "1", "amount": 900 });
    world.post("/to/shop/refunds", &asked).await.refused(423, "TS0017");
    let about =
        json!({ "scope": "default/shop/refund.create", "key": "1", "reason": "because", "generation": 1 });
    let as_ops = [("content-type", "application/json"), ("twicesafe-actor", "ops")];
    for path in ["/v1/approve", "/v1/reject", "/v1/reset", "/v1/forget"] {
        let heard = world.send("POST", path, &as_ops, about.to_string().as_bytes()).await;
        heard.refused(401, "TS0072");
        assert!(heard.json["hint"].as_str().unwrap().contains("twicesafe approve"), "{heard:?}");
    }
    let finding = json!({
        "scope": about["scope"], "key": "1", "reason": "because", "fence": 0, "finding": "did-not-happen",
    });
    world.send("POST", "/v1/resolve", &as_ops, finding.to_string().as_bytes()).await.refused(401, "TS0072");
    world.post("/to/shop/refunds", &asked).await.refused(423, "TS0017");
    let boss = world.token("boss", &[Right::Approve]).await;
    assert_eq!(world.post_as(&boss, "/v1/approve", &about).await.json["changed"], true);
    world.stop().await;
    // What a claim asks for is no less an approval. Only where the requester may approve is it nobody's business who does.
    let world = World::new().await;
    world.post("/v1/claim", &held("1")).await.refused(423, "TS0017");
    let body = self::about("1").to_string();
    world.send("POST", "/v1/approve", &as_ops, body.as_bytes()).await.refused(401, "TS0072");
    world.post("/v1/claim", &held("1")).await.refused(423, "TS0017");
    let own = json!({ "input": 1, "approval": { "requester_may_approve": true } });
    world.post("/v1/claim", &claim_with("2", own)).await.refused(423, "TS0017");
    assert_eq!(world.post("/v1/approve", &self::about("2")).await.status, 200);
    world.stop().await;
}
