-- Amounts are whole numbers of 10⁻¹⁰ USD, instants microseconds since 1970 (UTC), ids 16 bytes.
-- open_calls, requests, request_index and transactions are written for every call and carry no foreign
-- keys: every id in them was read from the table it names in the same transaction, and `tollgate audit`
-- checks them.

CREATE TABLE merchants (
    merchant_id BLOB NOT NULL PRIMARY KEY,
    name        TEXT NOT NULL,
    wallet_id   BLOB NOT NULL REFERENCES wallets DEFERRABLE INITIALLY DEFERRED,
    created_at  BIGINT NOT NULL
);

CREATE TABLE secret_keys (
    secret_key_id BLOB NOT NULL PRIMARY KEY,
    merchant_id   BLOB NOT NULL REFERENCES merchants,
    name          TEXT NOT NULL,
    key_hash      BLOB NOT NULL UNIQUE,
    key_preview   TEXT NOT NULL,
    created_at    BIGINT NOT NULL,
    deleted_at    BIGINT
);
CREATE INDEX secret_keys_by_merchant ON secret_keys (merchant_id, secret_key_id);

-- Sessions of the dashboard. The browser keeps a random token; its SHA-256 is here, so that a reader of
-- this table cannot sign in with it.
CREATE TABLE sessions (
    token_hash    BLOB NOT NULL PRIMARY KEY,
    -- A session ends with the key that it was opened with.
    secret_key_id BLOB NOT NULL REFERENCES secret_keys,
    merchant_id   BLOB NOT NULL REFERENCES merchants,
    expires_at    BIGINT NOT NULL
);
CREATE INDEX sessions_by_age ON sessions (expires_at);

CREATE TABLE wallets (
    wallet_id             BLOB NOT NULL PRIMARY KEY,
    merchant_id           BLOB NOT NULL REFERENCES merchants,
    connection_id         BLOB REFERENCES connections DEFERRABLE INITIALLY DEFERRED,
    balance               BIGINT NOT NULL,
    held                  BIGINT NOT NULL CHECK (held >= 0),
    overdraft_limit       BIGINT,
    low_balance_threshold BIGINT,
    -- The active subscription that fills its credits.
    subscription_id       BLOB,
    cycle_credit          BIGINT NOT NULL CHECK (cycle_credit >= 0),
    cycle_held            BIGINT NOT NULL CHECK (cycle_held >= 0),
    cycle_expired         BIGINT NOT NULL,
    bundle_credit         BIGINT NOT NULL CHECK (bundle_credit >= 0),
    bundle_held           BIGINT NOT NULL CHECK (bundle_held >= 0),
    bundle_expired        BIGINT NOT NULL,
    -- How many cycles have begun on it.
    cycles                BIGINT NOT NULL,
    -- How many transactions it has: the number of its last one.
    transactions          BIGINT NOT NULL,
    -- The same of its records: of calls that it is charged for, and of a merchant's own those without another.
    records               BIGINT NOT NULL,
    created_at            BIGINT NOT NULL
);

CREATE TABLE connections (
    connection_id BLOB NOT NULL PRIMARY KEY,
    merchant_id   BLOB NOT NULL REFERENCES merchants,
    reference_id  TEXT,
    name          TEXT,
    email         TEXT,
    metadata      TEXT NOT NULL,
    wallet_id     BLOB NOT NULL REFERENCES wallets,
    created_at    BIGINT NOT NULL,
    deleted_at    BIGINT
);
CREATE INDEX connections_by_merchant ON connections (merchant_id, connection_id);
CREATE UNIQUE INDEX connections_by_reference ON connections (merchant_id, reference_id)
    WHERE reference_id IS NOT NULL AND deleted_at IS NULL;

CREATE TABLE meters (
    meter_id    BLOB NOT NULL PRIMARY KEY,
    merchant_id BLOB NOT NULL REFERENCES merchants,
    slug        TEXT NOT NULL,
    name        TEXT NOT NULL,
    tier_period TEXT NOT NULL,
    version     INTEGER NOT NULL,
    created_at  BIGINT NOT NULL,
    deleted_at  BIGINT
);
CREATE INDEX meters_by_merchant ON meters (merchant_id, meter_id);
CREATE UNIQUE INDEX meters_by_slug ON meters (merchant_id, slug) WHERE deleted_at IS NULL;

