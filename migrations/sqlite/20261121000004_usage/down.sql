DROP TABLE usage_rollups;
DROP TABLE usage_tags;
DROP TABLE usage_series;
