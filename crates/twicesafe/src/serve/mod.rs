//! The server and what belongs to it: `serve`, `config`, `init`, `token`, and what is about destinations and inboxes.

mod configuration;
mod gateway;
mod inbox;
mod init;
mod logs;
mod token;

use std::io::Write;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use twicesafe_core::Code;
use twicesafe_server::config::{Configuration, Listen};
use twicesafe_server::{Server, ServerError};

use crate::failure::Failure;
use crate::output::say;
use crate::{Common, place};

/// Commands about the server.
#[derive(Subcommand)]
pub(crate) enum Serving {
    /// Serves the HTTP API, approval links and metrics, and does what time alone does.
    Serve(Serve),
    /// Checks the configuration, or prints its schema.
    #[command(subcommand)]
    Config(configuration::Config),
    /// Asks three questions and writes a configuration file with comments.
    Init(init::Init),
    /// Makes, lists and revokes tokens for the API.
    #[command(subcommand)]
    Token(token::TokenCommand),
    /// Lists what is known of common destinations, or shows one.
    Catalog(gateway::Catalog),
    /// Prints what is agreed about a route: key, storage, replay window, resume rule.
    Spec(gateway::SpecOf),
    /// Pauses a destination or a token, or lists what is paused.
    Pause(gateway::Pause),
    /// Lets a destination or a token go on.
    Resume(gateway::Resume),
    /// Shows what observing found, and what to write to have it guarded.
    Observed(gateway::ObservedAt),
    /// Lists, shows, puts in, replays, parks and forgets events; pauses inboxes.
    #[command(subcommand)]
    Inbox(inbox::Inbox),
}

#[derive(Args)]
pub(crate) struct Serve {
    /// The configuration file. Otherwise TWICESAFE_CONFIG, then twicesafe.yaml if it is there.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where to listen, in place of what the configuration says: 127.0.0.1:4080.
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<Listen>,
}

pub(crate) fn run(serving: Serving, common: &Common, out: &mut impl Write) -> Result<(), Failure> {
    let few = || tokio::runtime::Builder::new_current_thread().enable_all().build();
    match serving {
        Serving::Serve(serve) => {
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
            runtime.block_on(self::serve(serve, common, out))
        }
        Serving::Config(asked) => few()?.block_on(configuration::run(asked, common, out)),
        Serving::Init(asked) => init::run(&asked, out),
        Serving::Token(asked) => few()?.block_on(token::run(asked, common, out)),
        Serving::Catalog(asked) => gateway::catalog(&asked, common, out),
        Serving::Spec(asked) => gateway::spec(&asked, common, out),
        Serving::Pause(asked) => few()?.block_on(gateway::pause(&asked, common, out)),
        Serving::Resume(asked) => few()?.block_on(gateway::resume(&asked, common)),
        Serving::Inbox(asked) => few()?.block_on(inbox::run(asked, common, out)),
        Serving::Observed(asked) => few()?.block_on(gateway::observed(&asked, common, out)),
    }
}

async fn serve(asked: Serve, common: &Common, out: &mut impl Write) -> Result<(), Failure> {
    let path = place::configuration(asked.config.as_deref());
    let mut configuration = match &path {
        Some(path) => twicesafe_server::config::load(path)?,
        None => Configuration::default(),
    };
    logs::start(configuration.logs);
    if let Some(listen) = asked.listen {
        configuration.listen = listen;
    }
    let place = place::find_with(common, &configuration)?;
    let address = place.address.clone();
    configuration.ledger = Some(address.as_str().into());
    let actor = twicesafe_ledger::Actor::new(&format!("server@{}", place::hostname()))?;
    let ledger = place.opening().actor(actor).remembering().open().await?;
    let server = Server::start(ledger, configuration).await?;
    let signals = twicesafe_server::Signals::catch()?;
    for (address, what) in server.addresses() {
        writeln!(out, "listening on {address} ({what})")?;
    }
    writeln!(out, "ledger {}", place::without_password(&address))?;
    out.flush()?;
    for words in server.orphaned() {
        say(&format!(
            "warning TS0084: {words}. Put back what was there, unless another server has it, or it is meant."
        ));
    }
    let reread = {
        let listen = asked.listen;
        move |path: &std::path::Path| {
            let mut configuration = twicesafe_server::config::load(path)?;
            // What the command line said still holds.
            configuration.listen = listen.unwrap_or(configuration.listen);
            if configuration.ledger.is_none()
                || common.ledger.is_some()
                || std::env::var_os("TWICESAFE_LEDGER").is_some()
            {
                configuration.ledger = Some(address.as_str().into());
            }
            Ok::<_, ServerError>(configuration)
        }
    };
    let reread = || match &path {
        Some(path) => reread(path),
        None => Err(ServerError::Reload("the server was started without a configuration file".to_owned())),
    };
    twicesafe_server::run(server, signals, reread, |result| match result {
        Ok(()) => tracing::info!("the configuration was read anew"),
        Err(error) => {
            let code = error.code().map_or("", Code::as_str);
            tracing::error!(code, "the new configuration was refused, and the old one stays: {error}");
        }
    })
    .await?;
    tracing::info!("stopped");
    Ok(())
}

impl From<ServerError> for Failure {
    fn from(error: ServerError) -> Self {
        let remedy = error.remedy();
        match error {
            ServerError::Ledger(error) => error.into(),
            ServerError::Usage(words) => Self::Usage(words),
            error => match error.code() {
                Some(code) => Self::coded(code, error.to_string(), remedy),
                None => Self::Usage(error.to_string()),
            },
        }
    }
}
