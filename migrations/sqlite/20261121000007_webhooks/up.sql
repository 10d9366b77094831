-- Events get a number in the order in which they are written: those of one resource are written under
-- its lock, so their numbers are in their order. What happened before there were webhooks is nobody's
-- to be told.
ALTER TABLE events RENAME TO events_before;
DROP INDEX events_by_merchant;
CREATE TABLE events (
    number        INTEGER PRIMARY KEY AUTOINCREMENT,
    event_id      TEXT NOT NULL UNIQUE,
    merchant_id   TEXT NOT NULL REFERENCES merchants,
    kind          TEXT NOT NULL,
    -- The resource whose events are told in their order.
    resource      TEXT NOT NULL,
    news          TEXT NOT NULL,
    created_at    BIGINT NOT NULL,
    -- When the webhooks that want it were found; until then it waits.
    dispatched_at BIGINT
);
INSERT INTO events (event_id, merchant_id, kind, resource, news, created_at, dispatched_at)
    SELECT event_id, merchant_id, kind, '', news, created_at, created_at
    FROM events_before ORDER BY event_id;
DROP TABLE events_before;
CREATE INDEX events_by_merchant ON events (merchant_id, event_id);
CREATE INDEX events_waiting ON events (merchant_id, number) WHERE dispatched_at IS NULL;

-- Where merchants want to be told. A webhook's row is also the head of its queue: who changes which
-- deliveries wait for it holds its lock.
CREATE TABLE webhooks (
    webhook_id   TEXT NOT NULL PRIMARY KEY,
    merchant_id  TEXT NOT NULL REFERENCES merchants,
    name         TEXT NOT NULL,
    url          TEXT NOT NULL,
    -- A JSON array of kinds; absent for all but those of single calls.
    events       TEXT,
    -- The secrets that messages are signed with, as JSON.
    secrets      TEXT NOT NULL,
    -- The number of its last delivery.
    sequence     BIGINT NOT NULL,
    -- When its next delivery is due; absent when none is.
    due_at       BIGINT,
    created_at   BIGINT NOT NULL,
    deleted_at   BIGINT,
    -- Since when it is told of single calls.
    requests_since BIGINT,
    -- The number of the last event that it is not told of: those that waited when it was made.
    events_before BIGINT NOT NULL
);
CREATE INDEX webhooks_by_merchant ON webhooks (merchant_id, webhook_id);
CREATE INDEX webhooks_due ON webhooks (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX webhooks_of_requests ON webhooks (merchant_id) WHERE requests_since IS NOT NULL;

CREATE TABLE deliveries (
    delivery_id     TEXT NOT NULL PRIMARY KEY,
    webhook_id      TEXT NOT NULL REFERENCES webhooks,
    event_id        TEXT NOT NULL REFERENCES events (event_id),
    resource        TEXT NOT NULL,
    sequence        BIGINT NOT NULL,
    -- `waiting` for an earlier one of its resource, `pending`, `delivered` or `failed`.
    status          TEXT NOT NULL,
    -- All attempts, and those since it was last sent anew.
    attempts        INTEGER NOT NULL,
    failures        INTEGER NOT NULL,
    -- When it was taken up, or last sent anew.
    queued_at       BIGINT NOT NULL,
    last_attempt_at BIGINT,
    -- When it is due, or when the attempt that is under way is taken for lost. Absent unless it is
    -- pending.
    next_attempt_at BIGINT,
    response_status INTEGER,
    response_body   TEXT,
    fault           TEXT,
    duration_ms     INTEGER,
    created_at      BIGINT NOT NULL,
    UNIQUE (event_id, webhook_id)
);
CREATE INDEX deliveries_by_webhook ON deliveries (webhook_id, delivery_id);
CREATE INDEX deliveries_in_order ON deliveries (webhook_id, status, resource, sequence);
CREATE INDEX deliveries_due ON deliveries (webhook_id, next_attempt_at)
    WHERE next_attempt_at IS NOT NULL;
