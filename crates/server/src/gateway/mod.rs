//! The gateway: `/to/{destination}/{path}` goes to the destination's base address and nowhere else. Every write is claimed,
//! sent once, answered from the ledger when it is repeated, and looked up or parked when nobody knows. Reads pass.

pub(crate) mod act;
pub(crate) mod answer;
mod auth;
pub(crate) mod bypass;
mod callback;
mod caps;
mod checklist;
mod content;
mod due;
mod evaluate;
pub(crate) mod expression;
mod fingerprint;
pub(crate) mod gate;
mod graphql;
mod guarded;
mod lookup;
mod loose;
pub(crate) mod mask;
mod observe;
mod outcome;
mod passing;
pub(crate) mod pattern;
mod pause;
pub(crate) mod pins;
mod place;
pub(crate) mod plan;
mod reads;
mod redirect;
mod report;
mod route;
pub(crate) mod sending;
mod spec;
mod template;
mod told;
pub(crate) mod upstream;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use hyper::Method;
use hyper::header::HeaderMap;
use serde::{Deserialize, Serialize};
use twicesafe_ledger::{Code, Name, Status};

use crate::access::{Principal, Right};
use crate::config::Configuration;
use crate::config::destinations::{Mode, Unmatched};
use crate::credentials;
use crate::http::{Problem, Request, Response};
use crate::server::Shared;
use pattern::MadeAction;
use plan::{Destination, Wrong};
use route::Route;
use sending::Sending;

pub(crate) use callback::keep_promises;
pub(crate) use caps::Counts;
pub(crate) use due::Due;
pub(crate) use guarded::is_rehearsal;
pub(crate) use observe::Recording;
pub use pause::{Pausable, pause, paused, resume};
pub(crate) use pause::{Pauses, keep_pauses};
pub use pins::is_pin;
pub use report::{Observed, observed};
pub use spec::{Spec, specs};
pub(crate) use told::of_answer as answer_kept;

/// What the address of everything that goes to a destination begins with.
pub(crate) const PREFIX: &str = "/to/";
/// Largest request that is guarded: it is kept with its intent.
const REQUEST_BYTES_MAX: usize = twicesafe_ledger::REQUEST_BYTES_MAX - (64 << 10);

/// How long who only passes something on waits for the ledger to say who may.
const GO_ON_AFTER: Duration = Duration::from_millis(250);

/// All destinations of a configuration.
#[derive(Default)]
pub(crate) struct Destinations(HashMap<String, Arc<Destination>>);

impl Destinations {
    /// Reads what an operator wrote, or says everything that is wrong with it.
    pub(crate) fn read(configuration: &Configuration) -> Result<Self, Vec<Wrong>> {
        let mut all = HashMap::new();
        let mut wrong = Vec::new();
        for (name, written) in &configuration.destinations {
            match Destination::read(name, written) {
                Ok(destination) => drop(all.insert(name.clone(), Arc::new(destination))),
                Err(found) => wrong.extend(found),
            }
        }
        if wrong.is_empty() { Ok(Self(all)) } else { Err(wrong) }
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Arc<Destination>> {
        self.0.get(name)
    }

    /// Returns whether any route may hold a request for a person: by `approve`, or over a cap.
    pub(crate) fn ask_people(&self) -> bool {
        let asks = |route: &Arc<Route>| route.approve.is_some() || !route.caps.is_empty();
        self.iter().any(|destination| destination.routes.iter().any(asks) || asks(&destination.unrouted))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Destination>> {
        self.0.values()
    }

    /// The destination and the route an intent belongs to, by its scope: destination and action are its last two parts (S3).
    pub(crate) fn of_scope(&self, scope: &str) -> Option<(&Arc<Destination>, Option<&Arc<Route>>)> {
        if is_observed(scope) {
            return None;
        }
        let mut parts = scope.rsplit('/');
        let (action, destination) = (parts.next()?, parts.next()?);
        let destination = self.get(destination)?;
        Some((destination, destination.action(action)))
    }

    /// Who is told about an intent, if its route or destination names somebody.
    pub(crate) fn owner(&self, name: &Name) -> Option<&str> {
        let (destination, route) = self.of_scope(name.scope.as_str())?;
        route.map_or(&destination.unrouted, |route| route).owner.as_deref()
    }

    /// Every action there is, by destination, with what its keys are made of and where the destination takes one: what keys
    /// live by.
    pub(crate) fn actions(&self) -> BTreeMap<(String, String), Identity> {
        let mut all: BTreeMap<(String, String), Identity> = BTreeMap::new();
        for destination in self.iter() {
            for route in destination.routes.iter().filter(|route| !route.is_read) {
                let Some(action) = &route.action else { continue };
                let identity = all.entry((destination.name.clone(), action.clone())).or_default();
                let account = route.account.as_ref().map_or("", |account| account.text());
                identity.names.insert(format!("{account} {}", route.key_words()));
                if let Some(native) = &route.native_key {
                    identity.native_keys.insert(format!("{:?} {:?}", native.place, native.bytes_max));
                }
            }
        }
        all
    }

    /// What writes that had no route were called, where they have one now that calls them otherwise.
    pub(crate) fn formerly_unrouted(&self) -> Vec<(String, MadeAction)> {
        let mut all = Vec::new();
        for destination in self.iter() {
            for route in &destination.routes {
                let Some(made) = route.pattern.as_ref().map(pattern::Pattern::made_action) else {
                    continue;
                };
                let is_same = route.action.as_ref().is_some_and(|action| made.is(action))
                    && route.key.is_none()
                    && route.account.is_none();
                if !is_same {
                    all.push((destination.name.clone(), made));
                }
            }
        }
        all
    }
}

/// What the keys of an action live by.
#[derive(Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Identity {
    /// Accounts and keys, as they are written.
    names: BTreeSet<String>,
    /// Where the destination takes a key of ours.
    native_keys: BTreeSet<String>,
}

impl Identity {
    /// Whether keys that lived by the other still do.
    pub(crate) fn carries_on(&self, before: &Self) -> bool {
        let has_both = !self.native_keys.is_empty() && !before.native_keys.is_empty();
        self.names.is_superset(&before.names)
            && (!has_both || self.native_keys.is_superset(&before.native_keys))
    }
}

/// Whether a scope holds what was only watched.
pub(crate) fn is_observed(scope: &str) -> bool {
    let parts: Vec<&str> = scope.split('/').collect();
    matches!(parts.as_slice(), [_, second, _, _, what] if *second == observe::OBSERVED
        && ["seen", "prevented", "refused"].contains(what))
}

/// A request for a destination, and where it goes.
struct Arrival<'a> {
    shared: &'a Arc<Shared>,
    principal: Principal,
    destination: Arc<Destination>,
    route: Arc<Route>,
    parameters: Vec<(String, String)>,
    path: String,
    /// Why it would be refused where it is only watched.
    objection: Option<Problem>,
}

