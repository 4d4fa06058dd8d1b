//! An inbox, ready to be used: everything an operator wrote is checked here once, and what is known of its provider is filled
//! in.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Uri};
use ring::hmac;
use twicesafe_ledger::{Backoff, OnMismatch, OnReview, Policy, Recovery, Scope, VersionMeans};

use super::fresh::Fresh;
use super::provider;
use super::verify::Verifier;
use crate::config::destinations as rules;
use crate::config::inboxes::{
    self as written, Again, Deliver, DeliverRules, Provider, ProviderChoice, Respond, SameBody,
};
use crate::config::{Configuration, Secret};
use crate::gateway::expression::{Expression, OF_EVENT};
use crate::gateway::gate::Gate;
use crate::gateway::mask::Masks;
use crate::gateway::plan::{Notes, Wrong, check_name};
use crate::gateway::upstream::{Base, Upstream, tls_client};

/// Whose events they are.
pub(crate) const TENANT: &str = "default";
const DAY: Duration = Duration::from_secs(24 * 3600);
const RETENTION_DEFAULT: Duration = Duration::from_secs(30 * 24 * 3600);
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);
const IN_FLIGHT_DEFAULT: Duration = Duration::from_secs(10);
const ATTEMPTS_DEFAULT: u32 = 25;
const BACKOFF_DEFAULT: Backoff = Backoff { base: Duration::from_secs(2), cap: Duration::from_secs(6 * 3600) };
/// What is allowed beyond that for waiting in line and for reading.
const ACT_SLACK: Duration = Duration::from_secs(60);
/// Seconds' worth of turns that wait in line, where there are only so many a second.
const IN_LINE_S: u32 = 5;
/// Requests to one target at a time.
const CONCURRENCY_DEFAULT: u32 = 32;
/// Largest event, unless said otherwise, and at all.
const BYTES_DEFAULT: usize = 1 << 20;
const BYTES_MAX: usize = twicesafe_ledger::REQUEST_BYTES_MAX - (64 << 10);
/// Shortest span between hints: each has a number.
const HINT_MIN: Duration = Duration::from_secs(1);

/// How often the log tells of what may happen often, at most.
const COMPLAIN_EVERY: Duration = Duration::from_secs(10);

/// Something that the log tells seldom.
#[derive(Default)]
pub(crate) struct Seldom(Mutex<Option<Instant>>);

impl Seldom {
    /// Whether it is time to tell it again.
    pub(crate) fn is_time(&self) -> bool {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_long_ago = last.is_none_or(|last| last.elapsed() >= COMPLAIN_EVERY);
        if is_long_ago {
            *last = Some(Instant::now());
        }
        is_long_ago
    }
}

/// An inbox, ready to be used.
pub(crate) struct Inbox {
    pub(crate) name: String,
    /// Of its events.
    pub(crate) scope: Scope,
    /// What people call who sends.
    pub(crate) sender: String,
    pub(crate) verifier: Verifier,
    pub(crate) id: Expression,
    pub(crate) lane: Option<Expression>,
    pub(crate) version: Option<Expression>,
    pub(crate) means: Option<Expression>,
    pub(crate) hint: Option<Duration>,
    pub(crate) is_array: bool,
    pub(crate) same_body: SameBody,
    /// What tells a question from an event, and what it wants to hear.
    pub(crate) handshake: Option<(Expression, Expression)>,
    /// It is asked before anything is signed.
    pub(crate) is_asked_unsigned: bool,
    pub(crate) target: Target,
    pub(crate) respond: Respond,
    pub(crate) signing: Option<hmac::Key>,
    pub(crate) policy: Policy,
    pub(crate) timeout: Duration,
    pub(crate) concurrency: usize,
    pub(crate) gate: Gate,
    pub(crate) bytes_max: usize,
    pub(crate) owner: Option<String>,
    /// How long the sender tries again, where that is known.
    pub(crate) retries_for: Option<Duration>,
    pub(crate) answers_within: Option<Duration>,
    pub(crate) fresh: Fresh,
    /// What the log tells seldom: events that are not taken, that stand for themselves, that lack a field, that are late.
    pub(crate) not_taken: Seldom,
    pub(crate) unnamed: Seldom,
    pub(crate) incomplete: Seldom,
    pub(crate) late: Seldom,
    /// Events that came again under another id.
    pub(crate) repeated: Seldom,
}

/// Where events are handed over.
pub(crate) enum Target {
    Url { upstream: Box<Upstream>, path_and_query: String, method: Method, headers: HeaderMap, masks: Masks },
    Destination { name: String, path_and_query: String, method: Method },
}

