"""What the runner must know of the documents' blocks that does not stand in them.

A row of a table is for the one block of a document that has a piece of text. A row that no block fits, or more
than one, is an error, and so is a block that neither runs nor stands in NOT_RUN or HELD.
"""

import os

# Pages whose blocks run in one session, in this order, as a reader goes from one to the next. Another page has a
# session of its own. A row below names a page or a session.
SESSIONS = {
    "api": [
        f"docs/api/{page}.md"
        for page in (
            *("index", "conventions", "forward", "forwarded-bodies", "drop-in-routes", "cost-in-answers", "models", "prices"),
            *("spend-keys", "budgets", "runs", "meters", "requests", "quotes", "usage", "refusals", "connections", "statements", "subscription-configs"),
            *("credit-bundles", "subscriptions", "wallets", "secret-keys", "webhooks", "merchants", "openapi"),
        )
    ],
    "calling": [f"docs/guides/{page}.md" for page in ("first-call", "sdks", "handle-refusals", "know-the-cost")],
    "pricing": [
        f"docs/features/{page}.md"
        for page in ("pricing", "base-cost", "price-lookup", "price-catalogue", "fees", "who-pays", "estimates")
    ],
    "spending": [
        f"docs/features/{page}.md"
        for page in ("holds", "enforcement", "outside-the-guarantee", "refusals", "spend-limits", "budgets")
    ],
    "webhooks": [
        f"docs/features/{page}.md"
        for page in ("webhooks", "webhook-events", "webhook-management", "webhook-delivery", "webhook-testing")
    ],
    "operate": [
        "docs/get-started/install.md",
        *(
            f"docs/operate/{page}.md"
            for page in (
                *("commands", "configuration", "configure-providers", "repricing", "metrics", "databases"),
                *("postgresql", "capacity", "run", "logs"),
            )
        ),
    ],
    "benchmarks": [
        f"docs/internals/{page}.md"
        for page in ("benchmarks", "benchmarks-growth", "benchmarks-lists", "benchmarks-path")
    ],
}


def belongs(page, name):
    """Whether a row for this page or session is for a block of this page."""
    return name in ("*", page) or page in SESSIONS.get(name, ())


