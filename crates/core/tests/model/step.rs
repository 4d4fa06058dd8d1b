//! What can happen next: callers, messages, lookups, a sweeper, a person, and time, in any order.

use std::sync::Arc;

use twicesafe_core::{
    Action, After, Approve, Ask, Command, Counts, Fence, IntentId, Lane, Moment, OnReview, Outcome, Permit,
    PermitKind, Policy, Record, Recovery, Refusal, Reject, Renew, Report, Reset, Status, Timestamp,
    Transition, Verdict, Waiting,
};

use super::command::{
    Found, Known, Said, actor_of, command_id, generation_of, mark_of, resolve, secret, settle, small,
};
use super::mutation::Mutation;
use super::world::{Believed, Caller, Effects, Fault, Intent, Message, NOW, Saw, Seen, Stage, World};

/// How large a world may get, and what was agreed in it.
#[derive(Clone, Debug)]
pub struct Bounds {
    pub policy: Arc<Policy>,
    /// Versions of the intents that share one lane; empty: one intent without a lane.
    pub versions: Vec<Option<i64>>,
    pub callers: usize,
    /// By intent.
    pub permits: Vec<u64>,
    pub generations: u32,
    /// How many different inputs callers come with.
    pub inputs: u8,
    /// Whether a destination may ask the caller to mend something first (S16).
    pub passes_on: bool,
    /// Whether a server reads what is open and carries it on later (S31).
    pub carries_on: bool,
    pub left_out: Option<Mutation>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Step {
    Tick,
    Claim { intent: usize, caller: usize, input: u8 },
    Ask { intent: usize, caller: usize },
    Look { intent: usize },
    CarryOn { intent: usize, caller: usize },
    Read { intent: usize, caller: usize, saw: Saw },
    Send { intent: usize, caller: usize },
    Renew { intent: usize, caller: usize },
    Settle { intent: usize, caller: usize, said: Said },
    Crash { intent: usize, caller: usize },
    Arrive { intent: usize, message: usize, refused: bool },
    Sweep { intent: usize },
    Approve { intent: usize },
    Reject { intent: usize },
    Resolve { intent: usize, found: Found },
    Reset { intent: usize },
}

impl Bounds {
    pub fn start(&self) -> World {
        let intent = Intent {
            believed: None,
            callers: vec![Caller::Idle; self.callers],
            messages: Vec::new(),
            effects: vec![Effects::default(); self.generations as usize],
            told: false,
            seen: None,
        };
        let intents = vec![intent; self.versions.len().max(1)];
        World { intents, holder: None, applied: None, newest: None, fault: None }
    }

    /// Everything that could happen next.
    pub fn steps(&self, world: &World, steps: &mut Vec<Step>) {
        if world.fault.is_some() {
            return;
        }
        steps.push(Step::Tick);
        for (index, intent) in world.intents.iter().enumerate() {
            self.steps_of_callers(index, intent, steps);
            for (message, sent) in intent.messages.iter().enumerate() {
                steps.push(Step::Arrive { intent: index, message, refused: false });
                if !self.would_deduplicate(intent, sent.generation) {
                    steps.push(Step::Arrive { intent: index, message, refused: true });
                }
            }
            self.steps_of_people(index, intent, steps);
        }
    }

