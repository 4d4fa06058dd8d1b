//! What an operator writes, and what is said about it.

use super::*;
use twicesafe_server::config::destinations::{RecoveryRules, Route};

#[tokio::test]
async fn s3_a_restart_says_what_it_orphans() {
    let crm = Destination::new().await;
    let inbox = format!("inboxes:\n  jobs:\n    id: event.body.id\n    deliver: {}/jobs\n", crm.base());
    let world = World::configured(&configuration(&crm, "auth: none", PERSON, &inbox)).await;
    assert_eq!(world.post("/to/crm/contacts", &contact("a")).await.status, 201);
    assert_eq!(world.post("/in/jobs", &contact("b")).await.status, 200);
    let ledger = world.ledger.clone();
    world.stop().await;
    let orphaned = async |routes: &str, more: &str| {
        let yaml = configuration(&crm, "auth: none", routes, more);
        let configuration = crate::world::configuration(&yaml);
        let server = twicesafe_server::Server::start(ledger.clone(), configuration).await.unwrap();
        server.orphaned().join("\n")
    };
    assert_eq!(orphaned(PERSON, &inbox).await, "");
    let renamed = PERSON.replace("contact.create", "contact.make");
    let words = orphaned(&renamed, "").await;
    assert!(words.contains("default/crm/contact.create") && words.contains("default/in/jobs"), "{words}");
    // Not only the first time.
    let words = orphaned(&renamed, &inbox).await;
    assert!(words.contains("default/crm/contact.create") && !words.contains("default/in/jobs"), "{words}");
    let words = orphaned(PERSON, &inbox.replace("event.body.id", "event.body.name")).await;
    assert!(words.contains("default/in/jobs") && !words.contains("crm"), "{words}");
}
use twicesafe_server::config::{self, check};

async fn advice(yaml: &str) -> Vec<String> {
    let configuration = match config::parse(&format!("listen: 127.0.0.1:0\n{yaml}")) {
        Ok(configuration) => configuration,
        Err(why) => return vec![format!("error {why}")],
    };
    let word = |is_error| if is_error { "error" } else { "warning" };
    let all = check(&configuration, None).await.into_iter();
    all.map(|one| format!("{} {}: {}", word(one.is_error), one.about, one.words)).collect()
}

async fn check_says(yaml: &str, said: &str) {
    let all = advice(yaml).await;
    assert!(all.iter().any(|one| one.contains(said)), "{yaml}\n{all:#?}");
}

/// The example that the gateway was designed by.
const EXAMPLE: &str = r#"
people:
  ops: { alert: "https://hooks.slack.example/T1", rights: [approve, review] }
destinations:
  stripe: { use: stripe, auth: { bearer: "key" }, key: 'request.body.metadata.order_id' }
  crm:
    base: https://crm.example.com
    auth: { bearer: "secret" }
    owner: ops
    routes:
      - match: POST /contacts
        action: contact.create
        key: request.body.typeform_response_id
        external_id: answer.body.id
        recovery:
          lookup: { get: "/contacts?external_id={{ key }}", found: "size(answer.body.items) > 0", external_id: "answer.body.items[0].id", lag: 5s }
      - match: POST /refunds
        action: refund.create
        key: [request.body.order_id, request.body.line]
        recovery: person
        approve: request.body.amount > 100
"#;

#[tokio::test]
async fn the_example_is_right() {
    let all = advice(EXAMPLE).await;
    assert!(!all.iter().any(|one| one.starts_with("error")), "{all:#?}");
    let world = World::configured(EXAMPLE).await;
    world
        .post("/to/crm/refunds", &json!({ "order_id": 7, "line": 1, "amount": 500 }))
        .await
        .refused(423, "TS0017");
    let specs = twicesafe_server::specs(&config::parse(EXAMPLE).unwrap()).unwrap();
    let refund = specs.iter().find(|spec| spec.route == "crm/refund.create").unwrap();
    assert_eq!(refund.key_fields, "request.body.order_id, request.body.line");
    assert_eq!(refund.approval, "when request.body.amount > 100");
    assert!(refund.resume_rule.contains("a person decides") && refund.replay_window.contains("30 days"));
    assert!(
        specs
            .iter()
            .any(|spec| spec.route == "stripe/charge.create" && spec.resume_rule.contains("24 hours"))
    );
}

