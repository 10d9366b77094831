DROP INDEX requests_by_failure;
