-- Amounts are whole numbers of 10⁻¹⁰ USD, instants microseconds since 1970 (UTC), ids text.
-- requests, request_metadata and transactions are written twice per call and carry no foreign
-- keys: every id in them was read from the table it names in the same transaction, and
-- `tollgate audit` checks them.

CREATE TABLE merchants (
    merchant_id TEXT NOT NULL PRIMARY KEY,
    name        TEXT NOT NULL,
    wallet_id   TEXT NOT NULL REFERENCES wallets DEFERRABLE INITIALLY DEFERRED,
    created_at  BIGINT NOT NULL
);

CREATE TABLE secret_keys (
    secret_key_id TEXT NOT NULL PRIMARY KEY,
    merchant_id   TEXT NOT NULL REFERENCES merchants,
    name          TEXT NOT NULL,
    key_hash      BLOB NOT NULL UNIQUE,
    key_preview   TEXT NOT NULL,
    created_at    BIGINT NOT NULL,
    deleted_at    BIGINT
);
CREATE INDEX secret_keys_by_merchant ON secret_keys (merchant_id, secret_key_id);

CREATE TABLE wallets (
    wallet_id             TEXT NOT NULL PRIMARY KEY,
    merchant_id           TEXT NOT NULL REFERENCES merchants,
    connection_id         TEXT REFERENCES connections DEFERRABLE INITIALLY DEFERRED,
    balance               BIGINT NOT NULL,
    held                  BIGINT NOT NULL CHECK (held >= 0),
    overdraft_limit       BIGINT,
    low_balance_threshold BIGINT,
    -- How many transactions it has: the number of its last one.
    transactions          BIGINT NOT NULL,
    created_at            BIGINT NOT NULL
);

CREATE TABLE connections (
    connection_id TEXT NOT NULL PRIMARY KEY,
    merchant_id   TEXT NOT NULL REFERENCES merchants,
    reference_id  TEXT,
    name          TEXT,
    email         TEXT,
    metadata      TEXT NOT NULL,
    wallet_id     TEXT NOT NULL REFERENCES wallets,
    created_at    BIGINT NOT NULL,
    deleted_at    BIGINT
);
CREATE INDEX connections_by_merchant ON connections (merchant_id, connection_id);
CREATE UNIQUE INDEX connections_by_reference ON connections (merchant_id, reference_id)
    WHERE reference_id IS NOT NULL AND deleted_at IS NULL;

CREATE TABLE meters (
    meter_id    TEXT NOT NULL PRIMARY KEY,
    merchant_id TEXT NOT NULL REFERENCES merchants,
    slug        TEXT NOT NULL,
    name        TEXT NOT NULL,
    tier_period TEXT NOT NULL,
    version     INTEGER NOT NULL,
    created_at  BIGINT NOT NULL,
    deleted_at  BIGINT
);
CREATE INDEX meters_by_merchant ON meters (merchant_id, meter_id);
CREATE UNIQUE INDEX meters_by_slug ON meters (merchant_id, slug) WHERE deleted_at IS NULL;

-- What a meter charges, as it was from one change to the next; never updated.
CREATE TABLE meter_versions (
    meter_id   TEXT NOT NULL REFERENCES meters,
    version    INTEGER NOT NULL,
    model      TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (meter_id, version)
);

-- What an owner (a connection, or a merchant where there is none) used under a meter so far.
CREATE TABLE tier_counters (
    owner_id TEXT NOT NULL,
    meter_id TEXT NOT NULL REFERENCES meters,
    period   TEXT NOT NULL,
    used     BIGINT NOT NULL,
    PRIMARY KEY (owner_id, meter_id, period)
);

CREATE TABLE requests (
    request_id         TEXT NOT NULL PRIMARY KEY,
    merchant_id        TEXT NOT NULL,
    connection_id      TEXT,
    spend_key_id       TEXT,
    wallet_id          TEXT,
    merchant_wallet_id TEXT NOT NULL,
    meter_id           TEXT,
    meter_version      INTEGER,
    disable_billing    BOOLEAN NOT NULL,
    status             TEXT NOT NULL,
    -- The life of a process that will settle it; none once it is settled.
    node_id            TEXT,
    wallet_hold        BIGINT NOT NULL,
    merchant_hold      BIGINT NOT NULL,
    wallet_cost        BIGINT NOT NULL,
    merchant_cost      BIGINT NOT NULL,
    counted_units      BIGINT NOT NULL,
    -- Ended by the sweeper; a settlement that comes after all corrects it.
    swept              BOOLEAN NOT NULL,
    forwarded          TEXT NOT NULL,
    outcome            TEXT,
    created_at         BIGINT NOT NULL
) WITHOUT ROWID;
CREATE INDEX requests_by_merchant ON requests (merchant_id, request_id);
CREATE INDEX requests_by_connection ON requests (connection_id, request_id) WHERE connection_id IS NOT NULL;
CREATE INDEX requests_by_meter ON requests (meter_id, request_id) WHERE meter_id IS NOT NULL;
CREATE INDEX requests_in_flight ON requests (node_id) WHERE node_id IS NOT NULL;

CREATE TABLE request_metadata (
    merchant_id TEXT NOT NULL,
    key         TEXT NOT NULL,
    value       TEXT NOT NULL,
    request_id  TEXT NOT NULL,
    PRIMARY KEY (merchant_id, key, value, request_id)
) WITHOUT ROWID;

-- Every movement of money; never updated.
CREATE TABLE transactions (
    transaction_id  TEXT NOT NULL,
    wallet_id       TEXT NOT NULL,
    -- 1, 2, 3, … on each wallet, without gaps.
    number          BIGINT NOT NULL,
    kind            TEXT NOT NULL,
    amount          BIGINT NOT NULL,
    balance_after   BIGINT NOT NULL,
    request_id      TEXT,
    description     TEXT,
    idempotency_key TEXT NOT NULL,
    created_at      BIGINT NOT NULL,
    PRIMARY KEY (wallet_id, number)
) WITHOUT ROWID;
CREATE UNIQUE INDEX transactions_once ON transactions (idempotency_key, wallet_id);

-- Answers of our own operations, kept for those who ask again.
CREATE TABLE idempotent_answers (
    scope           TEXT NOT NULL,
    idempotency_key TEXT NOT NULL,
    fingerprint     BLOB NOT NULL,
    status          INTEGER NOT NULL,
    body            TEXT NOT NULL,
    created_at      BIGINT NOT NULL,
    PRIMARY KEY (scope, idempotency_key)
);
CREATE INDEX idempotent_answers_by_age ON idempotent_answers (created_at);

-- One life of a serving process each.
CREATE TABLE nodes (
    node_id     TEXT NOT NULL PRIMARY KEY,
    lease_until BIGINT NOT NULL
);
