//! From a decision to what has to be written: the same for every database.

use std::sync::Arc;

use bytes::Bytes;
use twicesafe_core::journal::{self, Digest, Entry, Head};
use twicesafe_core::{
    Action, After, Alert, Command, IntentId, Lane, Moment, Name, Notice, Place, Record, Refusal, Status,
    Timestamp, Transition, Verdict, VersionMeans, decide,
};

use crate::error::StoreError;
use crate::seal::{RequestDigest, request_digest};
use crate::tally::{REVIEWS, Tally};
use crate::{NameHash, NameHasher};

/// What a store believes about an intent. Handed out with every answer, so that the next command about the same intent
/// can be decided without reading it again; the version tells whether that was right.
#[derive(Clone, PartialEq, Debug)]
pub struct Stored {
    /// The store's number for it.
    pub id: IntentId,
    /// Grows with every write.
    pub version: i64,
    /// What is believed.
    pub record: Record,
    pub(crate) journal_rows: u32,
    pub(crate) journal_head: Head,
    /// Of its name, where that was forgotten.
    pub(crate) hash: Option<NameHash>,
    /// Of its request, if one is kept.
    pub(crate) request: Option<RequestDigest>,
    /// Whether it is as the ledger wrote it. What is not is never acted on (S49).
    pub fits_seal: bool,
}

impl Stored {
    /// Where its journal ends: how many rows there are, and the hash of the last (S40).
    pub fn journal_end(&self) -> (u32, Head) {
        (self.journal_rows, self.journal_head)
    }
}

/// A command and the intent it is about.
#[derive(Clone, Debug)]
pub struct Order {
    /// Which intent.
    pub target: Target,
    /// What is wanted.
    pub command: Command,
    /// What the sender believes of it, if anything: saves a read when it is still true.
    pub believed: Option<Arc<Stored>>,
}

impl Order {
    /// A command about the intent with that name.
    pub fn named(name: Name, command: Command) -> Self {
        Self { target: Target::Name(name), command, believed: None }
    }

    /// A command about the intent with that number.
    pub fn numbered(id: IntentId, command: Command) -> Self {
        Self { target: Target::Id(id), command, believed: None }
    }

    /// A command about an intent one has heard of.
    pub fn believing(believed: Arc<Stored>, command: Command) -> Self {
        Self { target: Target::Id(believed.id), command, believed: Some(believed) }
    }
}

/// Which intent a command is about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Target {
    /// The one with that name; a claim may be the first to mention it.
    Name(Name),
    /// The one with that number.
    Id(IntentId),
}

/// What came of a command.
#[derive(Clone, Debug)]
pub struct Applied {
    /// What the caller is told.
    pub verdict: Verdict,
    /// What is believed of the intent now. `None`: there is none.
    pub stored: Option<Arc<Stored>>,
    /// What somebody should be told.
    pub alerts: Vec<Alert>,
    /// What the caller should be told beside the verdict.
    pub notices: Vec<Notice>,
    /// When, in ledger time.
    pub at: Timestamp,
    /// Whether anything was written.
    pub changed: bool,
}

impl Applied {
    /// Whether what a claim changed need only be visible to others (S7).
    pub(crate) fn may_be_relaxed(&self) -> bool {
        !self.changed || self.stored.as_ref().is_none_or(|stored| stored.record.claim_may_be_relaxed())
    }

    /// What is said of an intent whose record somebody else has changed.
    fn altered(at: Timestamp) -> Self {
        let verdict = Verdict::Refuse(Refusal::Altered);
        let alerts = vec![Alert::Altered];
        Self { verdict, stored: None, alerts, notices: Vec::new(), at, changed: false }
    }

    /// What is said of an intent that is not there, or not there any more.
    fn nobody(at: Timestamp) -> Self {
        let verdict = Verdict::Refuse(Refusal::NoSuchIntent);
        Self { verdict, stored: None, alerts: Vec::new(), notices: Vec::new(), at, changed: false }
    }
}

