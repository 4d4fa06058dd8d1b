//! What an operator should know of a route before anybody relies on it.

use std::sync::Arc;

use twicesafe_ledger::Recovery;

use super::plan::{Destination, unmatched_default};
use super::route::Route;
use super::{Destinations, pins};
use crate::config::Configuration;
use crate::config::destinations::{Mode, OnHold, Reads, Unmatched};

/// What it is about, whether the server would refuse to start, and what to do.
type Advice = (String, bool, String);

impl Destinations {
    /// Returns the writes, by destination and action, that callers make with credentials of their own and that are not told apart by
    /// an account. Writes without a route are all called `*`.
    pub(crate) fn without_account(&self) -> Vec<(&str, &str)> {
        let mut all = Vec::new();
        for destination in self.iter().filter(|one| one.credentials.is_none() && one.pins.is_none()) {
            let routes = destination.routes.iter().chain([&destination.unrouted]);
            let shared = routes.filter(|route| !route.is_read && route.account.is_none());
            all.extend(
                shared.map(|route| (destination.name.as_str(), route.action.as_deref().unwrap_or("*"))),
            );
        }
        all.sort();
        all
    }

    /// The checklist: stable key, recovery known, irreversible behind approval, owner set, expiry set, credentials the server
    /// can use.
    pub(crate) fn advice(&self, configuration: &Configuration) -> Vec<Advice> {
        let mut all = Vec::new();
        let mut destinations: Vec<_> = self.iter().collect();
        destinations.sort_by(|one, other| one.name.cmp(&other.name));
        for destination in destinations {
            of_destination(destination, &mut all);
            of_what_is_taken(destination, &mut all);
            let written = configuration.destinations.get(&destination.name);
            of_reads(destination, written.is_some_and(|written| written.reads.is_some()), &mut all);
            // What the catalog brings along and nobody has spoken of is not nagged about, but for what matters most.
            let is_own = |route: &Route| {
                written.is_some_and(|written| written.routes.iter().any(|own| own.action == route.action))
            };
            let is_for_prompts = |route: &Route| {
                let pattern = route.pattern.as_ref().filter(|_| destination.pins.is_some());
                pattern.is_some_and(|pattern| pins::LAST_STEPS.iter().any(|last| pattern.may_post_to(last)))
            };
            for route in destination.routes.iter().filter(|route| !route.is_read && !is_for_prompts(route)) {
                of_route(destination, route, is_own(route), configuration, &mut all);
            }
        }
        all
    }
}

fn of_destination(destination: &Destination, all: &mut Vec<Advice>) {
    let about = format!("destinations.{}", destination.name);
    let mut warn = |field: &str, words: &str| all.push((format!("{about}{field}"), false, words.to_owned()));
    if let Some(pins) = &destination.pins {
        if !pins.has_window() {
            warn(
                ".pins",
                "calls that name no work are passed on and paid for each time: send Twicesafe-Work, use the address \
                 /to/NAME/@WORK/..., or declare `pins: { window: 10m }`",
            );
        }
    } else if destination.credentials.is_none() {
        warn(
            ".auth",
            "the server cannot identify itself there: what is due again or must be looked up waits for the next caller; \
             add `auth:`, or `auth: none` if nobody is asked who they are",
        );
    }
    if destination.upstream.base().is_in_the_clear() {
        warn(".base", "requests travel in the clear; use https");
    }
    let by_default = unmatched_default(&destination.routes, &destination.unrouted);
    if (destination.unmatched, by_default) == (Unmatched::Guard, Unmatched::Refuse) {
        warn(
            ".unmatched",
            "writes that match no route go past the approvals, caps and money of those that do; write the routes that are missing, and leave \
             `unmatched: guard` out",
        );
    }
    if destination.unrouted.mode == Mode::Observe {
        warn(".mode", "this destination is only observed: nothing is prevented yet");
    }
}

/// Adds what an operator should know of reads that are listed by default, where none is.
fn of_reads(destination: &Destination, is_said: bool, all: &mut Vec<Advice>) {
    let is_none_listed = !destination.routes.iter().any(|route| route.is_read);
    if destination.reads == Reads::Listed && is_none_listed && !is_said {
        let words = "something here asks a person, is counted or moves money, so only routes with `read: true` are reads, and there is none: \
                     every GET is taken for a write; list the reads ({ match: GET /contacts, read: true }), or say `reads: by-method` if no \
                     GET changes anything";
        all.push((format!("destinations.{}.reads", destination.name), false, words.to_owned()));
    }
}

