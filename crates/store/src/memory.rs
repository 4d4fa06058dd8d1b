//! The ledger in memory: the same rules and the same plan, and a map to keep them in. For tests, and as the plainest
//! description of what a store does.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use twicesafe_core::{Action, IntentId, Lane, Moment, Name, Purge, Status, Timestamp, Waiting};

use crate::clock::{LedgerTime, Noted};
use crate::error::StoreError;
use crate::plan::{
    Agenda, Applied, JournalRow, Order, Planned, Queued, Stored, Target, plan, rank_of_equals, version_of,
};
use crate::query::{Cursor, DueIntent, EarlierAnswer, Path};
use crate::secret::Keys;
use crate::tally::Tally;
use crate::transfer::{Count, Exported, Facts, LaneState, Parcel, is_within, unhashed};
use crate::{Dice, HashKey, NameHash, NameHasher, Options};

pub(crate) struct Memory {
    hasher: NameHasher,
    keys: Keys,
    time: LedgerTime,
    dice: Dice,
    state: Mutex<State>,
}

#[derive(Default, Clone)]
struct State {
    last_intent: i64,
    recovering_since: Option<Timestamp>,
    by_hash: HashMap<NameHash, IntentId>,
    intents: BTreeMap<IntentId, Arc<Stored>>,
    keep_until: HashMap<IntentId, Timestamp>,
    requests: HashMap<IntentId, Bytes>,
    earlier: HashMap<IntentId, Vec<EarlierAnswer>>,
    journals: HashMap<IntentId, Vec<JournalRow>>,
    lanes: HashMap<String, (Option<IntentId>, Option<i64>)>,
    waiting: BTreeSet<(String, i64, IntentId, Timestamp)>,
    tally: Tally,
    notes: BTreeMap<(String, String), String>,
}

