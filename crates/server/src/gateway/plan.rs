//! A destination and its routes, ready to be used: everything an operator wrote is checked here once, and what the catalog
//! knows is filled in.

use std::sync::Arc;

use super::auth::{self, Credentials};
use super::gate::Gate;
use super::mask::{Masks, Words};
use super::pattern::{Pattern, is_read};
use super::pins::{self, Pins};
use super::route::{Asked, Route};
use super::upstream::{Base, Upstream, tls_client};
use crate::catalog;
use crate::config::Span;
use crate::config::destinations::{self as written, Kind, Reads, RecoveryRules, Rules, Unmatched};
use crate::credentials::is_credential;
use hyper::Method;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};

/// Where a destination's name would stand in a scope, events have this.
const RESERVED: &str = "in";

/// A destination, ready to be used.
pub(crate) struct Destination {
    pub(crate) name: String,
    pub(crate) upstream: Upstream,
    pub(crate) credentials: Option<Credentials>,
    pub(crate) headers: HeaderMap,
    pub(crate) gate: Gate,
    /// What is agreed about pins, where it answers prompts.
    pub(crate) pins: Option<Pins>,
    pub(crate) routes: Vec<Arc<Route>>,
    /// Writes that match no route.
    pub(crate) unrouted: Arc<Route>,
    /// Whether those are refused (S46).
    pub(crate) unmatched: Unmatched,
    /// What the configuration has for it that callers must not see.
    secrets: Arc<Words>,
    /// The tenants that may use it, as they are written.
    tenants: Option<Vec<String>>,
    /// Which requests that match no route only read (S44).
    pub(crate) reads: Reads,
}

/// What is wrong, and where.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Wrong {
    pub(crate) about: String,
    pub(crate) words: String,
}

/// Everything wrong so far: an operator wants to see all of it.
pub(crate) struct Notes {
    about: String,
    pub(crate) wrong: Vec<Wrong>,
}

impl Notes {
    pub(crate) fn about(about: String) -> Self {
        Self { about, wrong: Vec::new() }
    }

    pub(crate) fn take<T>(&mut self, field: &str, result: Result<T, String>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(words) => {
                let about = match field {
                    "" => self.about.clone(),
                    field => format!("{}.{field}", self.about),
                };
                self.wrong.push(Wrong { about, words });
                None
            }
        }
    }
}

