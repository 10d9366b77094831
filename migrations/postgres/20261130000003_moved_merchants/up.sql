-- The cell to which a merchant moves or has moved. Its calls and operations are refused here from then on.
ALTER TABLE merchants ADD COLUMN moved_to INTEGER;
CREATE INDEX merchants_moved ON merchants (merchant_id) WHERE moved_to IS NOT NULL;
