//! Handing events over: what has just arrived, what is due again, and what was left behind when nobody was there. One at a time
//! for each object, in its order (S15, S39); as many objects at a time as the target is given.
//!
//! Nothing is listed as a whole: the agenda is read page by page, and what is in memory is bounded by what is under way.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use twicesafe_ledger::{
    Claimed, Counts, Error, Intent, IntentId, LaneName, Outcome, Refusal, StoreError, Stored, Timestamp,
    Trouble, WaitCause,
};

use super::event::Event;
use super::fresh::Arrived;
use super::handover::Handover;
use super::plan::Inbox;
use crate::server::Shared;

/// How often is looked for what is due, whatever is heard.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Events read at a time, and looked at in one go.
const PAGE: usize = 256;
const LOOKED_AT_MAX: usize = 4096;
/// From when on the log tells of an event that is due and not handed over.
const LATE: Duration = Duration::from_secs(60);
/// Events that are known to wait for their next attempt, the oldest.
const WAITING_MAX: usize = 1000;
/// Events of one object handed over before others get the turn.
const LANE_RUN_MAX: usize = 64;
/// Objects that are known to be closed, and for how long they are passed over.
const CLOSED_LANES_MAX: usize = 10_000;
const CLOSED_FOR: Duration = Duration::from_secs(1);
/// How often the first of an object is looked for in one go.
const TURNED_AWAY_MAX: usize = 3;
/// How long an event that an answer could not be stored for is left alone.
const TROUBLE_PAUSE: Duration = Duration::from_secs(1);

/// Hands over what arrives at any inbox.
pub(crate) struct Delivery {
    shared: Arc<Shared>,
    under_way: Mutex<UnderWay>,
}

/// What is under way here: as much as there are places.
#[derive(Default)]
struct UnderWay {
    intents: HashSet<IntentId>,
    lanes: HashSet<String>,
    closed: HashMap<String, Instant>,
}

impl Delivery {
    pub(crate) fn new(shared: Arc<Shared>) -> Arc<Self> {
        Arc::new(Self { shared, under_way: Mutex::default() })
    }

