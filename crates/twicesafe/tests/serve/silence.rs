//! A ledger that falls silent: who does not need it is not kept waiting.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::world::{Serving, file};
use crate::operators::world::World;

/// Much sooner than a ledger is given up.
const SOON: Duration = Duration::from_secs(5);

/// A line to the database that can be cut without anybody being told.
struct Line(Arc<AtomicBool>);

impl Line {
    fn between(world: &mut World) -> Self {
        let (before, rest) = world.address.split_once('@').unwrap();
        let (database, name) = rest.split_once('/').unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let through = format!("{before}@{}/{name}", listener.local_addr().unwrap());
        let (line, database) = (Self(Arc::default()), database.to_owned());
        let is_cut = line.0.clone();
        std::thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let far = TcpStream::connect(&database).unwrap();
                for (from, to) in [(near.try_clone(), far.try_clone()), (Ok(far), Ok(near))] {
                    let (from, to, is_cut) = (from.unwrap(), to.unwrap(), is_cut.clone());
                    std::thread::spawn(move || pass_on(from, to, &is_cut));
                }
            }
        });
        world.address = through;
        line
    }

    fn cut(&self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn pass_on(mut from: TcpStream, mut to: TcpStream, is_cut: &AtomicBool) {
    let mut bytes = [0; 4096];
    while let Ok(read @ 1..) = from.read(&mut bytes) {
        if !is_cut.load(Ordering::SeqCst) && to.write_all(&bytes[..read]).is_err() {
            return;
        }
    }
}

#[test]
fn who_does_not_need_a_silent_ledger_is_not_kept_waiting() {
    let mut world = World::postgres();
    let line = Line::between(&mut world);
    let path = file(&world, "t.yaml", "logs: text\n");
    let mut server = Serving::start(&world, &["--config", path.to_str().unwrap()]);
    line.cut();
    let started = Instant::now();
    assert_eq!(server.get("/approve/guessed.guessed").unwrap().0, 403);
    assert!(started.elapsed() < SOON, "nobody asks the ledger about a link that was not made here");
    let started = Instant::now();
    assert_eq!(server.get("/metrics").unwrap().0, 200);
    assert!(started.elapsed() < SOON, "figures are wanted most when something is wrong");
    // It is told to stop while it waits for the ledger to take another configuration.
    server.signal("HUP");
    std::thread::sleep(Duration::from_millis(300));
    let started = Instant::now();
    server.signal("TERM");
    while TcpStream::connect(&server.address).is_ok() {
        assert!(started.elapsed() < SOON, "it hears that it should stop");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(server.end(), Some(0));
}
