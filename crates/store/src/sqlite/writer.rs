//! The writer: one thread, one transaction for everything that waits, one sync.

use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use rusqlite::Connection;
use twicesafe_core::{Action, IntentId, Moment, Timestamp};

use super::checkpoint::Checkpointer;
use super::open::{noted, prepared, ran};
use super::recent::Writing;
use super::task::{Known, Task};
use super::write::{self, Statements, Written};
use super::{Aside, Errand, Shared, read};
use crate::NameHash;
use crate::clock::Noted;
use crate::error::StoreError;
use crate::plan::{Applied, Order, Planned, Stored, Target, check_name, place_of, plan, rank_of_equals};
use crate::reply::{Replies, Reply};
use crate::tally::Tally;

/// How often it is tried to empty a log that holds what was forgotten.
const EMPTY_AGAIN: Duration = Duration::from_millis(100);

pub(super) struct Writer<'c> {
    connection: &'c Connection,
    statements: Statements<'c>,
    shared: &'c Shared,
    errands: Receiver<Errand>,
    checkpointer: Checkpointer,
    relaxed: bool,
}

/// Commands that are written together, and who waits for them.
#[derive(Default)]
struct Batch {
    tasks: Vec<Task>,
    replies: Vec<Reply<Result<Applied, StoreError>>>,
    /// Taken from the queue while it was written, but not one of them.
    next: Option<Errand>,
}

impl Batch {
    fn push(&mut self, task: Task, reply: Reply<Result<Applied, StoreError>>) {
        self.tasks.push(task);
        self.replies.push(reply);
    }

    /// Adds what waits by now, as far as it can be written in the same transaction. Says whether there was anything.
    fn take_along(&mut self, errands: &Receiver<Errand>, shared: &Shared, relaxed: bool) -> bool {
        let before = self.tasks.len();
        while self.next.is_none() && self.tasks.len() < shared.batch_max {
            let Ok(errand) = errands.try_recv() else { break };
            shared.queued.fetch_sub(1, Ordering::Relaxed);
            match errand {
                Errand::Apply(task, reply) if !relaxed || task.order.command.action.may_be_relaxed() => {
                    self.push(*task, reply);
                }
                other => self.next = Some(other),
            }
        }
        self.tasks.len() > before
    }
}

impl<'c> Writer<'c> {
    pub(super) fn new(connection: &'c Connection, shared: &'c Shared, errands: Receiver<Errand>) -> Self {
        let checkpointer = Checkpointer::new(&shared.path);
        Self {
            connection,
            statements: Statements::new(connection),
            shared,
            errands,
            checkpointer,
            relaxed: false,
        }
    }

    pub(super) fn run(mut self) {
        let mut batch = Batch::default();
        while let Some(errand) = batch.next.take().or_else(|| self.wait()) {
            match errand {
                Errand::Apply(task, reply) => {
                    batch.push(*task, reply);
                    self.apply(&mut batch);
                }
                Errand::Run(what, reply) => drop(reply.send(self.run_aside(what, false))),
                Errand::Count(reply) => drop(reply.send(self.write_counts())),
            }
            self.checkpointer.after_batch(self.connection);
        }
        self.checkpointer.stop(self.connection);
    }