# What a block says, and what runs in its place: (document, language, old, new).
SUBSTITUTIONS = [
    # Built already, and linked to where it would be.
    ("docs/get-started/quickstart.md", "sh", "cargo build --release", ":"),
    ("operate", "sh", "cargo build --profile dist", ":"),
    ("*", "sh", "cargo run --release -- demo", "tollgate demo --listen 127.0.0.1:{DEMO_PORT}"),
    # The simulator that runs already.
    ("docs/get-started/quickstart.md", "sh", "tollgate simulator &", ""),
    ("docs/get-started/quickstart.md", "sh", "http://127.0.0.1:9100/v1", "{OPENAI}"),
    # The guides begin with an address and a key.
    ("*", "sh", "BASE=http://127.0.0.1:8080 KEY=tgs_…", "BASE={BASE} KEY={FRESH_KEY}"),
    ("calling", "sh", "export BASE=http://127.0.0.1:8080 SPEND_KEY=tgk_…", ":"),
    ("calling", "sh", "BASE=https://tollgate.example.com KEY=tgs_…", "BASE={BASE} KEY={FRESH_KEY}"),
    ("*", "sh", "URL=http://127.0.0.1:9100/v1", "URL={OPENAI}"),
    ("api", "sh", "https://api.openai.com/v1", "{OPENAI}"),
    # No fixed ports.
    ("docs/get-started/quickstart.md", "sh", '"sqlite:tollgate.db"', '"sqlite:tollgate.db"\nlisten = "127.0.0.1:{PORT}"'),
    # Keys that were left out.
    ("spending", "sh", "KEY=tgs_…", "KEY=$DEMO_KEY"),
    ("api", "python", '"http://127.0.0.1:8080/v1", api_key="tgk_…"', '"{BASE}/v1", api_key="{SPEND_KEY}"'),
    ("api", "python", '"http://127.0.0.1:8080", api_key="tgk_…"', '"{BASE}", api_key="{SPEND_KEY}"'),
    (
        "docs/guides/batches.md", "python",
        '"http://127.0.0.1:8080", api_key="tgk_…"', '"{BASE}", api_key="{SPEND_KEY}"',
    ),
    (
        "docs/guides/batches.md", "python",
        '"http://127.0.0.1:8080/v1", api_key="tgk_…"', '"{BASE}/v1", api_key="{SPEND_KEY}"',
    ),
    ("docs/guides/batches.md", "python", 'api_key="tgk_…", http_options', 'api_key="{SPEND_KEY}", http_options'),
    ("docs/guides/batches.md", "python", '"base_url": "http://127.0.0.1:8080"', '"base_url": "{BASE}"'),
    ("*", "*", "http://127.0.0.1:8080", "http://127.0.0.1:{PORT}"),
    ("docs/features/providers/index.md", "toml", '"…"', '"simulated"'),
    ("pricing", "sh", "=sk-…", "=sk-simulated"),
    ("operate", "toml", "sk-…", "sk-simulated"),
    # A receiver here, and what listens where.
    ("webhooks", "sh", "https://example.com/webhooks/tollgate", "http://127.0.0.1:{RECEIVER_PORT}/"),
    ("webhooks", "sh", "http://127.0.0.1:4000/", "http://127.0.0.1:{RECEIVER_PORT}/"),
    ("webhooks", "python", '("127.0.0.1", 4000)', '("127.0.0.1", {RECEIVER_PORT})'),
    ("webhooks", "js", ".listen(4000,", ".listen({RECEIVER_PORT},"),
    ("webhooks", "sh", "tollgate serve", "TOLLGATE_LISTEN=127.0.0.1:{PORT} tollgate serve"),
    # Benchmarks for a moment, of the program that the tests have built.
    ("benchmarks", "sh", "cargo run --profile dist -p tollgate-bench --", "moment"),
    ("benchmarks", "sh", "just bench-proxy", 'moment proxy --only "calls, 1 at"'),
    ("benchmarks", "sh", "just bench-growth", 'moment bodies keys records refusals --only "1 KB" --records 1000'),
    ("benchmarks", "sh", "just bench-nodes", "moment nodes --database postgres"),
    ("benchmarks", "sh", "just bench-sockets", "moment sockets"),
    ("benchmarks", "sh", " --seconds 2 --rounds 3", ""),
    ("benchmarks", "sh", " --seconds 4 --rounds 7", ""),
    ("api", "sh", "pipx run ", "generator/bin/"),
    # What is filled in, and a system in a folder.
    ("operate", "sh", "# and fill it in", "&& sed -i 's/^POSTGRES_PASSWORD=/&secret/' .env"),
    ("operate", "sh", "$(git rev", "$(git -C {REPOSITORY} rev"),
    ("operate", "sh", " /usr/local/bin/", " system/usr/local/bin/"),
    ("operate", "sh", " /etc/", " system/etc/"),
    ("docs/guides/move-from-litellm.md", "text", "mch_…", "$MERCHANT"),
    # Cells in files.
    ("docs/operate/cells.md", "sh", "/etc/tollgate/", ""),
    ("docs/operate/cells.md", "sh", "mch_…", "$MERCHANT"),
    ("docs/operate/cells.md", "sh", "postgres://tollgate@db7.internal/tollgate", "sqlite:seven.db"),
    ("docs/operate/cells.md", "sh", "nginx -s reload", "grep -q tollgate_7 cells.conf"),
    # Days that pass.
    ("operate", "text", "--from 2026-11-21", "--from {TODAY}"),
    ("operate", "text", "--to 2026-11-21", "--to {TODAY}"),
    ("api", "sh", "2027-01-01T00:00:00Z", "{NEXT_YEAR}-01-01T00:00:00Z"),
    ("api", "sh", "start=2026-11-20T", "start={TODAY}T"),
]

# What a reader has who begins with a service that runs.
GIVEN = {
    "api": [
        *("BASE", "KEY", "TOKEN", "CONNECTION", "WALLET", "METER"),
        *("SPEND_KEY", "SPEND_KEY_ID"),
    ],
    "docs/api/errors.md": ["BASE", "KEY"],
    "docs/features/subscriptions.md": ["BASE", "KEY", "CONNECTION", "METER"],
    "docs/features/jobs.md": ["BASE", "SPEND_KEY"],
    "docs/features/files.md": ["BASE", "SPEND_KEY"],
    "docs/features/sockets.md": ["BASE", "SPEND_KEY"],
    "docs/features/conversations.md": ["BASE", "SPEND_KEY"],
    "docs/guides/batches.md": ["BASE", "KEY", "SPEND_KEY"],
    "docs/features/runs.md": ["BASE", "SPEND_KEY"],
    "webhooks": ["BASE", "KEY"],
}

