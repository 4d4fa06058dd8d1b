//! Workers: each has a connection, takes whatever waits, decides it, and writes it with one statement (group commit: who
//! is alone leaves at once, and where many are about a batch waits for them). While one waits for its commit, the others go on.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use tokio::sync::oneshot;
use tokio_postgres::Client;
use twicesafe_core::{Action, IntentId, LaneName, Moment, Timestamp, WaitCause};

use super::columns::Line;
use super::connect::{Failure, Link, Patience};
use super::locked::{self, Came, Candidate};
use super::queue::{Flight, Queue};
use super::write::{self, Outcome};
use super::{Shared, read};
use crate::error::StoreError;
use crate::plan::{Applied, Order, Planned, Stored, Target, check_name, place_of, plan};
use crate::reply::{Replies, Reply};
use crate::tally::Tally;
use crate::{BATCH_MAX, NameHash};

/// How often what somebody was in the way of is tried again.
const TURNS_MAX: usize = 5;
/// How often a batch goes back to what changed meanwhile before the rest is applied one at a time, and then each of those before it is
/// given up.
const ROUNDS_MAX: usize = 16;

/// A command that waits for its answer.
pub(super) struct Task {
    order: Order,
    /// Gone once it was answered.
    reply: Option<Reply<Result<Applied, StoreError>>>,
    since: Instant,
    hash: Option<NameHash>,
    id: Option<IntentId>,
    belief: Belief,
}

/// What is believed of the intent a command is about.
enum Belief {
    /// Nothing: it has to be read.
    Unread,
    /// This, by the sender, from memory, or by a first claim, which believes that there is nothing. A write tells whether it is true.
    Held(Option<Arc<Stored>>),
    /// This: it was read.
    Read(Option<Arc<Stored>>),
}

impl Task {
    pub(super) fn new(
        shared: &Shared,
        order: Order,
    ) -> (Self, oneshot::Receiver<Result<Applied, StoreError>>) {
        let (reply, answer) = Reply::channel();
        let hash = match &order.believed {
            Some(believed) => believed.record.name.as_ref().map(|name| shared.hasher.hash(name)),
            None => shared.hash_of(&order),
        };
        let belief = match (&order.believed, &order.target, &order.command.action) {
            (Some(believed), ..) => Belief::Held(Some(believed.clone())),
            (None, Target::Name(name), Action::Claim(claim)) => {
                match (hash.and_then(|hash| shared.recall(name, &hash)), &claim.place) {
                    (Some(recalled), _) => Belief::Held(Some(recalled)),
                    // A lane has to be locked before anything is written; read first, the answer may need no write.
                    (None, Some(_)) => Belief::Unread,
                    (None, None) => Belief::Held(None),
                }
            }
            (None, ..) => Belief::Unread,
        };
        let id = match (&order.target, &belief) {
            (Target::Id(id), _) => Some(*id),
            (Target::Name(_), Belief::Held(Some(believed))) => Some(believed.id),
            (Target::Name(_), _) => None,
        };
        (Self { order, reply: Some(reply), since: Instant::now(), hash, id, belief }, answer)
    }

    fn answer(&mut self, result: Result<Applied, StoreError>) {
        if let Some(reply) = self.reply.take() {
            reply.send(result);
        }
    }

    /// Answers it together with others.
    fn answer_among(&mut self, told: &mut Replies<Result<Applied, StoreError>>, applied: Applied) {
        if let Some(reply) = self.reply.take() {
            told.push(reply, Ok(applied));
        }
    }

    /// If it is a claim: in which lane, if any.
    fn claims_in(&self) -> Option<Option<LaneName>> {
        match &self.order.command.action {
            Action::Claim(claim) => Some(claim.place.as_ref().map(|place| place.lane.clone())),
            _ => None,
        }
    }

    fn is_open(&self) -> bool {
        self.reply.is_some()
    }

    /// What it is about, in all ways known.
    fn subjects(&self) -> impl Iterator<Item = Subject> {
        self.hash.map(Subject::Name).into_iter().chain(self.id.map(Subject::Number))
    }

    /// What is believed of its intent, if it is believed to exist.
    fn found(&self) -> Option<&Stored> {
        match &self.belief {
            Belief::Held(found) | Belief::Read(found) => found.as_deref(),
            Belief::Unread => None,
        }
    }

