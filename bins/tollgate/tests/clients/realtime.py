"""The Agents SDK for voice against the real program: a typed question, a tool, speech, and the records of them."""

import asyncio
import json
import os
import sys
import time
import urllib.request

from agents import function_tool
from agents.realtime import RealtimeAgent, RealtimeRunner

URL = os.environ["CLIENTS_TESTS_URL"]
MODEL = "gpt-realtime"


def send(method, path, key, body=None):
    data = None if body is None else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(URL + path, data, headers, method=method)) as answer:
        return json.load(answer)


async def converse(key, **session):
    """One conversation. Returns the usage that each response reports, and the errors."""
    called, usage, errors = [], [], []

    @function_tool
    def look_up() -> str:
        """Looks something up."""
        called.append(True)
        return "A toll is due."

    agent = RealtimeAgent(name="Tester", instructions="Answer.", tools=[look_up])
    config = {"model_settings": {"model_name": MODEL, "modalities": ["audio"], **session}}
    address = f"{URL.replace('http', 'ws', 1)}/v1/providers/voice/realtime?model={MODEL}"
    runner = RealtimeRunner(agent, config=config)
    async with await runner.run(model_config={"url": address, "api_key": key}) as conversation:
        await conversation.send_message("Is a toll due?")
        async for event in conversation:
            data = getattr(getattr(event, "data", None), "data", None)
            if isinstance(data, dict) and data.get("type") == "response.done":
                used = data["response"]["usage"]
                usage.append((used["input_tokens"], used["output_tokens"]))
                # The question is answered after the tool; then it is spoken to, and calls the tool again.
                if len(usage) == 2:
                    await conversation.send_audio(b"\x01" * 48_000)
                    await conversation.send_audio(b"\x00" * 48_000)
                if len(usage) == 4:
                    break
            elif isinstance(data, dict) and data.get("type") == "error":
                errors.append(data["error"]["code"])
                break
    return called, usage, errors


def main():
    merchant = send("POST", "/v1/operator/merchants", os.environ["CLIENTS_TESTS_OPERATOR_TOKEN"], {"name": "Voice"})
    merchant = merchant["secret_key"]
    wallet = send("POST", "/v1/connections", merchant, {})["wallet_id"]
    send("POST", f"/v1/wallets/{wallet}/credits", merchant, {"amount": "10"})

    def key(**rules):
        return send("POST", "/v1/spend_keys", merchant, {"name": "Voice", "wallet_id": wallet} | rules)["key"]

    called, usage, errors = asyncio.run(converse(key()))
    assert (len(called), len(usage), errors) == (2, 4, []), (called, usage, errors)
    until = time.monotonic() + 10
    while (records := send("GET", "/v1/requests", merchant)["data"]) and records[0]["status"] == "pending":
        assert time.monotonic() < until, records
        time.sleep(0.05)
    spoken = [one["model_usage"] for one in records[::-1] if one["model"] == MODEL]
    read = [(one["input_tokens"], one["output_tokens"]) for one in spoken]
    assert read == usage, (read, usage)
    # The SDK has the speech transcribed, by a model of its own.
    assert len(records) == len(spoken) + 1, records
    assert len({one["socket_id"] for one in records}) == 1

    strict = key(enforcement="strict", spend_limit={"amount": "0.0001", "cycle": "total"})
    called, usage, errors = asyncio.run(converse(strict, max_output_tokens=100))
    assert (usage, errors) == ([], ["spend_limit_reached"]), (usage, errors)
    print("The Agents SDK for voice: 4 responses, 2 calls of a tool, a transcription, a refusal.")


if __name__ == "__main__":
    sys.exit(main())