/// One row of the journal.
#[derive(Clone, Debug, PartialEq)]
pub struct JournalRow {
    /// Its place in the chain of its intent, from 1.
    pub number: u32,
    /// What it says.
    pub entry: Entry,
    /// The salted digest of its words: what is left of them when they are forgotten.
    pub words: Digest,
    /// The salted digest of what the destination said.
    pub digest: Option<Digest>,
    /// The hash that ends the chain here.
    pub hash: Head,
}

impl JournalRow {
    /// The entry by which an intent came into the status it has now.
    pub fn entered(journal: &[Self], status: Status) -> Option<&Entry> {
        let after = journal.iter().rposition(|row| row.entry.status != status).map_or(0, |last| last + 1);
        journal.get(after).map(|row| &row.entry)
    }
}

/// What has to be written.
pub(crate) struct Change {
    pub(crate) before: Option<Arc<Stored>>,
    /// `None`: the row goes.
    pub(crate) after: Option<Arc<Stored>>,
    pub(crate) journal: Vec<JournalRow>,
    pub(crate) lane: Option<Lane>,
    pub(crate) request: Option<Bytes>,
}

/// A decision, ready to be written.
pub(crate) struct Planned {
    /// `None`: nothing to write.
    pub(crate) change: Option<Change>,
    pub(crate) applied: Applied,
}

/// Decides a command. `fresh_id` is the number the intent gets if this is the first one hears of it.
pub(crate) fn plan(
    found: Option<&Arc<Stored>>,
    fresh_id: IntentId,
    lane: Option<&Lane>,
    order: &Order,
    moment: &Moment,
    hasher: &NameHasher,
) -> Planned {
    if let Some(found) = found.filter(|found| !found.fits_seal) {
        let applied = Applied { stored: Some(found.clone()), ..Applied::altered(moment.now) };
        return Planned { change: None, applied };
    }
    if found.is_none() && matches!(order.target, Target::Id(_)) {
        // Whoever knows a number means an intent that was there; a claim must not make another one of it.
        return Planned { change: None, applied: Applied::nobody(moment.now) };
    }
    let record = found.map(|stored| &stored.record);
    let Transition { after, lane, entries, alerts, notices, verdict } =
        decide(record, lane, &order.command, moment);
    let applied = |stored, changed| Applied { verdict, stored, alerts, notices, at: moment.now, changed };
    let after = match after {
        After::Unchanged => {
            debug_assert!(lane.is_none(), "S15: a lane follows only from a record that changes");
            return Planned { change: None, applied: applied(found.cloned(), false) };
        }
        After::Write(record) => Some(*record),
        After::Remove => None,
    };
    let claim = match &order.command.action {
        Action::Claim(claim) => Some(claim),
        _ => None,
    };
    let forgotten = after.as_ref().is_some_and(|record| record.name.is_none());
    let salt = match &after {
        Some(record) => record.salt,
        None => record.and_then(|record| record.salt),
    };
    let (mut rows, mut head) =
        found.map_or((0, journal::START), |stored| (stored.journal_rows, stored.journal_head));
    let mut journal: Vec<JournalRow> = entries
        .into_iter()
        .map(|entry| {
            rows += 1;
            let (words, digest) = (entry.words(salt), entry.digest(salt));
            head = journal::link(&head, rows, &entry, &words, digest);
            JournalRow { number: rows, entry, words, digest, hash: head }
        })
        .collect();
    let name_before = record.and_then(|record| record.name.as_ref());
    if forgotten && name_before.is_some() {
        // Only who has forgotten it, and why, is told.
        journal.iter_mut().rev().skip(1).for_each(|row| row.entry.forget());
    }
    let hash = match name_before {
        Some(name) if forgotten => Some(hasher.hash(name)),
        _ => found.and_then(|found| found.hash).filter(|_| forgotten),
    };
    let is_new_generation = |after: &Record| {
        record.is_none_or(|before| before.generation != after.generation || before.fingerprint.is_none())
    };
    let request = claim
        .filter(|_| after.as_ref().is_some_and(is_new_generation))
        .and_then(|claim| claim.request.clone());
    let stored = after.map(|record| {
        let request = match (&request, found) {
            (Some(request), _) => Some(request_digest(salt, request)),
            (None, Some(found)) => found.request.filter(|_| record.wants_the_same(&found.record)),
            (None, None) => None,
        };
        Arc::new(Stored {
            id: found.map_or(fresh_id, |stored| stored.id),
            version: found.map_or(1, |stored| stored.version + 1),
            record,
            journal_rows: rows,
            journal_head: head,
            hash,
            request,
            fits_seal: true,
        })
    });
    let change = Change { before: found.cloned(), after: stored.clone(), journal, lane, request };
    Planned { change: Some(change), applied: applied(stored, true) }
}

