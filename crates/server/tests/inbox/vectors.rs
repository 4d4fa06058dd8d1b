//! Signatures made, or found right, by the vendors' own libraries (`scripts/vectors`): ours agrees with each, and refuses each
//! with one flipped bit of body, signature or time.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use twicesafe_ledger::{ManualClock, Open};

use super::*;

#[derive(Deserialize)]
struct Vector {
    provider: String,
    /// The library that signed it, or found it right; `None`: made as the vendor's documentation says.
    sdk: Option<String>,
    headers: BTreeMap<String, String>,
    secret: String,
    body: String,
    url: String,
    query: String,
    now_ms: i64,
}

impl Vector {
    async fn world(&self) -> World {
        let clock = Arc::new(ManualClock::at(self.now_ms));
        let ledger = Open::at("memory:").clock(clock.clone()).open().await.unwrap();
        let url = if self.url.is_empty() { String::new() } else { format!("    url: {}\n", self.url) };
        let yaml = format!(
            "inboxes:\n  shop:\n    provider: {}\n    secrets: ['{}']\n    id: \"'one'\"\n    deliver: http://127.0.0.1:9/\n{url}",
            self.provider, self.secret
        );
        World::on(ledger, clock, &yaml).await
    }

    async fn send(
        &self,
        world: &World,
        headers: &BTreeMap<String, String>,
        body: &[u8],
        query: &str,
    ) -> Heard {
        let headers: Vec<(&str, &str)> =
            headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let path = if query.is_empty() { "/in/shop".to_owned() } else { format!("/in/shop?{query}") };
        world.send("POST", &path, &headers, body).await
    }

    /// Headers that are part of what is signed, or the signature.
    fn is_bound(name: &str) -> bool {
        ["signature", "hmac", "timestamp", "token", "authorization", "-id"]
            .iter()
            .any(|word| name.contains(word))
            && !matches!(name, "x-shopify-webhook-id" | "x-shopify-event-id")
    }
}

fn flipped(text: &[u8], at: usize) -> Vec<u8> {
    let mut flipped = text.to_vec();
    flipped[at] ^= 1;
    flipped
}

fn places(length: usize) -> Vec<usize> {
    let mut all = vec![0, length / 3, length / 2, length - 2, length - 1];
    all.dedup();
    all
}

#[tokio::test]
async fn s36_ours_agrees_with_the_vendors_libraries_and_refuses_one_flipped_bit() {
    let vectors: Vec<Vector> = serde_json::from_str(include_str!("vectors.json")).unwrap();
    let mut refused = 0;
    for vector in &vectors {
        let world = vector.world().await;
        let about = (&vector.provider, &vector.sdk);
        let heard = vector.send(&world, &vector.headers, vector.body.as_bytes(), &vector.query).await;
        assert_eq!(heard.status, 200, "{about:?}: {heard:?}");
        // One that only shows a secret signs nothing.
        let signs_body = !["gitlab", "postmark"].contains(&vector.provider.as_str());
        for at in places(vector.body.len()).into_iter().filter(|_| signs_body) {
            let body = flipped(vector.body.as_bytes(), at);
            let heard = vector.send(&world, &vector.headers, &body, &vector.query).await;
            assert_eq!(heard.status, 401, "{about:?}, body at {at}: {heard:?}");
            refused += 1;
        }
        for (name, value) in vector.headers.iter().filter(|(name, _)| Vector::is_bound(name)) {
            // These carry ids that the vendor does not sign.
            if matches!(name.as_str(), "x-github-delivery" | "linear-delivery") {
                continue;
            }
            // In a list every right one counts: only the only one, or what it signs, is flipped.
            if value.contains(' ') && name.contains("signature") {
                continue;
            }
            let before_v0 = value.find(",v0=").unwrap_or(value.len());
            for at in places(before_v0) {
                // Whether bytes before it are padding does not matter: the last sign of base64 must be what it is.
                let Ok(changed) = String::from_utf8(flipped(value.as_bytes(), at)) else { continue };
                let mut headers = vector.headers.clone();
                headers.insert(name.clone(), changed.clone());
                let heard = vector.send(&world, &headers, vector.body.as_bytes(), &vector.query).await;
                assert_eq!(heard.status, 401, "{about:?}, {name}: {value} -> {changed}: {heard:?}");
                refused += 1;
            }
        }
        if !vector.query.is_empty() {
            let query = flipped(vector.query.as_bytes(), vector.query.len() - 1);
            let query = String::from_utf8(query).unwrap();
            let heard = vector.send(&world, &vector.headers, vector.body.as_bytes(), &query).await;
            assert_eq!(heard.status, 401, "{about:?}: {heard:?}");
            refused += 1;
        }
        world.stop().await;
    }
    let providers: std::collections::BTreeSet<_> =
        vectors.iter().map(|vector| vector.provider.as_str()).collect();
    let known: std::collections::BTreeSet<_> = twicesafe_server::providers().keys().copied().collect();
    assert_eq!(providers, known, "every provider has a vector");
    assert!(refused > 200, "{refused}");
}
