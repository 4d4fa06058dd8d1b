//! Inboxes as an operator writes them: who sends, how that is known, what an event is called, where it is handed over.
//!
//! A provider of the catalog of providers has the same form as one that is written out. What is said of an inbox goes before
//! what is known of its provider.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::destinations::{Circuit, DestinationTls, Limits, OnReview, Retries, VersionMeans};
use super::{Secret, Span};

/// Where events arrive: `/in/NAME`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Inbox {
    /// Who sends: the name of a provider (`twicesafe inbox providers` lists them), or a description in the same form.
    /// Without one, senders need a token of this server.
    pub provider: Option<ProviderChoice>,
    /// What signatures are checked with. Several while one is being replaced; any of them will do.
    pub secrets: Vec<Secret>,
    /// The address senders have of this inbox, where the signature covers it: `https://hooks.example.com/in/NAME`.
    pub url: Option<String>,
    /// The event's id: an expression over the event. The same on every redelivery; it alone decides what is a repetition.
    pub id: Option<String>,
    /// What the same body under another id is: `new`, or already `known`. Where the signature covers only the body, who has read an
    /// event could send it again under another id. What the provider says holds unless said otherwise.
    pub same_body: Option<SameBody>,
    /// The object the event is about: an expression. Events of one object are handed over one at a time.
    pub lane: Option<String>,
    /// The object's version: an expression that gives an integer or a time.
    pub version: Option<String>,
    /// What the version means: `order` unless said otherwise.
    pub version_means: Option<VersionMeans>,
    /// Whether an event in review keeps its object waiting: `block` unless said otherwise.
    pub on_review: Option<OnReview>,
    /// What the event means to the business: an expression. Events that mean the same are handed over once.
    pub intent: Option<String>,
    /// Hands over only that an object has changed, at most once in each such span.
    pub hint: Option<Span>,
    /// Where events are handed over: an address, or one of the destinations.
    pub deliver: Option<Deliver>,
    /// What the sender gets: `accepted` at once, unless it is to wait for the target's answer.
    pub respond: Option<Respond>,
    /// Signs what is handed over, as Standard Webhooks do: `whsec_` and base64.
    pub signing_secret: Option<Secret>,
    /// How long the target may take; 30s unless said otherwise.
    pub timeout: Option<Span>,
    /// Attempts: 25 unless said otherwise, the first wait at most 2s, the longest 6h.
    pub retries: Option<Retries>,
    /// What may be done when nobody knows whether the target got it: handed over again, unless a person should decide.
    pub recovery: Option<Again>,
    /// How long an event and what came of it are kept; 30d unless said otherwise, and longer than its sender tries.
    pub retention: Option<Span>,
    /// How long an attempt is believed to live without a sign of life; 60s unless said otherwise.
    pub lease: Option<Span>,
    /// How long after it was sent a request can still arrive; 10s unless said otherwise.
    pub in_flight_max: Option<Span>,
    /// How much the target is given at a time; 32 requests unless said otherwise.
    pub limits: Limits,
    /// When to leave the target alone for a while.
    pub circuit: Circuit,
    /// Largest event; 1048576 unless said otherwise.
    pub bytes_max: Option<u32>,
    /// Who is told when something waits for a person.
    pub owner: Option<String>,
}

/// What the sender gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Respond {
    /// 202, as soon as the event is on record.
    #[default]
    Accepted,
    /// The target's answer. Repetitions get the first one.
    Target,
}

/// What an event is that has the body of an earlier one and another id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SameBody {
    /// An event of its own.
    #[default]
    New,
    /// The earlier one: it is acknowledged, and not handed over.
    Known,
}

/// What may be done when nobody knows whether the target got it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Again {
    /// Handed over again, with the same id.
    #[default]
    Repeat,
    /// A person decides.
    Person,
}

/// Who sends.
#[derive(Clone, Debug)]
pub enum ProviderChoice {
    /// One that is known.
    Named(String),
    /// One that is written out.
    Written(Box<Provider>),
}

/// How events of a sender are known, and what is in them.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Provider {
    /// How events are signed; the first of several whose header is there counts.
    pub signature: Signatures,
    /// The event's id.
    pub id: Option<String>,
    /// What the same body under another id is: `known` where the id is not signed and no two events have the same body.
    pub same_body: Option<SameBody>,
    /// The object.
    pub lane: Option<String>,
    /// Its version.
    pub version: Option<String>,
    /// One request holds many events, as a JSON array.
    pub array: bool,
    /// A question the sender asks before it sends events.
    pub handshake: Option<Handshake>,
    /// How long the sender tries again.
    pub retries_for: Option<Span>,
    /// How soon the sender wants an answer.
    pub answers_within: Option<Span>,
}

/// A question the sender asks before it sends events.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Handshake {
    /// What tells it from an event: an expression.
    pub when: String,
    /// What it wants to hear: an expression that gives text, `null` (204 and no body), or anything else, which is told as JSON.
    pub answer: String,
    /// The sender asks before it signs anything. Such a question is answered whoever asks, also by GET, and by headers and query
    /// alone; it is never an event.
    #[serde(default)]
    pub unsigned: bool,
}

/// Ways to sign; none: a token of this server is needed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Signatures(pub Vec<Signature>);