    fn steps_of_callers(&self, index: usize, of: &Intent, steps: &mut Vec<Step>) {
        let intent = index;
        let status = of.believed.as_ref().map(|Believed(record)| record.status);
        for (caller, state) in of.callers.iter().enumerate() {
            if of.callers[..caller].contains(state) {
                continue;
            }
            let say = |said| Step::Settle { intent, caller, said };
            match *state {
                Caller::Idle => {
                    steps.extend((0..self.inputs).map(|input| Step::Claim { intent, caller, input }));
                    if of.seen.is_some() {
                        steps.push(Step::CarryOn { intent, caller });
                    }
                    if self.policy.recovery.lookup().is_some() && status == Some(Status::Pending) {
                        steps.push(Step::Ask { intent, caller });
                    }
                    continue;
                }
                Caller::Acting { stage: Stage::Unsent, send_within, generation, .. } => {
                    steps.push(say(Said::NotSent));
                    if self.passes_on {
                        steps.push(say(Said::PassedOn));
                    }
                    // Who looks before acting may find it there (S25).
                    if self.policy.recovery.lookup().is_some() && of.effects_of(generation).count > 0 {
                        steps.push(say(Said::Found));
                    }
                    if send_within >= 0 || self.left_out == Some(Mutation::SendBy) {
                        steps.push(Step::Send { intent, caller });
                    }
                }
                Caller::Acting { stage: Stage::Sent, .. } => steps.push(say(Said::Unknown)),
                Caller::Acting { stage: Stage::Heard { refused }, .. } => {
                    steps.push(say(if refused { Said::Refused } else { Said::Answered }));
                    if refused && self.passes_on {
                        steps.push(say(Said::PassedOn));
                    }
                    steps.push(say(Said::Unknown));
                }
                Caller::Asking { saw: None, generation, .. } => {
                    steps.push(say(Said::Silent));
                    let effects = of.effects_of(generation);
                    if effects.count > 0 {
                        steps.push(Step::Read { intent, caller, saw: Saw::It });
                    }
                    if effects.count == 0 || effects.age <= self.lag() {
                        steps.push(Step::Read { intent, caller, saw: Saw::Nothing });
                    }
                }
                Caller::Asking { saw: Some(Saw::It), .. } => steps.push(say(Said::Found)),
                Caller::Asking { saw: Some(Saw::Nothing), .. } => steps.push(say(Said::NotFound)),
            }
            if self.policy.act_max > self.policy.lease && matches!(state, Caller::Acting { .. }) {
                steps.push(Step::Renew { intent, caller });
            }
            steps.push(Step::Crash { intent, caller });
        }
    }

    /// A person looks at the destination and tells the truth.
    fn steps_of_people(&self, intent: usize, of: &Intent, steps: &mut Vec<Step>) {
        let Some(Believed(record)) = &of.believed else { return };
        if record.wake_at() <= NOW {
            steps.push(Step::Sweep { intent });
        }
        if self.carries_on && self.what_is_there(record) != of.seen {
            steps.push(Step::Look { intent });
        }
        match record.status {
            Status::Retryable if record.doubt && record.is_stuck(NOW) => {
                self.steps_of_reviewer(intent, of, steps)
            }
            Status::Held => steps.extend([Step::Approve { intent }, Step::Reject { intent }]),
            Status::Review => self.steps_of_reviewer(intent, of, steps),
            status if status.is_settled() => steps.push(Step::Reset { intent }),
            _ => {}
        }
    }

    fn steps_of_reviewer(&self, intent: usize, of: &Intent, steps: &mut Vec<Step>) {
        let happened = of.effects_of(small(Known::of(of).generation.into())).count > 0;
        let found = if happened { Found::Happened } else { Found::DidNotHappen };
        steps.extend([found, Found::GiveUp].map(|found| Step::Resolve { intent, found }));
    }

    /// What a server would read of an intent, if it is one to carry on.
    fn what_is_there(&self, record: &Record) -> Option<Seen> {
        let fingerprint = record.fingerprint.as_ref()?;
        let is_open = matches!(record.status, Status::Ready | Status::Retryable);
        is_open.then(|| Seen { generation: generation_of(record), input: fingerprint.digest()[0] })
    }

    /// Claims what was read a while ago: it may get its permit, and changes nothing about what is asked for.
    fn carry_on(&self, world: &mut World, intent: usize, caller: usize) {
        let asked_for = |world: &World| {
            let Believed(record) = world.intents[intent].believed.as_ref()?;
            Some((record.generation, record.fingerprint.clone()))
        };
        let Some(seen) = world.intents[intent].seen.take() else { return };
        let before = asked_for(world);
        let verdict = self.apply(world, intent, |_| self.claim_again(intent, seen));
        if asked_for(world) != before {
            world.fault = Some(Fault::CorrectionReplaced);
        }
        world.intents[intent].take_permit(caller, &verdict);
    }

