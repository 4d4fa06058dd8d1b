//! What the server says about itself, on stderr: for people, or as JSON.

use std::io::IsTerminal;

use tracing_subscriber::filter::LevelFilter;
use twicesafe_server::config::Logs;

/// Starts logging. TWICESAFE_LOG says how much: error, warn, info (otherwise), debug or trace.
pub(super) fn start(logs: Logs) {
    let level =
        std::env::var("TWICESAFE_LOG").ok().and_then(|text| text.parse().ok()).unwrap_or(LevelFilter::INFO);
    let lines = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_ansi(std::io::stderr().is_terminal());
    match logs {
        Logs::Text => lines.init(),
        Logs::Json => lines.json().flatten_event(true).init(),
    }
}
