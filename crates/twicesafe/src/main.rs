//! The `twicesafe` command.
//!
//! What it prints on stdout is data, for people and programs alike; what it says about itself goes to stderr. Exit
//! status 0: it did what was asked; 1: it could not write its output; 2: it was asked for something it does not know.

mod explain;

use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Run it twice by accident. Nothing bad happens.
#[derive(Parser)]
#[command(name = "twicesafe", version, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Says what an error code means and what to do about it; without a code, lists all of them.
    Explain {
        /// The code: TS0010, ts0010, 0010 or 10.
        code: Option<String>,
        /// Prints JSON.
        #[arg(long)]
        json: bool,
    },
}

/// Why a command did not do what was asked.
enum Failure {
    /// Asked for something that does not exist; the text says what to do instead.
    Usage(String),
    /// Its output could not be written.
    Output(io::Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(said) => {
            // Help and version come this way too. Who does not listen to them needs no further word.
            let _ = said.print();
            return ExitCode::from(u8::try_from(said.exit_code()).unwrap_or(2));
        }
    };
    let mut stdout = io::stdout().lock();
    let result = match arguments.command {
        Command::Explain { code, json } => explain::run(code.as_deref(), json, &mut stdout),
    };
    let (status, words) = match result.and_then(|()| Ok(stdout.flush()?)) {
        Ok(()) => return ExitCode::SUCCESS,
        // The reader has seen enough: `twicesafe explain | head -1`.
        Err(Failure::Output(error)) if error.kind() == ErrorKind::BrokenPipe => return ExitCode::SUCCESS,
        Err(Failure::Output(error)) => (1, format!("cannot write the output: {error}")),
        Err(Failure::Usage(words)) => (2, words),
    };
    // If stderr is closed as well, the exit status is all that is left to say.
    let _ = writeln!(io::stderr(), "twicesafe: {words}");
    ExitCode::from(status)
}
