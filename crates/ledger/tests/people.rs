//! What people decide.

use std::sync::Arc;
use std::time::Duration;

use twicesafe_ledger::{
    Adoption, Alert, Answer, ApprovalRule, Error, Ledger, Recovery, Refusal, Resolution, Source, Status,
    Trouble,
};

use crate::world::{Shop, actor, intent, memory};

async fn run(
    ledger: &Ledger,
    shop: &Shop,
    rule: Option<ApprovalRule>,
) -> Result<twicesafe_ledger::Given, Error> {
    let shop = shop.clone();
    let mut intent = intent(Recovery::Person);
    if let Some(rule) = rule {
        intent = intent.approval(rule);
    }
    ledger.run(intent, move |_| async move { shop.take() }).await
}

#[tokio::test]
async fn s30_held_until_somebody_else_says_yes() {
    let (ledger, shop) = (memory().await, Shop::default());
    let mut alarms = ledger.alarms();
    let rule = || Some(ApprovalRule::default());
    assert!(matches!(run(&ledger, &shop, rule()).await, Err(Error::Held { .. })));
    assert_eq!(alarms.recv().await.unwrap().alert, Alert::Held);
    let name = intent(Recovery::Person).name().clone();
    let seen = ledger.existing(&name).await.unwrap();
    let own = ledger.approve(ledger.actor(), &seen).await.unwrap_err();
    assert!(matches!(own, Error::Ledger(Refusal::OwnRequest)), "{own}");
    assert!(ledger.approve(&actor("ada"), &seen).await.unwrap().changed);
    assert!(!ledger.approve(&actor("ada"), &seen).await.unwrap().changed, "the same again is a no-op");
    let opposite = ledger.reject(&actor("bob"), &seen, "too expensive").await.unwrap_err();
    assert!(matches!(opposite, Error::Ledger(Refusal::DecidedOtherwise(first)) if first == actor("ada")));
    assert_eq!(shop.effects(), 0, "saying yes sends nothing");
    assert!(!run(&ledger, &shop, rule()).await.unwrap().replayed);
    assert_eq!(shop.effects(), 1);
}

#[tokio::test]
async fn s30_rejected_stays_rejected_until_a_reset() {
    let (ledger, shop) = (memory().await, Shop::default());
    let rule = || Some(ApprovalRule { requester_may_approve: true, ..ApprovalRule::default() });
    assert!(run(&ledger, &shop, rule()).await.is_err());
    let name = intent(Recovery::Person).name().clone();
    let seen = ledger.existing(&name).await.unwrap();
    ledger.reject(&actor("bob"), &seen, "too expensive").await.unwrap();
    assert!(matches!(run(&ledger, &shop, rule()).await, Err(Error::Ledger(Refusal::Rejected))));
    let seen = ledger.existing(&name).await.unwrap();
    ledger.reset(&actor("bob"), &seen, "cheaper now").await.unwrap();
    assert!(
        matches!(run(&ledger, &shop, rule()).await, Err(Error::Held { .. })),
        "a new generation needs a new yes"
    );
    assert_eq!(shop.effects(), 0);
}

async fn in_review(ledger: &Ledger) -> std::sync::Arc<twicesafe_ledger::Stored> {
    let act = |_| async { Err(Trouble::unknown("no reply")) };
    assert!(matches!(ledger.run(intent(Recovery::Person), act).await, Err(Error::Review)));
    tokio::time::sleep(Duration::from_millis(5)).await;
    ledger.existing(intent(Recovery::Person).name()).await.unwrap()
}

#[tokio::test]
async fn s26_a_person_found_that_it_happened() {
    let (ledger, shop) = (memory().await, Shop::default());
    let seen = in_review(&ledger).await;
    let found = Resolution::Happened(Answer::default().with_external_id("shop-77"));
    ledger.resolve(&actor("ada"), &seen, found, "seen in the shop's list").await.unwrap();
    let given = run(&ledger, &shop, None).await.unwrap();
    assert_eq!((given.source, given.replayed, shop.effects()), (Source::Person, true, 0));
    assert_eq!(given.answer.unwrap().external_id.unwrap().as_str(), "shop-77");
}

