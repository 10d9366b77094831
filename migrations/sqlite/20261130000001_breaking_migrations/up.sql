-- Migrations that a program must know to use the database. All others only add to what an older program knows, so it works
-- with them.
CREATE TABLE breaking_migrations (
    -- Such as 20261130000001.
    version TEXT NOT NULL PRIMARY KEY
);
