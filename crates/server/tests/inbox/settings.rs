//! What is wrong with an inbox is said when the configuration is read.

use twicesafe_server::config;

fn said(yaml: &str) -> Vec<(bool, String)> {
    let configuration = match config::parse(yaml) {
        Ok(configuration) => configuration,
        Err(words) => return vec![(true, words)],
    };
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let advice = runtime.block_on(config::check(&configuration, None));
    advice
        .into_iter()
        .map(|advice| (advice.is_error, format!("{}: {}", advice.about, advice.words)))
        .collect()
}

#[track_caller]
fn check(inbox: &str, is_error: bool, words: &str) {
    let all = said(&format!("inboxes:\n  shop: {inbox}\n"));
    assert!(all.iter().any(|(error, said)| *error == is_error && said.contains(words)), "{inbox}: {all:#?}");
}

#[test]
fn what_is_wrong_is_said() {
    let whole = "provider: stripe, secrets: [x], deliver: 'http://127.0.0.1:1/x'";
    let errors: Vec<_> =
        said(&format!("inboxes:\n  shop: {{ {whole} }}\n")).into_iter().filter(|(error, _)| *error).collect();
    assert_eq!(errors, []);
    for (inbox, words) in [
        ("{ provider: strip, secrets: [x], deliver: 'http://127.0.0.1:1/x' }", "did you mean `stripe`?"),
        ("{ provider: stripe, deliver: 'http://127.0.0.1:1/x' }", "inboxes.shop.secrets: events are signed"),
        ("{ provider: stripe, secrets: [x] }", "inboxes.shop.deliver: it says nowhere"),
        (
            "{ provider: stripe, secrets: [x], deliver: there }",
            "or { to: DESTINATION/PATH } for a destination",
        ),
        (
            "{ provider: stripe, secrets: [x], deliver: crm/contacts }\ndestinations:\n  crm: { base: 'https://crm.example' }",
            "or { to: crm/contacts } for a destination",
        ),
        (
            "{ provider: stripe, secrets: [x], deliver: crm.v2/contacts }\ndestinations:\n  crm.v2: { base: 'https://crm.example' }",
            "or { to: crm.v2/contacts } for a destination",
        ),
        (
            "{ provider: stripe, secrets: ['${NOBODY_SETS_THIS}'], deliver: 'http://127.0.0.1:1/x' }",
            "NOBODY_SETS_THIS is not set",
        ),
        (
            "{ provider: twilio, secrets: [x], url: 'https://a.example/in/shop', deliver: 'http://127.0.0.1:1/x' }",
            "believed to be `event.headers['i-twilio-idempotency-token']`",
        ),
        (
            "{ provider: twilio, secrets: [x], id: event.body.Sid, deliver: 'http://127.0.0.1:1/x' }",
            "inboxes.shop.url: the signature covers the address",
        ),
        (
            "{ provider: standard-webhooks, secrets: ['whsec_!'], deliver: 'http://127.0.0.1:1/x' }",
            "secret 1: it is not written as",
        ),
        (
            "{ provider: discord, secrets: ['abcd'], id: event.body.id, deliver: 'http://127.0.0.1:1/x' }",
            "it is not the sender's public key",
        ),
        (&format!("{{ {whole}, version: event.body.v }}"), "a version is one of something"),
        (
            &format!("{{ {whole}, lane: event.body.id, version_means: snapshot }}"),
            "which of two snapshots is newer: write `version:`",
        ),
        (
            "{ secrets: [x], id: event.body.id, deliver: 'http://127.0.0.1:1/x' }",
            "inboxes.shop.secrets: nothing says how events are signed",
        ),
        (
            "{ provider: { id: event.body.id }, secrets: [x], deliver: 'http://127.0.0.1:1/x' }",
            "inboxes.shop.secrets: nothing says how events are signed",
        ),
        (
            &format!(
                "{{ provider: stripe, secrets: [x], deliver: {{ to: crm/x }}, signing_secret: '{}' }}\ndestinations:\n  crm: {{ base: 'https://crm.example' }}",
                super::TARGET_SECRET
            ),
            "inboxes.shop.signing_secret: a destination gets a call of its own",
        ),
        (
            "{ provider: stripe, secrets: [x], deliver: 'https://user:pw@crm.example/x' }",
            "a user and a password are not taken from an address",
        ),
        ("{ provider: stripe, secrets: [x], deliver: 'localhost:5678/webhook' }", "it has no scheme"),
        ("{ provider: stripe, secrets: [x], deliver: hooks.example.com/x }", "it has no scheme"),
        (&format!("{{ {whole}, hint: 5s }}"), "a hint is about an object"),
        (&format!("{{ {whole}, lane: event.body.id, hint: 5ms }}"), "from 1s to 1d"),
        (&format!("{{ {whole}, id: request.body.id }}"), "there is no `request`; it can use event"),
        (&format!("{{ {whole}, id: now() }}"), "there is no function `now`"),
        (&format!("{{ {whole}, owner: ann }}"), "there is nobody called `ann`"),
        (&format!("{{ {whole}, signing_secret: short }}"), "write `whsec_` and base64"),
        (&format!("{{ {whole}, retries: {{ attempts: 0 }} }}"), "attempts_max must be at least 1"),
        (&format!("{{ {whole}, lain: event.body.id }}"), "did you mean `lane`?"),
        ("{ provider: stripe, secrets: [x], deliver: { to: crm/x } }", "there is no destination `crm`"),
        (
            "{ provider: stripe, secrets: [x], deliver: { url: 'http://127.0.0.1:1', to: crm/x } }",
            "write either `url:` or `to:",
        ),
        (
            "{ provider: { signature: { header: x, algorithm: hmac-sha256, signs: '{timestamp}' } }, secrets: [x] }",
            "the body is not signed",
        ),
        (
            "{ provider: { signature: { header: x, algorithm: hmac-sha256, signs: '{timestamp}.{body}' } }, secrets: [x] }",
            "does not say where that is",
        ),
        (
            "{ provider: { signature: { header: x, algorithm: hmac-sha256, signs: '{bdy}' } }, secrets: [x] }",
            "`{bdy}` is nothing that is signed",
        ),
        (
            "{ provider: { signature: { header: x, algorithm: hmac-sha256 }, id: event.body.id, handshake: { when: event.body.c, answer: event.body.c, unsigned: true } }, secrets: [x], deliver: 'http://127.0.0.1:1/x' }",
            "inboxes.shop.provider.handshake: what is not signed is known by",
        ),
        ("{ provider: { signature: { header: x, algorithm: md5 } }, secrets: [x] }", "unknown variant `md5`"),
    ] {
        check(inbox, true, words);
    }
    let reserved = said("destinations: { in: { base: 'http://127.0.0.1:1' } }\n");
    assert!(
        reserved.iter().any(|(error, words)| *error && words.contains("`in` is where events arrive")),
        "{reserved:?}"
    );
}

