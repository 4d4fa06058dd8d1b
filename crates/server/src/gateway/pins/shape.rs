//! The forms in which models are asked and answer: which calls have effects of their own, when an answer is whole, what it
//! cost, and what the model wrote. What is not understood is not pinned.

use std::collections::BTreeMap;

use hyper::Method;
use serde_json::{Map, Value, json};

/// Tools that whoever asks carries out itself; every other one is carried out at the provider.
const OWN_TOOLS: [&str; 8] = [
    "function",
    "custom",
    "computer_use_preview",
    "computer-preview",
    "local_shell",
    "apply_patch",
    "namespace",
    "tool_search",
];
/// The same for Anthropic, whose names end with a date.
const OWN_TOOLS_OF_MESSAGES: [&str; 5] = ["custom", "bash_", "text_editor_", "computer_", "memory_"];

/// What in a talk refers to what the provider keeps, or brings it tools to carry out.
const STATEFUL_ITEMS: [&str; 4] =
    ["item_reference", "tool_addition", "tool_search_output", "mcp_approval_response"];

/// A form of asking.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shape {
    Chat,
    Responses,
    Embeddings,
    Messages,
}

/// How an answer ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Ending {
    /// Before its end.
    #[default]
    Cut,
    /// As it should.
    Whole,
    /// At the limit of tokens.
    Truncated,
    /// The provider stopped it.
    Refused,
    /// With an error.
    Failed,
}

/// Tokens that were paid for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Usage {
    pub(crate) input: u64,
    /// Of these, had by the provider already.
    pub(crate) cached: u64,
    pub(crate) output: u64,
}

/// What an answer turned out to be.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Findings {
    pub(crate) ending: Ending,
    pub(crate) id: Option<String>,
    pub(crate) model: Option<String>,
    pub(crate) usage: Option<Usage>,
    /// What the model wrote, by choice: JSON where it is, otherwise text; the arguments of its first call of a tool where it
    /// wrote none.
    pub(crate) outputs: Vec<Value>,
}

impl Shape {
    /// The form a request has, by where it goes. Other providers have other paths before it.
    pub(crate) fn of(method: &Method, path: &str) -> Option<Self> {
        (method == Method::POST).then_some(())?;
        let mut steps = path.rsplit('/').filter(|step| !step.is_empty());
        let (last, before) = (steps.next()?, steps.next());
        let is_version = |step: &str| {
            step.strip_prefix('v').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
        };
        match (last, before) {
            ("completions", Some("chat")) => Some(Self::Chat),
            ("responses", _) => Some(Self::Responses),
            ("embeddings", _) => Some(Self::Embeddings),
            // Others have messages, too, and make them: /v1/threads/ID/messages.
            ("messages", None) => Some(Self::Messages),
            ("messages", Some(step)) if is_version(step) => Some(Self::Messages),
            _ => None,
        }
    }

