"""What a provider in Python makes of a call: the honest usage of what its own parser read, and an answer to it.

Every provider of these tests does the same in its own language and framework, and keeps what it read below the
value of the header `x-attack`.
"""

import json

# The answer of a model to which no maximum is stated.
LONGEST = 4000

seen = {}


def number(value):
    """What Python makes a number of: it takes underscores and the digits of every script."""
    try:
        return int(value)
    except (TypeError, ValueError):
        try:
            return int(float(value))
        except (TypeError, ValueError, OverflowError):
            return 1


def read(fields, text, header):
    """Keeps and answers what was understood of a body whose fields and text the framework read."""
    fields = fields if isinstance(fields, dict) else {}
    options = fields.get("stream_options")
    maximum = number(fields.get("max_completion_tokens") or fields.get("max_tokens") or LONGEST)
    n = number(fields.get("n") or 1)
    call = {
        "model": fields.get("model"),
        "max_tokens": maximum,
        "stream": bool(fields.get("stream")),
        "include_usage": bool(isinstance(options, dict) and options.get("include_usage")),
        "n": n,
        "tools": len(fields.get("tools") or ()),
        "service_tier": fields.get("service_tier"),
        "usage": {
            "prompt_tokens": max(1, len(text) // 4),
            "completion_tokens": n * maximum,
        },
        "headers": [list(one) for one in header],
        "body_bytes": len(text),
    }
    seen.setdefault(dict(header).get("x-attack", ""), []).append(call)
    return call


def answer(call):
    """A chat, or the events of one."""
    if not call["stream"]:
        choices = [{"index": 0, "message": {"role": "assistant", "content": "Yes."}, "finish_reason": "stop"}]
        chat = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": call["model"]}
        return "application/json", json.dumps(chat | {"choices": choices, "usage": total(call)})
    events = [{"choices": [{"index": 0, "delta": {"content": "Yes."}, "finish_reason": None}]}]
    events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    if call["include_usage"]:
        events.append({"choices": [], "usage": total(call)})
    chunk = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": call["model"]}
    lines = [json.dumps(chunk | event) for event in events] + ["[DONE]"]
    return "text/event-stream", "".join(f"data: {line}\n\n" for line in lines)


def total(call):
    usage = call["usage"]
    return usage | {"total_tokens": usage["prompt_tokens"] + usage["completion_tokens"]}
