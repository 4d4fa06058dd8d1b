//! Streams: passed on as they come, recorded as they pass, pinned when they have ended as they should.

use super::*;

async fn check_streamed(path: &str, body: Value, last: &str) {
    let gateway = Gateway::new().await;
    let work = [("twicesafe-work", "w")];
    let first = gateway.ask(path, &work, &body).await;
    assert_eq!((first.status, first.pinned(), first.is_whole), (200, "miss", true), "{first:?}");
    assert!(first.body.contains(last), "{first:?}");
    assert_eq!(first.headers["content-type"], "text/event-stream; charset=utf-8");
    let again = gateway.ask(path, &work, &body).await;
    assert_eq!((again.pinned(), again.is_whole, &again.body), ("hit", true, &first.body));
    assert_eq!(again.headers["content-type"], first.headers["content-type"]);
    assert_eq!(again.headers["twicesafe-saved-tokens"], "15");
    gateway.model.check_asked(1);
}

#[tokio::test]
async fn s33_a_stream_is_given_again_event_by_event() {
    check_streamed(CHAT, streamed("hello"), "data: [DONE]").await;
    check_streamed("/to/ai/v1/responses", json!({ "input": "hello", "stream": true }), "response.completed")
        .await;
    check_streamed("/to/ai/v1/messages", streamed("hello"), "message_stop").await;
}

#[tokio::test]
async fn s33_events_are_passed_on_as_they_come_but_for_the_last() {
    let gateway = Gateway::new().await;
    gateway.model.script([Do::PauseAfter(2)]);
    let mut hearing = gateway.begin(CHAT, &[("twicesafe-work", "w")], &streamed("hello")).await;
    hearing.until("answer ").await;
    gateway.model.go_on();
    let told = hearing.end().await;
    assert!(told.is_whole && told.body.ends_with("data: [DONE]\n\n"), "{told:?}");
    // The last one is shown when the answer is on record, and it is not as long as the provider may have more to say.
    gateway.model.script([Do::PauseAfter(6)]);
    let mut hearing = gateway.begin(CHAT, &[("twicesafe-work", "v")], &streamed("hello")).await;
    hearing.until("usage").await;
    let more = tokio::time::timeout(Duration::from_millis(300), hearing.until("[DONE]")).await;
    assert!(more.is_err(), "{}", hearing.text());
    assert_eq!(gateway.world.get("/v1/intents?work=v").await.json["intents"][0]["status"], "pending");
    gateway.model.go_on();
    assert!(hearing.end().await.is_whole);
    assert_eq!(gateway.world.get("/v1/intents?work=v").await.json["intents"][0]["status"], "done");
}

#[tokio::test]
async fn s33_what_did_not_end_as_it_should_is_never_pinned() {
    for (step, is_whole) in [
        (Do::CutAfter(3), false),
        (Do::EndAfter(3), false),
        (Do::FailAfter(2), true),
        (Do::End("length"), true),
        (Do::End("content_filter"), true),
        (Do::End("network_error"), true),
    ] {
        let gateway = Gateway::new().await;
        gateway.model.script([step.clone()]);
        let told = gateway.ask(CHAT, &[("twicesafe-work", "w")], &streamed("hello")).await;
        assert_eq!((told.is_whole, told.pinned()), (is_whole, "miss"), "{step:?}: {told:?}");
        assert!(is_whole || !told.body.contains("[DONE]"), "{told:?}");
        let again = gateway.ask(CHAT, &[("twicesafe-work", "w")], &streamed("hello")).await;
        assert_eq!(
            (again.status, again.pinned(), again.is_whole),
            (200, "miss", true),
            "{step:?}: {again:?}"
        );
        assert!(again.body.ends_with("[DONE]\n\n"));
        let pinned = gateway.ask(CHAT, &[("twicesafe-work", "w")], &streamed("hello")).await;
        assert_eq!((pinned.pinned(), &pinned.body), ("hit", &again.body));
        gateway.model.check_asked(2);
    }
    let gateway = Gateway::new().await;
    gateway.model.script([Do::CutAfter(0)]);
    gateway.in_work("w", &streamed("hello")).await.refused(502, "TS0092");
    assert_eq!(gateway.in_work("w", &streamed("hello")).await.pinned(), "miss");
}