-- The fee model of a meter from one change to the next; never updated.
CREATE TABLE meter_versions (
    meter_id    BLOB NOT NULL REFERENCES meters,
    merchant_id BLOB NOT NULL REFERENCES merchants,
    version     INTEGER NOT NULL,
    model       TEXT NOT NULL,
    created_at  BIGINT NOT NULL,
    PRIMARY KEY (meter_id, version)
);

-- The usage of an owner (a spend key, else a connection, else a merchant) under a meter so far.
CREATE TABLE tier_counters (
    merchant_id BLOB NOT NULL,
    owner_id    BLOB NOT NULL,
    meter_id    BLOB NOT NULL REFERENCES meters,
    period      TEXT NOT NULL,
    used        BIGINT NOT NULL,
    PRIMARY KEY (merchant_id, owner_id, meter_id, period)
) WITHOUT ROWID;

-- Restricted keys. The rules of a key are JSON and are replaced as a whole.
CREATE TABLE spend_keys (
    spend_key_id  BLOB NOT NULL PRIMARY KEY,
    merchant_id   BLOB NOT NULL REFERENCES merchants,
    wallet_id     BLOB NOT NULL REFERENCES wallets,
    -- The connection of that wallet; absent for the merchant's own wallet.
    connection_id BLOB REFERENCES connections,
    meter_id      BLOB REFERENCES meters,
    name          TEXT NOT NULL,
    key_hash      BLOB NOT NULL UNIQUE,
    key_preview   TEXT NOT NULL,
    rules         TEXT NOT NULL,
    created_at    BIGINT NOT NULL,
    deleted_at    BIGINT
);
CREATE INDEX spend_keys_by_merchant ON spend_keys (merchant_id, spend_key_id);
CREATE INDEX spend_keys_by_meter ON spend_keys (meter_id) WHERE meter_id IS NOT NULL;

-- The use of a spend key in the cycles of its last use: a narrow row, because every call writes it twice.
CREATE TABLE spend_counters (
    spend_key_id   BLOB NOT NULL PRIMARY KEY REFERENCES spend_keys,
    merchant_id    BLOB NOT NULL,
    day_spent      BIGINT NOT NULL,
    week_spent     BIGINT NOT NULL,
    month_spent    BIGINT NOT NULL,
    total_spent    BIGINT NOT NULL,
    day_held       BIGINT NOT NULL,
    week_held      BIGINT NOT NULL,
    month_held     BIGINT NOT NULL,
    total_held     BIGINT NOT NULL,
    day_requests   BIGINT NOT NULL,
    week_requests  BIGINT NOT NULL,
    month_requests BIGINT NOT NULL,
    total_requests BIGINT NOT NULL,
    -- The highest threshold of the spend limit that an event was written for, in percent.
    day_told       INTEGER NOT NULL,
    week_told      INTEGER NOT NULL,
    month_told     INTEGER NOT NULL,
    total_told     INTEGER NOT NULL,
    -- When the rate limit's bucket will be full again, in nanoseconds since 1970.
    bucket_full_at BIGINT NOT NULL,
    last_used_at   BIGINT
);

-- Subscription plans, each for a price per cycle.
CREATE TABLE subscription_configs (
    subscription_config_id BLOB NOT NULL PRIMARY KEY,
    merchant_id            BLOB NOT NULL REFERENCES merchants,
    name                   TEXT NOT NULL,
    period_amount          BIGINT NOT NULL,
    billing_interval       TEXT NOT NULL,
    version                INTEGER NOT NULL,
    created_at             BIGINT NOT NULL,
    deleted_at             BIGINT
);
CREATE INDEX subscription_configs_by_merchant
    ON subscription_configs (merchant_id, subscription_config_id);

-- The terms of a configuration from one change to the next; never updated.
CREATE TABLE subscription_config_versions (
    subscription_config_id BLOB NOT NULL REFERENCES subscription_configs,
    merchant_id            BLOB NOT NULL REFERENCES merchants,
    version                INTEGER NOT NULL,
    terms                  TEXT NOT NULL,
    created_at             BIGINT NOT NULL,
    PRIMARY KEY (subscription_config_id, version)
);

CREATE TABLE credit_bundles (
    credit_bundle_id       BLOB NOT NULL PRIMARY KEY,
    subscription_config_id BLOB NOT NULL REFERENCES subscription_configs,
    merchant_id            BLOB NOT NULL REFERENCES merchants,
    name                   TEXT NOT NULL,
    cost                   BIGINT NOT NULL,
    credit_amount          BIGINT NOT NULL,
    created_at             BIGINT NOT NULL,
    deleted_at             BIGINT
);
CREATE INDEX credit_bundles_by_merchant ON credit_bundles (merchant_id, credit_bundle_id);
CREATE INDEX credit_bundles_by_config ON credit_bundles (subscription_config_id, credit_bundle_id);

