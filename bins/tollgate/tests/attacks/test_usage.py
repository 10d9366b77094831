"""Providers that say nothing of usage, or what cannot be; that ignore a maximum; clients that leave; and kinds of
calls whose cost could be missed."""

import base64
import contextlib
import http.client
import json
import queue
import secrets
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import quote, urlsplit

from tollgate import BASES, JSON, MESSAGES, URL, AttackTestCase, Merchant, Refused, chat, cost, metric, seen

DONE = "data: [DONE]\n\n"


def event(*, content=None, usage=None):
    choices = [] if content is None else [{"index": 0, "delta": {"content": content}}]
    chunk = {"id": "c", "object": "chat.completion.chunk", "model": "cheap", "choices": choices}
    return f"data: {json.dumps(chunk if usage is None else chunk | {'usage': usage})}\n\n"


def stream(*events, pause=0):
    return {"headers": [["Content-Type", "text/event-stream"]], "chunks": [*events], "pause": pause}


def whole(usage, content="Yes."):
    """A chat with this usage, or without any."""
    choices = [{"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}]
    chat = {"id": "c", "object": "chat.completion", "model": "cheap", "choices": choices}
    text = json.dumps(chat if usage is None else chat | {"usage": usage})
    return {"headers": [["Content-Type", "application/json"]], "chunks": [text], "sized": True}


def used(prompt, completion):
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


class Receiver(ThreadingHTTPServer):
    """Takes messages of a webhook."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.messages = queue.Queue()
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        self.server.messages.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        pass


class UsageTestCase(AttackTestCase):
    # Streams ask for usage themselves, so that the body is sent as it is and the bound follows from its length.
    STREAM = chat(max_tokens=100, stream=True, stream_options={"include_usage": True})
    WHOLE = chat(max_tokens=100)

    def hold(self, body, maximum=100):
        return cost("cheap", len(body), maximum)

    def strict(self, body, plan, **options):
        key = self.merchant.spend_key("1", strict=True)
        return self.call("house", body, key=key, plan=plan, **options)

    def ended(self, key):
        """The record of the only call of a key, when it has ended."""
        deadline = time.monotonic() + 15
        while True:
            [record] = [one for one in self.merchant.send("GET", "/v1/requests?limit=100")["data"]
                        if one.get("spend_key_id") == key["spend_key_id"]]
            if record["status"] != "pending":
                return self.merchant.send("GET", f"/v1/requests/{record['request_id']}")
            self.assertLess(time.monotonic(), deadline, record)
            time.sleep(0.1)

    def total(self, answer):
        """What was booked, on the record and on the key."""
        record = self.merchant.record(answer)
        total = Decimal(record["total_request_cost"])
        self.assertEqual(self.merchant.spent(answer.key) - answer.spent, total)
        self.assert_within_limit(answer.key)
        return total, record


class UnreportedUsage(UsageTestCase):
    def test_a_strict_stream_without_usage_settles_at_its_hold(self):
        plans = {
            "nothing": stream(event(content="Yes."), DONE),
            "null": stream(event(content="Yes."), "data: " + json.dumps({"choices": [], "usage": None}) + "\n\n", DONE),
            "an empty one": stream(event(content="Yes."), event(usage={}), DONE),
            "only an end": stream(DONE),
            "no end": stream(event(content="Yes.")),
        }
        for name, plan in plans.items():
            with self.subTest(usage=name):
                total, record = self.total(self.strict(self.STREAM, plan))
                self.assertEqual(total, self.hold(self.STREAM), record)
                self.assertNotEqual(record["usage_source"], "reported")

    def test_a_strict_stream_that_breaks_off_settles_at_its_hold(self):
        cut = {"breaks off": [event(content="Yes.")], "breaks off within an event": [event(content="Yes.")[:-20]]}
        for name, events in cut.items():
            with self.subTest(stream=name):
                key = self.merchant.spend_key("1", strict=True)
                with contextlib.suppress(http.client.HTTPException, OSError):
                    self.call("house", self.STREAM, key=key, plan=stream(*events) | {"cut": True})
                record = self.ended(key)
                self.assertEqual(Decimal(record["total_request_cost"]), self.hold(self.STREAM), record)
                self.assertEqual(self.merchant.spent(key), self.hold(self.STREAM))

    def test_a_strict_stream_whose_usage_was_asked_for_in_its_place_settles_at_its_hold(self):
        body = chat(max_tokens=100, stream=True)
        total, record = self.total(self.strict(body, stream(event(content="Yes."), DONE)))
        self.assertGreaterEqual(total, self.hold(body), record)

    def test_a_strict_answer_without_usage_is_not_free(self):
        for usage in (None, {}, []):
            with self.subTest(usage=usage):
                total, record = self.total(self.strict(self.WHOLE, whole(usage)))
                self.assertTrue(0 < total <= self.hold(self.WHOLE), record)

    def test_a_bounded_call_without_usage_is_not_free(self):
        plans = {"stream": (self.STREAM, stream(event(content="Yes."), DONE)), "whole": (self.WHOLE, whole(None))}
        for name, (body, plan) in plans.items():
            with self.subTest(answer=name):
                total, record = self.total(self.call("house", body, key=self.merchant.spend_key("1"), plan=plan))
                self.assertGreater(total, 0, record)
                self.assertEqual(record["usage_source"], "estimated")

    def test_usage_that_cannot_be_is_none(self):
        impossible = [
            {"prompt_tokens": -5, "completion_tokens": -5, "total_tokens": -10},
            {"prompt_tokens": 10, "completion_tokens": -1_000_000, "total_tokens": 10},
            {"prompt_tokens": 1.5, "completion_tokens": 12.5, "total_tokens": 14},
            {"prompt_tokens": "ten", "completion_tokens": "twenty"},
            {"prompt_tokens": None, "completion_tokens": None},
            {"prompt_tokens": [10], "completion_tokens": {"of": 20}},
            {"prompt_tokens": True, "completion_tokens": True},
            {"prompt_tokens": 1e300, "completion_tokens": 1e300},
        ]
        for usage in impossible:
            with self.subTest(usage=usage, answer="stream"):
                plan = stream(event(content="Yes."), event(usage=usage), DONE)
                total, record = self.total(self.strict(self.STREAM, plan))
                self.assertEqual(total, self.hold(self.STREAM), record)
            with self.subTest(usage=usage, answer="whole"):
                total, record = self.total(self.strict(self.WHOLE, whole(usage)))
                self.assertTrue(0 < total <= self.hold(self.WHOLE), record)

    def test_details_beyond_the_whole_give_nothing_back(self):
        usage = used(10, 20) | {"prompt_tokens_details": {"cached_tokens": 1_000_000},
                                "completion_tokens_details": {"reasoning_tokens": 1_000_000}}
        total, record = self.total(self.strict(self.WHOLE, whole(usage)))
        self.assertGreaterEqual(total, cost("cheap", 10, 20), record)


class SuspiciousUsage(UsageTestCase):
    def setUp(self):
        self.merchant = Merchant()
        self.receiver = Receiver()
        self.addCleanup(self.receiver.server_close)
        self.addCleanup(self.receiver.shutdown)

    def listen(self):
        url = f"http://127.0.0.1:{self.receiver.server_port}/"
        self.merchant.send("POST", "/v1/webhooks", {"name": "Hook", "url": url, "events": ["request.suspicious"]})

    def claim(self, body, prompt, completion):
        if body is self.STREAM:
            return stream(event(content="Yes."), event(usage=used(prompt, completion)), DONE)
        return whole(used(prompt, completion))

    def test_a_strict_key_is_charged_the_bound(self):
        for body in (self.WHOLE, self.STREAM):
            for prompt, completion in [(len(body) * 1000, 100_000), (10, 100_000), (10**11, 10**11), (10**12, 0)]:
                with self.subTest(stream=body is self.STREAM, prompt=prompt, completion=completion):
                    before = metric(URL, "suspicious")
                    total, record = self.total(self.strict(body, self.claim(body, prompt, completion)))
                    self.assertEqual(total, self.hold(body), record)
                    self.assertEqual(record.get("flags"), ["suspicious_usage"])
                    self.assertGreater(metric(URL, "suspicious"), before)

    def test_a_strict_limit_is_not_passed(self):
        body = self.WHOLE
        key = self.merchant.spend_key(self.hold(body) * 3, strict=True)
        for _ in range(6):
            self.call("house", body, key=key, plan=whole(used(10**9, 10**9)))
        self.assert_within_limit(key)

    def test_a_bounded_key_is_flagged(self):
        before = metric(URL, "suspicious")
        plan = whole(used(len(self.WHOLE) * 1000, 100_000))
        answer = self.call("house", self.WHOLE, key=self.merchant.spend_key("1"), plan=plan)
        self.assertEqual(self.merchant.record(answer).get("flags"), ["suspicious_usage"])
        self.assertGreater(metric(URL, "suspicious"), before)

    def test_an_event_is_sent(self):
        try:
            self.listen()
        except Refused as refused:
            self.fail(f"there is no such event: {refused}")
        answer = self.strict(self.WHOLE, whole(used(len(self.WHOLE) * 1000, 100_000)))
        message = self.receiver.messages.get(timeout=10)
        self.assertEqual(message["type"], "request.suspicious")
        self.assertIn(answer.header("x-service-request-id"), json.dumps(message))

    def test_a_claim_within_the_bound_is_not_flagged(self):
        total, record = self.total(self.strict(self.WHOLE, whole(used(10, 100))))
        self.assertEqual((total, record.get("flags", [])), (cost("cheap", 10, 100), []))


class IgnoredMaximum(AttackTestCase):
    def test_deepseek_does_not_know_max_completion_tokens(self):
        key = self.merchant.spend_key("0.002", strict=True)
        body = json.dumps({"model": "deepseek-chat", "max_completion_tokens": 1, "messages": MESSAGES}).encode()
        with ThreadPoolExecutor(50) as at_once:
            answers = list(at_once.map(lambda _: self.call("deepseek", body, key=key), range(50)))
        self.assert_within_limit(key)
        sent = sum(len(seen("deepseek", answer.attack)) for answer in answers)
        self.assertEqual(sent, sum(answer.status == 200 for answer in answers))

    def test_deepseek_takes_the_maximum_that_it_knows(self):
        key = self.merchant.spend_key("0.002", strict=True)
        body = {"model": "deepseek-chat", "max_tokens": 5, "messages": MESSAGES}
        answer = self.call("deepseek", json.dumps(body).encode(), key=key)
        self.assertEqual(answer.status, 200, str(answer))
        self.assertEqual(self.merchant.record(answer)["model_usage"]["output_tokens"], 5)

    def test_neither_does_it_when_both_stand_there(self):
        key = self.merchant.spend_key("0.002", strict=True)
        body = {"model": "deepseek-chat", "max_tokens": 8192, "max_completion_tokens": 1, "messages": MESSAGES}
        for _ in range(3):
            self.call("deepseek", json.dumps(body).encode(), key=key)
        self.assert_within_limit(key)


class Disconnects(UsageTestCase):
    def leave(self, key, body, plan):
        """Reads the beginning of an answer and leaves; answers the record when it has ended."""
        attack, parts = secrets.token_hex(8), urlsplit(URL)
        target = f"/v1/forward?u={quote(BASES['house'] + '/chat/completions', safe='')}"
        head = (f"POST {target} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key['key']}\r\nX-Attack: {attack}\r\n"
                f"X-Plan: {json.dumps(plan)}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n")
        with socket.create_connection((parts.hostname, parts.port)) as connection:
            connection.sendall(head.encode() + body)
            said = b""
            while b"Yes." not in said:
                piece = connection.recv(65536)
                self.assertTrue(piece, said)
                said += piece
        return self.ended(key)

    # The provider goes on for 3 s, and the service reads on for half a second.
    def long(self, *, is_stream=True):
        pieces = [event(content="Yes. " * 20) for _ in range(15)]
        if is_stream:
            return stream(*pieces, event(usage=used(10, 100)), DONE, pause=0.2)
        text = whole(used(10, 100), content="Yes. " * 400)
        cut = [text["chunks"][0][at:at + 150] for at in range(0, len(text["chunks"][0]), 150)]
        return text | {"chunks": cut, "pause": 0.25, "sized": False}

    def test_a_strict_call_whose_drain_is_outlasted_settles_at_its_hold(self):
        for name, body in {"stream": self.STREAM, "whole": self.WHOLE}.items():
            with self.subTest(answer=name):
                key = self.merchant.spend_key("1", strict=True)
                record = self.leave(key, body, self.long(is_stream=name == "stream"))
                self.assertEqual(record["usage_source"], "partial", record)
                self.assertEqual(Decimal(record["total_request_cost"]), self.hold(body), record)
                self.assertEqual(self.merchant.spent(key), self.hold(body))

    def test_a_strict_limit_holds_however_often_a_client_leaves(self):
        key = self.merchant.spend_key(self.hold(self.STREAM) * 2, strict=True)
        self.leave(key, self.STREAM, self.long())
        answers = [self.call("house", self.STREAM, key=key, plan=self.long()) for _ in range(3)]
        self.assertLessEqual([answer.status for answer in answers].count(200), 1)
        self.assert_within_limit(key)

    def test_a_bounded_call_is_not_free(self):
        record = self.leave(self.merchant.spend_key("1"), self.STREAM, self.long())
        self.assertEqual(record["usage_source"], "partial", record)
        self.assertGreater(Decimal(record["total_request_cost"]), 0)

    def test_a_provider_that_ends_in_time_is_booked_as_it_reports(self):
        key = self.merchant.spend_key("1", strict=True)
        plan = stream(*[event(content="Yes.")] * 3, event(usage=used(10, 30)), DONE, pause=0.05)
        record = self.leave(key, self.STREAM, plan)
        self.assertEqual(Decimal(record["total_request_cost"]), cost("cheap", 10, 30), record)


class OpenEnded(AttackTestCase):
    def test_routing_by_openrouter_is_open_ended(self):
        for provider in ({"order": ["dear"]}, {"sort": "price"}, {"max_price": {"prompt": 1}}, {}, {"only": ["x"]}):
            with self.subTest(provider=provider):
                body = {"model": "openai/gpt-4o-mini", "max_tokens": 1, "messages": MESSAGES, "provider": provider}
                key = self.merchant.spend_key("1", strict=True)
                answer = self.call("openrouter", json.dumps(body).encode(), key=key)
                self.assert_refused(answer, 400, "cost_bound_unknown", "provider")

    def test_without_routing_a_call_passes(self):
        body = {"model": "openai/gpt-4o-mini", "max_tokens": 1, "messages": MESSAGES}
        for changes, rules in [({}, {"strict": True}), ({"provider": {"sort": "price"}}, {})]:
            with self.subTest(changes=changes):
                key = self.merchant.spend_key("1", **rules)
                answer = self.call("openrouter", json.dumps(body | changes).encode(), key=key)
                self.assertEqual(answer.status, 200, str(answer))

    def messages(self, lifetime):
        # The same length in both.
        cached = f'{{"type": "ephemeral", "ttl": {lifetime:12}}}'
        return (f'{{"model": "claude-sonnet-4-5", "max_tokens": 10, "messages": [{{"role": "user", "content": [{{'
                f'"type": "text", "text": "Hello!", "cache_control": {cached}}}]}}]}}').encode()

    def test_an_escaped_cache_lifetime_is_one_hour(self):
        costs, holds = {}, {}
        for lifetime in ('"1h"', '"\\u0031h"', '"1\\u0068"', '"5m"'):
            body = self.messages(lifetime)
            tiny = self.merchant.spend_key("0.0000000001", strict=True, request_shape="shape_b")
            refused = self.call("anthropic", body, key=tiny, path="/messages")
            self.assertEqual(refused.status, 402, str(refused))
            holds[lifetime] = refused.error["message"].partition("this call can cost up to")[2]
            key = self.merchant.spend_key("1", strict=True, request_shape="shape_b")
            answer = self.call("anthropic", body, key=key, path="/messages")
            self.assertEqual(answer.status, 200, str(answer))
            costs[lifetime] = Decimal(self.merchant.record(answer)["total_request_cost"])
        for escaped in ('"\\u0031h"', '"1\\u0068"'):
            with self.subTest(lifetime=escaped):
                self.assertEqual((costs[escaped], holds[escaped]), (costs['"1h"'], holds['"1h"']), (costs, holds))
        self.assertGreater(costs['"1h"'], costs['"5m"'])


class OtherFormats(AttackTestCase):
    def test_the_chats_of_anthropic_in_the_other_format_are_metered(self):
        body = {"model": "claude-sonnet-4-5", "max_tokens": 7, "messages": MESSAGES}
        key = self.merchant.spend_key("1", strict=True)
        answer = self.call("anthropic", json.dumps(body).encode(), key=key)
        self.assertEqual(answer.status, 200, str(answer))
        record = self.merchant.record(answer)
        usage = record["model_usage"]
        self.assertEqual((usage["input_tokens"], usage["output_tokens"], record["usage_source"]), (10, 7, "reported"))
        self.assertGreater(Decimal(record["total_request_cost"]), 0)

    def test_the_same_with_a_key_of_the_callers_own(self):
        token = json.dumps({"secret_key": self.merchant.key, "provider_key": "sk-own"}).encode()
        body = {"model": "claude-sonnet-4-5", "max_tokens": 7, "messages": MESSAGES}
        answer = self.call("anthropic", json.dumps(body).encode(), key=base64.b64encode(token).decode())
        self.assertEqual(answer.status, 200, str(answer))
        record = self.merchant.record(answer)
        usage = record["model_usage"]
        self.assertEqual((usage["input_tokens"], usage["output_tokens"], record["usage_source"]), (10, 7, "reported"))

    def test_a_prompt_that_gemini_blocks_is_paid_for(self):
        body = json.dumps({"contents": [{"parts": [{"text": "Hi"}]}]}).encode()
        path = "/v1beta/models/gemini-2.5-flash:generateContent"
        answer = self.call("google", body, key=self.merchant.key, path=path)
        self.assertEqual(answer.status, 200, str(answer))
        record = self.merchant.record(answer)
        usage = record["model_usage"]
        self.assertEqual((usage["input_tokens"], usage["output_tokens"], record["usage_source"]), (12, 0, "reported"))
        self.assertGreater(Decimal(record["total_request_cost"]), 0)


class Tools(AttackTestCase):
    TOKENS = {"input_tokens": 10, "output_tokens": 20}

    def respond(self, tools, credential, **changes):
        body = {"model": "gpt-4.1-mini", "max_output_tokens": 50, "max_tool_calls": 1, "input": "Hi", "tools": tools}
        return self.call("openai", json.dumps(body | changes).encode(), key=credential, path="/responses")

    def credentials(self):
        token = json.dumps({"secret_key": self.merchant.key}).encode()
        return {
            "strict": self.merchant.spend_key("50", strict=True),
            "bounded": self.merchant.spend_key("50"),
            "without limit": self.merchant.spend_key(),
            "secret key": self.merchant.key,
            "token": base64.b64encode(token).decode(),
        }

    def plain(self):
        """What the same tokens cost without a tool."""
        body = {"model": "gpt-4.1-mini", "max_output_tokens": 50, "input": "Hi"}
        answer = self.call("openai", json.dumps(body).encode(), key=self.merchant.spend_key(), path="/responses")
        return Decimal(self.merchant.record(answer)["total_request_cost"])

    def test_an_image_is_priced_or_refused_for_every_caller(self):
        plain = self.plain()
        self.assertGreater(plain, 0)
        image = {"type": "image_generation"}
        for tool in (image, image | {"quality": "high", "size": "1536x1024"}):
            for name, credential in self.credentials().items():
                with self.subTest(caller=name, tool=tool):
                    answer = self.respond([tool], credential)
                    if seen("openai", answer.attack):
                        self.assertGreater(Decimal(self.merchant.record(answer)["total_request_cost"]), plain)
                    else:
                        self.assertEqual(answer.status, 400, str(answer))

    def test_an_image_whose_kind_is_escaped_is_priced_or_refused(self):
        plain = self.plain()
        body = (b'{"model": "gpt-4.1-mini", "max_output_tokens": 50, "input": "Hi", "tools": '
                b'[{"t\\u0079pe": "image\\u005fgeneration"}]}')
        for strict in (False, True):
            with self.subTest(strict=strict):
                answer = self.call("openai", body, key=self.merchant.spend_key("1", strict=strict), path="/responses")
                if seen("openai", answer.attack):
                    self.assertGreater(Decimal(self.merchant.record(answer)["total_request_cost"]), plain)
                else:
                    self.assertEqual(answer.status, 400, str(answer))

    def test_an_image_among_other_tools_is_priced_or_refused(self):
        plain = self.plain()
        tools = [{"type": "function", "name": "x", "parameters": {}}, {"type": "image_generation"}]
        answer = self.respond(tools, self.merchant.spend_key("1"))
        if seen("openai", answer.attack):
            self.assertGreater(Decimal(self.merchant.record(answer)["total_request_cost"]), plain)
        else:
            self.assertEqual(answer.status, 400, str(answer))

    def test_a_kind_without_a_price_is_refused(self):
        for kind in ("quantum_oracle", "image_generation_2027", "web_search_extreme", "", None, 7):
            for name, credential in self.credentials().items():
                with self.subTest(caller=name, kind=kind):
                    answer = self.respond([{"type": kind}], credential)
                    self.assert_not_called(answer)
                    self.assertEqual(answer.status, 400, str(answer))

    def test_a_kind_without_a_price_is_refused_in_a_chat(self):
        for tool in ({"type": "quantum_oracle"}, {"type": "web_search"}, {"quantum_oracle": {}}):
            for strict in (False, True):
                with self.subTest(tool=tool, strict=strict):
                    answer = self.call("house", chat(tools=[tool]), key=self.merchant.spend_key("1", strict=strict))
                    self.assert_not_called(answer)
                    self.assertEqual(answer.status, 400, str(answer))

    def test_a_container_that_is_dearer_is_priced_or_refused(self):
        # One of 64 GB costs 64 times as much as one of 1 GB.
        tool = {"type": "code_interpreter", "container": {"type": "auto"}}
        small = self.respond([tool], self.merchant.spend_key("5"))
        self.assertEqual(small.status, 200, str(small))
        small = Decimal(self.merchant.record(small)["total_request_cost"])
        self.assertGreater(small, self.plain())
        for limit in ("4g", "16g", "64g"):
            for strict in (False, True):
                with self.subTest(limit=limit, strict=strict):
                    tool = {"type": "code_interpreter", "container": {"type": "auto", "memory_limit": limit}}
                    answer = self.respond([tool], self.merchant.spend_key("5", strict=strict))
                    if seen("openai", answer.attack):
                        self.assertGreater(Decimal(self.merchant.record(answer)["total_request_cost"]), small)
                    else:
                        self.assertEqual(answer.status, 400, str(answer))

    def test_a_shell_in_a_container_of_the_provider_is_priced_or_refused(self):
        plain = self.plain()
        for strict in (False, True):
            with self.subTest(strict=strict):
                tool = {"type": "shell", "environment": {"type": "container_auto"}}
                answer = self.respond([tool], self.merchant.spend_key("5", strict=strict))
                if seen("openai", answer.attack):
                    self.assertGreater(Decimal(self.merchant.record(answer)["total_request_cost"]), plain)
                else:
                    self.assertEqual(answer.status, 400, str(answer))

    def test_functions_pass(self):
        function = {"type": "function", "name": "x", "parameters": {"type": "object"}}
        for name, credential in self.credentials().items():
            with self.subTest(caller=name):
                self.assertEqual(self.respond([function], credential).status, 200)


class EmptiedWallet(AttackTestCase):
    def setUp(self):
        self.merchant = Merchant()
        self.own = self.merchant.send("GET", "/v1/wallet")["wallet_id"]

    def empty(self, wallet):
        """Debits it as long as that is possible."""
        for exponent in range(8, -11, -1):
            amount = f"{Decimal(4).scaleb(exponent):.10f}"
            for _ in range(12):
                try:
                    self.merchant.send("POST", f"/v1/wallets/{wallet}/debits", {"amount": amount})
                except Refused as refused:
                    self.assertLess(refused.answer.status, 500, refused)
                    break

    def balance(self, wallet):
        return Decimal(self.merchant.send("GET", f"/v1/wallets/{wallet}")["balance"])

    def assert_refused_or_booked(self, answer, before, wallet):
        """A debit leaves room on a wallet: what is admitted there is paid from it."""
        if answer.status != 200:
            self.assert_not_called(answer)
            self.assertIn(answer.status, (400, 402), str(answer))
            return
        paid = Decimal(self.merchant.record(answer)["total_request_cost"])
        self.assertEqual(paid, cost("cheap", 10, 100))
        self.assertEqual(before - self.balance(wallet), paid)

    def test_no_call_is_booked_at_nothing_on_a_wallet_that_can_take_no_more(self):
        self.empty(self.own)
        balance = self.balance(self.own)
        token = base64.b64encode(json.dumps({"secret_key": self.merchant.key}).encode()).decode()
        callers = {
            "strict": self.merchant.spend_key("1", strict=True, wallet_id=self.own),
            "bounded": self.merchant.spend_key("1", wallet_id=self.own),
            "without limit": self.merchant.spend_key(wallet_id=self.own),
            "secret key": self.merchant.key,
            "token": token,
        }
        for name, credential in callers.items():
            with self.subTest(caller=name, balance=balance):
                before = self.balance(self.own)
                self.assert_refused_or_booked(self.call("house", chat(max_tokens=100), key=credential), before, self.own)

    def test_the_wallet_of_a_customer_is_the_same(self):
        self.merchant.send("PATCH", f"/v1/wallets/{self.merchant.wallet_id}", {"overdraft_limit": None})
        self.empty(self.merchant.wallet_id)
        for strict in (False, True):
            with self.subTest(strict=strict):
                before = self.balance(self.merchant.wallet_id)
                answer = self.call("house", chat(max_tokens=100), key=self.merchant.spend_key("1", strict=strict))
                self.assert_refused_or_booked(answer, before, self.merchant.wallet_id)

    def test_with_credit_it_is_open_again(self):
        self.empty(self.own)
        self.merchant.send("POST", f"/v1/wallets/{self.own}/credits", {"amount": "100"})
        answer = self.call("house", chat(max_tokens=100), key=self.merchant.spend_key(wallet_id=self.own))
        self.assertEqual(answer.status, 200, str(answer))
        self.assertEqual(Decimal(self.merchant.record(answer)["total_request_cost"]), cost("cheap", 10, 100))
