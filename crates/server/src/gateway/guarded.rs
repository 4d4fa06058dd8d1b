//! A guarded write: from the request to an intent, and from what came of it to an answer.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::header::HeaderValue;
use serde_json::Value;
use twicesafe_ledger::{Code, Intent, Key, KeyPart, Name};

use super::act::{Caller, Errand};
use super::expression::{Expression, Named, Sight};
use super::observe::OBSERVED;
use super::passing::Handover;
use super::pattern::{folded, is_read};
use super::route::{Asked, Route, Word};
use super::sending::{NotKept, Sending, VIEWED_BYTES_MAX, why_unread};
use super::{Arrival, callback, caps, fingerprint, told};
use crate::config::destinations::OnHold;
use crate::http::{Problem, Request, Response};
use crate::version::version_of;

/// What keys of rehearsals begin with.
const REHEARSAL: &str = "rehearsal:";
/// What comes second in scopes beside accounts and destinations: the inbox, what is observed, what is rehearsed.
const NO_ACCOUNTS: [&str; 5] = ["in", OBSERVED, "rehearsal", ".", ".."];
/// How long what a rehearsal did is kept.
const REHEARSAL_RETENTION: Duration = Duration::from_secs(3600);
/// Longest name of an action that is made from a path.
const ACTION_BYTES_MAX: usize = 80;

/// Carries a write out once, or gives the first answer again.
pub(super) async fn answer(arrival: Arrival<'_>, request: &mut Request) -> Result<Response, Problem> {
    let callback = callback::wanted(&arrival, request)?;
    let Head { key, work, step, is_rehearsal } = Head::of(request);
    let header_key = key?;
    let sending = arrival.sending(request, callback);
    let view = Arc::new(sending.view_seen(&arrival.parameters, arrival.route.sees_headers));
    check_names(&sending, &view)?;
    check_alike(&arrival.route, &view)?;
    let sending = Arc::new(sending);
    let wish = Wish { arrival: &arrival, sending: &sending, view: &view, work, step, is_rehearsal };
    let name = wish.name(header_key.as_ref())?;
    arrival.principal.demand_to_change(name.scope.as_str())?;
    wish.check_fingerprint()?;
    let intent = wish.with_fingerprint(Intent::named(name));
    let ledger = arrival.shared.ledger.acting_as(&arrival.principal.actor);
    if let Some(ended) = ledger.recall(&intent)? {
        return told::answer(&arrival.route, None, false, ended, is_rehearsal);
    }
    let is_asked_about = wish.must_be_asked(intent.name()).await?;
    let mut intent = wish.agreed(intent, is_asked_about)?;
    if arrival.route.on_hold == Some(OnHold::Wait) {
        intent = intent.wait_for_people();
    }
    let (handover, mut handed) = Handover::new();
    let caller = Arc::new(Caller { handover, aside: Mutex::default(), _room: request.taken.take() });
    let errand = Errand {
        ledger: ledger.clone(),
        destination: arrival.destination.clone(),
        route: arrival.route.clone(),
        sending,
        view,
        caller: Some(caller.clone()),
    };
    if arrival.route.lookup.is_some() {
        let asking = errand.clone();
        intent = intent.lookup(move |attempt| asking.clone().look_up(attempt));
    }
    // Head and body keep the connection's buffer while the caller waits.
    (request.headers, request.uri) = Default::default();
    let mut drain = request.drain.clone();
    let wait = arrival.route.wait;
    let patience = async move {
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = drain.begun() => {}
        }
    };
    let acting = errand.clone();
    let carrying = ledger.carry_out(&intent, patience, move |attempt| acting.clone().act(attempt));
    let ended = tokio::select! {
        biased;
        // Too large to keep: the caller who is there gets it as it arrives. It is settled when it has ended (S20).
        Ok(response) = &mut handed => return Ok(response),
        ended = carrying => ended,
    };
    if matches!(ended.result, Err(twicesafe_ledger::Error::Held { .. })) {
        Box::pin(callback::promise(&arrival, &ended, &errand.sending)).await?;
    }
    let aside = caller.aside.lock().unwrap_or_else(PoisonError::into_inner).take();
    told::answer(&arrival.route, aside, errand.sending.callback.is_some(), ended, is_rehearsal)
}

/// What the head of a request says about its intent, which is not passed on.
pub(super) struct Head {
    pub(super) key: Result<Option<HeaderValue>, Problem>,
    work: Option<String>,
    step: Option<String>,
    /// Whether a caller only tries something out.
    pub(super) is_rehearsal: bool,
}

