//! Files that cannot be a ledger, or must not be.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use twicesafe_core::{Action, Code, Forget, Policy};
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
async fn s40_what_was_forgotten_is_not_left_in_the_file() {
    let folder = Folder::new();
    let store = Store::open(&at(&folder.ledger()), Options::default()).await.unwrap();
    for key in ["ann-key", "other-key"] {
        let claiming = claim(key, &Policy::default()).with_request(b"ann@example.com");
        let claimed = store.apply_one(claiming.into()).await.unwrap();
        let done = store.apply_one(settle(&claimed, answered("ann-answer"))).await.unwrap();
        let forget = Action::Forget(Forget { reason: "asked to".into() });
        store.apply_one(about(&done, "ada", forget)).await.unwrap();
    }
    drop(store);
    // The log is copied and cut: what is left is the file.
    let by_hand = rusqlite::Connection::open(folder.ledger()).unwrap();
    by_hand.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    let bytes = std::fs::read(folder.ledger()).unwrap();
    for text in ["ann@example.com", "ann-answer", "ann-key"] {
        let is_there = bytes.windows(text.len()).any(|window| window == text.as_bytes());
        assert!(!is_there, "{text} is still there");
    }
}

/// The same program as somebody who owns nothing. Root may write everywhere, whatever the permissions say.
fn as_nobody(folder: &Folder) -> Command {
    let program = folder.path().join("program");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
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
