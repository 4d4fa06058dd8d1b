//! Ledgers that cannot be used: nothing is run, and the exit status says so (S27, S7).

use std::process::Command;

use crate::run::world::{World, on_every_store, said, unchecked};

const SEND: &str = "echo sent >> effects";

/// The ledger at that address is refused, and nothing is run.
#[track_caller]
fn refused(world: &World, address: &str, code: &str) {
    let mut command = world.guarded("order:1", &[], SEND);
    command.env("TWICESAFE_LEDGER", address);
    said(command).check(125, &[code, &format!("More: twicesafe explain {code}")]).gave("");
    let mut command = world.guarded("order:1", &["--json"], SEND);
    command.env("TWICESAFE_LEDGER", address);
    let as_json = said(command);
    let told: serde_json::Value = serde_json::from_str(&as_json.check(125, &[]).stderr).unwrap();
    assert_eq!(told["code"], code);
    assert_eq!(world.effects(), 0);
}

#[test]
fn a_database_that_is_away_is_said_to_be_away() {
    let world = World::sqlite();
    refused(&world, "postgres://nobody@127.0.0.1:1/nothing", "TS0040");
    refused(&world, &format!("sqlite:{}/no/such/folder.db", world.file("").display()), "TS0043");
}

on_every_store! {
    a_ledger_that_is_not_ours_is_left_alone
    a_newer_ledger_is_left_alone
}

fn a_ledger_that_is_not_ours_is_left_alone(world: &World) {
    let table = "CREATE TABLE ledger (account text, amount int)";
    world.tamper(table, table);
    refused(world, &world.address, "TS0041");
    if world.ledger_file().is_some() {
        world.write("diary", &"dear diary, ".repeat(1000));
        refused(world, &format!("sqlite:{}", world.file("diary").display()), "TS0041");
    }
}

fn a_newer_ledger_is_left_alone(world: &World) {
    said(world.guarded("order:0", &[], "true")).check(0, &[]);
    world.tamper("PRAGMA user_version = 99", "UPDATE ledger SET schema_version = 99");
    refused(world, &world.address, "TS0042");
}

#[test]
fn a_database_that_takes_no_writes_is_refused() {
    let world = World::postgres();
    said(world.guarded("order:0", &[], "true")).check(0, &[]);
    let database = world.database();
    world.tamper("", &format!("ALTER DATABASE {database} SET default_transaction_read_only = on"));
    refused(&world, &world.address, "TS0043");
}

/// Runs a script where it may mount what it likes. `None`: this machine does not allow that.
fn where_mounting_is_allowed(world: &World, script: &str) -> Option<crate::run::world::Said> {
    let allowed = Command::new("unshare").args(["-rm", "true"]).output();
    if !allowed.is_ok_and(|output| output.status.success()) {
        unchecked("`unshare -rm` is not allowed");
        return None;
    }
    let mut command = world.program("unshare");
    command.args(["-rm", "sh", "-euc", script, env!("CARGO_BIN_EXE_twicesafe")]);
    Some(said(command))
}

#[test]
fn a_file_on_a_disk_that_takes_no_writes_is_refused() {
    let world = World::sqlite();
    std::fs::create_dir(world.file("disk")).unwrap();
    let script = r#"
        export TWICESAFE_LEDGER=sqlite:$PWD/disk/ledger.db
        "$0" run --scope a --key before -- true
        mount --bind disk disk
        mount -o remount,bind,ro disk
        "$0" run --scope a --key after -- sh -c 'echo sent >> effects'
    "#;
    if let Some(said) = where_mounting_is_allowed(&world, script) {
        said.check(125, &["TS0043"]);
        assert_eq!(world.effects(), 0);
    }
}

#[test]
fn a_full_disk_is_refused_and_nothing_is_run() {
    let world = World::sqlite();
    std::fs::create_dir(world.file("disk")).unwrap();
    let script = r#"
        mount -t tmpfs -o size=2m none disk
        export TWICESAFE_LEDGER=sqlite:$PWD/disk/ledger.db
        "$0" run --scope a --key before -- true
        cat /dev/zero > disk/rest 2>/dev/null || true
        for key in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
            set +e
            "$0" run --scope a --key "$key" --attempts 1 -- sh -c "echo $key >> effects"
            status=$?
            set -e
            [ $status = 0 ] || break
        done
        echo "$key" > refused
        rm disk/rest
        "$0" run --scope a --key before -- true
        "$0" run --scope a --key "$key" -- sh -c "echo again >> effects"
        exit $status
    "#;
    if let Some(said) = where_mounting_is_allowed(&world, script) {
        said.check(125, &["TS0044", "before was done before"]);
        let refused = world.lines("refused");
        assert!(!world.lines("effects").contains(&refused[0]), "what was refused was run");
        assert_eq!(world.lines("effects").last().map(String::as_str), Some("again"), "with room it goes on");
    }
}