    /// The world after a step; `None` if it would leave the bounds.
    pub fn after(&self, world: &World, step: Step) -> Option<World> {
        let mut world = world.clone();
        match step {
            Step::Tick => world.pass_a_tick(&self.policy),
            Step::Claim { intent, caller, input } => {
                let verdict = self.apply(&mut world, intent, |_| self.claim(intent, input));
                world.intents[intent].take_permit(caller, &verdict);
            }
            Step::Ask { intent, caller } => {
                let verdict = self.apply(&mut world, intent, |_| Action::Ask(Ask));
                world.intents[intent].take_permit(caller, &verdict);
            }
            Step::Look { intent } => {
                let Intent { believed, seen, .. } = &mut world.intents[intent];
                *seen = believed.as_ref().and_then(|Believed(record)| self.what_is_there(record));
            }
            Step::CarryOn { intent, caller } => self.carry_on(&mut world, intent, caller),
            Step::Read { intent, caller, saw: seen } => {
                if let Caller::Asking { saw, .. } = &mut world.intents[intent].callers[caller] {
                    *saw = Some(seen);
                }
            }
            Step::Send { intent, caller } => self.send(&mut world, intent, caller),
            Step::Renew { intent, caller } => self.renew(&mut world, intent, caller),
            Step::Settle { intent, caller, said } => {
                let holder = world.intents[intent].callers[caller];
                world.intents[intent].callers[caller] = Caller::Idle;
                self.apply(&mut world, intent, |_| Action::Settle(settle(holder, said)));
            }
            Step::Crash { intent, caller } => world.intents[intent].callers[caller] = Caller::Idle,
            Step::Arrive { intent, message, refused } => self.arrive(&mut world, intent, message, refused),
            Step::Sweep { intent } => drop(self.apply(&mut world, intent, |_| Action::Expire)),
            Step::Approve { intent } => drop(self.apply(&mut world, intent, |record| {
                Action::Approve(Approve { generation: record.generation, fingerprint: None })
            })),
            Step::Reject { intent } => drop(self.apply(&mut world, intent, |record| {
                Action::Reject(Reject { generation: record.generation, reason: "no".into() })
            })),
            Step::Resolve { intent, found } => {
                drop(self.apply(&mut world, intent, |record| Action::Resolve(resolve(record.fence, found))))
            }
            Step::Reset { intent } => drop(self.apply(&mut world, intent, |record| {
                Action::Reset(Reset { generation: record.generation, reason: "again".into() })
            })),
        }
        world.normalise(&self.policy);
        let within = |(intent, permits): (&Intent, &u64)| {
            let known = Known::of(intent);
            known.fence <= Fence::new(*permits) && known.generation <= self.generations
        };
        world.intents.iter().zip(&self.permits).all(within).then_some(world)
    }

    fn send(&self, world: &mut World, intent: usize, caller: usize) {
        let of = &mut world.intents[intent];
        let Caller::Acting { fence, generation, stage, .. } = &mut of.callers[caller] else { return };
        *stage = Stage::Sent;
        let (fence, generation) = (*fence, *generation);
        let forbidden = of.believed.as_ref().is_none_or(|Believed(record)| {
            generation_of(record) == generation && matches!(record.status, Status::Held | Status::Rejected)
        });
        let left = u8::try_from(self.policy.in_flight_max.as_millis()).unwrap();
        of.messages.push(Message { fence, generation, left });
        of.messages.sort_unstable_by_key(|message| message.fence);
        if forbidden {
            world.fault = Some(Fault::SentWhileForbidden);
        }
    }

    fn renew(&self, world: &mut World, intent: usize, caller: usize) {
        let Caller::Acting { fence, generation, .. } = world.intents[intent].callers[caller] else { return };
        let fence = Fence::new(fence.into());
        let renew = Renew { fence, secret: secret(fence, generation.into()), holder: None };
        let verdict = self.apply(world, intent, |_| Action::Renew(renew));
        if let (Verdict::Proceed(permit), Caller::Acting { send_within, .. }) =
            (verdict, &mut world.intents[intent].callers[caller])
        {
            *send_within = ticks_to_send(&permit);
        }
    }

