ALTER TABLE archived_months DROP COLUMN transactions_deleted_at;
DROP TABLE archived_transactions;
