//! A disk that is full: nothing is taken any more, nothing is half taken, and with more room it goes on.

use twicesafe_core::{Answer, Code, Outcome, Policy, Status};
use twicesafe_store::{Address, Options, Store};

use crate::conformance::audit;
use crate::orders::{answered, claim, name, settle};
use crate::world::Folder;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_takes_nothing_by_halves() {
    let folder = Folder::new();
    let address = Address::Sqlite(folder.ledger());
    let options = Options { bytes_max: Some(512 * 1024), ..Options::default() };
    let store = Store::open(&address, options).await.unwrap();
    let pending = store.apply_one(claim("pending", &Policy::default()).into()).await.unwrap();
    let large = Outcome::Answered(Answer::of(vec![7; 10_000]));
    let mut done = Vec::new();
    let error = loop {
        let keys: Vec<String> = (0..8).map(|n| format!("k{}", done.len() + n)).collect();
        let claims = keys.iter().map(|key| claim(key, &Policy::default()).into()).collect();
        let claimed: Result<Vec<_>, _> = store.apply(claims).await.into_iter().collect();
        let claimed = match claimed {
            Ok(claimed) => claimed,
            Err(error) => break error,
        };
        let settles = claimed.iter().map(|claimed| settle(claimed, large.clone())).collect();
        let settled = store.apply(settles).await;
        done.extend(
            keys.into_iter().zip(&settled).filter(|(_, settled)| settled.is_ok()).map(|(key, _)| key),
        );
        if let Some(error) = settled.into_iter().find_map(Result::err) {
            break error;
        }
    };
    assert_eq!(error.code(), Code::DiskFull, "{error}");
    assert!(done.len() > 8);

    // Until there is not even room for a claim.
    let mut fillers = 0;
    let refused = loop {
        match store.apply_one(claim(&format!("filler {fillers}"), &Policy::default()).into()).await {
            Ok(_) => fillers += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(refused.code(), Code::DiskFull, "{refused}");
    assert!(store.find(&name(&format!("filler {fillers}"))).await.unwrap().is_none());
    drop(store);

    let store = Store::open(&address, Options::default()).await.unwrap();
    audit(&store).await;
    for key in &done {
        assert_eq!(store.find(&name(key)).await.unwrap().unwrap().record.status, Status::Done, "{key}");
    }
    let settled = store.apply_one(settle(&pending, answered("at last"))).await.unwrap();
    assert_eq!(settled.stored.unwrap().record.status, Status::Done, "and it goes on (S20)");
    store.apply_one(claim("new", &Policy::default()).into()).await.unwrap();
    audit(&store).await;
}
