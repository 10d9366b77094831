-- What ended calls come to by spend key, by model, and of those that failed: for charts, so in wide rows
-- only. The series of a spend key has its id; the others are found by a tag of the merchant, whose key no
-- metadata has.
CREATE TEMPORARY TABLE ended AS
SELECT merchant_id, spend_key_id, coalesce(meter_id, '') AS meter_id, request_id, status,
       json_extract(forwarded, '$.provider') || '/' || CASE
           WHEN length(CAST(json_extract(outcome, '$.model') AS BLOB)) > 255 THEN ''
           WHEN json_extract(outcome, '$.model') GLOB '*[' || char(1) || '-' || char(31) || ']*' THEN ''
           ELSE coalesce(json_extract(outcome, '$.model'), '') END AS model,
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
SELECT merchant_id, key, value, min(request_id) || key AS series_id
FROM (SELECT merchant_id, ':model' AS key, model AS value, request_id FROM ended
      UNION ALL
      SELECT merchant_id, ':status', 'error', request_id FROM ended WHERE status = 'error')
GROUP BY merchant_id, key, value;

INSERT INTO usage_series SELECT series_id, NULL, '{}' FROM ended_series;
INSERT INTO usage_tags SELECT merchant_id, key, value, series_id FROM ended_series;
INSERT INTO usage_rollups
SELECT series_id, 12, slot - slot % 12, meter_id, 0, count(*),
       sum(tokens % 10000000000), sum(tokens / 10000000000),
       sum(usage_cost % 10000000000), sum(usage_cost / 10000000000),
       sum(fee % 10000000000), sum(fee / 10000000000),
       sum(service_charge % 10000000000), sum(service_charge / 10000000000),
       sum(wallet_cost % 10000000000), sum(wallet_cost / 10000000000),
       sum(merchant_cost % 10000000000), sum(merchant_cost / 10000000000)
FROM (SELECT spend_key_id AS series_id, ended.* FROM ended WHERE spend_key_id IS NOT NULL
      UNION ALL
      SELECT s.series_id, ended.* FROM ended
      JOIN ended_series s ON s.merchant_id = ended.merchant_id
          AND (s.key = ':model' AND s.value = ended.model OR s.key = ':status' AND s.value = ended.status))
GROUP BY 1, 2, 3, 4;

DROP TABLE ended_series;
DROP TABLE ended;
