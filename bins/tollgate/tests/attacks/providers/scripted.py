"""A provider that answers as an attack says: several providers below one origin, each a folder of the URL.

The header `x-plan` of a call, which a gateway passes on, has an answer as JSON: `status`, `headers` (pairs),
`chunks` (texts, each a write of its own), `pause` (seconds between them), `fill` (bytes of an answer that is
honest and large), `sized` (true: with a content length) and `cut` (true: without a proper end). `{key}` in a text
is the credential that came with the call, `{key:3}` and `{key::3}` are what follows its first three bytes, and
these three. Without a plan the answer is honest. A page that was put below `/pages/NAME` is the answer to every
`GET …/models/NAME`.
"""

import asyncio
import json
import re

from aiohttp import web

# The answer of a model to which no maximum is stated.
LONGEST = 8192

seen = {}
pages = {}


def credential(request):
    headers = request.headers
    bearer = headers.get("Authorization", "").removeprefix("Bearer ")
    return bearer or headers.get("x-api-key") or headers.get("x-goog-api-key") or ""


def filled(text, key):
    def part(found):
        first, end = found["first"], found["end"]
        return key[int(first or 0):int(end) if end else None]

    return re.sub(r"\{key(?::(?P<first>\d*)(?::(?P<end>\d*))?)?\}", part, text)


def chat_usage(path, body):
    """DeepSeek knows the older name of the maximum alone."""
    maximum = body.get("max_tokens")
    if "/deepseek/" not in path:
        maximum = body.get("max_completion_tokens") or maximum
    prompt, completion = 10, maximum or LONGEST
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def message_usage(body):
    cached = 100 if "cache_control" in json.dumps(body) else 0
    return {"input_tokens": 10, "output_tokens": body.get("max_tokens", LONGEST), "cache_creation_input_tokens": cached}


def honest(path, text):
    body = json.loads(text) if text.startswith("{") else {}
    model = body.get("model")
    if path.endswith("/messages"):
        content = [{"type": "text", "text": "Yes."}]
        said = {"id": "msg_1", "type": "message", "role": "assistant", "model": model, "content": content}
        return said | {"stop_reason": "end_turn", "usage": message_usage(body)}
    if path.endswith("/responses"):
        usage = {"input_tokens": 10, "output_tokens": 20, "total_tokens": 30}
        kinds = [tool.get("type") for tool in body.get("tools", ())]
        # Of both kinds of a search the calls have one name.
        kinds = [str(kind).removesuffix("_preview") for kind in kinds]
        output = [{"type": f"{kind}_call", "id": f"item_{at}", "status": "completed", "result": "aGk="}
                  for at, kind in enumerate(kinds)]
        response = {"id": "resp_1", "object": "response", "created_at": 1, "model": model, "status": "completed"}
        return response | {"output": output, "tools": body.get("tools", []), "usage": usage}
    if ":generateContent" in path:
        return {"usageMetadata": {"promptTokenCount": 12, "totalTokenCount": 12},
                "promptFeedback": {"blockReason": "SAFETY"}, "modelVersion": path.split("/")[-1].split(":")[0]}
    choices = [{"index": 0, "message": {"role": "assistant", "content": "Yes."}, "finish_reason": "stop"}]
    chat = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": model}
    return chat | {"choices": choices, "usage": chat_usage(path, body)}


async def anything(request):
    body = await request.read()
    text = body.decode("utf-8", "replace")
    header = [[name.lower(), value] for name, value in request.headers.items()]
    call = {"method": request.method, "path": request.path, "headers": header, "body": text[:10_000]}
    call["bytes"] = len(body)
    seen.setdefault(request.headers.get("x-attack", ""), []).append(call)
    name = request.path.rpartition("/models/")[2]
    plan = pages.get(name) or json.loads(request.headers.get("x-plan", "{}"))
    if "fill" in plan:
        return await large(request, plan["fill"])
    key = credential(request)
    chunks = plan.get("chunks")
    if chunks is None:
        return web.json_response(honest(request.path, text), status=plan.get("status", 200))
    chunks = [filled(chunk, key).encode() for chunk in chunks]
    response = web.StreamResponse(status=plan.get("status", 200))
    for header, value in plan.get("headers", ()):
        response.headers.add(header, filled(value, key))
    if plan.get("sized"):
        response.content_length = sum(map(len, chunks))
    await response.prepare(request)
    for at, chunk in enumerate(chunks):
        if at:
            await asyncio.sleep(plan.get("pause", 0))
        await response.write(chunk)
    if plan.get("cut"):
        request.transport.close()
        return response
    await response.write_eof()
    return response


async def large(request, size):
    """An honest answer whose end comes when the rest of it has been there for a while."""
    beginning = b'{"id":"c","model":"cheap","choices":[{"message":{"content":"'
    end = b'"}}],"usage":{"prompt_tokens":11,"completion_tokens":7,"total_tokens":18}}'
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    response.content_length = size
    await response.prepare(request)
    await response.write(beginning)
    left = size - len(beginning) - len(end)
    while left:
        piece = b"x" * min(left, 65536)
        await response.write(piece)
        left -= len(piece)
    await asyncio.sleep(2)
    await response.write(end)
    return response


async def show(request):
    return web.json_response(seen.get(request.match_info["attack"], []))


async def put(request):
    pages[request.match_info["name"]] = await request.json()
    return web.Response(status=204)


async def main():
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_get("/seen/{attack}", show)
    app.router.add_put("/pages/{name}", put)
    app.router.add_route("*", "/{path:.*}", anything)
    return app


if __name__ == "__main__":
    web.run_app(main(), host="127.0.0.1", port=0, print=lambda *said: print(*said, flush=True),
                handler_cancellation=True, max_line_size=65536, max_field_size=65536)