    fn arrive(&self, world: &mut World, intent: usize, message: usize, refused: bool) {
        let of = &mut world.intents[intent];
        let duplicate = self.would_deduplicate(of, of.messages[message].generation);
        let Message { fence: sent, generation, .. } = of.messages.remove(message);
        let effects = &mut of.effects[usize::from(generation) - 1];
        let takes_effect = !refused && !duplicate;
        if takes_effect {
            let count_max = if self.policy.recovery == Recovery::Repeat { 1 } else { 2 };
            *effects = Effects { count: (effects.count + 1).min(count_max), age: 0, ..*effects };
        }
        for caller in &mut of.callers {
            if let Caller::Acting { fence, stage: stage @ Stage::Sent, .. } = caller
                && *fence == sent
            {
                *stage = Stage::Heard { refused };
            }
        }
        if let Some(version) = self.versions.get(intent).copied().flatten().filter(|_| takes_effect) {
            if !self.lets_pass() && world.newest.is_some_and(|newest| newest > version) {
                world.fault = Some(Fault::OlderAfterNewer);
            }
            world.newest = world.newest.max(Some(version));
        }
    }

    /// Whether the destination knows the key of this generation still.
    pub fn would_deduplicate(&self, intent: &Intent, generation: u8) -> bool {
        let effects = intent.effects_of(generation);
        match self.policy.recovery {
            Recovery::NativeKey { retention, .. } => {
                effects.count > 0 && u128::from(effects.age) < retention.as_millis()
            }
            _ => false,
        }
    }

    /// Whether the others of a lane pass one that is in review (S15).
    pub fn lets_pass(&self) -> bool {
        !self.versions.is_empty() && self.policy.on_review == OnReview::Pass
    }

    fn lag(&self) -> u8 {
        let lag = self.policy.recovery.lookup().map_or(0, |lookup| lookup.lag.as_millis());
        u8::try_from(lag).unwrap()
    }

    /// What the store would say of the lane.
    pub fn lane(&self, world: &World, intent: usize) -> Option<Lane> {
        let id = |index: usize| IntentId::new(index as i64);
        let others = (0..world.intents.len()).filter(|other| *other != intent).filter_map(|other| {
            let until = world.intents[other].believed.as_ref()?.0.waits_until?;
            Some(Waiting { version: self.versions[other], intent: id(other), until })
        });
        (!self.versions.is_empty()).then(|| Lane {
            me: id(intent),
            holder: world.holder.map(|holder| id(usize::from(holder))),
            applied: world.applied,
            first_waiting: others.clone().min(),
            first_equal: others.filter(|other| other.version == self.versions[intent]).min(),
        })
    }

    /// Whether one that came before it waits with the same version, and nothing of this one can be at the destination yet.
    fn goes_before_its_equal(&self, world: &World, intent: usize) -> bool {
        let waits = |other: usize| {
            let believed = world.intents[other].believed.as_ref();
            believed.and_then(|believed| believed.0.waits_until).is_some_and(|until| until > NOW)
        };
        let is_equal = |other: &usize| self.versions[*other] == self.versions[intent];
        let holds = world.holder.is_some_and(|holder| usize::from(holder) == intent);
        !self.versions.is_empty() && !holds && (0..intent).filter(is_equal).any(waits)
    }

    /// Lets the rules decide, and decide the same once more (S12).
    fn apply(&self, world: &mut World, intent: usize, action: impl FnOnce(&Known) -> Action) -> Verdict {
        let known = Known::of(&world.intents[intent]);
        let action = action(&known);
        let command = Command { id: command_id(&action, &known), actor: actor_of(&action), action };
        let status =
            |world: &World| world.intents[intent].believed.as_ref().map(|believed| believed.0.status);
        let status_before = status(world);
        let acted = known.generation > 0 && may_have_acted(&world.intents[intent], &known);
        let transition = self.decide(world, intent, &command, NOW);
        if matches!(transition.verdict, Verdict::Proceed(_)) && self.goes_before_its_equal(world, intent) {
            world.fault = Some(Fault::EqualOvertaken);
        }
        if transition.after == After::Unchanged && transition.lane.is_some() {
            world.fault = Some(Fault::LaneChangedAlone);
        }
        self.write(world, intent, &transition);
        let of = &mut world.intents[intent];
        let has_doubt = of.believed.as_ref().is_some_and(|Believed(record)| record.doubt);
        let hears_that_nothing_happened = is_passed_on(&command.action) && !has_doubt;
        of.told |= !transition.alerts.is_empty() || hears_that_nothing_happened;
        of.told &= !matches!(transition.verdict, Verdict::Proceed(_));
        if status(world) != status_before && transition.entries.is_empty() {
            world.fault = Some(Fault::NotJournalled);
        }
        let fresh_start = Known::of(&world.intents[intent]).generation != known.generation;
        if fresh_start && acted && matches!(command.action, Action::Claim(_)) {
            world.fault = Some(Fault::NewGenerationAfterEffect);
        }
        let again = self.decide(world, intent, &Mutation::repeated(self.left_out, &command), NOW);
        let nothing_new = again.after == After::Unchanged && again.lane.is_none() && again.entries.is_empty();
        if !nothing_new || !same_answer(&transition.verdict, &again.verdict) {
            world.fault = Some(Fault::RepetitionDiffers);
        }
        transition.verdict
    }

