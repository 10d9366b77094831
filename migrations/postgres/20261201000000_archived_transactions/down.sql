DROP TABLE archived_transactions;
