;
DELETE FROM journal_page;
UPDATE intent SET entries = ARRAY(
    SELECT ROW (j.number, j.at, j.actor, j.event, j.status, j.doubt, j.generation, j.fence, j.reason, j.words, j.digest, j.hash)::entry
    FROM journal j WHERE j.intent = intent.id ORDER BY j.number);
DROP TABLE journal;
ALTER VIEW folded_journal RENAME TO journal;
COMMIT;
