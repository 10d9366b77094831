DELETE FROM request_index WHERE key IN (':in_budget', ':would_refuse');
DELETE FROM spend_counters WHERE account_id IN (SELECT budget_id FROM budgets);
CREATE TABLE account_counters (
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
INSERT INTO account_counters SELECT * FROM spend_counters;
DROP TABLE spend_counters;
ALTER TABLE account_counters RENAME TO spend_counters;
DROP INDEX connections_by_budget;
DROP INDEX spend_keys_by_budget;
ALTER TABLE usage_series DROP COLUMN budgets;
ALTER TABLE usage_series DROP COLUMN budget_id;
ALTER TABLE requests DROP COLUMN budgets;
ALTER TABLE open_calls DROP COLUMN budgets;
ALTER TABLE connections DROP COLUMN budget_id;
ALTER TABLE spend_keys DROP COLUMN budget_id;
DROP TABLE budgets;
