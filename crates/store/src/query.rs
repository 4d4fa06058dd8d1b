//! Questions people ask a ledger.

use std::time::Duration;

use bytes::Bytes;
use twicesafe_core::{Answer, IntentId, Status, Timestamp};

use crate::plan::{JournalRow, Stored};

/// Most intents on one page.
pub const PAGE_MAX: usize = 1000;
/// How far the order of numbers and the order of arrival may be apart: as long as transactions overlap.
const OVERLAP_MAX: Duration = Duration::from_secs(600);
/// Most scopes behind one prefix.
pub const SCOPES_MAX: usize = 200;

/// Which intents are asked for. Everything given must hold.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// This scope, or all below it when it ends with a slash.
    pub scope: Option<String>,
    /// This status.
    pub status: Option<Status>,
    /// Steps of this work.
    pub work: Option<String>,
    /// This text in the key or in the external id.
    pub containing: Option<String>,
    /// First heard of at or after.
    pub created_from: Option<Timestamp>,
    /// First heard of before.
    pub created_before: Option<Timestamp>,
}

impl Filter {
    /// Nothing that is kept has NUL in it, and not every database takes such a question.
    pub(crate) fn matches_nothing(&self) -> bool {
        [&self.scope, &self.work].into_iter().flatten().any(|text| text.contains('\0'))
    }

    pub(crate) fn matches(&self, stored: &Stored) -> bool {
        let record = &stored.record;
        let name = record.name.as_ref();
        let scope = |wanted: &String| {
            name.is_some_and(|name| match wanted.ends_with('/') {
                true => name.scope.as_str().starts_with(wanted.as_str()),
                false => name.scope.as_str() == wanted,
            })
        };
        let containing = |text: &String| {
            let in_key = name.is_some_and(|name| name.key.as_str().contains(text.as_str()));
            let id = record.answer.as_ref().and_then(|answer| answer.external_id.as_ref());
            in_key || id.is_some_and(|id| id.as_str().contains(text.as_str()))
        };
        self.scope.as_ref().is_none_or(scope)
            && self.status.is_none_or(|status| record.status == status)
            && self
                .work
                .as_ref()
                .is_none_or(|work| record.step.as_ref().is_some_and(|step| step.work() == work))
            && self.containing.as_ref().is_none_or(containing)
            && self.created_from.is_none_or(|from| record.created_at >= from)
            && self.created_before.is_none_or(|before| record.created_at < before)
    }

    /// Whether all that follow on this way are too old to match. Numbers are given in the order of arrival, give or take
    /// what overlaps.
    pub(crate) fn ends_at(&self, path: &Path, stored: &Stored) -> bool {
        let too_old = |from: Timestamp| stored.record.created_at + OVERLAP_MAX < from;
        !matches!(path, Path::Status(_)) && self.created_from.is_some_and(too_old)
    }

    /// The way in that reads the least.
    pub(crate) fn paths(&self, scopes_below: impl FnOnce(&str) -> Vec<String>) -> Vec<Path> {
        match (&self.work, self.status, &self.scope) {
            (Some(work), _, _) => vec![Path::Work(work.clone())],
            (None, Some(status), _) if status != Status::Done => vec![Path::Status(status)],
            (None, _, Some(scope)) if scope.ends_with('/') => {
                scopes_below(scope).into_iter().map(Path::Scope).collect()
            }
            (None, _, Some(scope)) => vec![Path::Scope(scope.clone())],
            (None, _, None) => vec![Path::All],
        }
    }
}

/// A way into the table of intents, newest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Path {
    All,
    Scope(String),
    Work(String),
    Status(Status),
}

/// Where a page ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cursor {
    pub(crate) wake_at: i64,
    pub(crate) id: i64,
}

impl Cursor {
    pub(crate) const START: Self = Self { wake_at: i64::MAX, id: i64::MAX };

    /// The cursor as text.
    pub fn to_text(self) -> String {
        format!("{:x}.{:x}", self.wake_at, self.id)
    }

    /// A cursor from its text.
    pub fn from_text(text: &str) -> Option<Self> {
        let (wake_at, id) = text.split_once('.')?;
        Some(Self { wake_at: i64::from_str_radix(wake_at, 16).ok()?, id: i64::from_str_radix(id, 16).ok()? })
    }
}

/// Some intents, and where to go on.
#[derive(Clone, Debug)]
pub struct Page {
    /// The intents, newest first.
    pub intents: Vec<Stored>,
    /// Where the next page starts; `None`: there is none.
    pub next: Option<Cursor>,
}

/// What came of an earlier generation.
#[derive(Clone, Debug, PartialEq)]
pub struct EarlierAnswer {
    /// Which one.
    pub generation: u32,
    /// What it ended in.
    pub status: Status,
    /// What the destination said.
    pub answer: Answer,
}

/// Everything about one intent.
#[derive(Clone, Debug)]
pub struct Dossier {
    /// What is believed.
    pub stored: Stored,
    /// What the journal says.
    pub journal: Vec<JournalRow>,
    /// What came of earlier generations.
    pub earlier: Vec<EarlierAnswer>,
    /// What would be sent, if it was kept.
    pub request: Option<Bytes>,
}

/// An intent that is due.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DueIntent {
    /// Since when, and which: where the next page goes on.
    pub at: (Timestamp, IntentId),
    /// Its lane, if it has one.
    pub lane: Option<String>,
}
