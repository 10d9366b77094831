DROP INDEX merchants_moved;
ALTER TABLE merchants DROP COLUMN moved_to;
