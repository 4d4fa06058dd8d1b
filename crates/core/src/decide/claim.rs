//! Claims: who gets a permit, and what everyone else is told.

use super::*;
use crate::command::{Claim, Grant, Salt};
use crate::lane::Waiting;
use crate::permit::{Permit, PermitKind, PermitSecret};
use crate::policy::{OnMismatch, VersionMeans};
use crate::record::{Approval, Attempt, Receipt};
use crate::verdict::{Hold, Replay, Wait, WaitCause};

/// The first claim of an intent: what is agreed now is frozen (S14).
pub(super) fn fresh(claim: &Claim, lane: Option<Lane>, command: &Command, moment: &Moment) -> Transition {
    let mut record = unheard_of(&claim.name, &claim.policy, claim.salt, command, moment);
    record.fingerprint = Some(claim.fingerprint.clone());
    record.place = claim.place.clone();
    record.step = claim.step.clone();
    let mut draft = Draft::new(record, lane, command, moment);
    // Whoever sends an event names it, and is known to name it the same again.
    let suspicion = claim.name.key.suspicion().filter(|_| !claim.policy.unattended);
    draft.notices.extend(suspicion.map(Notice::SuspiciousKey));
    open(draft, claim)
}

/// What is believed of an intent before anything has happened to it.
pub(super) fn unheard_of(
    name: &crate::name::Name,
    policy: &std::sync::Arc<crate::policy::Policy>,
    salt: Salt,
    command: &Command,
    moment: &Moment,
) -> Record {
    Record {
        name: Some(name.clone()),
        salt: Some(salt),
        generation: 1,
        status: Status::Ready,
        doubt: false,
        fingerprint: None,
        policy: policy.clone(),
        fence: Default::default(),
        tries: 0,
        attempt: None,
        due_at: None,
        first_sent_at: None,
        quiet_at: None,
        recovered_since: None,
        ask_until: None,
        asks: 0,
        kept: None,
        answer: None,
        source: None,
        replay_until: None,
        approval: None,
        place: None,
        waits_until: None,
        step: None,
        requested_by: command.actor.clone(),
        created_at: moment.now,
        settled_at: None,
        entombed_at: None,
        last_settle: None,
        last_evidence: None,
        last_decision: None,
    }
}

/// A claim of an intent the ledger knows.
pub(super) fn known(mut draft: Draft<'_>, claim: &Claim) -> Transition {
    draft.lapse();
    if draft.record.is_tombstone() {
        return draft.refuse(Refusal::Purged);
    }
    if claim.about.is_some_and(|about| about != draft.record.generation) {
        // A correction, or a fresh start, came in between: what was read before it must not replace it (S31).
        return draft.refuse(Refusal::Moved);
    }
    let is_same_claim = draft.record.acting().is_some_and(|attempt| attempt.claim_id == draft.command.id);
    // With other input it is another one (S5).
    if is_same_claim && draft.record.fingerprint.as_ref().is_none_or(|first| *first == claim.fingerprint) {
        return given_again(draft);
    }
    if *claim.policy != *draft.record.policy {
        draft.notices.push(Notice::PolicyDiffers);
    }
    let mismatch = match &draft.record.fingerprint {
        None => {
            // After a reset the next claim says anew what is wanted, and by whom.
            draft.record.name = Some(claim.name.clone());
            draft.record.salt.get_or_insert(claim.salt);
            draft.record.fingerprint = Some(claim.fingerprint.clone());
            draft.record.requested_by = draft.command.actor.clone();
            ask_anew(&mut draft, claim);
            false
        }
        Some(first) if first.recipe() != claim.fingerprint.recipe() => {
            let recipe = first.recipe().clone();
            return draft.tell(Verdict::Recompute(recipe));
        }
        Some(first) => *first != claim.fingerprint,
    };
    let mismatch = mismatch && !only_noted(&mut draft, claim);
    let answers_all_the_same = draft.record.policy.on_mismatch == OnMismatch::Replay
        && matches!(draft.record.status, Status::Done | Status::Pending | Status::Review | Status::Held);
    if mismatch && !answers_all_the_same {
        return corrected(draft, claim);
    }
    if is_same_claim {
        return given_again(draft);
    }
    match draft.record.status {
        Status::Done => {
            let replay = Replay {
                answer: draft.record.answer.clone(),
                source: draft.record.source.unwrap_or(Source::Act),
                refused: false,
                mismatch,
            };
            draft.tell(Verdict::Replay(replay))
        }
        Status::Failed => failed(draft, claim, mismatch),
        // Whoever wants something else cannot ask for this.
        Status::Pending if mismatch && draft.record.attempt.is_none() => {
            let until = draft.record.due_at.unwrap_or_else(|| draft.now()).max(draft.now());
            draft.wait(until, WaitCause::Pending)
        }
        _ => told_by_status(draft, claim),
    }
}

