//! The server as a whole: what its parts share, which request goes where, starting, reloading and stopping.

use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::{Fuse, FusedFuture};
use hyper::{Method, StatusCode};
use serde_json::json;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use twicesafe_ledger::{Code, Ledger, StoreError, Sweeps};

use crate::access::{Access, Links, Tokens, check_origin, check_without_links};
use crate::alerts::Alerts;
use crate::api::{self, Listeners, ROUTES};
use crate::config::{Configuration, Listen, NO_SECRET, TlsFiles};
use crate::error::ServerError;
use crate::gateway::pins::Flights;
use crate::gateway::{self, Counts, Destinations, Due, Pauses, Recording};
use crate::http::room::Room;
use crate::http::{
    Connections, Door, Drain, Hands, Listener, Means, Problem, Request, Response, Tls, connections_max,
    raise_files_max,
};
use crate::identities::Identities;
use crate::inbox::{self, Delivery, Inboxes};
use crate::pages;
use crate::watch::{Metrics, Span, Tracer};

/// How often time alone is looked after.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// How long requests under way may take when the server stops.
const DRAIN_MAX: Duration = Duration::from_secs(30);
/// What signs links, where the configuration names nothing.
const LINK_PURPOSE: &str = "twicesafe 2026-11 approval links";
/// How long a look at the ledger may take before the server says that it is not ready.
const READY_WITHIN: Duration = Duration::from_secs(2);
/// How long the answer holds.
const READY_FOR: Duration = Duration::from_secs(1);
/// What is kept in the ledger to see that it can be written.
const READY_NOTE: &str = "ready";

/// What all parts of the server share.
pub(crate) struct Shared {
    pub(crate) ledger: Ledger,
    pub(crate) access: Access,
    pub(crate) metrics: Metrics,
    pub(crate) listeners: Listeners,
    pub(crate) pauses: Pauses,
    pub(crate) caps: Counts,
    pub(crate) recording: Recording,
    pub(crate) flights: Arc<Flights>,
    live: RwLock<Arc<Live>>,
    public_address: SocketAddr,
    tls: Option<Tls>,
    readiness: tokio::sync::Mutex<Option<(Instant, Result<(), Problem>)>>,
    openapi: bytes::Bytes,
}

/// What a reload changes.
struct Live {
    configuration: Arc<Configuration>,
    destinations: Arc<Destinations>,
    inboxes: Arc<Inboxes>,
    links: Links,
    tracer: Option<Tracer>,
}

impl Live {
    fn new(configuration: Configuration, ledger: &Ledger) -> Result<Self, ServerError> {
        let key = match &configuration.links.secret {
            Some(secret) => blake3::derive_key(LINK_PURPOSE, secret.reveal()?.as_bytes()),
            None => ledger.store().secret_key(LINK_PURPOSE),
        };
        let tracer = match &configuration.traces {
            Some(traces) => Some(Tracer::start(traces).map_err(ServerError::Configuration)?),
            None => None,
        };
        let first = |wrong: Vec<gateway::plan::Wrong>| {
            let first = wrong.first().map(|wrong| format!("{}: {}", wrong.about, wrong.words));
            ServerError::Configuration(first.unwrap_or_default())
        };
        let destinations = Destinations::read(&configuration).map_err(first)?;
        let inboxes = Inboxes::read(&configuration).map_err(first)?;
        Ok(Self {
            configuration: Arc::new(configuration),
            destinations: Arc::new(destinations),
            inboxes: Arc::new(inboxes),
            links: Links::signed_with(key),
            tracer,
        })
    }
}

impl Shared {
    fn live(&self) -> Arc<Live> {
        self.live.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn configuration(&self) -> Arc<Configuration> {
        self.live().configuration.clone()
    }

    pub(crate) fn destinations(&self) -> Arc<Destinations> {
        self.live().destinations.clone()
    }

    pub(crate) fn inboxes(&self) -> Arc<Inboxes> {
        self.live().inboxes.clone()
    }

    pub(crate) fn links(&self) -> Links {
        self.live().links.clone()
    }

    fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }

