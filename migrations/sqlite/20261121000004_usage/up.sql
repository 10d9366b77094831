-- What ended calls come to, added up by the transaction that ends them.
--
-- A series is what is added up together: all calls of a merchant or of a connection (its id is
-- theirs), or those among them with the same metadata. `slot` is the time of admission in quarter
-- hours since 1970; a row covers `width` of them from there on: 1, and 12 so that long ranges
-- are few rows. `shard` lets several writers add to one series without waiting for each other.
-- Each sum is `x + 10000000000 * x_high`, so that no addition leaves the range of a BIGINT.
CREATE TABLE usage_rollups (
    series_id           TEXT NOT NULL,
    width               INTEGER NOT NULL,
    slot                BIGINT NOT NULL,
    -- Empty where no meter priced the calls.
    meter_id            TEXT NOT NULL,
    shard               INTEGER NOT NULL,
    requests            BIGINT NOT NULL,
    tokens              BIGINT NOT NULL,
    tokens_high         BIGINT NOT NULL,
    usage_cost          BIGINT NOT NULL,
    usage_cost_high     BIGINT NOT NULL,
    fee                 BIGINT NOT NULL,
    fee_high            BIGINT NOT NULL,
    service_charge      BIGINT NOT NULL,
    service_charge_high BIGINT NOT NULL,
    wallet_cost         BIGINT NOT NULL,
    wallet_cost_high    BIGINT NOT NULL,
    merchant_cost       BIGINT NOT NULL,
    merchant_cost_high  BIGINT NOT NULL,
    PRIMARY KEY (series_id, width, slot, meter_id, shard)
) WITHOUT ROWID;

-- The series of one set of metadata. Several may have the same.
CREATE TABLE usage_series (
    series_id     TEXT NOT NULL PRIMARY KEY,
    connection_id TEXT,
    metadata      TEXT NOT NULL
) WITHOUT ROWID;

-- How a series is found: by its owner (a merchant or a connection) alone, with an empty key; or, if
-- it has pairs whose keys have many values, by its merchant and each of these pairs.
CREATE TABLE usage_tags (
    owner_id  TEXT NOT NULL,
    key       TEXT NOT NULL,
    value     TEXT NOT NULL,
    series_id TEXT NOT NULL,
    PRIMARY KEY (owner_id, key, value, series_id)
) WITHOUT ROWID;

-- What ended before. Their metadata become series that are found by their owner, named after one
-- of their calls.
CREATE TEMPORARY TABLE ended AS
SELECT merchant_id, connection_id, coalesce(meter_id, '') AS meter_id, request_id,
       json_extract(forwarded, '$.metadata') AS metadata,
       created_at / 900000000 AS slot,
       (SELECT coalesce(sum(value), 0) FROM json_each(outcome, '$.priced.usage.quantities')
        WHERE key IN ('input', 'cached_input', 'cache_write', 'cache_write_1h', 'input_audio',
                      'input_image', 'output', 'reasoning', 'output_audio', 'output_image')) AS tokens,
       CAST(replace(json_extract(outcome, '$.quote.base.input'), '.', '') AS INTEGER)
           + CAST(replace(json_extract(outcome, '$.quote.base.output'), '.', '') AS INTEGER) AS usage_cost,
       (SELECT coalesce(sum(CAST(replace(json_extract(value, '$.cost'), '.', '') AS INTEGER)), 0)
        FROM json_each(outcome, '$.quote.fee.lines')) AS fee,
       CAST(replace(json_extract(outcome, '$.quote.service_charge.amount'), '.', '') AS INTEGER) AS service_charge,
       wallet_cost, merchant_cost
FROM requests WHERE outcome IS NOT NULL;

CREATE TEMPORARY TABLE ended_series AS
SELECT owner_id, max(connection_id) AS connection_id, metadata, min(request_id) || ':' || owner_id AS series_id
FROM (SELECT merchant_id AS owner_id, NULL AS connection_id, metadata, request_id FROM ended
      UNION ALL
      SELECT connection_id, connection_id, metadata, request_id FROM ended WHERE connection_id IS NOT NULL)
WHERE metadata <> '{}'
GROUP BY owner_id, metadata;

INSERT INTO usage_series SELECT series_id, connection_id, metadata FROM ended_series;
INSERT INTO usage_tags SELECT owner_id, '', '', series_id FROM ended_series;
INSERT INTO usage_rollups
SELECT series_id, width, slot - slot % width, meter_id, 0, count(*),
       sum(tokens % 10000000000), sum(tokens / 10000000000),
       sum(usage_cost % 10000000000), sum(usage_cost / 10000000000),
       sum(fee % 10000000000), sum(fee / 10000000000),
       sum(service_charge % 10000000000), sum(service_charge / 10000000000),
       sum(wallet_cost % 10000000000), sum(wallet_cost / 10000000000),
       sum(merchant_cost % 10000000000), sum(merchant_cost / 10000000000)
FROM (SELECT merchant_id AS series_id, ended.* FROM ended
      UNION ALL
      SELECT connection_id, ended.* FROM ended WHERE connection_id IS NOT NULL
      UNION ALL
      SELECT s.series_id, ended.* FROM ended
      JOIN ended_series s ON s.metadata = ended.metadata AND s.owner_id IN (ended.merchant_id, ended.connection_id))
CROSS JOIN (SELECT 1 AS width UNION ALL SELECT 12)
GROUP BY 1, 2, 3, 4;

DROP TABLE ended_series;
DROP TABLE ended;

-- With the other of the two in the index, a list by both reads no record that is not on its page.
DROP INDEX requests_by_connection;
DROP INDEX requests_by_meter;
CREATE INDEX requests_by_connection ON requests (connection_id, request_id, meter_id) WHERE connection_id IS NOT NULL;
CREATE INDEX requests_by_meter ON requests (meter_id, request_id, connection_id) WHERE meter_id IS NOT NULL;