/// The permit that the same claim got before (S12).
fn given_again(draft: Draft<'_>) -> Transition {
    let permit = draft.permit(false);
    draft.tell(Verdict::Proceed(permit))
}

/// Where only the key decides, other input is journalled, once as long as it stays the same, and changes nothing (S38).
fn only_noted(draft: &mut Draft<'_>, claim: &Claim) -> bool {
    if draft.record.policy.on_mismatch != OnMismatch::Note {
        return false;
    }
    let first_bytes = claim.fingerprint.digest()[..8].try_into().expect("a digest has 32 bytes");
    let digest = u64::from_be_bytes(first_bytes);
    let receipt = Receipt { id: draft.command.id, fence: draft.record.fence, digest };
    if draft.record.last_evidence.is_none_or(|last| last.digest != digest) {
        draft.record.last_evidence = Some(receipt);
        draft.journal(Event::Differed, "the same key came with other input; the first stands");
    }
    true
}

/// Other input under the same key: refused while something was or may have been sent; a correction otherwise (S5).
fn corrected(mut draft: Draft<'_>, claim: &Claim) -> Transition {
    if claim.about.is_some() {
        return draft.refuse(Refusal::Moved);
    }
    let untouched = match draft.record.status {
        Status::Ready | Status::Retryable | Status::Failed | Status::Rejected | Status::Superseded => true,
        Status::Held | Status::Pending | Status::Review | Status::Done | Status::Undone => false,
    };
    if !untouched || draft.record.doubt {
        return draft.refuse(Refusal::Mismatch);
    }
    again(&mut draft, claim, Event::Corrected);
    open(draft, claim)
}

/// The same request after a refusal: given again for a short time, then tried again, because causes get fixed (S18).
fn failed(mut draft: Draft<'_>, claim: &Claim, mismatch: bool) -> Transition {
    if draft.record.doubt {
        return draft.refuse(Refusal::GivenUp);
    }
    if draft.record.replay_until.is_some_and(|until| draft.now() < until) {
        let replay =
            Replay { answer: draft.record.answer.clone(), source: Source::Act, refused: true, mismatch };
        return draft.tell(Verdict::Replay(replay));
    }
    if claim.about.is_some() {
        return draft.refuse(Refusal::Moved);
    }
    again(&mut draft, claim, Event::TriedAgain);
    open(draft, claim)
}

fn again(draft: &mut Draft<'_>, claim: &Claim, event: Event) {
    draft.start_generation();
    draft.record.fingerprint = Some(claim.fingerprint.clone());
    draft.record.requested_by = draft.command.actor.clone();
    ask_anew(draft, claim);
    draft.journal(event, "");
}

/// Whether a person must say yes is a question about what is asked for, and a new generation may ask for something else: a
/// refund of 10 that was refused and comes back as one of 10,000. The agreement stays (S14), so where it has no rule for
/// approvals the usual one holds.
fn ask_anew(draft: &mut Draft<'_>, claim: &Claim) {
    if claim.policy.approval.is_some() && draft.record.approval.is_none() {
        let expires_at = draft.now();
        draft.record.approval = Some(Approval { expires_at, approved_by: Vec::new(), decision: None });
    }
}