    /// What people's browsers find the public listener at.
    pub(crate) fn link_base(&self) -> String {
        let scheme = self.scheme();
        match &self.configuration().links.base {
            Some(base) => base.trim_end_matches('/').to_owned(),
            None => format!("{scheme}://{}", self.public_address),
        }
    }
}

/// A server that listens.
pub struct Server {
    shared: Arc<Shared>,
    listeners: Vec<(Listener, Faces)>,
    hands: Arc<Hands>,
    /// Most connections of each listener.
    connections_max: usize,
    drain: (watch::Sender<bool>, Drain),
    orphaned: Vec<String>,
    _sweeps: Sweeps,
}

/// What a listener shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Faces {
    public: bool,
    admin: bool,
}

impl Server {
    /// Opens its sockets. Nothing is answered before [`Server::serve`].
    pub async fn start(ledger: Ledger, configuration: Configuration) -> Result<Self, ServerError> {
        refuse_if_wrong(&configuration).await?;
        let tokens = Tokens::read(&ledger).await?;
        let tls = tls_of(&configuration)?;
        for words in ledger.store().warnings() {
            tracing::warn!("{words}");
        }
        if !ledger.store().has_secret() {
            tracing::warn!(code = Code::LedgerSecret.as_str(), "{NO_SECRET}");
        }
        let listen = configuration.listen;
        let mut listeners = Vec::new();
        for (address, faces) in faces(listen) {
            if !address.ip().is_loopback() && !tokens.are_needed() {
                return Err(ServerError::TokensNeeded(address));
            }
            let listener = Listener::bind(address, tls.clone())
                .await
                .map_err(|error| ServerError::CannotListen { address: address.to_string(), error })?;
            listeners.push((listener, faces));
        }
        let public = &listeners[0].0;
        let public_address = public
            .address()
            .map_err(|error| ServerError::CannotListen { address: listen.public.to_string(), error })?;
        let live = Live::new(configuration, &ledger)?;
        let shared = Arc::new(Shared {
            access: Access::new(tokens),
            metrics: Metrics::new(),
            listeners: Listeners::default(),
            pauses: Pauses::default(),
            caps: Counts::default(),
            recording: Recording::default(),
            flights: Arc::default(),
            live: RwLock::new(Arc::new(live)),
            public_address,
            tls,
            readiness: tokio::sync::Mutex::new(None),
            openapi: serde_json::to_vec_pretty(&api::document()).expect("a document is JSON").into(),
            ledger: ledger.clone(),
        });
        shared.pauses.refresh(&ledger).await?;
        let before = Identities::kept(&ledger).await?;
        let after = Identities::of(&shared.destinations(), &shared.inboxes());
        let orphaned = match &before {
            Some(before) => before.orphaned_by(&after, &ledger, &shared.access.tenants()).await?,
            None => Vec::new(),
        };
        after.keep(&ledger, before).await;
        let sweeps = ledger.keep_sweeping(SWEEP_EVERY);
        let hands =
            Arc::new(Hands::start().map_err(|error| {
                ServerError::Configuration(format!("no threads could be started: {error}"))
            })?);
        let connections_max = connections_max(raise_files_max(), listeners.len());
        Ok(Self { shared, listeners, hands, connections_max, drain: Drain::new(), orphaned, _sweeps: sweeps })
    }

    /// What there is on record that this configuration does not know any more, though an earlier server did: in words, for who starts
    /// it. A server that runs refuses such a configuration; one that starts with it may be meant to.
    pub fn orphaned(&self) -> &[String] {
        &self.orphaned
    }

    /// Where it can be reached, and what is there.
    pub fn addresses(&self) -> Vec<(String, &'static str)> {
        let scheme = self.shared.scheme();
        let described = |(listener, faces): &(Listener, Faces)| {
            let address = listener.address().ok()?;
            let what = match (faces.public, faces.admin) {
                (true, true) => "API, destinations, inboxes, approval links, metrics",
                (true, false) => "destinations, inboxes, approval links",
                _ => "API, metrics",
            };
            Some((format!("{scheme}://{address}"), what))
        };
        self.listeners.iter().filter_map(described).collect()
    }

