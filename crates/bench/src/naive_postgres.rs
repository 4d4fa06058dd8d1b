//! PostgreSQL: our store against what people write by hand, on the same server.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_postgres::{Client, NoTls, Statement};
use twicesafe_core::Policy;
use twicesafe_store::{Address, Options};

use crate::Plan;
use crate::harness::{self, Key, Load, Subject};
use crate::report::Report;
use crate::subject::{ANSWER_BYTES, Guarded, SCOPE};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// INSERT ON CONFLICT, then UPDATE, prepared, a connection a caller: no fingerprint, no fence, no journal.
#[derive(Clone)]
struct Naive {
    connections: Arc<Vec<(Client, Statement, Statement, Statement)>>,
    prefix: Arc<str>,
}

impl Naive {
    async fn connect(
        url: &str,
        connections: usize,
        prefix: &str,
    ) -> Result<Self, Box<dyn std::error::Error>> {
        let mut open = Vec::new();
        for _ in 0..connections {
            let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
            tokio::spawn(connection);
            if open.is_empty() {
                client
                    .batch_execute(
                        "CREATE TABLE IF NOT EXISTS naive (scope text, key text, fingerprint text, status smallint,
                         lease timestamptz, done timestamptz, answer text, PRIMARY KEY (scope, key))",
                    )
                    .await?;
            }
            let claim = client
                .prepare(
                    "INSERT INTO naive (scope, key, fingerprint, status, lease)
                     VALUES ($1, $2, 'f', 0, now() + interval '60 s') ON CONFLICT DO NOTHING",
                )
                .await?;
            let settle = client
                .prepare(
                    "UPDATE naive SET status = 1, answer = $3, done = now() WHERE scope = $1 AND key = $2",
                )
                .await?;
            let look = client.prepare("SELECT answer FROM naive WHERE scope = $1 AND key = $2").await?;
            open.push((client, claim, settle, look));
        }
        Ok(Self { connections: Arc::new(open), prefix: prefix.into() })
    }
}

impl Subject for Naive {
    async fn effect(&self, key: Key, took: &mut Vec<Duration>) -> Result<(), Failure> {
        let (client, claim, settle, look) = &self.connections[key.caller % self.connections.len()];
        let key = format!("{}{}", self.prefix, key.text());
        let started = Instant::now();
        let fresh = client.execute(claim, &[&SCOPE, &key]).await? == 1;
        if !fresh {
            let answer: Option<String> = client.query_one(look, &[&SCOPE, &key]).await?.get(0);
            took.push(started.elapsed());
            assert!(
                answer.is_some_and(|answer| answer.len() == ANSWER_BYTES),
                "a repeated key has its answer"
            );
            return Ok(());
        }
        took.push(started.elapsed());
        let started = Instant::now();
        client.execute(settle, &[&SCOPE, &key, &"r".repeat(ANSWER_BYTES)]).await?;
        took.push(started.elapsed());
        Ok(())
    }
}

/// Connections of the naive peer, as many as an ordinary pool has.
const NAIVE_CONNECTIONS: usize = 64;

pub(crate) async fn measure(
    plan: &Plan,
    report: &Report,
    load: impl Fn(usize, u64) -> Load,
    url: &str,
) -> Result<(), Box<dyn std::error::Error>> {
    report.heading(
        "PostgreSQL against naive claims (INSERT ON CONFLICT + UPDATE, 64 connections), 20 % repeated keys",
    );
    let store = Guarded::open(&Address::parse(url)?, Options::default(), Policy::default()).await?;
    for (callers, wanted) in [(1, None), (64, Some(1.5)), (256, Some(3.0))] {
        let mut naive = Vec::new();
        let mut ours = Vec::new();
        for round in 0..plan.rounds {
            let prefix = format!("{callers}-{round}-{}:", std::process::id());
            let peer = Naive::connect(url, NAIVE_CONNECTIONS, &prefix).await?;
            naive.push(harness::run(&load(callers, 20), &peer).await?);
            drop(peer);
            ours.push(harness::run(&load(callers, 20), &store.with_prefix(&prefix)).await?);
        }
        report.compare(&format!("{callers} callers"), "naive", &naive, "PostgreSQL", &ours, wanted);
    }
    Ok(())
}
