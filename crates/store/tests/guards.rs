//! Effects guarded inside the caller's own transaction: act and record commit together or not at all.

use std::time::{Duration, Instant};

use tokio_postgres::{Client, IsolationLevel, NoTls, Transaction};
use twicesafe_core::{Code, Policy, Status, Verdict, WaitCause};
use twicesafe_store::{Applied, Guard, Order, Store};

use crate::conformance::audit;
use crate::orders::{answered, claim, name, settle};
use crate::world::{Kind, Place, World, postgres_url};

/// A ledger, and a caller with a connection and a table of its own.
struct Scene {
    world: World,
    guard: Guard,
    client: Client,
}

impl Scene {
    async fn new() -> Self {
        let world = World::new(Kind::Postgres).await;
        let guard = world.store.guard().expect("PostgreSQL has one");
        let client = connect(&world).await;
        client.batch_execute("CREATE TABLE public.act (key text)").await.unwrap();
        Self { world, guard, client }
    }

    async fn acts(&self) -> i64 {
        let client = connect(&self.world).await;
        client.query_typed_one("SELECT count(*) FROM public.act", &[]).await.unwrap().get(0)
    }

    async fn end(self) {
        drop(self.client);
        audit(&self.world.store).await;
        self.world.end().await;
    }
}

/// As a caller would connect: with a search path and a lock timeout of its own.
async fn connect(world: &World) -> Client {
    let Place::Database(database) = &world.place else { panic!("a ledger in a database") };
    connect_to(&database.url()).await
}

async fn connect_to(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client.batch_execute("SET search_path = pg_catalog; SET lock_timeout = '7s'").await.unwrap();
    client
}

async fn act(transaction: &Transaction<'_>) {
    transaction.batch_execute("INSERT INTO public.act VALUES ('done')").await.unwrap();
}

/// Claims, acts and settles in one transaction.
async fn carry_out(guard: &Guard, transaction: &Transaction<'_>, order: impl Into<Order>) -> Applied {
    let claimed = guard.claim(transaction, order.into()).await.unwrap();
    act(transaction).await;
    guard.settle(transaction, settle(&claimed, answered("once"))).await.unwrap()
}

async fn claim_outside(store: &Store, key: &str) -> Verdict {
    store.apply_one(claim(key, &Policy::default()).into()).await.unwrap().verdict
}

