//! `run --each`: one intent a line.

use std::collections::BTreeSet;
use std::io::Write;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal};
use serde_json::Value;

use crate::run::world::{ACTS_THEN_WAITS, Running, World, eventually, lives, on_every_store, said, said_to};

/// Notes the line it is given.
const NOTE: &str = "read -r line; printf '%s\\n' \"$line\" >> effects";

fn each(world: &World, file: &str, flags: &[&str], script: &str) -> Command {
    let mut command =
        world.twicesafe(&["run", "--scope", "shop/mail.send", "--each", file, "--key-field", "id"]);
    command.args(flags).args(["--", "sh", "-c", script]);
    command
}

fn orders(numbers: std::ops::Range<u32>) -> String {
    numbers.map(|number| format!("{{\"id\":\"order:{number}\",\"item\":\"socks\"}}\n")).collect()
}

on_every_store! {
    s42_a_batch_killed_in_the_middle_is_resumed_and_each_line_happens_once
    a_key_twice_in_a_file_is_one_intent
    the_end_of_a_line_is_no_part_of_it
    s2_a_bad_line_stops_the_rest_and_is_named
    every_line_is_told_as_json
    people_see_what_the_commands_say_and_a_summary
    a_slow_writer_holds_nothing_up
    a_batch_that_is_interrupted_starts_no_further_line
    a_command_whose_runner_is_killed_never_sees_half_of_its_line
    a_batch_goes_on_while_the_program_is_replaced
    a_batch_goes_on_when_what_starts_its_commands_is_killed
}

fn s42_a_batch_killed_in_the_middle_is_resumed_and_each_line_happens_once(world: &World) {
    world.write("orders.jsonl", &orders(0..200));
    let lookup = r#"grep -q "\"id\":\"$TWICESAFE_KEY\"" effects && echo "MSG-$TWICESAFE_KEY""#;
    let flags = [
        "--recovery",
        "lookup",
        "--lookup",
        lookup,
        "--lease",
        "2s",
        "--in-flight-max",
        "50ms",
        "--lag",
        "50ms",
    ];
    let runner = Running::start(each(world, "orders.jsonl", &flags, NOTE));
    eventually("some lines are done", || world.effects() >= 40);
    runner.signal(Signal::KILL);
    runner.said();
    let before = world.effects();
    assert!(before < 200, "it was killed in the middle");
    let rest = said(each(world, "orders.jsonl", &flags, NOTE));
    rest.check(0, &["200 lines"]);
    let lines = world.lines("effects");
    assert_eq!((lines.len(), lines.iter().collect::<BTreeSet<_>>().len()), (200, 200), "each line once");
    said(each(world, "orders.jsonl", &flags, NOTE)).check(0, &["200 lines: 0 done now, 200 done before"]);
    assert_eq!(world.effects(), 200);
}

fn a_key_twice_in_a_file_is_one_intent(world: &World) {
    world.write("orders.jsonl", &(orders(0..3) + &orders(1..4)));
    said(each(world, "orders.jsonl", &[], NOTE)).check(0, &["6 lines: 4 done now, 2 done before"]);
    assert_eq!(world.effects(), 4);
    // With other contents it is a mistake.
    world.write(
        "other.jsonl",
        "{\"id\":\"order:1\",\"item\":\"hats\"}\n{\"id\":\"order:9\",\"item\":\"hats\"}\n",
    );
    let other = said(each(world, "other.jsonl", &[], NOTE));
    other.check(124, &["order:1: mismatched (TS0010)", "2 lines: 1 done now, 0 done before, 1 mismatched"]);
    assert_eq!(world.effects(), 5);
}

fn the_end_of_a_line_is_no_part_of_it(world: &World) {
    world.write("orders.jsonl", orders(0..2).trim_end());
    said(each(world, "orders.jsonl", &["--parallel", "1"], NOTE)).check(0, &["2 lines: 2 done now"]);
    world.write("orders.jsonl", &(orders(0..3) + "\n\r\n"));
    said(each(world, "orders.jsonl", &["--parallel", "1"], NOTE))
        .check(0, &["3 lines: 1 done now, 2 done before"]);
    world.write("orders.jsonl", &orders(0..3).replace('\n', "\r\n"));
    said(each(world, "orders.jsonl", &["--parallel", "1"], NOTE))
        .check(0, &["3 lines: 0 done now, 3 done before"]);
    assert_eq!(world.lines("effects"), orders(0..3).lines().collect::<Vec<_>>());
}