impl Inbox {
    /// Reads what an operator wrote.
    pub(crate) fn read(
        name: &str,
        written: &written::Inbox,
        configuration: &Configuration,
    ) -> Result<Self, Vec<Wrong>> {
        let mut notes = Notes::about(format!("inboxes.{name}"));
        notes.take("", check_name(name));
        let nobody = Provider::default();
        let (known, sender, believed) = match &written.provider {
            None => (&nobody, "a token".to_owned(), None),
            Some(ProviderChoice::Written(provider)) => (&**provider, "its provider".to_owned(), None),
            Some(ProviderChoice::Named(entry)) => match notes.take("provider", provider::entry(entry)) {
                Some(found) => (&found.provider, entry.clone(), Some(&found.believed)),
                None => (&nobody, String::new(), None),
            },
        };
        // What is wrong with its name was said, and nothing can be said of what it would give.
        let is_unknown = matches!(written.provider, Some(ProviderChoice::Named(_))) && believed.is_none();
        if known.signature.0.is_empty() && !written.secrets.is_empty() && !is_unknown {
            let words = "nothing says how events are signed: name a `provider:` that signs, or leave `secrets:` out; then senders need a token";
            notes.take::<()>("secrets", Err(words.to_owned()));
        }
        let secrets: Vec<Option<String>> = written
            .secrets
            .iter()
            .map(|secret| notes.take("secrets", secret.reveal().map_err(|error| error.to_string())))
            .collect();
        let secrets: Option<Vec<String>> = secrets.into_iter().collect();
        let verifier = secrets.and_then(|secrets| {
            match Verifier::read(&known.signature.0, &secrets, written.url.as_deref()) {
                Ok(verifier) => Some(verifier),
                Err((field, words)) => notes.take(field, Err(words)),
            }
        });
        let id = match written.id.as_ref().or(known.id.as_ref()) {
            Some(text) => notes.take("id", Expression::parse(text, OF_EVENT)),
            None if is_unknown => None,
            None => {
                let hint = match believed.and_then(|believed| believed.id.as_deref()) {
                    Some(id) => format!("it is believed to be `{id}`; write that if you know it is so"),
                    None => "write an expression such as `event.body.id`".to_owned(),
                };
                notes.take("id", Err(format!("nothing says what an event is called: {hint}")))
            }
        };
        let mut expression = |field: &'static str, text: Option<&String>| {
            text.and_then(|text| notes.take(field, Expression::parse(text, OF_EVENT)))
        };
        let lane = expression("lane", written.lane.as_ref().or(known.lane.as_ref()));
        let version = expression("version", written.version.as_ref().or(known.version.as_ref()));
        let means = expression("intent", written.intent.as_ref());
        let handshake = known.handshake.as_ref().and_then(|handshake| {
            let when = expression("provider.handshake.when", Some(&handshake.when))?;
            Some((when, expression("provider.handshake.answer", Some(&handshake.answer))?))
        });
        let is_asked_unsigned = known.handshake.as_ref().is_some_and(|handshake| handshake.unsigned);
        // They would see none; this tells it beforehand.
        let reads_body = |(when, answer): &(Expression, Expression)| {
            [when, answer].iter().any(|expression| expression.text().contains("event.body"))
        };
        if is_asked_unsigned && handshake.as_ref().is_some_and(reads_body) {
            let words = "what is not signed is known by `event.query` and `event.headers` alone: leave `event.body` out";
            notes.take::<()>("provider.handshake", Err(words.to_owned()));
        }
        if version.is_some() && lane.is_none() {
            notes.take::<()>("version", Err("a version is one of something: write `lane:`".to_owned()));
        }
        if version.is_none() && written.version_means == Some(rules::VersionMeans::Snapshot) {
            let words = "nothing says which of two snapshots is newer: write `version:`";
            notes.take::<()>("version_means", Err(words.to_owned()));
        }
        let hint = written.hint.map(|span| span.0);
        if hint.is_some_and(|span| span < HINT_MIN || span > DAY) {
            notes.take::<()>("hint", Err("write a span from 1s to 1d".to_owned()));
        }
        if hint.is_some() && lane.is_none() {
            notes.take::<()>("hint", Err("a hint is about an object: write `lane:`".to_owned()));
        }
        if hint.is_some() && means.is_some() {
            notes.take::<()>("hint", Err("a hint has no meaning of its own: leave `intent:` out".to_owned()));
        }
        let respond = written.respond.unwrap_or_default();
        if respond == Respond::Target && (known.array || hint.is_some()) {
            let words =
                "there is not one answer to wait for: events come in arrays, or only hints are handed over";
            notes.take::<()>("respond", Err(words.to_owned()));
        }
        let target = match &written.deliver {
            Some(deliver) => notes.take("deliver", target(deliver, configuration)),
            None => notes.take(
                "deliver",
                Err("it says nowhere to hand events over: http://127.0.0.1:5678/webhook/orders".to_owned()),
            ),
        };
        let signing = written
            .signing_secret
            .as_ref()
            .and_then(|secret| notes.take("signing_secret", signing_key(secret)));
        if signing.is_some() && matches!(target, Some(Target::Destination { .. })) {
            let words = "a destination gets a call of its own, which is not signed; say at the destination how it knows you: `auth:`";
            notes.take::<()>("signing_secret", Err(words.to_owned()));
        }
        let policy = notes.take("retries", policy(written));
        // What is wrong with it was said of its name already.
        let scope = Scope::new(&super::scope_of(name)).ok();
        let bytes_max = written.bytes_max.map_or(BYTES_DEFAULT, |bytes| bytes as usize);
        if !(1..=BYTES_MAX).contains(&bytes_max) {
            notes.take::<()>("bytes_max", Err(format!("write a number from 1 to {BYTES_MAX}")));
        }
        let in_line =
            written.limits.per_second.map_or(u32::MAX, |per_second| per_second.saturating_mul(IN_LINE_S));
        let concurrency = written.limits.concurrency.unwrap_or(CONCURRENCY_DEFAULT).min(in_line);
        let limits = rules::Limits {
            concurrency: Some(concurrency.clamp(1, 1000)),
            per_second: written.limits.per_second,
        };
        let parts = (verifier, id, target, policy, scope);
        let (Some(verifier), Some(id), Some(target), Some(policy), Some(scope)) = parts else {
            return Err(notes.wrong);
        };
        if !notes.wrong.is_empty() {
            return Err(notes.wrong);
        }
        Ok(Self {
            name: name.to_owned(),
            scope,
            sender,
            verifier,
            id,
            lane,
            version,
            means,
            hint,
            is_array: known.array,
            same_body: written.same_body.or(known.same_body).unwrap_or_default(),
            handshake,
            is_asked_unsigned,
            target,
            respond,
            signing,
            policy,
            timeout: written.timeout.map_or(TIMEOUT_DEFAULT, |span| span.0),
            concurrency: limits.concurrency.unwrap_or(CONCURRENCY_DEFAULT) as usize,
            gate: Gate::new(&limits, &written.circuit),
            bytes_max,
            owner: written.owner.clone(),
            retries_for: known.retries_for.map(|span| span.0),
            answers_within: known.answers_within.map(|span| span.0),
            fresh: Fresh::default(),
            not_taken: Seldom::default(),
            unnamed: Seldom::default(),
            incomplete: Seldom::default(),
            late: Seldom::default(),
            repeated: Seldom::default(),
        })
    }

    /// Whether an event's body has to be understood before it is stored.
    pub(crate) fn reads_bodies(&self) -> bool {
        self.is_array || self.reads(&["body"])
    }

    /// Whether anything that is asked of an event before it is stored may depend on that part of it.
    pub(crate) fn reads(&self, part: &[&str]) -> bool {
        let optional = [&self.lane, &self.version, &self.means].into_iter().flatten();
        let asked = self.handshake.iter().flat_map(|(when, answer)| [when, answer]);
        let mut expressions = std::iter::once(&self.id).chain(optional).chain(asked);
        self.verifier.reads_events() || expressions.any(|expression| expression.may_read(part))
    }
}