    /// The action its pins have in their scope.
    pub(crate) fn action(self) -> &'static str {
        match self {
            Self::Chat => "pin.chat",
            Self::Responses => "pin.responses",
            Self::Embeddings => "pin.embeddings",
            Self::Messages => "pin.messages",
        }
    }

    /// What makes a request more than a question: then it is an effect and never pinned (S33).
    pub(crate) fn effect(self, body: &Map<String, Value>) -> Option<&'static str> {
        let is_true = |name: &str| body.get(name) == Some(&Value::Bool(true));
        let is_given = |name: &str| match body.get(name) {
            None | Some(Value::Null) => false,
            Some(Value::Array(items)) => !items.is_empty(),
            Some(_) => true,
        };
        let kinds = body.get("tools").and_then(Value::as_array).into_iter().flatten();
        let mut kinds = kinds.map(|tool| tool.get("type").and_then(Value::as_str));
        let has_foreign_tool = match self {
            Self::Messages => kinds.flatten().any(|kind| {
                !OWN_TOOLS_OF_MESSAGES
                    .iter()
                    .any(|own| if own.ends_with('_') { kind.starts_with(own) } else { kind == *own })
            }),
            // What has no type is not understood.
            _ => kinds.any(|kind| !kind.is_some_and(|kind| OWN_TOOLS.contains(&kind))),
        };
        let is_stateful = |item: &Value| {
            item.get("type").and_then(Value::as_str).is_some_and(|kind| STATEFUL_ITEMS.contains(&kind))
        };
        let items = ["input", "messages"].into_iter().filter_map(|name| body.get(name)?.as_array()).flatten();
        let mut parts = items.flat_map(|item| {
            let inner = item.get("content").and_then(Value::as_array).into_iter().flatten();
            std::iter::once(item).chain(inner)
        });
        let reasons = [
            (is_true("store"), "store"),
            (is_true("background"), "background"),
            (is_given("previous_response_id"), "previous_response_id"),
            (is_given("conversation"), "conversation"),
            (is_given("thread"), "thread"),
            (is_given("container"), "container"),
            (is_given("mcp_servers"), "mcp_servers"),
            (is_given("web_search_options"), "web_search_options"),
            (has_foreign_tool, "tools that the provider carries out"),
            (parts.any(is_stateful), "what refers to things the provider keeps, or brings it tools"),
        ];
        reasons.into_iter().find_map(|(holds, reason)| holds.then_some(reason))
    }

    /// What a whole answer turned out to be.
    pub(crate) fn read(self, body: &Value) -> Findings {
        let text = |name: &str| body.get(name).and_then(Value::as_str).map(str::to_owned);
        let is_error = body.get("error").is_some_and(|error| !error.is_null());
        // It came to its end, as HTTP says it: what is not understood is passed on, and not pinned.
        let (ending, usage, outputs) = match self {
            _ if is_error => (Ending::Failed, None, Vec::new()),
            Self::Chat => {
                let choices = || body.get("choices").and_then(Value::as_array).into_iter().flatten();
                let endings = choices().map(|choice| {
                    choice.get("finish_reason").and_then(Value::as_str).map_or(Ending::Failed, of_chat)
                });
                (worst(endings), usage_of_chat(body), choices().map(written_in_choice).collect())
            }
            Self::Responses => (of_response(body), usage_of_response(body), vec![written_in_response(body)]),
            Self::Embeddings => {
                let is_whole =
                    body.get("data").and_then(Value::as_array).is_some_and(|items| !items.is_empty());
                (if is_whole { Ending::Whole } else { Ending::Failed }, usage_of_chat(body), Vec::new())
            }
            Self::Messages => {
                let ending =
                    body.get("stop_reason").and_then(Value::as_str).map_or(Ending::Failed, of_message);
                let usage = body.get("usage").map(|usage| usage_of_message(usage, Usage::default()));
                (ending, usage, vec![written_in_message(body)])
            }
        };
        Findings { ending, id: text("id"), model: text("model"), usage, outputs }
    }

    /// What a kept answer turned out to be.
    pub(crate) fn read_kept(self, is_stream: bool, body: &[u8]) -> Findings {
        if !is_stream {
            return serde_json::from_slice(body).map(|body| self.read(&body)).unwrap_or_default();
        }
        let mut stream = Stream::new(self);
        let mut frames = super::frames::Frames::default();
        for frame in frames.push(body) {
            stream.take(&frame);
        }
        stream.end()
    }
}

/// The worst of several endings: an answer is whole if all of it is.
fn worst(endings: impl Iterator<Item = Ending>) -> Ending {
    let badness = |ending: &Ending| match ending {
        Ending::Whole => 0,
        Ending::Truncated => 1,
        Ending::Refused => 2,
        Ending::Failed => 3,
        Ending::Cut => 4,
    };
    endings.max_by_key(badness).unwrap_or(Ending::Failed)
}

fn of_chat(reason: &str) -> Ending {
    match reason {
        "stop" | "tool_calls" | "function_call" => Ending::Whole,
        "length" | "max_tokens" | "model_length" => Ending::Truncated,
        "content_filter" => Ending::Refused,
        // Whatever else a provider says is not known to be whole.
        _ => Ending::Failed,
    }
}

