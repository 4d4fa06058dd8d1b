//! One effect, start to end.

use std::time::Duration;

use twicesafe_ledger::{
    Answer, Body, Claimed, Code, Error, Finding, Intent, Ledger, Lookup, Open, Recipe, Recovery, Refusal,
    Source, Status, Trouble,
};

use crate::world::{Folder, Shop, intent, memory, postgres};

async fn run(ledger: &Ledger, intent: Intent, shop: &Shop) -> Result<twicesafe_ledger::Given, Error> {
    let shop = shop.clone();
    ledger.run(intent, move |_| async move { shop.take() }).await
}

#[tokio::test]
async fn a_repetition_gets_the_first_answer() {
    let (ledger, shop) = (memory().await, Shop::default());
    let first = run(&ledger, intent(Recovery::Person), &shop).await.unwrap();
    let again = run(&ledger, intent(Recovery::Person), &shop).await.unwrap();
    assert_eq!((first.replayed, again.replayed, shop.effects()), (false, true, 1));
    assert_eq!(first.answer, again.answer);
    assert_eq!(first.intent, again.intent);
    assert!(again.kept_until.is_some());
}

#[tokio::test]
async fn s8_what_was_read_a_while_ago_is_no_leave_to_act() {
    let folder = Folder::new();
    for address in ["memory:".to_owned(), folder.sqlite(), postgres().await] {
        let ledger = Ledger::open(&address).await.unwrap();
        ledger.accept(&intent(Recovery::Person), Duration::ZERO).await.unwrap();
        let name = intent(Recovery::Person).name().clone();
        let read = std::sync::Arc::new(ledger.store().find(&name).await.unwrap().unwrap());
        let on_record = Intent::on_record(&read).unwrap();
        let Claimed::Proceed(permit) = ledger.claim(&on_record).await.unwrap() else {
            panic!("it may be claimed")
        };
        let again = ledger.claim(&on_record).await.unwrap();
        assert!(matches!(again, Claimed::Wait { .. }), "another one has it");
        permit.settle(Ok(Answer::of("first"))).await.unwrap();
        let again = ledger.claim(&on_record).await.unwrap();
        assert!(matches!(again, Claimed::Replay(_)), "it was done");
    }
}

#[tokio::test]
async fn s5_the_same_key_with_other_input_is_refused() {
    let (ledger, shop) = (memory().await, Shop::default());
    run(&ledger, intent(Recovery::Person), &shop).await.unwrap();
    let error = run(&ledger, intent(Recovery::Person).input("shoes"), &shop).await.unwrap_err();
    assert_eq!((error.code(), shop.effects()), (Code::Mismatch, 1));
}

