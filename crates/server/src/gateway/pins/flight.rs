//! One flight per pin: whoever asks the same in this process meanwhile follows the one that is under way, from its first byte,
//! and survives its first caller (S33). A flight belongs to nobody: it goes on when everybody has left.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use futures_util::stream;
use hyper::{HeaderMap, StatusCode};
use tokio::sync::watch;
use twicesafe_ledger::{Answer, Name, Stored};

use crate::http::{Body, Cut, Problem};

/// Largest answer that is held for those who follow.
const FLIGHT_BYTES_MAX: usize = 64 << 20;
/// All of them together.
const FLIGHTS_BYTES_MAX: usize = 512 << 20;

/// What is known of a flight.
pub(super) struct State {
    pub(super) head: Option<(StatusCode, HeaderMap)>,
    parts: Vec<Bytes>,
    bytes: usize,
    pub(super) end: Option<End>,
    room: Arc<AtomicUsize>,
}

impl State {
    fn in_room(room: Arc<AtomicUsize>) -> Self {
        Self { head: None, parts: Vec::new(), bytes: 0, end: None, room }
    }

    /// One that failed, or has ended and is still being settled, is over for who comes now: clients ask again as soon as they
    /// have seen the head of a failure.
    fn can_be_joined(&self) -> bool {
        self.end.is_none() && self.head.as_ref().is_none_or(|(status, _)| status.is_success())
    }
}

