DELETE FROM usage_rollups WHERE series_id IN (SELECT spend_key_id FROM spend_keys)
    OR series_id IN (SELECT series_id FROM usage_tags WHERE key IN (':model', ':status'));
DELETE FROM usage_series WHERE series_id IN (SELECT series_id FROM usage_tags WHERE key IN (':model', ':status'));
DELETE FROM usage_tags WHERE key IN (':model', ':status');
