//! Which requests are equal, for whom, and what of them is a secret: S3, S4, S30, S45.

use super::*;
use twicesafe_server::Right;
use twicesafe_server::config::{self, check};

const PLAIN: &str = "- match: POST /contacts
  action: contact.create
  key: request.headers['x-order']
  recovery: person";

const JSON: &str = "application/json";

impl Gateway {
    /// Sends a write with a key of its own.
    async fn write(&self, path: &str, headers: &[(&str, &str)], body: &str) -> Heard {
        self.world.send("POST", &format!("/to/crm{path}"), headers, body.as_bytes()).await
    }

    /// Sends two writes under one key and tells whether they were taken for the same.
    async fn are_same(&self, key: &str, left: (&str, &str, &str), right: (&str, &str, &str)) -> bool {
        let send = async |(query, of_type, body): (&str, &str, &str)| {
            let headers = [("x-order", key), ("content-type", of_type)];
            self.write(&format!("/contacts{query}"), &headers, body).await
        };
        assert_eq!(send(left).await.status, 201, "{left:?}");
        let heard = send(right).await;
        match heard.status {
            201 => assert_eq!(heard.headers["idempotent-replayed"], "true", "{right:?}"),
            _ => {
                heard.refused(422, "TS0010");
            }
        }
        heard.status == 201
    }
}

