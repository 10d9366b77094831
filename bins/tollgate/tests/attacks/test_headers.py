"""What of a head reaches the provider, and what of the provider's head and answer reaches the client."""

import json
import re
import secrets
from urllib.parse import quote

from tollgate import BASES, JSON, URL, AttackTestCase, Merchant, chat, exchange, managed_key, metric, raw, seen

UNDERSTOOD = {"gzip", "deflate", "br", "zstd", "identity"}
# What a provider may say and no client of a gateway may hear.
SITE = [
    ("Service-Worker-Allowed", "/"),
    ("NEL", '{"report_to":"x","max_age":1000}'),
    ("Report-To", '{"group":"x","max_age":1000,"endpoints":[{"url":"https://example.com/"}]}'),
    ("Reporting-Endpoints", 'x="https://example.com/"'),
    ("Refresh", "0; url=/dashboard"),
    ("Clear-Site-Data", '"*"'),
    ("WWW-Authenticate", "Basic realm=x"),
    ("Alt-Svc", 'h3=":443"'),
    ("Set-Cookie", "tollgate_session=x; Path=/"),
    ("Strict-Transport-Security", "max-age=1000"),
    ("Public-Key-Pins", 'pin-sha256="x"; max-age=1000'),
]


class RequestHeads(AttackTestCase):
    provider = "house"

    def received(self, answer, name=None):
        """What the provider has of the one call that it was sent."""
        self.assertEqual(answer.status, 200, str(answer))
        [call] = seen(answer.provider, answer.attack)
        return call if name is None else [value for one, value in call["headers"] if one == name]

    def chat(self, *headers, provider="house", **options):
        return self.call(provider, chat(), headers=[JSON, *headers], **options)

    def test_a_body_of_a_get_is_dropped(self):
        for headers in ([JSON], []):
            with self.subTest(headers=headers):
                answer = self.call("house", chat(), method="GET", path="/models", headers=headers)
                call = self.received(answer)
                self.assertEqual(call["bytes"], 0, call)
                lengths = [pair for pair in call["headers"] if pair[0] in ("content-length", "transfer-encoding")]
                self.assertIn(lengths, ([], [["content-length", "0"]]))

    def test_a_chunked_body_of_a_get_is_dropped(self):
        attack, key = secrets.token_hex(8), self.merchant.spend_key()["key"]
        target = f"/v1/forward?u={quote(BASES['house'] + '/models', safe='')}"
        smuggled = "POST /house/v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-Attack: smuggled\r\n\r\n"
        head = (f"GET {target} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nX-Attack: {attack}\r\n"
                "Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n")
        raw(URL, f"{head}{len(smuggled):x}\r\n{smuggled}\r\n0\r\n\r\n".encode())
        for call in seen("house", attack):
            self.assertEqual(call["bytes"], 0, call)
        self.assertEqual(seen("house", "smuggled"), [])

    def test_names_with_underscores_do_not_reach_the_provider(self):
        # A server behind CGI or WSGI takes `_` and `-` for the same.
        names = ["OpenAI_Organization", "openai_project", "x_api_key", "X_Goog_User_Project", "Api_Key", "Set_Cookie",
                 "x_forwarded_for", "Content_Length", "Transfer_Encoding", "Anthropic_Beta", "x_anything"]
        for name in names:
            for provider in ("house", "go"):
                with self.subTest(name=name, provider=provider):
                    answer = self.chat((name, "injected"), provider=provider)
                    if answer.status == 200:
                        self.assertEqual(self.received(answer, name.lower()), [])
                    else:
                        self.assertEqual(answer.status, 400, str(answer))
                        self.assert_not_called(answer)

    def test_bare_line_feeds_end_the_connection(self):
        key = self.merchant.spend_key("0.01", strict=True)["key"]
        target = f"/v1/forward?u={quote(BASES['house'] + '/chat/completions', safe='')}"
        lines = [f"POST {target} HTTP/1.1", "Host: x", f"Authorization: Bearer {key}", "Content-Type: application/json",
                 f"Content-Length: {len(chat())}", "Connection: close", "X-Attack: {attack}"]
        for bare in range(len(lines) + 1):
            attack = secrets.token_hex(8)
            with self.subTest(line=bare):
                ends = ["\n" if bare in (at, len(lines)) else "\r\n" for at in range(len(lines))]
                head = "".join(line + end for line, end in zip(lines, ends)).replace("{attack}", attack)
                said = raw(URL, (head + "\r\n").encode() + chat(), timeout=2)
                self.assertEqual(said[:12], b"HTTP/1.1 400", said[:300])
                self.assertEqual(seen("house", attack), [])
        attack = secrets.token_hex(8)
        head = "\r\n".join(lines).replace("{attack}", attack) + "\r\n\n"
        said = raw(URL, head.encode() + chat(), timeout=2)
        self.assertEqual((said[:12], seen("house", attack)), (b"HTTP/1.1 400", []), said[:300])

    def test_an_idempotency_key_is_the_merchants_own(self):
        def sent(value, merchant=None):
            answer = self.chat(("Idempotency-Key", value), merchant=merchant)
            [received] = self.received(answer, "idempotency-key")
            self.assertLessEqual(len(received), 255)
            return received

        for value in ("order-1", "a", "x" * 200):
            with self.subTest(value=value):
                first, second, other = sent(value), sent(value), sent(value, Merchant())
                self.assertRegex(first, r"\A[0-9A-Za-z_]+-" + re.escape(value) + r"\Z")
                self.assertEqual(first, second)
                self.assertNotEqual(first, other)
                self.assertRegex(other, r"\A[0-9A-Za-z_]+-" + re.escape(value) + r"\Z")

    def test_long_idempotency_keys_stay_different(self):
        received = []
        for last in "bc":
            answer = self.chat(("Idempotency-Key", "a" * 254 + last))
            if answer.status == 200:
                received += self.received(answer, "idempotency-key")
            else:
                self.assertEqual(answer.status, 400, str(answer))
        self.assertTrue(all(len(one) <= 255 for one in received), received)
        self.assertEqual(len(received), len(set(received)))

    def test_only_encodings_that_the_service_understands_are_asked_for(self):
        values = ["xz, compress, gzip;q=0.5", "xz", "*", "gzip, *;q=0.1", "br;q=1.0, x-snappy", "dcb, dcz", "GZIP, XZ",
                  "", "identity;q=0", "gzip;q=0, xz", "zstd, lz4"]
        for value in values:
            with self.subTest(value=value):
                received = self.received(self.chat(("Accept-Encoding", value)), "accept-encoding")
                self.assertTrue(received, "without one a provider may choose any")
                asked = {one.split(";")[0].strip().lower() for one in ",".join(received).split(",")} - {""}
                self.assertLessEqual(asked, UNDERSTOOD, received)
                if "gzip;q=0.5" in value:
                    self.assertIn("gzip;q=0.5", ",".join(received).replace(" ", ""))

    def test_the_account_is_the_operators_to_choose(self):
        for name in ("OpenAI-Organization", "OpenAI-Project", "X-Goog-User-Project", "Cookie", "Proxy-Authorization"):
            with self.subTest(name=name):
                self.assertEqual(self.received(self.chat((name, "injected")), name.lower()), [])


