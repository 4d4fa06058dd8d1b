//! AI answers as the vendors' own SDKs get them: a work that runs twice asks once, and hears the same, byte for byte.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::world::{Serving, file};
use crate::operators::world::World;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/serve/ai");

/// A provider as a process of its own.
pub(super) struct Model {
    child: Child,
    pub(super) port: u16,
}

impl Model {
    pub(super) fn start() -> Self {
        let mut child = Command::new("python3")
            .arg(format!("{FOLDER}/model.py"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Self { child, port: line.trim().parse().unwrap() }
    }

    /// How often prompts were answered, and how often they were refused or cut.
    fn asked(&self) -> Value {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.write_all(b"GET /asked HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        serde_json::from_str(text.split_once("\r\n\r\n").unwrap().1).unwrap()
    }

    /// Asserts that every prompt was answered once, and failed once if it says so.
    #[track_caller]
    fn check_asked_once(&self) -> usize {
        let asked = self.asked();
        let asked = asked.as_object().unwrap();
        for (prompt, counts) in asked {
            let fails = ["[429 once]", "[500 once]", "[cut once]"].iter().any(|word| prompt.contains(word));
            assert_eq!(*counts, json!({ "answered": 1, "failed": u8::from(fails) }), "{prompt}");
        }
        asked.len()
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where scripts/sdks has put them.
pub(super) fn sdks() -> PathBuf {
    let folder = std::env::var_os("TWICESAFE_TEST_SDKS");
    PathBuf::from(
        folder.expect("TWICESAFE_TEST_SDKS: run `scripts/test`, or TWICESAFE_TEST_SDKS=$(scripts/sdks)"),
    )
}

fn serving(world: &World, model: &Model) -> Serving {
    let base = format!("base: \"http://127.0.0.1:{}\"", model.port);
    let yaml = format!(
        "destinations:\n  openai: {{ use: openai, {base} }}\n  anthropic: {{ use: anthropic, {base} }}\n"
    );
    let path = file(world, "ai.yaml", &yaml);
    Serving::start(world, &["--config", path.to_str().unwrap()])
}

fn said(command: &mut Command) -> String {
    let output = command.env("NODE_PATH", sdks().join("node_modules")).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}\n{err}");
    out.into_owned()
}

fn python(script: &str) -> Command {
    let mut command = Command::new(sdks().join("python/bin/python"));
    command.arg(Path::new(FOLDER).join(script));
    command
}

/// Runs a work twice, with a new gateway the second time. Says how many prompts it has.
fn check_twice(work: impl Fn(&Serving, &str) -> String) -> usize {
    let (world, model) = (World::sqlite(), Model::start());
    let first = {
        let serving = serving(&world, &model);
        work(&serving, "order-1")
    };
    let prompts = model.check_asked_once();
    let serving = serving(&world, &model);
    assert_eq!(work(&serving, "order-1"), first, "{}", serving.log.lock().unwrap());
    assert_eq!(model.check_asked_once(), prompts);
    prompts
}

#[test]
fn s33_the_python_sdk_of_openai_hears_the_same_twice() {
    let prompts = check_twice(|serving, work| {
        said(python("openai_work.py").arg(format!("http://{}/to/openai/@{work}/v1", serving.address)))
    });
    assert_eq!(prompts, 16);
}

#[test]
fn s33_the_python_sdk_of_anthropic_hears_the_same_twice() {
    let prompts = check_twice(|serving, work| {
        said(python("anthropic_work.py").arg(format!("http://{}/to/anthropic/@{work}", serving.address)))
    });
    assert_eq!(prompts, 12);
}

#[test]
fn s33_the_sdks_for_node_hear_the_same_twice() {
    let prompts = check_twice(|serving, work| {
        let address = &serving.address;
        let bases = [
            format!("http://{address}/to/openai/@{work}/v1"),
            format!("http://{address}/to/anthropic/@{work}"),
        ];
        said(Command::new("node").arg(Path::new(FOLDER).join("node_work.cjs")).args(bases))
    });
    assert_eq!(prompts, 16);
}

#[test]
fn s33_agents_and_chains_run_twice_as_whole_programs() {
    check_twice(|serving, work| {
        said(python("agents_work.py").arg(format!("http://{}/to/openai/@{work}/v1", serving.address)))
    });
}

/// A streamed answer, read until it has heard a word.
fn begin(serving: &Serving, prompt: &str, until: &str) -> (TcpStream, String) {
    let body =
        json!({ "model": "gpt-4o", "stream": true, "messages": [{ "role": "user", "content": prompt }] })
            .to_string();
    let mut stream = TcpStream::connect(&serving.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    write!(
        stream,
        "POST /to/openai/@w/v1/chat/completions HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        serving.address,
        body.len()
    )
    .unwrap();
    let mut heard = String::new();
    let mut part = [0; 4096];
    while !heard.contains(until) {
        match stream.read(&mut part) {
            Ok(0) => panic!("it ended with {heard}"),
            Ok(read) => heard.push_str(&String::from_utf8_lossy(&part[..read])),
            // A signal of some other test's child.
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => panic!("{error} after {heard}"),
        }
    }
    (stream, heard)
}

fn told(world: &World, arguments: &[&str]) -> String {
    let output = world.run(arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn check_killed(world: &World) {
    let model = Model::start();
    {
        let mut serving = serving(world, &model);
        let (mut stream, mut heard) = begin(&serving, "[stall once] killed", "the ");
        serving.signal("KILL");
        serving.end();
        let _ = stream.read_to_string(&mut heard);
        assert!(!heard.contains("[DONE]"), "{heard}");
    }
    let serving = serving(world, &model);
    let started = Instant::now();
    let (_, again) = begin(&serving, "[stall once] killed", "[DONE]");
    // A re-run waits for the lease of the dead one, and not longer.
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    assert!(again.contains("twicesafe-pinned: miss"), "{again}");
    let (_, pinned) = begin(&serving, "[stall once] killed", "[DONE]");
    assert!(pinned.contains("twicesafe-pinned: hit"), "{pinned}");
    let asked = model.asked();
    let counts: Vec<_> = asked.as_object().unwrap().values().collect();
    assert_eq!(counts, [&json!({ "answered": 2, "failed": 0 })]);
}

#[test]
fn s42_a_gateway_killed_in_the_middle_of_a_stream_pins_nothing() {
    check_killed(&World::sqlite());
    check_killed(&World::postgres());
}

#[test]
fn s40_pins_are_listed_shown_and_forgotten_by_work() {
    let (world, model) = (World::sqlite(), Model::start());
    let serving = serving(&world, &model);
    let (_, first) = begin(&serving, "hello", "[DONE]");
    begin(&serving, "other", "[DONE]");
    let listed = told(&world, &["pins", "list", "--work", "w", "--json"]);
    let lines: Vec<Value> = listed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((lines.len(), lines[0]["model"].as_str()), (2, Some("gpt-4o")), "{listed}");
    assert_eq!(told(&world, &["pins", "list"]).lines().count(), 3);
    let (scope, key) = (lines[1]["scope"].as_str().unwrap(), lines[1]["key"].as_str().unwrap());
    let shown = told(&world, &["pins", "show", scope, key]);
    assert!(shown.contains("the answer is") || shown.contains("answer "), "{shown}");
    assert!(first.contains("chatcmpl-1") && shown.contains("chatcmpl-1"), "{shown}");
    assert_eq!(told(&world, &["pins", "forget", scope, key, "--reason", "asked to"]), "forgotten 1\n");
    assert_eq!(told(&world, &["pins", "forget", "--work", "w", "--reason", "asked to"]), "forgotten 1\n");
    assert_eq!(told(&world, &["pins", "list", "--work", "w", "--json"]), "");
    let (_, anew) = begin(&serving, "hello", "[DONE]");
    assert!(anew.contains("twicesafe-pinned: miss") && !anew.contains("chatcmpl-1\""), "{anew}");
    begin(&serving, "hello", "[DONE]");
    // Counts that need no write of their own are written with the next sweep.
    let started = Instant::now();
    loop {
        let stats: Value = serde_json::from_str(&told(&world, &["stats", "--json"])).unwrap();
        if stats["saved"]["gpt-4o"]["answers"] == 1 {
            break;
        }
        assert!(started.elapsed() < Duration::from_secs(10), "{stats}");
        std::thread::sleep(Duration::from_millis(100));
    }
}