#[tokio::test]
async fn s4_a_header_that_chooses_the_tenant_is_part_of_the_request() {
    let routes = format!("{PLAIN}\n  acts_for: X-Customer\n  fingerprint: request.body.id");
    for routes in [PLAIN, &routes] {
        let gateway = Gateway::with_routes(routes).await;
        let names = [
            "x-tenant-id",
            "Stripe-Account",
            "stripe-context",
            "x-org",
            "X-Goog-User-Project",
            "x-shop-domain",
        ];
        let mut names = names.to_vec();
        if routes != PLAIN {
            names.push("x-customer");
        }
        for name in &names {
            let send = async |value: &str| {
                let headers = [("x-order", *name), ("content-type", JSON), (*name, value)];
                gateway.write("/contacts", &headers, r#"{"id":"a"}"#).await
            };
            assert_eq!(send("A").await.status, 201, "{name}");
            send("B").await.refused(422, "TS0010");
            assert_eq!(send("A").await.headers["idempotent-replayed"], "true");
        }
        gateway.crm.check_effects(names.len());
    }
}

#[tokio::test]
async fn s4_a_lookup_asks_for_the_same_tenant() {
    let routes = "- match: POST /contacts
  action: contact.create
  key: request.body.id
  acts_for: X-Customer
  timeout: 300ms
  recovery: { lookup: { get: \"/contacts?external_id={{ key }}\", found: \"size(answer.body.items) > 0\" } }";
    let gateway = Gateway::with_routes(routes).await;
    gateway.crm.script([Do::ActAndClose]);
    let headers = [("x-tenant-id", "A"), ("x-customer", "C")];
    assert_eq!(gateway.post_with("/contacts", &headers, &contact("a")).await.status, 200);
    let requests = gateway.crm.requests();
    let asked = requests.iter().find(|request| request.line.starts_with("GET ")).expect("it was asked");
    assert_eq!((asked.header("x-tenant-id"), asked.header("x-customer")), (Some("A"), Some("C")));
    gateway.crm.check_effects(1);
}

#[tokio::test]
async fn s30_an_approval_is_not_passed_by_with_another_header() {
    let routes = "- match: POST /refunds
  action: refund.create
  key: request.body.id
  fingerprint: request.body.id
  recovery: person
  approve: request.headers['x-tier'] == 'gold' || request.body.amount > 100";
    let gateway = Gateway::with_routes(routes).await;
    let send = async |tier: &str, amount: u64| {
        let body = json!({ "id": "r", "amount": amount });
        gateway.post_with("/refunds", &[("x-tier", tier)], &body).await
    };
    gateway.crm.script([Do::SayWith(503, "retry-after", "0"), Do::Act]);
    send("plain", 1).await;
    // The first may or may not have happened. Neither of these may take its place unasked.
    send("gold", 1).await.refused(422, "TS0010");
    send("plain", 5000).await.refused(422, "TS0010");
    assert_eq!(gateway.crm.effects().len(), 0);
}

#[tokio::test]
async fn s4_queries_and_bodies_that_say_something_else_are_not_the_same() {
    let gateway = Gateway::with_routes(PLAIN).await;
    let form = "application/x-www-form-urlencoded";
    assert!(
        !gateway
            .are_same("a", ("?amount=1&amount=100", form, "x=1"), ("?amount=100&amount=1", form, "x=1"))
            .await
    );
    assert!(gateway.are_same("b", ("?b=1&amount=100", form, "x=1"), ("?amount=100&b=1", form, "x=1")).await);
    let part = |boundary: &str, amount: &str| {
        let of_type = format!("multipart/form-data; boundary={boundary}");
        let head = "content-disposition: form-data; name=\"amount\"";
        (of_type, format!("--{boundary}\r\n{head}\r\n\r\n{amount}\r\n--{boundary}--\r\n"))
    };
    for (key, left, right, same) in [
        ("c", part("x", "1"), part("000", "1000"), false),
        ("d", part("0", "1"), part("0", "1000"), false),
        ("e", part("one", "7"), part("two", "7"), true),
    ] {
        let found = gateway.are_same(key, ("", &left.0, &left.1), ("", &right.0, &right.1)).await;
        assert_eq!(found, same, "{key}");
    }
    let text = |charset: &str| format!("text/plain; charset={charset}");
    let (one, other) = (text("utf-8"), text("utf-7"));
    assert!(!gateway.are_same("f", ("", &one, "+ADE-"), ("", &other, "+ADE-")).await);
    let json = format!("{JSON}; charset=UTF-8");
    assert!(gateway.are_same("g", ("", JSON, "{\"a\":1}"), ("", &json, "{ \"a\":1 }")).await);
}

#[tokio::test]
async fn s3_callers_with_credentials_of_their_own_are_told_apart_by_the_account() {
    let routes = format!("{PLAIN}\n  account: request.headers['x-user-id']");
    let gateway = Gateway::with("", &routes, "").await;
    let send = async |user: &str, secret: &str, path: &str| {
        let headers =
            [("x-order", "o"), ("content-type", JSON), ("x-user-id", user), ("authorization", secret)];
        gateway.write(path, &headers, "{}").await
    };
    assert_eq!(send("ann", "Bearer 1", "/contacts").await.json["id"], "c_1");
    for (secret, path) in [("Bearer 2", "/contacts"), ("Bearer 2", "/contacts?access_token=3")] {
        let heard = send("ann", secret, path).await;
        assert_eq!((&heard.json["id"], &*heard.headers["idempotent-replayed"]), (&json!("c_1"), "true"));
    }
    assert_eq!(send("bob", "Bearer 1", "/contacts").await.json["id"], "c_2");
    gateway.crm.check_effects(2);
    for (account, said) in [
        ("request.headers.authorization", "is a credential by its name"),
        ("request.query.api_key", "keep: [api_key]"),
    ] {
        let routes = format!("{PLAIN}\n  account: {account}");
        let yaml = configuration(&gateway.crm, "auth: none", &routes, "");
        let all = check(&config::parse(&format!("listen: 127.0.0.1:0\n{yaml}")).unwrap(), None).await;
        assert!(all.iter().any(|one| one.is_error && one.words.contains(said)), "{account}: {all:#?}");
    }
}

#[tokio::test]
async fn s3_callers_who_share_answers_without_an_account_are_warned_of() {
    let gateway = Gateway::with("", PLAIN, "").await;
    let warned = async |destination: &str, routes: &str| {
        let yaml = configuration(&gateway.crm, destination, routes, "");
        let configuration = crate::world::configuration(&yaml);
        let all = check(&configuration, Some(&gateway.world.ledger)).await;
        all.iter().any(|one| {
            one.about.ends_with("contact.create.account") && one.words.contains("token:ann, token:bob")
        })
    };
    gateway.world.token("ann", &[Right::Act]).await;
    gateway.world.token_for("carl", &[Right::Act], Some("acme"), &[], None).await;
    gateway.world.token_for("dan", &[Right::Act], None, &["elsewhere/"], None).await;
    gateway.world.token("eve", &[Right::Review]).await;
    assert!(!warned("", PLAIN).await);
    gateway.world.token("bob", &[Right::Act]).await;
    assert!(warned("", PLAIN).await);
    assert!(!warned("auth: none", PLAIN).await);
    assert!(!warned("", &format!("{PLAIN}\n  account: request.headers['x-user-id']")).await);
}

#[tokio::test]
async fn s45_a_credential_in_a_query_is_sent_and_nothing_else() {
    let (crm, observed) = (Destination::new().await, Destination::new().await);
    let more = format!(
        "  watched:\n    base: {}\n    auth: none\n    mode: observe\ninboxes:\n  jobs:\n    provider: {{ id: event.body.id }}\n    deliver: {}/jobs\n",
        observed.base(),
        crm.base()
    );
    let routes = format!(
        "{PLAIN}\n- match: POST /refunds\n  action: refund.create\n  key: request.headers['x-order']\n  approve: true\n  keep: code"
    );
    let (world, folder) = World::in_folder("query", &configuration(&crm, "auth: none", &routes, &more)).await;
    let send = async |path: &str, key: &str| {
        let headers = [("x-order", key), ("idempotency-key", key), ("content-type", JSON)];
        world.send("POST", path, &headers, b"{\"id\":\"a\"}").await
    };
    let names =
        ["api_key", "access_token", "token", "client_secret", "sig", "signature", "key", "X-Amz-Signature"];
    for name in names {
        let path = |secret: &str| format!("/to/crm/contacts?b=2&{name}=s3cret{secret}&a=1");
        assert_eq!(send(&path("1"), name).await.status, 201);
        let rotated = send(&path("2"), name).await;
        assert_eq!(rotated.headers["idempotent-replayed"], "true", "{name} {rotated:?}");
        let sent = crm.effects().pop().unwrap().line;
        assert_eq!(sent, format!("POST /contacts?b=2&{name}=s3cret1&a=1 HTTP/1.1"));
    }
    send("/to/crm/contacts?b=3&token=s3cret1&a=1", "token").await.refused(422, "TS0010");
    crm.check_effects(names.len());
    assert_eq!(send("/to/watched/x?api_key=s3cret", "k").await.status, 201);
    assert!(observed.effects()[0].line.contains("api_key=s3cret"));
    // A person decides on what is kept: what cannot be kept is not asked about, unless it is no secret.
    let refused = send("/to/crm/refunds?sig=s3cret", "r-1").await;
    refused.refused(400, "TS0094");
    assert!(refused.text.contains("sig") && !refused.text.contains("s3cret"), "{refused:?}");
    send("/to/crm/refunds?code=SALE", "r-2").await.refused(423, "TS0017");
    let in_event =
        world.send("POST", "/in/jobs?token=s3cret&x=1", &[("content-type", JSON)], b"{\"id\":\"e\"}").await;
    assert_eq!(in_event.status, 200, "{in_event:?}");
    world.stop().await;
    for file in std::fs::read_dir(&folder).unwrap() {
        let bytes = std::fs::read(file.unwrap().path()).unwrap();
        assert!(!bytes.windows(6).any(|six| six == b"s3cret"), "a credential was stored");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
