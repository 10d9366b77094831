"""Makes one call of each operation and prints what was sent and what was answered, by operation.

record.py URL OPERATOR_TOKEN URL_OF_THE_SIMULATED_OPENAI
"""

import base64
import json
import re
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from datetime import datetime, timedelta, timezone

BASE, OPERATOR_TOKEN, PROVIDER = sys.argv[1:]
RECEIVER = f"{PROVIDER}/webhooks/tollgate"
with urllib.request.urlopen(BASE + "/openapi.json") as document:
    OPERATIONS = {
        operation["operationId"]: (method, path)
        for path, item in json.load(document)["paths"].items()
        for method, operation in item.items()
    }
# An uploaded file of one line.
FORM = (
    '--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    '--x\r\nContent-Disposition: form-data; name="file"; filename="batch.jsonl"\r\n\r\n{file}\r\n--x--\r\n'
)
HELLO = [{"role": "user", "content": "What does a tollgate do?"}]

examples = {}


class Caller:
    """Calls operations with a key."""

    def __init__(self, key):
        self.key = key

    def __call__(self, operation, body=None, /, **parameters):
        """What was sent and answered is kept, unless the operation has been called before."""
        method, path = OPERATIONS[operation]
        # Months are no pages.
        if operation.startswith("list") and operation != "listStatements":
            parameters["pageSize" if "Google" in operation else "limit"] = 2
        query = {name: value for name, value in parameters.items() if "{" + name + "}" not in path}
        encoded = "?" + urllib.parse.urlencode(query) if query else ""
        data = None if body is None else json.dumps(body).encode()
        kind = "application/json"
        if operation == "createFile":
            data, kind, body = FORM.format(file=json.dumps(body)).encode(), "multipart/form-data; boundary=x", None
        headers = {"Authorization": f"Bearer {self.key}", "Content-Type": kind}
        request = urllib.request.Request(BASE + path.format(**parameters) + encoded, data, headers, method=method.upper())
        try:
            with urllib.request.urlopen(request) as answer:
                status, answered = str(answer.status), json.load(answer)
        except urllib.error.HTTPError as refused:
            sys.exit(f"{operation}: {refused.read().decode()}")
        example = {"parameters": parameters, "request": body, "status": status, "answer": shortened(answered)}
        examples.setdefault(operation, {
            name: value for name, value in example.items() if value or name == "answer"
        })
        return answered


    def refused(self, operation, body):
        """Makes a call that must be refused."""
        method, path = OPERATIONS[operation]
        headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
        request = urllib.request.Request(BASE + path, json.dumps(body).encode(), headers, method=method.upper())
        try:
            urllib.request.urlopen(request)
        except urllib.error.HTTPError:
            return
        sys.exit(f"{operation} was not refused")


def shortened(value):
    """A vector of an embedding is shown by its first numbers."""
    match value:
        case dict():
            return {name: shortened(field) for name, field in value.items()}
        case [float(), *_]:
            return value[:3]
        case list():
            return [shortened(item) for item in value]
        case _:
            return value


operator = Caller(OPERATOR_TOKEN)
operator("getHealth")
operator("getReadiness")
merchant = operator("createMerchant", {"name": "My shop"})
operator("listMerchants")
call = Caller(merchant["secret_key"])

# Customers, and what their calls cost.
connection = call("createConnection", {
    "reference_id": "user-42", "name": "Ada", "email": "ada@example.com", "metadata": {"plan": "gold"},
})
connection_id, wallet_id = connection["connection_id"], connection["wallet_id"]
call("listConnections")
call("getConnection", id=connection_id)
call("updateConnection", {"name": "Ada L.", "metadata": {"plan": "silver"}}, id=connection_id)
meter_id = call("createMeter", {
    "name": "Standard", "meter_slug": "standard", "rate_type": "fixed", "tier_type": "tokens_1m",
    "tiers": [{"start": "0", "rate": "2"}, {"start": "10000000", "rate": "1.5"}],
})["meter_id"]
call("listMeters")
call("getMeter", id=meter_id)
call("updateMeter", {"tiers": [{"start": "0", "rate": "1.8"}]}, id=meter_id)