-- Written only under the lock of the wallet that has the credit.
CREATE TABLE subscriptions (
    subscription_id        BLOB NOT NULL PRIMARY KEY,
    merchant_id            BLOB NOT NULL REFERENCES merchants,
    connection_id          BLOB NOT NULL REFERENCES connections,
    wallet_id              BLOB NOT NULL REFERENCES wallets,
    subscription_config_id BLOB NOT NULL REFERENCES subscription_configs,
    status                 TEXT NOT NULL,
    started_at             BIGINT NOT NULL,
    cancelled_at           BIGINT,
    -- The instant from which cycles are counted, and the number of the current one from there.
    anchor_at              BIGINT NOT NULL,
    cycle                  BIGINT NOT NULL,
    cycle_start_at         BIGINT NOT NULL,
    cycle_end_at           BIGINT NOT NULL,
    -- The change at the end of the cycle, and the configuration from then if it goes on.
    pending_change         TEXT,
    pending_config_id      BLOB REFERENCES subscription_configs
);
CREATE INDEX subscriptions_by_merchant ON subscriptions (merchant_id, subscription_id);
CREATE INDEX subscriptions_by_connection ON subscriptions (connection_id, subscription_id);
CREATE INDEX subscriptions_by_config ON subscriptions (subscription_config_id);
CREATE INDEX subscriptions_by_pending_config ON subscriptions (pending_config_id)
    WHERE pending_config_id IS NOT NULL;
CREATE UNIQUE INDEX subscriptions_active ON subscriptions (connection_id) WHERE status = 'active';
CREATE INDEX subscriptions_due ON subscriptions (cycle_end_at) WHERE status = 'active';

-- Calls that were admitted and are not settled: each row is deleted by the settlement. There are as many
-- as calls are in flight.
CREATE TABLE open_calls (
    request_id         BLOB NOT NULL PRIMARY KEY,
    merchant_id        BLOB NOT NULL,
    -- The life of the process that will settle it.
    node_id            BLOB NOT NULL,
    connection_id      BLOB,
    spend_key_id       BLOB,
    wallet_id          BLOB,
    merchant_wallet_id BLOB NOT NULL,
    meter_id           BLOB,
    meter_version      INTEGER,
    disable_billing    BOOLEAN NOT NULL,
    spend_hold         BIGINT NOT NULL,
    wallet_hold        BIGINT NOT NULL,
    -- The reservation of the wallet's credits, and the cycle that it is of; no cycle for a call that may
    -- not draw on them.
    cycle_hold         BIGINT NOT NULL,
    bundle_hold        BIGINT NOT NULL,
    credit_cycle       BIGINT,
    merchant_hold      BIGINT NOT NULL,
    forwarded          TEXT NOT NULL,
    created_at         BIGINT NOT NULL
) WITHOUT ROWID;

-- The records of settled calls: each is written once, by the settlement, and never updated.
CREATE TABLE requests (
    merchant_id        BLOB NOT NULL,
    request_id         BLOB NOT NULL,
    -- 1, 2, 3, … on its wallet, or else the merchant's own, without gaps.
    sequence           BIGINT NOT NULL,
    -- The merchant's own id of usage that was reported.
    reference_id       TEXT,
    connection_id      BLOB,
    spend_key_id       BLOB,
    wallet_id          BLOB,
    merchant_wallet_id BLOB NOT NULL,
    meter_id           BLOB,
    meter_version      INTEGER,
    disable_billing    BOOLEAN NOT NULL,
    -- 2 completed, 3 error.
    status             SMALLINT NOT NULL CHECK (status IN (2, 3)),
    credit_cycle       BIGINT,
    wallet_cost        BIGINT NOT NULL,
    merchant_cost      BIGINT NOT NULL,
    counted_units      BIGINT NOT NULL,
    -- Ended by the sweeper; a settlement that comes later is a correction.
    swept              BOOLEAN NOT NULL,
    forwarded          TEXT NOT NULL,
    outcome            TEXT NOT NULL,
    created_at         BIGINT NOT NULL,
    PRIMARY KEY (merchant_id, request_id)
);

