//! The inbox, as a process of its own: durable acknowledgements against plain Redis SET that syncs every write, what is handed
//! over against what arrives, and what a backlog of a million events costs.

use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ring::hmac;
use tokio::io::AsyncWriteExt;
use tokio::sync::Mutex;

use crate::Plan;
use crate::gateway::destination;
use crate::harness::{self, Key, Load, Run, Subject};
use crate::report::{Report, median, middle};
use crate::server::{Failure, Line, Serving, http_end, lines, resp, resp_end};

/// The body of an event, and of one of the backlog.
const EVENT_BYTES: usize = 2048;
const BACKLOG_EVENT_BYTES: usize = 200;
const SECRET: &[u8] = b"bench-secret";
const CONNECTIONS: usize = 64;
/// How long handing over may take to catch up.
const CAUGHT_UP_WITHIN: Duration = Duration::from_secs(600);

/// Events, signed the way GitHub does. Senders are other machines, and what they have to do is not what is measured: all events say
/// the same and are signed once, and each has an id of its own.
#[derive(Clone)]
struct Sender {
    lines: Arc<Vec<Mutex<Line>>>,
    prefix: Arc<str>,
    /// What comes after the id.
    rest: Arc<str>,
}

impl Sender {
    async fn new(serving: &Serving, prefix: &str, bytes: usize) -> Result<Self, Box<dyn std::error::Error>> {
        let body = event(bytes);
        let mut signature = String::new();
        for byte in hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, SECRET), body.as_bytes()).as_ref() {
            write!(signature, "{byte:02x}")?;
        }
        let rest = format!(
            "\r\nx-github-event: orders\r\nx-hub-signature-256: sha256={signature}\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let lines = lines(&serving.address, CONNECTIONS).await?;
        Ok(Self { lines, prefix: prefix.into(), rest: rest.into() })
    }
}

fn event(bytes: usize) -> String {
    let start = r#"{"order":12,"action":"created","text":""#;
    format!("{start}{}\"}}", "e".repeat(bytes.saturating_sub(start.len() + 2)))
}

impl Subject for Sender {
    async fn effect(&self, key: Key, took: &mut Vec<Duration>) -> Result<(), Failure> {
        let request = format!(
            "POST /in/shop HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\nx-github-delivery: {}{}{}",
            self.prefix,
            key.text(),
            self.rest
        );
        let mut line = self.lines[key.asked_by % self.lines.len()].lock().await;
        let started = Instant::now();
        line.stream.write_all(request.as_bytes()).await?;
        let answer = line.answer(http_end).await?;
        assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
        took.push(started.elapsed());
        Ok(())
    }
}

/// The same bytes, set.
#[derive(Clone)]
struct Redis {
    lines: Arc<Vec<Mutex<Line>>>,
    prefix: Arc<str>,
    body: Arc<str>,
}

impl Subject for Redis {
    async fn effect(&self, key: Key, took: &mut Vec<Duration>) -> Result<(), Failure> {
        let name = format!("{}{}", self.prefix, key.text());
        let mut line = self.lines[key.asked_by % self.lines.len()].lock().await;
        let started = Instant::now();
        line.stream.write_all(&resp(&[b"SET", name.as_bytes(), self.body.as_bytes()])).await?;
        assert!(line.answer(resp_end).await?.starts_with(b"+OK"), "Redis takes what it is given");
        took.push(started.elapsed());
        Ok(())
    }
}

/// A server with an inbox in front of a target.
async fn serving(plan: &Plan, name: &str, target: &str) -> Result<Serving, Box<dyn std::error::Error>> {
    let config = plan.folder.join("inbox.yaml");
    let lane = if plan.objects { "    lane: event.headers['x-github-delivery']\n" } else { "" };
    let text = format!(
        "inboxes:\n  shop:\n    provider: github\n    secrets: [{}]\n    deliver: http://{target}/\n    limits: {{ concurrency: 128 }}\n{lane}",
        String::from_utf8_lossy(SECRET)
    );
    std::fs::write(&config, text)?;
    let ledger = format!("sqlite:{}", plan.folder.join(format!("inbox-{name}.db")).display());
    Serving::start_with(&plan.server, &ledger, &["--config".to_owned(), config.display().to_string()]).await
}

