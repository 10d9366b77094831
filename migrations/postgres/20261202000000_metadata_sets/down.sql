DROP TABLE high_cardinality_keys;
DROP TABLE metadata_rollups;
DROP TABLE metadata_sets;
