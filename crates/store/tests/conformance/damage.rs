//! Ledgers changed by hand: noticed, and contained.

use twicesafe_core::{Action, Answer, Code, Forget, Outcome, Policy, Purge, Reset, Status};
use twicesafe_store::{JournalFault, Options, Order, Store, StoreError};

use crate::orders::{about, answered, claim, command, name, permit, settle};
use crate::world::{Kind, World};

pub async fn a_row_that_cannot_be_read_does_not_take_its_batch_with_it(world: &World) {
    let policy = Policy::default();
    let mut orders = Vec::new();
    for key in ["a", "b", "c"] {
        let claimed = world.tell(claim(key, &policy)).await;
        let mut order = settle(&claimed, answered("done"));
        order.believed = None;
        orders.push(order);
    }
    world.sql("UPDATE intent SET policy = 'broken' WHERE key = 'b'").await;
    orders.extend([claim("b", &policy).into(), claim("new", &policy).into()]);
    let told = world.store.apply(orders).await;
    let codes: Vec<_> =
        told.iter().map(|told| told.as_ref().map(drop).map_err(|error| error.code())).collect();
    let damaged = Err(Code::LedgerDamaged);
    assert_eq!(codes, [Ok(()), damaged, Ok(()), damaged, Ok(())]);
    assert_eq!(world.other.find(&name("b")).await.unwrap_err().code(), Code::LedgerDamaged);
    assert_eq!(world.other.find(&name("c")).await.unwrap().unwrap().record.status, Status::Done);
}

/// Under a name stands somebody else's row: nobody is given its answer, however many ask at once.
pub async fn a_row_with_another_name_is_nobodys_answer(world: &World) {
    let policy = Policy::default();
    let claimed = world.tell(claim("mine", &policy)).await;
    world.tell(settle(&claimed, answered("mine"))).await;
    world.tell(claim("another", &policy)).await;
    world.sql("UPDATE intent SET key = 'yours' WHERE key = 'mine'").await;
    // Who carried it out may still know better.
    let store = world.open().await;
    let told = store.apply((0..3).map(|_| claim("mine", &policy).into()).collect()).await;
    let codes: Vec<_> = told
        .iter()
        .map(|told| told.as_ref().map(|told| &told.verdict).map_err(|error| error.code()))
        .collect();
    assert_eq!(codes, [const { Err(Code::LedgerDamaged) }; 3]);
}

/// Every name would look new.
pub async fn s1_a_ledger_found_by_other_hashes_is_not_opened(world: &World) {
    world.tell(claim("mine", &Policy::default())).await;
    // Made before keys said what they make; and by one that makes something else.
    for bytes in [32, 80] {
        let forget = format!("UPDATE ledger SET hash_key = zeroblob({bytes})");
        let forget_there = format!("UPDATE ledger SET hash_key = decode(repeat('00', {bytes}), 'hex')");
        world.sql_of(&forget, &forget_there).await;
        let opened = Store::open(&world.address(), Options::default()).await;
        assert_eq!(opened.map(drop).map_err(|error| error.code()), Err(Code::LedgerDamaged), "{bytes}");
    }
}

/// The database does not take what a report would write: the report fails, and none of it is written.
pub async fn a_row_that_cannot_be_written_does_not_take_its_batch_with_it(world: &World) {
    let policy = Policy::default();
    let mut orders = Vec::new();
    for key in ["a", "b", "c"] {
        let claimed = world.tell(claim(key, &policy)).await;
        orders.push(settle(&claimed, answered("done")));
    }
    let copy = "INSERT INTO journal (intent, number, at, actor, event, status, doubt, generation, fence, reason, words, hash)
        SELECT intent, 2, at, actor, event, status, doubt, generation, fence, reason, words, hash
        FROM journal WHERE intent = (SELECT id FROM intent WHERE key = 'b')";
    let forbid = "ALTER TABLE intent ADD CONSTRAINT forbidden CHECK (key <> 'b' OR status <> 'done')";
    world.sql_of(copy, forbid).await;
    let before = world.other.find(&name("b")).await.unwrap().unwrap();
    let told = world.store.apply(orders.clone()).await;
    assert!(told[0].is_ok() && told[2].is_ok(), "{told:?}");
    assert!(told[1].is_err(), "{told:?}");
    assert_eq!(world.other.find(&name("b")).await.unwrap().unwrap(), before, "nothing is half written");
    assert_eq!(world.other.find(&name("c")).await.unwrap().unwrap().record.status, Status::Done);

    let copied = "DELETE FROM journal WHERE number = 2 AND intent = (SELECT id FROM intent WHERE key = 'b')";
    world.sql_of(copied, "ALTER TABLE intent DROP CONSTRAINT forbidden").await;
    let settled = world.tell(orders.swap_remove(1)).await;
    assert_eq!(settled.stored.unwrap().record.status, Status::Done);
    super::audit(&world.other).await;
}

