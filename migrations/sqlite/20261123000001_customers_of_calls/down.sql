UPDATE requests SET connection_id = NULL WHERE spend_key_id IS NOT NULL;
DELETE FROM usage_rollups;
DELETE FROM usage_tags;
DELETE FROM usage_series;
