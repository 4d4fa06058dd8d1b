//! Claim, renew, ask, settle: how others act under the ledger's rules.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::HeaderValue;
use serde_json::json;
use serde_json::value::RawValue;
use twicesafe_ledger::{
    Answer, Applied, ApprovalRule, Code, CommandId, Error, Fence, Finding, Fingerprint, Held, Intent,
    IntentId, Lookup, Notice, OnMismatch, OnReview, Outcome, Policy, Recipe, Recovery, Refusal, Report,
    Stored, Verdict, VersionMeans, WaitCause, destination_key,
};

use super::{Call, facts, parse};
use crate::access::Principal;
use crate::http::{Problem, Response};
use crate::server::Shared;
use crate::wire::{
    self, AnswerView, AskRequest, ClaimAnswer, ClaimRequest, NotedAnswer, NoticeView, OutcomeWord,
    RecoveryClass, RenewRequest, SettleRequest,
};

/// How long a duplicate waits unless it says otherwise, and at most (S8).
const WAIT_DEFAULT: Duration = Duration::from_secs(25);
const WAIT_MAX: Duration = Duration::from_secs(60);
/// When to ask again, at least and at most.
const RETRY_AFTER_MIN: Duration = Duration::from_secs(1);
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);

pub(super) async fn claim(shared: &Shared, call: Call<'_>) -> Result<Response, Problem> {
    let (intent, id, wait) = read_claim(&call)?;
    let ledger = shared.ledger.acting_as(&call.principal.actor);
    let mut drain = call.request.drain.clone();
    // Head and body keep the connection's buffer; ten thousand who wait would keep ten thousand of them.
    (call.request.headers, call.request.body, call.request.uri) = Default::default();
    let patience = async move {
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = drain.begun() => {}
        }
    };
    let applied = ledger.claim_remotely(&intent, id, patience).await?;
    shared.metrics.verdict(&applied.verdict);
    told(&applied, Some(&intent))
}

/// What is claimed and how long the caller waits. Read before anybody waits, who would otherwise hold room for reading.
fn read_claim(call: &Call<'_>) -> Result<(Intent, Option<CommandId>, Duration), Problem> {
    let asked: ClaimRequest = parse::body(call.request)?;
    let wait = asked.wait_ms.map_or(WAIT_DEFAULT, Duration::from_millis);
    if wait > WAIT_MAX {
        return Err(Problem::bad_request(
            "wait_ms is more than 60000",
            "Wait at most a minute, then ask again.",
        ));
    }
    let of = |text| parse::command_id(&call.principal.actor, Some(text));
    let id = asked.command_id.as_deref().map(of).transpose()?;
    call.principal.demand_to_change(&asked.scope)?;
    Ok((intent(asked, &call.principal)?, id, wait))
}

/// Longest span anybody can mean.
const SPAN_MS_MAX: u64 = 100 * 365 * 24 * 3_600_000;
/// Most that people are shown to decide about: whoever approves more than that has not read it.
pub(crate) const SHOWN_BYTES_MAX: usize = 256 << 10;

