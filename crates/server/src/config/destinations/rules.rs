//! What is agreed about an action. The same words at a destination, where they hold for all its routes, and at a route.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserializer, Error, Visitor};

use super::super::Span;

/// Makes a struct with fields of its own and all the rules.
macro_rules! with_rules {
    ($(#[$about:meta])* pub struct $name:ident { $($(#[$doc:meta])* pub $field:ident: $type:ty,)* }) => {
        with_rules! { @fields
            [$(#[$about])* pub struct $name { $($(#[$doc])* pub $field: $type,)* }]
            /// The stable name of the intent: an expression over the request, or a list of them; otherwise the header
            /// `Idempotency-Key`.
            key: $crate::config::destinations::Texts,
            /// On whose behalf: a name, or an expression over the request. Test mode and live mode are different accounts.
            account: String,
            /// Headers that choose whom a request acts for, beside those whose names say so (`X-Tenant-Id`, `Stripe-Account`): another
            /// value is another request.
            acts_for: $crate::config::destinations::Texts,
            /// Only these parts of the request must stay the same under one key.
            fingerprint: $crate::config::destinations::Texts,
            /// These parts of the request may differ: `request.body.sent_at`.
            ignore: $crate::config::destinations::Texts,
            /// What the same key with another request gets; `replay` where an AI writes the body.
            on_mismatch: $crate::config::destinations::OnMismatch,
            /// The shared entity: an expression over the request. One intent at a time touches it.
            lane: String,
            /// Its version: an expression that gives an integer.
            version: String,
            /// What the version means; `order` unless said otherwise.
            version_means: $crate::config::destinations::VersionMeans,
            /// Whether an intent in review keeps its lane; `block` unless said otherwise.
            on_review: $crate::config::destinations::OnReview,
            /// What a caller with an older version gets: 412, or 200 with a marker.
            on_superseded: $crate::config::destinations::OnSuperseded,
            /// The unit of work: an expression; otherwise the header `Twicesafe-Work`.
            work: String,
            /// The step in it: an expression; otherwise the header `Twicesafe-Step`, otherwise the action.
            step: String,
            /// What was made: an expression over the answer.
            external_id: String,
            /// How long the answer is kept; 30d unless said otherwise.
            retention: $crate::config::Span,
            /// Who is told when something waits for a person.
            owner: String,
            /// What may be done when nobody knows whether it happened; a person decides unless said otherwise.
            recovery: $crate::config::destinations::RecoveryRules,
            /// Where the destination can carry a key of ours, so that a lookup finds it.
            stamp: $crate::config::destinations::Stamp,
            /// What a status or a body means, where the status alone does not say.
            outcomes: $crate::config::destinations::Outcomes,
            /// Its answers are those of GraphQL, whose errors have a table of their own: a request error is a refusal, and what failed at
            /// a field may have happened.
            graphql: bool,
            /// What a refusal means once an earlier attempt may have acted: `{404: answered}` for a deletion.
            after_doubt: std::collections::BTreeMap<u16, $crate::config::destinations::Means>,
            /// How long a refusal is given again to the same request; 30s unless said otherwise, and not for 402, 404, 409,
            /// 423 and 424.
            refusal_replayed_for: $crate::config::Span,
            /// Attempts by the server itself.
            retries: $crate::config::destinations::Retries,
            /// How long the destination may take; 30s unless said otherwise.
            timeout: $crate::config::Span,
            /// How long an attempt is believed to live without a sign of life; 60s unless said otherwise.
            lease: $crate::config::Span,
            /// How long after it was sent a request can still arrive; 60s unless said otherwise.
            in_flight_max: $crate::config::Span,
            /// How long a caller waits for an answer; 25s unless said otherwise.
            wait: $crate::config::Span,
            /// Whether a person must say yes first: `true`, or an expression over the request.
            approve: $crate::config::destinations::Approve,
            /// How a person says yes.
            approval: $crate::config::destinations::ApprovalRules,
            /// What a caller gets while a person is asked; 423 unless said otherwise.
            on_hold: $crate::config::destinations::OnHold,
            /// What may be done in a day without asking a person.
            caps: Vec<$crate::config::destinations::Cap>,
            /// `observe`: everything is passed on, and what would have been prevented is recorded.
            mode: $crate::config::destinations::Mode,
            /// Headers of callers that hold no secret, and parameters of the query that are named like credentials and are none: they
            /// are kept with a request the server may have to send later.
            keep: $crate::config::destinations::Texts,
            /// What is expected of an AI's answer: others are errors.
            expect: $crate::config::destinations::ExpectRules,
            /// It cannot be taken back.
            irreversible: bool,
            /// It moves money. Only this says so: for an entry of the catalog the entry does, otherwise you do.
            moves_money: bool,
            /// Customers see it.
            reaches_customers: bool,
            /// The action to use instead where one has the choice: it may be repeated.
            upsert_instead: String,
            /// Where its facts come from.
            verified: String,
        }
    };
    (@fields [$(#[$about:meta])* pub struct $name:ident { $($own:tt)* }]
        $($(#[$doc:meta])* $rule:ident: $type:ty,)*) => {
        $(#[$about])*
        #[derive(Clone, Debug, Default, serde::Deserialize, schemars::JsonSchema)]
        #[serde(deny_unknown_fields, default)]
        pub struct $name {
            $($own)*
            $($(#[$doc])* pub $rule: Option<$type>,)*
        }

        impl $name {
            /// What it says of actions.
            pub fn rules(&self) -> $crate::config::destinations::Rules {
                $crate::config::destinations::Rules { $($rule: self.$rule.clone(),)* }
            }
        }
    };
}
pub(super) use with_rules;

with_rules! {
    /// What is agreed about an action.
    pub struct Rules {}
}

impl Rules {
    /// These, and where they are silent, those.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        macro_rules! merged {
            ($($rule:ident)*) => { Self { $($rule: self.$rule.or(other.$rule),)* } };
        }
        let mut outcomes = self.outcomes.clone();
        if let (Some(own), Some(others)) = (&mut outcomes, &other.outcomes) {
            // The first reading that fits counts: an operator's go before those of the catalog, and do not replace them.
            own.0.extend(others.0.iter().cloned());
        }
        let merged = merged! {
            key account acts_for fingerprint ignore on_mismatch lane version version_means on_review on_superseded work step external_id
            retention owner recovery stamp outcomes graphql after_doubt refusal_replayed_for retries timeout lease in_flight_max wait
            approve approval on_hold caps mode keep expect irreversible moves_money reaches_customers upsert_instead verified
        };
        Self { outcomes: outcomes.or(merged.outcomes.clone()), ..merged }
    }
}

impl Rules {
    /// Returns whether a person is asked about it, it is counted, or it moves money: then nothing may slip past as a read (S44).
    pub(crate) fn needs_care(&self) -> bool {
        let is_asked_about = self.approve.as_ref().is_some_and(|approve| *approve != Approve::Fixed(false));
        is_asked_about
            || self.caps.as_ref().is_some_and(|caps| !caps.is_empty())
            || self.moves_money == Some(true)
    }

    /// What is said that holds for writes only: at a destination what would be relied on most, at a route everything.
    pub(crate) fn that_only_writes_have(&self, at_route: bool) -> Vec<&'static str> {
        let mut said = Vec::new();
        macro_rules! collect {
            ($($rule:ident)*) => { $(if self.$rule.is_some() { said.push(stringify!($rule)); })* };
        }
        collect!(key approve caps lane version);
        if at_route {
            collect!(account acts_for fingerprint ignore on_mismatch version_means on_review on_superseded step external_id recovery stamp
                outcomes graphql after_doubt refusal_replayed_for retries lease in_flight_max wait approval on_hold keep);
        }
        if self.mode == Some(Mode::Observe) {
            said.push("mode");
        }
        said
    }
}

/// What the same key with another request gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnMismatch {
    /// A refusal.
    Refuse,
    /// The first answer, marked.
    Replay,
}

/// What a version means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum VersionMeans {
    /// The whole state at that version: an older one is superseded.
    Snapshot,
    /// A place in an order.
    Order,
}

/// Whether an intent in review keeps its lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnReview {
    /// The lane waits.
    Block,
    /// The others pass.
    Pass,
}

/// What a caller with an older version gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnSuperseded {
    /// 412.
    Refuse,
    /// 200, marked.
    Accept,
}

/// What a caller gets while a person is asked (S27).
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnHold {
    /// The answer, if somebody says yes in time; otherwise 423.
    Wait,
    /// 202 at once.
    Accepted,
    /// 202 at once, and the answer is posted to the address in `Twicesafe-Callback`.
    Callback,
}

/// Whether writes are guarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// They are.
    Guard,
    /// They are passed on, and what would have been prevented is recorded.
    Observe,
}

/// Where a request carries a key of ours.
#[derive(Clone, Debug, Default, PartialEq, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Stamp {
    /// In a field of the body: `metadata.twicesafe`.
    pub body: Option<String>,
    /// In a header.
    pub header: Option<String>,
    /// In the query.
    pub query: Option<String>,
    /// What is written: `{{ destination_key }}` unless said otherwise.
    pub r#as: Option<String>,
    /// Fields of the body that must say something else for that.
    #[schemars(with = "std::collections::BTreeMap<String, serde_json::Value>")]
    pub with: std::collections::BTreeMap<String, serde_json::Value>,
    /// Where the body is a form, its field holds JSON as a text (`metadata={"a":1}`), and not fields in brackets
    /// (`metadata[a]=1`).
    pub json_in_forms: bool,
}

/// Attempts by the server itself (S26).
#[derive(Clone, Debug, Default, PartialEq, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Retries {
    /// Attempts in one round; 5 unless said otherwise.
    pub attempts: Option<u32>,
    /// Longest first wait; 1s unless said otherwise.
    pub base: Option<Span>,
    /// Longest wait; 5m unless said otherwise.
    pub cap: Option<Span>,
}

