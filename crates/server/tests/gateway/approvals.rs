//! A person says yes first, and the server sends it then: S27, S30, S31.

use super::*;

const REFUND: &str = "- match: POST /refunds
  action: refund.create
  key: [request.body.order_id, request.body.line]
  recovery: person
  approve: request.body.amount > 100
  timeout: 2s";
const SCOPE: &str = "default/crm/refund.create";

fn refund(order: &str, amount: i64) -> Value {
    json!({ "order_id": order, "line": 1, "amount": amount })
}

impl Gateway {
    /// The only intent of a scope.
    async fn only(&self, scope: &str) -> Value {
        let listed = self.world.get(&format!("/v1/intents?scope={scope}")).await;
        assert_eq!(listed.json["intents"].as_array().map(Vec::len), Some(1), "{listed:?}");
        listed.json["intents"][0].clone()
    }

    async fn decide(&self, what: &str, intent: &Value) {
        self.world.decide("ann", what, intent).await;
    }
}

#[tokio::test]
async fn s30_what_is_held_is_sent_by_the_server_after_a_yes() {
    let gateway = Gateway::with("auth: { bearer: ours }", REFUND, "").await;
    assert_eq!(gateway.post("/refunds", &refund("small", 50)).await.status, 201);
    for _ in 0..2 {
        gateway.post("/refunds", &refund("large", 500)).await.refused(423, "TS0017");
    }
    gateway.crm.check_effects(1);
    let held = gateway.world.get("/v1/approvals").await.json["intents"][0].clone();
    let shown =
        gateway.world.get(&format!("/v1/intent?scope={SCOPE}&key={}", held["key"].as_str().unwrap())).await;
    assert!(shown.text.contains("POST /refunds") && shown.text.contains("500"), "{shown:?}");
    gateway.decide("approve", &held).await;
    gateway.wait_for(SCOPE, held["key"].as_str().unwrap(), "done").await;
    gateway.crm.check_effects(2);
    let sent = &gateway.crm.effects()[1];
    assert_eq!((sent.header("authorization"), &sent.body), (Some("Bearer ours"), &refund("large", 500)));
    let again = gateway.post("/refunds", &refund("large", 500)).await;
    assert_eq!((again.status, again.headers["idempotent-replayed"].as_str()), (201, "true"));
    gateway.crm.check_effects(2);
}

#[tokio::test]
async fn s30_a_no_is_a_no_for_everybody() {
    let gateway = Gateway::with("auth: none", REFUND, "").await;
    gateway.post("/refunds", &refund("large", 500)).await.refused(423, "TS0017");
    let held = gateway.only(SCOPE).await;
    gateway.decide("reject", &held).await;
    gateway.post("/refunds", &refund("large", 500)).await.refused(403, "TS0011");
    gateway.crm.check_effects(0);
}

#[tokio::test]
async fn s30_what_was_harmless_is_asked_about_when_it_comes_back_as_something_else() {
    let gateway = Gateway::with("auth: none", REFUND, "").await;
    gateway.crm.script([Do::Say(422, json!({ "error": "no" }))]);
    assert_eq!(gateway.post("/refunds", &refund("o", 50)).await.status, 422);
    gateway.post("/refunds", &refund("o", 50_000)).await.refused(423, "TS0017");
    gateway.crm.check_effects(0);
}

#[tokio::test]
async fn s31_what_is_sent_is_what_was_approved() {
    let routes = format!("{REFUND}\n  ignore: request.body.note");
    let gateway = Gateway::with("auth: none", &routes, "").await;
    let with_note = |note: &str| json!({ "order_id": "o", "line": 1, "amount": 500, "note": note });
    gateway.crm.script([Do::SayWith(429, "retry-after", "3600")]);
    gateway.post("/refunds", &with_note("seen")).await.refused(423, "TS0017");
    let held = gateway.only(SCOPE).await;
    gateway.decide("approve", &held).await;
    gateway.wait_for(SCOPE, held["key"].as_str().unwrap(), "retryable").await;
    gateway.pass(Duration::from_secs(2 * 3600)).await;
    assert_eq!(gateway.post("/refunds", &with_note("slipped in")).await.status, 201);
    gateway.crm.check_effects(1);
    assert_eq!(gateway.crm.effects()[0].body["note"], "seen");
}

