DELETE FROM breaking_migrations WHERE version = '20261201000001';
