//! What is passed on: reads, credentials, headers; what is kept back.

use super::*;

#[tokio::test]
async fn reads_pass_and_are_tried_again_freely() {
    let gateway = Gateway::with_routes(PERSON).await;
    gateway.post("/contacts", &contact("a")).await;
    let heard = gateway.world.get("/to/crm/contacts?external_id=a").await;
    assert_eq!((heard.status, &heard.json["items"][0]["id"]), (200, &json!("c_1")), "{heard:?}");
    assert!(!heard.headers.contains_key("set-cookie"), "cookies of destinations are not this server's");
    for _ in 0..5 {
        assert_eq!(gateway.world.get("/to/crm/contacts?external_id=a").await.status, 200);
    }
    assert_eq!(gateway.crm.connections(), 1, "one after the other they need one connection");
    gateway.crm.script_lookups([Do::Say(503, json!({})), Do::Say(502, json!({}))]);
    assert_eq!(gateway.world.get("/to/crm/contacts?external_id=a").await.status, 200);
    gateway.crm.script_lookups((0..3).map(|_| Do::Say(503, json!({ "down": true }))));
    assert_eq!(gateway.world.get("/to/crm/contacts?external_id=a").await.json, json!({ "down": true }));
    gateway.crm.script_lookups([Do::SayWith(302, "location", "http://169.254.169.254/")]);
    let heard = gateway.world.get("/to/crm/x").await;
    assert_eq!((heard.status, heard.headers.get("location")), (422, None), "{heard:?}");
    assert_eq!(heard.headers["twicesafe-original-location"], "http://169.254.169.254/");
    assert_eq!(gateway.world.get("/v1/intents").await.json["intents"].as_array().map(Vec::len), Some(1));
}

#[tokio::test]
async fn s3_a_token_confined_to_scopes_reaches_no_other_destination() {
    use twicesafe_server::Right;
    let gateway = Gateway::with("auth: { bearer: ours }", PERSON, "").await;
    let narrow = gateway.world.token_for("narrow", &[Right::Act], None, &["default/shop"], None).await;
    let wide = gateway.world.token_for("wide", &[Right::Act], None, &["default/crm"], None).await;
    for (token, expected) in [(&narrow, 403), (&wide, 200)] {
        let own = [("twicesafe-token", token.as_str())];
        let heard = gateway.world.send("GET", "/to/crm/contacts?external_id=a", &own, b"").await;
        assert_eq!(heard.status, expected, "{heard:?}");
    }
    let heard = gateway.world.send("GET", "/to/crm/x", &[("twicesafe-token", wide.as_str())], b"").await;
    assert_eq!(heard.headers["content-security-policy"], "sandbox", "what others wrote does not act here");
}

#[tokio::test]
async fn a_search_by_post_is_a_read_where_a_route_says_so() {
    let gateway = Gateway::with_routes("- { match: POST /search, read: true }").await;
    let heard = gateway.post("/search", &json!({ "q": 1 })).await;
    assert_eq!(heard.status, 200, "{heard:?}");
    assert_eq!(gateway.world.get("/v1/intents").await.json["intents"], json!([]));
}

#[tokio::test]
async fn s3_authorization_is_for_the_destination_unless_the_server_has_its_own() {
    let own = [("authorization", "Bearer of-the-caller"), ("connection", "close, x-hop"), ("x-hop", "1")];
    for (auth, expected) in [
        ("private: false", ("authorization", "Bearer of-the-caller")),
        ("auth: { bearer: ours }", ("authorization", "Bearer ours")),
        ("auth: { basic: { user: u, password: p } }", ("authorization", "Basic dTpw")),
        ("auth: { header: { name: X-Api-Key, value: k } }", ("x-api-key", "k")),
    ] {
        let gateway = Gateway::with(auth, PERSON, "").await;
        let heard = gateway.post_with("/contacts", &own, &contact("a")).await;
        assert_eq!(heard.status, 201, "{heard:?}");
        let sent = gateway.crm.effects()[0].clone();
        assert_eq!(sent.header(expected.0), Some(expected.1), "{auth}");
        assert_eq!(sent.header("x-hop"), None);
        assert_eq!(sent.header("host"), Some(gateway.crm.address.to_string().as_str()));
        if expected.0 != "authorization" {
            assert_eq!(sent.header("authorization"), None);
        }
    }
}