/// Where an intent stands in a lane, or would.
pub(crate) fn place_of<'a>(found: Option<&'a Stored>, order: &'a Order) -> Option<&'a Place> {
    match (found, &order.command.action) {
        (Some(stored), _) => stored.record.place.as_ref(),
        (None, Action::Claim(claim)) => claim.place.as_ref(),
        (None, _) => None,
    }
}

/// The rank of those that an intent waits for if they wait with the same version, where versions are snapshots (S15): they
/// may stand behind older ones, which it does not wait for.
pub(crate) fn rank_of_equals(found: Option<&Stored>, order: &Order) -> Option<i64> {
    let policy = match (found, &order.command.action) {
        (Some(stored), _) => &stored.record.policy,
        (None, Action::Claim(claim)) => &claim.policy,
        (None, _) => return None,
    };
    let place = place_of(found, order)?;
    (policy.version_means == VersionMeans::Snapshot).then(|| rank(place.version))
}

/// Two names with the same hash would be taken for one.
pub(crate) fn check_name(order: &Order, stored: &Stored) -> Result<(), StoreError> {
    match (&order.target, &stored.record.name) {
        (Target::Name(name), Some(there)) if there != name => {
            Err(StoreError::Damaged("two names have the same hash".into()))
        }
        _ => Ok(()),
    }
}

/// A line of the agenda: everything that is not simply done has one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Agenda {
    pub(crate) status: Status,
    pub(crate) wake_at: Timestamp,
    pub(crate) due_at: Option<Timestamp>,
}

impl Agenda {
    pub(crate) fn of(stored: &Stored) -> Option<Self> {
        let record = &stored.record;
        let wake_at = record.wake_at();
        // A tombstone too, if time has something left to do about it: its lane may be closed until then (S15).
        let listed = wake_at < Timestamp::NEVER || record.status != Status::Done && !record.is_tombstone();
        listed.then_some(Self { status: record.status, wake_at, due_at: record.due_at })
    }

    /// The scope under which it is found when it is due.
    pub(crate) fn scope<'a>(&self, stored: &'a Stored) -> Option<&'a str> {
        let name = stored.record.name.as_ref().filter(|_| self.due_at.is_some());
        name.map(|name| name.scope.as_str())
    }
}

/// A place in the queue of a lane.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Queued<'a> {
    pub(crate) lane: &'a str,
    pub(crate) rank: i64,
    pub(crate) until: Timestamp,
}

impl<'a> Queued<'a> {
    pub(crate) fn of(stored: &'a Stored) -> Option<Self> {
        let place = stored.record.place.as_ref()?;
        let until = stored.record.waits_until?;
        Some(Self { lane: place.lane.as_str(), rank: rank(place.version), until })
    }
}

/// Versions as numbers that sort: those without one come first.
pub(crate) fn rank(version: Option<i64>) -> i64 {
    version.unwrap_or(i64::MIN)
}

