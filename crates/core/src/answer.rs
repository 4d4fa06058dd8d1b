//! What an attempt ends in, and what a lookup finds.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::name::{Domain, put};

/// Longest reason kept with an outcome or a decision; longer ones are cut.
pub const REASON_BYTES_MAX: usize = 1000;

/// A reason as it is kept. Reasons come from outside: NUL, which not every database keeps, is dropped.
pub(crate) fn reason(text: &str) -> Arc<str> {
    let text = cut(text, REASON_BYTES_MAX);
    match text.contains('\0') {
        true => text.replace('\0', "").into(),
        false => text.into(),
    }
}

/// The name of what was made, in the destination's own words: `ch_3Nx`, `INV-2026-17`.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ExternalId(Arc<str>);

impl ExternalId {
    /// Takes an id; control characters are dropped and it is cut at 255 bytes, because it comes from outside.
    pub fn new(text: &str) -> Option<Self> {
        let clean: String = text.chars().filter(|c| !c.is_control()).collect();
        let clean = cut(clean.trim(), 255);
        (!clean.is_empty()).then(|| Self(clean.into()))
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for ExternalId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

/// What the destination said, kept for everyone who asks again.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct Answer {
    /// What was made, if the destination named it.
    pub external_id: Option<ExternalId>,
    /// What the door needs beside the body to give the answer again: status and headers, an exit status. Text.
    pub head: Arc<str>,
    /// The body.
    pub body: Body,
}

impl Answer {
    /// An answer that is only a body.
    pub fn of(body: impl Into<Bytes>) -> Self {
        Self { body: Body::Kept(body.into()), ..Self::default() }
    }

    /// The same answer, naming what was made.
    #[must_use]
    pub fn with_external_id(mut self, id: &str) -> Self {
        self.external_id = ExternalId::new(id);
        self
    }

    /// The body, unless it was too large to keep.
    pub fn bytes(&self) -> Option<&Bytes> {
        match &self.body {
            Body::Kept(bytes) => Some(bytes),
            Body::NotKept { .. } => None,
        }
    }

    /// What it says. Answers are large, and this reads all of one: make it once.
    pub(crate) fn content(&self) -> Content {
        static DOMAIN: Domain = Domain::new("twicesafe content v2");
        let mut hasher = DOMAIN.hasher();
        // The body first, for the same reason as the input of a fingerprint; the length of what follows it comes last.
        match &self.body {
            Body::Kept(bytes) => hasher.update(bytes),
            Body::NotKept { digest, .. } => hasher.update(digest),
        };
        hasher.update(self.head.as_bytes()).update(&(self.head.len() as u64).to_be_bytes());
        Content(hasher.finalize().into())
    }

    /// The same answer with a body of more than `bytes_max` replaced by its length and digest (S20).
    #[must_use]
    pub fn limited(mut self, bytes_max: usize) -> Self {
        if let Body::Kept(bytes) = &self.body
            && bytes.len() > bytes_max
        {
            self.body = Body::NotKept { bytes: bytes.len() as u64, digest: blake3::hash(bytes).into() };
        }
        self
    }
}

/// What a destination said, as a hash: enough to tell two answers apart, without what was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Content([u8; 32]);

impl Content {
    pub(crate) fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Bodies are not logged (S41).
        f.debug_struct("Answer").field("external_id", &self.external_id).field("body", &self.body).finish()
    }
}

/// The body of an answer.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum Body {
    /// Whole.
    Kept(Bytes),
    /// Too large to keep: only what it was (S20).
    NotKept {
        /// Its length.
        bytes: u64,
        /// Its BLAKE3 hash.
        digest: [u8; 32],
    },
}

impl Default for Body {
    fn default() -> Self {
        Self::Kept(Bytes::new())
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kept(bytes) => write!(f, "{} bytes", bytes.len()),
            Self::NotKept { bytes, .. } => write!(f, "{bytes} bytes, not kept"),
        }
    }
}

/// What an attempt ended in.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Outcome {
    /// It happened, and this is the answer.
    Answered(Answer),
    /// The destination said no.
    Refused {
        /// What it said.
        answer: Answer,
        /// How long the refusal is given again to the same request; after that another try may go, because causes
        /// get fixed (S18).
        replay_for: Duration,
    },
    /// It certainly did not happen (S16).
    NotSent {
        /// Why.
        reason: Arc<str>,
        /// When the destination asked to be tried again.
        retry_after: Option<Duration>,
        /// What it counts as.
        counts: Counts,
    },
    /// It may or may not have happened (S17).
    Unknown {
        /// Why nobody knows.
        reason: Arc<str>,
        /// When the destination asked to be tried again.
        retry_after: Option<Duration>,
        /// A person must look, whatever the recovery class: it happened in part (S19).
        park: bool,
    },
}

/// What an attempt counts as that did not reach the destination.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Counts {
    /// As one of the attempts there are. The next is due after a backoff.
    AsAttempt,
    /// As none: it has to wait for somebody else. It is due again after a backoff.
    AsWaiting,
    /// As none: the caller was told and must mend something first (401, 403, 407). Nobody tries again by himself.
    AsPassedOn,
}

