//! Verdicts, records and journals without their times: whether there is one is compared, not which.

use std::time::Duration;

use twicesafe_core::journal::Entry;
use twicesafe_core::{Record, Refusal, Timestamp, Verdict};

pub fn verdict(mut verdict: Verdict) -> Verdict {
    match &mut verdict {
        Verdict::Proceed(permit) => (permit.lease, permit.send_within) = (Duration::ZERO, Duration::ZERO),
        Verdict::Wait(wait) => wait.until = Timestamp::default(),
        Verdict::Hold(hold) => hold.expires_at = Timestamp::default(),
        Verdict::Refuse(Refusal::TooEarly(at)) => *at = Timestamp::default(),
        Verdict::Replay(_)
        | Verdict::Review
        | Verdict::Refuse(_)
        | Verdict::Noted(_)
        | Verdict::Recompute(_) => {}
    }
    verdict
}

pub fn record(mut record: Record) -> Record {
    let times = [
        &mut record.due_at,
        &mut record.first_sent_at,
        &mut record.quiet_at,
        &mut record.ask_until,
        &mut record.replay_until,
        &mut record.waits_until,
        &mut record.settled_at,
        &mut record.entombed_at,
    ];
    times.into_iter().flatten().for_each(|at| *at = Timestamp::default());
    record.created_at = Timestamp::default();
    if let Some(attempt) = &mut record.attempt {
        attempt.granted_at = Timestamp::default();
        attempt.lease_until = Timestamp::default();
        attempt.send_by = Timestamp::default();
    }
    if let Some(approval) = &mut record.approval {
        approval.expires_at = Timestamp::default();
    }
    record
}

pub fn entry(entry: Entry) -> Entry {
    Entry { at: Timestamp::default(), ..entry }
}
