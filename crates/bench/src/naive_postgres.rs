//! PostgreSQL: our store against what people write by hand, on the same server.

use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_postgres::{Client, NoTls, Statement};
use twicesafe_core::Policy;
use twicesafe_store::{Address, Options};

use crate::Plan;
use crate::harness::{self, Key, Load, Subject};
use crate::report::Report;
use crate::subject::{ANSWER_BYTES, Guarded, SCOPE};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// INSERT ON CONFLICT, then UPDATE, prepared: no fingerprint, no fence, no journal. Connections come from a pool, as they do
/// where people write this: each belongs to one caller for the time of a statement, so statements of two callers are never
/// under way on one connection.
#[derive(Clone)]
struct Naive {
    pool: Arc<Pool>,
    prefix: Arc<str>,
}

struct Pool {
    free: Mutex<Vec<Connection>>,
    /// As many as there are free connections.
    left: Semaphore,
}

struct Connection {
    client: Client,
    claim: Statement,
    settle: Statement,
    look: Statement,
}

/// A connection, while it belongs to a caller.
struct Lent<'a> {
    pool: &'a Pool,
    connection: Option<Connection>,
    _one_less: SemaphorePermit<'a>,
}

impl Pool {
    async fn connection(&self) -> Result<Lent<'_>, Failure> {
        let one_less = self.left.acquire().await?;
        let connection = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        Ok(Lent { pool: self, connection, _one_less: one_less })
    }
}

impl Deref for Lent<'_> {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        self.connection.as_ref().expect("there is a free connection for each permit")
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        self.pool.free.lock().unwrap_or_else(PoisonError::into_inner).extend(self.connection.take());
    }
}

impl Connection {
    async fn open(url: &str) -> Result<Self, tokio_postgres::Error> {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
        tokio::spawn(connection);
        client
            .batch_execute(
                "CREATE TABLE IF NOT EXISTS naive (scope text, key text, fingerprint text, status smallint,
                 lease timestamptz, done timestamptz, answer text, PRIMARY KEY (scope, key))",
            )
            .await?;
        let claim = client
            .prepare(
                "INSERT INTO naive (scope, key, fingerprint, status, lease)
                 VALUES ($1, $2, 'f', 0, now() + interval '60 s') ON CONFLICT DO NOTHING",
            )
            .await?;
        let settle = client
            .prepare("UPDATE naive SET status = 1, answer = $3, done = now() WHERE scope = $1 AND key = $2")
            .await?;
        let look = client.prepare("SELECT answer FROM naive WHERE scope = $1 AND key = $2").await?;
        Ok(Self { client, claim, settle, look })
    }
}

impl Naive {
    async fn connect(
        url: &str,
        connections: usize,
        prefix: &str,
    ) -> Result<Self, Box<dyn std::error::Error>> {
        let mut free = Vec::new();
        for _ in 0..connections {
            free.push(Connection::open(url).await?);
        }
        let left = Semaphore::new(connections);
        Ok(Self { pool: Arc::new(Pool { free: Mutex::new(free), left }), prefix: prefix.into() })
    }
}

impl Subject for Naive {
    async fn effect(&self, key: Key, took: &mut Vec<Duration>) -> Result<(), Failure> {
        let key = format!("{}{}", self.prefix, key.text());
        let started = Instant::now();
        let lent = self.pool.connection().await?;
        let fresh = lent.client.execute(&lent.claim, &[&SCOPE, &key]).await? == 1;
        drop(lent);
        if !fresh {
            let lent = self.pool.connection().await?;
            let answer: Option<String> = lent.client.query_one(&lent.look, &[&SCOPE, &key]).await?.get(0);
            took.push(started.elapsed());
            assert!(
                answer.is_some_and(|answer| answer.len() == ANSWER_BYTES),
                "a repeated key has its answer"
            );
            return Ok(());
        }
        took.push(started.elapsed());
        let started = Instant::now();
        let lent = self.pool.connection().await?;
        lent.client.execute(&lent.settle, &[&SCOPE, &key, &"r".repeat(ANSWER_BYTES)]).await?;
        took.push(started.elapsed());
        Ok(())
    }
}

/// What makes a new server's log as long as its files may be.
const LOG_MEGABYTES: usize = 1500;
/// How long connections take to go.
const LEAVING: Duration = Duration::from_millis(500);
/// Connections of the naive peer, as many as an ordinary pool has.
const NAIVE_CONNECTIONS: usize = 64;

/// Writes to the server's log, and has it make room: from then on it uses its files again, as one does that has been at work for a
/// while. A new one makes files as it goes, and everybody waits for each.
pub(crate) async fn make_log_files(url: &str) -> Result<(), tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    client
        .simple_query(&format!(
            "SELECT count(pg_logical_emit_message(false, 'bench', repeat('x', 1000000))) FROM generate_series(1, {LOG_MEGABYTES})"
        ))
        .await?;
    client.simple_query("CHECKPOINT").await?;
    Ok(())
}

pub(crate) async fn measure(
    plan: &Plan,
    report: &Report,
    load: impl Fn(usize, u64) -> Load,
    url: &str,
) -> Result<(), Box<dyn std::error::Error>> {
    report.heading(
        "PostgreSQL against naive claims (INSERT ON CONFLICT + UPDATE, 64 connections), 20 % repeated keys",
    );
    make_log_files(url).await?;
    // As a server has it.
    let options = Options { remember: true, ..Options::default() };
    let store = Guarded::open(&Address::parse(url)?, options, Policy::default()).await?;
    for (callers, wanted) in [(1, None), (64, Some(1.5)), (256, Some(3.0))] {
        let name = format!("{callers} callers");
        if !plan.wants(&name) {
            continue;
        }
        let mut naive = Vec::new();
        let mut ours = Vec::new();
        for round in 0..plan.rounds {
            let prefix = format!("{callers}-{round}-{}:", std::process::id());
            let peer = Naive::connect(url, NAIVE_CONNECTIONS, &prefix).await?;
            naive.push(harness::run(&load(callers, 20), &peer).await?);
            drop(peer);
            // The server takes a while to end so many processes.
            tokio::time::sleep(LEAVING).await;
            ours.push(harness::run(&load(callers, 20), &store.with_prefix(&prefix)).await?);
        }
        report.compare(&name, "naive", &naive, "PostgreSQL", &ours, wanted);
    }
    Ok(())
}
