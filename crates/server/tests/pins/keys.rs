//! What makes a question the same question (S33).

use super::*;

#[tokio::test]
async fn s33_the_same_prompt_in_the_same_work_has_one_answer() {
    let gateway = Gateway::new().await;
    let first = gateway.in_work("order-1", &prompt("hello")).await;
    assert_eq!((first.status, first.pinned(), first.is_whole), (200, "miss", true), "{first:?}");
    assert!(!first.headers.contains_key("set-cookie"));
    // Spaces and the order of names say nothing.
    let reordered = json!({ "temperature": 0.7, "messages": [{ "content": "hello", "role": "user" }], "model": "gpt-4o" });
    for body in [prompt("hello"), reordered] {
        let again = gateway.in_work("order-1", &body).await;
        assert_eq!((again.status, again.pinned(), &again.body), (200, "hit", &first.body));
        assert_eq!(again.headers["idempotent-replayed"], "true");
        assert_eq!(again.headers["x-request-id"], "req_1");
        assert_eq!(
            (again.headers["twicesafe-saved-tokens"].as_str(), again.headers["twicesafe-saved-usd"].as_str()),
            ("15", "0.000075")
        );
    }
    gateway.model.check_asked(1);
}

#[tokio::test]
async fn s33_whatever_differs_makes_another_question() {
    let gateway = Gateway::new().await;
    let mut hotter = prompt("hello");
    hotter["temperature"] = json!(0.8);
    let mut whole = prompt("hello");
    whole["stream"] = json!(false);
    let ask =
        async |path: &str, headers: &[(&str, &str)], body: &Value| gateway.ask(path, headers, body).await;
    let work = ("twicesafe-work", "w");
    let all = [
        ask(CHAT, &[work], &prompt("hello")).await,
        ask(CHAT, &[work], &prompt("hello!")).await,
        ask(CHAT, &[work], &hotter).await,
        ask(CHAT, &[work], &whole).await,
        ask(CHAT, &[work], &streamed("hello")).await,
        ask(CHAT, &[("twicesafe-work", "v")], &prompt("hello")).await,
        ask(CHAT, &[work, ("twicesafe-sample", "2")], &prompt("hello")).await,
        ask(CHAT, &[work, ("authorization", "Bearer sk-two")], &prompt("hello")).await,
        ask(CHAT, &[work, ("openai-project", "p")], &prompt("hello")).await,
        ask(CHAT, &[work, ("openai-beta", "b")], &prompt("hello")).await,
        ask(&format!("{CHAT}?api-version=2"), &[work], &prompt("hello")).await,
        ask("/to/ai/other/chat/completions", &[work], &prompt("hello")).await,
        ask("/to/ai/v1/responses", &[work], &json!({ "input": "hello" })).await,
        ask("/to/ai/v1/embeddings", &[work], &json!({ "input": "hello" })).await,
        ask("/to/ai/v1/messages", &[work], &prompt("hello")).await,
    ];
    for told in &all {
        assert_eq!((told.status, told.pinned(), told.is_whole), (200, "miss", true), "{told:?}");
    }
    gateway.model.check_asked(all.len());
    // And what SDKs put in by themselves does not.
    let noise = [
        work,
        ("user-agent", "x/2"),
        ("x-stainless-retry-count", "1"),
        ("traceparent", "00-a"),
        ("accept", "*/*"),
    ];
    assert_eq!(ask(CHAT, &noise, &prompt("hello")).await.body, all[0].body);
    assert_eq!(ask(CHAT, &[work, ("twicesafe-sample", "2")], &prompt("hello")).await.body, all[6].body);
    gateway.model.check_asked(all.len());
}

#[tokio::test]
async fn s33_the_work_can_stand_in_the_address() {
    let gateway = Gateway::new().await;
    let first = gateway.ask("/to/ai/@order-1/v1/chat/completions", &[], &prompt("hello")).await;
    assert_eq!(first.pinned(), "miss");
    let again = gateway.in_work("order-1", &prompt("hello")).await;
    assert_eq!((again.pinned(), &again.body), ("hit", &first.body));
    assert_eq!(gateway.model.asked()[0].line, "POST /v1/chat/completions HTTP/1.1");
    assert_eq!(gateway.model.asked()[0].header("authorization"), Some("Bearer sk-one"));
    assert!(gateway.model.asked()[0].headers.iter().all(|(name, _)| !name.starts_with("twicesafe-")));
    let both = [("twicesafe-work", "other")];
    gateway.ask("/to/ai/@order-1/v1/chat/completions", &both, &prompt("hello")).await.refused(400, "TS0070");
    gateway.ask("/to/ai/@/v1/chat/completions", &[], &prompt("hello")).await.refused(400, "TS0070");
    gateway.model.check_asked(1);
}

