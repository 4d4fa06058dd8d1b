//! One action at a destination: what an operator wrote of it, read once and ready to be used.

use std::sync::Arc;
use std::time::Duration;

use hyper::Method;
use hyper::header::HeaderName;
use twicesafe_ledger::{ApprovalRule, Lookup, OnMismatch, OnReview, Policy, Recipe, Recovery, VersionMeans};

use super::expression::{Expression, OF_ANSWER, OF_LOOKUP, OF_LOOKUP_ANSWER, OF_REQUEST};
use super::fingerprint::{self, Compared};
use super::outcome::{Reading, Table};
use super::pattern::Pattern;
use super::pins::Expectation;
use super::place::{Fixed, Place};
use super::plan::Notes;
use super::template::{Document, Template};
use crate::config::destinations::{
    self as written, Approve, Cap, Mode, OnHold, OnSuperseded, RecoveryRules, Rules, Texts, When,
};
use crate::credentials::{is_credential, is_credential_in_query};

/// How long a destination may take, unless said otherwise.
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);
/// What is allowed beyond that for waiting in line and for reading.
const ACT_SLACK: Duration = Duration::from_secs(60);
/// How long a caller waits for an answer (S8), unless said otherwise and at most.
const WAIT_DEFAULT: Duration = Duration::from_secs(25);
const WAIT_MAX: Duration = Duration::from_secs(300);

/// What observing writes where somebody has to choose.
pub(super) const STABLE_ID: &str = "SOME_STABLE_ID";

/// One action, ready to be used.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) pattern: Option<Pattern>,
    /// None: writes that match no route are named after method and path.
    pub(crate) action: Option<String>,
    pub(crate) is_read: bool,
    /// Some expression speaks of headers: most do not, and then they need not be looked at.
    pub(crate) sees_headers: bool,
    pub(crate) key: Option<Vec<Expression>>,
    pub(crate) account: Option<Word>,
    /// Headers that choose whom a request acts for, beside those whose names say so.
    pub(crate) acts_for: Vec<HeaderName>,
    pub(crate) recipe: Recipe,
    pub(crate) lane: Option<Word>,
    pub(crate) version: Option<Expression>,
    pub(crate) work: Option<Word>,
    pub(crate) step: Option<Word>,
    pub(crate) external_id: Option<Expression>,
    pub(crate) owner: Option<String>,
    pub(crate) policy: Policy,
    pub(crate) native_key: Option<NativeKey>,
    pub(crate) lookup: Option<Asking>,
    pub(crate) stamp: Option<Stamp>,
    pub(crate) table: Table,
    pub(crate) timeout: Duration,
    pub(crate) wait: Duration,
    pub(crate) approve: Option<Asked>,
    pub(crate) approval: ApprovalRule,
    pub(crate) on_hold: Option<OnHold>,
    pub(crate) on_superseded: OnSuperseded,
    pub(crate) caps: Vec<Limit>,
    pub(crate) mode: Mode,
    /// Headers that are kept beside those known to hold no secret.
    pub(crate) keep: Vec<String>,
    /// Parameters of the query that are named like credentials and are none.
    pub(crate) open: Vec<String>,
    /// What is expected of an AI's answer.
    pub(crate) expect: Option<Arc<Expectation>>,
    pub(crate) facts: Facts,
}

/// What is known of an action, for the checklist and its spec.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    pub(crate) is_irreversible: bool,
    pub(crate) moves_money: bool,
    pub(crate) reaches_customers: bool,
    pub(crate) upsert_instead: Option<String>,
    pub(crate) verified: Option<String>,
    pub(crate) has_retention: bool,
    pub(crate) has_recovery: bool,
}

/// A fixed name, or what an expression gives.
#[derive(Clone, Debug)]
pub(crate) enum Word {
    Fixed(String),
    Given(Expression),
}

impl Word {
    /// As it is written.
    pub(crate) fn text(&self) -> &str {
        match self {
            Self::Fixed(text) => text,
            Self::Given(expression) => expression.text(),
        }
    }
}