/// What is agreed about every event of an inbox.
fn policy(written: &written::Inbox) -> Result<Policy, String> {
    let recovery = match written.recovery.unwrap_or_default() {
        Again::Repeat => Recovery::Repeat,
        Again::Person => Recovery::Person,
    };
    let retries = written.retries.clone().unwrap_or_default();
    let mut policy = Policy::new(recovery);
    policy.attempts_max = retries.attempts.unwrap_or(ATTEMPTS_DEFAULT);
    policy.backoff = Backoff {
        base: retries.base.map_or(BACKOFF_DEFAULT.base, |span| span.0),
        cap: retries.cap.map_or(BACKOFF_DEFAULT.cap, |span| span.0),
    };
    policy.retention = written.retention.map_or(RETENTION_DEFAULT, |span| span.0);
    policy.lease = written.lease.map_or(policy.lease, |span| span.0);
    let timeout = written.timeout.map_or(TIMEOUT_DEFAULT, |span| span.0);
    policy.act_max = policy.act_max.max(policy.lease).max(timeout + ACT_SLACK);
    policy.in_flight_max = written.in_flight_max.map_or(IN_FLIGHT_DEFAULT, |span| span.0);
    policy.on_mismatch = OnMismatch::Note;
    policy.version_means = match written.version_means {
        Some(rules::VersionMeans::Snapshot) => VersionMeans::Snapshot,
        _ => VersionMeans::Order,
    };
    policy.on_review = match written.on_review {
        Some(rules::OnReview::Pass) => OnReview::Pass,
        _ => OnReview::Block,
    };
    policy.unattended = true;
    policy.check().map_err(|error| error.to_string())?;
    Ok(policy)
}

