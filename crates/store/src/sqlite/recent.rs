//! What was replayed lately, so that the next repetition need not be read from the file.
//!
//! A repetition must see whatever anybody, in whichever process, has written before it came. SQLite says so itself: every commit
//! changes the header of the log's index, 48 bytes at the start of the `-shm` file (<https://sqlite.org/walformat.html>, 2.1), which
//! hold a count of transactions and a checksum over everything in the log. As long as they are what they were, nobody has written.
//! What the writer of this process commits is taken out of the memory together with the change of the header; anything else
//! empties it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use twicesafe_core::Name;

use super::place::kept_open;
use crate::NameHash;
use crate::plan::Stored;
use crate::remembered::{self, Forgotten, Remembered};

const HEADER_BYTES: usize = 48;
/// The only version of the index there is.
const INDEX_VERSION: u32 = 3_007_000;

/// The header of the log's index: changes with every commit.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Header([u8; HEADER_BYTES]);

impl Header {
    /// Whether exactly one transaction was committed since.
    fn follows(&self, before: &Self) -> bool {
        self.count() == before.count().wrapping_add(1)
    }

    fn count(&self) -> u32 {
        u32::from_ne_bytes([self.0[8], self.0[9], self.0[10], self.0[11]])
    }

    fn is_sound(&self) -> bool {
        let version = u32::from_ne_bytes([self.0[0], self.0[1], self.0[2], self.0[3]]);
        version == INDEX_VERSION && self.0[12] == 1
    }
}

#[derive(Default)]
pub(super) struct Recent {
    /// `None`: it cannot be read, and nothing is remembered.
    index: Option<&'static File>,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    /// What is remembered is what the ledger says under this header.
    as_of: Option<Header>,
    /// The writer is at it: whoever finds another header cannot tell whose it is.
    is_writing: bool,
    /// The header does not tell of commits: nothing is remembered any more.
    is_blind: bool,
    /// How often somebody else was found to have written.
    others_wrote: u64,
    intents: Remembered,
}

impl Recent {
    /// Of the ledger at that path, which must be open.
    pub(super) fn of(path: &Path) -> Self {
        let mut index = path.as_os_str().to_owned();
        index.push("-shm");
        Self { index: kept_open(Path::new(&index)).ok(), ..Self::default() }
    }

    /// The header as it is now.
    pub(super) fn header(&self) -> Option<Header> {
        let mut header = Header([0; HEADER_BYTES]);
        self.index?.read_exact_at(&mut header.0, 0).ok()?;
        Some(header).filter(Header::is_sound)
    }

    /// What is remembered under a name, if nobody has written since. Where nothing is, the header need not be read.
    pub(super) fn get(&self, hash: &NameHash) -> Option<Arc<Stored>> {
        let (found, as_of) = {
            let mut seen = self.lock();
            (seen.intents.get(hash)?, seen.as_of)
        };
        Some(found).filter(|_| as_of.is_some() && as_of == self.header())
    }

    /// Remembers what was read after `before` was the header.
    pub(super) fn put(&self, before: &Header, hash: &NameHash, stored: &Arc<Stored>) {
        let mut seen = self.lock();
        let (mut outdated, mut crowded_out) = (None, None);
        if seen.as_of.as_ref() != Some(before) && !seen.is_writing {
            // Unless this process has, somebody else has written: whatever they changed is not remembered any more.
            let now = self.header();
            outdated = seen.go_on_from(now);
        }
        if seen.as_of.as_ref() == Some(before) && !seen.is_blind {
            crowded_out = Some(seen.intents.put(*hash, stored));
        }
        drop(seen);
        // Much may go, and nobody should wait for that.
        drop((outdated, crowded_out));
    }

    /// A number that grows when somebody else than this process's writer has written. `None`: it cannot be told.
    pub(super) fn others_wrote(&self) -> Option<u64> {
        let mut seen = self.lock();
        let mut forgotten = None;
        if !seen.is_writing {
            let now = self.header();
            forgotten = seen.go_on_from(now);
        }
        let is_told = seen.as_of.is_some() && !seen.is_blind;
        let others_wrote = is_told.then_some(seen.others_wrote);
        drop(seen);
        drop(forgotten);
        others_wrote
    }

