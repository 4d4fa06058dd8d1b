//! Server-sent events as they pass: whole ones, byte for byte as they came.

use std::borrow::Cow;

use bytes::{Bytes, BytesMut};

/// Cuts a stream into events.
#[derive(Default)]
pub(crate) struct Frames {
    rest: BytesMut,
    /// How far was looked for an end.
    seen: usize,
}

impl Frames {
    /// Takes what arrived, and gives the events that are whole now, each with the empty line that ends it.
    pub(crate) fn push(&mut self, data: &[u8]) -> Vec<Bytes> {
        self.rest.extend_from_slice(data);
        let mut whole = Vec::new();
        while let Some(end) = self.end() {
            whole.push(self.rest.split_to(end).freeze());
            self.seen = 0;
        }
        whole
    }

    /// What is left: an event without its end.
    pub(crate) fn rest(self) -> Bytes {
        self.rest.freeze()
    }

    /// Where the first event ends: after an empty line.
    fn end(&mut self) -> Option<usize> {
        while let Some(found) = self.rest[self.seen..].iter().position(|byte| *byte == b'\n') {
            let at = self.seen + found;
            let line = self.rest[..at].strip_suffix(b"\r").unwrap_or(&self.rest[..at]);
            let is_empty = line.is_empty() || line.ends_with(b"\n");
            self.seen = at + 1;
            if is_empty {
                return Some(at + 1);
            }
        }
        self.seen = self.rest.len();
        None
    }
}

/// The data of an event; `None`: it has none, it is a comment or not text.
pub(crate) fn data(frame: &[u8]) -> Option<Cow<'_, str>> {
    let text = std::str::from_utf8(frame).ok()?;
    let mut lines = text.lines().filter_map(|line| {
        let data = line.strip_prefix("data:")?;
        Some(data.strip_prefix(' ').unwrap_or(data))
    });
    let first = lines.next()?;
    Some(lines.fold(Cow::Borrowed(first), |all, line| Cow::Owned(format!("{all}\n{line}"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_whole_however_they_arrive() {
        let text = b": comment\n\nevent: a\ndata: 1\n\ndata: 2\r\ndata: 3\r\n\r\n\ndata: rest";
        let expected: Vec<&[u8]> =
            vec![b": comment\n\n", b"event: a\ndata: 1\n\n", b"data: 2\r\ndata: 3\r\n\r\n", b"\n"];
        for size in 1..text.len() {
            let mut frames = Frames::default();
            let whole: Vec<Bytes> = text.chunks(size).flat_map(|chunk| frames.push(chunk)).collect();
            assert_eq!(whole, expected, "in chunks of {size}");
            assert_eq!(frames.rest(), "data: rest");
        }
        assert_eq!(data(expected[2]).as_deref(), Some("2\n3"));
        assert_eq!((data(expected[0]), data(b"\xff")), (None, None));
    }
}
