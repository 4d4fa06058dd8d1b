//! Pinned answers of AI models: the time to the first token through the gateway and without it, pinned answers against
//! LiteLLM's proxy with its cache on, and what many streams at once take.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::Plan;
use crate::gateway::{Running, oneself_as, request_end};
use crate::harness::{self, Key, Load, Subject};
use crate::report::{Report, median, middle};
use crate::server::{Failure, Line, Serving, http_end, lines};

/// What tells this program to be the provider.
pub(crate) const MODEL: &str = "TWICESAFE_BENCH_MODEL";
/// Words of an answer.
const WORDS: usize = 200;
/// Different prompts, each asked again and again.
const PROMPTS: u64 = 100;
/// Streams at the same time.
const STREAMS: usize = 500;
/// Questions of which the first token is timed, in each round.
const TIMED: usize = 300;

/// Answers every question, for ever: whole at once, streams with so many milliseconds between words.
pub(crate) fn be_the_model(said: &str) -> Result<(), Box<dyn std::error::Error>> {
    let pause = Duration::from_millis(said.parse()?);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        writeln!(std::io::stdout(), "{}", listener.local_addr()?)?;
        loop {
            let (stream, _) = listener.accept().await?;
            tokio::spawn(serve(stream, pause));
        }
    })
}

async fn serve(mut stream: TcpStream, pause: Duration) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let piece = |delta: &str, ended: &str| {
        format!(
            r#"data: {{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"gpt-4o","choices":[{{"index":0,"delta":{delta},"finish_reason":{ended}}}]}}"#
        ) + "\n\n"
    };
    let text = "word ".repeat(WORDS);
    let body = format!(
        r#"{{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"gpt-4o","choices":[{{"index":0,"message":{{"role":"assistant","content":"{text}"}},"finish_reason":"stop"}}],"usage":{{"prompt_tokens":10,"completion_tokens":200,"total_tokens":210}}}}"#
    );
    let whole = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut read = Vec::with_capacity(4096);
    while stream.read_buf(&mut read).await? > 0 {
        while let Some(end) = request_end(&read) {
            let is_stream = read[..end].windows(13).any(|bytes| bytes == b"\"stream\":true");
            read.drain(..end);
            if !is_stream {
                stream.write_all(whole.as_bytes()).await?;
                continue;
            }
            let head =
                "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
            stream.write_all(head.as_bytes()).await?;
            for number in 0..=WORDS + 1 {
                let event = match number {
                    number if number < WORDS => piece(r#"{"content":"word "}"#, "null"),
                    WORDS => piece("{}", "\"stop\""),
                    _ => "data: [DONE]\n\n".to_owned(),
                };
                stream.write_all(format!("{:x}\r\n{event}\r\n", event.len()).as_bytes()).await?;
                if !pause.is_zero() {
                    tokio::time::sleep(pause).await;
                }
            }
            stream.write_all(b"0\r\n\r\n").await?;
        }
    }
    Ok(())
}

fn model(pause: Duration) -> Result<(Running, String), Box<dyn std::error::Error>> {
    oneself_as(MODEL, &pause.as_millis().to_string())
}

async fn gateway(plan: &Plan, at: &str, ledger: &str) -> Result<Serving, Box<dyn std::error::Error>> {
    let config = plan.folder.join("pins.yaml");
    std::fs::write(
        &config,
        format!("destinations:\n  ai: {{ use: openai, base: \"http://{at}\", auth: none }}\n"),
    )?;
    let more = ["--config".to_owned(), config.display().to_string()];
    let ledger = format!("sqlite:{}", plan.folder.join(ledger).display());
    Serving::start_with(&plan.server, &ledger, &more).await
}