#[tokio::test]
async fn a_fetched_token_is_fetched_again_when_it_is_not_taken() {
    let office = Destination::new().await;
    let token = |text: &str| Do::ActAndSay(200, json!({ "access_token": text, "expires_in": 3600 }));
    office.script([token("one"), token("two")]);
    let auth = format!(
        "auth: {{ oauth: {{ token_url: '{}/token', client_id: me, client_secret: s&cret }} }}",
        office.base()
    );
    let gateway = Gateway::with(&auth, PERSON, "").await;
    gateway.crm.script([Do::Act, Do::Say(401, json!({}))]);
    assert_eq!(gateway.post("/contacts", &contact("a")).await.status, 201);
    assert_eq!(gateway.post("/contacts", &contact("b")).await.status, 401);
    assert_eq!(gateway.post("/contacts", &contact("b")).await.status, 201);
    let shown: Vec<_> = gateway
        .crm
        .effects()
        .iter()
        .map(|effect| effect.header("authorization").unwrap().to_owned())
        .collect();
    assert_eq!(shown, ["Bearer one", "Bearer two"]);
    let asked = String::from_utf8(office.effects()[0].raw.clone()).unwrap();
    assert_eq!(asked, "grant_type=client_credentials&client_id=me&client_secret=s%26cret");
    office.check_effects(2);
}

#[tokio::test]
async fn what_is_paused_takes_nothing_until_it_is_resumed() {
    let gateway = Gateway::with_routes(PERSON).await;
    let note = |value: Option<&'static str>| {
        gateway.world.ledger.store().put_note("pause", "destination:crm", value)
    };
    note(Some("the CRM is being moved")).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1300)).await;
    let heard = gateway.post("/contacts", &contact("a")).await;
    heard.refused(503, "TS0093");
    assert!(
        heard.json["message"].as_str().unwrap().contains("being moved")
            && heard.headers.contains_key("retry-after")
    );
    note(None).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1300)).await;
    assert_eq!(gateway.post("/contacts", &contact("a")).await.status, 201);
    gateway.crm.check_effects(1);
}

#[tokio::test]
async fn what_a_paused_token_asked_for_waits() {
    let routes = PERSON.replace("timeout: 300ms", "timeout: 300ms\n  wait: 1ms");
    let gateway = Gateway::with("auth: none", &routes, "").await;
    let token = gateway.world.token("agent", &[twicesafe_server::Right::Act]).await;
    let id = token.split('.').nth(1).unwrap().to_owned();
    gateway.crm.script([Do::SayWith(429, "retry-after", "1")]);
    let heard = gateway.post_with("/contacts", &[("twicesafe-token", &token)], &contact("a")).await;
    heard.refused(409, "TS0015");
    let store = gateway.world.ledger.store();
    store.put_note("pause", &format!("token:{id}"), Some("it went wild")).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1300)).await;
    gateway.pass(Duration::from_secs(5)).await;
    tokio::time::sleep(Duration::from_millis(2500)).await;
    gateway.crm.check_effects(0);
    store.put_note("pause", &format!("token:{id}"), None).await.unwrap();
    for _ in 0..100 {
        if !gateway.crm.effects().is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    gateway.crm.check_effects(1);
}

#[tokio::test]
async fn a_destination_that_fails_is_left_alone_and_nothing_is_sent_meanwhile() {
    let destination = "auth: none\nwait: 1ms\ncircuit: { failures: 2, pause: 60s }";
    let gateway = Gateway::with(destination, PERSON, "").await;
    gateway.crm.script([Do::Say(500, json!({})), Do::Say(500, json!({}))]);
    for id in ["a", "b"] {
        gateway.post("/contacts", &contact(id)).await.refused(423, "TS0016");
    }
    let heard = gateway.post("/contacts", &contact("c")).await;
    heard.refused(409, "TS0015");
    assert_eq!(heard.headers["twicesafe-attempt"], "0", "and was no attempt");
    assert_eq!(gateway.crm.requests().len(), 2, "what is not sent is not in doubt");
}

#[tokio::test]
async fn bodies_have_a_limit() {
    let gateway = Gateway::with_routes(PERSON).await;
    let host = gateway.world.address;
    let announced =
        format!("POST /to/crm/contacts HTTP/1.1\r\nhost: {host}\r\ncontent-length: {}\r\n\r\n", 8 << 20);
    gateway.world.raw(announced.as_bytes()).await.refused(413, "TS0005");
    let broken =
        format!("POST /to/crm/contacts HTTP/1.1\r\nhost: {host}\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n");
    gateway.world.raw(broken.as_bytes()).await.refused(400, "TS0070");
    gateway.crm.check_effects(0);
}
