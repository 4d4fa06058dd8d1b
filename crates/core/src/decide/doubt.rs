//! Doubt: what happens when nobody knows whether an attempt acted. Lease expiry never means "run again"; it means
//! "decide" (S23, S24).

use std::time::Duration;

use super::*;
use crate::permit::PermitKind;
use crate::record::Attempt;
use crate::verdict::{Wait, WaitCause};

/// How soon what waits for somebody else is due again, at the earliest.
const WAITING_MIN: Duration = Duration::from_secs(1);

/// The pause between two looks at whether the machine's clock is set.
const CLOCK_LOOKED_AT_EVERY: Duration = Duration::from_secs(10);

/// Looks whether anything is over.
pub(super) fn expire(mut draft: Draft<'_>) -> Transition {
    let changed = draft.lapse();
    draft.noted(changed)
}

/// Asks for a permit to look up.
pub(super) fn ask(mut draft: Draft<'_>) -> Transition {
    draft.lapse();
    let now = draft.now();
    let record = &draft.record;
    if let Some(attempt) = &record.attempt {
        if attempt.kind == PermitKind::Lookup && attempt.claim_id == draft.command.id {
            let permit = draft.permit(false);
            return draft.tell(Verdict::Proceed(permit));
        }
        let wait = Wait { until: attempt.lease_until, cause: WaitCause::Pending };
        return draft.tell(Verdict::Wait(wait));
    }
    if record.status != Status::Pending {
        let status = record.status;
        return draft.refuse(Refusal::WrongStatus(status));
    }
    if let Some(due_at) = record.due_at.filter(|due_at| *due_at > now) {
        return draft.tell(Verdict::Wait(Wait { until: due_at, cause: WaitCause::NotDue }));
    }
    let (lease, margin) = (record.policy.lease, record.policy.send_margin());
    draft.record.fence = draft.record.fence.next();
    draft.record.due_at = None;
    draft.record.attempt = Some(Attempt {
        kind: PermitKind::Lookup,
        claim_id: draft.command.id,
        holder: draft.command.actor.clone(),
        granted_at: now,
        lease_until: now + lease,
        send_by: (now + lease).minus(margin),
    });
    draft.journal(Event::Asked, "");
    let permit = draft.permit(false);
    draft.tell(Verdict::Proceed(permit))
}

