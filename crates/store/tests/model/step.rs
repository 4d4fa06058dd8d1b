//! What may happen next: any command, with figures that make sense now or almost do.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use twicesafe_core::{
    Action, Actor, Answer, ApprovalRule, Approve, Ask, Backoff, Claim, Command, CommandId, Counts, Fence,
    Finding, Fingerprint, Forget, Grant, LaneName, Lookup, MarkUndone, OnMismatch, OnReview, Outcome,
    PermitSecret, Place, Policy, Purge, Recipe, Recovery, Reject, Renew, Report, Reset, Resolution, Resolve,
    Salt, Settle, Status, Step as WorkStep, VersionMeans,
};

use super::reference::{Reference, TICK, name};

#[derive(Clone, Debug)]
pub enum Step {
    /// Time passes.
    Pass { ticks: u32 },
    /// Somebody wants something.
    Tell { intent: usize, way: Way, command: Command },
}

/// How a command says which intent it is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    Name,
    Number,
    Belief,
}

pub fn any_step(state: &Reference, time_passes: bool) -> BoxedStrategy<Step> {
    let known: Vec<(u64, u32, Option<Status>)> = (0..3)
        .map(|intent| {
            let record = state.intents.get(&intent).map(|known| &known.record);
            record.map_or((0, 1, None), |record| {
                (record.fence.number(), record.generation, Some(record.status))
            })
        })
        .collect();
    let way = prop_oneof![2 => Just(Way::Name), 1 => Just(Way::Number), 2 => Just(Way::Belief)];
    let passing = passing_in_lane(state);
    let intents = match passing {
        Some(intent) => prop_oneof![1 => 0..3usize, 4 => Just(intent)].boxed(),
        None => (0..3usize).boxed(),
    };
    let tell = (intents, way, 0..6u128, 0..3usize).prop_flat_map(move |(intent, way, id, who)| {
        let (fence, generation, status) = known[intent];
        let likely = likely_action(intent, fence, generation, status);
        let any = action(intent, fence, generation);
        prop_oneof![4 => likely, 2 => any].prop_map(move |action| {
            let actor = Actor::new(["ann", "bob", "caller"][who]).unwrap();
            let action = with_secret(intent, generation, action, &actor);
            let command = Command { id: CommandId::new(id.to_be_bytes()), actor, action };
            // A claim says its name itself; by number it would mean an intent that may be gone.
            let way = if matches!(command.action, Action::Claim(_)) { Way::Name } else { way };
            Step::Tell { intent, way, command }
        })
    });
    if !time_passes {
        return tell.boxed();
    }
    prop_oneof![8 => tell, 1 => (1..9u32).prop_map(|ticks| Step::Pass { ticks })].boxed()
}

/// Returns which of the two intents in the lane to go on with while one of them let the other pass in review, so that they
/// take turns: the second claims, the first is decided, the second reports, and the first is asked for again.
fn passing_in_lane(state: &Reference) -> Option<usize> {
    let record = |intent: usize| state.intents.get(&intent).map(|known| &known.record);
    let is_pending = |intent: usize| record(intent).is_some_and(|record| record.status == Status::Pending);
    (0..2).find_map(|intent| {
        let other = 1 - intent;
        let record = record(intent).filter(|record| record.policy.on_review == OnReview::Pass)?;
        match record.status {
            Status::Review => Some(if is_pending(other) { intent } else { other }),
            Status::Failed if record.quiet_at.is_some() => {
                Some(if is_pending(other) { other } else { intent })
            }
            _ => None,
        }
    })
}

/// Returns a command that leads the intent on from its status. Commands chosen without regard to it seldom lead two intents
/// through a review and out of it: most runs missed a lane that changed hands without its record.
fn likely_action(
    intent: usize,
    fence: u64,
    generation: u32,
    status: Option<Status>,
) -> BoxedStrategy<Action> {
    let about = Fence::new(fence);
    match status {
        Some(Status::Pending) => {
            let settle =
                move |report| Action::Settle(Settle { fence: about, generation, secret: NOBODYS, report });
            prop_oneof![4 => report().prop_map(settle), 1 => Just(Action::Ask(Ask))].boxed()
        }
        Some(Status::Review) => resolution()
            .prop_map(move |resolution| Action::Resolve(Resolve { about, resolution, reason: "seen".into() }))
            .boxed(),
        Some(Status::Held) => Just(Action::Approve(Approve { generation, fingerprint: None })).boxed(),
        _ => claim(intent),
    }
}

const NOBODYS: PermitSecret = PermitSecret::new([0; 16]);

/// As if the permit had been given to them; at some permits `bob` only guesses.
fn with_secret(intent: usize, generation: u32, mut action: Action, actor: &Actor) -> Action {
    let of = |fence, generation| PermitSecret::of(Salt([intent as u8; 16]), fence, generation, actor);
    match &mut action {
        Action::Settle(settle) if actor.as_str() == "bob" && settle.fence.number() % 4 == 3 => {}
        Action::Settle(settle) => settle.secret = of(settle.fence, settle.generation),
        Action::Renew(renew) => renew.secret = of(renew.fence, generation),
        _ => {}
    }
    action
}