    /// What changes its configuration and stops it, from elsewhere.
    pub fn control(&self) -> Control {
        Control { shared: self.shared.clone(), drain: self.drain.0.clone() }
    }

    #[cfg(test)]
    pub(crate) fn shared(&self) -> Arc<Shared> {
        self.shared.clone()
    }

    /// Answers until it is stopped and what was under way is done, or has taken too long.
    pub async fn serve(self) {
        let Self { shared, listeners, hands, connections_max, drain: (_open, drain), orphaned: _, _sweeps } =
            self;
        let alerts = tokio::spawn(Alerts::new(shared.clone()).run());
        let due = tokio::spawn(Due::new(shared.clone()).run());
        let delivery = tokio::spawn(Delivery::new(shared.clone()).run());
        let promises = tokio::spawn(gateway::keep_promises(shared.clone()));
        let pauses = tokio::spawn(gateway::keep_pauses(shared.clone()));
        let mut serving = tokio::task::JoinSet::new();
        let (room, connections) = (Room::default(), Arc::new(Connections::default()));
        for (number, (listener, faces)) in listeners.into_iter().enumerate() {
            let door = Arc::new(Reception { shared: shared.clone(), faces });
            let (room, hands, connections) = (room.clone(), hands.clone(), connections.clone());
            let means = Means { room, hands, connections, connections_max, number };
            serving.spawn(listener.serve(door, drain.clone(), means));
        }
        drain.clone().begun().await;
        // Nothing new is begun; what is under way settles.
        due.abort();
        delivery.abort();
        promises.abort();
        let drained = async {
            while serving.join_next().await.is_some() {}
            // What callers have left behind is settled, or it would be in doubt.
            shared.ledger.at_rest().await;
        };
        if tokio::time::timeout(DRAIN_MAX, drained).await.is_err() {
            tracing::warn!("some requests took too long and were cut off");
        }
        hands.end().await;
        alerts.abort();
        pauses.abort();
        if let Err(error) = shared.ledger.store().flush().await {
            tracing::warn!(code = %error.code(), "some counts were lost: {error}");
        }
    }
}

fn tls_of(configuration: &Configuration) -> Result<Option<Tls>, ServerError> {
    let read = |files: &TlsFiles| Tls::read(&files.certificate, &files.key);
    configuration.tls.as_ref().map(read).transpose().map_err(ServerError::Configuration)
}

/// What the checklist calls an error is one.
async fn refuse_if_wrong(configuration: &Configuration) -> Result<(), ServerError> {
    let advice = crate::config::check(configuration, None).await;
    match advice.into_iter().find(|advice| advice.is_error) {
        Some(wrong) => Err(ServerError::Configuration(format!("{}: {}", wrong.about, wrong.words))),
        None => Ok(()),
    }
}

fn faces(listen: Listen) -> Vec<(SocketAddr, Faces)> {
    match listen.is_one() {
        true => vec![(listen.public, Faces { public: true, admin: true })],
        false => vec![
            (listen.public, Faces { public: true, admin: false }),
            (listen.admin, Faces { public: false, admin: true }),
        ],
    }
}

/// Changes the configuration of a server that runs, and stops it.
#[derive(Clone)]
pub struct Control {
    shared: Arc<Shared>,
    drain: watch::Sender<bool>,
}

