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

use twicesafe_ledger::Scope;

use super::Span;
use crate::access::TENANT_DEFAULT;
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
        /// Whether writes that match no route are refused. They are, unless said otherwise, where a route asks a person, has
        /// caps or moves money; elsewhere they are guarded.
        pub unmatched: Option<Unmatched>,
        /// The tenants that may use it, `*` for all of them; `default`, the operator's own, unless said otherwise.
        pub tenants: Option<Vec<String>>,
        /// Which requests only read. Without it, reads are listed where a person is asked about anything, where something is counted and
        /// where money moves, unless the catalog knows better; otherwise they are known by their method.
        pub reads: Option<Reads>,
        /// What can be done there.
        pub routes: Vec<Route>,
    }
}

/// What stands for all tenants.
const ALL_TENANTS: &str = "*";

/// Whether a tenant is among those that were written down as served.
pub(crate) fn is_served(tenants: Option<&[String]>, tenant: &str) -> bool {
    match tenants {
        None => tenant == TENANT_DEFAULT,
        Some(tenants) => tenants.iter().any(|own| own == tenant || own == ALL_TENANTS),
    }
}

impl Destination {
    /// Whether a tenant may use it.
    pub(crate) fn serves(&self, tenant: &str) -> bool {
        is_served(self.tenants.as_deref(), tenant)
    }

    /// Says what is wrong with the tenants that may use it.
    pub(crate) fn check_tenants(&self) -> Result<(), String> {
        let Some(tenants) = &self.tenants else { return Ok(()) };
        let is_name = |name: &String| !name.contains('/') && Scope::new(name).is_ok();
        match tenants.iter().find(|name| *name != ALL_TENANTS && !is_name(name)) {
            _ if tenants.is_empty() => Err(format!(
                "name who may use it: [{TENANT_DEFAULT}], or [\"{ALL_TENANTS}\"] for all tenants"
            )),
            Some(wrong) => {
                Err(format!("`{wrong}` is not the name of a tenant; write [{TENANT_DEFAULT}, acme]"))
            }
            None => Ok(()),
        }
    }
}

/// Which requests of a destination only read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Reads {
    /// Those of routes with `read: true`; every other request is a write, whatever its method.
    Listed,
    /// Those, and every GET, HEAD and OPTIONS that no route says otherwise of.
    ByMethod,
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

/// What becomes of writes that match no route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Unmatched {
    /// They are refused.
    Refuse,
    /// They are guarded by what is said at the destination.
    Guard,
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