fn intent(asked: ClaimRequest, principal: &Principal) -> Result<Intent, Problem> {
    let spans = [
        asked.native_key_retention_ms,
        asked.lookup_lag_ms,
        asked.lookup_for_ms,
        asked.in_flight_max_ms,
        asked.lease_ms,
        asked.act_max_ms,
        asked.retention_ms,
        asked.approval.as_ref().and_then(|rule| rule.expires_after_ms),
    ];
    check_spans(&spans)?;
    if asked.fingerprint.as_ref().is_some_and(|text| text.is_empty() || text.len() > 255) {
        return Err(Problem::bad_request("`fingerprint` has no bytes, or more than 255", "Send a digest."));
    }
    let mut policy = Policy::new(Recovery::Person);
    let span = Duration::from_millis;
    if let Some(in_flight_max) = asked.in_flight_max_ms.map(span) {
        policy.in_flight_max = in_flight_max;
    }
    let default = Lookup::default();
    let lag = asked.lookup_lag_ms.map_or(default.lag, span);
    let lookup = Lookup {
        lag,
        // Long enough for a lookup to count at all, unless somebody says otherwise.
        lookup_for: asked
            .lookup_for_ms
            .map_or_else(|| default.lookup_for.max(policy.in_flight_max.saturating_add(lag)), span),
    };
    policy.recovery = match asked.recovery {
        RecoveryClass::Repeat => Recovery::Repeat,
        RecoveryClass::NativeKey => Recovery::NativeKey {
            retention: asked.native_key_retention_ms.map_or(Recovery::NATIVE_RETENTION_UNKNOWN, span),
            lookup: (asked.lookup_lag_ms.is_some() || asked.lookup_for_ms.is_some()).then_some(lookup),
        },
        RecoveryClass::Lookup => Recovery::Lookup(lookup),
        RecoveryClass::Person => Recovery::Person,
    };
    if let Some(lease) = asked.lease_ms.map(span) {
        policy.lease = lease;
        policy.act_max = policy.act_max.max(lease);
    }
    if let Some(act_max) = asked.act_max_ms.map(span) {
        policy.act_max = act_max;
    }
    policy.attempts_max = asked.attempts.unwrap_or(policy.attempts_max);
    policy.retention = asked.retention_ms.map_or(policy.retention, span);
    policy.on_mismatch = match asked.on_mismatch {
        wire::OnMismatch::Refuse => OnMismatch::Refuse,
        wire::OnMismatch::Replay => OnMismatch::Replay,
    };
    policy.version_means = match asked.version_means {
        wire::VersionMeans::Order => VersionMeans::Order,
        wire::VersionMeans::Snapshot => VersionMeans::Snapshot,
    };
    policy.on_review = match asked.on_review {
        wire::OnReview::Block => OnReview::Block,
        wire::OnReview::Pass => OnReview::Pass,
    };
    let is_held = asked.approval.is_some();
    policy.approval = asked.approval.map(|rule| {
        let default = ApprovalRule::default();
        ApprovalRule {
            expires_after: rule.expires_after_ms.map_or(default.expires_after, span),
            people: rule.people.unwrap_or(default.people),
            requester_may_approve: rule.requester_may_approve,
        }
    });
    policy.check()?;
    let mut intent = Intent::new(&asked.scope, &asked.key)?.policy(policy);
    let shown = asked.request.as_deref().or(asked.input.as_deref().filter(|_| is_held)).map(bytes_of);
    if is_held && shown.as_ref().is_none_or(|shown| shown.len() > SHOWN_BYTES_MAX) {
        return Err(Problem::bad_request(
            format!("for an approval there must be something to show, of at most {SHOWN_BYTES_MAX} bytes"),
            "Give `request`, or `input`: what would be sent.",
        ));
    }
    let (input, fingerprint) = (asked.input.as_deref(), asked.fingerprint.as_deref());
    if input.is_some() && fingerprint.is_some() {
        return Err(Problem::bad_request(
            "both `input` and `fingerprint` are given",
            "Leave one of them out.",
        ));
    }
    intent = match (asked.request.as_deref().filter(|_| is_held), input, fingerprint) {
        // What people are shown is part of what they say yes to (S30).
        (Some(request), _, _) => {
            let fingerprint = fingerprint.map(|text| json!(text).to_string());
            let said = input.map(RawValue::get).or(fingerprint.as_deref()).unwrap_or("null");
            intent.json_input(format!(r#"{{"input":{said},"request":{}}}"#, request.get()))
        }
        (None, Some(input), _) => intent.json_input(bytes_of(input)),
        (None, None, Some(fingerprint)) => intent.input(fingerprint.to_owned()),
        (None, None, None) => intent,
    };
    if let Some(shown) = shown {
        intent = intent.request(shown);
    }
    intent = match (&asked.work, &asked.step) {
        (Some(work), Some(step)) => intent.step(&principal.own_name(work)?, step)?,
        (None, None) => intent,
        _ => return Err(Problem::bad_request("`work` and `step` belong together", "Give both or neither.")),
    };
    match (&asked.lane, asked.version) {
        (Some(lane), version) => Ok(intent.lane(&principal.own_lane(lane)?, version)?),
        (None, None) => Ok(intent),
        (None, Some(_)) => {
            Err(Problem::bad_request("a version needs a lane", "Add `lane`, or leave `version` out."))
        }
    }
}

fn bytes_of(json: &RawValue) -> Bytes {
    Bytes::copy_from_slice(json.get().as_bytes())
}

/// What a claim, or a permit asked for by number, comes to (S27).
fn told(applied: &Applied, intent: Option<&Intent>) -> Result<Response, Problem> {
    let about = |problem: Problem| match applied.stored.as_deref() {
        Some(stored) => problem.with(facts(stored)),
        None => problem,
    };
    let retry_after =
        |until: twicesafe_ledger::Timestamp| until.since(applied.at).clamp(RETRY_AFTER_MIN, RETRY_AFTER_MAX);
    match (&applied.verdict, applied.stored.as_deref()) {
        (Verdict::Proceed(permit), Some(stored)) => {
            let key = intent.map(|intent| destination_key(intent.name(), permit.generation));
            let answer = ClaimAnswer {
                permit: Some(wire::Permit::of(permit, key)),
                notices: notices(applied),
                ..claim_answer("proceed", stored)
            };
            Ok(Response::json(StatusCode::CREATED, &answer))
        }
        (Verdict::Replay(replay), Some(stored)) if !replay.refused => {
            let answer = ClaimAnswer {
                answer: replay.answer.as_ref().map(AnswerView::of),
                source: Some(replay.source.as_str()),
                mismatch: replay.mismatch,
                notices: notices(applied),
                ..claim_answer("replay", stored)
            };
            let replayed = HeaderValue::from_static("true");
            Ok(Response::json(StatusCode::OK, &answer).header("idempotent-replayed", replayed))
        }
        (Verdict::Replay(replay), _) => {
            let answer = replay.answer.as_ref().map(|answer| json!(AnswerView::of(answer)));
            let facts = [("answer".to_owned(), answer.unwrap_or_default())].into_iter().collect();
            Err(about(Problem::new(
                Code::Refused,
                "the destination said no, and the refusal is given again",
                "Mend the cause, then try again with the same key.",
            ))
            .with(facts))
        }
        (Verdict::Wait(wait), _) => {
            let (cause, message) = match wait.cause {
                WaitCause::Pending => ("pending", "an attempt is under way"),
                WaitCause::LookupDue => {
                    ("lookup-due", "it may have happened, and its lookup is due: POST /v1/ask")
                }
                WaitCause::NotDue => ("not-due", "it is not due yet"),
                WaitCause::Lane(_) => ("lane", "another intent has its lane"),
                WaitCause::Accepted => ("accepted", "it is accepted, and not due yet"),
            };
            let facts = [("cause".to_owned(), json!(cause))].into_iter().collect();
            Err(about(Problem::new(Code::Pending, message, "Ask again with the same key."))
                .with(facts)
                .retry_after(retry_after(wait.until)))
        }
        (Verdict::Hold(_), _) => Err(about(Problem::new(
            Code::Held,
            "a person must say yes first; nothing was sent",
            "Ask again with the same key once somebody has said yes.",
        ))),
        (Verdict::Review, _) => Err(about(Problem::new(
            Code::Review,
            "it may or may not have happened; a person decides",
            "Do not send it again. Somebody looks at the destination and resolves it.",
        ))),
        (Verdict::Refuse(refusal), _) => {
            let problem = about(refusal.clone().into());
            Err(match refusal {
                Refusal::TooEarly(at) => problem.retry_after(retry_after(*at)),
                _ => problem,
            })
        }
        // The intent changed twice while it was being claimed.
        _ => Err(about(Problem::new(
            Code::Pending,
            "it changed while it was claimed",
            "Ask again with the same key.",
        ))
        .retry_after(RETRY_AFTER_MIN)),
    }
}

fn claim_answer<'a>(verdict: &'static str, stored: &Stored) -> ClaimAnswer<'a> {
    let record = &stored.record;
    ClaimAnswer {
        verdict,
        intent: stored.id.number(),
        status: record.status.into(),
        generation: record.generation,
        attempt: record.tries,
        expires_at: wire::expiry(record),
        permit: None,
        answer: None,
        source: None,
        mismatch: false,
        notices: Vec::new(),
    }
}

