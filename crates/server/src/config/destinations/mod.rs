//! Destinations as an operator writes them: where effects go, and what is agreed about each action there.
//!
//! A catalog entry has the same form. What is said of a route goes before what is said of its destination, and both go before
//! the catalog.

mod auth;
mod meaning;
mod pins;
mod recovery;
mod rules;
mod texts;

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;

pub use auth::{Auth, Basic, HeaderSecret, OAuth, OAuthCredentials};
pub use meaning::{Means, Outcomes, Reading};
pub use pins::{ExpectRules, Kind, PinRules, Price, Truncated};
pub use recovery::{LookupRules, NativeKeyRules, RecoveryRules, When};
pub use rules::{
    ApprovalRules, Approve, Cap, Mode, OnHold, OnMismatch, OnReview, OnSuperseded, Retries, Rules, Stamp,
    VersionMeans,
};
pub use texts::Texts;

use super::Span;
use rules::with_rules;

with_rules! {
    /// A system effects go to.
    pub struct Destination {
        /// An entry of the catalog: `twicesafe catalog` lists them.
        pub r#use: Option<String>,
        /// What it is; `http` unless said otherwise.
        pub kind: Option<Kind>,
        /// What is agreed about answers of AI models, where it is `llm`.
        pub pins: Option<PinRules>,
        /// What the address of every request begins with: `https://api.example.com`.
        pub base: Option<super::Secret>,
        /// How the server identifies itself there, on send, resend, lookup and after approval.
        pub auth: Option<Auth>,
        /// Headers that every request carries.
        pub headers: BTreeMap<String, super::Secret>,
        /// The name may lead to a private address. One that is written as an address, or `localhost`, may anyway.
        pub private: bool,
        /// Certificates beyond those of the system.
        pub tls: Option<DestinationTls>,
        /// How much the destination is given at a time.
        pub limits: Limits,
        /// When to leave it alone for a while.
        pub circuit: Circuit,
        /// What can be done there.
        pub routes: Vec<Route>,
    }
}

with_rules! {
    /// One action at a destination.
    pub struct Route {
        /// Method and path: `POST /contacts/{id}/notes`. `*` at the end stands for whatever follows.
        pub r#match: String,
        /// The stable name of the action: `contact.create`. It is part of every key's scope; never change it while keys live.
        pub action: Option<String>,
        /// It changes nothing, whatever its method says: a search by POST.
        pub read: bool,
    }
}

/// Certificates for one destination.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DestinationTls {
    /// Authorities to trust beside the system's, PEM.
    #[schemars(with = "Option<String>")]
    pub ca: Option<PathBuf>,
    /// The client's certificate, PEM.
    #[schemars(with = "Option<String>")]
    pub certificate: Option<PathBuf>,
    /// Its private key, PEM.
    #[schemars(with = "Option<String>")]
    pub key: Option<PathBuf>,
}

/// How much a destination is given at a time, by this server.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Requests at the same time; 256 unless said otherwise.
    pub concurrency: Option<u32>,
    /// Requests a second.
    pub per_second: Option<u32>,
}

/// When to leave a destination alone: what is not sent then is `NotSent`, and tried again later.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Circuit {
    /// After so many failures in a row; 10 unless said otherwise, 0: never.
    pub failures: Option<u32>,
    /// For that long; 10s unless said otherwise.
    pub pause: Option<Span>,
}
