//! What names are found by. Names that come one after the other have hashes that stand together.
//!
//! A hash that is all chance sends every first claim to another page of the index, and the larger the ledger, the fewer of those
//! pages are at hand: each is read, written to the log, and written to the file again. But most keys are counted: `order:10492`,
//! `invoice-2026-11-18`, the line of a file. So half of a hash is that of the name without the last two digits of its last number. A
//! hundred names or so share it, which is about what a page of the index holds, and the other half, of the whole name, tells them apart. Keys
//! that are chance themselves, or end in it, are spread as before.

use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use twicesafe_core::Name;

use crate::error::StoreError;

/// What a name is found by.
pub(crate) type NameHash = [u8; 16];

/// So many digits are what neighbours differ in.
const DIGITS: usize = 2;
/// What is hashed, so that no two kinds are ever the same bytes.
const NEIGHBOURS: u8 = 0;
const NAME: u8 = 1;

/// What keys a ledger's hashes, and behind it the hashes of a few names that every ledger has: with other hashes every name would look new,
/// and be acted on again (S1), so whoever makes others must find out before it looks for any.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct HashKey([u8; HashKey::BYTES]);

/// Those names: more digits than are left out, with a number before, a digit of another script and text behind; fewer digits; none.
const SAMPLES: [(&str, &str); 3] =
    [("twicesafe/a", "7/10492/\u{661}r"), ("twicesafe", "order:7"), ("twicesafe/a/b", "weekly")];

impl HashKey {
    const SECRET_BYTES: usize = 32;
    const BYTES: usize = Self::SECRET_BYTES + SAMPLES.len() * size_of::<NameHash>();

    pub(crate) fn random() -> Self {
        Self::of(&crate::random())
    }

    fn of(secret: &[u8; Self::SECRET_BYTES]) -> Self {
        let mut bytes = [0; Self::BYTES];
        let (kept, samples) = bytes.split_at_mut(Self::SECRET_BYTES);
        kept.copy_from_slice(secret);
        for (sample, (scope, key)) in samples.chunks_exact_mut(size_of::<NameHash>()).zip(SAMPLES) {
            sample.copy_from_slice(&hash(secret, scope, key));
        }
        Self(bytes)
    }

    /// The one that a ledger has kept.
    pub(crate) fn kept(bytes: &[u8]) -> Result<Self, StoreError> {
        let key = bytes.first_chunk().map(Self::of);
        key.filter(|key| key.bytes() == bytes).ok_or_else(|| {
            let why = "its names are found by other hashes than this program makes: another version of it made this ledger";
            StoreError::Damaged(why.to_owned())
        })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub(crate) fn secret(&self) -> &[u8; Self::SECRET_BYTES] {
        self.0.first_chunk().expect("it begins with the secret")
    }

    pub(crate) fn hash(&self, name: &Name) -> NameHash {
        hash(self.secret(), name.scope.as_str(), name.key.as_str())
    }
}

/// Hashes names with the ledger's own key: equal names have equal hashes in this ledger, and somebody who has only the
/// hash cannot find the name by trying (S40). Whoever has the names of its neighbours, too, can tell it but for its last digits.
pub(crate) struct NameHasher(RwLock<Keyed>);

#[derive(Clone, Copy)]
struct Keyed {
    key: HashKey,
    /// The how-manieth key it is.
    number: u64,
}

impl NameHasher {
    pub(crate) fn new(key: HashKey) -> Self {
        Self(RwLock::new(Keyed { key, number: 0 }))
    }

    /// Goes over to another key: the ledger was filled from an export.
    pub(crate) fn go_over_to(&self, key: HashKey) {
        if self.key() != key {
            let mut keyed = self.0.write().unwrap_or_else(PoisonError::into_inner);
            *keyed = Keyed { key, number: keyed.number + 1 };
        }
    }

    /// The same, if it is another one that the ledger has kept.
    pub(crate) fn follow(&self, kept: &[u8]) -> Result<(), StoreError> {
        if self.key().bytes() != kept {
            self.go_over_to(HashKey::kept(kept)?);
        }
        Ok(())
    }

    pub(crate) fn key(&self) -> HashKey {
        self.keyed().key
    }

    /// Hashes by one key say nothing about those by another.
    pub(crate) fn key_number(&self) -> u64 {
        self.keyed().number
    }

    pub(crate) fn hash(&self, name: &Name) -> NameHash {
        self.key().hash(name)
    }

    /// A hash, and the number of the key it is by.
    pub(crate) fn hash_and_key(&self, name: &Name) -> (NameHash, u64) {
        let Keyed { key, number } = *self.keyed();
        (key.hash(name), number)
    }

