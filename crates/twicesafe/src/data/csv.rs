//! Comma-separated values by RFC 4180, strictly: a guess at what a broken line means would be a guess at what happened.
//!
//! Code of our own, because the row is what has to be bounded here: a quote that is never closed makes one row of all that
//! follows, and readers that are made for speed take it in.

use std::io::{BufRead, Read};

/// Longest row.
const ROW_BYTES_MAX: u64 = 64 << 10;

/// What is wrong with a file, and where.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BadRow {
    pub(super) line: u64,
    pub(super) problem: String,
}

/// One row.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Row {
    /// The line it starts on.
    pub(super) line: u64,
    pub(super) fields: Vec<String>,
}

/// The rows of a file, in its order. Empty lines are passed over.
pub(super) struct Rows<R> {
    input: R,
    line: u64,
}

impl<R: BufRead> Rows<R> {
    pub(super) fn new(input: R) -> Self {
        Self { input, line: 0 }
    }

    pub(super) fn next(&mut self) -> Result<Option<Row>, BadRow> {
        loop {
            let first = self.line + 1;
            let Some(text) = self.text()? else { return Ok(None) };
            let text = if first == 1 { text.trim_start_matches('\u{feff}') } else { &text };
            if !text.is_empty() {
                let fields =
                    fields(text).map_err(|problem| BadRow { line: first, problem: problem.to_owned() })?;
                return Ok(Some(Row { line: first, fields }));
            }
        }
    }

    /// The text of a row without its end: lines up to the first one at whose end no quote is open.
    fn text(&mut self) -> Result<Option<String>, BadRow> {
        let first = self.line + 1;
        let wrong = |problem: String| BadRow { line: first, problem };
        let mut row = Vec::new();
        loop {
            let left = ROW_BYTES_MAX + 1 - row.len() as u64;
            let bytes = self.input.by_ref().take(left).read_until(b'\n', &mut row);
            let bytes = bytes.map_err(|error| wrong(format!("it cannot be read: {error}")))?;
            if row.len() as u64 > ROW_BYTES_MAX {
                return Err(wrong(format!(
                    "the row is longer than {ROW_BYTES_MAX} bytes; is a quote not closed?"
                )));
            }
            if bytes == 0 && row.is_empty() {
                return Ok(None);
            }
            let open = row.iter().filter(|byte| **byte == b'"').count() % 2 == 1;
            if bytes == 0 && open {
                return Err(wrong("a quote is not closed".to_owned()));
            }
            self.line += u64::from(bytes > 0);
            if !open {
                break;
            }
        }
        let mut text = String::from_utf8(row).map_err(|_| wrong("it is not text in UTF-8".to_owned()))?;
        text.truncate(text.trim_end_matches(['\r', '\n']).len());
        Ok(Some(text))
    }
}

fn fields(row: &str) -> Result<Vec<String>, &'static str> {
    let mut fields = Vec::new();
    let mut rest = row;
    loop {
        let (field, after) = match rest.strip_prefix('"') {
            Some(quoted) => unquoted(quoted)?,
            None => {
                let end = rest.find(',').unwrap_or(rest.len());
                let field = &rest[..end];
                if field.contains('"') {
                    return Err(
                        "a quote stands in the middle of a field; such a field must be quoted as a whole",
                    );
                }
                (field.to_owned(), &rest[end..])
            }
        };
        fields.push(field);
        match after.strip_prefix(',') {
            Some(more) => rest = more,
            None if after.is_empty() => return Ok(fields),
            None => return Err("something stands between a closing quote and the next comma"),
        }
    }
}

/// A field after its opening quote, and what follows its closing one.
fn unquoted(mut rest: &str) -> Result<(String, &str), &'static str> {
    let mut field = String::new();
    loop {
        let (part, after) = rest.split_once('"').ok_or("a quote is not closed")?;
        field.push_str(part);
        match after.strip_prefix('"') {
            Some(after) => {
                field.push('"');
                rest = after;
            }
            None => return Ok((field, after)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &[(u64, &[&str])]) {
        let mut rows = Rows::new(text.as_bytes());
        for (line, fields) in expected {
            let row = rows.next().expect("a good row").expect("a row");
            assert_eq!(
                (row.line, row.fields),
                (*line, fields.iter().map(|field| (*field).to_owned()).collect())
            );
        }
        assert_eq!(rows.next(), Ok(None));
    }

    #[track_caller]
    fn check_bad(text: &[u8], line: u64, problem: &str) {
        let mut rows = Rows::new(text);
        let error = loop {
            match rows.next() {
                Ok(Some(_)) => {}
                Ok(None) => panic!("nothing was wrong"),
                Err(error) => break error,
            }
        };
        assert!(error.line == line && error.problem.starts_with(problem), "{error:?}");
    }

    #[test]
    fn rows_are_read_by_rfc_4180() {
        check("", &[]);
        check("key\na\n", &[(1, &["key"]), (2, &["a"])]);
        check("key,id\r\na,1\r\n\r\nb,", &[(1, &["key", "id"]), (2, &["a", "1"]), (4, &["b", ""])]);
        check("\u{feff}key\n", &[(1, &["key"])]);
        check("\"a,\"\"b\"\"\",\"\"\n", &[(1, &["a,\"b\"", ""])]);
        check("\"two\nlines\",x\ny,z", &[(1, &["two\nlines", "x"]), (3, &["y", "z"])]);
    }

    #[test]
    fn what_is_not_csv_is_refused_with_its_line() {
        check_bad(b"key\n\"a\n", 2, "a quote is not closed");
        check_bad(b"key\na\"b\"\n", 2, "a quote stands in the middle");
        check_bad(b"key\n\"a\"b\n", 2, "something stands between");
        check_bad(b"key\n\xff\n", 2, "it is not text");
        let long = format!("key\n{}\n", "k".repeat(70_000));
        check_bad(long.as_bytes(), 2, "the row is longer than 65536 bytes");
        let open = format!("key\n\"{}", "k\n".repeat(70_000));
        check_bad(open.as_bytes(), 2, "the row is longer than 65536 bytes");
    }
}
