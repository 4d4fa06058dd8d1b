//! Objects: one event at a time, in the order of versions; one poisoned object does not hold up the others (S15, S39).

use super::*;
use crate::gateway::destination::Do;

const LANES: &str = "    lane: event.body.order\n    version: event.body.version\n    retries: { base: 10ms }\n    in_flight_max: 100ms\n";

async fn paused(rules: &str) -> Inbox {
    let inbox = Inbox::with(rules).await;
    inbox.world.post("/v1/inbox/pause", &json!({ "inbox": "shop" })).await;
    inbox
}

async fn resume(inbox: &Inbox) {
    inbox.world.post("/v1/inbox/resume", &json!({ "inbox": "shop" })).await;
}

#[tokio::test]
async fn s15_what_waits_is_handed_over_in_the_order_of_versions() {
    let inbox = paused(LANES).await;
    for version in [5, 2, 9, 1, 7, 3] {
        inbox.send(&format!("evt_{version}"), &order(1, version)).await;
    }
    resume(&inbox).await;
    assert_eq!(versions(&inbox.requests(6).await), [1, 2, 3, 5, 7, 9]);
    // One that comes when a newer one is there is handed over, and says so.
    inbox.send("evt_4", &order(1, 4)).await;
    let requests = inbox.requests(7).await;
    assert_eq!(requests[6].header("twicesafe-late"), Some("true"));
    assert_eq!(requests[5].header("twicesafe-late"), None);
    inbox.world.stop().await;
}

#[tokio::test]
async fn s15_the_next_one_waits_while_the_first_is_tried_again() {
    let inbox = paused(LANES).await;
    // Refused, away, unknown: none of them lets the next one pass.
    inbox.target.script([Do::Say(404, json!({})), Do::Say(429, json!({})), Do::Say(500, json!({}))]);
    for version in 1..=4 {
        inbox.send(&format!("evt_{version}"), &order(1, version)).await;
    }
    resume(&inbox).await;
    let started = std::time::Instant::now();
    while inbox.target.requests().len() < 7 && started.elapsed() < SOON {
        inbox.pass(Duration::from_secs(1)).await;
        inbox.world.ledger.sweep().await.unwrap();
    }
    assert_eq!(versions(&inbox.requests(7).await), [1, 1, 1, 1, 2, 3, 4]);
    inbox.world.stop().await;
}