fn waits(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::Wait(wait) if wait.cause == WaitCause::Pending)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn act_and_record_commit_together() {
    let mut scene = Scene::new().await;
    for isolation in [IsolationLevel::ReadCommitted, IsolationLevel::Serializable] {
        let key = format!("{isolation:?}");
        let transaction = scene.client.build_transaction().isolation_level(isolation).start().await.unwrap();
        carry_out(&scene.guard, &transaction, claim(&key, &Policy::default())).await;
        let timeout = transaction.query_typed_one("SHOW lock_timeout", &[]).await.unwrap();
        assert_eq!(timeout.get::<_, &str>(0), "7s", "the caller's settings stay");
        transaction.commit().await.unwrap();
        assert!(matches!(claim_outside(&scene.world.store, &key).await, Verdict::Replay(_)));
    }
    assert_eq!(scene.acts().await, 2);
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_rolled_back_leaves_neither_act_nor_record() {
    let mut scene = Scene::new().await;
    let transaction = scene.client.transaction().await.unwrap();
    carry_out(&scene.guard, &transaction, claim("a", &Policy::default())).await;
    transaction.rollback().await.unwrap();
    assert_eq!(scene.acts().await, 0);
    assert_eq!(scene.world.store.find(&name("a")).await.unwrap(), None);
    assert!(matches!(claim_outside(&scene.world.store, "a").await, Verdict::Proceed(_)));
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn others_wait_for_a_guarded_name_and_for_nothing_else() {
    let mut scene = Scene::new().await;
    let store = scene.world.store.clone();
    let transaction = scene.client.transaction().await.unwrap();
    carry_out(&scene.guard, &transaction, claim("kept", &Policy::default())).await;
    let orders = ["a", "kept", "b", "c"].map(|key| claim(key, &Policy::default()).into());
    let verdicts: Vec<Verdict> =
        store.apply(orders.into()).await.into_iter().map(|applied| applied.unwrap().verdict).collect();
    assert!(waits(&verdicts[1]), "{:?}", verdicts[1]);
    for verdict in [&verdicts[0], &verdicts[2], &verdicts[3]] {
        assert!(matches!(verdict, Verdict::Proceed(_)), "{verdict:?}");
    }
    // Once it is known to be kept, it does not hold up others at all.
    let start = Instant::now();
    let (kept, other) = tokio::join!(claim_outside(&store, "kept"), claim_outside(&store, "d"));
    assert!(waits(&kept) && matches!(other, Verdict::Proceed(_)));
    assert!(start.elapsed() < Duration::from_millis(200), "{:?}", start.elapsed());
    transaction.commit().await.unwrap();
    assert!(matches!(claim_outside(&store, "kept").await, Verdict::Replay(_)));
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_second_guard_of_a_name_waits_and_its_transaction_goes_on() {
    let mut scene = Scene::new().await;
    let mut other = connect(&scene.world).await;
    let first = scene.client.transaction().await.unwrap();
    let claimed = scene.guard.claim(&first, claim("a", &Policy::default()).into()).await.unwrap();
    let second = other.transaction().await.unwrap();
    let told = scene.guard.claim(&second, claim("a", &Policy::default()).into()).await.unwrap();
    assert!(waits(&told.verdict) && told.stored.is_none(), "{:?}", told.verdict);
    act(&second).await;
    second.commit().await.unwrap();
    scene.guard.settle(&first, settle(&claimed, answered("once"))).await.unwrap();
    first.commit().await.unwrap();
    let stored = scene.world.store.find(&name("a")).await.unwrap().unwrap();
    assert_eq!((stored.record.status, scene.acts().await), (Status::Done, 1));
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s15_a_guard_keeps_its_lane_until_it_commits() {
    let mut scene = Scene::new().await;
    let policy = Policy::default();
    let transaction = scene.client.transaction().await.unwrap();
    let order = claim("first", &policy).in_lane("crm:contact:881", Some(1));
    carry_out(&scene.guard, &transaction, order).await;
    let second = || Order::from(claim("second", &policy).in_lane("crm:contact:881", Some(2)));
    let told = scene.world.store.apply_one(second()).await.unwrap();
    assert!(matches!(told.verdict, Verdict::Wait(wait) if wait.cause == WaitCause::Lane(None)));
    transaction.commit().await.unwrap();
    let told = scene.world.store.apply_one(second()).await.unwrap();
    assert!(matches!(told.verdict, Verdict::Proceed(_)), "{:?}", told.verdict);
    scene.end().await;
}

/// However many want it, and however long it takes: those who claim come back later, what settles waits a while.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s15_a_lane_that_a_guard_keeps_holds_up_nobody() {
    let mut scene = Scene::new().await;
    let (store, policy) = (scene.world.store.clone(), Policy::default());
    let elsewhere = store.apply_one(claim("elsewhere", &policy).in_lane("other", None).into()).await.unwrap();
    let transaction = scene.client.transaction().await.unwrap();
    carry_out(&scene.guard, &transaction, claim("first", &policy).in_lane("kept", Some(1))).await;
    // What is known of the time is old by now.
    tokio::time::sleep(Duration::from_millis(1200)).await;
    let start = Instant::now();
    let mut orders: Vec<Order> =
        (0..30).map(|n| claim(&format!("{n}"), &policy).in_lane("kept", Some(n)).into()).collect();
    orders.push(settle(&elsewhere, answered("once")));
    orders.push(claim("no lane", &policy).into());
    let told = store.apply(orders).await;
    assert!(start.elapsed() < Duration::from_millis(400), "{:?}", start.elapsed());
    for told in &told[..30] {
        let verdict = &told.as_ref().unwrap().verdict;
        assert!(matches!(verdict, Verdict::Wait(wait) if wait.cause == WaitCause::Lane(None)), "{verdict:?}");
    }
    assert!(matches!(told[30].as_ref().unwrap().verdict, Verdict::Noted(_)));
    assert!(matches!(told[31].as_ref().unwrap().verdict, Verdict::Proceed(_)));

    let mut other = connect(&scene.world).await;
    let second = other.transaction().await.unwrap();
    let order = claim("second", &policy).in_lane("kept", Some(50));
    let told = scene.guard.claim(&second, order.into()).await.unwrap();
    assert!(matches!(told.verdict, Verdict::Wait(wait) if wait.cause == WaitCause::Lane(None)));
    act(&second).await;
    second.commit().await.unwrap();
    transaction.commit().await.unwrap();
    let told = store.apply_one(claim("29", &policy).in_lane("kept", Some(29)).into()).await.unwrap();
    assert!(matches!(told.verdict, Verdict::Proceed(_)), "{:?}", told.verdict);
    scene.end().await;
}

/// What settles in a lane that a guard keeps waits for it, alone, and is told so when it takes too long.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s15_who_is_told_to_wait_in_a_transaction_keeps_nobody_from_settling() {
    let mut scene = Scene::new().await;
    let (store, policy) = (scene.world.store.clone(), Policy::default());
    let pending = store.apply_one(claim("pending", &policy).in_lane("kept", Some(1)).into()).await.unwrap();
    let transaction = scene.client.transaction().await.unwrap();
    let order = claim("second", &policy).in_lane("kept", Some(2));
    let told = scene.guard.claim(&transaction, order.into()).await.unwrap();
    assert!(matches!(told.verdict, Verdict::Wait(wait) if wait.cause != WaitCause::Pending));
    let settling = {
        let orders = vec![settle(&pending, answered("once")), claim("no lane", &policy).into()];
        store.apply(orders).await.into_iter().map(|applied| applied.unwrap().verdict)
    };
    let verdicts: Vec<_> = settling.collect();
    transaction.commit().await.unwrap();
    assert!(matches!(verdicts[..], [Verdict::Noted(_), Verdict::Proceed(_)]), "{verdicts:?}");
    scene.end().await;
}

/// A lock that is no guard's: found out by waiting, once for all who want the lane.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s15_a_lane_that_somebody_locked_by_hand_is_waited_for_once() {
    let scene = Scene::new().await;
    let (store, policy) = (scene.world.store.clone(), Policy::default());
    let first = store.apply_one(claim("first", &policy).in_lane("kept", None).into()).await.unwrap();
    store.apply_one(settle(&first, answered("once"))).await.unwrap();
    scene.client.batch_execute("BEGIN; SELECT FROM public.lane FOR UPDATE").await.unwrap();
    let start = Instant::now();
    let orders = (0..30).map(|n| claim(&format!("{n}"), &policy).in_lane("kept", Some(n)).into()).collect();
    for told in store.apply(orders).await {
        let verdict = told.unwrap().verdict;
        assert!(matches!(verdict, Verdict::Wait(wait) if wait.cause == WaitCause::Lane(None)), "{verdict:?}");
    }
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    scene.client.batch_execute("COMMIT").await.unwrap();
    scene.end().await;
}

/// In a database without a ledger, in one with another, and in a copy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s7_a_transaction_on_another_database_is_refused() {
    let scene = Scene::new().await;
    let other = scene.world.beside(Kind::Postgres).await;
    let key = "SELECT encode(hash_key, 'hex') FROM public.ledger";
    let key: String = scene.client.query_typed_one(key, &[]).await.unwrap().get(0);
    let with_another = connect_to(&other.address().to_string()).await;
    let without = connect_to(&postgres_url()).await;
    for (mut client, is_copy) in [(without, false), (with_another, false), (connect(&other).await, true)] {
        if is_copy {
            other.sql(&format!("UPDATE ledger SET hash_key = decode('{key}', 'hex')")).await;
        }
        let transaction = client.transaction().await.unwrap();
        let refused = scene.guard.claim(&transaction, claim("a", &Policy::default()).into()).await;
        assert_eq!(refused.unwrap_err().code(), Code::OtherDatabase);
        transaction.batch_execute("SELECT 'it goes on'").await.unwrap();
        transaction.commit().await.unwrap();
    }
    assert_eq!(other.store.find(&name("a")).await.unwrap(), None);
    other.end().await;
    scene.end().await;
}
