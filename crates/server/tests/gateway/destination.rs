//! A destination that counts what is done to it, and misbehaves as it is told to.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// What it does with the next write.
#[derive(Clone, Debug)]
pub(crate) enum Do {
    /// Acts and says so.
    Act,
    /// Acts, then says something else.
    ActAndSay(u16, Value),
    /// Acts, then says nothing and keeps the connection open.
    ActAndHang,
    /// Acts, then closes the connection.
    ActAndClose,
    /// Acts, then says so after a while.
    ActLate(Duration),
    /// Acts, then answers with a body that ends too early.
    ActAndCut,
    /// Acts, then says something that is not HTTP.
    ActAndBabble,
    /// Acts, then says 200 with these bytes, and of what type they are.
    ActAndSayAs(&'static str, Vec<u8>),
    /// Acts, then answers with so many bytes.
    ActAndSayMuch(usize),
    /// Acts, then answers without end.
    ActAndNeverEnd,
    /// Does nothing but say something.
    Say(u16, Value),
    /// Does nothing but say something, with a header.
    SayWith(u16, &'static str, &'static str),
}

/// Something that was done.
#[derive(Clone, Debug)]
pub(crate) struct Effect {
    pub(crate) line: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Value,
    pub(crate) raw: Vec<u8>,
}

impl Effect {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }
}

#[derive(Default)]
struct State {
    connections: usize,
    effects: Vec<Effect>,
    requests: Vec<Effect>,
    script: VecDeque<Do>,
    lookups: VecDeque<Do>,
    /// Deduplicates by the header Idempotency-Key.
    dedupes: bool,
    takes_keys_of_callers: bool,
    /// Which requests fail, always.
    fails: Option<fn(&Effect) -> bool>,
}

#[derive(Clone)]
pub(crate) struct Destination {
    pub(crate) address: SocketAddr,
    state: Arc<Mutex<State>>,
}

impl Destination {
    pub(crate) async fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(Mutex::new(State::default()));
        let shared = state.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                shared.lock().unwrap().connections += 1;
                tokio::spawn(serve(stream, shared.clone()));
            }
        });
        Self { address, state }
    }

    /// The base address, for a configuration.
    pub(crate) fn base(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn script(&self, steps: impl IntoIterator<Item = Do>) {
        self.state.lock().unwrap().script.extend(steps);
    }

    /// What it does with the next lookups.
    pub(crate) fn script_lookups(&self, steps: impl IntoIterator<Item = Do>) {
        self.state.lock().unwrap().lookups.extend(steps);
    }

    /// Says 500 to such requests, whatever it was told to do.
    pub(crate) fn fail(&self, which: fn(&Effect) -> bool) {
        self.state.lock().unwrap().fails = Some(which);
    }

    pub(crate) fn deduplicate(&self) {
        self.state.lock().unwrap().dedupes = true;
    }

    pub(crate) fn effects(&self) -> Vec<Effect> {
        self.state.lock().unwrap().effects.clone()
    }

    pub(crate) fn connections(&self) -> usize {
        self.state.lock().unwrap().connections
    }

    pub(crate) fn requests(&self) -> Vec<Effect> {
        self.state.lock().unwrap().requests.clone()
    }

    /// Accepts keys of callers as they are: nothing is guarded.
    pub(crate) fn take_keys_of_callers(&self) {
        self.state.lock().unwrap().takes_keys_of_callers = true;
    }

    #[track_caller]
    pub(crate) fn check_effects(&self, expected: usize) {
        let effects = self.effects();
        assert_eq!(effects.len(), expected, "{effects:#?}");
        self.check_received();
    }

    /// Checks every write that arrived for what no destination may get: a caller's own key (S29), and headers between the
    /// caller and the gateway. Targets of inboxes are told more.
    #[track_caller]
    fn check_received(&self) {
        let takes_keys = self.state.lock().unwrap().takes_keys_of_callers;
        for request in self.requests().iter().filter(|request| !request.line.starts_with("GET ")) {
            let key = request.header("idempotency-key");
            let is_derived = |key: &str| {
                (16..=32).contains(&key.len()) && key.bytes().all(|byte| b"0123456789abcdef".contains(&byte))
            };
            assert!(takes_keys || key.is_none_or(is_derived), "the key is not the gateway's: {request:#?}");
            let is_for_us = |(name, _): &&(String, String)| name.starts_with("twicesafe-");
            let is_of_an_event = request.header("webhook-id").is_some();
            let for_us = request.headers.iter().find(is_for_us).filter(|_| !is_of_an_event);
            assert_eq!(for_us, None, "a header for the gateway was passed on: {request:#?}");
        }
    }
}