#[test]
fn a_ledger_must_be_named_where_nobody_is_watching() {
    let world = World::sqlite();
    let unnamed = |word: Option<&str>| {
        let mut command = world.guarded("order:1", &[], SEND);
        command.env_remove("TWICESAFE_LEDGER").env("HOME", world.file("home"));
        word.map(|address| command.env("TWICESAFE_LEDGER", address));
        said(command)
    };
    unnamed(None).check(2, &["TS0051", "--ledger sqlite:"]);
    unnamed(Some("")).check(2, &["TS0051"]);
    unnamed(Some("mysql://localhost/x")).check(2, &["TS0049"]);
    assert_eq!(world.effects(), 0);
    assert!(!world.file("home").exists(), "no ledger was made in secret");
    // The configuration names it too.
    world.write("twicesafe.yaml", &format!("ledger: {} # ours\n", world.address));
    unnamed(None).check(0, &[]);
    assert_eq!(world.status("order:1"), "done");
}

#[test]
fn s41_a_ledger_is_its_owners_alone_and_one_that_is_not_is_mended_and_said() {
    use std::os::unix::fs::PermissionsExt;
    let world = World::sqlite();
    let run = |key: &str| {
        let script = format!("umask 022; exec \"$0\" run --scope a --key {key} -- true");
        let mut command = world.program("sh");
        command.args(["-euc", &script, env!("CARGO_BIN_EXE_twicesafe")]);
        command.env("TWICESAFE_LEDGER", &world.address);
        said(command)
    };
    let file = world.ledger_file().unwrap();
    let mode = || std::fs::metadata(file).unwrap().permissions().mode() & 0o777;
    assert!(!run("one").check(0, &[]).stderr.contains("warning"));
    assert_eq!(mode(), 0o600);
    std::fs::set_permissions(file, PermissionsExt::from_mode(0o644)).unwrap();
    run("two").check(0, &["others could read", "mode 644"]);
    assert_eq!(mode(), 0o600);
    std::fs::remove_file(format!("{}.secret", file.display())).unwrap();
    run("three").check(125, &["TS0059", "ledger.db.secret"]);
}

#[test]
fn s41_all_who_use_a_database_have_its_secret() {
    let world = World::postgres();
    let run = |key: &str, secret: &str| {
        let mut command = world.guarded(key, &[], SEND);
        command.env("TWICESAFE_SECRET", secret);
        said(command)
    };
    run("one", "").check(0, &[]);
    run("two", "correct horse battery staple").check(0, &[]);
    run("three", "").check(125, &["TS0059"]);
    run("three", "another one of some length").check(125, &["TS0059"]);
    run("three", "short").check(2, &["TWICESAFE_SECRET", "too short"]);
    assert_eq!(world.effects(), 2);
}

#[test]
fn s27_what_was_run_and_is_not_recorded_has_a_status_of_its_own() {
    let world = World::sqlite();
    world.write(
        "hold.py",
        "import sqlite3, sys, time\n\
         ledger = sqlite3.connect(sys.argv[1], isolation_level=None)\n\
         ledger.execute('BEGIN IMMEDIATE')\n\
         open('held', 'w').close()\n\
         time.sleep(600)\n",
    );
    // Sent, and from then on somebody else keeps the ledger locked.
    world.write(
        "act.sh",
        "echo sent >>effects\n\
         [ -e held ] && exit\n\
         setsid python3 hold.py mine.db >/dev/null 2>&1 </dev/null &\n\
         echo $! >holder\n\
         until [ -e held ]; do sleep 0.1; done\n",
    );
    let script = r#"
        export TWICESAFE_LEDGER=sqlite:$PWD/mine.db
        "$0" run --scope a --key 1 -- sh act.sh
        status=$?
        kill "$(cat holder)"
        "$0" run --scope a --key 1 --wait 0s -- sh act.sh
        case $? in 120 | 121) exit $status ;; esac
        exit 99
    "#;
    let mut command = world.program("sh");
    command.args(["-uc", script, env!("CARGO_BIN_EXE_twicesafe")]);
    let said = said(command);
    said.check(118, &["TS0024", "it was sent, and what came of it is not recorded", "Do not do it by hand"]);
    assert!(!said.stderr.contains("othing was run"), "{}", said.stderr);
    assert_eq!(world.lines("effects"), ["sent"]);
}
