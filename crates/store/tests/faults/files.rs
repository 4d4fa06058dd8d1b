//! Files that cannot be a ledger, or must not be.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use twicesafe_core::{
    Action, Answer, Code, Forget, Outcome, Policy, Reset, Resolution, Resolve, Status, Verdict,
};
use twicesafe_store::{Address, Options, Store};

use super::check_refused;
use crate::orders::{about, answered, claim, settle};
use crate::processes::{go, heard, start};
use crate::world::Folder;

fn at(path: &Path) -> Address {
    Address::Sqlite(path.to_owned())
}

#[tokio::test]
async fn a_file_that_is_no_database_is_not_ours() {
    let folder = Folder::new();
    let text = "dear diary, ".repeat(1000);
    std::fs::write(folder.ledger(), &text).unwrap();
    check_refused(&at(&folder.ledger()), Code::LedgerNotOurs).await;
    assert_eq!(std::fs::read_to_string(folder.ledger()).unwrap(), text, "it stays as it was");
}

#[tokio::test]
async fn a_folder_or_a_device_is_not_ours() {
    let folder = Folder::new();
    std::fs::create_dir(folder.ledger()).unwrap();
    check_refused(&at(&folder.ledger()), Code::LedgerNotOurs).await;
    check_refused(&at(Path::new("/dev/null")), Code::LedgerNotOurs).await;
}

#[tokio::test]
async fn a_database_of_another_program_is_not_ours() {
    let folder = Folder::new();
    let other = rusqlite::Connection::open(folder.ledger()).unwrap();
    other.execute_batch("CREATE TABLE ledger (id INTEGER); PRAGMA user_version = 7").unwrap();
    drop(other);
    let before = std::fs::read(folder.ledger()).unwrap();
    check_refused(&at(&folder.ledger()), Code::LedgerNotOurs).await;
    assert_eq!(std::fs::read(folder.ledger()).unwrap(), before, "it stays as it was");
}

#[tokio::test]
async fn a_ledger_of_a_newer_version_is_left_alone() {
    let folder = Folder::new();
    drop(Store::open(&at(&folder.ledger()), Options::default()).await.unwrap());
    let by_hand = rusqlite::Connection::open(folder.ledger()).unwrap();
    by_hand.execute_batch("PRAGMA user_version = 99").unwrap();
    check_refused(&at(&folder.ledger()), Code::LedgerNewer).await;
}

#[tokio::test]
async fn a_folder_that_does_not_exist_is_not_made() {
    let folder = Folder::new();
    check_refused(&at(&folder.path().join("no/such/folder/ledger.db")), Code::LedgerReadOnly).await;
    assert!(!folder.path().join("no").exists());
}

#[tokio::test]
async fn s42_a_hard_link_is_a_second_name_and_is_refused() {
    let folder = Folder::new();
    drop(Store::open(&at(&folder.ledger()), Options::default()).await.unwrap());
    let linked = folder.path().join("linked.db");
    std::fs::hard_link(folder.ledger(), &linked).unwrap();
    check_refused(&at(&linked), Code::LedgerSecondName).await;
    check_refused(&at(&folder.ledger()), Code::LedgerSecondName).await;
    assert!(!folder.path().join("linked.db-wal").exists(), "nothing was made beside it");
    std::fs::remove_file(&linked).unwrap();
    Store::open(&at(&folder.ledger()), Options::default()).await.unwrap();
}

