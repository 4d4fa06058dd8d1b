//! The ledger goes away between the act and its record.

use std::time::Duration;

use twicesafe_ledger::{Answer, Attempt, Code, Error, Ledger, Open, Recovery, Trouble};

use crate::world::{Folder, Shop, intent};

/// A ledger that has room for claims, and none for a large answer.
async fn nearly_full(folder: &Folder) -> Ledger {
    let open = Open::at(&folder.sqlite()).bytes_max(300_000).settle_patience(Duration::ZERO);
    open.open().await.unwrap()
}

fn large() -> Answer {
    Answer::of(vec![b'x'; 500_000])
}

#[tokio::test]
async fn s27_what_was_sent_and_is_not_recorded_is_told_so_and_not_sent_again() {
    for retrying in [false, true] {
        let (folder, shop) = (Folder::new(), Shop::default());
        let ledger = nearly_full(&folder).await;
        let sent = shop.clone();
        let act = move |_: Attempt| {
            let sent = sent.clone();
            async move { sent.take().map(|_| large()) }
        };
        let short = || intent(Recovery::Person).wait(Duration::from_millis(100));
        let error = match retrying {
            true => ledger.run_retrying(short(), act).await.unwrap_err(),
            false => ledger.run(short(), act).await.unwrap_err(),
        };
        assert!(matches!(error, Error::NotRecorded(_)), "{error}");
        assert_eq!(error.code(), Code::NotRecorded);
        assert!(error.to_string().starts_with("it was sent"), "{error}");
        // The same key again, and nothing is sent twice.
        let again = ledger.run(short(), |_| async { panic!("it was sent") }).await.unwrap_err();
        assert!(matches!(again, Error::Pending { .. }), "{again}");
        assert_eq!(shop.effects(), 1);
    }
}

#[tokio::test]
async fn s27_what_was_not_sent_is_told_so_when_the_ledger_is_away() {
    let folder = Folder::new();
    let ledger = nearly_full(&folder).await;
    // Before anything was sent.
    let request = intent(Recovery::Person).request(vec![b'x'; 500_000]);
    let error = ledger.run(request, |_| async { panic!("nothing is sent") }).await.unwrap_err();
    assert!(matches!(error, Error::Store(_)), "{error}");
    // By its holder's own word, and the word of one who does not know.
    let reason = || "x".repeat(500_000);
    let not_sent = Trouble::not_sent(reason());
    let result = ledger.run(intent(Recovery::Person), move |_| async move { Err(not_sent) }).await;
    assert!(!matches!(result, Err(Error::NotRecorded(_))), "{result:?}");
}
