//! Destinations that close connections after their answers and do not say so.

use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::join_all;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

use super::destination::read;
use super::*;

/// Acts, says so, and closes the connection a little later.
struct Closing {
    base: String,
    effects: Arc<AtomicUsize>,
}

impl Closing {
    async fn new(later: fn(usize) -> Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let effects = Arc::new(AtomicUsize::new(0));
        let counted = effects.clone();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let counted = counted.clone();
                tokio::spawn(async move {
                    read(&mut stream, &mut Vec::new()).await?;
                    let number = counted.fetch_add(1, Ordering::SeqCst);
                    let answer = "HTTP/1.1 201 Created\r\ncontent-length: 2\r\n\r\n{}";
                    stream.write_all(answer.as_bytes()).await.ok()?;
                    tokio::time::sleep(later(number)).await;
                    Some(())
                });
            }
        });
        Self { base, effects }
    }
}

async fn check_few_reviews(later: fn(usize) -> Duration, recovery: &str, callers: usize) {
    let closing = Closing::new(later).await;
    let yaml = format!(
        "destinations:\n  crm:\n    base: {}\n    auth: none\n    routes:\n      - {{ match: POST /x, action: x.do, \
         key: request.body.id, recovery: {recovery} }}\n",
        closing.base
    );
    let world = World::configured(&yaml).await;
    let (world, mut answered, mut in_review) = (&world, 0, 0);
    for round in 0..200 / callers {
        let calls = (0..callers).map(|caller| async move {
            let id = format!("{round}-{caller}");
            world.post("/to/crm/x", &json!({ "id": id })).await.status
        });
        for status in join_all(calls).await {
            match status {
                201 => answered += 1,
                423 => in_review += 1,
                other => panic!("{other}"),
            }
        }
    }
    assert_eq!(closing.effects.load(Ordering::SeqCst), answered, "what is in review did not arrive");
    assert!(in_review <= callers, "{in_review} of {} are in review", in_review + answered);
}

#[tokio::test]
async fn s17_a_destination_that_closes_unawares_gets_a_new_connection_for_everything() {
    for callers in [1, 8] {
        check_few_reviews(|_| Duration::ZERO, "person", callers).await;
        check_few_reviews(|number| Duration::from_millis(number as u64 % 5), "person", callers).await;
    }
    let lookup = "{ lookup: { get: '/x?id={{ key }}', found: 'size(answer.body.items) > 0' } }";
    check_few_reviews(|number| Duration::from_millis(number as u64 % 5), lookup, 8).await;
    check_few_reviews(|_| Duration::from_millis(120), "person", 1).await;
}

#[tokio::test]
async fn a_destination_that_keeps_connections_is_found_out_soon() {
    let gateway = Gateway::with_routes(PERSON).await;
    for number in 0.. {
        gateway.post("/contacts", &contact(&format!("first-{number}"))).await;
        if gateway.crm.connections() <= number {
            break;
        }
    }
    let before = gateway.crm.connections();
    for number in 0..50 {
        gateway.post("/contacts", &contact(&number.to_string())).await;
    }
    assert_eq!(gateway.crm.connections(), before, "one after the other they need one connection");
}
