-- A call of a spend key is made for the customer whose wallet the key draws on.
UPDATE requests SET connection_id = (
    SELECT wallets.connection_id FROM wallets WHERE wallets.wallet_id = requests.wallet_id
)
WHERE connection_id IS NULL AND wallet_id IS NOT NULL;
-- What customers used is added up again when the store is opened.
DELETE FROM usage_rollups;
DELETE FROM usage_tags;
DELETE FROM usage_series;