fn s2_a_bad_line_stops_the_rest_and_is_named(world: &World) {
    let cases = [
        ("{\"id\":", "not JSON"),
        ("{\"item\":\"socks\"}", "the field `id` is not there"),
        ("{\"id\":null}", "the field `id` is not there"),
        ("{\"id\":1.5}", "not an exact integer"),
        ("{\"id\":1e300}", "not an exact integer"),
        ("{\"id\":[1]}", "neither text nor an integer"),
        ("{\"id\":\"\"}", "the field `id` is empty"),
        ("7", "the field `id` is not there"),
        ("{\"id\":\"\u{1}\"}", "line 3"),
    ];
    for (number, (line, why)) in cases.into_iter().enumerate() {
        let first = u32::try_from(number * 10).unwrap();
        let text = format!("{}{line}\n{}", orders(first..first + 2), orders(first + 5..first + 6));
        world.write("orders.jsonl", &text);
        let before = world.effects();
        let ended = said(each(world, "orders.jsonl", &["--parallel", "1"], NOTE));
        ended.check(
            2,
            &["TS0061", "line 3 of orders.jsonl", why, "2 lines: 2 done now", "what was done stays done"],
        );
        assert_eq!(world.effects(), before + 2, "{line}");
        // Mended, it goes on.
        world.write("orders.jsonl", &orders(first..first + 3));
        said(each(world, "orders.jsonl", &[], NOTE)).check(0, &["1 done now, 2 done before"]);
    }
    said(each(world, "no-such-file", &[], NOTE)).check(2, &["TS0061", "no-such-file"]);
}

