//! Answers of AI models, from both sides: what callers get, and how often the provider was asked.

mod expecting;
mod flights;
mod keys;
mod model;
mod settings;
mod streams;

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::world::World;
use model::{Do, Model};

/// A gateway in front of a provider called `ai`.
struct Gateway {
    world: World,
    model: Model,
}

impl Gateway {
    async fn new() -> Self {
        Self::with("").await
    }

    /// With more about the destination.
    async fn with(more: &str) -> Self {
        let model = Model::new().await;
        let world = World::configured(&configuration(&model, more)).await;
        Self { world, model }
    }

    /// Asks and hears all of it.
    async fn ask(&self, path: &str, headers: &[(&str, &str)], body: &Value) -> Told {
        self.begin(path, headers, body).await.end().await
    }

    /// Asks and hears its beginning.
    async fn begin(&self, path: &str, headers: &[(&str, &str)], body: &Value) -> Hearing {
        Hearing::begin(self.world.address, path, headers, body).await
    }

    /// A stream in the work `w` of which a part was heard, and which waits for the model to go on.
    async fn under_way(&self) -> Hearing {
        self.model.script([Do::PauseAfter(2)]);
        let mut hearing = self.begin(CHAT, &WORK, &streamed("hello")).await;
        hearing.until("answer ").await;
        hearing
    }

    /// Another server on the same ledger, in front of the same provider.
    async fn another_server(&self, more: &str) -> World {
        let yaml = configuration(&self.model, more);
        World::on(self.world.ledger.clone(), self.world.clock.clone(), &yaml).await
    }

    async fn in_work(&self, work: &str, body: &Value) -> Told {
        self.ask(CHAT, &[("twicesafe-work", work)], body).await
    }
}

const WORK: [(&str, &str); 1] = [("twicesafe-work", "w")];
const CHAT: &str = "/to/ai/v1/chat/completions";

fn configuration(model: &Model, more: &str) -> String {
    let more: String = more.lines().map(|line| format!("    {line}\n")).collect();
    format!("destinations:\n  ai:\n    use: openai\n    base: http://{}\n{more}", model.address)
}

fn prompt(text: &str) -> Value {
    json!({ "model": "gpt-4o", "messages": [{ "role": "user", "content": text }], "temperature": 0.7 })
}

fn streamed(text: &str) -> Value {
    let mut body = prompt(text);
    body["stream"] = true.into();
    body["stream_options"] = json!({ "include_usage": true });
    body
}

/// What a caller was told, to its end.
#[derive(Clone, Debug, PartialEq)]
struct Told {
    status: u16,
    headers: BTreeMap<String, String>,
    body: String,
    /// It ended as HTTP says that bodies end.
    is_whole: bool,
}

impl Told {
    fn pinned(&self) -> &str {
        self.headers.get("twicesafe-pinned").map_or("", String::as_str)
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_default()
    }

    #[track_caller]
    fn refused(&self, status: u16, code: &str) -> Value {
        let json = self.json();
        assert_eq!((self.status, json["code"].as_str()), (status, Some(code)), "{self:?}");
        json
    }
}

/// A caller who hears an answer bit by bit.
struct Hearing {
    stream: TcpStream,
    heard: Vec<u8>,
}

impl Hearing {
    async fn begin(
        address: std::net::SocketAddr,
        path: &str,
        headers: &[(&str, &str)],
        body: &Value,
    ) -> Self {
        let body = body.to_string();
        let mut head = format!(
            "POST {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n",
            body.len()
        );
        if !headers.iter().any(|(name, _)| *name == "authorization") {
            head.push_str("authorization: Bearer sk-one\r\n");
        }
        headers.iter().for_each(|(name, value)| head.push_str(&format!("{name}: {value}\r\n")));
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(format!("{head}\r\n{body}").as_bytes()).await.unwrap();
        Self { stream, heard: Vec::new() }
    }

    /// Waits until it has heard a text.
    async fn until(&mut self, text: &str) {
        while !String::from_utf8_lossy(&self.heard).contains(text) {
            let mut part = [0; 4096];
            let read = tokio::time::timeout(Duration::from_secs(10), self.stream.read(&mut part));
            let read = read.await.expect("it comes in time").unwrap();
            assert!(read > 0, "it ended with {}", String::from_utf8_lossy(&self.heard));
            self.heard.extend_from_slice(&part[..read]);
        }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.heard).into_owned()
    }

    async fn end(mut self) -> Told {
        let _ = tokio::time::timeout(Duration::from_secs(60), self.stream.read_to_end(&mut self.heard)).await;
        let text = self.text();
        let (head, rest) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let mut lines = head.lines();
        let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok()).unwrap_or_default();
        let headers: BTreeMap<String, String> = lines
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .collect();
        let (body, is_whole) = match headers.get("content-length") {
            Some(length) => (rest.to_owned(), rest.len() == length.parse::<usize>().unwrap()),
            None => dechunked(rest),
        };
        Told { status, headers, body, is_whole }
    }
}

fn dechunked(mut rest: &str) -> (String, bool) {
    let mut body = String::new();
    while let Some((length, after)) = rest.split_once("\r\n") {
        let Ok(length) = usize::from_str_radix(length, 16) else { return (body, false) };
        if length == 0 {
            return (body, true);
        }
        if after.len() < length + 2 {
            return (body + after, false);
        }
        body.push_str(&after[..length]);
        rest = &after[length + 2..];
    }
    (body, false)
}
