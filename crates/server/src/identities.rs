//! What keys live by: what actions are called, what their keys are made of, where a destination takes one, what events are called. A
//! configuration that says otherwise would have everything on record done again (S3). A server that runs refuses it; one that starts
//! compares it with what the last one was told, which is kept in the ledger, and says so.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use twicesafe_ledger::{Error, Filter, Ledger};

use crate::gateway::pattern::MadeAction;
use crate::gateway::{Destinations, Identity, is_observed};
use crate::inbox::{self, Inboxes};

/// Where it is kept.
const NOTE: (&str, &str) = ("identities", "last");
/// Intents of a scope that are looked at to see whether keys live there.
const LIVE_LOOKED_AT_MAX: usize = 100;
/// Scopes that are named: each address without a route has one of its own.
const ORPHANED_MAX: usize = 20;

#[derive(Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Identities {
    /// By destination and action.
    actions: Vec<(String, String, Identity)>,
    /// What writes were called that had no route then, by destination.
    formerly_unrouted: Vec<(String, MadeAction)>,
    inboxes: BTreeMap<String, String>,
}

impl Identities {
    pub(crate) fn of(destinations: &Destinations, inboxes: &Inboxes) -> Self {
        let actions = destinations.actions().into_iter();
        Self {
            actions: actions
                .map(|((destination, action), identity)| (destination, action, identity))
                .collect(),
            formerly_unrouted: destinations.formerly_unrouted(),
            inboxes: inboxes.identities(),
        }
    }

    /// What the last server was told; `None`: there was none.
    pub(crate) async fn kept(ledger: &Ledger) -> Result<Option<Self>, Error> {
        let notes = ledger.store().notes(NOTE.0).await?;
        let kept = notes.into_iter().find(|(name, _)| name == NOTE.1);
        Ok(kept.and_then(|(_, text)| serde_json::from_str(&text).ok()))
    }

    /// Keeps it for the next server, together with what is not configured any more: that may come back.
    pub(crate) async fn keep(mut self, ledger: &Ledger, before: Option<Self>) {
        let before = before.unwrap_or_default();
        let unchanged = before.clone();
        for gone in before.actions {
            if !self.actions.iter().any(|action| (&action.0, &action.1) == (&gone.0, &gone.1)) {
                self.actions.push(gone);
            }
        }
        for (name, identity) in before.inboxes {
            self.inboxes.entry(name).or_insert(identity);
        }
        if self == unchanged {
            return;
        }
        let text = serde_json::to_string(&self).unwrap_or_default();
        if let Err(error) = ledger.store().put_note(NOTE.0, NOTE.1, Some(&text)).await {
            tracing::warn!(code = %error.code(), "what keys live by could not be kept for the next start: {error}");
        }
    }

    /// What there is on record that nobody would know any more after this, in words.
    pub(crate) async fn orphaned_by(
        &self,
        after: &Self,
        ledger: &Ledger,
        tenants: &[String],
    ) -> Result<Vec<String>, Error> {
        let carries_on = |(destination, action, identity): &&(String, String, Identity)| {
            let is_same = |other: &(String, String, Identity)| (&other.0, &other.1) == (destination, action);
            after.actions.iter().find(|other| is_same(other)).is_some_and(|now| now.2.carries_on(identity))
        };
        let gone: Vec<_> = self.actions.iter().filter(|action| !carries_on(action)).collect();
        // Writes that had no route and have one now are called otherwise, too.
        let unrouted = after.formerly_unrouted.iter().filter(|made| !self.formerly_unrouted.contains(made));
        let unrouted: Vec<_> = unrouted.collect();
        let is_gone = |scope: &str| {
            let mut parts = scope.rsplit('/');
            let (Some(action), Some(destination)) = (parts.next(), parts.next()) else { return false };
            let is_it = |own: &&(String, String, Identity)| (&*own.0, &*own.1) == (destination, action);
            let has_route = self.actions.iter().any(|own| is_it(&own));
            gone.iter().any(is_it)
                || !has_route && unrouted.iter().any(|(of, made)| of == destination && made.has(action))
        };
        let mut orphaned = Vec::new();
        if !gone.is_empty() || !unrouted.is_empty() {
            for tenant in tenants {
                for scope in ledger.store().scopes(&format!("{tenant}/")).await? {
                    if orphaned.len() < ORPHANED_MAX
                        && is_gone(&scope)
                        && !is_observed(&scope)
                        && has_keys(ledger, &scope).await?
                    {
                        orphaned.push(format!(
                            "there are keys under `{scope}`, and in the new configuration its action, account or key is another: \
                             their repetitions would act again"
                        ));
                    }
                }
            }
        }
        for (name, identity) in &self.inboxes {
            let scope = inbox::scope_of(name);
            if after.inboxes.get(name) != Some(identity) && has_keys(ledger, &scope).await? {
                orphaned.push(format!(
                    "there are events under `{scope}`, and in the new configuration its inbox is gone or calls them otherwise: \
                     what waits would stay, and redeliveries would be handed over again"
                ));
            }
        }
        Ok(orphaned)
    }
}

async fn has_keys(ledger: &Ledger, scope: &str) -> Result<bool, Error> {
    let filter = Filter { scope: Some(scope.to_owned()), ..Filter::default() };
    let live = ledger.store().list(&filter, None, LIVE_LOOKED_AT_MAX).await?;
    Ok(live.intents.iter().any(|stored| !stored.record.is_tombstone()))
}
