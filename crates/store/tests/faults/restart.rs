//! PostgreSQL restarted in the middle, without asking anybody.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use twicesafe_core::{Code, Policy, Status};
use twicesafe_store::{Address, Options, Store};

use crate::conformance::audit;
use crate::orders::{answered, claim, name, permit, settle};
use crate::world::{Database, alone, needed};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s42_a_restart_loses_nothing_acknowledged() {
    let restart = needed("TWICESAFE_TEST_PG_RESTART");
    let alone = alone().await;
    let database = Database::create_alone(&alone).await;
    let store = Store::open(&Address::Postgres(database.url()), Options::default()).await.unwrap();
    let enough = Arc::new(AtomicBool::new(false));
    let callers: Vec<_> = (0..16)
        .map(|caller| {
            let (store, enough) = (store.clone(), enough.clone());
            tokio::spawn(async move {
                let mut acked = Vec::new();
                for n in 0.. {
                    if enough.load(Ordering::SeqCst) {
                        break;
                    }
                    let key = format!("{caller} {n}");
                    let told = store.apply_one(claim(&key, &Policy::default()).into()).await;
                    let Ok(claimed) = told.inspect_err(|error| assert_eq!(error.code(), Code::LedgerAway))
                    else {
                        continue;
                    };
                    permit(&claimed);
                    match store.apply_one(settle(&claimed, answered("once"))).await {
                        Ok(_) => acked.push(key),
                        Err(error) => assert_eq!(error.code(), Code::LedgerAway),
                    }
                }
                acked
            })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(500)).await;
    let restarted = tokio::task::spawn_blocking(move || Command::new("sh").args(["-c", &restart]).output());
    let output = restarted.await.unwrap().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let late = store.apply_one(claim("after the restart", &Policy::default()).into()).await;
    permit(&late.expect("it is there again"));
    enough.store(true, Ordering::SeqCst);
    let mut acked = Vec::new();
    for caller in callers {
        acked.extend(caller.await.unwrap());
    }
    assert!(acked.len() > 16);
    for key in &acked {
        assert_eq!(store.find(&name(key)).await.unwrap().unwrap().record.status, Status::Done, "{key}");
    }
    audit(&store).await;
    drop(store);
    database.delete().await;
}