    /// The writer has the lock that all writers of all processes take in turn.
    pub(super) fn begin(&self) -> Writing<'_> {
        let before = self.header();
        let mut seen = self.lock();
        seen.is_writing = true;
        let forgotten = seen.go_on_from(before);
        drop(seen);
        drop(forgotten);
        Writing {
            recent: self,
            before,
            found: Vec::new(),
            changed: Vec::new(),
            has_written: false,
            is_committed: false,
            has_forgotten: false,
            harmless: None,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seen {
    /// Forgets everything, unless it is what the ledger says under that header. What is forgotten is for the caller to drop.
    fn go_on_from(&mut self, header: Option<Header>) -> Option<Forgotten> {
        (self.as_of != header).then(|| {
            self.as_of = header;
            self.others_have_written()
        })
    }

    fn others_have_written(&mut self) -> Forgotten {
        self.others_wrote += 1;
        self.intents.forget_all()
    }
}

/// A transaction of this process's writer. Dropped, it is over, one way or the other.
pub(super) struct Writing<'a> {
    recent: &'a Recent,
    before: Option<Header>,
    /// Read inside it. What was changed after that is in `changed` too.
    found: Vec<(NameHash, Arc<Stored>)>,
    changed: Vec<NameHash>,
    /// An intent that changed has another version: that makes the header another one. Other rows may be written as they were,
    /// and then SQLite commits nothing.
    has_written: bool,
    is_committed: bool,
    /// Something was forgotten, or removed.
    has_forgotten: bool,
    harmless: Option<Header>,
}

impl Writing<'_> {
    /// A claim was of an intent that is there, and it stays as it is.
    pub(super) fn found(&mut self, hash: NameHash, stored: &Arc<Stored>) {
        if self.recent.index.is_some() && remembered::is_worth_it(stored) {
            self.found.push((hash, stored.clone()));
        }
    }

    /// A change of an intent was written, which had been so before. The hash of its name is only asked for if it may be
    /// remembered.
    pub(super) fn changes(&mut self, before: Option<&Stored>, hash: impl FnOnce(&Name) -> NameHash) {
        self.has_written = true;
        let remembered = before.filter(|before| remembered::is_worth_it(before));
        self.changed.extend(remembered.and_then(|before| before.record.name.as_ref()).map(hash));
    }

    /// Something was forgotten, or removed: it should not stay in the log.
    pub(super) fn forgets(&mut self) {
        self.has_forgotten = true;
    }

    pub(super) fn has_forgotten(&self) -> bool {
        self.has_forgotten
    }

    /// Up to that header nothing was written but what is no intent's.
    pub(super) fn is_harmless(&mut self, up_to: Option<Header>) {
        self.harmless = up_to;
    }

