//! What goes in and what comes out: keys, flags, bytes, sizes, stdin.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use crate::run::world::{World, on_every_store, said, said_to};

const KEPT: usize = 1 << 20;

on_every_store! {
    s2_bad_keys_and_flags_are_refused_and_nothing_runs
    bytes_are_kept_as_they_are
    s20_output_over_the_limit_is_shown_once_and_said_to_be_lost
    what_a_command_reads_can_be_part_of_what_it_is
    a_retry_reads_what_the_first_attempt_read
    the_key_alone_can_be_what_it_is
    a_command_knows_its_key_and_attempt
    pipes_that_break_end_a_command_as_in_a_shell
}

fn s2_bad_keys_and_flags_are_refused_and_nothing_runs(world: &World) {
    let send = "echo sent >> effects";
    said(world.guarded("", &[], send)).check(2, &["TS0001"]);
    said(world.guarded(&"k".repeat(256), &[], send)).check(2, &["TS0002", "256 bytes"]);
    said(world.guarded("a\nb", &[], send)).check(2, &["TS0002"]);
    said(world.guarded("k", &["--recover", "repeat"], send))
        .check(2, &["a similar argument exists: '--recovery'"]);
    said(world.guarded("k", &["--recovery", "reapet"], send)).check(2, &["repeat"]);
    said(world.guarded("k", &["--recovery", "lookup"], send)).check(2, &["needs --lookup CMD"]);
    said(world.guarded("k", &["--lease", "soon"], send)).check(2, &["is not a span; write 300ms"]);
    said(world.guarded("k", &["--lease", "1ms"], send)).check(2, &["TS0004"]);
    said(world.guarded("k", &["--work", "order:1"], send)).check(2, &["--step"]);
    said(world.guarded("k", &["--version", "1"], send)).check(2, &["--lane"]);
    said(world.twicesafe(&["run", "--scope", "a//b", "--key", "k", "--", "true"])).check(2, &["TS0003"]);
    said(world.twicesafe(&["run", "--scope", "a", "--key", "k"])).check(2, &["<CMD>"]);
    said(world.twicesafe(&["run", "--scope", "a", "--", "true"])).check(2, &["--key"]);
    assert_eq!(world.effects(), 0);
    said(world.guarded(&"k".repeat(255), &[], send)).check(0, &[]);
    assert_eq!(world.effects(), 1);
}

fn bytes_are_kept_as_they_are(world: &World) {
    let odd = OsStr::from_bytes(b"\xff\xfe caf\xc3\xa9 \x80");
    let run = || {
        let mut command = world.guarded_words(
            "bytes",
            &[],
            &["sh", "-c", r#"printf %s "$1"; printf '\000\377' >&2"#, "sh"],
        );
        command.arg(odd);
        command.output().unwrap()
    };
    let (first, again) = (run(), run());
    assert_eq!(first.stdout, odd.as_bytes());
    assert_eq!(first.stderr, b"\x00\xff");
    assert_eq!(again.stdout, first.stdout);
    assert!(again.stderr.starts_with(b"\x00\xff"));
    // Another byte is another command.
    let mut other =
        world.guarded_words("bytes", &[], &["sh", "-c", r#"printf %s "$1"; printf '\000\377' >&2"#, "sh"]);
    other.arg(OsStr::from_bytes(b"\xfe\xfe caf\xc3\xa9 \x80"));
    said(other).check(124, &[]);
}

fn s20_output_over_the_limit_is_shown_once_and_said_to_be_lost(world: &World) {
    let talk = "head -c 1500000 /dev/zero | tr '\\0' o; head -c 1048577 /dev/zero | tr '\\0' e >&2";
    let first = said(world.guarded("talk", &[], talk));
    assert_eq!(first.check(0, &[]).stdout, vec![b'o'; 1_500_000]);
    assert_eq!(first.stderr.len(), 1_048_577);
    let again = said(world.guarded("talk", &[], talk));
    again.check(0, &["451424 bytes of stdout were not kept", "1 bytes of stderr were not kept"]);
    assert_eq!(again.stdout, vec![b'o'; KEPT]);
}

fn what_a_command_reads_can_be_part_of_what_it_is(world: &World) {
    let send = "cat >> effects; echo read";
    let run =
        |key: &str, flags: &[&str], input: &str| said_to(world.guarded(key, flags, send), input.as_bytes());
    let stdin = ["--fingerprint", "stdin"];
    run("order:1", &stdin, "two socks\n").check(0, &[]).gave("read\n");
    run("order:1", &stdin, "two socks\n").check(0, &["was done before"]).gave("read\n");
    run("order:1", &stdin, "three socks\n").check(124, &["TS0010"]);
    assert_eq!(world.lines("effects"), ["two socks"]);
    // Without that the command alone counts, and reads what its runner would.
    run("order:2", &[], "four socks\n").check(0, &[]);
    run("order:2", &[], "five socks\n").check(0, &["was done before"]);
    assert_eq!(world.lines("effects"), ["two socks", "four socks"]);
}

fn a_retry_reads_what_the_first_attempt_read(world: &World) {
    let send = "cat >> effects; [ $TWICESAFE_ATTEMPT = 2 ] || exit 75";
    said_to(world.guarded("order:1", &["--fingerprint", "stdin"], send), b"socks\n").check(0, &[]);
    assert_eq!(world.lines("effects"), ["socks", "socks"]);
    // Where it was not kept there is nothing left to read: the next run tries again, with its own.
    said_to(world.guarded("order:2", &[], send), b"hats\n").check(75, &["did nothing"]);
    assert_eq!(world.lines("effects"), ["socks", "socks", "hats"]);
    crate::run::world::eventually("it is due", || {
        said_to(world.guarded("order:2", &[], send), b"hats\n").status == Some(0)
    });
    assert_eq!(world.lines("effects"), ["socks", "socks", "hats", "hats"]);
}

fn the_key_alone_can_be_what_it_is(world: &World) {
    let key = ["--fingerprint", "key"];
    said(world.guarded("order:1", &key, "echo sent >> effects; echo one")).check(0, &[]);
    said(world.guarded("order:1", &key, "echo sent >> effects; echo two"))
        .check(0, &["was done before"])
        .gave("one\n");
    assert_eq!(world.effects(), 1);
}

fn a_command_knows_its_key_and_attempt(world: &World) {
    let tell = "echo $TWICESAFE_SCOPE $TWICESAFE_KEY $TWICESAFE_ATTEMPT $TWICESAFE_DOUBT; \
                echo $TWICESAFE_DESTINATION_KEY > destination";
    said(world.guarded("order:1", &[], tell)).check(0, &[]).gave("shop/mail.send order:1 1 0\n");
    let first = world.lines("destination");
    said(world.guarded("order:2", &[], tell)).check(0, &[]);
    assert_ne!(world.lines("destination"), first);
    assert!(first[0].len() > 16, "{first:?}");
}

fn pipes_that_break_end_a_command_as_in_a_shell(world: &World) {
    said(world.guarded("pipe", &[], "yes | head -n 1")).check(0, &[]).gave("y\n");
}
