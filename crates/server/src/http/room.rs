//! Memory for the bodies of all requests together: taken as bytes arrive, and shared out, so that nobody can take all of it.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Problem;

/// All larger bodies together; beyond that callers are told to come back.
const ALL_BODIES_BYTES_MAX: usize = 256 << 20;
/// Bodies up to this cost nobody anything worth counting.
const UNCOUNTED_BYTES_MAX: usize = 4 << 10;
/// Room is taken in such steps.
const STEP_BYTES: usize = 4 << 10;
/// A peer may take three times what is left free, so alone three quarters of it all.
const PEER_SHARE: (usize, usize) = (3, 1);
/// An inbox, where nobody is known before a body was read, may take half of what is left free, so alone a third.
const INBOX_SHARE: (usize, usize) = (1, 2);

/// Room for the bodies of all requests together.
#[derive(Clone)]
pub(crate) struct Room(Arc<Mutex<Shares>>);

struct Shares {
    free: usize,
    taken: HashMap<Share, usize>,
}

/// Those that are given no more than a share.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Share {
    Peer(IpAddr),
    Inbox(Arc<str>),
}

impl Share {
    fn of_free(&self) -> (usize, usize) {
        match self {
            Self::Peer(_) => PEER_SHARE,
            Self::Inbox(_) => INBOX_SHARE,
        }
    }
}

impl Default for Room {
    fn default() -> Self {
        Self::of(ALL_BODIES_BYTES_MAX)
    }
}

impl Room {
    /// Makes room for so many bytes.
    pub(crate) fn of(bytes: usize) -> Self {
        Self(Arc::new(Mutex::new(Shares { free: bytes, taken: HashMap::new() })))
    }

    /// Begins to take room for a body: none so far.
    pub(super) fn begin(&self, peer: IpAddr, inbox: Option<Arc<str>>) -> Taken {
        let shares = [Some(Share::Peer(network(peer))), inbox.map(Share::Inbox)];
        Taken { room: self.clone(), shares, bytes: 0 }
    }

    fn shares(&self) -> MutexGuard<'_, Shares> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Room that a body takes until this is dropped.
pub(crate) struct Taken {
    room: Room,
    shares: [Option<Share>; 2],
    bytes: usize,
}

impl Taken {
    /// Takes as much as a body of that length needs, in steps.
    pub(super) fn up_to(&mut self, bytes: usize) -> Result<(), Problem> {
        if bytes <= self.bytes || bytes <= UNCOUNTED_BYTES_MAX {
            return Ok(());
        }
        let more = (bytes - self.bytes).next_multiple_of(STEP_BYTES);
        let mut room = self.room.shares();
        let left = room.free.checked_sub(more);
        let left = left.ok_or_else(|| Problem::overloaded("too many large requests are under way"))?;
        for share in self.shares.iter().flatten() {
            let (parts, of) = share.of_free();
            if room.taken.get(share).unwrap_or(&0) + more > left / of * parts {
                return Err(Problem::overloaded(match share {
                    Share::Peer(_) => "too many large requests from your address are under way",
                    Share::Inbox(_) => "too many large requests to this inbox are under way",
                }));
            }
        }
        room.free = left;
        for share in self.shares.iter().flatten() {
            *room.taken.entry(share.clone()).or_default() += more;
        }
        self.bytes += more;
        Ok(())
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if self.bytes == 0 {
            return;
        }
        let mut room = self.room.shares();
        room.free += self.bytes;
        for share in self.shares.iter().flatten() {
            let left = room.taken.get(share).map_or(0, |taken| taken - self.bytes);
            match left {
                0 => room.taken.remove(share),
                left => room.taken.insert(share.clone(), left),
            };
        }
    }
}

/// The network that one customer is given: of IPv6 addresses everybody has many.
fn network(peer: IpAddr) -> IpAddr {
    match peer {
        IpAddr::V6(address) if address.to_ipv4_mapped().is_none() => {
            IpAddr::V6((u128::from(address) >> 64 << 64).into())
        }
        other => other.to_canonical(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: usize = 1 << 20;

    fn fill(room: &Room, peer: &str, inbox: Option<&str>) -> Vec<Taken> {
        let mut all = Vec::new();
        loop {
            let mut taken = room.begin(peer.parse().expect("an address"), inbox.map(Arc::from));
            match taken.up_to(MB) {
                Ok(()) => all.push(taken),
                Err(_) => return all,
            }
        }
    }

    #[test]
    fn s19_nobody_takes_all_of_the_room() {
        let room = Room::of(256 * MB);
        let attacked = fill(&room, "10.0.0.1", Some("a"));
        assert!((80..=86).contains(&attacked.len()), "an inbox has a third: {}", attacked.len());
        let same = fill(&room, "10.0.0.1", None);
        assert!((100..=110).contains(&same.len()), "the same peer elsewhere: {}", same.len());
        assert!(fill(&room, "10.0.0.1", None).is_empty());
        let other = fill(&room, "10.0.0.2", Some("b"));
        assert!(other.len() > 10, "somebody else: {}", other.len());
        drop((attacked, same, other));
        assert!(room.shares().taken.is_empty());
        assert_eq!(room.shares().free, 256 * MB);
    }

    #[test]
    fn addresses_of_one_network_share() {
        let parse = |text: &str| network(text.parse().expect("an address"));
        assert_eq!(parse("2001:db8::1"), parse("2001:db8::2:3"));
        assert_ne!(parse("2001:db8::1"), parse("2001:db8:0:1::1"));
        assert_eq!(parse("::ffff:10.0.0.1"), parse("10.0.0.1"));
        assert_ne!(parse("::ffff:10.0.0.1"), parse("::ffff:10.0.0.2"));
    }
}