#[tokio::test]
async fn what_is_wrong_is_said_before_anything_runs() {
    let crm = |text: &str| format!("destinations:\n  crm:\n    base: http://127.0.0.1:1\n{text}");
    let route = |text: &str| {
        crm(&format!("    auth: none\n    routes:\n      - {{ match: POST /x, action: x.do, {text} }}"))
    };
    for (yaml, said) in [
        ("destinations: { crm: {} }".to_owned(), "error destinations.crm.base: it has no `base:`"),
        ("destinations: { crm: { use: strpe } }".to_owned(), "did you mean `stripe`?"),
        ("destinations: { 'a/b': { base: 'http://127.0.0.1:1' } }".to_owned(), "names of destinations"),
        (crm("    routes: [ { match: POST /x } ]"), "needs `action:`"),
        (crm("    routes: [ { match: /x, action: a } ]"), "is not a method and a path"),
        (crm("    routes: [ { match: POST /x, action: 'a b' } ]"), "is not a name"),
        (crm("    routs: []"), "did you mean `routes`?"),
        (crm("    auth: { bearer: '${NOBODY_SETS_THIS}' }"), "NOBODY_SETS_THIS is not set"),
        (crm("    auth: { bearer: a, basic: { user: u } }"), "exactly one of bearer"),
        (crm("    auth: sometimes"), "write none, {bearer: SECRET}"),
        (route("key: now()"), "there is no function `now`"),
        (route("key: '\"invoice\"'"), "is the same for every request"),
        (route("key: answer.body.id"), "there is no `answer`; it can use request"),
        (route("key: requst.body.id"), "there is no `requst`"),
        (route("recovery: sometimes"), "is not a recovery class"),
        (route("recovery: lookup"), "a lookup needs to know how"),
        (route("recovery: { lookup: {} }"), "either `get:` or `post:`"),
        (route("recovery: { lookup: { get: 'x' } }"), "does not begin with a slash"),
        (route("recovery: { native-key: { header: a, body: b } }"), "exactly one of header"),
        (route("recovery: { native-key: { bytes_max: 3 } }"), "fewer than 16 bytes"),
        (route("version: request.body.v"), "a version needs a `lane:`"),
        (route("lane: body.id"), "is neither a name"),
        (route("recovery: { lookup: { get: '/x?y={{ key }}' } }"), "say with `found:`"),
        (route("approve: request.body.amount > 1, ignore: request.body.amount"), "is read by `approve`"),
        (
            crm(
                "    auth: none\n    reads: by-method\n    routes: [ { match: GET /x, action: x.do, approve: true } ]",
            ),
            "reads are passed on as they are",
        ),
        (
            crm(
                "    auth: none\n    routes: [ { match: GET /x }, { match: POST /y, action: y.do, approve: true } ]",
            ),
            "reads are listed at this destination",
        ),
        (
            crm("    auth: none\n    routes: [ { match: POST /x, read: true, key: request.body.id } ]"),
            "reads are passed on as they are",
        ),
        (crm("    approve: true"), "this destination has no `auth:`"),
        (crm("    tenants: [ 'a/b' ]"), "`a/b` is not the name of a tenant"),
        (crm("    tenants: []"), "name who may use it"),
        (
            crm("    routes: [ { match: LOCK /x, action: x.lock } ]"),
            "`LOCK` is not a method that is passed on",
        ),
        (route("ignore: request.headers.date"), "cannot be left out"),
        (route("caps: [ { count: 1, max: 2 } ]"), "write {count: 100}"),
        (route("lease: 0s"), "lease must be at least 2 ms"),
        (route("owner: nobody"), "there is nobody called `nobody`"),
        (route("outcomes: { 503: maybe }"), "unknown variant `maybe`"),
        (
            crm("    auth: none\n    routes: [ { match: POST /x, action: x.create, recovery: repeat } ]"),
            "a create is never `repeat`",
        ),
        (
            crm("    routes: [ { match: POST /x, action: x.do, approve: true } ]"),
            "this destination has no `auth:`",
        ),
        (
            "people: { ann: { rights: [review], scopes: ['no good!!'] } }".to_owned(),
            "has the part `no good!!`",
        ),
        ("people: { ann: { rights: [act] } }".to_owned(), "`act` is a right of tokens"),
        (
            route("recovery: { lookup: { get: '/x?newest=1', found: 'size(answer.body.items) > 0' } }"),
            "asks the same for every intent",
        ),
        (route("recovery: { lookup: { get: '/x' } }"), "asks the same for every intent"),
        (
            route("recovery: { lookup: { post: '/search', body: { q: newest }, found: 'answer.body.ok' } }"),
            "asks the same for every intent",
        ),
        (
            crm(
                "    routes: [ { match: POST /*, action: any }, { match: POST /s, action: s, approve: true } ]",
            ),
            "error destinations.crm.routes.s.match: no request takes this route: the first that fits counts, and `POST /*`",
        ),
        (
            crm("    routes: [ { match: 'POST /s/{a}', action: a }, { match: 'POST /s/{b}', action: b } ]"),
            "no request takes this route",
        ),
        (route("fingerprint: request.body.a, ignore: request.body.b"), "nothing for `ignore` to leave out"),
        (
            crm("    fingerprint: request.body.a\n    ignore: request.body.b"),
            "error destinations.crm.ignore: `fingerprint` names all",
        ),
        (route("key: request.body.SOME_STABLE_ID"), "stands for a field that is the same"),
        (route("step: \"'s1'\""), "a name is written without quotes"),
        (route("approval: { people: [ops] }"), "how many people must say yes, as 2; who may is said by"),
        ("callbacks: [ nowhere ]".to_owned(), "`nowhere` is not an address"),
    ] {
        check_says(&yaml, said).await;
    }
}

