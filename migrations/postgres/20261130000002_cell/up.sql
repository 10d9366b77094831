-- The cell of this database: its number is in the keys that are made here. Without a row it is cell 0.
CREATE TABLE cell (
    number INTEGER NOT NULL PRIMARY KEY
);
