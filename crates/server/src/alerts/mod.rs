//! Telling people when something waits for them.
//!
//! Two ways lead here: what the ledger raises as it happens, and a look at everything that is held or in review, every few
//! seconds, by every server. The second makes up for a crash between an event and its alert. That nobody is told twice is the
//! ledger's job: an alert is an intent like any other (class `repeat`), one a person, a reason and a generation. There are no
//! alerts about alerts.

mod mail;
mod message;
mod webhook;

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;
use twicesafe_ledger::{
    Alarm, Alert, Answer, Filter, Intent, Policy, Recovery, Status, Stored, Timestamp, Trouble,
};

use crate::access::{Right, Seen};
use crate::config::{self, Person};
use crate::server::Shared;
use message::{Kind, Message};

/// What the scope of every alert begins with.
pub(crate) const SCOPE: &str = "twicesafe/alert/";
/// How often everybody is looked after.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Most intents of one status that are looked at for alerts at a time.
const LOOKED_AT_MAX: usize = 1000;
/// How long something may wait for a person before it is overdue.
const OVERDUE_AFTER_DEFAULT: Duration = Duration::from_secs(4 * 3600);
/// How long a link is good at most.
const LINK_EXPIRE_DEFAULT: Duration = Duration::from_secs(24 * 3600);
/// How long one try to tell somebody may take.
const SEND_TIME_MAX: Duration = Duration::from_secs(15);
/// Alerts on their way at a time.
const FLIGHTS_MAX: usize = 16;
/// Alerts remembered as given, so that the ledger is not asked each time.
const GIVEN_MAX: usize = 50_000;
/// Tries in a row before a pause; there is always another round as long as somebody should know.
const ATTEMPTS: u32 = 5;

/// Tells people.
pub(crate) struct Alerts {
    shared: Arc<Shared>,
    given: Mutex<HashSet<String>>,
    flights: Arc<Semaphore>,
}

impl Alerts {
    pub(crate) fn new(shared: Arc<Shared>) -> Arc<Self> {
        Arc::new(Self { shared, given: Mutex::default(), flights: Arc::new(Semaphore::new(FLIGHTS_MAX)) })
    }

