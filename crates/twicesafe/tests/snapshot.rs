//! What commands print, compared with files under `tests/snapshots`. Run with TWICESAFE_UPDATE_SNAPSHOTS=1 to write them.
//!
//! What differs from run to run (times, spans, numbers, hashes, the host) is replaced first, so that every store gives
//! the same text.

use std::path::Path;
use std::process::Output;

use serde_json::{Value, json};

/// Compares with the snapshot of that name, or writes it.
#[track_caller]
pub(crate) fn check(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots").join(name).with_extension("txt");
    if std::env::var_os("TWICESAFE_UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(&path, text).expect("snapshots can be written");
        return;
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        expected == text,
        "{} differs; TWICESAFE_UPDATE_SNAPSHOTS=1 rewrites it.\n{}",
        path.display(),
        difference(&expected, text)
    );
}

fn difference(expected: &str, got: &str) -> String {
    let at = expected.lines().zip(got.lines()).take_while(|(left, right)| left == right).count();
    let from = |text: &str| text.lines().skip(at).take(6).collect::<Vec<_>>().join("\n");
    format!("from line {}, expected:\n{}\ngot:\n{}", at + 1, from(expected), from(got))
}

/// A command with all it said, as a snapshot has it.
pub(crate) fn transcript(arguments: &[&str], output: &Output) -> String {
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    let mut text = format!("$ twicesafe {}\n", arguments.join(" "));
    text += &stdout.lines().map(|line| normal(line) + "\n").collect::<String>();
    if !stderr.is_empty() {
        text += &stderr.lines().map(|line| format!("! {}\n", normal(line))).collect::<String>();
    }
    format!(
        "{text}? {}\n\n",
        output.status.code().map_or_else(|| "signal".to_owned(), |code| code.to_string())
    )
}

fn normal(line: &str) -> String {
    if let Ok(mut value @ Value::Object(_)) = serde_json::from_str(line) {
        normalise_value(&mut value);
        return words(&serde_json::to_string_pretty(&value).expect("JSON"));
    }
    // Widths of columns follow from what is replaced.
    let text = words(line);
    let parts: Vec<&str> = text.split("  ").map(str::trim).filter(|part| !part.is_empty()).collect();
    let indent = if text.starts_with("  ") { "  " } else { "" };
    format!("{indent}{}", parts.join("  "))
}

/// Names whose values differ from run to run.
const VARYING: [&str; 5] = ["intent", "waits_for_ms", "at_ms", "kept_until_ms", "next_cursor"];

fn normalise_value(value: &mut Value) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                if VARYING.contains(&name.as_str()) && !member.is_null() {
                    *member = json!(format!("<{name}>"));
                } else if name == "mean_recovery_time_ms" {
                    member["value"] = json!("<span>");
                } else {
                    normalise_value(member);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(normalise_value),
        _ => {}
    }
}

/// Replaces what differs from run to run, word by word.
fn words(text: &str) -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let text = text.replace(&format!("@{}", host.trim()), "@host");
    let (mut done, mut rest) = (String::new(), text.as_str());
    while let Some(first) = rest.chars().next() {
        let at_start = !done.ends_with(|c: char| c.is_ascii_alphanumeric() || c == '.');
        let found = if at_start { varying(rest) } else { None };
        match found {
            Some((length, name)) => {
                done += name;
                rest = &rest[length..];
            }
            None => {
                done.push(first);
                rest = &rest[first.len_utf8()..];
            }
        }
    }
    done
}

/// The length of something that differs from run to run at the start of a text, and what to write instead.
fn varying(text: &str) -> Option<(usize, &'static str)> {
    let bytes = text.as_bytes();
    let shape = |shape: &str| {
        shape.len() <= bytes.len()
            && shape.bytes().zip(bytes).all(|(s, b)| if s == b'0' { b.is_ascii_digit() } else { s == *b })
    };
    if shape("0000-00-00T00:00:00Z") {
        return Some((20, "<time>"));
    }
    let count = |accept: fn(&u8) -> bool, from: usize| bytes[from..].iter().take_while(|b| accept(b)).count();
    let hex = count(u8::is_ascii_hexdigit, 0);
    if hex >= 32 {
        return Some((hex, "<hash>"));
    }
    if bytes[0] == b'#' && count(u8::is_ascii_digit, 1) > 0 {
        return Some((1 + count(u8::is_ascii_digit, 1), "<number>"));
    }
    if let Some(cursor) = text.strip_prefix("--after ") {
        let length = cursor.find(|c: char| !c.is_ascii_hexdigit() && c != '.').unwrap_or(cursor.len());
        return (length > 0).then_some((8 + length, "--after <cursor>"));
    }
    let number = count(|b| b.is_ascii_digit() || *b == b'.', 0);
    let unit = &text[number..];
    let ends = |rest: &str| !rest.starts_with(|c: char| c.is_ascii_alphanumeric());
    match (unit.strip_prefix(" ms"), unit.strip_prefix(" s")) {
        (Some(rest), _) if number > 0 && ends(rest) => Some((number + 3, "<span>")),
        (_, Some(rest)) if number > 0 && ends(rest) => Some((number + 2, "<span>")),
        _ => None,
    }
}

#[test]
fn what_differs_from_run_to_run_is_replaced_and_nothing_else() {
    assert_eq!(normal("#12  at 2026-11-15T08:00:00Z   for 1.5 s"), "<number>  at <time>  for <span>");
    assert_eq!(normal("  order:10492  5 rows, 30 d, 3 steps"), "  order:10492  5 rows, 30 d, 3 steps");
    assert_eq!(normal(&format!("root {}", "ab".repeat(32))), "root <hash>");
    assert_eq!(normal("add --after 7fff.1a"), "add --after <cursor>");
    assert_eq!(normal(r#"{"intent":7,"rows":2}"#), "{\n  \"intent\": \"<intent>\",\n  \"rows\": 2\n}");
}