#[tokio::test]
async fn s31_what_is_approved_after_a_correction_is_sent_as_it_was_approved() {
    // The first request needed no yes, so the agreement has no rule for one: only the record tells that somebody was asked.
    let routes = format!("{REFUND}\n  ignore: request.body.note");
    let gateway = Gateway::with("auth: none", &routes, "").await;
    let with_note =
        |amount: i64, note: &str| json!({ "order_id": "o", "line": 1, "amount": amount, "note": note });
    gateway.crm.script([Do::Say(422, json!({})), Do::SayWith(429, "retry-after", "3600")]);
    assert_eq!(gateway.post("/refunds", &with_note(50, "small")).await.status, 422);
    gateway.post("/refunds", &with_note(500, "seen")).await.refused(423, "TS0017");
    let held = gateway.only(SCOPE).await;
    gateway.decide("approve", &held).await;
    gateway.wait_for(SCOPE, held["key"].as_str().unwrap(), "retryable").await;
    gateway.pass(Duration::from_secs(2 * 3600)).await;
    let heard = gateway.post("/refunds", &with_note(500, "slipped in")).await;
    assert_eq!(heard.status, 201, "{heard:?}");
    gateway.crm.check_effects(1);
    assert_eq!(gateway.crm.effects()[0].body["note"], "seen");
}

#[tokio::test]
async fn what_is_approved_or_due_waits_while_its_destination_is_paused() {
    let shop = Destination::new().await;
    let both = format!("{REFUND}\n{}\n  wait: 1ms", PERSON.replace("300ms", "2s"));
    // The server looks at the other destination after the paused one: what was done there tells that both were looked at.
    let indented: String = both.lines().map(|line| format!("      {line}\n")).collect();
    let more = format!("  shop:\n    base: {}\n    auth: none\n    routes:\n{indented}", shop.base());
    let gateway = Gateway::with("auth: none", &both, &more).await;
    for crm in [&gateway.crm, &shop] {
        crm.script([Do::SayWith(429, "retry-after", "1")]);
    }
    let mut held = Vec::new();
    for name in ["crm", "shop"] {
        gateway.world.post(&format!("/to/{name}/contacts"), &contact("a")).await.refused(409, "TS0015");
        gateway.wait_for(&format!("default/{name}/contact.create"), "a", "retryable").await;
        let refunds = format!("/to/{name}/refunds");
        gateway.world.post(&refunds, &refund("large", 500)).await.refused(423, "TS0017");
        held.push(gateway.only(&format!("default/{name}/refund.create")).await);
    }
    let ledger = &gateway.world.ledger;
    let paused = twicesafe_server::Pausable::Destination;
    twicesafe_server::pause(ledger, paused, "crm", "it is being moved").await.unwrap();
    while gateway.post("/contacts", &contact("b")).await.status != 503 {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let (asked, done) = (gateway.crm.requests().len(), gateway.crm.effects().len());
    for intent in &held {
        gateway.decide("approve", intent).await;
    }
    gateway.wait_for("default/shop/refund.create", held[1]["key"].as_str().unwrap(), "done").await;
    gateway.pass(Duration::from_secs(5)).await;
    gateway.wait_for("default/shop/contact.create", "a", "done").await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(gateway.crm.requests().len(), asked, "it is paused: {:#?}", gateway.crm.requests());
    shop.check_effects(2);
    twicesafe_server::resume(ledger, paused, "crm").await.unwrap();
    gateway.wait_for(SCOPE, held[0]["key"].as_str().unwrap(), "done").await;
    gateway.wait_for("default/crm/contact.create", "a", "done").await;
    gateway.crm.check_effects(done + 2);
}

#[tokio::test]
async fn s16_what_nobody_can_mend_is_tried_again_and_then_told() {
    let gateway = Gateway::with("auth: { bearer: revoked }", REFUND, "").await;
    gateway.crm.script([Do::Say(401, json!({}))]);
    gateway.post("/refunds", &refund("o", 500)).await.refused(423, "TS0017");
    let held = gateway.only(SCOPE).await;
    gateway.decide("approve", &held).await;
    let key = held["key"].as_str().unwrap();
    gateway.wait_for(SCOPE, key, "retryable").await;
    gateway.pass(Duration::from_secs(600)).await;
    gateway.wait_for(SCOPE, key, "done").await;
    gateway.crm.check_effects(1);
}

#[tokio::test]
async fn what_cannot_be_worked_out_is_not_sent() {
    let gateway = Gateway::with("auth: none", REFUND, "").await;
    for amount in [json!("500"), json!(null), json!({})] {
        let body = json!({ "order_id": "o", "line": 1, "amount": amount });
        gateway.post("/refunds", &body).await.refused(400, "TS0091");
    }
    gateway.post("/refunds", &json!({ "order_id": "o", "line": 1 })).await.refused(400, "TS0091");
    let mystery = [("x-mystery", "1")];
    gateway.post_with("/refunds", &mystery, &refund("o", 500)).await.refused(400, "TS0094");
    gateway.crm.check_effects(0);
}

#[tokio::test]
async fn s27_a_caller_may_wait_for_a_yes_or_be_told_that_it_was_accepted() {
    let gateway = Gateway::with("auth: none", &format!("{REFUND}\n  on_hold: wait"), "").await;
    let large = refund("large", 500);
    let (heard, ()) = tokio::join!(gateway.post("/refunds", &large), async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let held = gateway.only(SCOPE).await;
        gateway.decide("approve", &held).await;
    });
    assert_eq!(heard.status, 201, "{heard:?}");
    gateway.crm.check_effects(1);

    let gateway = Gateway::with("auth: none", &format!("{REFUND}\n  on_hold: accepted"), "").await;
    let heard = gateway.post("/refunds", &large).await;
    assert_eq!((heard.status, heard.headers["twicesafe-status"].as_str()), (202, "held"), "{heard:?}");
}

