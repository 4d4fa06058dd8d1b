//! Servers as processes of their own.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::operators::world::World;

/// A server, killed when the test is over.
pub(super) struct Serving {
    child: Child,
    pub(super) address: String,
    /// What it says on stderr.
    pub(super) log: Arc<Mutex<String>>,
}

impl Serving {
    pub(super) fn start(world: &World, more: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_twicesafe"))
            .args(["serve", "--ledger", &world.address, "--listen", "127.0.0.1:0"])
            .args(more)
            .current_dir(world.file(""))
            .env_remove("TWICESAFE_CONFIG")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = Arc::<Mutex<String>>::default();
        let (kept, stderr) = (log.clone(), child.stderr.take().unwrap());
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                kept.lock().unwrap().push_str(&format!("{line}\n"));
            }
        });
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.split("http://").nth(1).and_then(|rest| rest.split(' ').next());
        let address = address.unwrap_or_else(|| panic!("{line}{}", log.lock().unwrap())).to_owned();
        Self { child, address, log }
    }

    pub(super) fn signal(&self, name: &str) {
        let status = Command::new("kill").args([&format!("-{name}"), &self.child.id().to_string()]).status();
        assert!(status.unwrap().success());
    }

    /// Waits for its end; says with which status.
    pub(super) fn end(&mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }

    /// Waits until it has said that.
    pub(super) fn says(&self, words: &str) {
        let started = Instant::now();
        while !self.log.lock().unwrap().contains(words) {
            assert!(
                started.elapsed() < Duration::from_secs(10),
                "{words:?} is not in {}",
                self.log.lock().unwrap()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(super) fn post(&self, path: &str, body: &Value) -> std::io::Result<(u16, Value)> {
        self.send("POST", path, &body.to_string())
    }

    pub(super) fn get(&self, path: &str) -> std::io::Result<(u16, Value)> {
        self.send("GET", path, "")
    }

    fn send(&self, method: &str, path: &str, body: &str) -> std::io::Result<(u16, Value)> {
        let mut stream = TcpStream::connect(&self.address)?;
        stream.set_read_timeout(Some(Duration::from_secs(70)))?;
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        )?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        let (head, body) = text.split_once("\r\n\r\n").ok_or(std::io::ErrorKind::UnexpectedEof)?;
        let status = head
            .split(' ')
            .nth(1)
            .and_then(|code| code.parse().ok())
            .ok_or(std::io::ErrorKind::InvalidData)?;
        Ok((status, serde_json::from_str(body).unwrap_or(Value::Null)))
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A configuration file in the world's folder.
pub(super) fn file(world: &World, name: &str, text: &str) -> PathBuf {
    let path = world.file(name);
    std::fs::write(&path, text).unwrap();
    path
}

/// Runs a script in the world's folder, with our program in reach.
pub(super) fn shell(world: &World, script: &str, variables: &[(&str, String)]) -> Output {
    let binary = Path::new(env!("CARGO_BIN_EXE_twicesafe")).parent().unwrap().to_owned();
    let path = std::env::var_os("PATH").unwrap();
    let path = std::env::join_paths([binary].into_iter().chain(std::env::split_paths(&path))).unwrap();
    let mut shell = Command::new("bash")
        .arg("-s")
        .current_dir(world.file(""))
        .env("PATH", &path)
        .env("TWICESAFE_LEDGER", &world.address)
        .envs(variables.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    shell.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    shell.wait_with_output().unwrap()
}