#[tokio::test]
async fn s33_without_a_work_a_call_passes() {
    let gateway = Gateway::new().await;
    let one = gateway.ask(CHAT, &[], &prompt("hello")).await;
    let other = gateway.ask(CHAT, &[], &streamed("hello")).await;
    assert_eq!((one.pinned(), other.pinned(), other.is_whole), ("pass", "pass", true));
    assert!(one.body.contains("answer 1") && other.body.ends_with("data: [DONE]\n\n"));
    gateway.model.script([Do::Say(503, json!({})), Do::Answer]);
    let told = gateway.ask(CHAT, &[], &prompt("hello")).await;
    assert_eq!(told.status, 503, "who asks pays: what failed is not asked again unasked");
    gateway.model.check_asked(3);
}

#[tokio::test]
async fn s33_a_window_pins_what_has_no_work() {
    let gateway = Gateway::with("pins: { window: 10m }").await;
    let first = gateway.ask(CHAT, &[], &prompt("hello")).await;
    gateway.world.clock.advance(Duration::from_secs(599));
    let again = gateway.ask(CHAT, &[], &prompt("hello")).await;
    assert_eq!((first.pinned(), again.pinned(), &again.body), ("miss", "hit", &first.body));
    gateway.world.clock.advance(Duration::from_secs(2));
    let later = gateway.ask(CHAT, &[], &prompt("hello")).await;
    assert_eq!(later.pinned(), "miss", "{later:?}");
    assert_ne!(later.body, first.body);
    assert_eq!(gateway.in_work("w", &prompt("hello")).await.pinned(), "miss", "a work is no window");
    gateway.model.check_asked(3);
}

#[tokio::test]
async fn s33_what_has_effects_passes_each_time_and_is_journalled() {
    let gateway = Gateway::new().await;
    let work = [("twicesafe-work", "w")];
    let stored = json!({ "model": "gpt-4o", "input": "hello", "store": true });
    let one = gateway.ask("/to/ai/v1/responses", &work, &stored).await;
    let other = gateway.ask("/to/ai/v1/responses", &work, &stored).await;
    assert_eq!((one.pinned(), other.pinned(), one.status), ("pass", "pass", 200));
    assert_ne!(one.body, other.body);
    let mut streaming = stored.clone();
    streaming["stream"] = true.into();
    let streamed = gateway.ask("/to/ai/v1/responses", &work, &streaming).await;
    assert!(streamed.is_whole && streamed.body.contains("response.completed"), "{streamed:?}");
    let batch = gateway.ask("/to/ai/v1/batches", &work, &json!({ "input_file_id": "f" })).await;
    assert_eq!((batch.pinned(), batch.status), ("pass", 200));
    gateway.model.script([Do::Say(500, json!({ "error": {} })), Do::Say(400, json!({ "error": {} }))]);
    assert_eq!(gateway.ask("/to/ai/v1/batches", &work, &json!({})).await.status, 500);
    assert_eq!(gateway.ask("/to/ai/v1/batches", &work, &json!({})).await.status, 400);
    gateway.model.check_asked(6);
    let mut standing = BTreeMap::new();
    for scope in ["default/ai/passed.post.v1.responses", "default/ai/passed.post.v1.batches"] {
        let listed = gateway.world.get(&format!("/v1/intents?scope={scope}")).await;
        for intent in listed.json["intents"].as_array().unwrap() {
            *standing.entry(intent["status"].as_str().unwrap().to_owned()).or_insert(0) += 1;
        }
    }
    assert_eq!(standing, BTreeMap::from([("done".to_owned(), 4), ("failed".to_owned(), 2)]));
    // What the server gave up by itself is no decision of anybody's.
    let figures = gateway.world.get("/v1/stats").await.json["figures"].clone();
    assert_eq!(
        (&figures["decisions_by_people"]["value"], &figures["doubts"]["value"]),
        (&json!(0), &json!(1))
    );
    // With a key it is guarded like any other write.
    let keyed = [("idempotency-key", "batch-1")];
    let first = gateway.ask("/to/ai/v1/batches", &keyed, &json!({})).await;
    let again = gateway.ask("/to/ai/v1/batches", &keyed, &json!({})).await;
    assert_eq!((first.body, again.headers["idempotent-replayed"].as_str()), (again.body.clone(), "true"));
    gateway.model.check_asked(7);
}

#[tokio::test]
async fn s33_credentials_are_nowhere_in_the_ledger() {
    let gateway = Gateway::new().await;
    gateway.in_work("w", &prompt("hello")).await;
    let listed = gateway.world.get("/v1/intents?work=w").await;
    let scope = listed.json["intents"][0]["scope"].as_str().unwrap().to_owned();
    assert_eq!(scope, "default/ai/pin.chat", "{listed:?}");
    let key = listed.json["intents"][0]["key"].as_str().unwrap();
    let shown = gateway.world.get(&format!("/v1/intent?scope={scope}&key={key}")).await;
    assert_eq!(shown.status, 200);
    assert!(!listed.text.contains("sk-one") && !shown.text.contains("sk-one"), "{shown:?}");
    // Nor is it anywhere else in what the ledger keeps.
    let name = twicesafe_ledger::Name::new(&scope, key).unwrap();
    let dossier = gateway.world.ledger.dossier(&name).await.unwrap().unwrap();
    assert!(dossier.request.is_none() && !format!("{dossier:?}").contains("sk-one"));
    // Where the server identifies itself, who asks does not matter, and what they show is not passed on.
    let model = Model::new().await;
    let yaml = configuration(&model, "auth: { bearer: sk-own }");
    let world = World::configured(&yaml).await;
    let one = Hearing::begin(world.address, CHAT, &[("twicesafe-work", "w")], &prompt("x")).await.end().await;
    let headers = [("twicesafe-work", "w"), ("authorization", "Bearer sk-other")];
    let other = Hearing::begin(world.address, CHAT, &headers, &prompt("x")).await.end().await;
    assert_eq!((one.pinned(), other.pinned()), ("miss", "hit"));
    assert_eq!(model.asked()[0].header("authorization"), Some("Bearer sk-own"));
}

