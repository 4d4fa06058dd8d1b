//! Many processes, many tasks, the same keys.

use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use futures_util::future::join_all;
use twicesafe_core::{Policy, Status, Verdict};
use twicesafe_store::{Address, Options, Store};

use super::{go, heard, start, this_program};
use crate::conformance::audit;
use crate::orders::{answered, claim, settle};
use crate::world::{Database, Folder, Kind, Place};

const PROCESSES: usize = 4;
const TASKS: usize = 8;
const KEYS: usize = 200;
const ROUNDS: usize = 5;

/// A child: opens the ledger, and uses it once.
pub async fn open(address: &Address) {
    let store = Store::open(address, Options::default()).await.unwrap();
    let order = claim("the first", &Policy::default()).by(&format!("process {}", std::process::id()));
    store.apply_one(order.into()).await.unwrap();
}

/// A child: carries out every key that it gets a permit for, until all are done.
pub async fn claim_all(address: &Address, folder: &Path) {
    let store = Store::open(address, Options::default()).await.unwrap();
    let effects = folder.join("effects");
    let tasks = (0..TASKS).map(|task| {
        let (store, effects) = (store.clone(), effects.clone());
        tokio::spawn(async move {
            for n in 0..KEYS {
                // Tasks meet at the same keys from two directions.
                let n = if task % 2 == 0 { n } else { KEYS - 1 - n };
                carry_out(&store, &format!("key {n}"), &effects).await;
            }
        })
    });
    join_all(tasks).await.into_iter().for_each(Result::unwrap);
}

/// Claims until it is done; who has a permit acts, once.
async fn carry_out(store: &Store, key: &str, effects: &Path) {
    loop {
        let told = store.apply_one(claim(key, &Policy::default()).into()).await.unwrap();
        match &told.verdict {
            Verdict::Proceed(_) => {
                let mut effects = OpenOptions::new().create(true).append(true).open(effects).unwrap();
                effects.write_all(format!("{key}\n").as_bytes()).unwrap();
                store.apply_one(settle(&told, answered("done"))).await.unwrap();
            }
            Verdict::Replay(_) => return,
            Verdict::Wait(_) => tokio::time::sleep(Duration::from_millis(2)).await,
            other => panic!("{other:?} was not expected"),
        }
    }
}

async fn check_that_each_key_is_done_once(place: Place, kind: Kind) {
    let folder = Folder::new();
    let address = place.address(kind);
    let children: Vec<_> =
        (0..PROCESSES).map(|_| start(this_program(), "claim", &address, folder.path())).collect();
    go(&folder);
    children.into_iter().for_each(|child| assert!(heard(child).1, "a child failed"));
    let effects = std::fs::read_to_string(folder.path().join("effects")).unwrap();
    let mut counted: HashMap<&str, usize> = HashMap::new();
    effects.lines().for_each(|key| *counted.entry(key).or_default() += 1);
    assert_eq!(counted.len(), KEYS);
    assert!(counted.values().all(|n| *n == 1), "{counted:?}");
    let store = Store::open(&address, Options::default()).await.unwrap();
    let intents = audit(&store).await;
    assert_eq!(intents.len(), KEYS);
    assert!(
        intents
            .iter()
            .all(|stored| { (stored.record.status, stored.record.fence.number()) == (Status::Done, 1) })
    );
}

async fn check_that_all_can_make_it_at_once(place: &Place) {
    let folder = Folder::new();
    let address = place.address(Kind::Postgres);
    let children: Vec<_> = (0..6).map(|_| start(this_program(), "open", &address, folder.path())).collect();
    go(&folder);
    children.into_iter().for_each(|child| assert!(heard(child).1, "a child failed"));
    let store = Store::open(&address, Options::default()).await.unwrap();
    assert_eq!(audit(&store).await.len(), 1, "all of them mean the same ledger");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s1_processes_on_sqlite_carry_out_each_key_once() {
    check_that_each_key_is_done_once(Place::Folder(Folder::new()), Kind::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s1_processes_on_postgres_carry_out_each_key_once() {
    check_that_each_key_is_done_once(Place::Database(Database::create().await), Kind::Postgres).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_may_make_a_sqlite_ledger_at_the_same_moment() {
    for _ in 0..ROUNDS {
        check_that_all_can_make_it_at_once(&Place::Folder(Folder::new())).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_may_make_a_postgres_ledger_at_the_same_moment() {
    for _ in 0..ROUNDS {
        check_that_all_can_make_it_at_once(&Place::Database(Database::create().await)).await;
    }
}
