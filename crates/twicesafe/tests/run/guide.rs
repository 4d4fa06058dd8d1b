//! The guide for cron jobs: its commands are run as they stand there.

use crate::run::world::{World, on_every_store, said};

const GUIDE: &str = include_str!("../../../../docs/guides/cron.md");

/// The shell commands of the guide, in their order.
fn blocks() -> Vec<&'static str> {
    GUIDE.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next()).collect()
}

on_every_store! {
    the_commands_of_the_guide_work
}

fn the_commands_of_the_guide_work(world: &World) {
    let binary = std::path::Path::new(env!("CARGO_BIN_EXE_twicesafe")).parent().unwrap();
    let path = std::env::var_os("PATH").unwrap();
    let folders = [world.file("bin"), binary.to_owned()].into_iter().chain(std::env::split_paths(&path));
    let path = std::env::join_paths(folders).unwrap();
    assert!(blocks().len() > 5, "the guide has lost its commands");
    std::fs::create_dir(world.file("bin")).unwrap();
    for block in blocks() {
        let mut command = world.program("sh");
        command.env("PATH", &path).args(["-eu", "-c", block]);
        said(command).check(0, &[]);
    }
}