# What a reader does before a block, in its shell. $ANSWER is what the block before has printed.
BEFORE = {
    ("api", "pipx run"): """
        python3 -m venv generator
        generator/bin/pip install --quiet --disable-pip-version-check openapi-python-client==0.28.0
    """,
    ("benchmarks", "just bench-proxy\n"): """
        moment() {
            tollgate-bench "$@" --seconds 1 --rounds 1 >figures.txt 2>log.txt || { tail log.txt >&2; return 1; }
            grep -q 'records lost: 0' figures.txt
        }
    """,
    ("operate", "docker compose up"): """
        mkdir docker
        export ROOT=$PWD/docker PORT={DEMO_PORT} DATABASE_PORT={DATABASE_PORT}
        ln -s {REPOSITORY}/compose.yaml {REPOSITORY}/Dockerfile {REPOSITORY}/.env.example .
    """,
    ("operate", "systemctl enable"): """
        export ROOT=$PWD/system
        mkdir -p $ROOT/usr/local/bin $ROOT/etc/systemd/system
        ln -s {REPOSITORY}/packaging .
        cat >tollgate.toml <<END
listen = "127.0.0.1:{RECEIVER_PORT}"
database_url = "sqlite:$ROOT/var/lib/tollgate/tollgate.db"
END
    """,
    ("api", "/v1/runs?limit=1"): """
        curl -s "$BASE/v1/chat/completions" -H "Authorization: Bearer $SPEND_KEY" -H "Content-Type: application/json" \
            -H "x-service-run: report-1234" -H "x-service-run-limit: 2.50" \
            -d '{"model": "gpt-4o-mini", "max_tokens": 9, "messages": [{"role": "user", "content": "Hello!"}]}'
    """,
    ("api", "subscription_configs/$CONFIG"): """
        CONFIG=$(grep -om1 'sbc_[0-9A-Z]*' <<<"$ANSWER")
    """,
    # Keys that are refused, and a service that is not there: what follows is run with each.
    ("calling", "except (openai.APIStatusError, anthropic.APIStatusError)"): """
        refused() {
            post spend_keys '{"name": "Refused", "wallet_id": "'$WALLET'", '"$1"'}' |
                grep -o 'tgk_[0-9A-Za-z]\\{38\\}'
        }
        export USED=$(refused '"request_limit": {"count": 1, "cycle": "daily"}')
        export POOR=$(refused '"enforcement": "strict", "spend_limit": {"amount": "0.00001", "cycle": "total"}')
        export PAUSED=$(refused '"status": "paused"')
        curl -s "$BASE/v1/chat/completions" -H "Authorization: Bearer $USED" \
            -H "Content-Type: application/json" -d '{"model": "gpt-4o-mini", "messages": []}'
        tollgate simulator --listen 127.0.0.1:{PORT} --set status=503 --set retry-after=1 >simulator.txt &
        until grep -q http simulator.txt; do sleep 0.05; done
    """,
    ("docs/guides/move-from-litellm.md", "$ tollgate import litellm"): """
        export TOLLGATE_DATABASE_URL=sqlite:tollgate.db
        MERCHANT=$(tollgate merchant create Acme --json | grep -o 'mch_[0-9A-Z]*')
        cp {REPOSITORY}/crates/litellm-import/tests/data/*.json .
    """,
    ("docs/operate/price-updates.md", "openssl genpkey"): """
        export TOLLGATE_DATABASE_URL=sqlite:tollgate.db
        tollgate migrate
    """,
    ("docs/operate/price-updates.md", "-rawin"): """
        export TOLLGATE_PRICES_PUBLIC_KEY=$(openssl pkey -in prices.key -pubout | sed -n 2p)
        echo '{"released": "2026-11-27", "rows":
            [{"provider": "openai", "models": ["m-next"], "prices": {"input": "3", "output": "12"}}]}' >prices.json
    """,
    ("docs/operate/cells.md", "tollgate merchant create"): """
        printf 'database_url = "sqlite:seven.db"\ncell = 7\n' >cell-7.toml
    """,
    ("docs/operate/cells.md", "tollgate merchant move"): """
        export TOLLGATE_DATABASE_URL=sqlite:zero.db
        MERCHANT=$(tollgate merchant create Acme --json | grep -o 'mch_[0-9A-Z]*')
    """,
    ("docs/operate/archive.md", "tollgate archive run"): """
        export TOLLGATE_DATABASE_URL=sqlite:tollgate.db TOLLGATE_ARCHIVE_URL=file://$PWD/archive
        export TOLLGATE_RECORDS_KEEP_DAYS=90
        tollgate migrate
    """,
    ("docs/internals/recovery.md", "$ tollgate audit"): """
        export TOLLGATE_DATABASE_URL=sqlite:tollgate.db
        tollgate merchant create Acme
    """,
    ("operate", 'tls_certificate = "tollgate.pem"'): """
        openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=tollgate -days 1 \
            -keyout tollgate-key.pem -out tollgate.pem
    """,
    # A service whose price for `m-1` was wrong: four calls, and then the right one.
    ("operate", "$ tollgate reprice"): """
        export TOLLGATE_CONFIG=$PWD/tollgate.toml BASE=http://127.0.0.1:{PORT}
        cat >tollgate.toml <<'END'
listen = "127.0.0.1:{PORT}"
database_url = "sqlite:tollgate.db"
service_charge_rate = "0.05"
[providers.house]
base_url = "{OPENAI}"
dialect = "openai"
allow_private_network = true
[[prices]]
provider = "house"
model = "m-1"
input = "0.15"
output = "0.60"
[[prices]]
provider = "house"
model = "gpt-4o-mini"
input = "0.15"
output = "0.60"
END
        KEY=$(tollgate merchant create Acme --json | grep -o 'tgs_[0-9A-Za-z]*')
        serve() {
            tollgate serve 2>serve.log &
            SERVE=$!
            until curl -sf "$BASE/readyz" >ready; do sleep 0.05; done
        }
        serve
        CONNECTION=$(api POST connections '{}' | grep -o 'con_[0-9A-Z]*')
        api POST meters '{"name": "Standard", "meter_slug": "standard", "rate_type": "percentage",
            "tier_type": "tokens_1m", "tiers": [{"start": "0", "rate": "20"}]}'
        api POST "wallets/$(api GET "connections/$CONNECTION" | grep -o 'wal_[0-9A-Z]*')/credits" '{"amount": "1"}'
        TOKEN=$(printf '{"secret_key":"%s","connection_id":"%s","meter_slug":"standard"}' \
            "$KEY" "$CONNECTION" | base64 | tr -d '\\n')
        for _ in 1 2 3 4; do
            curl -s "$BASE/v1/chat/completions" -H "Authorization: Bearer $TOKEN" \
                -H "Content-Type: application/json" -d '{"model": "m-1", "messages": []}'
        done
        # What was booked is seen by a command a moment later.
        until tollgate audit | grep -q ' 4 requests (0 pending)'; do sleep 0.05; done
        sed -i '0,/0.60/s//0.80/' tollgate.toml
    """,
    ("pricing", "tollgate prices import"): """
        cat >prices.json <<'END'
{"rows": [
  {"provider": "openai", "models": ["m"], "source": "litellm", "prices": {"input": "2", "output": "8"}},
  {"provider": "openai", "models": ["m-old"], "source": "litellm", "prices": {"input": "1", "output": "2"}}]}
END
        cat >model_prices.json <<'END'
{"m": {"litellm_provider": "openai", "mode": "chat", "input_cost_per_token": 2e-5, "output_cost_per_token": 8e-6},
 "m-next": {"litellm_provider": "openai", "mode": "chat", "input_cost_per_token": 3e-6,
            "output_cost_per_token": 1.2e-5}}
END
    """,
    # The key that the demo prints.
    ("spending", "KEY=tgs_…"): """
        tollgate demo --listen 127.0.0.1:{PORT} >demo.txt 2>&1 &
        until grep -q 'seq 200' demo.txt; do
            kill -0 $! || { cat demo.txt; false; }
            sleep 0.05
        done
        DEMO_KEY=$(grep -om1 'tgs_[0-9A-Za-z]*' demo.txt)
    """,
    ("webhooks", "deliveries/$DELIVERY/redeliver"): """
        DELIVERY=$(api GET "webhooks/$WEBHOOK/deliveries?limit=1" | grep -o 'dlv_[0-9A-Z]*')
    """,
}

