-- Restricted keys. What a key may do stands in `rules` as JSON and is replaced as a whole.
CREATE TABLE spend_keys (
    spend_key_id TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    merchant_id  TEXT COLLATE "C" NOT NULL REFERENCES merchants,
    wallet_id    TEXT COLLATE "C" NOT NULL REFERENCES wallets,
    -- Whose wallet that is; none for the merchant's own.
    connection_id TEXT COLLATE "C" REFERENCES connections,
    meter_id     TEXT COLLATE "C" REFERENCES meters,
    name         TEXT COLLATE "C" NOT NULL,
    key_hash     BYTEA NOT NULL UNIQUE,
    key_preview  TEXT COLLATE "C" NOT NULL,
    rules        TEXT COLLATE "C" NOT NULL,
    created_at   BIGINT NOT NULL,
    deleted_at   BIGINT
);
CREATE INDEX spend_keys_by_merchant ON spend_keys (merchant_id, spend_key_id);
CREATE INDEX spend_keys_by_meter ON spend_keys (meter_id) WHERE meter_id IS NOT NULL;

-- What was done with a key, in the cycles that its last use lies in: a narrow row, because every
-- call writes it twice.
CREATE TABLE spend_counters (
    spend_key_id   TEXT COLLATE "C" NOT NULL PRIMARY KEY REFERENCES spend_keys,
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
    -- The highest threshold of the spend limit that was told of, in percent.
    day_told       INTEGER NOT NULL,
    week_told      INTEGER NOT NULL,
    month_told     INTEGER NOT NULL,
    total_told     INTEGER NOT NULL,
    -- When the rate limit's bucket will be full again, in nanoseconds since 1970.
    bucket_full_at BIGINT NOT NULL,
    last_used_at   BIGINT
);

-- What a pending call holds on its spend key.
ALTER TABLE requests ADD COLUMN spend_hold BIGINT NOT NULL DEFAULT 0;

-- What happened, for those who want to be told; written in the transaction that causes it.
CREATE TABLE events (
    event_id    TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    merchant_id TEXT COLLATE "C" NOT NULL REFERENCES merchants,
    kind        TEXT COLLATE "C" NOT NULL,
    news        TEXT COLLATE "C" NOT NULL,
    created_at  BIGINT NOT NULL
);
CREATE INDEX events_by_merchant ON events (merchant_id, event_id);