#[tokio::test]
async fn s42_symbolic_links_share_the_log_of_the_file() {
    let folder = Folder::new();
    let real = folder.path().join("real");
    std::fs::create_dir(&real).unwrap();
    let links = [folder.path().join("a.db"), folder.path().join("b.db")];
    for link in &links {
        std::os::unix::fs::symlink("real/ledger.db", link).unwrap();
    }
    let remember = || Options { remember: true, ..Options::default() };
    let a = Store::open(&at(&links[0]), remember()).await.unwrap();
    let b = Store::open(&at(&links[1]), remember()).await.unwrap();
    let policy = Policy::default();
    let claimed = a.apply_one(claim("k", &policy).into()).await.unwrap();
    let second = b.apply_one(claim("k", &policy).into()).await.unwrap();
    assert!(matches!(second.verdict, Verdict::Wait(_)), "{:?}", second.verdict);
    let done = a.apply_one(settle(&claimed, answered("done"))).await.unwrap();
    for _ in 0..2 {
        let again = b.apply_one(claim("k", &policy).into()).await.unwrap();
        assert!(matches!(again.verdict, Verdict::Replay(_)), "{:?}", again.verdict);
    }
    let reset = Action::Reset(Reset { generation: 1, reason: "again".into() });
    a.apply_one(about(&done, "ann", reset)).await.unwrap();
    let afresh = b.apply_one(claim("k", &policy).into()).await.unwrap();
    assert!(matches!(afresh.verdict, Verdict::Proceed(_)), "{:?}", afresh.verdict);
    let beside = std::fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(beside, 3, "two links and the folder: the log is beside the file");
}

/// Only where the test may mount: elsewhere it shows nothing, and says so.
#[expect(clippy::print_stderr, reason = "nobody should think that it was tested")]
#[tokio::test]
async fn s42_a_file_that_is_mounted_by_itself_is_refused_and_its_folder_is_not() {
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private"]);
        command
    };
    let folder = Folder::new();
    let mounted = folder.path().join("mounted");
    std::fs::create_dir(&mounted).unwrap();
    let may_mount = unshare().args(["mount", "--bind"]).args([folder.path(), &mounted]).status();
    if !may_mount.is_ok_and(|status| status.success()) {
        eprintln!("not tested: this user may not mount");
        return;
    }
    go(&folder);
    let host = folder.path().join("host");
    std::fs::create_dir(&host).unwrap();
    drop(Store::open(&at(&host.join("ledger.db")), Options::default()).await.unwrap());
    std::fs::write(mounted.join("ledger.db"), "").unwrap();
    let file = (host.join("ledger.db"), mounted.join("ledger.db"), "code TS0058");
    let its_folder = (host.clone(), mounted.clone(), "opened");
    for (from, to, expected) in [file, its_folder] {
        let mut command = unshare();
        command
            .args(["sh", "-c", "mount --bind \"$1\" \"$2\" && shift 2 && exec \"$@\"", "sh"])
            .args([from, to]);
        command.arg(std::env::current_exe().unwrap());
        let (lines, _) = heard(start(command, "say", &at(&mounted.join("ledger.db")), folder.path()));
        assert!(lines.iter().any(|line| line == expected), "{expected}: {lines:?}");
    }
}

/// Waits until none of these texts is in any file of the ledger.
async fn wait_until_gone(folder: &Folder, texts: &[&str]) {
    let there = || {
        let files = std::fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().path());
        let files: Vec<(std::path::PathBuf, Vec<u8>)> =
            files.map(|path| (path.clone(), std::fs::read(path).unwrap())).collect();
        let is_in = |text: &str, bytes: &[u8]| bytes.windows(text.len()).any(|part| part == text.as_bytes());
        let all = texts.iter().flat_map(|text| files.iter().map(move |(path, bytes)| (*text, path, bytes)));
        all.filter(|(text, _, bytes)| is_in(text, bytes))
            .map(|(text, path, _)| format!("{text} in {path:?}"))
            .collect()
    };
    let mut left: Vec<String> = there();
    for _ in 0..200 {
        if left.is_empty() {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        left = there();
    }
    panic!("still there: {left:?}");
}