fn of_message(reason: &str) -> Ending {
    match reason {
        "max_tokens" | "model_context_window_exceeded" => Ending::Truncated,
        "refusal" => Ending::Refused,
        "end_turn" | "stop_sequence" | "tool_use" => Ending::Whole,
        // The provider wants to be asked on, or something nobody here knows of.
        _ => Ending::Failed,
    }
}

fn of_response(response: &Value) -> Ending {
    let why = response.pointer("/incomplete_details/reason").and_then(Value::as_str);
    match response.get("status").and_then(Value::as_str) {
        Some("completed") => Ending::Whole,
        Some("incomplete") if why == Some("content_filter") => Ending::Refused,
        Some("incomplete") => Ending::Truncated,
        Some(_) => Ending::Failed,
        // Not every compatible provider says so.
        None if response.get("output").is_some_and(Value::is_array) => Ending::Whole,
        None => Ending::Failed,
    }
}

fn number(value: &Value, pointer: &str) -> u64 {
    value.pointer(pointer).and_then(Value::as_u64).unwrap_or_default()
}

fn usage_of_chat(body: &Value) -> Option<Usage> {
    let usage = body.get("usage").filter(|usage| usage.is_object())?;
    Some(Usage {
        input: number(usage, "/prompt_tokens"),
        cached: number(usage, "/prompt_tokens_details/cached_tokens"),
        output: number(usage, "/completion_tokens"),
    })
}

fn usage_of_response(body: &Value) -> Option<Usage> {
    let usage = body.get("usage").filter(|usage| usage.is_object())?;
    Some(Usage {
        input: number(usage, "/input_tokens"),
        cached: number(usage, "/input_tokens_details/cached_tokens"),
        output: number(usage, "/output_tokens"),
    })
}

/// Anthropic counts what was cached beside the rest. Later figures replace earlier ones.
fn usage_of_message(usage: &Value, before: Usage) -> Usage {
    let known = |name: &str| usage.get(name).and_then(Value::as_u64);
    let cached = known("cache_read_input_tokens").unwrap_or(before.cached);
    let input = known("input_tokens")
        .map_or(before.input, |fresh| fresh + cached + known("cache_creation_input_tokens").unwrap_or(0));
    Usage { input, cached, output: known("output_tokens").unwrap_or(before.output) }
}

/// What a model wrote, as JSON where it is.
fn as_written(text: &str) -> Value {
    serde_json::from_str(text.trim()).unwrap_or_else(|_| Value::from(text))
}

fn written(text: Option<String>, arguments: Option<Value>) -> Value {
    match (text.filter(|text| !text.is_empty()), arguments) {
        (Some(text), _) => as_written(&text),
        (None, Some(arguments)) => arguments,
        (None, None) => Value::Null,
    }
}

fn written_in_choice(choice: &Value) -> Value {
    let message = choice.get("message").unwrap_or(&Value::Null);
    let text = message.get("content").and_then(Value::as_str).map(str::to_owned);
    let arguments = message.pointer("/tool_calls/0/function/arguments").and_then(Value::as_str);
    written(text, arguments.map(as_written))
}

fn written_in_response(body: &Value) -> Value {
    // There are others, what it thought among them.
    let items = |kind: &'static str| {
        let items = body.get("output").and_then(Value::as_array).into_iter().flatten();
        items.filter(move |item| item.get("type").and_then(Value::as_str) == Some(kind))
    };
    let parts = items("message").filter_map(|item| item.get("content")?.as_array()).flatten();
    let text: String = parts.filter_map(|part| part.get("text").and_then(Value::as_str)).collect();
    let arguments = items("function_call").find_map(|item| item.get("arguments").and_then(Value::as_str));
    written(Some(text), arguments.map(as_written))
}

fn written_in_message(body: &Value) -> Value {
    let blocks = || body.get("content").and_then(Value::as_array).into_iter().flatten();
    let text: String = blocks().filter_map(|block| block.get("text").and_then(Value::as_str)).collect();
    let arguments = blocks().find_map(|block| block.get("input").cloned());
    written(Some(text), arguments)
}

