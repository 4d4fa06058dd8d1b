//! A provider of AI models that never gives the same answer twice, and misbehaves as it is told to.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use crate::gateway::destination::{Effect, read};

/// What it does with the next question.
#[derive(Clone, Debug)]
pub(crate) enum Do {
    /// Answers.
    Answer,
    /// Answers, and says that it ended so.
    End(&'static str),
    /// Answers with that text.
    Write(&'static str),
    /// Says something else.
    Say(u16, Value),
    /// Streams so many events, then closes the connection.
    CutAfter(usize),
    /// Streams so many events, then ends the body as if that were all.
    EndAfter(usize),
    /// Streams so many events, then waits until it is told to go on.
    PauseAfter(usize),
    /// Streams so many events, then an error.
    FailAfter(usize),
    /// Streams so many events, then nothing for ever.
    HangAfter(usize),
    /// Answers with so many bytes.
    Much(usize),
    /// Answers with what nobody understands.
    Odd,
}

#[derive(Default)]
struct State {
    asked: Vec<Effect>,
    script: VecDeque<Do>,
}

#[derive(Clone)]
pub(crate) struct Model {
    pub(crate) address: SocketAddr,
    state: Arc<Mutex<State>>,
    go_on: Arc<Notify>,
}

impl Model {
    pub(crate) async fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (state, go_on) = (Arc::<Mutex<State>>::default(), Arc::new(Notify::new()));
        let model = Self { address, state, go_on };
        let shared = model.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, shared.clone()));
            }
        });
        model
    }

    pub(crate) fn script(&self, steps: impl IntoIterator<Item = Do>) {
        self.state.lock().unwrap().script.extend(steps);
    }

    pub(crate) fn go_on(&self) {
        self.go_on.notify_one();
    }

    pub(crate) fn asked(&self) -> Vec<Effect> {
        self.state.lock().unwrap().asked.clone()
    }

    #[track_caller]
    pub(crate) fn check_asked(&self, expected: usize) {
        let asked = self.asked();
        assert_eq!(asked.len(), expected, "{asked:#?}");
    }
}

async fn serve(mut stream: TcpStream, model: Model) -> Option<()> {
    let mut buffer = Vec::new();
    loop {
        let asked = read(&mut stream, &mut buffer).await?;
        let (step, number) = {
            let mut state = model.state.lock().unwrap();
            state.asked.push(asked.clone());
            (state.script.pop_front().unwrap_or(Do::Answer), state.asked.len())
        };
        let path = asked.line.split(' ').nth(1)?.split('?').next()?.to_owned();
        let text = match step {
            Do::Write(text) => text.to_owned(),
            // One word, so one event.
            Do::Much(bytes) => "x".repeat(bytes),
            _ => format!("answer {number}"),
        };
        let ended = match &step {
            Do::End(reason) => reason,
            _ if path.ends_with("/messages") => "end_turn",
            _ => "stop",
        };
        if let Do::Say(status, body) = &step {
            say(&mut stream, *status, body).await?;
            continue;
        }
        if asked.body["stream"] != true {
            let body = match &step {
                Do::Odd => {
                    json!({ "id": "msg_1", "object": "thread.message", "choices": [{ "message": {} }] })
                }
                Do::Much(bytes) => json!({ "data": [{ "embedding": "x".repeat(*bytes) }] }),
                _ => whole(&path, &text, ended, number),
            };
            say(&mut stream, 200, &body).await?;
            continue;
        }
        let events = events(&path, &text, ended, number, &asked.body);
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\nset-cookie: who=me\r\n\
                    x-request-id: req_1\r\ntransfer-encoding: chunked\r\n\r\n";
        stream.write_all(head.as_bytes()).await.ok()?;
        for (at, event) in events.iter().enumerate() {
            match step {
                Do::CutAfter(count) if at == count => return None,
                Do::EndAfter(count) if at == count => break,
                Do::PauseAfter(count) if at == count => model.go_on.notified().await,
                Do::HangAfter(count) if at == count => {
                    tokio::time::sleep(Duration::from_secs(120)).await;
                }
                Do::FailAfter(count) if at == count => {
                    chunk(
                        &mut stream,
                        "data: {\"type\":\"error\",\"error\":{\"message\":\"overloaded\"}}\n\n",
                    )
                    .await?;
                    break;
                }
                _ => {}
            }
            chunk(&mut stream, event).await?;
        }
        match step {
            Do::HangAfter(count) if count >= events.len() => {
                tokio::time::sleep(Duration::from_secs(120)).await
            }
            Do::PauseAfter(count) if count >= events.len() => model.go_on.notified().await,
            _ => {}
        }
        stream.write_all(b"0\r\n\r\n").await.ok()?;
    }
}

