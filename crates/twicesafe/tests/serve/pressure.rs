//! Servers that may open few files, and callers that take all of them.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::operators::world::World;

/// A server that may open so many files, killed when the test is over.
struct Limited {
    child: Child,
    address: String,
}

impl Limited {
    fn start(world: &World, limits: &str) -> Self {
        let mut child = Command::new("bash")
            .args(["-c", &format!("{limits}; exec \"$0\" \"$@\""), env!("CARGO_BIN_EXE_twicesafe")])
            .args(["serve", "--ledger", &world.address, "--listen", "127.0.0.1:0"])
            .current_dir(world.file(""))
            .env_remove("TWICESAFE_CONFIG")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.split("http://").nth(1).and_then(|rest| rest.split(' ').next());
        let address = address.unwrap_or_else(|| panic!("{line}")).to_owned();
        Self { child, address }
    }

    /// Whether somebody who comes now is answered.
    fn answers(&self) -> bool {
        let ask = || -> std::io::Result<String> {
            let mut stream = TcpStream::connect(&self.address)?;
            stream.set_read_timeout(Some(Duration::from_secs(5)))?;
            stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: here\r\nconnection: close\r\n\r\n")?;
            let mut text = String::new();
            stream.read_to_string(&mut text)?;
            Ok(text)
        };
        ask().is_ok_and(|text| text.starts_with("HTTP/1.1 200"))
    }

    /// The limit of open files that is in force.
    fn files_max(&self) -> String {
        let limits = std::fs::read_to_string(format!("/proc/{}/limits", self.child.id())).unwrap();
        let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
        line.split_whitespace().nth(3).unwrap().to_owned()
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn s19_the_limit_of_open_files_is_raised_at_start() {
    let world = World::sqlite();
    let server = Limited::start(&world, "ulimit -Sn 100; ulimit -Hn 500");
    assert_eq!(server.files_max(), "500");
}

#[test]
fn s19_silent_connections_lock_nobody_out() {
    let world = World::sqlite();
    let server = Limited::start(&world, "ulimit -Sn 200; ulimit -Hn 200");
    let mut silent = Vec::new();
    for _ in 0..300 {
        let mut stream = TcpStream::connect(&server.address).unwrap();
        // Half of them begin a request and do not go on.
        if silent.len() % 2 == 0 {
            let _ = stream.write_all(b"POST /in/x HTTP/1.1\r\nhost: here\r\ncontent-le");
        }
        silent.push(stream);
    }
    for _ in 0..20 {
        assert!(server.answers(), "with {} silent connections", silent.len());
    }
}
