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
    let address = find(common)?;
    Ok(Open::at(&address).actor(Actor::new(actor)?).open().await?)
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
    if let Some(address) = &common.ledger {
        return Ok(address.clone());
    }
    if let Some(address) = std::env::var("TWICESAFE_LEDGER").ok().filter(|address| !address.is_empty()) {
        return Ok(address);
    }
    let configuration =
        std::env::var_os("TWICESAFE_CONFIG").map_or_else(|| CONFIGURATION.into(), PathBuf::from);
    if let Some(address) = in_configuration(&configuration)? {
        return Ok(address);
    }
    in_data_folder()
}

/// The value of `ledger:` at the top level of a configuration file, if both are there.
fn in_configuration(path: &Path) -> Result<Option<String>, Failure> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound && path == Path::new(CONFIGURATION) => {
            return Ok(None);
        }
        Err(error) => {
            let cause = format!("{} cannot be read: {error}", path.display());
            return Err(Failure::coded(
                Code::BadInputFile,
                cause,
                "Mend the file, or name the ledger with --ledger.",
            ));
        }
    };
    let value = text.lines().find_map(|line| line.strip_prefix("ledger:"));
    Ok(value.map(|value| {
        value.split(" #").next().unwrap_or_default().trim().trim_matches(['"', '\'']).to_owned()
    }))
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
