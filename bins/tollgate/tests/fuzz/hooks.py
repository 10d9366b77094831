"""Puts real ids, models and URLs where generated ones would lead nowhere."""

import collections
import functools
import json
import os
import random
import urllib.request

import schemathesis

IDS = json.loads(os.environ["FUZZ_IDS"])
URL, SIMULATOR = os.environ["FUZZ_URL"], os.environ["FUZZ_SIMULATOR"]
SECRET_KEY = os.environ["FUZZ_SECRET_KEY"]

# What an `{id}` is, by the first part of the path.
KINDS = {
    "connections": "connection_id",
    "credit_bundles": "credit_bundle_id",
    "jobs": "job_id",
    "meters": "meter_id",
    "requests": "request_id",
    "secret_keys": "secret_key_id",
    "spend_keys": "spend_key_id",
    "subscription_configs": "subscription_config_id",
    "subscriptions": "subscription_id",
    "wallets": "wallet_id",
    "webhooks": "webhook_id",
}
# What can be made anew to be deleted.
SPARES = {
    "connections": {},
    "meters": {
        "name": "Spare", "rate_type": "fixed", "tier_type": "requests",
        "tiers": [{"start": "0", "rate": "1"}],
    },
    "secret_keys": {"name": "Spare"},
    "spend_keys": {"name": "Spare"},
    "subscription_configs": {"name": "Spare", "period_amount": "1", "billing_interval": "day"},
    "webhooks": {"name": "Spare", "url": SIMULATOR + "/hook"},
}
# Parameters that are JSON in a text.
TEXTS = {
    "metadata": '{"plan": "a"}',
    "x-service-metadata": '{"plan": "b"}',
    "metadata_filters": '[["plan", "a"]]',
}
CALLS = {f"POST /v1/{path}" for path in (
    "forward", "chat/completions", "completions", "responses", "responses/input_tokens", "embeddings", "messages",
    "messages/count_tokens", "messages/batches", "batches", "conversations",
)}
MODELS = {
    "completions": "gpt-3.5-turbo-instruct",
    "embeddings": "text-embedding-3-small",
    "messages": "claude-sonnet-4-5",
}
PROMPT = {
    "max_tokens": 9, "messages": [{"role": "user", "content": "Hello"}], "input": "Hello", "prompt": "Hello",
}
# The objects of providers, by the parameters of paths that name them, and the operations that would delete the only one.
OBJECTS = {"message_batch_id", "batch_id", "file_id", "video_id", "batch", "file", "operation", "conversation_id", "item_id"}
KEPT = {
    "DELETE /v1/files/{file_id}", "DELETE /v1/videos/{video_id}", "DELETE /v1beta/batches/{batch}",
    "DELETE /v1/conversations/{conversation_id}", "DELETE /v1/conversations/{conversation_id}/items/{item_id}",
}
GOOGLE_CALL = "POST /v1beta/models/{model}:{call}"
GEMINI = "gemini-2.5-flash"
QUESTION = {
    "contents": [{"role": "user", "parts": [{"text": "Hello"}]}],
    "generationConfig": {"maxOutputTokens": 9},
}
ENDPOINTS = ["/chat/completions", "/responses", "/embeddings"]

with urllib.request.urlopen(URL + "/openapi.json") as answer:
    DOCUMENT = json.load(answer)


# How many cases of each operation were sent.
SENT = collections.Counter()


def mostly(operation):
    """Four times of five; always in the first two cases of an operation, so that a short fuzz has answers as well."""
    return SENT[operation] <= 2 or random.random() < 0.8


def is_of_service(header):
    return header.lower().startswith("x-service-")


def send(method, path, body=None):
    headers = {"Authorization": f"Bearer {SECRET_KEY}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{URL}/v1/{path}", data, headers, method=method)
    with urllib.request.urlopen(request) as response:
        return json.load(response)


def spare(kind):
    """The id of a new one; none when it cannot be made."""
    try:
        return send("POST", kind, SPARES[kind])[KINDS[kind]]
    except OSError:
        return None


def spare_response():
    """The id of a response in the background that was cancelled, so that it can be deleted; none when it cannot be made."""
    try:
        response = send("POST", "responses", {"model": "gpt-4o-mini", "input": "Hello", "background": True})["id"]
        send("POST", f"responses/{response}/cancel")
        return response
    except OSError:
        return None


def fill(value, often):
    """Real ids in the fields of a body that have their names."""
    if isinstance(value, list):
        return [fill(item, often) for item in value]
    if not isinstance(value, dict):
        return value
    filled = {name: fill(field, often) for name, field in value.items()}
    for name in filled.keys() & IDS.keys():
        # The id of reported usage is the caller's own.
        if isinstance(filled[name], str) and name != "request_id" and often():
            filled[name] = IDS[name]
    return filled