#[tokio::test]
async fn s27_the_answer_is_posted_once_to_everybody_who_was_told_to_wait() {
    let automation = Destination::new().await;
    let more = format!("callbacks: [ {}/waiting ]", automation.base());
    let gateway = Gateway::with("auth: none", &format!("{REFUND}\n  on_hold: callback"), &more).await;
    let elsewhere = [("twicesafe-callback", "http://127.0.0.1:1/steal")];
    gateway.post_with("/refunds", &elsewhere, &refund("large", 500)).await.refused(400, "TS0095");
    gateway.post("/refunds", &refund("other", 500)).await.refused(423, "TS0017");
    let address = format!("{}/waiting/7", automation.base());
    let heard =
        gateway.post_with("/refunds", &[("twicesafe-callback", &address)], &refund("large", 500)).await;
    assert_eq!(heard.status, 202, "{heard:?}");
    // Another run of the same automation waits elsewhere, and the first one once more.
    for address in [format!("{}/waiting/8", automation.base()), address.clone()] {
        let again = [("twicesafe-callback", address.as_str())];
        assert_eq!(gateway.post_with("/refunds", &again, &refund("large", 500)).await.status, 202);
    }
    let number: i64 = heard.headers["twicesafe-intent"].parse().unwrap();
    let listed = gateway.world.get(&format!("/v1/intents?scope={SCOPE}")).await;
    let held = listed.json["intents"]
        .as_array()
        .unwrap()
        .iter()
        .find(|one| one["intent"] == number)
        .unwrap()
        .clone();
    gateway.decide("approve", &held).await;
    for _ in 0..200 {
        if automation.effects().len() == 2 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    tokio::time::sleep(Duration::from_millis(1500)).await;
    automation.check_effects(2);
    let mut posted = automation.effects();
    posted.sort_by(|a, b| a.line.cmp(&b.line));
    for (posted, place) in posted.iter().zip(["POST /waiting/7 ", "POST /waiting/8 "]) {
        assert!(posted.line.starts_with(place), "{posted:?}");
        assert_eq!((&posted.body["status"], &posted.body["answer"]["status"]), (&json!("done"), &json!(201)));
    }
    gateway.crm.check_effects(1);
}

#[tokio::test]
async fn beyond_a_cap_a_person_is_asked() {
    let by_count = REFUND.replace("approve: request.body.amount > 100", "caps: [ { count: 2 } ]");
    let gateway = Gateway::with("auth: none", &by_count, "").await;
    for order in ["a", "b"] {
        assert_eq!(gateway.post("/refunds", &refund(order, 1)).await.status, 201);
    }
    gateway.post("/refunds", &refund("c", 1)).await.refused(423, "TS0017");
    assert_eq!(gateway.post("/refunds", &refund("a", 1)).await.status, 201, "what is done stays done");
    let three = Gateway::with("auth: none", &by_count.replace("count: 2", "count: 3"), "").await;
    for order in ["a", "a", "b", "b", "c"] {
        assert_eq!(
            three.post("/refunds", &refund(order, 1)).await.status,
            201,
            "repetitions are not counted"
        );
    }
    three.post("/refunds", &refund("d", 1)).await.refused(423, "TS0017");
    let by_sum = REFUND
        .replace("approve: request.body.amount > 100", "caps: [ { sum: request.body.amount, max: 100 } ]");
    let gateway = Gateway::with("auth: none", &by_sum, "").await;
    assert_eq!(gateway.post("/refunds", &refund("a", 60)).await.status, 201);
    gateway.post("/refunds", &refund("b", 60)).await.refused(423, "TS0017");
    assert_eq!(gateway.post("/refunds", &refund("c", 40)).await.status, 201, "what is held was not done");
    gateway.post("/refunds", &refund("n", -60)).await.refused(400, "TS0091");
    gateway
        .post_with("/refunds", &[("twicesafe-test", "true")], &refund("r", 1))
        .await
        .refused(423, "TS0017");
    gateway.post_with("/refunds", &[("x-mystery", "1")], &refund("m", 1)).await.refused(400, "TS0094");
    let gateway = Gateway::with("auth: none", &by_sum, "").await;
    gateway.crm.script([Do::Say(400, json!({}))]);
    assert_eq!(gateway.post("/refunds", &refund("a", 1)).await.status, 400);
    assert_eq!(gateway.post("/refunds", &refund("a", 100)).await.status, 201, "it was corrected");
    gateway.post("/refunds", &refund("b", 1)).await.refused(423, "TS0017");
    gateway.pass(Duration::from_secs(24 * 3600)).await;
    let orders = ["d", "e", "f", "g", "h"].map(|order| refund(order, 40));
    let all = orders.iter().map(|order| gateway.post("/refunds", order));
    let heard = futures_util::future::join_all(all).await;
    let done = heard.iter().filter(|heard| heard.status == 201).count();
    assert_eq!(done, 2, "those that come at once are counted too: {heard:?}");
}

fn capped_at(count: u32) -> String {
    REFUND.replace("approve: request.body.amount > 100", &format!("caps: [ {{ count: {count} }} ]"))
}

#[tokio::test]
async fn those_that_come_at_once_count_towards_a_cap_by_count() {
    let crm = Destination::new().await;
    let configuration = configuration(&crm, "auth: none", &capped_at(2), "");
    let (world, folder) = World::in_folder("caps-at-once", &configuration).await;
    let gateway = Gateway { world, crm };
    // None of them is in the ledger when the others are counted: it is locked for a while.
    let other = rusqlite::Connection::open(folder.join("ledger.db")).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let unlock = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        other.execute_batch("COMMIT").unwrap();
    };
    let orders = ["a", "b", "c", "d", "e"].map(|order| refund(order, 1));
    let all = futures_util::future::join_all(orders.iter().map(|order| gateway.post("/refunds", order)));
    let (heard, ()) = tokio::join!(all, unlock);
    let done = heard.iter().filter(|heard| heard.status == 201).count();
    assert_eq!(done, 2, "{heard:?}");
    for heard in heard.iter().filter(|heard| heard.status != 201) {
        heard.refused(423, "TS0017");
    }
    gateway.crm.check_effects(2);
    gateway.world.stop().await;
    std::fs::remove_dir_all(folder).unwrap();
}

