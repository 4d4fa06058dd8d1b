//! Lanes and work.

use crate::run::world::{ACTS_THEN_WAITS, Running, World, on_every_store, said};

on_every_store! {
    s15_an_older_version_is_superseded_and_that_is_no_failure
    s15_one_intent_at_a_time_in_a_lane
    steps_are_shown_with_their_work
}

fn s15_an_older_version_is_superseded_and_that_is_no_failure(world: &World) {
    let lane = |key: &str, version: &str| {
        let flags = ["--lane", "crm:contact:881", "--version", version];
        said(world.guarded(key, &flags, &format!("echo {version} >> effects")))
    };
    lane("update:8", "8").check(0, &[]);
    let older = lane("update:7", "7");
    older.check(0, &["a newer version was already applied; nothing was run"]).gave("");
    lane("update:9", "9").check(0, &[]);
    assert_eq!(world.lines("effects"), ["8", "9"]);
    assert_eq!(world.status("update:7"), "superseded");
}

fn s15_one_intent_at_a_time_in_a_lane(world: &World) {
    let lane = ["--lane", "crm:contact:881"];
    let first = Running::start(world.guarded("order:1", &lane, ACTS_THEN_WAITS));
    world.child();
    let now = ["--lane", "crm:contact:881", "--wait", "0s"];
    said(world.guarded("order:2", &now, "echo second >> effects")).check(120, &["TS0015"]);
    let mut second = Running::start(world.guarded("order:2", &lane, "echo second >> effects"));
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert!(second.is_running());
    assert_eq!(world.lines("effects"), ["sent"]);
    world.open_gate();
    first.said().check(0, &[]);
    second.said().check(0, &[]);
    assert_eq!(world.lines("effects"), ["sent", "second"]);
}

fn steps_are_shown_with_their_work(world: &World) {
    let step = |key: &str, step: &str, script: &str| {
        said(world.guarded(key, &["--work", "order:10492", "--step", step], script))
    };
    step("order:10492/charge", "charge", "true").check(0, &[]);
    step("order:10492/mail", "mail", "exit 9").check(121, &[]);
    step("order:10492/ship", "ship", "no-such-program || exit 75").check(75, &[]);
    let shown = said(world.twicesafe(&["work", "order:10492"]));
    let text = shown.check(0, &[]).text();
    let status_of = |step: &str| {
        let line =
            text.lines().find(|line| line.starts_with(step)).unwrap_or_else(|| panic!("{step}: {text}"));
        line.split_whitespace().nth(3).unwrap().to_owned()
    };
    assert_eq!(["charge", "mail", "ship"].map(status_of), ["done", "review", "retryable"]);
}
