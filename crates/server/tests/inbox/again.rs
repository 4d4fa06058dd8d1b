//! Events that somebody who has read them sends again under another id.

use twicesafe_server::config;

use super::*;

const GITHUB_SECRET: &str = "0123456789abcdef";

async fn github(rules: &str) -> Inbox {
    Inbox::with(&format!("    provider: github\n    secrets: [\"{GITHUB_SECRET}\"]\n{rules}")).await
}

/// Sends what GitHub would, under that id.
async fn send(inbox: &Inbox, id: &str, body: &Value) -> Heard {
    let body = body.to_string();
    let key = hmac::Key::new(hmac::HMAC_SHA256, GITHUB_SECRET.as_bytes());
    let tag = hmac::sign(&key, body.as_bytes());
    let hex: String = tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    let headers = [
        ("content-type", "application/json"),
        ("x-github-delivery", id),
        ("x-github-event", "push"),
        ("x-hub-signature-256", &format!("sha256={hex}")),
    ];
    inbox.world.send("POST", "/in/shop", &headers, body.as_bytes()).await
}

#[tokio::test]
async fn s25_the_same_body_under_another_id_is_known() {
    let inbox = github("").await;
    let body = json!({ "ref": "main", "after": "abc" });
    assert_eq!(send(&inbox, "one", &body).await.json, json!({ "accepted": 1, "known": 0 }));
    for id in ["two", "three", "one"] {
        let heard = send(&inbox, id, &body).await;
        assert_eq!((heard.status, &heard.json), (200, &json!({ "accepted": 0, "known": 1 })), "{id}");
    }
    let other = json!({ "ref": "main", "after": "def" });
    assert_eq!(send(&inbox, "four", &other).await.json["accepted"], 1);
    inbox.requests(2).await;
}

#[tokio::test]
async fn s25_an_operator_can_say_that_it_is_another_event() {
    let inbox = github("    same_body: new").await;
    let body = json!({ "ref": "main", "after": "abc" });
    for id in ["one", "two"] {
        assert_eq!(send(&inbox, id, &body).await.json, json!({ "accepted": 1, "known": 0 }), "{id}");
    }
    inbox.requests(2).await;
}

#[test]
fn s25_inboxes_that_share_a_secret_are_told_of() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let said = |second: &str| {
        let inbox = |secret: &str| {
            format!("{{ provider: github, secrets: [{secret}], deliver: 'http://127.0.0.1:1/x' }}")
        };
        let yaml = format!("inboxes:\n  one: {}\n  two: {}\n", inbox("first-secret"), inbox(second));
        let advice = runtime.block_on(config::check(&config::parse(&yaml).unwrap(), None));
        advice.into_iter().filter(|advice| advice.words.contains("has the same secret")).count()
    };
    assert_eq!(said("first-secret"), 2);
    assert_eq!(said("second-secret"), 0);
}
