DROP INDEX requests_by_connection;
DROP INDEX requests_by_meter;
CREATE INDEX requests_by_connection ON requests (connection_id, request_id) WHERE connection_id IS NOT NULL;
CREATE INDEX requests_by_meter ON requests (meter_id, request_id) WHERE meter_id IS NOT NULL;
DROP TABLE usage_rollups;
DROP TABLE usage_tags;
DROP TABLE usage_series;
