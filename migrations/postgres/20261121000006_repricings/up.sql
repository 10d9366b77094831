-- What was moved because a record was priced again. The record stays as it was settled; what its call
-- cost in the end is the record and all of these.
CREATE TABLE repricings (
    request_id     TEXT COLLATE "C" NOT NULL,
    -- 1, 2, 3, … of each record.
    number         INTEGER NOT NULL,
    base_before    BIGINT NOT NULL,
    base_after     BIGINT NOT NULL,
    -- How much more it costs each; negative when it was given back.
    wallet_delta   BIGINT NOT NULL,
    merchant_delta BIGINT NOT NULL,
    -- The prices that were applied, as JSON.
    applied        TEXT NOT NULL,
    created_at     BIGINT NOT NULL,
    PRIMARY KEY (request_id, number)
);
