//! The configuration: one strict YAML file. Unknown fields are errors, secrets come from outside the file, and what the file may
//! contain is published as a JSON Schema made from these types.

mod check;
pub mod destinations;
pub mod inboxes;
mod listen;
mod load;
mod people;
mod secret;
mod span;

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;

pub(crate) use check::NO_SECRET;
pub use check::{Advice, check};
pub use listen::Listen;
pub use load::{load, parse};
pub(crate) use load::{probably_meant, suggesting};
pub use people::{Alert, Person};
pub use secret::Secret;
pub use span::{Span, parse_span};

/// What a server is told by its operator. Everything may be left out.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(title = "Twicesafe configuration")]
pub struct Configuration {
    /// Where the server listens: `127.0.0.1:4080`, or `public` and `admin` apart.
    pub listen: Listen,
    /// Where the ledger is: `sqlite:PATH` or `postgres://USER:${PASSWORD}@HOST/DATABASE`.
    pub ledger: Option<Secret>,
    /// The ledger's secret, for a ledger in PostgreSQL: `${TWICESAFE_LEDGER_SECRET}` or `file:PATH`, of at least 16 bytes, the same for
    /// all who open it. A SQLite ledger has one in a file beside it.
    pub secret: Option<Secret>,
    /// Certificate and key, where the server itself speaks TLS.
    pub tls: Option<TlsFiles>,
    /// Who is asked and told: name, rights, where to send alerts.
    pub people: BTreeMap<String, Person>,
    /// Links in alerts that let people decide.
    pub links: LinkRules,
    /// When people are told again.
    pub alerts: AlertRules,
    /// The mail server for alerts by mail.
    pub smtp: Option<Smtp>,
    /// Systems that effects go to: `/to/NAME/...`.
    pub destinations: BTreeMap<String, destinations::Destination>,
    /// Where events arrive: `/in/NAME`.
    pub inboxes: BTreeMap<String, inboxes::Inbox>,
    /// What addresses begin with that answers may be posted to, where callers name one in `Twicesafe-Callback`.
    pub callbacks: Vec<String>,
    /// Where traces go.
    pub traces: Option<Traces>,
    /// How the server logs.
    pub logs: Logs,
}

/// PEM files.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TlsFiles {
    /// The certificate chain.
    #[schemars(with = "String")]
    pub certificate: PathBuf,
    /// The private key.
    #[schemars(with = "String")]
    pub key: PathBuf,
}

/// Links in alerts.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LinkRules {
    /// What people's browsers find the public listener at: `https://twicesafe.example.com`.
    pub base: Option<String>,
    /// Signs the links. Otherwise a key derived from the ledger's secret does, so that all servers of a ledger agree.
    pub secret: Option<Secret>,
    /// How long a link is good at most; otherwise as long as the approval waits.
    pub expire: Option<Span>,
}

/// When people are told again.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AlertRules {
    /// How long something may wait for a person before its people are told that it is overdue; 4h unless said otherwise.
    pub overdue_after: Option<Span>,
}

/// A mail server.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Smtp {
    /// Its name.
    pub host: String,
    /// Its port; 587 with STARTTLS, 465 with TLS and 25 without unless said otherwise.
    pub port: Option<u16>,
    /// How the connection is secured: `starttls` unless said otherwise.
    #[serde(default)]
    pub security: SmtpSecurity,
    /// The address alerts come from.
    pub from: String,
    /// User name.
    pub user: Option<String>,
    /// Password.
    pub password: Option<Secret>,
}

/// How the connection to a mail server is secured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SmtpSecurity {
    /// TLS after a greeting in the clear.
    #[default]
    Starttls,
    /// TLS from the first byte.
    Tls,
    /// None: only for a relay on this machine.
    None,
}

/// Where traces go.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Traces {
    /// An OTLP receiver that speaks HTTP: `http://127.0.0.1:4318`.
    pub otlp: String,
    /// Headers it wants.
    #[serde(default)]
    pub headers: BTreeMap<String, Secret>,
}

/// How the server logs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Logs {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

impl Configuration {
    /// The ledger's address, if it is named here.
    pub fn ledger_address(&self) -> Result<Option<String>, crate::ServerError> {
        self.ledger.as_ref().map(Secret::reveal).transpose()
    }

    /// The ledger's secret, if it is named here.
    pub fn ledger_secret(&self) -> Result<Option<twicesafe_ledger::LedgerSecret>, crate::ServerError> {
        let Some(secret) = &self.secret else { return Ok(None) };
        twicesafe_ledger::LedgerSecret::of(&secret.reveal()?)
            .map(Some)
            .map_err(|error| crate::ServerError::Configuration(format!("secret: {error}")))
    }
}

/// The JSON Schema of the configuration.
pub fn schema() -> serde_json::Value {
    schemars::schema_for!(Configuration).into()
}
