//! Adopting: the source of truth says that it happened, and a person takes its word (S26).
//!
//! What happened stays happened, so that knowing it can only keep the ledger from doing it again. Nothing is taken from
//! anybody: while a permit is out, or a person is asked, theirs is the next word.

use super::person::{remember, repeated};
use super::*;
use crate::answer::ExternalId;
use crate::command::Adopt;

/// Of an intent the ledger has not heard of: done from the start, without any permit.
pub(super) fn fresh(adopt: &Adopt, lane: Option<Lane>, command: &Command, moment: &Moment) -> Transition {
    let mut record = claim::unheard_of(&adopt.name, &adopt.policy, adopt.salt, command, moment);
    record.fingerprint = adopt.fingerprint.clone();
    let mut draft = Draft::new(record, lane, command, moment);
    draft.notices.extend(adopt.name.key.suspicion().map(Notice::SuspiciousKey));
    take_over(draft, adopt)
}

/// Of an intent the ledger knows.
pub(super) fn known(mut draft: Draft<'_>, adopt: &Adopt) -> Transition {
    draft.lapse();
    if let Some(verdict) = repeated(&draft, digest(adopt)) {
        return draft.tell(verdict);
    }
    let (status, doubt) = (draft.record.status, draft.record.doubt);
    match status {
        Status::Done if agree(draft.record.answer.as_ref(), &adopt.answer) => draft.noted(false),
        Status::Done => draft.refuse(Refusal::SettledOtherwise),
        _ if draft.record.is_tombstone() => draft.refuse(Refusal::Purged),
        // Refused or given up, and yet it is there: the next claim must not do it again.
        Status::Review | Status::Failed => take_over(draft, adopt),
        Status::Ready | Status::Retryable if !doubt => take_over(draft, adopt),
        // In doubt the recovery goes on, and will find the same. What a person said no to, or what was undone or overtaken,
        // should not be there: somebody has to look.
        _ => draft.refuse(Refusal::WrongStatus(status)),
    }
}

fn take_over(mut draft: Draft<'_>, adopt: &Adopt) -> Transition {
    draft.done(adopt.answer.clone(), Source::Person);
    draft.record.replay_until = None;
    draft.journal_content(Event::Adopted, &adopt.reason, Some(adopt.answer.content()));
    remember(&mut draft, digest(adopt));
    draft.noted(true)
}

/// Two that do not name the same thing differ; one that names nothing contradicts nobody.
fn agree(first: Option<&Answer>, second: &Answer) -> bool {
    match (first.and_then(|first| first.external_id.as_ref()), &second.external_id) {
        (Some(first), Some(second)) => first == second,
        _ => true,
    }
}

fn digest(adopt: &Adopt) -> u64 {
    digest_of(&["adopt", adopt.answer.external_id.as_ref().map_or("", ExternalId::as_str)])
}
