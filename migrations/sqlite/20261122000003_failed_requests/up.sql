-- Finds what failed among much that did not; what succeeds is in no such index, and costs nothing more.
CREATE INDEX requests_by_failure ON requests (merchant_id, request_id) WHERE status = 'error';
