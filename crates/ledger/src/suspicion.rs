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
}

impl Suspicion {
    /// Whether the same input was claimed under another key of the same scope within the hour.
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
        let entry = seen
            .entry((name.scope.clone(), *fingerprint.digest()))
            .or_insert_with(|| Seen { key: name.key.clone(), at: now });
        let another = entry.key != name.key && now.duration_since(entry.at) < WINDOW;
        *entry = Seen { key: name.key.clone(), at: now };
        another
    }
}