fn every_line_is_told_as_json(world: &World) {
    let script = "read -r line; case $line in *:1*) exit 3;; *:2*) exit 65;; *:3*) exit 75;; esac";
    world.write("orders.jsonl", &orders(0..4));
    let flags = ["--json", "--attempts", "1"];
    let told = |expected: i32| {
        let ended = said(each(world, "orders.jsonl", &flags, script));
        let mut lines: Vec<Value> = ended
            .check(expected, &[])
            .text()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        lines.sort_by_key(|line| line["key"].as_str().unwrap().to_owned());
        let words =
            |line: &Value| format!("{} {} {} {}", line["key"], line["result"], line["code"], line["exit"]);
        (lines.iter().map(words).collect::<Vec<_>>(), ended.stderr.clone())
    };
    world.write("orders.jsonl", &orders(0..1));
    assert_eq!(told(0).0, [r#""order:0" "done" null 0"#]);
    world.write("orders.jsonl", &orders(0..2));
    assert_eq!(told(121).0, [r#""order:0" "done before" null null"#, r#""order:1" "in review" "TS0016" 3"#]);
    world.write("orders.jsonl", &orders(2..4));
    let ended = said(each(world, "orders.jsonl", &flags, script));
    assert!(matches!(ended.status, Some(65 | 75)), "{ended:?}");
    assert!(ended.text().contains(r#""result":"refused""#), "{ended:?}");
    assert!(ended.text().contains(r#""result":"not sent""#), "{ended:?}");
}

fn people_see_what_the_commands_say_and_a_summary(world: &World) {
    let ended = said_to(
        each(world, "-", &["--parallel", "1"], "read -r line; echo \"$TWICESAFE_KEY\"; echo oh >&2"),
        orders(0..3).as_bytes(),
    );
    ended
        .check(0, &["oh\noh\noh\n", "twicesafe: 3 lines: 3 done now, 0 done before"])
        .gave("order:0\norder:1\norder:2\n");
    let integer = said_to(each(world, "-", &[], NOTE), b"{\"id\":17}\n{\"id\":-3}\n");
    integer.check(0, &["2 lines: 2 done now"]);
    assert_eq!(world.status("17"), "done");
    let nobody = said_to(each(world, "-", &[], "read -r line; no-such-program"), b"{\"id\":18}\n");
    nobody.check(121, &["18: in review (TS0016)"]);
}

fn a_slow_writer_holds_nothing_up(world: &World) {
    let mut command = each(world, "-", &["--lease", "1s"], NOTE);
    let mut runner =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut pipe = runner.stdin.take().unwrap();
    pipe.write_all(orders(0..1).as_bytes()).unwrap();
    eventually("the first line is done before the second is there", || {
        world.effects() == 1 && world.status("order:0") == "done"
    });
    pipe.write_all(orders(1..2).as_bytes()).unwrap();
    drop(pipe);
    let ended = runner.wait_with_output().unwrap();
    assert!(String::from_utf8_lossy(&ended.stderr).contains("2 lines: 2 done now"), "{ended:?}");
}

fn a_batch_that_is_interrupted_starts_no_further_line(world: &World) {
    world.write("orders.jsonl", &orders(0..50));
    let script = "read -r line; echo \"$line\" >> effects; sleep 1";
    let runner = Running::start(each(world, "orders.jsonl", &["--parallel", "2"], script));
    eventually("it has begun", || world.effects() >= 2);
    runner.signal(Signal::TERM);
    let ended = runner.said();
    ended.check(143, &["run the same line again"]);
    let begun = world.effects();
    assert!(begun <= 4, "{begun} lines were begun");
    std::thread::sleep(std::time::Duration::from_millis(1500));
    assert_eq!(world.effects(), begun);
}

fn a_command_whose_runner_is_killed_never_sees_half_of_its_line(world: &World) {
    // More than a pipe holds, so that it could not be handed over at once.
    let item = "x".repeat(200_000);
    let script = "echo $$ > pid.new; mv pid.new pid; read -r line; echo ${#line} >> effects";
    for number in 0..10 {
        let line = format!("{{\"id\":\"order:{number}\",\"item\":\"{item}\"}}\n");
        world.write("orders.jsonl", &line);
        let _ = std::fs::remove_file(world.file("pid"));
        let runner = Running::start(each(world, "orders.jsonl", &[], script));
        let child = world.child();
        runner.signal(Signal::KILL);
        runner.said();
        eventually("the child dies with its runner", || !lives(child));
        let whole = (line.len() - 1).to_string();
        assert!(world.lines("effects").iter().all(|seen| *seen == whole), "{:?}", world.lines("effects"));
    }
}

fn a_batch_goes_on_when_what_starts_its_commands_is_killed(world: &World) {
    world.write("orders.jsonl", &orders(0..3));
    let runner = Running::start(each(world, "orders.jsonl", &["--parallel", "1"], ACTS_THEN_WAITS));
    let child = world.child();
    let nursery = parent_of(child);
    assert_ne!(nursery, runner.pid(), "it has a parent of its own");
    let group = |pid| rustix::process::getpgid(Some(pid)).unwrap();
    assert_eq!(group(child), group(runner.pid()), "who interrupts the runner interrupts it too");
    assert_ne!(group(nursery), group(child), "and not what starts the others");
    world.write("second", "");
    rustix::process::kill_process(nursery, Signal::KILL).unwrap();
    eventually("the child dies with it", || !lives(child));
    // What was cut may have acted; the others are started one by one.
    runner.said().check(121, &["3 lines: 2 done now", "1 in review"]);
    assert_eq!(world.effects(), 3);
}

fn parent_of(pid: Pid) -> Pid {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap();
    let (_, after_name) = stat.rsplit_once(") ").unwrap();
    Pid::from_raw(after_name.split(' ').nth(1).unwrap().parse().unwrap()).unwrap()
}

fn a_batch_goes_on_while_the_program_is_replaced(world: &World) {
    let copy = world.file("twicesafe");
    std::fs::copy(env!("CARGO_BIN_EXE_twicesafe"), &copy).unwrap();
    world.write("orders.jsonl", &orders(0..2));
    let mut command = world.program(&copy);
    command.args(["run", "--scope", "shop/mail.send", "--each", "orders.jsonl", "--key-field", "id"]);
    command.args(["--parallel", "1", "--", "sh", "-c", ACTS_THEN_WAITS]);
    let runner = Running::start(command);
    world.child();
    world.write("second", "");
    std::fs::remove_file(&copy).unwrap();
    world.open_gate();
    runner.said().check(0, &["2 lines: 2 done now"]);
    assert_eq!(world.effects(), 2);
}
