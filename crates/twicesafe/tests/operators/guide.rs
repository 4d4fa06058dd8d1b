//! The guide for operators: its commands are run as they stand there.

use std::path::Path;

use crate::operators::world::{World, done, invoice};

const GUIDE: &str = include_str!("../../../../docs/guides/operators.md");

/// The shell commands of the guide, in their order.
fn blocks() -> Vec<&'static str> {
    GUIDE.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next()).collect()
}

fn check(world: World) {
    let world = world.history();
    // What the guide calls its latest order.
    world.with(async |ledger| done(ledger, invoice("order:10492"), "INV-10492").await);
    let folder = Path::new(env!("CARGO_BIN_EXE_twicesafe")).parent().unwrap();
    let path = std::env::join_paths(
        [folder.to_owned()].into_iter().chain(std::env::split_paths(&std::env::var_os("PATH").unwrap())),
    );
    for block in blocks() {
        let output = world
            .command(Path::new("sh"))
            .env("PATH", path.as_ref().unwrap())
            .args(["-eu", "-c", block])
            .output();
        let output = output.unwrap();
        assert!(output.status.success(), "{block}\n{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn the_commands_of_the_guide_work() {
    assert!(blocks().len() > 5, "the guide has lost its commands");
    check(World::sqlite());
    check(World::postgres());
}
