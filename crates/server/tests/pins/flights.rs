//! Many who ask the same at the same time, and callers who leave.

use super::*;

#[tokio::test]
async fn s33_who_asks_meanwhile_follows_the_same_flight() {
    let gateway = Gateway::new().await;
    let first = gateway.under_way().await;
    let mut second = gateway.begin(CHAT, &WORK, &streamed("hello")).await;
    second.until("answer ").await;
    // Its first caller leaves; the others do not notice.
    drop(first);
    tokio::time::sleep(Duration::from_millis(50)).await;
    gateway.model.go_on();
    let second = second.end().await;
    assert_eq!((second.pinned(), second.is_whole), ("hit", true), "{second:?}");
    let third = gateway.ask(CHAT, &WORK, &streamed("hello")).await;
    assert_eq!((third.pinned(), &third.body), ("hit", &second.body));
    gateway.model.check_asked(1);
    let metrics = gateway.world.get("/metrics").await.text;
    assert!(metrics.contains("twicesafe_saved_tokens_total{model=\"gpt-4o-2024-08-06\"} 30"), "{metrics}");
    assert!(
        metrics.contains("twicesafe_destination_requests_total{destination=\"ai\",result=\"hit\"} 2"),
        "{metrics}"
    );
}

#[tokio::test]
async fn s13_a_caller_who_leaves_does_not_stop_the_recording() {
    let gateway = Gateway::new().await;
    let first = gateway.under_way().await;
    drop(first);
    tokio::time::sleep(Duration::from_millis(50)).await;
    gateway.model.go_on();
    let again = gateway.ask(CHAT, &WORK, &streamed("hello")).await;
    assert_eq!((again.pinned(), again.is_whole), ("hit", true), "{again:?}");
    gateway.model.check_asked(1);
}

#[tokio::test]
async fn s33_sixty_four_at_once_are_one_question() {
    for body in [prompt("hello"), streamed("hello")] {
        let gateway = Gateway::new().await;
        let asking = (0..64).map(|_| gateway.in_work("w", &body));
        let told = futures_util::future::join_all(asking).await;
        assert!(told.iter().all(|one| one.is_whole && one.body == told[0].body), "{told:?}");
        assert_eq!(told.iter().filter(|one| one.pinned() == "miss").count(), 1);
        gateway.model.check_asked(1);
    }
}

#[tokio::test]
async fn s33_followers_of_what_fails_are_told_so_and_may_ask_at_once() {
    let gateway = Gateway::new().await;
    gateway.model.script([Do::CutAfter(3)]);
    let body = streamed("hello");
    let told = futures_util::future::join_all((0..8).map(|_| gateway.in_work("w", &body))).await;
    let (whole, cut): (Vec<_>, Vec<_>) = told.iter().partition(|one| one.is_whole);
    assert!(!cut.is_empty() && cut.iter().all(|one| !one.body.contains("[DONE]")));
    let again = gateway.in_work("w", &body).await;
    assert!(again.is_whole && whole.iter().all(|one| one.body == again.body));
    gateway.model.check_asked(2);
}

#[tokio::test]
async fn s33_who_was_told_of_a_failure_and_asks_at_once_is_not_told_it_again() {
    let gateway = Gateway::new().await;
    for round in 0..50 {
        gateway.model.script([Do::Say(429, json!({ "error": {} })), Do::Answer]);
        let work = format!("w{round}");
        assert_eq!(gateway.in_work(&work, &prompt("hello")).await.status, 429);
        let again = gateway.in_work(&work, &prompt("hello")).await;
        assert_eq!((again.status, again.pinned()), (200, "miss"), "{again:?}");
    }
    gateway.model.check_asked(100);
}

#[tokio::test]
async fn s33_another_server_waits_for_the_whole_answer() {
    let gateway = Gateway::new().await;
    let other = gateway.another_server("").await;
    let first = gateway.under_way().await;
    let elsewhere = Hearing::begin(other.address, CHAT, &WORK, &streamed("hello")).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    gateway.model.go_on();
    let (first, elsewhere) = (first.end().await, elsewhere.end().await);
    assert_eq!((first.pinned(), elsewhere.pinned()), ("miss", "hit"));
    assert_eq!((first.is_whole, first.body), (true, elsewhere.body));
    gateway.model.check_asked(1);
}

#[tokio::test]
async fn s33_what_a_later_flight_has_pinned_is_what_everybody_gets() {
    // A process that was asleep for longer than its lease: somebody else asked meanwhile, and that answer stands.
    let gateway = Gateway::new().await;
    let other = gateway.another_server("").await;
    let first = gateway.under_way().await;
    gateway.world.clock.advance(Duration::from_secs(11));
    let elsewhere = Hearing::begin(other.address, CHAT, &WORK, &streamed("hello")).await.end().await;
    assert_eq!((elsewhere.pinned(), elsewhere.is_whole), ("miss", true), "{elsewhere:?}");
    gateway.model.go_on();
    let first = first.end().await;
    assert!(!first.is_whole && !first.body.contains("[DONE]"), "{first:?}");
    let again = gateway.ask(CHAT, &WORK, &streamed("hello")).await;
    assert_eq!((again.pinned(), &again.body), ("hit", &elsewhere.body));
    gateway.model.check_asked(2);
}

