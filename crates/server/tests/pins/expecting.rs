//! What an AI wrote is held against what is expected of it, and kept with what came of that, before anybody uses it (S35).

use super::*;

const ROUTE: &str = "routes:
  - match: POST /v1/chat/completions
    action: classify
    expect:
      schema: { type: object, required: [total], properties: { total: { type: number } } }
      rule: answer.output.total >= 0.0";

#[tokio::test]
async fn s35_an_answer_that_is_not_as_expected_is_an_error_and_stays_one() {
    let gateway = Gateway::with(ROUTE).await;
    gateway.model.script([Do::Write("{\"total\": \"ten\"}")]);
    for _ in 0..2 {
        let told = gateway.in_work("w", &prompt("sum")).await;
        let problem = told.refused(422, "TS0096");
        assert!(
            !problem["message"].as_str().unwrap().contains("\"ten\""),
            "nothing of it is shown: {problem}"
        );
        assert_eq!(
            (problem["path"].as_str(), problem["answers"].as_u64()),
            (Some("/total"), Some(1)),
            "{problem}"
        );
    }
    gateway.model.check_asked(1);
    gateway.model.script([Do::Write("{\"total\": 10}")]);
    let other = [("twicesafe-work", "w"), ("twicesafe-sample", "2")];
    let told = gateway.ask(CHAT, &other, &prompt("sum")).await;
    assert_eq!((told.status, told.pinned()), (200, "miss"), "{told:?}");
    assert!(told.headers.keys().all(|name| name != "twicesafe-evaluation"));
    // It is on record beside the answer.
    let listed = gateway.world.get("/v1/intents?work=w").await;
    let mut evaluations = Vec::new();
    for intent in listed.json["intents"].as_array().unwrap() {
        let name =
            twicesafe_ledger::Name::new(intent["scope"].as_str().unwrap(), intent["key"].as_str().unwrap());
        let stored = gateway.world.ledger.existing(&name.unwrap()).await.unwrap();
        let head = stored.record.answer.as_ref().unwrap().head.clone();
        let line = head.lines().find_map(|line| line.strip_prefix("twicesafe-evaluation: "));
        evaluations.push(line.unwrap().split(' ').nth(1).unwrap().to_owned());
    }
    evaluations.sort();
    assert_eq!(evaluations, ["invalid", "valid"]);
}

#[tokio::test]
async fn s35_a_rule_can_say_what_a_schema_cannot() {
    let gateway = Gateway::with(ROUTE).await;
    gateway.model.script([Do::Write("{\"total\": -1.0}")]);
    let problem = gateway.in_work("w", &prompt("sum")).await.refused(422, "TS0096");
    assert!(
        problem["message"].as_str().unwrap().contains("`answer.output.total >= 0.0` does not hold"),
        "{problem}"
    );
}

#[tokio::test]
async fn s35_other_samples_are_asked_for_within_bounds_and_every_one_is_pinned() {
    let gateway = Gateway::with(&format!("{ROUTE}\n      samples: 3")).await;
    gateway.model.script([Do::Write("no"), Do::Write("{}"), Do::Write("{\"total\": 3}")]);
    let first = gateway.in_work("w", &prompt("sum")).await;
    assert_eq!(first.status, 200, "{first:?}");
    let again = gateway.in_work("w", &prompt("sum")).await;
    assert_eq!((again.pinned(), &again.body), ("hit", &first.body));
    gateway.model.check_asked(3);
    gateway.model.script([Do::Write("no"), Do::Write("no"), Do::Write("no"), Do::Write("{\"total\": 3}")]);
    for _ in 0..2 {
        let problem = gateway.in_work("v", &prompt("sum")).await.refused(422, "TS0096");
        assert_eq!(problem["answers"], 3);
    }
    gateway.model.check_asked(6);
}

#[tokio::test]
async fn s35_nothing_of_a_stream_is_shown_before_it_is_known_to_be_as_expected() {
    let gateway = Gateway::with(ROUTE).await;
    gateway.model.script([Do::Write("{\"total\": 1}"), Do::Write("nothing of the kind")]);
    let told = gateway.in_work("w", &streamed("sum")).await;
    assert_eq!((told.status, told.pinned(), told.is_whole), (200, "miss", true), "{told:?}");
    assert!(told.body.ends_with("[DONE]\n\n"));
    gateway.in_work("v", &streamed("sum")).await.refused(422, "TS0096");
    // Nor is what never came to its end, or ran into its limit.
    gateway.model.script([Do::CutAfter(2), Do::End("length")]);
    gateway.in_work("u", &streamed("sum")).await.refused(502, "TS0092");
    gateway.in_work("u", &streamed("sum")).await.refused(422, "TS0096");
    assert_eq!(gateway.model.asked().len(), 4);
}

#[tokio::test]
async fn s35_a_caller_can_bring_a_schema_of_its_own() {
    let gateway = Gateway::new().await;
    let expecting = |schema: &'static str| [("twicesafe-work", "w"), ("twicesafe-expect", schema)];
    gateway.model.script([Do::Write("{\"city\": \"Bern\"}")]);
    let plain = gateway.in_work("w", &prompt("where")).await;
    // The same answer, held against different things.
    let fits = gateway.ask(CHAT, &expecting("{\"required\":[\"city\"]}"), &prompt("where")).await;
    assert_eq!((fits.pinned(), &fits.body), ("hit", &plain.body));
    let problem = gateway.ask(CHAT, &expecting("{\"required\":[\"street\"]}"), &prompt("where")).await;
    problem.refused(422, "TS0096");
    gateway.model.check_asked(1);
}

#[tokio::test]
async fn s35_who_expects_something_does_not_follow_a_flight_that_shows_everything() {
    let gateway = Gateway::new().await;
    let first = gateway.under_way().await;
    let expecting = [WORK[0], ("twicesafe-expect", "{\"type\":\"object\"}")];
    let second = gateway.begin(CHAT, &expecting, &streamed("hello")).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    gateway.model.go_on();
    assert!(first.end().await.is_whole);
    second.end().await.refused(422, "TS0096");
    gateway.model.check_asked(1);
}

#[tokio::test]
async fn s35_nobody_is_told_of_what_another_expected() {
    let gateway = Gateway::new().await;
    gateway.model.script([Do::End("length"), Do::End("length")]);
    let expecting = [("twicesafe-work", "w"), ("twicesafe-expect", "{\"type\":\"string\"}")];
    let plain = [("twicesafe-work", "w")];
    let body = streamed("hello");
    let both =
        futures_util::future::join(gateway.ask(CHAT, &expecting, &body), gateway.ask(CHAT, &plain, &body));
    let (expected, other) = both.await;
    expected.refused(422, "TS0096");
    assert_eq!((other.status, other.is_whole), (200, true), "{other:?}");
}

#[tokio::test]
async fn s35_what_cannot_be_held_against_anything_is_refused() {
    let gateway = Gateway::with(ROUTE).await;
    let mut stored = prompt("sum");
    stored["store"] = true.into();
    gateway.in_work("w", &stored).await.refused(400, "TS0070");
    gateway.ask(CHAT, &[], &prompt("sum")).await.refused(400, "TS0070");
    gateway.model.check_asked(0);
}
