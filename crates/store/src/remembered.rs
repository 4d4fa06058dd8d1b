//! Settled intents in memory, up to a limit: they are asked for again and again, and seldom change. Whether one is still as it is
//! remembered is for whoever asks to find out.

use std::collections::HashMap;
use std::sync::Arc;

use twicesafe_core::{Answer, Body, Status};

use crate::NameHash;
use crate::plan::Stored;

/// Most that is remembered, and the largest body among it.
const BYTES_MAX: usize = 64 << 20;
const BODY_BYTES_MAX: usize = 64 << 10;
/// What an intent takes beside its answer, about.
const INTENT_BYTES: usize = 1500;

type Half = HashMap<NameHash, Arc<Stored>>;

/// Two halves: when the younger one is full the older one goes.
#[derive(Default)]
pub(crate) struct Remembered {
    young: Half,
    old: Half,
    young_bytes: usize,
}

impl Remembered {
    /// What is remembered under a name. Whoever is asked for is young again.
    pub(crate) fn get(&mut self, hash: &NameHash) -> Option<Arc<Stored>> {
        if let Some(found) = self.young.get(hash) {
            return Some(found.clone());
        }
        let (hash, found) = self.old.remove_entry(hash)?;
        // What is forgotten to make room has been in memory for long; the next one to ask for it reads it.
        drop(self.insert(hash, found.clone()));
        Some(found)
    }

    /// Remembers what is worth it, and forgets what was known under that name. What had to make room is for the caller to drop, once
    /// nobody waits for a lock.
    pub(crate) fn put(&mut self, hash: NameHash, stored: &Arc<Stored>) -> Forgotten {
        self.forget(&hash);
        if is_worth_it(stored) { self.insert(hash, stored.clone()) } else { Forgotten::default() }
    }

    pub(crate) fn forget(&mut self, hash: &NameHash) {
        if let Some(gone) = self.young.remove(hash) {
            self.young_bytes = self.young_bytes.saturating_sub(size_of(&gone));
        }
        self.old.remove(hash);
    }

    pub(crate) fn forget_all(&mut self) -> Forgotten {
        let Self { young, old, .. } = std::mem::take(self);
        Forgotten { _young: young, _old: old }
    }

    fn insert(&mut self, hash: NameHash, stored: Arc<Stored>) -> Forgotten {
        self.young_bytes += size_of(&stored);
        self.young.insert(hash, stored);
        if self.young_bytes <= BYTES_MAX / 2 {
            return Forgotten::default();
        }
        self.young_bytes = 0;
        let old = std::mem::replace(&mut self.old, std::mem::take(&mut self.young));
        Forgotten { _young: Half::default(), _old: old }
    }
}

/// Much may go at once.
#[must_use = "it takes a while to drop"]
#[derive(Default)]
pub(crate) struct Forgotten {
    _young: Half,
    _old: Half,
}

/// A settled intent is asked for again and again; everything else is about to change.
pub(crate) fn is_worth_it(stored: &Stored) -> bool {
    let body_fits = |answer: &Answer| match &answer.body {
        Body::Kept(bytes) => bytes.len() <= BODY_BYTES_MAX,
        Body::NotKept { .. } => true,
    };
    stored.record.status == Status::Done
        && stored.record.name.is_some()
        && stored.fits_seal
        && stored.record.answer.as_ref().is_none_or(body_fits)
}

fn size_of(stored: &Stored) -> usize {
    let answer = stored.record.answer.as_ref();
    let kept = answer.map_or(0, |answer| answer.head.len() + answer.bytes().map_or(0, |body| body.len()));
    INTENT_BYTES + kept
}