#[tokio::test]
async fn nonsense_gets_a_clear_answer() {
    let gateway = Gateway::new().await;
    let work = ("twicesafe-work", "w");
    for sample in ["0", "x", "-1", "1000001"] {
        gateway.ask(CHAT, &[work, ("twicesafe-sample", sample)], &prompt("a")).await.refused(400, "TS0070");
    }
    gateway.ask(CHAT, &[work, ("twicesafe-expect", "{")], &prompt("a")).await.refused(400, "TS0070");
    // An unset variable somewhere.
    gateway.ask(CHAT, &[("twicesafe-work", "")], &prompt("a")).await.refused(400, "TS0070");
    gateway.ask(CHAT, &[("twicesafe-expect", "{}")], &prompt("a")).await.refused(400, "TS0070");
    gateway.ask(CHAT, &[("twicesafe-work", &"w".repeat(300))], &prompt("a")).await.refused(400, "TS0003");
    gateway.model.check_asked(0);
    let twice = "{\"model\":\"a\",\"model\":\"b\",\"messages\":[]}";
    let headers = [("content-type", "application/json"), work];
    let heard = gateway.world.send("POST", CHAT, &headers, twice.as_bytes()).await;
    heard.refused(400, "TS0070");
    gateway.model.check_asked(0);
    // What cannot be read cannot be told from anything else; without a work it is the provider's to refuse.
    gateway.world.send("POST", CHAT, &headers, b"[1]").await.refused(400, "TS0070");
    let heard = gateway.world.send("POST", CHAT, &headers[..1], b"[1]").await;
    assert_eq!((heard.status, heard.headers["twicesafe-pinned"].as_str()), (200, "pass"));
    // A header that cannot be read is not passed over: somebody relies on it.
    gateway.ask(CHAT, &[("twicesafe-work", "größe")], &prompt("a")).await.refused(400, "TS0070");
    gateway
        .ask(CHAT, &[work, ("twicesafe-expect", "{\"required\":[\"größe\"]}")], &prompt("a"))
        .await
        .refused(400, "TS0070");
    gateway.model.check_asked(1);
}

#[tokio::test]
async fn s30_what_a_route_says_of_other_writes_holds() {
    let routes = "auth: none
routes:
  - { match: POST /v1/files, action: file.put, approve: true }
  - { match: POST /v1/batches, action: batch.run, key: request.body.id }";
    let gateway = Gateway::with(routes).await;
    gateway.ask("/to/ai/v1/files", &[], &json!({ "id": 1 })).await.refused(400, "TS0001");
    gateway
        .ask("/to/ai/v1/files", &[("idempotency-key", "f")], &json!({ "id": 1 }))
        .await
        .refused(423, "TS0017");
    gateway.model.check_asked(0);
    for _ in 0..2 {
        assert_eq!(gateway.ask("/to/ai/@w/v1/batches", &[], &json!({ "id": "b" })).await.status, 200);
    }
    gateway.model.check_asked(1);
    let listed = gateway.world.get("/v1/intents?work=w").await;
    assert_eq!(listed.json["intents"][0]["scope"], "default/ai/batch.run", "{listed:?}");
}

#[tokio::test]
async fn s33_what_makes_something_is_no_question() {
    let gateway = Gateway::new().await;
    gateway.model.script([Do::Odd]);
    let told = gateway
        .ask("/to/ai/v1/threads/t1/messages", &[("twicesafe-work", "w")], &json!({ "role": "user" }))
        .await;
    assert_eq!((told.status, told.pinned()), (200, "pass"));
    let listed = gateway.world.get("/v1/intents?work=w").await;
    assert_eq!(listed.json["intents"][0]["status"], "done", "{listed:?}");
}

#[tokio::test]
async fn s33_a_route_can_say_what_the_work_is() {
    let routes =
        "routes:\n  - { match: POST /v1/chat/completions, action: ask, work: request.body.metadata.order }";
    let gateway = Gateway::with(routes).await;
    let mut body = prompt("hello");
    gateway.ask(CHAT, &[], &body).await.refused(400, "TS0091");
    body["metadata"] = json!({ "order": "o-1" });
    assert_eq!(gateway.ask(CHAT, &[], &body).await.pinned(), "miss");
    assert_eq!(gateway.in_work("o-1", &body).await.pinned(), "hit");
}