/// What a claim is told by status alone.
fn told_by_status(mut draft: Draft<'_>, claim: &Claim) -> Transition {
    let now = draft.now();
    match draft.record.status {
        Status::Held => {
            let expires_at = draft.record.approval.as_ref().map_or(now, |approval| approval.expires_at);
            draft.tell(Verdict::Hold(Hold { expires_at }))
        }
        Status::Ready | Status::Retryable => match draft.record.due_at {
            Some(due_at) if due_at > now => draft.wait(due_at, WaitCause::NotDue),
            _ => {
                if let Some(until) = draft.held_up_by_clock() {
                    return draft.wait(until, WaitCause::NotDue);
                }
                if draft.record.status != Status::Retryable && draft.record.status != Status::Ready {
                    return told_by_status(draft, claim);
                }
                let is_out = draft.record.status == Status::Retryable
                    && draft.record.tries >= draft.record.policy.attempts_max;
                if is_out && draft.record.policy.unattended && claim.grant == Grant::Permit {
                    // Whoever carries it on by itself is nobody who asks again (S26): it waits to be accepted again, or for a
                    // person.
                    return draft.wait(now, WaitCause::NotDue);
                }
                if is_out {
                    // Out of attempts, and somebody asks again: a fresh round (S26).
                    draft.record.tries = 0;
                }
                open(draft, claim)
            }
        },
        Status::Pending => match (&draft.record.attempt, draft.record.due_at) {
            (Some(attempt), _) => {
                let until = attempt.lease_until;
                draft.wait(until, WaitCause::Pending)
            }
            (None, Some(due_at)) if due_at > now => draft.wait(due_at, WaitCause::Pending),
            (None, _) => draft.wait(now, WaitCause::LookupDue),
        },
        // A newer state was handed over meanwhile: this one must not come after it (S15).
        Status::Review if may_reopen(&draft.record, claim) && draft.is_overtaken() => {
            draft.settle_as(Status::Superseded);
            draft.journal(Event::Superseded, "a newer version was already applied");
            draft.refuse(Refusal::Superseded)
        }
        Status::Review if may_reopen(&draft.record, claim) => {
            draft.rest_in(Status::Retryable);
            draft.record.tries = 0;
            draft.record.due_at = Some(now);
            draft.keep_place();
            draft.journal(Event::Accepted, "it came again after it ran out of attempts");
            draft.wait(now, WaitCause::Accepted)
        }
        Status::Review => draft.tell(Verdict::Review),
        Status::Rejected => draft.refuse(Refusal::Rejected),
        Status::Superseded => draft.refuse(Refusal::Superseded),
        Status::Undone => draft.refuse(Refusal::Undone),
        Status::Done | Status::Failed => unreachable!("answered before"),
    }
}

/// Whether being accepted again reopens a review (S38): where repeating is harmless, doubt is no reason to wait for a person;
/// that the attempts were used up was the only one. What a person parked or gave up is not in review any more.
fn may_reopen(record: &Record, claim: &Claim) -> bool {
    let is_accepted_again = matches!(claim.grant, Grant::Accept { .. });
    let ran_out = record.tries >= record.policy.attempts_max;
    is_accepted_again && ran_out && record.policy.unattended && record.policy.recovery == Recovery::Repeat
}

/// Nothing stands in the way of acting but approval, the lane, and what the claim wants.
fn open(mut draft: Draft<'_>, claim: &Claim) -> Transition {
    let now = draft.now();
    if !draft.record.is_approved() {
        return hold(draft);
    }
    if draft.may_have_been_lost() {
        return told_by_status(draft, claim);
    }
    if let Grant::Accept { due_in } = claim.grant {
        if draft.record.due_at.is_none() {
            draft.record.due_at = Some(now + due_in);
            draft.record.waits_until = draft.record.place.is_some().then_some(Timestamp::NEVER);
            draft.journal(Event::Accepted, "");
        }
        let until = draft.record.due_at.unwrap_or(now);
        return draft.wait(until, WaitCause::Accepted);
    }
    match draft.way() {
        Way::Free { late } => draft.grant(late, claim.holder.as_ref()),
        Way::Taken(by) => queue(draft, by),
        Way::Overtaken => {
            draft.settle_as(Status::Superseded);
            draft.journal(Event::Superseded, "a newer version was already applied");
            draft.refuse(Refusal::Superseded)
        }
    }
}

/// Waits for a person (S30).
fn hold(mut draft: Draft<'_>) -> Transition {
    let rule = draft.record.policy.approval.clone().unwrap_or_default();
    let expires_at = draft.now() + rule.expires_after;
    draft.rest_in(Status::Held);
    draft.record.approval = Some(Approval { expires_at, approved_by: Vec::new(), decision: None });
    draft.journal(Event::Held, "");
    draft.alerts.push(Alert::Held);
    draft.tell(Verdict::Hold(Hold { expires_at }))
}

/// Waits for the lane. Its place among those that wait is kept for one lease, so that a caller that went away does not
/// keep the others waiting; asking again keeps it longer.
fn queue(mut draft: Draft<'_>, by: Option<crate::lane::IntentId>) -> Transition {
    let now = draft.now();
    let lease = draft.record.policy.lease;
    let first_time = draft.record.waits_until.is_none();
    if draft.record.waits_until.is_none_or(|until| until < now + lease / 2) {
        draft.record.waits_until = Some(now + lease);
    }
    if first_time {
        draft.journal(Event::Queued, "");
    }
    draft.wait(now, WaitCause::Lane(by))
}