#[tokio::test]
async fn what_is_under_way_counts_towards_a_cap_by_count() {
    let gateway = Gateway::with("auth: none", &capped_at(1), "").await;
    gateway.crm.script([Do::ActLate(Duration::from_millis(1500))]);
    let (first, under_way) = (refund("a", 1), refund("b", 1));
    let second = async {
        while gateway.crm.requests().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(gateway.only(SCOPE).await["status"], "pending");
        gateway.post("/refunds", &under_way).await
    };
    let (first, second) = tokio::join!(gateway.post("/refunds", &first), second);
    assert_eq!(first.status, 201, "{first:?}");
    second.refused(423, "TS0017");
    gateway.crm.check_effects(1);
}

#[tokio::test]
async fn what_is_in_review_counts_towards_a_cap_by_count() {
    let gateway = Gateway::with("auth: none", &capped_at(2), "").await;
    gateway.crm.script([Do::ActAndClose, Do::ActAndSay(500, json!({}))]);
    for order in ["a", "b"] {
        gateway.post("/refunds", &refund(order, 1)).await.refused(423, "TS0016");
    }
    gateway.post("/refunds", &refund("c", 1)).await.refused(423, "TS0017");
    gateway.crm.check_effects(2);
}

#[tokio::test]
async fn an_amount_that_nobody_knows_any_more_is_more_than_any_cap() {
    let crm = Destination::new().await;
    let by_sum = REFUND
        .replace("approve: request.body.amount > 100", "caps: [ { sum: request.body.amount, max: 100 } ]");
    let destination = "auth: none\nwait: 1ms";
    let (world, folder) = World::in_folder("caps", &configuration(&crm, destination, &by_sum, "")).await;
    let gateway = Gateway { world, crm };
    gateway.crm.script([Do::SayWith(429, "retry-after", "1")]);
    let damaged =
        |amount: i64| json!({ "order_id": "a", "line": 1, "amount": amount, "note": "n".repeat(2_100) });
    gateway.post("/refunds", &damaged(10)).await.refused(409, "TS0015");
    let other = rusqlite::Connection::open(folder.join("ledger.db")).unwrap();
    assert_eq!(other.execute("DELETE FROM request_rest", ()).unwrap(), 1);
    gateway.post("/refunds", &refund("b", 1)).await.refused(423, "TS0017");
    gateway.post("/refunds", &damaged(10_000)).await.refused(423, "TS0017");
    gateway.crm.check_effects(0);
    gateway.world.stop().await;
    std::fs::remove_dir_all(folder).unwrap();
}