/// When a person must say yes.
#[derive(Clone, Debug)]
pub(crate) enum Asked {
    Always,
    If(Expression),
}

/// What may be done in a day without asking a person.
#[derive(Clone, Debug)]
pub(crate) enum Limit {
    Count(u64),
    Sum(Expression, f64),
}

/// Where the destination takes our key.
#[derive(Clone, Debug)]
pub(crate) struct NativeKey {
    pub(crate) place: Place,
    /// What else the destination wants to see for the key to count.
    pub(crate) with: Fixed,
    pub(crate) bytes_max: Option<usize>,
}

/// Where a request carries a key of ours.
#[derive(Clone, Debug)]
pub(crate) struct Stamp {
    pub(crate) place: Place,
    pub(crate) with: Fixed,
    pub(crate) text: Template,
}

/// How the destination is asked.
#[derive(Clone, Debug)]
pub(crate) struct Asking {
    pub(crate) method: Method,
    pub(crate) address: Template,
    pub(crate) body: Option<Document>,
    pub(crate) headers: Vec<(HeaderName, Template)>,
    pub(crate) found: Option<Expression>,
    /// Whether not finding it says anything.
    pub(crate) conclusive: Option<Expression>,
    pub(crate) external_id: Option<Expression>,
    pub(crate) when: When,
    /// The address is that of the thing itself: a 404 says that it is not there.
    pub(crate) asks_for_itself: bool,
}

/// Keys may name headers: `Idempotency-Key`, which is where a key is looked for anyway, or `X-Order-Id`.
fn by_headers(texts: Texts) -> Option<Texts> {
    let is_header = |text: &str| {
        let mut parts = text.split('-');
        let is_word = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric());
        text.starts_with(|c: char| c.is_ascii_alphabetic()) && parts.all(is_word) && text.contains('-')
    };
    if matches!(&texts.0[..], [only] if only.eq_ignore_ascii_case("idempotency-key")) {
        return None;
    }
    let named = |text: String| match is_header(&text) {
        true => format!("request.headers['{}']", text.to_ascii_lowercase()),
        false => text,
    };
    Some(Texts(texts.0.into_iter().map(named).collect()))
}

fn key_part(text: &str) -> Result<Expression, String> {
    if text.contains(STABLE_ID) {
        return Err(format!(
            "`{STABLE_ID}` stands for a field that is the same on every repetition: write its name"
        ));
    }
    match Expression::parse(text, &[]) {
        Ok(_) => {
            Err(format!("`{text}` is the same for every request; name what differs: request.body.order_id"))
        }
        Err(_) => Expression::parse(text, OF_REQUEST),
    }
}

/// An expression if it speaks of the request, and otherwise a name.
fn word(text: &str) -> Result<Word, String> {
    let speaks = text.match_indices("request").any(|(at, found)| {
        let before = text[..at].chars().next_back();
        let after = text[at + found.len()..].chars().next();
        !before.is_some_and(|c| c.is_alphanumeric() || c == '_') && matches!(after, Some('.' | '['))
    });
    let is_name = text.chars().all(|c| c.is_alphanumeric() || "_-:@+=".contains(c)) && !text.is_empty();
    match (speaks, is_name) {
        (true, _) => Expression::parse(text, OF_REQUEST).map(Word::Given),
        (false, true) => Ok(Word::Fixed(text.to_owned())),
        (false, false) if Expression::parse(text, &[]).is_ok() => Err(format!(
            "`{text}` is the same for every request: a name is written without quotes and brackets"
        )),
        (false, false) => Err(format!(
            "`{text}` is neither a name (letters, digits and _ - : @ + =) nor an expression over the request: request.body.id"
        )),
    }
}

