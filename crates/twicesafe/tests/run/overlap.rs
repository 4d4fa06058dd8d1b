//! Several runs of one key at once (S8).

use std::time::Duration;

use rustix::process::Signal;

use crate::run::world::{ACTS_THEN_WAITS, Running, World, eventually, lives, on_every_store, said};

on_every_store! {
    s8_of_many_at_once_one_acts_and_all_get_its_answer
    s8_the_next_run_of_cron_waits_for_the_first_and_gives_its_answer
    s8_a_long_command_keeps_its_lease
    s24_nobody_else_acts_while_the_child_of_a_silent_runner_lives
}

fn s8_of_many_at_once_one_acts_and_all_get_its_answer(world: &World) {
    let send = "echo sent >> effects; sleep 0.2; echo $$";
    let runs: Vec<_> = (0..8).map(|_| Running::start(world.guarded("order:1", &[], send))).collect();
    let answers: Vec<_> = runs.into_iter().map(Running::said).collect();
    for answer in &answers {
        answer.check(0, &[]).gave(&answers[0].text());
    }
    let replayed = answers.iter().filter(|answer| answer.stderr.contains("was done before")).count();
    assert_eq!((world.effects(), replayed), (1, 7));
}

fn s8_the_next_run_of_cron_waits_for_the_first_and_gives_its_answer(world: &World) {
    let first = Running::start(world.guarded("nightly", &[], ACTS_THEN_WAITS));
    world.child();
    let mut second = Running::start(world.guarded("nightly", &[], ACTS_THEN_WAITS));
    // One that does not want to wait is told so.
    said(world.guarded("nightly", &["--wait", "0s"], ACTS_THEN_WAITS)).check(120, &["TS0015"]).gave("");
    said(world.guarded("nightly", &["--wait", "300ms"], ACTS_THEN_WAITS)).check(120, &["TS0015"]);
    assert!(second.is_running());
    world.open_gate();
    first.said().check(0, &[]).gave("thank you\n");
    second.said().check(0, &["nightly was done before"]).gave("thank you\n");
    assert_eq!(world.effects(), 1);
}

fn s8_a_long_command_keeps_its_lease(world: &World) {
    let first = Running::start(world.guarded("nightly", &["--lease", "1s"], ACTS_THEN_WAITS));
    world.child();
    std::thread::sleep(Duration::from_millis(2500));
    said(world.guarded("nightly", &["--wait", "0s"], ACTS_THEN_WAITS)).check(120, &["TS0015"]);
    assert_eq!(world.status("nightly"), "pending");
    world.open_gate();
    first.said().check(0, &[]).gave("thank you\n");
    assert_eq!(world.effects(), 1);
}

fn s24_nobody_else_acts_while_the_child_of_a_silent_runner_lives(world: &World) {
    for class in ["person", "repeat"] {
        let flags = ["--recovery", class, "--lease", "1s", "--in-flight-max", "1ms"];
        let waits = |patience| {
            let mut flags = flags.to_vec();
            flags.extend(["--wait", patience]);
            world.guarded(class, &flags, ACTS_THEN_WAITS)
        };
        let _ = std::fs::remove_file(world.file("pid"));
        let before = world.effects();
        let first = Running::start(waits("25s"));
        let child = world.child();
        first.signal(Signal::STOP);
        std::thread::sleep(Duration::from_millis(1500));
        said(waits("0s")).check(120, &["TS0015"]).gave("");
        // Somebody may decide meanwhile what time alone decides: the child lives all the same.
        said(world.twicesafe(&["purge"])).check(0, &[]);
        let decided = if class == "person" { "review" } else { "retryable" };
        assert_eq!(world.status(class), decided);
        said(waits("1s")).check(120, &["TS0015"]).gave("");
        assert!(lives(child));
        assert_eq!(world.effects(), before + 1, "{class}");
        first.signal(Signal::CONT);
        world.open_gate();
        first.said().check(0, &[]).gave("thank you\n");
        eventually("the child is gone", || !lives(child));
        said(waits("25s")).check(0, &["was done before"]).gave("thank you\n");
        assert_eq!(world.effects(), before + 1, "{class}");
    }
}