fn action(intent: usize, fence: u64, generation: u32) -> BoxedStrategy<Action> {
    let reason: Arc<str> = "because".into();
    let generations = prop_oneof![8 => Just(generation), 1 => Just(generation.max(2) - 1)];
    let fences = prop_oneof![8 => Just(fence), 1 => Just(fence.max(1) - 1)].prop_map(Fence::new);
    let settle = (fences.clone(), generations.clone(), report());
    let resolve = (fences.clone(), resolution());
    let why = reason.clone();
    prop_oneof![
        8 => claim(intent),
        8 => settle.prop_map(|(fence, generation, report)| Action::Settle(Settle { fence, generation, secret: NOBODYS, report })),
        1 => fences.prop_map(|fence| Action::Renew(Renew { fence, secret: NOBODYS, holder: None })),
        3 => Just(Action::Ask(Ask)),
        2 => Just(Action::Expire),
        3 => generations.clone().prop_map(|generation| Action::Approve(Approve { generation, fingerprint: None })),
        1 => generations.clone().prop_map(move |generation| Action::Reject(Reject { generation, reason: why.clone() })),
        2 => resolve.prop_map(|(about, resolution)| Action::Resolve(Resolve { about, resolution, reason: "seen".into() })),
        2 => generations.clone().prop_map(|generation| Action::Reset(Reset { generation, reason: "again".into() })),
        1 => Just(Action::Purge(Purge { work_is_open: false })),
        1 => Just(Action::Forget(Forget { reason })),
        1 => generations.prop_map(|generation| Action::MarkUndone(MarkUndone { generation, reason: "undo".into() })),
    ]
    .boxed()
}

fn claim(intent: usize) -> BoxedStrategy<Action> {
    let grant = prop_oneof![4 => Just(Grant::Permit), 1 => (0..2u32).prop_map(|n| Grant::Accept { due_in: TICK * n })];
    let version = proptest::option::of(-1..3i64);
    (policy(), grant, version, prop_oneof![4 => Just("input"), 1 => Just("other input")])
        .prop_map(move |(policy, grant, version, input)| {
            let lane = || LaneName::new("lane").unwrap();
            Action::Claim(Box::new(Claim {
                name: name(intent),
                fingerprint: Fingerprint::of(&Recipe::raw(), input.as_bytes()),
                policy: Arc::new(policy),
                place: (intent < 2).then(|| Place { lane: lane(), version }),
                step: (intent == 2).then(|| WorkStep::new("work", "step").unwrap()),
                request: None,
                salt: Salt([intent as u8; 16]),
                holder: (intent == 2).then(|| Actor::new("process 7").unwrap()),
                grant,
                about: None,
            }))
        })
        .boxed()
}

fn policy() -> impl Strategy<Value = Policy> + Clone {
    let lookup = Lookup { lag: TICK, lookup_for: TICK * 8 };
    let native = |lookup| Recovery::NativeKey { retention: TICK * 12, lookup };
    let recovery = proptest::sample::select(vec![
        Recovery::Person,
        Recovery::Repeat,
        Recovery::Lookup(lookup.clone()),
        native(None),
        native(Some(lookup)),
    ]);
    let approval = proptest::option::weighted(0.2, 1..3u8);
    (recovery, approval, 1..4u32, any::<[bool; 5]>()).prop_map(
        |(recovery, people, attempts_max, [replay, snapshot, pass, note, unattended])| Policy {
            recovery,
            lease: TICK * 3,
            act_max: TICK * 5,
            in_flight_max: TICK,
            attempts_max,
            // Without dice.
            backoff: Backoff { base: Duration::ZERO, cap: TICK },
            retention: TICK * 6,
            tombstone: TICK * 4,
            approval: people.map(|people| ApprovalRule {
                expires_after: TICK * 4,
                people,
                requester_may_approve: people == 2,
            }),
            on_mismatch: match (replay, note) {
                (true, _) => OnMismatch::Replay,
                (false, true) => OnMismatch::Note,
                (false, false) => OnMismatch::Refuse,
            },
            version_means: if snapshot { VersionMeans::Snapshot } else { VersionMeans::Order },
            on_review: if pass { OnReview::Pass } else { OnReview::Block },
            unattended,
        },
    )
}

fn answer() -> impl Strategy<Value = Answer> + Clone {
    let id = proptest::option::of(proptest::sample::select(vec!["ch_1", "ch_2"]));
    (id, 0..3usize).prop_map(|(id, size)| {
        let answer = Answer { head: "200".into(), ..Answer::of(vec![7; size * 10]).limited(15) };
        id.map_or(answer.clone(), |id| answer.with_external_id(id))
    })
}

fn report() -> impl Strategy<Value = Report> {
    let outcome = prop_oneof![
        4 => answer().prop_map(Outcome::Answered),
        2 => (answer(), 0..3u32).prop_map(|(answer, n)| Outcome::Refused { answer, replay_for: TICK * n * 10 }),
        2 => prop_oneof![Just(Counts::AsAttempt), Just(Counts::AsWaiting), Just(Counts::AsPassedOn)]
            .prop_map(|counts| Outcome::NotSent { reason: "no route".into(), retry_after: None, counts }),
        4 => any::<bool>().prop_map(|park| Outcome::Unknown { reason: "cut".into(), retry_after: None, park }),
    ];
    let finding = prop_oneof![
        answer().prop_map(Finding::Found),
        Just(Finding::NotFound),
        Just(Finding::Silent { reason: "503".into() }),
    ];
    prop_oneof![3 => outcome.prop_map(Report::Act), 1 => finding.prop_map(Report::Lookup)]
}

fn resolution() -> impl Strategy<Value = Resolution> {
    prop_oneof![
        1 => answer().prop_map(Resolution::Happened),
        1 => Just(Resolution::DidNotHappen),
        2 => Just(Resolution::GiveUp),
    ]
}