# What a block shows the answer to that is not the one right behind a command: what asks for it.
ANSWERS = {
    # The forward.
    ("api", '"message":"The body to be forwarded is not valid."'): """
        curl -s "$BASE/v1/forward?u={OPENAI}/responses" -H "Authorization: Bearer $TOKEN" \
            -H "Content-Type: application/json" -d '{"model": "gpt-4o-mini", "container": "cntr_1",
                "input": "Hello", "tools": [{"type": "file_search", "vector_store_ids": ["vs_1"]}]}'
    """,
    ("api", "0.00061455 USD are held by calls in flight"): """
        POOR=$(api POST connections '{}' | grep -o 'wal_[0-9A-Z]*')
        api POST "wallets/$POOR/credits" '{"amount": "0.0005"}' >credited
        POOR_KEY=$(api POST spend_keys '{"name": "Poor", "wallet_id": "'$POOR'"}' | grep -o 'tgk_[0-9A-Za-z]\\{38\\}')
        BODY='{"model": "gpt-4o-mini", "max_tokens": 1000, "messages": [{"role": "user", "content": "Hello!"}]}'
        ask() {
            curl -si "$BASE/v1/forward?u={OPENAI}/chat/completions" -H "Authorization: Bearer $POOR_KEY" \
                -H "Content-Type: application/json" -d "$BODY" "$@"
        }
        ask -H "x-simulate-first-byte-delay-ms: 3000" >first &
        until api GET "wallets/$POOR" | grep -q '"held":"0.0006145500"'; do sleep 0.01; done
        ask
        wait $!
    """,
    ("api", '"message":"No configured provider serves this model'): """
        curl -s "$BASE/v1/chat/completions" -H "Authorization: Bearer $SPEND_KEY" -H "Content-Type: application/json" \
            -d '{"model": "unheard-of", "messages": []}'
    """,
    ("api", '{"type":"error","error":{"message":"The credential is not valid'): """
        curl -s "$BASE/v1/messages" -H "x-api-key: tgk_wrong" -H "Content-Type: application/json" \
            -d '{"model": "claude-sonnet-4-5", "max_tokens": 16, "messages": []}'
    """,
    # Spend keys, meters, records.
    ("api", '"total_requests": 1,\n  "last_used_at"'): 'api GET "spend_keys/$SPEND_KEY_ID"',
    ("api", '"must have at least 1 element; null allows all"'): """
        api PUT "spend_keys/$SPEND_KEY_ID" '{"name": null, "allowed_providers": [], "rate_limit": {"rpm": 0},
            "spend_limit": {"amount": "1", "cycle": "yearly"}}'
    """,
    ("api", '{"id": "mtr_01M7YS5040NCSYBM5NZVE98902", "deleted": true}'): """
        api DELETE "meters/$(api GET 'meters?limit=1' | grep -o 'mtr_[0-9A-Z]*')"
    """,
    ("api", '"provider_key_type": "managed",\n  "provider_status": 200'): """
        MADE=$(curl -si "$BASE/v1/forward?u={OPENAI}/chat/completions" -H "Authorization: Bearer $TOKEN" \
            -H "Content-Type: application/json" -H 'x-service-metadata: {"user": "ada"}' \
            -d '{"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "Count to five."}]}')
        api GET "requests/$(grep -i '^x-service-request-id' <<<"$MADE" | grep -o 'req_[0-9A-Z]*')"
    """,
    ("api", '"refusal_id": "rfs_01KAWZ5Q4YB3CE8T7QW8ZK4M2R"'): """
        LIMITED=$(api POST spend_keys '{"name": "Limited", "wallet_id": "'$WALLET'",
            "spend_limit": {"amount": "0.000001", "cycle": "daily"}}' | grep -o 'tgk_[0-9A-Za-z]\\{38\\}')
        for _ in 1 2; do
            REFUSAL=$(curl -si "$BASE/v1/chat/completions" -H "Authorization: Bearer $LIMITED" \
                -H 'x-service-metadata: {"user": "ada"}' -H "Content-Type: application/json" \
                -d '{"model": "gpt-4o-mini", "messages": []}' |
                grep -i '^x-service-refusal-id' | grep -o 'rfs_[0-9A-Z]*' || true)
        done
        until api GET "refusals/$REFUSAL" | grep '"resets_at"'; do sleep 0.1; done
        : >.session/statuses
    """,
    # Connections, subscriptions, wallets.
    ("api", '"email": "ada@example.com"'): """
        api POST connections '{"reference_id": "user-42", "name": "Ada", "email": "ada@example.com",
            "metadata": {"team": "blue"}}'
    """,
    ("api", '"subscription_config_id": "sbc_01MDNJZY08NTDSRN96GJVNB21M",\n  "name": "Ten more"'): """
        api GET "credit_bundles/$(api GET 'credit_bundles?limit=1' | grep -o 'cbn_[0-9A-Z]*')"
    """,
    ("api", '"started_at": "2027-01-31T10:00:03.542639Z"'): """
        api POST subscriptions '{"connection_id": "'$CONNECTION'", "subscription_config_id": "'$CONFIG'"}'
    """,
    ("api", '"type": "downgrade"'): """
        BASIC=$(api POST subscription_configs '{"name": "Basic", "period_amount": "10", "included_credit": "8",
            "billing_interval": "month"}' | grep -o 'sbc_[0-9A-Z]*')
        SUBSCRIPTION=$(api GET "connections/$CONNECTION/subscription" | grep -o 'sub_[0-9A-Z]*')
        api POST "subscriptions/$SUBSCRIPTION/change" '{"subscription_config_id": "'$BASIC'"}' |
            grep -o '"pending_change":{[^}]*}' | sed 's/.*/{&}/'
    """,
    ("api", '"credit_lost"'): """
        DEARER=$(api POST subscription_configs '{"name": "Large", "period_amount": "99", "included_credit": "9",
            "billing_interval": "month"}' | grep -o 'sbc_[0-9A-Z]*')
        SUBSCRIPTION=$(api GET "connections/$CONNECTION/subscription" | grep -o 'sub_[0-9A-Z]*')
        api POST "subscriptions/$SUBSCRIPTION/change" '{"subscription_config_id": "'$DEARER'", "preview": true}'
    """,
    ("api", '{"data": [{"month": "2026-11"}]}'): """
        MADE=$(api POST connections '{"name": "Statement"}')
        BILLED=$(grep -o 'con_[0-9A-Z]*' <<<"$MADE") BILLED_WALLET=$(grep -o 'wal_[0-9A-Z]*' <<<"$MADE")
        api POST "wallets/$BILLED_WALLET/credits" '{"amount": "12"}' >credited
        BILLED_PLAN=$(api POST subscription_configs '{"name": "Pro", "period_amount": "25",
            "billing_interval": "month"}' | grep -o 'sbc_[0-9A-Z]*')
        api POST subscriptions '{"connection_id": "'$BILLED'", "subscription_config_id": "'$BILLED_PLAN'"}' >subscribed
        SLUG=$(api GET "meters/$METER" | grep -o '"meter_slug":"[^"]*' | cut -d'"' -f4)
        api POST requests '{"request_id": "statement-1", "connection_id": "'$BILLED'", "meter_slug": "'$SLUG'", "provider": "openai",
            "model": "gpt-4o-mini", "input_tokens": 10, "output_tokens": 5}' >reported
        api GET "connections/$BILLED/statements"
    """,
    ("api", '"opening_balance": "12.0000000000"'): """
        MONTH=$(date -u +%Y-%m)
        api GET "connections/$BILLED/statements/$MONTH?time_zone=Europe/Berlin"
    """,
    ("api", '"overdraft_limit": "5.0000000000",'): """
        api PATCH "wallets/$WALLET" '{"overdraft_limit": "5", "low_balance_threshold": "1.5"}'
    """,
    ("api", '"description": "Top-up"'): """
        api POST "wallets/$WALLET/credits" '{"amount": "25", "description": "Top-up"}'
    """,
    # A call that takes all the credit there is, and more.
    ("api", '{"account": "balance", "kind": "usage"'): """
        api POST requests '{"request_id": "job-2", "connection_id": "'$CONNECTION'", "meter_slug": "standard",
            "input_tokens": 10000000}' >large
        api GET "wallets/$WALLET/transactions?limit=2" | sed 's/^{"data"://; s/,"has_more".*//'
    """,
    ("api", '"secret_key_id"'): """api POST secret_keys '{"name": "ci"}'""",
    # Webhooks, the operator.
    ("api", '"webhook_secret"'): """
        api POST webhooks '{"name": "Billing", "url": "{SIMULATOR}/webhooks/billing"}'
    """,
    ("api", '"delivery_id"'): """
        WEBHOOK=$(api GET "webhooks" | grep -o 'whk_[0-9A-Z]*')
        api POST connections '{}' >connection
        until api GET "webhooks/$WEBHOOK/deliveries" | grep -q '"status":"delivered"'; do sleep 0.05; done
        api GET "webhooks/$WEBHOOK/deliveries/$(api GET "webhooks/$WEBHOOK/deliveries?status=delivered&limit=1" |
            grep -o 'dlv_[0-9A-Z]*')"
    """,
    ("api", '"name": "Globex"'): """
        curl -s "$BASE/v1/operator/merchants" -H "Authorization: Bearer operator" \
            -H "Content-Type: application/json" -d '{"name": "Globex"}'
    """,
    ("docs/api/errors.md", '"must be greater than the start of the tier before"'): """
        api POST meters '{"name": "Standard", "rate_type": "fixed", "tier_type": "tokens_1m",
            "tiers": [{"start": "5", "rate": "1"}, {"start": "5", "rate": "2"}]}'
    """,
    ("operate", "another tollgate serves"): "tollgate serve 2>&1 || true",
    ("operate", "1 lost calls ended"): """
        api GET requests >before
        curl -s "$BASE/v1/chat/completions" -H "Authorization: Bearer $TOKEN" -H "Content-Type: application/json" \
            -H "x-simulate-first-byte-delay-ms: 60000" -d '{"model": "m-1", "messages": []}' 2>/dev/null &
        until api GET requests | grep -q '"status":"pending"'; do sleep 0.05; done
        kill -9 $SERVE
        wait $! || true
        : >.session/statuses
        serve
        cat serve.log
    """,
    ("operate", "method=POST path=/v1/forward status=200"): """
        kill $SERVE
        wait $SERVE
        sed -i 's/^listen/access_log = true\\n&/; s/house/openai/' tollgate.toml
        serve
        curl -s "$BASE/v1/forward?u={OPENAI}/chat/completions" -H "Authorization: Bearer $KEY" \
            -H "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01" \
            -H "x-simulate-input-tokens: 812" -H "x-simulate-output-tokens: 96" \
            -H "Content-Type: application/json" -d '{"model": "gpt-4o-mini", "messages": []}' >answer
        until grep -q path=/v1/forward serve.log; do sleep 0.05; done
        cat serve.log
    """,
    ("spending", "0.00061455 USD are held by calls in flight"): """
        TINY=$(api POST spend_keys '{"name": "Tiny", "spend_limit": {"amount": "0.000001", "cycle": "daily"}}' |
            grep -o 'tgk_[0-9A-Za-z]\\{38\\}')
        ask() {
            curl -si "$BASE/v1/chat/completions" -H "Authorization: Bearer $TINY" \
                -H "Content-Type: application/json" -d "$BODY" "$@"
        }
        ask -H "x-simulate-first-byte-delay-ms: 3000" >first &
        FIRST=$!
        until api GET "spend_keys?limit=1" | grep -q '"current_requests":1'; do sleep 0.01; done
        ask
    """,
    ("spending", "0.00000975 USD are spent"): "wait $FIRST; ask",
    # The line that the demo prints.
    ("spending", "190 402"): """eval "$(grep -m1 'seq 200' <<<"$ANSWER")" """,
    ("webhooks", '"type": "webhook.test",\n      "sequence": 1,'): """
        until api GET "webhooks/$WEBHOOK/deliveries?limit=1" | grep '"status":"delivered"'; do sleep 0.05; done
    """,
}

