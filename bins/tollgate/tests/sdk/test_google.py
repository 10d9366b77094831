"""Google's SDK, unchanged but for its base URL and key: batches and videos, which are settled later, and Gemini Live."""

import os
import ssl
import time
from decimal import Decimal

from google import genai
from google.genai import types

from tollgate import URL, SdkTestCase

MODEL = "gemini-2.5-flash"
LIVE_MODEL = "gemini-live-2.5-flash"
QUESTION = [{"role": "user", "parts": [{"text": "What does a tollgate do?"}]}]


class GoogleTest(SdkTestCase):
    shape = "any"

    def client(self, vertex=False, **headers):
        options = types.HttpOptions(
            base_url=f"{URL}/v1/providers/vertex" if vertex else URL,
            api_version="v1" if vertex else None,
            headers={f"x-simulate-{name}": to for name, to in headers.items()},
        )
        return genai.Client(vertexai=vertex, api_key=self.spend_key["key"], http_options=options)

    def live_client(self):
        """The SDK opens sockets only with TLS."""
        trust = ssl.create_default_context(cafile=os.environ["SDK_TESTS_CERTIFICATE"])
        options = types.HttpOptions(base_url=os.environ["SDK_TESTS_TLS_URL"], async_client_args={"ssl": trust})
        return genai.Client(api_key=self.spend_key["key"], http_options=options)

    def settled(self, kind):
        """The only job of this kind once it has ended, and its record."""
        until = time.monotonic() + 15
        while True:
            [job] = self.merchant.send("GET", f"/v1/jobs?kind={kind}&limit=1")["data"]
            if job["state"] != "running":
                return job, self.merchant.send("GET", f"/v1/requests/{job['request_id']}")
            self.assertLess(time.monotonic(), until)
            time.sleep(0.1)

    async def test_live(self):
        client = self.live_client()
        config = {"response_modalities": ["AUDIO"], "max_output_tokens": 8}
        used = []

        async def turn():
            async for message in session.receive():
                if message.usage_metadata:
                    usage = message.usage_metadata
                    used.append((usage.prompt_token_count, usage.response_token_count))

        async with client.aio.live.connect(model=LIVE_MODEL, config=config) as session:
            await session.send_client_content(turns=QUESTION, turn_complete=True)
            await turn()
            for sound in (b"\x01" * 32_000, b"\x00" * 32_000):
                await session.send_realtime_input(audio=types.Blob(data=sound, mime_type="audio/pcm;rate=16000"))
            await turn()
        records = self.ended_records()[::-1]
        totals = [(one["model_usage"]["input_tokens"], one["model_usage"]["output_tokens"]) for one in records]
        self.assertEqual(totals, used)
        self.assertEqual({one["model"] for one in records}, {LIVE_MODEL})
        self.assertGreater(records[1]["model_usage"]["input_audio_tokens"], 0)
        self.assertEqual(len({record["socket_id"] for record in records}), 1)

        # A key that has spent its limit has no session.
        self.spend_key = self.new_spend_key(spend_limit={"amount": "0.0000000001", "cycle": "total"}, enforcement="strict")
        with self.assertRaises(genai.errors.APIError) as refused:
            async with self.live_client().aio.live.connect(model=LIVE_MODEL, config=config) as session:
                await session.send_client_content(turns=QUESTION, turn_complete=True)
                async for _ in session.receive():
                    pass
        self.assertIn("spend_limit_reached", str(refused.exception))

    def test_a_batch(self):
        client = self.client(**{"job-ms": "500", "failed-requests": "1"})
        config = {"max_output_tokens": 64}
        requests = [{"contents": QUESTION, "config": config} for _ in range(3)]
        created = client.batches.create(model=MODEL, src=requests, config={"display_name": "Questions"})
        self.assertEqual(created.state, types.JobState.JOB_STATE_RUNNING)
        self.assertIn(created.name, [one.name for one in client.batches.list()])
        while (batch := client.batches.get(name=created.name)).state == types.JobState.JOB_STATE_RUNNING:
            time.sleep(0.1)
        self.assertEqual(batch.state, types.JobState.JOB_STATE_SUCCEEDED)
        answers = batch.dest.inlined_responses
        self.assertEqual([one.error is None for one in answers], [True, True, False])
        used = [one.response.usage_metadata for one in answers[:2]]

        # The job ends when its answers are read, also without the client.
        job, record = self.settled("batch")
        self.assertEqual((job["state"], f"batches/{job['provider_object_id']}"), ("succeeded", created.name))
        [line] = record["lines"]
        self.assertEqual((line["requests"], line["tier"], line["cost"]), (2, "batch", record["model_usage"]["total_cost"]))
        self.assertEqual(
            (line["usage"]["input_tokens"], line["usage"]["output_tokens"]),
            (sum(one.prompt_token_count for one in used), sum(one.candidates_token_count for one in used)),
        )
        client.batches.delete(name=created.name)
        with self.assertRaises(genai.errors.ClientError) as gone:
            client.batches.get(name=created.name)
        self.assertEqual(gone.exception.code, 404)

    def test_a_batch_that_is_cancelled_costs_nothing(self):
        client = self.client(**{"job-ms": "60000"})
        created = client.batches.create(model=MODEL, src=[{"contents": QUESTION, "config": {"max_output_tokens": 64}}])
        client.batches.cancel(name=created.name)
        self.assertEqual(client.batches.get(name=created.name).state, types.JobState.JOB_STATE_CANCELLED)
        job, record = self.settled("batch")
        self.assertEqual((job["state"], Decimal(record["total_request_cost"])), ("cancelled", 0))

    def test_a_batch_with_a_request_without_a_bound_is_refused_by_name(self):
        client = self.client()
        with self.assertRaises(genai.errors.ClientError) as refused:
            client.batches.create(model=MODEL, src=[{"contents": QUESTION, "config": {"cached_content": "c"}}])
        error = refused.exception.details["error"]
        self.assertEqual(error["code"], "forward_token_json_invalid")
        self.assertEqual(error["issues"][0]["path"][:2], ["requests", "0"])

    def test_videos(self):
        # This version of the SDK makes videos at Vertex AI only.
        client = self.client(vertex=True, **{"job-ms": "300", "failed-requests": "1"})
        config = types.GenerateVideosConfig(number_of_videos=2, duration_seconds=8)
        operation = client.models.generate_videos(
            model="veo-3.0-generate-001", source={"prompt": "A gate opens."}, config=config
        )
        while not operation.done:
            time.sleep(0.1)
            operation = client.operations.get(operation)
        [video] = operation.response.generated_videos
        self.assertEqual(operation.response.rai_media_filtered_count, 1)
        self.assertTrue(video.video.uri.startswith("gs://"), video.video)
        job, record = self.settled("video")
        # One of two videos, of 8 s at 0.4 USD.
        self.assertEqual((job["state"], Decimal(record["model_usage"]["total_cost"])), ("succeeded", Decimal("3.2")))


if __name__ == "__main__":
    import unittest

    unittest.main()