/// LiteLLM's proxy with its cache in memory, in front of the same provider.
async fn litellm(
    program: &Path,
    folder: &Path,
    at: &str,
) -> Result<(Running, String), Box<dyn std::error::Error>> {
    let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let config = folder.join("litellm.yaml");
    let text = format!(
        "model_list:\n  - model_name: gpt-4o\n    litellm_params: {{ model: openai/gpt-4o, api_base: \"http://{at}/v1\", api_key: x }}\n\
         litellm_settings: {{ cache: true, cache_params: {{ type: local }}, drop_params: true }}\n"
    );
    std::fs::write(&config, text)?;
    let child = Command::new(program)
        .args(["--config", &config.display().to_string(), "--host", "127.0.0.1", "--port", &port.to_string()])
        .args(["--num_workers", "2"])
        .env("LITELLM_LOG", "ERROR")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("{}: {error}; scripts/bench-pins installs it", program.display()))?;
    let running = Running(child);
    let address = format!("127.0.0.1:{port}");
    for _ in 0..300 {
        if TcpStream::connect(&address).await.is_ok() {
            tokio::time::sleep(Duration::from_secs(3)).await;
            return Ok((running, address));
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    Err("LiteLLM did not start".into())
}

fn request(path: &str, work: &str, prompt: &str, is_stream: bool) -> String {
    let stream = if is_stream { r#","stream":true"# } else { "" };
    let body = format!(r#"{{"model":"gpt-4o","messages":[{{"role":"user","content":"{prompt}"}}]{stream}}}"#);
    format!(
        "POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer sk\r\ntwicesafe-work: {work}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Asks one of a few prompts, again and again.
#[derive(Clone)]
struct Asking {
    lines: Arc<Vec<tokio::sync::Mutex<Line>>>,
    path: &'static str,
}

impl Subject for Asking {
    async fn effect(&self, key: Key, took: &mut Vec<Duration>) -> Result<(), Failure> {
        let mut line = self.lines[key.asked_by % self.lines.len()].lock().await;
        let started = Instant::now();
        let request = request(self.path, "w", &format!("prompt {}", key.number % PROMPTS), false);
        line.stream.write_all(request.as_bytes()).await?;
        let answer = line.answer(http_end).await?;
        assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
        took.push(started.elapsed());
        Ok(())
    }
}

/// The time until the first word is there, of many questions one after the other; the middle one.
async fn first_token(
    address: &str,
    path: &str,
    round: usize,
) -> Result<Duration, Box<dyn std::error::Error>> {
    let mut stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let mut took = Vec::with_capacity(TIMED);
    for number in 0..TIMED {
        let request = request(path, &format!("{round}-{number}"), "hello", true);
        let started = Instant::now();
        stream.write_all(request.as_bytes()).await?;
        let mut read = Vec::with_capacity(64 << 10);
        let mut first = None;
        while !read.ends_with(b"0\r\n\r\n") {
            if stream.read_buf(&mut read).await? == 0 {
                return Err("it closed the connection".into());
            }
            if first.is_none() && read.windows(5).any(|bytes| bytes == b"data:") {
                first = Some(started.elapsed());
            }
        }
        took.extend(first);
    }
    took.sort_unstable();
    Ok(took[took.len() / 2])
}

pub(crate) async fn measure(
    plan: &Plan,
    report: &Report,
    load: impl Fn(usize, u64) -> Load,
) -> Result<(), Box<dyn std::error::Error>> {
    let (_model, at) = model(Duration::ZERO)?;
    report.heading("Time to the first token, every question new, against the provider itself");
    let serving = gateway(plan, &at, "first.db").await?;
    let mut beyond = Vec::new();
    for round in 0..plan.rounds {
        let direct = first_token(&at, "/v1/chat/completions", round).await?;
        let through = first_token(&serving.address, "/to/ai/v1/chat/completions", round).await?;
        report.line(&format!(
            "round {round}: direct {:.3} ms, through {:.3} ms",
            millis(direct),
            millis(through)
        ));
        beyond.push(millis(through) - millis(direct));
    }
    report.at_most("what the gateway adds to the first token, p50", middle(&mut beyond), "ms", 2.0);

    report.heading("Pinned answers against LiteLLM's proxy with its cache on, 64 connections");
    let program = plan
        .litellm
        .as_deref()
        .ok_or("--litellm PROGRAM is needed for that part; scripts/bench-pins has it")?;
    let (_litellm, peer) = litellm(program, &plan.folder, &at).await?;
    let (mut theirs, mut ours) = (Vec::new(), Vec::new());
    let their = Asking { lines: lines(&peer, 64).await?, path: "/v1/chat/completions" };
    let our = Asking { lines: lines(&serving.address, 64).await?, path: "/to/ai/v1/chat/completions" };
    for subject in [&their, &our] {
        // Every prompt is in the cache before anything is timed.
        harness::run(&load(64, 0), subject).await?;
    }
    for _ in 0..plan.rounds {
        theirs.push(harness::run(&load(64, 0), &their).await?);
        ours.push(harness::run(&load(64, 0), &our).await?);
    }
    report.compare("pinned answers", "LiteLLM", &theirs, "Twicesafe", &ours, Some(10.0));
    let (their_p99, our_p99) = (millis(median(&theirs).p99), millis(median(&ours).p99));
    report.line(&format!("p99: LiteLLM {their_p99:.1} ms, Twicesafe {our_p99:.1} ms"));
    report.at_least("p99, theirs over ours", their_p99 / our_p99, 10.0);

    report.heading(&format!("{STREAMS} streams at the same time"));
    let (_slow, at) = model(Duration::from_millis(25))?;
    let serving = gateway(plan, &at, "streams.db").await?;
    let idle = serving.resident()?;
    let asking = (0..STREAMS).map(|number| {
        let address = serving.address.clone();
        tokio::spawn(async move {
            let mut stream = TcpStream::connect(&address).await?;
            let request = request("/to/ai/v1/chat/completions", &number.to_string(), "hello", true);
            stream.write_all(request.as_bytes()).await?;
            let mut read = Vec::new();
            while !read.ends_with(b"0\r\n\r\n") {
                if stream.read_buf(&mut read).await? == 0 {
                    return Err(std::io::ErrorKind::UnexpectedEof.into());
                }
            }
            std::io::Result::Ok(read.windows(6).any(|bytes| bytes == b"[DONE]"))
        })
    });
    let asking: Vec<_> = asking.collect();
    let mut most = idle;
    while !asking.iter().all(tokio::task::JoinHandle::is_finished) {
        most = most.max(serving.resident()?);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for one in asking {
        assert!(one.await??, "a stream had no end");
    }
    report.line(&format!(
        "{:.0} MB before, {:.0} at most, {:.0} afterwards; {:.0} KB a stream",
        idle as f64 / 1e6,
        most as f64 / 1e6,
        serving.resident()? as f64 / 1e6,
        (most - idle) as f64 / 1e3 / STREAMS as f64
    ));
    Ok(())
}

fn millis(span: Duration) -> f64 {
    span.as_secs_f64() * 1000.0
}
