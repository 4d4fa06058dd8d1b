//! `twicesafe explain`.

use std::io::Read;
use std::process::{Command, Stdio};

use twicesafe_core::Code;

use crate::{check, twicesafe};

const PAGE: &str = include_str!("../../../docs/errors/TS0010.md");

#[test]
fn a_code_is_explained_however_it_is_written() {
    for text in ["TS0010", "ts0010", "ts10", "0010", "10"] {
        check(&["explain", text], PAGE, "", 0);
    }
}

#[test]
fn every_code_is_explained() {
    for code in Code::ALL {
        let output = twicesafe(&["explain", code.as_str()]);
        let title = format!("# {code}: ");
        assert!(output.status.success() && output.stdout.starts_with(title.as_bytes()), "{code}");
    }
}

#[test]
fn json_has_code_title_and_page() {
    let output = twicesafe(&["explain", "--json", "ts0010"]);
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON on stdout");
    let expected = serde_json::json!({
        "code": "TS0010",
        "title": "The same key was used with other input.",
        "page": PAGE,
    });
    assert_eq!(value, expected);
    assert!(output.status.success() && output.stderr.is_empty());
}

#[test]
fn without_a_code_all_are_listed() {
    let lines: String = Code::ALL.iter().map(|code| format!("{code}  {}\n", code.title())).collect();
    check(&["explain"], &lines, "", 0);

    let output = twicesafe(&["explain", "--json"]);
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON on stdout");
    assert_eq!(value.as_array().map(Vec::len), Some(Code::ALL.len()));
    assert_eq!(value[0]["code"], "TS0001");
}

#[test]
fn an_unknown_code_is_refused_with_the_nearest() {
    let nearest = "the nearest is TS0018: The destination said no.";
    check(&["explain", "TS0019"], "", &format!("twicesafe: there is no code `TS0019`; {nearest}"), 2);
    check(&["explain", "--json", "19"], "", &format!("twicesafe: there is no code `19`; {nearest}"), 2);
    check(
        &["explain", "nonsense"],
        "",
        "twicesafe: there is no code `nonsense`; a code looks like TS0010.",
        2,
    );
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_twicesafe"))
        .arg("explain")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    drop(child.stdout.take());
    let mut said = String::new();
    child.stderr.take().expect("piped").read_to_string(&mut said).expect("text");
    assert_eq!(said, "");
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
}

#[test]
#[cfg(target_os = "linux")]
fn an_output_that_cannot_be_written_is_an_error() {
    let full = std::fs::File::options().write(true).open("/dev/full").expect("a device that is always full");
    let output = Command::new(env!("CARGO_BIN_EXE_twicesafe"))
        .args(["explain", "10"])
        .stdout(full)
        .output()
        .expect("the binary starts");
    assert!(String::from_utf8_lossy(&output.stderr).starts_with("twicesafe: cannot write the output: "));
    assert_eq!(output.status.code(), Some(1));
}