impl Head {
    pub(super) fn of(request: &Request) -> Self {
        let (is_rehearsal, key) =
            match request.header("twicesafe-test").map(str::to_ascii_lowercase).as_deref() {
                None | Some("" | "false") => (false, header_key(request)),
                Some("true") => (true, header_key(request)),
                Some(_) => (false, Err(neither_real_nor_rehearsed())),
            };
        let (work, step) = (own(request, "twicesafe-work"), own(request, "twicesafe-step"));
        Self { key, work, step, is_rehearsal }
    }
}

/// Whoever means to try something out must not do it for real.
fn neither_real_nor_rehearsed() -> Problem {
    Problem::bad_request(
        "the header Twicesafe-Test is neither true nor false",
        "Send `Twicesafe-Test: true` to try something out, and leave the header out to mean it.",
    )
}

/// The key in the head. Of two, nobody knows which counts, and whoever stands between may have put them into another order.
fn header_key(request: &Request) -> Result<Option<HeaderValue>, Problem> {
    let mut keys = request.headers.get_all("idempotency-key").iter();
    let first = keys.next();
    match keys.all(|other| Some(other) == first) {
        true => Ok(first.cloned()),
        false => Err(Problem::new(
            Code::KeyInvalid,
            "there are two different headers Idempotency-Key",
            "Send one, the same on every repetition.",
        )),
    }
}

/// Two who read the same body must read the same values.
fn check_names(sending: &Sending, view: &Value) -> Result<(), Problem> {
    match sending.is_ambiguous(view) {
        false => Ok(()),
        true => Err(Problem::bad_request(
            "the body has the same name twice in one object, and nobody knows which of them counts",
            "Send every name once.",
        )),
    }
}

/// Servers that do not mind letter case or blanks would take another amount than the one a person is asked about (S46).
fn check_alike(route: &Route, view: &Value) -> Result<(), Problem> {
    let decides = route.approve.is_some() || !route.caps.is_empty();
    let is_alike = |part: &str| view.get(part).is_some_and(has_names_alike);
    match decides && (is_alike("body") || is_alike("query")) {
        false => Ok(()),
        true => Err(Problem::bad_request(
            "the request has two names that differ only in letter case or blanks, and servers differ in which of them counts",
            "Send every name once, in one spelling.",
        )),
    }
}

fn has_names_alike(value: &Value) -> bool {
    match value {
        Value::Array(items) => items.iter().any(has_names_alike),
        Value::Object(members) => {
            let mut seen = HashSet::with_capacity(members.len());
            !members.keys().all(|name| seen.insert(name.trim().to_lowercase()))
                || members.values().any(has_names_alike)
        }
        _ => false,
    }
}

fn own(request: &Request, name: &str) -> Option<String> {
    request.header(name).filter(|value| !value.is_empty()).map(str::to_owned)
}

/// Whether something was only tried out: nobody comes back for it.
pub(crate) fn is_rehearsal(name: &Name) -> bool {
    name.key.as_str().starts_with(REHEARSAL)
}

/// What guarding would do with a write, as far as the request alone tells.
pub(super) struct Foreseen {
    /// What it would be called; without a name, why.
    pub(super) name: Result<Name, Problem>,
    /// Why it would be refused although it has a name.
    pub(super) objection: Option<Problem>,
    pub(super) is_asked_about: bool,
}

impl Foreseen {
    pub(super) fn of(arrival: &Arrival<'_>, sending: &Arc<Sending>, view: &Arc<Value>, head: Head) -> Self {
        let Head { key, work, step, is_rehearsal } = head;
        let wish = Wish { arrival, sending, view, work, step, is_rehearsal };
        let name = key.and_then(|key| wish.name(key.as_ref()));
        let is_asked_about = wish.says_asked().unwrap_or(false);
        let agreed = || {
            check_names(sending, view)?;
            check_alike(&arrival.route, view)?;
            wish.check_fingerprint()?;
            wish.says_asked()?;
            match &name {
                Ok(name) => wish.agreed(Intent::named(name.clone()), is_asked_about).map(drop),
                Err(_) => Ok(()),
            }
        };
        Self { objection: agreed().err(), name, is_asked_about }
    }
}

