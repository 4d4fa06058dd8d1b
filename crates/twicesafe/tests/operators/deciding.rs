//! What people decide.

use std::time::Duration;

use twicesafe_ledger::{Policy, Recovery};

use crate::operators::world::{World, check, doubtful, invoice};

const MAIL: &str = "shop/mail.send";
const INVOICE: &str = "billing/invoice.send";

#[test]
fn s30_a_held_intent_is_approved_or_rejected_once() {
    check(
        "approve",
        World::history,
        &[
            &["approve", MAIL, "order:2", "--as", "cron@shop"],
            &["approve", MAIL, "order:2"],
            &["approve", MAIL, "order:2", "--json"],
            &["reject", MAIL, "order:2", "--reason", "too late"],
            &["approve", MAIL, "order:10"],
            &["approve", MAIL, "order:10"],
            &["approve", MAIL, "order:10", "--as", "bob"],
            &["approve", INVOICE, "order:1"],
            &["approve", MAIL, "order:404"],
        ],
    );
    check(
        "reject",
        World::history,
        &[
            &["reject", MAIL, "order:2"],
            &["reject", MAIL, "order:2", "--reason", " "],
            &["reject", MAIL, "order:2", "--reason", "the customer cancelled"],
            &["reject", MAIL, "order:2", "--reason", "the customer cancelled"],
            &["approve", MAIL, "order:2"],
            &["reject", MAIL, "order:10", "--reason", "wrong text", "--json"],
        ],
    );
}

#[test]
fn s26_a_review_is_decided_by_who_looked() {
    check(
        "resolve",
        |world| {
            let world = world.history();
            world.with(async |ledger| {
                doubtful(ledger, invoice("order:11"), "timed out").await;
                doubtful(ledger, invoice("order:12"), "timed out").await;
            });
            world
        },
        &[
            &["resolve", INVOICE, "order:2", "--reason", "nothing said"],
            &["resolve", INVOICE, "order:2", "--happened", "--give-up", "--reason", "both"],
            &["resolve", INVOICE, "order:2", "--give-up", "--external-id", "X", "--reason", "both"],
            &["resolve", INVOICE, "order:2", "--happened"],
            &[
                "resolve",
                INVOICE,
                "order:2",
                "--happened",
                "--external-id",
                "INV-2",
                "--reason",
                "seen in the outbox",
            ],
            &[
                "resolve",
                INVOICE,
                "order:2",
                "--happened",
                "--external-id",
                "INV-2",
                "--reason",
                "seen in the outbox",
            ],
            &[
                "resolve",
                INVOICE,
                "order:2",
                "--happened",
                "--external-id",
                "INV-3",
                "--reason",
                "seen in the outbox",
            ],
            &["resolve", INVOICE, "order:2", "--did-not-happen", "--reason", "looked again"],
            &[
                "resolve",
                INVOICE,
                "order:11",
                "--did-not-happen",
                "--reason",
                "not in the outbox",
                "--as",
                "bob",
            ],
            &[
                "resolve",
                INVOICE,
                "order:11",
                "--did-not-happen",
                "--reason",
                "not in the outbox",
                "--as",
                "bob",
            ],
            &["resolve", INVOICE, "order:12", "--give-up", "--reason", "the outbox is lost", "--json"],
            &["resolve", INVOICE, "order:12", "--give-up", "--reason", "the outbox is lost", "--json"],
            &["show", INVOICE, "order:12"],
            &["resolve", INVOICE, "order:404", "--give-up", "--reason", "no such thing"],
        ],
    );
}

#[test]
fn s26_it_is_too_early_to_say_no_while_something_can_arrive() {
    check(
        "too-early",
        |world| {
            let mut policy = Policy::new(Recovery::Person);
            policy.in_flight_max = Duration::from_secs(3600);
            world.with(async |ledger| doubtful(ledger, invoice("order:1").policy(policy), "timed out").await);
            world
        },
        &[&["resolve", INVOICE, "order:1", "--did-not-happen", "--reason", "not in the outbox"]],
    );
}

#[test]
fn s29_a_settled_intent_is_reset_for_a_reason() {
    check(
        "reset",
        World::history,
        &[
            &["reset", INVOICE, "order:1"],
            &["reset", INVOICE, "order:1", "--reason", "it went to the wrong address"],
            &["reset", INVOICE, "order:1", "--reason", "it went to the wrong address"],
            &["reset", INVOICE, "order:2", "--reason", "impatience"],
            &["reset", INVOICE, "order:9", "--reason", "once more", "--json"],
            &["show", INVOICE, "order:1"],
        ],
    );
}

#[test]
fn s40_what_is_forgotten_is_gone_and_does_not_happen_again() {
    check(
        "forget",
        World::history,
        &[
            &["forget", INVOICE, "order:1", "--reason", "asked for by the customer"],
            &["forget", INVOICE, "order:1", "--reason", "asked for by the customer"],
            &["forget", INVOICE, "order:2", "--reason", "asked for by the customer"],
            &["show", INVOICE, "order:1"],
            &["show", INVOICE, "order:1", "--answer"],
            &["intents", "--containing", "order:1"],
            &["forget", INVOICE, "order:9", "--reason", "asked for by the customer", "--json"],
        ],
    );
}

#[test]
fn s43_a_restored_ledger_is_told_so() {
    check(
        "restored",
        |world| world,
        &[
            &["restored"],
            &["restored", "--since", "2h", "--end"],
            &["restored", "--end"],
            &["restored", "--since", "2026-01-01T00:00:00Z"],
            &["restored", "--since", "2026-01-01T00:00:00Z", "--json"],
            &["restored", "--end"],
            &["restored", "--end", "--json"],
            &["restored", "--since", "2999-01-01"],
        ],
    );
}
