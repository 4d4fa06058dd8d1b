//! Who may do what.

use std::time::Duration;

use proptest::prelude::*;
use serde_json::json;
use twicesafe_server::{NewToken, Right, Server};

use crate::world::{World, claim, configuration, permit_in, renew, settle};

#[tokio::test]
async fn from_the_first_token_on_everybody_needs_one() {
    let world = World::new().await;
    assert_eq!(world.post("/v1/claim", &claim("before")).await.status, 201);
    let token = world.token("n8n", &[Right::Act]).await;
    tokio::time::sleep(Duration::from_millis(2100)).await;
    // A server learns of the first token when it reads again, which it does when somebody shows one.
    assert_eq!(world.post_as(&token, "/v1/claim", &claim("1")).await.status, 201);
    let heard = world.post("/v1/claim", &claim("2")).await;
    heard.refused(401, "TS0072");
    assert!(heard.headers["www-authenticate"].starts_with("Bearer"));
    for wrong in [
        "",
        "x",
        "twicesafe.a.b",
        "twicesafe..",
        &token[..token.len() - 1],
        &format!("{token}x"),
        "twicesafe.é.b",
    ] {
        world.post_as(wrong, "/v1/claim", &claim("2")).await.refused(401, "TS0073");
    }
    world.send("GET", "/v1/intents", &[("authorization", "Basic eDp5")], b"").await.refused(401, "TS0073");
    assert_eq!(world.get_as(&token, "/v1/intents").await.status, 200);
    // The tenant `default` keeps what was there before.
    assert_eq!(world.get_as(&token, "/v1/intent?scope=billing/invoice.send&key=before").await.status, 200);
    world.stop().await;
}

#[tokio::test]
async fn a_revoked_or_expired_token_is_refused() {
    let world = World::new().await;
    let token = world.token("n8n", &[Right::Act]).await;
    let new = NewToken {
        name: "short".to_owned(),
        tenant: None,
        scopes: vec![],
        rights: vec![Right::Act],
        person: None,
        expires_after: Some(Duration::from_secs(60)),
    };
    let (short, _) = twicesafe_server::create(&world.ledger, new).await.unwrap();
    assert_eq!(world.post_as(&short, "/v1/claim", &claim("1")).await.status, 201);
    world.clock.advance(Duration::from_secs(61));
    world.post_as(&short, "/v1/claim", &claim("2")).await.refused(401, "TS0073");
    assert_eq!(world.post_as(&token, "/v1/claim", &claim("2")).await.status, 201);
    twicesafe_server::revoke(&world.ledger, "n8n").await.unwrap();
    tokio::time::sleep(Duration::from_millis(2100)).await;
    world.post_as(&token, "/v1/claim", &claim("3")).await.refused(401, "TS0073");
    assert!(twicesafe_server::revoke(&world.ledger, "n8n").await.is_err());
    world.stop().await;
}