#[tokio::test]
async fn s26_a_person_found_that_it_did_not_happen() {
    let (ledger, shop) = (memory().await, Shop::default());
    let seen = in_review(&ledger).await;
    ledger.resolve(&actor("ada"), &seen, Resolution::DidNotHappen, "not in the list").await.unwrap();
    assert!(!run(&ledger, &shop, None).await.unwrap().replayed);
    assert_eq!(shop.effects(), 1);
    let late = ledger.resolve(&actor("ada"), &seen, Resolution::DidNotHappen, "again").await.unwrap_err();
    assert!(
        matches!(late, Error::Ledger(Refusal::Moved)),
        "a decision about an earlier attempt does not hold: {late}"
    );
}

#[tokio::test]
async fn s26_a_person_gave_up() {
    let (ledger, shop) = (memory().await, Shop::default());
    let seen = in_review(&ledger).await;
    ledger.resolve(&actor("ada"), &seen, Resolution::GiveUp, "nobody knows").await.unwrap();
    assert!(matches!(run(&ledger, &shop, None).await, Err(Error::Ledger(Refusal::GivenUp))));
    let dossier = ledger.dossier(intent(Recovery::Person).name()).await.unwrap().unwrap();
    let last = dossier.journal.last().unwrap();
    assert_eq!((last.entry.actor.as_str(), &*last.entry.reason), ("ada", "nobody knows"));
    assert_eq!(ledger.store().verify_journal(&dossier.stored).await.unwrap(), None);
}

#[tokio::test]
async fn s32_undone_answers_gone_until_a_reset() {
    let (ledger, shop) = (memory().await, Shop::default());
    run(&ledger, &shop, None).await.unwrap();
    let name = intent(Recovery::Person).name().clone();
    let seen = ledger.existing(&name).await.unwrap();
    ledger.mark_undone(&actor("ada"), &seen, "refund re_1").await.unwrap();
    assert!(matches!(run(&ledger, &shop, None).await, Err(Error::Ledger(Refusal::Undone))));
    let seen = ledger.existing(&name).await.unwrap();
    ledger.reset(&actor("ada"), &seen, "ordered again").await.unwrap();
    assert_eq!(run(&ledger, &shop, None).await.unwrap().generation, 2);
    let dossier = ledger.dossier(&name).await.unwrap().unwrap();
    assert_eq!(dossier.earlier.len(), 1, "the first answer stays with its generation");
    assert_eq!(dossier.stored.record.status, Status::Done);
}

#[tokio::test]
async fn s40_forgotten_is_not_done_again() {
    let (ledger, shop) = (memory().await, Shop::default());
    run(&ledger, &shop, None).await.unwrap();
    let name = intent(Recovery::Person).name().clone();
    let seen = ledger.existing(&name).await.unwrap();
    ledger.forget(&actor("ada"), &seen, "asked by the customer").await.unwrap();
    assert!(matches!(run(&ledger, &shop, None).await, Err(Error::Ledger(Refusal::Purged))));
    assert_eq!(shop.effects(), 1);
}

#[tokio::test]
async fn s26_what_the_source_of_truth_says_is_adopted_and_not_sent_again() {
    let (ledger, shop) = (memory().await, Shop::default());
    let adoption = |id: &str| Adoption {
        name: intent(Recovery::Person).name().clone(),
        policy: Arc::default(),
        answer: Answer::default().with_external_id(id),
    };
    let adopt = async |id: &str| {
        let mut results = ledger.adopt(&actor("ada"), vec![adoption(id)], "the shop's list").await;
        results.remove(0)
    };
    assert!(adopt("shop-7").await.unwrap().changed);
    assert!(!adopt("shop-7").await.unwrap().changed);
    let other = adopt("shop-8").await.unwrap_err();
    assert!(matches!(other, Error::Ledger(Refusal::SettledOtherwise)), "{other}");
    let given = run(&ledger, &shop, None).await.unwrap();
    assert_eq!((given.replayed, given.source, shop.effects()), (true, Source::Person, 0));
    assert_eq!(given.answer.unwrap().external_id.unwrap().as_str(), "shop-7");
}
