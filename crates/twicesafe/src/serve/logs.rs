//! What the server says about itself, on stderr: for people, or as JSON.

use std::io::{self, Write};

use tracing_subscriber::filter::LevelFilter;
use twicesafe_core::legible;
use twicesafe_server::config::Logs;

/// Starts logging. TWICESAFE_LOG says how much: error, warn, info (otherwise), debug or trace.
pub(super) fn start(logs: Logs) {
    let level =
        std::env::var("TWICESAFE_LOG").ok().and_then(|text| text.parse().ok()).unwrap_or(LevelFilter::INFO);
    let lines = tracing_subscriber::fmt().with_max_level(level).with_target(false);
    match logs {
        Logs::Text => lines.with_writer(|| OneLine(io::stderr())).init(),
        // JSON escapes what a terminal would obey.
        Logs::Json => lines.with_writer(io::stderr).json().flatten_event(true).init(),
    }
}

/// Writes each event on one line: keys and errors in it come from others, and a line break would forge the next event.
struct OneLine<W>(W);

impl<W: Write> Write for OneLine<W> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        self.write_all(event).map(|()| event.len())
    }

    fn write_all(&mut self, event: &[u8]) -> io::Result<()> {
        let text = String::from_utf8_lossy(event);
        self.0.write_all(format!("{}\n", legible::line(text.trim_end_matches('\n'))).as_bytes())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s41_an_event_is_one_line_whatever_is_in_it() {
        let mut written = Vec::new();
        OneLine(&mut written)
            .write_all("WARN key a\nERROR forged \u{1b}[2J\u{202e}x\n".as_bytes())
            .expect("written");
        assert_eq!(
            String::from_utf8(written).expect("text"),
            "WARN key a\\nERROR forged \\u{1b}[2J\\u{202e}x\n"
        );
    }
}
