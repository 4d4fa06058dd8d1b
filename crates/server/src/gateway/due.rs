//! What the server sends by itself: what a person said yes to, what is due again, what nobody knows of and can be looked up
//! (S31). The request is the one on record, the credentials are the destination's own.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::sync::broadcast::error::RecvError;
use twicesafe_ledger::{Error, Intent, IntentId, Ledger, Status, StoreError, Stored, Timestamp, Trouble};

use super::act::Errand;
use super::fingerprint;
use super::plan::Destination;
use super::route::Route;
use super::sending::Sending;
use crate::server::Shared;

/// How often is looked for what is due, whatever is heard.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Scopes read at a time, and looked at in one go; intents looked at in one go, of each.
const SCOPES: usize = 200;
const SCOPES_MAX: usize = 2_000;
const LOOKED_AT_MAX: usize = 500;
/// Attempts and lookups under way at a time.
const FLIGHTS_MAX: usize = 128;
/// Damaged intents that are remembered as told of.
const DAMAGED_MAX: usize = 10_000;

/// Sends what is due.
pub(crate) struct Due {
    shared: Arc<Shared>,
    under_way: Mutex<HashSet<IntentId>>,
    flights: Arc<Semaphore>,
    /// Where the next look goes on: what the server cannot carry on must not hide what it can.
    on_from: Mutex<OnFrom>,
    damaged: Mutex<HashSet<IntentId>>,
}

/// Where the next look goes on.
#[derive(Default)]
struct OnFrom {
    scope: String,
    /// Within scopes in which more is due than is looked at in one go.
    within: HashMap<String, (Timestamp, IntentId)>,
}

/// An intent that is being carried on.
struct UnderWay(Arc<Due>, IntentId);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.lock().remove(&self.1);
    }
}

impl Due {
    pub(crate) fn new(shared: Arc<Shared>) -> Arc<Self> {
        let flights = Arc::new(Semaphore::new(FLIGHTS_MAX));
        Arc::new(Self {
            shared,
            under_way: Mutex::default(),
            flights,
            on_from: Mutex::default(),
            damaged: Mutex::default(),
        })
    }

    /// Goes on until the server stops.
    pub(crate) async fn run(self: Arc<Self>) {
        let mut listening = None;
        let mut look_at = tokio::time::Instant::now() + LOOK_EVERY;
        loop {
            if self.shared.destinations().is_empty() {
                // Nobody tells what nobody listens to, which is cheaper for everybody.
                listening = None;
                tokio::time::sleep(LOOK_EVERY).await;
                continue;
            }
            let ready = listening.get_or_insert_with(|| self.shared.ledger.made_ready());
            let heard = async {
                loop {
                    match ready.recv().await {
                        // Somebody said yes: the one who asked may be waiting.
                        Ok(stored) if self.is_ours(&stored) => return stored.id,
                        Ok(_) | Err(RecvError::Lagged(_)) => {}
                        Err(RecvError::Closed) => std::future::pending().await,
                    }
                }
            };
            let heard = tokio::select! {
                heard = heard => Some(heard),
                () = tokio::time::sleep_until(look_at) => None,
            };
            // However much else is on the agenda, and however much is heard.
            let looked = match heard {
                Some(heard) => self.consider(heard).await,
                None => {
                    let looked = self.look().await;
                    look_at = tokio::time::Instant::now() + LOOK_EVERY;
                    looked
                }
            };
            if let Err(error) = looked {
                tracing::warn!(code = %error.code(), "what is due could not be looked for: {error}");
            }
        }
    }

