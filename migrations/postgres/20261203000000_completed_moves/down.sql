ALTER TABLE merchants DROP COLUMN moved_at;
