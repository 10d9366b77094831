-- Price lists that were accepted, as the catalogue that each has become. The last one applies.
CREATE TABLE price_lists (
    number      INTEGER NOT NULL PRIMARY KEY,
    -- The day of its release, such as 2026-11-27, as the list says.
    released    TEXT NOT NULL,
    -- The URL or the file that it was read from.
    source      TEXT NOT NULL,
    accepted_at BIGINT NOT NULL,
    -- JSON, as a catalogue file.
    list        TEXT NOT NULL
);
