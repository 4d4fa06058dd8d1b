//! What holds for any commands at any time.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use twicesafe_core::{
    Action, Actor, Adopt, After, Answer, ApprovalRule, Approve, Ask, Claim, Command, CommandId, Counts,
    Fence, Finding, Fingerprint, Forget, Grant, IntentId, Lane, LaneName, Lookup, MarkUndone, Moment, Name,
    Outcome, PermitSecret, Place, Policy, Purge, Recipe, Record, Recovery, Reject, Renew, Report, Reset,
    Resolution, Resolve, Salt, Settle, Status, Timestamp, Transition, Verdict, decide,
};

const START: i64 = 1_000_000;

/// One command, some time after the one before.
#[derive(Clone, Debug)]
struct Event {
    after: u64,
    dice: u32,
    recovering: bool,
    command: Command,
}

fn span() -> impl Strategy<Value = Duration> + Clone {
    prop_oneof![Just(0), 1..5_u64, 1..200_000_u64].prop_map(Duration::from_millis)
}

fn recovery() -> impl Strategy<Value = Recovery> {
    let lookup = (span(), span()).prop_map(|(lag, lookup_for)| Lookup { lag, lookup_for });
    prop_oneof![
        Just(Recovery::Repeat),
        Just(Recovery::Person),
        lookup.clone().prop_map(Recovery::Lookup),
        (span(), proptest::option::of(lookup))
            .prop_map(|(retention, lookup)| Recovery::NativeKey { retention, lookup }),
    ]
}

fn policy() -> impl Strategy<Value = Arc<Policy>> {
    let approval =
        (span(), 1..3_u8, any::<bool>()).prop_map(|(expires_after, people, requester_may_approve)| {
            ApprovalRule { expires_after, people, requester_may_approve }
        });
    (recovery(), span(), span(), span(), 1..4_u32, proptest::option::weighted(0.2, approval)).prop_map(
        |(recovery, lease, act_max, in_flight_max, attempts_max, approval)| {
            let retention = Duration::from_secs(100);
            let policy = Policy::new(recovery);
            Arc::new(Policy { lease, act_max, in_flight_max, attempts_max, approval, retention, ..policy })
        },
    )
}

fn answer() -> impl Strategy<Value = Answer> {
    "[ab]".prop_map(|id| Answer::of(id.clone()).with_external_id(&id))
}

fn counts() -> impl Strategy<Value = Counts> {
    prop_oneof![Just(Counts::AsAttempt), Just(Counts::AsWaiting), Just(Counts::AsPassedOn)]
}

fn report() -> impl Strategy<Value = Report> {
    prop_oneof![
        3 => answer().prop_map(|answer| Report::Act(Outcome::Answered(answer))),
        1 => (answer(), span())
            .prop_map(|(answer, replay_for)| Report::Act(Outcome::Refused { answer, replay_for })),
        1 => (proptest::option::of(span()), counts()).prop_map(|(retry_after, counts)| {
            Report::Act(Outcome::NotSent { reason: "".into(), retry_after, counts })
        }),
        1 => (proptest::option::of(span()), any::<bool>()).prop_map(|(retry_after, park)| {
            Report::Act(Outcome::Unknown { reason: "".into(), retry_after, park })
        }),
        1 => answer().prop_map(|answer| Report::Lookup(Finding::Found(answer))),
        1 => Just(Report::Lookup(Finding::NotFound)),
        1 => Just(Report::Lookup(Finding::Silent { reason: "".into() })),
    ]
}

fn claim(policy: Arc<Policy>, laned: bool) -> impl Strategy<Value = Action> {
    (0..2_u8, prop_oneof![4 => Just(None), 1 => span().prop_map(Some)]).prop_map(move |(input, due_in)| {
        let lane = LaneName::new("lane").unwrap();
        Action::Claim(Box::new(Claim {
            name: Name::new("shop", "order:1").unwrap(),
            fingerprint: Fingerprint::of(&Recipe::raw(), &[input]),
            policy: policy.clone(),
            place: laned.then_some(Place { lane, version: Some(5) }),
            step: None,
            request: None,
            salt: Salt([0; 16]),
            holder: None,
            grant: due_in.map_or(Grant::Permit, |due_in| Grant::Accept { due_in }),
            about: None,
        }))
    })
}

fn action(policy: Arc<Policy>, laned: bool) -> impl Strategy<Value = Action> {
    let fence = || (0..5_u64).prop_map(Fence::new);
    let generation = || 0..3_u32;
    let resolution = prop_oneof![
        answer().prop_map(Resolution::Happened),
        Just(Resolution::DidNotHappen),
        Just(Resolution::GiveUp),
    ];
    prop_oneof![
        8 => claim(policy.clone(), laned),
        2 => answer().prop_map(move |answer| Action::Adopt(Box::new(Adopt {
            name: Name::new("shop", "order:1").unwrap(),
            fingerprint: None,
            policy: policy.clone(),
            answer,
            reason: "".into(),
            salt: Salt([0; 16]),
        }))),
        8 => (fence(), generation(), report()).prop_map(|(fence, generation, report)| {
            Action::Settle(Settle { fence, generation, secret: NOBODYS, report })
        }),
        1 => fence().prop_map(|fence| Action::Renew(Renew { fence, secret: NOBODYS, holder: None })),
        3 => Just(Action::Ask(Ask)),
        3 => Just(Action::Expire),
        2 => generation().prop_map(|generation| Action::Approve(Approve { generation, fingerprint: None })),
        1 => generation().prop_map(|generation| Action::Reject(Reject { generation, reason: "".into() })),
        3 => (fence(), resolution)
            .prop_map(|(about, resolution)| Action::Resolve(Resolve { about, resolution, reason: "".into() })),
        2 => generation().prop_map(|generation| Action::Reset(Reset { generation, reason: "".into() })),
        1 => any::<bool>().prop_map(|work_is_open| Action::Purge(Purge { work_is_open })),
        1 => Just(Action::Forget(Forget { reason: "".into() })),
        1 => generation().prop_map(|generation| Action::MarkUndone(MarkUndone { generation, reason: "".into() })),
    ]
}