impl Destination {
    /// Reads what an operator wrote.
    pub(crate) fn read(name: &str, written: &written::Destination) -> Result<Self, Vec<Wrong>> {
        let mut notes = Notes::about(format!("destinations.{name}"));
        notes.take("", check_name(name));
        let known = match &written.r#use {
            Some(entry) => notes.take("use", catalog::entry(entry)).map(|entry| &entry.destination),
            None => None,
        };
        let base = written.base.as_ref().or(known.and_then(|known| known.base.as_ref()));
        let base = match base {
            Some(base) => {
                let base = base.reveal().map_err(|error| error.to_string());
                notes.take("base", base.and_then(|base| Base::parse(&base)))
            }
            None => {
                notes.take("base", Err("it has no `base:` address, and no `use:` that knows one".to_owned()))
            }
        };
        let tls = notes.take("tls", tls_client(written.tls.as_ref()));
        let credentials = match &written.auth {
            Some(auth) => notes.take("auth", Credentials::read(auth, written.tls.as_ref())),
            None => None,
        };
        let headers = notes.take("headers", fixed_headers(written, known));
        let kind = written.kind.or(known.and_then(|known| known.kind)).unwrap_or(Kind::Http);
        let rules = written.pins.clone().unwrap_or_default().or(known.and_then(|known| known.pins.as_ref()));
        let pins = (kind == Kind::Llm).then(|| Pins::read(rules, &mut notes));
        if pins.is_none() && written.pins.is_some() {
            notes.take::<()>("pins", Err("only answers of AI models are pinned; say `kind: llm`".to_owned()));
        }
        let mut limits = written.limits.clone();
        if pins.is_some() {
            limits.concurrency.get_or_insert(pins::CONCURRENCY_DEFAULT);
        }
        let gate = Gate::new(&limits, &written.circuit);
        let (routes, unrouted, reads) = routes(written, known, kind, &mut notes);
        if pins.is_some() {
            refuse_what_pins_have_not(written, &mut notes);
        }
        refuse_idle_expectations(written, pins.is_some(), &mut notes);
        notes.take("tenants", written.check_tenants());
        let unmatched = written.unmatched.or(known.and_then(|known| known.unmatched));
        let unmatched = unmatched.unwrap_or_else(|| unmatched_default(&routes, &unrouted));
        let can_send = written.auth.is_some();
        for route in routes.iter().chain([&unrouted]) {
            if !can_send && (route.approve.is_some() || !route.caps.is_empty()) {
                let action = route.action.as_deref().unwrap_or("(without a route)");
                notes.wrong.push(Wrong {
                    about: format!("destinations.{name}.routes.{action}.approve"),
                    words: "after an approval the server itself sends the request, and this destination has no `auth:`; \
                            add it, or `auth: none` if the destination asks nobody who they are"
                        .to_owned(),
                });
            }
        }
        match (base, tls, headers, notes.wrong.is_empty()) {
            (Some(base), Some(tls), Some(headers), true) => {
                let secrets = secrets(written, &base, &headers);
                Ok(Self {
                    name: name.to_owned(),
                    upstream: Upstream::new(base, written.private, tls),
                    credentials,
                    headers,
                    gate,
                    pins,
                    routes,
                    unrouted,
                    reads,
                    unmatched,
                    secrets: Arc::new(secrets),
                    tenants: written.tenants.clone(),
                })
            }
            _ => Err(notes.wrong),
        }
    }

    /// The route a request takes, with the parameters of its path.
    pub(crate) fn route(&self, method: &Method, path: &str) -> (&Arc<Route>, Vec<(String, String)>) {
        let found = |method: &Method| {
            self.routes.iter().find_map(|route| {
                let parameters = route.pattern.as_ref()?.parameters(method, path)?;
                Some((route, parameters))
            })
        };
        // A HEAD reads what a GET reads.
        let of_get = || found(&Method::GET).filter(|(route, _)| route.is_read && *method == Method::HEAD);
        found(method).or_else(of_get).unwrap_or((&self.unrouted, Vec::new()))
    }

    /// Returns whether a request that takes this route only reads, and is passed on (S44).
    pub(crate) fn lets_pass(&self, route: &Route, method: &Method) -> bool {
        route.is_read || route.pattern.is_none() && self.reads == Reads::ByMethod && is_read(method)
    }

    /// What is masked in its answers.
    pub(crate) fn masks(&self) -> Masks {
        let fetched = self.credentials.as_ref().and_then(Credentials::fetched);
        Masks { configured: self.secrets.clone(), fetched: fetched.unwrap_or_default() }
    }

    /// Whether a tenant may use it.
    pub(crate) fn serves(&self, tenant: &str) -> bool {
        written::is_served(self.tenants.as_deref(), tenant)
    }

    /// The other route that the destination could take a request for, if it is less strict about paths than routes are (S46).
    pub(crate) fn mistaken_for(
        &self,
        method: &Method,
        loose: &[String],
        taken: &Arc<Route>,
    ) -> Option<&Arc<Route>> {
        let could_be = |route: &&Arc<Route>| {
            route.pattern.as_ref().is_some_and(|pattern| pattern.could_be(method, loose))
        };
        let other = self.routes.iter().find(could_be)?;
        let is_told_apart = match (&taken.pattern, &other.pattern) {
            (Some(own), Some(other)) => own.says_as_much_as(other),
            _ => false,
        };
        let pass_both = self.lets_pass(taken, method) && self.lets_pass(other, method);
        (!Arc::ptr_eq(other, taken) && !is_told_apart && !pass_both).then_some(other)
    }

    /// Whether it is what models are asked by, where the destination answers prompts.
    pub(crate) fn is_prompt(&self, method: &Method, path: &str) -> bool {
        self.pins.is_some() && pins::is_prompt(method, path)
    }

    /// Whether some route could be meant by such a path.
    pub(crate) fn has_route_for(&self, method: &Method, loose: &[String]) -> bool {
        let patterns = self.routes.iter().filter_map(|route| route.pattern.as_ref());
        patterns.into_iter().any(|pattern| pattern.could_be(method, loose))
    }

    /// The route with that action.
    pub(crate) fn action(&self, action: &str) -> Option<&Arc<Route>> {
        self.routes.iter().find(|route| route.action.as_deref() == Some(action))
    }

    /// Whether the server can send without a caller: it knows how to identify itself, or need not.
    pub(crate) fn sends_by_itself(&self) -> bool {
        self.credentials.is_some()
    }
}

pub(crate) fn check_name(name: &str) -> Result<(), String> {
    if name == RESERVED {
        return Err("`in` is where events arrive; call it otherwise".to_owned());
    }
    let is_fit = !name.is_empty()
        && name.len() <= 60
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
        && name.starts_with(|c: char| c.is_ascii_alphanumeric());
    match is_fit {
        true => Ok(()),
        false => Err("names of destinations and inboxes are at most 60 letters, digits and . _ -, and begin with one of the first two".to_owned()),
    }
}

