//! The server, as a process of its own, against plain Redis that syncs every write: claim and settle as two requests on a
//! connection a caller, with an answer of 1 KiB.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Mutex;

use crate::Plan;
use crate::harness::{self, FILLED, Key, Load, Subject};
use crate::report::{Report, middle};
use crate::subject::{ANSWER_BYTES, SCOPE};

pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Connections that wait for an answer that does not come, in the `waiting` part.
const WAITING: usize = 10_000;

/// A connection and what was read from it.
pub(crate) struct Line {
    pub(crate) stream: TcpStream,
    read: Vec<u8>,
}

impl Line {
    pub(crate) async fn connect(address: &str) -> std::io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, read: Vec::with_capacity(8192) })
    }

    /// Reads until `whole` says where an answer ends.
    pub(crate) async fn answer(
        &mut self,
        whole: impl Fn(&[u8]) -> Option<usize>,
    ) -> Result<Vec<u8>, Failure> {
        loop {
            if let Some(end) = whole(&self.read) {
                // Whoever gave the room away would read the next answer in small pieces.
                return Ok(self.read.drain(..end).collect());
            }
            if self.stream.read_buf(&mut self.read).await? == 0 {
                return Err("the other end hung up".into());
            }
        }
    }
}

/// SET NX, then SET; GET for a repeated key. No fingerprint, no fence, no journal.
#[derive(Clone)]
struct Redis {
    lines: Arc<Vec<Mutex<Line>>>,
    prefix: Arc<str>,
}

pub(crate) fn resp(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend(*word);
        bytes.extend(b"\r\n");
    }
    bytes
}

pub(crate) fn resp_end(read: &[u8]) -> Option<usize> {
    let line = read.windows(2).position(|two| two == b"\r\n")? + 2;
    if read[0] != b'$' || read[1] == b'-' {
        return Some(line);
    }
    let length: usize = std::str::from_utf8(&read[1..line - 2]).ok()?.parse().ok()?;
    Some(line + length + 2).filter(|end| *end <= read.len())
}

impl Subject for Redis {
    async fn effect(&self, key: Key, took: &mut Vec<Duration>) -> Result<(), Failure> {
        let mut line = self.lines[key.asked_by % self.lines.len()].lock().await;
        let key = format!("{}{}", self.prefix, key.text());
        let started = Instant::now();
        let claim = resp(&[b"SET", key.as_bytes(), b"claimed:fingerprint", b"NX", b"PX", b"3600000"]);
        line.stream.write_all(&claim).await?;
        if line.answer(resp_end).await?.starts_with(b"+OK") {
            let answer = [b'r'; ANSWER_BYTES];
            line.stream.write_all(&resp(&[b"SET", key.as_bytes(), &answer, b"PX", b"3600000"])).await?;
            assert!(line.answer(resp_end).await?.starts_with(b"+OK"), "Redis takes what it is given");
        } else {
            line.stream.write_all(&resp(&[b"GET", key.as_bytes()])).await?;
            assert!(line.answer(resp_end).await?.len() > ANSWER_BYTES, "a repeated key has its answer");
        }
        took.push(started.elapsed());
        Ok(())
    }
}

/// Our server.
#[derive(Clone)]
struct Http {
    lines: Arc<Vec<Mutex<Line>>>,
    prefix: Arc<str>,
}

pub(crate) fn http_end(read: &[u8]) -> Option<usize> {
    let head = read.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let text = std::str::from_utf8(&read[..head]).ok()?;
    let length = text.lines().find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        name.eq_ignore_ascii_case("content-length").then(|| value.parse::<usize>().ok())?
    });
    Some(head + length?).filter(|end| *end <= read.len())
}

