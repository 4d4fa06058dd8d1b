//! What is gathered, and when it has to be written: no pointers here.

/// Before each page in the log (<https://sqlite.org/fileformat2.html#wal_file_format>).
const FRAME_HEADER_BYTES: usize = 24;
/// Where in it a page that ends a transaction has another number than zero.
const ENDS: std::ops::Range<usize> = 4..8;
/// So much is gathered at most: more is never written at once by SQLite, and its own VFS takes no more.
const GATHERED_BYTES_MAX: usize = (1 << 17) - 1;

/// Consecutive bytes that were handed over and not written yet.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    bytes: Vec<u8>,
    offset: i64,
    /// The last of them is the header of a page, which comes next.
    awaits_page: bool,
}

impl Gathered {
    /// What has to be written now, and where, before anything else happens to the file.
    pub(crate) fn due(&self) -> Option<(&[u8], i64)> {
        (!self.bytes.is_empty()).then_some((&self.bytes, self.offset))
    }

    /// It was written, or whoever needed it was told that it cannot be.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.awaits_page = false;
    }

    /// Whether these bytes can be gathered behind the others. If not, those have to be written first; then it is asked again.
    pub(crate) fn takes(&self, bytes: &[u8], offset: i64) -> bool {
        let is_next = self.bytes.is_empty() || self.offset + self.bytes.len() as i64 == offset;
        is_next
            && self.bytes.len() + bytes.len() <= GATHERED_BYTES_MAX
            && (self.awaits_page || is_header(bytes) && !ends_a_transaction(bytes))
    }

    /// Takes them.
    pub(crate) fn push(&mut self, bytes: &[u8], offset: i64) {
        if self.bytes.is_empty() {
            self.offset = offset;
        }
        self.awaits_page = !self.awaits_page;
        self.bytes.extend_from_slice(bytes);
    }
}

fn is_header(bytes: &[u8]) -> bool {
    bytes.len() == FRAME_HEADER_BYTES
}

fn ends_a_transaction(header: &[u8]) -> bool {
    header[ENDS] != [0; 4]
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE_BYTES: usize = 512;

    /// A log that something is written to, and what reaches it.
    #[derive(Default)]
    struct Log {
        gathered: Gathered,
        writes: Vec<(i64, Vec<u8>)>,
        end: i64,
    }

    impl Log {
        fn write_gathered(&mut self) {
            self.writes.extend(self.gathered.due().map(|(bytes, offset)| (offset, bytes.to_vec())));
            self.gathered.clear();
        }

        fn write(&mut self, bytes: &[u8], offset: i64) {
            if !self.gathered.takes(bytes, offset) {
                self.write_gathered();
            }
            match self.gathered.takes(bytes, offset) {
                true => self.gathered.push(bytes, offset),
                false => self.writes.push((offset, bytes.to_vec())),
            }
        }

        /// Appends a page, the last of its transaction or not.
        fn page(&mut self, fill: u8, ends: bool) {
            self.write(&header(ends), self.end);
            self.write(&[fill; PAGE_BYTES], self.end + FRAME_HEADER_BYTES as i64);
            self.end += (FRAME_HEADER_BYTES + PAGE_BYTES) as i64;
        }

        /// The file, if it began as zeros.
        fn file(&self) -> Vec<u8> {
            let mut file = vec![0; self.end as usize];
            for (offset, bytes) in &self.writes {
                file[*offset as usize..][..bytes.len()].copy_from_slice(bytes);
            }
            file
        }
    }

    fn header(ends: bool) -> [u8; FRAME_HEADER_BYTES] {
        let mut header = [9; FRAME_HEADER_BYTES];
        header[ENDS].copy_from_slice(&u32::from(ends).to_be_bytes());
        header
    }

    #[test]
    fn pages_of_a_transaction_are_one_write_and_the_last_one_is_never_gathered() {
        let mut log = Log::default();
        (1..=50).for_each(|fill| log.page(fill, false));
        assert!(log.writes.is_empty());
        log.page(51, true);
        let lengths: Vec<usize> = log.writes.iter().map(|(_, bytes)| bytes.len()).collect();
        assert_eq!(lengths, [50 * (FRAME_HEADER_BYTES + PAGE_BYTES), FRAME_HEADER_BYTES, PAGE_BYTES]);
        let expected: Vec<u8> =
            (1..=51).flat_map(|fill| [&header(fill == 51)[..], &[fill; PAGE_BYTES]].concat()).collect();
        assert_eq!(log.file(), expected);
    }

    #[test]
    fn what_is_no_page_behind_the_last_is_written_as_it_comes_after_everything_before_it() {
        let mut log = Log::default();
        log.page(1, false);
        log.page(2, false);
        // A page that changed again, in its place.
        log.write(&[3; PAGE_BYTES], FRAME_HEADER_BYTES as i64);
        assert_eq!(log.writes.len(), 2, "both pages, and then the one that changed");
        assert_eq!(log.file()[FRAME_HEADER_BYTES], 3);
        // Headers whose checksums changed, the last of which ends the transaction.
        log.write(&header(false), 0);
        log.write(&header(true), (FRAME_HEADER_BYTES + PAGE_BYTES) as i64);
        assert_eq!(log.writes.len(), 4);
        assert!(log.gathered.due().is_none(), "nothing is left once a transaction has ended");
        // The head of a new log.
        log.write(&[1; 32], 0);
        assert_eq!(log.writes.len(), 5);
    }

    #[test]
    fn no_more_is_gathered_than_can_be_written_at_once() {
        let mut log = Log::default();
        (0..1000).for_each(|n| log.page(n as u8, false));
        log.write_gathered();
        assert!(log.writes.iter().all(|(_, bytes)| bytes.len() <= GATHERED_BYTES_MAX));
        assert!(log.writes.len() < 10);
        let expected: Vec<u8> =
            (0..1000).flat_map(|n| [&header(false)[..], &[n as u8; PAGE_BYTES]].concat()).collect();
        assert_eq!(log.file(), expected);
    }
}
