"""A running Tollgate as an attacker sees it, the providers behind it, and the law of every attack: either the
call is refused and no provider is called, or what the provider understood and reported is what is booked."""

import http.client
import itertools
import json
import os
import re
import secrets
import socket
import subprocess
import time
import unittest
import urllib.request
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from urllib.parse import quote, urlsplit

URL = os.environ["ATTACKS_URL"]
SCRIPTED = os.environ["ATTACKS_SCRIPTED"]
PROGRAM = os.environ["ATTACKS_PROGRAM"]
FOLDER = Path(os.environ["ATTACKS_FOLDER"])
OPERATOR = "operator"

# Providers on a framework, each with its origin.
FRAMEWORKS = dict(one.split("=") for one in os.environ["ATTACKS_PROVIDERS"].split())
# Their base URLs, and those of the folders of the scripted one, by the names of the configuration.
BASES = {name: f"{origin}/v1" for name, origin in FRAMEWORKS.items()} | {
    "house": f"{SCRIPTED}/house/v1",
    "deepseek": f"{SCRIPTED}/deepseek",
    "openrouter": f"{SCRIPTED}/openrouter/api/v1",
    "anthropic": f"{SCRIPTED}/anthropic/v1",
    "google": f"{SCRIPTED}/google",
    "openai": f"{SCRIPTED}/openai/v1",
}
# USD for a million tokens, in and out: as in tollgate.toml.
PRICES = {"cheap": (1, 2), "dear": (100, 200)}
JSON = ("Content-Type", "application/json")
MESSAGES = [{"role": "user", "content": "What does a tollgate do?"}]


def managed_key(provider):
    return f"sk-managed-key-of-{provider}-0123456789"


def cost(model, prompt, completion):
    """USD, exact: a price is for a million tokens."""
    into, out = PRICES[model]
    return (Decimal(prompt) * into + Decimal(completion) * out) / 1_000_000


def chat(**changes):
    """A chat that costs next to nothing, as bytes."""
    return json.dumps({"model": "cheap", "max_tokens": 1, "messages": MESSAGES} | changes).encode()


@dataclass
class Answer:
    """What came back, and the name under which the provider keeps what it saw."""

    status: int
    headers: list
    body: bytes
    provider: str = ""
    attack: str = ""
    key: dict = field(default_factory=dict)
    spent: Decimal = Decimal(0)

    def header(self, name):
        values = [value for one, value in self.headers if one.lower() == name.lower()]
        return values[0] if values else None

    @property
    def error(self):
        try:
            return json.loads(self.body)["error"]
        except (ValueError, KeyError, TypeError):
            return {"code": None, "issues": [], "message": self.body[:300]}

    def __str__(self):
        return f"{self.status} {self.headers} {self.body[:600]!r}"


def exchange(base, method, target, headers=(), body=None, timeout=30):
    """One request with exactly these headers, beside `Host` and the length of a body."""
    parts = urlsplit(base)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout)
    try:
        connection.putrequest(method, target, skip_accept_encoding=True)
        for name, value in headers:
            connection.putheader(name, value)
        if body is not None:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        response = connection.getresponse()
        try:
            content = response.read()
        except http.client.IncompleteRead as cut:
            content = cut.partial
        return Answer(response.status, response.getheaders(), content)
    finally:
        connection.close()


def raw(base, data, timeout=5):
    """Everything that is answered to these bytes, until the other side closes or says no more."""
    parts = urlsplit(base)
    said = b""
    with socket.create_connection((parts.hostname, parts.port), timeout=timeout) as connection:
        connection.sendall(data)
        try:
            while piece := connection.recv(65536):
                said += piece
        except (TimeoutError, ConnectionError):
            pass
    return said


class Refused(Exception):
    """An operation of the merchant's own was answered with an error."""

    def __init__(self, answer):
        super().__init__(str(answer))
        self.answer = answer


class Merchant:
    """A merchant with a customer whose wallet has money."""

    def __init__(self, base=URL, credit="1000"):
        self.base = base
        made = operate(base, OPERATOR, "POST", "/v1/operator/merchants", {"name": "Attacked"})
        self.key = made["secret_key"]
        customer = self.send("POST", "/v1/connections", {})
        self.connection_id, self.wallet_id = customer["connection_id"], customer["wallet_id"]
        self.send("POST", f"/v1/wallets/{self.wallet_id}/credits", {"amount": credit})

    def send(self, method, path, body=None):
        return operate(self.base, self.key, method, path, body)

    def spend_key(self, limit=None, strict=False, **rules):
        """A spend key; `limit` is in USD and for all time."""
        new = {"name": "Attacker", "wallet_id": self.wallet_id, "enforcement": "strict" if strict else "bounded"}
        if limit is not None:
            new["spend_limit"] = {"amount": str(limit), "cycle": "total"}
        return self.send("POST", "/v1/spend_keys", new | rules)

    def spent(self, key):
        return Decimal(self.send("GET", f"/v1/spend_keys/{key['spend_key_id']}")["total_spend"])

    def record(self, answer):
        """The record of a call, when it has ended."""
        request_id = answer.header("x-service-request-id")
        deadline = time.monotonic() + 10
        while True:
            record = self.send("GET", f"/v1/requests/{request_id}")
            if record["status"] != "pending" or time.monotonic() > deadline:
                return record
            time.sleep(0.05)