/// What an operator's route for much takes from the catalog's for less. Two of an operator's own are refused before.
fn of_what_is_taken(destination: &Destination, all: &mut Vec<Advice>) {
    for (number, first) in destination.routes.iter().enumerate() {
        let Some(pattern) = &first.pattern else { continue };
        let is_taken = |other: &&Arc<Route>| {
            other.pattern.as_ref().is_some_and(|other| pattern != other && pattern.covers(other))
        };
        let taken: Vec<&str> = destination.routes[number + 1..]
            .iter()
            .filter(is_taken)
            .filter_map(|other| other.action.as_deref())
            .collect();
        if !taken.is_empty() {
            let action = first.action.as_deref().unwrap_or("(read)");
            let words = format!(
                "it takes what the catalog has routes for, and nothing that is known of them is used: {}; write a route for less",
                taken.join(", ")
            );
            all.push((format!("destinations.{}.routes.{action}.match", destination.name), false, words));
        }
    }
}

/// What in a key is made anew for every request, or every run.
fn differing(text: &str) -> Option<&str> {
    const MADE_ANEW: [&str; 10] = [
        "timestamp",
        "sentat",
        "requestid",
        "xrequestid",
        "executionid",
        "runid",
        "traceid",
        "traceparent",
        "nonce",
        "attempt",
    ];
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '-');
    let mut before = "";
    for word in words.filter(|word| !word.is_empty()) {
        let plain: String = word.chars().filter(char::is_ascii_alphanumeric).collect();
        let plain = plain.to_ascii_lowercase();
        if MADE_ANEW.contains(&plain.as_str()) || before == "headers" && plain == "date" {
            return Some(word);
        }
        before = word;
    }
    None
}

fn of_route(
    destination: &Destination,
    route: &Route,
    is_own: bool,
    configuration: &Configuration,
    all: &mut Vec<Advice>,
) {
    let action = route.action.as_deref().unwrap_or_default();
    let about = format!("destinations.{}.routes.{action}", destination.name);
    if let Some(owner) = route.owner.as_ref().filter(|owner| !configuration.people.contains_key(*owner)) {
        all.push((
            format!("{about}.owner"),
            true,
            format!("there is nobody called `{owner}` under `people:`"),
        ));
    }
    if action.ends_with(".create") && route.policy.recovery == Recovery::Repeat {
        let words = "a create is never `repeat`: sent twice, it makes two; use the destination's upsert, its key, a lookup or a person";
        all.push((format!("{about}.recovery"), true, words.to_owned()));
    }
    for part in route.key.iter().flatten() {
        if let Some(word) = differing(part.text()) {
            let words = format!(
                "`{word}` differs on every repetition as a rule, and then nothing is one: name what stays the same, as the number of an \
                 order"
            );
            all.push((format!("{about}.key"), false, words));
        }
    }
    if route.on_hold == Some(OnHold::Callback) && configuration.callbacks.is_empty() {
        let words = "there are no `callbacks:`, so every caller that wants its answer posted is refused: name what their addresses \
                     begin with";
        all.push((format!("{about}.on_hold"), false, words.to_owned()));
    }
    let facts = &route.facts;
    let reasons = [
        (facts.moves_money, "it moves money"),
        (facts.is_irreversible, "it cannot be taken back"),
        (facts.reaches_customers, "customers see it"),
    ];
    let reasons: Vec<&str> = reasons.iter().filter(|(holds, _)| *holds).map(|(_, words)| *words).collect();
    let mut missing = Vec::new();
    if is_own || !reasons.is_empty() {
        if route.key.is_none() {
            missing.push(
                "no `key:`: every caller must send an Idempotency-Key that is the same on every repetition"
                    .to_owned(),
            );
        }
        if !reasons.is_empty() && route.approve.is_none() && route.caps.is_empty() {
            missing.push(format!("no `approve:` and no `caps:`, though {}", reasons.join(", ")));
        }
        if route.owner.is_none() {
            missing.push("no `owner:`: everybody with the right is told".to_owned());
        }
    }
    if is_own {
        if !facts.has_recovery {
            missing.push("no `recovery:`: a person must look whenever nobody knows".to_owned());
        }
        if !facts.has_retention {
            missing.push(
                "no `retention:`: answers are kept for 30 days, and after that a repetition is refused"
                    .to_owned(),
            );
        }
        if let Some(upsert) = &facts.upsert_instead {
            missing.push(format!("the destination has `{upsert}`, which may be repeated"));
        }
    }
    if !missing.is_empty() {
        all.push((about, false, missing.join("; ")));
    }
}
