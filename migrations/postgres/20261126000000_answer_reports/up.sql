-- The report in the answers to a customer's calls: 'cost'.
ALTER TABLE connections ADD COLUMN report TEXT COLLATE "C";