    /// As what it has to be read: what is called by its name may have another number by now.
    fn looked_for(&self) -> Option<Subject> {
        match &self.order.target {
            Target::Id(id) => Some(Subject::Number(*id)),
            Target::Name(_) => self.hash.map(Subject::Name),
        }
    }

    /// What was believed is not so.
    fn doubt(&mut self) {
        self.belief = Belief::Unread;
        if matches!(self.order.target, Target::Name(_)) {
            self.id = None;
        }
    }

    /// Learns what there is, unless it has another name.
    fn find(&mut self, hash: Option<NameHash>, stored: Arc<Stored>) {
        match check_name(&self.order, &stored) {
            Ok(()) => self.learn(hash, Some(stored)),
            Err(error) => self.answer(Err(error)),
        }
    }

    fn learn(&mut self, hash: Option<NameHash>, found: Option<Arc<Stored>>) {
        self.hash = self.hash.or(hash);
        self.id = self.id.or(found.as_ref().map(|stored| stored.id));
        self.belief = Belief::Read(found);
    }
}

#[derive(Clone, PartialEq, Eq, Hash)]
enum Subject {
    Name(NameHash),
    Number(IntentId),
    Lane(LaneName),
}

/// What a round writes and looks at. Numbers are places among its tasks.
#[derive(Default)]
struct Planning {
    lines: Vec<Line>,
    /// What is answered once its line is written.
    planned: Vec<(usize, Applied)>,
    /// What is answered if what is believed turns out to be still so.
    believed: Vec<(usize, Applied)>,
}

impl Planning {
    fn is_empty(&self) -> bool {
        self.lines.is_empty() && self.believed.is_empty()
    }
}

pub(super) struct Worker {
    shared: Arc<Shared>,
    link: Link,
    queue: Arc<Queue>,
    /// Counts of what needed no write, on their way.
    unwritten: Tally,
    /// Given back early by whoever has to wait for somebody's lock.
    flight: Option<Flight>,
}

impl Worker {
    pub(super) fn new(shared: Arc<Shared>, link: Link, queue: Arc<Queue>) -> Self {
        Self { shared, link, queue, unwritten: Tally::default(), flight: None }
    }

    /// Works until nobody can send errands any more and none is left.
    pub(super) async fn run(mut self) {
        loop {
            self.flight = None;
            let Some((mut tasks, flight)) = self.queue.take().await else { break };
            self.flight = Some(flight);
            while tasks.len() > BATCH_MAX {
                let rest = tasks.split_off(BATCH_MAX);
                self.apply(tasks).await;
                tasks = rest;
            }
            self.apply(tasks).await;
            // Another one may be next to write, for a long time.
            let unwritten = std::mem::take(&mut self.unwritten);
            if !unwritten.is_empty() {
                self.shared.tally.lock().unwrap_or_else(PoisonError::into_inner).merge(unwritten);
            }
        }
    }

    /// Applies a batch. One that fails as a whole is applied again one command at a time, so that a command that cannot be
    /// written does not take the others with it. After a lost connection nobody knows whether the last statement was
    /// carried out; applying the same commands again is harmless (S12).
    async fn apply(&mut self, mut tasks: Vec<Task>) {
        let since = tasks.iter().map(|task| task.since).min().unwrap_or_else(Instant::now);
        let mut patience = Patience::since(since);
        let (mut rounds, mut turns) = (0, 0);
        // Of the first, alone: rounds after which it was not answered.
        let mut in_vain = 0;
        while !tasks.is_empty() {
            let before = tasks.len();
            let together = tasks.len() > 1 && rounds < ROUNDS_MAX;
            let end = if together { tasks.len() } else { 1 };
            rounds += 1;
            let failure = patience.bound(self.round(&mut tasks[..end])).await.err();
            match failure {
                None => {
                    turns = 0;
                    in_vain = if together { 0 } else { in_vain + 1 };
                    if in_vain > ROUNDS_MAX {
                        tasks[0].answer(Err(StoreError::Away("the intent changes all the time".into())));
                    }
                }
                Some(failure @ Failure::Lost(_)) => {
                    // Others need not wait with this one.
                    self.flight = None;
                    self.link.drop_client().await;
                    if !patience.pause().await {
                        tasks.iter_mut().for_each(|task| task.answer(Err(failure.clone().into_error())));
                    }
                }
                Some(failure) if failure.is_in_the_way() && turns < TURNS_MAX => {
                    turns += 1;
                    self.flight = None;
                    let found = patience.bound(self.find_held(&tasks[..end])).await.unwrap_or(false);
                    if together && !found {
                        rounds = ROUNDS_MAX;
                    }
                }
                Some(_) if together => (rounds, turns) = (ROUNDS_MAX, 0),
                Some(failure) => {
                    turns = 0;
                    self.tell(&mut tasks, failure, &patience).await;
                }
            }
            tasks.retain(Task::is_open);
            if tasks.len() < before {
                in_vain = 0;
            }
        }
    }

