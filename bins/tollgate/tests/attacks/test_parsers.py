"""Bodies that Tollgate and a provider could read in two ways: charsets, content encodings, keys that are equal by
case folding or stand twice, and options that are not what they should be."""

import gzip
import itertools
import json
import unittest
import zlib

import brotli

from tollgate import FRAMEWORKS, JSON, MESSAGES, AttackTestCase, chat


def with_text(text, *changes):
    """A body in which the first `{` is followed by this, as it stands."""
    body = chat(**dict(changes)).decode()
    return (body[0] + text + ", " + body[1:]).encode()


class ContentTypes(AttackTestCase):
    # Read as UTF-8 it asks a cheap model for one token; read as UTF-7 a dear one for 4,000.
    UTF_7 = chat(x='+ACI-,+ACI-model+ACI-:+ACI-dear+ACI-,+ACI-max+AF8-tokens+ACI-:4000,+ACI-y+ACI-:+ACI-')
    REFUSED = [
        "application/json; charset=utf-7",
        'application/json; charset="utf-7"',
        "application/json;charset=UTF-7",
        "application/json; charset=utf-16",
        "application/json; charset=utf-16le",
        "application/json; charset=utf-32",
        "application/json; charset=iso-8859-1",
        "application/json; charset=us-ascii",
        "application/json; charset=shift_jis",
        "application/json; charset=iso-2022-kr",
        "application/json; charset=utf-8; charset=utf-7",
        "application/json; charset=utf-7; charset=utf-8",
        "application/json; version=1",
        "application/json; boundary=x",
        "application/json; charset=utf-8; version=1",
        "application/json, text/plain",
        "application/json, application/json",
        "text/plain",
        "text/plain; charset=utf-7",
        "text/json",
        "application/vnd.api+json",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/octet-stream",
        "",
    ]
    PASSED = [
        "application/json",
        "application/json; charset=utf-8",
        "application/json;charset=utf-8",
        "application/json; charset=UTF-8",
    ]

    def test_only_json_in_utf_8_is_sent(self):
        for provider, content_type in itertools.product(FRAMEWORKS, self.PASSED):
            with self.subTest(provider=provider, content_type=content_type):
                self.assert_booked(self.call(provider, self.UTF_7, headers=[("Content-Type", content_type)]))

    def test_every_other_content_type_is_refused(self):
        for provider, content_type in itertools.product(FRAMEWORKS, self.REFUSED):
            with self.subTest(provider=provider, content_type=content_type):
                answer = self.call(provider, self.UTF_7, headers=[("Content-Type", content_type)])
                self.assert_refused(answer, 415, "content_type_unsupported")

    def test_a_bounded_key_is_refused_too(self):
        key = self.merchant.spend_key("0.01")
        headers = [("Content-Type", "application/json; charset=utf-7")]
        self.assert_refused(self.call("aiohttp", self.UTF_7, key=key, headers=headers), 415, "content_type_unsupported")

    def test_a_body_in_the_charset_that_its_head_states_is_refused(self):
        for charset in ("utf-16", "utf-16le", "utf-32"):
            with self.subTest(charset=charset):
                headers = [("Content-Type", f"application/json; charset={charset}")]
                body = chat(model="dear").decode().encode(charset)
                self.assert_refused(self.call("aiohttp", body, headers=headers), 415, "content_type_unsupported")

    def test_no_content_type_is_refused(self):
        for provider in FRAMEWORKS:
            with self.subTest(provider=provider):
                self.assert_refused(self.call(provider, chat(), headers=[]), 415, "content_type_unsupported")

    def test_two_content_types_are_refused(self):
        utf_7 = ("Content-Type", "application/json; charset=utf-7")
        for provider, pair in itertools.product(FRAMEWORKS, [(JSON, utf_7), (utf_7, JSON), (JSON, JSON)]):
            with self.subTest(provider=provider, pair=pair):
                answer = self.call(provider, self.UTF_7, headers=pair)
                self.assert_refused(answer, 415, "content_type_unsupported")

    def test_a_form_is_refused_where_an_endpoint_has_none(self):
        # A form for Express and aiohttp, and JSON for the others.
        body = b'{"model":"cheap","max_tokens":1,"messages":[],"x":"&model=dear&max_tokens=4000&y="}'
        headers = [("Content-Type", "application/x-www-form-urlencoded")]
        for provider in FRAMEWORKS:
            with self.subTest(provider=provider):
                answer = self.call(provider, body, headers=headers)
                self.assert_refused(answer, 415, "content_type_unsupported")

    def test_what_the_standard_leaves_open_is_lawful(self):
        for provider, content_type in itertools.product(FRAMEWORKS, [
            "Application/JSON", 'application/json; charset="utf-8"', "application/json;",
            "application/json ; charset=utf8", "application/json; Charset=utf-8",
        ]):
            with self.subTest(provider=provider, content_type=content_type):
                self.assert_lawful(self.call(provider, self.UTF_7, headers=[("Content-Type", content_type)]))