# Money.
call("creditWallet", {"amount": "25.00", "description": "Top-up"}, id=wallet_id)
call("debitWallet", {"amount": "5.00", "description": "Onboarding"}, id=wallet_id)
call("updateWallet", {"overdraft_limit": "1.00", "low_balance_threshold": "5.00"}, id=wallet_id)
call("getWallet", id=wallet_id)
call("getOwnWallet")

# Subscriptions.
config_id = call("createSubscriptionConfig", {
    "name": "Pro", "period_amount": "20.00", "billing_interval": "month", "included_credit": "25.00",
    "rollover_type": "none", "product_ids": [meter_id],
    "credit_bundles": [{"name": "Extra", "cost": "10.00", "credit_amount": "12.00"}],
})["subscription_config_id"]
call("listSubscriptionConfigs")
call("getSubscriptionConfig", id=config_id)
call("updateSubscriptionConfig", {"included_credit": "30.00"}, id=config_id)
bundle_id = call("listCreditBundles")["data"][0]["credit_bundle_id"]
call("getCreditBundle", id=bundle_id)
made = call("createSubscription", {"connection_id": connection_id, "subscription_config_id": config_id})
subscription_id = made["subscription"]["subscription_id"]
call("listSubscriptions")
call("getSubscription", id=subscription_id)
call("getSubscriptionOfConnection", id=connection_id)
call("buyCreditBundle", {"credit_bundle_id": bundle_id}, id=subscription_id)
other = call("createSubscriptionConfig", {"name": "Team", "period_amount": "80.00", "billing_interval": "month"})
call("changeSubscription", {"subscription_config_id": other["subscription_config_id"]}, id=subscription_id)

# Keys.
company = call("createBudget", {"name": "Company", "spend_limit": {"amount": "10000", "cycle": "monthly"}})
budget = call("createBudget", {"name": "Research", "parent_id": company["budget_id"], "alerts": [50, 100]})
budget_id = budget["budget_id"]
call("listBudgets")
call("updateBudget", {"spend_limit": {"amount": "4000", "cycle": "monthly"}, "time_zone": "Europe/Berlin"}, id=budget_id)
spend_key = call("createSpendKey", {
    "budget_id": budget_id,
    "name": "Team blue", "wallet_id": wallet_id, "meter_id": meter_id, "enforcement": "strict",
    "spend_limit": {"amount": "10.00", "cycle": "daily"}, "request_limit": {"count": 5000, "cycle": "daily"},
    "rate_limit": {"rpm": 60}, "allowed_models": ["gpt-4o-mini", "text-embedding-3-small"],
})
spend_key_id = spend_key["spend_key_id"]
call("listSpendKeys")
call("updateSpendKey", {"spend_limit": {"amount": "20.00", "cycle": "daily"}}, id=spend_key_id)
shape_b_key = call("createSpendKey", {"name": "Claude", "request_shape": "shape_b", "wallet_id": wallet_id})
secret_key = call("createSecretKey", {"name": "Backend"})
call("listSecretKeys")

# Webhooks.
webhook_id = call("createWebhook", {"name": "Billing", "url": RECEIVER})["webhook_id"]
call("listWebhooks")
call("getWebhook", id=webhook_id)
call("updateWebhook", {"events": ["wallet.balance_low", "wallet.balance_depleted"]}, id=webhook_id)
call("testWebhook", id=webhook_id)
deadline = time.monotonic() + 10
while (delivery := call("listDeliveries", id=webhook_id)["data"][0])["status"] != "delivered":
    if time.monotonic() > deadline:
        sys.exit(f"not delivered: {delivery}")
    del examples["listDeliveries"]
    time.sleep(0.05)
delivery_id = delivery["delivery_id"]
call("getDelivery", id=webhook_id, delivery_id=delivery_id)
call("redeliver", id=webhook_id, delivery_id=delivery_id)
call("rotateWebhook", id=webhook_id)

