//! Setting a server up: `init`, `config`, `token`, and what it says when it cannot start.

use std::process::{Command, Output, Stdio};

use super::world::file;
use crate::operators::world::World;

fn run(world: &World, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_twicesafe"))
        .args(arguments)
        .current_dir(world.file(""))
        .env_remove("TWICESAFE_LEDGER")
        .env_remove("TWICESAFE_CONFIG")
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

#[track_caller]
fn check(world: &World, arguments: &[&str], status: i32, stdout: &[&str], stderr: &[&str]) -> String {
    let output = run(world, arguments);
    let (out, err) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!(output.status.code(), Some(status), "{arguments:?}\n{out}{err}");
    stdout.iter().for_each(|words| assert!(out.contains(words), "{words:?} is not in {out}"));
    stderr.iter().for_each(|words| assert!(err.contains(words), "{words:?} is not in {err}"));
    out
}

#[test]
fn three_questions_make_a_file_that_can_be_checked() {
    let world = World::sqlite();
    check(
        &world,
        &["init"],
        0,
        &["twicesafe.yaml"],
        &["Where is the ledger?", "Where should the server listen?", "Where should alerts go?"],
    );
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &world.file("twicesafe.yaml").metadata().unwrap().permissions(),
    );
    assert_eq!(mode & 0o777, 0o600, "there may be a password in it");
    check(&world, &["init"], 2, &[], &["TS0061", "nothing is overwritten"]);
    check(
        &world,
        &["config", "check"],
        0,
        &["nobody is told when something is held"],
        &["twicesafe.yaml: ready"],
    );
    // Every command finds the ledger that the file names.
    check(&world, &["token", "create", "--name", "n8n"], 0, &["twicesafe."], &["not shown again"]);
    assert!(world.file("twicesafe.db").exists());
    check(&world, &["intents"], 0, &[], &[]);
}

#[test]
fn what_would_go_wrong_is_said_beforehand() {
    let world = World::sqlite();
    check(&world, &["config", "check"], 2, &[], &["TS0080", "twicesafe init"]);
    let yaml = "listen: 0.0.0.0:4080\nledger: sqlite:./l.db\npeople:\n  ann: { alert: mailto:ann@example.com, rights: [approve] }\n  bob: { alert: \"${NOBODY_SETS_THIS}\", rights: [review] }\n";
    file(&world, "twicesafe.yaml", yaml);
    run(&world, &["intents", "--ledger", "sqlite:./l.db"]);
    check(
        &world,
        &["config", "check"],
        2,
        &[
            "error: people.ann.alert: mail needs a mail server",
            "error: people.bob.alert: the environment variable NOBODY_SETS_THIS is not set",
            "error: listen: other machines can reach it and there is no token",
            "warning: listen: other machines can reach it and it speaks no TLS",
        ],
        &["3 things are wrong"],
    );
    check(&world, &["serve"], 2, &[], &["TS0080", "mail needs a mail server"]);
    // Without the ledger, all but what is in it.
    let away = yaml.replace("sqlite:./l.db", "postgres://nobody@127.0.0.1:1/nowhere");
    file(&world, "away.yaml", &away);
    let said = ["error: people.ann.alert: mail needs a mail server"];
    check(&world, &["config", "check", "--config", "away.yaml"], 125, &said, &["TS0040"]);
    file(&world, "open.yaml", "listen: 0.0.0.0:4080\nledger: sqlite:./l.db\n");
    check(&world, &["serve", "--config", "open.yaml"], 2, &[], &["TS0081", "token create"]);
    check(&world, &["serve", "--listen", "127.0.0.1:99999"], 2, &[], &["is not an address"]);
    check(&world, &["serve", "--config", "nowhere.yaml"], 2, &[], &["TS0080", "nowhere.yaml"]);
    check(&world, &["config", "schema"], 0, &["\"title\": \"Twicesafe configuration\""], &[]);
}

