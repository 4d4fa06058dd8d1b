//! What an operator writes about them.

use super::*;

async fn says(yaml: &str) -> String {
    match twicesafe_server::config::parse(&format!("listen: 127.0.0.1:0\n{yaml}")) {
        Err(error) => error.to_string(),
        Ok(configuration) => {
            let advice = twicesafe_server::config::check(&configuration, None).await;
            advice
                .iter()
                .map(|one| {
                    format!(
                        "{} {}: {}\n",
                        if one.is_error { "error" } else { "warning" },
                        one.about,
                        one.words
                    )
                })
                .collect()
        }
    }
}

#[tokio::test]
async fn wrong_settings_are_refused_with_their_place() {
    let ai = |more: &str| format!("destinations:\n  ai:\n    use: openai\n    auth: none\n    {more}\n");
    for (yaml, said) in [
        (ai("pins: { window: 0s }"), "error destinations.ai.pins.window: a window has some length"),
        (
            ai("pins: { prices: { m: { input: -1 } } }"),
            "error destinations.ai.pins.prices.m: a price is a number",
        ),
        (ai("pins: { windows: 1s }"), "unknown field `windows`"),
        (
            ai("approve: true"),
            "error destinations.ai.approve: calls of AI models are pinned by their whole request",
        ),
        (ai("mode: observe"), "error destinations.ai.mode: calls of AI models"),
        (
            ai("routes: [ { match: POST /v1/chat/completions, action: a, key: request.body.id } ]"),
            "error destinations.ai.routes.a.key: calls of AI models",
        ),
        (
            ai("routes: [ { match: POST /v1/responses, action: a, expect: { schema: { type: 7 } } } ]"),
            "error destinations.ai.routes.a.expect: the schema is not one",
        ),
        (
            ai("expect: { rule: \"size(answer.outputs) > 0\" }"),
            "the answer has no `outputs`; it has status, headers, body, output",
        ),
        (
            ai("expect: { samples: 3 }"),
            "error destinations.ai.expect: it names neither a `schema:` nor a `rule:`",
        ),
        (
            "destinations:\n  crm: { base: \"https://a.example.com\", auth: none, pins: { window: 1m } }\n"
                .to_owned(),
            "error destinations.crm.pins: only answers of AI models are pinned; say `kind: llm`",
        ),
    ] {
        let found = says(&yaml).await;
        assert!(found.contains(said), "{yaml}\n{said}\n{found}");
    }
    for (yaml, said) in [
        (
            ai("routes: [ { match: POST /v1/responses, action: a, retries: { attempts: 2 } } ]"),
            "error destinations.ai.routes.a.retries: calls of AI models",
        ),
        (
            ai("routes: [ { match: POST /v1/files, action: a, key: request.body.id, expect: { rule: \"true\" } } ]"),
            "error destinations.ai.routes.a.expect: only whole answers of AI models",
        ),
        (
            "destinations:\n  crm: { base: \"https://a.example.com\", auth: none, expect: { rule: \"true\" } }\n".to_owned(),
            "error destinations.crm.expect: only whole answers of AI models",
        ),
    ] {
        let found = says(&yaml).await;
        assert!(found.contains(said), "{yaml}\n{said}\n{found}");
    }
    assert!(says(&ai("limits: {}")).await.contains("warning destinations.ai.pins: calls that name no work"));
    assert!(!says(&ai("pins: { window: 1m }")).await.contains("destinations.ai"));
    let deletion = ai(
        "routes: [ { match: \"DELETE /v1/files/{id}\", action: d, key: request.params.id, approve: true } ]",
    );
    assert!(!says(&deletion).await.contains("error"), "{}", says(&deletion).await);
    // What is not for prompts is guarded like any other write.
    let files =
        ai("routes: [ { match: POST /v1/files, action: file.put, key: request.body.id, approve: true } ]");
    assert!(!says(&files).await.contains("error"), "{}", says(&files).await);
}

#[tokio::test]
async fn any_compatible_base_will_do() {
    let model = Model::new().await;
    let yaml = format!(
        "destinations:\n  local:\n    kind: llm\n    base: http://{}/openai\n    auth: none\n",
        model.address
    );
    let world = World::configured(&yaml).await;
    let path = "/to/local/@w/deployments/x/chat/completions?api-version=1";
    let one = Hearing::begin(world.address, path, &[], &prompt("a")).await.end().await;
    let other = Hearing::begin(world.address, path, &[], &prompt("a")).await.end().await;
    assert_eq!((one.pinned(), other.pinned(), &one.body), ("miss", "hit", &other.body));
    assert!(!other.headers.contains_key("twicesafe-saved-usd"), "nobody knows its price");
    assert_eq!(model.asked()[0].line, "POST /openai/deployments/x/chat/completions?api-version=1 HTTP/1.1");
}

#[tokio::test]
async fn a_token_reaches_only_its_own_pins() {
    use twicesafe_server::Right;
    let gateway = Gateway::with("tenants: [acme, umbrella]").await;
    let one = gateway.world.token_for("one", &[Right::Act], Some("acme"), &[], None).await;
    let other = gateway.world.token_for("other", &[Right::Act], Some("umbrella"), &[], None).await;
    let ask = async |token: &str| {
        gateway.ask(CHAT, &[("twicesafe-work", "w"), ("twicesafe-token", token)], &prompt("hello")).await
    };
    assert_eq!(
        (ask(&one).await.pinned(), ask(&other).await.pinned(), ask(&one).await.pinned()),
        ("miss", "miss", "hit")
    );
    let reader = gateway.world.token_for("reader", &[Right::Review], Some("acme"), &[], None).await;
    assert_eq!(ask(&reader).await.status, 403);
    let confined =
        gateway.world.token_for("confined", &[Right::Act], Some("acme"), &["acme/other/"], None).await;
    assert_eq!(ask(&confined).await.status, 403);
    let within = gateway.world.token_for("within", &[Right::Act], Some("acme"), &["acme/ai/"], None).await;
    // It reaches them, but its works are those of its scopes (S15).
    assert_eq!((ask(&within).await.pinned(), ask(&within).await.pinned()), ("miss", "hit"));
    gateway.model.check_asked(3);
}

#[tokio::test]
async fn s22_a_provider_that_shows_our_key_shows_it_to_nobody() {
    let gateway = Gateway::with("auth: { bearer: 'sk_live_very-secret' }").await;
    gateway.model.script([
        Do::Write("your key is sk_live_very-secret"),
        Do::Say(400, json!({ "error": "sk_live_very-secret" })),
    ]);
    for (work, status) in [("one", 200), ("one", 200), ("two", 400)] {
        let told = gateway.in_work(work, &prompt("hello")).await;
        assert_eq!(told.status, status, "{}", told.body);
        assert!(
            told.body.contains("*******************") && !told.body.contains("very-secret"),
            "{}",
            told.body
        );
    }
}