-- The settlement of a call that the sweeper had ended: it replaces these columns of its record.
CREATE TABLE corrections (
    merchant_id   BLOB NOT NULL,
    request_id    BLOB NOT NULL,
    status        SMALLINT NOT NULL CHECK (status IN (2, 3)),
    wallet_cost   BIGINT NOT NULL,
    merchant_cost BIGINT NOT NULL,
    counted_units BIGINT NOT NULL,
    outcome       TEXT NOT NULL,
    created_at    BIGINT NOT NULL,
    PRIMARY KEY (merchant_id, request_id)
);

-- The merchants' own ids of reported usage: each is booked once.
CREATE TABLE reported_usage (
    merchant_id  BLOB NOT NULL,
    reference_id TEXT NOT NULL,
    request_id   BLOB NOT NULL,
    PRIMARY KEY (merchant_id, reference_id)
) WITHOUT ROWID;

-- How lists find records: by each pair of a record's metadata, and by `:connection`, `:meter`, and `:status`
-- for those that failed. No key of metadata has a colon.
CREATE TABLE request_index (
    merchant_id BLOB NOT NULL,
    key         TEXT NOT NULL,
    value       TEXT NOT NULL,
    request_id  BLOB NOT NULL,
    PRIMARY KEY (merchant_id, key, value, request_id)
) WITHOUT ROWID;

-- Every movement of money or credit; never updated.
CREATE TABLE transactions (
    transaction_id BLOB NOT NULL,
    merchant_id    BLOB NOT NULL,
    wallet_id      BLOB NOT NULL,
    -- The account of the wallet: 1 its balance, 2 the credit of its cycle, 3 that of bundles.
    account        SMALLINT NOT NULL CHECK (account BETWEEN 1 AND 3),
    -- 1, 2, 3, … on each wallet, without gaps.
    number         BIGINT NOT NULL,
    -- 1 credit, 2 debit, 3 usage, 4 credit grant, 5 credit expiry, 6 rollover, 7 bundle purchase,
    -- 8 correction.
    kind           SMALLINT NOT NULL CHECK (kind BETWEEN 1 AND 8),
    amount         BIGINT NOT NULL,
    balance_after  BIGINT NOT NULL,
    request_id     BLOB,
    description    TEXT,
    created_at     BIGINT NOT NULL,
    PRIMARY KEY (wallet_id, number)
) WITHOUT ROWID;

-- The keys of movements that must happen once on their wallet and that no other row makes happen once, as
-- the record of a call does.
CREATE TABLE transaction_keys (
    wallet_id       BLOB NOT NULL,
    idempotency_key TEXT NOT NULL,
    merchant_id     BLOB NOT NULL,
    -- The number of the transaction.
    number          BIGINT NOT NULL,
    PRIMARY KEY (wallet_id, idempotency_key)
) WITHOUT ROWID;

-- Movements because a record was priced again. The record stays as it was settled; the final cost of its
-- call is the record and all of these.
CREATE TABLE repricings (
    merchant_id    BLOB NOT NULL,
    request_id     BLOB NOT NULL,
    -- 1, 2, 3, … of each record.
    number         INTEGER NOT NULL,
    base_before    BIGINT NOT NULL,
    base_after     BIGINT NOT NULL,
    -- How much more it costs each; negative when it was given back.
    wallet_delta   BIGINT NOT NULL,
    merchant_delta BIGINT NOT NULL,
    -- The prices that were applied, as JSON.
    applied        TEXT NOT NULL,
    created_at     BIGINT NOT NULL,
    PRIMARY KEY (merchant_id, request_id, number)
) WITHOUT ROWID;

-- The calls that were settled and are not in the roll-ups and indexes yet: a row for each group of calls,
-- deleted by the transaction that adds them there.
CREATE TABLE rollup_queue (
    number     INTEGER PRIMARY KEY,
    -- JSON.
    calls      TEXT NOT NULL,
    created_at BIGINT NOT NULL
);

