-- What ended calls come to by spend key, by model, and of those that failed: for charts, so in wide rows
-- only. The series of a spend key has its id; the others are found by a tag of the merchant, whose key no
-- metadata has.
CREATE TEMPORARY TABLE ended AS
SELECT merchant_id, spend_key_id, coalesce(meter_id, '') COLLATE "C" AS meter_id, request_id, status,
       (provider || '/' || CASE WHEN octet_length(model) > 255 OR model ~ '[[:cntrl:]]' THEN ''
                                ELSE coalesce(model, '') END) COLLATE "C" AS model,
       created_at / 900000000 AS slot,
       (SELECT coalesce(sum(value::numeric), 0) FROM jsonb_each_text(quantities)
        WHERE key IN ('input', 'cached_input', 'cache_write', 'cache_write_1h', 'input_audio',
                      'input_image', 'output', 'reasoning', 'output_audio', 'output_image')) AS tokens,
       replace(quote #>> '{base,input}', '.', '')::bigint
           + replace(quote #>> '{base,output}', '.', '')::bigint AS usage_cost,
       (SELECT coalesce(sum(replace(line ->> 'cost', '.', '')::bigint), 0)::bigint
        FROM jsonb_array_elements(quote #> '{fee,lines}') line) AS fee,
       replace(quote #>> '{service_charge,amount}', '.', '')::bigint AS service_charge,
       wallet_cost, merchant_cost
FROM (SELECT *, forwarded::jsonb ->> 'provider' AS provider, outcome::jsonb ->> 'model' AS model,
             outcome::jsonb -> 'quote' AS quote,
             outcome::jsonb #> '{priced,usage,quantities}' AS quantities
      FROM requests WHERE outcome IS NOT NULL) r;

CREATE TEMPORARY TABLE ended_series AS
SELECT merchant_id, key, value, min(request_id) || key AS series_id
FROM (SELECT merchant_id, ':model'::text COLLATE "C" AS key, model AS value, request_id FROM ended
      UNION ALL
      SELECT merchant_id, ':status', 'error', request_id FROM ended WHERE status = 'error') o
GROUP BY merchant_id, key, value;

INSERT INTO usage_series SELECT series_id, NULL, '{}' FROM ended_series;
INSERT INTO usage_tags SELECT merchant_id, key, value, series_id FROM ended_series;
INSERT INTO usage_rollups
SELECT series_id, 12, slot - slot % 12, meter_id, 0, count(*),
       sum(tokens % 10000000000), sum(div(tokens, 10000000000)),
       sum(usage_cost % 10000000000), sum(usage_cost / 10000000000),
       sum(fee % 10000000000), sum(fee / 10000000000),
       sum(service_charge % 10000000000), sum(service_charge / 10000000000),
       sum(wallet_cost % 10000000000), sum(wallet_cost / 10000000000),
       sum(merchant_cost % 10000000000), sum(merchant_cost / 10000000000)
FROM (SELECT spend_key_id AS series_id, ended.* FROM ended WHERE spend_key_id IS NOT NULL
      UNION ALL
      SELECT s.series_id, ended.* FROM ended
      JOIN ended_series s ON s.merchant_id = ended.merchant_id
          AND (s.key = ':model' AND s.value = ended.model OR s.key = ':status' AND s.value = ended.status)) o
GROUP BY 1, 2, 3, 4;

DROP TABLE ended_series;
DROP TABLE ended;
