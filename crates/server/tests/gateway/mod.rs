//! The gateway, from both sides: what callers are told, and what the destination counted.

mod approvals;
mod bounds;
mod breaking;
mod bypassing;
mod closing;
pub(crate) mod destination;
mod http2;
mod identity;
mod keys;
mod leading;
mod leaving;
mod observing;
mod outcomes;
mod passing;
mod reading;
mod recovery;
mod settings;
mod too_late;

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::world::{Heard, World};
use destination::{Destination, Do};

/// A gateway in front of a destination called `crm`. `ROUTES` are those of the destination, `MORE` whatever else.
struct Gateway {
    world: World,
    crm: Destination,
}

impl Gateway {
    async fn with_routes(routes: &str) -> Self {
        Self::with("auth: none", routes, "").await
    }

    async fn with(destination: &str, routes: &str, more: &str) -> Self {
        let crm = Destination::new().await;
        let world = World::configured(&configuration(&crm, destination, routes, more)).await;
        Self { world, crm }
    }

    async fn post(&self, path: &str, body: &Value) -> Heard {
        self.world.post(&format!("/to/crm{path}"), body).await
    }

    async fn post_with(&self, path: &str, headers: &[(&str, &str)], body: &Value) -> Heard {
        let mut all = vec![("content-type", "application/json")];
        all.extend_from_slice(headers);
        self.world.send("POST", &format!("/to/crm{path}"), &all, body.to_string().as_bytes()).await
    }

    /// Lets ledger time pass, and the server's own senders see it.
    async fn pass(&self, span: Duration) {
        self.world.clock.advance(span);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }

    /// Waits until an intent stands somewhere.
    async fn wait_for(&self, scope: &str, key: &str, status: &str) -> Value {
        let path = format!("/v1/intent?scope={scope}&key={key}");
        for _ in 0..300 {
            let heard = self.world.get(&path).await;
            if heard.json["status"] == status {
                return heard.json;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("{scope} {key} is not {status}: {:?}", self.world.get(&path).await);
    }
}

fn configuration(crm: &Destination, destination: &str, routes: &str, more: &str) -> String {
    if destination.contains("mode: observe") {
        crm.take_keys_of_callers();
    }
    let indented =
        |text: &str, by: &str| text.lines().map(|line| format!("{by}{line}\n")).collect::<String>();
    format!(
        "destinations:\n  crm:\n    base: {}\n{}    routes:\n{}{more}\n",
        crm.base(),
        indented(destination, "    "),
        indented(routes, "      ")
    )
}

/// A route whose unknown outcomes a person decides.
const PERSON: &str = "- match: POST /contacts
  action: contact.create
  key: request.body.id
  external_id: answer.body.id
  recovery: person
  timeout: 300ms";

fn contact(id: &str) -> Value {
    json!({ "id": id, "name": "Ada" })
}

const SCOPE: &str = "default/crm/contact.create";
