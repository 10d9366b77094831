DROP TABLE deliveries;
DROP TABLE webhooks;
DROP INDEX events_waiting;
ALTER TABLE events DROP COLUMN number, DROP COLUMN resource, DROP COLUMN dispatched_at;
