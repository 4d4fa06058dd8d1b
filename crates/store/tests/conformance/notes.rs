//! What doors keep beside intents.

use crate::world::World;

pub async fn notes_are_kept_by_kind_and_name(world: &World) {
    let notes = async |kind: &str| world.other.notes(kind).await.unwrap();
    let put = async |kind: &str, name: &str, value: Option<&str>| {
        world.store.put_note(kind, name, value).await.unwrap();
    };
    assert_eq!(notes("token").await, vec![]);
    put("token", "b", Some("{}")).await;
    put("token", "a", Some(r#"{"hash":"00"}"#)).await;
    put("pause", "a", Some("[]")).await;
    put("token", "b", Some(r#"{"revoked":true}"#)).await;
    let both = [("a", r#"{"hash":"00"}"#), ("b", r#"{"revoked":true}"#)];
    assert_eq!(notes("token").await, both.map(|(name, value)| (name.to_owned(), value.to_owned())));
    put("token", "a", None).await;
    put("token", "never there", None).await;
    assert_eq!(notes("token").await.len(), 1);
    assert_eq!(notes("pause").await.len(), 1);
}

pub async fn keys_for_a_purpose_are_the_same_for_everybody(world: &World) {
    let key = world.store.derived_key("one purpose");
    assert_eq!(key, world.other.derived_key("one purpose"));
    assert_ne!(key, world.store.derived_key("another purpose"));
}
