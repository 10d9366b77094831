DROP TABLE events;
ALTER TABLE requests DROP COLUMN spend_hold;
DROP TABLE spend_counters;
DROP TABLE spend_keys;
