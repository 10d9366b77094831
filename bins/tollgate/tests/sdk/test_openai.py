"""The OpenAI SDK, with nothing changed but its base URL and its key."""

import asyncio
import base64
import json
import math
import os
import time
import unittest
from decimal import Decimal
from unittest import mock

import openai
from openai import AsyncOpenAI, OpenAI

from tollgate import EMBEDDING_MODEL, LONG_JOB, OPENAI_MODEL, URL, SdkTestCase

REALTIME_MODEL = "gpt-realtime"
LIVE_MODEL = "gpt-live-1"

MESSAGES = [{"role": "user", "content": "What does a tollgate do?"}]
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}


def joined(chunks):
    """The text of a streamed chat."""
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


class OpenAITestCase(SdkTestCase):
    shape = "shape_a"

    def client(self, spend_key=None, **options):
        key = (spend_key or self.spend_key)["key"]
        client = OpenAI(base_url=f"{URL}/v1", api_key=key, **options)
        self.addCleanup(client.close)
        return client

    def chat(self, spend_key=None, *, max_retries=0, **changes):
        client = self.client(spend_key, max_retries=max_retries)
        return client.chat.completions.create(**{"model": OPENAI_MODEL, "messages": MESSAGES} | changes)


class Calls(OpenAITestCase):
    def test_chat(self):
        chat = self.chat()
        self.assertEqual(chat.choices[0].finish_reason, "stop")
        self.assertTrue(chat.choices[0].message.content.startswith("You said: What does a tollgate do?"))
        [record] = self.assert_recorded((chat.usage.prompt_tokens, chat.usage.completion_tokens))
        self.assertEqual((record["provider"], record["model"]), ("openai", OPENAI_MODEL))
        self.assertEqual(record["response_id"], chat.id)
        spent = self.merchant.send("GET", f"/v1/spend_keys/{self.spend_key['spend_key_id']}")
        self.assertEqual(spent["current_spend"], record["total_request_cost"])

    def test_the_environment_alone_points_the_sdk_here(self):
        environment = {"OPENAI_BASE_URL": f"{URL}/v1", "OPENAI_API_KEY": self.spend_key["key"]}
        with mock.patch.dict(os.environ, environment), OpenAI() as client:
            chat = client.chat.completions.create(model=OPENAI_MODEL, messages=MESSAGES)
        self.assert_recorded((chat.usage.prompt_tokens, chat.usage.completion_tokens))

    def test_a_header_names_the_record(self):
        raw = self.client().chat.completions.with_raw_response.create(model=OPENAI_MODEL, messages=MESSAGES)
        usage = raw.parse().usage
        [record] = self.assert_recorded((usage.prompt_tokens, usage.completion_tokens))
        self.assertEqual(record["request_id"], raw.headers["x-service-request-id"])

    def test_the_provider_named_before_the_model(self):
        chat = self.chat(model=f"openai/{OPENAI_MODEL}")
        self.assertEqual(chat.model, OPENAI_MODEL)
        self.assert_recorded((chat.usage.prompt_tokens, chat.usage.completion_tokens))

    def test_cached_and_reasoning_tokens(self):
        details = {"x-simulate-cached-tokens": "100", "x-simulate-reasoning-tokens": "40"}
        usage = self.chat(extra_headers=details).usage
        self.assertEqual(usage.prompt_tokens_details.cached_tokens, 100)
        [record] = self.assert_recorded((usage.prompt_tokens, usage.completion_tokens))
        self.assertEqual(record["model_usage"]["cached_input_tokens"], 100)
        self.assertEqual(record["model_usage"]["reasoning_tokens"], 40)

    def test_a_stream_that_did_not_ask_for_usage_does_not_get_it(self):
        chunks = list(self.chat(stream=True))
        self.assertTrue(joined(chunks).startswith("You said: What does a tollgate do?"))
        self.assertTrue(all(chunk.choices and chunk.usage is None for chunk in chunks))
        whole = self.chat()
        self.assertEqual(joined(chunks), whole.choices[0].message.content)
        used = (whole.usage.prompt_tokens, whole.usage.completion_tokens)
        self.assert_recorded(used, used)

    def test_a_stream_that_asked_for_usage_gets_it(self):
        chunks = list(self.chat(stream=True, stream_options={"include_usage": True}))
        self.assertEqual([chunk for chunk in chunks[:-1] if chunk.usage], [])
        self.assertEqual(chunks[-1].choices, [])
        usage = chunks[-1].usage
        self.assert_recorded((usage.prompt_tokens, usage.completion_tokens))

    def test_the_cost_in_an_answer(self):
        asked = {"extra_headers": {"x-service-report": "cost"}}
        raw = self.client().chat.completions.with_raw_response.create(model=OPENAI_MODEL, messages=MESSAGES, **asked)
        plain, usage = self.chat(), raw.parse().usage
        self.assertEqual(raw.parse().choices[0].message.content, plain.choices[0].message.content)
        chunks = list(self.chat(stream=True, stream_options={"include_usage": True}, **asked))
        self.assertEqual(joined(chunks), plain.choices[0].message.content)
        used = (usage.prompt_tokens, usage.completion_tokens)
        [record, *_] = self.assert_recorded(used, used, used)
        self.assertEqual(raw.headers["x-service-cost"], record["total_request_cost"])

    def test_tools(self):
        chat = self.chat(tools=[TOOL])
        self.assertEqual(chat.choices[0].finish_reason, "tool_calls")
        [call] = chat.choices[0].message.tool_calls
        self.assertEqual(call.function.name, "weather")
        self.assertEqual(json.loads(call.function.arguments), {"city": "simulated", "days": 1})

        result = {"role": "tool", "tool_call_id": call.id, "content": "Sunny."}
        answer = chat.choices[0].message.model_dump(exclude_none=True)
        after = self.chat(tools=[TOOL], messages=[*MESSAGES, answer, result])
        self.assertEqual(after.choices[0].finish_reason, "stop")
        self.assert_recorded(
            (chat.usage.prompt_tokens, chat.usage.completion_tokens),
            (after.usage.prompt_tokens, after.usage.completion_tokens),
        )

    def test_tools_in_a_stream(self):
        client = self.client()
        with client.chat.completions.stream(
            model=OPENAI_MODEL, messages=MESSAGES, tools=[TOOL], stream_options={"include_usage": True}
        ) as stream:
            chat = stream.get_final_completion()
        [call] = chat.choices[0].message.tool_calls
        self.assertEqual(json.loads(call.function.arguments), {"city": "simulated", "days": 1})
        self.assert_recorded((chat.usage.prompt_tokens, chat.usage.completion_tokens))

    def test_responses(self):
        response = self.client().responses.create(model=OPENAI_MODEL, input="What does a tollgate do?")
        self.assertEqual(response.status, "completed")
        self.assertTrue(response.output_text.startswith("You said: What does a tollgate do?"))
        self.assert_recorded((response.usage.input_tokens, response.usage.output_tokens))

    def test_responses_in_a_stream(self):
        client = self.client()
        events = list(client.responses.create(model=OPENAI_MODEL, input="Count to five.", stream=True))
        self.assertEqual(events[0].type, "response.created")
        self.assertEqual(events[-1].type, "response.completed")
        text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        self.assertEqual(text, events[-1].response.output_text)
        with client.responses.stream(model=OPENAI_MODEL, input="Count to five.") as stream:
            final = stream.get_final_response()
        self.assertEqual(final.output_text, text)
        usages = (events[-1].response.usage, final.usage)
        self.assert_recorded(*((usage.input_tokens, usage.output_tokens) for usage in usages))

    def test_a_video(self):
        client = self.client(default_headers={"x-simulate-job-ms": "300"})
        created = client.videos.create(model="sora-2", prompt="A gate opens.", seconds="8", size="1280x720")
        self.assertEqual((created.status, created.seconds), ("queued", "8"))
        [job] = self.merchant.send("GET", "/v1/jobs?kind=video&state=running")["data"]
        self.assertEqual(job["provider_object_id"], created.id)
        self.assertGreaterEqual(Decimal(job["hold"]), Decimal("0.8"))
        self.assertEqual([one.id for one in client.videos.list()], [created.id])
        while (video := client.videos.retrieve(created.id)).status != "completed":
            time.sleep(0.1)
        self.assertEqual(client.videos.download_content(video.id).read(), b"not really a video")
        record = self.merchant.send("GET", f"/v1/requests/{job['request_id']}")
        self.assertEqual((record["status"], record["total_request_cost"]), ("completed", "0.8000000000"))
        self.assertEqual(record["model_usage"]["output_seconds"], 8)
        self.assertTrue(client.videos.delete(video.id).deleted)

    def test_a_batch_of_a_file(self):
        client = self.client(default_headers={"x-simulate-job-ms": "300", "x-simulate-failed-requests": "1"})
        body = {"model": OPENAI_MODEL, "max_tokens": 64, "messages": MESSAGES}
        lines = [
            {"custom_id": f"question-{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
            for number in range(3)
        ]
        content = "".join(json.dumps(line) + "\n" for line in lines).encode()
        uploaded = client.files.create(file=("questions.jsonl", content), purpose="batch")
        self.assertEqual((uploaded.filename, uploaded.bytes), ("questions.jsonl", len(content)))
        self.assertEqual(client.files.content(uploaded.id).read(), content)
        self.assertIn(uploaded.id, [one.id for one in client.files.list()])
        created = client.batches.create(
            input_file_id=uploaded.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
        [job] = self.merchant.send("GET", "/v1/jobs?kind=batch&state=running")["data"]
        self.assertEqual(job["provider_object_id"], created.id)
        self.assertEqual([one.id for one in client.batches.list()], [created.id])
        while (batch := client.batches.retrieve(created.id)).status != "completed":
            time.sleep(0.1)
        answers = [json.loads(line) for line in client.files.content(batch.output_file_id).text.splitlines()]
        errors = [json.loads(line) for line in client.files.content(batch.error_file_id).text.splitlines()]
        self.assertEqual(sorted(one["custom_id"] for one in answers), ["question-0", "question-1"])
        self.assertEqual([one["custom_id"] for one in errors], ["question-2"])
        used = [one["response"]["body"]["usage"] for one in answers]

        # The job ends when its results are read, also without the client.
        until = time.monotonic() + 10
        while (job := self.merchant.send("GET", f"/v1/jobs/{job['job_id']}"))["state"] == "running":
            self.assertLess(time.monotonic(), until)
            time.sleep(0.1)
        self.assertEqual(job["state"], "succeeded")
        record = self.merchant.send("GET", f"/v1/requests/{job['request_id']}")
        [line] = record["lines"]
        self.assertEqual((line["requests"], line["tier"], line["cost"]), (2, "batch", record["model_usage"]["total_cost"]))
        self.assertEqual(
            (line["usage"]["input_tokens"], line["usage"]["output_tokens"]),
            (sum(one["prompt_tokens"] for one in used), sum(one["completion_tokens"] for one in used)),
        )

        cancelled = client.batches.create(
            input_file_id=uploaded.id,
            endpoint="/v1/chat/completions",
            completion_window="24h",
            extra_headers=LONG_JOB,
        )
        self.assertEqual(client.batches.cancel(cancelled.id).status, "cancelled")
        self.assertTrue(client.files.delete(uploaded.id).deleted)
        with self.assertRaises(openai.NotFoundError) as gone:
            client.files.retrieve(uploaded.id)
        self.assertEqual(gone.exception.body["code"], "provider_object_not_found")

    def test_a_conversation(self):
        client = self.client()
        conversation = client.conversations.create(metadata={"topic": "gates"})
        message = {"type": "message", "role": "user", "content": "What does a tollgate do?"}
        [item] = client.conversations.items.create(conversation.id, items=[message]).data
        self.assertEqual([one.id for one in client.conversations.items.list(conversation.id)], [item.id])
        for named in (conversation.id, {"id": conversation.id}):
            response = client.responses.create(
                model=OPENAI_MODEL, input="Go on.", max_output_tokens=64, conversation=named
            )
            self.assertEqual(response.status, "completed")
        client.conversations.items.delete(item.id, conversation_id=conversation.id)
        client.conversations.update(conversation.id, metadata={"topic": "tolls"})
        self.assertTrue(client.conversations.delete(conversation.id).deleted)
        with self.assertRaises(openai.NotFoundError) as gone:
            client.conversations.retrieve(conversation.id)
        self.assertEqual(gone.exception.code, "provider_object_not_found")

    def test_a_file_as_input(self):
        client = self.client()
        uploaded = client.files.create(file=("gate.pdf", b"%PDF-1.7"), purpose="user_data")
        part = {"type": "input_file", "file_id": uploaded.id}
        asked = {"model": OPENAI_MODEL, "max_output_tokens": 64}
        response = client.responses.create(input=[{"role": "user", "content": [part]}], **asked)
        self.assertEqual(response.status, "completed")
        client.files.delete(uploaded.id)
        with self.assertRaises(openai.BadRequestError) as raised:
            client.responses.create(input=[{"role": "user", "content": [part]}], **asked)
        self.assert_explained(raised.exception, "forward_token_json_invalid")
        self.assertIn("input.0.content.0.file_id", raised.exception.message)

    def test_a_file_with_a_wrong_line(self):
        line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "gpt-unheard-of"}}
        with self.assertRaises(openai.BadRequestError) as raised:
            self.client(max_retries=0).files.create(file=("a.jsonl", json.dumps(line).encode()), purpose="batch")
        self.assert_explained(raised.exception, "forward_token_json_invalid")
        self.assertIn("file.1.body.model", raised.exception.message)

    def test_responses_over_a_websocket(self):
        used = []
        with self.client().responses.connect() as connection:
            previous = None
            for _ in range(2):
                connection.response.create(
                    model=OPENAI_MODEL, input="Write.", max_output_tokens=100, store=False, previous_response_id=previous
                )
                for event in connection:
                    if event.type == "response.completed":
                        break
                previous, usage = event.response.id, event.response.usage
                used.append((usage.input_tokens, usage.output_tokens))
            connection.response.create(model="no-such-model", input="Write.")
            self.assertEqual(connection.recv().error.code, "model_price_unknown")
        records = self.assert_recorded(*used)
        self.assertEqual(len({record["socket_id"] for record in records}), 1)

    def test_realtime(self):
        used = []
        with self.client().realtime.connect(model=REALTIME_MODEL) as connection:
            session = {"type": "realtime", "audio": {"input": {"transcription": {"model": "whisper-1"}}}}
            connection.session.update(session=session)
            connection.conversation.item.create(
                item={"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello there"}]}
            )
            connection.response.create(response={"output_modalities": ["text"], "max_output_tokens": 8})
            # Speech, and silence: the provider answers by itself.
            spoken = False
            for event in connection:
                if event.type == "response.done":
                    self.assertIn(event.response.status, ("completed", "incomplete"))
                    usage = event.response.usage
                    used.append((usage.input_tokens, usage.output_tokens))
                    if spoken:
                        break
                    spoken = True
                    for sound in (b"\x01" * 48_000, b"\x00" * 24_000):
                        connection.input_audio_buffer.append(audio=base64.b64encode(sound).decode())
                elif event.type == "conversation.item.input_audio_transcription.completed":
                    heard = event.usage
            connection.input_audio_buffer.clear()
            connection.session.update(session={"type": "realtime", "prompt": {"id": "pmpt_1"}}, event_id="mine")
            while (event := connection.recv()).type != "error":
                pass
            self.assertEqual((event.error.code, event.error.event_id), ("forward_token_json_invalid", "mine"))
        records = self.ended_records()[::-1]
        spoken = [record for record in records if record["model"] == REALTIME_MODEL]
        totals = [(one["model_usage"]["input_tokens"], one["model_usage"]["output_tokens"]) for one in spoken]
        self.assertEqual(totals, used)
        self.assertGreater(spoken[1]["model_usage"]["output_audio_tokens"], 0)
        [transcription] = [record for record in records if record["model"] == "whisper-1"]
        self.assertEqual(transcription["model_usage"]["input_seconds"], heard.seconds)
        self.assertEqual(len({record["socket_id"] for record in records}), 1)

    def test_live(self):
        delegation = {"type": "responses", "responses": {"model": OPENAI_MODEL, "max_output_tokens": 50}}
        with self.client().live.connect() as connection:
            connection.session.start(session={"model": LIVE_MODEL, "delegation": {"type": "decisions"}}, event_id="mine")
            error = connection.recv().error
            self.assertEqual((error.code, error.client_event_id), ("forward_token_json_invalid", "mine"))
            connection.session.start(session={"model": LIVE_MODEL, "delegation": delegation})
            self.assertEqual(connection.recv().type, "session.started")
            # Speech, and silence: the model answers, and delegates.
            for sound in (b"\x01" * 48_000, b"\x00" * 24_000):
                connection.session.input_audio.append(audio=base64.b64encode(sound).decode())
            for event in connection:
                if event.type == "response.event" and event.event["type"] == "response.completed":
                    used = event.event["response"]["usage"]
                    connection.session.close()
                elif event.type == "session.closed":
                    seconds = event.usage.seconds
                    break
        response, session = self.ended_records()
        self.assertEqual((response["model"], session["model"]), (OPENAI_MODEL, LIVE_MODEL))
        totals = [response["model_usage"][name] for name in ("input_tokens", "output_tokens")]
        self.assertEqual(totals, [used["input_tokens"], used["output_tokens"]])
        self.assertEqual(session["model_usage"]["input_seconds"], math.ceil(seconds))
        self.assertAlmostEqual(float(session["model_usage"]["total_cost"]), seconds * 0.05 / 60, places=9)
        self.assertEqual(session["socket_id"], response["socket_id"])

    def test_a_response_in_the_background(self):
        client = self.client()

        def create(**more):
            return client.responses.create(
                model=OPENAI_MODEL, input="Write.", background=True, max_output_tokens=100, **more
            )

        created = create(extra_headers={"x-simulate-job-ms": "300"})
        self.assertEqual(created.status, "queued")
        [job] = self.merchant.send("GET", "/v1/jobs?state=running")["data"]
        self.assertEqual(job["provider_object_id"], created.id)
        while (response := client.responses.retrieve(created.id)).status in ("queued", "in_progress"):
            time.sleep(0.1)
        self.assertEqual(response.status, "completed")
        self.assertEqual(client.responses.input_items.list(created.id).data[0].role, "user")
        record = self.merchant.send("GET", f"/v1/requests/{job['request_id']}")
        self.assertEqual((record["status"], record["job_id"]), ("completed", job["job_id"]))
        usage = record["model_usage"]
        self.assertEqual(
            (usage["input_tokens"], usage["output_tokens"]),
            (response.usage.input_tokens, response.usage.output_tokens),
        )

        # The stream of a response that runs is resumed after an event.
        events = list(client.responses.retrieve(created.id, stream=True, starting_after=2))
        self.assertEqual((events[0].sequence_number, events[-1].type), (3, "response.completed"))
        streamed = list(create(stream=True))
        self.assertEqual(streamed[-1].type, "response.completed")

        # A later response continues it.
        follows = client.responses.create(
            model=OPENAI_MODEL, input="Go on.", max_output_tokens=100, previous_response_id=created.id
        )
        self.assertEqual(follows.status, "completed")

        cancelled = client.responses.cancel(create(extra_headers=LONG_JOB).id)
        self.assertEqual(cancelled.status, "cancelled")
        client.responses.delete(created.id)
        with self.assertRaises(openai.NotFoundError) as gone:
            client.responses.retrieve(created.id)
        self.assertEqual(gone.exception.code, "provider_object_not_found")
        with self.assertRaises(openai.NotFoundError):
            self.client().responses.retrieve("resp_unknown")

    def test_responses_with_tools(self):
        tool = {"type": "function", "name": "weather", "parameters": PARAMETERS, "strict": False}
        response = self.client().responses.create(model=OPENAI_MODEL, input="Weather?", tools=[tool])
        [call] = response.output
        self.assertEqual((call.type, call.name), ("function_call", "weather"))
        self.assertEqual(json.loads(call.arguments), {"city": "simulated", "days": 1})
        self.assert_recorded((response.usage.input_tokens, response.usage.output_tokens))

    def test_embeddings(self):
        texts = ["What does a tollgate do?", "It takes a toll."]
        made = self.client().embeddings.create(model=EMBEDDING_MODEL, input=texts, dimensions=8)
        self.assertEqual([len(one.embedding) for one in made.data], [8, 8])
        self.assertIsInstance(made.data[0].embedding[0], float)
        self.assert_recorded((made.usage.prompt_tokens, 0))

    def test_models(self):
        ids = [model.id for model in self.client().models.list()]
        self.assertIn(OPENAI_MODEL, ids)
        # Anthropic has an endpoint in this format, too.
        claude = next(one for one in ids if one.startswith("claude"))
        self.assertEqual(self.client().models.retrieve(claude).id, claude)
        self.assertEqual(self.chat(model=claude).model, claude)
        few = self.new_spend_key(allowed_models=[OPENAI_MODEL])
        self.assertEqual([model.id for model in self.client(few).models.list()], [OPENAI_MODEL])

    def test_the_sdk_waits_as_long_as_it_is_told_and_passes(self):
        self.spend_key = self.new_spend_key(rate_limit={"rpm": 60, "burst": 1})
        chats = [self.chat(max_retries=2) for _ in range(2)]
        self.assert_recorded(*((chat.usage.prompt_tokens, chat.usage.completion_tokens) for chat in chats))

    async def test_asynchronous(self):
        async with AsyncOpenAI(base_url=f"{URL}/v1", api_key=self.spend_key["key"]) as client:

            async def streamed():
                stream = await client.chat.completions.create(
                    model=OPENAI_MODEL,
                    messages=MESSAGES,
                    stream=True,
                    stream_options={"include_usage": True},
                )
                return [chunk async for chunk in stream][-1].usage

            async def whole():
                chat = await client.chat.completions.create(model=OPENAI_MODEL, messages=MESSAGES)
                return chat.usage

            usages = await asyncio.gather(*(call() for call in [streamed, whole] * 5))
        self.assert_recorded(*((usage.prompt_tokens, usage.completion_tokens) for usage in usages))


