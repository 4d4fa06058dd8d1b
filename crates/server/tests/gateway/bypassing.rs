//! Ways around a route: other spellings of its path, other methods, headers that make another request of one, and writes that
//! match no route. The destination is as permissive as servers are known to be (S46).

use twicesafe_server::Right;

use super::destination::Effect;
use super::*;

const REFUND: &str = "- match: POST /refunds
  action: refund.create
  key: request.body.id
  approve: true
- match: POST /notes/{id}
  action: note.create
  key: request.body.id
- { match: POST /search, read: true }";

/// Whether a permissive destination takes a request for a refund: it decodes twice, does not care for letter case, blanks, dots
/// and slashes, and lets headers and parameters name the method and the address.
fn is_refund(effect: &Effect) -> bool {
    let mut words = effect.line.split(' ');
    let (method, address) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let overriding = |name: &str| effect.header(name).map(str::to_owned);
    let (path, query) = address.split_once('?').unwrap_or((address, ""));
    let form = String::from_utf8_lossy(&effect.raw).into_owned();
    let parameter = [query, &form]
        .into_iter()
        .flat_map(|text| text.split('&'))
        .find_map(|pair| pair.strip_prefix("_method="));
    let method = overriding("x-http-method-override")
        .or(overriding("x-http-method"))
        .or(overriding("x-method-override"))
        .or(parameter.map(str::to_owned))
        .or(effect.body["_method"].as_str().map(str::to_owned))
        .unwrap_or(method.to_owned());
    let path = overriding("x-original-url").or(overriding("x-rewrite-url")).unwrap_or(path.to_owned());
    let path = decoded(&decoded(&path)).to_ascii_lowercase().replace('\\', "/");
    let path = path.split(['?', '#', '\0']).next().unwrap_or_default();
    let trimmed = |step: &str| {
        step.split(';').next().unwrap_or_default().trim().trim_end_matches('.').trim().to_owned()
    };
    let steps: Vec<String> = path.split('/').map(trimmed).filter(|step| !step.is_empty()).collect();
    method.eq_ignore_ascii_case("post") && steps == ["refunds"]
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let hex = (*first == b'%').then(|| after.get(..2)).flatten();
        let hex = hex.and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
        bytes.push(hex.unwrap_or(*first));
        rest = if hex.is_some() { &after[2..] } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn refund() -> Value {
    json!({ "id": "r1", "amount": 500 })
}

impl Gateway {
    #[track_caller]
    fn check_no_refund(&self, after: &str) {
        let refunds: Vec<_> = self.crm.requests().into_iter().filter(is_refund).collect();
        assert!(refunds.is_empty(), "{after}: {refunds:#?}");
    }
}

#[tokio::test]
async fn s46_another_spelling_of_a_path_is_never_another_path() {
    // Also where writes without a route are let in.
    for unmatched in ["auth: none", "auth: none\nunmatched: guard"] {
        let gateway = Gateway::with(unmatched, REFUND, "").await;
        let keyed = [("idempotency-key", "k-1")];
        for path in [
            "/Refunds",
            "/REFUNDS",
            "/refunds%20",
            "/refunds%00",
            "/%20refunds",
            "/refunds+",
            "/refunds%09",
            "/refunds.",
            "/refunds%2e",
            "/refunds%2E%20",
            "//refunds",
            "/./refunds",
            "/x/../refunds",
            "/x/%2e%2e/refunds",
            "/x%2f..%2frefunds",
            "/%2frefunds",
            "/refunds%2f",
            "/refunds;x=1",
            "/refunds%3bx=1",
            "/refunds%3fx=1",
            "/%2572efunds",
            "/refund%2573",
            "/refunds%2500",
            "/refunds%5c",
            "/\\refunds",
            "/refund%C5%BF",
            "/notes/%2e%2e%2frefunds",
        ] {
            let heard = gateway.post_with(path, &keyed, &refund()).await;
            assert_eq!(heard.status, 400, "{unmatched} {path}: {heard:?}");
            gateway.check_no_refund(path);
        }
        for path in ["/refunds", "/refunds/", "/%72efunds"] {
            gateway.post(path, &json!({ "id": path })).await.refused(423, "TS0017");
        }
        let heard = gateway.post_with("/Refunds", &keyed, &refund()).await;
        let heard = heard.refused(400, "TS0100");
        assert!(heard.json["message"].as_str().unwrap().contains("POST /refunds"), "{heard:?}");
        gateway.check_no_refund("all of them");
        gateway.crm.check_effects(0);
    }
}

#[tokio::test]
async fn s46_what_is_guarded_has_no_other_spelling_where_the_rest_is_observed() {
    let routes = REFUND.replace("  approve: true", "  approve: true\n  mode: guard");
    let gateway = Gateway::with("auth: none\nmode: observe", &routes, "").await;
    gateway.post("/Refunds", &refund()).await.refused(400, "TS0100");
    gateway.check_no_refund("/Refunds");
    assert_eq!(gateway.post("/Notes/1", &refund()).await.status, 201, "what is observed passes");
    let any = "- { match: ANY /sendMessage, action: message.send, key: request.body.id }";
    let gateway = Gateway::with("auth: none\nunmatched: guard", any, "").await;
    gateway.world.get("/to/crm/sendmessage").await.refused(400, "TS0100");
    assert!(gateway.crm.requests().is_empty(), "a read by its method may be none");
}

#[tokio::test]
async fn s46_an_ordinary_id_is_no_other_spelling() {
    let gateway = Gateway::with("auth: none\nunmatched: guard", REFUND, "").await;
    for (number, path) in [
        "/notes/Search",
        "/notes/REFUNDS",
        "/notes/a%20b",
        "/notes/a.b.",
        "/notes/group%2Fproject",
        "/notes/7;",
    ]
    .into_iter()
    .enumerate()
    {
        let heard = gateway.post(path, &json!({ "id": number.to_string() })).await;
        let expected = if path.contains(';') { 400 } else { 201 };
        assert_eq!(heard.status, expected, "{path}: {heard:?}");
    }
    gateway.crm.check_effects(5);
    let strict = Gateway::with("auth: none", REFUND, "").await;
    assert_eq!(strict.post("/notes/Search", &json!({ "id": "1" })).await.status, 201);
    strict.post("/notes/a%2Fb", &json!({ "id": "2" })).await.refused(400, "TS0100");
    strict.crm.check_effects(1);
}

#[tokio::test]
async fn s46_a_method_is_one_of_those_that_are_known_and_nothing_makes_another_of_it() {
    let gateway = Gateway::with("auth: none\nunmatched: guard", REFUND, "").await;
    let body = refund().to_string();
    for method in ["post", "Post", "PROPFIND", "TRACE", "MKCOL", "POSTX", "LINK"] {
        let headers = [("content-type", "application/json"), ("idempotency-key", "k")];
        let heard = gateway.world.send(method, "/to/crm/refunds", &headers, body.as_bytes()).await;
        assert_eq!(heard.status, 405, "{method}: {heard:?}");
        gateway.check_no_refund(method);
    }
    for (method, path, header) in [
        ("PUT", "/refunds", ("x-http-method-override", "POST")),
        ("PUT", "/refunds", ("X-HTTP-Method", "POST")),
        ("PUT", "/refunds", ("X-Method-Override", "POST")),
        ("PUT", "/refunds", ("X_HTTP_Method_Override", "POST")),
        ("GET", "/refunds", ("X-HTTP-Method-Override", "POST")),
        ("POST", "/notes/1", ("X-Original-URL", "/refunds")),
        ("POST", "/notes/1", ("X-Rewrite-URL", "/refunds")),
        ("POST", "/notes/1", ("X_Rewrite_Url", "/refunds")),
    ] {
        let headers = [("content-type", "application/json"), ("idempotency-key", "k"), header];
        let heard = gateway.world.send(method, &format!("/to/crm{path}"), &headers, body.as_bytes()).await;
        heard.refused(400, "TS0100");
        gateway.check_no_refund(header.0);
    }
    let form = "application/x-www-form-urlencoded";
    for (path, of_type, body) in [
        ("/refunds?_method=POST", "application/json", "{}"),
        ("/refunds?%5Fmethod=POST", "application/json", "{}"),
        ("/refunds", form, "_method=POST&amount=5"),
        ("/refunds", form, "%5fmethod=POST"),
        ("/refunds", "application/json", r#"{"_method": "POST"}"#),
        ("/refunds", "application/json", r#"{"\u005fmethod": "POST"}"#),
        (
            "/refunds",
            "multipart/form-data; boundary=b",
            "--b\r\ncontent-disposition: form-data; name=\"_method\"\r\n\r\nPOST\r\n--b--",
        ),
        (
            "/refunds",
            "multipart/mixed; boundary=b",
            "--b\r\ncontent-disposition: form-data; name=\"_\\method\"\r\n\r\nPOST\r\n--b--",
        ),
        ("/refunds", "", "_method=POST&amount=5"),
        ("/refunds", "application/json\r\ncontent-type: application/x-www-form-urlencoded", "{}"),
    ] {
        let headers = [("content-type", of_type), ("idempotency-key", "k")];
        let headers = if of_type.is_empty() { &headers[1..] } else { &headers[..] };
        let heard = gateway.world.send("PUT", &format!("/to/crm{path}"), headers, body.as_bytes()).await;
        heard.refused(400, "TS0100");
        gateway.check_no_refund(body);
    }
    // Two spellings of a field that decides.
    for (of_type, body) in [
        ("application/json", r#"{"id": 1, "amount": 1, "Amount": 5000}"#),
        (form, "id=1&amount=1&+amount=5000"),
    ] {
        let headers = [("content-type", of_type), ("idempotency-key", "alike")];
        let heard = gateway.world.send("POST", "/to/crm/refunds", &headers, body.as_bytes()).await;
        heard.refused(400, "TS0070");
    }
    // Looking for names takes no longer than reading.
    let many = format!("{}name=\"_method\"", "name=".repeat(400_000));
    let headers = [("content-type", "multipart/form-data; boundary=b"), ("idempotency-key", "many")];
    let begun = std::time::Instant::now();
    gateway.world.send("PUT", "/to/crm/refunds", &headers, many.as_bytes()).await.refused(400, "TS0100");
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    for path in ["/notes/1?a=%00", "/notes/%00"] {
        assert_eq!(gateway.post(path, &refund()).await.status, 400, "{path}");
    }
    gateway.crm.check_effects(0);
    // What proxies add by themselves is not passed on.
    let added = [("x-forwarded-uri", "/refunds"), ("x-forwarded-prefix", "/refunds"), ("x-shop", "1")];
    assert_eq!(gateway.post_with("/notes/1", &added, &refund()).await.status, 201);
    let sent = &gateway.crm.effects()[0];
    let passed: Vec<_> = added.iter().filter_map(|(name, _)| sent.header(name)).collect();
    assert_eq!(passed, ["1"]);
    // The server's own API does not know them either.
    let heard = gateway.world.send("post", "/v1/claim", &[("content-type", "application/json")], b"{}").await;
    assert!(matches!(heard.status, 404 | 405), "{heard:?}");
}

#[tokio::test]
async fn s46_writes_without_a_route_are_refused_where_a_route_asks_or_moves_money() {
    let plain = "- { match: POST /notes, action: note.create, key: request.body.id";
    let keyed = [("idempotency-key", "k")];
    for (destination, routes, is_refused) in [
        ("auth: none", format!("{plain} }}"), false),
        ("auth: none", format!("{plain}, approve: 'request.body.amount > 100' }}"), true),
        ("auth: none", format!("{plain}, caps: [ {{ count: 5 }} ] }}"), true),
        ("auth: none", format!("{plain}, moves_money: true }}"), true),
        ("auth: none\nunmatched: guard", format!("{plain}, approve: true }}"), false),
        ("auth: none\nunmatched: refuse", format!("{plain} }}"), true),
        ("auth: none\nmode: observe", format!("{plain}, moves_money: true }}"), false),
    ] {
        let gateway = Gateway::with(&format!("{destination}\nreads: by-method"), &routes, "").await;
        let heard = gateway.post_with("/refunds", &keyed, &refund()).await;
        match is_refused {
            true => {
                let heard = heard.refused(403, "TS0099");
                let hint = heard.json["hint"].as_str().unwrap();
                assert!(hint.contains("match: POST /refunds") && hint.contains("unmatched: guard"), "{hint}");
            }
            false => assert_eq!(heard.status, 201, "{destination} {routes}: {heard:?}"),
        }
        gateway.crm.check_effects(usize::from(!is_refused));
        assert_eq!(gateway.world.get("/to/crm/whatever").await.status, 200, "reads pass");
    }
    // Where a person is asked about everything, they are asked about this.
    let gateway = Gateway::with("auth: none\napprove: true", &format!("{plain} }}"), "").await;
    gateway.post_with("/refunds", &keyed, &refund()).await.refused(423, "TS0017");
}

#[tokio::test]
async fn s46_a_destination_is_not_there_for_tenants_that_it_does_not_serve() {
    let routes =
        format!("{REFUND}\n- match: POST /contacts\n  action: contact.create\n  key: request.body.id");
    for (tenants, ours, theirs) in [
        ("", 201, 404),
        ("\ntenants: [default]", 201, 404),
        ("\ntenants: [acme]", 404, 201),
        ("\ntenants: [default, acme]", 201, 201),
        ("\ntenants: ['*']", 201, 201),
    ] {
        let gateway = Gateway::with(&format!("auth: {{ bearer: ours }}{tenants}"), &routes, "").await;
        let own = gateway.world.token("own", &[Right::Act]).await;
        let other = gateway.world.token_for("other", &[Right::Act], Some("acme"), &[], None).await;
        for (token, expected) in [(&own, ours), (&other, theirs)] {
            let heard = gateway.world.post_as(token, "/to/crm/contacts", &contact("a")).await;
            assert_eq!(heard.status, expected, "{tenants}: {heard:?}");
            let read = [("twicesafe-token", token.as_str())];
            let read = gateway.world.send("GET", "/to/crm/contacts", &read, b"").await;
            assert_eq!(read.status == 404, expected == 404, "{tenants}: {read:?}");
            let nowhere = gateway.world.post_as(token, "/to/nowhere/contacts", &contact("a")).await;
            nowhere.refused(404, "TS0090");
            if expected == 404 {
                assert_eq!(heard.json, nowhere.json, "it says nothing else than for one that is not there");
                let spelled = gateway.world.post_as(token, "/to/crm/Refunds", &refund()).await;
                assert_eq!(spelled.json, nowhere.json);
            }
        }
        let served = [ours, theirs].iter().filter(|status| **status == 201).count();
        gateway.crm.check_effects(served);
    }
}

#[tokio::test]
async fn s46_nothing_is_sent_or_asked_by_itself_for_a_tenant_that_is_not_served() {
    let routes = "- match: POST /contacts
  action: contact.create
  key: request.body.id
  recovery: { lookup: { get: '/contacts?external_id={{ key }}', found: 'size(answer.body.items) > 0' } }";
    let gateway = Gateway::with("auth: { bearer: ours }", routes, "").await;
    let _own = gateway.world.token("own", &[Right::Act]).await;
    let other = gateway.world.token_for("other", &[Right::Act], Some("acme"), &[], None).await;
    // By the API a tenant may claim what it likes in its own scopes: the server must not ask the destination about it.
    let claim = json!({
        "scope": "acme/crm/contact.create", "key": "a", "recovery": "lookup", "lease_ms": 1000, "lookup_lag_ms": 1,
        "in_flight_max_ms": 1,
    });
    let heard = gateway.world.post_as(&other, "/v1/claim", &claim).await;
    assert_eq!(heard.status, 201, "{heard:?}");
    for _ in 0..20 {
        gateway.pass(Duration::from_secs(5)).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(gateway.crm.requests().is_empty(), "{:?}", gateway.crm.requests());
}
