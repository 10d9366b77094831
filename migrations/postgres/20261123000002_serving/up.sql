-- Which process serves from this file: one row. Each that begins writes a greater epoch, so that one that
-- is overtaken finds out. Several processes may serve from PostgreSQL, and nothing is written there.
CREATE TABLE serving (
    epoch     BIGINT NOT NULL PRIMARY KEY,
    node_id   TEXT NOT NULL,
    -- Device and inode of the file whose lock it holds.
    lock_file TEXT NOT NULL,
    since     BIGINT NOT NULL,
    -- Whether it ended by itself: else the file is checked before the next one serves.
    has_ended BOOLEAN NOT NULL
);
