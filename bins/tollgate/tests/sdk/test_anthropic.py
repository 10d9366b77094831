"""The Anthropic SDK, with nothing changed but its base URL and its key."""

import asyncio
import os
import time
import unittest
from unittest import mock

import anthropic
from anthropic import Anthropic, AsyncAnthropic

from tollgate import ANTHROPIC_MODEL, LONG_JOB, URL, SdkTestCase

MESSAGES = [{"role": "user", "content": "What does a tollgate do?"}]
TOOL = {
    "name": "weather",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city", "days"],
    },
}


class AnthropicTestCase(SdkTestCase):
    shape = "shape_b"

    def client(self, spend_key=None, **options):
        key = (spend_key or self.spend_key)["key"]
        client = Anthropic(base_url=URL, api_key=key, **options)
        self.addCleanup(client.close)
        return client

    def message(self, spend_key=None, *, max_retries=0, **changes):
        client = self.client(spend_key, max_retries=max_retries)
        asked = {"model": ANTHROPIC_MODEL, "max_tokens": 64, "messages": MESSAGES}
        return client.messages.create(**asked | changes)


class Calls(AnthropicTestCase):
    def test_a_message(self):
        message = self.message()
        self.assertEqual(message.stop_reason, "end_turn")
        self.assertTrue(message.content[0].text.startswith("You said: What does a tollgate do?"))
        [record] = self.assert_recorded((message.usage.input_tokens, message.usage.output_tokens))
        self.assertEqual((record["provider"], record["model"]), ("anthropic", ANTHROPIC_MODEL))
        self.assertEqual(record["response_id"], message.id)
        spent = self.merchant.send("GET", f"/v1/spend_keys/{self.spend_key['spend_key_id']}")
        self.assertEqual(spent["current_spend"], record["total_request_cost"])

    def test_the_environment_alone_points_the_sdk_here(self):
        environment = {"ANTHROPIC_BASE_URL": URL, "ANTHROPIC_API_KEY": self.spend_key["key"]}
        with mock.patch.dict(os.environ, environment), Anthropic() as client:
            message = client.messages.create(model=ANTHROPIC_MODEL, max_tokens=64, messages=MESSAGES)
        self.assert_recorded((message.usage.input_tokens, message.usage.output_tokens))

    def test_the_key_as_a_bearer_token(self):
        with Anthropic(base_url=URL, auth_token=self.spend_key["key"]) as client:
            message = client.messages.create(model=ANTHROPIC_MODEL, max_tokens=64, messages=MESSAGES)
        self.assert_recorded((message.usage.input_tokens, message.usage.output_tokens))

    def test_cached_tokens_are_part_of_the_input(self):
        usage = self.message(extra_headers={"x-simulate-cached-tokens": "100"}).usage
        self.assertEqual(usage.cache_read_input_tokens, 100)
        whole = usage.input_tokens + usage.cache_read_input_tokens
        [record] = self.assert_recorded((whole, usage.output_tokens))
        self.assertEqual(record["model_usage"]["cached_input_tokens"], 100)

    def test_the_cost_in_an_answer(self):
        asked = {"model": ANTHROPIC_MODEL, "max_tokens": 64, "messages": MESSAGES}
        asked["extra_headers"] = {"x-service-report": "cost"}
        raw = self.client().messages.with_raw_response.create(**asked)
        with self.client().messages.stream(**asked) as stream:
            text, message = "".join(stream.text_stream), stream.get_final_message()
        self.assertEqual(text, raw.parse().content[0].text)
        used = (message.usage.input_tokens, message.usage.output_tokens)
        [record, _] = self.assert_recorded(used, used)
        self.assertEqual(raw.headers["x-service-cost"], record["total_request_cost"])

    def test_a_stream(self):
        client = self.client()
        with client.messages.stream(model=ANTHROPIC_MODEL, max_tokens=64, messages=MESSAGES) as stream:
            text = "".join(stream.text_stream)
            message = stream.get_final_message()
        self.assertEqual(text, message.content[0].text)
        events = list(self.message(stream=True))
        self.assertEqual((events[0].type, events[-1].type), ("message_start", "message_stop"))
        ends = [event for event in events if event.type == "message_delta"]
        self.assert_recorded(
            (message.usage.input_tokens, message.usage.output_tokens),
            (events[0].message.usage.input_tokens, ends[-1].usage.output_tokens),
        )

    def test_tools(self):
        message = self.message(tools=[TOOL])
        self.assertEqual(message.stop_reason, "tool_use")
        [use] = message.content
        self.assertEqual((use.name, use.input), ("weather", {"city": "simulated", "days": 1}))

        result = {"type": "tool_result", "tool_use_id": use.id, "content": "Sunny."}
        turns = [
            {"role": "assistant", "content": [use.model_dump(exclude_none=True)]},
            {"role": "user", "content": [result]},
        ]
        after = self.message(tools=[TOOL], messages=MESSAGES + turns)
        self.assertEqual(after.stop_reason, "end_turn")
        self.assert_recorded(
            (message.usage.input_tokens, message.usage.output_tokens),
            (after.usage.input_tokens, after.usage.output_tokens),
        )

    def test_tools_in_a_stream(self):
        with self.client().messages.stream(
            model=ANTHROPIC_MODEL, max_tokens=64, messages=MESSAGES, tools=[TOOL]
        ) as stream:
            message = stream.get_final_message()
        self.assertEqual(message.content[0].input, {"city": "simulated", "days": 1})
        self.assert_recorded((message.usage.input_tokens, message.usage.output_tokens))

    def test_counting_tokens_is_free(self):
        counted = self.client().messages.count_tokens(model=ANTHROPIC_MODEL, messages=MESSAGES)
        self.assertEqual(counted.input_tokens, 5)
        [record] = self.assert_recorded((0, 0))
        self.assertEqual(record["total_request_cost"], "0.0000000000")

    def test_a_batch(self):
        client = self.client(default_headers={"x-simulate-job-ms": "300", "x-simulate-failed-requests": "1"})
        params = {"model": ANTHROPIC_MODEL, "max_tokens": 64, "messages": MESSAGES}
        requests = [{"custom_id": f"question-{number}", "params": params} for number in range(3)]
        batches = client.messages.batches
        created = batches.create(requests=requests)
        self.assertEqual((created.processing_status, created.request_counts.processing), ("in_progress", 3))
        [job] = self.merchant.send("GET", "/v1/jobs?kind=batch&state=running")["data"]
        self.assertEqual(job["provider_object_id"], created.id)
        self.assertEqual([one.id for one in batches.list()], [created.id])
        while (batch := batches.retrieve(created.id)).processing_status != "ended":
            time.sleep(0.1)
        self.assertTrue(batch.results_url.startswith(URL), batch.results_url)
        results = {one.custom_id: one.result for one in batches.results(created.id)}
        kinds = [results[one["custom_id"]].type for one in requests]
        self.assertEqual(kinds, ["succeeded", "succeeded", "errored"])
        used = [one.message.usage for one in results.values() if one.type == "succeeded"]

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
            (sum(one.input_tokens for one in used), sum(one.output_tokens for one in used)),
        )

        cancelled = batches.create(requests=requests, extra_headers=LONG_JOB)
        cancelled = batches.cancel(cancelled.id)
        self.assertEqual(cancelled.request_counts.canceled, 3)
        batches.delete(created.id)
        with self.assertRaises(anthropic.NotFoundError) as gone:
            batches.retrieve(created.id)
        self.assertEqual(gone.exception.body["error"]["code"], "provider_object_not_found")

    def test_models(self):
        client = self.client()
        ids = [model.id for model in client.models.list()]
        self.assertTrue(ids)
        self.assertTrue(all(one.startswith("claude") for one in ids), ids)
        self.assertEqual([model.id for model in client.models.list(limit=2)], ids, "paged to the end")

    def test_the_sdk_waits_as_long_as_it_is_told_and_passes(self):
        self.spend_key = self.new_spend_key(rate_limit={"rpm": 60, "burst": 1})
        usages = [self.message(max_retries=2).usage for _ in range(2)]
        self.assert_recorded(*((usage.input_tokens, usage.output_tokens) for usage in usages))

    async def test_asynchronous(self):
        asked = {"model": ANTHROPIC_MODEL, "max_tokens": 64, "messages": MESSAGES}
        async with AsyncAnthropic(base_url=URL, api_key=self.spend_key["key"]) as client:

            async def streamed():
                async with client.messages.stream(**asked) as stream:
                    return (await stream.get_final_message()).usage

            async def whole():
                return (await client.messages.create(**asked)).usage

            usages = await asyncio.gather(*(call() for call in [streamed, whole] * 5))
        self.assert_recorded(*((usage.input_tokens, usage.output_tokens) for usage in usages))


