//! A man in the middle between store and PostgreSQL, who cuts the connection around a commit.
//!
//! It reads the client's messages one by one: a commit is the word `COMMIT`, or a statement that writes outside a
//! transaction.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

use crate::world::{at, postgres_url};

/// When the connection is cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Cut {
    Never = 0,
    /// The commit never reaches the server.
    Before = 1,
    /// The server commits; its answer never reaches the client.
    After = 2,
    /// Nothing passes, ever.
    Everything = 3,
    /// Every few commits, now before, now after.
    Sometimes = 4,
}

/// Commits from one cut to the next, when they are cut sometimes.
const COMMITS_BETWEEN: usize = 9;

pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    next: AtomicU8,
    commits: AtomicUsize,
    cuts: AtomicUsize,
}

impl Shared {
    fn everything(&self) -> bool {
        self.next.load(Ordering::SeqCst) == Cut::Everything as u8
    }

    /// Whether to cut at this commit, and when. Each order to cut before or after is good for one commit.
    fn at_commit(&self) -> Cut {
        let commits = self.commits.fetch_add(1, Ordering::SeqCst);
        if self.next.load(Ordering::SeqCst) == Cut::Sometimes as u8 && commits.is_multiple_of(COMMITS_BETWEEN)
        {
            let cuts = self.cuts.fetch_add(1, Ordering::SeqCst);
            return if cuts.is_multiple_of(2) { Cut::Before } else { Cut::After };
        }
        let taken = |cut: Cut| {
            self.next
                .compare_exchange(cut as u8, Cut::Never as u8, Ordering::SeqCst, Ordering::SeqCst)
                .is_ok()
        };
        match [Cut::Before, Cut::After].into_iter().find(|cut| taken(*cut)) {
            Some(cut) => {
                self.cuts.fetch_add(1, Ordering::SeqCst);
                cut
            }
            None => Cut::Never,
        }
    }
}

impl Proxy {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared::default());
        let its = shared.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if !its.everything() {
                    tokio::spawn(carry(client, its.clone()));
                }
            }
        });
        Self { port, shared }
    }

    /// The address of a database through the proxy.
    pub fn url(&self, database: &str) -> String {
        let direct = at(&postgres_url(), database);
        let config: tokio_postgres::Config = direct.parse().unwrap();
        format!("postgres://{}@127.0.0.1:{}/{database}", config.get_user().unwrap(), self.port)
    }

    pub fn cut(&self, when: Cut) {
        self.shared.next.store(when as u8, Ordering::SeqCst);
    }

    /// How often it has cut so far.
    pub fn cuts(&self) -> usize {
        self.shared.cuts.load(Ordering::SeqCst)
    }
}

async fn carry(client: TcpStream, shared: Arc<Shared>) {
    let config: tokio_postgres::Config = postgres_url().parse().unwrap();
    let server = TcpStream::connect(("127.0.0.1", config.get_ports()[0])).await.unwrap();
    client.set_nodelay(true).unwrap();
    server.set_nodelay(true).unwrap();
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let (silence, silent) = tokio::sync::watch::channel(false);
    // Whichever ends first takes both directions with it: the halves are dropped, and so closed.
    tokio::select! {
        _ = there(from_client, to_server, &shared, silence) => {}
        _ = back(from_server, to_client, &shared, silent) => {}
    }
}

/// Client to server, message by message.
async fn there(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    shared: &Shared,
    silence: tokio::sync::watch::Sender<bool>,
) -> std::io::Result<()> {
    let startup = read_body(&mut from).await?;
    to.write_all(&startup).await?;
    let mut in_transaction = false;
    loop {
        let kind = from.read_u8().await?;
        let body = read_body(&mut from).await?;
        let text = String::from_utf8_lossy(&body[4..]);
        let says = |word: &str| kind == b'Q' && text.starts_with(word);
        in_transaction |= says("BEGIN");
        let commits = says("COMMIT") || kind == b'P' && !in_transaction && text.contains("ledger_apply(");
        in_transaction &= !(says("COMMIT") || says("ROLLBACK"));
        match if commits { shared.at_commit() } else { Cut::Never } {
            Cut::Before => return Ok(()),
            Cut::After => drop(silence.send(true)),
            Cut::Never | Cut::Everything | Cut::Sometimes => {}
        }
        to.write_u8(kind).await?;
        to.write_all(&body).await?;
    }
}

/// Length and body of a message.
async fn read_body(from: &mut OwnedReadHalf) -> std::io::Result<Vec<u8>> {
    let length = from.read_u32().await?;
    let mut body = length.to_be_bytes().to_vec();
    body.resize(length as usize, 0);
    from.read_exact(&mut body[4..]).await?;
    Ok(body)
}

/// Server to client, until there is something the client must not hear.
async fn back(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    shared: &Shared,
    silent: tokio::sync::watch::Receiver<bool>,
) -> std::io::Result<()> {
    let mut bytes = vec![0; 64 * 1024];
    loop {
        let n = from.read(&mut bytes).await?;
        // The server has answered the commit: it is done.
        if n == 0 || *silent.borrow() || shared.everything() {
            return Ok(());
        }
        to.write_all(&bytes[..n]).await?;
    }
}