#[tokio::test]
async fn the_checklist_names_what_is_missing() {
    let yaml = "destinations:
  crm:
    base: http://crm.example.com
    routes:
      - { match: POST /mails, action: mail.send, irreversible: true, reaches_customers: true, upsert_instead: mail.put }";
    for said in [
        "warning destinations.crm.auth: the server cannot identify itself",
        "warning destinations.crm.base: requests travel in the clear",
        "no `key:`",
        "no `approve:` and no `caps:`, though it cannot be taken back, customers see it",
        "no `owner:`",
        "no `recovery:`",
        "no `retention:`",
        "the destination has `mail.put`",
    ] {
        check_says(yaml, said).await;
    }
}

#[tokio::test]
async fn s23_a_lookup_is_about_its_intent_by_its_question_or_by_how_its_answer_is_read() {
    for lookup in [
        "get: '/x/{{ key }}'",
        "get: '/x?ref={{ request.body.ref }}', found: 'answer.body.total > 0'",
        "get: '/x', headers: { X-Ref: '{{ destination_key }}' }",
        "get: '/x?newest=50', found: 'answer.body.items.exists(item, item.ref == key)'",
        "post: '/search', body: { filter: [ { value: '{{ key }}' } ] }, found: 'answer.body.total > 0'",
    ] {
        let yaml = format!(
            "destinations:\n  crm:\n    base: http://127.0.0.1:1\n    auth: none\n    routes:\n      - {{ match: POST /x, action: x.do, \
             recovery: {{ lookup: {{ {lookup} }} }} }}"
        );
        let all = advice(&yaml).await;
        assert!(!all.iter().any(|one| one.starts_with("error")), "{lookup}: {all:#?}");
    }
}

#[tokio::test]
async fn what_differs_each_time_is_no_key_and_what_nobody_can_use_is_said() {
    let route = |text: &str| {
        format!(
            "destinations:\n  crm:\n    base: http://127.0.0.1:1\n    auth: none\n    routes:\n      - {{ match: POST /x, action: x.do, {text} }}"
        )
    };
    for key in [
        "request.headers.date",
        "\"request.headers['X-Request-Id']\"",
        "request.body.execution_id",
        "request.body.meta.requestId",
        "[ request.body.order, request.body.timestamp ]",
    ] {
        let said = "warning destinations.crm.routes.x.do.key: ";
        check_says(&route(&format!("key: {key}")), said).await;
    }
    for key in ["request.body.date", "request.body.request_ids.order", "request.body.order_id"] {
        let all = advice(&route(&format!("key: {key}"))).await;
        assert!(!all.iter().any(|one| one.contains("x.do.key")), "{key}: {all:#?}");
    }
    check_says(
        &route("on_hold: callback"),
        "warning destinations.crm.routes.x.do.on_hold: there are no `callbacks:`",
    )
    .await;
    let wide = "destinations: { pay: { use: stripe, auth: none, routes: [ { match: POST /*, action: pay.any, key: request.body.id } ] } }";
    check_says(
        wide,
        "warning destinations.pay.routes.pay.any.match: it takes what the catalog has routes for",
    )
    .await;
    let open = config::parse("listen: 0.0.0.0:0").unwrap();
    let all = check(&open, None).await;
    assert!(all.iter().any(|one| one.about == "listen" && one.words.contains("TS0081")), "{all:#?}");
}

#[tokio::test]
async fn every_entry_of_the_catalog_is_right() {
    for (name, entry) in twicesafe_server::catalog::entries() {
        let base = if entry.destination.base.is_some() { "" } else { "base: https://a.example.com, " };
        let yaml = format!("destinations:\n  it: {{ use: {name}, {base}auth: none }}\n");
        let all = advice(&yaml).await;
        let is_wrong =
            |one: &String| one.starts_with("error") || one.contains("it takes what the catalog has");
        assert!(!all.iter().any(is_wrong), "{name}: {all:#?}");
        assert!(!entry.facts.is_empty() && !entry.destination.routes.is_empty(), "{name}");
    }
}