impl Memory {
    pub(crate) fn new(options: &Options) -> Self {
        let hasher = NameHasher::new(HashKey::random());
        Self {
            hasher,
            keys: Keys::random(),
            time: LedgerTime::new(options.clock.clone()),
            dice: Dice::new(),
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn apply(&self, order: &Order) -> Applied {
        let mut state = self.state();
        let hash = match &order.target {
            Target::Name(name) => Some(self.hasher.hash(name)),
            Target::Id(_) => None,
        };
        let found = match (&order.target, hash) {
            (Target::Id(id), _) => state.intents.get(id).cloned(),
            (_, Some(hash)) => state.by_hash.get(&hash).and_then(|id| state.intents.get(id)).cloned(),
            _ => None,
        };
        let fresh_id = IntentId::new(state.last_intent + 1);
        let place = match (&found, &order.command.action) {
            (Some(stored), _) => stored.record.place.clone(),
            (None, Action::Claim(claim)) => claim.place.clone(),
            (None, _) => None,
        };
        let Noted { at: now, ahead, .. } = self.time.read_noted(None);
        let (dice, recovering_since) = (self.dice.roll(), state.recovering_since);
        let moment = Moment { now, ahead, dice, recovering_since, ..Moment::at(now) };
        let me = found.as_ref().map_or(fresh_id, |stored| stored.id);
        let equals = rank_of_equals(found.as_deref(), order);
        let lane = place.map(|place| state.lane(place.lane.as_str(), me, equals, moment.now));
        let mut order = order.clone();
        if let (Action::Purge(_), Some(stored)) = (&order.command.action, &found) {
            order.command.action = Action::Purge(Purge { work_is_open: state.work_is_open(stored) });
        }
        let Planned { change, applied } =
            plan(found.as_ref(), fresh_id, lane.as_ref(), &order, &moment, &self.hasher);
        state.tally.verdict(moment.now, &applied.verdict);
        let Some(change) = change else { return applied };
        let id = change.id();
        change.count(moment.now, &mut state.tally);
        if let Some(before) = change.archived() {
            let answer = before.record.answer.clone().unwrap_or_default();
            let (generation, status) = (before.record.generation, before.record.status);
            state.earlier.entry(id).or_default().push(EarlierAnswer { generation, status, answer });
        }
        for (stored, there) in [(&change.before, false), (&change.after, true)] {
            if let Some(place) = stored.as_ref().and_then(|stored| Queued::of(stored)) {
                let row = (place.lane.to_owned(), place.rank, id, place.until);
                let _ = if there { state.waiting.insert(row) } else { state.waiting.remove(&row) };
            }
        }
        if let (Some(lane), Some(place)) = (&change.lane, change.place()) {
            state.lanes.insert(place.lane.as_str().to_owned(), (lane.holder, lane.applied));
        }
        match &change.after {
            Some(after) => {
                if change.before.is_none() {
                    state.last_intent += 1;
                    state.by_hash.insert(hash.expect("a first claim has a name"), id);
                }
                if change
                    .before
                    .as_ref()
                    .is_none_or(|before| before.record.is_tombstone() != after.record.is_tombstone())
                {
                    state.keep_until.insert(id, after.record.keep_until());
                }
                if after.record.is_tombstone() {
                    state.earlier.remove(&id);
                }
                state.intents.insert(id, after.clone());
            }
            None => {
                state.intents.remove(&id);
                state.keep_until.remove(&id);
                state.journals.remove(&id);
                state.by_hash.retain(|_, there| *there != id);
            }
        }
        if let Some(lane) = change.left_lane() {
            state.free_lane(lane);
        }
        if change.forgets() {
            state.journals.entry(id).or_default().iter_mut().for_each(|row| row.entry.forget());
        }
        if change.drops_request() {
            state.requests.remove(&id);
        }
        if let Some(request) = change.request {
            state.requests.insert(id, request);
        }
        state.journals.entry(id).or_default().extend(change.journal);
        applied
    }

    /// What a claim is told about what is there, if nothing would be written.
    pub(crate) fn recall(
        &self,
        name: &Name,
        claim: impl FnOnce(&Stored) -> Option<Order>,
    ) -> Option<Applied> {
        let stored = Arc::new(self.by_name(name)?);
        let order = claim(&stored)?;
        let moment = Moment { dice: self.dice.roll(), ..Moment::at(self.time.read(None)) };
        let planned = plan(Some(&stored), stored.id, None, &order, &moment, &self.hasher);
        planned.change.is_none().then_some(())?;
        self.state().tally.verdict(moment.now, &planned.applied.verdict);
        Some(planned.applied)
    }

    pub(crate) fn by_name(&self, name: &Name) -> Option<Stored> {
        let state = self.state();
        state
            .by_hash
            .get(&self.hasher.hash(name))
            .and_then(|id| state.intents.get(id))
            .map(|stored| (**stored).clone())
    }

    pub(crate) fn by_id(&self, id: IntentId) -> Option<Stored> {
        self.state().intents.get(&id).map(|stored| (**stored).clone())
    }

    pub(crate) fn page(&self, path: &Path, after: Option<Cursor>, limit: usize) -> Vec<(Stored, Cursor)> {
        let state = self.state();
        let after = after.unwrap_or(Cursor::START);
        let mut rows: Vec<(Stored, Cursor)> = state
            .intents
            .values()
            .filter_map(|stored| {
                let record = &stored.record;
                let (there, wake_at) = match path {
                    Path::All => (true, i64::MAX),
                    Path::Scope(scope) => {
                        (record.name.as_ref().is_some_and(|name| name.scope.as_str() == scope), i64::MAX)
                    }
                    Path::Work(work) => {
                        (record.step.as_ref().is_some_and(|step| step.work() == work), i64::MAX)
                    }
                    Path::Status(status) => match Agenda::of(stored) {
                        Some(line) => (line.status == *status, line.wake_at.as_millis()),
                        None => (false, 0),
                    },
                };
                let cursor = Cursor { wake_at, id: stored.id.number() };
                (there && cursor < after).then(|| ((**stored).clone(), cursor))
            })
            .collect();
        rows.sort_by_key(|(_, cursor)| std::cmp::Reverse(*cursor));
        rows.truncate(limit);
        rows
    }

    pub(crate) fn scopes(&self, prefix: &str, limit: usize) -> Vec<String> {
        let state = self.state();
        let names = state.intents.values().filter_map(|stored| stored.record.name.as_ref());
        let scopes: BTreeSet<&str> =
            names.map(|name| name.scope.as_str()).filter(|scope| scope.starts_with(prefix)).collect();
        scopes.into_iter().take(limit).map(str::to_owned).collect()
    }

    pub(crate) fn awake(&self, status: Status, now: Timestamp, limit: usize) -> Vec<IntentId> {
        self.on_agenda(limit, |line| (line.status == status && line.wake_at <= now).then_some(line.wake_at))
    }

    pub(crate) fn due(
        &self,
        scope: &str,
        now: Timestamp,
        after: Option<(Timestamp, IntentId)>,
        limit: usize,
    ) -> Vec<DueIntent> {
        let state = self.state();
        let due = |stored: &Arc<Stored>| {
            let line = Agenda::of(stored)?;
            let at = (line.due_at.filter(|due_at| *due_at <= now)?, stored.id);
            (line.scope(stored) == Some(scope) && after.is_none_or(|after| at > after)).then_some(())?;
            let lane = stored.record.place.as_ref().map(|place| place.lane.as_str().to_owned());
            Some(DueIntent { at, lane })
        };
        let mut lines: Vec<DueIntent> = state.intents.values().filter_map(due).collect();
        lines.sort_by_key(|line| line.at);
        lines.truncate(limit);
        lines
    }

    pub(crate) fn scopes_with_due(&self, after: &str, limit: usize) -> Vec<(String, Timestamp)> {
        let state = self.state();
        let mut scopes: BTreeMap<&str, Timestamp> = BTreeMap::new();
        for stored in state.intents.values() {
            let line = Agenda::of(stored);
            let due = line.and_then(|line| Some((line.scope(stored)?, line.due_at?)));
            if let Some((scope, due_at)) = due.filter(|(scope, _)| *scope > after) {
                let first = scopes.entry(scope).or_insert(due_at);
                *first = due_at.min(*first);
            }
        }
        scopes.into_iter().take(limit).map(|(scope, first)| (scope.to_owned(), first)).collect()
    }

    pub(crate) fn first_waiting(&self, lane: &str, now: Timestamp) -> Option<IntentId> {
        let state = self.state();
        let mut waiting = state.waiting.iter();
        waiting.find(|(name, _, _, until)| name == lane && *until > now).map(|(_, _, intent, _)| *intent)
    }

    fn on_agenda(&self, limit: usize, when: impl Fn(Agenda) -> Option<Timestamp>) -> Vec<IntentId> {
        self.agenda_lines(when).into_iter().take(limit).map(|(_, id)| id).collect()
    }

    fn agenda_lines(&self, when: impl Fn(Agenda) -> Option<Timestamp>) -> Vec<(Timestamp, IntentId)> {
        let state = self.state();
        let mut lines: Vec<(Timestamp, IntentId)> = state
            .intents
            .values()
            .filter_map(|stored| Some((when(Agenda::of(stored)?)?, stored.id)))
            .collect();
        lines.sort();
        lines
    }

    pub(crate) fn kept_too_long(&self, now: Timestamp, limit: usize) -> Vec<IntentId> {
        let state = self.state();
        let mut ids: Vec<_> = state.keep_until.iter().filter(|(_, until)| **until <= now).collect();
        ids.sort_by_key(|(id, until)| (**until, **id));
        ids.into_iter().take(limit).map(|(id, _)| *id).collect()
    }

    pub(crate) fn keep_until(&self, until: Vec<(IntentId, Timestamp)>) {
        let mut state = self.state();
        for (id, until) in until {
            state.keep_until.entry(id).and_modify(|known| *known = until);
        }
    }

    pub(crate) fn journal(&self, id: IntentId) -> Vec<JournalRow> {
        self.state().journal(id)
    }

    pub(crate) fn earlier(&self, id: IntentId) -> Vec<EarlierAnswer> {
        self.state().earlier.get(&id).cloned().unwrap_or_default()
    }

    pub(crate) fn request(&self, id: IntentId) -> Option<Bytes> {
        self.state().requests.get(&id).cloned()
    }

    pub(crate) fn count(&self, at: Timestamp, name: &str, n: i64) {
        self.state().tally.of_door(at, name, n);
    }

    pub(crate) fn tallies(&self, from_hour: i64, to_hour: i64) -> Vec<(String, i64)> {
        let state = self.state();
        let wanted = |hour: &i64| *hour == 0 || (from_hour..=to_hour).contains(hour);
        state
            .tally
            .rows()
            .filter(|(hour, _, _)| wanted(hour))
            .map(|(_, name, n)| (name.to_owned(), n))
            .collect()
    }

    pub(crate) fn notes(&self, kind: &str) -> Vec<(String, String)> {
        let state = self.state();
        let of_kind = state.notes.iter().filter(|((of, _), _)| of == kind);
        of_kind.map(|((_, name), value)| (name.clone(), value.clone())).collect()
    }

    pub(crate) fn put_note(&self, kind: &str, name: &str, value: Option<&str>) {
        let about = (kind.to_owned(), name.to_owned());
        match value {
            Some(value) => drop(self.state().notes.insert(about, value.to_owned())),
            None => drop(self.state().notes.remove(&about)),
        }
    }

    pub(crate) fn keys(&self) -> &Keys {
        &self.keys
    }

    pub(crate) fn key(&self) -> [u8; 32] {
        *self.hasher.key().secret()
    }

    pub(crate) fn recovering_since(&self) -> Option<Timestamp> {
        self.state().recovering_since
    }

    pub(crate) fn recover_since(&self, since: Option<Timestamp>) {
        self.state().recovering_since = since;
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.time.read(None)
    }
}

impl Memory {
    pub(crate) fn export(&self) -> Snapshot {
        let now = self.now();
        let state = self.state().clone();
        let facts = Facts {
            sealed_key: self.keys.sealed().to_vec(),
            at: now,
            last_intent: state.last_intent,
            recovering_since: state.recovering_since,
            hash_key: self.hasher.key(),
        };
        Snapshot { facts, state }
    }

    pub(crate) fn import(self: &Arc<Self>, facts: &Facts) -> Result<Importing, StoreError> {
        self.state().check_empty()?;
        let state = State {
            last_intent: facts.last_intent,
            recovering_since: facts.recovering_since,
            ..State::default()
        };
        Ok(Importing { memory: self.clone(), facts: facts.clone(), state })
    }
}

/// A ledger as it was at one moment.
pub(crate) struct Snapshot {
    facts: Facts,
    state: State,
}

impl Snapshot {
    pub(crate) fn facts(&self) -> &Facts {
        &self.facts
    }

    pub(crate) fn intents(&self, scope: Option<&str>, after: IntentId, limit: usize) -> Vec<Exported> {
        let state = &self.state;
        let hashes: HashMap<IntentId, NameHash> =
            state.by_hash.iter().map(|(hash, id)| (*id, *hash)).collect();
        let wanted = |stored: &&Arc<Stored>| {
            let name = stored.record.name.as_ref();
            scope.is_none_or(|asked| name.is_some_and(|name| is_within(name.scope.as_str(), asked)))
        };
        let after = (std::ops::Bound::Excluded(after), std::ops::Bound::Unbounded);
        let intents = state.intents.range(after).map(|(_, stored)| stored).filter(wanted).take(limit);
        intents
            .map(|stored| Exported {
                stored: (**stored).clone(),
                hash: hashes.get(&stored.id).copied(),
                keep_until: state.keep_until.get(&stored.id).copied().unwrap_or(Timestamp::NEVER),
                journal: state.journal(stored.id),
                earlier: state.earlier.get(&stored.id).cloned().unwrap_or_default(),
                request: state.requests.get(&stored.id).cloned(),
            })
            .collect()
    }

    pub(crate) fn lanes(&self, after: &str, limit: usize) -> Vec<LaneState> {
        let lanes = self.state.lanes.iter().filter(|(name, _)| name.as_str() > after);
        let state = |(name, (holder, applied)): (&String, &(Option<IntentId>, Option<i64>))| LaneState {
            name: name.clone(),
            holder: *holder,
            applied: *applied,
        };
        let mut lanes: Vec<_> = lanes.map(state).collect();
        lanes.sort_by(|left, right| left.name.cmp(&right.name));
        lanes.truncate(limit);
        lanes
    }

    pub(crate) fn counts(&self) -> Vec<Count> {
        let by_the_hour = self.state.tally.rows().filter(|(hour, _, _)| *hour != 0);
        by_the_hour.map(|(hour, name, n)| Count { hour, name: name.to_owned().into(), n }).collect()
    }
}

/// An import under way.
pub(crate) struct Importing {
    memory: Arc<Memory>,
    facts: Facts,
    state: State,
}

impl Importing {
    pub(crate) fn put(&mut self, parcel: Parcel) -> Result<(), StoreError> {
        match parcel {
            Parcel::Intents(intents) => intents.into_iter().try_for_each(|intent| self.state.put(intent)),
            Parcel::Lanes(lanes) => {
                self.state
                    .lanes
                    .extend(lanes.into_iter().map(|lane| (lane.name, (lane.holder, lane.applied))));
                Ok(())
            }
            Parcel::Counts(counts) => {
                counts.iter().for_each(|count| self.state.tally.take_over(count));
                Ok(())
            }
        }
    }

    pub(crate) fn finish(self) -> Result<(), StoreError> {
        let Self { memory, facts, state } = self;
        let mut there = memory.state();
        there.check_empty()?;
        memory.hasher.go_over_to(facts.hash_key);
        memory.time.read(Some(Noted::time(facts.at)));
        *there = state;
        Ok(())
    }
}

impl State {
    /// Removes a lane that nobody is in (S15).
    fn free_lane(&mut self, name: &str) {
        let is_in = |stored: &Arc<Stored>| {
            stored.record.place.as_ref().is_some_and(|place| place.lane.as_str() == name)
        };
        let is_held = self.lanes.get(name).is_some_and(|(holder, _)| holder.is_some());
        if !is_held && !self.intents.values().any(is_in) {
            self.lanes.remove(name);
        }
    }

    fn check_empty(&self) -> Result<(), StoreError> {
        if self.intents.is_empty() && self.lanes.is_empty() { Ok(()) } else { Err(StoreError::NotEmpty) }
    }

    fn put(&mut self, intent: Exported) -> Result<(), StoreError> {
        let Exported { stored, hash, keep_until, journal, earlier, request } = intent;
        let id = stored.id;
        if self.by_hash.insert(hash.ok_or_else(unhashed)?, id).is_some() {
            return Err(StoreError::Damaged("two intents have the same hash".into()));
        }
        self.tally.standing(&stored.record, 1);
        if let Some(place) = Queued::of(&stored) {
            self.waiting.insert((place.lane.to_owned(), place.rank, id, place.until));
        }
        self.keep_until.insert(id, keep_until);
        self.journals.insert(id, journal);
        self.earlier.extend((!earlier.is_empty()).then_some((id, earlier)));
        self.requests.extend(request.map(|request| (id, request)));
        self.intents.insert(id, Arc::new(stored));
        Ok(())
    }

    fn journal(&self, id: IntentId) -> Vec<JournalRow> {
        let mut rows = self.journals.get(&id).cloned().unwrap_or_default();
        // As in a database: bodies are not in the journal.
        rows.iter_mut().for_each(|row| row.entry.content = None);
        rows
    }

    fn lane(&self, name: &str, me: IntentId, equals: Option<i64>, now: Timestamp) -> Lane {
        let (holder, applied) = self.lanes.get(name).copied().unwrap_or_default();
        let others = self
            .waiting
            .iter()
            .filter(|(lane, _, intent, until)| lane == name && *intent != me && *until > now)
            .map(|(_, rank, intent, until)| Waiting {
                version: version_of(*rank),
                intent: *intent,
                until: *until,
            });
        let is_equal = |other: &Waiting| equals.is_some_and(|rank| other.version == version_of(rank));
        let (first_waiting, first_equal) = (others.clone().next(), others.clone().find(is_equal));
        Lane { me, holder, applied, first_waiting, first_equal }
    }

    fn work_is_open(&self, of: &Stored) -> bool {
        let Some(step) = &of.record.step else { return false };
        let same_work = |stored: &&Arc<Stored>| {
            stored.record.step.as_ref().is_some_and(|other| other.work() == step.work())
        };
        self.intents.values().filter(same_work).any(|stored| !stored.record.status.is_settled())
    }
}
