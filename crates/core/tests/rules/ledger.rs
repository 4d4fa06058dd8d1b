//! A ledger of one intent and a clock that moves when told to.

use std::sync::Arc;
use std::time::Duration;

use twicesafe_core::journal::{Entry, Event};
use twicesafe_core::{
    Action, Actor, After, Alert, Answer, Approve, Ask, Claim, Command, CommandId, Counts, Finding,
    Fingerprint, Grant, Lane, LaneName, Lookup, Moment, Name, Notice, Outcome, Permit, Place, Policy, Recipe,
    Record, Recovery, Refusal, Reject, Renew, Report, Reset, Resolution, Resolve, Salt, Settle, Status,
    Timestamp, Verdict, decide,
};

pub const SECOND: Duration = Duration::from_secs(1);
pub const MILLISECOND: Duration = Duration::from_millis(1);

pub struct Ledger {
    pub policy: Arc<Policy>,
    pub record: Option<Record>,
    pub lane: Option<Lane>,
    pub version: Option<i64>,
    pub moment: Moment,
    pub journal: Vec<Entry>,
    pub alerts: Vec<Alert>,
    pub notices: Vec<Notice>,
    ids: u8,
}

pub fn lookup() -> Recovery {
    Recovery::Lookup(Lookup { lag: 5 * SECOND, lookup_for: 600 * SECOND })
}

pub fn native_key(lookup: Option<Lookup>) -> Recovery {
    Recovery::NativeKey { retention: 1000 * SECOND, lookup }
}

pub fn answer(id: &str) -> Answer {
    Answer::of("made").with_external_id(id)
}

pub fn answered(id: &str) -> Outcome {
    Outcome::Answered(answer(id))
}

pub fn unknown() -> Outcome {
    Outcome::unknown("timeout")
}

pub fn not_sent() -> Outcome {
    Outcome::not_sent("connect refused")
}

/// The caller was told, and must mend something first.
pub fn passed_on() -> Outcome {
    let Outcome::NotSent { reason, retry_after, .. } = not_sent() else { unreachable!() };
    Outcome::NotSent { reason, retry_after, counts: Counts::AsPassedOn }
}

pub fn refused() -> Outcome {
    Outcome::refused(Answer::of("no"))
}

pub fn silent() -> Finding {
    Finding::Silent { reason: "503".into() }
}

impl Ledger {
    pub fn new(recovery: Recovery) -> Self {
        Self::agreed(Policy::new(recovery))
    }

    pub fn agreed(policy: Policy) -> Self {
        Self {
            policy: Arc::new(policy),
            record: None,
            lane: None,
            version: None,
            moment: Moment::at(Timestamp::from_millis(1_000_000)),
            journal: Vec::new(),
            alerts: Vec::new(),
            notices: Vec::new(),
            ids: 0,
        }
    }

    pub fn in_lane(mut self, lane: Lane, version: Option<i64>) -> Self {
        (self.lane, self.version) = (Some(lane), version);
        self
    }

    pub fn pass(&mut self, span: Duration) {
        self.moment.now = self.moment.now + span;
    }

    /// Applies a command, writes what it comes to, and checks that each change of status is journalled (S40).
    pub fn apply(&mut self, id: u8, who: &str, action: Action) -> Verdict {
        let command = Command { id: CommandId::new([id; 16]), actor: Actor::new(who).unwrap(), action };
        let transition = decide(self.record.as_ref(), self.lane.as_ref(), &command, &self.moment);
        let before = self.record.as_ref().map(|record| record.status);
        match transition.after {
            After::Unchanged => {}
            After::Write(record) => self.record = Some(*record),
            After::Remove => self.record = None,
        }
        self.lane = transition.lane.or(self.lane.take());
        if let Some(record) = &self.record
            && before != Some(record.status)
        {
            let last = transition.entries.last().expect("S40: a change of status is journalled");
            assert_eq!(last.status, record.status, "S40: {:?} after {command:?}", last.event);
        }
        self.journal.extend(transition.entries);
        (self.alerts, self.notices) = (transition.alerts, transition.notices);
        transition.verdict
    }

    pub fn run(&mut self, who: &str, action: Action) -> Verdict {
        self.ids += 1;
        self.apply(self.ids, who, action)
    }