fn target(deliver: &Deliver, configuration: &Configuration) -> Result<Target, String> {
    let rules = match deliver {
        Deliver::Url(url) => &DeliverRules { url: Some(url.clone()), ..DeliverRules::default() },
        Deliver::Rules(rules) => rules,
    };
    let method = match rules.method.as_deref() {
        None => Method::POST,
        Some(text) => Method::from_bytes(text.as_bytes()).map_err(|_| format!("`{text}` is no method"))?,
    };
    match (&rules.url, &rules.to) {
        (Some(url), None) => {
            let text = url.reveal().map_err(|error| error.to_string())?;
            // Not quoted: some addresses have a secret in them.
            let wrong = || {
                let at_destination =
                    text.split('/').next().filter(|name| configuration.destinations.contains_key(*name));
                let to = if at_destination.is_some() { text.as_str() } else { "DESTINATION/PATH" };
                format!(
                    "this is not an address; write http://127.0.0.1:5678/webhook/orders, or {{ to: {to} }} for a destination"
                )
            };
            let names_one =
                text.split('/').next().is_some_and(|name| configuration.destinations.contains_key(name));
            if let Some(words) = mended(&text).filter(|_| !names_one) {
                return Err(words.to_owned());
            }
            let uri: Uri = text.parse().map_err(|_| wrong())?;
            let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
                return Err(wrong());
            };
            let base = Base::parse(&format!("{scheme}://{authority}")).map_err(|_| wrong())?;
            let path_and_query = uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
            let mut headers = HeaderMap::new();
            for (name, value) in &rules.headers {
                let parsed = HeaderName::from_bytes(name.as_bytes())
                    .map_err(|_| format!("`{name}` is not a header"))?;
                let text = value.reveal().map_err(|error| error.to_string())?;
                let text = HeaderValue::from_str(&text)
                    .map_err(|_| format!("what `{name}` holds cannot be in a header"))?;
                headers.insert(parsed, text);
            }
            let tls = tls_client(rules.tls.as_ref())?;
            let upstream = Box::new(Upstream::new(base, rules.private, tls));
            let masks = Masks::of_headers(&headers);
            Ok(Target::Url { upstream, path_and_query, method, headers, masks })
        }
        (None, Some(to)) => {
            let (name, path) = to.split_once('/').unwrap_or((to, ""));
            let Some(destination) = configuration.destinations.get(name) else {
                return Err(format!("there is no destination `{name}` under `destinations:`"));
            };
            if !destination.serves(TENANT) {
                return Err(format!(
                    "the destination `{name}` does not serve the tenant `{TENANT}`, whose the inboxes are: name it under `tenants:`"
                ));
            }
            if !rules.headers.is_empty() || rules.tls.is_some() || rules.private {
                return Err("headers and certificates are said at the destination".to_owned());
            }
            Ok(Target::Destination { name: name.to_owned(), path_and_query: format!("/{path}"), method })
        }
        _ => Err("write either `url:` or `to: DESTINATION/PATH`".to_owned()),
    }
}

/// What is wrong with an address that is nearly one. It is not quoted: it may have a secret in it.
fn mended(text: &str) -> Option<&'static str> {
    let (scheme, rest) = text.split_once("://").unwrap_or(("", text));
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    let is_host = authority.contains(['.', ':']) || authority == "localhost";
    match scheme {
        "" if is_host => Some("it has no scheme: begin it with https://, or with http:// on this machine"),
        "http" | "https" if authority.contains('@') => Some(
            "a user and a password are not taken from an address; write { url: ..., headers: { authorization: \"Basic ${BASE64}\" } } with \
             the base64 of USER:PASSWORD",
        ),
        _ => None,
    }
}

/// A secret as Standard Webhooks write it.
fn signing_key(secret: &Secret) -> Result<hmac::Key, String> {
    let text = secret.reveal().map_err(|error| error.to_string())?;
    let wrong = || "write `whsec_` and base64 of 24 to 64 random bytes".to_owned();
    let bytes = STANDARD.decode(text.strip_prefix("whsec_").ok_or_else(wrong)?).map_err(|_| wrong())?;
    match (24..=64).contains(&bytes.len()) {
        true => Ok(hmac::Key::new(hmac::HMAC_SHA256, &bytes)),
        false => Err(wrong()),
    }
}
