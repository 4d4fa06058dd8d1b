//! The inbox as a process: a hostile sender, a target that fails, hangs and goes away, and a server killed again and again. What
//! counts is what the sender was told and what the target got.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::world::{Serving, file, shell};
use crate::operators::world::World;

/// How often the server is killed, on each store.
const ROUNDS: u64 = 15;
/// Objects of one inbox that are sent about in one round, and versions of each.
const OBJECTS: u64 = 6;
const VERSIONS: u64 = 4;
/// How long everything may take to settle when nobody disturbs it any more.
const SETTLED_WITHIN: Duration = Duration::from_secs(90);

/// Dice that fall the same way each time.
struct Dice(AtomicU64);

impl Dice {
    fn roll(&self, sides: u64) -> u64 {
        let mut seed = self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        seed = (seed ^ (seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        seed = (seed ^ (seed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (seed ^ (seed >> 31)) % sides
    }
}

/// What the target got.
#[derive(Clone, Debug)]
struct Got {
    inbox: String,
    event: String,
    webhook_id: String,
    object: u64,
    version: u64,
    is_late: bool,
    /// It said that it took it.
    took: bool,
    from: Instant,
    to: Instant,
}

struct Target {
    address: String,
    got: Arc<Mutex<Vec<Got>>>,
    /// It does what a target should.
    is_well: Arc<AtomicBool>,
    /// It goes away for a moment.
    is_away: Arc<AtomicBool>,
}

impl Target {
    fn open(dice: &Arc<Dice>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let target = Self { address, got: Arc::default(), is_well: Arc::default(), is_away: Arc::default() };
        let (got, is_well, is_away) = (target.got.clone(), target.is_well.clone(), target.is_away.clone());
        let dice = dice.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if is_away.load(Ordering::SeqCst) {
                    continue;
                }
                let (got, is_well, is_away, dice) =
                    (got.clone(), is_well.clone(), is_away.clone(), dice.clone());
                std::thread::spawn(move || serve(stream, &got, &is_well, &is_away, &dice));
            }
        });
        target
    }
}

fn serve(
    stream: TcpStream,
    got: &Mutex<Vec<Got>>,
    is_well: &AtomicBool,
    is_away: &AtomicBool,
    dice: &Dice,
) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut stream = stream;
    loop {
        let mut headers = BTreeMap::new();
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
        loop {
            let mut header = String::new();
            reader.read_line(&mut header).ok()?;
            let Some((name, value)) = header.trim_end().split_once(": ") else { break };
            headers.insert(name.to_ascii_lowercase(), value.to_owned());
        }
        let mut body = vec![0; headers.get("content-length")?.parse().ok()?];
        reader.read_exact(&mut body).ok()?;
        let from = Instant::now();
        let body: Value = serde_json::from_slice(&body).ok()?;
        if is_away.load(Ordering::SeqCst) {
            return None;
        }
        let what = if is_well.load(Ordering::SeqCst) { 99 } else { dice.roll(100) };
        if what >= 20 {
            // It works on it for a while.
            std::thread::sleep(Duration::from_millis(dice.roll(60)));
        }
        let took = what >= 20;
        got.lock().unwrap().push(Got {
            inbox: headers["twicesafe-inbox"].clone(),
            event: headers["twicesafe-event"].clone(),
            webhook_id: headers["webhook-id"].clone(),
            object: body["object"].as_u64()?,
            version: body["version"].as_u64()?,
            is_late: headers.contains_key("twicesafe-late"),
            took,
            from,
            to: Instant::now(),
        });
        let status = match what {
            0..5 => 500,
            5..9 => 404,
            9..13 => 429,
            // Says nothing, and keeps the connection open.
            13..16 => {
                std::thread::sleep(Duration::from_secs(2));
                return None;
            }
            16..20 => return None,
            _ => 200,
        };
        let answer =
            format!("HTTP/1.1 {status} X\r\ncontent-length: 2\r\ncontent-type: application/json\r\n\r\n{{}}");
        stream.write_all(answer.as_bytes()).ok()?;
    }
}

