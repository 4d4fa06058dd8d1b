//! A command on its way to the writer, and what could be worked out before it got there.
//!
//! The writer is one thread, and everybody waits for it. What a command comes to, if what is believed of its intent is true, can be
//! decided without it: whoever sends the command does so. The writer takes that over while nothing it rests on has changed, and
//! finds out by writing whether the belief was true (S1); otherwise it decides again, on what is there.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use twicesafe_core::{Action, IntentId, Moment, Timestamp};

use super::Shared;
use crate::NameHash;
use crate::clock::Noted;
use crate::plan::{Order, Planned, Target, place_of, plan};

/// A decision that waited longer than this for the writer is made again, at the time it is by then.
const DECIDED_AGO_MAX: Duration = Duration::from_secs(1);

pub(super) struct Task {
    pub(super) order: Order,
    /// Of the name it has its intent by, and by which of the hasher's keys.
    hash: Option<(NameHash, u64)>,
    decided: Option<Decided>,
}

/// What a transaction knows of the ledger.
pub(super) struct Known {
    pub(super) now: Timestamp,
    /// When something was last written before it, by whomever: what is decided at an earlier time comes too late.
    pub(super) last_at: Timestamp,
    pub(super) recovering_since: Option<Timestamp>,
}

/// What a command comes to.
struct Decided {
    planned: Planned,
    /// When it was decided.
    at: Timestamp,
    /// Since when records may be missing, as far as its sender knew.
    recovering_since: Option<Timestamp>,
}

impl Task {
    /// Works out what can be.
    pub(super) fn new(shared: &Shared, order: Order, hash: Option<(NameHash, u64)>) -> Self {
        let decided = Decided::of(shared, &order);
        Self { order, hash, decided }
    }

    /// The hash of the name it has its intent by.
    pub(super) fn hash(&self, shared: &Shared) -> Option<NameHash> {
        match (&self.hash, &self.order.target) {
            (Some((hash, key)), _) if *key == shared.hasher.key_number() => Some(*hash),
            (_, Target::Name(name)) => Some(shared.hasher.hash(name)),
            (_, Target::Id(_)) => None,
        }
    }

    /// What it comes to as its sender decided, if that may still be so. A new intent gets that number. Once: what is tried again is
    /// decided again.
    pub(super) fn decided(&mut self, known: &Known, fresh_id: IntentId) -> Option<Planned> {
        let Decided { mut planned, at, recovering_since } = self.decided.take()?;
        let is_late = at < known.last_at || known.now.since(at) > DECIDED_AGO_MAX;
        if is_late || recovering_since != known.recovering_since {
            return None;
        }
        if let Some(change) = &mut planned.change
            && change.before.is_none()
        {
            planned.applied.stored = None;
            change.after.iter_mut().for_each(|after| Arc::make_mut(after).id = fresh_id);
            planned.applied.stored = change.after.clone();
        }
        Some(planned)
    }
}

impl Decided {
    /// Only what needs nothing but what is believed: no lane, and no other intents. Where more waits than a batch holds it would be
    /// decided again anyway.
    fn of(shared: &Shared, order: &Order) -> Option<Self> {
        let is_first_claim =
            matches!((&order.command.action, &order.target), (Action::Claim(_), Target::Name(_)));
        let found = order.believed.as_ref();
        let needs_more = matches!(order.command.action, Action::Purge(_))
            || place_of(found.map(|found| &**found), order).is_some()
            || found.is_none() && !is_first_claim;
        let is_crowded = shared.queued.load(Ordering::Relaxed) > shared.batch_max;
        if needs_more || is_crowded {
            return None;
        }
        let Noted { at, ahead, .. } = shared.time.read_lately()?;
        let (dice, recovering_since) = (shared.dice.roll(), shared.recovering_since());
        let moment = Moment { now: at, ahead, dice, recovering_since, clock: shared.machine_clock() };
        let planned = plan(found, IntentId::new(0), None, order, &moment, &shared.hasher);
        Some(Self { planned, at, recovering_since })
    }
}
