//! Answers that come later: posted once to where the caller said, because a person was asked first (S27).
//!
//! The address is noted in the ledger before the caller is told that it was accepted; whoever finds the note once the intent is
//! settled posts the answer, as an intent of its own.

use std::sync::Arc;
use std::time::Duration;

use hyper::Uri;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use serde_json::{Value, json};
use twicesafe_ledger::{Answer, Code, Ended, Error, Intent, IntentId, Policy, Recovery, Stored, Trouble};

use super::Arrival;
use super::answer::Whole;
use super::pattern::canonical_path;
use super::sending::{CALLBACK, Sending};
use crate::client;
use crate::config::destinations::OnHold;
use crate::http::{Problem, Request};
use crate::server::Shared;

/// The scope of every callback, and the kind of notes they are promised in.
const SCOPE: &str = "twicesafe/callback";
const KIND: &str = "callback";
/// How long a try may take.
const POST_TIME_MAX: Duration = Duration::from_secs(15);
/// How often is looked for answers that can be posted, and how many are posted at a time.
const LOOK_EVERY: Duration = Duration::from_millis(500);
const POSTS_MAX: usize = 8;
/// For how long it is tried to post an answer.
const TRIED_FOR: Duration = Duration::from_secs(24 * 3600);
/// Most who wait for the answer of one intent.
const PROMISES_MAX: usize = 100;
/// Longest address.
const ADDRESS_BYTES_MAX: usize = 2000;

/// Where the caller wants the answer, if its route has it posted.
pub(super) fn wanted(arrival: &Arrival<'_>, request: &Request) -> Result<Option<String>, Problem> {
    let Some(address) = request.header(CALLBACK).filter(|_| arrival.route.on_hold == Some(OnHold::Callback))
    else {
        return Ok(None);
    };
    let configuration = arrival.shared.configuration();
    match is_allowed(address, &configuration.callbacks) {
        true => Ok(Some(address.to_owned())),
        false => Err(Problem::new(
            Code::CallbackRefused,
            "answers may not be posted to that address",
            "Name what it begins with under `callbacks:` in the configuration.",
        )),
    }
}

fn is_allowed(address: &str, callbacks: &[String]) -> bool {
    // Steps like `..`, however they are encoded, would lead out of what is allowed.
    let stays = |uri: Uri| {
        uri.authority().is_some_and(|name| !name.as_str().contains('@'))
            && canonical_path(uri.path()).is_some()
    };
    address.len() <= ADDRESS_BYTES_MAX
        && address.parse().is_ok_and(stays)
        && callbacks.iter().any(|allowed| is_below(address, allowed))
}

fn is_below(address: &str, allowed: &str) -> bool {
    address
        .strip_prefix(allowed)
        .is_some_and(|rest| allowed.ends_with('/') || rest.is_empty() || rest.starts_with(['/', '?']))
}

/// Notes where an answer is to be posted, before anybody relies on it.
pub(super) async fn promise(arrival: &Arrival<'_>, ended: &Ended, sending: &Sending) -> Result<(), Problem> {
    let (Some(address), Some(stored)) = (&sending.callback, &ended.stored) else { return Ok(()) };
    let store = arrival.shared.ledger.store();
    let of_intent = format!("{}:{}:", stored.id.number(), stored.record.generation);
    // Each who was told to wait is told: two runs of an automation have two addresses.
    let name = format!("{of_intent}{}", &blake3::hash(address.as_bytes()).to_hex()[..16]);
    let promised = store.notes(KIND).await?;
    let of_intent = promised.iter().filter(|(other, _)| other.starts_with(&of_intent) && *other != name);
    if of_intent.count() >= PROMISES_MAX {
        let hint = "Ask again with the same key, and without `Twicesafe-Callback`.";
        return Err(Problem::new(Code::CallbackRefused, "too many wait for this answer", hint));
    }
    Ok(store.put_note(KIND, &name, Some(address)).await?)
}

/// Posts what can be posted, until the server stops.
pub(crate) async fn keep_promises(shared: Arc<Shared>) {
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        if shared.destinations().is_empty() {
            continue;
        }
        if let Err(error) = look(&shared).await {
            tracing::warn!(code = %error.code(), "answers that come later could not be looked after: {error}");
        }
    }
}

async fn look(shared: &Arc<Shared>) -> Result<(), Error> {
    let promises = shared.ledger.store().notes(KIND).await?;
    let keeping = promises.into_iter().map(|(name, address)| kept(shared, name, address));
    futures_util::StreamExt::for_each(
        futures_util::StreamExt::buffer_unordered(futures_util::stream::iter(keeping), POSTS_MAX),
        |kept: Result<(), Error>| async move {
            if let Err(error) = kept {
                tracing::warn!(code = %error.code(), "an answer that comes later could not be posted: {error}");
            }
        },
    )
    .await;
    Ok(())
}