fn notices(applied: &Applied) -> Vec<NoticeView> {
    let view = |notice: &Notice| match notice {
        Notice::PolicyDiffers => NoticeView {
            code: Code::PolicyDiffers.as_str(),
            message: "what was agreed at the first claim stands; this one differs".to_owned(),
        },
        Notice::SuspiciousKey(why) => NoticeView {
            code: Code::SuspiciousKey.as_str(),
            message: format!("the key may differ on the next run: {why}"),
        },
    };
    applied.notices.iter().map(view).collect()
}

/// An intent known by number, if it is within reach; otherwise there is none, as far as this caller is concerned.
async fn reached(shared: &Shared, call: &Call<'_>, number: i64) -> Result<Arc<Stored>, Problem> {
    let found = shared.ledger.believed(IntentId::new(number)).await?;
    let reached = |stored: &Arc<Stored>| call.principal.may_act_on(stored.record.name.as_ref());
    let stored = found.filter(reached).ok_or_else(|| Problem::from(Refusal::NoSuchIntent))?;
    match is_carried_out_here(&stored) {
        true => Err(Refusal::NotHolder.into()),
        false => Ok(stored),
    }
}

/// Whether an intent is a call of the gateway or an event of an inbox, by what its fingerprint is made of (S48).
fn is_carried_out_here(stored: &Stored) -> bool {
    let of_claims =
        |fingerprint: &Fingerprint| [Recipe::raw(), Recipe::json()].contains(fingerprint.recipe());
    let record = &stored.record;
    record.policy.unattended || !record.fingerprint.as_ref().is_none_or(of_claims)
}

