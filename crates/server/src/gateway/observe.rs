//! Observing: everything is passed on, and what would have been prevented or refused is recorded, so that a team can watch its
//! process for two weeks before anything is guarded. What the ledger cannot take is passed on all the same.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hyper::HeaderMap;
use serde_json::{Value, json};
use twicesafe_ledger::{
    Answer, Claimed, Code, Error, Fingerprint, Intent, Key, KeyPart, Name, Outcome, Policy, Recipe, Recovery,
    Refusal, Trouble,
};

use super::act::{self, Caller, Errand};
use super::answer::{Limits, Whole, received};
use super::guarded::{self, Foreseen, Head, made_action};
use super::passing::Handover;
use super::pattern::folded;
use super::reads::passed_back;
use super::sending::Sending;
use super::upstream::{Care, Failure};
use super::{Arrival, callback, fingerprint, told};
use crate::http::{Problem, Request, Response};

/// The part of scopes under which what is observed is recorded.
pub(super) const OBSERVED: &str = "observe";

/// How long the ledger may take to record something, and for how long it is left alone when it did not.
const RECORDED_WITHIN: Duration = Duration::from_secs(1);
const LEFT_ALONE_FOR: Duration = Duration::from_secs(10);

/// What stands for an answer that never came.
const DOUBTFUL: &str = "nobody knows whether it happened";

fn is_doubtful(answer: &Answer) -> bool {
    answer.head.is_empty() && answer.bytes().is_some_and(|body| body == DOUBTFUL.as_bytes())
}

/// Passes a write on and records what guarding would have done.
pub(super) async fn answer(arrival: Arrival<'_>, request: &mut Request) -> Result<Response, Problem> {
    let (head, callback) = (Head::of(request), callback::wanted(&arrival, request));
    let sending = Arc::new(arrival.sending(request, None));
    let view = Arc::new(sending.view(&arrival.parameters));
    if !arrival.principal.reaches_everything() {
        arrival.principal.demand_scope(&guarded::scope_of_read(&arrival, &sending)?)?;
    }
    // Guarded, what is only tried out would be done each time, too.
    let (intent, is_refused) = match head.is_rehearsal {
        true => (None, false),
        false => foreseen(&arrival, &sending, &view, head, arrival.objection.clone().or(callback.err())),
    };
    let ledger = arrival.shared.ledger.acting_as(&arrival.principal.actor);
    let recording = &arrival.shared.recording;
    let claimed = match &intent {
        Some(intent) => recording.within(ledger.claim(intent)).await,
        None => None,
    };
    let prevented = |why: &str| Some(("prevented", json!({ "why": why })));
    let (permit, finding) = match claimed {
        Some(Ok(Claimed::Proceed(permit))) => (Some(permit), None),
        Some(Ok(Claimed::Replay(given))) if given.answer.as_ref().is_some_and(is_doubtful) => {
            (None, prevented("nobody knew whether it had happened"))
        }
        Some(Ok(Claimed::Replay(_))) => (None, prevented("it was done before")),
        Some(Ok(Claimed::Wait { .. })) => (None, prevented("the same was under way, or had just failed")),
        Some(Ok(Claimed::Refused(_))) => (None, prevented("it had just been refused")),
        Some(Ok(Claimed::Review)) => (None, prevented("nobody knew whether it had happened")),
        Some(Err(Error::Ledger(Refusal::Mismatch))) => {
            let finding = json!({ "why": "the key was used with another request", "code": "TS0010" });
            (None, Some(("refused", finding)))
        }
        Some(Ok(Claimed::Hold { .. }) | Err(_)) | None => (None, None),
    };
    // What would be refused each time would not be done the first time either.
    if let Some((what, finding)) = finding.filter(|_| !is_refused) {
        record(&arrival, &sending, what, finding);
    }
    let (handover, mut handed) = Handover::new();
    let caller = Arc::new(Caller { handover, aside: Default::default(), _room: request.taken.take() });
    let errand = Errand {
        ledger,
        destination: arrival.destination.clone(),
        route: arrival.route.clone(),
        sending,
        view,
        caller: Some(caller.clone()),
    };
    let recording = recording.clone();
    // In a task of its own: a caller that leaves does not undo what was sent (S13).
    let mut exchanging = tokio::spawn(async move {
        let exchanged = exchange(&errand, &caller).await;
        if let Some(permit) = permit {
            let whole = exchanged.as_ref().map(|(_, whole)| whole.clone()).map_err(Clone::clone);
            let result = match errand.observed(permit.attempt(), &whole).await {
                Outcome::Answered(answer) => Ok(answer),
                // Guarded, it would have been looked up, or a person asked: a repetition would not have been sent. Nobody is
                // asked about what is only watched.
                Outcome::Unknown { .. } if errand.route.policy.recovery != Recovery::Repeat => {
                    Ok(Answer::of(DOUBTFUL))
                }
                other => Err(Trouble::from_outcome(other)),
            };
            recording.within(permit.settle(result)).await;
        }
        exchanged
    });
    let exchanged = tokio::select! {
        biased;
        Ok(response) = &mut handed => return Ok(response),
        exchanged = &mut exchanging => exchanged,
    };
    let lost = || Failure::Unknown("the exchange was given up".to_owned());
    match exchanged.unwrap_or_else(|_| Err(lost())) {
        Ok((_, Whole { body: twicesafe_ledger::Body::NotKept { .. }, .. })) => Err(Problem::new(
            Code::DestinationAway,
            "the answer was too large for one who left",
            "Ask again.",
        )),
        Ok((headers, whole)) => Ok(Response { headers, ..told::of_whole(whole) }),
        Err(Failure::NotSent(why) | Failure::Unknown(why)) => {
            let hint = "Nothing is guarded here yet: ask as you always did.";
            Err(Problem::new(Code::DestinationAway, format!("the destination gave no answer: {why}"), hint))
        }
    }
}