-- Sets of settled calls whose sums are kept. `key` is `:all` for all calls of a merchant, `:calls` for those that
-- are alike in the columns from connection_id on, and a key of metadata for those among them that have the value.
-- The id is computed from the other columns.
CREATE TABLE usage_series (
    merchant_id   BLOB NOT NULL,
    key           TEXT NOT NULL,
    value         TEXT NOT NULL,
    series_id     BLOB NOT NULL,
    connection_id BLOB,
    spend_key_id  BLOB,
    meter_id      BLOB,
    provider      TEXT,
    model         TEXT,
    -- 2 completed, 3 error.
    status        SMALLINT,
    PRIMARY KEY (merchant_id, key, value, series_id)
) WITHOUT ROWID;
CREATE INDEX usage_series_by_connection ON usage_series (merchant_id, connection_id) WHERE key = ':calls';
CREATE INDEX usage_series_by_spend_key ON usage_series (merchant_id, spend_key_id) WHERE key = ':calls';

-- The sums of a series. `slot` is the time of admission in quarter hours since 1970; a row covers `width` of them
-- from there on: 1, and 4 and 96 so that long ranges are few rows. A sum that would leave the range of a BIGINT
-- stays at its end.
CREATE TABLE usage_rollups (
    merchant_id         BLOB NOT NULL,
    series_id           BLOB NOT NULL,
    width               INTEGER NOT NULL,
    slot                BIGINT NOT NULL,
    requests            BIGINT NOT NULL,
    failed              BIGINT NOT NULL,
    input_tokens        BIGINT NOT NULL,
    output_tokens       BIGINT NOT NULL,
    cached_input_tokens BIGINT NOT NULL,
    cache_write_tokens  BIGINT NOT NULL,
    reasoning_tokens    BIGINT NOT NULL,
    input_audio_tokens  BIGINT NOT NULL,
    output_audio_tokens BIGINT NOT NULL,
    usage_cost          BIGINT NOT NULL,
    provider_cost       BIGINT NOT NULL,
    fee                 BIGINT NOT NULL,
    service_charge      BIGINT NOT NULL,
    wallet_cost         BIGINT NOT NULL,
    merchant_cost       BIGINT NOT NULL,
    revenue             BIGINT NOT NULL,
    PRIMARY KEY (series_id, width, slot)
) WITHOUT ROWID;

-- Calls that were refused. Rows of old refusals are deleted.
CREATE TABLE refusals (
    merchant_id   BLOB NOT NULL,
    refusal_id    BLOB NOT NULL,
    code          TEXT NOT NULL,
    spend_key_id  BLOB,
    secret_key_id BLOB,
    connection_id BLOB,
    model         TEXT,
    -- More than one where several calls of a key were refused for one reason within a second.
    count         BIGINT NOT NULL,
    first_at      BIGINT NOT NULL,
    last_at       BIGINT NOT NULL,
    -- The facts about the first of them, as JSON.
    call          TEXT NOT NULL,
    PRIMARY KEY (merchant_id, refusal_id)
) WITHOUT ROWID;
CREATE INDEX refusals_by_age ON refusals (last_at);
CREATE INDEX refusals_by_spend_key ON refusals (merchant_id, spend_key_id, refusal_id) WHERE spend_key_id IS NOT NULL;
CREATE INDEX refusals_by_connection ON refusals (merchant_id, connection_id, refusal_id) WHERE connection_id IS NOT NULL;

-- The numbers of refused calls, by quarter hour since 1970, code, spend key and connection. An id is zero where there is
-- none.
CREATE TABLE refusal_counts (
    merchant_id   BLOB NOT NULL,
    slot          BIGINT NOT NULL,
    code          TEXT NOT NULL,
    spend_key_id  BLOB NOT NULL,
    connection_id BLOB NOT NULL,
    count         BIGINT NOT NULL,
    PRIMARY KEY (merchant_id, slot, code, spend_key_id, connection_id)
) WITHOUT ROWID;

-- The prices that were missing on a UTC day, in days since 1970, and that the merchant has an event of.
-- Rows of past days are deleted.
CREATE TABLE missing_prices (
    merchant_id BLOB NOT NULL,
    day         BIGINT NOT NULL,
    provider    TEXT NOT NULL,
    model       TEXT NOT NULL,
    PRIMARY KEY (merchant_id, day, provider, model)
) WITHOUT ROWID;

-- The outbox: events are written in the transaction that causes them, and get numbers in the order in which
-- they are written. Events of one resource are written under its lock, so their numbers are in their order.
CREATE TABLE events (
    number        INTEGER PRIMARY KEY AUTOINCREMENT,
    event_id      BLOB NOT NULL UNIQUE,
    merchant_id   BLOB NOT NULL REFERENCES merchants,
    kind          TEXT NOT NULL,
    -- The resource whose events are delivered in their order.
    resource      TEXT NOT NULL,
    news          TEXT NOT NULL,
    created_at    BIGINT NOT NULL,
    -- When the webhooks that want it were found; until then it waits.
    dispatched_at BIGINT
);
CREATE INDEX events_by_merchant ON events (merchant_id, event_id);
CREATE INDEX events_waiting ON events (merchant_id, number) WHERE dispatched_at IS NULL;

