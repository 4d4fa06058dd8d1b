//! Telling people when something waits for them.
//!
//! Two ways lead here: what the ledger raises as it happens, and a walk over everything that waits for a person, some of it every
//! few seconds, by every server. The second makes up for a crash between an event and its alert, for what other processes did, and
//! for what could not be sent. Only a double effect leaves nothing to be found by looking: it is remembered until it is told, by
//! the server that heard of it. That nobody is told twice is the ledger's job: an alert is an intent like any other (class
//! `repeat`), one a person, a reason and a generation. There are no alerts about alerts.

mod mail;
mod message;
mod tail;
mod ways;
mod webhook;

use std::collections::HashSet;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Semaphore, broadcast, mpsc};
use tokio::time::MissedTickBehavior;
use twicesafe_ledger::{
    Alarm, Alert, Answer, Cursor, Filter, Intent, IntentId, JournalRow, Name, Policy, Record, Recovery,
    Refusal, Status, StoreError, Stored, Timestamp, Trouble,
};

use crate::access::{Right, Seen, is_reserved};
use crate::client::NoStatus;
use crate::config;
use crate::gateway;
use crate::inbox::is_told_by_its_event;
use crate::server::Shared;
use message::{Kind, Message};
use ways::{Way, Ways};

/// The scope of every alert.
pub(crate) const SCOPE: &str = "twicesafe/alert";
/// How often some of what waits is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Where people are needed, or were.
const LOOKED_AT: [Status; 5] =
    [Status::Held, Status::Review, Status::Retryable, Status::Ready, Status::Rejected];
/// Most intents of one status that are looked at at a time; the next look goes on behind them.
const LOOKED_AT_MAX: usize = 1000;
/// How long something may wait for a person before it is overdue.
const OVERDUE_AFTER_DEFAULT: Duration = Duration::from_secs(4 * 3600);
/// How long another attempt may be due before its caller is missed.
const STRANDED_AFTER: Duration = Duration::from_secs(600);
/// How long one try to tell somebody may take.
const SEND_TIME_MAX: Duration = Duration::from_secs(15);
/// Alerts on their way at a time.
const FLIGHTS_MAX: usize = 64;
/// Alarms that wait to be told of.
const HEARD_MAX: usize = 1000;
/// Occasions that are remembered until everybody was told.
const UNTOLD_MAX: usize = 1000;
/// Alerts remembered as given, reviews as overdue and requests as kept, so that the ledger is not asked each time.
const REMEMBERED_MAX: usize = 50_000;

/// Tells people.
pub(crate) struct Alerts {
    shared: Arc<Shared>,
    given: Remembered<String>,
    /// Intents whose review is known to be overdue, at that version: the journal need not be read again.
    overdue: Remembered<(IntentId, i64)>,
    /// Intents whose request is known to be on record, at that version.
    kept: Remembered<(IntentId, i64)>,
    flights: Arc<Semaphore>,
    ways: Ways,
}

/// What is left to the next look.
#[derive(Default)]
struct Left {
    /// Where it goes on, for each status.
    reached: [Option<Cursor>; LOOKED_AT.len()],
    /// What it would not find.
    untold: Vec<Occasion>,
    /// Since when the ledger was said to have lost its tail.
    tail_lost: Option<Timestamp>,
}

impl Alerts {
    pub(crate) fn new(shared: Arc<Shared>) -> Arc<Self> {
        Arc::new(Self {
            shared,
            given: Remembered::default(),
            overdue: Remembered::default(),
            kept: Remembered::default(),
            flights: Arc::new(Semaphore::new(FLIGHTS_MAX)),
            ways: Ways::default(),
        })
    }

    /// Goes on until the server stops.
    pub(crate) async fn run(self: Arc<Self>) {
        let (sender, heard) = mpsc::channel(HEARD_MAX);
        let (double, doubles) = mpsc::channel(UNTOLD_MAX);
        let hearing = hear(self.shared.ledger.alarms(), sender, double);
        tokio::join!(hearing, self.tell_of(heard, doubles));
    }