    fn keyed(&self) -> RwLockReadGuard<'_, Keyed> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }
}

fn hash(secret: &[u8; HashKey::SECRET_BYTES], scope: &str, key: &str) -> NameHash {
    let (before, after) = without_last_digits(key);
    let mut text = Vec::with_capacity(32 + scope.len() + key.len());
    let mut half = |kind: u8, parts: &[&str]| -> [u8; 8] {
        text.clear();
        text.push(kind);
        for part in parts {
            text.extend_from_slice(&(part.len() as u64).to_be_bytes());
            text.extend_from_slice(part.as_bytes());
        }
        *blake3::keyed_hash(secret, &text).as_bytes().first_chunk().expect("a hash has 32 bytes")
    };
    let mut hash = NameHash::default();
    hash[..8].copy_from_slice(&half(NEIGHBOURS, &[scope, before, after]));
    hash[8..].copy_from_slice(&half(NAME, &[scope, key]));
    hash
}

/// What is before and after the last digits of the last number of a key, if there is one.
fn without_last_digits(key: &str) -> (&str, &str) {
    let is_digit = |byte: &u8| byte.is_ascii_digit();
    let Some(end) = key.as_bytes().iter().rposition(is_digit).map(|last| last + 1) else { return (key, "") };
    let number = key.as_bytes()[..end].iter().rev().take(DIGITS).take_while(|byte| is_digit(byte)).count();
    (&key[..end - number], &key[end..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_neighbours_differ_in_are_the_last_digits_of_the_last_number() {
        assert_eq!(without_last_digits("order:10492"), ("order:104", ""));
        assert_eq!(without_last_digits("order:7"), ("order:", ""));
        assert_eq!(without_last_digits("2026-11-18"), ("2026-11-", ""));
        assert_eq!(without_last_digits("7/10492/refund"), ("7/104", "/refund"));
        assert_eq!(without_last_digits("weekly"), ("weekly", ""));
        assert_eq!(without_last_digits("\u{661}\u{662} b\u{e4}r"), ("\u{661}\u{662} b\u{e4}r", ""));
    }

    #[test]
    fn names_that_follow_each_other_stand_together_and_each_has_a_hash_of_its_own() {
        let hasher = NameHasher::new(HashKey::of(&[7; 32]));
        let of = |scope: &str, key: &str| hasher.hash(&Name::new(scope, key).expect("a name"));
        let hashes: std::collections::BTreeSet<NameHash> =
            (0..10_000).map(|number| of("shop/charge", &format!("order:{number:06}"))).collect();
        assert_eq!(hashes.len(), 10_000);
        let neighbourhoods: std::collections::BTreeSet<&[u8]> =
            hashes.iter().map(|hash| &hash[..8]).collect();
        assert_eq!(neighbourhoods.len(), 100);
        // Another scope, and a name whose parts would join to the same text, are elsewhere.
        let others = [
            of("shop/refund", "order:000001"),
            of("shop/charge", "order:0000x01"),
            of("shop/charge", "order:0000"),
        ];
        assert!(others.iter().all(|other| !neighbourhoods.contains(&other[..8])));
    }

    #[test]
    fn s1_a_key_by_which_names_would_be_hashed_otherwise_is_refused() {
        let key = HashKey::of(&[7; 32]);
        assert!(HashKey::kept(key.bytes()).is_ok_and(|kept| kept == key));
        let refused = |bytes: &[u8]| matches!(HashKey::kept(bytes), Err(StoreError::Damaged(_)));
        for sample in 0..SAMPLES.len() {
            let mut other = key.bytes().to_vec();
            other[HashKey::SECRET_BYTES + sample * size_of::<NameHash>()] ^= 1;
            assert!(refused(&other), "{sample}");
        }
        assert!(refused(key.secret()) && refused(&[]) && refused(&[key.bytes(), &[0]].concat()));
    }

    #[test]
    fn a_slip_in_how_neighbours_are_told_shows_in_the_samples() {
        let told = SAMPLES.map(|(_, key)| without_last_digits(key));
        assert_eq!(told, [("7/104", "/\u{661}r"), ("order:", ""), ("weekly", "")]);
    }

    /// Ledgers are found by it: it must never change.
    #[test]
    fn a_hash_is_what_it_always_was() {
        let hash = NameHasher::new(HashKey::of(&[7; 32]))
            .hash(&Name::new("shop/charge", "order:10492").expect("a name"));
        assert_eq!(u128::from_be_bytes(hash), 336_173_240_057_665_438_126_080_705_888_367_528_605);
    }
}
