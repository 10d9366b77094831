DROP TABLE deliveries;
DROP TABLE webhooks;
ALTER TABLE events RENAME TO events_after;
DROP INDEX events_by_merchant;
CREATE TABLE events (
    event_id    TEXT NOT NULL PRIMARY KEY,
    merchant_id TEXT NOT NULL REFERENCES merchants,
    kind        TEXT NOT NULL,
    news        TEXT NOT NULL,
    created_at  BIGINT NOT NULL
);
INSERT INTO events SELECT event_id, merchant_id, kind, news, created_at FROM events_after;
DROP TABLE events_after;
CREATE INDEX events_by_merchant ON events (merchant_id, event_id);
