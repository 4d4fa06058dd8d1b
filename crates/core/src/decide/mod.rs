//! The rules: one total function from what is believed, what is wanted and the time to what happens next.
//!
//! Read it against the picture in `ARCHITECTURE.md`. [`decide`] matches on the command; the files beside this one hold
//! what each command does:
//!
//! * `claim`: who gets a permit, and what everyone else is told;
//! * `settle`: what a report does, also one that comes too late;
//! * `doubt`: what happens when nobody knows, by recovery class, and when time is up;
//! * `person`: approvals, reviews, resets;
//! * `adopt`: what the source of truth says has happened;
//! * `keep`: how long things are kept.

mod adopt;
mod claim;
mod doubt;
mod keep;
mod person;
mod settle;

use crate::answer::{self, Answer, Content, Source};
use crate::command::{Action, Command};
use crate::journal::{Entry, Event};
use crate::lane::Lane;
use crate::moment::{MachineClock, Moment, Timestamp};
use crate::name::Actor;
use crate::policy::{OnReview, Recovery};
use crate::record::{Record, Status};
use crate::transition::{After, Alert, Notice, Transition};
use crate::verdict::{Noted, Refusal, Verdict};

/// Decides one command.
///
/// `record` is what the store believes, if it knows the intent at all; `lane` is what it knows of the intent's lane,
/// and must be given exactly when the record or the claim has a place in one.
pub fn decide(
    record: Option<&Record>,
    lane: Option<&Lane>,
    command: &Command,
    moment: &Moment,
) -> Transition {
    let lane = lane.cloned();
    match (&command.action, record) {
        // The record that the caller read is gone.
        (Action::Claim(claim), None) if claim.about.is_some() => Transition::refusing(Refusal::NoSuchIntent),
        (Action::Claim(claim), None) => claim::fresh(claim, lane, command, moment),
        (Action::Adopt(adopt), None) => adopt::fresh(adopt, lane, command, moment),
        (_, None) => Transition::refusing(Refusal::NoSuchIntent),
        (action, Some(record)) => {
            let draft = Draft::of(record, lane, command, moment);
            match action {
                Action::Claim(claim) => claim::known(draft, claim),
                Action::Renew(renew) => settle::renew(draft, renew),
                Action::Settle(settle) => settle::settle(draft, settle),
                Action::Ask(_) => doubt::ask(draft),
                Action::Expire => doubt::expire(draft),
                Action::Approve(approve) => person::approve(draft, approve),
                Action::Reject(reject) => person::reject(draft, reject),
                Action::Resolve(resolve) => person::resolve(draft, resolve),
                Action::Reset(reset) => person::reset(draft, reset),
                Action::Adopt(adopt) => adopt::known(draft, adopt),
                Action::MarkUndone(mark) => keep::mark_undone(draft, mark),
                Action::Purge(purge) => keep::purge(draft, *purge),
                Action::Forget(forget) => keep::forget(draft, forget),
            }
        }
    }
}

impl Transition {
    fn refusing(refusal: Refusal) -> Self {
        Self {
            after: After::Unchanged,
            lane: None,
            entries: Vec::new(),
            alerts: Vec::new(),
            notices: Vec::new(),
            verdict: Verdict::Refuse(refusal),
        }
    }
}

/// A decision in the making: the record as it is so far, and what was noted on the way.
struct Draft<'a> {
    before: Option<&'a Record>,
    record: Record,
    lane_before: Option<Lane>,
    lane: Option<Lane>,
    command: &'a Command,
    moment: &'a Moment,
    entries: Vec<Entry>,
    alerts: Vec<Alert>,
    notices: Vec<Notice>,
}

impl<'a> Draft<'a> {
    fn of(record: &'a Record, lane: Option<Lane>, command: &'a Command, moment: &'a Moment) -> Self {
        let mut draft = Self { before: Some(record), ..Self::new(record.clone(), lane, command, moment) };
        if record.is_wanted_again()
            && let Some(lane) = &mut draft.lane
        {
            // A person knows what was applied; this is not superseded by it (S29).
            lane.applied = None;
        }
        draft
    }

    fn new(record: Record, lane: Option<Lane>, command: &'a Command, moment: &'a Moment) -> Self {
        Self {
            before: None,
            record,
            lane_before: lane.clone(),
            lane,
            command,
            moment,
            entries: Vec::new(),
            alerts: Vec::new(),
            notices: Vec::new(),
        }
    }

    fn now(&self) -> Timestamp {
        self.moment.now
    }

    fn journal(&mut self, event: Event, reason: &str) {
        self.journal_as(self.command.actor.clone(), event, reason, None);
    }

    fn journal_content(&mut self, event: Event, reason: &str, content: Option<Content>) {
        self.journal_as(self.command.actor.clone(), event, reason, content);
    }

    fn journal_as(&mut self, actor: Actor, event: Event, reason: &str, content: Option<Content>) {
        self.entries.push(Entry {
            at: self.now(),
            actor,
            event,
            status: self.record.status,
            doubt: self.record.doubt,
            generation: self.record.generation,
            fence: self.record.fence,
            reason: answer::reason(reason),
            content,
        });
    }