# Calls. The newest is the first of the list.
call("reportUsage", {
    "request_id": "job-2041", "connection_id": connection_id, "meter_slug": "standard",
    "provider": "openai", "model": "gpt-4o-mini", "input_tokens": 1200, "output_tokens": 300,
    "metadata": {"feature": "summaries"},
})
claude = Caller(shape_b_key["key"])
claude("createMessage", {"model": "claude-sonnet-5", "max_tokens": 200, "messages": HELLO})
claude("countTokens", {"model": "claude-sonnet-5", "messages": HELLO})
batch = {"requests": [
    {"custom_id": "first", "params": {"model": "claude-sonnet-5", "max_tokens": 200, "messages": HELLO}},
]}
batch_id = claude("createMessageBatch", batch)["id"]
claude("listMessageBatches")
claude("getMessageBatch", message_batch_id=batch_id)
claude("cancelMessageBatch", {}, message_batch_id=batch_id)
claude("getMessageBatchResults", message_batch_id=batch_id)
until = time.monotonic() + 20
while call("listJobs", kind="batch")["data"][0]["state"] == "running" and time.monotonic() < until:
    time.sleep(0.2)
claude("deleteMessageBatch", message_batch_id=batch_id)
gpt = Caller(spend_key["key"])
gpt("createEmbedding", {"model": "text-embedding-3-small", "input": "What does a tollgate do?"})
gpt("createResponse", {"model": "gpt-4o-mini", "max_output_tokens": 200, "input": "What does a tollgate do?"})
gpt("createChatCompletion", {"model": "gpt-4o-mini", "max_tokens": 200, "messages": HELLO},
    metadata='{"run":"report-1234"}')