impl Route {
    /// Reads what was written of it; what is wrong is noted.
    pub(super) fn read(
        pattern: Option<Pattern>,
        action: Option<String>,
        is_read: bool,
        mut rules: Rules,
        notes: &mut Notes,
    ) -> Option<Self> {
        let before = notes.wrong.len();
        rules.key = rules.key.and_then(by_headers);
        let expression = |notes: &mut Notes, field: &str, text: &Option<String>, names: &[&str]| {
            text.as_ref().and_then(|text| notes.take(field, Expression::parse(text, names)))
        };
        let a_word = |notes: &mut Notes, field: &str, text: &Option<String>| {
            text.as_ref().and_then(|text| notes.take(field, word(text)))
        };
        let key = rules.key.as_ref().map(|texts| {
            let parse = |text: &String| notes.take("key", key_part(text));
            texts.0.iter().filter_map(parse).collect()
        });
        if let Some(parts) = rules.ignore.as_ref()
            && let Some(wrong) = parts.0.iter().find(|text| !fingerprint::is_part(text))
        {
            notes.take::<()>("ignore", Err(format!("`{wrong}` cannot be left out; name a field of the body or the query: request.body.sent_at")));
        }
        if let Some(texts) = &rules.fingerprint {
            for text in &texts.0 {
                notes.take("fingerprint", Expression::parse(text, OF_REQUEST));
            }
        }
        let (native_key, lookup) = match &rules.recovery {
            Some(RecoveryRules::NativeKey(native, lookup)) => (Some(native), lookup.as_ref()),
            Some(RecoveryRules::Lookup(lookup)) => (None, Some(lookup)),
            _ => (None, None),
        };
        let native_key =
            native_key.and_then(|native| notes.take("recovery.native-key", NativeKey::read(native)));
        let asking = lookup.and_then(|lookup| notes.take("recovery.lookup", Asking::read(lookup)));
        let policy = notes.take("recovery", policy(&rules, lookup));
        let mut route = Self {
            sees_headers: texts(&rules).iter().any(|text| may_see_headers(text)),
            pattern,
            action,
            is_read,
            key,
            account: a_word(notes, "account", &rules.account),
            acts_for: acts_for(&rules, notes),
            // What its expressions read belongs to it: they are read first.
            recipe: Recipe::raw(),
            lane: a_word(notes, "lane", &rules.lane),
            version: expression(notes, "version", &rules.version, OF_REQUEST),
            work: a_word(notes, "work", &rules.work),
            step: a_word(notes, "step", &rules.step),
            external_id: expression(notes, "external_id", &rules.external_id, OF_ANSWER),
            owner: rules.owner.clone(),
            table: Table {
                readings: readings(&rules, notes),
                after_doubt: rules
                    .after_doubt
                    .iter()
                    .flatten()
                    .map(|(status, means)| (*status, (*means).into()))
                    .collect(),
                refusal_replayed_for: rules.refusal_replayed_for.map(|span| span.0),
                has_native_key: native_key.is_some(),
                speaks_graphql: rules.graphql.unwrap_or_default(),
            },
            native_key,
            lookup: asking,
            stamp: rules.stamp.as_ref().and_then(|stamp| notes.take("stamp", Stamp::read(stamp))),
            timeout: rules.timeout.map_or(TIMEOUT_DEFAULT, |span| span.0),
            wait: rules.wait.map_or(WAIT_DEFAULT, |span| span.0.min(WAIT_MAX)),
            approve: approve(&rules, notes),
            approval: approval(&rules),
            on_hold: rules.on_hold,
            on_superseded: rules.on_superseded.unwrap_or(OnSuperseded::Refuse),
            caps: caps(&rules, notes),
            mode: rules.mode.unwrap_or(Mode::Guard),
            expect: rules
                .expect
                .as_ref()
                .and_then(|rules| notes.take("expect", Expectation::read(rules)))
                .map(Arc::new),
            keep: kept(&rules),
            open: open(&rules),
            facts: Facts {
                is_irreversible: rules.irreversible.unwrap_or_default(),
                moves_money: rules.moves_money.unwrap_or_default(),
                reaches_customers: rules.reaches_customers.unwrap_or_default(),
                upsert_instead: rules.upsert_instead.clone(),
                verified: rules.verified.clone(),
                has_retention: rules.retention.is_some(),
                has_recovery: rules.recovery.is_some(),
            },
            policy: policy.clone().unwrap_or_default(),
        };
        if route.version.is_some() && route.lane.is_none() {
            notes.take::<()>("version", Err("a version needs a `lane:`".to_owned()));
        }
        route.recipe = route.compared(&rules, notes).recipe();
        route.refuse_credentials(notes);
        (notes.wrong.len() == before).then_some(route)
    }

