//! What nobody knows of one event, for others that mean the same (S24, S26).

use super::*;
use crate::alerts::Hook;
use crate::gateway::destination::Do;

const RULES: &str = "    intent: event.body.order\n    recovery: person\n    retries: { base: 10ms }\n    in_flight_max: 10ms\n";

/// Two events that mean the same; nobody knows whether the first arrived.
async fn in_doubt(more: &str) -> Inbox {
    let inbox = Inbox::and(RULES, more).await;
    inbox.target.script([Do::ActAndSay(500, json!({}))]);
    inbox.send("paid", &order(1, 1)).await;
    inbox.status("paid", "review").await;
    inbox.send("approved", &order(1, 1)).await;
    let waits = inbox.status("approved", "retryable").await;
    assert_eq!((&waits["same_as"], &waits["attempts"]), (&json!("paid"), &json!(0)), "{waits}");
    inbox
}

async fn find(inbox: &Inbox, id: &str, finding: &str) {
    inbox.pass(Duration::from_secs(1)).await;
    let fence = inbox.world.get(&format!("/v1/inbox/event?inbox=shop&id={id}")).await.json["fence"].clone();
    let found = json!({ "scope": "default/in/shop", "key": id, "fence": fence, "finding": finding, "reason": "looked" });
    let told = inbox.world.post("/v1/resolve", &found).await;
    assert_eq!(told.status, 200, "{told:?}");
}

async fn replay(inbox: &Inbox, id: &str) -> u16 {
    let about = json!({ "inbox": "shop", "id": id, "reason": "asked for" });
    inbox.world.post("/v1/inbox/replay", &about).await.status
}

#[tokio::test]
async fn s26_a_finding_about_an_event_holds_for_what_it_means() {
    let inbox = in_doubt("").await;
    find(&inbox, "paid", "happened").await;
    inbox.status("paid", "done").await;
    // Those that come later, those that wait, and those that somebody wants again.
    inbox.send("shipped", &order(1, 1)).await;
    assert_eq!(inbox.status("shipped", "done").await["same_as"], "paid");
    assert_eq!(replay(&inbox, "approved").await, 200);
    inbox.status("approved", "done").await;
    inbox.requests(1).await;
    inbox.world.stop().await;
}

#[tokio::test]
async fn s26_who_waits_for_a_finding_hears_of_it() {
    let inbox = in_doubt("").await;
    find(&inbox, "paid", "happened").await;
    inbox.pass(Duration::from_secs(400)).await;
    inbox.status("approved", "done").await;
    inbox.requests(1).await;
    inbox.world.stop().await;
}

#[tokio::test]
async fn s26_what_did_not_happen_is_handed_over_once() {
    let inbox = in_doubt("").await;
    find(&inbox, "paid", "did-not-happen").await;
    inbox.status("paid", "done").await;
    inbox.pass(Duration::from_secs(400)).await;
    inbox.status("approved", "done").await;
    inbox.requests(2).await;
    inbox.world.stop().await;
}

#[tokio::test]
async fn s26_what_was_given_up_is_given_up_for_all_until_somebody_wants_it() {
    let inbox = in_doubt("").await;
    // Whether it happened is to be said of the one that may have arrived.
    assert_eq!(replay(&inbox, "approved").await, 409);
    find(&inbox, "paid", "give-up").await;
    inbox.status("paid", "failed").await;
    inbox.pass(Duration::from_secs(400)).await;
    inbox.status("approved", "failed").await;
    inbox.requests(1).await;
    assert_eq!(replay(&inbox, "approved").await, 200);
    inbox.status("approved", "done").await;
    inbox.requests(2).await;
    inbox.world.stop().await;
}

#[tokio::test]
async fn s17_after_408_and_any_5xx_nobody_knows_and_everything_else_was_not_taken() {
    let cases = [
        (408, "review"),
        (500, "review"),
        (501, "review"),
        (502, "review"),
        (503, "review"),
        (504, "review"),
        (429, "retryable"),
        (404, "retryable"),
        (401, "retryable"),
        (302, "retryable"),
    ];
    let rules = "    recovery: person\n    retries: { base: 10h, cap: 10h }\n    circuit: { failures: 0 }\n";
    let inbox = Inbox::with(rules).await;
    for (number, (status, stands)) in cases.into_iter().enumerate() {
        inbox.target.script([Do::Say(status, json!({}))]);
        let id = format!("evt_{status}");
        inbox.send(&id, &order(1, 1)).await;
        let name = twicesafe_ledger::Name::new("default/in/shop", &id).unwrap();
        inbox.requests(number + 1).await;
        inbox.status(&id, stands).await;
        let stored = inbox.world.ledger.existing(&name).await.unwrap();
        assert_eq!(stored.record.doubt, stands == "review", "{status}");
    }
    inbox.world.stop().await;
}

