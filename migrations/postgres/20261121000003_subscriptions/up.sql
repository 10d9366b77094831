-- What merchants offer for a price per cycle.
CREATE TABLE subscription_configs (
    subscription_config_id TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    merchant_id      TEXT COLLATE "C" NOT NULL REFERENCES merchants,
    name             TEXT COLLATE "C" NOT NULL,
    period_amount    BIGINT NOT NULL,
    billing_interval TEXT COLLATE "C" NOT NULL,
    version          INTEGER NOT NULL,
    created_at       BIGINT NOT NULL,
    deleted_at       BIGINT
);
CREATE INDEX subscription_configs_by_merchant
    ON subscription_configs (merchant_id, subscription_config_id);

-- The terms of a configuration from one change to the next; never updated.
CREATE TABLE subscription_config_versions (
    subscription_config_id TEXT COLLATE "C" NOT NULL REFERENCES subscription_configs,
    version    INTEGER NOT NULL,
    terms      TEXT COLLATE "C" NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (subscription_config_id, version)
);

CREATE TABLE credit_bundles (
    credit_bundle_id       TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    subscription_config_id TEXT COLLATE "C" NOT NULL REFERENCES subscription_configs,
    merchant_id            TEXT COLLATE "C" NOT NULL REFERENCES merchants,
    name                   TEXT COLLATE "C" NOT NULL,
    cost                   BIGINT NOT NULL,
    credit_amount          BIGINT NOT NULL,
    created_at             BIGINT NOT NULL,
    deleted_at             BIGINT
);
CREATE INDEX credit_bundles_by_merchant ON credit_bundles (merchant_id, credit_bundle_id);
CREATE INDEX credit_bundles_by_config ON credit_bundles (subscription_config_id, credit_bundle_id);

-- Written only under the lock of the wallet that the credit lies on.
CREATE TABLE subscriptions (
    subscription_id        TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    merchant_id            TEXT COLLATE "C" NOT NULL REFERENCES merchants,
    connection_id          TEXT COLLATE "C" NOT NULL REFERENCES connections,
    wallet_id              TEXT COLLATE "C" NOT NULL REFERENCES wallets,
    subscription_config_id TEXT COLLATE "C" NOT NULL REFERENCES subscription_configs,
    status         TEXT COLLATE "C" NOT NULL,
    started_at     BIGINT NOT NULL,
    cancelled_at   BIGINT,
    -- From when cycles are counted, and which one it is in from there.
    anchor_at      BIGINT NOT NULL,
    cycle          BIGINT NOT NULL,
    cycle_start_at BIGINT NOT NULL,
    cycle_end_at   BIGINT NOT NULL,
    -- What happens when the cycle ends, and which configuration holds from then if it goes on.
    pending_change    TEXT COLLATE "C",
    pending_config_id TEXT COLLATE "C" REFERENCES subscription_configs
);
CREATE INDEX subscriptions_by_merchant ON subscriptions (merchant_id, subscription_id);
CREATE INDEX subscriptions_by_connection ON subscriptions (connection_id, subscription_id);
CREATE INDEX subscriptions_by_config ON subscriptions (subscription_config_id);
CREATE INDEX subscriptions_by_pending_config ON subscriptions (pending_config_id)
    WHERE pending_config_id IS NOT NULL;
CREATE UNIQUE INDEX subscriptions_active ON subscriptions (connection_id) WHERE status = 'active';
CREATE INDEX subscriptions_due ON subscriptions (cycle_end_at) WHERE status = 'active';

-- The credits of a wallet, and the active subscription that fills them.
ALTER TABLE wallets ADD COLUMN subscription_id TEXT COLLATE "C";
ALTER TABLE wallets ADD COLUMN cycle_credit   BIGINT NOT NULL DEFAULT 0 CHECK (cycle_credit >= 0);
ALTER TABLE wallets ADD COLUMN cycle_held     BIGINT NOT NULL DEFAULT 0 CHECK (cycle_held >= 0);
ALTER TABLE wallets ADD COLUMN cycle_expired  BIGINT NOT NULL DEFAULT 0;
ALTER TABLE wallets ADD COLUMN bundle_credit  BIGINT NOT NULL DEFAULT 0 CHECK (bundle_credit >= 0);
ALTER TABLE wallets ADD COLUMN bundle_held    BIGINT NOT NULL DEFAULT 0 CHECK (bundle_held >= 0);
ALTER TABLE wallets ADD COLUMN bundle_expired BIGINT NOT NULL DEFAULT 0;
-- How many cycles have begun on it.
ALTER TABLE wallets ADD COLUMN cycles         BIGINT NOT NULL DEFAULT 0;

-- What a pending call has reserved of its wallet's credits and in which cycle; no cycle for a call
-- that may not draw on them.
ALTER TABLE requests ADD COLUMN cycle_hold   BIGINT NOT NULL DEFAULT 0;
ALTER TABLE requests ADD COLUMN bundle_hold  BIGINT NOT NULL DEFAULT 0;
ALTER TABLE requests ADD COLUMN credit_cycle BIGINT;

-- The merchant's own id of usage that was reported.
ALTER TABLE requests ADD COLUMN reference_id TEXT COLLATE "C";
CREATE UNIQUE INDEX requests_by_reference ON requests (merchant_id, reference_id)
    WHERE reference_id IS NOT NULL;

-- What of a wallet a movement moves: its balance or one of its credits.
ALTER TABLE transactions ADD COLUMN account TEXT COLLATE "C" NOT NULL DEFAULT 'balance';
