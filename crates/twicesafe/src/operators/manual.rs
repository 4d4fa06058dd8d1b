//! The command about itself: completions and the manual page.

use std::io::Write;

use clap::{Args, CommandFactory, ValueEnum};
use clap_complete::Shell;

use crate::Arguments;
use crate::failure::Failure;

#[derive(Args)]
pub(crate) struct Completions {
    /// For which shell.
    shell: Kind,
}

#[derive(Clone, Copy, ValueEnum)]
enum Kind {
    Bash,
    Zsh,
    Fish,
}

pub(super) fn completions(asked: &Completions, out: &mut impl Write) -> Result<(), Failure> {
    let shell = match asked.shell {
        Kind::Bash => Shell::Bash,
        Kind::Zsh => Shell::Zsh,
        Kind::Fish => Shell::Fish,
    };
    // Into memory first: the generator panics where it cannot write.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "twicesafe", &mut script);
    Ok(out.write_all(&script)?)
}

/// The page for the whole command: first what it is, then every command of it.
pub(super) fn page(out: &mut impl Write) -> Result<(), Failure> {
    let mut command = Arguments::command();
    command.build();
    clap_mangen::Man::new(command.clone()).render(out)?;
    commands(&command, out)
}

fn commands(command: &clap::Command, out: &mut impl Write) -> Result<(), Failure> {
    for inner in command.get_subcommands().filter(|inner| inner.get_name() != "help" && !inner.is_hide_set())
    {
        let page = clap_mangen::Man::new(inner.clone());
        let title = inner.get_bin_name().unwrap_or(inner.get_name()).to_uppercase();
        writeln!(out, ".SH \"{title}\"")?;
        let mut part = Vec::new();
        page.render_description_section(&mut part)?;
        page.render_synopsis_section(&mut part)?;
        page.render_options_section(&mut part)?;
        // Sections of a part are subsections of the page.
        out.write_all(String::from_utf8_lossy(&part).replace(".SH ", ".SS ").as_bytes())?;
        commands(inner, out)?;
    }
    Ok(())
}
