ALTER TABLE open_calls DROP COLUMN is_ahead;
