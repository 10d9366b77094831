-- Who is signed in to the dashboard. What the browser keeps is a random token, of which only the SHA-256
-- stands here, so that whoever reads this table cannot sign in with it.
CREATE TABLE sessions (
    token_hash    BYTEA NOT NULL PRIMARY KEY,
    -- A session ends with the key that it was opened with.
    secret_key_id TEXT COLLATE "C" NOT NULL REFERENCES secret_keys,
    expires_at    BIGINT NOT NULL
);
CREATE INDEX sessions_by_age ON sessions (expires_at);