/// One way to sign.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Signature {
    /// The header it stands in.
    pub header: String,
    /// What separates several in one header.
    pub separator: Option<String>,
    /// What stands before it: `sha256=`. Others in the same header are passed over.
    #[serde(default)]
    pub prefix: String,
    /// How it is made.
    pub algorithm: Algorithm,
    /// How it is written.
    #[serde(default)]
    pub encoding: Encoding,
    /// What is signed: text with {body}, {timestamp}, {url}, {method}, {form} and {header:NAME} in it.
    #[serde(default = "body_alone")]
    pub signs: String,
    /// When it was sent.
    pub timestamp: Option<StampPlace>,
    /// How far that may be from now; 300s unless said otherwise.
    pub tolerance: Option<Span>,
    /// How the secret is written.
    #[serde(default)]
    pub key: Encoding,
    /// What stands before the secret: `whsec_`.
    #[serde(default)]
    pub key_prefix: String,
    /// A parameter of the query that holds the SHA-256 of the body in hex, where the body itself is not signed.
    pub body_hash: Option<String>,
}

fn body_alone() -> String {
    "{body}".to_owned()
}

/// Where the time of sending stands.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "lowercase")]
pub enum StampPlace {
    /// In a header of its own, in seconds.
    Header(String),
    /// In a header of its own, in milliseconds.
    #[serde(rename = "header_ms")]
    HeaderMs(String),
    /// In the header of the signature, after this, in seconds.
    Prefix(String),
    /// In the event, in milliseconds: an expression.
    #[serde(rename = "field_ms")]
    FieldMs(String),
}

/// How a signature is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Algorithm {
    /// HMAC with SHA-256.
    HmacSha256,
    /// HMAC with SHA-1, for those who still use it.
    HmacSha1,
    /// Ed25519; the secret is the sender's public key.
    Ed25519,
    /// ECDSA on P-256 with SHA-256, in ASN.1; the secret is the sender's public key.
    EcdsaP256,
    /// None: the secret itself stands in the header. Whoever reads one event can send others.
    Secret,
}

/// How bytes are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Encoding {
    /// As they are.
    #[default]
    Text,
    /// In hex.
    Hex,
    /// In base64.
    Base64,
}

/// Where events are handed over.
#[derive(Clone, Debug)]
pub enum Deliver {
    /// To an address.
    Url(Secret),
    /// To an address or a destination, with more to say about it.
    Rules(Box<DeliverRules>),
}

/// Where events are handed over, and how.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DeliverRules {
    /// An address.
    pub url: Option<Secret>,
    /// A destination and a path there: `crm/contacts`. Guarded like any other call.
    pub to: Option<String>,
    /// How; `POST` unless said otherwise.
    pub method: Option<String>,
    /// Headers that every request carries.
    pub headers: BTreeMap<String, Secret>,
    /// The name may lead to a private address. One that is written as an address, or `localhost`, may anyway.
    pub private: bool,
    /// Certificates beyond those of the system.
    pub tls: Option<DestinationTls>,
}

impl<'de> Deserialize<'de> for ProviderChoice {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = ProviderChoice;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a provider, or a description of one")
            }

            fn visit_str<E: Error>(self, name: &str) -> Result<ProviderChoice, E> {
                Ok(ProviderChoice::Named(name.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<ProviderChoice, A::Error> {
                let written = Provider::deserialize(MapAccessDeserializer::new(map))?;
                Ok(ProviderChoice::Written(Box::new(written)))
            }
        }
        deserializer.deserialize_any(Either)
    }
}

impl JsonSchema for ProviderChoice {
    fn schema_name() -> Cow<'static, str> {
        "ProviderChoice".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let written = generator.subschema_for::<Provider>();
        json_schema!({
            "description": "The name of a provider, or a description of one.",
            "oneOf": [{ "type": "string", "examples": ["stripe"] }, written]
        })
    }
}

impl<'de> Deserialize<'de> for Deliver {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = Deliver;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an address, or `url:` or `to:` with more to say about it")
            }

            fn visit_str<E: Error>(self, url: &str) -> Result<Deliver, E> {
                Ok(Deliver::Url(Secret::from(url)))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Deliver, A::Error> {
                let rules = DeliverRules::deserialize(MapAccessDeserializer::new(map))?;
                Ok(Deliver::Rules(Box::new(rules)))
            }
        }
        deserializer.deserialize_any(Either)
    }
}

impl JsonSchema for Deliver {
    fn schema_name() -> Cow<'static, str> {
        "Deliver".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let rules = generator.subschema_for::<DeliverRules>();
        json_schema!({
            "description": "An address, or an address or a destination with more to say about it.",
            "oneOf": [{ "type": "string", "examples": ["http://127.0.0.1:5678/webhook/orders"] }, rules]
        })
    }
}

impl<'de> Deserialize<'de> for Signatures {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneOrMore;
        impl<'de> Visitor<'de> for OneOrMore {
            type Value = Signatures;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a way to sign, or a list of them")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Signatures, A::Error> {
                Signature::deserialize(MapAccessDeserializer::new(map)).map(|one| Signatures(vec![one]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<Signatures, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(items)).map(Signatures)
            }
        }
        deserializer.deserialize_any(OneOrMore)
    }
}

impl JsonSchema for Signatures {
    fn schema_name() -> Cow<'static, str> {
        "Signatures".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let one = generator.subschema_for::<Signature>();
        json_schema!({
            "description": "A way to sign, or a list of them.",
            "oneOf": [one.clone(), { "type": "array", "items": one }]
        })
    }
}
