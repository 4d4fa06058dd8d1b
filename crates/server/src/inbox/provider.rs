//! What is known of senders: data, in the form an operator would write it. What was verified from the vendor holds by itself;
//! what is only believed is told, and holds when an operator writes it.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use serde::Deserialize;

use crate::catalog::{Fact, read_all};
use crate::config::inboxes::Provider;
use crate::config::probably_meant;

macro_rules! entries {
    ($($name:literal)*) => {
        const FILES: &[(&str, &str)] = &[$(($name, include_str!(concat!("../../providers/", $name, ".yaml")))),*];
    };
}

entries! {
    "discord" "github" "gitlab" "hubspot" "intercom" "linear" "paddle" "postmark" "sendgrid" "shopify" "slack" "square"
    "standard-webhooks" "standard-webhooks-ed25519" "stripe" "svix" "twilio" "typeform" "zendesk"
}

/// One sender.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// What people call it.
    pub title: String,
    /// What is known of it, one statement each.
    pub facts: Vec<Fact>,
    /// What an inbox that names it gets.
    pub provider: Provider,
    /// What an operator may write beside it.
    #[serde(default)]
    pub believed: Believed,
}

/// What is believed, and holds only when an operator writes it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Believed {
    /// The event's id.
    pub id: Option<String>,
    /// The object.
    pub lane: Option<String>,
    /// Its version.
    pub version: Option<String>,
}

/// All senders, by name.
pub fn entries() -> &'static BTreeMap<&'static str, Entry> {
    static ENTRIES: OnceLock<BTreeMap<&'static str, Entry>> = OnceLock::new();
    ENTRIES.get_or_init(|| read_all(FILES))
}

/// A sender as it is written.
pub fn source(name: &str) -> Option<&'static str> {
    FILES.iter().find(|(own, _)| *own == name).map(|(_, text)| *text)
}

/// A sender, or what was probably meant.
pub fn entry(name: &str) -> Result<&'static Entry, String> {
    entries().get(name).ok_or_else(|| {
        let names: Vec<&str> = entries().keys().copied().collect();
        let meant = probably_meant(name, names.iter().copied());
        format!("there is no provider `{name}`; there are {}{meant}", names.join(", "))
    })
}