    async fn tell_of(self: Arc<Self>, mut heard: mpsc::Receiver<Alarm>, mut doubles: mpsc::Receiver<Alarm>) {
        let mut left = Left::default();
        let mut looks = tokio::time::interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                Some(alarm) = doubles.recv() => self.raised(&alarm, &mut left).await,
                alarm = heard.recv() => match alarm {
                    Some(alarm) => self.raised(&alarm, &mut left).await,
                    None => return,
                },
                _ = looks.tick() => if let Err(error) = self.look(&mut left).await {
                    tracing::warn!(code = %error.code(), "nobody could be looked after: {error}");
                },
            }
        }
    }

    async fn raised(self: &Arc<Self>, alarm: &Alarm, left: &mut Left) {
        if self.shared.configuration().people.is_empty() {
            return;
        }
        let store = self.shared.ledger.store();
        let found = match store.find_id(alarm.intent).await {
            Ok(found) => store.now().await.map(|now| (found, now)),
            Err(error) => Err(error),
        };
        match found {
            Ok((Some(stored), now)) if alarm.alert == Alert::DoubleEffect => {
                let occasion = Occasion { kind: Kind::DoubleEffect, stored: Arc::new(stored), now };
                if !self.tell_all(&occasion, now).await && left.untold.len() < UNTOLD_MAX {
                    left.untold.push(occasion);
                }
            }
            Ok((Some(stored), now)) => {
                if let Some(kind) = kind_of(&stored, now) {
                    self.tell_all(&Occasion { kind, stored: Arc::new(stored), now }, now).await;
                }
            }
            Ok((None, _)) => {}
            Err(error) => {
                tracing::error!(code = %error.code(), intent = %alarm.intent, "an alarm could not be told: {error}")
            }
        }
    }

    /// Looks at some of what waits for a person, behind where the last look ended.
    async fn look(self: &Arc<Self>, left: &mut Left) -> Result<(), twicesafe_ledger::Error> {
        tail::put_before_people(&self.shared.ledger, &mut left.tail_lost).await?;
        if self.shared.configuration().people.is_empty() {
            return Ok(());
        }
        let store = self.shared.ledger.store();
        let now = store.now().await?;
        for occasion in std::mem::take(&mut left.untold) {
            if !self.tell_all(&occasion, now).await {
                left.untold.push(occasion);
            }
        }
        for (number, status) in LOOKED_AT.into_iter().enumerate() {
            let filter = Filter { status: Some(status), ..Filter::default() };
            let page = match store.list(&filter, left.reached[number], LOOKED_AT_MAX).await {
                // What is in another status can be told.
                Err(error @ StoreError::Damaged(_)) => {
                    tracing::error!(code = %error.code(), ?status, "nobody could be looked after: {error}");
                    continue;
                }
                page => page?,
            };
            for stored in page.intents {
                let kind = match kind_of(&stored, now) {
                    Some(Kind::Stuck) if self.is_carried_on(&stored).await? => continue,
                    Some(kind) => kind,
                    None if self.is_stranded(&stored, now).await? => Kind::Stranded,
                    None => continue,
                };
                let is_waiting = matches!(kind, Kind::Held | Kind::Review);
                let overdue = is_waiting && self.is_overdue(&stored, now).await?;
                let occasion = Occasion { kind, stored: Arc::new(stored), now };
                self.tell_all(&occasion, now).await;
                if overdue {
                    self.tell_all(&Occasion { kind: Kind::Overdue, ..occasion }, now).await;
                }
            }
            left.reached[number] = page.next;
        }
        Ok(())
    }

    /// Whether it waits too long. The record knows since when it is held; since when it is in review only the journal does, which is
    /// read once it may be too long by what the record says of its last attempt.
    async fn is_overdue(&self, stored: &Stored, now: Timestamp) -> Result<bool, twicesafe_ledger::Error> {
        let rules = &self.shared.configuration().alerts;
        let allowed = rules.overdue_after.map_or(OVERDUE_AFTER_DEFAULT, |span| span.0);
        let is_too_long = |since: Timestamp| now >= since + allowed;
        let Record { status, policy, approval, quiet_at, created_at, .. } = &stored.record;
        if let (Status::Held, Some(approval)) = (status, approval) {
            let rule = policy.approval.clone().unwrap_or_default();
            return Ok(is_too_long(approval.expires_at.minus(rule.expires_after)));
        }
        let at_earliest = quiet_at.map_or(*created_at, |quiet_at| quiet_at.minus(policy.in_flight_max));
        let which = (stored.id, stored.version);
        if !is_too_long(at_earliest) || self.overdue.has(&which) {
            return Ok(is_too_long(at_earliest));
        }
        let journal = match self.shared.ledger.store().journal(stored.id).await {
            // Too early rather than never.
            Err(StoreError::Damaged(_)) => return Ok(true),
            journal => journal?,
        };
        let is_overdue = JournalRow::entered(&journal, *status).is_some_and(|entry| is_too_long(entry.at));
        if is_overdue {
            self.overdue.remember(which);
        }
        Ok(is_overdue)
    }

    /// Whether another attempt at a destination is due for long, and only its caller could make it: the request is not on
    /// record. What is, the server sends itself.
    async fn is_stranded(&self, stored: &Stored, now: Timestamp) -> Result<bool, twicesafe_ledger::Error> {
        let record = &stored.record;
        let is_late = record.due_at.is_some_and(|due_at| now >= due_at + STRANDED_AFTER);
        let is_ours = self.goes_to_a_destination(record) && !is_a_question(record);
        Ok(record.status == Status::Retryable && is_late && is_ours && !self.is_kept(stored).await?)
    }

    /// Whether the server sends it itself once its destination can be reached again: its request is on record.
    async fn is_carried_on(&self, stored: &Stored) -> Result<bool, twicesafe_ledger::Error> {
        let record = &stored.record;
        Ok(record.due_at.is_some() && self.goes_to_a_destination(record) && self.is_kept(stored).await?)
    }

    fn goes_to_a_destination(&self, record: &Record) -> bool {
        let destinations = self.shared.destinations();
        record.name.as_ref().is_some_and(|name| destinations.of_scope(name.scope.as_str()).is_some())
    }

    /// Whether its request is on record.
    async fn is_kept(&self, stored: &Stored) -> Result<bool, twicesafe_ledger::Error> {
        let which = (stored.id, stored.version);
        if self.kept.has(&which) {
            return Ok(true);
        }
        let is_kept = match self.shared.ledger.store().request(stored.id).await {
            // The server cannot send what it cannot read either.
            Err(StoreError::Damaged(_)) => false,
            request => request?.is_some(),
        };
        if is_kept {
            self.kept.remember(which);
        }
        Ok(is_kept)
    }

    /// Tells everybody concerned; says whether all of them have been told.
    async fn tell_all(self: &Arc<Self>, occasion: &Occasion, now: Timestamp) -> bool {
        let record = &occasion.stored.record;
        // What the server does for itself is nobody's to decide.
        let Some(name) = record.name.as_ref().filter(|name| !is_reserved(name.scope.as_str())) else {
            return true;
        };
        if is_told_by_its_event(&self.shared.ledger, &occasion.stored).await {
            return true;
        }
        let right = match occasion.kind {
            Kind::Held | Kind::Expired => Right::Approve,
            Kind::Overdue if record.status == Status::Held => Right::Approve,
            _ => Right::Review,
        };
        let configuration = self.shared.configuration();
        let destinations = self.shared.destinations();
        // An owner nobody can reach, or who may not decide, is no reason to tell nobody.
        let can_decide = |about: &config::Person| about.rights.contains(&right) && !about.alert.0.is_empty();
        let inboxes = self.shared.inboxes();
        let owner = destinations.owner(name).or_else(|| inboxes.owner(name));
        let owner = owner.filter(|owner| configuration.people.get(*owner).is_some_and(can_decide));
        let mut all_told = true;
        for (person, about) in &configuration.people {
            // What has an owner is the owner's business; everything else is everybody's who may decide it.
            let is_concerned = match owner {
                Some(owner) => owner == person,
                None => about.rights.contains(&right) && about.cares_for(name.scope.as_str()),
            };
            if is_concerned {
                for (number, channel) in about.alert.0.iter().enumerate() {
                    all_told &= self.tell(occasion, (person.clone(), number), channel, now).await;
                }
            }
        }
        all_told
    }

    /// What came of the last attempt, where that is why somebody is told. Nobody is told nothing because it cannot be read.
    async fn why(&self, Occasion { kind, stored, .. }: &Occasion) -> Option<String> {
        matches!(kind, Kind::Review | Kind::OutOfAttempts | Kind::Stuck).then_some(())?;
        let journal = self.shared.ledger.store().journal(stored.id).await.ok()?;
        let last = journal.iter().rfind(|row| !row.entry.reason.is_empty())?;
        Some(last.entry.reason.to_string())
    }

    /// Tells one person by one channel, once; says whether that was done before.
    async fn tell(
        self: &Arc<Self>,
        occasion: &Occasion,
        way: Way,
        channel: &config::Alert,
        now: Timestamp,
    ) -> bool {
        let Occasion { kind, stored, .. } = occasion;
        let record = &stored.record;
        let (person, number) = &way;
        let key =
            format!("{}:{}:{}:{}:{number}:{person}", stored.id, record.generation, record.fence, kind.word());
        if self.given.has(&key) {
            return true;
        }
        let intent = match Intent::new(SCOPE, &key) {
            Ok(intent) => intent.policy(policy()).wait(Duration::ZERO),
            Err(error) => {
                tracing::error!("an alert has no name: {error}");
                return true;
            }
        };
        // What is left alone is come back to by a later look.
        if self.ways.are_left_alone(&way, now) {
            return false;
        }
        let flight = self.flights.clone().acquire_owned().await.expect("nobody closes it");
        // It may have failed while this one waited.
        if self.ways.are_left_alone(&way, now) {
            return false;
        }
        let link = self.link(occasion, person);
        let message = Message { kind: *kind, stored: stored.clone(), link, why: self.why(occasion).await };
        let (alerts, channel) = (self.clone(), channel.clone());
        tokio::spawn(async move {
            let sent = alerts.shared.ledger.run(intent, {
                let alerts = alerts.clone();
                move |attempt| async move {
                    attempt.check_send()?;
                    let key = attempt.destination_key();
                    let sending = send(&alerts.shared, &channel, &message, &key);
                    let sent = tokio::time::timeout(SEND_TIME_MAX, sending).await;
                    let sent = sent.unwrap_or_else(|_| Err(NoStatus::Unknown("it took too long".to_owned())));
                    alerts.heard(&way, &sent, now);
                    match sent {
                        Ok(()) => Ok(Answer::default()),
                        Err(NoStatus::NotSent(why)) => Err(Trouble::not_sent(why)),
                        Err(NoStatus::Unknown(why)) => Err(Trouble::unknown(why)),
                    }
                }
            });
            match sent.await {
                // Purged: it was sent so long ago that only that is known.
                Ok(_) | Err(twicesafe_ledger::Error::Ledger(Refusal::Purged)) => {
                    alerts.given.remember(key);
                }
                // It is tried again when it is due; a later look asks.
                Err(twicesafe_ledger::Error::Pending { .. }) => {}
                Err(error) => tracing::warn!(code = "TS0085", %error, "an alert was not sent"),
            }
            drop(flight);
        });
        false
    }

    /// Notes whether a way works, and says so when that changes.
    fn heard(&self, way: &Way, sent: &Result<(), NoStatus>, at: Timestamp) {
        let person = &way.0;
        match sent {
            Ok(()) if self.ways.worked(way) => tracing::info!(person, "alerts are sent again"),
            Ok(()) => {}
            Err(why) if self.ways.failed(way, at) => {
                tracing::warn!(code = "TS0085", person, "an alert was not sent, and is tried again: {why}");
            }
            Err(_) => {}
        }
    }

    /// Where the person can decide, if that is what the alert is about.
    fn link(&self, Occasion { kind, stored, now }: &Occasion, person: &str) -> Option<String> {
        let waits = matches!(kind, Kind::Held | Kind::Overdue) && stored.record.status == Status::Held;
        let expires_at = stored.record.approval.as_ref().filter(|_| waits)?.expires_at;
        let latest = self.shared.configuration().links.expire.map(|span| *now + span.0);
        let seen = Seen::of(stored, person, latest.map_or(expires_at, |latest| latest.min(expires_at)));
        Some(format!(
            "{}{}{}",
            self.shared.link_base(),
            crate::pages::PREFIX,
            self.shared.links().make(&seen)
        ))
    }
}

