-- The months whose records are in the archive.
CREATE TABLE archived_months (
    -- Such as 2026-01.
    month      TEXT NOT NULL PRIMARY KEY,
    -- The SHA-256 of its manifest, in hex.
    manifest   TEXT NOT NULL,
    sealed_at  BIGINT NOT NULL,
    -- The time at which the last of its rows was deleted here.
    deleted_at BIGINT
);

-- The work on the archive: one row, from the first work on.
CREATE TABLE archive_state (
    number       INTEGER NOT NULL PRIMARY KEY CHECK (number = 1),
    -- The id of this database in manifests.
    database_id  TEXT NOT NULL,
    -- Records of calls from before do not change: they are in the archive, or being written there.
    closed_until BIGINT NOT NULL,
    -- The process that works on it, until its lease lapses.
    holder       BLOB,
    lease_until  BIGINT NOT NULL
);

-- The sums of the archived records of a month, by wallet, by spend key or budget, and by tier counter. The audit adds them to
-- the sums of the records that are here.
CREATE TABLE archived_sums (
    month       TEXT NOT NULL,
    merchant_id BLOB NOT NULL,
    -- A wallet, a spend key, a budget, or the owner of a tier counter.
    owner_id    BLOB NOT NULL,
    -- The meter and the period of a tier counter. Zero and empty for the others.
    meter_id    BLOB NOT NULL,
    period      TEXT NOT NULL,
    records     BIGINT NOT NULL,
    -- Units of 10⁻¹⁰ USD, and units of the meter for a tier counter.
    amount      BIGINT NOT NULL,
    PRIMARY KEY (month, merchant_id, owner_id, meter_id, period)
) WITHOUT ROWID;
