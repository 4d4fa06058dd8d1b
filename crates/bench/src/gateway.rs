//! The gateway, as a process of its own, against nginx as a plain reverse proxy to the same destination, which answers 1 KiB.
//! Guarded writes are claimed and settled durably; nginx only passes them on.

use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::Mutex;

use crate::Plan;
use crate::harness::{self, Key, Load, Subject};
use crate::raw_log::RawLog;
use crate::report::{Report, median, middle};
use crate::server::{Failure, Line, Serving, fill, http_end, lines};
use crate::subject::ANSWER_BYTES;

/// What tells this program to be the destination.
pub(crate) const DESTINATION: &str = "TWICESAFE_BENCH_DESTINATION";

/// Answers to everything, for ever: so many bytes, after so many milliseconds.
pub(crate) fn be_the_destination(said: &str) -> Result<(), Box<dyn std::error::Error>> {
    let (bytes, millis) = said.split_once(' ').ok_or("BYTES MILLISECONDS")?;
    let (bytes, delay) = (bytes.parse::<usize>()?, Duration::from_millis(millis.parse()?));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        writeln!(std::io::stdout(), "{}", listener.local_addr()?)?;
        let answer: Arc<[u8]> = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {bytes}\r\n\r\n\"{}\"",
            "r".repeat(bytes - 2)
        )
        .into_bytes()
        .into();
        loop {
            let (mut stream, _) = listener.accept().await?;
            let answer = answer.clone();
            tokio::spawn(async move {
                let _ = stream.set_nodelay(true);
                let mut read = Vec::with_capacity(4096);
                while stream.read_buf(&mut read).await.is_ok_and(|bytes| bytes > 0) {
                    while let Some(end) = request_end(&read) {
                        read.drain(..end);
                        if !delay.is_zero() {
                            tokio::time::sleep(delay).await;
                        }
                        if stream.write_all(&answer).await.is_err() {
                            return;
                        }
                    }
                }
            });
        }
    })
}

pub(crate) fn request_end(read: &[u8]) -> Option<usize> {
    let head = read.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let text = std::str::from_utf8(&read[..head]).ok()?;
    let length = text.lines().find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        name.eq_ignore_ascii_case("content-length").then(|| value.parse::<usize>().ok())?
    });
    Some(head + length.unwrap_or(0)).filter(|end| *end <= read.len())
}

/// A process that is ended when dropped, with the workers it may have.
pub(crate) struct Running(pub(crate) Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Killed outright, nginx would leave its workers behind.
        let _ = Command::new("kill").arg(self.0.id().to_string()).status();
        let _ = self.0.wait();
    }
}

pub(crate) fn destination(
    bytes: usize,
    delay: Duration,
) -> Result<(Running, String), Box<dyn std::error::Error>> {
    oneself_as(DESTINATION, &format!("{bytes} {}", delay.as_millis()))
}

/// This program, told to be something else; it says where it listens.
pub(crate) fn oneself_as(what: &str, how: &str) -> Result<(Running, String), Box<dyn std::error::Error>> {
    let mut child = Command::new(std::env::current_exe()?).env(what, how).stdout(Stdio::piped()).spawn()?;
    let mut address = String::new();
    let out = child.stdout.take().ok_or("no output")?;
    std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut address)?;
    Ok((Running(child), address.trim().to_owned()))
}

