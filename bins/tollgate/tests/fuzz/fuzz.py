"""Fuzzes every operation of the OpenAPI document against the running program.

Usage: fuzz.py SECONDS. The environment names the program (FUZZ_URL), the simulated provider
(FUZZ_SIMULATOR) and the operator's token (FUZZ_OPERATOR_TOKEN).
"""

import json
import os
import pathlib
import subprocess
import sys
import time
import urllib.request

from openapi_spec_validator import OpenAPIV31SpecValidator

HERE = pathlib.Path(__file__).parent
FOLDER = os.environ["FUZZ_FOLDER"]
ANSWERS = f"{FOLDER}/answers"
URL, SIMULATOR, OPERATOR = (
    os.environ[f"FUZZ_{name}"] for name in ("URL", "SIMULATOR", "OPERATOR_TOKEN")
)


# The form of a file of one line, around that line.
FORM = (
    '--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    '--x\r\nContent-Disposition: form-data; name="file"; filename="batch.jsonl"\r\n\r\n',
    "\r\n--x--\r\n",
)


def send(method, path, key, body=None, around=None):
    kind = "multipart/form-data; boundary=x" if around else "application/json"
    headers = {"Authorization": f"Bearer {key}", "Content-Type": kind}
    data = None if body is None else json.dumps(body).join(around or ("", "")).encode()
    request = urllib.request.Request(URL + path, data, headers, method=method)
    with urllib.request.urlopen(request) as response:
        return json.load(response)


def one_of_each(key):
    """Makes one of each resource; answers the ids by the names of their fields."""
    connection = send("POST", "/v1/connections", key, {"reference_id": "fuzz"})
    meter = send("POST", "/v1/meters", key, {
        "name": "Fuzz", "rate_type": "percentage", "tier_type": "tokens_1m",
        "tiers": [{"start": "0", "rate": "20"}],
    })
    config = send("POST", "/v1/subscription_configs", key, {
        "name": "Fuzz", "period_amount": "10", "billing_interval": "month",
        "product_ids": [meter["meter_id"]],
        "credit_bundles": [{"name": "More", "cost": "1", "credit_amount": "2"}],
    })
    subscription = send("POST", "/v1/subscriptions", key, {
        "connection_id": connection["connection_id"],
        "subscription_config_id": config["subscription_config_id"],
    })["subscription"]
    wallet = connection["wallet_id"]
    send("POST", f"/v1/wallets/{wallet}/credits", key, {"amount": "1000000"})
    spend_key = send("POST", "/v1/spend_keys", key, {
        "name": "Fuzz", "wallet_id": wallet, "meter_id": meter["meter_id"],
    })
    secret_key = send("POST", "/v1/secret_keys", key, {"name": "Fuzz"})
    webhook = send("POST", "/v1/webhooks", key, {"name": "Fuzz", "url": SIMULATOR + "/hook"})
    delivery = send("POST", f"/v1/webhooks/{webhook['webhook_id']}/test", key, {})
    send("POST", "/v1/requests", key, {
        "request_id": "fuzz", "connection_id": connection["connection_id"],
        "meter_slug": meter["meter_slug"], "input_tokens": 10,
    })
    request = send("GET", "/v1/requests/fuzz", key)
    response = send("POST", "/v1/responses", key, {
        "model": "gpt-4o-mini", "input": "Hello", "background": True,
    })
    job = send("GET", "/v1/jobs?limit=1", key)["data"][0]
    message = {"model": "claude-sonnet-4-5", "max_tokens": 9, "messages": [{"role": "user", "content": "Hello"}]}
    batch = send("POST", "/v1/messages/batches", key, {"requests": [{"custom_id": "fuzz", "params": message}]})
    line = {"custom_id": "fuzz", "method": "POST", "url": "/v1/chat/completions"}
    line["body"] = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "Hello"}]}
    file = send("POST", "/v1/files", key, line, FORM)
    new = {"input_file_id": file["id"], "endpoint": line["url"], "completion_window": "24h"}
    file_batch = send("POST", "/v1/batches", key, new)
    video = send("POST", "/v1/videos", key, {"model": "sora-2", "prompt": "A gate opens.", "seconds": "4"})
    conversation = send("POST", "/v1/conversations", key, {})["id"]
    item = {"items": [{"type": "message", "role": "user", "content": "Hello"}]}
    item = send("POST", f"/v1/conversations/{conversation}/items", key, item)["data"][0]["id"]
    question = {"contents": [{"role": "user", "parts": [{"text": "Hello"}]}]}
    question["generationConfig"] = {"maxOutputTokens": 9}
    gemini, veo = "/v1beta/models/gemini-2.5-flash", "/v1beta/models/veo-3.0-generate-001"
    google_batch = send("POST", f"{gemini}:batchGenerateContent", key, {
        "batch": {"inputConfig": {"requests": {"requests": [{"request": question}]}}},
    })
    operation = send("POST", f"{veo}:predictLongRunning", key, {
        "instances": [{"prompt": "A gate opens."}], "parameters": {"durationSeconds": 8},
    })
    while "done" not in (done := send("GET", f"/v1beta/{operation['name']}", key)):
        time.sleep(0.1)
    [sample] = done["response"]["generateVideoResponse"]["generatedSamples"]
    ids = {
        "connection_id": connection["connection_id"],
        "meter_id": meter["meter_id"],
        "meter_slug": meter["meter_slug"],
        "subscription_config_id": config["subscription_config_id"],
        "credit_bundle_id": config["credit_bundles"][0]["credit_bundle_id"],
        "subscription_id": subscription["subscription_id"],
        "wallet_id": wallet,
        "spend_key_id": spend_key["spend_key_id"],
        "secret_key_id": secret_key["secret_key_id"],
        "webhook_id": webhook["webhook_id"],
        "delivery_id": delivery["delivery_id"],
        "request_id": request["request_id"],
        "response_id": response["id"],
        "message_batch_id": batch["id"],
        "file_id": file["id"],
        "input_file_id": file["id"],
        "batch_id": file_batch["id"],
        "video_id": video["id"],
        "conversation_id": conversation,
        "item_id": item,
        "batch": google_batch["name"].split("/")[1],
        "operation": operation["name"].split("/")[-1],
        "file": sample["video"]["uri"].split("files/")[1].split(":")[0],
        "job_id": job["job_id"],
    }
    return ids, spend_key["key"]


