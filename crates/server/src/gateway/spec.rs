//! The idempotency spec of a route: what is protected, by what, for how long, and what happens when nobody knows.

use serde::Serialize;
use twicesafe_ledger::Recovery;

use super::Destinations;
use super::plan::Destination;
use super::route::{Asked, Route, Word};
use crate::config::Configuration;
use crate::error::ServerError;

/// What is agreed about one action.
#[derive(Clone, Debug, Serialize)]
pub struct Spec {
    /// `DESTINATION/ACTION`.
    pub route: String,
    /// What is protected.
    pub action_protected: String,
    /// What one intent is.
    pub business_intent: String,
    /// What its key is made of.
    pub key_fields: String,
    /// Where it is kept.
    pub storage: String,
    /// How long a repetition gets the first answer, and what it gets then.
    pub replay_window: String,
    /// What is kept of the answer.
    pub result_record: String,
    /// What happens when nobody knows whether it happened.
    pub resume_rule: String,
    /// When a person is asked first.
    pub approval: String,
    /// Who is told.
    pub owner: String,
    /// Where what is known of the destination comes from.
    pub source: String,
}

/// The specs of all routes that write.
pub fn specs(configuration: &Configuration) -> Result<Vec<Spec>, ServerError> {
    let destinations = Destinations::read(configuration).map_err(|wrong| {
        let first =
            wrong.first().map_or_else(String::new, |wrong| format!("{}: {}", wrong.about, wrong.words));
        ServerError::Configuration(first)
    })?;
    let mut all: Vec<Spec> = Vec::new();
    for destination in destinations.iter() {
        let writes = destination.routes.iter().filter(|route| !route.is_read);
        all.extend(writes.map(|route| Spec::of(destination, route, configuration)));
    }
    all.sort_by(|one, other| one.route.cmp(&other.route));
    Ok(all)
}

impl Spec {
    fn of(destination: &Destination, route: &Route, configuration: &Configuration) -> Self {
        let action = route.action.as_deref().unwrap_or("(none)");
        let days = |span: std::time::Duration| match span.as_secs() {
            seconds if seconds >= 3 * 86_400 && seconds % 86_400 == 0 => format!("{} days", seconds / 86_400),
            seconds if seconds >= 3600 => format!("{} hours", seconds / 3600),
            seconds => format!("{seconds} seconds"),
        };
        let account = match &route.account {
            Some(Word::Fixed(account)) => format!("/{account}"),
            Some(Word::Given(expression)) => format!("/({})", expression.text()),
            None => String::new(),
        };
        let ledger = match &configuration.ledger {
            Some(_) => "the ledger of the configuration",
            None => "the ledger the server is started with",
        };
        let asks = match &route.lookup {
            Some(asking) => format!("it is asked ({} with the key)", asking.method),
            None => "it cannot be asked".to_owned(),
        };
        let resume_rule = match &route.policy.recovery {
            Recovery::Repeat => "sent again: declared harmless".to_owned(),
            Recovery::NativeKey { retention, .. } => format!(
                "sent again with the same key while the destination knows it ({}); after that {}",
                days(*retention),
                if route.lookup.is_some() { asks.as_str() } else { "a person decides" }
            ),
            Recovery::Lookup(lookup) => format!(
                "{asks}; not found counts {} after the last send; without an answer a person decides",
                days(lookup.lag + route.policy.in_flight_max)
            ),
            Recovery::Person => "a person decides: nothing is sent again by itself".to_owned(),
        };
        Self {
            route: format!("{}/{action}", destination.name),
            action_protected: format!("{action} at {}", destination.upstream.base().authority()),
            business_intent: format!("one {action} for each value of {}", route.key_words()),
            key_fields: route.key_words(),
            storage: format!("{ledger}, scope TENANT{account}/{}/{action}", destination.name),
            replay_window: format!(
                "{}; for {} after that a repetition is refused (410), never sent",
                days(route.policy.retention),
                days(route.policy.tombstone)
            ),
            result_record: match &route.external_id {
                Some(expression) => {
                    format!("status, headers, body, and {} as external id", expression.text())
                }
                None => "status, headers and body".to_owned(),
            },
            resume_rule,
            approval: match &route.approve {
                None if route.caps.is_empty() => "none".to_owned(),
                None => "beyond its caps".to_owned(),
                Some(Asked::Always) => "always".to_owned(),
                Some(Asked::If(expression)) => format!("when {}", expression.text()),
            },
            owner: route.owner.clone().unwrap_or_else(|| "whoever has the right".to_owned()),
            source: route.facts.verified.clone().unwrap_or_else(|| "the configuration".to_owned()),
        }
    }
}