async fn ask(serving: &Serving, request: String) -> Result<String, Box<dyn std::error::Error>> {
    let mut line = Line::connect(&serving.address).await?;
    line.stream.write_all(request.as_bytes()).await?;
    let answer = line.answer(http_end).await.map_err(|error| error.to_string())?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

async fn pause(serving: &Serving, what: &str) -> Result<(), Box<dyn std::error::Error>> {
    let body = r#"{"inbox":"shop"}"#;
    let request = format!(
        "POST /v1/inbox/{what} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    match ask(serving, request).await? {
        answer if answer.starts_with("HTTP/1.1 200") => Ok(()),
        answer => Err(answer.into()),
    }
}

/// How many were handed over so far.
async fn delivered(serving: &Serving) -> Result<u64, Box<dyn std::error::Error>> {
    let answer = ask(serving, "GET /v1/inboxes HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".to_owned()).await?;
    let after = answer.split("\"delivered\":").nth(1).unwrap_or("0");
    Ok(after.split([',', '}']).next().and_then(|number| number.parse().ok()).unwrap_or(0))
}

pub(crate) async fn measure(
    plan: &Plan,
    report: &Report,
    load: impl Fn(usize, u64) -> Load,
) -> Result<(), Box<dyn std::error::Error>> {
    if plan.wants("acknowledgements") {
        arrivals(plan, report, &load).await?;
    }
    if plan.wants("backlog") {
        backlog(plan, report, load).await?;
    }
    Ok(())
}

async fn arrivals(
    plan: &Plan,
    report: &Report,
    load: &impl Fn(usize, u64) -> Load,
) -> Result<(), Box<dyn std::error::Error>> {
    let redis = plan.redis.as_deref().ok_or("--redis HOST:PORT is needed for that part")?;
    let (_target, at) = destination(100, Duration::ZERO)?;
    report.heading("The inbox against Redis (SET, appendfsync always), 64 connections, 2 KiB, SQLite");
    let (mut theirs, mut alone, mut beside, mut drained) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for round in 0..plan.rounds {
        let prefix: Arc<str> = format!("inbox-{round}-{}:", std::process::id()).into();
        let body = event(EVENT_BYTES).into();
        let peer = Redis { lines: lines(redis, CONNECTIONS).await?, prefix, body };
        theirs.push(harness::run(&load(CONNECTIONS, 0), &peer).await?);
        let serving = serving(plan, &format!("{round}"), &at).await?;
        pause(&serving, "pause").await?;
        let sender = Sender::new(&serving, "a", EVENT_BYTES).await?;
        alone.push(harness::run(&load(CONNECTIONS, 0), &sender).await?);
        // What has arrived is handed over, by itself.
        let waiting = alone.last().map_or(0.0, |run: &Run| run.ops_per_second) * plan.seconds;
        pause(&serving, "resume").await?;
        let started = Instant::now();
        while (delivered(&serving).await? as f64) < waiting * 0.95 && started.elapsed() < CAUGHT_UP_WITHIN {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        drained.push(delivered(&serving).await? as f64 / started.elapsed().as_secs_f64());
        // Both at once.
        let before = (delivered(&serving).await?, Instant::now());
        let sender = Sender::new(&serving, "b", EVENT_BYTES).await?;
        let run = harness::run(&load(CONNECTIONS, 0), &sender).await?;
        let meanwhile = (delivered(&serving).await? - before.0) as f64 / before.1.elapsed().as_secs_f64();
        beside.push((run, meanwhile));
    }
    report.compare("acknowledgements, nothing handed over", "Redis", &theirs, "Twicesafe", &alone, Some(0.5));
    report.at_most("p99 of an acknowledgement", median(&alone).p99.as_secs_f64() * 1000.0, "ms", 100.0);
    let drain = middle(&mut drained);
    report.line(&format!("handed over afterwards, to a local target: {drain:.0}/s"));
    report.at_least("handed over against arrived", drain / median(&alone).ops_per_second, 0.5);
    let runs: Vec<Run> = beside.iter().map(|(run, _)| run.clone()).collect();
    report.compare(
        "acknowledgements while events are handed over",
        "Redis",
        &theirs,
        "Twicesafe",
        &runs,
        None,
    );
    let mut meanwhile: Vec<f64> = beside.iter().map(|(_, rate)| *rate).collect();
    report.line(&format!("handed over meanwhile: {:.0}/s", middle(&mut meanwhile)));
    Ok(())
}

/// Arrival at three ledgers in turn: an empty one, one with a million events that were handed over, and one with a million that
/// wait. A ledger that grows costs something by itself (see the growth part); what the backlog costs is what comes on top of it.
async fn backlog(
    plan: &Plan,
    report: &Report,
    load: impl Fn(usize, u64) -> Load,
) -> Result<(), Box<dyn std::error::Error>> {
    report.heading(&format!("A backlog of {} events", plan.growth_intents));
    // Nobody is there: the circuit opens, and is tried again and again.
    let away = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
    let empty = serving(plan, "empty", &away).await?;
    let (target, at) = destination(100, Duration::ZERO)?;
    let handed_over = serving(plan, "handed-over", &at).await?;
    fill(plan, &handed_over).await?;
    let started = Instant::now();
    while delivered(&handed_over).await? < plan.growth_intents / CONNECTIONS as u64 * CONNECTIONS as u64 {
        if started.elapsed() > CAUGHT_UP_WITHIN {
            return Err("what was to be handed over was not".into());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    drop(target);
    let waiting = serving(plan, "backlog", &away).await?;
    let filled = fill(plan, &waiting).await?;
    report.line(&format!("filled at {filled:.0}/s"));
    let servers = [&empty, &handed_over, &waiting];
    let (mut runs, mut micros): ([Vec<Run>; 3], [Vec<f64>; 3]) = Default::default();
    for round in 0..plan.rounds {
        // Each comes after each of the others: what one wrote may still be on its way to the disk.
        for turn in 0..servers.len() {
            let which = (round + turn) % servers.len();
            let sender = Sender::new(servers[which], &format!("round-{round}-"), EVENT_BYTES).await?;
            let (run, each) = servers[which].run(&load(CONNECTIONS, 0), &sender).await?;
            runs[which].push(run);
            micros[which].push(each);
        }
    }
    let memory = [empty.resident()?, handed_over.resident()?, waiting.resident()?];
    let [empty, handed_over, waiting] = runs;
    report.compare("acknowledgements", "empty", &empty, "all waiting", &waiting, Some(0.9));
    report.compare("acknowledgements", "empty", &empty, "all handed over", &handed_over, None);
    report.compare("acknowledgements", "all handed over", &handed_over, "all waiting", &waiting, None);
    report.paired("all waiting against empty", &empty, &waiting);
    report.paired("all handed over against empty", &empty, &handed_over);
    let [empty, handed_over, waiting] = micros.map(|mut micros| middle(&mut micros));
    report.line(&format!(
        "processor time of the servers for an event: empty {empty:.1} us, all handed over {handed_over:.1} us, all waiting {waiting:.1} us"
    ));
    let [empty, handed_over, waiting] = memory.map(|bytes| bytes as f64 / 1e6);
    report.line(&format!(
        "memory of the servers: empty {empty:.0} MB, all handed over {handed_over:.0} MB, all waiting {waiting:.0} MB"
    ));
    Ok(())
}

/// Sends the backlog; says how many a second arrived.
async fn fill(plan: &Plan, serving: &Serving) -> Result<f64, Box<dyn std::error::Error>> {
    let sender = Sender::new(serving, "backlog-", BACKLOG_EVENT_BYTES).await?;
    let each = plan.growth_intents / CONNECTIONS as u64;
    let started = Instant::now();
    let by_chance = plan.by_chance;
    let filling: Vec<_> = (0..CONNECTIONS)
        .map(|caller| {
            let sender = sender.clone();
            tokio::spawn(async move {
                let mut took = Vec::new();
                for number in 0..each {
                    sender.effect(Key { asked_by: caller, caller, number, by_chance }, &mut took).await?;
                    took.clear();
                }
                Ok::<_, Failure>(())
            })
        })
        .collect();
    for filling in filling {
        filling.await?.map_err(|error| error.to_string())?;
    }
    Ok(plan.growth_intents as f64 / started.elapsed().as_secs_f64())
}
