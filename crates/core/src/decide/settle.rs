//! Reports: what a holder says came of its permit, in time or too late.

use super::*;
use crate::answer::{Counts, Finding, Outcome, Report};
use crate::command::{Renew, Settle};
use crate::permit::{Fence, PermitKind, PermitSecret};
use crate::record::{Attempt, Receipt};

/// Extends the lease of a permit that is still out, at most until `act_max` (S10).
pub(super) fn renew(mut draft: Draft<'_>, renew: &Renew) -> Transition {
    draft.lapse();
    let now = draft.now();
    let latest = draft.latest_native_send();
    let (fence, policy) = (draft.record.fence, draft.record.policy.clone());
    let is_holder = draft.was_given(renew.fence, draft.record.generation, renew.secret);
    let Some(attempt) = draft.record.attempt.as_mut().filter(|_| fence == renew.fence) else {
        return draft.refuse(Refusal::StaleFence);
    };
    if !is_holder {
        return draft.refuse(Refusal::NotHolder);
    }
    if let Some(holder) = &renew.holder {
        attempt.holder = holder.clone();
    }
    let end = attempt.granted_at + policy.act_max;
    if attempt.lease_until >= end {
        // It runs on to its end, and not longer.
        return draft.refuse(Refusal::ActMax);
    }
    attempt.lease_until = attempt.lease_until.max((now + policy.lease).min(end));
    attempt.send_by = attempt.lease_until.minus(policy.send_margin()).min(latest.unwrap_or(Timestamp::NEVER));
    let permit = draft.permit(false);
    draft.tell(Verdict::Proceed(permit))
}

/// Takes a report.
///
/// The fence decides, not the time: as long as nobody else was given leave, the holder's own word counts, however late.
pub(super) fn settle(mut draft: Draft<'_>, settle: &Settle) -> Transition {
    if !draft.was_given(settle.fence, settle.generation, settle.secret) {
        // Not even evidence: anybody could say so.
        return draft.refuse(Refusal::NotHolder);
    }
    let content = settle.report.answer().map(Answer::content);
    let digest = settle.report.digest(content);
    let receipt = Receipt { id: draft.command.id, fence: settle.fence, digest };
    if let Some(last) = draft.record.last_settle
        && (last.fence, settle.generation) == (settle.fence, draft.record.generation)
    {
        return if last.digest == receipt.digest {
            draft.noted(false)
        } else {
            draft.refuse(Refusal::SettledOtherwise)
        };
    }
    let current = settle.fence == draft.record.fence && settle.generation == draft.record.generation;
    if settle.generation == draft.record.generation {
        // A permit that the ledger does not know of and that has its secret was given, and lost with the ledger's tail (S43).
        draft.record.fence = draft.record.fence.max(settle.fence);
    }
    let attempt = draft.record.attempt.take_if(|attempt| current && may_say(attempt.kind, &settle.report));
    match (attempt, &settle.report) {
        (Some(attempt), Report::Act(outcome)) => acted(&mut draft, &attempt, outcome, content),
        (Some(attempt), Report::Lookup(finding)) => looked_up(&mut draft, &attempt, finding, content),
        (None, _) => return stale(draft, settle, receipt, content),
    }
    draft.record.last_settle = Some(receipt);
    // Its permit is the last one, so that nothing of it was lost (S43).
    draft.record.recovered_since = draft.moment.recovering_since.or(draft.record.recovered_since);
    draft.noted(true)
}

impl Draft<'_> {
    /// Returns whether the caller was given that permit, however long ago (S48).
    fn was_given(&self, fence: Fence, generation: u32, secret: PermitSecret) -> bool {
        let of = |salt| PermitSecret::of(salt, fence, generation, &self.command.actor);
        self.record.salt.is_some_and(|salt| of(salt).is(secret))
    }
}

/// Who may act may also look first, and find that it is there already (S25).
fn may_say(kind: PermitKind, report: &Report) -> bool {
    match report {
        Report::Act(_) => kind == PermitKind::Act,
        Report::Lookup(Finding::Found(_)) => true,
        Report::Lookup(_) => kind == PermitKind::Lookup,
    }
}

