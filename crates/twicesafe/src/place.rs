//! Finding the ledger: one order for every command.
//!
//! `--ledger`, then `TWICESAFE_LEDGER`, then `ledger:` in the configuration, then the user's data folder. The last is
//! announced, and refused where nobody is watching: cron, containers and people would each get an empty ledger of their
//! own, and everything would happen again in each of them.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};

use twicesafe_core::Code;
use twicesafe_ledger::{Actor, Ledger, LedgerSecret, Open};
use twicesafe_server::config::{self, Configuration};

use crate::Common;
use crate::failure::Failure;

/// The configuration file that is looked for in the current folder, unless TWICESAFE_CONFIG names another.
const CONFIGURATION: &str = "twicesafe.yaml";

/// Where a ledger is, and its secret, if it is known here.
pub(crate) struct Place {
    pub(crate) address: String,
    pub(crate) secret: Option<LedgerSecret>,
}

impl Place {
    /// A ledger of which the configuration says nothing.
    fn at(address: String) -> Result<Self, Failure> {
        Ok(Self { address, secret: secret_in_environment()? })
    }

    /// A ledger of which the configuration says what its secret is.
    fn configured(address: String, configuration: &Configuration) -> Result<Self, Failure> {
        let secret = match secret_in_environment()? {
            Some(secret) => Some(secret),
            None => configuration.ledger_secret()?,
        };
        Ok(Self { address, secret })
    }

    /// How to open it.
    pub(crate) fn opening(&self) -> Open {
        let open = Open::at(&self.address);
        match &self.secret {
            Some(secret) => open.secret(secret.clone()),
            None => open,
        }
    }
}

/// Opens the ledger for a person at the command line.
pub(crate) async fn open(common: &Common) -> Result<Ledger, Failure> {
    open_as(common, &whoami()).await
}

/// Opens the ledger for somebody.
pub(crate) async fn open_as(common: &Common, actor: &str) -> Result<Ledger, Failure> {
    open_at(&find(common)?, actor).await
}

/// Opens the ledger at a place for somebody.
pub(crate) async fn open_at(place: &Place, actor: &str) -> Result<Ledger, Failure> {
    let ledger = place.opening().actor(Actor::new(actor)?).open().await?;
    for words in ledger.store().warnings() {
        let _ = writeln!(io::stderr(), "twicesafe: warning: {words}");
    }
    Ok(ledger)
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

fn find(common: &Common) -> Result<Place, Failure> {
    match (named(common), configuration(None)) {
        // The configuration may be another ledger's, or not be readable here: only what it says of this one counts.
        (Some(address), Some(path)) => match config::load(&path) {
            Ok(read) if read.ledger_address().ok().flatten().as_ref() == Some(&address) => {
                Place::configured(address, &read)
            }
            _ => Place::at(address),
        },
        (Some(address), None) => Place::at(address),
        (None, Some(path)) => find_with(common, &config::load(&path)?),
        (None, None) => Place::at(in_data_folder()?),
    }
}

/// The ledger of a server whose configuration has been read.
pub(crate) fn find_with(common: &Common, configuration: &Configuration) -> Result<Place, Failure> {
    let address = match named(common) {
        Some(address) => Some(address),
        None => configuration.ledger_address()?,
    };
    Place::configured(address.map_or_else(in_data_folder, Ok)?, configuration)
}

fn secret_in_environment() -> Result<Option<LedgerSecret>, Failure> {
    match std::env::var("TWICESAFE_SECRET") {
        Ok(text) if !text.is_empty() => {
            let refused = |error| Failure::Usage(format!("TWICESAFE_SECRET: {error}"));
            LedgerSecret::of(&text).map(Some).map_err(refused)
        }
        _ => Ok(None),
    }
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
    let mut making = std::fs::DirBuilder::new();
    std::os::unix::fs::DirBuilderExt::mode(making.recursive(true), 0o700);
    making.create(&folder).map_err(|error| {
        let cause = format!("{} cannot be made: {error}", folder.display());
        Failure::coded(Code::LedgerReadOnly, cause, "Name another place with --ledger.")
    })?;
    let path = folder.join("ledger.db");
    let _ = writeln!(io::stderr(), "twicesafe: using the ledger {}", path.display());
    Ok(format!("sqlite:{}", path.display()))
}