    /// What is compared (S4): also what is read to find out whom a request acts for, whether a person is asked (S30), and what
    /// its answer means.
    fn compared(&self, rules: &Rules, notes: &mut Notes) -> Compared {
        let listed = |texts: &Option<Texts>| texts.as_ref().map(|texts| texts.0.clone());
        let mut compared = Compared {
            only: listed(&rules.fingerprint),
            without: listed(&rules.ignore).filter(|_| rules.fingerprint.is_none()),
            headers: self.acts_for.iter().map(|name| name.as_str().to_owned()).collect(),
            open: self.open.clone(),
            ..Compared::default()
        };
        let deciding = ["account", "approve", "caps", "outcomes", "recovery.lookup"];
        for (field, expression) in
            self.expressions().into_iter().filter(|(field, _)| deciding.contains(field))
        {
            let reads = expression.reads();
            for part in compared.without.iter().flatten() {
                if reads.iter().any(|read| fingerprint::is_read_by(part, read)) {
                    let words = format!("`{part}` is read by `{field}`: it cannot be left out");
                    notes.take::<()>("ignore", Err(words));
                }
            }
            compared.add_reads(reads);
        }
        compared
    }

    /// Refuses expressions over credentials: they never see any.
    fn refuse_credentials(&self, notes: &mut Notes) {
        for (field, expression) in self.expressions() {
            for read in expression.reads() {
                let words = match read.iter().map(String::as_str).collect::<Vec<_>>()[..] {
                    ["headers", name, ..]
                        if HeaderName::from_bytes(name.as_bytes()).is_ok_and(|name| is_credential(&name)) =>
                    {
                        format!(
                            "`{name}` is a credential by its name, and expressions do not see any: a new one would make another \
                             intent of the same request. Name what says who the user is: request.headers['x-user-id']"
                        )
                    }
                    ["query", name, ..]
                        if is_credential_in_query(name)
                            && !self.open.iter().any(|open| open.eq_ignore_ascii_case(name)) =>
                    {
                        format!(
                            "`{name}` is a credential by its name, and expressions do not see any; if it is none, say so: keep: [{name}]"
                        )
                    }
                    _ => continue,
                };
                notes.take::<()>(field, Err(words));
            }
        }
    }

