//! Act and record in one PostgreSQL transaction.

use std::time::Duration;

use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, IsolationLevel, NoTls};
use twicesafe_ledger::{
    Alert, Answer, ApprovalRule, Attempt, Error, Intent, Ledger, Refusal, Status, TransactionError,
};

use crate::world::{actor, memory, postgres};

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

fn intent() -> Intent {
    Intent::new("shop/reserve", "order:1").unwrap().wait(Duration::from_millis(100))
}

async fn reserve(
    ledger: &Ledger,
    client: &mut Client,
    commit: bool,
) -> Result<bool, TransactionError<tokio_postgres::Error>> {
    let transaction = client.transaction().await.map_err(TransactionError::Act)?;
    let given = ledger
        .transaction(&transaction, &intent(), async |_| {
            transaction.execute("INSERT INTO reservation VALUES (1)", &[]).await?;
            Ok(Answer::of("reserved"))
        })
        .await?;
    if commit { transaction.commit().await } else { transaction.rollback().await }
        .map_err(TransactionError::Act)?;
    Ok(given.replayed)
}

async fn setup() -> (Ledger, String, Client) {
    let url = postgres().await;
    let ledger = Ledger::open(&url).await.unwrap();
    let client = connect(&url).await;
    client.batch_execute("CREATE TABLE reservation (n int)").await.unwrap();
    (ledger, url, client)
}

async fn reservations(url: &str) -> i64 {
    connect(url).await.query_one("SELECT count(*) FROM reservation", &[]).await.unwrap().get(0)
}

#[tokio::test]
async fn act_and_record_commit_together_or_not_at_all() {
    let (ledger, url, mut client) = setup().await;
    assert!(!reserve(&ledger, &mut client, false).await.unwrap());
    assert!(ledger.store().find(intent().name()).await.unwrap().is_none(), "rolled back with the act");
    assert!(!reserve(&ledger, &mut client, true).await.unwrap());
    assert!(reserve(&ledger, &mut client, true).await.unwrap(), "replayed");
    assert_eq!(reservations(&url).await, 1);
    let stored = ledger.store().find(intent().name()).await.unwrap().unwrap();
    assert_eq!(ledger.store().verify_journal(&stored).await.unwrap(), None);
}

#[tokio::test]
async fn others_wait_for_the_transaction_and_nobody_else_is_held_up() {
    let (ledger, url, mut client) = setup().await;
    let transaction = client.transaction().await.unwrap();
    ledger
        .transaction(&transaction, &intent(), async |_| Ok::<_, std::convert::Infallible>(Answer::of("slow")))
        .await
        .unwrap();
    // The transaction is open. The same intent waits; others do not.
    let other = Intent::new("shop/reserve", "order:2").unwrap();
    ledger.run(other, |_| async { Ok(Answer::of("fast")) }).await.unwrap();
    let error = ledger.run(intent(), |_| async { panic!("it is being done") }).await.unwrap_err();
    assert!(matches!(error, Error::Pending { .. }), "{error}");
    let mut second = connect(&url).await;
    let same = reserve(&ledger, &mut second, true).await.unwrap_err();
    assert!(matches!(same, TransactionError::Ledger(Error::Pending { .. })), "{same}");
    transaction.commit().await.unwrap();
    let given = ledger.run(intent(), |_| async { panic!("it was done") }).await.unwrap();
    assert_eq!(given.answer.unwrap().bytes().unwrap(), "slow");
    assert_eq!(reservations(&url).await, 0);
}

/// The lane of an intent is kept with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s15_who_wants_the_lane_of_a_transaction_is_answered_in_time() {
    const WAIT: Duration = Duration::from_millis(1500);
    /// A claim that is under way when the wait ends is still answered.
    const SLACK: Duration = Duration::from_secs(1);
    let (ledger, _, mut client) = setup().await;
    let transaction = client.transaction().await.unwrap();
    let in_lane =
        |key: &str| Intent::new("shop/reserve", key).unwrap().lane("stock:7", None).unwrap().wait(WAIT);
    ledger
        .transaction(&transaction, &in_lane("first"), async |_| {
            Ok::<_, std::convert::Infallible>(Answer::of("slow"))
        })
        .await
        .unwrap();
    let started = std::time::Instant::now();
    let callers: Vec<_> = (0..30)
        .map(|n| {
            let (ledger, intent) = (ledger.clone(), in_lane(&n.to_string()));
            tokio::spawn(async move { ledger.run(intent, |_| async { panic!("it is not its turn") }).await })
        })
        .collect();
    for caller in callers {
        let error = caller.await.unwrap().unwrap_err();
        assert!(matches!(error, Error::Pending { .. }), "{error}");
    }
    assert!(started.elapsed() < WAIT + SLACK, "{:?}", started.elapsed());
    transaction.commit().await.unwrap();
    ledger.run(in_lane("1"), |_| async { Ok(Answer::of("its turn")) }).await.unwrap();
}