/// How a person says yes (S30).
#[derive(Clone, Debug, Default, PartialEq, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ApprovalRules {
    /// Nobody said yes by then: rejected; 24h unless said otherwise.
    pub expires: Option<Span>,
    /// How many people must say yes; 1 unless said otherwise.
    #[serde(deserialize_with = "how_many")]
    pub people: Option<u8>,
    /// Whether who asked may say yes.
    pub requester_may_approve: bool,
}

fn how_many<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u8>, D::Error> {
    struct Number;
    impl Visitor<'_> for Number {
        type Value = Option<u8>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(
                "how many people must say yes, as 2; who may is said by `rights: [approve]` under `people:`",
            )
        }

        fn visit_u64<E: Error>(self, number: u64) -> Result<Option<u8>, E> {
            u8::try_from(number).map(Some).map_err(|_| E::custom(format!("at most {} people", u8::MAX)))
        }

        fn visit_unit<E: Error>(self) -> Result<Option<u8>, E> {
            Ok(None)
        }
    }
    deserializer.deserialize_any(Number)
}

/// What may be done in a day without asking a person.
#[derive(Clone, Debug, Default, PartialEq, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Cap {
    /// That often.
    pub count: Option<u64>,
    /// That much: an expression over the request that gives a number.
    pub sum: Option<String>,
    /// How much `sum` may come to.
    pub max: Option<f64>,
}

/// Whether a person must say yes first.
#[derive(Clone, Debug, PartialEq)]
pub enum Approve {
    /// Always, or never.
    Fixed(bool),
    /// When this holds.
    If(String),
}

impl<'de> serde::Deserialize<'de> for Approve {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct BoolOrText;
        impl Visitor<'_> for BoolOrText {
            type Value = Approve;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("true, false, or an expression over the request")
            }

            fn visit_bool<E: Error>(self, value: bool) -> Result<Approve, E> {
                Ok(Approve::Fixed(value))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Approve, E> {
                Ok(Approve::If(text.to_owned()))
            }
        }
        deserializer.deserialize_any(BoolOrText)
    }
}

impl JsonSchema for Approve {
    fn schema_name() -> Cow<'static, str> {
        "Approve".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "Whether a person must say yes first.",
            "oneOf": [{ "type": "boolean" }, { "type": "string", "examples": ["request.body.amount > 100"] }]
        })
    }
}