/// The scope a read would be in if it were a write: what a token that is confined to scopes must reach.
pub(super) fn scope_of_read(arrival: &Arrival<'_>, sending: &Sending) -> Result<String, Problem> {
    let (view, sending) = (Arc::new(sending.view(&arrival.parameters)), Arc::new(sending.clone()));
    let wish = Wish { arrival, sending: &sending, view: &view, work: None, step: None, is_rehearsal: false };
    let account = arrival.route.account.as_ref().filter(|account| wish.word("account", account).is_ok());
    Ok(wish.scope(account.map(|account| wish.account(account)).transpose()?))
}

/// What a caller wants, before it is an intent.
struct Wish<'a> {
    arrival: &'a Arrival<'a>,
    sending: &'a Arc<Sending>,
    view: &'a Arc<Value>,
    work: Option<String>,
    step: Option<String>,
    is_rehearsal: bool,
}

impl Wish<'_> {
    fn check_fingerprint(&self) -> Result<(), Problem> {
        let checked = fingerprint::check(&self.arrival.route.recipe, self.view);
        checked.map_err(|why| not_worked_out("fingerprint", &why))
    }

    /// An intent, and what would be agreed about it.
    fn agreed(&self, mut intent: Intent, is_asked_about: bool) -> Result<Intent, Problem> {
        let Arrival { principal, destination, route, .. } = self.arrival;
        let mut policy = route.policy.clone();
        if self.is_rehearsal {
            policy.retention = policy.retention.min(REHEARSAL_RETENTION);
        }
        if is_asked_about {
            policy.approval = Some(route.approval.clone());
        }
        // What is counted must be on record, and so must what a person is asked about.
        let is_held = policy.approval.is_some() || !route.caps.is_empty();
        intent = intent.policy(policy);
        let may_be_sent_later = destination.sends_by_itself() || !self.sending.has_credentials();
        if is_held && self.sending.is_packed() {
            return Err(packed());
        }
        if is_held || may_be_sent_later && !self.is_rehearsal {
            match self.sending.kept(&route.keep) {
                Ok(kept) => intent = intent.request(kept),
                // Without its request an intent is left to its callers; an approval cannot be.
                Err(why) if is_held => return Err(not_keepable(&why)),
                Err(_) => {}
            }
        }
        let work = self.word_or("work", &route.work, self.work.as_deref())?;
        if let Some(work) = work {
            let step = self.word_or("step", &route.step, self.step.as_deref())?;
            let step = step.unwrap_or_else(|| self.action().into_owned());
            intent = intent.step(&principal.own_name(&work)?, &step)?;
        }
        // What is only tried out neither waits for what is meant nor is in its way.
        if let Some(lane) = route.lane.as_ref().filter(|_| !self.is_rehearsal) {
            let (at, lane) = (&destination.name, self.word("lane", lane)?);
            // The same object of another account is another object (S3). Its length says where its name ends.
            let entity = match &route.account {
                Some(account) => {
                    let account = self.account(account)?;
                    format!("to:{at}@{}:{account}:{lane}", account.len())
                }
                None => format!("to:{at}:{lane}"),
            };
            let version = match &route.version {
                Some(expression) => Some(self.integer(expression)?),
                None => None,
            };
            intent = intent.lane(&principal.tenants_name(&entity)?, version)?;
        }
        Ok(intent)
    }

    fn sight(&self) -> Sight<'_> {
        Sight { request: Some(self.view), ..Sight::default() }
    }

    fn with_fingerprint(&self, intent: Intent) -> Intent {
        let (sending, view) = (self.sending.clone(), self.view.clone());
        let route = self.arrival.route.clone();
        let parameters = self.arrival.parameters.clone();
        intent.fingerprint(route.recipe.clone(), move |recipe| match *recipe == route.recipe {
            true => fingerprint::made(recipe, &sending, &view),
            // A recipe of an earlier configuration may look at what the present one does not.
            false => fingerprint::made(recipe, &sending, &sending.view(&parameters)),
        })
    }

    /// Scope and key (S2, S3).
    fn name(&self, header: Option<&HeaderValue>) -> Result<Name, Problem> {
        let route = &self.arrival.route;
        let account = match self.is_rehearsal {
            true => Some("rehearsal".to_owned()),
            false => route.account.as_ref().map(|account| self.account(account)).transpose()?,
        };
        let scope = self.scope(account);
        let mut key = match &route.key {
            Some(expressions) => self.key(expressions)?,
            None => match header {
                Some(value) => Key::from_header(std::str::from_utf8(value.as_bytes()).map_err(|_| {
                    Problem::new(
                        Code::KeyInvalid,
                        "the Idempotency-Key is not text",
                        "Send a key of letters and digits.",
                    )
                })?)?,
                None => return Err(self.no_key()),
            },
        };
        if self.is_rehearsal {
            // Thrown away: whoever tries a step out in an editor wants it done each time.
            let random = u128::from_be_bytes(twicesafe_ledger::new_command_id().bytes());
            key = Key::new(&format!("{REHEARSAL}{random:032x}"))?;
        }
        Ok(Name { scope: twicesafe_ledger::Scope::new(&scope)?, key })
    }

    fn scope(&self, account: Option<String>) -> String {
        let mut scope = self.arrival.principal.tenant().to_owned();
        let account = account.as_deref();
        for part in account.into_iter().chain([self.arrival.destination.name.as_str(), &self.action()]) {
            scope.push('/');
            scope.push_str(part);
        }
        scope
    }

    fn key(&self, expressions: &[Expression]) -> Result<Key, Problem> {
        let value = |expression: &Expression| {
            expression.name(&self.sight()).map_err(|why| {
                let media_type = self.sending.media_type();
                let unread = why_unread(&media_type, &self.sending.body, VIEWED_BYTES_MAX);
                let hint = match unread.is_some() && expression.text().contains("body") {
                    false => "The route names the field that identifies the intent; send it, the same on every repetition.",
                    true => {
                        "Send JSON or a form of up to a megabyte, not packed; or send what identifies the intent in a header or the \
                         query, the same on every repetition, and name that in the route's `key:`."
                    }
                };
                let unread = unread.map_or_else(String::new, |unread| format!("; {unread}"));
                Problem::new(Code::KeyMissing, format!("the request has no key: {why}{unread}"), hint)
            })
        };
        if let [only] = expressions {
            return Ok(Key::new(&value(only)?.to_string())?);
        }
        // One caller writes a number as such and another one as text: as in a key of one part, it is the same.
        let texts = expressions.iter().map(|expression| Ok(value(expression)?.to_string()));
        let texts: Vec<String> = texts.collect::<Result<_, Problem>>()?;
        let parts: Vec<KeyPart<'_>> = texts.iter().map(|text| KeyPart::Text(text)).collect();
        Ok(Key::composed(&self.action(), &parts)?)
    }

    /// The name of the action; of a write without a route, made from method and path.
    fn action(&self) -> std::borrow::Cow<'_, str> {
        match &self.arrival.route.action {
            Some(action) => action.as_str().into(),
            None => made_action(&self.sending.method, &self.arrival.path).into(),
        }
    }

    fn says_asked(&self) -> Result<bool, Problem> {
        match &self.arrival.route.approve {
            None => Ok(false),
            Some(Asked::Always) => Ok(true),
            Some(Asked::If(expression)) => {
                expression.holds(&self.sight()).map_err(|why| not_worked_out("approve", &why))
            }
        }
    }

    async fn must_be_asked(&self, name: &Name) -> Result<bool, Problem> {
        let route = &self.arrival.route;
        let asked = self.says_asked()?;
        // A rehearsal is not counted, and writes without a route are not counted together: where things are counted, somebody
        // is asked about those.
        let is_uncounted = (self.is_rehearsal || route.action.is_none()) && !route.caps.is_empty();
        if asked || is_uncounted || route.caps.is_empty() {
            return Ok(asked || is_uncounted);
        }
        // Boxed: otherwise everybody would hold, and move, room for counting.
        Box::pin(caps::are_reached(self.arrival, name, &self.sight())).await
    }

    fn word(&self, what: &str, word: &Word) -> Result<String, Problem> {
        match word {
            Word::Fixed(text) => Ok(text.clone()),
            Word::Given(expression) => {
                Ok(expression.name(&self.sight()).map_err(|why| not_worked_out(what, &why))?.to_string())
            }
        }
    }

    /// An account, as one part of a scope that is taken for no other part: tokens are confined to what scopes begin with, and whoever
    /// calls says which account it is.
    fn account(&self, account: &Word) -> Result<String, Problem> {
        let text = self.word("account", account)?;
        let is_a_destination = || self.arrival.shared.destinations().get(&text).is_some();
        if NO_ACCOUNTS.contains(&text.as_str()) || is_a_destination() {
            return Err(not_worked_out(
                "account",
                &format!("`{text}` is the name of something else in scopes"),
            ));
        }
        Ok(text.replace('=', "=3D").replace('/', "=2F"))
    }

    fn word_or(
        &self,
        what: &str,
        word: &Option<Word>,
        header: Option<&str>,
    ) -> Result<Option<String>, Problem> {
        match word {
            Some(word) => self.word(what, word).map(Some),
            None => Ok(header.map(str::to_owned)),
        }
    }

    fn integer(&self, expression: &Expression) -> Result<i64, Problem> {
        let value = expression.name(&self.sight()).map_err(|why| not_worked_out("version", &why))?;
        match value {
            Named::Integer(number) => Ok(number),
            Named::Text(text) => version_of(&text).ok_or_else(|| {
                not_worked_out(
                    "version",
                    &format!("`{}` is neither an integer nor a time", expression.text()),
                )
            }),
        }
    }

    /// No key, and no route that would know one: refused, with a route to paste.
    fn no_key(&self) -> Problem {
        let (method, path) = (&self.sending.method, folded(&self.arrival.path));
        let (at, send) =
            (&self.arrival.destination.name, "Send an Idempotency-Key that is the same on every repetition");
        let message = "this write has no key, so nobody could tell its repetition from another one";
        let hint = match &self.arrival.route.action {
            // What else is known of it, the catalog may know: a whole route would be in front of that.
            Some(action) => format!(
                "{send}, or name what identifies it under `destinations.{at}`: the `key:` of its route `{action}`, or of them all: key: request.body.SOME_STABLE_ID"
            ),
            None if is_read(method) => {
                return Problem::new(
                    Code::KeyMissing,
                    "this destination lists its reads and this request is none of them, so it is taken for a write, and it has no key",
                    format!(
                        "{} Otherwise send an Idempotency-Key that is the same on every repetition.",
                        how_to_list(at, method, &path)
                    ),
                );
            }
            None => format!(
                "{send}, or add a route to `destinations.{at}.routes`: \
                 {{ match: {method} {path}, action: {}, key: request.body.SOME_STABLE_ID, recovery: person }}",
                made_action(method, &path),
            ),
        };
        Problem::new(Code::KeyMissing, message, hint)
    }
}

