"""A running Tollgate as a merchant sees it: what the tests make there, and what it says of calls."""

import json
import os
import time
import unittest
import urllib.request
from itertools import takewhile

URL = os.environ["SDK_TESTS_URL"]
OPENAI_MODEL = "gpt-4o-mini"
EMBEDDING_MODEL = "text-embedding-3-small"
ANTHROPIC_MODEL = "claude-sonnet-5"
# For a job that is cancelled: it does not end before, however slow the machine is.
LONG_JOB = {"x-simulate-job-ms": "60000"}


class Merchant:
    """A merchant with a customer, who has money on a wallet and a meter."""

    def __init__(self):
        operator_token = os.environ["SDK_TESTS_OPERATOR_TOKEN"]
        made = _send("POST", "/v1/operator/merchants", operator_token, {"name": "SDKs"})
        self._key = made["secret_key"]
        self.wallet_id = self.new_wallet("100")
        meter = {
            "name": "Plan",
            "rate_type": "fixed",
            "tier_type": "tokens_1m",
            "tiers": [{"start": "0", "rate": "5"}],
        }
        self.meter_id = self.send("POST", "/v1/meters", meter)["meter_id"]

    def send(self, method, path, body=None):
        """One operation, with the merchant's key."""
        return _send(method, path, self._key, body)

    def new_wallet(self, amount=None):
        """The wallet of a new customer."""
        wallet_id = self.send("POST", "/v1/connections", {})["wallet_id"]
        if amount is not None:
            self.send("POST", f"/v1/wallets/{wallet_id}/credits", {"amount": amount})
        return wallet_id

    def new_spend_key(self, shape, **rules):
        """A spend key of that wallet under that meter, unless `rules` say otherwise."""
        defaults = {
            "name": "SDK",
            "request_shape": shape,
            "wallet_id": self.wallet_id,
            "meter_id": self.meter_id,
        }
        return self.send("POST", "/v1/spend_keys", defaults | rules)


def _send(method, path, key, body=None):
    data = None if body is None else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    request = urllib.request.Request(URL + path, data, headers, method=method)
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


class SdkTestCase(unittest.IsolatedAsyncioTestCase):
    """A test with a spend key of its own, and the records of the calls it makes."""

    shape: str

    @classmethod
    def setUpClass(cls):
        cls.merchant = Merchant()

    def setUp(self):
        self.spend_key = self.new_spend_key()
        self._before = self._newest(1)

    def new_spend_key(self, **rules):
        return self.merchant.new_spend_key(self.shape, **rules)

    def _newest(self, limit):
        return [one["request_id"] for one in self.merchant.send("GET", f"/v1/requests?limit={limit}")["data"]]

    def records(self):
        """The records of this test's calls, the newest first."""
        new = takewhile(lambda request_id: request_id not in self._before, self._newest(100))
        return [self.merchant.send("GET", f"/v1/requests/{request_id}") for request_id in new]

    def ended_records(self):
        """The same, of calls that the SDK did not read to their end."""
        deadline = time.monotonic() + 10
        while True:
            records = self.records()
            if all(record["status"] != "pending" for record in records):
                return records
            self.assertLess(time.monotonic(), deadline, records)
            time.sleep(0.02)

    def assert_recorded(self, *used):
        """The records say what the SDK saw: pairs of input and output tokens, the oldest call first."""
        records = self.records()[::-1]
        for record in records:
            self.assertEqual(record["status"], "completed", record)
            self.assertEqual(record["spend_key_id"], self.spend_key["spend_key_id"])
            self.assertEqual(record["meter_id"], self.merchant.meter_id)
        usage = [record["model_usage"] for record in records]
        self.assertEqual([(one["input_tokens"], one["output_tokens"]) for one in usage], list(used))
        return records

    def assert_explained(self, error, code, *, header=None):
        """An error of Tollgate's own has its code and a message that says something."""
        body = error.response.json()["error"]
        self.assertEqual(body["code"], code)
        self.assertEqual(body["status"], error.status_code)
        self.assertIn(body["message"], str(error))
        if header is not None:
            return error.response.headers[header]
        return None