    /// Goes on until the server stops. Inboxes come and go with the configuration.
    pub(crate) async fn run(self: Arc<Self>) {
        let mut pumps = Pumps(HashMap::new());
        loop {
            let inboxes = self.shared.inboxes();
            pumps.0.retain(|name, (pump, task)| {
                let stays = inboxes.get(name).is_some_and(|inbox| Arc::ptr_eq(inbox, &pump.inbox));
                if !stays {
                    pump.is_over.store(true, Ordering::SeqCst);
                    task.abort();
                }
                stays
            });
            for inbox in inboxes.iter() {
                if pumps.0.contains_key(&inbox.name) {
                    continue;
                }
                let places = Arc::new(Semaphore::new(inbox.concurrency));
                let pump = Arc::new(Pump {
                    delivery: self.clone(),
                    inbox: inbox.clone(),
                    places,
                    waiting: Mutex::default(),
                    is_over: AtomicBool::new(false),
                });
                let both = futures_util::future::join(pump.clone().run(), pump.clone().keep_measuring());
                let task = tokio::spawn(both).abort_handle();
                pumps.0.insert(inbox.name.clone(), (pump, task));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, UnderWay> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// They end with who started them; what is under way goes on, and nothing is begun after it.
struct Pumps(HashMap<String, (Arc<Pump>, tokio::task::AbortHandle)>);

impl Drop for Pumps {
    fn drop(&mut self) {
        for (pump, task) in self.0.values() {
            pump.is_over.store(true, Ordering::SeqCst);
            task.abort();
        }
    }
}

/// Hands over what arrives at one inbox.
struct Pump {
    delivery: Arc<Delivery>,
    inbox: Arc<Inbox>,
    /// As many as the target is given at a time.
    places: Arc<Semaphore>,
    /// Those that were not taken and wait for their next attempt: the oldest of them.
    waiting: Mutex<BTreeSet<IntentId>>,
    /// The server stops, or the configuration is another one.
    is_over: AtomicBool,
}

/// An event that is to be handed over, as far as it was read.
struct Next {
    id: IntentId,
    known: Option<(Arc<Stored>, Event)>,
}

/// An event that is under way, until it is not.
struct Flight {
    delivery: Arc<Delivery>,
    id: IntentId,
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.delivery.lock().intents.remove(&self.id);
    }
}

/// An object that is being looked after, until it is not.
struct Keeping {
    delivery: Arc<Delivery>,
    lane: LaneName,
}

impl Drop for Keeping {
    fn drop(&mut self) {
        self.delivery.lock().lanes.remove(self.lane.as_str());
    }
}

/// What handing one event over came to, for others of its object.
enum Came {
    /// The next one may go.
    Through,
    /// That one goes first.
    TurnedAway(IntentId),
    /// Nothing can be done for now.
    Stuck,
    /// The target is left alone for now.
    Shut,
}

impl Pump {
    async fn run(self: Arc<Self>) {
        let Some(mut fresh) = self.inbox.fresh.receiver() else { return };
        let mut on_from = None;
        let mut look_at = tokio::time::Instant::now() + LOOK_EVERY;
        // When a server starts nobody knows what was left behind.
        self.inbox.fresh.miss();
        loop {
            if self.is_paused() {
                tokio::time::sleep(LOOK_EVERY).await;
                while fresh.try_recv().is_ok() {}
                self.inbox.fresh.miss();
                continue;
            }
            if self.inbox.fresh.was_missed() {
                // What waits in memory is on the agenda, too: in its turn.
                while fresh.try_recv().is_ok() {}
                self.look(&mut on_from).await;
                if on_from.is_some() {
                    self.inbox.fresh.miss();
                }
            }
            tokio::select! {
                // However much arrives, what is due again is looked for.
                biased;
                () = tokio::time::sleep_until(look_at) => {
                    self.look(&mut on_from).await;
                    look_at = tokio::time::Instant::now() + LOOK_EVERY;
                }
                arrived = fresh.recv() => match arrived {
                    Some(Arrived { stored, event }) => {
                        self.begin(Next { id: stored.id, known: Some((stored, event)) }).await;
                    }
                    None => return,
                },
                () = self.inbox.fresh.told.notified() => {}
            }
        }
    }

    fn is_paused(&self) -> bool {
        self.delivery.shared.pauses.has_inbox(&self.inbox.name)
    }

    /// Hands over what is due, oldest first: a bounded part of it, and the rest in its turn. At the end it begins anew, next time.
    async fn look(self: &Arc<Self>, on_from: &mut Option<(Timestamp, IntentId)>) {
        if let super::plan::Target::Url { upstream, .. } = &self.inbox.target {
            upstream.tidy();
        }
        for _ in 0..LOOKED_AT_MAX / PAGE {
            let Some(next) = self.page(*on_from).await else { return };
            *on_from = next;
            if next.is_none() {
                return;
            }
        }
    }

    /// Beside everything else: whoever waits for a place cannot tell for how long others have.
    async fn keep_measuring(self: Arc<Self>) {
        loop {
            self.measure_lag().await;
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// How long the first of what is due has waited, or the oldest of what was not taken, whenever that is due.
    async fn measure_lag(&self) {
        let shared = &self.delivery.shared;
        let store = shared.ledger.store();
        let (Ok(first), Ok(now)) = (store.due(self.inbox.scope.as_str(), None, 1).await, store.now().await)
        else {
            return;
        };
        let lag = first.first().map_or(Duration::ZERO, |line| now.since(line.at.0));
        let oldest = self.oldest_waiting().await.map_or(Duration::ZERO, |arrived_at| now.since(arrived_at));
        shared.metrics.inbox_lag(&self.inbox.name, lag.max(oldest));
        if lag >= LATE && !self.is_paused() && self.inbox.late.is_time() {
            let (inbox, seconds) = (&self.inbox.name, lag.as_secs());
            tracing::warn!(inbox, "events are not handed over in time: the oldest waits for {seconds} s");
        }
    }

    /// When the oldest arrived that was not taken and waits for its next attempt.
    async fn oldest_waiting(&self) -> Option<Timestamp> {
        loop {
            let id = *self.waiting().first()?;
            let stored = self.delivery.shared.ledger.store().find_id(id).await.ok()?;
            match stored.filter(|stored| stored.record.due_at.is_some()) {
                Some(stored) => return Some(stored.record.created_at),
                // Somebody decided about it, or it was handed over elsewhere.
                None => drop(self.waiting().remove(&id)),
            }
        }
    }

    fn waiting(&self) -> MutexGuard<'_, BTreeSet<IntentId>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes whether an event waits for its next attempt.
    fn note_waiting(&self, id: IntentId, waits: bool) {
        let mut waiting = self.waiting();
        if !waits {
            waiting.remove(&id);
            return;
        }
        waiting.insert(id);
        if waiting.len() > WAITING_MAX {
            waiting.pop_last();
        }
    }

    /// One page of what is due: begins it, and says where the next one starts. `None`: it could not be read, or is paused.
    async fn page(
        self: &Arc<Self>,
        after: Option<(Timestamp, IntentId)>,
    ) -> Option<Option<(Timestamp, IntentId)>> {
        let store = self.delivery.shared.ledger.store();
        let lines = match store.due(self.inbox.scope.as_str(), after, PAGE).await {
            Ok(lines) => lines,
            Err(error) => {
                tracing::warn!(code = %error.code(), inbox = self.inbox.name, "what is due could not be looked for: {error}");
                return None;
            }
        };
        for line in &lines {
            // Objects may have many events that wait behind one: those cost no more than this look.
            let object = line.lane.clone().unwrap_or_else(|| line.at.1.to_string());
            let is_idle = {
                let under_way = self.delivery.lock();
                let is_closed = under_way.closed.get(&object).is_some_and(|until| *until > Instant::now());
                !is_closed && !under_way.lanes.contains(&object)
            };
            if is_idle {
                self.begin(Next { id: line.at.1, known: None }).await;
                if self.is_paused() {
                    return None;
                }
            }
        }
        Some(lines.last().map(|line| line.at).filter(|_| lines.len() == PAGE))
    }

    /// Begins to hand an event over, when there is a place.
    async fn begin(self: &Arc<Self>, next: Next) {
        if self.delivery.lock().intents.contains(&next.id) {
            return;
        }
        if self.is_paused() {
            return self.inbox.fresh.miss();
        }
        let Ok(place) = self.places.clone().acquire_owned().await else { return };
        self.while_shut().await;
        // It may have been begun meanwhile.
        if !self.delivery.lock().intents.insert(next.id) {
            return;
        }
        let flight = Flight { delivery: self.delivery.clone(), id: next.id };
        let (pump, under_way) = (self.clone(), self.delivery.shared.ledger.begin());
        tokio::spawn(async move {
            let _under_way = (under_way, flight);
            if let Err(error) = pump.fly(next, place).await {
                let inbox = &pump.inbox.name;
                match &error {
                    Error::NotRecorded(_) => {
                        tracing::error!(code = %error.code(), inbox, "an event was handed over: {error}");
                    }
                    _ => tracing::warn!(code = %error.code(), inbox, "failed to hand over an event: {error}"),
                }
                tokio::time::sleep(TROUBLE_PAUSE).await;
            }
        });
    }

    /// Waits until the target is tried again.
    async fn while_shut(&self) {
        while let Some(left) = self.inbox.gate.shut_for() {
            tokio::time::sleep(left.min(LOOK_EVERY)).await;
        }
    }

    /// Hands an event over, then those that wait for the same object.
    async fn fly(self: &Arc<Self>, next: Next, mut place: OwnedSemaphorePermit) -> Result<(), Error> {
        let store = self.delivery.shared.ledger.store();
        let (stored, event) = match next.known {
            Some((stored, event)) => (stored, Some(event)),
            None => match store.find_id(next.id).await? {
                Some(stored) => (Arc::new(stored), None),
                None => return Ok(()),
            },
        };
        let Some(lane) = stored.record.place.as_ref().map(|place| place.lane.clone()) else {
            return self.one(stored, event).await.map(|_| ());
        };
        // What was read a moment ago may have been handed over since, with others of its object.
        if stored.record.due_at.is_none() || self.is_closed(&lane) {
            return Ok(());
        }
        // Whoever is there looks for the next one when it is done.
        let Some(mut keeping) = self.keep(&lane) else { return Ok(()) };
        let mut came = self.one(stored, event).await?;
        let mut turned_away = 0;
        for number in 1_usize.. {
            if self.is_paused() || self.is_over.load(Ordering::SeqCst) {
                break;
            }
            let next = match came {
                Came::Through => {
                    turned_away = 0;
                    // Looked for when nobody is told any more that somebody is there: mostly none waits, and then nothing is left to do.
                    drop(keeping);
                    let next = store.first_waiting(&lane).await?;
                    let Some((next, kept)) = next.and_then(|next| Some((next, self.keep(&lane)?))) else {
                        return Ok(());
                    };
                    keeping = kept;
                    Some(next)
                }
                Came::TurnedAway(other) if turned_away < TURNED_AWAY_MAX => {
                    turned_away += 1;
                    Some(other)
                }
                Came::TurnedAway(_) | Came::Stuck => None,
                // It is not the object's fault: as soon as the target is tried again, this may be.
                Came::Shut => return Ok(()),
            };
            let Some(stored) = (match next {
                Some(next) => store.find_id(next).await?,
                None => None,
            }) else {
                break;
            };
            if number.is_multiple_of(LANE_RUN_MAX) {
                // Others had to wait long enough; then it goes on.
                drop(place);
                let Ok(again) = self.places.clone().acquire_owned().await else { return Ok(()) };
                place = again;
            }
            came = self.one(Arc::new(stored), None).await?;
        }
        // Those behind it would only ask in vain.
        self.close(lane.as_str());
        drop(keeping);
        Ok(())
    }

    fn is_closed(&self, lane: &LaneName) -> bool {
        self.delivery.lock().closed.get(lane.as_str()).is_some_and(|until| *until > Instant::now())
    }

    fn close(&self, object: &str) {
        let mut under_way = self.delivery.lock();
        let now = Instant::now();
        if under_way.closed.len() >= CLOSED_LANES_MAX {
            under_way.closed.retain(|_, until| *until > now);
        }
        if under_way.closed.len() < CLOSED_LANES_MAX {
            under_way.closed.insert(object.to_owned(), now + CLOSED_FOR);
        }
    }

    fn keep(&self, lane: &LaneName) -> Option<Keeping> {
        let is_first = self.delivery.lock().lanes.insert(lane.as_str().to_owned());
        is_first.then(|| Keeping { delivery: self.delivery.clone(), lane: lane.clone() })
    }

    /// Hands one event over, if it may be now.
    async fn one(&self, stored: Arc<Stored>, event: Option<Event>) -> Result<Came, Error> {
        let shared = &self.delivery.shared;
        // One that ran out of attempts waits for somebody; a claim would begin a new round.
        if stored.record.due_at.is_none() {
            return Ok(Came::Stuck);
        }
        // An event without an object is one by itself.
        let object: Arc<str> = match &stored.record.place {
            Some(place) => place.lane.as_str().into(),
            None => stored.id.to_string().into(),
        };
        let Ok(pass) = self.inbox.gate.enter_for_now(Some(object.clone())).await else {
            if self.inbox.gate.shut_for().is_none() {
                // Others go first.
                self.close(&object);
                return Ok(Came::Stuck);
            }
            self.inbox.fresh.miss();
            return Ok(Came::Shut);
        };
        let Some(intent) = Intent::on_record(&stored) else { return Ok(Came::Stuck) };
        let event = match event {
            Some(event) => Ok(event),
            None => match shared.ledger.store().request(stored.id).await {
                Ok(kept) => kept.as_ref().and_then(Event::from_kept).ok_or("it is not on record"),
                Err(StoreError::Damaged(_)) => Err("what is on record of it is damaged"),
                Err(error) => return Err(error.into()),
            },
        };
        let permit = match shared.ledger.claim(&intent).await {
            Ok(Claimed::Proceed(permit)) => permit,
            Ok(Claimed::Wait { cause: WaitCause::Lane(Some(other)), .. }) => {
                return Ok(Came::TurnedAway(other));
            }
            Ok(Claimed::Replay(_)) => return Ok(Came::Through),
            Ok(_) => return Ok(Came::Stuck),
            Err(Error::Ledger(Refusal::Superseded)) => {
                shared.metrics.inbox(&self.inbox.name, "superseded", 1);
                return Ok(Came::Through);
            }
            // Somebody decided about it meanwhile.
            Err(Error::Ledger(_)) => return Ok(Came::Through),
            Err(error) => return Err(error),
        };
        let attempt = permit.attempt();
        let event = match event {
            Ok(event) => event,
            // No further attempt mends that: somebody must look, at once.
            Err(why) => {
                let inbox = &self.inbox.name;
                tracing::error!(intent = %stored.id, inbox, "an event cannot be handed over: {why}");
                let settled = permit.settle(Err(Trouble::unknown(why).park())).await?;
                self.note_waiting(stored.id, false);
                shared.metrics.inbox(inbox, "failed", 1);
                return Ok(came_of(&settled));
            }
        };
        let handover = Handover::new(shared.clone(), self.inbox.clone(), event, attempt);
        // Its turn is taken by what is sent, and not by what is turned away.
        let outcome = match self.inbox.gate.paced().await {
            Ok(()) => handover.act(attempt).await,
            Err(shut) => Outcome::NotSent {
                reason: shut.why.into(),
                retry_after: Some(shut.retry_after),
                counts: Counts::AsWaiting,
            },
        };
        let went = handover.went.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(went) = went {
            pass.went(went);
        }
        let is_delivered = matches!(outcome, Outcome::Answered(_));
        let result = match outcome {
            Outcome::Answered(answer) => Ok(answer),
            other => Err(Trouble::from_outcome(other)),
        };
        let settled = permit.settle(result).await?;
        self.note_waiting(stored.id, settled.record.due_at.is_some());
        let what = if is_delivered { "delivered" } else { "failed" };
        shared.metrics.inbox(&self.inbox.name, what, 1);
        Ok(came_of(&settled))
    }
}

/// Whether the next one of its object may go.
fn came_of(settled: &Stored) -> Came {
    let is_open = !settled.record.holds_lane() && settled.record.waits_until.is_none();
    if is_open { Came::Through } else { Came::Stuck }
}