class Errors(AnthropicTestCase):
    def refused(self, error, code, *, header=None, spend_key=None, **changes):
        """A message must raise `error` with our `code`; answers the error."""
        before = len(self.records())
        with self.assertRaises(error) as raised:
            self.message(spend_key, **changes)
        self.assertEqual(raised.exception.body["type"], "error")
        self.assertEqual(len(self.records()), before, "a refused call leaves no record")
        return raised.exception, self.assert_explained(raised.exception, code, header=header)

    def test_401_a_wrong_key(self):
        wrong = {"key": "tgk_wrong"}
        error, _ = self.refused(anthropic.AuthenticationError, "auth_invalid", spend_key=wrong)
        self.assertEqual(error.type, "authentication_error")

    def test_403_a_paused_key(self):
        paused = self.new_spend_key(status="paused")
        error, _ = self.refused(anthropic.PermissionDeniedError, "spend_key_paused", spend_key=paused)
        self.assertEqual(error.type, "permission_error")
        with self.assertRaises(anthropic.PermissionDeniedError):
            self.client(paused, max_retries=0).models.list()

    def test_403_a_model_that_is_not_allowed(self):
        only = self.new_spend_key(allowed_models=["claude-haiku-*"])
        code = "spend_key_model_not_allowed"
        self.refused(anthropic.PermissionDeniedError, code, spend_key=only)
        self.message(only, model="claude-haiku-4-5")

    def test_403_a_key_of_the_other_format(self):
        other = self.merchant.new_spend_key("shape_a")
        code = "spend_key_request_shape_mismatch"
        self.refused(anthropic.PermissionDeniedError, code, spend_key=other)

    def test_404_a_route_that_is_not_there(self):
        with self.assertRaises(anthropic.NotFoundError) as raised:
            self.client(max_retries=0).get("/v1/nothing", cast_to=object)
        self.assert_explained(raised.exception, "route_not_found")

    def test_400_a_model_that_nobody_serves(self):
        error, _ = self.refused(anthropic.BadRequestError, "model_price_unknown", model="unheard-of")
        self.assertEqual(error.type, "invalid_request_error")

    def test_402_a_spend_limit(self):
        key = self.new_spend_key(spend_limit={"amount": "0.0000000001", "cycle": "total"})
        self.message(key)
        error, _ = self.refused(anthropic.APIStatusError, "spend_limit_reached", spend_key=key)
        self.assertEqual((error.status_code, error.type), (402, "billing_error"))

    def test_402_an_empty_wallet(self):
        broke = self.new_spend_key(wallet_id=self.merchant.new_wallet())
        code = "wallet_balance_insufficient"
        error, _ = self.refused(anthropic.APIStatusError, code, spend_key=broke)
        self.assertEqual(error.status_code, 402)

    def test_429_a_rate_limit(self):
        key = self.new_spend_key(rate_limit={"rpm": 1})
        self.message(key)
        error, wait = self.refused(
            anthropic.RateLimitError, "rate_limited", spend_key=key, header="retry-after"
        )
        self.assertEqual(error.type, "rate_limit_error")
        self.assertIn(int(wait), range(1, 61))

    def test_429_at_once_when_the_calls_of_a_day_are_made(self):
        key = self.new_spend_key(request_limit={"count": 1, "cycle": "monthly"})
        self.message(key)
        began = time.monotonic()
        with self.assertRaises(anthropic.RateLimitError) as raised:
            self.message(key, max_retries=2)
        self.assertLess(time.monotonic() - began, 10, "it would wait for the month to end")
        self.assert_explained(raised.exception, "request_limit_reached")

    def test_an_error_of_the_provider_comes_through(self):
        with self.assertRaises(anthropic.OverloadedError):
            self.message(extra_headers={"x-simulate-status": "529"})
        [record] = self.records()
        self.assertEqual((record["status"], record["provider_status"]), ("error", 529))
        self.assertEqual(record["total_request_cost"], "0.0000000000")

    def test_an_error_within_a_stream(self):
        with self.assertRaises(anthropic.APIError):
            list(self.message(stream=True, extra_headers={"x-simulate-error-after-events": "5"}))
        [record] = self.ended_records()
        self.assertEqual((record["status"], record["usage_source"]), ("error", "partial"))
        self.assertNotEqual(record["total_request_cost"], "0.0000000000")


if __name__ == "__main__":
    unittest.main()