/// The version behind a rank.
pub(crate) fn version_of(rank: i64) -> Option<i64> {
    (rank != i64::MIN).then_some(rank)
}

impl Change {
    pub(crate) fn id(&self) -> IntentId {
        self.after.as_ref().or(self.before.as_ref()).expect("a change has a before or an after").id
    }

    /// Whether it is forgotten: what could identify anybody goes from its row and its journal (S40).
    pub(crate) fn forgets(&self) -> bool {
        let is_named =
            |stored: &Option<Arc<Stored>>| stored.as_ref().is_some_and(|stored| stored.record.name.is_some());
        is_named(&self.before) && self.after.is_some() && !is_named(&self.after)
    }

    /// The lane that it is in, or was in.
    pub(crate) fn place(&self) -> Option<&Place> {
        fn of(stored: Option<&Arc<Stored>>) -> Option<&Place> {
            stored?.record.place.as_ref()
        }
        of(self.after.as_ref()).or_else(|| of(self.before.as_ref()))
    }

    /// The lane that it leaves for good: nobody else may be in it any more.
    pub(crate) fn left_lane(&self) -> Option<&str> {
        let before = self.before.as_ref()?.record.place.as_ref()?;
        let stays = self.after.as_ref().is_some_and(|after| after.record.place.is_some());
        (!stays).then(|| before.lane.as_str())
    }

    /// The hash of its name, which stays when that is forgotten; as far as it is known already.
    pub(crate) fn hash(&self, known: Option<NameHash>, hasher: &NameHasher) -> Option<NameHash> {
        let stored = self.after.as_ref()?;
        let of_name = || stored.record.name.as_ref().map(|name| hasher.hash(name));
        known.or(stored.hash).or_else(of_name)
    }

    /// Whether the answer has to be written, or, if there is none any more, dropped.
    pub(crate) fn answer_changes(&self) -> bool {
        let before = self.before.as_ref().and_then(|stored| stored.record.answer.as_ref());
        let after = self.after.as_ref().and_then(|stored| stored.record.answer.as_ref());
        before != after
    }

    /// The answer of a generation that is over, which stays with it (S29).
    pub(crate) fn archived(&self) -> Option<&Arc<Stored>> {
        let (before, after) = (self.before.as_ref()?, self.after.as_ref()?);
        let over = before.record.generation != after.record.generation;
        Some(before).filter(|before| over && before.record.answer.is_some() && !before.record.is_tombstone())
    }

    /// Whether the request that was kept goes: it is not wanted any more, or another one takes its place.
    pub(crate) fn drops_request(&self) -> bool {
        match (&self.before, &self.after) {
            (Some(before), Some(after)) => {
                let is_another = before.record.generation != after.record.generation;
                !after.record.wants_the_same(&before.record) || is_another && self.request.is_some()
            }
            (before, _) => before.is_some(),
        }
    }

    /// Adds what this change means to the counts.
    pub(crate) fn count(&self, at: Timestamp, tally: &mut Tally) {
        for row in &self.journal {
            tally.journal(at, &row.entry);
        }
        let before = self.before.as_ref().map(|stored| &stored.record);
        let after = self.after.as_ref().map(|stored| &stored.record);
        let standing = |record: Option<&Record>| record.map(|record| (record.status, record.is_tombstone()));
        if standing(before) != standing(after) {
            before.into_iter().for_each(|record| tally.standing(record, -1));
            after.into_iter().for_each(|record| tally.standing(record, 1));
        }
        let in_review =
            |record: Option<&Record>| record.is_some_and(|record| record.status == Status::Review);
        if in_review(after) && !in_review(before) {
            tally.event(at, REVIEWS);
        }
        if let (Some(before), Some(after)) = (before, after)
            && before.doubt
            && !after.doubt
            && let Some(since) = before.first_sent_at
        {
            tally.recovery(at, at.since(since));
        }
    }
}
