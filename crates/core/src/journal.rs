//! The journal: every transition, chained by hash, so that a changed or missing row is found (S40).
//!
//! A row holds digests, never bodies. Digests are keyed with the intent's salt, so that they say nothing once the
//! salt is deleted. Its words, who and why, enter the chain as a digest too: they can be forgotten, and the chain stays whole.

use std::fmt;
use std::sync::Arc;

use crate::answer::Content;
use crate::command::Salt;
use crate::moment::Timestamp;
use crate::name::{Actor, Domain, put};
use crate::permit::Fence;
use crate::record::Status;

/// What happened to an intent.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Event {
    /// A permit to act was given.
    Claimed,
    /// Accepted without a permit.
    Accepted,
    /// It waits for its lane.
    Queued,
    /// It waits for a person.
    Held,
    /// The lease ran out.
    Lapsed,
    /// The destination answered.
    Answered,
    /// The destination said no.
    Refused,
    /// Nothing was sent.
    NotSent,
    /// Nobody knows whether it happened.
    Unknown,
    /// A report of an earlier permit that changed nothing.
    Evidence,
    /// A report of an earlier permit, kept in case the present one ends unknown.
    Kept,
    /// A permit to ask was given.
    Asked,
    /// A lookup found it.
    Found,
    /// A lookup found that it is not there.
    NotFound,
    /// A lookup gave no answer that counts.
    Silent,
    /// Its destination's memory of keys, or the time for lookups, is over.
    OutOfMeans,
    /// A person said yes.
    Approved,
    /// A person said no.
    Rejected,
    /// Nobody said yes in time.
    Expired,
    /// A person found that it happened.
    Happened,
    /// A person found that it did not.
    DidNotHappen,
    /// A person gave up.
    GivenUp,
    /// A person started a new generation.
    Reset,
    /// A corrected request started a new generation.
    Corrected,
    /// The same request started a new generation after a refusal.
    TriedAgain,
    /// A newer version had been applied.
    Superseded,
    /// It was compensated.
    Undone,
    /// Its answer was dropped.
    Purged,
    /// Its tombstone was dropped.
    Removed,
    /// What could identify anybody was dropped.
    Forgotten,
    /// Nothing of its attempts can arrive any more, and its lane is free.
    Quiet,
    /// First heard of while the ledger recovers from a lost tail: it may have happened before.
    Recovering,
    /// It happened, on the word of the source of truth.
    Adopted,
    /// It was asked for again with other input, which changes nothing.
    Differed,
}