/// An intent with a journal of four rows, and what is wrong with it after a change by hand.
async fn fault_after(world: &World, key: &str, change: &str) -> Option<JournalFault> {
    let policy = Policy::default();
    let claimed = world.tell(claim(key, &policy)).await;
    let done = world.tell(settle(&claimed, answered("done"))).await;
    let fresh =
        world.tell(about(&done, "ann", Action::Reset(Reset { generation: 1, reason: "again".into() }))).await;
    permit(&world.tell(claim(key, &policy)).await);
    let intent = fresh.stored.unwrap().id.number();
    world.sql(&change.replace("THIS", &intent.to_string())).await;
    fault(&world.other, key).await
}

async fn fault(store: &Store, key: &str) -> Option<JournalFault> {
    let stored = store.find(&name(key)).await.unwrap().unwrap();
    store.verify_journal(&stored).await.unwrap()
}

pub async fn s40_a_changed_row_is_found(world: &World) {
    let changes = [
        "at = at + 1",
        "actor = 'mallory'",
        "event = 'not sent'",
        "status = 'failed'",
        "doubt = NOT doubt",
        "generation = 7",
        "fence = 7",
        "reason = 'because'",
        "words = (SELECT salt FROM intent WHERE id = THIS)",
        "digest = hash",
        "digest = NULL",
    ];
    for (n, change) in changes.into_iter().enumerate() {
        // A digest of another length is damage rather than a change.
        let change = change.replace("digest = hash", "digest = (SELECT salt FROM intent WHERE id = THIS)");
        let statement = format!("UPDATE journal SET {change} WHERE intent = THIS AND number = 2");
        let fault = fault_after(world, &format!("k{n}"), &statement).await;
        assert_eq!(fault.map(|fault| fault.number), Some(2), "{change}");
    }
    assert_eq!(fault_after(world, "untouched", "DELETE FROM journal WHERE intent = 4711").await, None);
}

pub async fn s40_a_deleted_row_is_found(world: &World) {
    for number in 1..=3 {
        let statement = format!("DELETE FROM journal WHERE intent = THIS AND number = {number}");
        let fault = fault_after(world, &format!("k{number}"), &statement).await;
        assert_eq!(fault, Some(JournalFault { number, what: "a row is missing" }));
    }
    let renumbered = "DELETE FROM journal WHERE intent = THIS AND number = 2;
        UPDATE journal SET number = 2 WHERE intent = THIS AND number = 3;
        UPDATE journal SET number = 3 WHERE intent = THIS AND number = 4";
    assert_eq!(fault_after(world, "renumbered", renumbered).await.map(|fault| fault.number), Some(2));
}

pub async fn s40_a_cut_end_is_found(world: &World) {
    for (from, key) in [(4, "last"), (2, "half"), (1, "all")] {
        let statement = format!("DELETE FROM journal WHERE intent = THIS AND number >= {from}");
        let fault = fault_after(world, key, &statement).await;
        assert_eq!(fault, Some(JournalFault { number: from - 1, what: "the end does not fit the intent" }));
    }
}

/// A request that SQLite keeps in two halves, and its end.
const LONG: [u8; 2_307] = {
    let mut long = [b'.'; 2_307];
    long.last_chunk_mut::<10>().unwrap().copy_from_slice(END);
    long
};
const END: &[u8] = b"hidden end";