    /// Settles for good: nothing is under way or due any more.
    fn settle_as(&mut self, status: Status) {
        debug_assert!(status.is_settled(), "{status} is not settled");
        self.rest_in(status);
        self.record.settled_at = Some(self.now());
    }

    /// It happened.
    fn done(&mut self, answer: Answer, source: Source) {
        self.settle_as(Status::Done);
        self.record.doubt = false;
        self.record.answer = Some(answer);
        self.record.source = Some(source);
        // What is answered has arrived; but where repeating is harmless several may be under way at once, and each of
        // them is applied. In a lane the next one waits for the last of them (S15).
        let repeats = self.record.policy.recovery == Recovery::Repeat && self.record.place.is_some();
        let in_flight = self.in_flight_until().filter(|_| repeats);
        self.clear_doubt_facts();
        self.record.quiet_at = in_flight;
    }

    /// A status in which no permit is out and nothing is scheduled.
    fn rest_in(&mut self, status: Status) {
        self.record.status = status;
        self.record.attempt = None;
        self.record.due_at = None;
        self.record.ask_until = None;
        self.record.asks = 0;
        self.record.waits_until = None;
    }

    /// What no caller comes back for keeps its place among those that wait for its lane: in an order, the next ones must not
    /// pass because it failed once. Out of attempts it waits for a person, like a review (S15).
    fn keep_place(&mut self) {
        let record = &mut self.record;
        let waits_for_time = record.due_at.is_some();
        if record.policy.unattended
            && record.place.is_some()
            && (waits_for_time || record.policy.on_review == OnReview::Block)
        {
            record.waits_until = Some(Timestamp::NEVER);
        }
    }

    fn clear_doubt_facts(&mut self) {
        self.record.first_sent_at = None;
        self.record.quiet_at = None;
        self.record.kept = None;
    }

    /// Leaves the lane of an intent that was forgotten, unless something of it can still arrive: then it does so later.
    fn leave_lane(&mut self) {
        if self.record.name.is_none() && self.record.quiet_at.is_none() {
            self.record.place = None;
        }
    }

    /// A fresh start: what the old generation came to stays with it (S29).
    fn start_generation(&mut self) {
        self.rest_in(Status::Ready);
        self.clear_doubt_facts();
        let record = &mut self.record;
        record.generation += 1;
        record.doubt = false;
        record.tries = 0;
        record.fingerprint = None;
        record.answer = None;
        record.source = None;
        record.replay_until = None;
        record.approval = None;
        record.settled_at = None;
        record.entombed_at = None;
    }

    fn noted(self, changed: bool) -> Transition {
        let verdict = Verdict::Noted(Noted { status: self.record.status, changed });
        self.tell(verdict)
    }

    fn refuse(self, refusal: Refusal) -> Transition {
        self.tell(Verdict::Refuse(refusal))
    }

    /// Ends the decision. The lane follows from the record here and nowhere else, and only from one that changes: a store writes
    /// both or nothing (S15).
    fn tell(mut self, verdict: Verdict) -> Transition {
        if self.before.is_some_and(|before| *before == self.record) {
            return Transition {
                after: After::Unchanged,
                lane: None,
                entries: self.entries,
                alerts: self.alerts,
                notices: self.notices,
                verdict,
            };
        }
        if let Some(lane) = &mut self.lane {
            if self.record.holds_lane() {
                // An intent whose doubt another one passed, or that is in doubt from the start (S43), takes nothing away.
                lane.holder.get_or_insert(lane.me);
            } else if lane.holder == Some(lane.me) {
                lane.holder = None;
            }
            // What was given up in doubt may have been applied; an older version must not undo it.
            let applied =
                |record: &Record| record.status == Status::Done || record.status.is_settled() && record.doubt;
            if applied(&self.record) && !self.before.is_some_and(applied) {
                lane.applied = lane.applied.max(self.record.place.as_ref().and_then(|place| place.version));
            }
            // What was applied stays applied.
            lane.applied = lane.applied.max(self.lane_before.as_ref().and_then(|before| before.applied));
        }
        // The only place that raises it, so that no way into an open status can forget to (S47).
        let now = self.now();
        if self.record.is_stuck(now) && !self.before.is_some_and(|before| before.is_stuck(now)) {
            self.alerts.push(Alert::Stuck);
        }
        let after = After::Write(Box::new(self.record));
        let lane = if self.lane == self.lane_before { None } else { self.lane };
        Transition { after, lane, entries: self.entries, alerts: self.alerts, notices: self.notices, verdict }
    }
}

/// Tells two decisions of people apart (S12).
fn digest_of(parts: &[&str]) -> u64 {
    static DOMAIN: crate::name::Domain = crate::name::Domain::new("twicesafe decision v1");
    let mut hasher = DOMAIN.hasher();
    for part in parts {
        crate::name::put(&mut hasher, part.as_bytes());
    }
    u64::from_be_bytes(hasher.finalize().as_bytes()[..8].try_into().expect("a hash has 32 bytes"))
}
