//! Looks at a whole ledger: is everything in it as it must be?

use std::collections::HashMap;

use twicesafe_core::journal::Event;
use twicesafe_core::{Status, Timestamp};
use twicesafe_store::{Filter, PAGE_MAX, Store, Stored};

/// Checks that every journal is whole, that everything is found by its name, and that the counts equal a recount (S40).
/// Returns what is there, newest first.
pub async fn audit(store: &Store) -> Vec<Stored> {
    let intents = everything(store, &Filter::default(), PAGE_MAX).await;
    let mut standing: HashMap<Status, u64> = HashMap::new();
    let mut tombstones = 0;
    let mut events: HashMap<Event, u64> = HashMap::new();
    for stored in &intents {
        assert_eq!(store.verify_journal(stored).await.unwrap(), None, "{stored:?}");
        if let Some(name) = &stored.record.name {
            assert_eq!(store.find(name).await.unwrap().as_ref(), Some(stored));
        }
        if stored.record.is_tombstone() {
            tombstones += 1;
        } else {
            *standing.entry(stored.record.status).or_default() += 1;
        }
        for row in store.journal(stored.id).await.unwrap() {
            *events.entry(row.entry.event).or_default() += 1;
        }
    }
    let statistics = store.statistics(Timestamp::default(), Timestamp::NEVER).await.unwrap();
    for status in Status::ALL {
        assert_eq!(statistics.standing(status), standing.get(&status).copied().unwrap_or(0), "{status}");
    }
    assert_eq!(statistics.tombstones(), tombstones, "tombstones");
    if statistics.events(Event::Removed) == 0 {
        for (event, n) in events {
            assert_eq!(statistics.events(event), n, "{event}");
        }
    }
    intents
}

/// All intents a filter finds, page by page.
pub async fn everything(store: &Store, filter: &Filter, page: usize) -> Vec<Stored> {
    let mut all = Vec::new();
    let mut after = None;
    loop {
        let page = store.list(filter, after, page).await.unwrap();
        all.extend(page.intents);
        match page.next {
            Some(next) => after = Some(next),
            None => return all,
        }
    }
}