enum Way {
    Free { late: bool },
    Taken(Option<crate::lane::IntentId>),
    Overtaken,
}

impl Draft<'_> {
    /// Raises doubt, once in a recovery, where the ledger may have lost that this happened (S43): it is treated like an attempt
    /// nobody heard of again, whether the ledger still knows of the intent or not. Returns whether it did.
    fn may_have_been_lost(&mut self) -> bool {
        let Some(since) = self.moment.recovering_since else { return false };
        let record = &self.record;
        if record.doubt || record.policy.recovery == Recovery::Repeat || record.recovered_since == Some(since)
        {
            return false;
        }
        let quiet_at = self.quiet_after(self.now());
        self.record.recovered_since = Some(since);
        self.record.doubt = true;
        self.record.first_sent_at = Some(since);
        self.record.quiet_at = Some(quiet_at);
        self.follow_class(None);
        self.journal(Event::Recovering, "the ledger lost its tail; this may have happened before");
        true
    }

    fn wait(self, until: Timestamp, cause: WaitCause) -> Transition {
        self.tell(Verdict::Wait(Wait { until, cause }))
    }

    /// A newer version of the whole state was applied.
    fn is_overtaken(&self) -> bool {
        let (Some(lane), Some(place)) = (&self.lane, &self.record.place) else { return false };
        let is_older = place.version.is_some_and(|mine| lane.applied.is_some_and(|applied| mine < applied));
        is_older && self.record.policy.version_means == VersionMeans::Snapshot
    }

    /// What the lane says (S15).
    fn way(&self) -> Way {
        let (Some(lane), Some(place)) = (&self.lane, &self.record.place) else {
            return Way::Free { late: false };
        };
        let older = place.version.is_some_and(|mine| lane.applied.is_some_and(|applied| mine < applied));
        let means = self.record.policy.version_means;
        if self.is_overtaken() && !self.record.doubt {
            return Way::Overtaken;
        }
        match lane.holder {
            // It touches the entity already, or may have: the others wait for it, not it for them.
            Some(holder) if holder == lane.me => return Way::Free { late: older },
            Some(holder) => return Way::Taken(Some(holder)),
            None => {}
        }
        let mine = (place.version, lane.me);
        let before_me = |other: &Waiting| other.until > self.now() && (other.version, other.intent) < mine;
        let first = match means {
            VersionMeans::Order => lane.first_waiting,
            // A newer state makes an older one unnecessary, and waits for none of them. Equal ones apply as they came.
            VersionMeans::Snapshot => lane.first_equal,
        };
        match first.filter(before_me) {
            Some(other) => Way::Taken(Some(other.intent)),
            None => Way::Free { late: older },
        }
    }

    /// Gives leave to act, once.
    fn grant(mut self, late: bool, holder: Option<&Actor>) -> Transition {
        let now = self.now();
        let (lease, margin) = (self.record.policy.lease, self.record.policy.send_margin());
        let latest = self.latest_native_send();
        self.rest_in(Status::Pending);
        self.record.fence = self.record.fence.next();
        self.record.tries += 1;
        let lease_until = now + lease;
        let send_by = lease_until.minus(margin).min(latest.unwrap_or(Timestamp::NEVER));
        self.record.attempt = Some(Attempt {
            kind: PermitKind::Act,
            claim_id: self.command.id,
            holder: holder.cloned().unwrap_or_else(|| self.command.actor.clone()),
            granted_at: now,
            lease_until,
            send_by,
        });
        let by = holder.as_ref().map(|holder| format!("by {holder}")).unwrap_or_default();
        self.journal(Event::Claimed, if late { "late: a newer version was already applied" } else { &by });
        let permit = self.permit(late);
        self.tell(Verdict::Proceed(permit))
    }

    /// The permit that is out, in durations from now.
    pub(super) fn permit(&self, late: bool) -> Permit {
        let attempt = self.record.attempt.as_ref().expect("a permit is out");
        let salt = self.record.salt.expect("what was forgotten is settled, and has no permit");
        let (fence, generation) = (self.record.fence, self.record.generation);
        Permit {
            kind: attempt.kind,
            fence,
            generation,
            secret: PermitSecret::of(salt, fence, generation, &self.command.actor),
            attempt: self.record.tries,
            lease: attempt.lease_until.since(self.now()),
            send_within: attempt.send_by.since(self.now()),
            doubt: self.record.doubt,
            late,
        }
    }
}