pub(super) async fn renew(shared: &Shared, call: &Call<'_>) -> Result<Response, Problem> {
    let asked: RenewRequest = parse::body(call.request)?;
    let id = parse::command_id(&call.principal.actor, asked.command_id.as_deref())?;
    let secret = parse::permit_secret(&asked.secret)?;
    let stored = reached(shared, call, asked.intent).await?;
    let held = Held { intent: stored.id, fence: Fence::new(asked.fence), secret };
    let ledger = shared.ledger.acting_as(&call.principal.actor);
    permitted(&ledger.renew_remotely(held, id).await?)
}

pub(super) async fn ask(shared: &Shared, call: &Call<'_>) -> Result<Response, Problem> {
    let asked: AskRequest = parse::body(call.request)?;
    let id = parse::command_id(&call.principal.actor, asked.command_id.as_deref())?;
    let stored = reached(shared, call, asked.intent).await?;
    let ledger = shared.ledger.acting_as(&call.principal.actor);
    permitted(&ledger.ask_remotely(stored.id, id).await?)
}

/// A permit that was extended, or given for a lookup.
fn permitted(applied: &Applied) -> Result<Response, Problem> {
    match (&applied.verdict, applied.stored.as_deref()) {
        (Verdict::Proceed(permit), Some(stored)) => {
            let name = stored.record.name.as_ref();
            let key = name.map(|name| destination_key(name, permit.generation));
            let answer = ClaimAnswer {
                permit: Some(wire::Permit::of(permit, key)),
                ..claim_answer("proceed", stored)
            };
            Ok(Response::json(StatusCode::OK, &answer))
        }
        (Verdict::Noted(noted), Some(stored)) => {
            Err(Problem::from(Refusal::WrongStatus(noted.status)).with(facts(stored)))
        }
        _ => told(applied, None),
    }
}