def fuzz(name, seconds, ids, secret_key, operator_token, credential, *options):
    """One run; answers whether nothing was found."""
    print(f"== fuzzing with {name}", flush=True)
    environment = os.environ | {
        "SCHEMATHESIS_HOOKS": "hooks",
        "FUZZ_ANSWERS": ANSWERS,
        "PYTHONPATH": str(HERE),
        "FUZZ_IDS": json.dumps(ids),
        "FUZZ_SECRET_KEY": secret_key,
        "FUZZ_OPERATOR_TOKEN": operator_token,
        "FUZZ_CREDENTIAL": credential,
    }
    command = ["st", "--config-file", str(HERE / "schemathesis.toml"), "run", f"{URL}/openapi.json"]
    command += ["--max-time", str(seconds), *options, *sys.argv[2:]]
    command[0] = str(pathlib.Path(sys.executable).parent / "st")
    return subprocess.run(command, env=environment, cwd=FOLDER).returncode == 0


def succeeded():
    """The operations that were answered with success at least once, and all."""
    answers = [line.rsplit(" ", 1) for line in pathlib.Path(ANSWERS).read_text().splitlines()]
    return {name for name, status in answers if status < "300"}, {name for name, _ in answers}


def main():
    seconds = int(sys.argv[1])
    with urllib.request.urlopen(URL + "/openapi.json") as response:
        OpenAPIV31SpecValidator(json.load(response)).validate()
    merchant = send("POST", "/v1/operator/merchants", OPERATOR, {"name": "Fuzz"})
    secret_key = merchant["secret_key"]
    ids, spend_key = one_of_each(secret_key)
    short = max(seconds // 6, 1)
    # A fuzz that is always refused shows nothing. A slow machine needs longer until operations have succeeded.
    ok, enough = [], False
    for length in (1, 2, 4):
        longer = (seconds - 2 * short) * length
        ok.append(fuzz("a secret key", longer, ids, secret_key, OPERATOR, secret_key))
        good, asked = succeeded()
        print(f"== {len(good)} of {len(asked)} operations succeeded; not {sorted(asked - good)}", flush=True)
        enough = len(good) * 10 >= len(asked) * 7
        if enough:
            break
    ok.append(enough)
    ok += [
        # Neither opens any operation but those that it is for.
        fuzz("a spend key", short, ids, spend_key, spend_key, spend_key),
        fuzz("the operator's token", short, ids, OPERATOR, OPERATOR, OPERATOR),
    ]
    sys.exit(0 if all(ok) else 1)


main()