/// Sends until it is acknowledged, as senders do; gives up when told to.
fn send(address: &Mutex<String>, path: &str, body: &str, is_over: &AtomicBool) -> bool {
    while !is_over.load(Ordering::SeqCst) {
        let at = address.lock().unwrap().clone();
        let sent = (|| -> std::io::Result<u16> {
            let mut stream = TcpStream::connect(&at)?;
            stream.set_read_timeout(Some(Duration::from_secs(10)))?;
            write!(
                stream,
                "POST {path} HTTP/1.1\r\nhost: {at}\r\nconnection: close\r\nx-secret: s3cret\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            )?;
            let mut text = String::new();
            stream.read_to_string(&mut text)?;
            text.split(' ')
                .nth(1)
                .and_then(|code| code.parse().ok())
                .ok_or(std::io::ErrorKind::InvalidData.into())
        })();
        match sent {
            Ok(200) => return true,
            Ok(status) => assert_eq!(status, 503, "nothing else may happen to what is right"),
            Err(_) => {}
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    false
}

fn configuration(target: &str) -> String {
    let inbox = |name: &str, means: &str, array: bool| {
        format!(
            "  {name}:
    provider:
      signature: {{ header: x-secret, algorithm: secret }}
      id: event.body.id
      array: {array}
    secrets: [s3cret]
    lane: event.body.object
    version: event.body.version
    version_means: {means}
    deliver: http://{target}/{name}
    timeout: 500ms
    lease: 2s
    in_flight_max: 100ms
    retries: {{ attempts: 1000, base: 20ms, cap: 100ms }}
    circuit: {{ failures: 20, pause: 200ms }}
"
        )
    };
    format!("inboxes:\n{}{}", inbox("ordered", "order", true), inbox("latest", "snapshot", false))
}

fn check(world: World, seed: u64) {
    let dice = Arc::new(Dice(AtomicU64::new(seed)));
    let target = Target::open(&dice);
    let config = file(&world, "twicesafe.yaml", &configuration(&target.address));
    let arguments = ["--config", &config.display().to_string()];
    let mut serving = Serving::start(&world, &arguments);
    let address = Arc::new(Mutex::new(serving.address.clone()));
    let is_over = Arc::new(AtomicBool::new(false));
    let accepted = Arc::new(Mutex::new(BTreeSet::new()));
    let mut senders = Vec::new();
    for round in 0..ROUNDS {
        for (inbox, object) in [("ordered", 0), ("latest", 1)]
            .into_iter()
            .flat_map(|(inbox, at)| (0..OBJECTS).map(move |object| (inbox, (round * 2 + at) * 1000 + object)))
        {
            let (dice, address, is_over, accepted) =
                (dice.clone(), address.clone(), is_over.clone(), accepted.clone());
            senders.push(std::thread::spawn(move || {
                let mut versions: Vec<u64> = (1..=VERSIONS).collect();
                for at in (1..versions.len()).rev() {
                    versions.swap(at, dice.roll(at as u64 + 1) as usize);
                }
                for version in versions {
                    let id = format!("{inbox}-{object}-{version}");
                    let one = json!({ "id": id, "object": object, "version": version });
                    let body = if inbox == "ordered" { json!([one]) } else { one }.to_string();
                    let path = format!("/in/{inbox}");
                    // The same at the same instant, and again later.
                    std::thread::scope(|scope| {
                        for _ in 0..1 + dice.roll(3) {
                            scope.spawn(|| {
                                if send(&address, &path, &body, &is_over) {
                                    accepted.lock().unwrap().insert((inbox, id.clone()));
                                }
                            });
                        }
                    });
                    std::thread::sleep(Duration::from_millis(dice.roll(30)));
                }
            }));
        }
        if dice.roll(3) == 0 {
            target.is_away.store(true, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(100));
            target.is_away.store(false, Ordering::SeqCst);
        }
        std::thread::sleep(Duration::from_millis(100 + dice.roll(500)));
        serving.signal("KILL");
        serving.end();
        serving = Serving::start(&world, &arguments);
        *address.lock().unwrap() = serving.address.clone();
    }
    senders.into_iter().for_each(|sender| sender.join().unwrap());
    is_over.store(true, Ordering::SeqCst);
    target.is_well.store(true, Ordering::SeqCst);
    let accepted = accepted.lock().unwrap().clone();
    assert_eq!(accepted.len() as u64, ROUNDS * OBJECTS * VERSIONS * 2);
    let superseded = settled(&serving, &accepted);
    let got = target.got.lock().unwrap().clone();
    verify(&got, &accepted, &superseded);
}

/// Waits until every event is settled; gives those that were superseded.
fn settled(serving: &Serving, accepted: &BTreeSet<(&'static str, String)>) -> BTreeSet<String> {
    let started = Instant::now();
    let mut superseded = BTreeSet::new();
    for (inbox, id) in accepted {
        loop {
            let (_, shown) = serving.get(&format!("/v1/inbox/event?inbox={inbox}&id={id}")).unwrap();
            match shown["status"].as_str() {
                Some("done") => break,
                Some("superseded") => {
                    superseded.insert(id.clone());
                    break;
                }
                _ => {
                    assert!(started.elapsed() < SETTLED_WITHIN, "{shown:#}\n{}", serving.log.lock().unwrap())
                }
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    superseded
}

fn verify(got: &[Got], accepted: &BTreeSet<(&'static str, String)>, superseded: &BTreeSet<String>) {
    let taken: BTreeSet<&str> = got.iter().filter(|got| got.took).map(|got| got.event.as_str()).collect();
    for (inbox, id) in accepted {
        let is_superseded = superseded.contains(id);
        assert!(taken.contains(id.as_str()) || is_superseded, "{id} was accepted and is lost");
        assert!(!is_superseded || *inbox == "latest", "{id} is no snapshot");
    }
    let mut ids: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut objects: BTreeMap<u64, Vec<&Got>> = BTreeMap::new();
    for one in got {
        ids.entry(&one.event).or_default().insert(&one.webhook_id);
        objects.entry(one.object).or_default().push(one);
    }
    assert!(ids.values().all(|ids| ids.len() == 1), "the id is the same on every attempt");
    let mut late = 0;
    for of_object in objects.values_mut() {
        of_object.sort_by_key(|one| one.from);
        for pair in of_object.windows(2) {
            assert!(pair[0].to <= pair[1].from, "two at a time: {pair:#?}");
        }
        let mut newest = 0;
        for one in of_object.iter() {
            assert!(one.version >= newest || one.is_late, "out of order, and not marked: {of_object:#?}");
            assert!(!(one.is_late && one.inbox == "latest"), "an older snapshot: {of_object:#?}");
            if one.took {
                newest = newest.max(one.version);
            }
            late += usize::from(one.is_late);
        }
    }
    let repeated = got.iter().filter(|one| one.took).count() - taken.len();
    assert!(late > 0 && !superseded.is_empty(), "the sender was not hostile enough");
    let _ = writeln!(
        std::io::stderr(),
        "{} events accepted, {} requests at the target, {repeated} taken more than once, {late} late, {} superseded",
        accepted.len(),
        got.len(),
        superseded.len()
    );
}

#[test]
fn s42_killed_again_and_again_every_accepted_event_is_handed_over_in_order() {
    check(World::sqlite(), 7);
}

#[test]
fn s42_killed_again_and_again_on_postgres_every_accepted_event_is_handed_over_in_order() {
    check(World::postgres(), 11);
}

#[test]
fn the_command_line_lists_shows_puts_replays_parks_and_forgets() {
    let world = World::sqlite();
    let dice = Arc::new(Dice(AtomicU64::new(1)));
    let target = Target::open(&dice);
    target.is_well.store(true, Ordering::SeqCst);
    let config = file(&world, "twicesafe.yaml", &configuration(&target.address));
    let serving = Serving::start(&world, &["--config", &config.display().to_string()]);
    let script = r#"set -eu
put() { twicesafe inbox put latest; }
echo '{"id": "a", "object": 1, "version": 1}' | put
echo '{"id": "a", "object": 1, "version": 1}' | put | grep known
echo '{"object": 2, "version": 1}' | twicesafe inbox put latest --id b
! (echo '{"object": 2}' | put) 2>error; grep TS0113 error
! (echo '{}' | twicesafe inbox put nowhere) 2>error; grep TS0110 error
status() { twicesafe --json inbox show latest "$1" | grep -o '"status":"[a-z]*"' | tail -1; }
until status a | grep -q done; do sleep 0.1; done
until status b | grep -q done; do sleep 0.1; done
twicesafe inbox show latest a | grep 'put in by'
twicesafe inbox list | grep /in/latest
test "$(twicesafe --json inbox list latest | wc -l)" = 2
twicesafe inbox pause latest --reason moving
until twicesafe inbox list | grep -q moving; do sleep 0.1; done
sleep 2.2
echo '{"id": "c", "object": 3, "version": 1}' | put
sleep 1
twicesafe inbox list latest --status ready | grep c
twicesafe inbox park latest c --reason broken --as ann | grep rejected
twicesafe inbox resume latest
echo '{"id": "c", "object": 3, "version": 1}' | put | grep known
twicesafe inbox replay latest c --reason mended
until status c | grep -q done; do sleep 0.1; done
twicesafe inbox forget latest b --reason "asked to"
twicesafe inbox show latest b | grep 'not kept'
test -z "$(twicesafe --json inbox list latest --dead)"
twicesafe inbox providers | grep stripe
twicesafe inbox providers stripe | grep 'believed'
"#;
    let output = shell(&world, script, &[]);
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}\n{err}\n{}", serving.log.lock().unwrap());
    let mut events: Vec<String> = target.got.lock().unwrap().iter().map(|got| got.event.clone()).collect();
    events.sort();
    assert_eq!(events, ["a", "b", "c"]);
}

#[test]
fn what_every_event_lacks_is_told_seldom() {
    let world = World::sqlite();
    let yaml = "logs: text\ninboxes:\n  jobs: { id: event.body.id, lane: event.body.order, version: event.body.v, deliver: \"http://127.0.0.1:1/x\" }\n";
    let path = file(&world, "t.yaml", yaml);
    let server = Serving::start(&world, &["--config", path.to_str().unwrap()]);
    for id in 0..20 {
        assert_eq!(server.post("/in/jobs", &json!({ "id": id })).unwrap().0, 200);
    }
    server.says("without its `lane`");
    std::thread::sleep(Duration::from_millis(200));
    let log = server.log.lock().unwrap().clone();
    assert_eq!(log.matches("without its `lane`").count(), 1, "{log}");
}

#[test]
fn what_people_are_told_about_events_says_what_to_do() {
    let world = World::sqlite();
    let yaml = "inboxes:\n  jobs: { id: event.body.id, deliver: localhost:5678/webhook }\n";
    file(&world, "twicesafe.yaml", yaml);
    let told = shell(&world, "twicesafe config check", &[]);
    let told = format!("{}{}", String::from_utf8_lossy(&told.stdout), String::from_utf8_lossy(&told.stderr));
    assert!(
        told.contains("it has no scheme: begin it with https://") && told.contains("1 thing is wrong"),
        "{told}"
    );
    file(&world, "twicesafe.yaml", &yaml.replace("localhost", "http://localhost"));
    let script = "echo '{\"id\": \"a\"}' | twicesafe inbox put jobs
        twicesafe inbox show jobs a
        twicesafe inbox forget jobs a --reason asked
        twicesafe inbox replay jobs a --reason again";
    let told = shell(&world, script, &[]);
    let told = format!("{}{}", String::from_utf8_lossy(&told.stdout), String::from_utf8_lossy(&told.stderr));
    assert!(told.contains("webhook-id") && told.contains("the body of this event is gone"), "{told}");
    assert!(!told.contains("reset"), "{told}");
}

/// A target that answers so, then 200; says how often it was asked.
fn answering(statuses: &[u16]) -> (String, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (statuses, asked) = (statuses.to_vec(), Arc::<AtomicU64>::default());
    let counted = asked.clone();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let (mut length, mut line) = (0, String::new());
            while reader.read_line(&mut line).is_ok_and(|read| read > 2) {
                if let Some(text) = line.to_ascii_lowercase().strip_prefix("content-length: ") {
                    length = text.trim().parse().unwrap();
                }
                line.clear();
            }
            let mut body = vec![0; length];
            let number = counted.fetch_add(1, Ordering::SeqCst);
            let status = statuses.get(usize::try_from(number).unwrap()).copied().unwrap_or(200);
            let answer = format!("HTTP/1.1 {status} x\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
            let _ = reader.read_exact(&mut body).and_then(|()| stream.write_all(answer.as_bytes()));
        }
    });
    (address, asked)
}

fn said(world: &World, script: &str) -> String {
    let told = shell(world, script, &[]);
    format!("{}{}", String::from_utf8_lossy(&told.stdout), String::from_utf8_lossy(&told.stderr))
}

/// Waits until an event is shown with those words.
fn shown(world: &World, id: &str, words: &str) -> String {
    let started = Instant::now();
    loop {
        let shown = said(world, &format!("twicesafe inbox show jobs {id}"));
        if shown.contains(words) {
            return shown;
        }
        assert!(started.elapsed() < Duration::from_secs(20), "{words} is not in {shown}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn s26_what_is_resolved_at_the_command_line_is_settled_for_all_that_mean_it() {
    let world = World::sqlite();
    let (target, asked) = answering(&[500]);
    let yaml = format!(
        "inboxes:\n  jobs: {{ id: event.body.id, intent: event.body.order, recovery: person, in_flight_max: 100ms, deliver: \"http://{target}/x\" }}\n"
    );
    file(&world, "twicesafe.yaml", &yaml);
    let server = Serving::start(&world, &["--config", "twicesafe.yaml"]);
    server.post("/in/jobs", &json!({ "id": "a", "order": 1 })).unwrap();
    shown(&world, "a", "jobs a: review");
    server.post("/in/jobs", &json!({ "id": "b", "order": 1 })).unwrap();
    shown(&world, "b", "`a` means the same and is decided first: twicesafe inbox show jobs a");
    let told = said(&world, "twicesafe resolve default/in/jobs a --happened --reason 'it is there'");
    assert!(told.contains("default/in/jobs a: done"), "{told}");
    server.post("/in/jobs", &json!({ "id": "c", "order": 1 })).unwrap();
    shown(&world, "c", "`a` means the same and was handed over: this has its answer.");
    let told = said(&world, "twicesafe inbox replay jobs b --reason 'look again'");
    assert!(told.contains("jobs b: "), "{told}");
    shown(&world, "b", "jobs b: done");
    assert_eq!(asked.load(Ordering::SeqCst), 1, "a person said that it happened");
}

#[test]
fn what_was_done_through_another_event_is_no_dead_letter() {
    let world = World::sqlite();
    let (target, asked) = answering(&[404]);
    let yaml = format!(
        "inboxes:\n  jobs: {{ id: event.body.id, intent: event.body.order, retries: {{ attempts: 1, base: 10ms }}, deliver: \"http://{target}/x\" }}\n"
    );
    file(&world, "twicesafe.yaml", &yaml);
    let server = Serving::start(&world, &["--config", "twicesafe.yaml"]);
    server.post("/in/jobs", &json!({ "id": "a", "order": 1 })).unwrap();
    shown(&world, "a", "jobs a: retryable");
    assert!(said(&world, "twicesafe inbox list jobs --dead").contains("a  "));
    server.post("/in/jobs", &json!({ "id": "b", "order": 1 })).unwrap();
    shown(&world, "b", "jobs b: done");
    let listed = said(&world, "twicesafe inbox list jobs --dead");
    assert!(!listed.contains("retryable"), "{listed}");
    shown(&world, "a", "`b` means the same and was handed over: replay this to have its answer.");
    said(&world, "twicesafe inbox replay jobs a --reason 'so that it is done'");
    shown(&world, "a", "jobs a: done");
    assert_eq!(asked.load(Ordering::SeqCst), 2);
}