-- A webhook's row is also the head of its queue: its lock is held to change which deliveries wait.
CREATE TABLE webhooks (
    webhook_id     BLOB NOT NULL PRIMARY KEY,
    merchant_id    BLOB NOT NULL REFERENCES merchants,
    name           TEXT NOT NULL,
    url            TEXT NOT NULL,
    -- A JSON array of kinds; absent for all but those of single calls.
    events         TEXT,
    -- The secrets that messages are signed with, as JSON.
    secrets        TEXT NOT NULL,
    -- The number of its last delivery.
    sequence       BIGINT NOT NULL,
    -- When its next delivery is due; absent when none is.
    due_at         BIGINT,
    created_at     BIGINT NOT NULL,
    deleted_at     BIGINT,
    -- The instant from which it gets the events of single calls.
    requests_since BIGINT,
    -- The number of the last event that it does not get: those that waited when it was made.
    events_before  BIGINT NOT NULL
);
CREATE INDEX webhooks_by_merchant ON webhooks (merchant_id, webhook_id);
CREATE INDEX webhooks_due ON webhooks (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX webhooks_of_requests ON webhooks (merchant_id) WHERE requests_since IS NOT NULL;

CREATE TABLE deliveries (
    delivery_id     BLOB NOT NULL PRIMARY KEY,
    merchant_id     BLOB NOT NULL REFERENCES merchants,
    webhook_id      BLOB NOT NULL REFERENCES webhooks,
    event_id        BLOB NOT NULL REFERENCES events (event_id),
    resource        TEXT NOT NULL,
    sequence        BIGINT NOT NULL,
    -- `waiting` for an earlier one of its resource, `pending`, `delivered` or `failed`.
    status          TEXT NOT NULL,
    -- All attempts, and those since it was last sent again by hand.
    attempts        INTEGER NOT NULL,
    failures        INTEGER NOT NULL,
    -- When it was taken up, or last sent again by hand.
    queued_at       BIGINT NOT NULL,
    last_attempt_at BIGINT,
    -- When it is due, or when the current attempt counts as lost. Absent unless it is pending.
    next_attempt_at BIGINT,
    response_status INTEGER,
    response_body   TEXT,
    fault           TEXT,
    duration_ms     INTEGER,
    created_at      BIGINT NOT NULL,
    UNIQUE (event_id, webhook_id)
);
CREATE INDEX deliveries_by_webhook ON deliveries (webhook_id, delivery_id);
CREATE INDEX deliveries_in_order ON deliveries (webhook_id, status, resource, sequence);
CREATE INDEX deliveries_due ON deliveries (webhook_id, next_attempt_at)
    WHERE next_attempt_at IS NOT NULL;

-- Answers of operations of the API, kept for requests that come again.
CREATE TABLE idempotent_answers (
    -- Zero for the operator.
    merchant_id     BLOB NOT NULL,
    -- `api`, `dashboard` or `operator`.
    scope           TEXT NOT NULL,
    idempotency_key TEXT NOT NULL,
    fingerprint     BLOB NOT NULL,
    status          INTEGER NOT NULL,
    body            TEXT NOT NULL,
    created_at      BIGINT NOT NULL,
    PRIMARY KEY (merchant_id, scope, idempotency_key)
);
CREATE INDEX idempotent_answers_by_age ON idempotent_answers (created_at);

-- One life of a serving process each.
CREATE TABLE nodes (
    node_id     BLOB NOT NULL PRIMARY KEY,
    lease_until BIGINT NOT NULL
);

-- Which process serves from a SQLite file: one row. Each that begins writes a greater epoch, so that one
-- that is overtaken finds out. Several processes may serve from PostgreSQL, and nothing is written there.
CREATE TABLE serving (
    epoch     BIGINT NOT NULL PRIMARY KEY,
    node_id   BLOB NOT NULL,
    -- Device and inode of the file whose lock it holds.
    lock_file TEXT NOT NULL,
    since     BIGINT NOT NULL,
    -- Whether it ended by itself: else the file is checked before the next one serves.
    has_ended BOOLEAN NOT NULL
);
