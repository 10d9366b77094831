-- The prices that were missing on a UTC day, in days since 1970: what a merchant was told of, so that
-- it is told once. Rows of past days are deleted.
CREATE TABLE missing_prices (
    merchant_id TEXT NOT NULL,
    day         BIGINT NOT NULL,
    provider    TEXT NOT NULL,
    model       TEXT NOT NULL,
    PRIMARY KEY (merchant_id, day, provider, model)
) WITHOUT ROWID;