# Parts of JSON that are read from a file: what stands around them, and what reads the file `part.json`.
CATALOGUE = """
    echo 'catalog = "part.json"' >catalogue.toml
    tollgate config check --config catalogue.toml
"""
PARTS = {
    ("pricing", '"hours": {"from": "01:00"'): ('{"rows": [%s]}', CATALOGUE),
    ("pricing", '"tiers": {"flex"'): (
        '{"rows": [{"provider": "house", "models": ["m"], "prices": {"input": "2", "output": "8"}, %s}]}',
        CATALOGUE,
    ),
    ("pricing", '"source": "a contract"'): ('{"rows": [%s]}', CATALOGUE),
    ("docs/operate/price-updates.md", '"released"'): ("%s", CATALOGUE),
}

# What does not end but serves, and what waits until it does.
DEMO = "until grep -q 'seq 200' .session/server.out; do sleep 0.05; done"
RECEIVER = """
    until (: </dev/tcp/127.0.0.1/{RECEIVER_PORT}) 2>/dev/null; do sleep 0.05; done
    DELIVERY=$(api POST "webhooks/$WEBHOOK/test" | grep -o 'dlv_[0-9A-Z]*')
    until api GET "webhooks/$WEBHOOK/deliveries/$DELIVERY" | grep '"status":"delivered"'; do sleep 0.05; done
    grep webhook.test .session/server.out
"""
SERVERS = {
    ("README.md", "cargo run --release -- demo"): DEMO,
    ("spending", "cargo run --release -- demo"): DEMO,
    ("webhooks", "from standardwebhooks.webhooks import"): RECEIVER,
    ("webhooks", 'require("standardwebhooks")'): RECEIVER,
    ("webhooks", "TOLLGATE_DATABASE_URL=sqlite::memory: tollgate serve"): """
        until curl -sf http://127.0.0.1:{PORT}/readyz; do sleep 0.05; done
    """,
}

