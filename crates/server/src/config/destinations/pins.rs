//! What is agreed about calls of AI models: how long an answer without a work stands, which ones do, what they cost.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;

use super::super::Span;

/// What a destination is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// An API like any other.
    Http,
    /// It answers prompts, in the form of OpenAI or Anthropic: the same prompt in the same work gets the same answer.
    Llm,
}

/// What is agreed about pins: answers that stand for one prompt in one work (S33).
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PinRules {
    /// Calls without a work are pinned for that long, so that retries and double clicks are paid once. Otherwise they pass.
    pub window: Option<Span>,
    /// What becomes of an answer that ran into its limit of tokens; `pass` unless said otherwise.
    pub truncated: Option<Truncated>,
    /// Headers that do not change the answer, beside those known not to.
    pub ignore_headers: Vec<String>,
    /// What models cost, by name; a date may follow it.
    pub prices: BTreeMap<String, Price>,
}

impl PinRules {
    /// These, and where they are silent, those.
    #[must_use]
    pub fn or(mut self, other: Option<&Self>) -> Self {
        let Some(other) = other else { return self };
        self.window = self.window.or(other.window);
        self.truncated = self.truncated.or(other.truncated);
        self.ignore_headers.extend(other.ignore_headers.iter().cloned());
        for (model, price) in &other.prices {
            self.prices.entry(model.clone()).or_insert(*price);
        }
        self
    }
}

/// What becomes of an answer that ran into its limit of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Truncated {
    /// It is passed on and not pinned.
    Pass,
    /// It is pinned like any other.
    Pin,
}

/// What a million tokens cost, in US dollars.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Price {
    /// Those that are sent.
    pub input: f64,
    /// Those of them that the provider had in its cache; like the others unless said otherwise.
    pub cached_input: Option<f64>,
    /// Those that come back.
    pub output: f64,
}

/// What is expected of an answer (S35).
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ExpectRules {
    /// A JSON Schema of what the model wrote. Text that is JSON is taken as JSON.
    #[schemars(with = "Option<serde_json::Value>")]
    pub schema: Option<serde_json::Value>,
    /// An expression that must hold: it sees `request`, `answer.body` and, as `answer.output`, what the model wrote.
    pub rule: Option<String>,
    /// How many answers are asked for until one is as expected; 1 unless said otherwise, at most 10.
    pub samples: Option<u32>,
}
