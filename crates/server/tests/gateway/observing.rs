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
