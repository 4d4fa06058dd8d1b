//! What was prepared for longer than its permit holds is not sent (S9).

use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

use super::*;

#[tokio::test]
async fn s9_what_waited_for_a_token_beyond_its_lease_is_not_sent() {
    let tokens = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let token_url = format!("http://{}/token", tokens.local_addr().unwrap());
    let crm = Destination::new().await;
    let destination = format!(
        "auth: {{ oauth: {{ token_url: '{token_url}', client_id: me, client_secret: s }} }}\nwait: 1ms"
    );
    let routes =
        PERSON.replace("timeout: 300ms", "timeout: 10s\n  lease: 900ms\n  retries: { base: 1h, cap: 1h }");
    // The ledger's clock stands still: for the ledger the lease holds.
    let yaml = configuration(&crm, &destination, &routes, "");
    let (world, folder) = World::in_folder("too-late", &yaml).await;
    let gateway = Gateway { world, crm };
    let body = contact("a");
    let (heard, ()) = tokio::join!(gateway.post("/contacts", &body), async {
        let (mut stream, _) = tokens.accept().await.unwrap();
        destination::read(&mut stream, &mut Vec::new()).await.unwrap();
        // Nobody can write to the ledger, so that the lease is not renewed any more.
        let other = rusqlite::Connection::open(folder.join("ledger.db")).unwrap();
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        tokio::time::sleep(Duration::from_millis(1500)).await;
        let token = json!({ "access_token": "t", "token_type": "bearer", "expires_in": 3600 }).to_string();
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length";
        stream.write_all(format!("{head}: {}\r\n\r\n{token}", token.len()).as_bytes()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(300)).await;
        gateway.crm.check_effects(0);
        other.execute_batch("ROLLBACK").unwrap();
    });
    heard.refused(409, "TS0015");
    let shown = gateway.wait_for(SCOPE, "a", "retryable").await;
    assert_eq!(shown["doubt"], false, "{shown}");
    gateway.crm.check_effects(0);
    gateway.pass(Duration::from_secs(3600)).await;
    gateway.wait_for(SCOPE, "a", "done").await;
    gateway.crm.check_effects(1);
    assert_eq!(gateway.crm.effects()[0].header("authorization"), Some("Bearer t"));
    gateway.world.stop().await;
    std::fs::remove_dir_all(folder).unwrap();
}
