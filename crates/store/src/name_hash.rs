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

/// So many of the newest intents are looked at when a ledger is opened.
pub(crate) const LOOKED_AT: usize = 8;

/// Hashes names with the ledger's own key: equal names have equal hashes in this ledger, and somebody who has only the
/// hash cannot find the name by trying (S40). Whoever has the names of its neighbours, too, can tell it but for its last digits.
pub(crate) struct NameHasher(RwLock<Keyed>);

#[derive(Clone, Copy)]
struct Keyed {
    key: [u8; 32],
    /// The how-manieth key it is.
    number: u64,
}

impl NameHasher {
    pub(crate) fn new(key: [u8; 32]) -> Self {
        Self(RwLock::new(Keyed { key, number: 0 }))
    }

    /// Goes over to another key: the ledger was filled from an export.
    pub(crate) fn go_over_to(&self, key: [u8; 32]) {
        if self.keyed().key != key {
            let mut keyed = self.0.write().unwrap_or_else(PoisonError::into_inner);
            *keyed = Keyed { key, number: keyed.number + 1 };
        }
    }

    pub(crate) fn key(&self) -> [u8; 32] {
        self.keyed().key
    }

    /// Hashes by one key say nothing about those by another.
    pub(crate) fn key_number(&self) -> u64 {
        self.keyed().number
    }

    pub(crate) fn hash(&self, name: &Name) -> NameHash {
        self.hash_and_key(name).0
    }

    /// A hash, and the number of the key it is by.
    pub(crate) fn hash_and_key(&self, name: &Name) -> (NameHash, u64) {
        let Keyed { key, number } = *self.keyed();
        let (scope, of_name) = (name.scope.as_str(), name.key.as_str());
        let (before, after) = without_last_digits(of_name);
        let mut text = Vec::with_capacity(32 + scope.len() + of_name.len());
        let mut half = |kind: u8, parts: &[&str]| -> [u8; 8] {
            text.clear();
            text.push(kind);
            for part in parts {
                text.extend_from_slice(&(part.len() as u64).to_be_bytes());
                text.extend_from_slice(part.as_bytes());
            }
            *blake3::keyed_hash(&key, &text).as_bytes().first_chunk().expect("a hash has 32 bytes")
        };
        let mut hash = NameHash::default();
        hash[..8].copy_from_slice(&half(NEIGHBOURS, &[scope, before, after]));
        hash[8..].copy_from_slice(&half(NAME, &[scope, of_name]));
        (hash, number)
    }

    /// Whether the ledger's newest intents are found by these hashes: with others every name would look new, and be acted on again (S1).
    /// One that is damaged keeps nobody from the rest.
    pub(crate) fn check<'a>(
        &self,
        newest: impl IntoIterator<Item = (Option<&'a str>, Option<&'a str>, &'a [u8])>,
    ) -> Result<(), StoreError> {
        let named =
            newest.into_iter().filter_map(|(scope, key, hash)| Some((Name::new(scope?, key?).ok()?, hash)));
        let (mut of_this, mut of_others) = (0, 0);
        for (name, hash) in named {
            *(if self.hash(&name) == hash { &mut of_this } else { &mut of_others }) += 1;
        }
        match (of_this, of_others) {
            (0, 1..) => {
                let why = "its names are found by other hashes than this program makes: another version of it made this ledger";
                Err(StoreError::Damaged(why.to_owned()))
            }
            _ => Ok(()),
        }
    }

    fn keyed(&self) -> RwLockReadGuard<'_, Keyed> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }
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
        let hasher = NameHasher::new([7; 32]);
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
    fn s1_a_ledger_whose_names_are_found_by_other_hashes_is_refused() {
        let (ours, others) = (NameHasher::new([7; 32]), NameHasher::new([8; 32]));
        let name = Name::new("shop/charge", "order:10492").expect("a name");
        let (good, bad) = (ours.hash(&name), others.hash(&name));
        let row = |hash| (Some("shop/charge"), Some("order:10492"), hash);
        assert!(ours.check([]).is_ok(), "nothing is there");
        assert!(ours.check([(None, None, &bad[..])]).is_ok(), "nothing is known of what was forgotten");
        assert!(ours.check([row(&bad[..]), row(&good[..])]).is_ok(), "one is damaged");
        assert!(matches!(ours.check([row(&bad[..])]), Err(StoreError::Damaged(_))));
    }

    /// Ledgers are found by it: it must never change.
    #[test]
    fn a_hash_is_what_it_always_was() {
        let hash = NameHasher::new([7; 32]).hash(&Name::new("shop/charge", "order:10492").expect("a name"));
        assert_eq!(u128::from_be_bytes(hash), 336_173_240_057_665_438_126_080_705_888_367_528_605);
    }
}