#[tokio::test]
async fn s30_nobody_says_yes_to_a_body_that_cannot_be_read() {
    let hook = crate::alerts::Hook::start().await;
    let more = format!("people:\n  ann: {{ alert: {{ webhook: \"{}\" }}, rights: [approve] }}\n", hook.url());
    let routes = "- { match: POST /refunds, action: refund.create, recovery: person, approve: true }";
    let gateway = Gateway::with("auth: none", routes, &more).await;
    let send = async |key: &str, kind: (&str, &str), body: &[u8]| {
        let headers = [kind, ("idempotency-key", key)];
        gateway.world.send("POST", "/to/crm/refunds", &headers, body).await
    };
    let packed = [0x1f, 0x8b, 0x08, 0, 0, 0, 0, 0];
    send("1", ("content-encoding", "gzip"), &packed).await.refused(400, "TS0094");
    let binary = ("content-type", "application/octet-stream");
    send("2", binary, &packed).await.refused(423, "TS0017");
    let link = hook.next().await["link"].as_str().unwrap().to_owned();
    let page = gateway.world.get(&link[link.find("/approve/").unwrap()..]).await;
    assert!(page.status == 200 && !page.text.contains("value=yes"), "{page:?}");
    assert!(page.text.contains("value=no") && page.text.contains("twicesafe approve"), "{page:?}");
    // It says a yes no more when somebody presses it all the same.
    let origin = format!("http://{}", gateway.world.address);
    let form = [("content-type", "application/x-www-form-urlencoded"), ("origin", &*origin)];
    let path = &link[link.find("/approve/").unwrap()..];
    let pressed = gateway.world.send("POST", path, &form, b"decision=yes").await;
    assert_eq!(pressed.status, 409, "{pressed:?}");
    gateway.crm.check_effects(0);
}
