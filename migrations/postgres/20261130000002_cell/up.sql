-- The cell of this database: its number is in the keys that are made here. Without the row it is cell 0.
CREATE TABLE cell (
    one    INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
    number INTEGER NOT NULL
);