#[tokio::test]
async fn a_failing_act_leaves_nothing_behind() {
    let (ledger, _, mut client) = setup().await;
    let transaction = client.transaction().await.unwrap();
    let error = ledger
        .transaction(&transaction, &intent(), async |_| Err::<Answer, _>(std::io::Error::other("no")))
        .await
        .unwrap_err();
    assert!(matches!(error, TransactionError::Act(_)));
    transaction.rollback().await.unwrap();
    assert!(ledger.store().find(intent().name()).await.unwrap().is_none());
    assert!(!reserve(&ledger, &mut client, true).await.unwrap());
}

/// What was settled after the transaction began cannot be seen in it: only another transaction can tell.
#[tokio::test]
async fn s1_a_transaction_that_was_overtaken_is_to_be_started_again() {
    let (ledger, url, mut client) = setup().await;
    for (number, isolation) in
        [IsolationLevel::RepeatableRead, IsolationLevel::Serializable].into_iter().enumerate()
    {
        let intent = || Intent::new("shop/reserve", &format!("order:{number}")).unwrap();
        let mut overtaken = true;
        let mut rounds = 0;
        let given = loop {
            rounds += 1;
            let transaction = client.build_transaction().isolation_level(isolation).start().await.unwrap();
            transaction.query_one("SELECT count(*) FROM reservation", &[]).await.unwrap();
            if std::mem::take(&mut overtaken) {
                ledger.run(intent(), |_| async { Ok(Answer::of("first")) }).await.unwrap();
            }
            let told = ledger
                .transaction(&transaction, &intent(), async |_| {
                    transaction.execute("INSERT INTO reservation VALUES (1)", &[]).await?;
                    Ok::<_, tokio_postgres::Error>(Answer::of("second"))
                })
                .await;
            match told {
                Err(error) if error.sqlstate() == Some(SqlState::T_R_SERIALIZATION_FAILURE.code()) => {
                    let TransactionError::Ledger(error) = error else { panic!("it is the ledger's") };
                    assert_eq!(error.code().as_str(), "TS0056");
                    transaction.rollback().await.unwrap();
                }
                told => break told.unwrap(),
            }
        };
        assert!(given.replayed && rounds == 2, "{isolation:?}: {rounds}");
    }
    assert_eq!(reservations(&url).await, 0);
}

