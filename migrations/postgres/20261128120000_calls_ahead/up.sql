-- Whether the money of a call is held before it is asked for. Such a call has no record until it begins.
ALTER TABLE open_calls ADD COLUMN is_ahead BOOLEAN NOT NULL DEFAULT FALSE;
