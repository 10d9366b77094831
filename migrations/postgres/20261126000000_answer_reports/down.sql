ALTER TABLE connections DROP COLUMN report;
