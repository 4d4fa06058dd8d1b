//! What an operator should know of an inbox before anybody relies on it.

use super::plan::{Inbox, Target};
use super::{Inboxes, provider};
use crate::config::Configuration;
use crate::config::Secret;
use crate::config::inboxes::{self as written, Algorithm, ProviderChoice, Respond};

/// What it is about, whether the server would refuse to start, and what to do.
type Advice = (String, bool, String);

impl Inboxes {
    /// The checklist: sender known, order known, target safe, kept longer than the sender tries, owner set.
    pub(crate) fn advice(&self, configuration: &Configuration) -> Vec<Advice> {
        let mut all = Vec::new();
        for inbox in self.iter() {
            of_inbox(inbox, configuration, &mut all);
        }
        all
    }
}

fn of_inbox(inbox: &Inbox, configuration: &Configuration, all: &mut Vec<Advice>) {
    let about = format!("inboxes.{}", inbox.name);
    if let Some(owner) = inbox.owner.as_ref().filter(|owner| !configuration.people.contains_key(*owner)) {
        let words = format!("there is nobody called `{owner}` under `people:`");
        all.push((format!("{about}.owner"), true, words));
    }
    let mut warn = |field: &str, words: String| all.push((format!("{about}{field}"), false, words));
    if inbox.owner.is_none() {
        warn(
            "",
            "no `owner:`: everybody with the right is told when an event cannot be handed over".to_owned(),
        );
    }
    if let Some(retries_for) = inbox.retries_for.filter(|span| inbox.policy.retention <= *span) {
        warn(
            ".retention",
            format!(
                "the sender tries for {} h, which is longer than events are kept; a redelivery after that still gets 2xx, but what \
                 it was is gone",
                retries_for.as_secs() / 3600
            ),
        );
    }
    let Some(written) = configuration.inboxes.get(&inbox.name) else { return };
    if let Some(ProviderChoice::Named(name)) = &written.provider
        && let Ok(entry) = provider::entry(name)
    {
        for fact in entry.facts.iter().filter(|fact| !fact.verified) {
            warn(".provider", format!("believed, not verified: {}", fact.says));
        }
        let believed = [
            ("lane", &inbox.lane, &entry.believed.lane),
            ("version", &inbox.version, &entry.believed.version),
        ];
        for (field, has, text) in believed {
            if let (None, Some(text)) = (has, text) {
                warn(
                    &format!(".{field}"),
                    format!("events come in no order; if it is so, write `{field}: {text}`"),
                );
            }
        }
        if entry.provider.signature.0.iter().any(|way| way.algorithm == Algorithm::Secret) {
            warn(
                ".provider",
                "it does not sign: whoever reads one event can send others; use https all the way".to_owned(),
            );
        }
    } else if inbox.lane.is_none() {
        warn(
            ".lane",
            "no `lane:`: events of one object may be handed over at the same time and out of order"
                .to_owned(),
        );
    }
    let shares_secret = |other: &written::Inbox| {
        let revealed = |secret: &Secret| secret.reveal().ok();
        let own: Vec<_> = written.secrets.iter().filter_map(revealed).collect();
        other.secrets.iter().filter_map(revealed).any(|secret| own.contains(&secret))
    };
    let other =
        configuration.inboxes.iter().find(|(name, other)| **name != inbox.name && shares_secret(other));
    if let Some((other, _)) = other.filter(|_| !inbox.verifier.covers_address()) {
        warn(
            ".secrets",
            format!(
                "`{other}` has the same secret, and the signature does not say which of the two an event is for: whoever has read one \
                 could send it to the other; use a secret for each"
            ),
        );
    }
    if inbox.respond == Respond::Target {
        warn(".respond", "senders wait for the target: one that is slow makes them try again".to_owned());
    }
    if let Target::Url { upstream, .. } = &inbox.target {
        if upstream.base().is_in_the_clear() {
            warn(".deliver", "events travel in the clear; use https".to_owned());
        }
        if inbox.signing.is_none() {
            warn(
                ".signing_secret",
                "what is handed over is not signed: the target cannot tell it from what others send there"
                    .to_owned(),
            );
        }
    }
}