#[tokio::test]
async fn s15_an_older_snapshot_is_superseded_and_seen_to_be() {
    let inbox = Inbox::with(&format!("{LANES}    version_means: snapshot\n")).await;
    inbox.send("evt_5", &order(1, 5)).await;
    inbox.status("evt_5", "done").await;
    inbox.send("evt_3", &order(1, 3)).await;
    inbox.status("evt_3", "superseded").await;
    inbox.send("evt_6", &order(1, 6)).await;
    assert_eq!(versions(&inbox.requests(2).await), [5, 6]);
    let metrics = inbox.world.get("/metrics").await.text;
    assert!(metrics.contains(r#"{inbox="shop",result="superseded"} 1"#), "{metrics}");
    assert_eq!(inbox.send("evt_3", &order(1, 3)).await.status, 200);
    inbox.requests(2).await;
    inbox.world.stop().await;
}

#[tokio::test]
async fn s15_equal_snapshots_are_handed_over_as_they_came() {
    for version in [Some(1), None] {
        let inbox = Inbox::with(&format!("{LANES}    version_means: snapshot\n")).await;
        let event = |part: &str| json!({ "order": 1, "version": version, "part": part });
        inbox.target.script([Do::Say(429, json!({}))]);
        inbox.send("evt_1", &event("first")).await;
        inbox.status("evt_1", "retryable").await;
        inbox.send("evt_2", &event("second")).await;
        let started = std::time::Instant::now();
        while inbox.target.requests().len() < 3 && started.elapsed() < SOON {
            inbox.pass(Duration::from_secs(1)).await;
            inbox.world.ledger.sweep().await.unwrap();
        }
        let parts: Vec<_> = inbox.requests(3).await.iter().map(|got| got.body["part"].clone()).collect();
        assert_eq!(parts, ["first", "first", "second"]);
        inbox.world.stop().await;
    }
}

#[tokio::test]
async fn s15_a_newer_snapshot_does_not_wait_for_older_ones() {
    let inbox = Inbox::with(&format!("{LANES}    version_means: snapshot\n")).await;
    inbox.target.script([Do::SayWith(429, "retry-after", "600")]);
    inbox.send("evt_1", &order(1, 1)).await;
    inbox.status("evt_1", "retryable").await;
    inbox.send("evt_2", &order(1, 2)).await;
    assert_eq!(versions(&inbox.requests(2).await), [1, 2]);
    inbox.pass(Duration::from_secs(700)).await;
    inbox.status("evt_1", "superseded").await;
    inbox.world.stop().await;
}

#[tokio::test]
async fn s39_one_poisoned_object_does_not_hold_up_the_others() {
    let inbox =
        paused(&format!("{LANES}    limits: {{ concurrency: 1 }}\n    circuit: {{ failures: 0 }}\n")).await;
    inbox.target.script([Do::Say(500, json!({}))]);
    inbox.send("poison", &order(1, 1)).await;
    for version in 2..=5 {
        inbox.send(&format!("behind_{version}"), &order(1, version)).await;
    }
    for id in 2..=20 {
        inbox.send(&format!("evt_{id}"), &order(id, 1)).await;
    }
    resume(&inbox).await;
    let requests = inbox.requests(20).await;
    assert!(requests.iter().skip(1).all(|request| request.body["order"] != 1), "{requests:#?}");
    inbox.status("behind_2", "ready").await;
    let started = std::time::Instant::now();
    while inbox.target.requests().len() < 25 && started.elapsed() < SOON {
        inbox.pass(Duration::from_secs(1)).await;
        inbox.world.ledger.sweep().await.unwrap();
    }
    assert_eq!(versions(&inbox.requests(25).await[20..]), [1, 2, 3, 4, 5]);
    inbox.world.stop().await;
}

/// Sends an event and says how long it took until the target had it.
async fn handed_over_after(inbox: &Inbox, object: u32) -> Duration {
    let started = std::time::Instant::now();
    inbox.send(&format!("good_{object}"), &order(object, 1)).await;
    let is_there = || inbox.target.effects().iter().any(|effect| effect.body["order"] == object);
    while !is_there() && started.elapsed() < Duration::from_secs(60) {
        inbox.pass(Duration::from_millis(50)).await;
    }
    started.elapsed()
}

#[tokio::test]
async fn s39_one_poisoned_object_does_not_keep_the_target_alone() {
    let rules = "    lane: event.body.order\n    retries: { attempts: 1000, base: 10ms, cap: 50ms }\n    in_flight_max: 10ms\n";
    let inbox = Inbox::with(&format!("{rules}    circuit: {{ failures: 3, pause: 5s }}\n")).await;
    inbox.target.fail(|request| request.body["order"] == 1);
    inbox.send("poison", &order(1, 1)).await;
    let started = std::time::Instant::now();
    while inbox.target.requests().len() < 5 && started.elapsed() < SOON {
        inbox.pass(Duration::from_millis(100)).await;
    }
    assert!(inbox.target.requests().len() >= 5, "it is tried again and again");
    for object in 2..5 {
        let took = handed_over_after(&inbox, object).await;
        assert!(took < Duration::from_secs(4), "{took:?}");
    }
    inbox.world.stop().await;
}

#[tokio::test]
async fn s39_an_object_that_did_not_fail_is_the_first_after_a_pause() {
    let rules = "    lane: event.body.order\n    retries: { attempts: 1000, base: 10ms, cap: 50ms }\n    in_flight_max: 10ms\n";
    let inbox = Inbox::with(&format!("{rules}    circuit: {{ failures: 3, pause: 3s }}\n")).await;
    inbox.target.fail(|request| request.body["order"].as_u64() < Some(100));
    for object in 1..=40 {
        inbox.send(&format!("poison_{object}"), &order(object, 1)).await;
        inbox.world.clock.advance(Duration::from_millis(20));
    }
    let first = handed_over_after(&inbox, 100).await;
    assert!(first < Duration::from_secs(30), "a few pauses, in which the poisoned ones are found: {first:?}");
    // They are known now.
    tokio::time::sleep(Duration::from_secs(4)).await;
    for object in 101..105 {
        let took = handed_over_after(&inbox, object).await;
        assert!(took < Duration::from_millis(2500), "{took:?}");
    }
    inbox.world.stop().await;
}

#[tokio::test]
async fn s15_a_dead_letter_closes_its_object_or_lets_the_others_pass() {
    for (on_review, passes) in [("block", false), ("pass", true)] {
        for answer in [404, 500] {
            let rules = format!("{LANES}    on_review: {on_review}\n").replace("base: 10ms", "attempts: 1");
            let inbox = paused(&rules).await;
            inbox.target.script([Do::Say(answer, json!({}))]);
            inbox.send("evt_1", &order(1, 1)).await;
            inbox.send("evt_2", &order(1, 2)).await;
            resume(&inbox).await;
            inbox.requests(if passes { 2 } else { 1 }).await;
            if !passes {
                // Somebody sets it aside, and the others go on.
                let park = json!({ "inbox": "shop", "id": "evt_1", "reason": "broken" });
                assert_eq!(inbox.world.post("/v1/inbox/park", &park).await.status, 200);
                inbox.pass(Duration::from_secs(1)).await;
                inbox.world.ledger.sweep().await.unwrap();
                assert_eq!(versions(&inbox.requests(2).await), [1, 2]);
            }
            inbox.world.stop().await;
        }
    }
}

#[tokio::test]
async fn s15_times_are_versions_in_the_forms_that_senders_have() {
    let inbox = paused(LANES).await;
    let versions = [
        "Sun, 04 Jan 2026 00:00:00 GMT",
        "2026-01-03 00:00:00 UTC",
        "1767225600.000300",
        "2026-01-02",
        "2026-01-05T00:00:00",
        "1767225600.000200",
    ];
    for (number, version) in versions.iter().enumerate() {
        inbox.send(&format!("evt_{number}"), &json!({ "order": 1, "version": version })).await;
    }
    resume(&inbox).await;
    let got: Vec<String> =
        inbox.requests(6).await.iter().map(|got| got.body["version"].as_str().unwrap().into()).collect();
    assert_eq!(got, [5, 2, 3, 1, 0, 4].map(|number: usize| versions[number]));
    inbox.world.stop().await;
}

#[tokio::test]
async fn an_event_without_its_object_is_handed_over_all_the_same() {
    let inbox = Inbox::with(LANES).await;
    assert_eq!(inbox.send("evt_1", &json!({ "other": 1 })).await.status, 200);
    assert_eq!(inbox.send("evt_2", &json!({ "order": 1 })).await.status, 200);
    assert_eq!(inbox.send("evt_3", &json!({ "order": 1, "version": "soon" })).await.status, 200);
    for (id, without) in [("evt_1", "lane"), ("evt_2", "version"), ("evt_3", "version")] {
        let shown = inbox.status(id, "done").await;
        assert!(
            shown["headers"].as_array().unwrap().contains(&json!(["twicesafe-without", without])),
            "{shown}"
        );
    }
    // An object is known by whatever it is called.
    for (version, id) in [(1, "long_1"), (2, "long_2")] {
        let object = "ö\n".repeat(200);
        assert_eq!(inbox.send(id, &json!({ "order": object, "version": version })).await.status, 200);
    }
    assert_eq!(versions(&inbox.requests(5).await[3..]), [1, 2]);
    inbox.world.stop().await;
}