# What stands around settings that are a part of a configuration.
HOUSE = '\n[providers.house]\nbase_url = "http://127.0.0.1:9100/v1"\ndialect = "openai"\nallow_private_network = true\n'
AROUND = {
    ("operate", 'cached_input = "0.075"'): "%s" + HOUSE,
    ("pricing", "free = true"): "%s" + HOUSE,
    ("pricing", 'model = "small-*"'): "%s" + HOUSE,
}

# What the text says of an answer: it stands in both.
EXPECTED = {
    ("calling", '"total_wallet_cost": "0.0000124200"'): ["0.0000103500", "0.0000020700", "0.0000124200"],
    ("calling", '{"hold": "0.0007374600"}'): ["0.0007374600"],
    ("spending", "${BODY/1000/142}"): [
        '"current_spend":"0.0000097500"',
    ],
    ("docs/features/subscriptions.md", "post subscription_configs"): ['"total_remaining":"35.0000000000"'],
}

# What ends with another status than 0: which.
FAILS = {("pricing", "tollgate prices import"): 1}

# Programs that run again with other variables, and what they print then.
def refused(times):
    """Each refusal, and how often a program prints it: once for each format that it calls in."""
    return [
        ("SPEND_KEY=$POOR", "402 no spend_limit_reached", times),
        ("SPEND_KEY=$PAUSED", "403 no spend_key_paused", times),
        ("SPEND_KEY=$USED", "429 no request_limit_reached", times),
        ("BASE=http://127.0.0.1:{PORT}", "503 again in 1", times),
    ]


