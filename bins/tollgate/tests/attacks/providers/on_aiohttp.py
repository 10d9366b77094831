"""A provider on aiohttp: it takes a body in the charset and the content encoding that the head states, whatever
type the head states, and the last of two equal keys."""

import json

from aiohttp import web

import understood

LIMIT = 64 * 1024 * 1024


async def chat(request):
    text = await request.text()
    try:
        fields = json.loads(text)
    except ValueError:
        fields = dict(await request.post())
    header = [(name.lower(), value) for name, value in request.headers.items()]
    kind, body = understood.answer(understood.read(fields, text, header))
    return web.Response(text=body, content_type=kind)


async def seen(request):
    return web.json_response(understood.seen.get(request.match_info["attack"], []))


async def main():
    app = web.Application(client_max_size=LIMIT)
    app.router.add_post("/v1/chat/completions", chat)
    app.router.add_get("/seen/{attack}", seen)
    return app


if __name__ == "__main__":
    web.run_app(main(), host="127.0.0.1", port=0, print=lambda *said: print(*said, flush=True))