def operate(base, key, method, path, body=None):
    headers = [("Authorization", f"Bearer {key}"), JSON]
    data = None if body is None else json.dumps(body).encode()
    answer = exchange(base, method, path, headers, data)
    if answer.status >= 300:
        raise Refused(answer)
    return json.loads(answer.body)


def seen(provider, attack):
    """The calls that the provider was sent for an attack."""
    origin = FRAMEWORKS.get(provider, SCRIPTED)
    with urllib.request.urlopen(f"{origin}/seen/{attack}") as answer:
        return json.load(answer)


def put_page(name, headers, text):
    """Lets the scripted provider answer `GET …/models/NAME` with this."""
    page = json.dumps({"headers": headers, "chunks": [text], "sized": True}).encode()
    request = urllib.request.Request(f"{SCRIPTED}/pages/{name}", page, method="PUT")
    urllib.request.urlopen(request).close()


def metric(base, pattern):
    """The sum of the samples whose names and labels match."""
    with urllib.request.urlopen(f"{base}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    samples = [line.rpartition(" ") for line in lines if not line.startswith("#")]
    return sum(float(value) for name, _, value in samples if re.search(pattern, name))


def port():
    """One that is free."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


class Program:
    """Another instance of the program, with settings beside those of tollgate.toml."""

    numbers = itertools.count()

    def __init__(self, *settings, scheme="http"):
        folder = FOLDER / f"instance-{next(self.numbers)}"
        folder.mkdir()
        shared = (FOLDER / "tollgate.toml").read_text()
        (folder / "tollgate.toml").write_text("\n".join([*settings, shared.replace(f"{FOLDER}/", f"{folder}/")]))
        self.log, out = folder / "log", folder / "out"
        environment = os.environ | {"TOLLGATE_CONFIG": str(folder / "tollgate.toml")}
        with open(self.log, "wb") as log, open(out, "wb") as stdout:
            self.process = subprocess.Popen([PROGRAM, "serve"], stdout=stdout, stderr=log, env=environment)
        deadline = time.monotonic() + 20
        while not (found := re.search(scheme + r"://[\d.:]+", out.read_text())):
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise AssertionError(f"the program did not start: {self.log.read_text()[-2000:]}")
            time.sleep(0.05)
        self.url = found[0]

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait()

    def memory(self, name="VmRSS"):
        """MiB of it, as the kernel counts."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(rf"{name}:\s+(\d+) kB", status)[1]) / 1024


class AttackTestCase(unittest.TestCase):
    """A test with a merchant of its own."""

    maxDiff = 2000

    @classmethod
    def setUpClass(cls):
        cls.merchant = Merchant()

    def call(self, provider, body=None, *, key=None, headers=(JSON,), path="/chat/completions", method="POST",
             plan=None, merchant=None):
        """A call as an attacker makes it; `key` is a spend key, or text that is a credential."""
        merchant = merchant or self.merchant
        key = merchant.spend_key("0.01", strict=True) if key is None else key
        attack = secrets.token_hex(8)
        credential = key if isinstance(key, str) else key["key"]
        sent = [("Authorization", f"Bearer {credential}"), ("X-Attack", attack), *headers]
        if plan is not None:
            sent.append(("X-Plan", json.dumps(plan)))
        before = Decimal(0) if isinstance(key, str) else merchant.spent(key)
        target = f"/v1/forward?u={quote(BASES[provider] + path, safe='')}"
        answer = exchange(merchant.base, method, target, sent, body)
        answer.provider, answer.attack, answer.spent = provider, attack, before
        answer.key = None if isinstance(key, str) else key
        return answer

    def assert_not_called(self, answer):
        self.assertEqual(seen(answer.provider, answer.attack), [], f"the provider was called; answered: {answer}")

    def assert_refused(self, answer, status, code, names=None, merchant=None):
        """An error of Tollgate's own, which may have to name a field; nothing was sent and nothing is spent."""
        calls = seen(answer.provider, answer.attack)
        self.assertEqual((answer.status, answer.error["code"], calls), (status, code, []), str(answer))
        if names is not None:
            issues = answer.error["issues"]
            self.assertTrue(any(names in issue["path"] for issue in issues), f"{names!r} is not named: {issues}")
        if answer.key is not None:
            self.assertEqual((merchant or self.merchant).spent(answer.key), answer.spent)

    def assert_booked(self, answer):
        """What a provider on a framework understood and reported is what is booked, and the key's limit holds."""
        self.assertEqual(answer.status, 200, str(answer))
        [call] = seen(answer.provider, answer.attack)
        usage, record = call["usage"], self.merchant.record(answer)
        understood = (call["model"], usage["prompt_tokens"], usage["completion_tokens"])
        booked = record["model_usage"]
        what = f"understood {call}, booked {record}"
        self.assertEqual((record["model"], booked["input_tokens"], booked["output_tokens"]), understood, what)
        self.assertEqual(record["usage_source"], "reported", what)
        self.assertEqual(Decimal(record["total_request_cost"]), cost(*understood), what)
        self.assertEqual(self.merchant.spent(answer.key) - answer.spent, cost(*understood), what)
        self.assert_within_limit(answer.key)
        return record

    def assert_lawful(self, answer):
        """Refused, or booked as understood."""
        if seen(answer.provider, answer.attack):
            self.assert_booked(answer)
        else:
            self.assertIn(answer.status, range(400, 500), str(answer))

    def assert_within_limit(self, key, merchant=None):
        if key["enforcement"] == "strict":
            spent = (merchant or self.merchant).spent(key)
            self.assertLessEqual(spent, Decimal(key["spend_limit"]["amount"]))