#[tokio::test]
async fn s33_answers_that_came_whole_and_are_none_are_never_pinned() {
    for (step, status) in [
        (Do::Say(429, json!({ "error": { "message": "slow down" } })), 429),
        (Do::Say(500, json!({ "error": { "message": "oh" } })), 500),
        (Do::Say(400, json!({ "error": { "message": "bad" } })), 400),
        (Do::Say(200, json!({ "error": { "message": "in disguise" } })), 200),
        (Do::Say(200, json!({ "choices": [] })), 200),
        (Do::Odd, 200),
        (Do::End("sensitive"), 200),
        (Do::End("length"), 200),
        (Do::End("content_filter"), 200),
    ] {
        let gateway = Gateway::new().await;
        gateway.model.script([step.clone()]);
        let told = gateway.in_work("w", &prompt("hello")).await;
        assert_eq!((told.status, told.pinned()), (status, "miss"), "{step:?}: {told:?}");
        if status == 429 {
            assert_eq!(
                (told.headers["retry-after"].as_str(), told.headers["x-should-retry"].as_str()),
                ("7", "true")
            );
        }
        let again = gateway.in_work("w", &prompt("hello")).await;
        assert_eq!((again.status, again.pinned()), (200, "miss"), "{step:?}: {again:?}");
        assert_eq!(gateway.in_work("w", &prompt("hello")).await.body, again.body);
        gateway.model.check_asked(2);
    }
}

#[tokio::test]
async fn s33_an_operator_may_pin_what_ran_into_its_limit() {
    let gateway = Gateway::with("pins: { truncated: pin }").await;
    gateway.model.script([Do::End("length")]);
    let first = gateway.in_work("w", &prompt("hello")).await;
    assert_eq!(gateway.in_work("w", &prompt("hello")).await.body, first.body);
    gateway.model.check_asked(1);
}

#[tokio::test]
async fn s33_a_provider_that_stalls_is_given_up_and_asked_again() {
    let gateway = Gateway::with("timeout: 300ms").await;
    gateway.model.script([Do::HangAfter(2)]);
    let told = gateway.ask(CHAT, &[("twicesafe-work", "w")], &streamed("hello")).await;
    assert!(!told.is_whole && told.status == 200, "{told:?}");
    assert!(gateway.ask(CHAT, &[("twicesafe-work", "w")], &streamed("hello")).await.is_whole);
    // One that has said all and only keeps the connection open has answered.
    gateway.model.script([Do::HangAfter(6)]);
    let told = gateway.ask(CHAT, &[("twicesafe-work", "v")], &streamed("hello")).await;
    assert!(told.is_whole && told.body.ends_with("[DONE]\n\n"), "{told:?}");
    gateway.model.check_asked(3);
}

#[tokio::test]
async fn what_is_too_large_to_keep_is_passed_on() {
    let gateway = Gateway::new().await;
    let question = json!({ "input": "hello" });
    for _ in 0..2 {
        gateway.model.script([Do::Much(9 << 20)]);
        let told = gateway.ask("/to/ai/v1/embeddings", &[("twicesafe-work", "w")], &question).await;
        assert_eq!((told.is_whole, told.pinned(), told.body.len() > 9 << 20), (true, "miss", true));
    }
    gateway.model.check_asked(2);
    // Also where all of it is one event.
    gateway.model.script([Do::Much(9 << 20)]);
    let told = gateway.in_work("w", &streamed("hello")).await;
    assert_eq!((told.status, told.is_whole, told.body.len() > 9 << 20), (200, true, true));
    assert!(told.body.ends_with("[DONE]\n\n"));
}

#[tokio::test]
async fn a_provider_that_is_away_is_said_to_be() {
    let yaml = "destinations:\n  ai: { use: openai, base: \"http://127.0.0.1:1\" }\n";
    let world = World::configured(yaml).await;
    for body in [prompt("a"), streamed("a")] {
        let told = Hearing::begin(world.address, CHAT, &[("twicesafe-work", "w")], &body).await.end().await;
        told.refused(502, "TS0092");
        assert!(told.headers.contains_key("retry-after"));
    }
}
