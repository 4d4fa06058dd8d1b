//! The guide for HTTP: its blocks are run as they stand there, in the shell, Python and Node.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::operators::world::World;

const GUIDE: &str = include_str!("../../../../docs/guides/http.md");

/// The blocks of the guide, with their languages, in their order.
fn blocks() -> Vec<(&'static str, &'static str)> {
    let blocks = GUIDE.split("\n```").skip(1).step_by(2);
    blocks.filter_map(|block| block.split_once('\n')).collect()
}

#[test]
fn the_blocks_of_the_guide_work() {
    for world in [World::sqlite(), World::postgres()] {
        let binary = std::path::Path::new(env!("CARGO_BIN_EXE_twicesafe")).parent().unwrap();
        let path = std::env::var_os("PATH").unwrap();
        let path = std::env::join_paths([binary.to_owned()].into_iter().chain(std::env::split_paths(&path)))
            .unwrap();
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let languages: Vec<_> = blocks().iter().map(|(language, _)| *language).collect();
        assert_eq!(languages, ["sh", "sh", "python", "js", "sh"], "the guide has lost its blocks");
        // One shell runs all of it, so that the server of the first block is there for the others and ends with it.
        let mut script = String::from("set -eu\ntrap 'kill %1' EXIT\n");
        for (number, (language, text)) in blocks().into_iter().enumerate() {
            match language {
                "sh" => script.push_str(&format!("{text}\n")),
                _ => {
                    let file =
                        world.file(&format!("block{number}.{}", if language == "js" { "mjs" } else { "py" }));
                    std::fs::write(&file, text).unwrap();
                    let program = if language == "js" { "node" } else { "python3" };
                    script.push_str(&format!("{program} {}\n", file.display()));
                }
            }
        }
        let mut shell = Command::new("bash")
            .arg("-s")
            .current_dir(world.file(""))
            .env("PATH", &path)
            .env("TWICESAFE_LEDGER", &world.address)
            .env("TWICESAFE_LISTEN", free.to_string())
            .env("TWICESAFE_URL", format!("http://{free}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        shell.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
        let output = shell.wait_with_output().unwrap();
        let log = std::fs::read_to_string(world.file("server.log")).unwrap_or_default();
        assert!(
            output.status.success(),
            "{}{}{log}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
}
