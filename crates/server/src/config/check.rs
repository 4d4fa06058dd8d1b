//! The pre-launch checklist: what a file that can be read gets wrong all the same.

use twicesafe_ledger::{Address, Ledger};

use super::{Alert, Configuration};
use crate::access::{Right, Tokens};
use crate::gateway::Destinations;
use crate::http::Tls;
use crate::inbox::Inboxes;

/// Callers that are named in a warning.
const HOLDERS_SHOWN_MAX: usize = 3;
/// Longest name of a person, and shortest secret for links.
const NAME_BYTES_MAX: usize = 100;
const LINK_SECRET_BYTES_MIN: usize = 16;

/// What is wrong with a ledger in a database without a secret.
pub(crate) const NO_SECRET: &str = "the ledger has no secret: who can read the database can sign approval links. Set secret: to ${ENV} or \
     file:PATH, or TWICESAFE_SECRET in the environment, the same for every server and command that uses this ledger";

/// Something the operator should know before anybody relies on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advice {
    /// Whether the server would refuse to start.
    pub is_error: bool,
    /// What it is about, as a path in the configuration.
    pub about: String,
    /// What is wrong, and what to do.
    pub words: String,
}

/// Checks a configuration. With a ledger, tokens are looked at too.
pub async fn check(configuration: &Configuration, ledger: Option<&Ledger>) -> Vec<Advice> {
    let mut found = Found(Vec::new());
    ledger_address(configuration, &mut found);
    ledger_secret(configuration, ledger, &mut found);
    people(configuration, &mut found);
    links(configuration, &mut found);
    if let Some(files) = &configuration.tls
        && let Err(why) = Tls::read(&files.certificate, &files.key)
    {
        found.error("tls", why);
    }
    if let Some(smtp) = &configuration.smtp {
        if let Some(password) = &smtp.password {
            secret("smtp.password", password, &mut found);
        }
        if smtp.from.parse::<lettre::message::Mailbox>().is_err() {
            found.error("smtp.from", "this is not a mail address".to_owned());
        }
    }
    if let Some(traces) = &configuration.traces {
        if traces.otlp.parse::<hyper::Uri>().map_or(true, |uri| uri.host().is_none()) {
            found.error("traces.otlp", "this is not a URL; write http://127.0.0.1:4318".to_owned());
        }
        traces
            .headers
            .iter()
            .for_each(|(name, value)| secret(&format!("traces.headers.{name}"), value, &mut found));
    }
    destinations(configuration, ledger, &mut found).await;
    inboxes(configuration, &mut found);
    reach(configuration, ledger, &mut found).await;
    deciders(configuration, ledger, &mut found).await;
    found.0
}

struct Found(Vec<Advice>);

impl Found {
    fn error(&mut self, about: &str, words: String) {
        self.0.push(Advice { is_error: true, about: about.to_owned(), words });
    }

    fn warning(&mut self, about: &str, words: &str) {
        self.0.push(Advice { is_error: false, about: about.to_owned(), words: words.to_owned() });
    }
}

fn secret(about: &str, secret: &super::Secret, found: &mut Found) {
    if let Err(error) = secret.reveal() {
        found.error(about, error.to_string());
    } else if secret.is_written_out() {
        found.warning(about, "the secret stands in the file itself; use ${ENV} or file:PATH");
    }
}

fn ledger_address(configuration: &Configuration, found: &mut Found) {
    let address = match configuration.ledger_address() {
        Ok(address) => address,
        Err(error) => return found.error("ledger", error.to_string()),
    };
    let is_written_out = configuration.ledger.as_ref().is_some_and(super::Secret::is_written_out);
    if is_written_out && address.as_deref().is_some_and(has_password) {
        found.warning("ledger", "the password stands in the file itself; use ${ENV} or file:PATH");
    }
    match address.as_deref().map(Address::parse) {
        None => found.warning("ledger", "no ledger is named here; --ledger or TWICESAFE_LEDGER must name it"),
        Some(Err(error)) => found.error("ledger", error.to_string()),
        Some(Ok(Address::Memory)) => {
            found.warning(
                "ledger",
                "this ledger forgets everything when the server stops; use it for trying only",
            );
        }
        Some(Ok(_)) => {}
    }
}

/// Says what who can read the ledger can do.
fn ledger_secret(configuration: &Configuration, ledger: Option<&Ledger>, found: &mut Found) {
    if let Some(value) = &configuration.secret {
        secret("secret", value, found);
    }
    if let Err(error) = configuration.ledger_secret() {
        found.error("secret", error.to_string());
    }
    let address = configuration.ledger_address().ok().flatten();
    let is_in_database = address.is_some_and(|at| matches!(Address::parse(&at), Ok(Address::Postgres(_))));
    let has_secret = ledger.map_or(configuration.secret.is_some(), |ledger| ledger.store().has_secret());
    if is_in_database && !has_secret {
        found.warning("secret", NO_SECRET);
    }
    for words in ledger.iter().flat_map(|ledger| ledger.store().warnings()) {
        found.warning("ledger", words);
    }
}

