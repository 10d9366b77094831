DROP INDEX usage_series_of_connection;
DROP INDEX usage_series_of_spend_key;
DELETE FROM usage_rollups WHERE series_id IN
    (SELECT series_id FROM usage_series WHERE key IN (':customers', ':models') OR key LIKE ':pair.%');
DELETE FROM usage_series WHERE key IN (':incomplete', ':customers', ':models') OR key LIKE ':pair.%';
-- Hours are the sums of their quarters.
DELETE FROM usage_rollups WHERE width = 4;
INSERT INTO usage_rollups (series_id, width, slot,
    requests, failed, input_tokens, output_tokens, cached_input_tokens, cache_write_tokens,
    reasoning_tokens, input_audio_tokens, output_audio_tokens, usage_cost, provider_cost, fee,
    service_charge, wallet_cost, merchant_cost, revenue)
SELECT series_id, 4, slot - slot % 4,
    sum(requests), sum(failed), sum(input_tokens), sum(output_tokens), sum(cached_input_tokens),
    sum(cache_write_tokens), sum(reasoning_tokens), sum(input_audio_tokens),
    sum(output_audio_tokens), sum(usage_cost), sum(provider_cost), sum(fee), sum(service_charge),
    sum(wallet_cost), sum(merchant_cost), sum(revenue)
FROM usage_rollups WHERE width = 1 GROUP BY series_id, slot - slot % 4;
ALTER TABLE usage_rollups ADD COLUMN merchant_id BYTEA NOT NULL DEFAULT '\x';
UPDATE usage_rollups SET merchant_id =
    (SELECT merchant_id FROM usage_series WHERE usage_series.series_id = usage_rollups.series_id);
DROP INDEX requests_settled_later;
UPDATE requests SET outcome = concat('{"settled_at":', settled_at, ',', substr(outcome, 2))
    WHERE settled_at IS NOT NULL;
ALTER TABLE requests DROP COLUMN settled_at;