#[test]
fn every_lookup_of_the_catalog_says_what_it_can_see() {
    use twicesafe_server::catalog::{NotFound, entries};
    for (name, entry) in entries() {
        assert!(entry.destination.reads.is_some(), "{name} says which requests only read");
        for route in &entry.destination.routes {
            let Some(RecoveryRules::Lookup(lookup) | RecoveryRules::NativeKey(_, Some(lookup))) =
                &route.recovery
            else {
                continue;
            };
            let mut about =
                entry.lookups.iter().filter(|question| question.action == route.action).peekable();
            assert!(
                about.peek().is_some(),
                "{name}: nothing says what the lookup of {:?} can see",
                route.action
            );
            let never = about.any(|question| question.not_found == NotFound::Never);
            assert!(!never || lookup.conclusive.as_deref() == Some("false"), "{name}: {:?}", route.action);
        }
        for question in &entry.lookups {
            let asks = |route: &Route| route.action == question.action && route.recovery.is_some();
            let is_used = question.action.is_none() || entry.destination.routes.iter().any(asks);
            assert!(is_used && !question.misses.is_empty(), "{name}: {}", question.asks);
            // What no route uses was not tried.
            assert!(
                question.action.is_some() || question.not_found == NotFound::Never,
                "{name}: {}",
                question.asks
            );
        }
    }
}

#[tokio::test]
async fn s3_a_reload_that_would_orphan_keys_is_refused() {
    let gateway = Gateway::with_routes(PERSON).await;
    let changed =
        |routes: &str| crate::world::configuration(&configuration(&gateway.crm, "auth: none", routes, ""));
    let renamed = PERSON.replace("contact.create", "contact.make");
    gateway.world.control.reload(changed(&renamed)).await.unwrap();
    gateway.world.control.reload(changed(PERSON)).await.unwrap();
    gateway.post("/contacts", &contact("a")).await;
    let refused = gateway.world.control.reload(changed(&renamed)).await.unwrap_err();
    assert!(refused.to_string().contains("default/crm/contact.create"), "{refused}");
    let live = PERSON.replace("recovery", "account: live\n  recovery");
    assert!(gateway.world.control.reload(changed(&live)).await.is_err(), "another account is another key");
    let other_key = PERSON.replace("key: request.body.id", "key: request.body.name");
    assert!(gateway.world.control.reload(changed(&other_key)).await.is_err(), "so is another field");
    gateway.post_with("/deals", &[("idempotency-key", "d")], &json!({})).await;
    let routed = format!("{PERSON}\n- {{ match: POST /deals, action: deal.create, key: request.body.id }}");
    let refused = gateway.world.control.reload(changed(&routed)).await.unwrap_err();
    assert!(refused.to_string().contains("post.deals"), "{refused}");
    gateway.post_with("/deals/881/notes", &[("idempotency-key", "n")], &json!({})).await;
    let notes = "- { match: 'POST /deals/{id}/notes', action: note.create, key: request.body.id }";
    let refused = gateway.world.control.reload(changed(&format!("{PERSON}\n{notes}"))).await.unwrap_err();
    assert!(refused.to_string().contains("post.deals.881.notes"), "{refused}");
    let tags = notes.replace("notes", "tags");
    gateway.world.control.reload(changed(&format!("{PERSON}\n{tags}"))).await.unwrap();
    gateway.world.control.reload(changed(&PERSON.replace("300ms", "5s"))).await.unwrap();
    assert_eq!(gateway.post("/contacts", &contact("a")).await.headers["idempotent-replayed"], "true");
    gateway.crm.check_effects(3);
}

#[tokio::test]
async fn s46_the_checklist_says_what_goes_past_the_routes() {
    let pay = |more: &str| format!("destinations: {{ pay: {{ use: stripe, auth: none{more} }} }}");
    let said = "warning destinations.pay.unmatched: writes that match no route go past";
    check_says(&pay(", unmatched: guard"), said).await;
    assert!(!advice(&pay("")).await.iter().any(|one| one.starts_with(said)));
    let inbox = "destinations: { crm: { base: http://127.0.0.1:1, auth: none, tenants: [ acme ] } }
inboxes: { shop: { provider: github, secrets: [ a-secret-of-some-length ], deliver: { to: crm/contacts } } }";
    check_says(inbox, "the destination `crm` does not serve the tenant `default`").await;
}
