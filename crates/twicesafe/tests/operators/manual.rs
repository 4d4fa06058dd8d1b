//! Completions and the manual page.

use std::process::Command;

use crate::twicesafe;

/// Without a ledger, because they need none.
fn printed(arguments: &[&str]) -> String {
    let output = twicesafe(arguments);
    assert!(output.status.success() && output.stderr.is_empty(), "{arguments:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn every_shell_gets_completions_that_know_every_command() {
    for shell in ["bash", "zsh", "fish"] {
        let script = printed(&["completions", shell]);
        for command in ["intents", "show", "resolve", "journal", "restored", "explain"] {
            assert!(script.contains(command), "{shell} does not know {command}");
        }
    }
    let mut check = Command::new("bash");
    check.args(["-n", "/dev/stdin"]).stdin(std::process::Stdio::piped());
    let mut bash = check.spawn().unwrap();
    std::io::Write::write_all(&mut bash.stdin.take().unwrap(), printed(&["completions", "bash"]).as_bytes())
        .unwrap();
    assert!(bash.wait().unwrap().success());
    crate::check(&["completions", "cobol"], "", "error: invalid value 'cobol' for '<SHELL>'", 2);
}

#[test]
fn the_manual_has_every_command_with_its_options() {
    let page = printed(&["man"]);
    assert!(page.contains(".TH twicesafe 1"), "{}", &page[..200]);
    for command in ["TWICESAFE INTENTS", "TWICESAFE RESOLVE", "TWICESAFE JOURNAL VERIFY", "TWICESAFE EXPLAIN"]
    {
        assert!(page.contains(&format!(".SH \"{command}\"")), "{command} is missing");
    }
    assert!(page.contains("did\\-not\\-happen"));
}