async fn chunk(stream: &mut TcpStream, text: &str) -> Option<()> {
    stream.write_all(format!("{:x}\r\n{text}\r\n", text.len()).as_bytes()).await.ok()
}

fn whole(path: &str, text: &str, ended: &str, number: usize) -> Value {
    let usage = json!({ "prompt_tokens": 10, "completion_tokens": 5 });
    if path.ends_with("/embeddings") {
        json!({ "object": "list", "model": "text-embedding-3-small", "data": [{ "embedding": [number] }], "usage": { "prompt_tokens": 8 } })
    } else if path.ends_with("/messages") {
        json!({ "id": format!("msg_{number}"), "model": "claude-sonnet-4-5", "stop_reason": ended,
            "content": [{ "type": "text", "text": text }], "usage": { "input_tokens": 10, "output_tokens": 5 } })
    } else if path.ends_with("/responses") {
        json!({ "id": format!("resp_{number}"), "model": "gpt-4o", "status": if ended == "stop" { "completed" } else { ended },
            "output": [{ "type": "message", "content": [{ "type": "output_text", "text": text }] }],
            "usage": { "input_tokens": 10, "output_tokens": 5 } })
    } else {
        json!({ "id": format!("chatcmpl-{number}"), "model": "gpt-4o-2024-08-06", "usage": usage,
            "choices": [{ "index": 0, "finish_reason": ended, "message": { "role": "assistant", "content": text } }] })
    }
}

fn events(path: &str, text: &str, ended: &str, number: usize, body: &Value) -> Vec<String> {
    let data = |value: Value| format!("data: {value}\n\n");
    let named = |name: &str, value: Value| format!("event: {name}\ndata: {value}\n\n");
    if path.ends_with("/messages") {
        let start = json!({ "type": "message_start", "message": { "id": format!("msg_{number}"), "model": "claude-sonnet-4-5",
            "usage": { "input_tokens": 10, "output_tokens": 1 } } });
        let mut all = vec![named("message_start", start), named("ping", json!({ "type": "ping" }))];
        all.extend(text.split_inclusive(' ').map(|word| {
            named(
                "content_block_delta",
                json!({ "type": "content_block_delta", "delta": { "type": "text_delta", "text": word } }),
            )
        }));
        let delta = json!({ "type": "message_delta", "delta": { "stop_reason": ended }, "usage": { "output_tokens": 5 } });
        all.push(named("message_delta", delta));
        all.push(named("message_stop", json!({ "type": "message_stop" })));
        return all;
    }
    if path.ends_with("/responses") {
        let response = whole(path, text, ended, number);
        let mut all = vec![named(
            "response.created",
            json!({ "type": "response.created", "response": { "status": "in_progress" } }),
        )];
        all.extend(text.split_inclusive(' ').map(|word| {
            named(
                "response.output_text.delta",
                json!({ "type": "response.output_text.delta", "delta": word }),
            )
        }));
        all.push(named("response.completed", json!({ "type": "response.completed", "response": response })));
        return all;
    }
    let piece = |delta: Value, ended: Option<&str>| {
        data(json!({ "id": format!("chatcmpl-{number}"), "model": "gpt-4o-2024-08-06",
            "choices": [{ "index": 0, "delta": delta, "finish_reason": ended }] }))
    };
    let mut all = vec![piece(json!({ "role": "assistant", "content": "" }), None)];
    all.extend(text.split_inclusive(' ').map(|word| piece(json!({ "content": word }), None)));
    all.push(piece(json!({}), Some(ended)));
    if body["stream_options"]["include_usage"] == true {
        all.push(data(json!({ "choices": [], "usage": { "prompt_tokens": 10, "completion_tokens": 5 } })));
    }
    all.push("data: [DONE]\n\n".to_owned());
    all
}

async fn say(stream: &mut TcpStream, status: u16, body: &Value) -> Option<()> {
    let body = body.to_string();
    let more = if status == 429 { "retry-after: 7\r\nx-should-retry: true\r\n" } else { "" };
    let head = format!(
        "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n{more}set-cookie: who=me\r\nx-request-id: req_1\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.ok()?;
    stream.write_all(body.as_bytes()).await.ok()
}
