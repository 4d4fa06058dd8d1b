//! `twicesafe config`: the pre-launch checklist and the schema.

use std::io::Write;
use std::path::PathBuf;

use clap::Subcommand;
use serde_json::json;
use twicesafe_core::Code;
use twicesafe_server::config;

use super::say;
use crate::failure::Failure;
use crate::output::print_json;
use crate::{Common, place};

#[derive(Subcommand)]
pub(crate) enum Config {
    /// Reads the configuration and says what would go wrong, before anybody relies on it.
    Check {
        /// The file. Otherwise TWICESAFE_CONFIG, then twicesafe.yaml.
        file: Option<PathBuf>,
        /// The same, as `serve` has it.
        #[arg(long, value_name = "FILE", conflicts_with = "file")]
        config: Option<PathBuf>,
    },
    /// Prints the JSON Schema of the configuration, for editors.
    Schema,
}

pub(super) async fn run(asked: Config, common: &Common, out: &mut impl Write) -> Result<(), Failure> {
    let Config::Check { file, config: named } = asked else {
        return Ok(writeln!(out, "{:#}", config::schema())?);
    };
    let Some(path) = place::configuration(file.or(named).as_deref()) else {
        return Err(Failure::coded(
            Code::ConfigurationInvalid,
            "there is no twicesafe.yaml here",
            "Name the file, or write one: twicesafe init.",
        ));
    };
    let configuration = config::load(&path)?;
    // Tokens are in the ledger. Where there is none yet there are no tokens either, and it is not made by looking.
    let ledger = match &configuration.ledger_address()? {
        Some(address) if place::exists(address) => {
            let place =
                place::find_with(&Common { ledger: Some(address.clone()), ..*common }, &configuration)?;
            Some(place::open_at(&place, &place::whoami()).await).transpose()
        }
        _ => Ok(None),
    };
    let opened = ledger.as_ref().ok().and_then(Option::as_ref);
    let advice = config::check(&configuration, opened).await;
    let errors = advice.iter().filter(|advice| advice.is_error).count();
    for advice in &advice {
        let kind = if advice.is_error { "error" } else { "warning" };
        match common.json {
            true => {
                print_json(out, &json!({ "kind": kind, "about": advice.about, "message": advice.words }))?
            }
            false => writeln!(out, "{kind}: {}: {}", advice.about, advice.words)?,
        }
    }
    // What else there is to say was said.
    drop(ledger?);
    match errors {
        0 => {
            say(&format!("{}: ready, with {} warnings.", path.display(), advice.len()));
            Ok(())
        }
        errors => {
            out.flush()?;
            Err(Failure::coded(
                Code::ConfigurationInvalid,
                match errors {
                    1 => format!("{}: 1 thing is wrong", path.display()),
                    errors => format!("{}: {errors} things are wrong", path.display()),
                },
                "Mend what is listed as error, then check again.",
            ))
        }
    }
}
