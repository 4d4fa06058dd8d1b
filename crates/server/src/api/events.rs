//! What becomes of intents, as server-sent events: by commands of this server, and by what it finds when it sweeps. A hint to
//! look, not a record: the journal is the record.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderMap, HeaderValue};
use tokio::sync::broadcast::error::RecvError;
use twicesafe_ledger::{Code, Stored};

use super::Call;
use super::parse::Parameters;
use crate::access::Principal;
use crate::http::{Body, Problem, Response};
use crate::server::Shared;
use crate::wire::IntentView;

/// Most who listen at a time.
const LISTENERS_MAX: usize = 100;
/// Most of them with one token.
const LISTENERS_OF_TOKEN_MAX: usize = 25;
/// How often a silent stream says that it is alive.
const ALIVE_EVERY: Duration = Duration::from_secs(15);
/// How often it is looked whether who listens still may.
const RENEWED_EVERY: Duration = Duration::from_secs(2);

/// How many listen, each token among them.
#[derive(Default)]
pub(crate) struct Listeners(Arc<Mutex<HashMap<String, usize>>>);

/// One who listens, until it is dropped.
struct Place {
    listeners: Arc<Mutex<HashMap<String, usize>>>,
    token: String,
}

impl Listeners {
    /// Gives a place to a token, or to somebody without one. One token does not get them all.
    fn place(&self, token: Option<&str>) -> Result<Place, &'static str> {
        let mut listeners = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if listeners.values().sum::<usize>() >= LISTENERS_MAX {
            return Err("too many listen already");
        }
        let own = listeners.entry(token.unwrap_or_default().to_owned()).or_default();
        if token.is_some() && *own >= LISTENERS_OF_TOKEN_MAX {
            return Err("too many listen with this token already");
        }
        *own += 1;
        Ok(Place { listeners: self.0.clone(), token: token.unwrap_or_default().to_owned() })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = listeners.get_mut(&self.token) {
            *own -= 1;
            if *own == 0 {
                listeners.remove(&self.token);
            }
        }
    }
}

pub(super) fn listen(shared: &Arc<Shared>, call: &Call<'_>) -> Result<Response, Problem> {
    let asked = Parameters::of(call.request, &["scope"])?;
    let wanted = asked.optional("scope").map(|scope| scope.trim_end_matches('/').to_owned());
    let place = shared.listeners.place(call.principal.token()).map_err(|why| {
        let hint = "Close other streams, or poll GET /v1/intents.";
        Problem::new(Code::Overloaded, why, hint).retry_after(ALIVE_EVERY)
    })?;
    let (events, body) = Body::events(place);
    let (shared, mut principal) = (shared.clone(), call.principal.clone());
    let (mut changes, mut drain) = (shared.ledger.changes(), call.request.drain.clone());
    let is_wanted = move |principal: &Principal, stored: &Stored| {
        let scope = stored.record.name.as_ref().map_or("", |name| name.scope.as_str());
        let within = |wanted: &String| {
            scope == wanted || scope.strip_prefix(wanted.as_str()).is_some_and(|rest| rest.starts_with('/'))
        };
        (principal.reaches_everything() || principal.reaches(scope)) && wanted.as_ref().is_none_or(within)
    };
    tokio::spawn(async move {
        let mut alive = tokio::time::interval(ALIVE_EVERY);
        let mut renewal = tokio::time::interval(RENEWED_EVERY);
        loop {
            let event = tokio::select! {
                change = changes.recv() => match change {
                    Ok(stored) if is_wanted(&principal, &stored) => event("intent", &stored),
                    Ok(_) => continue,
                    Err(RecvError::Lagged(missed)) => {
                        format!("event: missed\ndata: {{\"events\":{missed}}}\n\n")
                    }
                    Err(RecvError::Closed) => return,
                },
                // A token that was revoked hears no more, nor does one hear of a tenant that is new.
                _ = renewal.tick() => match shared.access.renewed(&principal).await {
                    Ok(Some(renewed)) => {
                        principal = renewed;
                        continue;
                    }
                    _ => return,
                },
                _ = alive.tick() => ": alive\n\n".to_owned(),
                () = drain.begun() => return,
                () = events.closed() => return,
            };
            // One that does not read is cut off rather than waited for.
            if events.try_send(Bytes::from(event)).is_err() {
                return;
            }
        }
    });
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(Response { status: StatusCode::OK, headers, body })
}

fn event(kind: &str, stored: &Stored) -> String {
    let data = serde_json::to_string(&IntentView::of(stored)).unwrap_or_default();
    format!("event: {kind}\nid: {}-{}\ndata: {data}\n\n", stored.id.number(), stored.version)
}
