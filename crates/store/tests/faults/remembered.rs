//! What a store remembers of a database whose tail was lost, and written again otherwise (S43).

use twicesafe_core::{Policy, Status, Verdict};
use twicesafe_store::{Address, Applied, Options, Store};

use crate::orders::{answered, claim, settle};
use crate::world::Database;

async fn done(store: &Store, key: &str, answer: &'static str) -> Applied {
    let claimed = store.apply_one(claim(key, &Policy::default()).into()).await.unwrap();
    store.apply_one(settle(&claimed, answered(answer))).await.unwrap()
}

/// Takes an intent away as if its rows had never arrived, and lets its number be given again.
async fn lose(database: &Database, number: i64) {
    database.run(&format!("DELETE FROM intent WHERE id = {number}")).await;
    database.run(&format!("SELECT setval('intent_number', {number}, false)")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s43_what_is_remembered_is_not_told_once_the_number_has_another_journal() {
    let database = Database::create().await;
    let address = Address::Postgres(database.url());
    let remembering = Store::open(&address, Options { remember: true, ..Options::default() }).await.unwrap();
    let first = done(&remembering, "k", "first").await.stored.unwrap();
    lose(&database, first.id.number()).await;
    let other = Store::open(&address, Options::default()).await.unwrap();
    let second = done(&other, "k", "second").await.stored.unwrap();
    assert_eq!((second.id, second.version), (first.id, first.version), "only the journal tells them apart");

    // Alone, and in a batch with what is written and with what is remembered and still so.
    let alone = remembering.apply_one(claim("k", &Policy::default()).into()).await.unwrap();
    check_told(&alone, &second);
    let same = done(&remembering, "same", "first").await.stored.unwrap();
    lose(&database, same.id.number()).await;
    let same = done(&other, "same", "second").await.stored.unwrap();
    let orders = ["new", "same", "k"].map(|key| claim(key, &Policy::default()).into());
    let told: Vec<Applied> = remembering.apply(orders.into()).await.into_iter().map(Result::unwrap).collect();
    assert!(matches!(told[0].verdict, Verdict::Proceed(_)), "{:?}", told[0].verdict);
    check_told(&told[1], &same);
    check_told(&told[2], &second);
    drop((remembering, other));
    database.delete().await;
}

/// Checks that a claim is answered with what is on record now.
#[track_caller]
fn check_told(told: &Applied, on_record: &twicesafe_store::Stored) {
    let Verdict::Replay(replay) = &told.verdict else { panic!("no replay but {:?}", told.verdict) };
    assert_eq!((on_record.record.status, &replay.answer), (Status::Done, &on_record.record.answer));
}
