//! What destinations say and callers must not be told as it is: where to go next, cookies, what looks like ours, and credentials
//! of ours (S19, S22).

use super::*;

const OURS: &str = "sk_live_very-secret/0123";

fn echo(head: &'static str, body: &str) -> Do {
    Do::ActAndSayAs(head, body.as_bytes().to_vec())
}

#[tokio::test]
async fn s19_a_read_leads_nobody_to_another_host() {
    let gateway = Gateway::with_routes(PERSON).await;
    let own: &'static str = format!("http://{}/files/7?a=b", gateway.crm.address).leak();
    for (status, location, through_here) in [
        (302, "http://evil.example.com/x", None),
        (301, "//evil.example.com/x", None),
        (307, "https://evil.example.com", None),
        (308, "/\\evil.example.com", None),
        (303, "http://127.0.0.1:1/", None),
        (302, "/a/../../v1/intents", None),
        (302, own, Some("/to/crm/files/7?a=b")),
        (302, "/files/7", Some("/to/crm/files/7")),
    ] {
        gateway.crm.script_lookups([Do::SayWith(status, "location", location)]);
        let heard = gateway.world.get("/to/crm/x").await;
        match through_here {
            Some(through_here) => {
                assert_eq!((heard.status, heard.headers["location"].as_str()), (status, through_here));
            }
            None => {
                assert_eq!(
                    (heard.status, heard.headers.get("location")),
                    (422, None),
                    "{location}: {heard:?}"
                );
                assert_eq!(heard.headers["twicesafe-original-location"], location);
                assert_eq!(heard.headers["twicesafe-original-status"], status.to_string());
            }
        }
    }
    gateway.crm.script_lookups([Do::SayWith(304, "etag", "\"1\"")]);
    assert_eq!(gateway.world.get("/to/crm/x").await.status, 304);
}

#[tokio::test]
async fn s19_a_write_that_is_done_leads_nobody_to_another_host() {
    let gateway = Gateway::with_routes(PERSON).await;
    gateway.crm.script([Do::SayWith(303, "location", "http://evil.example.com/x")]);
    for replayed in [None, Some("true")] {
        let heard = gateway.post("/contacts", &contact("a")).await;
        assert_eq!((heard.status, heard.headers.get("location")), (200, None), "{heard:?}");
        assert_eq!(heard.headers["twicesafe-original-status"], "303");
        assert_eq!(heard.headers["twicesafe-original-location"], "http://evil.example.com/x");
        assert_eq!(heard.headers.get("idempotent-replayed").map(String::as_str), replayed);
    }
    gateway.crm.script([Do::SayWith(303, "location", "/contacts/7")]);
    let heard = gateway.post("/contacts", &contact("b")).await;
    assert_eq!((heard.status, heard.headers["location"].as_str()), (303, "/to/crm/contacts/7"), "{heard:?}");
    // So does one that is only watched.
    let gateway = Gateway::with("mode: observe", PERSON, "").await;
    gateway.crm.script([Do::SayWith(307, "location", "http://evil.example.com/x")]);
    let heard = gateway.post("/contacts", &contact("a")).await;
    assert_eq!((heard.status, heard.headers.get("location")), (422, None), "{heard:?}");
}

#[tokio::test]
async fn s22_nothing_that_speaks_for_this_server_comes_from_a_destination() {
    for mode in ["mode: guard", "mode: observe"] {
        let gateway = Gateway::with(mode, PERSON, "").await;
        const HEAD: &str = "content-type: application/json\r\nset-cookie: a=b\r\nalt-svc: h2=\"evil.example.com:443\"\r\n\
            connection: keep-alive, X-Hop, etag\r\nx-hop: 1\r\netag: \"1\"\r\nx-other: kept\r\ntwicesafe-status: done\r\n\
            twicesafe-version: 1\r\ntwicesafe-error: TS0001\r\nclear-site-data: \"*\"\r\nrefresh: 0; url=http://evil.example.com";
        gateway.crm.script([echo(HEAD, "{}")]);
        gateway.crm.script_lookups([echo(HEAD, "{}")]);
        let read = gateway.world.get("/to/crm/x").await;
        assert_eq!((read.status, read.headers["x-other"].as_str()), (200, "kept"));
        for heard in [read, gateway.post("/contacts", &contact("a")).await] {
            assert_eq!(heard.status, 200, "{heard:?}");
            for name in [
                "set-cookie",
                "alt-svc",
                "x-hop",
                "etag",
                "twicesafe-version",
                "twicesafe-error",
                "clear-site-data",
                "refresh",
            ] {
                assert_eq!(heard.headers.get(name), None, "{mode} {name}: {heard:?}");
            }
            let is_ours = heard.headers.contains_key("twicesafe-intent");
            assert_eq!(heard.headers.contains_key("twicesafe-status"), is_ours, "{mode}: {heard:?}");
        }
    }
}