/// Answers whatever comes to `/to/`.
pub(crate) async fn answer(shared: &Arc<Shared>, request: &mut Request) -> Result<Response, Problem> {
    Ok(found(shared, request).await?.harmless())
}

async fn found(shared: &Arc<Shared>, request: &mut Request) -> Result<Response, Problem> {
    bypass::check_head(request)?;
    if shared.access.is_stale() {
        match is_recorded(shared, request) {
            false => refresh_or_go_on(shared).await,
            true => shared.access.refresh().await?,
        }
    }
    let principal = shared.access.principal_by_own_header(request).await?;
    carried(shared, principal, request).await
}

/// What is not recorded is passed on also while the ledger is away: by the tokens as they were last known.
async fn refresh_or_go_on(shared: &Arc<Shared>) {
    if shared.access.is_due() {
        let reading = shared.clone();
        // In a task of its own, so that it comes to its end whoever waits for it.
        let reading = tokio::spawn(async move { reading.access.refresh().await });
        let _ = tokio::time::timeout(GO_ON_AFTER, reading).await;
    }
}

/// Whether a request would be guarded, by its route.
fn is_recorded(shared: &Shared, request: &Request) -> bool {
    let rest = request.path().strip_prefix(PREFIX).unwrap_or_default();
    let (name, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (destinations, path) = (shared.destinations(), pattern::canonical_path(&format!("/{path}")));
    let (Some(destination), Some(path)) = (destinations.get(name), path) else { return true };
    let (route, _) = destination.route(&request.method, &path);
    !destination.lets_pass(route, &request.method)
        && (route.mode == Mode::Guard || destination.pins.is_some())
}

/// The same for somebody who is known: what an inbox hands over to a destination.
pub(crate) async fn carried(
    shared: &Arc<Shared>,
    principal: Principal,
    request: &mut Request,
) -> Result<Response, Problem> {
    principal.demand(Right::Act)?;
    let rest = request.path().strip_prefix(PREFIX).unwrap_or_default();
    let (name, path) = match rest.split_once('/') {
        Some((name, path)) => (name, format!("/{path}")),
        None => (rest, "/".to_owned()),
    };
    // Somebody else's destination is not there for a tenant that it does not serve (S46).
    let tenant = principal.tenant();
    let destination = shared.destinations().get(name).filter(|found| found.serves(tenant)).cloned();
    let destination = destination.ok_or_else(|| {
        Problem::new(
            Code::NoSuchDestination,
            "there is no destination with that name",
            "Name it under `destinations:` in the configuration, with the tenants that may use it; the address is /to/NAME/PATH.",
        )
    })?;
    let (work, path) = match &destination.pins {
        Some(_) => pins::work_in_path(&path)?,
        None => (None, path),
    };
    let path = pattern::canonical_path(&path).ok_or_else(|| {
        Problem::bad_request(
            "the path is too long, badly encoded, or has steps like `..`",
            "Write the path as the destination has it.",
        )
    })?;
    shared.pauses.check(&destination.name, principal.token())?;
    let (route, parameters) = destination.route(&request.method, &path);
    let (route, is_read) = (route.clone(), destination.lets_pass(route, &request.method));
    let mode = route.mode;
    let objection = objection(&destination, &route, &request.method, &path)?;
    let bytes_max = if destination.pins.is_some() { pins::REQUEST_BYTES_MAX } else { REQUEST_BYTES_MAX };
    request.read_body(bytes_max).await?;
    if !destination.is_prompt(&request.method, &path) {
        bypass::check_body(request)?;
    }
    let arrival =
        Arrival { shared, principal, destination: destination.clone(), route, parameters, path, objection };
    let (answered, what) = match (is_read, mode) {
        (true, _) => (Box::pin(reads::pass(arrival, request, reads::TRIES_MAX)).await, "read"),
        (false, _) if let Some(pins) = &destination.pins => {
            let answered = Box::pin(pins::answer(arrival, pins, request, work)).await;
            return answered.map(|response| redirect::kept_here(response, &destination));
        }
        (false, Mode::Observe) => (Box::pin(observe::answer(arrival, request)).await, "observed"),
        (false, Mode::Guard) => {
            let answered = Box::pin(guarded::answer(arrival, request)).await;
            let what = answered.as_ref().map_or("refused here", |response| came_to(&response.headers));
            (answered, what)
        }
    };
    shared.metrics.destination(&destination.name, what);
    answered.map(|response| redirect::kept_here(response, &destination))
}

/// Refuses a request that goes past the routes (S46): the destination could take it for one of another route, or it is a write that
/// matches none. Where it is only watched, the reason is returned.
fn objection(
    destination: &Destination,
    route: &Arc<Route>,
    method: &Method,
    path: &str,
) -> Result<Option<Problem>, Problem> {
    if route.pattern.as_ref().is_some_and(pattern::Pattern::is_all_words) {
        return Ok(None);
    }
    let (mut is_guarded, loose) = (route.mode == Mode::Guard, loose::loose_path(path));
    let mistaken_for = destination.mistaken_for(method, &loose, route);
    // What the other route guards is guarded, whatever this one does.
    is_guarded |= mistaken_for.is_some_and(|other| other.mode == Mode::Guard);
    match going_past(destination, route, mistaken_for, method, path, &loose) {
        Some(problem) if is_guarded => Err(problem),
        objection => Ok(objection),
    }
}

fn going_past(
    destination: &Destination,
    route: &Arc<Route>,
    mistaken_for: Option<&Arc<Route>>,
    method: &Method,
    path: &str,
    loose: &[String],
) -> Option<Problem> {
    if let Some(other) = mistaken_for {
        let pattern = other.pattern.as_ref().map(ToString::to_string).unwrap_or_default();
        return Some(bypass::another(format!(
            "its path differs from that of the route `{pattern}` only in how it is written, and the destination could take it for that"
        )));
    }
    let passes = destination.lets_pass(route, method) || destination.is_prompt(method, path);
    if passes || destination.unmatched == Unmatched::Guard {
        return None;
    }
    match &route.pattern {
        None => Some(no_route(destination, method, path)),
        Some(_) if destination.has_route_for(method, loose) => None,
        Some(_) => Some(bypass::another(
            "the destination could read its encoded slashes as steps, and would then have no route for it"
                .to_owned(),
        )),
    }
}

/// The write matches no route, and such writes are refused.
fn no_route(destination: &Destination, method: &Method, path: &str) -> Problem {
    let (at, folded) = (&destination.name, pattern::folded(path));
    let action = guarded::made_action(method, &folded);
    let message = format!("no route matches {method} {folded}, and `{at}` takes no write without one");
    if pattern::is_read(method) {
        return Problem::new(Code::NoRoute, message, guarded::how_to_list(at, method, &folded));
    }
    let hint = format!(
        "Add a route to `destinations.{at}.routes`: {{ match: {method} {folded}, action: {action}, key: request.body.SOME_STABLE_ID, \
         recovery: person }}; or let writes without a route be guarded there, without the approvals and caps of routes: unmatched: guard"
    );
    Problem::new(Code::NoRoute, message, hint)
}

/// What a guarded write came to, by what its caller is told.
fn came_to(headers: &HeaderMap) -> &'static str {
    if headers.contains_key("idempotent-replayed") {
        return "replayed";
    }
    let status = headers.get("twicesafe-status").and_then(|value| value.to_str().ok());
    Status::ALL
        .iter()
        .map(|known| known.as_str())
        .find(|known| Some(*known) == status)
        .unwrap_or("refused here")
}

impl Arrival<'_> {
    /// The request as it would leave.
    fn sending(&self, request: &mut Request, callback: Option<String>) -> Sending {
        let whole = request.uri.query();
        let query = whole.and_then(|query| credentials::without_credentials(query, &self.route.open));
        Sending {
            method: request.method.clone(),
            path: self.path.clone(),
            whole_query: whole.filter(|whole| query.as_deref() != Some(whole)).map(str::to_owned),
            query,
            headers: sending::passed_on(&request.headers),
            body: std::mem::take(&mut request.body),
            callback,
        }
    }
}