#[tokio::test]
async fn s3_one_tenant_does_not_see_another() {
    let world = World::new().await;
    let acme =
        world.token_for("acme", &[Right::Act, Right::Review, Right::Admin], Some("acme"), &[], None).await;
    let ours = world.token("ours", &[Right::Act, Right::Admin]).await;
    let of_acme = json!({ "scope": "acme/billing", "key": "1", "wait_ms": 0 });
    let claimed = world.post_as(&acme, "/v1/claim", &of_acme).await;
    assert_eq!(claimed.status, 201);
    world.post_as(&ours, "/v1/claim", &of_acme).await.refused(403, "TS0074");
    world.post_as(&acme, "/v1/claim", &claim("1")).await.refused(403, "TS0074");
    assert_eq!(world.post_as(&ours, "/v1/claim", &claim("1")).await.status, 201);
    // By number there is nothing either, and that is said as if there were none.
    let permit = permit_in(&claimed);
    world.post_as(&ours, "/v1/settle", &settle(permit, "answered", json!({}))).await.refused(404, "TS0035");
    world.get_as(&ours, "/v1/intent?scope=acme/billing&key=1").await.refused(403, "TS0074");
    for (token, sees) in [(&acme, "acme/billing"), (&ours, "billing/invoice.send")] {
        let list = world.get_as(token, "/v1/intents").await;
        let scopes: Vec<_> =
            list.json["intents"].as_array().unwrap().iter().map(|intent| intent["scope"].clone()).collect();
        assert_eq!(scopes, [sees]);
    }
    // Figures are of the whole ledger.
    world.get_as(&acme, "/v1/stats").await.refused(403, "TS0074");
    world.get_as(&acme, "/metrics").await.refused(403, "TS0074");
    assert_eq!(world.get_as(&ours, "/v1/stats").await.status, 200);
    assert_eq!(world.get_as(&ours, "/metrics").await.status, 200);
    // A tenant cannot be named after scopes that are in use.
    let new = NewToken {
        name: "late".to_owned(),
        tenant: Some("billing".to_owned()),
        scopes: vec![],
        rights: vec![Right::Act],
        person: None,
        expires_after: None,
    };
    assert!(twicesafe_server::create(&world.ledger, new).await.is_err());
    world.stop().await;
}

#[tokio::test]
async fn s3_lanes_and_works_of_one_tenant_are_not_those_of_another() {
    let world = World::new().await;
    let acme = world.token_for("acme", &[Right::Act], Some("acme"), &[], None).await;
    let ours = world.token("ours", &[Right::Act]).await;
    let body = |scope: &str, key: &str, version: i64| {
        json!({ "scope": scope, "key": key, "lane": "contact:881", "version": version, "version_means": "snapshot",
                "work": "order:1", "step": "crm", "wait_ms": 0 })
    };
    let claimed = world.post_as(&acme, "/v1/claim", &body("acme/crm", "1", i64::MAX)).await;
    assert_eq!(claimed.status, 201);
    let permit = permit_in(&claimed);
    assert_eq!(world.post_as(&acme, "/v1/settle", &settle(permit, "answered", json!({}))).await.status, 200);
    // Neither blocked nor superseded by what the other tenant did to a lane of that name.
    assert_eq!(world.post_as(&ours, "/v1/claim", &body("crm", "1", 1)).await.status, 201);
    for (token, scope) in [(&acme, "acme/crm"), (&ours, "crm")] {
        let steps = world.get_as(token, "/v1/work?id=order:1").await;
        assert_eq!(steps.json["intents"].as_array().unwrap().len(), 1);
        assert_eq!(steps.json["intents"][0]["scope"], scope);
    }
    let mut forged = body("crm", "2", 1);
    forged["lane"] = json!("acme/contact:881");
    world.post_as(&ours, "/v1/claim", &forged).await.refused(403, "TS0074");
    world.stop().await;
}

#[tokio::test]
async fn s3_figures_and_metrics_are_for_an_admin_of_the_default_tenant_without_scopes() {
    let world = World::new().await;
    let others: Vec<Right> = Right::ALL.into_iter().filter(|right| *right != Right::Admin).collect();
    let operator = world.token("operator", &[Right::Admin]).await;
    let no_admin = world.token("no admin", &others).await;
    let everything = Right::ALL.to_vec();
    let confined = world.token_for("confined", &everything, None, &["billing"], None).await;
    let of_acme = world.token_for("of acme", &everything, Some("acme"), &[], None).await;
    let both = world.token_for("both", &everything, Some("acme"), &["acme/billing"], None).await;
    for path in ["/v1/stats", "/metrics"] {
        let heard = world.get_as(&operator, path).await;
        assert_eq!(heard.status, 200, "{path}: {heard:?}");
        for (who, token) in
            [("no admin", &no_admin), ("confined", &confined), ("of acme", &of_acme), ("both", &both)]
        {
            let heard = world.get_as(token, path).await;
            assert_eq!(heard.status, 403, "{path} as {who}: {heard:?}");
            heard.refused(403, "TS0074");
        }
    }
    world.stop().await;
}