async fn kept(shared: &Arc<Shared>, name: String, address: String) -> Result<(), Error> {
    let store = shared.ledger.store();
    let mut parts = name.split(':');
    let parsed = parts.next().zip(parts.next());
    let parsed = parsed.and_then(|(id, generation)| Some((id.parse().ok()?, generation.parse().ok()?)));
    let Some((id, generation)) = parsed else { return Ok(()) };
    let Some(stored) = store.find_id(IntentId::new(id)).await? else {
        return Ok(store.put_note(KIND, &name, None).await?);
    };
    let record = &stored.record;
    if record.generation <= generation && !record.status.is_settled() {
        return Ok(());
    }
    let since = record.settled_at.unwrap_or(record.created_at);
    let is_too_late = store.now().await? >= since + TRIED_FOR;
    if is_too_late {
        tracing::warn!(intent = %stored.id, "the place for an answer did not take it in all this time, and is given up");
    }
    if is_too_late || posted(shared, &name, &address, &stored).await {
        store.put_note(KIND, &name, None).await?;
    }
    Ok(())
}

/// Posts one, as an intent; says whether nothing is left to do.
async fn posted(shared: &Arc<Shared>, name: &str, address: &str, stored: &Stored) -> bool {
    // Nobody is asked about it: it is tried again until it is too late.
    let policy = Policy { attempts_max: u32::MAX, ..Policy::new(Recovery::Repeat) };
    let (Ok(intent), Ok(uri)) = (Intent::new(SCOPE, name), address.parse::<Uri>()) else { return true };
    let intent = intent.policy(policy).wait(Duration::ZERO);
    let body = document(stored).to_string();
    let post = move |_| async move {
        let headers = [(CONTENT_TYPE, HeaderValue::from_static("application/json"))];
        match tokio::time::timeout(POST_TIME_MAX, client::post(uri, headers, body)).await {
            Ok(Ok(status)) if status.is_success() => Ok(Answer::of(status.as_str().to_owned())),
            // Others may change: an automation that does not wait yet says 404 or 409.
            Ok(Ok(status)) if matches!(status.as_u16(), 400 | 401 | 403 | 410 | 413 | 422) => {
                Err(Trouble::refused(Answer::of(status.as_str().to_owned())))
            }
            Ok(Ok(status)) => Err(Trouble::unknown(format!("it answered {status}"))),
            Ok(Err(why)) => Err(Trouble::unknown(why)),
            Err(_) => Err(Trouble::unknown("it did not answer in time")),
        }
    };
    match shared.ledger.run(intent, post).await {
        Ok(_) => true,
        Err(Error::Refused(_)) => {
            tracing::warn!(intent = %stored.id, "the place for an answer did not take it");
            true
        }
        Err(_) => false,
    }
}

/// What is posted.
fn document(stored: &Stored) -> Value {
    let record = &stored.record;
    let answer = record.answer.as_ref().map(|answer| Whole::from_kept(answer).view());
    json!({
        "intent": stored.id.number(),
        "scope": record.name.as_ref().map(|name| name.scope.as_str()),
        "key": record.name.as_ref().map(|name| name.key.as_str()),
        "status": record.status.as_str(),
        "external_id": record.answer.as_ref().and_then(|a| a.external_id.as_ref()).map(twicesafe_ledger::ExternalId::as_str),
        "answer": answer,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_posted_below_what_an_operator_named() {
        for (address, allowed, is) in [
            ("https://n8n.example.com/webhook/1", "https://n8n.example.com/webhook", true),
            ("https://n8n.example.com/webhook", "https://n8n.example.com/webhook", true),
            ("https://n8n.example.com/webhooks", "https://n8n.example.com/webhook", false),
            ("https://n8n.example.com.evil.org/", "https://n8n.example.com", false),
            ("http://169.254.169.254/", "https://n8n.example.com/", false),
        ] {
            assert_eq!(is_below(address, allowed), is, "{address} {allowed}");
        }
    }

    #[test]
    fn steps_that_lead_back_lead_out_of_what_is_allowed() {
        let callbacks = ["http://h/cb".to_owned(), "http://h/wait/".to_owned()];
        for right in ["http://h/cb", "http://h/cb/1?a=..", "http://h/cb?x", "http://h/wait/a.b/..c"] {
            assert!(is_allowed(right, &callbacks), "{right}");
        }
        for wrong in [
            "http://h/cbx",
            "http://other/cb/1",
            "http://h@other/cb/1",
            "http://h/cb/../x",
            "http://h/cb/..",
            "http://h/cb/%2e%2e/x",
            "http://h/cb/.%2E/x",
            "http://h/wait/a/..%2f..%2fx",
            "http://h/wait/..;/x",
            "http://h/wait/./x",
        ] {
            assert!(!is_allowed(wrong, &callbacks), "{wrong}");
        }
    }
}