class Answers(AttackTestCase):
    USAGE = {"prompt_tokens": 10, "completion_tokens": 1, "total_tokens": 11}

    def body(self, content):
        choices = [{"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}]
        return json.dumps({"id": "c", "model": "cheap", "choices": choices, "usage": self.USAGE})

    def plan(self, *chunks, status=200, content_type="application/json", headers=(), **options):
        return {"status": status, "headers": [["Content-Type", content_type], *headers], "chunks": chunks} | options

    def assert_masked(self, plan, provider="house", **options):
        """The client has as many stars as the key has bytes, in body and head, and nothing of the key."""
        key = managed_key(provider)
        before = metric(URL, "credential|masked|echoed")
        answer = self.call(provider, chat(), plan=plan, **options)
        expected = "".join(plan["chunks"])
        for part in re.findall(r"\{key[^}]*\}", expected):
            first, end = (part[1:-1].split(":") + ["", ""])[1:3]
            stars = "*" * len(key[int(first or 0):int(end) if end else None])
            expected = expected.replace(part, stars, 1)
        self.assertEqual(answer.body.decode(), expected)
        if plan.get("sized"):
            self.assertEqual(answer.header("content-length"), str(len(expected)))
        for name, value in plan["headers"]:
            if "{key}" in value:
                self.assertEqual(answer.header(name), value.replace("{key}", "*" * len(key)))
        self.assertNotIn(key, str(answer.headers))
        self.assertGreater(metric(URL, "credential|masked|echoed"), before, "no metric counts it")
        return answer

    def test_a_key_in_a_body_is_masked(self):
        for sized in (True, False):
            with self.subTest(sized=sized):
                self.assert_masked(self.plan(self.body("It was {key}."), sized=sized))

    def test_a_key_in_an_error_is_masked(self):
        for status in (400, 401, 429, 500):
            with self.subTest(status=status):
                plan = self.plan('{"error":{"message":"Incorrect API key: {key}"}}', status=status, sized=True)
                self.assertEqual(self.assert_masked(plan).status, status)

    def test_a_key_in_what_is_no_json_is_masked(self):
        for content_type in ("text/plain", "text/html", "application/octet-stream"):
            with self.subTest(content_type=content_type):
                self.assert_masked(self.plan("Your key: {key}\n{key}{key}", content_type=content_type, sized=True))

    def test_a_key_that_is_split_is_masked(self):
        before, behind = self.body("It was SPLIT.").split("SPLIT")
        for cuts in ([1], [10], [5, 20], [len(managed_key("house")) - 1], [1, 2, 3, 4, 5]):
            with self.subTest(cuts=cuts):
                ends = [0, *cuts, ""]
                parts = [f"{{key:{first}:{end}}}" for first, end in zip(ends, ends[1:])]
                chunks = [before + parts[0], *parts[1:-1], parts[-1] + behind]
                self.assert_masked(self.plan(*chunks, pause=0.05, sized=True))

    def test_a_key_at_either_end_is_masked(self):
        for chunks in (["{key}"], ["{key:0:12}", "{key:12}"], ["x{key}", "{key}x"]):
            with self.subTest(chunks=chunks):
                self.assert_masked(self.plan(*chunks, content_type="text/plain", pause=0.05, sized=True))

    def test_the_beginning_of_a_key_alone_passes(self):
        for chunks in (["sk-managed-key-of-", "nothing"], ["sk-managed", "-key"], ["sk-sk-managed-key-of-hous"]):
            with self.subTest(chunks=chunks):
                plan = self.plan(*chunks, content_type="text/plain", pause=0.05, sized=True)
                self.assertEqual(self.call("house", chat(), plan=plan).body.decode(), "".join(chunks))

    def test_a_key_in_a_stream_is_masked(self):
        chunk = json.dumps({"id": "c", "model": "cheap", "choices": [{"index": 0, "delta": {"content": "KEY"}}]})
        usage = json.dumps({"id": "c", "model": "cheap", "choices": [], "usage": self.USAGE})
        whole = f"data: {chunk.replace('KEY', '{key}')}\n\n"
        halves = [f"data: {chunk.partition('KEY')[0]}" + "{key:0:9}", "{key:9}" + chunk.partition("KEY")[2] + "\n\n"]
        for chunks in ([whole], halves):
            with self.subTest(chunks=chunks):
                chunks = [*chunks, f"data: {usage}\n\ndata: [DONE]\n\n"]
                self.assert_masked(self.plan(*chunks, content_type="text/event-stream", pause=0.05))

    def test_a_key_in_a_header_is_masked(self):
        for name in ("X-Echo", "X-Request-Id", "Location", "OpenAI-Organization"):
            with self.subTest(name=name):
                plan = self.plan(self.body("Yes."), headers=[[name, "before {key} behind"]], sized=True)
                self.assert_masked(plan)

    def test_the_key_of_another_kind_of_provider_is_masked(self):
        body = json.dumps({"model": "claude-sonnet-4-5", "max_tokens": 1, "messages": []}).encode()
        key = self.merchant.spend_key(request_shape="shape_b")
        plan = self.plan('{"type":"error","error":{"message":"{key}"}}', status=401, sized=True)
        before = metric(URL, "credential|masked|echoed")
        answer = self.call("anthropic", body, key=key, path="/messages", plan=plan)
        self.assertIn(b"*" * len(managed_key("anthropic")), answer.body)
        self.assertNotIn(managed_key("anthropic").encode(), answer.body)
        self.assertGreater(metric(URL, "credential|masked|echoed"), before)

    def assert_harmless(self, answer):
        policy = answer.header("content-security-policy") or ""
        directives = [one.strip() for one in policy.split(";")]
        self.assertEqual(directives, ["sandbox", "default-src 'none'"], str(answer))
        self.assertEqual(answer.header("x-content-type-options"), "nosniff")
        left = [name for name, _ in SITE if answer.header(name) is not None]
        self.assertEqual(left, [])

    def test_every_relayed_answer_is_harmless_to_a_browser(self):
        stream = "data: " + json.dumps({"model": "cheap", "choices": [], "usage": self.USAGE}) + "\n\ndata: [DONE]\n\n"
        site = [list(pair) for pair in SITE]
        own = [["Content-Security-Policy", "default-src *; script-src 'unsafe-inline'"],
               ["X-Content-Type-Options", "sniff"]]
        plans = {
            "json": self.plan(self.body("Yes."), headers=site),
            "html": self.plan("<script>1</script>", content_type="text/html", headers=site),
            "its own policy": self.plan("<script>1</script>", content_type="text/html", headers=own),
            "a stream": self.plan(stream, content_type="text/event-stream", headers=site),
            "a redirect": self.plan("", status=302, headers=[["Location", "/dashboard"], *site]),
            "401": self.plan("{}", status=401, headers=site),
            "500": self.plan("<script>1</script>", status=500, content_type="text/html", headers=site),
        }
        for name, plan in plans.items():
            with self.subTest(answer=name):
                self.assert_harmless(self.call("house", chat(stream=name == "a stream"), plan=plan))
            with self.subTest(answer=name, method="GET"):
                self.assert_harmless(self.call("house", method="GET", path="/models", headers=[], plan=plan))

    def test_a_drop_in_answer_is_harmless_to_a_browser(self):
        key = self.merchant.spend_key(allowed_providers=["house"])
        headers = [("Authorization", f"Bearer {key['key']}"), JSON,
                   ("X-Plan", json.dumps(self.plan(self.body("Yes."), headers=[list(pair) for pair in SITE])))]
        answer = exchange(URL, "POST", "/v1/chat/completions", headers, chat())
        self.assertEqual(answer.status, 200, str(answer))
        self.assert_harmless(answer)
