//! Purging, and proof that the journal is whole.

use std::time::Duration;

use twicesafe_ledger::{Intent, Policy, Recovery};

use crate::operators::world::{World, check, done, invoice};
use crate::snapshot;

/// Long enough for an attempt on a busy machine.
const SHORT: Duration = Duration::from_secs(2);

/// Kept for no time at all once its attempt must be over.
fn short_lived(key: &str) -> Intent {
    let mut policy = Policy::new(Recovery::Person);
    policy.lease = SHORT;
    policy.act_max = SHORT;
    policy.retention = Duration::from_millis(1);
    policy.tombstone = Duration::ZERO;
    Intent::new("billing/invoice.send", key).unwrap().policy(policy)
}

#[test]
fn s28_purging_says_what_it_dropped() {
    check(
        "purge",
        |world| {
            let world = world.history();
            world.with(async |ledger| done(ledger, short_lived("order:20"), "INV-20").await);
            std::thread::sleep(SHORT);
            world
        },
        &[&["purge"], &["purge", "--json"]],
    );
}

#[test]
fn s40_a_whole_journal_is_verified() {
    check(
        "journal-verify",
        World::history,
        &[
            &["journal", "verify"],
            &["journal", "verify", "--json"],
            &["journal", "verify", "--scope", "crm/"],
            &["journal", "verify", "--scope", "crm/contact.update"],
            &["journal", "verify", "--seal", "no-such-file"],
            &["journal", "seal"],
        ],
    );
}

#[test]
fn s40_a_changed_journal_is_found() {
    check(
        "journal-faults",
        |world| {
            let world = world.history();
            let [first, second, fourth, fifth] = [1, 2, 4, 5].map(nth);
            world.tamper(&format!(
                "UPDATE journal SET reason = 'nothing to see' WHERE intent = {second} AND number = 2"
            ));
            world.tamper(&format!("DELETE FROM journal WHERE intent = {first} AND number = 1"));
            world.tamper(&format!("DELETE FROM journal WHERE intent = {fourth} AND number = 2"));
            world.tamper(&format!(
                "UPDATE journal SET event = 'vanished' WHERE intent = {fifth} AND number = 1"
            ));
            world
        },
        &[
            &["journal", "verify"],
            &["journal", "verify", "--json"],
            &["journal", "verify", "--scope", "crm/"],
            &["show", "billing/invoice.send", "order:2"],
        ],
    );
}

/// The number of the how-manieth intent: numbers grow, but not every number is used.
fn nth(place: usize) -> String {
    format!("(SELECT id FROM intent ORDER BY id LIMIT 1 OFFSET {})", place - 1)
}

/// Seals a ledger, does something to it, and compares.
fn check_against_seal(name: &str, change: impl Fn(&World)) {
    for world in [World::sqlite(), World::postgres()] {
        let world = world.history();
        world.with(async |ledger| done(ledger, short_lived("order:20"), "INV-20").await);
        let sealed = world.run(&["journal", "seal"]);
        assert!(sealed.status.success());
        std::fs::write(world.file("seal.jsonl"), &sealed.stdout).unwrap();
        change(&world);
        let verify: [&[&str]; 2] = [
            &["journal", "verify", "--seal", "seal.jsonl"],
            &["journal", "verify", "--seal", "seal.jsonl", "--json"],
        ];
        let text: String = verify.iter().map(|it| snapshot::transcript(it, &world.run(it))).collect();
        snapshot::check(name, &text);
    }
}

#[test]
fn s40_a_journal_that_grew_still_passes_through_its_seal() {
    check_against_seal("seal-grown", |world| {
        world.run(&["approve", "shop/mail.send", "order:2"]);
        world.with(async |ledger| done(ledger, invoice("order:21"), "INV-21").await);
    });
}

#[test]
fn s40_what_was_purged_in_its_time_is_no_fault() {
    check_against_seal("seal-purged", |world| {
        std::thread::sleep(SHORT);
        assert!(world.run(&["purge"]).status.success());
    });
}

#[test]
fn s40_what_was_taken_away_is_found_by_the_seal() {
    check_against_seal("seal-taken", |world| {
        // All traces of one intent, and the last row of another with its count: each chain left is whole.
        let [first, second] = [1, 2].map(nth);
        world.tamper(&format!("DELETE FROM journal WHERE intent = {second} AND number = 2"));
        world.tamper(&format!(
            "UPDATE intent SET journal_rows = 1,
             journal_head = (SELECT hash FROM journal WHERE intent = {second} AND number = 1) WHERE id = {second}"
        ));
        world.tamper(&format!("DELETE FROM journal WHERE intent = {first}"));
        world.tamper(&format!("DELETE FROM intent WHERE id = {first}"));
    });
}

#[test]
fn s40_a_seal_that_was_changed_is_refused() {
    let world = World::sqlite().history();
    let sealed = String::from_utf8(world.run(&["journal", "seal"]).stdout).unwrap();
    let without_last: Vec<&str> = sealed.lines().take(sealed.lines().count() - 1).collect();
    let mut text = String::new();
    for content in ["", "{}\n", "not a seal\n", &without_last.join("\n")] {
        std::fs::write(world.file("seal.jsonl"), content).unwrap();
        let arguments = ["journal", "verify", "--seal", "seal.jsonl"];
        text += &snapshot::transcript(&arguments, &world.run(&arguments));
    }
    snapshot::check("seal-changed", &text);
}