/// Returns whether writes without a route are refused where nobody says: they would go past what the routes ask for (S46).
pub(super) fn unmatched_default(routes: &[Arc<Route>], unrouted: &Route) -> Unmatched {
    let asks = |route: &Arc<Route>| {
        !route.is_read && (route.approve.is_some() || !route.caps.is_empty() || route.facts.moves_money)
    };
    // Where things are counted, a person is asked about each write without a route.
    let is_asked_anyway = matches!(unrouted.approve, Some(Asked::Always)) || !unrouted.caps.is_empty();
    match routes.iter().any(asks) && !is_asked_anyway {
        true => Unmatched::Refuse,
        false => Unmatched::Guard,
    }
}

/// Shortest step of a base address that may be a secret.
const SECRET_STEP_BYTES_MIN: usize = 20;

/// Returns what the configuration has for a destination that callers must not see.
fn secrets(written: &written::Destination, base: &Base, headers: &HeaderMap) -> Words {
    let mut all: Vec<String> = written.auth.iter().flat_map(auth::secrets).collect();
    let of_headers = headers.iter().filter(|(name, _)| is_credential(name));
    for text in of_headers.filter_map(|(_, value)| value.to_str().ok()) {
        all.push(auth::without_scheme(text));
    }
    let steps = base.steps().filter(|step| step.len() >= SECRET_STEP_BYTES_MIN);
    all.extend(steps.map(str::to_owned));
    Words::of(all.iter().map(String::as_str))
}

fn fixed_headers(
    written: &written::Destination,
    known: Option<&written::Destination>,
) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    let all = known.into_iter().chain([written]).flat_map(|destination| &destination.headers);
    for (name, value) in all {
        let parsed =
            HeaderName::from_bytes(name.as_bytes()).map_err(|_| format!("`{name}` is not a header"))?;
        let text = value.reveal().map_err(|error| error.to_string())?;
        let text =
            HeaderValue::from_str(&text).map_err(|_| format!("what `{name}` holds cannot be in a header"))?;
        headers.insert(parsed, text);
    }
    Ok(headers)
}