fn has_password(address: &str) -> bool {
    let user =
        address.split_once("://").and_then(|(_, rest)| rest.rsplit_once('@')).map_or("", |(user, _)| user);
    user.contains(':') || address.contains("password=")
}

fn people(configuration: &Configuration, found: &mut Found) {
    for (name, person) in &configuration.people {
        let about = format!("people.{name}");
        if name.len() > NAME_BYTES_MAX || twicesafe_ledger::Actor::new(&format!("person:{name}")).is_err() {
            found.error(
                &about,
                format!("this is not a name: at most {NAME_BYTES_MAX} bytes, no control characters"),
            );
        }
        if person.rights.is_empty() {
            found.warning(&about, "no rights: this person is told nothing; give `approve`, `review` or both");
        }
        if let Some(right) =
            person.rights.iter().find(|right| !matches!(right, Right::Approve | Right::Review))
        {
            let words = format!("`{}` is a right of tokens; people `approve` and `review`", right.as_str());
            found.warning(&about, &words);
        }
        for scope in &person.scopes {
            if let Err(error) = twicesafe_ledger::Scope::new(scope.trim_end_matches('/')) {
                found.error(&format!("{about}.scopes"), error.to_string());
            }
        }
        for alert in &person.alert.0 {
            let about = format!("{about}.alert");
            match alert {
                Alert::Slack(url) | Alert::Webhook(url) => match url.reveal() {
                    Err(error) => found.error(&about, error.to_string()),
                    Ok(text) => match text.parse::<hyper::Uri>() {
                        Ok(uri)
                            if matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some() => {
                        }
                        _ => found
                            .error(&about, "this is not a URL; write https://... or mailto:...".to_owned()),
                    },
                },
                Alert::Mail(address) => {
                    if address.parse::<lettre::message::Mailbox>().is_err() {
                        found.error(&about, format!("`{address}` is not a mail address"));
                    } else if configuration.smtp.is_none() {
                        found.error(&about, "mail needs a mail server: add `smtp:`".to_owned());
                    }
                }
            }
        }
    }
    for (right, what) in [(Right::Approve, "is held"), (Right::Review, "may or may not have happened")] {
        let told = |person: &super::Person| person.rights.contains(&right) && !person.alert.0.is_empty();
        if !configuration.people.values().any(told) {
            let words = format!(
                "nobody is told when something {what}: give somebody `{}` and `alert:`",
                right.as_str()
            );
            found.warning("people", &words);
        }
    }
}

fn links(configuration: &Configuration, found: &mut Found) {
    if let Some(value) = &configuration.links.secret {
        secret("links.secret", value, found);
        if value.reveal().is_ok_and(|text| text.len() < LINK_SECRET_BYTES_MIN) {
            found.error("links.secret", format!("it must have at least {LINK_SECRET_BYTES_MIN} bytes"));
        }
    }
    let is_local = configuration.listen.public.ip().is_loopback();
    match &configuration.links.base {
        Some(base) => {
            let uri = base.parse::<hyper::Uri>().ok();
            match uri.as_ref().and_then(|uri| Some((uri.scheme_str()?, uri.host()?))) {
                None => found.error(
                    "links.base",
                    format!("`{base}` is not a URL; write https://twicesafe.example.com"),
                ),
                Some(("https", _)) => {}
                Some((_, "localhost" | "127.0.0.1" | "[::1]")) => {}
                Some(_) => found.warning("links.base", "links travel in the clear; use https"),
            }
        }
        None if !configuration.people.is_empty() && is_local => {
            found.warning(
                "links.base",
                "links in alerts work on this machine only; set links.base to what people can reach",
            );
        }
        None if !configuration.people.is_empty() && configuration.listen.public.ip().is_unspecified() => {
            found.warning(
                "links.base",
                "nobody can follow links to this address; set it to what people can reach",
            );
        }
        None => {}
    }
}