/// Hears alarms, and waits for nothing else: what is not heard in time is gone. Looking finds it again, but for double effects.
async fn hear(
    mut alarms: broadcast::Receiver<Alarm>,
    sender: mpsc::Sender<Alarm>,
    double: mpsc::Sender<Alarm>,
) {
    loop {
        match alarms.recv().await {
            Ok(alarm) if alarm.alert == Alert::DoubleEffect => {
                let intent = alarm.intent;
                if double.try_send(alarm).is_err() {
                    tracing::error!(%intent, "it happened twice, and too much else is to be told to say so");
                }
            }
            Ok(alarm) => drop(sender.try_send(alarm)),
            Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => return,
        }
    }
}

/// What need not be asked again. It is forgotten as a whole when it becomes too much.
struct Remembered<T>(Mutex<HashSet<T>>);

impl<T> Default for Remembered<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Eq + Hash> Remembered<T> {
    fn has(&self, what: &T) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(what)
    }

    fn remember(&self, what: T) {
        let mut remembered = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if remembered.len() >= REMEMBERED_MAX {
            remembered.clear();
        }
        remembered.insert(what);
    }
}

/// Why somebody should be told of an intent in this status.
fn kind_of(stored: &Stored, now: Timestamp) -> Option<Kind> {
    let record = &stored.record;
    match record.status {
        // Whatever it says: it is not what the ledger wrote.
        _ if !stored.fits_seal => Some(Kind::Altered),
        Status::Held => Some(Kind::Held),
        Status::Review => Some(Kind::Review),
        Status::Retryable if record.due_at.is_none() && record.tries >= record.policy.attempts_max => {
            Some(Kind::OutOfAttempts)
        }
        // Rejected, and nobody decided: nobody said yes in time.
        Status::Rejected if record.approval.as_ref().is_some_and(|approval| approval.decision.is_none()) => {
            Some(Kind::Expired)
        }
        _ if is_stuck(stored, now) => Some(Kind::Stuck),
        _ => None,
    }
}