class ContentEncodings(AttackTestCase):
    # Compressed it is a few hundred bytes; a provider counts 200,000 tokens.
    LONG = chat(model="dear", x="a" * 800_000)
    COMPRESSED = {
        "gzip": gzip.compress,
        "x-gzip": gzip.compress,
        "GZIP": gzip.compress,
        "deflate": zlib.compress,
        "br": brotli.compress,
        "identity, gzip": gzip.compress,
        "gzip, identity": gzip.compress,
    }

    def refuse(self, provider, body, *encodings):
        headers = [JSON, *(("Content-Encoding", encoding) for encoding in encodings)]
        self.assert_refused(self.call(provider, body, headers=headers), 415, "content_type_unsupported")

    def test_a_compressed_body_is_refused(self):
        for provider, (encoding, compress) in itertools.product(FRAMEWORKS, self.COMPRESSED.items()):
            for body in (chat(), self.LONG):
                with self.subTest(provider=provider, encoding=encoding, length=len(body)):
                    self.refuse(provider, compress(body), encoding)

    def test_a_plain_body_is_refused_below_every_encoding_but_identity(self):
        encodings = [*self.COMPRESSED, "zstd", "compress", "aws-chunked", "x", ""]
        for provider, encoding in itertools.product(FRAMEWORKS, encodings):
            with self.subTest(provider=provider, encoding=encoding):
                self.refuse(provider, chat(), encoding)

    def test_two_headers_are_refused(self):
        for pair in [("identity", "gzip"), ("gzip", "identity")]:
            with self.subTest(pair=pair):
                self.refuse("aiohttp", gzip.compress(chat(model="dear")), *pair)

    def test_a_body_that_is_both_is_refused(self):
        # A plain body for Tollgate, behind which a compressed one stands.
        self.refuse("aiohttp", chat() + gzip.compress(chat(model="dear")), "gzip")

    def test_identity_passes(self):
        for provider in FRAMEWORKS:
            with self.subTest(provider=provider):
                self.assert_booked(self.call(provider, chat(), headers=[JSON, ("Content-Encoding", "identity")]))


