-- The instant from which calls for a customer are refused until it is resumed.
ALTER TABLE connections ADD COLUMN suspended_at BIGINT;
-- The zone in which the dashboard shows a merchant's days and times: an IANA name.
ALTER TABLE merchants ADD COLUMN time_zone TEXT COLLATE "C" NOT NULL DEFAULT 'UTC';