#[tokio::test]
async fn s9_what_waited_for_another_that_means_the_same_beyond_its_lease_is_not_handed_over() {
    let rules = "    intent: event.body.order\n    lease: 600ms\n    retries: { base: 10h, cap: 10h }\n";
    let inbox = Inbox::with(rules).await;
    // What the event means is under way by somebody else, under a lease that holds for long.
    let key = twicesafe_ledger::Key::composed("intent", &[twicesafe_ledger::KeyPart::Text("1")]).unwrap();
    let meant = twicesafe_ledger::Intent::new("default/intent/in/shop", key.as_str()).unwrap();
    let name = meant.name().clone();
    let ledger = inbox.world.ledger.clone();
    let hour = Duration::from_secs(3600);
    let policy = twicesafe_ledger::Policy { lease: hour, act_max: hour, ..Default::default() };
    let claimed = ledger.claim(&meant.input("1").policy(policy)).await.unwrap();
    let twicesafe_ledger::Claimed::Proceed(other) = claimed else { panic!("nobody else has it") };
    inbox.send("evt_1", &order(1, 1)).await;
    inbox.status("evt_1", "pending").await;
    // The event's own lease lapses and is not renewed any more.
    inbox.pass(Duration::from_secs(1)).await;
    tokio::time::sleep(Duration::from_millis(900)).await;
    let left = twicesafe_ledger::Trouble::not_sent("left to the next one").passed_on();
    other.settle(Err(left)).await.unwrap();
    // The event gets its turn, and only its own permit is over.
    let started = std::time::Instant::now();
    loop {
        let record = &ledger.existing(&name).await.unwrap().record;
        if record.attempt.is_none() && record.tries > 0 {
            break;
        }
        assert!(started.elapsed() < SOON, "it never got its turn: {record:#?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    inbox.requests(0).await;
    inbox.world.stop().await;
}

#[tokio::test]
async fn people_are_told_once_of_what_several_events_mean_and_by_a_name_they_know() {
    let hook = Hook::start().await;
    let people =
        format!("people:\n  ann: {{ alert: {{ webhook: \"{}\" }}, rights: [review] }}\n", hook.url());
    let inbox = in_doubt(&people).await;
    let told = hook.next().await;
    assert_eq!(told["intent"]["key"], "paid", "{told}");
    // Looks come by every five seconds.
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert!(hook.is_silent(), "nobody is told of the other one");
    inbox.world.stop().await;
}

#[tokio::test]
async fn a_dead_letter_says_why_and_what_to_do() {
    let hook = Hook::start().await;
    let people = format!("people:\n  ann: {{ alert: {{ slack: \"{}\" }}, rights: [review] }}\n", hook.url());
    for (answer, why) in [(404, "the target answered 404"), (500, "the target answered 500")] {
        let inbox = Inbox::and("    retries: { attempts: 1, base: 10ms }\n", &people).await;
        inbox.target.script([Do::Say(answer, json!({}))]);
        inbox.send("evt_1", &order(1, 1)).await;
        let told = hook.next().await["text"].as_str().unwrap().to_owned();
        for words in
            [why, "twicesafe inbox show shop 'evt_1'", "twicesafe inbox replay shop 'evt_1' --reason"]
        {
            assert!(told.contains(words), "{told}");
        }
        inbox.world.stop().await;
    }
}

#[tokio::test]
async fn people_are_told_of_what_was_left_behind_by_an_event_that_was_decided_about() {
    let hook = Hook::start().await;
    let people =
        format!("people:\n  ann: {{ alert: {{ webhook: \"{}\" }}, rights: [review] }}\n", hook.url());
    let inbox = in_doubt(&people).await;
    assert_eq!(hook.next().await["intent"]["key"], "paid");
    // By somebody who knows nothing of what events mean.
    inbox.pass(Duration::from_secs(1)).await;
    let name = twicesafe_ledger::Name::new("default/in/shop", "paid").unwrap();
    let seen = inbox.world.ledger.existing(&name).await.unwrap();
    let who = twicesafe_ledger::Actor::new("ann").unwrap();
    let resolution = twicesafe_ledger::Resolution::GiveUp;
    inbox.world.ledger.resolve(&who, &seen, resolution, "looked").await.unwrap();
    assert_eq!(hook.next().await["intent"]["scope"], "default/intent/in/shop");
    inbox.world.stop().await;
}

#[tokio::test]
async fn s15_where_a_review_lets_others_pass_so_does_what_means_the_same() {
    let rules = RULES.replace("event.body.order", "event.body.version");
    let rules = format!("{rules}    lane: event.body.order\n    on_review: pass\n");
    let inbox = Inbox::with(&rules).await;
    inbox.target.script([Do::ActAndSay(500, json!({}))]);
    inbox.send("paid", &order(1, 1)).await;
    inbox.status("paid", "review").await;
    inbox.send("approved", &order(1, 1)).await;
    inbox.status("approved", "review").await;
    inbox.send("shipped", &order(1, 2)).await;
    inbox.status("shipped", "done").await;
    inbox.requests(2).await;
    inbox.world.stop().await;
}