class FoldedKeys(AttackTestCase):
    # What is inserted at the front of a cheap body, and the key that an issue has to name.
    TOP = {
        '"max_to\u212aens": 4000': "max_to\u212aens",
        '"max_to\\u212aens": 4000': "max_to\u212aens",
        '"Max_Tokens": 4000': "Max_Tokens",
        '"MAX_TOKENS": 4000': "MAX_TOKENS",
        '"Max_Completion_Tokens": 4000': "Max_Completion_Tokens",
        '"max_completion_to\u212aens": 4000': "max_completion_to\u212aens",
        '"MODEL": "dear"': "MODEL",
        '"Model": "dear"': "Model",
        '"mode\\u004c": "dear"': "modeL",
        '"\u017ftream": true': "\u017ftream",
        '"\\u017ftream": true': "\u017ftream",
        '"STREAM": true': "STREAM",
        '"\u017ftream_options": {"include_usage": false}': "\u017ftream_options",
        '"Stream_Options": {"include_usage": false}': "Stream_Options",
        '"N": 5': "N",
        '"Tools": [{"type": "web_search"}]': "Tools",
        '"Service_Tier": "priority"': "Service_Tier",
        '"\u017fervice_tier": "priority"': "\u017fervice_tier",
    }
    FUNCTION = {"name": "weather", "parameters": {"type": "object"}}
    TOOLS = {
        "Type": {"Type": "web_search", "type": "function", "function": FUNCTION},
        "TYPE": {"TYPE": "web_search", "type": "function", "function": FUNCTION},
        "Name": {"type": "function", "function": FUNCTION | {"Name": "search"}},
        "Function": {"type": "function", "function": FUNCTION, "Function": FUNCTION},
        "Max_Uses": {"type": "function", "function": FUNCTION, "Max_Uses": 9},
    }

    def refuse(self, provider, body, names, **rules):
        key = self.merchant.spend_key("0.01", **rules)
        answer = self.call(provider, body, key=key)
        self.assert_refused(answer, 400, "forward_token_json_invalid", names)

    def test_a_key_that_folds_to_one_that_decides_money_is_refused(self):
        for provider, (text, names) in itertools.product(FRAMEWORKS, self.TOP.items()):
            for strict in (False, True):
                with self.subTest(provider=provider, text=text, strict=strict):
                    self.refuse(provider, with_text(text), names, strict=strict)

    def test_a_folded_key_alone_is_refused(self):
        body = {"messages": MESSAGES, "Model": "dear", "Max_Tokens": 4000}
        self.refuse("go", json.dumps(body | {"model": "cheap"}).encode(), "Max_Tokens", strict=True)
        answer = self.call("go", json.dumps(body).encode())
        self.assert_refused(answer, 400, "forward_token_json_invalid")

    def test_a_folded_key_behind_its_equal_is_refused(self):
        for text, names in self.TOP.items():
            with self.subTest(text=text):
                body = (chat().decode()[:-1] + ", " + text + "}").encode()
                self.refuse("go", body, names, strict=True)

    def test_a_folded_key_of_a_tool_is_refused(self):
        for provider, (names, tool) in itertools.product(("go", "express"), self.TOOLS.items()):
            with self.subTest(provider=provider, names=names):
                self.refuse(provider, chat(tools=[tool]), names)

    def test_a_folded_key_of_stream_options_is_refused(self):
        for names in ("Include_Usage", "include_u\u017fage", "INCLUDE_USAGE"):
            for ensure_ascii in (False, True):
                with self.subTest(names=names, escaped=ensure_ascii):
                    options = {"include_usage": True, names: False}
                    body = json.dumps(json.loads(chat(stream=True)) | {"stream_options": options},
                                      ensure_ascii=ensure_ascii).encode()
                    self.refuse("go", body, names, strict=True)

    def test_a_folded_key_of_a_message_is_refused(self):
        parts = {
            "Type": [{"type": "text", "text": "Hi", "Type": "image_url", "image_url": {"url": "data:,"}}],
            "Image_Url": [{"type": "image_url", "Image_Url": {"url": "https://example.com/dear.png"}}],
        }
        for names, content in parts.items():
            with self.subTest(names=names):
                body = chat(messages=[{"role": "user", "content": content}])
                self.refuse("go", body, names, strict=True)

    def test_names_that_are_the_callers_own_pass(self):
        schema = {"type": "object", "properties": {"Model": {"type": "string"}, "MAX_TOKENS": {"type": "number"}}}
        tool = {"type": "function", "function": {"name": "weather", "parameters": schema}}
        for provider in FRAMEWORKS:
            with self.subTest(provider=provider):
                self.assert_booked(self.call(provider, chat(tools=[tool], metadata={"Model": "x", "N": "2"})))