impl Control {
    /// Takes another configuration. What cannot change while the server runs is refused, and so is a ledger in which none of
    /// the keys would be known; then the old configuration stays, as a whole.
    pub async fn reload(&self, configuration: Configuration) -> Result<(), ServerError> {
        let before = self.shared.configuration();
        if configuration.ledger_address()? != before.ledger_address()? {
            return Err(ServerError::Reload(
                "`ledger:` names another ledger: every key in the present one would be unknown there"
                    .to_owned(),
            ));
        }
        let stays = (&before.listen, &before.tls, before.logs);
        if (&configuration.listen, &configuration.tls, configuration.logs) != stays {
            return Err(ServerError::Reload(
                "`listen:`, `tls:` and `logs:` cannot change while the server runs".to_owned(),
            ));
        }
        refuse_if_wrong(&configuration).await?;
        // The files are the same, but what is in them may have been renewed.
        let tls = tls_of(&configuration)?;
        let live = Live::new(configuration, &self.shared.ledger)?;
        let identities = |live: &Live| Identities::of(&live.destinations, &live.inboxes);
        let (ledger, tenants) = (&self.shared.ledger, self.shared.access.tenants());
        let (before, after) = (identities(&self.shared.live()), identities(&live));
        if let Some(words) = before.orphaned_by(&after, ledger, &tenants).await?.into_iter().next() {
            return Err(ServerError::Reload(words));
        }
        let kept = Identities::kept(ledger).await?;
        after.keep(ledger, kept).await;
        if let (Some(shown), Some(renewed)) = (&self.shared.tls, &tls) {
            shown.show_that_of(renewed);
        }
        *self.shared.live.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(live);
        Ok(())
    }

    /// Stops accepting; what is under way is finished.
    pub fn stop(&self) {
        let _ = self.drain.send(true);
    }
}

/// Where requests of one listener go.
struct Reception {
    shared: Arc<Shared>,
    faces: Faces,
}

impl Door for Reception {
    async fn answer(&self, request: &mut Request) -> Response {
        let started = Instant::now();
        let place = match self.faces.admin {
            true => {
                ROUTES.iter().position(|route| route.path == request.path() && route.method == request.method)
            }
            false => None,
        };
        let tracer = self.shared.live().tracer.clone();
        let span = tracer.as_ref().and_then(|_| Span::start(request.header("traceparent")));
        let method = request.method.clone();
        let response = match self.find(request).await {
            Ok(response) => response,
            Err(problem) => self.refuse(problem),
        };
        let status = response.status.as_u16();
        self.shared.metrics.request(place, status, started.elapsed());
        if let (Some(tracer), Some(span)) = (tracer, span) {
            let route = place.map_or("other", |place| ROUTES[place].path);
            tracer.end(&span, &format!("{method} {route}"), method.as_str(), route, status);
        }
        response
    }
}

impl Reception {
    fn refuse(&self, problem: Problem) -> Response {
        let (status, code) = (problem.status, problem.code);
        if status.is_server_error() {
            tracing::warn!(%code, status = status.as_u16(), "{}", problem.message());
        } else {
            tracing::debug!(%code, status = status.as_u16(), "{}", problem.message());
        }
        problem.into_response()
    }

    /// Who sends it and what for is looked at before its body is read.
    async fn find(&self, request: &mut Request) -> Result<Response, Problem> {
        let shared = &self.shared;
        let path = request.path();
        if self.faces.admin && path.starts_with("/v1/") {
            self.check_origin(request)?;
            return api::answer(shared, request).await;
        }
        if self.faces.public && path.starts_with(gateway::PREFIX) {
            check_without_links(request)?;
            return Box::pin(gateway::answer(shared, request)).await;
        }
        if self.faces.public && path.starts_with(inbox::PREFIX) {
            return Box::pin(inbox::answer(shared, request)).await;
        }
        if self.faces.public && path.starts_with(pages::PREFIX) {
            self.check_origin(request)?;
            return Box::pin(pages::approval(shared, request)).await;
        }
        let is_known = matches!(path, "/" | "/healthz" | "/readyz")
            || self.faces.admin && matches!(path, "/metrics" | "/openapi.json");
        if !is_known {
            return Err(api::nothing_here());
        }
        if !matches!(request.method, Method::GET | Method::HEAD) {
            return Err(api::wrong_method("GET, HEAD"));
        }
        match path {
            "/" => Ok(pages::front(self.faces.admin)),
            "/healthz" => Ok(Response::json(StatusCode::OK, &json!({ "status": "alive" }))),
            "/readyz" => Box::pin(self.ready(request)).await,
            "/openapi.json" => {
                Ok(Response::whole(StatusCode::OK, "application/json", shared.openapi.clone()))
            }
            _ => Box::pin(self.metrics(request)).await,
        }
    }