/// Returns how to say of a request that it only reads, where reads are listed (S44).
pub(super) fn how_to_list(destination: &str, method: &hyper::Method, path: &str) -> String {
    format!(
        "If it only reads, add to `destinations.{destination}.routes`: {{ match: {method} {path}, read: true }}; if no GET of this destination \
         changes anything, say `destinations.{destination}.reads: by-method`."
    )
}

/// A name for what has none: `post.v1.charges`.
pub(super) fn made_action(method: &hyper::Method, path: &str) -> String {
    let mut action = method.as_str().to_ascii_lowercase();
    for step in path.split('/').filter(|step| !step.is_empty()) {
        action.push('.');
        action.push_str(&made_step(step));
    }
    if action.len() > ACTION_BYTES_MAX {
        let hash = blake3::hash(action.as_bytes()).to_hex();
        action.truncate(ACTION_BYTES_MAX - 17);
        action = format!("{action}-{}", &hash[..16]);
    }
    action
}

/// A step of it.
pub(super) fn made_step(step: &str) -> String {
    step.chars().map(|c| if c.is_ascii_alphanumeric() || "_-".contains(c) { c } else { '_' }).collect()
}

pub(super) fn not_worked_out(what: &str, why: &str) -> Problem {
    Problem::new(
        Code::ExpressionFailed,
        format!("the route's `{what}` cannot be worked out for this request: {why}"),
        "Send the field it is about, or change the expression so that it can do without: has(request.body.x) && ...",
    )
}

fn packed() -> Problem {
    Problem::new(
        Code::RequestNotKept,
        "a person must be asked first, and could not read the body: it is packed (Content-Encoding)",
        "Send the body as it is, without compression.",
    )
}

fn not_keepable(why: &NotKept) -> Problem {
    let (what, name) = match why {
        NotKept::Header(name) => ("header", name),
        NotKept::Parameter(name) => ("parameter", name),
    };
    Problem::new(
        Code::RequestNotKept,
        format!(
            "a person must be asked first, and the {what} `{name}` cannot be kept until then: it may hold a secret"
        ),
        format!("Leave it out, or say at the route that it holds none: keep: [{name}]"),
    )
}

impl Route {
    /// The header that names the key, or what gives it.
    pub(super) fn key_words(&self) -> String {
        match &self.key {
            Some(expressions) => expressions.iter().map(Expression::text).collect::<Vec<_>>().join(", "),
            None => "the header Idempotency-Key".to_owned(),
        }
    }
}