/// Later claims are compared by the recipe of the first one, whatever they would have used themselves.
#[tokio::test]
async fn s4_a_transaction_is_compared_by_the_recipe_of_the_first_claim() {
    let (ledger, _, mut client) = setup().await;
    ledger.run(intent().input(r#"{"a":1}"#), |_| async { Ok(Answer::of("first")) }).await.unwrap();
    let transaction = client.transaction().await.unwrap();
    let act = async |_: &Attempt| Ok::<_, std::convert::Infallible>(Answer::of("second"));
    let same = ledger.transaction(&transaction, &intent().json_input(r#"{"a":1}"#), act).await.unwrap();
    assert!(same.replayed);
    let other = ledger.transaction(&transaction, &intent().json_input(r#"{"a":2}"#), act).await.unwrap_err();
    assert!(matches!(other, TransactionError::Ledger(Error::Ledger(Refusal::Mismatch))), "{other}");
}

/// The caller rolls back what was only held; the question stays, and people hear of it.
#[tokio::test]
async fn s30_what_a_transaction_asks_for_is_held_and_carried_out_after_the_yes() {
    let (ledger, url, mut client) = setup().await;
    let mut alarms = ledger.alarms();
    let asked = || intent().approval(ApprovalRule::default());
    for n in 0..2 {
        let transaction = client.transaction().await.unwrap();
        transaction.execute("INSERT INTO reservation VALUES (0)", &[]).await.unwrap();
        let error = ledger
            .transaction(&transaction, &asked(), async |_| -> Result<Answer, tokio_postgres::Error> {
                panic!("nobody said yes")
            })
            .await
            .unwrap_err();
        assert!(matches!(error, TransactionError::Ledger(Error::Held { .. })), "{n}: {error}");
        transaction.rollback().await.unwrap();
    }
    let held = ledger.store().find(intent().name()).await.unwrap().expect("the question is on record");
    assert_eq!(held.record.status, Status::Held);
    assert_eq!(alarms.try_recv().unwrap().alert, Alert::Held);
    assert!(alarms.try_recv().is_err(), "once");
    ledger.approve(&actor("person:ann"), &held).await.unwrap();
    let transaction = client.transaction().await.unwrap();
    let given = ledger
        .transaction(&transaction, &asked(), async |_| {
            transaction.execute("INSERT INTO reservation VALUES (1)", &[]).await?;
            Ok::<_, tokio_postgres::Error>(Answer::of("reserved"))
        })
        .await
        .unwrap();
    transaction.commit().await.unwrap();
    assert!(!given.replayed);
    assert_eq!(reservations(&url).await, 1);
    let stored = ledger.store().find(intent().name()).await.unwrap().unwrap();
    assert_eq!(stored.record.status, Status::Done);
    assert_eq!(ledger.store().verify_journal(&stored).await.unwrap(), None);
}

/// A ledger that lost its tail asks about what it does not know, and the question outlives the transaction.
#[tokio::test]
async fn s43_what_a_transaction_meets_while_the_ledger_recovers_is_for_a_person() {
    let (ledger, url, mut client) = setup().await;
    let mut alarms = ledger.alarms();
    ledger.store().recover_since(Some(ledger.store().now().await.unwrap())).await.unwrap();
    for n in 0..2 {
        let transaction = client.transaction().await.unwrap();
        let error = ledger
            .transaction(&transaction, &intent(), async |_| -> Result<Answer, tokio_postgres::Error> {
                panic!("it may have happened before")
            })
            .await
            .unwrap_err();
        assert!(matches!(error, TransactionError::Ledger(Error::Review)), "{n}: {error}");
        transaction.rollback().await.unwrap();
    }
    let stored = ledger.store().find(intent().name()).await.unwrap().expect("the question is on record");
    assert_eq!(stored.record.status, Status::Review);
    assert_eq!(alarms.try_recv().unwrap().alert, Alert::Review { blocks: None });
    assert_eq!(reservations(&url).await, 0);
}

#[tokio::test]
async fn two_transactions_that_wait_for_each_other_are_told_to_start_again_or_later() {
    let (ledger, url, mut client) = setup().await;
    let mut other = connect(&url).await;
    let (first, second) = (client.transaction().await.unwrap(), other.transaction().await.unwrap());
    let intent = |key: &str| Intent::new("shop/reserve", key).unwrap();
    let act = async |_: &Attempt| Ok::<_, std::convert::Infallible>(Answer::of("done"));
    ledger.transaction(&first, &intent("a"), act).await.unwrap();
    ledger.transaction(&second, &intent("b"), act).await.unwrap();
    let (b, a) = (intent("b"), intent("a"));
    let crossed = tokio::join!(ledger.transaction(&first, &b, act), ledger.transaction(&second, &a, act));
    for error in [crossed.0.err(), crossed.1.err()].into_iter().flatten() {
        let pending = matches!(error, TransactionError::Ledger(Error::Pending { .. }));
        assert!(pending || error.sqlstate() == Some("40P01"), "{error}");
    }
}

#[tokio::test]
async fn only_a_postgres_ledger_can_take_part() {
    let url = postgres().await;
    let mut client = connect(&url).await;
    let transaction = client.transaction().await.unwrap();
    let error = memory()
        .await
        .transaction(&transaction, &intent(), async |_| Ok::<_, std::io::Error>(Answer::default()))
        .await
        .unwrap_err();
    assert!(matches!(error, TransactionError::Ledger(Error::Store(_))), "{error}");
}

/// A row that somebody's own transaction keeps is left for later; everything else is swept.
#[tokio::test]
async fn s23_a_sweep_goes_on_beside_what_a_transaction_keeps() {
    let (ledger, _, client) = setup().await;
    let lease = Duration::from_millis(200);
    for key in ["kept", "free"] {
        ledger.claim(&Intent::new("shop/reserve", key).unwrap().lease(lease)).await.unwrap();
    }
    tokio::time::sleep(lease * 2).await;
    client.batch_execute("BEGIN; SELECT FROM intent WHERE key = 'kept' FOR UPDATE").await.unwrap();
    let swept = ledger.sweep().await.unwrap();
    assert_eq!(swept.expired, 1, "the other one");
    client.batch_execute("COMMIT").await.unwrap();
    assert_eq!(ledger.sweep().await.unwrap().expired, 1);
    assert_eq!(ledger.sweep().await.unwrap().expired, 0);
}