    fn check_origin(&self, request: &Request) -> Result<(), Problem> {
        check_origin(request, self.shared.configuration().links.base.as_deref())
    }

    /// Ready means: the ledger can be written, and the server is not about to stop.
    async fn ready(&self, request: &Request) -> Result<Response, Problem> {
        if request.drain.has_begun() {
            return Err(Problem::new(Code::LedgerAway, "the server is stopping", "Ask another one.")
                .retry_after(READY_WITHIN));
        }
        // One look for all who ask within a second: anybody may ask.
        let mut looked = self.shared.readiness.lock().await;
        if looked.as_ref().is_none_or(|(at, _)| at.elapsed() > READY_FOR) {
            let away = || {
                let hint = "Ask again, or ask another server.";
                Problem::new(Code::LedgerAway, "the ledger cannot be written", hint)
            };
            let is_ready = match tokio::time::timeout(READY_WITHIN, self.written()).await {
                Ok(Ok(())) => Ok(()),
                Ok(Err(error)) => {
                    tracing::warn!(code = %error.code(), "not ready: {error}");
                    Err(if error.code() == Code::DiskFull { error.into() } else { away() })
                }
                Err(_) => Err(away()),
            };
            *looked = Some((Instant::now(), is_ready.map_err(|problem| problem.retry_after(READY_WITHIN))));
        }
        match looked.as_ref() {
            Some((_, Err(problem))) => Err(problem.clone()),
            _ => Ok(Response::json(StatusCode::OK, &json!({ "status": "ready" }))),
        }
    }

    /// Looks whether the ledger can be written and has room for more: what is written here takes none.
    async fn written(&self) -> Result<(), StoreError> {
        let store = self.shared.ledger.store();
        let note = std::process::id().to_string();
        store.put_note(READY_NOTE, "server", Some(&note)).await?;
        store.check_room().await
    }

    async fn metrics(&self, request: &Request) -> Result<Response, Problem> {
        self.check_origin(request)?;
        self.shared.access.principal_as_last_known(request).await?.demand_operator()?;
        let store = self.shared.ledger.store();
        let standing = async {
            let now = store.now().await.ok()?;
            store.statistics(now, now).await.ok()
        };
        // What the server itself counted is told also while the ledger is away, and in time.
        let standing = tokio::time::timeout(READY_WITHIN, standing).await.ok().flatten();
        let text = self.shared.metrics.text(standing.as_ref());
        Ok(Response::whole(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", text))
    }
}

/// The signals a server obeys. Caught before anybody is told where it listens: until then each of them would end the process.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl Signals {
    /// Catches them from now on.
    pub fn catch() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }
}

/// Serves until SIGTERM or SIGINT; takes the configuration anew on SIGHUP, and tells how that went.
pub async fn run(
    server: Server,
    signals: Signals,
    reread: impl Fn() -> Result<Configuration, ServerError>,
    taken: impl Fn(Result<(), ServerError>),
) -> std::io::Result<()> {
    let control = server.control();
    let Signals { mut terminate, mut interrupt, mut hang_up } = signals;
    let mut serving = tokio::spawn(server.serve());
    // Beside the others: a ledger that is silent must not keep them from being heard. One at a time.
    let mut reloading = std::pin::pin!(Fuse::terminated());
    loop {
        tokio::select! {
            _ = &mut serving => return Ok(()),
            _ = terminate.recv() => control.stop(),
            _ = interrupt.recv() => control.stop(),
            _ = hang_up.recv(), if reloading.is_terminated() => match reread() {
                Ok(configuration) => reloading.set(control.reload(configuration).fuse()),
                Err(error) => taken(Err(error)),
            },
            result = reloading.as_mut() => taken(result),
        }
    }
}
