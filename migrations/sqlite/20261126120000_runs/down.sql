DELETE FROM request_index WHERE key = ':run';
DROP INDEX refusals_by_run;
ALTER TABLE refusals DROP COLUMN run_id;
ALTER TABLE requests DROP COLUMN run_id;
ALTER TABLE open_calls DROP COLUMN run_id;
DELETE FROM spend_counters WHERE account_id IN (SELECT account_id FROM runs);
DROP TABLE runs;
