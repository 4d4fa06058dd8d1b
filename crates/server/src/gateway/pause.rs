//! Destinations and tokens that are paused: nothing new is taken, nothing waiting is sent, until somebody resumes them. Kept in
//! the ledger, so that every server of it agrees within seconds.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use twicesafe_ledger::{Code, Ledger, StoreError};

use crate::access;
use crate::error::ServerError;
use crate::http::Problem;
use crate::server::Shared;

/// The kind of notes they are kept as.
const KIND: &str = "pause";
/// How soon every server knows.
const REFRESH_EVERY: Duration = Duration::from_secs(1);
/// When a caller should come back.
const RETRY_AFTER: Duration = Duration::from_secs(30);

/// What is paused.
#[derive(Default)]
pub(crate) struct Pauses(RwLock<BTreeMap<String, String>>);

impl Pauses {
    /// Reads them anew.
    pub(crate) async fn refresh(&self, ledger: &Ledger) -> Result<(), StoreError> {
        let notes = ledger.store().notes(KIND).await?;
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = notes.into_iter().collect();
        Ok(())
    }

    pub(crate) fn has_destination(&self, name: &str) -> bool {
        let paused = self.0.read().unwrap_or_else(PoisonError::into_inner);
        !paused.is_empty() && paused.contains_key(&destination(name))
    }

    pub(crate) fn has_inbox(&self, name: &str) -> bool {
        let paused = self.0.read().unwrap_or_else(PoisonError::into_inner);
        !paused.is_empty() && paused.contains_key(&format!("inbox:{name}"))
    }

    /// Whether one of these tokens is paused.
    pub(crate) fn has_token(&self, ids: impl FnOnce() -> Vec<String>) -> bool {
        let paused = self.0.read().unwrap_or_else(PoisonError::into_inner);
        paused.keys().any(|name| name.starts_with("token:"))
            && ids().iter().any(|id| paused.contains_key(&format!("token:{id}")))
    }

    /// Why something is paused, if it is.
    pub(crate) fn why(&self, what: Pausable, name: &str) -> Option<String> {
        let paused = self.0.read().unwrap_or_else(PoisonError::into_inner);
        paused.get(&format!("{}:{name}", what.as_str())).cloned()
    }

    /// Refuses what is paused: nothing is stored, nothing is sent.
    pub(crate) fn check(&self, name: &str, token: Option<&str>) -> Result<(), Problem> {
        let paused = self.0.read().unwrap_or_else(PoisonError::into_inner);
        if paused.is_empty() {
            return Ok(());
        }
        let found = paused
            .get(&destination(name))
            .map(|why| ("the destination", why))
            .or_else(|| Some(("the token", paused.get(&format!("token:{}", token?))?)));
        match found {
            None => Ok(()),
            Some((what, why)) => {
                let hint = "Nothing was sent. It goes on when somebody resumes it: twicesafe resume.";
                Err(Problem::new(Code::Paused, format!("{what} is paused: {why}"), hint)
                    .retry_after(RETRY_AFTER))
            }
        }
    }
}

/// Reads what is paused again and again, until the server stops.
pub(crate) async fn keep_pauses(shared: Arc<Shared>) {
    loop {
        tokio::time::sleep(REFRESH_EVERY).await;
        if shared.destinations().is_empty() && shared.inboxes().is_empty() {
            continue;
        }
        if let Err(error) = shared.pauses.refresh(&shared.ledger).await {
            tracing::warn!(code = %error.code(), "what is paused could not be read: {error}");
        }
    }
}

/// What can be paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pausable {
    /// A destination, by its name.
    Destination,
    /// A token, by its name or its id; a name may be that of several.
    Token,
    /// An inbox, by its name. It goes on taking events, and hands none over.
    Inbox,
}

impl Pausable {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Destination => "destination",
            Self::Token => "token",
            Self::Inbox => "inbox",
        }
    }
}

/// Pauses something: servers take nothing for it within two seconds, and send nothing that waits.
pub async fn pause(ledger: &Ledger, what: Pausable, name: &str, reason: &str) -> Result<(), ServerError> {
    put(ledger, what, name, Some(reason)).await
}

/// Lets it go on.
pub async fn resume(ledger: &Ledger, what: Pausable, name: &str) -> Result<(), ServerError> {
    put(ledger, what, name, None).await
}

async fn put(ledger: &Ledger, what: Pausable, name: &str, reason: Option<&str>) -> Result<(), ServerError> {
    let names = match what {
        Pausable::Token => access::named(ledger, name).await?.into_iter().map(|token| token.id).collect(),
        Pausable::Destination | Pausable::Inbox => vec![name.to_owned()],
    };
    for name in names {
        ledger.store().put_note(KIND, &format!("{}:{name}", what.as_str()), reason).await?;
    }
    Ok(())
}

/// What is paused, and why.
pub async fn paused(ledger: &Ledger) -> Result<Vec<(String, String)>, StoreError> {
    ledger.store().notes(KIND).await
}

fn destination(name: &str) -> String {
    format!("destination:{name}")
}