VARIANTS = {
    ("calling", "except (openai.APIStatusError, anthropic.APIStatusError)"): refused(2),
    ("calling", "instanceof OpenAI.APIError"): refused(2),
    ("calling", "http_status_as_error(false)"): refused(1),
}

# Maps of the repository: what they name is there.
MAPS = {
    ("docs/internals/architecture.md", "bins/tollgate      the program"): True,
}

# What is not run. Its form is looked at, and that the commands and recipes in it are there.
PICTURE = "a picture"
CLIENTS = "the clients' tests call these libraries with these settings"
TESTS = "the tests of the workspace; .ci/run runs them"
NOT_RUN = {
    ("README.md", "cargo test --workspace"): TESTS,
    ("README.md", "your app, customers"): PICTURE,
    ("docs/index.md", "your customers, teams and agents"): PICTURE,
    ("docs/get-started/concepts.md", "operator ──"): PICTURE,
    ("spending", "Chat widget's key"): PICTURE,
    ("spending", "RACE_SEEDS=500 cargo test"): TESTS,
    ("CONTRIBUTING.md", "cargo test --workspace"): TESTS,
    ("CONTRIBUTING.md", "cargo nextest run"): TESTS,
    ("CONTRIBUTING.md", ".ci/run"): "it runs this",
    ("docs/operate/archive.md", "requests/month=2026-01/00001.parquet"): PICTURE,
    ("docs/operate/archive.md", "hive_partitioning"): "bins/tollgate/tests/engines/run reads the files by DuckDB",
    ("docs/operate/archive.md", "'Parquet')"): "needs ClickHouse and a bucket",
    ("docs/operate/archive.md", "spark.read.parquet"): "needs Spark and a bucket",
    ("docs/operate/kubernetes.md", "kubectl apply -k"): "needs a cluster; bins/tollgate/tests/deploy/run validates it",
    ("CONTRIBUTING.md", "--example providers"): TESTS,
    ("CONTRIBUTING.md", "cargo test -p tollgate migration"): TESTS,
    ("CONTRIBUTING.md", "cargo test -p tollgate-api"): TESTS,
    ("benchmarks", "scripts/instructions"): "needs valgrind; .ci/run runs it",
    ("docs/guides/move-from-litellm.md", "LITELLM_DATABASE_URL"): "needs the database of a LiteLLM",
    ("docs/guides/clients/index.md", "tests/clients/run"): "installs gigabytes, and takes minutes",
    ("docs/guides/clients/frameworks.md", "from langchain_openai"): CLIENTS,
    ("docs/guides/clients/frameworks.md", "@ai-sdk/openai"): CLIENTS,
}

