//! The demo prints what the README says that it prints.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on may say so")]

use std::process::Command;

#[test]
fn the_demo_counts_what_the_readme_says() {
    let output = Command::new(env!("CARGO_BIN_EXE_twicesafe")).arg("demo").output().unwrap();
    let out = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{out}{}", String::from_utf8_lossy(&output.stderr));
    let readme = include_str!("../../../README.md");
    let table: Vec<&str> =
        out.lines().filter(|line| line.ends_with(" 1") || line.ends_with("Twicesafe")).collect();
    assert_eq!(table.len(), 5, "{out}");
    for line in table {
        assert!(readme.contains(line), "{line:?} is not in the README");
    }
}