impl Draft<'_> {
    /// Does what time alone does. Whoever meets it first, decides it. Says whether anything changed.
    pub(super) fn lapse(&mut self) -> bool {
        let now = match self.record.status {
            // All that time changes there is what the destination knows.
            Status::Retryable => self.destination_time(),
            _ => self.now(),
        };
        if self.record.wake_at() > now {
            return false;
        }
        match (self.record.status, self.record.attempt.take()) {
            (Status::Held, _) => {
                self.settle_as(Status::Rejected);
                self.journal_as(Actor::sweep(), Event::Expired, "nobody said yes in time", None);
                self.alerts.push(Alert::ApprovalExpired);
            }
            (Status::Pending, Some(attempt)) if attempt.kind == PermitKind::Act => {
                self.doubt(&attempt, attempt.send_by);
                if !self.settled_by_kept() {
                    self.follow_class(None);
                }
                let why = format!("the lease of {} ran out; nobody knows whether it acted", attempt.holder);
                self.journal_as(Actor::sweep(), Event::Lapsed, &why, None);
            }
            (Status::Pending, Some(attempt)) => {
                self.silent();
                let why = format!("the lookup of {} was not heard of again", attempt.holder);
                self.journal_as(Actor::sweep(), Event::Silent, &why, None);
            }
            (Status::Pending, None) => {
                self.review();
                self.journal_as(Actor::sweep(), Event::OutOfMeans, "no lookup gave an answer in time", None);
            }
            (Status::Retryable, _) => {
                self.follow_class(None);
                self.journal_as(
                    Actor::sweep(),
                    Event::OutOfMeans,
                    "the destination may no longer know the key",
                    None,
                );
            }
            (status, _) => {
                debug_assert!(status.is_settled(), "time alone does not change {status}");
                self.record.quiet_at = None;
                self.leave_lane();
                self.journal_as(Actor::sweep(), Event::Quiet, "nothing of it can arrive any more", None);
            }
        }
        true
    }

    /// An attempt may have acted; nothing of it was sent after `sent_by`.
    pub(super) fn doubt(&mut self, attempt: &Attempt, sent_by: Timestamp) {
        let quiet_at = self.quiet_after(sent_by);
        let record = &mut self.record;
        record.doubt = true;
        record.first_sent_at = record.first_sent_at.or(Some(attempt.granted_at));
        record.quiet_at = record.quiet_at.max(Some(quiet_at));
    }

    /// From when on nothing that was sent up to then can arrive any more. Ledger time is cut to milliseconds, so what
    /// was sent in one of them may arrive as late as in the last one of its time in flight: that one is not quiet yet.
    pub(super) fn quiet_after(&self, sent_by: Timestamp) -> Timestamp {
        sent_by + self.record.policy.in_flight_max + Duration::from_millis(1)
    }

    /// Until when something of an attempt in doubt can still arrive.
    pub(super) fn in_flight_until(&self) -> Option<Timestamp> {
        self.record.quiet_at.filter(|quiet_at| self.now() < *quiet_at)
    }

    /// An earlier attempt answered meanwhile: it happened, whatever came of this one (S11).
    pub(super) fn settled_by_kept(&mut self) -> bool {
        match self.record.kept.take() {
            Some(answer) => {
                self.done(answer, Source::Act);
                true
            }
            None => false,
        }
    }

    /// In doubt: what next, by recovery class.
    pub(super) fn follow_class(&mut self, retry_after: Option<Duration>) {
        debug_assert!(self.record.doubt, "only doubt is decided by class");
        let out_of_attempts = self.record.tries >= self.record.policy.attempts_max;
        let wait = self.backoff(retry_after);
        let in_time = |latest: Timestamp| self.now() + wait < latest;
        let may_send = match self.record.policy.recovery {
            Recovery::Repeat => !out_of_attempts,
            Recovery::NativeKey { .. } => !out_of_attempts && self.latest_native_send().is_some_and(in_time),
            Recovery::Lookup(_) | Recovery::Person => false,
        };
        if may_send {
            self.rest_in(Status::Retryable);
            self.record.due_at = Some(self.now() + wait);
        } else if let Some(lookup) = self.record.policy.recovery.lookup() {
            let ask_until = self.now() + lookup.lookup_for;
            self.rest_in(Status::Pending);
            self.record.due_at = Some(self.now());
            self.record.ask_until = Some(ask_until);
        } else {
            self.review();
        }
    }

    /// The time as far as a destination's own keeping goes: by the later of the two clocks, so that nothing is sent that it has forgotten.
    fn destination_time(&self) -> Timestamp {
        self.now() + self.moment.ahead
    }

    /// Returns the time that a native key still waits for the machine's clock to be set (S24). The key was first sent before the machine
    /// started, so its age is unknown. `Some(Duration::ZERO)` means that the clock was not set in time.
    pub(super) fn waits_for_clock(&self) -> Option<Duration> {
        let MachineClock::Unset { before_start, wait } = self.moment.clock else { return None };
        let first = self.record.first_sent_at?;
        (self.record.native_horizon().is_some() && first <= before_start).then_some(wait)
    }

    /// A native key that may not be sent before the clock is set. Says until when to wait; if the wait is over, goes on without the key.
    pub(super) fn held_up_by_clock(&mut self) -> Option<Timestamp> {
        match self.waits_for_clock()? {
            Duration::ZERO => {
                self.follow_class(None);
                let why =
                    "the clock was not set in time; nobody knows whether the destination still knows the key";
                self.journal_as(Actor::sweep(), Event::OutOfMeans, why, None);
                None
            }
            wait => {
                let until = self.now() + wait.min(CLOCK_LOOKED_AT_EVERY);
                self.record.due_at = Some(until);
                Some(until)
            }
        }
    }

    /// Until when, in ledger time, a request with the native key may still be sent and is deduplicated (S24).
    pub(super) fn latest_native_send(&self) -> Option<Timestamp> {
        if self.waits_for_clock() == Some(Duration::ZERO) {
            return None;
        }
        let before = self.record.policy.in_flight_max + self.moment.ahead;
        self.record.native_horizon().map(|horizon| horizon.minus(before))
    }

    /// Whoever is waited for does not come sooner for being asked often, and no attempts run out: what was asked for is not cut short,
    /// and there is a least wait.
    pub(super) fn wait_for_somebody(&mut self, retry_after: Option<Duration>) {
        let wait = retry_after.unwrap_or_default().max(WAITING_MIN) + self.backoff(None);
        self.record.due_at = Some(self.now() + wait);
    }

    /// A lookup gave no answer that counts: again later, until its time is over.
    pub(super) fn silent(&mut self) {
        self.record.attempt = None;
        self.record.asks += 1;
        let wait = self.record.policy.backoff.wait(self.record.asks, None, self.moment.dice);
        self.ask_again_at(self.now() + wait);
    }

    pub(super) fn ask_again_at(&mut self, due_at: Timestamp) {
        self.record.attempt = None;
        if self.record.ask_until.is_some_and(|until| due_at < until) {
            self.record.due_at = Some(due_at);
        } else {
            self.review();
        }
    }

    pub(super) fn review(&mut self) {
        self.rest_in(Status::Review);
        let place = self.record.place.as_ref().filter(|_| self.record.holds_lane());
        self.alerts.push(Alert::Review { blocks: place.map(|place| place.lane.clone()) });
    }

    pub(super) fn backoff(&self, retry_after: Option<Duration>) -> Duration {
        self.record.policy.backoff.wait(self.record.tries, retry_after, self.moment.dice)
    }
}