    /// Scope by scope: those of inboxes, and whatever is nobody's business here, cost no more than their name.
    async fn look(self: &Arc<Self>) -> Result<(), Error> {
        let shared = &self.shared;
        shared.destinations().iter().for_each(|destination| destination.upstream.tidy());
        let store = shared.ledger.store();
        for _ in 0..SCOPES_MAX / SCOPES {
            let after = self.on_from().scope.clone();
            let (now, scopes) = (store.now().await?, store.scopes_with_due(&after, SCOPES).await?);
            for (scope, first) in &scopes {
                if *first > now || !self.is_served(scope) {
                    continue;
                }
                if self.flights.available_permits() == 0 {
                    // Others first, next time.
                    self.on_from().scope.clone_from(scope);
                    return Ok(());
                }
                let after = self.on_from().within.remove(scope);
                let lines = store.due(scope, after, LOOKED_AT_MAX).await?;
                for line in &lines {
                    match self.consider(line.at.1).await {
                        // The others go on.
                        Err(Error::Store(error @ StoreError::Damaged(_))) => {
                            self.tell_of_damage(line.at.1, &error)
                        }
                        considered => considered?,
                    }
                }
                // At the end it begins anew.
                if let Some(last) = lines.last().filter(|_| lines.len() == LOOKED_AT_MAX) {
                    let mut on_from = self.on_from();
                    if on_from.within.len() >= SCOPES_MAX {
                        on_from.within.clear();
                    }
                    on_from.within.insert(scope.clone(), last.at);
                }
            }
            let is_end = scopes.len() < SCOPES;
            let last = scopes.into_iter().next_back().filter(|_| !is_end);
            self.on_from().scope = last.map(|(scope, _)| scope).unwrap_or_default();
            if is_end {
                break;
            }
        }
        Ok(())
    }

    fn on_from(&self) -> std::sync::MutexGuard<'_, OnFrom> {
        self.on_from.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_ours(&self, stored: &Stored) -> bool {
        let name = stored.record.name.as_ref();
        name.is_some_and(|name| self.is_served(name.scope.as_str()))
    }

    /// Whether a scope is of a destination that serves the tenant it belongs to. For others nothing is sent or asked (S46).
    fn is_served(&self, scope: &str) -> bool {
        let (destinations, access) = (self.shared.destinations(), &self.shared.access);
        let found = destinations.of_scope(scope);
        found.is_some_and(|(destination, _)| destination.serves(&access.tenant_of(scope)))
    }

    /// Carries an intent on, if it is one of the gateway's and the server can.
    async fn consider(self: &Arc<Self>, id: IntentId) -> Result<(), Error> {
        if self.lock().contains(&id) {
            return Ok(());
        }
        let shared = &self.shared;
        let Some(stored) = shared.ledger.store().find_id(id).await?.map(Arc::new) else { return Ok(()) };
        let Some(name) = stored.record.name.clone() else { return Ok(()) };
        if !self.is_served(name.scope.as_str()) {
            return Ok(());
        }
        let destinations = shared.destinations();
        let Some((destination, _)) = destinations.of_scope(name.scope.as_str()) else { return Ok(()) };
        // What would be turned away is not claimed either: that would write for nothing, again and again.
        if shared.pauses.has_destination(&destination.name) || destination.gate.is_shut() {
            return Ok(());
        }
        if super::is_pin(name.scope.as_str()) {
            // A question that was under way when its server died: it is asked when somebody asks it, and not looked at again
            // until then.
            if let (Status::Retryable, Some(intent)) = (stored.record.status, Intent::on_record(&stored)) {
                let left = |_| async { Err(Trouble::not_sent("left to the next caller").passed_on()) };
                shared.ledger.carry_out(&intent, std::future::ready(()), left).await;
            }
            return Ok(());
        }
        if !fingerprint::is_of_a_call(&stored.record) {
            return Ok(());
        }
        // Who asked is on record, with which of their tokens is not: all that they asked for waits.
        if shared.pauses.has_token(|| shared.access.tokens_of(&stored.record.requested_by)) {
            return Ok(());
        }
        let request = match shared.ledger.store().request(id).await {
            // It can still be looked up, and others go on.
            Err(error @ StoreError::Damaged(_)) => {
                self.tell_of_damage(id, &error);
                None
            }
            request => request?,
        };
        let sending = request.as_ref().and_then(Sending::from_kept);
        let can_act = sending.is_some();
        let Some(errand) = errand(&shared.ledger, destination, &stored, sending) else { return Ok(()) };
        let Ok(place) = self.flights.clone().try_acquire_owned() else { return Ok(()) };
        let Some(mut intent) = Intent::on_record(&stored) else { return Ok(()) };
        if let Some(kept) = request {
            intent = intent.request(kept);
        }
        let asking = errand.clone();
        let intent = intent.lookup(move |attempt| asking.clone().look_up(attempt));
        self.lock().insert(id);
        // A server that stops meanwhile waits for it.
        let under_way = (UnderWay(self.clone(), id), shared.ledger.begin());
        let this = self.clone();
        tokio::spawn(async move {
            let _under_way = under_way;
            // Once: when it is due again it is found again.
            let ended = this.shared.ledger.carry_out(&intent, std::future::ready(()), move |attempt| {
                let errand = errand.clone();
                async move {
                    match can_act {
                        true => errand.act(attempt).await,
                        // It is known by now that it did not happen, and what to send is not. It stays due, so that its caller is
                        // missed in the end (S47).
                        false => Err(Trouble::not_sent("left to the next caller")),
                    }
                }
            });
            // One that was corrected since it was read is found again as it is now (S31).
            if let Err(error @ (Error::Store(_) | Error::NotRecorded(_))) = ended.await.result {
                tracing::warn!(code = %error.code(), intent = %id, "what is due could not be carried on: {error}");
            }
            drop(place);
        });
        Ok(())
    }