#[tokio::test]
async fn s40_what_was_forgotten_is_not_left_in_the_file_or_its_log() {
    let texts = [
        "ann@example.com",
        "ann-answer",
        "ann-key",
        "ann-lane",
        "ann-work",
        "ann-step",
        "ann-requester",
        "ann-external",
        "ann-reason",
        "ann-why",
        "ann-person",
    ];
    // Pages of their own, which become free.
    let request: &'static [u8] = Vec::leak(b"ann@example.com ".repeat(2000));
    let folder = Folder::new();
    let store = Store::open(&at(&folder.ledger()), Options::default()).await.unwrap();
    for key in ["ann-key", "ann-key-2"] {
        let claiming = claim(key, &Policy::default()).by("ann-requester").with_request(request);
        let claiming =
            claiming.in_lane("ann-lane", Some(1)).in_work("ann-work", key.replace("key", "step").as_str());
        let claimed = store.apply_one(claiming.into()).await.unwrap();
        let unknown = store.apply_one(settle(&claimed, Outcome::unknown("ann-reason"))).await.unwrap();
        let fence = unknown.stored.as_ref().unwrap().record.fence;
        let answer = Answer::of("ann-answer ".repeat(2000)).with_external_id("ann-external");
        let resolution = Resolution::Happened(answer);
        let resolve = Action::Resolve(Resolve { about: fence, resolution, reason: "ann-why".into() });
        let done = store.apply_one(about(&unknown, "ann-person", resolve)).await.unwrap();
        assert_eq!(done.stored.as_ref().unwrap().record.status, Status::Done);
        let forget = Action::Forget(Forget { reason: "asked to".into() });
        store.apply_one(about(&done, "ada", forget)).await.unwrap();
    }
    wait_until_gone(&folder, &texts).await;
    drop(store);
    wait_until_gone(&folder, &texts).await;
}

#[tokio::test]
async fn s28_what_was_removed_is_not_left_in_the_file_or_its_log() {
    let folder = Folder::new();
    let clock = std::sync::Arc::new(twicesafe_store::ManualClock::at(1_790_000_000_000));
    let options = Options { clock: clock.clone(), ..Options::default() };
    let store = Store::open(&at(&folder.ledger()), options).await.unwrap();
    let policy = Policy {
        retention: Duration::from_secs(60),
        tombstone: Duration::from_secs(60),
        ..Policy::default()
    };
    let claimed =
        store.apply_one(claim("ann-key", &policy).in_lane("ann-lane", Some(1)).into()).await.unwrap();
    let done = store.apply_one(settle(&claimed, answered("ann-answer"))).await.unwrap();
    let id = done.stored.unwrap().id;
    for _ in 0..2 {
        clock.advance(Duration::from_secs(61));
        let purge = Action::Purge(twicesafe_core::Purge { work_is_open: false });
        let order = twicesafe_store::Order::numbered(id, crate::orders::command("sweep", purge));
        assert!(store.apply_one(order).await.unwrap().changed);
    }
    drop(store);
    wait_until_gone(&folder, &["ann-key", "ann-lane", "ann-answer"]).await;
}

/// The same program as somebody who owns nothing. Root may write everywhere, whatever the permissions say.
fn as_nobody(folder: &Folder) -> Command {
    let program = folder.path().join("program");
    // A copy made here would be "busy" while a program that another test starts has its descriptor, too.
    let copied = Command::new("cp").arg(std::env::current_exe().unwrap()).arg(&program).status().unwrap();
    assert!(copied.success());
    let is_root =
        std::fs::metadata("/proc/self").is_ok_and(|me| std::os::unix::fs::MetadataExt::uid(&me) == 0);
    if !is_root {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(program);
    command
}

#[tokio::test]
async fn a_ledger_that_cannot_be_written_is_refused_at_once() {
    let children = Folder::new();
    go(&children);
    let cases = [(0o666, 0o777, "opened"), (0o444, 0o777, "code TS0043"), (0o444, 0o555, "code TS0043")];
    for (file_mode, folder_mode, expected) in cases {
        let folder = Folder::new();
        let store = Store::open(&at(&folder.ledger()), Options::default()).await.unwrap();
        store.apply_one(claim("k", &Policy::default()).into()).await.unwrap();
        drop(store);
        let allow =
            |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
        for file in std::fs::read_dir(folder.path()).unwrap() {
            allow(&file.unwrap().path(), file_mode);
        }
        allow(folder.path(), folder_mode);
        let child = start(as_nobody(&children), "say", &at(&folder.ledger()), children.path());
        let (lines, _) = heard(child);
        assert!(lines.iter().any(|line| line == expected), "{file_mode:o} in {folder_mode:o}: {lines:?}");
        allow(folder.path(), 0o755);
    }
}