    /// Looks whether somebody's own transaction keeps a name that is claimed here; such claims are then kept out of batches.
    async fn find_held(&self, tasks: &[Task]) -> Result<bool, Failure> {
        let client = self.link.client().await?;
        let candidates: Vec<Candidate<'_>> =
            tasks.iter().map(|task| Candidate::new(&self.shared, &task.order, None)).collect();
        Ok(!locked::held_names(&client, &self.shared, &candidates).await?.is_empty())
    }

    /// Says to the first what came of it when nothing more can be tried. A claim that waited for a lock in vain may come back;
    /// others of the same lane are told so with it, and need not wait in vain one after the other.
    async fn tell(&self, tasks: &mut [Task], failure: Failure, patience: &Patience) {
        let told = match (failure, tasks[0].claims_in()) {
            (failure, Some(lane)) if failure.is_in_the_way() => {
                patience.bound(self.now()).await.map(|now| (now, lane))
            }
            (failure, _) => Err(failure),
        };
        let (now, lane) = match told {
            Ok(told) => told,
            Err(failure) => return tasks[0].answer(Err(failure.into_error())),
        };
        let cause = if lane.is_some() { WaitCause::Lane(None) } else { WaitCause::Pending };
        let with_it = |task: &Task| lane.is_some() && task.claims_in().as_ref() == Some(&lane);
        for (index, task) in tasks.iter_mut().enumerate() {
            if index == 0 || with_it(task) {
                task.answer(Ok(locked::told_to_wait(&self.shared, now, cause)));
            }
        }
    }

    async fn now(&self) -> Result<Timestamp, Failure> {
        let client = self.link.client().await?;
        self.shared.now(&client).await
    }

    /// Reads what has to be read, decides what can be decided, and writes it. What turns out to have been decided on a wrong
    /// belief, and what is about the same intent as something before it, stays for the next round.
    async fn round(&mut self, tasks: &mut [Task]) -> Result<(), Failure> {
        let client = self.link.client().await?;
        let client = &*client;
        self.read(client, tasks).await?;
        self.tell_of_open_works(client, tasks).await?;
        let (now, recovering_since) = self.shared.reading(client).await?;
        let shared = self.shared.clone();
        let mut taken: HashSet<Subject> = HashSet::new();
        let mut batch = Planning::default();
        let mut under_lock: Vec<usize> = Vec::new();
        for (index, task) in tasks.iter_mut().enumerate().filter(|(_, task)| task.is_open()) {
            if task.subjects().any(|subject| taken.contains(&subject)) {
                // It may be known in more ways than what is before it: what comes after it waits for it all the same.
                taken.extend(task.subjects());
                continue;
            }
            let (found, was_read) = match &task.belief {
                Belief::Held(found) => (found.as_ref(), false),
                Belief::Read(found) => (found.as_ref(), true),
                Belief::Unread => continue,
            };
            let moment = Moment { dice: shared.dice.roll(), recovering_since, ..Moment::at(now) };
            let Planned { change, applied } =
                plan(found, IntentId::new(0), None, &task.order, &moment, &shared.hasher);
            let Some(change) = change else {
                if was_read {
                    shared.count(moment.now, &applied.verdict);
                    task.answer(Ok(applied));
                    continue;
                }
                // Nothing would be written, so no write tells whether the belief is true: look.
                taken.extend(task.subjects());
                match found {
                    Some(_) => batch.believed.push((index, applied)),
                    None => task.doubt(),
                }
                continue;
            };
            // Decided without its lane, which only tells that something is to be written.
            let place = place_of(found.map(|found| &**found), &task.order);
            let lane = place.map(|place| Subject::Lane(place.lane.clone()));
            if lane.as_ref().is_some_and(|lane| taken.contains(lane)) {
                taken.extend(task.subjects());
                continue;
            }
            let held = change.before.is_none() && task.hash.is_some_and(|hash| shared.is_held(&hash));
            taken.extend(task.subjects());
            if lane.is_some() || held {
                taken.extend(lane);
                under_lock.push(index);
                continue;
            }
            let id = change.before.as_ref().map(|before| before.id);
            batch.lines.push(Line::new(change, id, task.hash, &shared, (moment.now, &applied.verdict)));
            batch.planned.push((index, applied));
        }
        if !batch.is_empty() {
            self.write(client, tasks, batch).await?;
        }
        if !under_lock.is_empty() {
            self.write_under_lock(client, tasks, &under_lock).await?;
        }
        Ok(())
    }

