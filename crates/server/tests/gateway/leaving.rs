//! Callers that disconnect at every moment.

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::*;

const CALLERS: u64 = 384;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s13_callers_that_disconnect_leave_no_doubt_about_what_was_not_sent() {
    let crm = Destination::new().await;
    let yaml = configuration(&crm, "auth: none", PERSON, "");
    let (world, folder) = World::in_folder("leaving", &yaml).await;
    let address = world.address;
    let calls = (0..CALLERS).map(|caller| {
        tokio::spawn(async move {
            let body = contact(&format!("c-{caller}")).to_string();
            let mut stream = TcpStream::connect(address).await.unwrap();
            let head = format!(
                "POST /to/crm/contacts HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n\
                 content-length: {}\r\n\r\n{body}",
                body.len()
            );
            stream.write_all(head.as_bytes()).await.unwrap();
            // From before the claim is written until after it is answered.
            tokio::time::sleep(Duration::from_micros(50 * caller)).await;
        })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap();
    }
    let effects = || crm.effects().into_iter().map(|effect| effect.body["id"].clone()).collect::<Vec<_>>();
    let mut standing = Vec::new();
    for _ in 0..500 {
        // A request that was read may be claimed a little later.
        world.ledger.at_rest().await;
        let page = world.ledger.store().list(&Default::default(), None, 1000).await.unwrap();
        let of = |stored: &twicesafe_ledger::Stored| {
            let key = stored.record.name.as_ref().unwrap().key.to_string();
            (key, stored.record.status, stored.record.doubt)
        };
        standing = page.intents.iter().map(of).collect();
        if standing.iter().all(|(_, status, _)| *status != twicesafe_ledger::Status::Pending) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let (done, effects) = (effects().len(), effects());
    for (key, status, doubt) in &standing {
        use twicesafe_ledger::Status;
        match status {
            Status::Done => {}
            Status::Retryable => assert!(!doubt && !effects.contains(&json!(key)), "{key}"),
            other => panic!("{key} is {other} though nothing was sent"),
        }
    }
    assert!(standing.len() > 20, "nobody claimed: {}", standing.len());
    assert_eq!(done, standing.iter().filter(|(_, status, _)| status.as_str() == "done").count());
    world.stop().await;
    std::fs::remove_dir_all(folder).unwrap();
}
