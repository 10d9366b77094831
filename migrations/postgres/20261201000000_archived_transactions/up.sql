-- The transactions that are in the archive: a row for consecutive ones of a wallet and an account. Their numbers are the same
-- in the rows of several accounts. A transaction is here or in transactions, and one database transaction moves it.
CREATE TABLE archived_transactions (
    wallet_id     BYTEA NOT NULL,
    first_number  BIGINT NOT NULL,
    account       SMALLINT NOT NULL CHECK (account BETWEEN 1 AND 3),
    last_number   BIGINT NOT NULL,
    merchant_id   BYTEA NOT NULL,
    -- The month of their files, such as 2026-01.
    month         TEXT COLLATE "C" NOT NULL,
    -- The sum of the amounts of this account, and its balance after the last one.
    amount        BIGINT NOT NULL,
    balance_after BIGINT NOT NULL,
    -- The time of the first one. None of them is of another statement, in any time zone.
    created_at    BIGINT NOT NULL,
    PRIMARY KEY (wallet_id, first_number, account)
);

-- The time at which the last transaction of the month was deleted that leaves with it.
ALTER TABLE archived_months ADD COLUMN transactions_deleted_at BIGINT;
