//! SIGKILL to the runner, to the child, to both; then the same line again, for every recovery class (S24).

use rustix::process::{Pid, Signal, kill_process};

use crate::run::world::{ACTS_THEN_WAITS, Running, Said, World, eventually, lives, on_every_store, said};

const SHORT: [&str; 6] = ["--lease", "1s", "--in-flight-max", "100ms", "--lag", "100ms"];

#[derive(Clone, Copy, PartialEq, Debug)]
enum Victim {
    Runner,
    Child,
    Both,
}

const VICTIMS: [Victim; 3] = [Victim::Runner, Victim::Child, Victim::Both];

/// Starts a command that waits at the gate, kills who is to be killed, and says how the same line ended in the end: by
/// itself where the runner lived on, otherwise run again.
fn killed(world: &World, victim: Victim, flags: &[&str], script: &str) -> Said {
    let key = format!("{victim:?}");
    let command = || {
        let flags: Vec<&str> = SHORT.iter().chain(flags).copied().collect();
        world.guarded(&key, &flags, script)
    };
    for trace in ["pid", "second", "effects"] {
        let _ = std::fs::remove_file(world.file(trace));
    }
    let runner = Running::start(command());
    let child = world.child();
    world.write("second", "");
    if victim != Victim::Child {
        runner.signal(Signal::KILL);
    }
    if victim != Victim::Runner {
        // It may have died with its runner.
        let _ = kill_process(child, Signal::KILL);
    }
    let first = runner.said();
    eventually("the child dies with its runner", || !lives(child));
    if victim == Victim::Child { first } else { said(command()) }
}

on_every_store! {
    s24_repeat_is_run_again
    s24_native_key_is_sent_again_and_the_destination_sees_one
    s24_lookup_finds_what_happened
    s24_lookup_that_finds_nothing_in_time_lets_it_be_run_again
    s24_lookup_that_says_nothing_leaves_it_pending
    s24_person_is_asked
    a_killed_child_is_reported_at_once_whatever_it_left_behind
}

fn s24_repeat_is_run_again(world: &World) {
    for victim in VICTIMS {
        killed(world, victim, &["--recovery", "repeat"], ACTS_THEN_WAITS).check(0, &[]).gave("thank you\n");
        assert_eq!(world.effects(), 2, "{victim:?}: declared harmless");
    }
}

fn s24_native_key_is_sent_again_and_the_destination_sees_one(world: &World) {
    // A destination that deduplicates: one file a key.
    let send = "[ -e second ] && gate= || gate=gate; echo called >> effects; mkdir -p taken; \
                touch taken/$TWICESAFE_KEY-$TWICESAFE_DESTINATION_KEY; echo $$ > pid.new; mv pid.new pid; \
                [ -z \"$gate\" ] || read _ < gate; echo $TWICESAFE_DOUBT";
    for victim in VICTIMS {
        killed(world, victim, &["--recovery", "native-key"], send).check(0, &[]).gave("1\n");
        assert_eq!(world.effects(), 2, "{victim:?}: it was called twice");
    }
    assert_eq!(
        std::fs::read_dir(world.file("taken")).unwrap().count(),
        VICTIMS.len(),
        "and acted once for each key"
    );
}

fn s24_lookup_finds_what_happened(world: &World) {
    let flags = ["--recovery", "lookup", "--lookup", "[ -e effects ] && echo MSG-7"];
    for victim in VICTIMS {
        let ended = killed(world, victim, &flags, ACTS_THEN_WAITS);
        let who =
            if victim == Victim::Child { "the command did not say" } else { "an earlier run did not say" };
        ended.check(0, &[who, "the lookup found that it happened, as MSG-7"]).gave("");
        assert_eq!(world.effects(), 1, "{victim:?}");
        assert_eq!(world.status(&format!("{victim:?}")), "done");
    }
}

fn s24_lookup_that_finds_nothing_in_time_lets_it_be_run_again(world: &World) {
    let send = "[ -e second ] && gate= || gate=gate; echo $$ > pid.new; mv pid.new pid; \
                [ -z \"$gate\" ] || read _ < gate; echo sent >> effects; echo thank you";
    let flags = ["--recovery", "lookup", "--lookup", "[ -e effects ] && echo MSG-7"];
    for victim in VICTIMS {
        killed(world, victim, &flags, send).check(0, &[]).gave("thank you\n");
        assert_eq!(world.effects(), 1, "{victim:?}");
    }
}

fn s24_lookup_that_says_nothing_leaves_it_pending(world: &World) {
    let flags = ["--recovery", "lookup", "--lookup", "echo maybe; exit 2", "--wait", "3s"];
    for victim in VICTIMS {
        killed(world, victim, &flags, ACTS_THEN_WAITS).check(120, &["TS0015"]).gave("");
        assert_eq!(world.effects(), 1, "{victim:?}");
    }
}

fn s24_person_is_asked(world: &World) {
    for victim in VICTIMS {
        let ended = killed(world, victim, &[], ACTS_THEN_WAITS);
        let what = if victim == Victim::Child {
            "the command was killed by signal 9; it may have acted before"
        } else {
            "an earlier run may or may not have acted: nobody heard how it ended"
        };
        ended.check(121, &["TS0016", what, "--did-not-happen"]).gave("");
        assert_eq!(world.effects(), 1, "{victim:?}");
        assert_eq!(world.status(&format!("{victim:?}")), "review");
    }
}

/// What a shell has started lives on when the shell is killed. The runner does not wait for it.
fn a_killed_child_is_reported_at_once_whatever_it_left_behind(world: &World) {
    let send = "sleep 600 & echo $! > left; echo $$ > pid.new; mv pid.new pid; wait";
    let runner = Running::start(world.guarded("order:1", &[], send));
    kill_process(world.child(), Signal::KILL).unwrap();
    runner.said().check(121, &["killed by signal 9"]);
    let left = world.lines("left")[0].parse().unwrap();
    kill_process(Pid::from_raw(left).unwrap(), Signal::KILL).unwrap();
}
