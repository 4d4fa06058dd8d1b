//! The gateway as a process, killed at every point between claim and settle. What counts is what the destination counted.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::world::{Serving, file};
use crate::operators::world::World;

/// Where the gateway is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Point {
    Never,
    /// Connected; nothing was read yet.
    Connected,
    /// Acted, and has not answered.
    Acted,
    /// Acted, and has sent half an answer.
    Answering,
    /// Acted, and has sent the whole answer.
    Answered,
}

const POINTS: [Point; 4] = [Point::Connected, Point::Acted, Point::Answering, Point::Answered];

/// A destination that counts, and holds still at a point until the gateway is dead.
struct Shop {
    address: String,
    state: Arc<State>,
    reached: mpsc::Receiver<()>,
}

struct State {
    /// The native key and the body of everything that was done.
    effects: Mutex<Vec<(Option<String>, Value)>>,
    point: AtomicU8,
    reached: Mutex<mpsc::Sender<()>>,
    deduplicates: bool,
}

impl Shop {
    fn open(deduplicates: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (sender, reached) = mpsc::channel();
        let state = Arc::new(State {
            effects: Mutex::default(),
            point: AtomicU8::new(Point::Never as u8),
            reached: Mutex::new(sender),
            deduplicates,
        });
        let shared = state.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let state = shared.clone();
                std::thread::spawn(move || state.serve(stream));
            }
        });
        Self { address, state, reached }
    }

    fn stop_at(&self, point: Point) {
        self.state.point.store(point as u8, Ordering::SeqCst);
    }

    fn effects(&self) -> usize {
        self.state.effects.lock().unwrap().len()
    }
}

impl State {
    /// Says once that the point is reached, and waits for what will happen to the gateway.
    fn passes(&self, point: Point) -> bool {
        let here = point as u8;
        if self.point.compare_exchange(here, Point::Never as u8, Ordering::SeqCst, Ordering::SeqCst).is_err()
        {
            return true;
        }
        self.reached.lock().unwrap().send(()).unwrap();
        std::thread::sleep(Duration::from_millis(300));
        false
    }

    fn serve(&self, mut stream: TcpStream) -> Option<()> {
        if !self.passes(Point::Connected) {
            return None;
        }
        let mut reader = BufReader::new(stream.try_clone().ok()?);
        loop {
            let mut head = Vec::new();
            loop {
                let mut line = String::new();
                if reader.read_line(&mut line).ok()? == 0 {
                    return None;
                }
                match line.trim() {
                    "" => break,
                    text => head.push(text.to_owned()),
                }
            }
            let header = |name: &str| {
                head.iter().find_map(|line| {
                    line.split_once(": ")
                        .filter(|(own, _)| own.eq_ignore_ascii_case(name))
                        .map(|(_, v)| v.to_owned())
                })
            };
            let mut body = vec![0; header("content-length").map_or(0, |length| length.parse().unwrap())];
            reader.read_exact(&mut body).ok()?;
            let answer = match head[0].starts_with("GET") {
                true => {
                    let wanted = head[0].split("id=").nth(1)?.split(' ').next()?.to_owned();
                    let effects = self.effects.lock().unwrap();
                    json!({ "items": effects.iter().filter(|(_, body)| body["id"] == wanted).count() })
                }
                false => {
                    let mut effects = self.effects.lock().unwrap();
                    let key = header("idempotency-key");
                    let is_known = self.deduplicates && effects.iter().any(|(known, _)| *known == key);
                    if !is_known {
                        effects.push((key, serde_json::from_slice(&body).unwrap()));
                    }
                    json!({ "order": "o_1" })
                }
            }
            .to_string();
            if !self.passes(Point::Acted) {
                return None;
            }
            write!(
                stream,
                "HTTP/1.1 201 Created\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
                answer.len()
            )
            .ok()?;
            if !self.passes(Point::Answering) {
                return None;
            }
            stream.write_all(answer.as_bytes()).ok()?;
            if !self.passes(Point::Answered) {
                return None;
            }
        }
    }
}

fn configured(world: &World, shop: &Shop, recovery: &str) -> String {
    let yaml = format!(
        "destinations:
  shop:
    base: http://{}
    auth: none
    routes:
      - match: POST /orders
        action: order.place
        key: request.body.id
        lease: 600ms
        in_flight_max: 200ms
        timeout: 2s
        retries: {{ base: 50ms, cap: 200ms, attempts: 20 }}
        recovery: {recovery}
",
        shop.address
    );
    file(world, "twicesafe.yaml", &yaml).display().to_string()
}