    /// Goes on until the server stops.
    pub(crate) async fn run(self: Arc<Self>) {
        let mut alarms = self.shared.ledger.alarms();
        loop {
            tokio::select! {
                alarm = alarms.recv() => match alarm {
                    Ok(alarm) => self.raised(&alarm).await,
                    // What was missed is found by looking.
                    Err(tokio::sync::broadcast::error::RecvError::Lagged(_)) => {}
                    Err(tokio::sync::broadcast::error::RecvError::Closed) => return,
                },
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
            if let Err(error) = self.look().await {
                tracing::warn!(code = %error.code(), "nobody could be looked after: {error}");
            }
        }
    }

    async fn raised(self: &Arc<Self>, alarm: &Alarm) {
        let kind = match alarm.alert {
            // These wait, and are found by looking.
            Alert::Held | Alert::Review { .. } => return,
            Alert::ApprovalExpired => Kind::Expired,
            Alert::OutOfAttempts => Kind::OutOfAttempts,
            Alert::DoubleEffect => Kind::DoubleEffect,
        };
        let store = self.shared.ledger.store();
        let found = match store.find_id(alarm.intent).await {
            Ok(found) => store.now().await.map(|now| (found, now)),
            Err(error) => Err(error),
        };
        match found {
            Ok((Some(stored), now)) => self.tell_all(kind, &Arc::new(stored), now),
            Ok((None, _)) => {}
            Err(error) => tracing::warn!(code = %error.code(), "an alert was lost: {error}"),
        }
    }

    /// Looks at everything that waits for a person.
    async fn look(self: &Arc<Self>) -> Result<(), twicesafe_ledger::Error> {
        if self.shared.configuration().people.is_empty() {
            return Ok(());
        }
        let store = self.shared.ledger.store();
        let now = store.now().await?;
        for (status, kind) in [(Status::Held, Kind::Held), (Status::Review, Kind::Review)] {
            let mut after = None;
            let mut left = LOOKED_AT_MAX;
            loop {
                let filter = Filter { status: Some(status), ..Filter::default() };
                let page = store.list(&filter, after, left).await?;
                left = left.saturating_sub(page.intents.len());
                for stored in page.intents {
                    let overdue = self.is_overdue(&stored, now);
                    let stored = Arc::new(stored);
                    self.tell_all(kind, &stored, now);
                    if overdue {
                        self.tell_all(Kind::Overdue, &stored, now);
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

    fn tell_all(self: &Arc<Self>, kind: Kind, stored: &Arc<Stored>, now: Timestamp) {
        let Some(name) = &stored.record.name else { return };
        if name.scope.as_str().starts_with(SCOPE) {
            return;
        }
        let right = match kind {
            Kind::Held | Kind::Expired => Right::Approve,
            Kind::Overdue if stored.record.status == Status::Held => Right::Approve,
            _ => Right::Review,
        };
        let configuration = self.shared.configuration();
        for (person, about) in &configuration.people {
            if about.rights.contains(&right) && about.cares_for(name.scope.as_str()) {
                for (number, channel) in about.alert.0.iter().enumerate() {
                    self.tell(kind, stored, person, about, number, channel, now);
                }
            }
        }
    }

    /// Tells one person by one channel, once.
    fn tell(
        self: &Arc<Self>,
        kind: Kind,
        stored: &Arc<Stored>,
        person: &str,
        about: &Person,
        number: usize,
        channel: &config::Alert,
        now: Timestamp,
    ) {
        let record = &stored.record;
        let key = format!("{}:{}:{}:{}:{number}", stored.id, record.generation, record.fence, kind.word());
        let remembered = format!("{person}:{key}");
        if self.given().contains(&remembered) {
            return;
        }
        let scope: String = person.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        let intent = match Intent::new(&format!("{SCOPE}{scope}"), &key) {
            Ok(intent) => intent.policy(policy()).wait(Duration::ZERO),
            Err(error) => return tracing::error!("an alert has no name: {error}"),
        };
        // Beyond what is under way now, the next look comes back to it.
        let Ok(flight) = self.flights.clone().try_acquire_owned() else { return };
        let message =
            Message { kind, stored: stored.clone(), link: self.link(kind, stored, person, about, now) };
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
                Ok(_) => {
                    let mut given = alerts.given();
                    if given.len() >= GIVEN_MAX {
                        given.clear();
                    }
                    given.insert(remembered);
                }
                // It is tried again when it is due; the next look asks.
                Err(twicesafe_ledger::Error::Pending { .. }) => {}
                Err(error) => tracing::warn!(code = "TS0085", %error, "an alert was not sent"),
            }
            drop(flight);
        });
    }

    fn given(&self) -> std::sync::MutexGuard<'_, HashSet<String>> {
        self.given.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the person can decide, if that is what the alert is about.
    fn link(
        &self,
        kind: Kind,
        stored: &Stored,
        person: &str,
        about: &Person,
        now: Timestamp,
    ) -> Option<String> {
        let waits = matches!(kind, Kind::Held | Kind::Overdue) && stored.record.status == Status::Held;
        if !waits || !about.rights.contains(&Right::Approve) {
            return None;
        }
        let expires_at = stored.record.approval.as_ref()?.expires_at;
        let configuration = self.shared.configuration();
        let good_for = configuration.links.expire.map_or(LINK_EXPIRE_DEFAULT, |span| span.0);
        let seen = Seen::of(stored, person, expires_at.min(now + good_for));
        Some(format!(
            "{}{}{}",
            self.shared.link_base(),
            crate::pages::PREFIX,
            self.shared.links().make(&seen)
        ))
    }
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
        config::Alert::Slack(url) => {
            webhook::post(&shared.client, &revealed(url)?, &message.for_slack(), key).await
        }
        config::Alert::Webhook(url) => {
            webhook::post(&shared.client, &revealed(url)?, &message.for_programs(), key).await
        }
        config::Alert::Mail(address) => match &shared.configuration().smtp {
            Some(smtp) => mail::send(smtp, address, message, key).await,
            None => Err("there is no mail server in the configuration".to_owned()),
        },
    }
}
