-- The months whose records are in the archive.
CREATE TABLE archived_months (
    -- Such as 2026-01.
    month      TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    -- The SHA-256 of its manifest, in hex.
    manifest   TEXT COLLATE "C" NOT NULL,
    sealed_at  BIGINT NOT NULL,
    -- The time at which the last of its rows was deleted here.
    deleted_at BIGINT
);

-- The work on the archive: one row, from the first work on.
CREATE TABLE archive_state (
    number       INTEGER NOT NULL PRIMARY KEY CHECK (number = 1),
    -- The id of this database in manifests.
    database_id  TEXT COLLATE "C" NOT NULL,
    -- Records of calls from before do not change: they are in the archive, or being written there.
    closed_until BIGINT NOT NULL,
    -- The process that works on it, until its lease lapses.
    holder       BYTEA,
    lease_until  BIGINT NOT NULL
);

-- The sums of the archived records of a month, by wallet, by spend key or budget, and by tier counter. The audit adds them to
-- the sums of the records that are here.
CREATE TABLE archived_sums (
    month       TEXT COLLATE "C" NOT NULL,
    merchant_id BYTEA NOT NULL,
    -- A wallet, a spend key, a budget, or the owner of a tier counter.
    owner_id    BYTEA NOT NULL,
    -- The meter and the period of a tier counter. Zero and empty for the others.
    meter_id    BYTEA NOT NULL,
    period      TEXT COLLATE "C" NOT NULL,
    records     BIGINT NOT NULL,
    -- Units of 10⁻¹⁰ USD, and units of the meter for a tier counter.
    amount      BIGINT NOT NULL,
    PRIMARY KEY (month, merchant_id, owner_id, meter_id, period)
);
