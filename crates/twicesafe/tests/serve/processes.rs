//! Servers that share a ledger, are killed, reloaded and stopped.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::world::{Serving, file};
use crate::operators::world::World;

fn claim(key: &str, wait_ms: u64) -> Value {
    json!({ "scope": "billing/invoice.send", "key": key, "command_id": "mine", "wait_ms": wait_ms })
}

fn settle(claimed: &Value) -> Value {
    json!({
        "intent": claimed["intent"], "fence": claimed["permit"]["fence"],
        "secret": claimed["permit"]["secret"], "generation": claimed["generation"],
        "outcome": "answered", "answer": { "invoice": "INV-1" },
    })
}

#[test]
fn s12_callers_of_a_killed_server_carry_on_at_another() {
    let world = World::postgres();
    let (first, second) = (Serving::start(&world, &[]), Serving::start(&world, &[]));
    let (status, claimed) = first.post("/v1/claim", &claim("1", 0)).unwrap();
    assert_eq!(status, 201);
    // Somebody waits at the other server for what was claimed at the first one.
    let second = Arc::new(second);
    let waiting = {
        let second = second.clone();
        let mut other = claim("1", 30_000);
        other["command_id"] = json!("somebody else's");
        std::thread::spawn(move || second.post("/v1/claim", &other).unwrap())
    };
    std::thread::sleep(Duration::from_millis(300));
    first.signal("KILL");
    std::thread::sleep(Duration::from_millis(100));
    assert!(first.post("/v1/claim", &claim("1", 0)).is_err());
    // The caller does not know whether its claim arrived: the same command again, at the other server, is the same permit.
    let (status, again) = second.post("/v1/claim", &claim("1", 0)).unwrap();
    assert_eq!((status, &again["permit"]["fence"]), (201, &claimed["permit"]["fence"]));
    let (status, settled) = second.post("/v1/settle", &settle(&again)).unwrap();
    assert_eq!((status, &settled["status"]), (200, &json!("done")));
    let (status, waited) = waiting.join().unwrap();
    assert_eq!((status, &waited["answer"]["body"]["invoice"]), (200, &json!("INV-1")));
}

#[test]
fn s8_who_waits_at_one_server_hears_of_an_answer_at_another() {
    let world = World::postgres();
    let (first, second) = (Serving::start(&world, &[]), Arc::new(Serving::start(&world, &[])));
    let (_, claimed) = first.post("/v1/claim", &claim("1", 0)).unwrap();
    let waiting = {
        let second = second.clone();
        let mut other = claim("1", 30_000);
        other["command_id"] = json!("another");
        std::thread::spawn(move || second.post("/v1/claim", &other).unwrap())
    };
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(first.post("/v1/settle", &settle(&claimed)).unwrap().0, 200);
    let (status, waited) = waiting.join().unwrap();
    assert_eq!((status, &waited["verdict"]), (200, &json!("replay")));
}

#[test]
fn s30_an_approval_given_at_two_servers_at_once_is_given_once() {
    let world = World::postgres();
    let servers = [Serving::start(&world, &[]), Serving::start(&world, &[])].map(Arc::new);
    let held = json!({ "scope": "a/b", "key": "1", "input": 1, "approval": { "requester_may_approve": true }, "wait_ms": 0 });
    assert_eq!(servers[0].post("/v1/claim", &held).unwrap().0, 423);
    let about = json!({ "scope": "a/b", "key": "1", "generation": 1 });
    let pressing: Vec<_> = (0..16)
        .map(|number| {
            let (server, about) = (servers[number % 2].clone(), about.clone());
            std::thread::spawn(move || server.post("/v1/approve", &about).unwrap())
        })
        .collect();
    let told: Vec<_> = pressing.into_iter().map(|thread| thread.join().unwrap()).collect();
    assert!(told.iter().all(|(status, _)| *status == 200), "{told:?}");
    assert_eq!(told.iter().filter(|(_, noted)| noted["changed"] == true).count(), 1, "{told:?}");
    // Sixteen callers at two servers afterwards: one acts.
    let claiming: Vec<_> = (0..16)
        .map(|number| {
            let (server, held) = (servers[number % 2].clone(), held.clone());
            std::thread::spawn(move || server.post("/v1/claim", &held).unwrap().0)
        })
        .collect();
    let statuses: Vec<_> = claiming.into_iter().map(|thread| thread.join().unwrap()).collect();
    assert_eq!(statuses.iter().filter(|status| **status == 201).count(), 1, "{statuses:?}");
}

#[test]
fn s42_what_a_killed_server_acknowledged_is_there() {
    let world = World::sqlite();
    for round in 0..3 {
        let server = Serving::start(&world, &[]);
        let (_, claimed) = server.post("/v1/claim", &claim(&format!("r{round}"), 0)).unwrap();
        assert_eq!(server.post("/v1/settle", &settle(&claimed)).unwrap().0, 200);
        assert_eq!(server.post("/v1/claim", &claim(&format!("open{round}"), 0)).unwrap().0, 201);
        server.signal("KILL");
    }
    let server = Serving::start(&world, &[]);
    for round in 0..3 {
        let (status, answer) = server.post("/v1/claim", &claim(&format!("r{round}"), 0)).unwrap();
        assert_eq!((status, &answer["answer"]["body"]["invoice"]), (200, &json!("INV-1")));
        // The same command: the permit of before, which nobody else got.
        assert_eq!(server.post("/v1/claim", &claim(&format!("open{round}"), 0)).unwrap().0, 201);
    }
}

#[test]
fn a_configuration_is_read_anew_or_refused() {
    let world = World::sqlite();
    let path = file(&world, "t.yaml", "logs: text\n");
    let mut server = Serving::start(&world, &["--config", path.to_str().unwrap()]);
    std::fs::write(&path, "people: { ops: { rights: [approve] } }\n").unwrap();
    server.signal("HUP");
    server.says("the configuration was read anew");
    std::fs::write(&path, "peple: {}\n").unwrap();
    server.signal("HUP");
    server.says("did you mean `people`?");
    assert_eq!(server.get("/healthz").unwrap().0, 200);
    server.signal("TERM");
    assert_eq!(server.end(), Some(0));
    assert!(server.log.lock().unwrap().contains("stopped"));
}

#[test]
fn a_server_that_is_told_to_stop_lets_nobody_down() {
    let world = World::sqlite();
    let server = Arc::new(Serving::start(&world, &[]));
    assert_eq!(server.post("/v1/claim", &claim("1", 0)).unwrap().0, 201);
    let waiting = {
        let server = server.clone();
        let mut other = claim("1", 60_000);
        other["command_id"] = json!("another");
        std::thread::spawn(move || server.post("/v1/claim", &other).unwrap())
    };
    std::thread::sleep(Duration::from_millis(300));
    server.signal("TERM");
    assert_eq!(waiting.join().unwrap().0, 409, "who waits is told to come back");
    let mut server = Arc::into_inner(server).unwrap();
    assert_eq!(server.end(), Some(0));
}