#[test]
fn what_is_wrong_is_said_once_and_of_what_it_is() {
    let errors = |inboxes: &str| -> Vec<String> {
        let errors = said(&format!("inboxes:\n  {inboxes}\n")).into_iter().filter(|(error, _)| *error);
        errors.map(|(_, words)| words).collect()
    };
    let unknown = errors("shop: { provider: strip, secrets: [x], deliver: 'http://127.0.0.1:1/x' }");
    assert!(
        matches!(unknown.as_slice(), [only] if only.starts_with("inboxes.shop.provider: ")),
        "{unknown:?}"
    );
    let named = errors("My Shop: { provider: stripe, secrets: [x], deliver: 'http://127.0.0.1:1/x' }");
    assert!(matches!(named.as_slice(), [only] if only.starts_with("inboxes.My Shop: names of")), "{named:?}");
}

#[test]
fn what_is_only_believed_is_told() {
    let whole = "provider: stripe, secrets: [x], deliver: 'http://127.0.0.1:1/x'";
    for words in [
        "believed, not verified: Events come in no order.",
        "if it is so, write `lane: event.body.data.object.id`",
        "the secret stands in the file itself",
        "what is handed over is not signed",
        "no `owner:`",
    ] {
        check(&format!("{{ {whole} }}"), false, words);
    }
    check(&format!("{{ {whole}, retention: 1d }}"), false, "the sender tries for 72 h");
    check(
        "{ provider: gitlab, secrets: [x], id: event.body.id, deliver: 'http://a.example/x' }",
        false,
        "it does not sign",
    );
    check(
        "{ provider: gitlab, secrets: [x], id: event.body.id, deliver: 'http://a.example/x' }",
        false,
        "travel in the clear",
    );
}
