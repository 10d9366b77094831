ALTER TABLE merchants DROP COLUMN time_zone;
ALTER TABLE connections DROP COLUMN suspended_at;