question = {"model": "gpt-4o-mini", "max_tokens": 200, "messages": HELLO}
line = {"custom_id": "first", "method": "POST", "url": "/v1/chat/completions", "body": question}
file_id = gpt("createFile", line)["id"]
gpt("listFiles")
gpt("getFile", file_id=file_id)
gpt("getFileContent", file_id=file_id)
file_batch = {"input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
file_batch_id = gpt("createBatch", file_batch)["id"]
gpt("listBatches")
gpt("getBatch", batch_id=file_batch_id)
gpt("cancelBatch", {}, batch_id=file_batch_id)
gpt("deleteFile", file_id=file_id)
conversation_id = gpt("createConversation", {"metadata": {"topic": "gates"}})["id"]
gpt("getConversation", conversation_id=conversation_id)
gpt("updateConversation", {"metadata": {"topic": "tolls"}}, conversation_id=conversation_id)
said = {"items": [{"type": "message", "role": "user", "content": "What does a tollgate do?"}]}
item_id = gpt("addConversationItems", said, conversation_id=conversation_id)["data"][0]["id"]
gpt("listConversationItems", conversation_id=conversation_id)
gpt("getConversationItem", conversation_id=conversation_id, item_id=item_id)
gpt("deleteConversationItem", conversation_id=conversation_id, item_id=item_id)
gpt("deleteConversation", conversation_id=conversation_id)
film = Caller(call("createSpendKey", {"name": "Films", "wallet_id": wallet_id})["key"])
video_id = film("createVideo", {"model": "sora-2", "prompt": "A gate opens.", "seconds": "4", "size": "1280x720"})["id"]
film("listVideos")
until = time.monotonic() + 20
while film("getVideo", video_id=video_id)["status"] != "completed" and time.monotonic() < until:
    time.sleep(0.2)
film("deleteVideo", video_id=video_id)
gemini = Caller(call("createSpendKey", {"name": "Gemini", "wallet_id": wallet_id})["key"])
flash = {"model": "gemini-2.5-flash"}
asked = {
    "contents": [{"role": "user", "parts": [{"text": "What does a tollgate do?"}]}],
    "generationConfig": {"maxOutputTokens": 200},
}
gemini("googleCall", asked, call="generateContent", **flash)
several = {"batch": {"displayName": "questions", "inputConfig": {"requests": {"requests": [{"request": asked}]}}}}
google_batch = gemini("googleCall", several, call="batchGenerateContent", **flash)["name"].split("/")[1]
gemini("listGoogleBatches")
gemini("getGoogleBatch", batch=google_batch)
gemini("cancelGoogleBatch", {}, batch=google_batch)
until = time.monotonic() + 20
while call("listJobs", kind="batch")["data"][0]["state"] == "running" and time.monotonic() < until:
    time.sleep(0.2)
gemini("deleteGoogleBatch", batch=google_batch)
scene = {"instances": [{"prompt": "A gate opens."}], "parameters": {"durationSeconds": 8, "sampleCount": 1}}
veo = {"model": "veo-3.0-generate-001"}
operation = gemini("googleCall", scene, call="predictLongRunning", **veo)["name"].split("/")[-1]
until = time.monotonic() + 20
while "done" not in gemini("getGoogleOperation", operation=operation, **veo) and time.monotonic() < until:
    time.sleep(0.2)
gpt("callProvider", {"model": "gpt-4o-mini", "max_tokens": 200, "messages": HELLO}, provider="openai",
    path="chat/completions")
gpt("getOfProvider", provider="openai", path="models")
token = {"secret_key": merchant["secret_key"], "connection_id": connection_id, "meter_slug": "standard"}
forwarding = Caller(base64.b64encode(json.dumps(token).encode()).decode())
later = {"model": "gpt-4o-mini", "max_output_tokens": 2000, "input": "Write a report.", "background": True}
def response():
    return gpt("createResponse", later)["id"]
response_id = response()
job_id = call("listJobs")["data"][0]["job_id"]
call("getJob", id=job_id)
call("refreshJob", {}, id=job_id)
gpt("getResponse", response_id=response_id)
gpt("listInputItems", response_id=response_id)
gpt("cancelResponse", {}, response_id=response_id)
gpt("deleteResponse", response_id=response_id)
response_id = response()
gpt("cancelResponse", {}, response_id=response_id)
gpt("deleteAtProvider", provider="openai", path=f"responses/{response_id}")
response_id = response()
gpt("cancelResponse", {}, response_id=response_id)
gpt("forwardDelete", u=f"{PROVIDER}/v1/responses/{response_id}")
forwarding("forwardGet", u=f"{PROVIDER}/v1/models")
forwarding("forward", {"model": "gpt-4o-mini", "messages": HELLO}, u=f"{PROVIDER}/v1/chat/completions",
           metadata='{"feature":"chat"}')
call("updateSpendKey", {"status": "paused"}, id=spend_key_id)
gpt.refused("createChatCompletion", {"model": "gpt-4o-mini", "max_tokens": 200, "messages": HELLO})
call("updateSpendKey", {"status": "active"}, id=spend_key_id)
refusal_id = call("listRefusals")["data"][0]["refusal_id"]
call("getRefusal", id=refusal_id)
call("getSpendKey", id=spend_key_id)
call("listRuns", spend_key_id=spend_key_id)
call("getBudget", id=budget_id)
call("getBudgetTree", id=company["budget_id"])
call("listModels")
call("getModel", id="gpt-4o-mini")
call("listPrices", provider="openai", model="gpt-4o-mini")
call("quote", {
    "provider": "openai", "model": "gpt-4o-mini", "usage": {"input_tokens": 1200, "output_tokens": 300},
    "connection_id": connection_id, "meter_id": meter_id,
})
request_id = call("listRequests")["data"][0]["request_id"]
call("getRequest", id=request_id)
end = datetime.now(timezone.utc).replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
call("getUsage", start=f"{end - timedelta(days=1):%FT%TZ}", end=f"{end:%FT%TZ}")
call("listTransactions", id=wallet_id)
month = call("listStatements", id=connection_id)["data"][0]["month"]
call("getStatement", id=connection_id, month=month)

# What ends.
call("cancelSubscription", id=subscription_id)
call("rotateSpendKey", id=spend_key_id)
call("deleteSpendKey", id=spend_key_id)
call("deleteBudget", id=budget_id)
call("deleteSecretKey", id=secret_key["secret_key_id"])
call("deleteWebhook", id=webhook_id)
unsold = call("createMeter", {
    "name": "Unsold", "rate_type": "percentage", "tier_type": "tokens_1m", "tiers": [{"start": "0", "rate": "20"}],
})
call("deleteMeter", id=unsold["meter_id"])
call("deleteSubscriptionConfig", id=config_id)
call("deleteConnection", id=connection_id)

printed = json.dumps(dict(sorted(examples.items())), indent=1, ensure_ascii=False)
# What was simulated, as it is called in earnest.
for simulated, earnest in [
    (RECEIVER, "https://example.com/webhooks/tollgate"),
    (PROVIDER, "https://api.openai.com"),
    (r"http://127\.0\.0\.1:\d+", "https://api.anthropic.com"),
]:
    printed = re.sub(simulated, earnest, printed)
print(printed)
