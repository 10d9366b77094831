-- The spend keys and budgets that come from another service: the rows there, and the spend until the import.
CREATE TABLE imports (
    account_id  BYTEA NOT NULL PRIMARY KEY REFERENCES spend_counters,
    merchant_id BYTEA NOT NULL REFERENCES merchants,
    -- The row in the other service, such as "team 7" or "key" and a hash.
    source      TEXT COLLATE "C" NOT NULL,
    spent       BIGINT NOT NULL,
    imported_at BIGINT NOT NULL
);
CREATE INDEX imports_by_source ON imports (source);
