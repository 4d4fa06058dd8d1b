//! Names: whatever a key may contain is found again, and nothing else is (S2, S3).

use std::collections::HashSet;

use twicesafe_core::{Name, Policy, Verdict};

use crate::orders::{answered, claim, permit, settle};
use crate::world::World;

const KEYS: [&str; 20] = [
    "order:10492",
    "Order:10492",
    "order:10492 ",
    " order:10492",
    "100%",
    "100_",
    "it's \"quoted\"",
    "back\\slash",
    "$1 ?1 :a {0}",
    "'); DROP TABLE intent; --",
    "caf\u{e9}",
    "cafe\u{301}",
    "stra\u{df}e",
    "STRASSE",
    "\u{1f9fe}\u{200d}\u{1f4b6}",
    "\u{202e}right to left",
    "\u{fffd}",
    "0",
    "-1",
    "NULL",
];

pub async fn s3_names_of_any_characters_survive(world: &World) {
    for key in KEYS.into_iter().chain([&*"k".repeat(255), &*"\u{e9}".repeat(127)]) {
        let claimed = world.tell(claim(key, &Policy::default())).await;
        permit(&claimed);
        world.tell(settle(&claimed, answered("done"))).await;
        let again = world.tell(claim(key, &Policy::default())).await;
        assert!(matches!(again.verdict, Verdict::Replay(_)), "{key:?}: {:?}", again.verdict);
    }
}

pub async fn s3_names_that_differ_a_little_are_different_intents(world: &World) {
    let mut ids = HashSet::new();
    let scopes = ["a/b", "a.b", "a-b", "A/b", "a/b/c", "b/a", "a:b@c+d=e-f_g"];
    for scope in scopes {
        for key in ["k", "K", "k ", "b/k", "c/k"] {
            let name = Name::new(scope, key).unwrap();
            let claimed = world.tell(claim(key, &Policy::default()).with_name(name.clone())).await;
            assert_eq!(permit(&claimed).fence.number(), 1, "{name:?} is new");
            assert!(ids.insert(claimed.stored.unwrap().id), "{name:?} is another intent");
        }
    }
    assert_eq!(ids.len(), scopes.len() * 5);
}
