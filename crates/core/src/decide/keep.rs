//! How long things are kept, and what is left of them (S28, S32, S40).

use super::*;
use crate::command::{Forget, MarkUndone, Purge};

/// Notes that an effect was compensated. What is pending or in doubt must be resolved first (S32).
pub(super) fn mark_undone(mut draft: Draft<'_>, mark: &MarkUndone) -> Transition {
    draft.lapse();
    let status = draft.record.status;
    if draft.record.generation != mark.generation {
        return draft.refuse(Refusal::Moved);
    }
    match status {
        Status::Undone => draft.noted(false),
        Status::Done => {
            draft.record.status = Status::Undone;
            draft.record.settled_at = Some(draft.now());
            draft.journal(Event::Undone, &mark.reason);
            draft.noted(true)
        }
        _ => draft.refuse(Refusal::WrongStatus(status)),
    }
}

/// Drops the answer after the retention, and the tombstone after its own time. Open statuses never expire silently.
pub(super) fn purge(mut draft: Draft<'_>, purge: Purge) -> Transition {
    // What is open is not kept too long, however long ago its lease ran out; others decide that.
    let lapsed = draft.record.status.is_settled() && draft.lapse();
    let (now, policy) = (draft.now(), draft.record.policy.clone());
    let Some(settled_at) = draft.record.settled_at.filter(|_| !purge.work_is_open) else {
        return draft.noted(lapsed);
    };
    match draft.record.entombed_at {
        Some(entombed_at) if now >= entombed_at + policy.tombstone => {
            draft.journal(Event::Removed, "");
            let mut transition = draft.noted(true);
            transition.after = After::Remove;
            return transition;
        }
        None if now >= settled_at + policy.retention => {}
        _ => return draft.noted(lapsed),
    }
    entomb(&mut draft);
    draft.journal(Event::Purged, "");
    draft.noted(true)
}

/// Drops everything that could identify anybody at once; the keyed hash stays, so that it does not happen again (S40).
pub(super) fn forget(mut draft: Draft<'_>, forget: &Forget) -> Transition {
    draft.lapse();
    if !draft.record.status.is_settled() {
        let status = draft.record.status;
        return draft.refuse(Refusal::WrongStatus(status));
    }
    if draft.record.name.is_none() {
        return draft.noted(false);
    }
    entomb(&mut draft);
    draft.record.name = None;
    draft.record.salt = None;
    draft.record.fingerprint = None;
    draft.record.last_settle = None;
    draft.record.last_evidence = None;
    draft.record.last_decision = None;
    draft.record.answer = None;
    draft.record.step = None;
    draft.record.requested_by = Actor::forgotten();
    draft.leave_lane();
    draft.journal(Event::Forgotten, &forget.reason);
    draft.noted(true)
}

/// Leaves key, fingerprint, status and external id; the rest goes.
fn entomb(draft: &mut Draft<'_>) {
    // Its time counts from here on, so that a clock that is years ahead does not take both at once (S28).
    draft.record.entombed_at.get_or_insert(draft.moment.now);
    draft.record.approval = None;
    draft.record.kept = None;
    draft.record.replay_until = None;
    if let Some(answer) = &mut draft.record.answer {
        answer.head = "".into();
        answer.body = Default::default();
    }
}
