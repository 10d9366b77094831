"""A provider on FastAPI: pydantic makes numbers and booleans of texts, and takes a body of any content type."""

import json
import socket

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict

import understood


class StreamOptions(BaseModel):
    include_usage: bool | None = None


class Chat(BaseModel):
    """What is not of its type is made one where pydantic knows a way, and is dropped where it knows none."""

    model_config = ConfigDict(extra="ignore", coerce_numbers_to_str=True)

    model: str | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    tools: list | None = None
    service_tier: str | None = None


app = FastAPI()


@app.post("/v1/chat/completions")
async def chat(request: Request):
    body = await request.body()
    text = body.decode(json.detect_encoding(body), "replace")
    try:
        fields = json.loads(text)
    except ValueError:
        fields = {}
    chat = {}
    for name in Chat.model_fields.keys() & (fields if isinstance(fields, dict) else {}):
        try:
            chat[name] = Chat(**{name: fields[name]}).model_dump()[name]
        except ValueError:
            pass
    kind, answer = understood.answer(understood.read(chat, text, request.headers.items()))
    return Response(answer, media_type=kind)


@app.get("/seen/{attack}")
async def seen(attack: str):
    return JSONResponse(understood.seen.get(attack, []))


if __name__ == "__main__":
    listener = socket.create_server(("127.0.0.1", 0))
    print(f"listening on http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run([listener])