async fn serve(mut stream: TcpStream, state: Arc<Mutex<State>>) -> Option<()> {
    let mut buffer = Vec::new();
    loop {
        let request = read(&mut stream, &mut buffer).await?;
        let is_read = request.line.starts_with("GET ") || request.line.contains("/search");
        let (step, number) = {
            let mut state = state.lock().unwrap();
            state.requests.push(request.clone());
            let step = match is_read {
                true => state.lookups.pop_front(),
                false if state.fails.is_some_and(|fails| fails(&request)) => Some(Do::Say(500, json!({}))),
                false => state.script.pop_front(),
            };
            let acts = !is_read && !matches!(step, Some(Do::Say(..) | Do::SayWith(..)));
            let key = request.header("idempotency-key").map(str::to_owned);
            let is_known = state.dedupes
                && key.is_some()
                && state.effects.iter().any(|effect| effect.header("idempotency-key") == key.as_deref());
            if acts && !is_known {
                state.effects.push(request.clone());
            }
            (step, state.effects.len())
        };
        let done = json!({ "id": format!("c_{number}") });
        match step {
            None if is_read => {
                let found = match request.line.contains("/api/conversations.") {
                    true => conversation(&state, &request),
                    false => found(&state, &request),
                };
                say(&mut stream, 200, &found).await?;
            }
            None | Some(Do::Act) => say(&mut stream, 201, &done).await?,
            Some(Do::ActAndSay(status, body) | Do::Say(status, body)) => {
                say(&mut stream, status, &body).await?
            }
            Some(Do::SayWith(status, name, value)) => {
                let head = format!("HTTP/1.1 {status} X\r\ncontent-length: 0\r\n{name}: {value}\r\n\r\n");
                stream.write_all(head.as_bytes()).await.ok()?;
            }
            Some(Do::ActAndHang) => {
                tokio::time::sleep(Duration::from_secs(120)).await;
                return None;
            }
            Some(Do::ActAndClose) => return None,
            Some(Do::ActLate(after)) => {
                tokio::time::sleep(after).await;
                say(&mut stream, 201, &done).await?;
            }
            Some(Do::ActAndCut) => {
                let head = "HTTP/1.1 201 Created\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{\"id\":";
                stream.write_all(head.as_bytes()).await.ok()?;
                return None;
            }
            Some(Do::ActAndBabble) => {
                stream.write_all(b"\x00\x01 this is not HTTP\r\n\r\n").await.ok()?;
                return None;
            }
            Some(Do::ActAndSayAs(of_type, body)) => {
                let head = format!("HTTP/1.1 200 OK\r\n{of_type}\r\ncontent-length: {}\r\n\r\n", body.len());
                stream.write_all(&[head.into_bytes(), body].concat()).await.ok()?;
            }
            Some(Do::ActAndSayMuch(bytes)) => {
                let head = format!(
                    "HTTP/1.1 201 Created\r\ncontent-type: text/plain\r\ncontent-length: {bytes}\r\n\r\n"
                );
                stream.write_all(head.as_bytes()).await.ok()?;
                stream.write_all(&vec![b'x'; bytes]).await.ok()?;
            }
            Some(Do::ActAndNeverEnd) => {
                let head = "HTTP/1.1 201 Created\r\ntransfer-encoding: chunked\r\n\r\n";
                stream.write_all(head.as_bytes()).await.ok()?;
                loop {
                    stream.write_all(b"4\r\nmore\r\n").await.ok()?;
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
        }
    }
}

/// Contacts by what their caller calls them.
fn found(state: &Arc<Mutex<State>>, request: &Effect) -> Value {
    let wanted = request.line.split("external_id=").nth(1).and_then(|rest| rest.split([' ', '&']).next());
    let state = state.lock().unwrap();
    let items: Vec<Value> = state
        .effects
        .iter()
        .enumerate()
        .filter(|(_, effect)| wanted.is_some_and(|wanted| effect.body["id"] == *wanted))
        .map(|(number, _)| json!({ "id": format!("c_{}", number + 1) }))
        .collect();
    json!({ "items": items })
}

/// The timestamp of a message that is there from the start, and has replies.
pub(crate) const THREAD: &str = "1700000000.000100";
/// The timestamp of a reply to it. Whoever asks for the thread by this one is shown this one alone.
pub(crate) const REPLY: &str = "1700000000.000200";

/// What was posted, as Slack shows it: a channel without its threads, or one thread.
fn conversation(state: &Arc<Mutex<State>>, request: &Effect) -> Value {
    let parameter = |name: &str| {
        let rest = request.line.split(name).nth(1)?;
        rest.split([' ', '&']).next().map(str::to_owned)
    };
    let (thread, state) = (parameter("&ts="), state.lock().unwrap());
    let of_thread = |effect: &&Effect| match request.line.contains("conversations.replies") {
        true => thread.as_deref() == Some(THREAD) && effect.body["thread_ts"].is_string(),
        false => effect.body["thread_ts"].is_null() && !effect.line.contains("thread_ts="),
    };
    let mut messages = match thread.as_deref() {
        Some(THREAD) => vec![json!({ "ts": THREAD, "thread_ts": THREAD })],
        Some(REPLY) => vec![json!({ "ts": REPLY, "thread_ts": THREAD })],
        _ => Vec::new(),
    };
    let posted = state.effects.iter().filter(of_thread);
    messages.extend(
        posted.map(|effect| json!({ "ts": "1700000001.000100", "metadata": effect.body["metadata"] })),
    );
    json!({ "ok": true, "messages": messages, "has_more": false })
}

async fn say(stream: &mut TcpStream, status: u16, body: &Value) -> Option<()> {
    let body = body.to_string();
    let head = format!(
        "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\nset-cookie: secret=1\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.ok()
}

/// Reads one request.
pub(crate) async fn read(stream: &mut (impl AsyncRead + Unpin), buffer: &mut Vec<u8>) -> Option<Effect> {
    let end = loop {
        if let Some(end) = buffer.windows(4).position(|four| four == b"\r\n\r\n") {
            break end;
        }
        more(stream, buffer).await?;
    };
    let head = String::from_utf8_lossy(&buffer[..end]).into_owned();
    let mut lines = head.lines();
    let line = lines.next()?.to_owned();
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let length: usize = headers
        .iter()
        .find(|(name, _)| name == "content-length")
        .map_or(0, |(_, value)| value.parse().unwrap_or(0));
    while buffer.len() < end + 4 + length {
        more(stream, buffer).await?;
    }
    let raw = buffer[end + 4..end + 4 + length].to_vec();
    buffer.drain(..end + 4 + length);
    Some(Effect { line, headers, body: serde_json::from_slice(&raw).unwrap_or_default(), raw })
}

async fn more(stream: &mut (impl AsyncRead + Unpin), buffer: &mut Vec<u8>) -> Option<()> {
    let mut part = [0; 16_384];
    let read = stream.read(&mut part).await.ok().filter(|read| *read > 0)?;
    buffer.extend_from_slice(&part[..read]);
    Some(())
}