impl Outcome {
    /// Nothing was sent; it may be tried again after a backoff.
    pub fn not_sent(reason: &str) -> Self {
        Self::NotSent { reason: self::reason(reason), retry_after: None, counts: Counts::AsAttempt }
    }

    /// Nobody knows.
    pub fn unknown(reason: &str) -> Self {
        Self::Unknown { reason: self::reason(reason), retry_after: None, park: false }
    }

    /// The destination said no; the refusal is not given again.
    pub fn refused(answer: Answer) -> Self {
        Self::Refused { answer, replay_for: Duration::ZERO }
    }
}

/// What a lookup found.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Finding {
    /// It happened; this is what the lookup saw of it. Whoever has leave to act may say so too, having looked first.
    Found(Answer),
    /// It is not there. Counts only once nothing can arrive any more (S24).
    NotFound,
    /// The lookup gave no answer: an error is not a "no".
    Silent {
        /// What went wrong.
        reason: Arc<str>,
    },
}

/// What the holder of a permit reports.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Report {
    /// Of an attempt.
    Act(Outcome),
    /// Of a lookup.
    Lookup(Finding),
}

impl Report {
    /// The same, keeping no more than this of a body; of a larger one, what it was (S20).
    #[must_use]
    pub fn limited(self, bytes_max: usize) -> Self {
        match self {
            Self::Act(Outcome::Answered(answer)) => Self::Act(Outcome::Answered(answer.limited(bytes_max))),
            Self::Act(Outcome::Refused { answer, replay_for }) => {
                Self::Act(Outcome::Refused { answer: answer.limited(bytes_max), replay_for })
            }
            Self::Lookup(Finding::Found(answer)) => Self::Lookup(Finding::Found(answer.limited(bytes_max))),
            without @ (Self::Act(Outcome::NotSent { .. } | Outcome::Unknown { .. })
            | Self::Lookup(Finding::NotFound | Finding::Silent { .. })) => without,
        }
    }

    /// What the destination said, if it said anything.
    pub(crate) fn answer(&self) -> Option<&Answer> {
        match self {
            Self::Act(Outcome::Answered(answer) | Outcome::Refused { answer, .. })
            | Self::Lookup(Finding::Found(answer)) => Some(answer),
            Self::Act(Outcome::NotSent { .. } | Outcome::Unknown { .. })
            | Self::Lookup(Finding::NotFound | Finding::Silent { .. }) => None,
        }
    }

    /// Tells two reports apart: the same settle repeated from a different one (S12). `content` is that of its answer.
    pub(crate) fn digest(&self, content: Option<Content>) -> u64 {
        static DOMAIN: Domain = Domain::new("twicesafe report v2");
        let kind = match self {
            Self::Act(Outcome::Answered(_)) => 1,
            Self::Act(Outcome::Refused { .. }) => 2,
            Self::Lookup(Finding::Found(_)) => 3,
            Self::Act(Outcome::NotSent { .. }) => 4,
            Self::Act(Outcome::Unknown { .. }) => 5,
            Self::Lookup(Finding::NotFound) => 6,
            Self::Lookup(Finding::Silent { .. }) => 7,
        };
        let external_id = self.answer().and_then(|answer| answer.external_id.as_ref());
        let mut hasher = DOMAIN.hasher();
        hasher.update(&[kind]);
        if let Some(content) = &content {
            hasher.update(content.bytes());
        }
        put(&mut hasher, external_id.map_or("", ExternalId::as_str).as_bytes());
        u64::from_be_bytes(hasher.finalize().as_bytes()[..8].try_into().expect("a hash has 32 bytes"))
    }
}

/// How an answer came to be known.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Source {
    /// The destination answered the attempt.
    Act,
    /// A lookup found it.
    Lookup,
    /// A person said so.
    Person,
}

impl Source {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Act => "act",
            Self::Lookup => "lookup",
            Self::Person => "person",
        }
    }

    /// The source with that word.
    pub fn from_word(word: &str) -> Option<Self> {
        [Self::Act, Self::Lookup, Self::Person].into_iter().find(|source| source.as_str() == word)
    }
}

pub(crate) fn cut(text: &str, bytes_max: usize) -> &str {
    &text[..text.floor_char_boundary(bytes_max)]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What was settled is compared by it with what is settled again (S12): it must never change.
    #[test]
    fn s12_what_an_answer_says_is_told_as_it_always_was() {
        let answer = Answer { head: "200".into(), ..Answer::of("done") };
        let of = |answer: &Answer| blake3::Hash::from(answer.content().0).to_hex().to_string();
        assert_eq!(of(&answer), "af11553753e8d93f2e6e1e67bfdd0bf93dd1a3005bb2f8dfaa38e7ed6fb8cff7");
        assert_eq!(
            of(&answer.limited(2)),
            "77c20f02a7fdbf30589723eecb844f0d2bac22196aef88f691deb2a47d9d54d6"
        );
    }
}
