//! People: approvals, reviews, resets. The first decision stands; each says what it is about (S12, S26, S29, S30).

use super::*;
use crate::answer::ExternalId;
use crate::command::{Approve, Reject, Reset, Resolution, Resolve};
use crate::record::{Decision, Receipt};

pub(super) fn approve(mut draft: Draft<'_>, approve: &Approve) -> Transition {
    draft.lapse();
    let who = draft.command.actor.clone();
    if let Some(verdict) = decided(&draft, approve.generation, true) {
        return draft.tell(verdict);
    }
    if approve.fingerprint.is_some() && approve.fingerprint != draft.record.fingerprint {
        return draft.refuse(Refusal::Moved);
    }
    let rule = draft.record.policy.approval.clone().unwrap_or_default();
    if who.is_same_person(&draft.record.requested_by) && !rule.requester_may_approve {
        return draft.refuse(Refusal::OwnRequest);
    }
    let approval = draft.record.approval.as_mut().expect("what is held waits for an approval");
    if approval.approved_by.iter().any(|other| other.is_same_person(&who)) {
        return draft.noted(false);
    }
    approval.approved_by.push(who.clone());
    if approval.approved_by.len() >= usize::from(rule.people) {
        approval.decision = Some(Decision { approved: true, by: who });
        draft.rest_in(Status::Ready);
        draft.record.due_at = Some(draft.now());
    }
    draft.journal(Event::Approved, "");
    draft.noted(true)
}

pub(super) fn reject(mut draft: Draft<'_>, reject: &Reject) -> Transition {
    draft.lapse();
    let digest = digest_of(&["reject", &reject.generation.to_string()]);
    if let Some(verdict) = repeated(&draft, digest) {
        return draft.tell(verdict);
    }
    let is_undecided = draft.record.approval.as_ref().is_none_or(|approval| approval.decision.is_none());
    if is_undecided
        && draft.record.generation == reject.generation
        && matches!(draft.record.status, Status::Ready | Status::Retryable)
    {
        return park(draft, reject, digest);
    }
    if let Some(verdict) = decided(&draft, reject.generation, false) {
        return draft.tell(verdict);
    }
    let by = draft.command.actor.clone();
    if let Some(approval) = &mut draft.record.approval {
        approval.decision = Some(Decision { approved: false, by });
    }
    draft.settle_as(Status::Rejected);
    draft.journal(Event::Rejected, &reject.reason);
    draft.noted(true)
}

/// Nobody was asked, and somebody says no all the same: what was accepted and is not under way is left (S38). In doubt the
/// doubt stays, as with what is given up.
fn park(mut draft: Draft<'_>, reject: &Reject, digest: u64) -> Transition {
    if draft.record.doubt {
        draft.record.quiet_at = draft.in_flight_until();
        draft.settle_as(Status::Failed);
        draft.journal(Event::GivenUp, &reject.reason);
    } else {
        draft.settle_as(Status::Rejected);
        draft.journal(Event::Rejected, &reject.reason);
    }
    remember(&mut draft, digest);
    draft.noted(true)
}

/// What a decision about an approval is told when it is not the first, or not about what is held now.
fn decided(draft: &Draft<'_>, generation: u32, approved: bool) -> Option<Verdict> {
    let record = &draft.record;
    let decision = record.approval.as_ref().and_then(|approval| approval.decision.as_ref());
    let status = record.status;
    Some(match decision {
        _ if record.generation != generation => Verdict::Refuse(Refusal::Moved),
        Some(first) if first.approved == approved => Verdict::Noted(Noted { status, changed: false }),
        Some(first) => Verdict::Refuse(Refusal::DecidedOtherwise(first.by.clone())),
        None if status != Status::Held => Verdict::Refuse(Refusal::WrongStatus(status)),
        None => return None,
    })
}

pub(super) fn resolve(mut draft: Draft<'_>, resolve: &Resolve) -> Transition {
    draft.lapse();
    let digest = match &resolve.resolution {
        Resolution::Happened(answer) => {
            digest_of(&["happened", answer.external_id.as_ref().map_or("", ExternalId::as_str)])
        }
        Resolution::DidNotHappen => digest_of(&["did not happen"]),
        Resolution::GiveUp => digest_of(&["give up"]),
    };
    if let Some(verdict) = repeated(&draft, digest) {
        return draft.tell(verdict);
    }
    if draft.record.fence != resolve.about {
        return draft.refuse(Refusal::Moved);
    }
    // A person decides a stuck intent in doubt like a review (S47).
    let is_stuck = draft.record.doubt && draft.record.is_stuck(draft.now());
    if draft.record.status != Status::Review && !is_stuck {
        let status = draft.record.status;
        return draft.refuse(Refusal::WrongStatus(status));
    }
    match &resolve.resolution {
        Resolution::Happened(answer) => {
            draft.done(answer.clone(), Source::Person);
            draft.journal_content(Event::Happened, &resolve.reason, Some(answer.content()));
        }
        Resolution::DidNotHappen => {
            if let Some(quiet_at) = draft.in_flight_until() {
                return draft.refuse(Refusal::TooEarly(quiet_at));
            }
            draft.rest_in(Status::Retryable);
            draft.record.due_at = Some(draft.now());
            draft.record.doubt = false;
            draft.record.tries = 0;
            draft.clear_doubt_facts();
            draft.keep_place();
            draft.journal(Event::DidNotHappen, &resolve.reason);
        }
        Resolution::GiveUp => {
            // The doubt stays: nobody said that it did not happen, so a corrected request must not slip through.
            draft.record.quiet_at = draft.in_flight_until();
            draft.settle_as(Status::Failed);
            draft.journal(Event::GivenUp, &resolve.reason);
        }
    }
    remember(&mut draft, digest);
    draft.noted(true)
}

pub(super) fn reset(mut draft: Draft<'_>, reset: &Reset) -> Transition {
    draft.lapse();
    let digest = digest_of(&["reset", &reset.generation.to_string()]);
    if let Some(verdict) = repeated(&draft, digest) {
        return draft.tell(verdict);
    }
    if draft.record.generation != reset.generation {
        return draft.refuse(Refusal::Moved);
    }
    if !draft.record.status.is_settled() {
        let status = draft.record.status;
        return draft.refuse(Refusal::WrongStatus(status));
    }
    if let Some(quiet_at) = draft.in_flight_until() {
        return draft.refuse(Refusal::TooEarly(quiet_at));
    }
    let fingerprint = draft.record.fingerprint.clone();
    draft.start_generation();
    if draft.record.policy.unattended && fingerprint.is_some() {
        // Nobody comes back to say what is wanted: what was wanted is wanted again, now.
        draft.record.fingerprint = fingerprint;
        draft.record.due_at = Some(draft.now());
        draft.keep_place();
    }
    remember(&mut draft, digest);
    draft.journal(Event::Reset, &reset.reason);
    draft.noted(true)
}

/// What the same command is told when it comes again (S12).
pub(super) fn repeated(draft: &Draft<'_>, digest: u64) -> Option<Verdict> {
    let last = draft.record.last_decision.filter(|last| last.id == draft.command.id)?;
    Some(if last.digest == digest {
        Verdict::Noted(Noted { status: draft.record.status, changed: false })
    } else {
        Verdict::Refuse(Refusal::Moved)
    })
}

pub(super) fn remember(draft: &mut Draft<'_>, digest: u64) {
    draft.record.last_decision = Some(Receipt { id: draft.command.id, fence: draft.record.fence, digest });
}
