//! Notices keys that are made anew on every run: one input under several keys within an hour (S6).

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use twicesafe_core::{Fingerprint, Name, Scope};

const WINDOW: Duration = Duration::from_secs(3600);
/// Inputs remembered; when there are more, the memory starts afresh. This is a hint, not a guarantee.
const INPUTS_MAX: usize = 10_000;

#[derive(Default)]
pub(crate) struct Suspicion(Mutex<HashMap<(Scope, [u8; 32]), Seen>>);

struct Seen {
    key: twicesafe_core::Key,
    at: Instant,
    /// Said already: once is a hint, again and again is noise.
    told: bool,
}

impl Suspicion {
    /// Whether the same input was claimed under another key of the same scope within the hour, and nobody was told yet.
    pub(crate) fn notice(&self, name: &Name, fingerprint: &Fingerprint, empty: bool) -> bool {
        if empty {
            // Without input there is nothing to compare.
            return false;
        }
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.len() >= INPUTS_MAX {
            seen.clear();
        }
        let now = Instant::now();
        let entry = seen.entry((name.scope.clone(), *fingerprint.digest())).or_insert_with(|| Seen {
            key: name.key.clone(),
            at: now,
            told: false,
        });
        let is_recent = now.duration_since(entry.at) < WINDOW;
        let another = entry.key != name.key && is_recent;
        let news = another && !entry.told;
        *entry = Seen { key: name.key.clone(), at: now, told: is_recent && (entry.told || another) };
        news
    }
}