/// Asks again and again, as any automation would, until there is an end.
fn ask(gateway: &Serving) -> (u16, Value) {
    let started = Instant::now();
    loop {
        match gateway.post("/to/shop/orders", &json!({ "id": "order-1", "amount": 5 })) {
            Ok((409 | 503, _)) | Err(_) if started.elapsed() < Duration::from_secs(30) => {
                std::thread::sleep(Duration::from_millis(100));
            }
            heard => return heard.unwrap(),
        }
    }
}

fn check(new_world: fn() -> World, recovery: &str, expected: impl Fn(Point, u16, usize)) {
    for point in POINTS {
        let world = new_world();
        let shop = Shop::open(recovery == "native-key");
        let config = configured(&world, &shop, recovery);
        let gateway = Serving::start(&world, &["--config", &config]);
        shop.stop_at(point);
        let address = gateway.address.clone();
        let asking = std::thread::spawn(move || {
            let body = json!({ "id": "order-1", "amount": 5 }).to_string();
            let mut stream = TcpStream::connect(address).unwrap();
            let _ = write!(
                stream,
                "POST /to/shop/orders HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            );
            let _ = stream.read_to_end(&mut Vec::new());
        });
        shop.reached.recv_timeout(Duration::from_secs(10)).unwrap();
        gateway.signal("KILL");
        asking.join().unwrap();
        let after = Serving::start(&world, &["--config", &config]);
        let (status, told) = ask(&after);
        expected(point, status, shop.effects());
        let (again, _) = ask(&after);
        assert_eq!(again, status, "{point:?} {told}");
        expected(point, again, shop.effects());
    }
}

const LOOKUP: &str =
    "{ lookup: { get: '/orders?id={{ key }}', found: 'answer.body.items > 0', lag: 100ms } }";

fn person(point: Point, status: u16, effects: usize) {
    assert_eq!(effects, usize::from(point != Point::Connected), "{point:?}");
    // An answer that was sent may have been stored before the end.
    assert!(status == 423 || status == 201 && point == Point::Answered, "{point:?}: {status}");
}

fn once(point: Point, status: u16, effects: usize) {
    assert!((status == 201 || status == 200) && effects == 1, "{point:?}: {status}, {effects} effects");
}

fn harmless(point: Point, status: u16, effects: usize) {
    assert!(status == 201 && effects <= 2, "{point:?}: {status}, {effects} effects");
}

#[test]
fn s42_killed_at_every_point_on_sqlite_a_person_decides() {
    check(World::sqlite, "person", person);
}

#[test]
fn s42_killed_at_every_point_on_sqlite_the_native_key_is_sent_again() {
    check(World::sqlite, "native-key", once);
}

#[test]
fn s42_killed_at_every_point_on_sqlite_a_lookup_tells() {
    check(World::sqlite, LOOKUP, once);
}

#[test]
fn s42_killed_at_every_point_on_sqlite_what_is_harmless_is_repeated() {
    check(World::sqlite, "repeat", harmless);
}

#[test]
fn s42_killed_at_every_point_on_postgres_a_person_decides() {
    check(World::postgres, "person", person);
}

#[test]
fn s42_killed_at_every_point_on_postgres_the_native_key_is_sent_again() {
    check(World::postgres, "native-key", once);
}

#[test]
fn s42_killed_at_every_point_on_postgres_a_lookup_tells() {
    check(World::postgres, LOOKUP, once);
}

#[test]
fn s8_two_gateways_on_one_ledger_send_once_and_one_carries_on_for_the_other() {
    let world = World::postgres();
    let shop = Shop::open(true);
    let config = configured(&world, &shop, "native-key");
    let gateways = [(); 2].map(|()| Arc::new(Serving::start(&world, &["--config", &config])));
    let asking: Vec<_> = (0..20)
        .map(|number| {
            let gateway = gateways[number % 2].clone();
            std::thread::spawn(move || ask(&gateway))
        })
        .collect();
    assert!(asking.into_iter().all(|thread| thread.join().unwrap().0 == 201));
    assert_eq!(shop.effects(), 1);
    // One is killed after the destination acted; nobody asks again, and the other one sends it with the same key.
    shop.stop_at(Point::Acted);
    let first = gateways[0].clone();
    std::thread::spawn(move || first.post("/to/shop/orders", &json!({ "id": "order-2", "amount": 5 })));
    shop.reached.recv_timeout(Duration::from_secs(10)).unwrap();
    gateways[0].signal("KILL");
    let started = Instant::now();
    loop {
        let (_, shown) = gateways[1].get("/v1/intent?scope=default/shop/order.place&key=order-2").unwrap();
        if shown["status"] == "done" {
            break;
        }
        assert!(started.elapsed() < Duration::from_secs(20), "{shown}");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(shop.effects(), 2);
}
