-- Limits that spend keys, customers and other budgets share.
CREATE TABLE budgets (
    budget_id   BYTEA NOT NULL PRIMARY KEY,
    merchant_id BYTEA NOT NULL REFERENCES merchants,
    -- The budget that includes it.
    parent_id   BYTEA REFERENCES budgets,
    name        TEXT COLLATE "C" NOT NULL,
    rules       TEXT COLLATE "C" NOT NULL,
    -- Whether it takes calls by their metadata.
    matches     BOOLEAN NOT NULL,
    metadata    TEXT COLLATE "C" NOT NULL,
    created_at  BIGINT NOT NULL,
    deleted_at  BIGINT
);
CREATE INDEX budgets_by_merchant ON budgets (merchant_id, budget_id);
CREATE INDEX budgets_that_match ON budgets (merchant_id) WHERE matches;
CREATE INDEX budgets_by_parent ON budgets (parent_id) WHERE parent_id IS NOT NULL;
CREATE CONSTRAINT TRIGGER count_config_change AFTER UPDATE OR DELETE ON budgets
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION count_config_change();
-- A new budget may match calls at once.
CREATE FUNCTION count_new_config() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO config_versions VALUES (NEW.merchant_id, 1)
        ON CONFLICT (merchant_id) DO UPDATE SET version = config_versions.version + 1;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER count_new_config AFTER INSERT ON budgets
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION count_new_config();

ALTER TABLE spend_keys ADD COLUMN budget_id BYTEA REFERENCES budgets;
CREATE INDEX spend_keys_by_budget ON spend_keys (budget_id) WHERE budget_id IS NOT NULL;
ALTER TABLE connections ADD COLUMN budget_id BYTEA REFERENCES budgets;
CREATE INDEX connections_by_budget ON connections (budget_id) WHERE budget_id IS NOT NULL;

-- The budgets that a call counts against, as JSON.
ALTER TABLE open_calls ADD COLUMN budgets TEXT COLLATE "C";
ALTER TABLE requests ADD COLUMN budgets TEXT COLLATE "C";

-- The budget that the spend key of the calls names, else their customer.
ALTER TABLE usage_series ADD COLUMN budget_id BYTEA;
-- The ids of all budgets that the calls count against, with commas between.
ALTER TABLE usage_series ADD COLUMN budgets TEXT COLLATE "C";

-- The table has the counters of spend keys and of budgets.
ALTER TABLE spend_counters DROP CONSTRAINT spend_counters_spend_key_id_fkey;
ALTER TABLE spend_counters RENAME COLUMN spend_key_id TO account_id;