    pub fn decide(&self, world: &World, intent: usize, command: &Command, now: Timestamp) -> Transition {
        let record = world.intents[intent].believed.as_ref().map(|Believed(record)| &**record);
        let lane = self.lane(world, intent);
        Mutation::decide(self.left_out, record, lane.as_ref(), command, &Moment::at(now))
    }

    pub fn write(&self, world: &mut World, intent: usize, transition: &Transition) {
        match &transition.after {
            After::Unchanged => {}
            After::Write(record) => world.intents[intent].believed = Some(Believed(record.clone())),
            After::Remove => world.intents[intent].believed = None,
        }
        if let Some(lane) = &transition.lane {
            world.holder = lane.holder.map(|holder| u8::try_from(holder.number()).unwrap());
            world.applied = lane.applied;
        }
        let Intent { believed, effects, .. } = &mut world.intents[intent];
        if let Some(Believed(record)) = believed
            && record.status == Status::Done
            && let Some(effects) = effects.get_mut(record.generation as usize - 1)
        {
            effects.told.get_or_insert(mark_of(record.answer.as_ref()));
        }
    }
}

impl Intent {
    pub fn effects_of(&self, generation: u8) -> Effects {
        self.effects[usize::from(generation) - 1]
    }

    fn take_permit(&mut self, caller: usize, verdict: &Verdict) {
        let Verdict::Proceed(permit @ Permit { kind, fence, generation, .. }) = verdict else { return };
        let (fence, generation) = (small(fence.number()), small(u64::from(*generation)));
        self.callers[caller] = match kind {
            PermitKind::Act => {
                Caller::Acting { fence, generation, send_within: ticks_to_send(permit), stage: Stage::Unsent }
            }
            PermitKind::Lookup => Caller::Asking { fence, generation, saw: None },
        };
    }
}

/// In how many ticks the first byte may leave. One of them can begin before what is left of it is over; nothing is left of none.
fn ticks_to_send(permit: &Permit) -> i8 {
    match i8::try_from(permit.send_within.as_millis()).unwrap() {
        0 => -1,
        ticks => ticks,
    }
}

/// Whether anything of this generation took effect or could yet.
pub fn may_have_acted(intent: &Intent, known: &Known) -> bool {
    let this = small(u64::from(known.generation));
    let could_send = |caller: &Caller| matches!(caller, Caller::Acting { generation, send_within, stage: Stage::Unsent, .. } if *generation == this && *send_within >= 0);
    intent.effects_of(this).count > 0
        || intent.messages.iter().any(|message| message.generation == this)
        || intent.callers.iter().any(could_send)
}

fn is_passed_on(action: &Action) -> bool {
    let Action::Settle(settle) = action else { return false };
    matches!(settle.report, Report::Act(Outcome::NotSent { counts: Counts::AsPassedOn, .. }))
}

fn same_answer(first: &Verdict, second: &Verdict) -> bool {
    match (first, second) {
        (Verdict::Noted(first), Verdict::Noted(second)) => first.status == second.status && !second.changed,
        // A lease that was extended to its end is not extended again.
        (Verdict::Proceed(_), Verdict::Refuse(Refusal::ActMax)) => true,
        _ => first == second,
    }
}
