//! The ledger's secret, and files that only their owner may read (S41).

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use twicesafe_core::{Code, Policy};
use twicesafe_store::{Address, LedgerSecret, Options, Store};

use crate::orders::claim;
use crate::world::{Database, Folder};

const PURPOSE: &str = "of a test";

fn with(secret: &str) -> Options {
    Options { secret: Some(LedgerSecret::of(secret).unwrap()), ..Options::default() }
}

async fn refused(address: &Address, options: Options) -> String {
    let error = Store::open(address, options).await.err().expect("it must not open");
    assert_eq!(error.code(), Code::LedgerSecret, "{error}");
    error.to_string()
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[tokio::test]
async fn s41_what_belongs_to_a_ledger_is_its_owners_alone() {
    let folder = Folder::new();
    let store = Store::open(&Address::Sqlite(folder.ledger()), Options::default()).await.unwrap();
    store.apply_one(claim("k", &Policy::default()).into()).await.unwrap();
    let mut names = Vec::new();
    for file in std::fs::read_dir(folder.path()).unwrap() {
        let file = file.unwrap();
        names.push(file.file_name().into_string().unwrap());
        assert_eq!(mode(&file.path()), 0o600, "{}", file.path().display());
    }
    names.sort();
    assert_eq!(names, ["ledger.db", "ledger.db-shm", "ledger.db-wal", "ledger.db.secret"]);
    assert!(store.warnings().is_empty());
}

#[tokio::test]
async fn s41_files_that_others_can_read_are_taken_from_them_and_it_is_said() {
    let folder = Folder::new();
    let address = Address::Sqlite(folder.ledger());
    let store = Store::open(&address, Options::default()).await.unwrap();
    let files = ["ledger.db", "ledger.db-shm", "ledger.db-wal", "ledger.db.secret"]
        .map(|name| folder.path().join(name));
    for (before, after) in [(0o644, 0o600), (0o664, 0o660)] {
        for file in &files {
            std::fs::set_permissions(file, PermissionsExt::from_mode(before)).unwrap();
        }
        let opened = Store::open(&address, Options::default()).await.unwrap();
        assert_eq!(opened.warnings().len(), files.len(), "{:?}", opened.warnings());
        assert!(opened.warnings()[0].contains(&format!("mode {before:o}")), "{:?}", opened.warnings());
        for file in &files {
            assert_eq!(mode(file), after, "{}", file.display());
        }
    }
    drop(store);
}

#[tokio::test]
async fn s41_a_ledger_that_was_moved_without_its_secret_says_so() {
    let (here, there) = (Folder::new(), Folder::new());
    let store = Store::open(&Address::Sqlite(here.ledger()), Options::default()).await.unwrap();
    let key = store.secret_key(PURPOSE);
    drop(store);
    let copy = |suffix: &str| {
        let name = format!("ledger.db{suffix}");
        std::fs::copy(here.path().join(&name), there.path().join(&name)).unwrap();
    };
    copy("");
    copy("-wal");
    let moved = Address::Sqlite(there.ledger());
    let said = refused(&moved, Options::default()).await;
    assert!(said.contains("ledger.db.secret") && said.contains("moved"), "{said}");
    assert!(!there.path().join("ledger.db.secret").exists(), "no other one is made in its place");
    let said = refused(&moved, with("a secret of somebody else")).await;
    assert!(said.contains("not the one"), "{said}");
    std::fs::write(there.path().join("ledger.db.secret"), "the secret of another ledger").unwrap();
    let said = refused(&moved, Options::default()).await;
    assert!(said.contains("another ledger"), "{said}");
    copy(".secret");
    let store = Store::open(&moved, Options::default()).await.unwrap();
    assert_eq!(store.secret_key(PURPOSE), key);
}

#[tokio::test]
async fn s41_a_file_may_have_a_configured_secret_in_place_of_one_beside_it() {
    let folder = Folder::new();
    let address = Address::Sqlite(folder.ledger());
    drop(Store::open(&address, with("correct horse battery")).await.unwrap());
    assert!(!folder.path().join("ledger.db.secret").exists());
    refused(&address, Options::default()).await;
    Store::open(&address, with("correct horse battery")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s41_all_who_use_a_database_have_the_same_secret() {
    let database = Database::create().await;
    let address = Address::Postgres(database.url());
    let open = async |options| Store::open(&address, options).await.unwrap();
    let without = open(Options::default()).await;
    assert!(!without.has_secret());
    let first = open(with("correct horse battery")).await;
    assert!(first.has_secret());
    assert_eq!(first.lasting_key(PURPOSE), without.lasting_key(PURPOSE), "what is in rows stays valid");
    assert_ne!(first.secret_key(PURPOSE), without.secret_key(PURPOSE));
    let second = open(with("correct horse battery")).await;
    assert_eq!(first.secret_key(PURPOSE), second.secret_key(PURPOSE));
    let said = refused(&address, Options::default()).await;
    assert!(said.contains("none is configured here"), "{said}");
    refused(&address, with("another horse and battery")).await;
    drop((without, first, second));
    database.delete().await;
}