#[tokio::test]
async fn s28_what_was_forgotten_or_is_kept_no_longer_is_asked_anew() {
    let gateway = Gateway::with("retention: 1d").await;
    let first = gateway.in_work("w", &prompt("hello")).await;
    gateway.world.clock.advance(Duration::from_secs(2 * 24 * 3600));
    let second = gateway.in_work("w", &prompt("hello")).await;
    assert_eq!(second.pinned(), "miss", "{second:?}");
    assert_ne!(second.body, first.body);
    let listed = gateway.world.get("/v1/intents?work=w").await;
    let intent = &listed.json["intents"][0];
    let (scope, key) = (intent["scope"].as_str().unwrap(), intent["key"].as_str().unwrap());
    let name = twicesafe_ledger::Name::new(scope, key).unwrap();
    let stored = gateway.world.ledger.existing(&name).await.unwrap();
    let ann = twicesafe_ledger::Actor::new("person:ann").unwrap();
    gateway.world.ledger.forget(&ann, &stored, "asked to").await.unwrap();
    let third = gateway.in_work("w", &prompt("hello")).await;
    assert_eq!(third.pinned(), "miss", "{third:?}");
    assert_eq!(gateway.in_work("w", &prompt("hello")).await.body, third.body);
    gateway.model.check_asked(3);
    // A person had it forgotten; that it was asked anew was nobody's decision.
    let figures = gateway.world.get("/v1/stats").await.json["figures"].clone();
    assert_eq!((&figures["forgotten"]["value"], &figures["reset"]["value"]), (&json!(1), &json!(0)));
}

#[tokio::test]
async fn a_paused_provider_is_not_asked() {
    let gateway = Gateway::new().await;
    twicesafe_server::pause(&gateway.world.ledger, twicesafe_server::Pausable::Destination, "ai", "bills")
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_millis(2500)).await;
    gateway.in_work("w", &prompt("hello")).await.refused(503, "TS0093");
    gateway.model.check_asked(0);
}

#[tokio::test]
async fn a_long_answer_does_not_keep_the_circuit_shut() {
    let gateway = Gateway::with("circuit: { failures: 1, pause: 100ms }").await;
    gateway.model.script([Do::Say(500, json!({})), Do::PauseAfter(2)]);
    gateway.in_work("a", &prompt("hello")).await;
    gateway.in_work("b", &prompt("hello")).await.refused(502, "TS0092");
    tokio::time::sleep(Duration::from_millis(150)).await;
    let mut long = gateway.begin(CHAT, &[("twicesafe-work", "c")], &streamed("hello")).await;
    long.until("answer ").await;
    assert_eq!(gateway.in_work("d", &prompt("hello")).await.status, 200);
    gateway.model.go_on();
    assert!(long.end().await.is_whole);
}

#[tokio::test]
async fn s27_who_has_waited_long_enough_is_told_and_does_not_ask_again_at_once() {
    let gateway = Gateway::new().await;
    let other = gateway.another_server("timeout: 300ms").await;
    let first = gateway.under_way().await;
    let told = Hearing::begin(other.address, CHAT, &WORK, &streamed("hello")).await.end().await;
    told.refused(409, "TS0015");
    assert_eq!(told.headers["x-should-retry"], "false");
    gateway.model.go_on();
    assert!(first.end().await.is_whole);
}

#[tokio::test]
async fn what_died_with_its_server_is_left_to_who_asks_next() {
    let gateway = Gateway::new().await;
    // A claim that nobody will ever settle.
    gateway.in_work("w", &prompt("hello")).await;
    let listed = gateway.world.get("/v1/intents?work=w").await;
    let key = listed.json["intents"][0]["key"].as_str().unwrap().to_owned();
    let name = twicesafe_ledger::Name::new("default/ai/pin.chat", &format!("{key}0")).unwrap();
    let mut policy = twicesafe_ledger::Policy::new(twicesafe_ledger::Recovery::Repeat);
    policy.backoff = twicesafe_ledger::Backoff { base: Duration::ZERO, cap: Duration::ZERO };
    let intent = twicesafe_ledger::Intent::named(name.clone()).policy(policy);
    let permit = gateway.world.ledger.claim(&intent).await.unwrap();
    std::mem::forget(permit);
    let store = gateway.world.ledger.store();
    for _ in 0..100 {
        gateway.world.clock.advance(Duration::from_secs(4000));
        tokio::time::sleep(Duration::from_millis(100)).await;
        let stored = gateway.world.ledger.look(&name).await.unwrap().unwrap();
        if stored.record.status == twicesafe_ledger::Status::Retryable && stored.record.due_at.is_none() {
            assert!(store.due(name.scope.as_str(), None, 10).await.unwrap().is_empty());
            return;
        }
    }
    panic!("it is looked at for ever");
}