/// Whether an intent is open, nothing more happens to it by itself, and somebody should know (S47).
pub fn is_stuck(stored: &Stored, now: Timestamp) -> bool {
    stored.record.is_stuck(now) && !is_a_question(&stored.record)
}

/// Whether nothing is lost when nobody comes back for it: a question to an AI, or what was only tried out.
fn is_a_question(record: &Record) -> bool {
    let is_one = |name: &Name| gateway::is_pin(name.scope.as_str()) || gateway::is_rehearsal(name);
    record.name.as_ref().is_some_and(is_one)
}

/// Why somebody is told, about what, and when.
struct Occasion {
    kind: Kind,
    stored: Arc<Stored>,
    now: Timestamp,
}

/// Being told twice does no harm; not being told does. There is always another try as long as somebody should know.
fn policy() -> Policy {
    Policy {
        attempts_max: u32::MAX,
        lease: Duration::from_secs(30),
        in_flight_max: Duration::from_secs(30),
        retention: Duration::from_secs(7 * 24 * 3600),
        tombstone: Duration::from_secs(30 * 24 * 3600),
        ..Policy::new(Recovery::Repeat)
    }
}

async fn send(
    shared: &Shared,
    channel: &config::Alert,
    message: &Message,
    key: &str,
) -> Result<(), NoStatus> {
    let revealed = |url: &config::Secret| url.reveal().map_err(|error| NoStatus::NotSent(error.to_string()));
    match channel {
        config::Alert::Slack(url) => webhook::post(&revealed(url)?, &message.for_slack(), key).await,
        config::Alert::Webhook(url) => webhook::post(&revealed(url)?, &message.for_programs(), key).await,
        config::Alert::Mail(address) => match &shared.configuration().smtp {
            Some(smtp) => mail::send(smtp, address, message, key).await,
            None => Err(NoStatus::NotSent("there is no mail server in the configuration".to_owned())),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use twicesafe_ledger::{ManualClock, Open};

    use super::*;
    use crate::server::Server;

    /// Longer than any pause; so short that nothing is overdue meanwhile.
    const LATER: Duration = Duration::from_secs(10 * 60);

    struct World {
        clock: Arc<ManualClock>,
        alerts: Arc<Alerts>,
        left: Left,
        hook: SocketAddr,
        _server: Server,
    }

    impl World {
        /// Somebody's webhook is not there yet.
        async fn new() -> Self {
            let clock = Arc::new(ManualClock::at(1_800_000_000_000));
            let ledger = Open::at("memory:").clock(clock.clone()).open().await.expect("memory is there");
            let hook =
                TcpListener::bind("127.0.0.1:0").await.and_then(|one| one.local_addr()).expect("a place");
            let yaml = format!(
                "listen: 127.0.0.1:0\npeople:\n  ops: {{ alert: {{ webhook: \"http://{hook}/\" }}, rights: [review] }}\n"
            );
            let server = Server::start(ledger, config::parse(&yaml).expect("a configuration"))
                .await
                .expect("it starts");
            let alerts = Alerts::new(server.shared());
            Self { clock, alerts, left: Left::default(), hook, _server: server }
        }

        async fn in_review(&self, key: &str) {
            let intent = Intent::new("billing/invoice", key).expect("a name");
            let act = |_| async { Err(Trouble::unknown("timeout")) };
            self.alerts.shared.ledger.run(intent, act).await.expect_err("nobody knows");
        }

        async fn hook(&self) -> TcpListener {
            TcpListener::bind(self.hook).await.expect("nobody else has its place")
        }

        /// Looks, and waits for what comes of it.
        async fn look(&mut self) {
            self.alerts.look(&mut self.left).await.expect("the ledger is there");
            let _all = self.alerts.flights.acquire_many(FLIGHTS_MAX as u32).await.expect("nobody closes it");
        }

        /// Alerts, and where they stand.
        async fn alerts(&self) -> Vec<(Status, bool)> {
            let filter = Filter { scope: Some(SCOPE.to_owned()), ..Filter::default() };
            let page = self
                .alerts
                .shared
                .ledger
                .store()
                .list(&filter, None, 1000)
                .await
                .expect("the ledger is there");
            page.intents.iter().map(|stored| (stored.record.status, stored.record.doubt)).collect()
        }
    }

    /// A webhook that gives the same answer to everything.
    fn answering(listener: TcpListener, status: u16) -> tokio::task::JoinHandle<()> {
        tokio::spawn(async move {
            loop {
                let Ok((mut stream, _)) = listener.accept().await else { return };
                let _ = stream.read(&mut [0; 4096]).await;
                let answer = format!("HTTP/1.1 {status} x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        })
    }

    #[tokio::test]
    async fn an_alert_is_tried_again_as_long_as_somebody_waits() {
        let mut world = World::new().await;
        world.in_review("1").await;
        for _ in 0..10 {
            world.look().await;
            assert_eq!(world.alerts().await, [(Status::Retryable, false)], "refused: nothing was sent");
            world.clock.advance(LATER);
        }
        let broken = answering(world.hook().await, 500);
        for _ in 0..10 {
            world.look().await;
            assert_eq!(world.alerts().await, [(Status::Retryable, true)], "it may have arrived");
            world.clock.advance(LATER);
        }
        broken.abort();
        let _ = broken.await;
        answering(world.hook().await, 200);
        world.look().await;
        assert_eq!(world.alerts().await, [(Status::Done, false)]);
    }

    #[tokio::test]
    async fn one_who_cannot_be_reached_is_not_tried_for_everything_that_waits() {
        let mut world = World::new().await;
        for key in 0..300 {
            world.in_review(&key.to_string()).await;
        }
        world.look().await;
        assert!(world.alerts().await.len() <= FLIGHTS_MAX * 2, "{}", world.alerts().await.len());
        answering(world.hook().await, 200);
        world.clock.advance(LATER);
        world.look().await;
        assert_eq!(world.alerts().await, vec![(Status::Done, false); 300]);
    }
}
