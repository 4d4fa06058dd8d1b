//! What must hold in every world that can be reached.

use twicesafe_core::{
    Action, Actor, After, Attempt, Command, CommandId, Fence, PermitKind, PermitSecret, Record, Recovery,
    Renew, Reset, Settle, Status, Timestamp, Transition, Verdict,
};

use super::command::{
    Found, Known, Said, actor_of, generation_of, mark_of, resolve, secret, settle, stranger,
};
use super::step::{Bounds, may_have_acted};
use super::world::{Believed, Caller, Fault, Intent, NOW, Stage, World};

pub type Promise = (&'static str, fn(&Bounds, &World) -> bool);

pub const PROMISES: &[Promise] = &[
    ("at most one effect per generation", at_most_one_effect),
    ("done means that it happened", done_means_happened),
    ("settled without effect and without doubt means that nothing can happen", failed_means_nothing),
    ("S8: never two permits to act", never_two_permits),
    ("the first answer stays", first_answer_stays),
    ("S30: nothing is sent while held or rejected", |_, world| without(world, Fault::SentWhileForbidden)),
    ("S12: a command repeated at once changes nothing", |_, world| without(world, Fault::RepetitionDiffers)),
    ("S12: a command repeated late changes nothing", repeated_late_changes_nothing),
    ("S48: nobody but who got a permit renews or settles it", permits_are_their_holders),
    ("S5: no generation starts by itself after an effect", |_, world| {
        without(world, Fault::NewGenerationAfterEffect)
    }),
    ("S40: a change of status is journalled", |_, world| without(world, Fault::NotJournalled)),
    ("S15: one intent of a lane at a time", one_intent_at_a_time),
    ("S15: no older version after a newer one", |_, world| without(world, Fault::OlderAfterNewer)),
    ("S15: equal versions in the order of their arrival", |_, world| without(world, Fault::EqualOvertaken)),
    ("S15: a lane follows only from a record that changes", |_, world| {
        without(world, Fault::LaneChangedAlone)
    }),
    ("S31: a corrected request is never replaced by what was read before it", |_, world| {
        without(world, Fault::CorrectionReplaced)
    }),
    ("S47: every open intent is scheduled, held, or somebody was told", nothing_is_silent),
    ("time and sweeps alone lead somewhere", time_leads_somewhere),
];

fn without(world: &World, fault: Fault) -> bool {
    world.fault != Some(fault)
}

fn records(world: &World) -> impl Iterator<Item = (&Intent, &Record)> {
    world
        .intents
        .iter()
        .filter_map(|intent| intent.believed.as_ref().map(|Believed(record)| (intent, &**record)))
}

fn at_most_one_effect(bounds: &Bounds, world: &World) -> bool {
    bounds.policy.recovery == Recovery::Repeat
        || world.intents.iter().flat_map(|intent| &intent.effects).all(|effects| effects.count <= 1)
}

fn done_means_happened(_: &Bounds, world: &World) -> bool {
    records(world).all(|(intent, record)| {
        record.status != Status::Done || intent.effects_of(generation_of(record)).count > 0
    })
}

/// What was reset waits for a caller, and the person who reset it knows; what waits for its lane has its caller there.
fn nothing_is_silent(_: &Bounds, world: &World) -> bool {
    records(world).all(|(intent, record)| match record.status {
        Status::Pending => record.wake_at() < Timestamp::NEVER,
        Status::Ready | Status::Retryable => {
            let is_reset = record.fingerprint.is_none();
            intent.told || record.due_at.is_some() || record.waits_until.is_some() || is_reset
        }
        Status::Held | Status::Review => intent.told,
        _ => true,
    })
}

fn failed_means_nothing(_: &Bounds, world: &World) -> bool {
    records(world).all(|(intent, record)| {
        let without_effect = matches!(record.status, Status::Failed | Status::Rejected | Status::Superseded);
        !without_effect || record.doubt || !may_have_acted(intent, &Known::of(intent))
    })
}

fn never_two_permits(_: &Bounds, world: &World) -> bool {
    let may_send = |caller: &&Caller| matches!(caller, Caller::Acting { stage: Stage::Unsent, send_within, .. } if *send_within >= 0);
    world.intents.iter().all(|intent| intent.callers.iter().filter(may_send).count() <= 1)
}

fn first_answer_stays(_: &Bounds, world: &World) -> bool {
    records(world).all(|(intent, record)| {
        let told = intent.effects_of(generation_of(record)).told;
        record.status != Status::Done || told == Some(mark_of(record.answer.as_ref()))
    })
}

/// What the destination would not take a second time touches nothing. Where a review lets the others pass, what it is about may
/// still be under way.
fn one_intent_at_a_time(bounds: &Bounds, world: &World) -> bool {
    if bounds.lets_pass() {
        return true;
    }
    let touches = |intent: &&Intent| {
        intent.messages.iter().any(|message| !bounds.would_deduplicate(intent, message.generation))
    };
    world.intents.iter().filter(touches).count() <= 1
}

/// Repeats what the record remembers, and says the opposite of it under the same id.
fn repeated_late_changes_nothing(bounds: &Bounds, world: &World) -> bool {
    (0..world.intents.len()).all(|intent| {
        let Some(Believed(record)) = &world.intents[intent].believed else { return true };
        let run = |id: CommandId, action: Action| {
            let command = Command { id, actor: actor_of(&action), action };
            bounds.decide(world, intent, &command, NOW)
        };
        let decision = record.last_decision.is_none_or(|last| {
            let [_, generation, ..] = last.id.bytes();
            let reset = Reset { generation: generation.into(), reason: "again".into() };
            let swept = run(last.id, Action::Expire);
            [Found::Happened, Found::DidNotHappen, Found::GiveUp]
                .map(|found| Action::Resolve(resolve(last.fence, found)))
                .into_iter()
                .chain([Action::Reset(reset)])
                .map(|action| run(last.id, action))
                .all(|again| again.after == swept.after && again.lane == swept.lane)
        });
        let report = record.last_settle.is_none_or(|last| {
            [Said::Answered, Said::NotSent].into_iter().all(|said| {
                let report = settle(Caller::Idle, said);
                let (fence, generation) = (last.fence, record.generation);
                let settle = Settle { fence, generation, secret: secret(fence, generation), ..report };
                changes_nothing(&run(last.id, Action::Settle(settle)))
            })
        });
        let live = |attempt: &&Attempt| attempt.kind == PermitKind::Act && attempt.lease_until > NOW;
        let claim = record.attempt.as_ref().filter(live).is_none_or(|attempt| {
            // Of two inputs, the one it was claimed with; the other is another claim (S5).
            [0, 1].into_iter().all(|input| {
                let action = bounds.claim(intent, input);
                let is_same = match (&action, &record.fingerprint) {
                    (Action::Claim(claim), Some(first)) => claim.fingerprint == *first,
                    _ => true,
                };
                let again = run(attempt.claim_id, action);
                let is_mine =
                    matches!(&again.verdict, Verdict::Proceed(permit) if permit.fence == record.fence);
                is_mine == is_same && changes_nothing(&again)
            })
        });
        decision && report && claim
    })
}

/// Tries to settle and to renew every permit there was: as its holder without the secret, and with the secret as somebody else.
fn permits_are_their_holders(bounds: &Bounds, world: &World) -> bool {
    let id = CommandId::new([0; 16]);
    (0..world.intents.len()).all(|intent| {
        let Some(Believed(record)) = &world.intents[intent].believed else { return true };
        let generation = record.generation;
        let run =
            |actor: Actor, action: Action| bounds.decide(world, intent, &Command { id, actor, action }, NOW);
        let swept = run(stranger(), Action::Expire);
        (1..=record.fence.number()).map(Fence::new).all(|fence| {
            let tries = [
                (actor_of(&Action::Expire), PermitSecret::new([0; 16])),
                (stranger(), secret(fence, generation)),
            ];
            tries.into_iter().all(|(actor, secret)| {
                let said = settle(Caller::Idle, Said::Answered);
                let settled =
                    run(actor.clone(), Action::Settle(Settle { fence, generation, secret, ..said }));
                let renewed = run(actor, Action::Renew(Renew { fence, secret, holder: None }));
                changes_nothing(&settled)
                    && settled.entries.is_empty()
                    && matches!(settled.verdict, Verdict::Refuse(_))
                    && renewed.after == swept.after
                    && matches!(renewed.verdict, Verdict::Refuse(_))
            })
        })
    })
}

fn changes_nothing(transition: &Transition) -> bool {
    transition.after == After::Unchanged && transition.lane.is_none()
}

/// From here, with nobody doing anything but sweeping, it comes to rest or waits for its caller or for a person.
fn time_leads_somewhere(bounds: &Bounds, world: &World) -> bool {
    let id = CommandId::new([0; 16]);
    let sweep = Command { id, actor: actor_of(&Action::Expire), action: Action::Expire };
    (0..world.intents.len()).all(|intent| {
        let wakes_at = |world: &World| {
            let Believed(record) = world.intents[intent].believed.as_ref()?;
            (record.status == Status::Pending).then(|| record.wake_at())
        };
        if wakes_at(world).is_none() {
            return true;
        }
        let (mut world, mut now) = (world.clone(), NOW);
        for _ in 0..STEPS_MAX {
            match wakes_at(&world) {
                None => return true,
                Some(Timestamp::NEVER) => return false,
                Some(wakes_at) => now = now.max(wakes_at),
            }
            let transition = bounds.decide(&world, intent, &sweep, now);
            bounds.write(&mut world, intent, &transition);
        }
        false
    })
}

/// Sweeps it takes at most from anywhere: a lease, and the end of the time for lookups after it.
const STEPS_MAX: usize = 4;