impl Event {
    const ALL: [(Self, &'static str); 34] = [
        (Self::Claimed, "claimed"),
        (Self::Accepted, "accepted"),
        (Self::Queued, "queued"),
        (Self::Held, "held"),
        (Self::Lapsed, "lapsed"),
        (Self::Answered, "answered"),
        (Self::Refused, "refused"),
        (Self::NotSent, "not sent"),
        (Self::Unknown, "unknown"),
        (Self::Evidence, "evidence"),
        (Self::Kept, "kept"),
        (Self::Asked, "asked"),
        (Self::Found, "found"),
        (Self::NotFound, "not found"),
        (Self::Silent, "silent"),
        (Self::OutOfMeans, "out of means"),
        (Self::Approved, "approved"),
        (Self::Rejected, "rejected"),
        (Self::Expired, "expired"),
        (Self::Happened, "happened"),
        (Self::DidNotHappen, "did not happen"),
        (Self::GivenUp, "given up"),
        (Self::Reset, "reset"),
        (Self::Corrected, "corrected"),
        (Self::TriedAgain, "tried again"),
        (Self::Superseded, "superseded"),
        (Self::Undone, "undone"),
        (Self::Purged, "purged"),
        (Self::Removed, "removed"),
        (Self::Forgotten, "forgotten"),
        (Self::Quiet, "quiet"),
        (Self::Recovering, "recovering"),
        (Self::Adopted, "adopted"),
        (Self::Differed, "differed"),
    ];

    /// The word for it.
    pub fn as_str(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    /// The event with that word.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|(_, text)| *text == word).map(|(event, _)| event)
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// One line of the journal, before it is chained.
#[derive(Clone, PartialEq, Debug)]
pub struct Entry {
    /// When, in ledger time.
    pub at: Timestamp,
    /// Who.
    pub actor: Actor,
    /// What.
    pub event: Event,
    /// Where the intent stood afterwards.
    pub status: Status,
    /// Whether it carried doubt afterwards.
    pub doubt: bool,
    /// Which generation.
    pub generation: u32,
    /// Which permit it was about.
    pub fence: Fence,
    /// Why, in words.
    pub reason: Arc<str>,
    /// What the destination said: enters the journal as a digest only.
    pub content: Option<Content>,
}

/// The salted digest of an answer.
pub type Digest = [u8; 16];
/// The hash that ends a chain so far.
pub type Head = [u8; 32];

/// Where every chain starts.
pub const START: Head = [0; 32];

impl Entry {
    /// The salted digest of what the destination said. Without a salt (forgotten) there is none.
    pub fn digest(&self, salt: Option<Salt>) -> Option<Digest> {
        let (content, salt) = (self.content?, salt?);
        static DOMAIN: Domain = Domain::new("twicesafe journal digest v2");
        let mut hasher = DOMAIN.hasher();
        hasher.update(&salt.0).update(content.bytes());
        hasher.finalize().as_bytes()[..16].try_into().ok()
    }

    /// Returns the salted digest of who did it and why.
    pub fn words(&self, salt: Option<Salt>) -> Digest {
        static DOMAIN: Domain = Domain::new("twicesafe journal words v1");
        let mut hasher = DOMAIN.hasher();
        hasher.update(&salt.map_or([0; 16], |salt| salt.0));
        put(&mut hasher, self.actor.as_str().as_bytes());
        put(&mut hasher, self.reason.as_bytes());
        *hasher.finalize().as_bytes().first_chunk().expect("a hash has 32 bytes")
    }

    /// Returns whether its words were forgotten.
    pub fn is_forgotten(&self) -> bool {
        self.reason.is_empty() && self.actor == Actor::forgotten()
    }

    /// Forgets its words.
    pub fn forget(&mut self) {
        self.actor = Actor::forgotten();
        self.reason = "".into();
    }
}

/// The hash that ends the chain after this row. It covers the hash before it, the row's number in its chain, and every
/// field of the row as stored; its words by their digest.
pub fn link(head: &Head, number: u32, entry: &Entry, words: &Digest, digest: Option<Digest>) -> Head {
    static DOMAIN: Domain = Domain::new("twicesafe journal row v2");
    let mut hasher = DOMAIN.hasher();
    hasher.update(head).update(&number.to_be_bytes());
    hasher.update(&entry.at.as_millis().to_be_bytes());
    hasher.update(words);
    put(&mut hasher, entry.event.as_str().as_bytes());
    put(&mut hasher, entry.status.as_str().as_bytes());
    hasher.update(&[u8::from(entry.doubt)]);
    hasher.update(&entry.generation.to_be_bytes()).update(&entry.fence.number().to_be_bytes());
    put(&mut hasher, digest.as_ref().map_or(&[], |digest| digest.as_slice()));
    hasher.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_events_are_in_the_same_order() {
        for (index, (event, word)) in Event::ALL.into_iter().enumerate() {
            assert_eq!(event as usize, index, "{word}");
            assert_eq!(Event::from_word(event.as_str()), Some(event));
        }
    }

    #[test]
    fn s40_any_change_of_a_row_breaks_the_chain() {
        let entry = Entry {
            at: Timestamp::from_millis(7),
            actor: Actor::sweep(),
            event: Event::Answered,
            status: Status::Done,
            doubt: false,
            generation: 1,
            fence: Fence::new(1),
            reason: "ab".into(),
            content: Some(crate::Answer::of("body").content()),
        };
        let salt = Some(Salt([3; 16]));
        let of = |head, number, entry: &Entry, salt| {
            link(head, number, entry, &entry.words(salt), entry.digest(salt))
        };
        let head = of(&START, 1, &entry, salt);
        assert_ne!(head, of(&START, 2, &entry, salt));
        assert_ne!(head, of(&head, 1, &entry, salt));
        assert_ne!(head, of(&START, 1, &entry, Some(Salt([4; 16]))));
        assert_ne!(head, link(&START, 1, &entry, &entry.words(salt), None));
        let changed = Entry { reason: "abc".into(), ..entry.clone() };
        assert_ne!(head, of(&START, 1, &changed, salt));
        let changed = Entry { actor: Actor::forgotten(), ..entry.clone() };
        assert_ne!(head, of(&START, 1, &changed, salt));
        let changed = Entry { doubt: true, ..entry.clone() };
        assert_ne!(head, of(&START, 1, &changed, salt));
    }

    #[test]
    fn s40_a_chain_stays_whole_when_its_words_are_forgotten() {
        let salt = Some(Salt([3; 16]));
        let mut entry = Entry {
            at: Timestamp::from_millis(7),
            actor: Actor::sweep(),
            event: Event::Rejected,
            status: Status::Rejected,
            doubt: false,
            generation: 1,
            fence: Fence::new(1),
            reason: "ann is 90".into(),
            content: None,
        };
        let words = entry.words(salt);
        let head = link(&START, 1, &entry, &words, None);
        entry.forget();
        assert!(entry.is_forgotten());
        assert_eq!(head, link(&START, 1, &entry, &words, None));
    }
}