    /// Once of each: it is found again with every look.
    fn tell_of_damage(&self, id: IntentId, error: &StoreError) {
        let mut damaged = self.damaged.lock().unwrap_or_else(PoisonError::into_inner);
        if damaged.len() >= DAMAGED_MAX {
            damaged.clear();
        }
        if damaged.insert(id) {
            tracing::error!(code = %error.code(), intent = %id, "what is due cannot be sent: {error}");
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashSet<IntentId>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is needed to carry an intent on. Without its request it can only be looked up, and only where the server knows how to
/// identify itself.
fn errand(
    ledger: &Ledger,
    destination: &Arc<Destination>,
    stored: &Stored,
    sending: Option<Sending>,
) -> Option<Errand> {
    let action = stored.record.name.as_ref()?.scope.as_str().rsplit('/').next()?.to_owned();
    match sending {
        Some(sending) => {
            // Mechanics come from the configuration as it is now (S14): by the action's name, else by where it goes.
            let (by_path, parameters) = destination.route(&sending.method, &sending.path);
            let route = match destination.action(&action) {
                Some(named) if by_path.action.as_deref() != Some(&action) => named.clone(),
                _ => by_path.clone(),
            };
            let view = sending.view(&parameters);
            Some(carried(ledger, destination, route, sending, view))
        }
        None => {
            let is_looked_up = stored.record.status == Status::Pending && destination.sends_by_itself();
            let route = destination.action(&action).filter(|route| is_looked_up && route.lookup.is_some())?;
            let nothing = Sending {
                method: hyper::Method::GET,
                path: "/".to_owned(),
                query: None,
                whole_query: None,
                headers: Default::default(),
                body: Default::default(),
                callback: None,
            };
            Some(carried(ledger, destination, route.clone(), nothing, Value::Null))
        }
    }
}

/// Nobody waits for it.
fn carried(
    ledger: &Ledger,
    destination: &Arc<Destination>,
    route: Arc<Route>,
    sending: Sending,
    view: Value,
) -> Errand {
    Errand {
        ledger: ledger.clone(),
        destination: destination.clone(),
        route,
        sending: Arc::new(sending),
        view: Arc::new(view),
        caller: None,
    }
}