    /// Applies what needs a lock first.
    async fn write_under_lock(
        &mut self,
        client: &Client,
        tasks: &mut [Task],
        indexes: &[usize],
    ) -> Result<(), Failure> {
        let shared = self.shared.clone();
        let candidates: Vec<Candidate<'_>> = indexes
            .iter()
            .map(|index| Candidate::new(&shared, &tasks[*index].order, tasks[*index].found()))
            .collect();
        let results = locked::transaction(client, &shared, &candidates).await?;
        drop(candidates);
        let written = results.iter().filter_map(|came| match came {
            Came::Applied(applied) if applied.changed => Some((&**applied.stored.as_ref()?, applied.at)),
            _ => None,
        });
        self.shared.tail.acknowledged(written);
        let mut in_the_way = false;
        for (index, came) in indexes.iter().zip(results) {
            match came {
                Came::Applied(applied) => tasks[*index].answer(Ok(applied)),
                Came::Mistaken => tasks[*index].doubt(),
                Came::Kept => in_the_way = true,
            }
        }
        // What the others believe of the same intents is over.
        let written: HashSet<Subject> = indexes.iter().flat_map(|index| tasks[*index].subjects()).collect();
        for task in tasks.iter_mut().filter(|task| task.is_open()) {
            if task.subjects().any(|subject| written.contains(&subject)) {
                task.doubt();
            }
        }
        // The others are done.
        if in_the_way { Err(Failure::InTheWay) } else { Ok(()) }
    }

    /// Reads what nobody believes anything of.
    async fn read(&self, client: &Client, tasks: &mut [Task]) -> Result<(), Failure> {
        let unread = |task: &&mut Task| task.is_open() && matches!(task.belief, Belief::Unread);
        let (mut hashes, mut ids): (Vec<NameHash>, Vec<IntentId>) = Default::default();
        for task in tasks.iter_mut().filter(unread) {
            match task.looked_for() {
                Some(Subject::Number(id)) => ids.push(id),
                Some(Subject::Name(hash)) => hashes.push(hash),
                Some(Subject::Lane(_)) | None => {}
            }
        }
        if hashes.is_empty() && ids.is_empty() {
            return Ok(());
        }
        hashes.sort_unstable();
        hashes.dedup();
        ids.sort_unstable();
        ids.dedup();
        let found = read::look(client, &self.shared, &hashes, &ids).await?;
        let mut by_subject: HashMap<Subject, (NameHash, Arc<Stored>)> = HashMap::new();
        for (hash, stored) in found {
            let stored = Arc::new(stored);
            by_subject.insert(Subject::Number(stored.id), (hash, stored.clone()));
            by_subject.insert(Subject::Name(hash), (hash, stored));
        }
        for task in tasks.iter_mut().filter(unread) {
            match task.looked_for().and_then(|subject| by_subject.get(&subject)) {
                Some((hash, stored)) => task.find(Some(*hash), stored.clone()),
                None => task.learn(None, None),
            }
        }
        Ok(())
    }