/// The operator's routes, then those of the catalog that they do not name. What an operator says goes before what the catalog
/// knows.
fn routes(
    written: &written::Destination,
    known: Option<&written::Destination>,
    kind: Kind,
    notes: &mut Notes,
) -> (Vec<Arc<Route>>, Arc<Route>, Reads) {
    let about = notes.about.clone();
    let of_all = || written.rules();
    let of_kind = || match kind {
        Kind::Llm => Rules { timeout: Some(Span(pins::TIMEOUT_DEFAULT)), ..Rules::default() },
        Kind::Http => Rules::default(),
    };
    let of_catalog = || known.map(written::Destination::rules).unwrap_or_default().or(of_kind());
    let known_routes = known.map_or(&[][..], |known| &known.routes);
    let is_sibling = |own: &written::Route, other: &written::Route| match &own.action {
        Some(action) => other.action.as_ref() == Some(action),
        None => own.r#match == other.r#match,
    };
    let own = written.routes.iter().map(|route| {
        let sibling = known_routes.iter().find(|other| is_sibling(route, other));
        let rules = route
            .rules()
            .or(of_all())
            .or(sibling.map(written::Route::rules).unwrap_or_default())
            .or(of_catalog());
        let action = route.action.clone().or(sibling.and_then(|sibling| sibling.action.clone()));
        (route, action, rules)
    });
    let others = known_routes.iter().filter(|other| {
        !written.routes.iter().any(|own| is_sibling(own, other) && own.r#match == other.r#match)
    });
    let others = others.map(|route| {
        let rules = of_all().or(route.rules()).or(of_catalog());
        (route, route.action.clone(), rules)
    });
    let all: Vec<(&written::Route, Option<String>, Rules)> = own.chain(others).collect();
    let needs_care = of_all().needs_care() || all.iter().any(|(_, _, rules)| rules.needs_care());
    let by_default = if needs_care { Reads::Listed } else { Reads::ByMethod };
    let reads = written.reads.or(known.and_then(|known| known.reads)).unwrap_or(by_default);
    let mut routes = Vec::new();
    for (number, (route, action, rules)) in all.into_iter().enumerate() {
        let shown = action.clone().unwrap_or_else(|| (number + 1).to_string());
        notes.about = format!("{about}.routes.{shown}");
        let pattern = notes.take("match", Pattern::parse(&route.r#match));
        let by_method = pattern.as_ref().is_some_and(Pattern::reads);
        let is_read = route.read || reads == Reads::ByMethod && by_method;
        match is_read {
            false if by_method && action.is_none() => {
                let words = "reads are listed at this destination: say `read: true` if this route only reads, and give it an `action:` if it \
                             changes something";
                notes.take::<()>("read", Err(words.to_owned()));
            }
            false => drop(notes.take("action", check_action(action.as_deref()))),
            // Nobody may rely on what is passed over.
            true => {
                for field in route.rules().that_only_writes_have(false) {
                    let words = "reads are passed on as they are; if this one changes something, write `match: ANY ...`";
                    notes.take::<()>(field, Err(words.to_owned()));
                }
            }
        }
        routes.extend(Route::read(pattern, action, is_read, rules, notes).map(Arc::new));
    }
    notes.about = about;
    refuse_what_is_passed_over(written, notes);
    let mut of_unrouted = of_all().or(of_catalog());
    // That doing it again is harmless is said of an action one knows (S24).
    of_unrouted.recovery.take_if(|recovery| *recovery == RecoveryRules::Repeat);
    let unrouted = Route::read(None, None, false, of_unrouted, notes);
    let plain = || Route::read(None, None, false, Rules::default(), notes).expect("nothing is asked for");
    (routes, Arc::new(unrouted.unwrap_or_else(plain)), reads)
}

/// What an operator wrote and nothing would ever look at.
fn refuse_what_is_passed_over(written: &written::Destination, notes: &mut Notes) {
    let about = notes.about.clone();
    let both = "`fingerprint` names all that is compared, so there is nothing for `ignore` to leave out: say one of them";
    if written.fingerprint.is_some() && written.ignore.is_some() {
        notes.take::<()>("ignore", Err(both.to_owned()));
    }
    let mut before: Vec<(Pattern, &str)> = Vec::new();
    for route in &written.routes {
        notes.about = format!("{about}.routes.{}", route.action.as_deref().unwrap_or(&route.r#match));
        if route.fingerprint.is_some() && route.ignore.is_some() {
            notes.take::<()>("ignore", Err(both.to_owned()));
        }
        let Ok(pattern) = Pattern::parse(&route.r#match) else { continue };
        if let Some((_, first)) = before.iter().find(|(first, _)| first.covers(&pattern)) {
            let words = format!(
                "no request takes this route: the first that fits counts, and `{first}` above it takes all of them; put what is for \
                 fewer requests first"
            );
            notes.take::<()>("match", Err(words));
        }
        before.push((pattern, &route.r#match));
    }
    notes.about = about;
}

/// What is said of writes and would be passed over for prompts is refused: nobody may rely on it.
fn refuse_what_pins_have_not(written: &written::Destination, notes: &mut Notes) {
    let words = "calls of AI models are pinned by their whole request, nothing else holds for them; say it of a route that is not \
                 for prompts, or of the actions that follow from the answer";
    for field in written.rules().that_only_writes_have(false) {
        notes.take::<()>(field, Err(words.to_owned()));
    }
    let about = notes.about.clone();
    for route in &written.routes {
        let Ok(pattern) = Pattern::parse(&route.r#match) else { continue };
        if route.read || !pins::LAST_STEPS.iter().any(|last| pattern.may_post_to(last)) {
            continue;
        }
        notes.about = format!("{about}.routes.{}", route.action.as_deref().unwrap_or(&route.r#match));
        for field in route.rules().that_only_writes_have(true) {
            notes.take::<()>(field, Err(words.to_owned()));
        }
    }
    notes.about = about;
}

/// What is expected of answers that nobody holds against it.
fn refuse_idle_expectations(written: &written::Destination, is_llm: bool, notes: &mut Notes) {
    let about = notes.about.clone();
    let words = "only whole answers of AI models are held against something: say it of a route for prompts, at a destination of \
                 `kind: llm`";
    if written.expect.is_some() && !is_llm {
        notes.take::<()>("expect", Err(words.to_owned()));
    }
    for route in written.routes.iter().filter(|route| route.expect.is_some()) {
        let is_for_prompts = Pattern::parse(&route.r#match)
            .is_ok_and(|pattern| pins::LAST_STEPS.iter().any(|last| pattern.may_post_to(last)));
        if !is_llm || route.read || !is_for_prompts {
            notes.about = format!("{about}.routes.{}", route.action.as_deref().unwrap_or(&route.r#match));
            notes.take::<()>("expect", Err(words.to_owned()));
        }
    }
    notes.about = about;
}

fn check_action(action: Option<&str>) -> Result<(), String> {
    let Some(action) = action else {
        return Err(
            "a route that writes needs `action:`, a name that stays when its path changes: contact.create"
                .to_owned(),
        );
    };
    let is_fit = (1..=100).contains(&action.len())
        && action.chars().all(|c| c.is_ascii_alphanumeric() || "._:@+=-".contains(c));
    match is_fit {
        true => Ok(()),
        false => Err(format!("`{action}` is not a name: at most 100 letters, digits and . _ : @ + = -")),
    }
}
