-- The prices that were missing on a UTC day, in days since 1970: what a merchant was told of, so that
-- it is told once. Rows of past days are deleted.
CREATE TABLE missing_prices (
    merchant_id TEXT COLLATE "C" NOT NULL,
    day         BIGINT NOT NULL,
    provider    TEXT COLLATE "C" NOT NULL,
    model       TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (merchant_id, day, provider, model)
);
