//! A process killed in the middle of a batch (S42): what it acknowledged is there, and nothing is half there.

use std::io::{BufRead, BufReader};
use std::time::{Duration, Instant};

use twicesafe_core::{Answer, Outcome, Policy, Status, Verdict};
use twicesafe_store::{Address, Options, Store};

use super::{go, say, start, this_program};
use crate::conformance::audit;
use crate::orders::{claim, name, settle};
use crate::world::{Database, Folder, Kind, Place};

const TASKS: usize = 32;
/// How long after its first word a child is killed.
const LIVES_MILLIS: [u64; 5] = [0, 17, 61, 130, 301];
/// A new start must not take longer than that.
const REOPEN_MAX: Duration = Duration::from_secs(2);

fn answer(key: &str) -> Answer {
    Answer::of(key.repeat(100)).with_external_id(key)
}

/// A child: claims and settles new keys until it is killed, and says which ones it was told are done.
pub async fn load(address: &Address) {
    let store = Store::open(address, Options::default()).await.unwrap();
    let tasks = (0..TASKS).map(|task| {
        let store = store.clone();
        tokio::spawn(async move {
            for n in 0.. {
                let key = format!("{} {task} {n}", std::process::id());
                let mut claiming = claim(&key, &Policy::default());
                if task % 4 == 0 {
                    claiming = claiming.in_lane(&format!("lane {} {task}", std::process::id()), Some(n));
                }
                let claimed = store.apply_one(claiming.into()).await.unwrap();
                let settled =
                    store.apply_one(settle(&claimed, Outcome::Answered(answer(&key)))).await.unwrap();
                assert!(matches!(settled.verdict, Verdict::Noted(noted) if noted.status == Status::Done));
                say(&format!("acked {key}"));
            }
        })
    });
    futures_util::future::join_all(tasks).await;
}

/// Waits until nobody else is connected, for ten seconds at most.
const UNTIL_IT_HAS_LEFT: &str = "DO $$ BEGIN
    FOR i IN 1..500 LOOP
        PERFORM pg_stat_clear_snapshot();
        IF NOT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database()
            AND pid <> pg_backend_pid() AND backend_type = 'client backend') THEN RETURN; END IF;
        PERFORM pg_sleep(0.02);
    END LOOP;
END $$";

async fn check_that_nothing_acknowledged_is_lost(place: Place, kind: Kind) {
    let address = place.address(kind);
    let folder = Folder::new();
    go(&folder);
    let mut acked = Vec::new();
    for millis in LIVES_MILLIS {
        let mut child = start(this_program(), "load", &address, folder.path());
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut said: Vec<String> = Vec::new();
        while !said.iter().any(|line| line.starts_with("acked ")) {
            said.push(lines.next().expect("the child works").unwrap());
        }
        std::thread::sleep(Duration::from_millis(millis));
        child.kill().unwrap();
        child.wait().unwrap();
        if let Place::Database(database) = &place {
            // The server may still be at the last thing it was asked for.
            database.try_run(UNTIL_IT_HAS_LEFT).await.unwrap();
        }
        said.extend(lines.map_while(Result::ok));
        let keys = said.iter().filter_map(|line| line.strip_prefix("acked "));
        let keys: Vec<String> = keys.map(str::to_owned).collect();
        assert!(!keys.is_empty());
        acked.extend(keys);

        let start = Instant::now();
        let store = Store::open(&address, Options::default()).await.unwrap();
        store.apply_one(claim(&format!("after {millis}"), &Policy::default()).into()).await.unwrap();
        assert!(start.elapsed() < REOPEN_MAX, "reopening took {:?}", start.elapsed());
        let intents = audit(&store).await;
        assert!(intents.iter().all(|stored| matches!(stored.record.status, Status::Pending | Status::Done)));
        for key in &acked {
            let stored = store.find(&name(key)).await.unwrap().expect("what was acknowledged is there");
            assert_eq!(stored.record.status, Status::Done, "{key}");
            assert_eq!(stored.record.answer, Some(answer(key)), "{key}");
        }
    }
    println!("{} acknowledged, none lost", acked.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s42_a_process_killed_on_sqlite_loses_nothing_it_acknowledged() {
    check_that_nothing_acknowledged_is_lost(Place::Folder(Folder::new()), Kind::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s42_a_process_killed_on_postgres_loses_nothing_it_acknowledged() {
    check_that_nothing_acknowledged_is_lost(Place::Database(Database::create().await), Kind::Postgres).await;
}
