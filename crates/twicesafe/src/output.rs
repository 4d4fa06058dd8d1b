//! What people and programs read: tables, JSON, times.

use std::io::{self, IsTerminal, Write};

use serde_json::Value;
use twicesafe_core::legible;
use twicesafe_ledger::Timestamp;
pub(crate) use twicesafe_server::config::parse_span;
pub(crate) use twicesafe_server::wire::time;

/// A table for people. Plain when piped; in columns either way, so that `cut` and eyes both work.
pub(crate) struct Table {
    headings: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(headings: &[&'static str]) -> Self {
        Self { headings: headings.to_vec(), rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.headings.len(), "a cell for every heading");
        // Cells hold what others wrote: none may begin a line of its own or move the cursor.
        self.rows.push(cells.iter().map(|cell| legible::line(cell).into_owned()).collect());
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub(crate) fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let width = |column: usize| {
            let cells = self.rows.iter().map(|row| row[column].chars().count());
            cells.chain([self.headings[column].len()]).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.headings.len()).map(width).collect();
        let line = |cells: &mut dyn Iterator<Item = &str>| -> String {
            let padded: Vec<String> =
                cells.zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
            padded.join("  ").trim_end().to_owned()
        };
        let headings = line(&mut self.headings.iter().copied());
        if io::stdout().is_terminal() {
            writeln!(out, "\u{1b}[1m{headings}\u{1b}[0m")?;
        } else {
            writeln!(out, "{headings}")?;
        }
        self.rows.iter().try_for_each(|row| writeln!(out, "{}", line(&mut row.iter().map(String::as_str))))
    }
}

/// Says something on stderr; what others wrote in it cannot change how it is shown.
pub(crate) fn say(words: &str) {
    let _ = writeln!(io::stderr(), "{}", legible::block(words));
}

/// One JSON value, on one line.
pub(crate) fn print_json(out: &mut impl Write, value: &Value) -> io::Result<()> {
    writeln!(out, "{value}")
}

/// A time from what a person wrote: RFC 3339, a date, or how long ago (`2h`, `30d`).
pub(crate) fn parse_time(text: &str, now: Timestamp) -> Result<Timestamp, String> {
    if let Ok(at) = text.parse::<jiff::Timestamp>() {
        return Ok(Timestamp::from_millis(at.as_millisecond()));
    }
    if let Ok(date) = text.parse::<jiff::civil::Date>() {
        let midnight = date.to_zoned(jiff::tz::TimeZone::UTC).map_err(|error| error.to_string())?;
        return Ok(Timestamp::from_millis(midnight.timestamp().as_millisecond()));
    }
    parse_span(text).map(|ago| now.minus(ago)).map_err(|_| {
        format!("`{text}` is neither a time (2026-11-15T08:00:00Z), nor a date (2026-11-15), nor how long ago (2h)")
    })
}

/// A span as people read it.
pub(crate) fn span(span: std::time::Duration) -> String {
    let millis = span.as_millis();
    match millis {
        0..1000 => format!("{millis} ms"),
        1000..120_000 => format!("{:.1} s", millis as f64 / 1000.0),
        120_000..7_200_000 => format!("{} min", millis / 60_000),
        7_200_000..172_800_000 => format!("{} h", millis / 3_600_000),
        _ => format!("{} d", millis / 86_400_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_people_write_them() {
        let now = Timestamp::from_millis(1_800_000_000_000);
        assert_eq!(parse_time("2h", now), Ok(Timestamp::from_millis(1_799_992_800_000)));
        assert_eq!(parse_time("2027-01-15T08:00:00Z", now), Ok(now));
        assert_eq!(parse_time("2027-01-15", now), Ok(Timestamp::from_millis(1_799_971_200_000)));
        assert!(parse_time("yesterday", now).is_err());
        assert_eq!(time(now), "2027-01-15T08:00:00Z");
        assert_eq!(time(Timestamp::NEVER), "never");
    }
}
