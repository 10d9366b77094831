-- Jobs: calls that a provider answers later. The call of a running job is in open_calls.
CREATE TABLE jobs (
    job_id        BYTEA NOT NULL PRIMARY KEY,
    request_id    BYTEA NOT NULL UNIQUE,
    merchant_id   BYTEA NOT NULL REFERENCES merchants,
    kind          SMALLINT NOT NULL,
    provider      TEXT COLLATE "C" NOT NULL,
    object_id     TEXT COLLATE "C" NOT NULL,
    connection_id BYTEA,
    spend_key_id  BYTEA,
    state         SMALLINT NOT NULL,
    hold          BIGINT NOT NULL,
    -- JSON: the facts of the call by which any process can settle it.
    terms         TEXT COLLATE "C" NOT NULL,
    -- JSON: the usage that the provider reported before the end.
    known         TEXT COLLATE "C",
    -- The caller's own provider key, encrypted, while the job runs.
    provider_key  BYTEA,
    created_at    BIGINT NOT NULL,
    last_seen_at  BIGINT,
    -- The time at which the provider first did not know it.
    missing_since BIGINT,
    -- The time of the next look. Absent when it has ended.
    look_at       BIGINT,
    ended_at      BIGINT,
    expires_at    BIGINT NOT NULL,
    observer      SMALLINT,
    UNIQUE (provider, object_id)
);
CREATE INDEX jobs_by_merchant ON jobs (merchant_id, job_id);
CREATE INDEX jobs_by_state ON jobs (merchant_id, state, job_id);
CREATE INDEX jobs_due ON jobs (look_at) WHERE look_at IS NOT NULL;

-- Objects that a provider keeps, by the wallet that paid for them.
CREATE TABLE provider_objects (
    object_id   TEXT COLLATE "C" NOT NULL,
    provider    TEXT COLLATE "C" NOT NULL,
    merchant_id BYTEA NOT NULL,
    wallet_id   BYTEA NOT NULL,
    kind        SMALLINT NOT NULL,
    tokens      BIGINT,
    -- JSON: the requests in a file for a batch.
    requests    TEXT,
    -- The batch of which a file has results.
    result_of   TEXT,
    created_at  BIGINT NOT NULL,
    expires_at  BIGINT NOT NULL,
    PRIMARY KEY (object_id, provider)
);
CREATE INDEX provider_objects_by_expiry ON provider_objects (expires_at);
CREATE INDEX provider_objects_by_wallet ON provider_objects (wallet_id, kind, created_at);

-- Events of providers about objects that were not known yet.
CREATE TABLE provider_events (
    object_id   TEXT COLLATE "C" NOT NULL,
    provider    TEXT COLLATE "C" NOT NULL,
    received_at BIGINT NOT NULL,
    PRIMARY KEY (object_id, provider)
);
