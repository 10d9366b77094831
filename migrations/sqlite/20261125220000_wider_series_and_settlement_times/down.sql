DROP INDEX usage_series_of_connection;
DROP INDEX usage_series_of_spend_key;
DELETE FROM usage_rollups WHERE series_id IN
    (SELECT series_id FROM usage_series WHERE key IN (':customers', ':models') OR key LIKE ':pair.%');
DELETE FROM usage_series WHERE key IN (':incomplete', ':customers', ':models') OR key LIKE ':pair.%';
ALTER TABLE usage_rollups ADD COLUMN merchant_id BLOB NOT NULL DEFAULT x'';
UPDATE usage_rollups SET merchant_id =
    (SELECT merchant_id FROM usage_series WHERE usage_series.series_id = usage_rollups.series_id);
DROP INDEX requests_settled_later;
UPDATE requests SET outcome = json_set(outcome, '$.settled_at', settled_at) WHERE settled_at IS NOT NULL;
ALTER TABLE requests DROP COLUMN settled_at;
