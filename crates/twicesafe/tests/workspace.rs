//! What the workspace must look like: which crate may know which, and whose licences are accepted.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

const ROOMS: [&str; 7] = [
    "twicesafe-core",
    "twicesafe-vfs",
    "twicesafe-store",
    "twicesafe-ledger",
    "twicesafe-server",
    "twicesafe",
    "twicesafe-bench",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// What cargo knows of the workspace. Packages for other platforms may not have been downloaded yet; then cargo gets
/// them, because their licences count too.
fn metadata() -> Value {
    let ask = |network: &[&str]| {
        Command::new(env!("CARGO"))
            .args(["metadata", "--format-version", "1", "--locked"])
            .args(network)
            .current_dir(root())
            .output()
            .expect("cargo starts")
    };
    let mut output = ask(&["--offline"]);
    if !output.status.success() {
        output = ask(&[]);
    }
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn list<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value[field].as_array().map_or(&[], Vec::as_slice)
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

/// What crate names a package is built with, directly (`deep: false`) or at all. Tests and build scripts do not count.
fn built_with(metadata: &Value, package: &str, deep: bool) -> BTreeSet<String> {
    let names: BTreeMap<&str, &str> = list(metadata, "packages")
        .iter()
        .map(|package| (text(package, "id"), text(package, "name")))
        .collect();
    let nodes: BTreeMap<&str, &Value> =
        list(&metadata["resolve"], "nodes").iter().map(|node| (text(node, "id"), node)).collect();
    let start =
        names.iter().find(|(_, name)| **name == package).map(|(id, _)| *id).expect("a workspace crate");
    let (mut found, mut open) = (BTreeSet::new(), vec![start]);
    while let Some(id) = open.pop() {
        let is_normal =
            |dependency: &&Value| list(dependency, "dep_kinds").iter().any(|kind| kind["kind"].is_null());
        for dependency in list(nodes[id], "deps").iter().filter(is_normal) {
            let id = text(dependency, "pkg");
            if found.insert(id) && deep {
                open.push(id);
            }
        }
    }
    found.into_iter().map(|id| names[id].to_owned()).collect()
}

#[test]
fn each_room_knows_only_the_rooms_before_it() {
    let metadata = metadata();
    for (index, room) in ROOMS.iter().enumerate() {
        let allowed: BTreeSet<String> = ROOMS[..index].iter().map(|room| (*room).to_owned()).collect();
        let known: BTreeSet<String> = built_with(&metadata, room, false)
            .into_iter()
            .filter(|name| name.starts_with("twicesafe"))
            .collect();
        assert!(known.is_subset(&allowed), "{room} may know {allowed:?} and knows {known:?}");
    }
    let members: BTreeSet<&str> = list(&metadata, "packages")
        .iter()
        .filter(|package| package["source"].is_null())
        .map(|package| text(package, "name"))
        .collect();
    assert_eq!(members, BTreeSet::from(ROOMS), "a new crate needs its place in the order of rooms");
}

#[test]
fn rooms_do_not_know_what_they_must_not_know() {
    let metadata = metadata();
    let check = |room: &str, forbidden: &[&str]| {
        let used = built_with(&metadata, room, true);
        let found: Vec<_> = forbidden.iter().filter(|name| used.contains(**name)).collect();
        assert!(found.is_empty(), "{room} is built with {found:?}");
    };
    let http = ["hyper", "hyper-util", "axum", "tower-http", "reqwest", "http"];
    check("twicesafe-store", &http);
    check("twicesafe-ledger", &http);
    check("twicesafe-core", &http);
    check(
        "twicesafe-core",
        &["tokio", "futures-util", "rusqlite", "libsqlite3-sys", "tokio-postgres", "tracing"],
    );
    check(
        "twicesafe-core",
        &["rand", "rand_core", "fastrand", "getrandom", "uuid", "chrono", "jiff", "time"],
    );
}

#[test]
fn every_licence_is_accepted() {
    let policy = std::fs::read_to_string(root().join("deny.toml")).expect("deny.toml");
    let allowed = allowed_licences(&policy);
    assert!(allowed.contains("MIT"), "no allow-list found in deny.toml");
    let metadata = metadata();
    let refused: Vec<_> = list(&metadata, "packages")
        .iter()
        .filter(|package| !is_satisfiable(text(package, "license"), &allowed))
        .map(|package| format!("{}: {}", text(package, "name"), package["license"]))
        .collect();
    assert!(refused.is_empty(), "licences outside of deny.toml: {refused:#?}");
}

/// The quoted words of `allow = [...]` in the section `[licenses]`.
fn allowed_licences(policy: &str) -> BTreeSet<&str> {
    let section = policy.split("\n[").find(|section| section.starts_with("licenses]")).unwrap_or_default();
    let allow =
        section.split("\nallow = [").nth(1).and_then(|rest| rest.split(']').next()).unwrap_or_default();
    allow.split('"').skip(1).step_by(2).collect()
}

/// Whether the terms of an SPDX expression can be met with the accepted licences alone. `OR` binds weaker than `AND`;
/// old manifests write `/` for `OR`.
fn is_satisfiable(expression: &str, allowed: &BTreeSet<&str>) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let mut words = spaced.split_whitespace().peekable();
    let satisfied = either(&mut words, allowed);
    satisfied && words.next().is_none()
}

type Words<'a> = std::iter::Peekable<std::str::SplitWhitespace<'a>>;

fn either(words: &mut Words<'_>, allowed: &BTreeSet<&str>) -> bool {
    let mut satisfied = both(words, allowed);
    while words.next_if_eq(&"OR").is_some() {
        satisfied |= both(words, allowed);
    }
    satisfied
}

fn both(words: &mut Words<'_>, allowed: &BTreeSet<&str>) -> bool {
    let mut satisfied = one(words, allowed);
    while words.next_if_eq(&"AND").is_some() {
        satisfied &= one(words, allowed);
    }
    satisfied
}

fn one(words: &mut Words<'_>, allowed: &BTreeSet<&str>) -> bool {
    let Some(word) = words.next() else { return false };
    if word == "(" {
        let satisfied = either(words, allowed);
        return words.next() == Some(")") && satisfied;
    }
    match words.next_if_eq(&"WITH").and_then(|_| words.next()) {
        Some(exception) => allowed.contains(format!("{word} WITH {exception}").as_str()),
        None => allowed.contains(word),
    }
}

#[test]
fn licence_expressions_are_understood() {
    let allowed = BTreeSet::from(["MIT", "Unicode-3.0", "Apache-2.0 WITH LLVM-exception"]);
    for met in [
        "MIT",
        "MIT OR GPL-3.0",
        "GPL-3.0/MIT",
        "(MIT OR GPL-3.0) AND Unicode-3.0",
        "Apache-2.0 WITH LLVM-exception OR GPL-3.0",
        "GPL-3.0 AND MIT OR MIT",
    ] {
        assert!(is_satisfiable(met, &allowed), "{met}");
    }
    for not_met in
        ["", "GPL-3.0", "MIT AND GPL-3.0", "Apache-2.0", "(MIT", "MIT MIT", "MIT AND (GPL-3.0 OR X)"]
    {
        assert!(!is_satisfiable(not_met, &allowed), "{not_met}");
    }
}
