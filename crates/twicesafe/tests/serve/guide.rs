//! The guide for HTTP: its blocks are run as they stand there, in the shell, Python and Node.

use super::world::shell;
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
        let variables = [("TWICESAFE_LISTEN", free.to_string()), ("TWICESAFE_URL", format!("http://{free}"))];
        let output = shell(&world, &script, &variables);
        let log = std::fs::read_to_string(world.file("server.log")).unwrap_or_default();
        assert!(
            output.status.success(),
            "{}{}{log}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
}