/// An answer that arrives event by event.
pub(crate) struct Stream {
    shape: Shape,
    findings: Findings,
    usage: Usage,
    has_usage: bool,
    choices: BTreeMap<u64, Choice>,
    /// Something was taken back on the way.
    is_refused: bool,
    /// How its last event says that it ended.
    ending: Option<Ending>,
}

/// One of several answers in a stream.
#[derive(Default)]
struct Choice {
    ending: Option<Ending>,
    text: String,
    /// Of its first call of a tool, by where that stands.
    arguments: Option<(u64, String)>,
}

impl Choice {
    fn argue(&mut self, at: u64, more: &str) {
        let (first, arguments) = self.arguments.get_or_insert_with(|| (at, String::new()));
        if *first == at {
            arguments.push_str(more);
        }
    }
}

impl Stream {
    pub(crate) fn new(shape: Shape) -> Self {
        Self {
            shape,
            findings: Findings::default(),
            usage: Usage::default(),
            has_usage: false,
            choices: BTreeMap::new(),
            is_refused: false,
            ending: None,
        }
    }

    /// Takes an event; true: it is the last one.
    pub(crate) fn take(&mut self, frame: &[u8]) -> bool {
        let Some(data) = super::frames::data(frame) else { return false };
        if data == "[DONE]" {
            let ending = self.worst(Ending::Failed);
            self.ending.get_or_insert(ending);
            return true;
        }
        let Ok(event) = serde_json::from_str::<Value>(&data) else { return false };
        let kind = event.get("type").and_then(Value::as_str).unwrap_or_default();
        if kind == "error" || event.get("error").is_some_and(|error| !error.is_null()) {
            self.ending = Some(Ending::Failed);
            return true;
        }
        match self.shape {
            Shape::Chat | Shape::Embeddings => self.of_chat(&event),
            Shape::Responses => return self.of_response(kind, &event),
            Shape::Messages => return self.of_message(kind, &event),
        }
        false
    }

    /// The worst ending of its choices; those that have none are as good as that.
    fn worst(&self, otherwise: Ending) -> Ending {
        worst(self.choices.values().map(|choice| choice.ending.unwrap_or(otherwise)))
    }

    fn know(&mut self, whose: &Value) {
        for (name, known) in [("id", &mut self.findings.id), ("model", &mut self.findings.model)] {
            if known.is_none() {
                *known = whose.get(name).and_then(Value::as_str).map(str::to_owned);
            }
        }
    }

    fn of_chat(&mut self, event: &Value) {
        self.know(event);
        if let Some(usage) = usage_of_chat(event) {
            (self.usage, self.has_usage) = (usage, true);
        }
        for choice in event.get("choices").and_then(Value::as_array).into_iter().flatten() {
            let index = number(choice, "/index");
            let ended = choice.get("finish_reason").and_then(Value::as_str).map(of_chat);
            let known = self.choices.entry(index).or_default();
            known.ending = ended.or(known.ending);
            let refusal = choice.pointer("/delta/refusal").and_then(Value::as_str);
            self.is_refused |= refusal.is_some_and(|text| !text.is_empty());
            let text = choice.pointer("/delta/content").and_then(Value::as_str);
            known.text.push_str(text.unwrap_or_default());
            let calls = choice.pointer("/delta/tool_calls").and_then(Value::as_array);
            for call in calls.into_iter().flatten() {
                let arguments = call.pointer("/function/arguments").and_then(Value::as_str);
                known.argue(number(call, "/index"), arguments.unwrap_or_default());
            }
        }
    }

    fn of_response(&mut self, kind: &str, event: &Value) -> bool {
        self.is_refused |= kind.starts_with("response.refusal.");
        if !matches!(kind, "response.completed" | "response.incomplete" | "response.failed") {
            return false;
        }
        self.findings = self.shape.read(event.get("response").unwrap_or(&Value::Null));
        self.ending = Some(match kind {
            "response.failed" => Ending::Failed,
            "response.incomplete" if self.findings.ending == Ending::Whole => Ending::Truncated,
            _ => self.findings.ending,
        });
        true
    }

