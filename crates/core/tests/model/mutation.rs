//! Rules left out on purpose. A check that does not notice is no check.

use twicesafe_core::{
    Action, Actor, After, Alert, Claim, Command, CommandId, Fence, Lane, Moment, PermitSecret, Record, Renew,
    Settle, Timestamp, Transition, Verdict, decide,
};

use super::world::ticks;

/// A rule left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutation {
    /// Every report counts as that of the permit that is out (S11).
    Fence,
    /// Nobody is asked whether a permit was given to them (S48).
    Holder,
    /// Nobody remembers that an attempt may have acted (S23).
    Doubt,
    /// The holder of a permit sends when it gets around to it (S9).
    SendBy,
    /// A command sent again has another id (S12).
    CommandId,
    /// A renewal lets the holder send until long after its lease (S9, S10).
    RenewedSendBy,
    /// The destination is thought to know a key for ever (S24).
    Horizon,
    /// Snapshots do not look for equal ones that wait (S15).
    Equals,
    /// Whoever would hold a free lane takes it, without a change of its own (S15).
    LaneWithRecord,
    /// Nobody is told of what is stuck (S47).
    Stuck,
    /// What is carried on does not say what was read (S31).
    About,
}

/// What would have been told to that actor with that permit.
fn secret_of(record: &Record, fence: Fence, generation: u32, actor: &Actor) -> PermitSecret {
    PermitSecret::of(record.salt.unwrap(), fence, generation, actor)
}

impl Mutation {
    /// The command when it is sent again.
    pub fn repeated(this: Option<Self>, command: &Command) -> Command {
        let mut command = command.clone();
        if this == Some(Self::CommandId) {
            command.id = CommandId::new([0xff; 16]);
        }
        command
    }

    /// The real rules, without the one left out.
    pub fn decide(
        this: Option<Self>,
        record: Option<&Record>,
        lane: Option<&Lane>,
        command: &Command,
        moment: &Moment,
    ) -> Transition {
        match (this, &command.action, record) {
            (Some(Self::Fence), Action::Settle(settle), Some(record)) => {
                let mut settle = settle.clone();
                (settle.fence, settle.generation) = (record.fence, record.generation);
                settle.secret = secret_of(record, settle.fence, settle.generation, &command.actor);
                let command = Command { action: Action::Settle(settle), ..command.clone() };
                decide(Some(record), lane, &command, moment)
            }
            (Some(Self::Holder), Action::Settle(settle), Some(record)) => {
                let secret = secret_of(record, settle.fence, settle.generation, &command.actor);
                let action = Action::Settle(Settle { secret, ..settle.clone() });
                decide(Some(record), lane, &Command { action, ..command.clone() }, moment)
            }
            (Some(Self::Holder), Action::Renew(renew), Some(record)) => {
                let secret = secret_of(record, renew.fence, record.generation, &command.actor);
                let action = Action::Renew(Renew { secret, ..renew.clone() });
                decide(Some(record), lane, &Command { action, ..command.clone() }, moment)
            }
            (Some(Self::Doubt), _, _) => {
                let mut transition = decide(record, lane, command, moment);
                if let After::Write(record) = &mut transition.after {
                    record.doubt = false;
                    record.first_sent_at = None;
                    record.quiet_at = None;
                }
                transition
            }
            (Some(Self::RenewedSendBy), Action::Renew(_), Some(before)) => {
                let mut transition = decide(record, lane, command, moment);
                let late = |at: &mut Timestamp| *at = *at + before.policy.lease;
                if let After::Write(record) = &mut transition.after {
                    record.attempt.iter_mut().for_each(|attempt| late(&mut attempt.send_by));
                }
                if let Verdict::Proceed(permit) = &mut transition.verdict {
                    permit.send_within += before.policy.lease;
                }
                transition
            }
            (Some(Self::Horizon), Action::Claim(_) | Action::Renew(_), _) => {
                let mut transition = decide(record, lane, command, moment);
                if let (After::Write(record), Verdict::Proceed(permit)) =
                    (&mut transition.after, &mut transition.verdict)
                    && let Some(attempt) = &mut record.attempt
                {
                    attempt.send_by = attempt.lease_until.minus(ticks(1));
                    permit.send_within = attempt.send_by.since(moment.now);
                }
                transition
            }
            (Some(Self::Equals), ..) => {
                let lane = lane.map(|lane| Lane { first_equal: None, ..lane.clone() });
                decide(record, lane.as_ref(), command, moment)
            }
            (Some(Self::Stuck), ..) => {
                let mut transition = decide(record, lane, command, moment);
                transition.alerts.retain(|alert| *alert != Alert::Stuck);
                transition
            }
            (Some(Self::About), Action::Claim(claim), _) => {
                let action = Action::Claim(Box::new(Claim { about: None, ..(**claim).clone() }));
                decide(record, lane, &Command { action, ..command.clone() }, moment)
            }
            (Some(Self::LaneWithRecord), _, Some(before)) => {
                let mut transition = decide(Some(before), lane, command, moment);
                let free = lane.filter(|lane| lane.holder.is_none() && before.holds_lane());
                if transition.after == After::Unchanged && transition.lane.is_none() {
                    transition.lane = free.map(|lane| Lane { holder: Some(lane.me), ..lane.clone() });
                }
                transition
            }
            _ => decide(record, lane, command, moment),
        }
    }
}