pub async fn half_a_request_is_not_sent(world: &World) {
    let claimed = world.tell(claim("k", &Policy::default()).with_request(&LONG)).await;
    let id = claimed.stored.unwrap().id;
    assert_eq!(world.other.request(id).await.unwrap().as_deref(), Some(&LONG[..]));
    world.sql_of("DELETE FROM request_rest", "UPDATE intent SET request = NULL").await;
    // Then somebody "mends" it, with text.
    for mended in ["SELECT 1", "UPDATE request SET body = 'POST /'"] {
        world.sql_of(mended, "SELECT 1").await;
        let found = world.other.request(id).await;
        let is_found_out = match world.kind {
            Kind::Sqlite | Kind::Remembering => matches!(found, Err(StoreError::Damaged(_))),
            _ => matches!(found, Ok(None)),
        };
        assert!(is_found_out, "{mended}: {found:?}");
    }
}

pub async fn s40_forgotten_text_is_nowhere(world: &World) {
    let policy = Policy::default();
    let order = claim("the secret key", &policy).with_request(b"the secret request");
    let claimed = world.tell(order).await;
    let answer = Answer { head: "the secret head".into(), ..Answer::of("the secret body") };
    let done = world.tell(settle(&claimed, Outcome::Answered(answer.clone()))).await;
    let fresh =
        world.tell(about(&done, "ann", Action::Reset(Reset { generation: 1, reason: "again".into() }))).await;
    let claimed = world.tell(claim("the secret key", &policy).with_request(&LONG)).await;
    let done = world.tell(settle(&claimed, Outcome::Answered(answer))).await;
    let secrets = ["the secret".to_owned(), hex(b"the secret"), hex(&[7; 16]), hex(END)];
    let before = world.dump().await;
    assert!(secrets.iter().all(|secret| before.contains(secret)), "the test can see what is there");
    world.tell(about(&done, "ann", Action::Forget(Forget { reason: "asked to".into() }))).await;
    let after = world.dump().await;
    for secret in &secrets {
        assert!(!after.contains(secret), "{secret} is still there");
    }
    let intent = fresh.stored.unwrap().id;
    let stored = world.other.find_id(intent).await.unwrap().unwrap();
    assert_eq!(world.other.verify_journal(&stored).await.unwrap(), None, "its journal can still be verified");
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub async fn s1_uniqueness_is_a_constraint(world: &World) {
    world.tell(claim("a", &Policy::default())).await;
    world.tell(claim("b", &Policy::default())).await;
    let merge = "UPDATE intent SET hash = (SELECT hash FROM intent WHERE key = 'a') WHERE key = 'b'";
    let error = world.try_sql(merge).await.unwrap_err().to_lowercase();
    assert!(error.contains("unique"), "{error}");
}

/// Whoever replicates the database needs to know which row was deleted: a table that cannot tell would stop every sweep.
pub async fn s28_what_is_replicated_is_swept_too(world: &World) {
    world.sql_of("SELECT 1", "CREATE PUBLICATION everything FOR ALL TABLES").await;
    let policy = Policy {
        lease: world.tick,
        act_max: world.tick,
        retention: world.tick,
        tombstone: world.tick,
        ..Policy::default()
    };
    let done = world.tell(claim("done", &policy).in_lane("l", Some(1)).with_request(b"POST")).await;
    world.tell(settle(&done, answered("done"))).await;
    let lapsed = world.tell(claim("lapsed", &policy)).await.stored.unwrap().id;
    world.pass(world.tick * 3).await;
    assert_eq!(world.other.awake(10).await.unwrap(), [lapsed]);
    for _ in 0..2 {
        let old = world.other.kept_too_long(10).await.unwrap();
        let id = done.stored.as_ref().unwrap().id;
        assert!(old.contains(&id), "{old:?}");
        let purge = command("sweep", Action::Purge(Purge { work_is_open: false }));
        world.tell(Order::numbered(id, purge)).await;
        world.pass(world.tick * 2).await;
    }
    assert!(world.other.find(&name("done")).await.unwrap().is_none());
}