    /// All of it is on disk.
    pub(super) fn is_committed(&mut self) {
        self.is_committed = true;
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        let mut seen = self.recent.lock();
        seen.is_writing = false;
        let after = self.recent.header();
        let is_ours_alone = match (&self.before, &after) {
            (Some(before), Some(after)) if self.has_written && self.is_committed => after.follows(before),
            (before, after) => before == after || self.harmless.is_some() && self.harmless == *after,
        };
        // A commit that did not change the header: then it says nothing, whyever that is.
        let is_blind = self.has_written && self.is_committed && self.before == after;
        seen.is_blind |= is_blind && after.is_some();
        let mut gone = Vec::new();
        match is_ours_alone {
            true => {
                let found = std::mem::take(&mut self.found);
                // Inside a transaction that was taken back it may have been as it never was.
                let is_so = self.is_committed || !self.has_written;
                if is_so && after.is_some() && !seen.is_blind {
                    gone.extend(found.into_iter().map(|(hash, stored)| seen.intents.put(hash, &stored)));
                }
                self.changed.iter().for_each(|hash| seen.intents.forget(hash));
            }
            false => gone.push(seen.others_have_written()),
        }
        seen.as_of = after;
        drop(seen);
        drop(gone);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::path::PathBuf;

    use twicesafe_core::{
        Action, Actor, Answer, Claim, Command, CommandId, Fingerprint, Grant, Name, Outcome, Policy, Recipe,
        Report, Reset, Salt, Settle, Verdict,
    };

    use super::*;
    use crate::Options;
    use crate::plan::Order;
    use crate::sqlite::Sqlite;

    struct Ledger {
        path: PathBuf,
        connection: rusqlite::Connection,
    }

    /// A database with a log, in a folder of its own, and somebody who writes to it.
    fn ledger(name: &str) -> Ledger {
        let folder = std::env::temp_dir().join(format!("twicesafe-recent-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let path = folder.join("database");
        let connection = rusqlite::Connection::open(&path).expect("a database");
        let tables = "PRAGMA journal_mode = WAL; CREATE TABLE IF NOT EXISTS t (x); INSERT INTO t VALUES (1)";
        connection.execute_batch(tables).expect("it can be written");
        Ledger { path, connection }
    }

    impl Ledger {
        fn write(&self) {
            self.connection.execute_batch("INSERT INTO t VALUES (1)").expect("it can be written");
        }
    }

    impl Drop for Ledger {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(self.path.parent().expect("it is in a folder"));
        }
    }

    #[test]
    fn every_commit_of_anybody_changes_the_header_and_nothing_else_does() {
        let ledger = ledger("header");
        let recent = Recent::of(&ledger.path);
        let first = recent.header().expect("it can be read");
        assert!(recent.header() == Some(first));
        ledger.connection.execute_batch("BEGIN IMMEDIATE; INSERT INTO t VALUES (2); ROLLBACK").expect("SQL");
        assert!(recent.header() == Some(first), "what was not committed");
        ledger.write();
        let second = recent.header().expect("it can be read");
        assert!(second != first && second.follows(&first));
        let another = rusqlite::Connection::open(&ledger.path).expect("a database");
        another.execute_batch("UPDATE t SET x = x; DELETE FROM t WHERE x = 99").expect("SQL");
        assert!(recent.header() == Some(second), "what changes nothing is not committed");
        another.execute_batch("UPDATE t SET x = x + 1").expect("SQL");
        let third = recent.header().expect("it can be read");
        assert!(third.follows(&second), "one transaction of another connection");
        another.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").expect("SQL");
        ledger.write();
        assert!(recent.header() != Some(third), "the log begins anew");
    }

    pub(in crate::sqlite) fn order(key: &str, action: impl FnOnce(Name) -> Action) -> Order {
        let name = Name::new("default/test/shop/charge", key).expect("a name");
        let command =
            Command { id: CommandId::new([1; 16]), actor: Actor::sweep(), action: action(name.clone()) };
        Order::named(name, command)
    }

    pub(in crate::sqlite) fn claim(name: Name) -> Action {
        Action::Claim(Box::new(Claim {
            name,
            fingerprint: Fingerprint::of(&Recipe::raw(), b"input"),
            policy: Arc::new(Policy::default()),
            place: None,
            step: None,
            request: None,
            salt: Salt([7; 16]),
            holder: None,
            grant: Grant::Permit,
            about: None,
        }))
    }

    pub(in crate::sqlite) fn reset(_: Name) -> Action {
        Action::Reset(Reset { generation: 1, reason: "again".into() })
    }

    #[tokio::test]
    async fn what_was_replayed_is_remembered_until_it_changes() {
        let there = ledger("whole");
        let path = there.path.with_extension("ledger");
        let options = Options { remember: true, ..Options::default() };
        let open = || Sqlite::open(&path, &options).expect("it opens");
        let (store, other) = (open(), open());
        let tell = async |store: &Sqlite, order: Order| store.submit(order, true)?.answer().await;
        for key in ["a", "b", "c"] {
            let claimed = tell(&store, order(key, claim)).await.expect("claimed");
            let Verdict::Proceed(permit) = claimed.verdict else { panic!("{:?}", claimed.verdict) };
            let report = Report::Act(Outcome::Answered(Answer::default()));
            let settle = Settle { fence: permit.fence, generation: 1, secret: permit.secret, report };
            tell(&store, order(key, |_| Action::Settle(settle))).await.expect("settled");
            tell(&store, order(key, claim)).await.expect("replayed");
        }
        let of = |key| store.hash_of(&Name::new("default/test/shop/charge", key).expect("a name"));
        let known = || ["a", "b", "c"].map(|key| store.shared.recent.get(&of(key)).is_some());
        assert_eq!(known(), [true, true, true]);
        let others_wrote = || store.shared.recent.others_wrote();
        let at_first = others_wrote();
        assert!(at_first.is_some(), "it can be told");
        tell(&store, order("a", reset)).await.expect("reset");
        assert_eq!(known(), [false, true, true], "what this process has changed");
        tell(&store, order("d", claim)).await.expect("claimed");
        assert_eq!(known(), [false, true, true], "what is about another intent");
        store.put_note("kind", "name", Some("value")).await.expect("noted");
        store.put_note("kind", "name", Some("value")).await.expect("noted");
        assert_eq!(known(), [false, true, true], "what is about no intent");
        let before = store.shared.recent.header().expect("it can be read");
        let read_before = store.shared.recent.get(&of("b")).expect("it is known");
        tell(&store, order("e", claim)).await.expect("claimed");
        store.shared.recent.put(&before, &of("b"), &read_before);
        assert_eq!(known(), [false, true, true], "who was slow does not empty it");
        assert_eq!(others_wrote(), at_first, "only this process has written");
        tell(&other, order("b", reset)).await.expect("reset");
        assert_eq!(known(), [false, false, false], "somebody has written");
        assert!(others_wrote() > at_first, "somebody has written");
        tell(&store, order("c", claim)).await.expect("replayed");
        assert_eq!(known(), [false, false, true], "what was read since");
        let stored = store.shared.recent.get(&of("c"));
        other.put_note("kind", "name", Some("another")).await.expect("noted");
        store.shared.odds.known.store(0, std::sync::atomic::Ordering::Relaxed);
        let submitted = store.submit(order("c", claim), true).expect("taken");
        assert!(matches!(submitted, crate::sqlite::Submitted::Queued(_)), "nobody looks");
        submitted.answer().await.expect("replayed");
        assert_eq!(known(), [false, false, true], "what the writer has read");
        let mut writing = store.shared.recent.begin();
        writing.found(of("a"), &stored.expect("it was known"));
        writing.changes(None, |_| unreachable!("nothing was there"));
        drop(writing);
        assert_eq!(known(), [false, false, true], "what was read, but taken back");
        drop((store, other));
    }

    #[test]
    fn without_a_log_nothing_is_remembered() {
        assert!(Recent::of(Path::new("/nowhere/at/all")).header().is_none());
        assert!(Recent::default().header().is_none());
        assert!(Recent::default().others_wrote().is_none());
    }
}