class Duplicates(AttackTestCase):
    TOP = {
        '"model": "dear"': "model",
        '"mod\\u0065l": "dear"': "model",
        '"\\u006dodel": "dear"': "model",
        '"max_tokens": 4000': "max_tokens",
        '"max\\u005ftokens": 4000': "max_tokens",
    }
    # Each with the key that stands twice in it.
    STREAMED = {
        '"stream": false': "stream",
        '"stream_options": {"include_usage": true}, "stream_options": {"include_usage": false}': "stream_options",
        '"stream_options": {"include_usage": false}, "stream\\u005foptions": {}': "stream_options",
        '"stream_options": {"include_usage": true, "include_usage": false}': "include_usage",
        '"stream_options": {"include_usage": false, "include\\u005fusage": true}': "include_usage",
        '"stream_options": {"include_usage": null, "include_usage": false}': "include_usage",
    }

    def refuse(self, provider, body, names):
        for strict in (False, True):
            answer = self.call(provider, body, key=self.merchant.spend_key("0.01", strict=strict))
            self.assert_refused(answer, 400, "forward_token_json_invalid", names)

    def test_a_key_that_stands_twice_is_refused(self):
        for provider, (text, names) in itertools.product(FRAMEWORKS, self.TOP.items()):
            with self.subTest(provider=provider, text=text):
                self.refuse(provider, with_text(text), names)

    def test_a_key_that_stands_twice_in_a_stream_is_refused(self):
        for provider, (text, names) in itertools.product(FRAMEWORKS, self.STREAMED.items()):
            with self.subTest(provider=provider, text=text):
                self.refuse(provider, with_text(text, ("stream", True)), names)

    def test_a_key_that_stands_twice_in_a_tool_is_refused(self):
        for kinds in ('"type": "function", "type": "web_search"', '"type": "web_search", "type": "function"'):
            for strict in (False, True):
                with self.subTest(kinds=kinds, strict=strict):
                    body = with_text(f'"tools": [{{{kinds}, "function": {{"name": "x"}}}}]')
                    answer = self.call("aiohttp", body, key=self.merchant.spend_key("0.01", strict=strict))
                    self.assert_not_called(answer)
                    self.assertEqual(answer.status, 400, str(answer))


class StreamOptions(AttackTestCase):
    MALFORMED = [
        0, 1, "off", "", [], [{"include_usage": False}], True, False, {"include_usage": 1}, {"include_usage": 0},
        {"include_usage": "false"}, {"include_usage": "true"}, {"include_usage": ""}, {"include_usage": []},
        {"include_usage": {}},
    ]
    GOOD = [
        None, {}, {"include_usage": None}, {"include_usage": False}, {"include_usage": True},
        {"include_usage": True, "include_obfuscation": False}, {"include_obfuscation": False},
    ]

    def test_what_is_malformed_is_refused(self):
        for provider, options in itertools.product(FRAMEWORKS, self.MALFORMED):
            with self.subTest(provider=provider, options=options):
                answer = self.call(provider, chat(stream=True, stream_options=options))
                self.assert_refused(answer, 400, "forward_token_json_invalid", "stream_options")

    def test_what_is_well_formed_is_metered(self):
        for provider, options in itertools.product(FRAMEWORKS, self.GOOD):
            with self.subTest(provider=provider, options=options):
                self.assert_booked(self.call(provider, chat(stream=True, stream_options=options)))

    def test_without_options_a_stream_is_metered(self):
        for provider in FRAMEWORKS:
            with self.subTest(provider=provider):
                self.assert_booked(self.call(provider, chat(stream=True)))

    def test_values_that_a_parser_would_convert_are_lawful(self):
        # pydantic makes 4000 of "4000", and true of "yes", "on", 1 and "1".
        values = [("max_tokens", "4000"), ("max_tokens", 4000.0), ("max_tokens", "4e3"), ("max_tokens", True),
                  ("max_tokens", [4000]), ("max_tokens", -1), ("n", "3"), ("n", 3.0), ("n", 10**30), ("stream", "yes"),
                  ("stream", 1), ("stream", "1"), ("model", ["dear"]), ("model", "dear\u0000"), ("model", " dear"),
                  ("max_tokens", 0), ("max_tokens", None), ("max_completion_tokens", "4000"), ("n", 0),
                  ("max_tokens", "4_000"), ("max_tokens", "0xfa0"), ("max_tokens", " 4000 "), ("n", "2_0"),
                  ("max_tokens", "\uff14\uff10\uff10\uff10"), ("n", "1e2"), ("n", False)]
        for provider, (name, value) in itertools.product(FRAMEWORKS, values):
            with self.subTest(provider=provider, name=name, value=value):
                self.assert_lawful(self.call(provider, chat(**{name: value})))


if __name__ == "__main__":
    unittest.main()