    fn of_message(&mut self, kind: &str, event: &Value) -> bool {
        match kind {
            "message_start" => {
                let message = event.get("message").unwrap_or(&Value::Null);
                self.know(message);
                if let Some(usage) = message.get("usage") {
                    (self.usage, self.has_usage) = (usage_of_message(usage, self.usage), true);
                }
            }
            "content_block_delta" => {
                let piece = |name: &str| event.pointer(name).and_then(Value::as_str);
                let message = self.choices.entry(0).or_default();
                message.text.push_str(piece("/delta/text").unwrap_or_default());
                if let Some(arguments) = piece("/delta/partial_json") {
                    message.argue(number(event, "/index"), arguments);
                }
            }
            "message_delta" => {
                if let Some(reason) = event.pointer("/delta/stop_reason").and_then(Value::as_str) {
                    self.choices.entry(0).or_default().ending = Some(of_message(reason));
                }
                if let Some(usage) = event.get("usage") {
                    (self.usage, self.has_usage) = (usage_of_message(usage, self.usage), true);
                }
            }
            "message_stop" => {
                self.ending = Some(self.worst(Ending::Failed));
                return true;
            }
            _ => {}
        }
        false
    }

    /// What it turned out to be, now that no more comes.
    pub(crate) fn end(mut self) -> Findings {
        // Not every compatible provider says that it is done; where every choice has ended, it is.
        let ending = self.ending.unwrap_or_else(|| match self.shape {
            Shape::Chat if !self.choices.is_empty() => self.worst(Ending::Cut),
            _ => Ending::Cut,
        });
        self.findings.ending = match ending {
            Ending::Whole | Ending::Truncated if self.is_refused => Ending::Refused,
            other => other,
        };
        if self.has_usage {
            self.findings.usage = Some(self.usage);
        }
        if self.shape != Shape::Responses {
            let of_choice = |choice: Choice| {
                let arguments = choice.arguments.filter(|(_, arguments)| !arguments.is_empty());
                written(Some(choice.text), arguments.map(|(_, arguments)| as_written(&arguments)))
            };
            self.findings.outputs = self.choices.into_values().map(of_choice).collect();
        }
        self.findings
    }
}