# What runs only when all is asked for: benchmarks, each for a moment, and a generator of clients that is fetched.
SLOW = [
    ("api", "pipx run"),
    ("benchmarks", "just bench-proxy\n"),
    ("benchmarks", "just bench-growth\n"),
    ("benchmarks", "-- keys --seconds"),
    ("benchmarks", "-- refusals --seconds"),
    ("benchmarks", "-- webhooks --seconds"),
]
if "DOCUMENTS_ALL" not in os.environ:
    NOT_RUN |= dict.fromkeys(SLOW, "takes minutes; run with --all")

# Chapters that another test holds to what the program says, or pastes: (document, chapter or all, test or a piece of it).
HELD = [
    ("docs/guides/clients/claude-code.md", "## Set it up", '("claude-code.md", "Set it up"'),
    ("docs/guides/clients/codex.md", "## Set it up", '("codex.md", "Set it up"'),
    ("docs/guides/clients/codex.md", "## Keep Codex's built-in provider", '("codex.md", "Keep Codex\'s'),
    ("docs/guides/clients/gemini-cli.md", "## Set it up", '("gemini-cli.md", "Set it up"'),
    ("docs/guides/clients/opencode.md", "## Set it up", '("opencode.md", "Set it up"'),
    ("docs/features/webhook-messages.md", "", "the_page_of_messages_has_the_samples"),
    ("crates/pricing/README.md", "", '#![doc = include_str!("../README.md")]'),
    ("crates/prices/README.md", "", '#![doc = include_str!("../README.md")]'),
    ("crates/usage/README.md", "", '#![doc = include_str!("../README.md")]'),
]


def held(block):
    """Why a block need not run, if it need not."""
    for document, chapter, test in HELD:
        if block.document == document and (not chapter or block.chapter == chapter):
            return f"held by another test: {test}"
    return None


# The project of the Rust programs, but for what they need.
MANIFEST = """[package]
name = "documents"
version = "0.0.0"
edition = "2024"
publish = false

[workspace]

[profile.dev]
debug = 0

"""