    /// All its expressions over requests, by the field they stand in.
    fn expressions(&self) -> Vec<(&'static str, &Expression)> {
        let words =
            [("account", &self.account), ("lane", &self.lane), ("work", &self.work), ("step", &self.step)];
        let given = words.into_iter().filter_map(|(field, word)| match word {
            Some(Word::Given(expression)) => Some((field, expression)),
            _ => None,
        });
        let mut all: Vec<(&'static str, &Expression)> = given.collect();
        all.extend(self.key.iter().flatten().map(|expression| ("key", expression)));
        all.extend(self.version.iter().map(|expression| ("version", expression)));
        all.extend(self.external_id.iter().map(|expression| ("external_id", expression)));
        if let Some(Asked::If(expression)) = &self.approve {
            all.push(("approve", expression));
        }
        let sums = self.caps.iter().filter_map(|cap| match cap {
            Limit::Sum(sum, _) => Some(sum),
            Limit::Count(_) => None,
        });
        all.extend(sums.map(|sum| ("caps", sum)));
        let whens = self.table.readings.iter().filter_map(|reading| reading.when.as_ref());
        all.extend(whens.map(|when| ("outcomes", when)));
        if let Some(stamp) = &self.stamp {
            all.extend(stamp.text.expressions().into_iter().map(|expression| ("stamp", expression)));
        }
        if let Some(asking) = &self.lookup {
            all.extend(asking.expressions().into_iter().map(|expression| ("recovery.lookup", expression)));
        }
        all
    }
}

/// Headers that choose whom a request acts for.
fn acts_for(rules: &Rules, notes: &mut Notes) -> Vec<HeaderName> {
    let read = |text: &String| {
        let name =
            HeaderName::from_bytes(text.as_bytes()).map_err(|_| format!("`{text}` is not a header"))?;
        match is_credential(&name) {
            false => Ok(name),
            true => Err(format!(
                "`{text}` is a credential by its name: a new one would make another intent of the same request. Name a header that \
                 says for whom, or say it with `account:`"
            )),
        }
    };
    let names = rules.acts_for.iter().flat_map(|texts| &texts.0);
    names.filter_map(|text| notes.take("acts_for", read(text))).collect()
}

/// Parameters of the query that are named like credentials and are none, as an operator says.
fn open(rules: &Rules) -> Vec<String> {
    let named = rules.keep.iter().flat_map(|texts| &texts.0);
    named.filter(|name| is_credential_in_query(name)).map(|name| name.to_ascii_lowercase()).collect()
}

/// Headers that are kept: those an operator names, and those that expressions look at, which are no secrets then.
fn kept(rules: &Rules) -> Vec<String> {
    let named = rules.keep.iter().chain(&rules.acts_for).flat_map(|texts| texts.0.clone());
    let texts = texts(rules);
    let seen = texts.iter().filter(|text| may_see_headers(text)).flat_map(|text| {
        // What is quoted may be one.
        text.split(['\'', '"']).skip(1).step_by(2).map(str::to_owned)
    });
    named.chain(seen).collect()
}

/// Everything in it that may be, or hold, an expression over the request.
fn texts(rules: &Rules) -> Vec<String> {
    let lists = [&rules.key, &rules.fingerprint];
    let mut all: Vec<String> = lists.into_iter().flatten().flat_map(|texts| texts.0.clone()).collect();
    let single = [&rules.account, &rules.lane, &rules.version, &rules.work, &rules.step, &rules.external_id];
    all.extend(single.into_iter().flatten().cloned());
    all.extend(asked_about(rules));
    all.extend(rules.stamp.iter().filter_map(|stamp| stamp.r#as.clone()));
    all.extend(rules.outcomes.iter().flat_map(|table| &table.0).filter_map(|reading| reading.when.clone()));
    if let Some(RecoveryRules::Lookup(lookup) | RecoveryRules::NativeKey(_, Some(lookup))) = &rules.recovery {
        let own = [&lookup.get, &lookup.post, &lookup.found, &lookup.conclusive, &lookup.external_id];
        all.extend(own.into_iter().flatten().cloned());
        all.extend(lookup.body.as_ref().map(ToString::to_string));
        all.extend(lookup.headers.values().cloned());
    }
    all
}

/// Whether an expression could look at headers: it does unless every use of the request is plainly of something else.
fn may_see_headers(text: &str) -> bool {
    let dense: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    dense.match_indices("request").any(|(at, word)| {
        let after = &dense[at + word.len()..];
        ![".body", ".query", ".params", ".path", ".method"].iter().any(|other| after.starts_with(other))
    })
}

/// The expressions that decide whether a person is asked.
fn asked_about(rules: &Rules) -> Vec<String> {
    let mut all: Vec<String> = rules.caps.iter().flatten().filter_map(|cap| cap.sum.clone()).collect();
    if let Some(Approve::If(text)) = &rules.approve {
        all.push(text.clone());
    }
    all
}

fn readings(rules: &Rules, notes: &mut Notes) -> Vec<Reading> {
    let Some(outcomes) = &rules.outcomes else { return Vec::new() };
    let read = |reading: &written::Reading| {
        let when = match &reading.when {
            Some(text) => Some(notes.take("outcomes", Expression::parse(text, OF_ANSWER))?),
            None => None,
        };
        Some(Reading { status: reading.status, when, means: reading.means.into() })
    };
    outcomes.0.iter().filter_map(read).collect()
}

fn approve(rules: &Rules, notes: &mut Notes) -> Option<Asked> {
    match rules.approve.as_ref()? {
        Approve::Fixed(true) => Some(Asked::Always),
        Approve::Fixed(false) => None,
        Approve::If(text) => notes.take("approve", Expression::parse(text, OF_REQUEST)).map(Asked::If),
    }
}

fn approval(rules: &Rules) -> ApprovalRule {
    let default = ApprovalRule::default();
    let Some(written) = &rules.approval else { return default };
    ApprovalRule {
        expires_after: written.expires.map_or(default.expires_after, |span| span.0),
        people: written.people.unwrap_or(default.people),
        requester_may_approve: written.requester_may_approve,
    }
}

fn caps(rules: &Rules, notes: &mut Notes) -> Vec<Limit> {
    let read = |cap: &Cap| match (cap.count, &cap.sum, cap.max) {
        (Some(count), None, None) => Some(Limit::Count(count)),
        (None, Some(sum), Some(max)) => {
            notes.take("caps", Expression::parse(sum, OF_REQUEST)).map(|sum| Limit::Sum(sum, max))
        }
        _ => {
            notes.take("caps", Err("write {count: 100}, or {sum: request.body.amount, max: 5000}".to_owned()))
        }
    };
    rules.caps.iter().flatten().filter_map(read).collect()
}

impl NativeKey {
    fn read(written: &written::NativeKeyRules) -> Result<Self, String> {
        let place = match (&written.header, &written.body, &written.query) {
            (None, None, None) => Place::header("Idempotency-Key")?,
            (header, body, query) => Place::read(header.as_deref(), body.as_deref(), query.as_deref())?,
        };
        match written.bytes_max {
            // Fewer could fall together for different intents.
            Some(bytes) if bytes < 16 => Err("a key of fewer than 16 bytes is not one".to_owned()),
            bytes_max => Ok(Self { place, with: Fixed::read(&written.with)?, bytes_max }),
        }
    }
}

impl Stamp {
    fn read(written: &written::Stamp) -> Result<Self, String> {
        let text = Template::parse(written.r#as.as_deref().unwrap_or("{{ destination_key }}"), OF_LOOKUP)?;
        let place =
            Place::read(written.header.as_deref(), written.body.as_deref(), written.query.as_deref())?;
        let with = Fixed::read(&written.with)?;
        Ok(match written.json_in_forms {
            true => Self { place: place.with_json_in_forms(), with: with.with_json_in_forms(), text },
            false => Self { place, with, text },
        })
    }
}

impl Asking {
    fn expressions(&self) -> Vec<&Expression> {
        let mut all = self.address.expressions();
        all.extend(self.body.iter().flat_map(Document::expressions));
        all.extend(self.headers.iter().flat_map(|(_, text)| text.expressions()));
        all.extend(self.found.iter().chain(&self.conclusive).chain(&self.external_id));
        all
    }

    fn read(written: &written::LookupRules) -> Result<Self, String> {
        let (method, address) = match (&written.get, &written.post) {
            (Some(address), None) => (Method::GET, address),
            (None, Some(address)) => (Method::POST, address),
            _ => return Err("a lookup needs either `get:` or `post:`".to_owned()),
        };
        if !address.starts_with('/') {
            return Err(format!(
                "`{address}` does not begin with a slash: it is below the destination's base"
            ));
        }
        let asks_for_itself = method == Method::GET && !address.contains('?');
        if written.found.is_none() && !asks_for_itself {
            return Err(
                "a search answers 200 whether or not it finds anything: say with `found:` when it has"
                    .to_owned(),
            );
        }
        if asks_the_same(written, address) {
            return Err("it asks the same for every intent, and would take what another one did for this one's: name `key`, \
                        `destination_key` or something of the `request` in the address, the body, a header or `found:`"
                .to_owned());
        }
        let header = |(name, text): (&String, &String)| {
            let name =
                HeaderName::from_bytes(name.as_bytes()).map_err(|_| format!("`{name}` is not a header"))?;
            Ok((name, Template::parse(text, OF_LOOKUP)?))
        };
        let expression = |text: &String| Expression::parse(text, OF_LOOKUP_ANSWER);
        Ok(Self {
            method,
            address: Template::parse(address, OF_LOOKUP)?,
            body: written.body.as_ref().map(|body| Document::parse(body, OF_LOOKUP)).transpose()?,
            headers: written.headers.iter().map(header).collect::<Result<_, String>>()?,
            found: written.found.as_ref().map(expression).transpose()?,
            conclusive: written.conclusive.as_ref().map(expression).transpose()?,
            external_id: written.external_id.as_ref().map(expression).transpose()?,
            when: written.when,
            asks_for_itself,
        })
    }
}

/// Whether nothing of a lookup depends on what it is about: neither the question nor how the answer is read.
fn asks_the_same(written: &written::LookupRules, address: &str) -> bool {
    let is_fixed = |text: &String| Template::parse(text, &[]).is_ok();
    Template::parse(address, &[]).is_ok()
        && written.headers.values().all(is_fixed)
        && written.body.as_ref().is_none_or(|body| Document::parse(body, &[]).is_ok())
        && written.found.as_ref().is_none_or(|found| Expression::parse(found, &["answer"]).is_ok())
}

/// What is agreed with the ledger (S14).
fn policy(rules: &Rules, lookup: Option<&written::LookupRules>) -> Result<Policy, String> {
    let mut policy = Policy::default();
    if let Some(lease) = rules.lease {
        policy.lease = lease.0;
    }
    let timeout = rules.timeout.map_or(TIMEOUT_DEFAULT, |span| span.0);
    policy.act_max = policy.lease.max(timeout + ACT_SLACK);
    let in_flight_max = lookup.and_then(|lookup| lookup.in_flight_max).or(rules.in_flight_max);
    policy.in_flight_max = in_flight_max.map_or(policy.in_flight_max, |span| span.0);
    let lookup = lookup.map(|lookup| {
        let default = Lookup::default();
        let lag = lookup.lag.map_or(default.lag, |span| span.0);
        let least = policy.in_flight_max.saturating_add(lag);
        Lookup { lag, lookup_for: lookup.lookup_for.map_or(default.lookup_for.max(least), |span| span.0) }
    });
    policy.recovery = match (&rules.recovery, lookup) {
        (Some(RecoveryRules::Repeat), _) => Recovery::Repeat,
        (Some(RecoveryRules::NativeKey(native, _)), lookup) => Recovery::NativeKey {
            retention: native.retention.map_or(Recovery::NATIVE_RETENTION_UNKNOWN, |span| span.0),
            lookup,
        },
        (Some(RecoveryRules::Lookup(_)), Some(lookup)) => Recovery::Lookup(lookup),
        _ => Recovery::Person,
    };
    if let Some(retries) = &rules.retries {
        policy.attempts_max = retries.attempts.unwrap_or(policy.attempts_max);
        policy.backoff.base = retries.base.map_or(policy.backoff.base, |span| span.0);
        policy.backoff.cap = retries.cap.map_or(policy.backoff.cap, |span| span.0);
    }
    policy.retention = rules.retention.map_or(policy.retention, |span| span.0);
    policy.on_mismatch = match rules.on_mismatch {
        Some(written::OnMismatch::Replay) => OnMismatch::Replay,
        _ => OnMismatch::Refuse,
    };
    policy.version_means = match rules.version_means {
        Some(written::VersionMeans::Snapshot) => VersionMeans::Snapshot,
        _ => VersionMeans::Order,
    };
    policy.on_review = match rules.on_review {
        Some(written::OnReview::Pass) => OnReview::Pass,
        _ => OnReview::Block,
    };
    policy.check().map_err(|error| error.to_string())?;
    Ok(policy)
}
