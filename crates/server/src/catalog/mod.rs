//! What is known of common destinations: data, in the form an operator would write it. Each statement says whether it was
//! verified from the vendor's own documentation or is only believed.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::config::destinations::Destination;
use crate::config::probably_meant;

macro_rules! entries {
    ($($name:literal)*) => {
        const FILES: &[(&str, &str)] = &[$(($name, include_str!(concat!("../../catalog/", $name, ".yaml")))),*];
    };
}

entries! {
    "adyen" "airtable" "anthropic" "discord" "github" "gmail" "google-sheets" "hubspot" "intercom" "jira" "linear" "mailgun" "notion" "openai" "paypal" "pipedrive" "postmark" "quickbooks" "resend" "salesforce" "sendgrid" "shopify" "slack" "square" "stripe" "telegram" "twilio" "xero" "zendesk"
}

/// One destination of the catalog.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// What people call it.
    pub title: String,
    /// What is known of it, one statement each.
    pub facts: Vec<Fact>,
    /// How it can be asked whether something happened, and what such a question cannot show.
    pub lookups: Vec<Question>,
    /// What a configuration that uses it gets.
    pub destination: Destination,
}

/// Something that is known.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fact {
    /// What.
    pub says: String,
    /// Whether the vendor's own documentation, library or API description says so; otherwise it is believed.
    pub verified: bool,
}

/// A way to ask a destination whether something happened: one that its routes use, or one that an operator could write.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Question {
    /// What is asked.
    pub asks: String,
    /// The action whose route in this entry asks so; without it, no route does.
    pub action: Option<String>,
    /// What it does not show although it happened.
    pub misses: String,
    /// Whether not finding it says that it did not happen.
    pub not_found: NotFound,
    /// Whether the vendor's own documentation says so; otherwise it is believed.
    pub verified: bool,
}

/// Whether not finding something says that it did not happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NotFound {
    /// It does, once it would show.
    Counts,
    /// It never does: a route that asks so says `conclusive: "false"`.
    Never,
}

impl NotFound {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Counts => "counts",
            Self::Never => "never",
        }
    }
}

/// All entries, by name.
pub fn entries() -> &'static BTreeMap<&'static str, Entry> {
    static ENTRIES: OnceLock<BTreeMap<&'static str, Entry>> = OnceLock::new();
    ENTRIES.get_or_init(|| read_all(FILES))
}

/// Reads what is known of many things, each in a file that came with the program.
pub(crate) fn read_all<T: DeserializeOwned>(
    files: &[(&'static str, &'static str)],
) -> BTreeMap<&'static str, T> {
    let read = |(name, text): &(&'static str, &'static str)| {
        let entry = serde_saphyr::from_str(text)
            .unwrap_or_else(|error| panic!("{name}.yaml is wrong, which a test would have found: {error}"));
        (*name, entry)
    };
    files.iter().map(read).collect()
}

/// An entry as it is written.
pub fn source(name: &str) -> Option<&'static str> {
    FILES.iter().find(|(own, _)| *own == name).map(|(_, text)| *text)
}

/// The recovery classes of an entry's routes.
pub fn recoveries(entry: &Entry) -> Vec<&'static str> {
    let of_all = entry.destination.recovery.as_ref();
    let mut all: Vec<&'static str> = entry
        .destination
        .routes
        .iter()
        .filter(|route| !route.read)
        .map(|route| route.recovery.as_ref().or(of_all).map_or("person", |rules| rules.class()))
        .collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// An entry, or what was probably meant.
pub fn entry(name: &str) -> Result<&'static Entry, String> {
    entries().get(name).ok_or_else(|| {
        let names: Vec<&str> = entries().keys().copied().collect();
        let meant = probably_meant(name, names.iter().copied());
        format!(
            "the catalog has no `{name}`; it has {}; other destinations need no entry, but a `base:` and `routes:`{meant}",
            names.join(", ")
        )
    })
}