fn post(path: &str, body: &str) -> Vec<u8> {
    format!(
        "POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// The number after a name, in JSON that is known to hold it.
fn number(answer: &[u8], name: &str) -> Option<i64> {
    let text = std::str::from_utf8(answer).ok()?;
    let after = &text[text.find(&format!("\"{name}\":"))? + name.len() + 3..];
    after[..after.find([',', '}'])?].parse().ok()
}

/// The secret of a permit, likewise.
fn secret(answer: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(answer).ok()?;
    let after = text.split_once("\"secret\":\"")?.1;
    Some(after.split_once('"')?.0.to_owned())
}

impl Subject for Http {
    async fn effect(&self, key: Key, took: &mut Vec<Duration>) -> Result<(), Failure> {
        let mut line = self.lines[key.asked_by % self.lines.len()].lock().await;
        let started = Instant::now();
        let claim = format!(
            r#"{{"scope":"{SCOPE}","key":"{}{}","input":{{"amount":{},"currency":"eur"}}}}"#,
            self.prefix,
            key.text(),
            key.number
        );
        line.stream.write_all(&post("/v1/claim", &claim)).await?;
        let claimed = line.answer(http_end).await?;
        if claimed.starts_with(b"HTTP/1.1 201") {
            let intent = number(&claimed, "intent").ok_or("no intent")?;
            let fence = number(&claimed, "fence").ok_or("no fence")?;
            let secret = secret(&claimed).ok_or("no secret")?;
            let settle = format!(
                r#"{{"intent":{intent},"fence":{fence},"secret":"{secret}","generation":1,"outcome":"answered","answer":"{}"}}"#,
                "r".repeat(ANSWER_BYTES - 2)
            );
            line.stream.write_all(&post("/v1/settle", &settle)).await?;
            let settled = line.answer(http_end).await?;
            assert!(settled.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&settled));
        } else {
            assert!(claimed.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&claimed));
            assert!(claimed.len() > ANSWER_BYTES, "a repeated key has its answer");
        }
        took.push(started.elapsed());
        Ok(())
    }
}

/// A server process, ended when dropped.
pub(crate) struct Serving {
    child: Child,
    pub(crate) address: String,
}

impl Serving {
    async fn start(binary: &Path, ledger: &str) -> Result<Self, Box<dyn std::error::Error>> {
        Self::start_with(binary, ledger, &[]).await
    }

    pub(crate) async fn start_with(
        binary: &Path,
        ledger: &str,
        more: &[String],
    ) -> Result<Self, Box<dyn std::error::Error>> {
        let mut child = Command::new(binary)
            .args(["serve", "--listen", "127.0.0.1:0", "--ledger", ledger])
            .args(more)
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{}: {error}; build it with cargo build --release", binary.display()))?;
        let mut line = String::new();
        let out = child.stdout.take().ok_or("no output")?;
        std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line)?;
        let address = line.split("http://").nth(1).and_then(|rest| rest.split(' ').next());
        let address = address.ok_or("the server did not say where it listens")?.to_owned();
        Ok(Self { child, address })
    }

    /// Files and connections it has open.
    pub(crate) fn files(&self) -> std::io::Result<usize> {
        Ok(std::fs::read_dir(format!("/proc/{}/fd", self.child.id()))?.count())
    }

    /// What it has had of the processors.
    fn processor_time(&self) -> Result<Duration, Box<dyn std::error::Error>> {
        const TICKS_PER_SECOND: u64 = 100;
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        let after_name = stat.rsplit_once(") ").ok_or("no figures")?.1;
        let ticks = after_name.split(' ').skip(11).take(2).map(str::parse::<u64>).sum::<Result<u64, _>>()?;
        Ok(Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND))
    }

    /// A run, and what each of its effects took of the processors in this server, in microseconds: that depends less on what the disk does
    /// meanwhile.
    pub(crate) async fn run<S: Subject>(
        &self,
        load: &Load,
        subject: &S,
    ) -> Result<(harness::Run, f64), Box<dyn std::error::Error>> {
        let (before, started) = (self.processor_time()?, Instant::now());
        let run = harness::run(load, subject).await?;
        let effects = run.ops_per_second * started.elapsed().as_secs_f64();
        Ok((run, (self.processor_time()? - before).as_secs_f64() * 1e6 / effects))
    }

    /// Memory it holds, in bytes.
    pub(crate) fn resident(&self) -> Result<u64, Box<dyn std::error::Error>> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no figure")?;
        Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? * 1024)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) async fn lines(
    address: &str,
    count: usize,
) -> Result<Arc<Vec<Mutex<Line>>>, Box<dyn std::error::Error>> {
    let mut lines = Vec::new();
    for _ in 0..count {
        lines.push(Mutex::new(Line::connect(address).await?));
    }
    Ok(Arc::new(lines))
}

/// Makes the keys that repetitions ask for.
pub(crate) async fn fill<S: Subject>(subject: &S) -> Result<(), Box<dyn std::error::Error>> {
    let callers: Vec<_> = (0..64)
        .map(|part| {
            let subject = subject.clone();
            tokio::spawn(async move {
                let mut took = Vec::new();
                for number in (part..FILLED).step_by(64) {
                    subject
                        .effect(
                            Key { asked_by: part as usize, caller: 0, number, by_chance: false },
                            &mut took,
                        )
                        .await?;
                }
                Ok::<_, Failure>(())
            })
        })
        .collect();
    for caller in callers {
        caller.await?.map_err(|error| error.to_string())?;
    }
    Ok(())
}

