//! Moving a ledger, and comparing it with the source of truth.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on stops here")]

use std::process::Stdio;

use serde_json::Value;

use crate::operators::world::{SECRET, World, check, done, invoice};
use crate::snapshot;

const INVOICE: &str = "billing/invoice.send";

/// A ledger with a history, and files beside it.
fn with_files(world: World, files: &[(&str, &str)]) -> World {
    let world = world.history();
    for (name, text) in files {
        std::fs::write(world.file(name), text).unwrap();
    }
    world
}

fn export(world: &World) -> String {
    let output = world.run(&["export"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// An export without what is different each time: when it was made.
fn timeless(text: &str) -> Vec<Value> {
    let mut lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    lines[0]["at"] = Value::Null;
    // Of another secret.
    lines[0]["sealed_key"] = Value::Null;
    lines.retain(|line| line["seal"].is_null());
    lines
}

#[test]
fn a_ledger_moves_from_every_store_to_every_store() {
    for from in [World::sqlite, World::postgres] {
        let from = from().history();
        let text = export(&from);
        for to in [World::sqlite, World::postgres] {
            let to = to();
            std::fs::write(to.file("ledger.jsonl"), &text).unwrap();
            let secret = from.file("ledger.db.secret");
            if !secret.exists() {
                std::fs::write(&secret, SECRET).unwrap();
            }
            let import = || {
                let output = to.run(&["import", "ledger.jsonl", "--secret", secret.to_str().unwrap()]);
                snapshot::transcript(&["import", "ledger.jsonl"], &output)
            };
            let (said, again) = (import(), import());
            snapshot::check("import", &(said + &again));
            assert_eq!(timeless(&export(&to)), timeless(&text));
            assert!(to.run(&["journal", "verify"]).status.success());
            // What was done there is not done again here.
            let replayed = to.run(&["run", "--scope", INVOICE, "--key", "order:9", "--", "false"]);
            assert_ne!(replayed.status.code(), Some(0), "another fingerprint");
            to.with(async |ledger| {
                let given =
                    ledger.run(invoice("order:9"), |_| async { panic!("it was sent before") }).await.unwrap();
                assert!(given.replayed);
            });
        }
    }
}

#[test]
fn a_ledger_is_imported_from_a_pipe() {
    let (from, to) = (World::sqlite().history(), World::sqlite());
    std::fs::write(to.file("ledger.jsonl"), export(&from)).unwrap();
    let output = to
        .command(env!("CARGO_BIN_EXE_twicesafe").as_ref())
        .args(["import", "-", "--json", "--secret"])
        .arg(from.file("ledger.db.secret"))
        .stdin(Stdio::from(std::fs::File::open(to.file("ledger.jsonl")).unwrap()))
        .output()
        .unwrap();
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&value["intents"], &value["lanes"]), (&10.into(), &1.into()));
}

#[test]
fn an_excerpt_has_no_secret_and_is_not_imported() {
    let world = World::sqlite().history();
    let output = world.run(&["export", "--scope", "billing/"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().count(), 1 + 6 + 1);
    assert!(!text.contains("hash_key") && !text.contains("\"lane\":{"));
    let scope =
        |line: &Value| line["intent"]["scope"].as_str().is_none_or(|scope| scope.starts_with("billing/"));
    assert!(timeless(&text).iter().all(scope));
    std::fs::write(world.file("excerpt.jsonl"), &text).unwrap();
    let nothing = world.run(&["export", "--scope", "nothing/here"]);
    assert_eq!(nothing.stdout.split(|byte| *byte == b'\n').count(), 1 + 1 + 1);
    let commands: [&[&str]; 3] = [
        &["import", "excerpt.jsonl"],
        &["import", "excerpt.jsonl", "--json"],
        &["export", "--scope", "billing//"],
    ];
    let said: String = commands.iter().map(|words| snapshot::transcript(words, &world.run(words))).collect();
    snapshot::check("excerpt", &said);
}

#[test]
fn what_is_not_a_whole_export_is_refused_and_nothing_is_imported() {
    let text = export(&World::sqlite().history());
    let lines: Vec<&str> = text.lines().collect();
    let (last, most) = lines.split_last().unwrap();
    let swapped = |from: &str, to: &str| text.replacen(from, to, 1);
    let key_end = text.find("\",\"last_intent\"").unwrap();
    let other_hashes = if text.as_bytes()[key_end - 1] == b'0' { "1" } else { "0" };
    let files: [(&str, String); 13] = [
        ("empty", String::new()),
        ("other.json", "{\"hello\": 1}\n".to_owned()),
        ("binary", "\u{0}\u{1}PNG".to_owned()),
        ("version", swapped("\"version\":3", "\"version\":4")),
        ("no-key", swapped("\"hash_key\"", "\"hash_lock\"")),
        ("other-hashes", format!("{}{other_hashes}{}", &text[..key_end - 1], &text[key_end..])),
        ("cut", most.join("\n")),
        ("cut-line", format!("{}\n{}", lines[0], &lines[1][..40])),
        (
            "left-out",
            most[..2].iter().chain(&most[3..]).chain([last]).map(|line| format!("{line}\n")).collect(),
        ),
        ("twice", format!("{}\n{}\n{}\n", lines[0], lines[1], lines[1])),
        ("more", format!("{text}{{}}\n")),
        ("changed", swapped("\"event\":\"answered\"", "\"event\":\"refused\"")),
        ("renamed", swapped("\"key\":\"order:1\"", "\"key\":\"order:1x\"")),
    ];
    for world in [World::sqlite(), World::postgres()] {
        let mut said = String::new();
        for (name, text) in &files {
            std::fs::write(world.file(name), text).unwrap();
            let arguments = ["import", "--unsealed", name];
            said += &snapshot::transcript(&arguments, &world.run(&arguments));
        }
        said += &snapshot::transcript(&["import", "nowhere"], &world.run(&["import", "nowhere"]));
        said += &snapshot::transcript(&["intents"], &world.run(&["intents"]));
        snapshot::check("import-refused", &said);
    }
}

#[test]
fn s49_an_export_that_was_edited_is_refused_and_nothing_is_imported() {
    let from = World::sqlite().history();
    let text = export(&from);
    let secret = from.file("ledger.db.secret");
    let edits = [
        ("status", text.replacen("\"status\":\"done\",\"doubt\"", "\"status\":\"retryable\",\"doubt\"", 1)),
        ("external", text.replacen("INV-1", "INV-666", 1)),
        ("lane", text.replacen("{\"lane\":{\"name\":\"", "{\"lane\":{\"name\":\"x", 1)),
        ("count", text.replacen("\"n\":1", "\"n\":7", 1)),
        ("space", text.replacen("\n", " \n", 1)),
    ];
    let to = World::sqlite();
    let run = |name: &str, how: &[&str]| to.run(&[&["import", name], how].concat());
    let by = secret.to_str().unwrap();
    for (name, edited) in edits {
        assert_ne!(edited, text, "{name}");
        std::fs::write(to.file(name), edited).unwrap();
        let output = run(name, &["--secret", by]);
        assert_eq!(output.status.code(), Some(121), "{name}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("TS0062"), "{name}");
    }
    std::fs::write(to.file("whole"), &text).unwrap();
    std::fs::write(to.file("another"), "another secret, long enough").unwrap();
    for how in [&["--secret", "another"][..], &[]] {
        let said = String::from_utf8(run("whole", how).stderr).unwrap();
        assert!(said.contains("TS0062") && said.contains("another secret, or with none"), "{said}");
    }
    assert!(run("whole", &["--secret", by]).status.success(), "nothing was imported before");
}

#[test]
fn s49_a_row_that_was_changed_by_hand_is_found_and_not_acted_on() {
    let world = World::sqlite().history();
    assert!(world.run(&["journal", "verify"]).status.success());
    let by_hand = rusqlite::Connection::open(world.file("ledger.db")).unwrap();
    by_hand.execute("UPDATE intent SET status = 'retryable' WHERE key = 'order:1'", []).unwrap();
    let verified = world.run(&["journal", "verify"]);
    assert_eq!(verified.status.code(), Some(1));
    let said = String::from_utf8(verified.stdout).unwrap();
    assert!(said.contains("the record does not fit its seal"), "{said}");
    world.with(async |ledger| {
        let acted = ledger.run(invoice("order:1"), |_| async { panic!("it was sent before") }).await;
        assert_eq!(acted.unwrap_err().code(), twicesafe_core::Code::RecordAltered);
    });
}

#[test]
fn a_scope_is_compared_with_the_source_of_truth() {
    let shop = "key,external_id,amount\norder:1,INV-1,12\norder:2,INV-2,7\norder:7,,\norder:9,INV-9c,\norder:404,INV-404,9\n";
    check(
        "reconcile",
        |world| {
            with_files(
                world,
                &[
                    ("shop.csv", shop),
                    ("same.csv", "\u{feff}external_id,key\r\nINV-1,order:1\r\n,\"order:9\"\r\n"),
                    ("one.csv", "key\norder:1\n"),
                ],
            )
        },
        &[
            &["reconcile", "--scope", INVOICE, "shop.csv"],
            &["reconcile", "--scope", INVOICE, "shop.csv", "--json"],
            &["reconcile", "--scope", INVOICE, "same.csv"],
            &["reconcile", "--scope", INVOICE, "same.csv", "--json"],
            &["reconcile", "--scope", INVOICE, "one.csv"],
            &["reconcile", "--scope", INVOICE, "one.csv", "--until", "1h"],
            &["reconcile", "--scope", INVOICE, "one.csv", "--since", "1h"],
            &["reconcile", "--scope", INVOICE, "one.csv", "--since", "last week"],
        ],
    );
}

#[test]
fn what_already_happened_is_adopted() {
    check(
        "adopt",
        |world| {
            let world = with_files(
                world,
                &[
                    (
                        "shop.csv",
                        "key,external_id\norder:1,INV-1\norder:2,INV-2\norder:6,\norder:7,INV-7\norder:9,INV-9b\norder:13,INV-13\norder:404,INV-404\n",
                    ),
                    (
                        "good.csv",
                        "key,external_id\norder:1,INV-1\norder:2,INV-2\norder:6,\norder:9,INV-9b\norder:404,INV-404\n",
                    ),
                    (
                        "wrong.csv",
                        "key,external_id\norder:1,INV-1\norder:2,INV-3\norder:6,\norder:9,INV-9b\norder:404,INV-404\n",
                    ),
                ],
            );
            world.with(async |ledger| {
                done(ledger, invoice("order:13"), "INV-13").await;
                crate::operators::world::reset(ledger, "order:13").await;
            });
            world
        },
        &[
            &["reconcile", "--scope", INVOICE, "shop.csv", "--adopt"],
            &["reconcile", "--scope", INVOICE, "shop.csv", "--adopt", "--reason", " "],
            &["reconcile", "--scope", INVOICE, "shop.csv", "--adopt", "--reason", "the shop's list of May"],
            &["reconcile", "--scope", INVOICE, "shop.csv", "--adopt", "--reason", "the shop's list of May"],
            &["reconcile", "--scope", INVOICE, "good.csv", "--adopt", "--reason", "again"],
            &["reconcile", "--scope", INVOICE, "wrong.csv", "--adopt", "--reason", "again"],
            &["show", INVOICE, "order:404"],
            &["show", INVOICE, "order:2"],
        ],
    );
}

#[test]
fn files_that_say_nothing_certain_are_refused() {
    let long = format!("key\n{}\n", "k".repeat(256));
    let endless = format!("key\n\"{}", "k".repeat(70_000));
    check(
        "reconcile-refused",
        |world| {
            with_files(
                world,
                &[
                    ("empty.csv", ""),
                    ("other.csv", "{\"key\": 1}\n"),
                    ("column.csv", "id,external_id\norder:1,INV-1\n"),
                    ("key.csv", "key,external_id\norder:1,INV-1\n,INV-2\n"),
                    ("long.csv", &long),
                    ("endless.csv", &endless),
                    ("short.csv", "key,external_id\norder:1\n"),
                    ("twice.csv", "key\norder:1\norder:2\norder:1\n"),
                    ("open.csv", "key\norder:1\n\"order:2\n"),
                ],
            )
        },
        &[
            &["reconcile", "--scope", INVOICE, "nowhere.csv"],
            &["reconcile", "--scope", INVOICE, "empty.csv"],
            &["reconcile", "--scope", INVOICE, "other.csv"],
            &["reconcile", "--scope", INVOICE, "column.csv"],
            &["reconcile", "--scope", INVOICE, "column.csv", "--json"],
            &["reconcile", "--scope", INVOICE, "key.csv"],
            &["reconcile", "--scope", INVOICE, "long.csv"],
            &["reconcile", "--scope", INVOICE, "endless.csv"],
            &["reconcile", "--scope", INVOICE, "short.csv"],
            &["reconcile", "--scope", INVOICE, "twice.csv", "--adopt", "--reason", "x"],
            &["reconcile", "--scope", INVOICE, "open.csv"],
            &["reconcile", "--scope", "no scope", "key.csv"],
            &["reconcile", "key.csv"],
        ],
    );
}

#[test]
fn a_large_scope_is_compared_page_by_page() {
    let world = World::sqlite();
    let keys: Vec<String> = (0..1500).map(|number| format!("order:{number}")).collect();
    let file: String = keys.iter().map(|key| format!("{key},INV-{key}\n")).collect();
    std::fs::write(world.file("shop.csv"), format!("key,external_id\n{file}")).unwrap();
    let reconcile = |more: &[&str]| {
        let words = [&["reconcile", "--json", "--scope", INVOICE, "shop.csv"], more].concat();
        let output = world.run(&words);
        let value: Value = serde_json::from_slice(&output.stdout).unwrap();
        (value, output.status.code())
    };
    let (before, status) = reconcile(&[]);
    assert_eq!((before["missing"].as_array().unwrap().len(), status), (1500, Some(1)));
    let (_, status) = reconcile(&["--adopt", "--reason", "the shop's list"]);
    assert_eq!(status, Some(0));
    let (after, status) = reconcile(&[]);
    assert_eq!((&after["agree"], status), (&1500.into(), Some(0)));
}
