//! What is asked and told about inboxes and their events.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::texts::reason;
use super::{AnswerView, IntentView, JournalView};

/// An inbox.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct InboxView {
    /// What it is called.
    pub(crate) name: String,
    /// The scope of its events: list them with `GET /v1/intents?scope=`.
    pub(crate) scope: String,
    /// How its senders are known.
    pub(crate) sender: String,
    /// Why it is paused, if it is.
    pub(crate) paused: Option<String>,
    /// What became of its events, as far as this process saw: `arrived`, `duplicate`, `delivered`, ...
    pub(crate) counts: std::collections::BTreeMap<String, u64>,
    /// How long the last event that was taken up had waited; 0 when none waits.
    pub(crate) lag_ms: u64,
}

/// All inboxes.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct InboxesView {
    /// By name.
    pub(crate) inboxes: Vec<InboxView>,
}

/// An event: what arrived, how its sender was known, and what became of it.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct EventView<'a> {
    /// Where it stands.
    #[serde(flatten)]
    pub(crate) intent: IntentView,
    /// How its sender was known.
    pub(crate) verified: Option<String>,
    /// The object it is about.
    pub(crate) object: Option<String>,
    /// What it means to the business.
    pub(crate) means: Option<String>,
    /// The object's version.
    pub(crate) version: Option<i64>,
    /// The query of the address it was sent to.
    pub(crate) query: Option<String>,
    /// What the target knows it by.
    pub(crate) webhook_id: Option<String>,
    /// The event that means the same and was handed over in place of this one, or is in review.
    pub(crate) same_as: Option<String>,
    /// Its headers, as far as they are kept.
    pub(crate) headers: Vec<(String, String)>,
    /// Its body, if it is kept.
    pub(crate) body: Option<String>,
    /// What the target answered.
    pub(crate) answer: Option<AnswerView<'a>>,
    /// Every attempt, and everything else that became of it.
    pub(crate) deliveries: Vec<JournalView>,
}

/// A decision about an event.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct EventRequest {
    /// The inbox.
    pub(crate) inbox: String,
    /// The event's id.
    pub(crate) id: String,
    /// Why, for those who read the journal later.
    #[schemars(regex(pattern = r"^[^\x00]*$"))]
    #[serde(deserialize_with = "reason")]
    pub(crate) reason: String,
}

/// An inbox to pause or to let go on.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct InboxRequest {
    /// The inbox.
    pub(crate) inbox: String,
    /// Why.
    #[schemars(regex(pattern = r"^[^\x00]*$"))]
    #[serde(default, deserialize_with = "reason")]
    pub(crate) reason: String,
}