/// nginx with two workers and connections that stay, in front of the destination.
async fn nginx(folder: &Path, destination: &str) -> Result<(Running, String), Box<dyn std::error::Error>> {
    let address = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
    let folder = folder.canonicalize()?;
    let config = format!(
        "daemon off; worker_processes 2; pid {0}/nginx.pid; error_log {0}/nginx.log;
events {{ worker_connections 4096; }}
http {{
  access_log off; client_body_temp_path {0}/body; proxy_temp_path {0}/proxy; fastcgi_temp_path {0}/f; uwsgi_temp_path {0}/u;
  scgi_temp_path {0}/s; keepalive_requests 100000000;
  upstream to {{ server {destination}; keepalive 256; keepalive_requests 100000000; }}
  server {{ listen {address}; location / {{ proxy_pass http://to; proxy_http_version 1.1; proxy_set_header Connection \"\"; }} }}
}}\n",
        folder.display()
    );
    let file = folder.join("nginx.conf");
    std::fs::write(&file, config)?;
    let child = Command::new("nginx")
        .arg("-p")
        .arg(&folder)
        .arg("-c")
        .arg(&file)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let running = Running(child);
    for _ in 0..100 {
        if Line::connect(&address).await.is_ok() {
            return Ok((running, address));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Err("nginx did not start".into())
}

/// One request of a caller, through whatever stands in front of the destination.
#[derive(Clone)]
struct Proxied {
    lines: Arc<Vec<Mutex<Line>>>,
    method: &'static str,
    path: &'static str,
    prefix: Arc<str>,
}

impl Subject for Proxied {
    async fn effect(&self, key: Key, took: &mut Vec<Duration>) -> Result<(), Failure> {
        let mut line = self.lines[key.asked_by % self.lines.len()].lock().await;
        let started = Instant::now();
        let body = match self.method {
            "GET" => String::new(),
            _ => format!(r#"{{"id":"{}{}","amount":{}}}"#, self.prefix, key.text(), key.number),
        };
        let request = format!(
            "{} {} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            self.method,
            self.path,
            body.len()
        );
        line.stream.write_all(request.as_bytes()).await?;
        let answer = line.answer(http_end).await?;
        assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
        took.push(started.elapsed());
        Ok(())
    }
}

pub(crate) async fn measure(
    plan: &Plan,
    report: &Report,
    load: impl Fn(usize, u64) -> Load,
) -> Result<(), Box<dyn std::error::Error>> {
    let (_destination, at) = destination(ANSWER_BYTES, Duration::ZERO)?;
    let (_nginx, proxy) = nginx(&plan.folder, &at).await?;
    let more = configured(plan, &at, "")?;
    report.heading("The gateway against nginx as a plain reverse proxy, requests a second, SQLite");
    for (what, callers, method, repeated, wanted) in [
        ("guarded POST, fresh keys", 64, "POST", 0, Some(0.2)),
        ("replays", 64, "POST", 100, Some(0.8)),
        ("GET", 64, "GET", 0, Some(0.5)),
        ("guarded POST, fresh keys", 1, "POST", 0, None),
    ] {
        let what = format!("{what}, {callers} connections");
        if !plan.wants(&what) {
            continue;
        }
        let (mut theirs, mut ours, mut syncs) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..plan.rounds {
            let prefix: Arc<str> = format!("{method}-{callers}-{repeated}-{round}:").into();
            let ledger = plan.folder.join(format!("gateway-{method}-{callers}-{repeated}-{round}.db"));
            let serving =
                Serving::start_with(&plan.server, &format!("sqlite:{}", ledger.display()), &more).await?;
            let peer = Proxied {
                lines: lines(&proxy, callers).await?,
                method,
                path: "/orders",
                prefix: prefix.clone(),
            };
            let path = "/to/shop/orders";
            let subject = Proxied { lines: lines(&serving.address, callers).await?, method, path, prefix };
            if repeated == 100 {
                fill(&subject).await?;
            }
            theirs.push(harness::run(&load(callers, repeated), &peer).await?);
            ours.push(harness::run(&load(callers, repeated), &subject).await?);
            if callers == 1 {
                let log = RawLog::create(&plan.folder.join(format!("raw-{round}")))?;
                syncs.push(harness::run(&load(1, 0), &log).await?);
            }
        }
        report.compare(&what, "nginx", &theirs, "Twicesafe", &ours, wanted);
        if callers == 1 {
            // An op of the raw log is an append and its sync: a guarded call has two of them.
            let own = median(&ours).p50.saturating_sub(median(&theirs).p50);
            let beyond = own.saturating_sub(2 * median(&syncs).p50);
            report.at_most(
                "what a guarded call adds beyond two commits, p50",
                beyond.as_secs_f64() * 1000.0,
                "ms",
                1.0,
            );
        }
    }
    Ok(())
}

/// A configuration in front of a destination, as arguments.
fn configured(plan: &Plan, at: &str, more: &str) -> Result<[String; 2], Box<dyn std::error::Error>> {
    let config = plan.folder.join("gateway.yaml");
    let route = "{ match: POST /orders, action: order.place, key: request.body.id, recovery: person }";
    let text = format!(
        "destinations:\n  shop:\n    base: http://{at}\n    auth: none\n{more}    routes:\n      - {route}\n"
    );
    std::fs::write(&config, text)?;
    Ok(["--config".to_owned(), config.display().to_string()])
}

/// Connections of the soak, and what is answered to each request.
const SOAKED: usize = 1000;
const LARGE: usize = 1 << 20;
/// How often its memory is looked at.
const SAMPLES: usize = 600;

/// A thousand connections that read a megabyte again and again: what stays behind.
pub(crate) async fn soak(plan: &Plan, report: &Report) -> Result<(), Box<dyn std::error::Error>> {
    report.heading(&format!("{SOAKED} connections, answers of 1 MiB, for {} s", plan.seconds));
    let (_destination, at) = destination(LARGE, Duration::ZERO)?;
    let more = configured(plan, &at, "")?;
    let ledger = format!("sqlite:{}", plan.folder.join("soak.db").display());
    let serving = Serving::start_with(&plan.server, &ledger, &more).await?;
    let load = |span: f64| Load {
        callers: SOAKED,
        repeated_percent: 0,
        by_chance: false,
        span: Duration::from_secs_f64(span),
    };
    let subject = async || {
        let (method, path, prefix) = ("GET", "/to/shop/orders", Arc::<str>::from(""));
        Ok::<_, Box<dyn std::error::Error>>(Proxied {
            lines: lines(&serving.address, SOAKED).await?,
            method,
            path,
            prefix,
        })
    };
    // The first tenth is for getting warm. What is compared is measured under the same load: how much is under way at a
    // moment is chance, so medians of the tenths after it and at the end.
    let mut every = tokio::time::interval(Duration::from_secs_f64((plan.seconds / SAMPLES as f64).max(0.01)));
    let mut resident = Vec::new();
    let run = {
        let (all, reading) = (load(plan.seconds), subject().await?);
        let mut running = std::pin::pin!(harness::run(&all, &reading));
        loop {
            tokio::select! {
                run = &mut running => break run?,
                _ = every.tick() => resident.push(serving.resident()? as f64 / 1e6),
            }
        }
    };
    tokio::time::sleep(Duration::from_secs(35)).await;
    let tenths: Vec<f64> = resident
        .chunks(resident.len().div_ceil(10).max(1))
        .map(|tenth| middle(&mut tenth.to_vec()))
        .collect();
    let shown: Vec<String> = tenths.iter().map(|tenth| format!("{tenth:.0}")).collect();
    report.line(&format!("memory by tenths of the time: {} MB", shown.join(", ")));
    report.line(&format!(
        "{:.0} answers a second; {:.0} MB when all have left; {} files open then",
        run.ops_per_second,
        serving.resident()? as f64 / 1e6,
        serving.files()?,
    ));
    if let [_, begun, .., ended] = tenths[..] {
        report.at_most("grown", ended / begun, "times", 1.2);
    }
    Ok(())
}

/// Two gateways on one PostgreSQL against one, by themselves and where the destination takes 20 ms.
pub(crate) async fn pair(
    plan: &Plan,
    report: &Report,
    load: impl Fn(usize, u64) -> Load,
) -> Result<(), Box<dyn std::error::Error>> {
    let url = plan.postgres.as_deref().ok_or("--postgres URL is needed for that part")?;
    report.heading("Two gateways on one PostgreSQL against one, requests a second");
    crate::naive_postgres::make_log_files(url).await?;
    for (what, connections, delay, limit, wanted) in [
        ("a quick destination, 64 connections in all", 64, 0, "", 0.9),
        ("a quick destination, 128 connections in all", 128, 0, "", 0.9),
        ("20 ms, 16 at a time each", 64, 20, "    limits: { concurrency: 16 }\n", 1.8),
    ] {
        if !plan.wants(what) {
            continue;
        }
        let (_destination, at) = destination(ANSWER_BYTES, Duration::from_millis(delay))?;
        let more = configured(plan, &at, limit)?;
        let gateways = [
            Serving::start_with(&plan.server, url, &more).await?,
            Serving::start_with(&plan.server, url, &more).await?,
        ];
        let (mut one, mut two) = (Vec::new(), Vec::new());
        for round in 0..plan.rounds {
            for (gateways, runs) in [(&gateways[..1], &mut one), (&gateways[..], &mut two)] {
                let mut lines = Vec::new();
                for gateway in gateways.iter().cycle().take(connections) {
                    lines.push(Mutex::new(Line::connect(&gateway.address).await?));
                }
                let started = (delay, connections, gateways.len());
                let prefix = format!("{started:?}-{round}-{}:", std::process::id()).into();
                let (method, path) = ("POST", "/to/shop/orders");
                let subject = Proxied { lines: Arc::new(lines), method, path, prefix };
                runs.push(harness::run(&load(connections, 0), &subject).await?);
            }
        }
        report.compare(what, "one", &one, "two", &two, Some(wanted));
        report.paired("two against one", &one, &two);
    }
    Ok(())
}
