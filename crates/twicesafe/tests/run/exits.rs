//! Exit statuses: what a caller meets (S27).

use std::os::unix::fs::PermissionsExt;

use crate::run::world::{World, on_every_store, said};

const SEND: &str = "echo sent >> effects; echo thank you; echo be patient >&2";

on_every_store! {
    s27_what_was_done_is_given_again
    s27_an_unknown_end_is_reviewed_and_says_what_to_do
    s30_what_needs_approval_is_held_then_done_or_rejected
    s5_a_key_used_for_another_command_is_refused
    s28_what_is_no_longer_kept_is_not_done_again
    s16_75_means_that_nothing_was_done
    s26_what_was_not_sent_is_tried_again_by_itself
    s18_65_means_that_the_destination_refused
    a_command_can_have_its_own_statuses
    s27_statuses_with_a_meaning_of_ours_are_reported_as_1
    s16_a_command_that_cannot_be_started_did_nothing
    s6_a_key_that_looks_made_anew_is_pointed_out
}

fn s27_what_was_done_is_given_again(world: &World) {
    said(world.guarded("order:1", &[], SEND)).check(0, &[]).gave("thank you\n");
    let again = said(world.guarded("order:1", &[], SEND));
    again.check(0, &["twicesafe: order:1 was done before"]).gave("thank you\n");
    assert!(again.stderr.starts_with("be patient\n"), "{}", again.stderr);
    assert_eq!(world.effects(), 1);
    // What was prevented is a figure people look for.
    let stats = String::from_utf8(world.twicesafe(&["stats"]).output().unwrap().stdout).unwrap();
    let figure = |name: &str| {
        let line = stats.lines().find_map(|line| line.strip_prefix(name)).expect("it is a figure");
        line.split_whitespace().next().map(str::to_owned).expect("it has a value")
    };
    assert_eq!([figure("duplicates prevented"), figure("replays"), figure("effects")], ["1", "1", "1"]);
}

fn s27_an_unknown_end_is_reviewed_and_says_what_to_do(world: &World) {
    let send = "echo sent >> effects; echo half; exit 3";
    let what_to_do = [
        "It is in review and will not be run again by itself. Look at the destination",
        "twicesafe resolve shop/mail.send order:1 --happened --reason TEXT",
        "twicesafe resolve shop/mail.send order:1 --did-not-happen --reason TEXT",
        "twicesafe resolve shop/mail.send order:1 --give-up --reason TEXT",
        "twicesafe show shop/mail.send order:1",
    ];
    let flags = ["--in-flight-max", "1ms"];
    let first = said(world.guarded("order:1", &flags, send));
    first.check(121, &["TS0016: the command ended with exit status 3, which does not say whether it acted"]);
    first.check(121, &what_to_do).gave("half\n");
    // Whoever comes later is told what is known, too.
    let second = said(world.guarded("order:1", &flags, send));
    second.check(121, &["an earlier run may or may not have acted: exit status 3"]);
    second.check(121, &what_to_do).gave("");
    assert_eq!((world.effects(), world.status("order:1").as_str()), (1, "review"));
    // Each of the three ways out can be pasted.
    let resolve = |way: &str| {
        said(world.twicesafe(&["resolve", "shop/mail.send", "order:1", way, "--reason", "I looked"]))
            .check(0, &[]);
    };
    resolve("--did-not-happen");
    said(world.guarded("order:1", &flags, send)).check(121, &["ended with exit status 3"]);
    assert_eq!(world.effects(), 2);
    resolve("--happened");
    said(world.guarded("order:1", &flags, send)).check(0, &["a person said that it happened"]).gave("");
    assert_eq!(world.effects(), 2);
    said(world.guarded("order:2", &flags, send)).check(121, &[]);
    said(world.twicesafe(&["resolve", "shop/mail.send", "order:2", "--give-up", "--reason", "old"]))
        .check(0, &[]);
    said(world.guarded("order:2", &flags, send)).check(121, &["TS0014"]);
    assert_eq!(world.effects(), 3);
}

fn s30_what_needs_approval_is_held_then_done_or_rejected(world: &World) {
    let approve = ["--approve"];
    said(world.guarded("order:1", &approve, SEND)).check(122, &["TS0017", "twicesafe approve"]).gave("");
    said(world.guarded("order:1", &approve, SEND)).check(122, &["TS0017"]);
    assert_eq!(world.effects(), 0);
    said(world.twicesafe(&["approve", "shop/mail.send", "order:1", "--as", "bob"])).check(0, &[]);
    said(world.guarded("order:1", &approve, SEND)).check(0, &[]).gave("thank you\n");
    said(world.guarded("order:1", &approve, SEND)).check(0, &["was done before"]);
    assert_eq!(world.effects(), 1);
    said(world.guarded("order:2", &approve, SEND)).check(122, &[]);
    said(world.twicesafe(&["reject", "shop/mail.send", "order:2", "--as", "bob", "--reason", "no"]))
        .check(0, &[]);
    said(world.guarded("order:2", &approve, SEND)).check(123, &["TS0011", "twicesafe reset"]);
    assert_eq!(world.effects(), 1);
}

fn s5_a_key_used_for_another_command_is_refused(world: &World) {
    said(world.guarded("order:1", &[], SEND)).check(0, &[]);
    let other = said(world.guarded("order:1", &[], "echo other >> effects"));
    other.check(124, &["TS0010", "Another thing needs another key"]).gave("");
    // Words are compared one by one: what is said where matters.
    let apart = world.guarded_words("order:1", &[], &["sh", "-c", SEND, ""]);
    said(apart).check(124, &["TS0010"]);
    assert_eq!(world.effects(), 1);
    said(world.guarded("order:1", &[], SEND)).check(0, &["was done before"]).gave("thank you\n");
}

