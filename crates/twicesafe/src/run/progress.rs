//! How far a batch is: one line on stderr that is written over. Only at a terminal; whoever keeps stderr in a file wants the
//! summary and no bar.

use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, Write};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::captured::Captured;
use crate::output::span;

/// Cells of the bar: with everything beside it, it fits into 80 columns.
const CELLS: u64 = 30;
/// Time between two looks: a terminal is slower than a batch.
const REDRAW: Duration = Duration::from_millis(100);
/// Writes over the line from its start.
const ERASE: &str = "\r\u{1b}[K";

pub(super) struct Progress {
    /// Nobody watches without one.
    terminal: Option<Terminal>,
}

struct Terminal {
    started: Instant,
    drawn: Option<Instant>,
    /// How many lines there are, once they have been counted. They are read as they are needed, and another reader counts
    /// ahead.
    lines: Arc<OnceLock<u64>>,
    /// The last output left the cursor in the middle of a line, which is not ours to write over.
    inside_line: bool,
}

impl Progress {
    /// For the lines of a file; `-` is stdin, which can be read only once and is not counted.
    pub(super) fn of(path: &str) -> Self {
        if !io::stderr().is_terminal() {
            return Self { terminal: None };
        }
        let lines = Arc::new(OnceLock::new());
        // A pipe with a name would lose to this reader what it gives to it.
        if path != "-" && std::fs::metadata(path).is_ok_and(|file| file.is_file()) {
            let (path, lines) = (path.to_owned(), lines.clone());
            std::thread::spawn(move || {
                if let Ok(n) = File::open(path).and_then(|file| count(BufReader::new(file))) {
                    let _ = lines.set(n);
                }
            });
        }
        let terminal = Terminal { started: Instant::now(), drawn: None, lines, inside_line: false };
        Self { terminal: Some(terminal) }
    }

    /// Makes room for something else to be said.
    pub(super) fn clear(&mut self) {
        if let Some(terminal) = &mut self.terminal
            && terminal.drawn.take().is_some()
        {
            let _ = write!(io::stderr(), "{ERASE}");
        }
    }

    /// A command's output went to the terminal; stdout may be elsewhere, and then does not count.
    pub(super) fn shown(&mut self, captured: &Captured) {
        let inside = |kept: &[u8]| kept.last().is_some_and(|last| *last != b'\n');
        if let Some(terminal) = &mut self.terminal {
            terminal.inside_line |= inside(&captured.stderr.kept)
                || (inside(&captured.stdout.kept)
                    && captured.stderr.kept.is_empty()
                    && io::stdout().is_terminal());
        }
    }

    /// Shows how many lines are through, now and then.
    pub(super) fn show(&mut self, through: u64) {
        let Some(terminal) = &mut self.terminal else { return };
        if terminal.drawn.is_some_and(|at| at.elapsed() < REDRAW) {
            return;
        }
        let end_line = if std::mem::take(&mut terminal.inside_line) { "\n" } else { "" };
        let line = line(through, terminal.lines.get().copied(), terminal.started.elapsed());
        let _ = write!(io::stderr(), "{end_line}{ERASE}{line}");
        terminal.drawn = Some(Instant::now());
    }
}

/// Lines that are not empty, as the batch reads them.
fn count(mut lines: impl BufRead) -> io::Result<u64> {
    let (mut n, mut blank) = (0, true);
    loop {
        let chunk = lines.fill_buf()?;
        if chunk.is_empty() {
            return Ok(n + u64::from(!blank));
        }
        for byte in chunk {
            match byte {
                b'\n' => {
                    n += u64::from(!blank);
                    blank = true;
                }
                byte => blank &= byte.is_ascii_whitespace(),
            }
        }
        let read = chunk.len();
        lines.consume(read);
    }
}

fn line(through: u64, lines: Option<u64>, elapsed: Duration) -> String {
    let rate = through as f64 / elapsed.as_secs_f64().max(0.001);
    let Some(lines) = lines else { return format!("{through} lines, {rate:.0} a second") };
    // A file that grows has more lines than were counted.
    let lines = lines.max(through).max(1);
    let full = usize::try_from(through * CELLS / lines).unwrap_or(0);
    let bar = format!("{}{}", "#".repeat(full), "-".repeat(CELLS as usize - full));
    let left = match through {
        0 => String::new(),
        _ => format!(", {} left", span(Duration::from_secs_f64((lines - through) as f64 / rate))),
    };
    format!("[{bar}] {through}/{lines}, {rate:.0} a second{left}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_counted_as_the_batch_reads_them() {
        for (text, lines) in [("", 0), ("\n \n\r\n", 0), ("a\nb", 2), ("a\n\n  b \n", 2)] {
            // A buffer of one byte: lines do not end where buffers do.
            let counted = count(BufReader::with_capacity(1, text.as_bytes()));
            assert_eq!(counted.ok(), Some(lines), "{text:?}");
        }
    }

    #[test]
    fn the_bar_fills_as_lines_get_through() {
        let second = Duration::from_secs(1);
        assert_eq!(
            line(500, Some(1500), second),
            "[##########--------------------] 500/1500, 500 a second, 2.0 s left"
        );
        assert_eq!(
            line(3, Some(2), second),
            "[##############################] 3/3, 3 a second, 0 ms left",
            "a file that grew"
        );
        assert_eq!(line(500, None, second), "500 lines, 500 a second");
        assert!(line(0, Some(10), Duration::ZERO).ends_with("0/10, 0 a second"));
        assert!(line(1 << 40, Some(1 << 41), second).chars().count() <= 100);
    }
}
