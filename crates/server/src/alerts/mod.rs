//! Telling people when something waits for them.
//!
//! Two ways lead here: what the ledger raises as it happens, and a look at everything that waits for a person, every few seconds,
//! by every server. The second makes up for a crash between an event and its alert, and for what other processes did. Only a
//! double effect leaves nothing to be found by looking: it is remembered until it is told, by the server that heard of it. That nobody is told twice is the
//! ledger's job: an alert is an intent like any other (class `repeat`), one a person, a reason and a generation. There are no
//! alerts about alerts.

mod mail;
mod message;
mod webhook;

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::sync::broadcast::error::RecvError;
use twicesafe_ledger::{
    Alarm, Alert, Answer, Filter, Intent, Policy, Recovery, Refusal, Status, Stored, Timestamp, Trouble,
};

use crate::access::{Right, Seen};
use crate::config;
use crate::server::Shared;
use message::{Kind, Message};

/// The scope of every alert.
pub(crate) const SCOPE: &str = "twicesafe/alert";
/// How often everybody is looked after: at least, and at most however much is raised.
const LOOK_EVERY: Duration = Duration::from_secs(5);
const LOOK_PAUSE: Duration = Duration::from_millis(200);
/// Most intents of one status that are looked at for alerts at a time.
const LOOKED_AT_MAX: usize = 1000;
/// How long something may wait for a person before it is overdue.
const OVERDUE_AFTER_DEFAULT: Duration = Duration::from_secs(4 * 3600);
/// How long one try to tell somebody may take.
const SEND_TIME_MAX: Duration = Duration::from_secs(15);
/// Alerts on their way at a time.
const FLIGHTS_MAX: usize = 64;
/// Occasions that are remembered until everybody was told.
const UNTOLD_MAX: usize = 1000;
/// Alerts remembered as given, so that the ledger is not asked each time.
const GIVEN_MAX: usize = 50_000;
/// Tries in a row before a pause; there is always another round as long as somebody should know.
const ATTEMPTS: u32 = 5;

/// Tells people.
pub(crate) struct Alerts {
    shared: Arc<Shared>,
    given: Mutex<HashSet<String>>,
    untold: Mutex<Vec<Occasion>>,
    flights: Arc<Semaphore>,
}

impl Alerts {
    pub(crate) fn new(shared: Arc<Shared>) -> Arc<Self> {
        Arc::new(Self {
            shared,
            given: Mutex::default(),
            untold: Mutex::default(),
            flights: Arc::new(Semaphore::new(FLIGHTS_MAX)),
        })
    }

