-- Limits that spend keys, customers and other budgets share.
CREATE TABLE budgets (
    budget_id   BLOB NOT NULL PRIMARY KEY,
    merchant_id BLOB NOT NULL REFERENCES merchants,
    -- The budget that includes it.
    parent_id   BLOB REFERENCES budgets,
    name        TEXT NOT NULL,
    rules       TEXT NOT NULL,
    -- Whether it takes calls by their metadata.
    matches     BOOLEAN NOT NULL,
    metadata    TEXT NOT NULL,
    created_at  BIGINT NOT NULL,
    deleted_at  BIGINT
);
CREATE INDEX budgets_by_merchant ON budgets (merchant_id, budget_id);
CREATE INDEX budgets_that_match ON budgets (merchant_id) WHERE matches;
CREATE INDEX budgets_by_parent ON budgets (parent_id) WHERE parent_id IS NOT NULL;

ALTER TABLE spend_keys ADD COLUMN budget_id BLOB REFERENCES budgets;
CREATE INDEX spend_keys_by_budget ON spend_keys (budget_id) WHERE budget_id IS NOT NULL;
ALTER TABLE connections ADD COLUMN budget_id BLOB REFERENCES budgets;
CREATE INDEX connections_by_budget ON connections (budget_id) WHERE budget_id IS NOT NULL;

-- The budgets that a call counts against, as JSON.
ALTER TABLE open_calls ADD COLUMN budgets TEXT;
ALTER TABLE requests ADD COLUMN budgets TEXT;

-- The budget that the spend key of the calls names, else their customer.
ALTER TABLE usage_series ADD COLUMN budget_id BLOB;
-- The ids of all budgets that the calls count against, with commas between.
ALTER TABLE usage_series ADD COLUMN budgets TEXT;

-- The table has the counters of spend keys and of budgets.
CREATE TABLE account_counters (
    account_id     BLOB NOT NULL PRIMARY KEY,
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
INSERT INTO account_counters SELECT * FROM spend_counters;
DROP TABLE spend_counters;
ALTER TABLE account_counters RENAME TO spend_counters;
