DROP TABLE archived_sums;
DROP TABLE archive_state;
DROP TABLE archived_months;
