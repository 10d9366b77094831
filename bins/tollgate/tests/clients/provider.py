"""A provider for clients of every format, on loopback: `provider.py ADDRESS-OF-THE-SIMULATOR`.

Gemini's and Cohere's formats are answered here, as their documentation has them. Everything else goes to
`tollgate simulator`, without the tools that agents offer: the simulated model calls the first tool it is offered,
and an agent would call it again and again. Prints the address it listens on.
"""

import json
import re
import sys
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

WORDS = ["You said hi. ", "I am a simulated model."]
INPUT, OUTPUT = 11, 5
HOP_BY_HOP = {"connection", "host", "content-length", "transfer-encoding", "accept-encoding"}


def sample(schema):
    """A value that fits a JSON schema, for clients that ask for structured output."""
    kind = schema.get("type", "object").lower()
    if "enum" in schema:
        return schema["enum"][0]
    if kind == "object":
        return {name: sample(below) for name, below in schema.get("properties", {}).items()}
    return {"array": [], "boolean": False, "integer": 1, "number": 1}.get(kind, "simulated")


def gemini(path, asked):
    """The chunks of an answer in Gemini's format."""
    if path.endswith(":countTokens"):
        return [{"totalTokens": INPUT}]
    settings = asked.get("generationConfig", {})
    schema = settings.get("responseJsonSchema") or settings.get("responseSchema")
    texts = [json.dumps(sample(schema))] if schema else WORDS
    if not path.endswith(":streamGenerateContent"):
        texts = ["".join(texts)]
    model = re.search(r"models/([^:]+):", path)[1]
    usage = {"promptTokenCount": INPUT, "candidatesTokenCount": OUTPUT, "totalTokenCount": INPUT + OUTPUT}
    chunks = []
    for text in texts:
        candidate = {"content": {"role": "model", "parts": [{"text": text}]}, "index": 0}
        chunks.append({"candidates": [candidate], "modelVersion": model, "responseId": "simulated"})
    chunks[-1]["candidates"][0]["finishReason"] = "STOP"
    chunks[-1]["usageMetadata"] = usage
    return chunks


def cohere(streamed):
    """The events of an answer in Cohere's format, or the whole of it."""
    used = {"input_tokens": INPUT, "output_tokens": OUTPUT}
    end = {"finish_reason": "COMPLETE", "usage": {"billed_units": used, "tokens": used}}
    if not streamed:
        content = [{"type": "text", "text": "".join(WORDS)}]
        return [{"id": "simulated", "message": {"role": "assistant", "content": content}} | end]
    start = {"message": {"role": "assistant", "content": [], "tool_plan": "", "tool_calls": [], "citations": []}}
    content = {"message": {"content": {"type": "text", "text": ""}}}
    deltas = [
        {"type": "content-delta", "index": 0, "delta": {"message": {"content": {"text": text}}}} for text in WORDS
    ]
    return [
        {"type": "message-start", "id": "simulated", "delta": start},
        {"type": "content-start", "index": 0, "delta": content},
        *deltas,
        {"type": "content-end", "index": 0},
        {"type": "message-end", "delta": end},
    ]


def with_usage(stream, mistral, wanted):
    """A stream of chat chunks with the usage where Mistral and Groq put it unasked: beside the finish reason."""
    events = [json.loads(line[6:]) for line in stream.decode().split("\n\n") if line.startswith("data: {")]
    usage = events.pop()
    last = next(event for event in events if event["choices"][0]["finish_reason"])
    if mistral:
        last["usage"] = usage["usage"]
    else:
        last["x_groq"] = {"id": "req_simulated", "usage": usage["usage"]}
        events += [usage] if wanted else []
    return "".join(f"data: {json.dumps(event)}\n\n" for event in events).encode() + b"data: [DONE]\n\n"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        url, asked = urlsplit(self.path), json.loads(body)
        if re.search(r"/models/[^/]+:", url.path):
            chunks = gemini(url.path, asked)
            if "alt=sse" in url.query:
                self.answer_events(chunks)
            else:
                self.answer(chunks if url.path.endswith(":streamGenerateContent") else chunks[0])
        elif url.path == "/v2/chat":
            streamed = asked.get("stream", False)
            (self.answer_events if streamed else lambda whole: self.answer(whole[0]))(cohere(streamed))
        else:
            self.relay(asked)

    def answer(self, value):
        self.send(200, {"Content-Type": "application/json"}, [json.dumps(value).encode()])

    def answer_events(self, events):
        lines = [f"data: {json.dumps(event)}\n\n" for event in events]
        if "type" in events[0]:
            lines = [f"event: {event['type']}\n{line}" for event, line in zip(events, lines, strict=True)]
        self.send(200, {"Content-Type": "text/event-stream"}, [line.encode() for line in lines])

    def relay(self, asked):
        for field in ("tools", "tool_choice"):
            asked.pop(field, None)
        groq, path = re.fullmatch(r"(/openai)?(/v1/.*)", self.path).groups()
        mistral = asked.get("model", "").startswith("mistral-")
        reported = bool((groq or mistral) and asked.get("stream"))
        wanted = asked.get("stream_options", {}).get("include_usage", False)
        if reported:
            asked["stream_options"] = {"include_usage": True}
        upstream = HTTPConnection(self.server.simulator, timeout=30)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP_BY_HOP}
        upstream.request("POST", path, json.dumps(asked).encode(), headers)
        answer = upstream.getresponse()
        headers = {name: value for name, value in answer.getheaders() if name.lower() not in HOP_BY_HOP}
        pieces = iter(lambda: answer.read1(65536), b"")
        if reported and answer.status == 200:
            pieces = [with_usage(b"".join(pieces), mistral, wanted)]
        self.send(answer.status, headers, pieces)
        upstream.close()

    def send(self, status, headers, pieces):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for piece in pieces:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.simulator = sys.argv[1]
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