/// The pre-launch checklist for routes.
async fn destinations(configuration: &Configuration, ledger: Option<&Ledger>, found: &mut Found) {
    for about in configuration.callbacks.iter().filter(|text| {
        !text.parse::<hyper::Uri>().is_ok_and(|uri| uri.scheme().is_some() && uri.host().is_some())
    }) {
        found.error(
            "callbacks",
            format!("`{about}` is not an address; write https://n8n.example.com/webhook-waiting/"),
        );
    }
    let read = match Destinations::read(configuration) {
        Ok(read) => read,
        Err(wrong) => {
            return wrong.into_iter().for_each(|wrong| found.error(&wrong.about, wrong.words));
        }
    };
    for (about, is_error, words) in read.advice(configuration) {
        found.0.push(Advice { is_error, about, words });
    }
    if let Some(ledger) = ledger {
        shared_keys(&read, ledger, found).await;
    }
    for (name, destination) in &configuration.destinations {
        if let Some(auth) = &destination.auth {
            for (field, value) in auth.secrets() {
                secret(&format!("destinations.{name}.auth.{field}"), value, found);
            }
        }
    }
}

/// Warns of destinations where callers show credentials of their own and share keys and answers all the same.
async fn shared_keys(destinations: &Destinations, ledger: &Ledger, found: &mut Found) {
    let (tokens, now) = match (Tokens::read(ledger).await, ledger.store().now().await) {
        (Ok(tokens), Ok(now)) => (tokens, now),
        (Err(error), _) => return found.error("ledger", error.to_string()),
        (_, Err(error)) => return found.error("ledger", error.to_string()),
    };
    for (destination, action) in destinations.without_account() {
        let holders = tokens.holders_reaching(&format!("{destination}/{action}"), now);
        let serves = |tenant: &str| destinations.get(destination).is_some_and(|one| one.serves(tenant));
        let shared = holders.iter().find(|(tenant, names)| names.len() > 1 && serves(tenant));
        let Some((_, names)) = shared else { continue };
        let first: Vec<&str> = names.iter().take(HOLDERS_SHOWN_MAX).map(String::as_str).collect();
        let words = format!(
            "callers bring credentials of their own, and {} callers ({}) share its keys and its answers: one is told what another one did. \
             Name the user with `account:` (an expression over what says who that is: request.headers['x-user-id']), let the server \
             identify itself with `auth:`, or give each caller a tenant",
            names.len(),
            first.join(", "),
        );
        found.warning(&format!("destinations.{destination}.routes.{action}.account"), &words);
    }
}

/// The pre-launch checklist for inboxes.
fn inboxes(configuration: &Configuration, found: &mut Found) {
    for (name, inbox) in &configuration.inboxes {
        let secrets = inbox.secrets.iter().map(|value| ("secrets", value));
        for (field, value) in
            secrets.chain(inbox.signing_secret.iter().map(|value| ("signing_secret", value)))
        {
            if value.is_written_out() {
                let words = "the secret stands in the file itself; use ${ENV} or file:PATH";
                found.warning(&format!("inboxes.{name}.{field}"), words);
            }
        }
    }
    match Inboxes::read(configuration) {
        Ok(read) => {
            for (about, is_error, words) in read.advice(configuration) {
                found.0.push(Advice { is_error, about, words });
            }
        }
        Err(wrong) => wrong.into_iter().for_each(|wrong| found.error(&wrong.about, wrong.words)),
    }
}

async fn reach(configuration: &Configuration, ledger: Option<&Ledger>, found: &mut Found) {
    let listen = &configuration.listen;
    let away: Vec<_> =
        [listen.public, listen.admin].into_iter().filter(|at| !at.ip().is_loopback()).collect();
    if away.is_empty() {
        return;
    }
    if configuration.tls.is_none() {
        found.warning(
            "listen",
            "other machines can reach it and it speaks no TLS: put it behind a proxy that does, or set tls:",
        );
    }
    let Some(ledger) = ledger else {
        let words = "other machines can reach it: without a token in its ledger the server does not start (TS0081); make one: \
                     twicesafe token create";
        return found.warning("listen", words);
    };
    match Tokens::read(ledger).await {
        Ok(tokens) if !tokens.are_needed() => {
            let words = "other machines can reach it and there is no token; make one: twicesafe token create";
            found.error("listen", words.to_owned());
        }
        Ok(_) => {}
        Err(error) => found.error("ledger", error.to_string()),
    }
}

/// Warns where people are asked and no token tells callers apart (S30).
async fn deciders(configuration: &Configuration, ledger: Option<&Ledger>, found: &mut Found) {
    let Ok(destinations) = Destinations::read(configuration) else { return };
    if !destinations.ask_people() {
        return;
    }
    let has_tokens = match ledger {
        Some(ledger) => Tokens::read(ledger).await.is_ok_and(|tokens| tokens.are_needed()),
        None => false,
    };
    if !has_tokens {
        let words = "people are asked (`approve:`, `caps:`) and there is no token: only links in alerts and the command line can decide, \
                     the API cannot; to let people decide over the API, make tokens: twicesafe token create --rights approve";
        found.warning("destinations", words);
    }
}
