//! The inbox: `/in/{name}` takes events from outside. Each is verified, committed and then acknowledged (S36, S37), handed over
//! once and in the order of its object (S38, S39), and tried again until its target says done.

mod arrival;
mod bound;
mod checklist;
mod delivery;
mod desk;
mod event;
mod fresh;
mod handover;
mod meaning;
mod plan;
mod provider;
mod verify;

use std::collections::BTreeMap;
use std::sync::Arc;

use twicesafe_ledger::Name;

use crate::config::Configuration;
use crate::gateway::expression::Expression;
use crate::gateway::plan::Wrong;
use plan::{Inbox, TENANT};

pub(crate) use arrival::answer;
pub(crate) use delivery::Delivery;
pub(crate) use desk::Standing;
pub use desk::{
    BODY_GONE, BODY_GONE_HINT, EventAt, Putting, event_named, forget_event, park_event, put_event,
    replay_event, scope_of,
};
pub(crate) use meaning::is_told_by_its_event;
pub use meaning::{is_done_otherwise, resolve};
pub use provider::{
    Entry as ProviderEntry, entries as providers, entry as provider, source as provider_source,
};

/// What the address of everything that arrives begins with.
pub(crate) const PREFIX: &str = "/in/";

/// All inboxes of a configuration.
#[derive(Default)]
pub(crate) struct Inboxes(BTreeMap<String, Arc<Inbox>>);

impl Inboxes {
    /// Reads what an operator wrote, or says everything that is wrong with it.
    pub(crate) fn read(configuration: &Configuration) -> Result<Self, Vec<Wrong>> {
        let mut all = BTreeMap::new();
        let mut wrong = Vec::new();
        for (name, written) in &configuration.inboxes {
            match Inbox::read(name, written, configuration) {
                Ok(inbox) => drop(all.insert(name.clone(), Arc::new(inbox))),
                Err(found) => wrong.extend(found),
            }
        }
        if wrong.is_empty() { Ok(Self(all)) } else { Err(wrong) }
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Arc<Inbox>> {
        self.0.get(name)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Inbox>> {
        self.0.values()
    }

    /// Who is told about an event, if its inbox names somebody.
    pub(crate) fn owner(&self, name: &Name) -> Option<&str> {
        let inbox = self.get(name_in(name.scope.as_str())?)?;
        inbox.owner.as_deref()
    }

    /// What events of each inbox are called: what keys live by (S3).
    pub(crate) fn identities(&self) -> BTreeMap<String, String> {
        let identity = |inbox: &Arc<Inbox>| {
            let text = |expression: &Option<Expression>| {
                expression.as_ref().map_or_else(String::new, |expression| expression.text().to_owned())
            };
            // Called otherwise an event would be handed over again; in another lane, beside another one of its object.
            let identity = format!("{}\n{}\n{}", inbox.id.text(), text(&inbox.lane), text(&inbox.means));
            (inbox.name.clone(), identity)
        };
        self.iter().map(identity).collect()
    }
}

/// The inbox whose events have that scope.
pub(crate) fn inbox_of(scope: &str) -> Option<&str> {
    scope.strip_prefix(TENANT)?.strip_prefix("/in/").filter(|name| !name.contains('/'))
}

/// The inbox a scope belongs to: `default/in/NAME`, with something between the first two for what events mean and for hints.
fn name_in(scope: &str) -> Option<&str> {
    let (before, name) = scope.rsplit_once('/')?;
    let of_tenant = before.strip_prefix(TENANT)?.strip_prefix('/')?;
    (of_tenant == "in" || of_tenant.ends_with("/in")).then_some(name)
}
