//! Links that let one person decide about one intent: signed, expiring, bound to what was looked at (S30).

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;
use twicesafe_ledger::{IntentId, Stored, Timestamp};

/// What a link is about.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Seen {
    /// Which intent.
    #[serde(rename = "i")]
    intent: i64,
    /// Which generation.
    #[serde(rename = "g")]
    pub(crate) generation: u32,
    /// Of what input: a digest of its fingerprint.
    #[serde(rename = "f")]
    fingerprint: String,
    /// Whose link it is.
    #[serde(rename = "p")]
    pub(crate) person: String,
    /// Until when it is good, in ledger time.
    #[serde(rename = "e")]
    expires_at: i64,
}

impl Seen {
    pub(crate) fn of(stored: &Stored, person: &str, expires_at: Timestamp) -> Self {
        Self {
            intent: stored.id.number(),
            generation: stored.record.generation,
            fingerprint: digest(stored),
            person: person.to_owned(),
            expires_at: expires_at.as_millis(),
        }
    }

    pub(crate) fn intent(&self) -> IntentId {
        IntentId::new(self.intent)
    }

    pub(crate) fn is_expired(&self, now: Timestamp) -> bool {
        now.as_millis() >= self.expires_at
    }

    /// Whether the intent is still what the link was made for.
    pub(crate) fn is_of(&self, stored: &Stored) -> bool {
        self.generation == stored.record.generation && self.fingerprint == digest(stored)
    }
}

fn digest(stored: &Stored) -> String {
    let mut hasher = blake3::Hasher::new();
    if let Some(fingerprint) = &stored.record.fingerprint {
        hasher.update(fingerprint.digest()).update(fingerprint.recipe().as_str().as_bytes());
    }
    URL_SAFE_NO_PAD.encode(&hasher.finalize().as_bytes()[..16])
}

/// Makes and reads links.
#[derive(Clone)]
pub(crate) struct Links([u8; 32]);

impl Links {
    pub(crate) fn signed_with(key: [u8; 32]) -> Self {
        Self(key)
    }

    /// The last part of a link's address.
    pub(crate) fn make(&self, seen: &Seen) -> String {
        let payload = serde_json::to_vec(seen).expect("numbers and text");
        format!("{}.{}", URL_SAFE_NO_PAD.encode(&payload), URL_SAFE_NO_PAD.encode(self.signature(&payload)))
    }

    /// What a link is about, if it was made here and nobody changed it. Its time may be over.
    pub(crate) fn read(&self, text: &str) -> Option<Seen> {
        let (payload, signature) = text.split_once('.')?;
        let payload = URL_SAFE_NO_PAD.decode(payload).ok()?;
        let signature = URL_SAFE_NO_PAD.decode(signature).ok()?;
        let same = bool::from(signature.ct_eq(&self.signature(&payload)));
        same.then(|| serde_json::from_slice(&payload).ok()).flatten()
    }

    fn signature(&self, payload: &[u8]) -> [u8; 32] {
        *blake3::keyed_hash(&self.0, payload).as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s30_a_link_is_good_until_it_expires_and_only_unchanged() {
        let links = Links::signed_with([7; 32]);
        let seen = Seen {
            intent: 9,
            generation: 2,
            fingerprint: "f".to_owned(),
            person: "ops".to_owned(),
            expires_at: 1000,
        };
        let text = links.make(&seen);
        let at = Timestamp::from_millis;
        assert_eq!(links.read(&text), Some(seen.clone()));
        assert!(!seen.is_expired(at(999)) && seen.is_expired(at(1000)));
        assert_eq!(Links::signed_with([8; 32]).read(&text), None);
        for place in 0..text.len() {
            let mut changed = text.clone().into_bytes();
            changed[place] = if changed[place] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).expect("letters");
            assert_eq!(links.read(&changed), None, "at {place}");
        }
        for garbage in ["", ".", "a.b", "🦀.🦀", &text[..text.len() - 1]] {
            assert_eq!(links.read(garbage), None, "{garbage}");
        }
    }
}
