//! The binary as a user meets it, and the workspace as its engineers agreed on it.

mod data;
mod demo;
mod explain;
mod operators;
mod run;
mod serve;
mod snapshot;
mod workspace;

use std::process::{Command, Output};

/// Runs the real binary.
fn twicesafe(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_twicesafe")).args(arguments).output().expect("the binary starts")
}

/// Runs the real binary and checks what it says: on stdout, on stderr (its beginning), and by its exit status.
#[track_caller]
fn check(arguments: &[&str], stdout: &str, stderr: &str, status: i32) {
    let output = twicesafe(arguments);
    assert_eq!(String::from_utf8_lossy(&output.stdout), stdout, "stdout of {arguments:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.starts_with(stderr) && said.is_empty() == stderr.is_empty(),
        "stderr of {arguments:?}: {said}"
    );
    assert_eq!(output.status.code(), Some(status), "exit status of {arguments:?}");
}

#[test]
fn the_version_is_data() {
    check(&["--version"], concat!("twicesafe ", env!("CARGO_PKG_VERSION"), "\n"), "", 0);
}

#[test]
fn unknown_commands_are_refused_on_stderr() {
    check(&["explode"], "", "error: unrecognized subcommand 'explode'", 2);
    check(&["explain", "10", "11"], "", "error: unexpected argument '11'", 2);
}

#[test]
fn without_a_command_help_is_given_and_nothing_is_data() {
    check(&[], "", "Run it twice by accident. Nothing bad happens", 2);
}