fn s28_what_is_no_longer_kept_is_not_done_again(world: &World) {
    said(world.guarded("order:1", &["--retention", "1ms"], SEND)).check(0, &[]);
    // A sweep looks at it a little later than need be: not before its attempt could have taken all the time there is.
    let long_ago = "UPDATE intent SET keep_until = 0";
    world.tamper(long_ago, &format!("{long_ago}; UPDATE reminder SET at = 0"));
    said(world.twicesafe(&["purge"])).check(0, &[]);
    let again = said(world.guarded("order:1", &[], SEND));
    again.check(119, &["TS0013", "twicesafe reset"]).gave("");
    assert_eq!(world.effects(), 1);
}

fn s16_75_means_that_nothing_was_done(world: &World) {
    let send =
        "echo tried >> tries; [ -e up ] || { echo no route; exit 75; }; echo sent >> effects; echo thank you";
    let once = ["--attempts", "1"];
    said(world.guarded("order:1", &once, send)).check(75, &["did nothing", "same key"]).gave("no route\n");
    assert_eq!(world.status("order:1"), "retryable");
    said(world.guarded("order:1", &once, send)).check(75, &[]);
    world.write("up", "");
    said(world.guarded("order:1", &once, send)).check(0, &[]).gave("thank you\n");
    assert_eq!((world.lines("tries").len(), world.effects()), (3, 1));
}

fn s26_what_was_not_sent_is_tried_again_by_itself(world: &World) {
    let send = "echo tried >> tries; [ $TWICESAFE_ATTEMPT = 3 ] || exit 75; echo sent >> effects";
    said(world.guarded("order:1", &[], send)).check(0, &[]);
    assert_eq!((world.lines("tries").len(), world.effects()), (3, 1));
    // As often as was asked for.
    let never = said(world.guarded("order:2", &["--attempts", "2"], "echo tried >> tries; exit 75"));
    never.check(75, &[]);
    assert_eq!(world.lines("tries").len(), 5);
}

fn s18_65_means_that_the_destination_refused(world: &World) {
    let send = "[ -e valid ] || { echo no such address >&2; exit 65; }; echo sent >> effects";
    said(world.guarded("order:1", &[], send)).check(65, &["no such address"]);
    assert_eq!(world.status("order:1"), "failed");
    // Causes get mended.
    world.write("valid", "");
    said(world.guarded("order:1", &[], send)).check(0, &[]);
    said(world.guarded("order:1", &[], send)).check(0, &["was done before"]);
    assert_eq!(world.effects(), 1);
}

fn a_command_can_have_its_own_statuses(world: &World) {
    let flags = ["--not-sent", "3,4", "--refused", "5", "--attempts", "1"];
    said(world.guarded("order:1", &flags, "exit 4")).check(4, &["did nothing"]);
    assert_eq!(world.status("order:1"), "retryable");
    said(world.guarded("order:2", &flags, "exit 5")).check(5, &[]);
    assert_eq!(world.status("order:2"), "failed");
    // The usual ones are replaced, not joined.
    said(world.guarded("order:3", &flags, "exit 75")).check(121, &["exit status 75"]);
    said(world.guarded("order:4", &["--refused", "0"], "exit 0")).check(2, &["exit status 0 always means"]);
}

fn s27_statuses_with_a_meaning_of_ours_are_reported_as_1(world: &World) {
    for status in 117..=126 {
        let (key, code) = (format!("refused:{status}"), status.to_string());
        let expected = if (118..=125).contains(&status) { 1 } else { status };
        said(world.guarded(&key, &["--refused", &code], &format!("exit {status}"))).check(expected, &[]);
        let key = format!("not sent:{status}");
        let flags = ["--not-sent", &code, "--attempts", "1"];
        said(world.guarded(&key, &flags, &format!("exit {status}"))).check(expected, &[]);
    }
}

fn s16_a_command_that_cannot_be_started_did_nothing(world: &World) {
    world.write("not-executable", "#!/bin/sh\n");
    world.write("no-interpreter", "#!/no/such/interpreter\n");
    let may = |mode| std::fs::set_permissions(world.file("no-interpreter"), PermissionsExt::from_mode(mode));
    may(0o755).unwrap();
    for (program, why) in [
        ("no-such-program", "no-such-program was not found in PATH"),
        ("./no-such-file", "No such file"),
        ("./not-executable", "may not be executed"),
        ("./no-interpreter", "No such file"),
        ("/tmp", "may not be executed"),
        ("", "was not found in PATH"),
    ] {
        let key = format!("start {program}");
        let attempt = said(world.guarded_words(&key, &[], &[program]));
        attempt.check(127, &["TS0060", why, "Nothing was done", "twicesafe explain TS0060"]).gave("");
        assert!(!attempt.stderr.contains("twicesafe-not-started"), "{}", attempt.stderr);
        assert_eq!(world.status(&key), "retryable", "{program}");
    }
    // The same line works once the cause is mended.
    world.write("no-interpreter", "#!/bin/sh\necho sent >> effects\n");
    said(world.guarded_words("start ./no-interpreter", &[], &["./no-interpreter"])).check(0, &[]);
    assert_eq!(world.effects(), 1);
}

fn s6_a_key_that_looks_made_anew_is_pointed_out(world: &World) {
    said(world.guarded("2026-11-15T10:00:00Z", &[], "true")).check(0, &["TS0007", "date"]);
    let quiet = said(world.guarded("invoice-2026-11", &[], "true"));
    assert_eq!(quiet.check(0, &[]).stderr, "");
}
