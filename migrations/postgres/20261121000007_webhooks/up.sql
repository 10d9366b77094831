-- Events get a number in the order in which they are written: those of one resource are written under
-- its lock, so their numbers are in their order. What happened before there were webhooks is nobody's
-- to be told.
ALTER TABLE events
    ADD COLUMN number BIGINT GENERATED ALWAYS AS IDENTITY,
    -- The resource whose events are told in their order.
    ADD COLUMN resource TEXT COLLATE "C" NOT NULL DEFAULT '',
    -- When the webhooks that want it were found; until then it waits.
    ADD COLUMN dispatched_at BIGINT;
ALTER TABLE events ALTER COLUMN resource DROP DEFAULT;
UPDATE events SET dispatched_at = created_at;
CREATE INDEX events_waiting ON events (merchant_id, number) WHERE dispatched_at IS NULL;

-- Where merchants want to be told. A webhook's row is also the head of its queue: who changes which
-- deliveries wait for it holds its lock.
CREATE TABLE webhooks (
    webhook_id   TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    merchant_id  TEXT COLLATE "C" NOT NULL REFERENCES merchants,
    name         TEXT COLLATE "C" NOT NULL,
    url          TEXT COLLATE "C" NOT NULL,
    -- A JSON array of kinds; absent for all but those of single calls.
    events       TEXT COLLATE "C",
    -- The secrets that messages are signed with, as JSON.
    secrets      TEXT COLLATE "C" NOT NULL,
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
    delivery_id     TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    webhook_id      TEXT COLLATE "C" NOT NULL REFERENCES webhooks,
    event_id        TEXT COLLATE "C" NOT NULL REFERENCES events (event_id),
    resource        TEXT COLLATE "C" NOT NULL,
    sequence        BIGINT NOT NULL,
    -- `waiting` for an earlier one of its resource, `pending`, `delivered` or `failed`.
    status          TEXT COLLATE "C" NOT NULL,
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
    response_body   TEXT COLLATE "C",
    fault           TEXT COLLATE "C",
    duration_ms     INTEGER,
    created_at      BIGINT NOT NULL,
    UNIQUE (event_id, webhook_id)
);
CREATE INDEX deliveries_by_webhook ON deliveries (webhook_id, delivery_id);
CREATE INDEX deliveries_in_order ON deliveries (webhook_id, status, resource, sequence);
CREATE INDEX deliveries_due ON deliveries (webhook_id, next_attempt_at)
    WHERE next_attempt_at IS NOT NULL;