    /// Fills in what purges must know and only the store can see.
    async fn tell_of_open_works(&self, client: &Client, tasks: &mut [Task]) -> Result<(), Failure> {
        let open_tasks = tasks.iter().filter(|task| task.is_open());
        let mut works: Vec<&str> =
            open_tasks.filter_map(|task| locked::work_to_purge(&task.order, task.found()?)).collect();
        if works.is_empty() {
            return Ok(());
        }
        works.sort_unstable();
        works.dedup();
        let open = read::open_works(client, &self.shared, &works).await?;
        for task in tasks {
            let told = task.found().and_then(|found| locked::told_of_open_work(&task.order, found, &open));
            if let Some(told) = told {
                task.order = told;
            }
        }
        Ok(())
    }

    async fn write(&mut self, client: &Client, tasks: &mut [Task], batch: Planning) -> Result<(), Failure> {
        let Planning { lines, planned, believed } = batch;
        let relaxed = planned.iter().all(|(index, applied)| {
            tasks[*index].order.command.action.may_be_relaxed() && applied.may_be_relaxed()
        });
        // Who only looks writes no counts either; those wait for the next one who writes.
        let no_counts = Tally::default();
        let is_writing = !lines.is_empty();
        if is_writing {
            self.unwritten.merge(self.shared.take_tally());
        }
        let counts = if is_writing { &self.unwritten } else { &no_counts };
        let beliefs: Vec<&Stored> = believed.iter().filter_map(|(index, _)| tasks[*index].found()).collect();
        let written = write::changes(client, &self.shared, &lines, &beliefs, counts, relaxed).await?;
        if is_writing {
            self.unwritten = Tally::default();
        }
        drop(lines);
        let somebody_waits = planned.len() + believed.len() < tasks.len();
        let mut told = Replies::default();
        let mut now_known: HashMap<Subject, Option<Arc<Stored>>> = HashMap::new();
        for (number, (index, applied)) in believed.into_iter().enumerate() {
            let task = &mut tasks[index];
            if written.mistaken.contains(&number) {
                task.hash.iter().for_each(|hash| self.shared.forget(hash));
                task.doubt();
                continue;
            }
            if somebody_waits {
                now_known.extend(task.subjects().map(|subject| (subject, applied.stored.clone())));
            }
            self.shared.count(applied.at, &applied.verdict);
            task.answer_among(&mut told, applied);
        }
        let mut acknowledged = Vec::new();
        for ((index, mut applied), outcome) in planned.into_iter().zip(written.outcomes) {
            let task = &mut tasks[index];
            let id = match outcome {
                Outcome::Written(id) => id,
                Outcome::Found(stored) => {
                    task.hash.iter().for_each(|hash| self.shared.remember(*hash, &stored));
                    if somebody_waits {
                        now_known.extend(task.subjects().map(|subject| (subject, Some(stored.clone()))));
                    }
                    task.find(task.hash, stored);
                    continue;
                }
                Outcome::Mistaken => {
                    task.doubt();
                    continue;
                }
            };
            if let Some(stored) = &mut applied.stored
                && stored.id != id
            {
                Arc::make_mut(stored).id = id;
            }
            // What is only visible may be lost (S7).
            acknowledged
                .extend(applied.stored.clone().filter(|_| !relaxed).map(|stored| (stored, applied.at)));
            match (task.hash, &applied.stored) {
                (Some(hash), Some(stored)) => self.shared.remember(hash, stored),
                (Some(hash), None) => self.shared.forget(&hash),
                (None, _) => {}
            }
            if somebody_waits {
                let subjects = task.subjects().chain([Subject::Number(id)]);
                now_known.extend(subjects.map(|subject| (subject, applied.stored.clone())));
            }
            task.answer_among(&mut told, applied);
        }
        self.shared.tail.acknowledged(acknowledged.iter().map(|(stored, at)| (&**stored, *at)));
        for task in tasks.iter_mut().filter(|task| somebody_waits && task.is_open()) {
            let known = task.subjects().find_map(|subject| now_known.get(&subject)).cloned();
            match known {
                Some(Some(stored)) => task.find(None, stored),
                Some(None) => task.learn(None, None),
                None => {}
            }
        }
        Ok(())
    }
}
