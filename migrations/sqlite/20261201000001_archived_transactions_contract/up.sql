-- Transactions of archived months leave from now on. A program that does not know archived_transactions would find gaps.
INSERT INTO breaking_migrations (version) VALUES ('20261201000001');