#[tokio::test]
async fn the_servers_own_scopes_are_nobodys() {
    let world = World::new().await;
    let body = json!({ "scope": "twicesafe/alert", "key": "1:1:1:review:0:ops", "wait_ms": 0 });
    world.post("/v1/claim", &body).await.refused(403, "TS0074");
    let new = NewToken {
        name: "x".to_owned(),
        tenant: Some("twicesafe".to_owned()),
        scopes: vec![],
        rights: vec![Right::Act],
        person: None,
        expires_after: None,
    };
    assert!(twicesafe_server::create(&world.ledger, new).await.is_err());
    world.stop().await;
}

#[tokio::test]
async fn what_came_through_a_proxy_needs_a_token() {
    let world = World::new().await;
    for name in ["x-forwarded-for", "forwarded", "via"] {
        world.send("GET", "/v1/intents", &[(name, "10.1.2.3")], b"").await.refused(401, "TS0072");
    }
    world.stop().await;
}

#[tokio::test]
async fn a_revoked_token_hears_no_more_events() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let world = World::new().await;
    let token = world.token("listens", &[Right::Act]).await;
    let mut stream = tokio::net::TcpStream::connect(world.address).await.unwrap();
    let head = format!(
        "GET /v1/events HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {token}\r\n\r\n",
        world.address
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut buffer = [0; 1024];
    let read = stream.read(&mut buffer).await.unwrap();
    assert!(buffer[..read].starts_with(b"HTTP/1.1 200"));
    twicesafe_server::revoke(&world.ledger, "listens").await.unwrap();
    let mut heard = Vec::new();
    tokio::time::timeout(Duration::from_secs(10), async {
        while !heard.ends_with(b"0\r\n\r\n") {
            let read = stream.read(&mut buffer).await.unwrap();
            assert!(read > 0);
            heard.extend(&buffer[..read]);
        }
    })
    .await
    .expect("the stream ends");
    world.stop().await;
}

const NOBODYS: &str = "00000000000000000000000000000000";

#[tokio::test]
async fn s25_one_token_does_not_take_all_places_of_the_event_stream() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let world = World::new().await;
    let (greedy, other) =
        (world.token("greedy", &[Right::Act]).await, world.token("other", &[Right::Act]).await);
    let listen = async |token: &str| {
        let mut stream = tokio::net::TcpStream::connect(world.address).await.unwrap();
        let head = format!(
            "GET /v1/events HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {token}\r\n\r\n",
            world.address
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut buffer = [0; 2048];
        let read = stream.read(&mut buffer).await.unwrap();
        (stream, String::from_utf8_lossy(&buffer[..read]).into_owned())
    };
    let mut streams = Vec::new();
    for _ in 0..110 {
        streams.push(listen(&greedy).await);
    }
    let taken = streams.iter().filter(|(_, said)| said.starts_with("HTTP/1.1 200")).count();
    assert_eq!(taken, 25);
    assert!(streams.last().unwrap().1.contains("TS0050"), "{:?}", streams.last());
    let (_stream, said) = listen(&other).await;
    assert!(said.starts_with("HTTP/1.1 200"), "{said}");
    drop(streams);
    world.stop().await;
}