pub(super) async fn settle(shared: &Shared, call: &Call<'_>) -> Result<Response, Problem> {
    let asked: SettleRequest = parse::body(call.request)?;
    let id = parse::command_id(&call.principal.actor, asked.command_id.as_deref())?;
    let (number, fence, generation) = (asked.intent, asked.fence, asked.generation);
    let secret = parse::permit_secret(&asked.secret)?;
    let report = report(asked)?;
    let stored = reached(shared, call, number).await?;
    let held = Held { intent: stored.id, fence: Fence::new(fence), secret };
    drop(stored);
    let ledger = shared.ledger.acting_as(&call.principal.actor);
    let may_have_acted = !matches!(report, Report::Act(Outcome::NotSent { .. }));
    let settled = ledger.settle_remotely(held, generation, report, id).await;
    let applied = settled.map_err(|error| match error {
        Error::Store(error) if may_have_acted => Problem::not_recorded(
            &error,
            "Send the same settle again when the ledger is back. Do not do it once more, nor by hand.",
        ),
        error => error.into(),
    })?;
    match (&applied.verdict, applied.stored.as_deref()) {
        (Verdict::Noted(noted), Some(stored)) => {
            Ok(Response::json(StatusCode::OK, &NotedAnswer::of(stored, noted.changed)))
        }
        _ => told(&applied, None),
    }
}

fn check_spans(spans: &[Option<u64>]) -> Result<(), Problem> {
    match spans.iter().flatten().any(|span| *span > SPAN_MS_MAX) {
        true => Err(Problem::bad_request("a span is longer than a hundred years", "Milliseconds are meant.")),
        false => Ok(()),
    }
}

fn report(asked: SettleRequest) -> Result<Report, Problem> {
    check_spans(&[asked.retry_after_ms, asked.replay_for_ms])?;
    parse::check_lengths(asked.external_id.as_deref(), asked.reason.as_deref())?;
    let span = Duration::from_millis;
    let answer = || {
        let mut answer = json_answer(asked.answer.as_deref());
        if let Some(id) = &asked.external_id {
            answer = answer.with_external_id(id);
        }
        answer
    };
    let reason = asked.reason.as_deref().unwrap_or("the caller did not say why");
    let retry_after = asked.retry_after_ms.map(span);
    let is_about_answer =
        matches!(asked.outcome, OutcomeWord::Answered | OutcomeWord::Refused | OutcomeWord::Found);
    if !is_about_answer && (asked.answer.is_some() || asked.external_id.is_some()) {
        return Err(Problem::bad_request(
            "`answer` and `external_id` belong to the outcomes `answered`, `refused` and `found`",
            "Leave them out, or say that it was answered.",
        ));
    }
    Ok(match asked.outcome {
        OutcomeWord::Answered => Report::Act(Outcome::Answered(answer())),
        OutcomeWord::Refused => Report::Act(Outcome::Refused {
            answer: answer(),
            replay_for: asked.replay_for_ms.map_or(Duration::ZERO, span),
        }),
        OutcomeWord::NotSent => match Outcome::not_sent(reason) {
            Outcome::NotSent { reason, counts, .. } => {
                Report::Act(Outcome::NotSent { reason, retry_after, counts })
            }
            other => Report::Act(other),
        },
        OutcomeWord::Unknown => match Outcome::unknown(reason) {
            Outcome::Unknown { reason, park, .. } => {
                Report::Act(Outcome::Unknown { reason, retry_after, park })
            }
            other => Report::Act(other),
        },
        OutcomeWord::Found => Report::Lookup(Finding::Found(answer())),
        OutcomeWord::NotFound => Report::Lookup(Finding::NotFound),
        OutcomeWord::Silent => Report::Lookup(Finding::Silent { reason: reason.into() }),
    })
}

/// An answer that is JSON, kept as it was written.
pub(super) fn json_answer(answer: Option<&RawValue>) -> Answer {
    match answer {
        Some(json) => Answer { head: shared_head(), ..Answer::of(bytes_of(json)) },
        None => Answer::default(),
    }
}

fn shared_head() -> Arc<str> {
    static HEAD: std::sync::LazyLock<Arc<str>> = std::sync::LazyLock::new(|| wire::JSON_HEAD.into());
    HEAD.clone()
}
