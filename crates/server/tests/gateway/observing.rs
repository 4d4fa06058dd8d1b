//! Watching before guarding: everything is passed on, and what would have been prevented is on record.

use super::*;

#[tokio::test]
async fn what_is_observed_is_passed_on_and_recorded() {
    let routes = "- match: POST /contacts
  action: contact.create
  key: request.body.id
  timeout: 300ms";
    let gateway = Gateway::with("mode: observe", routes, "").await;
    for expected in ["c_1", "c_2"] {
        let heard = gateway.post("/contacts", &contact("a")).await;
        assert_eq!((heard.status, heard.json["id"].as_str()), (201, Some(expected)), "{heard:?}");
    }
    gateway.post("/contacts", &json!({ "id": "a", "name": "Eve" })).await;
    gateway.post("/contacts", &json!({ "name": "nobody" })).await;
    gateway.post("/deals", &json!({ "x": 1 })).await;
    gateway.post("/deals", &json!({ "x": 1 })).await;
    gateway.crm.script([Do::Say(500, json!({ "raw": true }))]);
    let raw = gateway.post("/contacts", &contact("e")).await;
    assert_eq!((raw.status, &raw.json), (500, &json!({ "raw": true })), "nothing is changed");
    gateway.crm.check_effects(6);
    let count = async |action: &str, what: &str| {
        let path = format!("/v1/intents?scope=default/observe/crm/{action}/{what}");
        gateway.world.get(&path).await.json["intents"].as_array().map(Vec::len)
    };
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(count("contact.create", "prevented").await, Some(1));
    assert_eq!(
        count("contact.create", "refused").await,
        Some(2),
        "another request under one key, and no key"
    );
    assert_eq!(count("post.deals", "prevented").await, Some(1), "without a key by what is asked for");
    assert_eq!(count("post.deals", "refused").await, Some(2));
    assert_eq!(count("contact.create", "seen").await, Some(3));
}

#[tokio::test]
async fn what_nobody_would_have_known_of_would_not_have_been_sent_again() {
    let routes = "- match: POST /contacts
  action: contact.create
  key: request.body.id
  approve: request.body.amount > 100
  timeout: 300ms
- match: PUT /contacts
  action: contact.put
  key: request.body.id
  recovery: repeat
  timeout: 300ms";
    let gateway = Gateway::with("mode: observe\nauth: none", routes, "").await;
    for method in ["POST", "PUT"] {
        for _ in 0..3 {
            gateway.crm.script([Do::ActAndSay(500, json!({}))]);
            let body = json!({ "id": "a", "amount": 500 }).to_string();
            let json = [("content-type", "application/json")];
            let heard = gateway.world.send(method, "/to/crm/contacts", &json, body.as_bytes()).await;
            assert_eq!(heard.status, 500);
            // What may be repeated is, after a while.
            gateway.pass(Duration::from_secs(600)).await;
        }
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    let observed = twicesafe_server::observed(&gateway.world.ledger, "default", None).await.unwrap();
    let of = |action: &str| observed.iter().find(|one| one.action == action).unwrap();
    let created = of("contact.create");
    assert_eq!(created.prevented.values().sum::<usize>(), 2, "{created:?}");
    assert!(created.prevented.contains_key("nobody knew whether it had happened"));
    assert_eq!(created.refused["a person would have been asked first"], 3);
    assert_eq!(of("contact.put").prevented.len(), 0);
    let review = gateway.world.get("/v1/intents?status=review").await;
    assert_eq!(review.json["intents"], json!([]), "nobody is asked about what is only watched");
}
