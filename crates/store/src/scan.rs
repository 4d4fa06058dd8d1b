//! Reading for one page of a list: several ways in, merged, newest first, and never more than people wait for. A filter that
//! matches few gets a short page and a cursor to go on from.

use std::collections::VecDeque;

use crate::plan::Stored;
use crate::query::{Cursor, Path};

/// Most intents looked at for one page where they lie one beside the other.
pub const SCAN_MAX: usize = 10_000;
/// Most where each has to be looked up by itself, which takes about three times as long.
pub const SCATTERED_MAX: usize = 4_000;
/// Intents read at once, at most and at least: a way in that gives much of the page is asked for more each time.
const CHUNK_MAX: usize = 512;
const CHUNK_MIN: usize = 4;

pub(crate) struct Scan<'a> {
    ways: Vec<Way<'a>>,
    /// The way that is being asked.
    asked: usize,
    scanned: usize,
    scanned_max: usize,
}

struct Way<'a> {
    path: &'a Path,
    rows: VecDeque<(Stored, Cursor)>,
    from: Option<Cursor>,
    chunk: usize,
    is_begun: bool,
    is_ended: bool,
}

impl<'a> Scan<'a> {
    pub(crate) fn new(paths: &'a [Path], limit: usize) -> Self {
        // One more than fits shows whether there is another page.
        let chunk = (limit + 1).div_ceil(paths.len().max(1)).max(CHUNK_MIN);
        let way =
            |path| Way { path, rows: VecDeque::new(), from: None, chunk, is_begun: false, is_ended: false };
        let scanned_max = if paths == [Path::All] { SCAN_MAX } else { SCATTERED_MAX };
        Self { ways: paths.iter().map(way).collect(), asked: 0, scanned: 0, scanned_max }
    }

    /// The way in that must be read on before it is known what is newest, from where, and how many.
    pub(crate) fn wants(&mut self) -> Option<(&'a Path, Option<Cursor>, usize)> {
        self.asked = self.ways.iter().position(|way| way.rows.is_empty() && !way.is_ended)?;
        let way = &self.ways[self.asked];
        Some((way.path, way.from, way.chunk))
    }

    /// Whether enough has been read. Every way is begun first, or nobody would ever get further.
    pub(crate) fn is_over(&self) -> bool {
        self.scanned >= self.scanned_max && self.ways[self.asked].is_begun
    }

    /// Takes what was wanted.
    pub(crate) fn take(&mut self, rows: Vec<(Stored, Cursor)>, ends_at: impl FnOnce(&Path, &Stored) -> bool) {
        self.scanned += rows.len();
        let way = &mut self.ways[self.asked];
        way.is_begun = true;
        way.is_ended =
            rows.len() < way.chunk || rows.last().is_some_and(|(stored, _)| ends_at(way.path, stored));
        way.from = rows.last().map(|(_, cursor)| *cursor).or(way.from);
        way.chunk = way.chunk.max((way.chunk * 2).min(CHUNK_MAX));
        way.rows = rows.into();
    }

    /// The newest that nobody has had, once no way wants anything.
    pub(crate) fn newest(&mut self) -> Option<(Stored, Cursor)> {
        let heads = self.ways.iter_mut().filter(|way| !way.rows.is_empty());
        heads.max_by_key(|way| way.rows.front().map(|(_, cursor)| *cursor))?.rows.pop_front()
    }
}