#[tokio::test]
async fn rights_are_needed_one_by_one() {
    let world = World::new().await;
    let about = json!({ "scope": "billing/invoice.send", "key": "1", "reason": "because", "generation": 1 });
    let resolve = json!({ "scope": "billing/invoice.send", "key": "1", "reason": "because", "finding": "give-up", "fence": 1 });
    let calls = [
        ("/v1/claim", claim("1"), Right::Act),
        ("/v1/settle", settle((1, 1, NOBODYS), "answered", json!({})), Right::Act),
        ("/v1/renew", renew((1, 1, NOBODYS)), Right::Act),
        ("/v1/ask", json!({ "intent": 1 }), Right::Act),
        ("/v1/approve", about.clone(), Right::Approve),
        ("/v1/reject", about.clone(), Right::Approve),
        ("/v1/resolve", resolve, Right::Review),
        ("/v1/reset", about.clone(), Right::Admin),
        ("/v1/forget", about, Right::Admin),
    ];
    for has in Right::ALL {
        let token = world.token(has.as_str(), &[has]).await;
        for (path, body, needs) in &calls {
            let heard = world.post_as(&token, path, body).await;
            let refused = heard.status == 403 && heard.json["code"] == "TS0074";
            assert_eq!(refused, has != *needs, "{path} with {has:?}: {heard:?}");
        }
    }
    world.stop().await;
}

#[tokio::test]
async fn a_page_of_another_site_is_refused() {
    let world = World::new().await;
    let body = claim("1").to_string();
    let json = ("content-type", "application/json");
    for header in [
        ("origin", "https://evil.example"),
        ("origin", "null"),
        ("sec-fetch-site", "cross-site"),
        ("host", "evil.example"),
    ] {
        world.send("POST", "/v1/claim", &[json, header], body.as_bytes()).await.refused(403, "TS0075");
        world.send("GET", "/v1/intents", &[header], b"").await.refused(403, "TS0075");
    }
    // A form of another page can send this without asking first; JSON it cannot.
    world
        .send("POST", "/v1/claim", &[("content-type", "text/plain")], body.as_bytes())
        .await
        .refused(415, "TS0070");
    let own = format!("http://{}", world.address);
    assert_eq!(world.send("POST", "/v1/claim", &[json, ("origin", &own)], body.as_bytes()).await.status, 201);
    world.stop().await;
}

#[tokio::test]
async fn a_server_that_others_can_reach_needs_tokens() {
    let world = World::new().await;
    let start = || async {
        let mut configuration = configuration("");
        configuration.listen = "0.0.0.0:0".parse().unwrap();
        Server::start(world.ledger.clone(), configuration).await.map(drop)
    };
    assert_eq!(start().await.unwrap_err().code().map(|code| code.as_str()), Some("TS0081"));
    world.token("n8n", &[Right::Act]).await;
    start().await.unwrap();
    world.stop().await;
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whatever a token's tenant and scopes, what it lists and what it may claim agree, and no scope is in reach of two tenants.
    #[test]
    fn s3_no_scope_belongs_to_two_tenants(scopes in prop::collection::vec("(acme|globex|default|x)(/(a|b)){0,2}", 1..6)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let world = World::new().await;
            let mut tokens = Vec::new();
            for tenant in ["default", "acme", "globex"] {
                tokens.push(world.token_for(tenant, &[Right::Act], Some(tenant), &[], None).await);
            }
            let confined = world.token_for("confined", &[Right::Act], Some("acme"), &["acme/a"], None).await;
            for (number, scope) in scopes.iter().enumerate() {
                let body = json!({ "scope": scope, "key": number.to_string(), "wait_ms": 0 });
                let mut owners = 0;
                for token in &tokens {
                    let status = world.post_as(token, "/v1/claim", &body).await.status;
                    assert!(matches!(status, 201 | 403), "{status}");
                    owners += u32::from(status == 201);
                }
                assert_eq!(owners, 1, "{scope}");
                let expected = if scope == "acme/a" || scope.starts_with("acme/a/") { 409 } else { 403 };
                assert_eq!(world.post_as(&confined, "/v1/claim", &body).await.status, expected, "{scope}");
            }
            let mut seen = 0;
            for token in &tokens {
                seen += world.get_as(token, "/v1/intents?limit=1000").await.json["intents"].as_array().unwrap().len();
            }
            assert_eq!(seen, scopes.len());
            world.stop().await;
        });
    }
}
