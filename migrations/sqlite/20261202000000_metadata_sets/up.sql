-- Sets of settled calls of a merchant that are alike in metadata, but for the keys with too many values. Calls that a
-- program without this table has counted are in none, nor are those whose metadata is very long.
-- The id is computed from the other columns.
CREATE TABLE metadata_sets (
    merchant_id BLOB NOT NULL,
    set_id      BLOB NOT NULL,
    -- A JSON object, with its keys in order.
    metadata    TEXT NOT NULL,
    -- The sets of a merchant are counted by this index, so their metadata is not in it.
    PRIMARY KEY (merchant_id, set_id)
);

-- The sums of a set. `slot` and `width` are those of `usage_rollups`. The rows of a merchant are in the order of time.
CREATE TABLE metadata_rollups (
    merchant_id         BLOB NOT NULL,
    width               INTEGER NOT NULL,
    slot                BIGINT NOT NULL,
    set_id              BLOB NOT NULL,
    requests            BIGINT NOT NULL,
    failed              BIGINT NOT NULL,
    input_tokens        BIGINT NOT NULL,
    output_tokens       BIGINT NOT NULL,
    cached_input_tokens BIGINT NOT NULL,
    cache_write_tokens  BIGINT NOT NULL,
    reasoning_tokens    BIGINT NOT NULL,
    input_audio_tokens  BIGINT NOT NULL,
    output_audio_tokens BIGINT NOT NULL,
    usage_cost          BIGINT NOT NULL,
    provider_cost       BIGINT NOT NULL,
    fee                 BIGINT NOT NULL,
    service_charge      BIGINT NOT NULL,
    wallet_cost         BIGINT NOT NULL,
    merchant_cost       BIGINT NOT NULL,
    revenue             BIGINT NOT NULL,
    PRIMARY KEY (merchant_id, width, slot, set_id)
) WITHOUT ROWID;

-- The keys with too many values. Later sets do not have them. The empty key stands for all keys: then there are no later sets.
CREATE TABLE high_cardinality_keys (
    merchant_id BLOB NOT NULL,
    key         TEXT NOT NULL,
    PRIMARY KEY (merchant_id, key)
) WITHOUT ROWID;