fn acted(draft: &mut Draft<'_>, attempt: &Attempt, outcome: &Outcome, content: Option<Content>) {
    match outcome {
        Outcome::Answered(answer) => {
            compare_with_kept(draft, answer);
            draft.done(answer.clone(), Source::Act);
            draft.journal_content(Event::Answered, "", content);
        }
        Outcome::Refused { answer, replay_for } => {
            if draft.settled_by_kept() {
            } else if draft.record.doubt {
                draft.review();
            } else {
                draft.settle_as(Status::Failed);
                draft.record.answer = Some(answer.clone());
                draft.record.replay_until = Some(draft.now() + *replay_for);
            }
            draft.journal_content(Event::Refused, "", content);
        }
        Outcome::NotSent { reason, retry_after, counts } => {
            if *counts != Counts::AsAttempt {
                draft.record.tries = draft.record.tries.saturating_sub(1);
            }
            let out_of_attempts = draft.record.tries >= draft.record.policy.attempts_max;
            if draft.settled_by_kept() {
            } else if draft.record.doubt {
                draft.follow_class(*retry_after);
                if draft.record.status == Status::Retryable {
                    match counts {
                        Counts::AsAttempt => {}
                        Counts::AsWaiting => draft.wait_for_somebody(*retry_after),
                        Counts::AsPassedOn => draft.record.due_at = None,
                    }
                }
            } else {
                draft.rest_in(Status::Retryable);
                match counts {
                    _ if out_of_attempts => draft.alerts.push(Alert::OutOfAttempts),
                    Counts::AsAttempt => {
                        draft.record.due_at = Some(draft.now() + draft.backoff(*retry_after))
                    }
                    Counts::AsWaiting => draft.wait_for_somebody(*retry_after),
                    Counts::AsPassedOn => {}
                }
                draft.keep_place();
            }
            draft.journal(Event::NotSent, reason);
        }
        Outcome::Unknown { reason, retry_after, park } => {
            draft.doubt(attempt, attempt.send_by.min(draft.now()));
            if draft.settled_by_kept() {
            } else if *park {
                draft.review();
            } else {
                draft.follow_class(*retry_after);
            }
            draft.journal(Event::Unknown, reason);
        }
    }
}

fn looked_up(draft: &mut Draft<'_>, attempt: &Attempt, finding: &Finding, content: Option<Content>) {
    match finding {
        Finding::Found(answer) => {
            compare_with_kept(draft, answer);
            draft.done(answer.clone(), Source::Lookup);
            draft.journal_content(Event::Found, "", content);
        }
        Finding::NotFound => {
            let lag =
                draft.record.policy.recovery.lookup().map_or_else(Default::default, |lookup| lookup.lag);
            let counts_from = draft.record.quiet_at.map_or(attempt.granted_at, |quiet_at| quiet_at + lag);
            if attempt.granted_at >= counts_from {
                not_there(draft);
                draft.journal(Event::NotFound, "");
            } else {
                draft.ask_again_at(counts_from);
                draft.journal(Event::Silent, "not there, but it could still arrive or become visible");
            }
        }
        Finding::Silent { reason } => {
            draft.silent();
            draft.journal(Event::Silent, reason);
        }
    }
}

/// It certainly did not happen: the doubt is over and another attempt is safe.
fn not_there(draft: &mut Draft<'_>) {
    let out_of_attempts = draft.record.tries >= draft.record.policy.attempts_max;
    draft.rest_in(Status::Retryable);
    draft.record.doubt = false;
    draft.clear_doubt_facts();
    if out_of_attempts {
        draft.alerts.push(Alert::OutOfAttempts);
    } else {
        draft.record.due_at = Some(draft.now());
    }
}

/// A report of a permit that is over. It cannot write, but that it happened is worth knowing (S11).
fn stale(mut draft: Draft<'_>, settle: &Settle, receipt: Receipt, content: Option<Content>) -> Transition {
    let seen = draft.record.last_evidence.is_some_and(|last| last.same_report(&receipt));
    let same_generation = settle.generation == draft.record.generation && settle.fence <= draft.record.fence;
    let answer = match &settle.report {
        Report::Act(Outcome::Answered(answer)) if same_generation => answer,
        _ => {
            if !seen {
                draft.record.last_evidence = Some(receipt);
                let which = format!("permit {} of generation {}", settle.fence, settle.generation);
                draft.journal(Event::Evidence, &which);
            }
            return draft.refuse(Refusal::StaleFence);
        }
    };
    match draft.record.status {
        Status::Pending if draft.record.acting().is_some() => {
            if !seen {
                draft.record.last_evidence = Some(receipt);
                draft.record.kept.get_or_insert_with(|| answer.clone());
                draft.journal_content(Event::Kept, "", content);
            }
            draft.noted(!seen)
        }
        Status::Review | Status::Ready | Status::Retryable | Status::Pending => {
            draft.done(answer.clone(), Source::Act);
            draft.record.last_settle = Some(receipt);
            draft.journal_content(Event::Answered, "late", content);
            draft.noted(true)
        }
        status => {
            let first = draft.record.answer.as_ref();
            let double =
                status == Status::Done && first.is_some_and(|first| is_another_effect(first, answer));
            if !seen {
                draft.record.last_evidence = Some(receipt);
                draft.alerts.extend(double.then_some(Alert::DoubleEffect));
                let why = if double { "another external id: it happened twice" } else { "" };
                draft.journal_content(Event::Evidence, why, content);
            }
            draft.refuse(Refusal::StaleFence)
        }
    }
}

fn compare_with_kept(draft: &mut Draft<'_>, answer: &Answer) {
    if let Some(earlier) = &draft.record.kept
        && is_another_effect(earlier, answer)
    {
        draft.alerts.push(Alert::DoubleEffect);
    }
}

fn is_another_effect(first: &Answer, second: &Answer) -> bool {
    matches!((&first.external_id, &second.external_id), (Some(first), Some(second)) if first != second)
}