#[tokio::test]
async fn s4_later_claims_are_compared_by_the_first_ones_recipe() {
    let (ledger, shop) = (memory().await, Shop::default());
    run(&ledger, intent(Recovery::Person).json_input(r#"{"a":1,"b":2}"#), &shop).await.unwrap();
    // The same bytes by another recipe, and the same JSON written differently.
    let raw = intent(Recovery::Person).input(r#"{"a":1,"b":2}"#);
    assert!(run(&ledger, raw, &shop).await.unwrap().replayed);
    let other_order = intent(Recovery::Person).json_input(r#"{ "b":2, "a":1 }"#);
    assert!(run(&ledger, other_order, &shop).await.unwrap().replayed);
    let own = intent(Recovery::Person).fingerprint(Recipe::named("fields: a"), |_| None);
    assert!(matches!(run(&ledger, own, &shop).await, Err(Error::Recipe(_))));
}

#[tokio::test]
async fn s7_nothing_is_sent_when_the_claim_cannot_be_written() {
    let (folder, shop) = (Folder::new(), Shop::default());
    let ledger = Open::at(&folder.sqlite()).bytes_max(200_000).open().await.unwrap();
    let mut done = 0;
    let error = loop {
        let intent = Intent::new("shop/order", &format!("order:{done}")).unwrap().input(vec![b'x'; 10_000]);
        match run(&ledger, intent, &shop).await {
            Ok(_) => done += 1,
            Err(error) => break error,
        }
        assert!(done < 10_000, "the disk is never full");
    };
    assert_eq!(error.code(), Code::DiskFull);
    // What was sent is on record: either settled, or claimed and in need of a look.
    let known = ledger.store().list(&Default::default(), None, 1000).await.unwrap().intents.len();
    assert!(shop.effects() <= known && known >= done, "{} sent, {known} known", shop.effects());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s8_sixty_four_at_once_are_one_effect_and_one_answer() {
    let folder = Folder::new();
    let ledger = Ledger::open(&folder.sqlite()).await.unwrap();
    let shop = Shop::default();
    let runs: Vec<_> = (0..64)
        .map(|_| {
            let (ledger, shop) = (ledger.clone(), shop.clone());
            tokio::spawn(async move {
                let act = move |_| async move {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    shop.take()
                };
                ledger.run(intent(Recovery::Person), act).await.unwrap()
            })
        })
        .collect();
    let mut fresh = 0;
    for run in runs {
        let given = run.await.unwrap();
        fresh += usize::from(!given.replayed);
        assert_eq!(given.answer.unwrap().external_id.unwrap().as_str(), "shop-1");
    }
    assert_eq!((fresh, shop.effects()), (1, 1));
}

#[tokio::test]
async fn s8_a_duplicate_waits_only_so_long() {
    let (ledger, shop) = (memory().await, Shop::default());
    let Claimed::Proceed(permit) = ledger.claim(&intent(Recovery::Person)).await.unwrap() else { panic!() };
    let error =
        run(&ledger, intent(Recovery::Person).wait(Duration::from_millis(30)), &shop).await.unwrap_err();
    let Error::Pending { retry_after } = error else { panic!("{error}") };
    assert!(retry_after >= Duration::from_secs(1) && shop.effects() == 0);
    permit.settle(Ok(Answer::of("done"))).await.unwrap();
    assert!(run(&ledger, intent(Recovery::Person), &shop).await.unwrap().replayed);
}

#[tokio::test]
async fn s9_a_permit_does_not_send_when_its_lease_is_nearly_over() {
    let ledger = memory().await;
    let mut short = intent(Recovery::Person).lease(Duration::from_millis(60));
    short = short.clone().policy(twicesafe_ledger::Policy {
        lease: Duration::from_millis(60),
        act_max: Duration::from_millis(60),
        ..Default::default()
    });
    let act = |attempt: twicesafe_ledger::Attempt| async move {
        tokio::time::sleep(Duration::from_millis(58)).await;
        attempt.check_send()?;
        panic!("this must not be sent");
    };
    let error = ledger.run(short, act).await.unwrap_err();
    assert!(matches!(error, Error::Pending { .. }), "{error}");
    let stored = ledger.store().find(intent(Recovery::Person).name()).await.unwrap().unwrap();
    assert_eq!((stored.record.status, stored.record.doubt), (Status::Retryable, false));
}

#[tokio::test]
async fn s10_heartbeats_keep_a_long_act_alive() {
    let (ledger, shop) = (memory().await, Shop::default());
    // Long enough for a busy machine to renew it in time.
    let long = intent(Recovery::Person).lease(Duration::from_millis(600));
    let counted = shop.clone();
    let act = move |attempt: twicesafe_ledger::Attempt| async move {
        tokio::time::sleep(Duration::from_millis(2000)).await;
        attempt.check_send()?;
        counted.take()
    };
    let acting = tokio::spawn({
        let (ledger, long) = (ledger.clone(), long.clone());
        async move { ledger.run(long, act).await }
    });
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(ledger.sweep().await.unwrap().expired, 0, "the lease was renewed");
    assert!(run(&ledger, long, &shop).await.unwrap().replayed);
    assert!(!acting.await.unwrap().unwrap().replayed);
    assert_eq!(shop.effects(), 1);
}

#[tokio::test]
async fn s13_a_caller_that_goes_away_does_not_cancel_the_act() {
    let (ledger, shop) = (memory().await, Shop::default());
    let counted = shop.clone();
    let act = move |_| async move {
        tokio::time::sleep(Duration::from_millis(50)).await;
        counted.take()
    };
    let caller = tokio::time::timeout(Duration::from_millis(10), ledger.run(intent(Recovery::Person), act));
    assert!(caller.await.is_err(), "the caller went away");
    let again = run(&ledger, intent(Recovery::Person), &shop).await.unwrap();
    assert_eq!((again.replayed, shop.effects()), (true, 1));
}

#[tokio::test]
async fn s13_leave_that_nobody_is_there_to_take_is_given_back() {
    // A claim in memory takes no time to leave in.
    let folder = Folder::new();
    let (ledger, shop) = (Ledger::open(&folder.sqlite()).await.unwrap(), Shop::default());
    let counted = shop.clone();
    {
        let leaving = ledger.run(intent(Recovery::Person), move |_| async move { counted.take() });
        let mut leaving = std::pin::pin!(leaving);
        // The claim is on its way, and its caller leaves.
        let first = std::future::poll_fn(|context| {
            std::task::Poll::Ready(leaving.as_mut().poll(context).is_pending())
        });
        assert!(first.await);
    }
    ledger.at_rest().await;
    let stored = ledger.look(intent(Recovery::Person).name()).await.unwrap().unwrap();
    assert_eq!((stored.record.status, stored.record.doubt), (Status::Retryable, false), "nothing was sent");
    assert_eq!(shop.effects(), 0);
}

#[tokio::test]
async fn an_act_that_panics_or_fails_without_saying_how_leaves_doubt() {
    let (ledger, shop) = (memory().await, Shop::default());
    let error = ledger.run(intent(Recovery::Person), |_| async { panic!("out of paper") }).await.unwrap_err();
    assert!(matches!(error, Error::Review), "{error}");
    assert!(matches!(run(&ledger, intent(Recovery::Person), &shop).await, Err(Error::Review)));
    let other = Intent::new("shop/order", "order:2").unwrap();
    let act = |_| async { Err(std::io::Error::from(std::io::ErrorKind::TimedOut))? };
    assert!(matches!(ledger.run(other, act).await, Err(Error::Review)));
    assert_eq!(shop.effects(), 0);
}

#[tokio::test]
async fn s18_a_refusal_is_knowledge_and_can_be_tried_again() {
    let (ledger, shop) = (memory().await, Shop::default());
    let act = |_| async { Err(Trouble::refused(Answer::of("no such item"))) };
    let error = ledger.run(intent(Recovery::Person), act).await.unwrap_err();
    let Error::Refused(given) = error else { panic!("{error}") };
    assert_eq!(given.answer.unwrap().bytes().unwrap(), "no such item");
    let second = run(&ledger, intent(Recovery::Person), &shop).await.unwrap();
    assert_eq!((second.generation, shop.effects()), (2, 1));
    let brief = Intent::new("shop/order", "order:2").unwrap();
    let act = |_| async { Err(Trouble::refused(Answer::of("closed")).replay_for(Duration::from_secs(60))) };
    assert!(ledger.run(brief.clone(), act).await.is_err());
    assert!(matches!(run(&ledger, brief, &shop).await, Err(Error::Refused(given)) if given.replayed));
}

#[tokio::test]
async fn s20_an_answer_over_the_limit_is_done_without_its_body() {
    let ledger = memory().await;
    let body = vec![b'x'; twicesafe_ledger::ANSWER_BYTES_MAX + 1];
    ledger.run(intent(Recovery::Person), move |_| async move { Ok(Answer::of(body)) }).await.unwrap();
    let again = run(&ledger, intent(Recovery::Person), &Shop::default()).await.unwrap();
    assert!(matches!(again.answer.unwrap().body, Body::NotKept { bytes, .. } if bytes == (8 << 20) + 1));
}

#[tokio::test]
async fn s24_what_is_declared_harmless_is_tried_again_until_it_is_answered() {
    let (ledger, shop) = (memory().await, Shop::default());
    let counted = shop.clone();
    let act = move |attempt: twicesafe_ledger::Attempt| {
        let shop = counted.clone();
        async move {
            let answer = shop.take();
            if attempt.number() < 3 { Err(Trouble::unknown("no reply")) } else { answer }
        }
    };
    let given = ledger.run_retrying(intent(Recovery::Repeat), act).await.unwrap();
    assert_eq!((given.attempts, given.replayed, shop.effects()), (3, false, 3));
}

#[tokio::test]
async fn s26_what_was_not_sent_is_tried_again_and_out_of_attempts_waits_for_its_caller() {
    let (ledger, shop) = (memory().await, Shop::default());
    let act = |_| async { Err(Trouble::not_sent("connection refused")) };
    let error = ledger.run_retrying(intent(Recovery::Person).attempts(3), act).await.unwrap_err();
    assert!(matches!(error, Error::Pending { .. }), "{error}");
    let stored = ledger.store().find(intent(Recovery::Person).name()).await.unwrap().unwrap();
    assert_eq!(
        (stored.record.status, stored.record.tries, stored.record.due_at),
        (Status::Retryable, 3, None)
    );
    assert!(!run(&ledger, intent(Recovery::Person), &shop).await.unwrap().replayed);
}

#[tokio::test]
async fn s31_what_was_read_before_a_correction_does_not_replace_it() {
    let folder = Folder::new();
    for address in ["memory:".to_owned(), folder.sqlite()] {
        let (ledger, shop) = (Ledger::open(&address).await.unwrap(), Shop::default());
        let asked = |input: &'static str| intent(Recovery::Person).input(input).request(input);
        let failing = |_| async { Err(Trouble::not_sent("connection refused")) };
        ledger.run(asked("amount 10,000"), failing).await.unwrap_err();
        let name = intent(Recovery::Person).name().clone();
        let find = || async { std::sync::Arc::new(ledger.store().find(&name).await.unwrap().unwrap()) };
        // Somebody carries it on, but its caller corrects it first.
        let read = Intent::on_record(&find().await).unwrap().request("amount 10,000");
        ledger.run(asked("amount 10"), failing).await.unwrap_err();
        let corrected = find().await;
        let error = run(&ledger, read, &shop).await.unwrap_err();
        assert!(matches!(error, Error::Ledger(Refusal::Moved)), "{error}");
        let after = find().await;
        assert_eq!((after.version, &after.record), (corrected.version, &corrected.record));
        let kept = ledger.store().request(after.id).await.unwrap().unwrap();
        assert_eq!((&kept[..], shop.effects()), (&b"amount 10"[..], 0));
    }
}

#[tokio::test]
async fn s24_a_lookup_decides_what_a_timeout_left_open() {
    let lookup =
        || Recovery::Lookup(Lookup { lag: Duration::from_millis(1), lookup_for: Duration::from_secs(5) });
    for sent in [true, false] {
        let (ledger, shop) = (memory().await, Shop::default());
        let (asked, counted) = (shop.clone(), shop.clone());
        let guarded = intent(lookup()).lookup(move |_| {
            let found = asked.effects() > 0;
            async move { if found { Finding::Found(Answer::of("it is there")) } else { Finding::NotFound } }
        });
        let act = move |attempt: twicesafe_ledger::Attempt| {
            let shop = counted.clone();
            async move {
                if attempt.number() == 1 && !sent {
                    return Err(Trouble::unknown("the connection broke"));
                }
                let answer = shop.take();
                if attempt.number() == 1 { Err(Trouble::unknown("the reply was lost")) } else { answer }
            }
        };
        let given = ledger.run_retrying(guarded, act).await.unwrap();
        let expected = if sent { Source::Lookup } else { Source::Act };
        assert_eq!((given.source, shop.effects()), (expected, 1), "sent: {sent}");
    }
}

#[tokio::test]
async fn s12_a_claim_repeated_with_its_id_gets_the_same_permit() {
    let ledger = memory().await;
    let id = twicesafe_ledger::CommandId::new([7; 16]);
    let grant = twicesafe_ledger::Grant::Permit;
    let Claimed::Proceed(first) = ledger.claim_with(&intent(Recovery::Person), id, grant).await.unwrap()
    else {
        panic!()
    };
    let Claimed::Proceed(again) = ledger.claim_with(&intent(Recovery::Person), id, grant).await.unwrap()
    else {
        panic!()
    };
    assert_eq!(first.attempt().permit().fence, again.attempt().permit().fence);
    first.settle(Ok(Answer::of("a"))).await.unwrap();
    let error = again.settle(Ok(Answer::of("b"))).await.unwrap_err();
    assert!(matches!(error, Error::Ledger(Refusal::SettledOtherwise)), "{error}");
}

#[tokio::test]
async fn bad_input_is_refused_before_anything_is_stored() {
    let ledger = memory().await;
    assert_eq!(Intent::new("shop", "").map(drop).unwrap_err().code(), Code::KeyMissing);
    assert_eq!(Intent::new("shop", &"k".repeat(256)).map(drop).unwrap_err().code(), Code::KeyInvalid);
    assert_eq!(Intent::new("no spaces", "k").map(drop).unwrap_err().code(), Code::NameInvalid);
    let error = ledger.claim(&intent(Recovery::Person).attempts(0)).await.map(drop).unwrap_err();
    assert_eq!(error.code(), Code::PolicyInvalid);
    let large = intent(Recovery::Person).request(vec![0; twicesafe_ledger::REQUEST_BYTES_MAX + 1]);
    assert_eq!(ledger.claim(&large).await.map(drop).unwrap_err().code(), Code::InputTooLarge);
    assert!(ledger.store().list(&Default::default(), None, 10).await.unwrap().intents.is_empty());
    assert_eq!(Ledger::open("mysql://x").await.map(drop).unwrap_err().code(), Code::LedgerAddress);
}

/// Whoever opens a ledger in one runtime, and uses it in another, finds it the same.
#[test]
fn a_ledger_belongs_to_no_runtime() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let folder = Folder::new();
    for address in [runtime().block_on(postgres()), folder.sqlite()] {
        let (opening, using) = (runtime(), runtime());
        let ledger = opening.block_on(Ledger::open(&address)).unwrap();
        let (shop, wait) = (Shop::default(), Duration::from_secs(1));
        let order = |key: &str| Intent::new("shop/order", key).unwrap().wait(wait);
        let in_time = |key: &str| {
            let answered = async { tokio::time::timeout(wait * 5, run(&ledger, order(key), &shop)).await };
            using.block_on(answered).expect("an answer in time").unwrap()
        };
        in_time("while the other has nothing to do");
        drop(opening);
        in_time("after the other has ended");
        assert!(in_time("while the other has nothing to do").replayed);
        assert_eq!(shop.effects(), 2, "{address}");
        assert!(using.block_on(ledger.look(order("after the other has ended").name())).unwrap().is_some());
    }
}