@schemathesis.hook
def before_call(context, case, kwargs):
    # Addresses of others are not ours to call.
    if isinstance(case.body, dict) and str(case.body.get("url", "")).lower().startswith("http"):
        case.body["url"] = SIMULATOR + random.choice(["/hook", *ENDPOINTS])
    if case.meta is None or not case.meta.generation.mode.is_positive:
        return
    label = case.operation.label
    SENT[label] += 1
    often = functools.partial(mostly, label)
    first = case.operation.path.removeprefix("/v1/").split("/")[0]
    # The key with which all this is sent must not be deleted.
    if case.path_parameters and first in KINDS and (often() or first == "secret_keys"):
        if case.method == "DELETE":
            fresh = spare(first) if first in SPARES else None
            case.path_parameters["id"] = fresh or case.path_parameters["id"]
        else:
            case.path_parameters["id"] = IDS[KINDS[first]]
            if "delivery_id" in case.path_parameters:
                case.path_parameters["delivery_id"] = IDS["delivery_id"]
    if "response_id" in (case.path_parameters or {}) and often():
        fresh = spare_response() if case.method == "DELETE" else None
        case.path_parameters["response_id"] = fresh or IDS["response_id"]
    for name in OBJECTS & (case.path_parameters or {}).keys():
        # What there is one of must stay.
        if often() and label not in KEPT:
            case.path_parameters[name] = IDS[name]
    # What has a colon is no batch, but an operation such as `{batch}:cancel`.
    if "batch" in (case.path_parameters or {}):
        batch = str(case.path_parameters["batch"])
        case.path_parameters["batch"] = batch.replace(":", "-").replace("%3A", "-")
    if "model" in (case.path_parameters or {}) and often():
        case.path_parameters["model"] = GEMINI
    if label == GOOGLE_CALL and often():
        case.path_parameters |= {"model": GEMINI, "call": "generateContent"}
        case.body, case.media_type = QUESTION, "application/json"
        case.headers = {name: value for name, value in case.headers.items() if not is_of_service(name)}
        case.query.pop("metadata", None)
    for place in (case.query, case.headers):
        for name in (place or {}).keys() & TEXTS.keys():
            if often():
                place[name] = TEXTS[name]
    # Most keys that are generated were used before.
    if case.headers and often():
        case.headers.pop("Idempotency-Key", None)
    for name in (case.query or {}).keys() & IDS.keys():
        if often():
            case.query[name] = IDS[name]
    case.body = fill(case.body, often)
    if first == "forward":
        case.query["u"] = SIMULATOR + random.choice(ENDPOINTS if case.method == "POST" else ["/models"])
    # That tiers ascend from 0 no schema can say.
    if isinstance(case.body, dict) and isinstance(case.body.get("tiers"), list) and often():
        for place, tier in enumerate(case.body["tiers"]):
            tier["start"] = str(place * 1000)
    if label in CALLS and often():
        # What is generated at random is hardly ever a call that a provider takes.
        if often() or not isinstance(case.body, dict):
            case.body, case.media_type = PROMPT, "application/json"
            if first == "forward":
                case.query["u"] = SIMULATOR + "/chat/completions"
        if often():
            # Random limits and names of budgets and runs refuse most calls.
            case.headers = {name: value for name, value in case.headers.items() if not is_of_service(name)}
            case.query.pop("metadata", None)
        case.body = case.body | {"model": MODELS.get(first, "gpt-4o-mini")}
        if label == "POST /v1/batches":
            case.body = {"input_file_id": IDS["input_file_id"], "endpoint": "/v1/chat/completions"}
        if label == "POST /v1/messages/batches":
            case.body = {"requests": [{"custom_id": "fuzz", "params": PROMPT | {"model": MODELS["messages"]}}]}
    # One that has no subscription yet.
    if label == "POST /v1/subscriptions" and isinstance(case.body, dict):
        case.body["connection_id"] = spare("connections") or case.body["connection_id"]


# The longest URL that the parser of HTTP reads. It answers a longer one itself, with a 400 without a body: 8,192
# characters of a parameter can be 98,304 bytes.
LONGEST_URL = 65_534


def is_of_parser(response):
    """Whether the parser of HTTP has answered."""
    is_empty = response.status_code == 400 and not response.content
    return is_empty and len(response.request.url) > LONGEST_URL


@schemathesis.hook
def filter_failure(context, failure, case, response):
    """Keeps what is no fault of ours out of the report."""
    name = type(failure).__name__
    if is_of_parser(response):
        return False
    # What is no key is taken for a forward token, and then it is the token that is wrong.
    if name == "IgnoredAuth":
        return "got `400" not in failure.message
    # An empty body counts as {}, which the document says by not requiring one.
    if name == "AcceptedNegativeData" and not response.request.body:
        return case.operation.definition.raw.get("requestBody", {}).get("required", True)
    return True


@schemathesis.check
def declared_errors(context, response, case):
    """What is refused is refused with one of the codes that are declared, if we refused it."""
    operation = DOCUMENT["paths"][case.operation.path][case.operation.method]
    declared = operation["responses"].get(str(response.status_code), {}).get("$ref")
    if declared is None or "x-service-request-id" in response.headers or is_of_parser(response):
        return
    codes = DOCUMENT["components"]["responses"][declared.rsplit("/", 1)[1]]["x-error-codes"]
    assert json.loads(response.content)["error"]["code"] in codes, response.content


@schemathesis.hook
def after_call(context, case, response):
    with open(os.environ["FUZZ_ANSWERS"], "a") as answers:
        print(case.operation.label, response.status_code, file=answers)