#[test]
fn tokens_are_made_listed_and_revoked() {
    let world = World::sqlite();
    let ledger = ["--ledger", "sqlite:./l.db"];
    let with = |more: &[&'static str]| -> Vec<&str> { more.iter().copied().chain(ledger).collect() };
    check(&world, &with(&["token", "list"]), 0, &[], &["There are no tokens"]);
    let made = check(
        &world,
        &with(&["token", "create", "--name", "n8n", "--rights", "act,review", "--json"]),
        0,
        &[],
        &[],
    );
    let made: serde_json::Value = serde_json::from_str(&made).unwrap();
    let secret = made["token"].as_str().unwrap().rsplit('.').next().unwrap().to_owned();
    let listed = check(&world, &with(&["token", "list"]), 0, &["n8n", "act,review", "default"], &[]);
    assert!(!listed.contains(&secret));
    // What is kept is not what was given.
    let kept = std::fs::read(world.file("l.db")).unwrap();
    let wal = std::fs::read(world.file("l.db-wal")).unwrap_or_default();
    assert!(![kept, wal].concat().windows(secret.len()).any(|there| there == secret.as_bytes()));
    check(&world, &with(&["token", "create", "--name", "n8n"]), 2, &[], &["there is a token `n8n` already"]);
    check(
        &world,
        &with(&["token", "create", "--name", "x", "--rights", "everything"]),
        2,
        &[],
        &["act, approve, review and admin"],
    );
    check(
        &world,
        &with(&["token", "create", "--name", "x", "--tenant", "a/b"]),
        2,
        &[],
        &["cannot be a tenant"],
    );
    check(&world, &with(&["token", "revoke", "n8n"]), 0, &["revoked"], &[]);
    check(&world, &with(&["token", "revoke", "n8n"]), 2, &[], &["TS0086"]);
}

#[test]
fn the_catalog_says_what_is_verified_and_a_spec_says_what_is_agreed() {
    let world = World::sqlite();
    check(&world, &["catalog"], 0, &["stripe", "native-key", "https://api.stripe.com", "(yours)"], &[]);
    check(
        &world,
        &["catalog", "stripe"],
        0,
        &["verified POST takes", "believed The header", "action: charge.create"],
        &[],
    );
    check(&world, &["--json", "catalog", "slack"], 0, &["\"verified\":true", "\"name\":\"slack\""], &[]);
    let says = ["conversations.replies", "not found counts; it does not show: In a channel: replies"];
    check(&world, &["catalog", "slack"], 0, &says, &[]);
    check(&world, &["catalog", "hubspot"], 0, &["not found never counts"], &[]);
    check(&world, &["catalog", "telegram"], 0, &["none is known", "reads: listed"], &[]);
    check(&world, &["--json", "catalog", "slack"], 0, &["\"lookups\":[{", "\"not_found\":\"counts\""], &[]);
    check(&world, &["catalog", "strpe"], 2, &[], &["did you mean `stripe`?"]);
    check(&world, &["catalog", "nope"], 2, &[], &["it has adyen, airtable", "need no entry, but a `base:`"]);
    check(&world, &["spec"], 2, &[], &["TS0080", "twicesafe init"]);
    let yaml = "destinations:\n  shop:\n    base: http://127.0.0.1:9\n    routes:\n      - { match: POST /orders, action: order.place, key: request.body.id }\n";
    file(&world, "twicesafe.yaml", yaml);
    let spec = [
        "shop/order.place",
        "one order.place for each value of request.body.id",
        "a person decides",
        "30 days",
    ];
    check(&world, &["spec"], 0, &spec, &[]);
    check(&world, &["--json", "spec", "shop"], 0, &["\"key_fields\":\"request.body.id\""], &[]);
    check(
        &world,
        &["spec", "shop/nothing"],
        2,
        &[],
        &["has no route that writes called `shop/nothing`; name one of shop/order.place"],
    );
}

#[test]
fn what_is_paused_is_listed_and_resumed() {
    for world in [World::sqlite(), World::postgres()] {
        let ledger = ["--ledger", world.address.as_str()];
        let with = |more: &[&'static str]| [&ledger[..], more].concat();
        check(&world, &with(&["pause"]), 0, &[], &[]);
        check(
            &world,
            &with(&["pause", "destination", "crm", "--reason", "it is being moved"]),
            0,
            &["destination:crm  it is being moved"],
            &["within two seconds"],
        );
        check(&world, &with(&["--json", "pause"]), 0, &["\"paused\":\"destination:crm\""], &[]);
        check(&world, &with(&["pause", "destination"]), 2, &[], &["<NAME>"]);
        check(&world, &with(&["resume", "destination", "crm"]), 0, &[], &["It goes on"]);
        assert_eq!(check(&world, &with(&["pause"]), 0, &[], &[]), "");
        check(&world, &with(&["pause", "token", "n8n"]), 2, &[], &["TS0086", "twicesafe token list"]);
        check(&world, &with(&["token", "create", "--name", "n8n", "--rights", "act"]), 0, &[], &[]);
        check(&world, &with(&["pause", "token", "n8n"]), 0, &["token:"], &["the token `n8n`"]);
        check(&world, &with(&["resume", "token", "n8n"]), 0, &[], &[]);
        assert_eq!(check(&world, &with(&["pause"]), 0, &[], &[]), "");
        check(&world, &with(&["observed"]), 0, &[], &["Nothing was observed"]);
    }
}
