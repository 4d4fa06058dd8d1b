//! Providers whose signature covers the body of an event and not its id. Who has read one event could send it again under
//! another id: the first id that comes with a body is its only one.

use twicesafe_ledger::{Answer, Body, Error, Intent, Policy, Recovery, Refusal};

use super::arrival::Taken;
use super::plan::Inbox;
use crate::http::Problem;
use crate::server::Shared;

/// The scope of what is remembered of bodies, by inbox.
const SCOPE: &str = "twicesafe/body";
/// The purpose of the key that digests of bodies are made with.
const PURPOSE: &str = "twicesafe 2026-11 bodies of events";

/// Whether this body came before under other ids. If it did not, it is remembered with these, as long as events are kept.
pub(super) async fn came_before(
    shared: &Shared,
    inbox: &Inbox,
    body: &[u8],
    taken: &[Taken],
) -> Result<bool, Problem> {
    let key = shared.ledger.store().derived_key(PURPOSE);
    let mut ids = blake3::Hasher::new_keyed(&key);
    for one in taken {
        let id = one.intent.name().key.as_str();
        ids.update(&(id.len() as u64).to_be_bytes()).update(id.as_bytes());
    }
    let ids = ids.finalize().as_bytes().to_vec();
    let digest = blake3::keyed_hash(&key, body).to_hex();
    let mut policy = Policy::new(Recovery::Repeat);
    policy.retention = inbox.policy.retention;
    let intent = Intent::new(&format!("{SCOPE}/{}", inbox.name), &digest)?.policy(policy);
    let first = ids.clone();
    let given = shared.ledger.run(intent, move |_| async move { Ok(Answer::of(first)) }).await;
    match given.map(|given| given.answer.map(|answer| answer.body)) {
        Ok(Some(Body::Kept(first))) => Ok(first != ids),
        // Events are not remembered for longer either.
        Ok(_) | Err(Error::Ledger(Refusal::Purged)) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