pub(crate) async fn measure(
    plan: &Plan,
    report: &Report,
    load: impl Fn(usize, u64) -> Load,
) -> Result<(), Box<dyn std::error::Error>> {
    let redis = plan.redis.as_deref().ok_or("--redis HOST:PORT is needed for that part")?;
    report.heading("The server against Redis (SET NX + SET, appendfsync always), effects a second, SQLite");
    for (callers, repeated, wanted) in [(1, 0, 0.5), (64, 0, 0.5), (64, 100, 0.8)] {
        let keys = if repeated == 100 { "repeated keys" } else { "fresh keys" };
        let what = format!("{callers} connections, {keys}");
        if !plan.wants(&what) {
            continue;
        }
        let (mut theirs, mut ours) = (Vec::new(), Vec::new());
        for round in 0..plan.rounds {
            let prefix: Arc<str> = format!("{callers}-{repeated}-{round}-{}:", std::process::id()).into();
            let peer = Redis { lines: lines(redis, callers).await?, prefix: prefix.clone() };
            let ledger = plan.folder.join(format!("server-{callers}-{repeated}-{round}.db"));
            let serving = Serving::start(&plan.server, &format!("sqlite:{}", ledger.display())).await?;
            let subject = Http { lines: lines(&serving.address, callers).await?, prefix };
            if repeated == 100 {
                fill(&peer).await?;
                fill(&subject).await?;
            }
            theirs.push(harness::run(&load(callers, repeated), &peer).await?);
            ours.push(harness::run(&load(callers, repeated), &subject).await?);
        }
        report.compare(&what, "Redis", &theirs, "Twicesafe", &ours, Some(wanted));
    }
    Ok(())
}

/// Ten thousand who wait for an answer that does not come, and what that costs.
pub(crate) async fn waiting(
    plan: &Plan,
    report: &Report,
    load: impl Fn(usize, u64) -> Load,
) -> Result<(), Box<dyn std::error::Error>> {
    report.heading(&format!("{WAITING} idle long-polls, SQLite"));
    let ledger = plan.folder.join("waiting.db");
    let serving = Serving::start(&plan.server, &format!("sqlite:{}", ledger.display())).await?;
    let working = |prefix: &str| {
        let (address, prefix) = (serving.address.clone(), Arc::<str>::from(prefix));
        async move { Ok::<_, Box<dyn std::error::Error>>(Http { lines: lines(&address, 64).await?, prefix }) }
    };
    let rounds = async |subject: &Http, runs: &mut Vec<harness::Run>, micros: &mut Vec<f64>| {
        for _ in 0..plan.rounds {
            let (run, each) = serving.run(&load(64, 20), subject).await?;
            runs.push(run);
            micros.push(each);
        }
        Ok::<_, Box<dyn std::error::Error>>(())
    };
    let (mut before, mut micros_before) = (Vec::new(), Vec::new());
    rounds(&working("alone:").await?, &mut before, &mut micros_before).await?;
    let resident = serving.resident()?;
    let mut idle = Vec::new();
    let mut holder = Line::connect(&serving.address).await?;
    for number in 0..WAITING {
        // A hundred wait for each: the first of them acts, and says nothing.
        let key = number / 100;
        if number % 100 == 0 {
            let claim = format!(r#"{{"scope":"{SCOPE}","key":"waited-for:{key}","lease_ms":600000}}"#);
            holder.stream.write_all(&post("/v1/claim", &claim)).await?;
            holder.answer(http_end).await.map_err(|error| error.to_string())?;
        }
        let mut line = Line::connect(&serving.address).await?;
        let claim =
            format!(r#"{{"scope":"{SCOPE}","key":"waited-for:{key}","lease_ms":600000,"wait_ms":60000}}"#);
        line.stream.write_all(&post("/v1/claim", &claim)).await?;
        idle.push(line);
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let grown = serving.resident()?.saturating_sub(resident);
    report.at_most("memory for them", grown as f64 / 1e6, "MB", 200.0);
    let (mut beside, mut micros_beside) = (Vec::new(), Vec::new());
    rounds(&working("beside:").await?, &mut beside, &mut micros_beside).await?;
    drop(idle);
    tokio::time::sleep(Duration::from_secs(1)).await;
    // A ledger takes less the more it has: without them is measured before and after.
    rounds(&working("again:").await?, &mut before, &mut micros_before).await?;
    report.compare("64 connections beside them", "without", &before, "with", &beside, Some(0.9));
    let (without, with) = (middle(&mut micros_before), middle(&mut micros_beside));
    report.line(&format!(
        "processor time of the server for an effect: without {without:.1} us, with {with:.1} us, ratio {:.2}",
        with / without
    ));
    Ok(())
}
