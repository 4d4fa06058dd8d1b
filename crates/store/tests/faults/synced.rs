//! What PostgreSQL waits for when it commits what the store wrote (S7, S20).

use twicesafe_core::{Action, Policy, Recovery, Reset};
use twicesafe_store::{Address, Options, Order, Store};

use crate::orders::{about, answered, claim, settle};
use crate::world::Database;

/// Notes with each write of an intent under which setting its transaction commits: a deferred trigger runs at the commit.
const WITNESS: &str = "
    CREATE TABLE witness (n bigserial, key text, status text, setting text);
    CREATE FUNCTION witness_commit() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO public.witness (key, status, setting)
        VALUES (NEW.key, NEW.status, current_setting('synchronous_commit'));
        RETURN NULL;
    END $$;
    CREATE CONSTRAINT TRIGGER witness_commit AFTER INSERT OR UPDATE ON intent
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION witness_commit()";

/// Status and setting of each write of an intent, in order.
async fn seen(database: &Database, key: &str) -> Vec<(String, String)> {
    let (client, connection) = tokio_postgres::connect(&database.url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let sql = "SELECT status, setting FROM witness WHERE key = $1 ORDER BY n";
    let rows = client.query(sql, &[&key]).await.unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

#[track_caller]
fn check(seen: &[(String, String)], expected: &[(&str, &str)]) {
    let seen: Vec<(&str, &str)> =
        seen.iter().map(|(status, setting)| (status.as_str(), setting.as_str())).collect();
    assert_eq!(seen, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s20_everything_but_a_claim_of_what_may_be_repeated_is_synced_before_it_is_acknowledged() {
    let database = Database::create().await;
    let store = Store::open(&Address::Postgres(database.url()), Options::default()).await.unwrap();
    database.run(WITNESS).await;
    let person = Policy::default();
    let repeat = Policy::new(Recovery::Repeat);
    let all = [("person", &person, false), ("repeat", &repeat, false), ("in a lane", &repeat, true)];
    for (key, policy, in_lane) in all {
        let mut claiming = claim(key, policy);
        if in_lane {
            claiming = claiming.in_lane("contact:881", None);
        }
        let claimed = store.apply_one(claiming.into()).await.unwrap();
        let done = store.apply_one(settle(&claimed, answered("once"))).await.unwrap();
        let reset = Reset { generation: 1, reason: "again".into() };
        store.apply_one(about(&done, "ann", Action::Reset(reset))).await.unwrap();
        let of_claim = if key == "repeat" { "off" } else { "on" };
        let expected = [("pending", of_claim), ("done", "on"), ("ready", "on")];
        check(&seen(&database, key).await, &expected);
    }
    drop(store);
    database.delete().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s20_a_settle_among_claims_of_what_may_be_repeated_is_synced() {
    let database = Database::create().await;
    let store = Store::open(&Address::Postgres(database.url()), Options::default()).await.unwrap();
    database.run(WITNESS).await;
    let repeat = Policy::new(Recovery::Repeat);
    let claimed = store.apply_one(claim("settled", &repeat).into()).await.unwrap();
    let mut orders: Vec<Order> = (0..8).map(|n| claim(&format!("k{n}"), &repeat).into()).collect();
    orders.insert(4, settle(&claimed, answered("once")));
    store.apply(orders).await.into_iter().for_each(|applied| drop(applied.unwrap()));
    check(&seen(&database, "settled").await, &[("pending", "off"), ("done", "on")]);
    drop(store);
    database.delete().await;
}