/// An answer as expressions see it, once for each choice.
pub(crate) fn views(body: &Value, outputs: &[Value]) -> Vec<Value> {
    let nothing = [Value::Null];
    let outputs = if outputs.is_empty() { &nothing[..] } else { outputs };
    outputs.iter().map(|output| json!({ "status": 200, "body": body, "output": output })).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn effect(shape: Shape, body: Value) -> Option<&'static str> {
        shape.effect(body.as_object().expect("an object"))
    }

    #[test]
    fn s33_what_has_effects_is_told_from_what_only_asks() {
        assert_eq!(effect(Shape::Chat, json!({ "model": "m", "messages": [] })), None);
        assert_eq!(effect(Shape::Responses, json!({ "input": "x" })), None);
        assert_eq!(
            effect(Shape::Responses, json!({ "input": "x", "store": false, "conversation": null })),
            None
        );
        for (name, value) in [
            ("store", json!(true)),
            ("background", json!(true)),
            ("previous_response_id", json!("resp_1")),
            ("conversation", json!({ "id": "c" })),
            ("web_search_options", json!({})),
            ("input", json!([{ "type": "item_reference", "id": "x" }])),
            ("tools", json!([{ "type": "function" }, { "type": "web_search" }])),
            ("tools", json!([{ "name": "typeless" }])),
            ("thread", json!({ "type": "create" })),
            ("messages", json!([{ "role": "user", "content": [{ "type": "tool_addition" }] }])),
        ] {
            assert!(effect(Shape::Responses, json!({ name: value })).is_some(), "{name}");
        }
        let of_messages = |tools: Value| effect(Shape::Messages, json!({ "tools": tools }));
        assert_eq!(
            of_messages(json!([{ "name": "own" }, { "type": "bash_20250124" }, { "type": "custom" }])),
            None
        );
        assert!(of_messages(json!([{ "type": "web_search_20250305" }])).is_some());
        assert!(effect(Shape::Messages, json!({ "mcp_servers": [{ "url": "x" }] })).is_some());
        assert_eq!(effect(Shape::Messages, json!({ "mcp_servers": [] })), None);
    }

    #[test]
    fn s33_only_whole_answers_are_whole() {
        let chat =
            |reason: Value| json!({ "choices": [{ "finish_reason": "stop" }, { "finish_reason": reason }] });
        for (reason, ending) in [
            (json!("stop"), Ending::Whole),
            (json!("tool_calls"), Ending::Whole),
            (json!("length"), Ending::Truncated),
            (json!("content_filter"), Ending::Refused),
            (json!("sensitive"), Ending::Failed),
            (Value::Null, Ending::Failed),
        ] {
            assert_eq!(Shape::Chat.read(&chat(reason)).ending, ending);
        }
        for (shape, body, ending) in [
            (Shape::Chat, json!({ "choices": [] }), Ending::Failed),
            (Shape::Chat, json!({ "error": { "message": "x" } }), Ending::Failed),
            (Shape::Responses, json!({ "status": "completed", "error": null }), Ending::Whole),
            (Shape::Responses, json!({ "status": "queued" }), Ending::Failed),
            (
                Shape::Responses,
                json!({ "status": "incomplete", "incomplete_details": { "reason": "max_output_tokens" } }),
                Ending::Truncated,
            ),
            (Shape::Messages, json!({ "stop_reason": "end_turn" }), Ending::Whole),
            (Shape::Messages, json!({ "stop_reason": "max_tokens" }), Ending::Truncated),
            (Shape::Messages, json!({ "stop_reason": "refusal" }), Ending::Refused),
            (Shape::Messages, json!({ "stop_reason": "pause_turn" }), Ending::Failed),
            (Shape::Messages, json!({ "stop_reason": "compaction" }), Ending::Failed),
            (Shape::Messages, json!({}), Ending::Failed),
            (Shape::Embeddings, json!({ "data": [{}] }), Ending::Whole),
            (Shape::Embeddings, json!({ "data": [] }), Ending::Failed),
        ] {
            assert_eq!(shape.read(&body).ending, ending, "{body}");
        }
    }

    fn streamed(shape: Shape, events: &[&str]) -> Findings {
        let text: String = events.iter().map(|event| format!("data: {event}\n\n")).collect();
        shape.read_kept(true, text.as_bytes())
    }

    #[test]
    fn s33_streams_end_with_their_last_event_or_are_cut() {
        let begun = r#"{"id":"c1","model":"m","choices":[{"index":0,"delta":{"content":"{\"a\":"},"finish_reason":null}]}"#;
        let ended = r#"{"choices":[{"index":0,"delta":{"content":"1}"},"finish_reason":"stop"}]}"#;
        let usage = r#"{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3}}"#;
        let whole = streamed(Shape::Chat, &[begun, ended, usage, "[DONE]"]);
        assert_eq!(
            (whole.ending, whole.outputs, whole.id.as_deref()),
            (Ending::Whole, vec![json!({ "a": 1 })], Some("c1"))
        );
        assert_eq!(whole.usage, Some(Usage { input: 7, cached: 0, output: 3 }));
        assert_eq!(streamed(Shape::Chat, &[begun, ended]).ending, Ending::Whole);
        assert_eq!(streamed(Shape::Chat, &[begun]).ending, Ending::Cut);
        assert_eq!(streamed(Shape::Chat, &[begun, "[DONE]"]).ending, Ending::Failed);
        assert_eq!(streamed(Shape::Chat, &[]).ending, Ending::Cut);
        let refusal = r#"{"choices":[{"index":0,"delta":{"refusal":"no"},"finish_reason":"stop"}]}"#;
        assert_eq!(streamed(Shape::Chat, &[refusal, "[DONE]"]).ending, Ending::Refused);
        let error = r#"{"error":{"message":"overloaded"}}"#;
        assert_eq!(streamed(Shape::Chat, &[begun, error]).ending, Ending::Failed);

        let start = r#"{"type":"message_start","message":{"id":"m1","model":"x","usage":{"input_tokens":5,"cache_read_input_tokens":2,"output_tokens":1}}}"#;
        let text = r#"{"type":"content_block_delta","delta":{"type":"text_delta","text":"hello"}}"#;
        let delta =
            r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":9}}"#;
        let stop = r#"{"type":"message_stop"}"#;
        let whole = streamed(Shape::Messages, &[start, text, delta, stop]);
        assert_eq!((whole.ending, whole.outputs), (Ending::Whole, vec![json!("hello")]));
        assert_eq!(whole.usage, Some(Usage { input: 7, cached: 2, output: 9 }));
        assert_eq!(streamed(Shape::Messages, &[start, text, delta]).ending, Ending::Cut);
        let overloaded = r#"{"type":"error","error":{"type":"overloaded_error"}}"#;
        assert_eq!(streamed(Shape::Messages, &[start, text, overloaded]).ending, Ending::Failed);

        let completed = r#"{"type":"response.completed","response":{"id":"r1","status":"completed","output":[{"type":"reasoning","content":[{"text":"hm"}]},{"type":"message","content":[{"type":"output_text","text":"hi"}]}]}}"#;
        let created = r#"{"type":"response.created","response":{"id":"r1","status":"in_progress"}}"#;
        assert_eq!(streamed(Shape::Responses, &[created, completed]).outputs, [json!("hi")]);
        assert_eq!(streamed(Shape::Responses, &[created]).ending, Ending::Cut);
        let refusal = r#"{"type":"response.refusal.delta","delta":"no"}"#;
        assert_eq!(streamed(Shape::Responses, &[created, refusal, completed]).ending, Ending::Refused);
    }

    #[test]
    fn what_a_model_wrote_is_found_in_tools_too() {
        let call = json!({ "choices": [{ "finish_reason": "tool_calls", "message": { "content": null,
            "tool_calls": [{ "function": { "arguments": "{\"city\":\"Bern\"}" } }] } }] });
        assert_eq!(Shape::Chat.read(&call).outputs, [json!({ "city": "Bern" })]);
        let block = json!({ "stop_reason": "tool_use", "content": [{ "type": "tool_use", "input": { "city": "Bern" } }] });
        assert_eq!(Shape::Messages.read(&block).outputs, [json!({ "city": "Bern" })]);
        // Of several calls the first one counts, streamed or not.
        let piece = |index: u64, json: &str| {
            json!({ "type": "content_block_delta", "index": index, "delta": { "partial_json": json } })
                .to_string()
        };
        let delta = json!({ "type": "message_delta", "delta": { "stop_reason": "tool_use" } }).to_string();
        let events = [
            piece(1, "{\"a\":"),
            piece(1, "1}"),
            piece(2, "{\"b\":2}"),
            delta,
            "{\"type\":\"message_stop\"}".to_owned(),
        ];
        let events: Vec<&str> = events.iter().map(String::as_str).collect();
        assert_eq!(streamed(Shape::Messages, &events).outputs, [json!({ "a": 1 })]);
        let both = r#"{"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":"stop"},{"index":1,"delta":{"content":"y"},"finish_reason":"stop"}]}"#;
        assert_eq!(streamed(Shape::Chat, &[both, "[DONE]"]).outputs, [json!("x"), json!("y")]);
    }

    #[test]
    fn s33_what_is_made_is_told_from_what_is_asked() {
        let of = |path: &str| Shape::of(&Method::POST, path);
        assert_eq!(of("/v1/chat/completions"), Some(Shape::Chat));
        assert_eq!(of("/openai/deployments/x/chat/completions"), Some(Shape::Chat));
        assert_eq!(of("/v1/completions"), None);
        assert_eq!(
            (of("/v1/messages"), of("/messages"), of("/anthropic/v1/messages/")),
            (Some(Shape::Messages), Some(Shape::Messages), Some(Shape::Messages))
        );
        assert_eq!((of("/v1/threads/t1/messages"), of("/v1/messages/batches")), (None, None));
        assert_eq!((of("/v1/responses"), of("/v1/responses/r1/cancel")), (Some(Shape::Responses), None));
        assert_eq!(Shape::of(&Method::GET, "/v1/responses"), None);
    }
}
