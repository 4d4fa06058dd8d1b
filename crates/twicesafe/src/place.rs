//! Finding the ledger: one order for every command.
//!
//! `--ledger`, then `TWICESAFE_LEDGER`, then `ledger:` in the configuration, then the user's data folder. The last is
//! announced, and refused where nobody is watching: cron, containers and people would each get an empty ledger of their
//! own, and everything would happen again in each of them.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};

use twicesafe_core::Code;
use twicesafe_ledger::{Actor, Ledger, Open};

use crate::Common;
use crate::failure::Failure;

/// The configuration file that is looked for in the current folder, unless TWICESAFE_CONFIG names another.
const CONFIGURATION: &str = "twicesafe.yaml";

/// Opens the ledger for a person at the command line.
pub(crate) async fn open(common: &Common) -> Result<Ledger, Failure> {
    open_as(common, &whoami()).await
}

/// Opens the ledger for somebody.
pub(crate) async fn open_as(common: &Common, actor: &str) -> Result<Ledger, Failure> {
    open_at(&find(common)?, actor).await
}

/// Opens the ledger at an address for somebody.
pub(crate) async fn open_at(address: &str, actor: &str) -> Result<Ledger, Failure> {
    Ok(Open::at(address).actor(Actor::new(actor)?).open().await?)
}

/// Who is at the command line: user and host.
pub(crate) fn whoami() -> String {
    let user = std::env::var("TWICESAFE_ACTOR")
        .or_else(|_| std::env::var("USER"))
        .or_else(|_| std::env::var("LOGNAME"));
    format!("{}@{}", user.unwrap_or_else(|_| "somebody".to_owned()), hostname())
}

/// The name of this machine.
pub(crate) fn hostname() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name: String = name.trim().chars().filter(|c| !c.is_control()).take(64).collect();
    if name.is_empty() { "localhost".to_owned() } else { name }
}

fn find(common: &Common) -> Result<String, Failure> {
    if let Some(address) = named(common) {
        return Ok(address);
    }
    match configuration(None) {
        Some(path) => match twicesafe_server::config::load(&path)?.ledger_address()? {
            Some(address) => Ok(address),
            None => in_data_folder(),
        },
        None => in_data_folder(),
    }
}

/// The ledger of a server whose configuration has been read.
pub(crate) fn find_with(common: &Common, configured: Option<String>) -> Result<String, Failure> {
    named(common).or(configured).map_or_else(in_data_folder, Ok)
}

/// The ledger as named on the command line or in the environment.
fn named(common: &Common) -> Option<String> {
    let in_environment = || std::env::var("TWICESAFE_LEDGER").ok().filter(|address| !address.is_empty());
    common.ledger.clone().or_else(in_environment)
}

/// The configuration file: the one given, or TWICESAFE_CONFIG, or the one in the current folder if it is there.
pub(crate) fn configuration(given: Option<&Path>) -> Option<PathBuf> {
    given.map(Path::to_owned).or_else(|| std::env::var_os("TWICESAFE_CONFIG").map(PathBuf::from)).or_else(
        || {
            let here = PathBuf::from(CONFIGURATION);
            here.exists().then_some(here)
        },
    )
}

/// Whether there is a ledger already, as far as that can be told without opening it.
pub(crate) fn exists(address: &str) -> bool {
    address.strip_prefix("sqlite:").is_none_or(|path| Path::new(path).exists())
}

/// An address as it may be shown.
pub(crate) fn without_password(address: &str) -> String {
    let address = address.split('?').next().unwrap_or(address);
    match address.split_once("://").and_then(|(scheme, rest)| Some((scheme, rest.rsplit_once('@')?))) {
        Some((scheme, (who, place))) => {
            let user = who.split(':').next().unwrap_or_default();
            format!("{scheme}://{user}@{place}")
        }
        None => address.to_owned(),
    }
}

fn in_data_folder() -> Result<String, Failure> {
    let folder = std::env::var_os("XDG_DATA_HOME")
        .filter(|folder| !folder.is_empty())
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/share")));
    let Some(folder) = folder.map(|folder| folder.join("twicesafe")).filter(|_| io::stderr().is_terminal())
    else {
        return Err(Failure::coded(
            Code::LedgerNotNamed,
            "no ledger was named, and nobody is watching",
            "Name it: --ledger sqlite:/var/lib/twicesafe/ledger.db, or TWICESAFE_LEDGER in the environment.",
        ));
    };
    std::fs::create_dir_all(&folder).map_err(|error| {
        let cause = format!("{} cannot be made: {error}", folder.display());
        Failure::coded(Code::LedgerReadOnly, cause, "Name another place with --ledger.")
    })?;
    let path = folder.join("ledger.db");
    let _ = writeln!(io::stderr(), "twicesafe: using the ledger {}", path.display());
    Ok(format!("sqlite:{}", path.display()))
}
