//! The inbox, from both sides: what senders are told, and what the target got.

mod again;
mod arriving;
mod deciding;
mod doubt;
mod handing_over;
mod meaning;
mod order;
mod settings;
mod vectors;

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::hmac;
use serde_json::{Value, json};

use crate::gateway::destination::{Destination, Effect};
use crate::world::{Heard, World};

/// What the sender of these tests signs with: 32 bytes.
const SECRET: &str = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";
/// What the server signs with.
const TARGET_SECRET: &str = "whsec_YWJjZGVmZ2hpamtsbW5vcHFyc3R1dnd4eXphYmNkZWY=";
/// How long something may take that should happen by itself.
const SOON: Duration = Duration::from_secs(10);

/// An inbox called `shop`, whose sender follows Standard Webhooks, in front of a target that counts.
struct Inbox {
    world: World,
    target: Destination,
}

impl Inbox {
    async fn new() -> Self {
        Self::with("").await
    }

    /// With more to say about the inbox, each line indented by four.
    async fn with(rules: &str) -> Self {
        Self::and(rules, "").await
    }

    /// With more to say beside it. `TARGET` stands for the target's address.
    async fn and(rules: &str, more: &str) -> Self {
        let target = Destination::new().await;
        let world = World::configured(&configuration(&target, rules, more)).await;
        Self { world, target }
    }

    /// Sends an event, signed now.
    async fn send(&self, id: &str, body: &Value) -> Heard {
        self.send_at(id, body, self.now_s()).await
    }

    async fn send_at(&self, id: &str, body: &Value, at_s: i64) -> Heard {
        let body = body.to_string();
        let signature = signed(SECRET, id, at_s, body.as_bytes());
        self.send_signed(id, at_s, &signature, body.as_bytes()).await
    }

    async fn send_signed(&self, id: &str, at_s: i64, signature: &str, body: &[u8]) -> Heard {
        let at = at_s.to_string();
        let headers = [
            ("content-type", "application/json"),
            ("webhook-id", id),
            ("webhook-timestamp", &at),
            ("webhook-signature", signature),
            ("x-topic", "orders/create"),
        ];
        self.world.send("POST", "/in/shop", &headers, body).await
    }

    fn now_s(&self) -> i64 {
        use twicesafe_ledger::Clock;
        self.world.clock.system_millis() / 1000
    }

    /// Waits until the target was asked so often, and a little longer for whatever comes on top.
    async fn requests(&self, count: usize) -> Vec<Effect> {
        let started = std::time::Instant::now();
        while self.target.requests().len() < count && started.elapsed() < SOON {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        tokio::time::sleep(Duration::from_millis(150)).await;
        let requests = self.target.requests();
        assert_eq!(requests.len(), count, "{requests:#?}");
        requests
    }

    /// Waits until an event stands there.
    async fn status(&self, id: &str, status: &str) -> Value {
        let started = std::time::Instant::now();
        loop {
            let shown = self.world.get(&format!("/v1/inbox/event?inbox=shop&id={id}")).await;
            if shown.json["status"] == status {
                return shown.json;
            }
            assert!(started.elapsed() < SOON, "not {status}: {shown:#?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Lets time pass for the ledger, and gives the server the time to see it.
    async fn pass(&self, span: Duration) {
        self.world.clock.advance(span);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn configuration(target: &Destination, rules: &str, more: &str) -> String {
    let deliver = if rules.contains("deliver:") {
        String::new()
    } else {
        format!("    deliver: {}/webhook\n", target.base())
    };
    let provider = if rules.contains("provider:") { "" } else { "    provider: standard-webhooks\n" };
    let secrets =
        if rules.contains("secrets:") { String::new() } else { format!("    secrets: [{SECRET}]\n") };
    format!("inboxes:\n  shop:\n{provider}{secrets}{deliver}{rules}\n{more}")
        .replace("TARGET", &target.base())
}

fn signed(secret: &str, id: &str, at_s: i64, body: &[u8]) -> String {
    let key = STANDARD.decode(secret.strip_prefix("whsec_").unwrap()).unwrap();
    let key = hmac::Key::new(hmac::HMAC_SHA256, &key);
    let message = [format!("{id}.{at_s}.").as_bytes(), body].concat();
    format!("v1,{}", STANDARD.encode(hmac::sign(&key, &message)))
}

fn order(id: u32, version: u32) -> Value {
    json!({ "order": id, "version": version })
}

fn versions(requests: &[Effect]) -> Vec<u64> {
    requests.iter().map(|request| request.body["version"].as_u64().unwrap()).collect()
}