impl Drop for State {
    fn drop(&mut self) {
        self.room.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// How a flight ended.
#[derive(Clone)]
pub(super) enum End {
    /// With all its parts.
    Whole,
    /// Before its end; never to be taken for whole (S21).
    Cut,
    /// With an answer that is on record.
    Given(Arc<OnRecord>),
    /// With nothing to show but why.
    Problem(Arc<Problem>),
}

/// An answer that is on record.
pub(super) struct OnRecord {
    pub(super) answer: Answer,
    /// It was there before this flight.
    pub(super) replayed: bool,
    pub(super) stored: Option<Arc<Stored>>,
}

/// There is no room for more.
#[derive(Debug)]
pub(super) struct Full;

/// A question under way.
pub(super) struct Flight {
    state: watch::Sender<State>,
    /// How many see it as it comes.
    joined: AtomicUsize,
}

impl Flight {
    /// A flight of its own, and how to follow it.
    pub(super) fn alone(room: &Flights) -> (Arc<Self>, Follower) {
        let (state, receiver) = watch::channel(State::in_room(room.bytes.clone()));
        (Arc::new(Self { state, joined: AtomicUsize::new(1) }), Follower { receiver, at: 0, is_over: false })
    }

    pub(super) fn joined(&self) -> usize {
        self.joined.load(Ordering::Relaxed)
    }

    /// Waits until nobody follows.
    pub(super) async fn left_alone(&self) {
        self.state.closed().await;
    }

    pub(super) fn begin(&self, status: StatusCode, headers: HeaderMap) {
        self.state.send_modify(|state| state.head = Some((status, headers)));
    }

    pub(super) fn has_begun(&self) -> bool {
        self.state.borrow().head.is_some()
    }

    /// Whether nothing was shown yet, and nothing will not be.
    pub(super) fn is_untouched(&self) -> bool {
        let state = self.state.borrow();
        state.head.is_none() && state.end.is_none()
    }

    /// Makes room for what was read, whether it is shown or not.
    pub(super) fn reserve(&self, bytes: usize) -> Result<(), Full> {
        let mut taken = Ok(());
        self.state.send_if_modified(|state| {
            let all = state.room.fetch_add(bytes, Ordering::Relaxed) + bytes;
            if state.bytes + bytes > FLIGHT_BYTES_MAX || all > FLIGHTS_BYTES_MAX {
                state.room.fetch_sub(bytes, Ordering::Relaxed);
                taken = Err(Full);
            } else {
                state.bytes += bytes;
            }
            false
        });
        taken
    }

    pub(super) fn push(&self, part: Bytes) {
        self.state.send_modify(|state| state.parts.push(part));
    }

    /// Ends it, if nothing has before.
    pub(super) fn end(&self, end: End) {
        self.state.send_modify(|state| {
            state.end.get_or_insert(end);
        });
    }
}

/// Somebody who follows a flight.
pub(super) struct Follower {
    receiver: watch::Receiver<State>,
    at: usize,
    is_over: bool,
}

/// How an answer begins for one who follows.
pub(super) enum Beginning {
    /// It arrives part by part.
    Live(StatusCode, HeaderMap),
    Given(Arc<OnRecord>),
    Problem(Arc<Problem>),
    /// It was cut before there was anything.
    Cut,
}

impl Follower {
    /// Waits for its beginning.
    pub(super) async fn beginning(&mut self) -> Beginning {
        loop {
            {
                let state = self.receiver.borrow_and_update();
                match (&state.head, &state.end) {
                    (Some((status, headers)), _) => return Beginning::Live(*status, headers.clone()),
                    (None, Some(End::Given(given))) => return Beginning::Given(given.clone()),
                    (None, Some(End::Problem(problem))) => return Beginning::Problem(problem.clone()),
                    (None, Some(_)) => return Beginning::Cut,
                    (None, None) => {}
                }
            }
            if self.receiver.changed().await.is_err() {
                return Beginning::Cut;
            }
        }
    }

    /// Waits for its end, whatever it is.
    pub(super) async fn end(mut self) {
        // Who carried it is gone: that is an end, too.
        let _ = self.receiver.wait_for(|state| state.end.is_some()).await;
    }

    /// What follows its beginning, frame by frame.
    pub(super) fn body(self) -> Body {
        Body::stream(stream::unfold(self, Self::next))
    }

    async fn next(mut self) -> Option<(Result<Bytes, Cut>, Self)> {
        if self.is_over {
            return None;
        }
        loop {
            {
                let state = self.receiver.borrow_and_update();
                if let Some(part) = state.parts.get(self.at) {
                    let part = part.clone();
                    drop(state);
                    self.at += 1;
                    return Some((Ok(part), self));
                }
                match &state.end {
                    None => {}
                    Some(End::Whole) => return None,
                    Some(_) => break,
                }
            }
            if self.receiver.changed().await.is_err() {
                break;
            }
        }
        self.is_over = true;
        Some((Err(Cut), self))
    }
}

/// All flights of this process.
#[derive(Default)]
pub(crate) struct Flights {
    all: Mutex<HashMap<Name, Arc<Flight>>>,
    bytes: Arc<AtomicUsize>,
}

/// A flight as long as others can join it.
pub(super) struct Open {
    flights: Arc<Flights>,
    name: Name,
    pub(super) flight: Arc<Flight>,
}

impl Drop for Open {
    fn drop(&mut self) {
        let mut all = self.flights.lock();
        if all.get(&self.name).is_some_and(|open| Arc::ptr_eq(open, &self.flight)) {
            all.remove(&self.name);
        }
        drop(all);
        // Nobody waits for ever, whatever became of who carried it.
        self.flight.end(End::Cut);
    }
}

impl Flights {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Name, Arc<Flight>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Joins the flight of a pin; who is first gets what keeps it open, and must carry it.
    pub(super) fn join(self: &Arc<Self>, name: &Name, is_counted: bool) -> (Follower, Option<Open>) {
        let mut all = self.lock();
        if let Some(flight) = all.get(name).filter(|flight| flight.state.borrow().can_be_joined()) {
            flight.joined.fetch_add(usize::from(is_counted), Ordering::Relaxed);
            let follower = Follower { receiver: flight.state.subscribe(), at: 0, is_over: false };
            return (follower, None);
        }
        let (flight, follower) = Flight::alone(self);
        all.insert(name.clone(), flight.clone());
        (follower, Some(Open { flights: self.clone(), name: name.clone(), flight }))
    }
}