    pub fn claim_of(&self, input: &str) -> Claim {
        let place = self
            .lane
            .is_some()
            .then(|| Place { lane: LaneName::new("contact:881").unwrap(), version: self.version });
        Claim {
            name: Name::new("shop/mail", "order:10492").unwrap(),
            fingerprint: Fingerprint::of(&Recipe::raw(), input.as_bytes()),
            policy: self.policy.clone(),
            place,
            step: None,
            request: None,
            salt: Salt([0; 16]),
            holder: None,
            grant: Grant::Permit,
            about: None,
        }
    }

    pub fn claim_with(&mut self, input: &str) -> Verdict {
        let claim = self.claim_of(input);
        self.run("caller", Action::Claim(Box::new(claim)))
    }

    pub fn claim(&mut self) -> Verdict {
        self.claim_with("input")
    }

    /// A claim that gets its permit.
    pub fn permit(&mut self) -> Permit {
        permit_in(self.claim())
    }

    pub fn ask(&mut self) -> Verdict {
        self.run("asker", Action::Ask(Ask))
    }

    pub fn settle(&mut self, permit: &Permit, report: Report) -> Verdict {
        self.settle_as("caller", permit, report)
    }

    pub fn settle_as(&mut self, who: &str, permit: &Permit, report: Report) -> Verdict {
        let Permit { fence, generation, secret, .. } = *permit;
        self.run(who, Action::Settle(Settle { fence, generation, secret, report }))
    }

    pub fn acted(&mut self, permit: &Permit, outcome: Outcome) -> Verdict {
        self.settle(permit, Report::Act(outcome))
    }

    /// Asks and reports what was found.
    pub fn looked_up(&mut self, finding: Finding) -> Verdict {
        let permit = permit_in(self.ask());
        self.settle_as("asker", &permit, Report::Lookup(finding))
    }

    pub fn renew(&mut self, permit: &Permit) -> Verdict {
        let Permit { fence, secret, .. } = *permit;
        self.run("caller", Action::Renew(Renew { fence, secret, holder: None }))
    }

    pub fn expire(&mut self) -> Verdict {
        self.run("sweep", Action::Expire)
    }

    pub fn resolve(&mut self, resolution: Resolution) -> Verdict {
        let about = self.record().fence;
        self.run("ada", Action::Resolve(Resolve { about, resolution, reason: "looked".into() }))
    }

    pub fn approve(&mut self, who: &str) -> Verdict {
        let generation = self.record().generation;
        self.run(who, Action::Approve(Approve { generation, fingerprint: None }))
    }

    pub fn reject(&mut self, who: &str) -> Verdict {
        let generation = self.record().generation;
        self.run(who, Action::Reject(Reject { generation, reason: "no".into() }))
    }

    pub fn reset(&mut self) -> Verdict {
        let generation = self.record().generation;
        self.run("ada", Action::Reset(Reset { generation, reason: "again".into() }))
    }

    /// Claims, and lets the lease lapse.
    pub fn lapse(&mut self) -> Permit {
        let permit = self.permit();
        self.pass(self.policy.lease);
        self.expire();
        permit
    }

    pub fn record(&self) -> &Record {
        self.record.as_ref().unwrap()
    }

    pub fn status(&self) -> Status {
        self.record().status
    }

    pub fn last_event(&self) -> Event {
        self.journal.last().unwrap().event
    }

    #[track_caller]
    pub fn check(&self, status: Status, doubt: bool) {
        assert_eq!((self.status(), self.record().doubt), (status, doubt));
    }
}

#[track_caller]
pub fn permit_in(verdict: Verdict) -> Permit {
    match verdict {
        Verdict::Proceed(permit) => permit,
        other => panic!("no permit but {other:?}"),
    }
}

#[track_caller]
pub fn check_refused(verdict: Verdict, refusal: Refusal) {
    assert_eq!(verdict, Verdict::Refuse(refusal));
}

/// The id of what a replay says was made.
#[track_caller]
pub fn replayed(verdict: Verdict) -> String {
    match verdict {
        Verdict::Replay(replay) => replay.answer.unwrap().external_id.unwrap().as_str().to_owned(),
        other => panic!("no replay but {other:?}"),
    }
}

#[track_caller]
pub fn changed(verdict: Verdict) -> bool {
    match verdict {
        Verdict::Noted(noted) => noted.changed,
        other => panic!("not noted but {other:?}"),
    }
}
