//! The `twicesafe` command.
//!
//! What it prints on stdout is data, for people and programs alike; what it says about itself goes to stderr. Exit
//! statuses are in `docs/exit-statuses.md`.

mod data;
mod demo;
mod explain;
mod failure;
mod operators;
mod output;
mod place;
mod run;
mod serve;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use failure::Failure;

/// A server allocates on some threads what others free, all the time: glibc's allocator takes a tenth of its time for that.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Run it twice by accident. Nothing bad happens.
#[derive(Parser)]
#[command(name = "twicesafe", version, arg_required_else_help = true)]
struct Arguments {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    command: Command,
}

/// What every command takes.
#[derive(Args, Clone, Debug)]
pub(crate) struct Common {
    /// Where the ledger is: sqlite:PATH or postgres://USER@HOST/DATABASE. Otherwise TWICESAFE_LEDGER, then `ledger:` in
    /// twicesafe.yaml, then the user's data folder.
    #[arg(long, global = true, value_name = "ADDRESS")]
    pub(crate) ledger: Option<String>,
    /// Prints JSON instead of text.
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

#[derive(Subcommand)]
enum Command {
    /// Says what an error code means and what to do about it; without a code, lists all of them.
    Explain {
        /// The code: TS0010, ts0010, 0010 or 10.
        code: Option<String>,
    },
    Run(Box<run::Run>),
    /// Runs a small automation against a small shop, without and with Twicesafe, and counts what the shop got.
    Demo,
    #[command(flatten)]
    Operate(operators::Operate),
    #[command(flatten)]
    Data(data::Data),
    #[command(flatten)]
    Serving(serve::Serving),
}

fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1);
    match words.next().as_ref().and_then(|word| word.to_str()) {
        Some(run::child::BECOME_CHILD) => run::child::become_child(&mut words),
        Some(run::nursery::BECOME_NURSERY) => run::nursery::become_nursery(&mut words),
        Some(demo::BUY) => std::process::exit(demo::buy(&mut words)),
        Some(demo::ASK) => std::process::exit(demo::ask(&mut words)),
        _ => {}
    }
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(said) => {
            // Help and version come this way too. Who does not listen to them needs no further word.
            let _ = said.print();
            return ExitCode::from(u8::try_from(said.exit_code()).unwrap_or(2));
        }
    };
    let as_json = arguments.common.json;
    match run(arguments) {
        Ok(status) => ExitCode::from(status),
        Err(failure) => failure.tell(as_json),
    }
}

fn run(Arguments { common, command }: Arguments) -> Result<u8, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut out = io::BufWriter::new(io::stdout());
    match command {
        Command::Run(run) => return runtime.block_on(run::run(*run, &common)),
        Command::Demo => demo::run(&mut out)?,
        Command::Explain { code } => explain::run(code.as_deref(), common.json, &mut out)?,
        Command::Operate(operate) => runtime.block_on(operators::run(operate, &common, &mut out))?,
        Command::Serving(serving) => serve::run(serving, &common, &mut out)?,
        Command::Data(data) => runtime.block_on(data::run(data, &common, &mut out))?,
    }
    out.flush()?;
    Ok(0)
}
