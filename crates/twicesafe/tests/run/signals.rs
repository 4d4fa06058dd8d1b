//! Signals to the runner are for the command.

use rustix::process::Signal;

use crate::run::world::{Running, World, on_every_store, said};

/// A command under a key that does first as it is told, and then goes on for ever.
fn lasting(world: &World, key: &str, flags: &[&str], first: &str) -> Running {
    let script = format!("{first}; echo $$ > pid.new; mv pid.new pid; while :; do sleep 0.05; done");
    let _ = std::fs::remove_file(world.file("pid"));
    let runner = Running::start(world.guarded(key, flags, &script));
    world.child();
    runner
}

on_every_store! {
    a_command_that_ends_well_when_told_to_end_is_done
    a_command_that_says_nothing_when_told_to_end_is_reviewed
    the_second_interrupt_kills_and_the_record_is_honest
    who_only_waits_ends_at_once_and_changes_nothing
    who_was_told_to_end_does_not_start_again
}

fn a_command_that_ends_well_when_told_to_end_is_done(world: &World) {
    for (signal, name) in
        [(Signal::TERM, "TERM"), (Signal::INT, "INT"), (Signal::HUP, "HUP"), (Signal::QUIT, "QUIT")]
    {
        let key = format!("{name}:1");
        let runner =
            lasting(world, &key, &[], &format!("trap 'echo {name} >> effects; echo bye; exit 0' {name}"));
        runner.signal(signal);
        runner.said().check(0, &[]).gave("bye\n");
        assert_eq!(world.status(&key), "done");
    }
    assert_eq!(world.lines("effects"), ["TERM", "INT", "HUP", "QUIT"]);
}

fn a_command_that_says_nothing_when_told_to_end_is_reviewed(world: &World) {
    let runner = lasting(world, "order:1", &[], "true");
    runner.signal(Signal::TERM);
    runner.said().check(121, &["the command was killed by signal 15; it may have acted before"]);
    assert_eq!(world.status("order:1"), "review");
}

fn the_second_interrupt_kills_and_the_record_is_honest(world: &World) {
    let mut runner = lasting(world, "order:1", &[], "trap 'echo no >> effects' INT");
    runner.signal(Signal::INT);
    crate::run::world::eventually("the first one arrives", || world.effects() == 1);
    assert!(runner.is_running());
    runner.signal(Signal::INT);
    runner.said().check(121, &["interrupted again: the command is killed", "killed by signal 9"]);
    assert_eq!(world.status("order:1"), "review");
    assert_eq!(world.effects(), 1);
}

fn who_only_waits_ends_at_once_and_changes_nothing(world: &World) {
    let first = Running::start(world.guarded("order:1", &[], crate::run::world::ACTS_THEN_WAITS));
    world.child();
    let second = Running::start(world.guarded("order:1", &[], crate::run::world::ACTS_THEN_WAITS));
    std::thread::sleep(std::time::Duration::from_millis(500));
    second.signal(Signal::TERM);
    second.said().check(143, &[]).gave("");
    world.open_gate();
    first.said().check(0, &[]).gave("thank you\n");
    assert_eq!(world.effects(), 1);
}

fn who_was_told_to_end_does_not_start_again(world: &World) {
    let runner = lasting(world, "order:1", &["--recovery", "repeat"], "echo sent >> effects");
    runner.signal(Signal::TERM);
    runner.said().check(143, &["run the same line again"]);
    assert_eq!((world.effects(), world.status("order:1").as_str()), (1, "retryable"));
    said(world.guarded("order:1", &["--wait", "0s", "--fingerprint", "key"], "true")).check(124, &[]);
}