/// One exchange, with the answer's headers as they are.
async fn exchange(errand: &Errand, caller: &Caller) -> Result<(HeaderMap, Whole), Failure> {
    let mut sending = (*errand.sending).clone();
    act::drop_credentials(&errand.destination, &mut sending.headers);
    let started = Instant::now();
    let exchange = async {
        let request = act::request(&errand.destination, &sending).await.map_err(Failure::NotSent)?;
        errand.destination.upstream.exchange(request, Care::Great, || Ok(())).await
    };
    let exchanged = tokio::time::timeout(errand.route.timeout, exchange).await;
    let late = || Err(Failure::Unknown("it did not answer in time".to_owned()));
    let (response, lent) = exchanged.unwrap_or_else(|_| late())?;
    let masks = errand.destination.masks();
    let response = received(response, &masks);
    let mut headers = passed_back(response.headers().clone());
    let limits = Limits { started, whole: errand.route.timeout, large: errand.route.policy.act_max };
    let begin = |head: &hyper::Response<()>| caller.handover.begin(head.status(), headers.clone());
    let whole = Whole::read(response, lent, limits, masks, begin).await?;
    // It is written anew, whole.
    headers.remove(hyper::header::CONTENT_LENGTH);
    Ok((headers, whole))
}

/// The intent a guarded write would be, in a scope of its own; without a key, by what is asked for. Why it would be refused, if it would,
/// is recorded; and whether it would be for another reason than that it has no key.
fn foreseen(
    arrival: &Arrival<'_>,
    sending: &Arc<Sending>,
    view: &Arc<Value>,
    head: Head,
    beforehand: Option<Problem>,
) -> (Option<Intent>, bool) {
    let Foreseen { name, objection, is_asked_about } = Foreseen::of(arrival, sending, view, head);
    let objection = beforehand.or(objection);
    let is_refused =
        objection.is_some() || name.as_ref().is_err_and(|problem| problem.code != Code::KeyMissing);
    if let Some(problem) = name.as_ref().err().or(objection.as_ref()) {
        let finding = json!({ "why": problem.message(), "code": problem.code.as_str() });
        record(arrival, sending, "refused", finding);
    } else if is_asked_about {
        let finding = json!({ "why": "a person would have been asked first", "code": Code::Held.as_str() });
        record(arrival, sending, "refused", finding);
    }
    // What would not be claimed is in the way of nothing that would.
    let name = name.ok().filter(|_| !is_refused);
    (seen(arrival, sending, view, name, if is_refused { "refused" } else { "fingerprint" }), is_refused)
}