    /// Goes on until the server stops.
    pub(crate) async fn run(self: Arc<Self>) {
        let mut alarms = self.shared.ledger.alarms();
        loop {
            tokio::select! {
                alarm = alarms.recv() => match alarm {
                    Ok(alarm) => self.raised(&alarm).await,
                    // What was missed is found by looking.
                    Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => return,
                },
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
            tokio::time::sleep(LOOK_PAUSE).await;
            while let Ok(alarm) = alarms.try_recv() {
                self.raised(&alarm).await;
            }
            if let Err(error) = self.look().await {
                tracing::warn!(code = %error.code(), "nobody could be looked after: {error}");
            }
        }
    }

    async fn raised(self: &Arc<Self>, alarm: &Alarm) {
        if !matches!(alarm.alert, Alert::DoubleEffect | Alert::OutOfAttempts) {
            // The others leave the intent in a status that is found by looking. What is out of attempts does, too, but may
            // stand behind many that only wait for their time.
            return;
        }
        let store = self.shared.ledger.store();
        let found = match store.find_id(alarm.intent).await {
            Ok(found) => store.now().await.map(|now| (found, now)),
            Err(error) => Err(error),
        };
        match found {
            Ok((Some(stored), now)) => {
                let kind = match alarm.alert {
                    Alert::DoubleEffect => Some(Kind::DoubleEffect),
                    _ => kind_of(&stored),
                };
                let Some(kind) = kind else { return };
                let occasion = Occasion { kind, stored: Arc::new(stored), now };
                let mut untold = self.untold.lock().unwrap_or_else(PoisonError::into_inner);
                if untold.len() < UNTOLD_MAX {
                    untold.push(occasion);
                }
            }
            Ok((None, _)) => {}
            Err(error) => {
                tracing::error!(code = %error.code(), intent = %alarm.intent, "an alarm could not be told: {error}")
            }
        }
    }

    /// Looks at everything that waits for a person.
    async fn look(self: &Arc<Self>) -> Result<(), twicesafe_ledger::Error> {
        if self.shared.configuration().people.is_empty() {
            return Ok(());
        }
        let store = self.shared.ledger.store();
        let now = store.now().await?;
        let untold = std::mem::take(&mut *self.untold.lock().unwrap_or_else(PoisonError::into_inner));
        let left = untold.into_iter().filter(|occasion| !self.tell_all(occasion)).collect::<Vec<_>>();
        self.untold.lock().unwrap_or_else(PoisonError::into_inner).extend(left);
        for status in [Status::Held, Status::Review, Status::Retryable, Status::Rejected] {
            let mut after = None;
            let mut left = LOOKED_AT_MAX;
            loop {
                let filter = Filter { status: Some(status), ..Filter::default() };
                let page = store.list(&filter, after, left).await?;
                left = left.saturating_sub(page.intents.len());
                for stored in page.intents {
                    let Some(kind) = kind_of(&stored) else { continue };
                    let is_waiting = matches!(kind, Kind::Held | Kind::Review);
                    let overdue = is_waiting && self.is_overdue(&stored, now);
                    let occasion = Occasion { kind, stored: Arc::new(stored), now };
                    self.tell_all(&occasion);
                    if overdue {
                        self.tell_all(&Occasion { kind: Kind::Overdue, ..occasion });
                    }
                }
                after = page.next;
                if after.is_none() || left == 0 {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Since when it waits is in the journal; when it was last touched bounds that from below, and is at hand.
    fn is_overdue(&self, stored: &Stored, now: Timestamp) -> bool {
        let rules = &self.shared.configuration().alerts;
        let allowed = rules.overdue_after.map_or(OVERDUE_AFTER_DEFAULT, |span| span.0);
        let record = &stored.record;
        let since = record.quiet_at.or(record.first_sent_at).unwrap_or(record.created_at);
        now.since(since) >= allowed && now >= since
    }

    /// Tells everybody concerned; says whether all of them have been told.
    fn tell_all(self: &Arc<Self>, occasion: &Occasion) -> bool {
        let record = &occasion.stored.record;
        let Some(name) = record.name.as_ref().filter(|name| name.scope.as_str() != SCOPE) else {
            return true;
        };
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
                    all_told &= self.tell(occasion, person, number, channel);
                }
            }
        }
        all_told
    }

    /// Tells one person by one channel, once; says whether that was done before.
    fn tell(
        self: &Arc<Self>,
        occasion: &Occasion,
        person: &str,
        number: usize,
        channel: &config::Alert,
    ) -> bool {
        let Occasion { kind, stored, .. } = occasion;
        let record = &stored.record;
        let key =
            format!("{}:{}:{}:{}:{number}:{person}", stored.id, record.generation, record.fence, kind.word());
        if self.given().contains(&key) {
            return true;
        }
        let intent = match Intent::new(SCOPE, &key) {
            Ok(intent) => intent.policy(policy()).wait(Duration::ZERO),
            Err(error) => {
                tracing::error!("an alert has no name: {error}");
                return true;
            }
        };
        // Beyond what is under way now, the next look comes back to it.
        let Ok(flight) = self.flights.clone().try_acquire_owned() else { return false };
        let message = Message { kind: *kind, stored: stored.clone(), link: self.link(occasion, person) };
        let (alerts, channel) = (self.clone(), channel.clone());
        tokio::spawn(async move {
            let shared = alerts.shared.clone();
            let sent = shared.ledger.run(intent, {
                let shared = shared.clone();
                move |attempt| async move {
                    attempt.check_send()?;
                    let key = attempt.destination_key();
                    match tokio::time::timeout(SEND_TIME_MAX, send(&shared, &channel, &message, &key)).await {
                        Ok(Ok(())) => Ok(Answer::default()),
                        Ok(Err(why)) => Err(Trouble::unknown(&why)),
                        Err(_) => Err(Trouble::unknown("it took too long")),
                    }
                }
            });
            match sent.await {
                // Purged: it was sent so long ago that only that is known.
                Ok(_) | Err(twicesafe_ledger::Error::Ledger(Refusal::Purged)) => {
                    let mut given = alerts.given();
                    if given.len() >= GIVEN_MAX {
                        given.clear();
                    }
                    given.insert(key);
                }
                // It is tried again when it is due; the next look asks.
                Err(twicesafe_ledger::Error::Pending { .. }) => {}
                Err(error) => tracing::warn!(code = "TS0085", %error, "an alert was not sent"),
            }
            drop(flight);
        });
        false
    }

    fn given(&self) -> std::sync::MutexGuard<'_, HashSet<String>> {
        self.given.lock().unwrap_or_else(PoisonError::into_inner)
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

/// Why somebody should be told of an intent in this status.
fn kind_of(stored: &Stored) -> Option<Kind> {
    let record = &stored.record;
    match record.status {
        Status::Held => Some(Kind::Held),
        Status::Review => Some(Kind::Review),
        Status::Retryable if record.due_at.is_none() && record.tries >= record.policy.attempts_max => {
            Some(Kind::OutOfAttempts)
        }
        // Rejected, and nobody decided: nobody said yes in time.
        Status::Rejected if record.approval.as_ref().is_some_and(|approval| approval.decision.is_none()) => {
            Some(Kind::Expired)
        }
        _ => None,
    }
}

/// Why somebody is told, about what, and when.
struct Occasion {
    kind: Kind,
    stored: Arc<Stored>,
    now: Timestamp,
}

/// Being told twice does no harm; not being told does.
fn policy() -> Policy {
    Policy {
        attempts_max: ATTEMPTS,
        lease: Duration::from_secs(30),
        in_flight_max: Duration::from_secs(30),
        retention: Duration::from_secs(7 * 24 * 3600),
        tombstone: Duration::from_secs(30 * 24 * 3600),
        ..Policy::new(Recovery::Repeat)
    }
}

async fn send(shared: &Shared, channel: &config::Alert, message: &Message, key: &str) -> Result<(), String> {
    let revealed = |url: &config::Secret| url.reveal().map_err(|error| error.to_string());
    match channel {
        config::Alert::Slack(url) => webhook::post(&revealed(url)?, &message.for_slack(), key).await,
        config::Alert::Webhook(url) => webhook::post(&revealed(url)?, &message.for_programs(), key).await,
        config::Alert::Mail(address) => match &shared.configuration().smtp {
            Some(smtp) => mail::send(smtp, address, message, key).await,
            None => Err("there is no mail server in the configuration".to_owned()),
        },
    }
}
