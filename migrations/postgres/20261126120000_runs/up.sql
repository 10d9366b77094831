-- Runs: the calls of one task. Their counters are in spend_counters.
CREATE TABLE runs (
    account_id    BYTEA NOT NULL PRIMARY KEY REFERENCES spend_counters ON DELETE CASCADE,
    merchant_id   BYTEA NOT NULL,
    -- The owner: the spend key, else the customer, else the merchant.
    connection_id BYTEA,
    spend_key_id  BYTEA,
    -- Empty for the run of a day.
    run_id        TEXT COLLATE "C" NOT NULL,
    run_limit     BIGINT,
    first_at      BIGINT NOT NULL
);
CREATE INDEX runs_by_merchant ON runs (merchant_id, first_at, account_id);
CREATE INDEX runs_by_spend_key ON runs (spend_key_id, first_at, account_id) WHERE spend_key_id IS NOT NULL;

ALTER TABLE open_calls ADD COLUMN run_id TEXT COLLATE "C";
ALTER TABLE requests ADD COLUMN run_id TEXT COLLATE "C";
ALTER TABLE refusals ADD COLUMN run_id TEXT COLLATE "C";
CREATE INDEX refusals_by_run ON refusals (merchant_id, run_id, refusal_id) WHERE run_id IS NOT NULL;