/// Under which it is counted as seen: under its name, if it has one, else `by` what is asked for.
fn seen(
    arrival: &Arrival<'_>,
    sending: &Arc<Sending>,
    view: &Arc<Value>,
    name: Option<Name>,
    by: &str,
) -> Option<Intent> {
    let route = &arrival.route;
    let print = fingerprint::made(&route.recipe, sending, view);
    let key = match (name, &print) {
        (Some(name), _) if route.action.is_some() && route.account.is_none() => name.key,
        // Guarded, each account, and each address without a route, would have a scope of its own.
        (Some(name), _) => {
            let parts = [name.scope.as_str(), name.key.as_str()].map(KeyPart::Text);
            Key::composed("name", &parts).ok()?
        }
        (None, Some(print)) => {
            Key::new(&format!("{by}:{}", blake3::Hash::from(*print.digest()).to_hex())).ok()?
        }
        (None, None) => return None,
    };
    let intent = Intent::new(&scope(arrival, sending, "seen"), key.as_str()).ok()?;
    let print = print.unwrap_or_else(|| Fingerprint::of(&Recipe::raw(), b""));
    let intent = intent.policy(Policy::new(Recovery::Repeat));
    Some(intent.fingerprint(print.recipe().clone(), move |_| Some(print.clone())))
}

/// The name of the action; of writes without a route one for all that differ only in the things they are about, since one route would be
/// written for them.
fn action<'a>(arrival: &'a Arrival<'_>, sending: &Sending) -> Cow<'a, str> {
    match &arrival.route.action {
        Some(action) => action.as_str().into(),
        None => made_action(&sending.method, &folded(&arrival.path)).into(),
    }
}

fn scope(arrival: &Arrival<'_>, sending: &Sending, what: &str) -> String {
    let (tenant, destination) = (arrival.principal.tenant(), &arrival.destination.name);
    format!("{tenant}/{OBSERVED}/{destination}/{}/{what}", action(arrival, sending))
}

/// Records something that guarding would have done: one intent each, done at once.
fn record(arrival: &Arrival<'_>, sending: &Sending, what: &'static str, finding: Value) {
    let scope = scope(arrival, sending, what);
    let key = format!("{:032x}", u128::from_be_bytes(twicesafe_ledger::new_command_id().bytes()));
    let mut found = finding;
    if let Value::Object(members) = &mut found {
        members.insert("match".to_owned(), json!(format!("{} {}", sending.method, folded(&arrival.path))));
        members.insert("has_route".to_owned(), json!(arrival.route.action.is_some()));
    }
    let ledger = arrival.shared.ledger.acting_as(&arrival.principal.actor);
    let Ok(intent) = Intent::new(&scope, &key) else { return };
    let intent = intent.policy(Policy::new(Recovery::Repeat));
    let recording = arrival.shared.recording.clone();
    // Nobody waits for it: what is observed must not be slower than what is not.
    tokio::spawn(async move {
        let answer = Answer { head: crate::wire::JSON_HEAD.into(), ..Answer::of(found.to_string()) };
        recording.within(ledger.run(intent, move |_| async move { Ok(answer) })).await;
    });
}

/// Whether what is observed can be recorded. What cannot is passed on all the same, and nobody waits for a ledger that is away.
#[derive(Clone, Default)]
pub(crate) struct Recording(Arc<Mutex<Option<Instant>>>);

impl Recording {
    /// What the ledger says, if it says something in time; `None`: it is away, and is left alone for a while.
    async fn within<T>(&self, asked: impl Future<Output = Result<T, Error>>) -> Option<Result<T, Error>> {
        if self.lock().is_some_and(|until| Instant::now() < until) {
            return None;
        }
        let why = match tokio::time::timeout(RECORDED_WITHIN, asked).await {
            Ok(Err(Error::Store(error) | Error::NotRecorded(error))) => error.to_string(),
            Ok(said) => return Some(said),
            Err(_) => "the ledger does not answer in time".to_owned(),
        };
        tracing::warn!("what is observed is passed on and not recorded for {LEFT_ALONE_FOR:?}: {why}");
        *self.lock() = Some(Instant::now() + LEFT_ALONE_FOR);
        None
    }

    fn lock(&self) -> MutexGuard<'_, Option<Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
