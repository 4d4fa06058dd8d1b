-- On PostgreSQL entries of the journal are part of the rows of their intents. So that a test can write one statement for every
-- database, they become a table of rows for as long as it takes (see fold.sql).
BEGIN;
ALTER VIEW journal RENAME TO folded_journal;
CREATE TABLE journal AS SELECT * FROM folded_journal;
