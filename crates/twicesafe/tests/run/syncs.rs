//! How often the disk is waited for.

use std::process::Command;

use crate::run::world::{World, said, unchecked};

/// Counts the syncs of a run, with strace.
fn syncs(world: &World, key: &str) -> usize {
    let mut command = world.program("strace");
    command.args(["-f", "-qq", "-o", "trace", "-e", "trace=fsync,fdatasync,sync_file_range,msync"]);
    command.arg(env!("CARGO_BIN_EXE_twicesafe")).args(["run", "--scope", "shop", "--key", key, "--", "true"]);
    said(command).check(0, &[]);
    world.lines("trace").iter().filter(|line| line.contains("sync(")).count()
}

#[test]
fn a_run_waits_for_the_disk_four_times_and_a_replay_never() {
    if !Command::new("strace").arg("-V").output().is_ok_and(|output| output.status.success()) {
        unchecked("strace is not installed; scripts/bench-cli measures it");
        return;
    }
    let world = World::sqlite();
    said(world.guarded("first", &[], "true")).check(0, &[]);
    let first = syncs(&world, "order:1");
    assert!((1..=4).contains(&first), "{first} syncs");
    assert_eq!(syncs(&world, "order:1"), 0, "a replay");
}

#[test]
fn the_log_of_a_ledger_does_not_grow_from_run_to_run() {
    const LOG_BYTES_MAX: u64 = 4 << 20;
    let world = World::sqlite();
    for number in 0..60 {
        said(world.guarded(&format!("order:{number}"), &[], "true")).check(0, &[]);
        let log = std::fs::metadata(world.file("ledger.db-wal")).unwrap().len();
        assert!(log < LOG_BYTES_MAX, "{log} bytes after {number} runs");
    }
}