fn story() -> impl Strategy<Value = (bool, Vec<Event>)> {
    (policy(), any::<bool>()).prop_flat_map(|(policy, laned)| {
        let after = prop_oneof![Just(0), 1..3_u64, 1..100_000_u64];
        let moment = (after, any::<u32>(), proptest::bool::weighted(0.1));
        let guesses = proptest::bool::weighted(0.1);
        let command = (0..4_u8, 0..3_u8, action(policy, laned), guesses).prop_map(
            |(id, actor, mut action, guesses)| {
                let actor = Actor::new(&format!("actor {actor}")).unwrap();
                if !guesses {
                    know_the_secret(&mut action, &actor);
                }
                Command { id: CommandId::new([id; 16]), actor, action }
            },
        );
        let event = (moment, command).prop_map(|((after, dice, recovering), command)| Event {
            after,
            dice,
            recovering,
            command,
        });
        (Just(laned), proptest::collection::vec(event, 1..40))
    })
}

const NOBODYS: PermitSecret = PermitSecret::new([0; 16]);

/// As if the permit had been given to them.
fn know_the_secret(action: &mut Action, actor: &Actor) {
    let of = |fence, generation| PermitSecret::of(Salt([0; 16]), fence, generation, actor);
    match action {
        Action::Settle(settle) => settle.secret = of(settle.fence, settle.generation),
        Action::Renew(renew) => renew.secret = of(renew.fence, 1),
        _ => {}
    }
}

struct Told {
    before: Option<Record>,
    after: Option<Record>,
    command: Command,
    transition: Transition,
}

/// Plays a story that starts at `start`.
fn play(laned: bool, story: &[Event], start: i64) -> Vec<Told> {
    let mut now = Timestamp::from_millis(start);
    let (mut record, mut lane) = (None::<Record>, laned.then(|| Lane::untouched(IntentId::new(1))));
    let mut told = Vec::new();
    for event in story {
        now = now + Duration::from_millis(event.after);
        let recovering_since = event.recovering.then_some(Timestamp::from_millis(start));
        let moment = Moment { dice: event.dice, recovering_since, ..Moment::at(now) };
        let transition = decide(record.as_ref(), lane.as_ref(), &event.command, &moment);
        let before = record.clone();
        match &transition.after {
            After::Unchanged => {}
            After::Write(after) => record = Some((**after).clone()),
            After::Remove => record = None,
        }
        lane = transition.lane.clone().or(lane);
        told.push(Told { before, after: record.clone(), command: event.command.clone(), transition });
    }
    told
}

/// The same record, that much earlier.
fn earlier(record: Option<Record>, by: i64) -> Option<Record> {
    record.map(|mut record| {
        let moves = |time: &&mut Timestamp| **time != Timestamp::NEVER;
        for time in crate::model::times(&mut record).filter(moves) {
            *time = Timestamp::from_millis(time.as_millis() - by);
        }
        record
    })
}

/// A verdict without the points in time it names.
fn without_times(verdict: &Verdict) -> String {
    let text = format!("{verdict:?}");
    let mut parts = text.split("Timestamp(");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.split_once(')').map_or("", |(_, rest)| rest))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_story_is_decided_and_journalled((laned, story) in story()) {
        for Told { before, after, transition, .. } in play(laned, &story, START) {
            let status = |record: &Option<Record>| record.as_ref().map(|record| record.status);
            prop_assert!(status(&before) == status(&after) || !transition.entries.is_empty());
        }
    }

    #[test]
    fn time_only_matters_as_time_between((laned, story) in story(), by in 1..1_000_000_000_i64) {
        let (here, there) = (play(laned, &story, START), play(laned, &story, START + by));
        for (here, there) in here.into_iter().zip(there) {
            prop_assert_eq!(here.after, earlier(there.after, by));
            let verdicts = [here.transition.verdict, there.transition.verdict];
            prop_assert_eq!(without_times(&verdicts[0]), without_times(&verdicts[1]));
            prop_assert_eq!(here.transition.alerts, there.transition.alerts);
            prop_assert_eq!(here.transition.lane, there.transition.lane);
        }
    }

    #[test]
    fn fences_and_generations_never_decrease((laned, story) in story()) {
        for Told { before, after, .. } in play(laned, &story, START) {
            if let (Some(before), Some(after)) = (before, after) {
                prop_assert!(before.fence <= after.fence && before.generation <= after.generation);
            }
        }
    }

    #[test]
    fn the_answer_of_what_is_done_stays((laned, story) in story()) {
        for Told { before, after, command, .. } in play(laned, &story, START) {
            let Some(before) = before.filter(|before| before.status == Status::Done) else { continue };
            let may_change = matches!(command.action, Action::Reset(_) | Action::Purge(_) | Action::Forget(_));
            if !may_change {
                let after = after.unwrap();
                prop_assert_eq!((before.answer, before.source), (after.answer, after.source));
                let undone = matches!(command.action, Action::MarkUndone(_)) && after.status == Status::Undone;
                prop_assert!(after.status == Status::Done || undone);
            }
        }
    }
}
