-- The time at which the move to the cell `moved_to` was complete. The other database has the merchant then.
ALTER TABLE merchants ADD COLUMN moved_at BIGINT;