    fn wait(&mut self) -> Option<Errand> {
        let mut errand = None;
        while self.checkpointer.must_empty() && errand.is_none() {
            match self.errands.recv_timeout(EMPTY_AGAIN) {
                Ok(next) => errand = Some(next),
                Err(RecvTimeoutError::Timeout) => self.checkpointer.after_batch(self.connection),
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
        let errand = errand.or_else(|| self.errands.recv().ok());
        self.shared.queued.fetch_sub(usize::from(errand.is_some()), Ordering::Relaxed);
        errand
    }

    /// Applies a batch and whatever comes while it is written. One that fails as a whole is applied again one command at a
    /// time, so that a command that cannot be written does not take the others with it.
    fn apply(&mut self, batch: &mut Batch) {
        let result = self.transaction(batch, true);
        self.checkpointer.written(batch.tasks.len());
        let replies = batch.replies.drain(..);
        match result {
            Ok(results) => {
                let mut told = Replies::default();
                replies.zip(results).for_each(|(reply, result)| told.push(reply, result));
            }
            Err(error) if batch.tasks.len() == 1 => {
                replies.for_each(|reply| reply.send(Err(error.clone())));
            }
            Err(_) => {
                for (task, reply) in batch.tasks.drain(..).zip(replies) {
                    let mut alone = Batch { tasks: vec![task], ..Batch::default() };
                    let result = self.transaction(&mut alone, false);
                    reply.send(result.and_then(|mut results| results.remove(0)));
                }
            }
        }
        batch.tasks.clear();
    }

    fn transaction(
        &mut self,
        batch: &mut Batch,
        takes_along: bool,
    ) -> Result<Vec<Result<Applied, StoreError>>, StoreError> {
        self.relax(batch.tasks.iter().all(|task| task.order.command.action.may_be_relaxed()))?;
        let mut result = self.attempt(batch, takes_along);
        if matches!(result, Ok(None)) {
            self.relax(false)?;
            result = self.attempt(batch, false);
        }
        if result.is_err() {
            // Whoever only wants to hear the first answer need not wait for what is in the way.
            self.shared.odds.forget();
        }
        Ok(result?.unwrap_or_default())
    }

    /// Without a sync the claim is visible to every other process, and lost only with the machine (S7).
    fn relax(&mut self, relaxed: bool) -> Result<(), StoreError> {
        if relaxed != self.relaxed {
            ran(self.connection.pragma_update(None, "synchronous", if relaxed { "NORMAL" } else { "FULL" }))?;
            self.relaxed = relaxed;
        }
        Ok(())
    }

    /// One transaction. `None`: nothing was written, because one of the intents has to be synced by what was agreed about it
    /// before.
    fn attempt(
        &mut self,
        batch: &mut Batch,
        takes_along: bool,
    ) -> Result<Option<Vec<Result<Applied, StoreError>>>, StoreError> {
        begin(self.connection)?;
        let mut writing = self.shared.recent.begin();
        let result = self.inside(batch, takes_along, &mut writing);
        let forgotten = writing.has_forgotten();
        match result {
            Ok((results, tally))
                if self.relaxed && !results.iter().flatten().all(Applied::may_be_relaxed) =>
            {
                self.back_out(tally);
                Ok(None)
            }
            Ok((results, tally)) => match ran(twicesafe_vfs::commit(self.connection)) {
                Ok(()) => {
                    self.shared.commits.fetch_add(1, Ordering::Relaxed);
                    writing.is_committed();
                    if forgotten {
                        self.checkpointer.has_forgotten();
                    }
                    Ok(Some(results))
                }
                Err(error) => {
                    self.back_out(tally);
                    Err(error)
                }
            },
            Err((tally, error)) => {
                self.back_out(tally);
                Err(error)
            }
        }
    }

    fn back_out(&self, uncounted: Tally) {
        let _ = self.connection.execute_batch("ROLLBACK");
        self.shared.tally.lock().unwrap_or_else(PoisonError::into_inner).merge(uncounted);
    }

    /// Everything between BEGIN and COMMIT. The counts of what needed no write are taken along; on failure they are
    /// given back.
    #[expect(clippy::type_complexity, reason = "the pair is taken apart at once")]
    fn inside(
        &mut self,
        batch: &mut Batch,
        takes_along: bool,
        writing: &mut Writing<'_>,
    ) -> Result<(Vec<Result<Applied, StoreError>>, Tally), (Tally, StoreError)> {
        let read_only =
            std::mem::take(&mut *self.shared.tally.lock().unwrap_or_else(PoisonError::into_inner));
        let written = self.write_all(batch, takes_along, &read_only, writing);
        match written {
            Ok(results) => Ok((results, read_only)),
            Err(error) => Err((read_only, error)),
        }
    }

    fn write_all(
        &mut self,
        batch: &mut Batch,
        takes_along: bool,
        read_only: &Tally,
        writing: &mut Writing<'_>,
    ) -> Result<Vec<Result<Applied, StoreError>>, StoreError> {
        let mut session = Session::start(self.connection, &mut self.statements, self.shared)?;
        let mut results = Vec::with_capacity(batch.tasks.len());
        loop {
            while let Some(task) = batch.tasks.get_mut(results.len()) {
                match session.apply(task, writing) {
                    Ok(applied) => results.push(Ok(applied)),
                    Err(error @ StoreError::Damaged(_)) if !session.half_written => results.push(Err(error)),
                    Err(error) => return Err(error),
                }
            }
            // Whoever was answered by the last commit is likely to be back by now: one commit for all costs less than two.
            if !takes_along || !batch.take_along(&self.errands, self.shared, self.relaxed) {
                break;
            }
            // They came after the clock was read, and who holds a permit counts from when it was asked for (S9).
            session.noted = self.shared.time.read_noted(None);
        }
        session.finish(read_only)?;
        Ok(results)
    }

    fn write_counts(&mut self) -> Result<(), StoreError> {
        let tally = std::mem::take(&mut *self.shared.tally.lock().unwrap_or_else(PoisonError::into_inner));
        if tally.is_empty() {
            return Ok(());
        }
        let counts = tally.clone();
        let written = self.run_aside(Box::new(move |connection| write::tally(connection, &counts)), true);
        if written.is_err() {
            self.shared.tally.lock().unwrap_or_else(PoisonError::into_inner).merge(tally);
        }
        written
    }

    fn run_aside(&mut self, what: Aside, relaxed: bool) -> Result<(), StoreError> {
        self.relax(relaxed)?;
        let connection = self.connection;
        let others_wrote = || read::data_version(connection);
        let before = others_wrote()?;
        begin(self.connection)?;
        let mut writing = self.shared.recent.begin();
        match what(self.connection).and_then(|()| ran(twicesafe_vfs::commit(self.connection))) {
            Ok(()) => {
                self.shared.commits.fetch_add(1, Ordering::Relaxed);
                // None of these errands changes what an intent is believed to be, but another process may have.
                let after = self.shared.recent.header();
                if others_wrote().is_ok_and(|now| now == before) {
                    writing.is_harmless(after);
                }
                Ok(())
            }
            Err(error) => {
                self.back_out(Tally::default());
                Err(error)
            }
        }
    }
}

fn begin(connection: &Connection) -> Result<(), StoreError> {
    ran(prepared(connection, "BEGIN IMMEDIATE")?.execute([])).map(drop)
}

/// One transaction.
struct Session<'a, 'c> {
    connection: &'c Connection,
    statements: &'a mut Statements<'c>,
    shared: &'c Shared,
    noted: Noted,
    /// When something was last written before this.
    last_at: Timestamp,
    recovering_since: Option<Timestamp>,
    last_intent: i64,
    tally: Tally,
    wrote: bool,
    /// Part of a command may have been written: only going back puts that right.
    half_written: bool,
}

impl<'a, 'c> Session<'a, 'c> {
    fn start(
        connection: &'c Connection,
        statements: &'a mut Statements<'c>,
        shared: &'c Shared,
    ) -> Result<Self, StoreError> {
        let mut statement = prepared(
            connection,
            "SELECT at.n, tick.n, boot.n, intent.n, recovering_since, hash_key
             FROM ledger, tally at, tally tick, tally boot, tally intent
             WHERE at.hour = ?1 AND at.name = 'last at' AND tick.hour = ?1 AND tick.name = 'last tick'
             AND boot.hour = ?1 AND boot.name = 'last boot' AND intent.hour = ?1 AND intent.name = 'last intent'",
        )?;
        let facts = statement.query_row([write::NOW], |row| {
            let noted = noted(row.get(0)?, row.get(1)?, row.get(2)?);
            Ok((noted, row.get::<_, i64>(3)?, row.get::<_, Option<i64>>(4)?, row.get::<_, Vec<u8>>(5)?))
        });
        let (last, last_intent, recovering_since, hash_key) = ran(facts)?;
        // Another process may have filled the ledger from an export since it was opened here.
        shared.hasher.follow(&hash_key)?;
        let noted = shared.time.read_noted(Some(last));
        let recovering_since = recovering_since.map(Timestamp::from_millis);
        shared.recovers_since(recovering_since);
        Ok(Self {
            connection,
            statements,
            shared,
            noted,
            last_at: last.at,
            recovering_since,
            last_intent,
            tally: Tally::default(),
            wrote: false,
            half_written: false,
        })
    }

    /// Decides and writes one command: first on what its sender believes, then, if that was wrong, on what is there.
    fn apply(&mut self, task: &mut Task, writing: &mut Writing<'_>) -> Result<Applied, StoreError> {
        let hash = task.hash(self.shared);
        let (now, recovering_since) = (self.noted.at, self.recovering_since);
        let known = Known { now, last_at: self.last_at, recovering_since };
        let mut decided = task.decided(&known, self.fresh_id());
        let order = &task.order;
        let first_claim =
            matches!((&order.command.action, &order.target), (Action::Claim(_), Target::Name(_)));
        let mut found = match &order.believed {
            Some(believed) => Some(believed.clone()),
            None if first_claim => None,
            None => self.load(order, hash.as_ref())?,
        };
        loop {
            let Planned { change, applied } = match decided.take() {
                Some(planned) => planned,
                None => self.plan(found.as_ref(), order)?,
            };
            let Some(change) = change else {
                if order.believed.is_some() || (first_claim && found.is_none()) {
                    // Nothing would be written, so no write tells whether the belief is true: look.
                    let there = self.load(order, hash.as_ref())?;
                    let which = |stored: &Option<Arc<Stored>>| {
                        stored.as_ref().map(|it| (it.id, it.version, it.fits_seal))
                    };
                    if which(&there) != which(&found) {
                        found = there;
                        continue;
                    }
                }
                self.tally.verdict(self.noted.at, &applied.verdict);
                if first_claim {
                    self.shared.odds.count(found.is_some());
                    if let (Some(hash), Some(found)) = (hash, &found) {
                        writing.found(hash, found);
                    }
                }
                return Ok(applied);
            };
            self.half_written = true;
            let hash_of_it = change.hash(hash, &self.shared.hasher);
            let written = write::change(self.statements, &self.shared.rows, hash_of_it.as_ref(), &change)?;
            self.half_written = false;
            match written {
                Written::BeliefWasWrong => found = self.load(order, hash.as_ref())?,
                Written::Yes => {
                    self.wrote = true;
                    if change.forgets() || change.after.is_none() {
                        writing.forgets();
                    }
                    writing.changes(change.before.as_deref(), |name| self.shared.hasher.hash(name));
                    if change.before.is_none() {
                        self.last_intent += 1;
                    }
                    if first_claim {
                        self.shared.odds.count(change.before.is_some());
                    }
                    change.count(self.noted.at, &mut self.tally);
                    self.tally.verdict(self.noted.at, &applied.verdict);
                    return Ok(applied);
                }
            }
        }
    }

    /// The number of the next intent that is new.
    fn fresh_id(&self) -> IntentId {
        IntentId::new(self.last_intent + 1)
    }

    fn plan(&self, found: Option<&Arc<Stored>>, order: &Order) -> Result<Planned, StoreError> {
        let fresh_id = self.fresh_id();
        let id = found.map_or(fresh_id, |stored| stored.id);
        let place = place_of(found.map(|found| &**found), order);
        let Noted { at: now, ahead, .. } = self.noted;
        let (dice, recovering_since) = (self.shared.dice.roll(), self.recovering_since);
        let moment = Moment { now, ahead, dice, recovering_since, clock: self.shared.machine_clock() };
        let lane = match place {
            Some(place) => {
                let equals = rank_of_equals(found.map(|found| &**found), order);
                Some(read::lane(self.connection, place.lane.as_str(), id, equals, moment.now)?)
            }
            None => None,
        };
        let mut order_seen = std::borrow::Cow::Borrowed(order);
        if let (Action::Purge(_), Some(stored)) = (&order.command.action, found)
            && let Some(step) = &stored.record.step
            && self.work_is_open(step.work())?
        {
            order_seen.to_mut().command.action = Action::Purge(twicesafe_core::Purge { work_is_open: true });
        }
        Ok(plan(found, fresh_id, lane.as_ref(), &order_seen, &moment, &self.shared.hasher))
    }

    fn work_is_open(&self, work: &str) -> Result<bool, StoreError> {
        let mut statement = prepared(
            self.connection,
            "SELECT EXISTS (SELECT 1 FROM intent WHERE work = ?1
             AND status IN ('held', 'ready', 'pending', 'retryable', 'review'))",
        )?;
        ran(statement.query_row([work], |row| row.get(0)))
    }

    fn load(&self, order: &Order, hash: Option<&NameHash>) -> Result<Option<Arc<Stored>>, StoreError> {
        let rows = &self.shared.rows;
        let found = match (&order.target, hash) {
            (Target::Id(id), _) => read::by_id(self.connection, rows, *id)?,
            (Target::Name(_), Some(hash)) => read::by_hash(self.connection, rows, hash)?,
            (Target::Name(_), None) => None,
        };
        found.iter().try_for_each(|stored| check_name(order, stored))?;
        Ok(found.map(Arc::new))
    }

    fn finish(mut self, read_only: &Tally) -> Result<(), StoreError> {
        self.tally.merge(read_only.clone());
        if self.wrote {
            write::last(self.connection, self.noted, self.last_intent)?;
            write::tally(self.connection, &self.tally)
        } else {
            // Counts alone are not worth a sync.
            self.shared.tally.lock().unwrap_or_else(PoisonError::into_inner).merge(self.tally);
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests;
