"""A provider of AI models that never gives the same answer twice. Prompts say how it misbehaves, the first time:
[429 once], [500 once], [cut once], [stall once]. GET /asked says how often each prompt was answered, and refused."""

import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

lock = threading.Lock()
asked = {}
number = 0


def prompt_of(body):
    if "input" in body:
        given = body["input"]
        return given if isinstance(given, str) else json.dumps(given)
    return json.dumps(body.get("messages"))


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def say(self, status, value, **headers):
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        for name, text in headers.items():
            self.send_header(name.replace("_", "-"), text)
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        with lock:
            self.say(200, asked)

    def do_POST(self):
        global number
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        prompt = prompt_of(body)
        with lock:
            number += 1
            mine = number
            counts = asked.setdefault(prompt, {"answered": 0, "failed": 0})
            first = counts["answered"] + counts["failed"] == 0
            fails = first and any(f"[{what} once]" in prompt for what in ("429", "500", "cut"))
            counts["failed" if fails else "answered"] += 1
        if fails and "[429 once]" in prompt:
            return self.say(429, {"error": {"message": "slow down"}}, retry_after="0")
        if fails and "[500 once]" in prompt:
            return self.say(500, {"error": {"message": "oh"}})
        stalls = first and "[stall once]" in prompt
        kind = self.path.split("?")[0].rsplit("/", 1)[1]
        if body.get("stream"):
            return self.stream(kind, body, mine, fails, stalls)
        if stalls:
            time.sleep(3)
        self.say(200, whole(kind, body, mine))

    def stream(self, kind, body, mine, cuts, stalls):
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        events = list(streamed(kind, body, mine))
        for at, (name, value) in enumerate(events):
            if at == len(events) // 2:
                if cuts:
                    self.close_connection = True
                    return
                if stalls:
                    time.sleep(3)
            data = value if isinstance(value, str) else json.dumps(value)
            text = (f"event: {name}\n" if name else "") + f"data: {data}\n\n"
            data = text.encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")


def text_of(body, mine):
    wants_json = "json" in json.dumps(body.get("response_format", "")) or "json" in json.dumps(body.get("text", ""))
    return json.dumps({"number": mine}) if wants_json else f"the answer is {mine}"


def calls_tool(body):
    """The first time tools are offered it calls one; with its result it answers."""
    talk = json.dumps(body.get("messages", body.get("input")))
    return bool(body.get("tools")) and "tool_result" not in talk and '"tool"' not in talk and "function_call_output" not in talk


def tool_name(body):
    tool = body["tools"][0]
    return tool.get("name") or tool["function"]["name"]


def whole(kind, body, mine):
    model = body["model"]
    if kind == "embeddings":
        return {"object": "list", "model": model, "data": [{"object": "embedding", "index": 0, "embedding": [mine / 7, 0.5]}],
                "usage": {"prompt_tokens": 8, "total_tokens": 8}}
    if kind == "messages":
        content = [{"type": "text", "text": text_of(body, mine)}]
        if calls_tool(body):
            content = [{"type": "tool_use", "id": f"toolu_{mine}", "name": tool_name(body), "input": {"city": "Bern"}}]
        return {"id": f"msg_{mine}", "type": "message", "role": "assistant", "model": model, "content": content,
                "stop_reason": "tool_use" if calls_tool(body) else "end_turn", "stop_sequence": None,
                "usage": {"input_tokens": 10, "output_tokens": 5}}
    if kind == "responses":
        output = [{"type": "message", "id": f"out_{mine}", "role": "assistant", "status": "completed",
                   "content": [{"type": "output_text", "text": text_of(body, mine), "annotations": []}]}]
        if calls_tool(body):
            output = [{"type": "function_call", "id": f"fc_{mine}", "call_id": f"call_{mine}", "status": "completed",
                       "name": tool_name(body), "arguments": '{"city": "Bern"}'}]
        return {"id": f"resp_{mine}", "object": "response", "created_at": 1700000000, "model": model, "status": "completed",
                "output": output, "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "error": None,
                "incomplete_details": None, "instructions": None, "metadata": {}, "temperature": 1.0, "top_p": 1.0,
                "usage": {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15,
                          "input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}}
    message = {"role": "assistant", "content": text_of(body, mine), "refusal": None}
    if calls_tool(body):
        message = {"role": "assistant", "content": None, "tool_calls": [
            {"id": f"call_{mine}", "type": "function", "function": {"name": tool_name(body), "arguments": '{"city": "Bern"}'}}]}
    return {"id": f"chatcmpl-{mine}", "object": "chat.completion", "created": 1700000000 + mine, "model": model,
            "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls" if calls_tool(body) else "stop"}],
            "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}}


def streamed(kind, body, mine):
    full = whole(kind, body, mine)
    words = text_of(body, mine).split(" ")
    if kind == "messages":
        yield "message_start", {"type": "message_start", "message": {**full, "content": [], "stop_reason": None}}
        if calls_tool(body):
            yield "content_block_start", {"type": "content_block_start", "index": 0, "content_block": {**full["content"][0], "input": {}}}
            for part in ('{"city": ', '"Bern"}'):
                yield "content_block_delta", {"type": "content_block_delta", "index": 0,
                                              "delta": {"type": "input_json_delta", "partial_json": part}}
        else:
            yield "content_block_start", {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
            for word in words:
                yield "content_block_delta", {"type": "content_block_delta", "index": 0,
                                              "delta": {"type": "text_delta", "text": word + " "}}
        yield "content_block_stop", {"type": "content_block_stop", "index": 0}
        yield "message_delta", {"type": "message_delta", "delta": {"stop_reason": full["stop_reason"], "stop_sequence": None},
                                "usage": {"output_tokens": 5}}
        yield "message_stop", {"type": "message_stop"}
    elif kind == "responses":
        sequence = 0

        def event(name, **fields):
            nonlocal sequence
            sequence += 1
            return name, {"type": name, "sequence_number": sequence, **fields}

        item = full["output"][0]
        yield event("response.created", response={**full, "status": "in_progress", "output": []})
        yield event("response.output_item.added", output_index=0, item={**item, "status": "in_progress"})
        if item["type"] == "message":
            for word in words:
                yield event("response.output_text.delta", output_index=0, content_index=0, item_id=item["id"], delta=word + " ", logprobs=[])
        yield event("response.output_item.done", output_index=0, item=item)
        yield event("response.completed", response=full)
    else:
        chunk = {"id": full["id"], "object": "chat.completion.chunk", "created": full["created"], "model": full["model"]}

        def piece(delta, reason=None):
            return None, {**chunk, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}

        yield piece({"role": "assistant", "content": ""})
        if calls_tool(body):
            call = full["choices"][0]["message"]["tool_calls"][0]
            yield piece({"tool_calls": [{"index": 0, **call, "function": {"name": call["function"]["name"], "arguments": ""}}]})
            for part in ('{"city": ', '"Bern"}'):
                yield piece({"tool_calls": [{"index": 0, "function": {"arguments": part}}]})
        else:
            for word in words:
                yield piece({"content": word + " "})
        yield piece({}, full["choices"][0]["finish_reason"])
        if (body.get("stream_options") or {}).get("include_usage"):
            yield None, {**chunk, "choices": [], "usage": full["usage"]}
        yield None, "[DONE]"


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024

    def handle_error(self, *_):
        """Those who ask are killed in the middle: that is what is tested."""


server = Server(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
threading.Thread(target=lambda: (sys.stdin.read(), server.shutdown()), daemon=True).start()
server.serve_forever()
