//! Notices keys that are made anew on every run: one input under several keys within an hour (S6).

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use twicesafe_core::{Fingerprint, Name, Scope};

const WINDOW: Duration = Duration::from_secs(3600);
/// A scope is told about so often at most: one that makes its keys anew does so with every claim.
const TOLD_EVERY: Duration = Duration::from_secs(60);
const SCOPES_MAX: usize = 1000;
/// Inputs remembered; when there are more, the memory starts afresh. This is a hint, not a guarantee.
const INPUTS_MAX: usize = 10_000;

#[derive(Default)]
pub(crate) struct Suspicion {
    inputs: Mutex<HashMap<(Scope, [u8; 32]), Seen>>,
    told: Mutex<HashMap<Scope, Instant>>,
}

struct Seen {
    key: twicesafe_core::Key,
    at: Instant,
    /// Said already: once is a hint, again and again is noise.
    told: bool,
}

impl Suspicion {
    /// Whether the same input was claimed under another key of the same scope within the hour, and nobody was told yet.
    pub(crate) fn notice(&self, name: &Name, fingerprint: &Fingerprint, empty: bool) -> bool {
        // Without input there is nothing to compare.
        !empty && self.is_news(name, fingerprint) && self.may_tell(&name.scope)
    }

    fn may_tell(&self, scope: &Scope) -> bool {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        told.retain(|_, at| now.duration_since(*at) < TOLD_EVERY);
        if told.len() >= SCOPES_MAX || told.contains_key(scope) {
            return false;
        }
        told.insert(scope.clone(), now);
        true
    }

    fn is_news(&self, name: &Name, fingerprint: &Fingerprint) -> bool {
        let mut seen = self.inputs.lock().unwrap_or_else(PoisonError::into_inner);
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

#[cfg(test)]
mod tests {
    use twicesafe_core::Recipe;

    use super::*;

    #[test]
    fn s6_a_scope_that_makes_its_keys_anew_is_told_about_once_a_minute() {
        let suspicion = Suspicion::default();
        let notice = |scope: &str, key: &str, input: &[u8]| {
            let name = Name::new(scope, key).expect("a name");
            suspicion.notice(&name, &Fingerprint::of(&Recipe::raw(), input), input.is_empty())
        };
        assert!(!notice("a/b", "1", b"same"), "the first");
        assert!(!notice("a/b", "1", b"same"), "a repetition");
        assert!(notice("a/b", "2", b"same"), "another key");
        assert!(!notice("a/b", "3", b"same"), "said already");
        assert!(!notice("a/b", "4", b"also same") && !notice("a/b", "5", b"also same"), "said of its scope");
        assert!(!notice("c/d", "6", b"same") && notice("c/d", "7", b"same"), "another scope");
        assert!(!notice("e/f", "8", b"") && !notice("e/f", "9", b""), "nothing to compare");
    }
}