class Errors(OpenAITestCase):
    def refused(self, error, code, *, header=None, spend_key=None, **changes):
        """A chat must raise `error` with our `code`, where this SDK has it; answers the error."""
        before = len(self.records())
        with self.assertRaises(error) as raised:
            self.chat(spend_key, **changes)
        self.assertEqual(raised.exception.code, code)
        self.assertEqual(len(self.records()), before, "a refused call leaves no record")
        return raised.exception, self.assert_explained(raised.exception, code, header=header)

    def test_401_a_wrong_key(self):
        error, _ = self.refused(openai.AuthenticationError, "auth_invalid", spend_key={"key": "tgk_wrong"})
        self.assertEqual(error.type, "authentication_error")

    def test_401_a_rotated_key(self):
        self.chat()
        rotated = self.merchant.send("POST", f"/v1/spend_keys/{self.spend_key['spend_key_id']}/rotate", {})
        self.refused(openai.AuthenticationError, "auth_invalid")
        self.chat(rotated)

    def test_403_a_paused_key(self):
        self.chat()
        path = f"/v1/spend_keys/{self.spend_key['spend_key_id']}"
        self.merchant.send("PUT", path, {"status": "paused"})
        error, _ = self.refused(openai.PermissionDeniedError, "spend_key_paused")
        self.assertEqual(error.type, "permission_error")
        with self.assertRaises(openai.PermissionDeniedError):
            self.client(max_retries=0).models.list()
        self.merchant.send("PUT", path, {"status": "active"})
        self.chat()

    def test_403_a_model_that_is_not_allowed(self):
        only = self.new_spend_key(allowed_models=["gpt-4o"])
        code = "spend_key_model_not_allowed"
        error, _ = self.refused(openai.PermissionDeniedError, code, spend_key=only)
        self.assertEqual(error.param, "model")
        self.chat(only, model="gpt-4o")

    def test_403_a_key_of_the_other_format(self):
        other = self.merchant.new_spend_key("shape_b")
        code = "spend_key_request_shape_mismatch"
        self.refused(openai.PermissionDeniedError, code, spend_key=other)

    def test_404_a_route_that_is_not_there(self):
        with self.assertRaises(openai.NotFoundError) as raised:
            self.client(max_retries=0).vector_stores.list()
        self.assert_explained(raised.exception, "route_not_found")

    def test_400_a_model_that_nobody_serves(self):
        error, _ = self.refused(openai.BadRequestError, "model_price_unknown", model="gpt-unheard-of")
        self.assertEqual((error.type, error.param), ("invalid_request_error", "model"))

    def test_400_what_the_managed_key_may_not(self):
        with self.assertRaises(openai.BadRequestError) as raised:
            self.client(max_retries=0).responses.create(
                model=OPENAI_MODEL, input="Go on.", previous_response_id="resp_1"
            )
        self.assert_explained(raised.exception, "forward_token_json_invalid")
        self.assertEqual(raised.exception.param, "previous_response_id")

    def test_402_a_spend_limit(self):
        key = self.new_spend_key(spend_limit={"amount": "0.0000000001", "cycle": "total"})
        self.chat(key)
        error, left = self.refused(
            openai.APIStatusError, "spend_limit_reached", spend_key=key, header="x-ratelimit-remaining"
        )
        self.assertEqual((error.status_code, left), (402, "0.0000000000"))

    def test_402_a_strict_limit_names_what_would_fit(self):
        limit = {"amount": "0.01", "cycle": "daily"}
        key = self.new_spend_key(enforcement="strict", spend_limit=limit)
        error, _ = self.refused(
            openai.APIStatusError, "spend_limit_reached", spend_key=key, max_tokens=1_000_000
        )
        largest = int(str(error).split("maximum of ")[1].split()[0])
        # Input is bounded by bytes, and a number of fewer digits makes the body a little shorter.
        too_large = largest + 10
        self.refused(openai.APIStatusError, "spend_limit_reached", spend_key=key, max_tokens=too_large)
        self.chat(key, max_tokens=largest)

    def test_402_an_empty_wallet(self):
        broke = self.new_spend_key(wallet_id=self.merchant.new_wallet())
        error, _ = self.refused(openai.APIStatusError, "wallet_balance_insufficient", spend_key=broke)
        self.assertEqual(error.status_code, 402)

    def test_429_a_rate_limit(self):
        key = self.new_spend_key(rate_limit={"rpm": 1})
        self.chat(key)
        error, wait = self.refused(
            openai.RateLimitError, "rate_limited", spend_key=key, header="retry-after"
        )
        self.assertEqual(error.type, "rate_limit_error")
        self.assertIn(int(wait), range(1, 61))

    def test_429_a_request_limit(self):
        key = self.new_spend_key(request_limit={"count": 1, "cycle": "monthly"})
        self.chat(key)
        code = "request_limit_reached"
        error, again = self.refused(openai.RateLimitError, code, spend_key=key, header="x-should-retry")
        self.assertEqual((error.type, again), ("insufficient_quota", "false"))
        self.assertNotIn("retry-after", error.response.headers)

    def test_an_error_of_the_provider_comes_through(self):
        with self.assertRaises(openai.RateLimitError) as raised:
            self.chat(extra_headers={"x-simulate-status": "429", "x-simulate-retry-after": "7"})
        self.assertEqual(raised.exception.response.headers["retry-after"], "7")
        [record] = self.records()
        self.assertEqual((record["status"], record["provider_status"]), ("error", 429))
        self.assertEqual(record["total_request_cost"], "0.0000000000")

    def test_an_error_within_a_stream(self):
        with self.assertRaises(openai.APIError):
            list(self.chat(stream=True, extra_headers={"x-simulate-error-after-events": "5"}))
        [record] = self.ended_records()
        self.assertEqual((record["status"], record["usage_source"]), ("error", "partial"))
        self.assertNotEqual(record["total_request_cost"], "0.0000000000")


if __name__ == "__main__":
    unittest.main()