#[tokio::test]
async fn s22_credentials_of_ours_are_masked_wherever_a_destination_shows_them() {
    let head = "content-type: application/json\r\nx-request-id: Bearer sk_live_very-secret/0123";
    let body =
        json!({ "headers": { "authorization": format!("Bearer {OURS}") }, "id": format!("id-{OURS}") })
            .to_string();
    for destination in [
        format!("auth: {{ bearer: '{OURS}' }}"),
        format!("auth: {{ basic: {{ user: u, password: '{OURS}' }} }}"),
        format!("auth: {{ header: {{ name: X-Shown, value: 'Token {OURS}' }} }}"),
        format!("auth: none\nheaders: {{ X-Api-Key: '{OURS}' }}"),
    ] {
        for mode in ["guard", "observe"] {
            let gateway = Gateway::with(&format!("{destination}\nmode: {mode}"), PERSON, "").await;
            gateway.crm.script_lookups([echo(head, &body), echo(head, &body.replace('/', "\\/"))]);
            let mut all = Vec::new();
            for _ in 0..2 {
                let packed = [("accept-encoding", "gzip")];
                all.push(gateway.world.send("GET", "/to/crm/x", &packed, b"").await);
            }
            assert_eq!(gateway.crm.requests()[0].header("accept-encoding"), Some("identity"));
            gateway.crm.script([
                echo(head, &body),
                Do::ActAndSay(422, json!({ "why": OURS })),
                Do::ActAndSay(500, json!({ "why": OURS })),
            ]);
            for id in ["a", "a", "b", "c"] {
                all.push(gateway.post("/contacts", &contact(id)).await);
            }
            for heard in &all {
                let text = format!("{heard:?}");
                assert!(!text.contains("very-secret"), "{destination} {mode}: {text}");
            }
            let masked = "*".repeat(OURS.len());
            assert_eq!(all[0].json["headers"]["authorization"], format!("Bearer {masked}"));
            assert_eq!(all[2].headers["x-request-id"], format!("Bearer {masked}"));
            assert_eq!(all[2].json["id"], format!("id-{masked}"));
            if mode == "guard" {
                let shown = gateway.world.get(&format!("/v1/intent?scope={SCOPE}&key=a")).await;
                assert!(shown.text.contains("****") && !shown.text.contains("very-secret"), "{shown:?}");
                let shown = gateway.world.get(&format!("/v1/intent?scope={SCOPE}&key=c")).await;
                assert!(shown.json["status"] == "review" && !shown.text.contains("very-secret"), "{shown:?}");
            }
        }
    }
}

#[tokio::test]
async fn s22_a_token_that_was_fetched_is_masked_also_in_a_long_answer() {
    let office = Destination::new().await;
    office.script([Do::ActAndSay(200, json!({ "access_token": OURS, "expires_in": 3600 }))]);
    let auth = format!(
        "auth: {{ oauth: {{ token_url: '{}/token', client_id: me, client_secret: another-secret }} }}",
        office.base()
    );
    let gateway = Gateway::with(&auth, &PERSON.replace("300ms", "30s"), "").await;
    // More than is kept: it is passed on part by part.
    let mut body = vec![b'x'; 9 << 20];
    for at in (0..body.len() - OURS.len()).step_by(10_007) {
        body[at..at + OURS.len()].copy_from_slice(OURS.as_bytes());
    }
    gateway.crm.script_lookups([Do::ActAndSayAs("content-type: text/plain", body.clone())]);
    gateway.crm.script([Do::ActAndSayAs("content-type: text/plain", body.clone())]);
    let read = gateway.world.get("/to/crm/x").await;
    assert_eq!((read.status, read.text.len()), (200, body.len()));
    let written = gateway.post("/contacts", &contact("a")).await;
    assert!(written.status == 200 && written.text.len() >= body.len(), "{}", written.status);
    for heard in [read, written] {
        assert!(!heard.text.contains("very-secret") && heard.text.contains("x****"));
    }
}
