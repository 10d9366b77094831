-- The time of settlement. It was a part of the outcome.
ALTER TABLE requests ADD COLUMN settled_at BIGINT;
-- It is found as text, because the words of a provider may have a NUL, which a value of JSON cannot have. A quote within
-- these words is escaped, so they cannot contain the name.
UPDATE requests SET settled_at = (substring(outcome FROM '"settled_at":(-?[0-9]+)'))::BIGINT;

-- The calls that were settled in a later quarter hour than they were made. They may belong to another month than their
-- ledger lines.
CREATE INDEX requests_settled_later ON requests (merchant_id, connection_id, request_id)
    WHERE settled_at / 900000000 <> created_at / 900000000;

-- A series has one merchant, so its rows need not name it.
ALTER TABLE usage_rollups DROP COLUMN merchant_id;

-- Hours are kept of the series of many calls only, for the others have as many quarter hours.
DELETE FROM usage_rollups WHERE width = 4 AND series_id NOT IN (SELECT series_id FROM usage_series WHERE key = ':all');

-- Series of more calls are added: `:customers` for the calls that are alike in connection_id and spend_key_id,
-- `:models` for those that are alike in meter_id, provider, model and status, and `:pair.KEY` for those with a pair of
-- metadata. The program adds them up once for each merchant that is noted here.
CREATE INDEX usage_series_of_connection ON usage_series (merchant_id, connection_id) WHERE key = ':customers';
CREATE INDEX usage_series_of_spend_key ON usage_series (merchant_id, spend_key_id) WHERE key = ':customers';
INSERT INTO usage_series (merchant_id, key, value, series_id)
    SELECT DISTINCT merchant_id, ':incomplete', '', merchant_id FROM usage_series WHERE key = ':all';
