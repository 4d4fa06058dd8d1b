//! Several processes on one ledger, and processes that are killed (S1, S42).
//!
//! The test binary starts itself again: [`child`] does nothing unless it is told what to do.

mod crowd;
mod killed;

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use twicesafe_store::{Address, Options, Store};

use crate::world::Folder;

const ROLE: &str = "TWICESAFE_TEST_ROLE";
const LEDGER: &str = "TWICESAFE_TEST_LEDGER";
const FOLDER: &str = "TWICESAFE_TEST_FOLDER";

/// What a child does. It says what it did in lines of its own on stdout.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let address = Address::parse(&std::env::var(LEDGER).unwrap()).unwrap();
    let folder = std::env::var(FOLDER).unwrap();
    let folder = Path::new(&folder);
    while !folder.join("go").exists() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    match &*role {
        "open" => crowd::open(&address).await,
        "claim" => crowd::claim_all(&address, folder).await,
        "load" => killed::load(&address).await,
        "say" => say_whether_it_opens(&address).await,
        other => panic!("{other} is nothing to do"),
    }
}

/// A child that waits for the word to go.
pub fn start(program: Command, role: &str, address: &Address, folder: &Path) -> Child {
    let mut command = program;
    let address = match address {
        Address::Postgres(url) => url.clone(),
        other => other.to_string(),
    };
    command
        .args(["--exact", "processes::child", "--nocapture", "--test-threads=1"])
        .envs([(ROLE, role), (LEDGER, &address), (FOLDER, folder.to_str().unwrap())])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

pub fn this_program() -> Command {
    Command::new(std::env::current_exe().unwrap())
}

pub fn go(folder: &Folder) {
    std::fs::write(folder.path().join("go"), "").unwrap();
}

/// What a child said, line by line, and whether it ended well.
pub fn heard(mut child: Child) -> (Vec<String>, bool) {
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    let ended_well = child.wait().unwrap().success();
    // A line that was cut by the end of the process does not count.
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    (whole.lines().map(str::to_owned).collect(), ended_well)
}

/// Says something in a line of its own; the test harness leaves half lines.
fn say(what: &str) {
    println!("\n{what}");
}

async fn say_whether_it_opens(address: &Address) {
    match Store::open(address, Options::default()).await {
        Ok(_) => say("opened"),
        Err(error) => say(&format!("code {}", error.code())),
    }
}
