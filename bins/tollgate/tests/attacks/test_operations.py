"""Operations of Tollgate's own: filters that are too many, and parameters that are none."""

import difflib
import json
import urllib.request
from urllib.parse import quote, urlencode

from tollgate import URL, AttackTestCase, exchange


class Queries(AttackTestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        with urllib.request.urlopen(f"{URL}/openapi.json") as answer:
            cls.document = json.load(answer)

    def get(self, target, method="GET", body=None):
        headers = [("Authorization", f"Bearer {self.merchant.key}"), ("Content-Type", "application/json")]
        return exchange(URL, method, target, headers, body)

    def parameters(self, path):
        """Names of the query parameters that the document has."""
        operation = self.document["paths"][path]["get"]
        named = [self.resolved(one) for one in operation.get("parameters", [])]
        return [one["name"] for one in named if one["in"] == "query"]

    def resolved(self, part):
        while "$ref" in part:
            found = self.document
            for step in part["$ref"].removeprefix("#/").split("/"):
                found = found[step]
            part = found
        return part

    def assert_unknown(self, answer, name):
        self.assertEqual((answer.status, answer.error["code"]), (400, "validation_failed"), str(answer))
        issues = [issue for issue in answer.error["issues"] if issue["path"] == [name]]
        self.assertEqual(len(issues), 1, str(answer))
        return issues[0]["message"]

    def test_a_hundred_filters_work_and_more_are_refused(self):
        for path in ("/v1/requests", "/v1/usage"):
            for pairs in (1, 99, 100, 101, 500, 1000):
                with self.subTest(path=path, pairs=pairs):
                    filters = json.dumps([[f"k{number}", "v"] for number in range(pairs)], separators=(",", ":"))
                    answer = self.get(f"{path}?metadata_filters={quote(filters)}")
                    if pairs <= 100:
                        self.assertEqual(answer.status, 200, str(answer))
                    else:
                        self.assertEqual((answer.status, answer.error["code"]), (400, "validation_failed"), str(answer))

    def test_filters_that_are_none_are_refused(self):
        for filters in ("[]x", "{}", "1", '[["a"]]', '[["a","b","c"]]', '[["a",1]]', "[" * 5000,
                        '[["a","b"],["a","c"]]' * 2):
            with self.subTest(filters=filters[:40]):
                answer = self.get(f"/v1/requests?metadata_filters={quote(filters)}")
                self.assertEqual((answer.status, answer.error["code"]), (400, "validation_failed"), str(answer))

    def test_parameters_that_are_none_are_refused_by_every_operation(self):
        for path, operations in self.document["paths"].items():
            if "get" not in operations or not path.startswith("/v1/") or "{" in path or "operator" in path:
                continue
            # The query of a call to a provider is the provider's.
            calls = ("forward", "models", "responses", "messages/batches", "files", "batches", "videos", "conversations",
                     "realtime", "live/sessions")
            if path.removeprefix("/v1/") in calls:
                continue
            with self.subTest(path=path):
                query = {"no_such_parameter": "1"}
                self.assert_unknown(self.get(f"{path}?{urlencode(query)}"), "no_such_parameter")

    def test_the_nearest_parameter_is_named(self):
        nearly = {
            "/v1/usage": ["spend_key", "conection_id", "metadata_filter", "meterid", "starts"],
            "/v1/requests": ["metadata_filter", "connection", "limits", "cursors"],
            "/v1/spend_keys": ["limits", "Cursor"],
        }
        for path, names in nearly.items():
            known = self.parameters(path)
            for name in names:
                with self.subTest(path=path, name=name):
                    message = self.assert_unknown(self.get(f"{path}?{urlencode({name: '1'})}"), name)
                    [nearest] = difflib.get_close_matches(name.lower(), known, 1, 0)
                    self.assertIn(nearest, message)

    def test_a_write_with_a_parameter_is_refused_and_changes_nothing(self):
        before = self.get("/v1/connections?limit=100").body
        self.assert_unknown(self.get("/v1/connections?reference_id=1", "POST", b"{}"), "reference_id")
        self.assertEqual(self.get("/v1/connections?limit=100").body, before)

    def test_a_parameter_that_stands_twice_is_refused(self):
        answer = self.get("/v1/usage?meter_id=mtr_1&meter_id=mtr_2")
        self.assertEqual((answer.status, answer.error["code"]), (400, "validation_failed"), str(answer))
