-- Times are milliseconds since the Unix epoch, by the database's clock. Hashes and ids are bytea. Everything else is text
-- that a person can read. See docs/reading-the-ledger.md.

-- One row: what the ledger as a whole knows.
CREATE TABLE ledger (
    one              int PRIMARY KEY CHECK (one = 1),
    schema_version   bigint NOT NULL,
    hash_key         bytea NOT NULL,            -- keys the hashes of names, so that a forgotten key cannot be guessed; behind it a few such hashes
    sealed_key       bytea NOT NULL,            -- sealed with the ledger's secret, which is not in the ledger; see docs/reading-the-ledger.md
    recovering_since bigint                     -- set while a lost tail is being made up for
);

-- What doors keep beside intents: tokens (their hashes), what is paused. Few, small, read whole.
CREATE TABLE note (
    kind            text COLLATE "C" NOT NULL,
    name            text COLLATE "C" NOT NULL,
    value           text NOT NULL,              -- JSON
    PRIMARY KEY (kind, name)
);

-- Numbers are never reused. A batch takes as many as the largest one needs.
CREATE SEQUENCE intent_number INCREMENT BY 512;

-- One transition. Those of an intent are chained by hash.
CREATE TYPE entry AS (
    number          bigint,
    at              bigint,
    actor           text,
    event           text,
    status          text,
    doubt           boolean,
    generation      bigint,
    fence           bigint,
    reason          text,
    words           bytea,                      -- the digest of actor and reason, which are dropped when the intent is forgotten
    digest          bytea,
    hash            bytea
);

-- One row an intent. A settle rewrites it in place: no index covers a column that a settle changes, and there is room on its
-- page for an answer of a kilobyte; the database itself puts what is larger elsewhere.
CREATE TABLE intent (
    id              bigint PRIMARY KEY,
    hash            bytea NOT NULL UNIQUE,      -- of scope and key
    version         bigint NOT NULL,            -- grows with every write
    scope           text COLLATE "C",           -- empty once forgotten, like the key
    key             text,
    status          text NOT NULL,
    doubt           boolean NOT NULL,
    generation      bigint NOT NULL,
    fence           bigint NOT NULL,
    tries           bigint NOT NULL,
    recipe          text,
    fingerprint     bytea,
    policy          text NOT NULL,
    permit          text,                       -- 'act' or 'lookup' while one is out
    claim_id        bytea,
    holder          text,
    granted_at      bigint,
    lease_until     bigint,
    send_by         bigint,
    due_at          bigint,
    external_id     text,
    source          text,                       -- how the answer came to be known
    work            text COLLATE "C",
    step            text,
    lane            text,
    lane_version    bigint,
    requested_by    text NOT NULL,
    created_at      bigint NOT NULL,
    settled_at      bigint,
    tombstone       boolean NOT NULL,
    settle_receipt  bytea,
    detail          text,                       -- what is seldom there, as JSON
    salt            bytea,
    journal_rows    bigint NOT NULL,
    journal_head    bytea NOT NULL,
    keep_until      bigint NOT NULL,            -- when to look whether it can be purged
    answer_head     text,                       -- what the destination said in the present generation
    answer_body     bytea,                      -- empty when it was too large to keep
    request_digest  bytea,                      -- of the request that is kept
    seal            bytea NOT NULL,             -- a keyed digest of all before it: what was changed by hand is not acted on
    request         bytea,                      -- what would be sent, kept for what the server sends later
    wake_at         bigint,                     -- while a permit is out: when time alone changes something; see reminder
    entries         entry[] NOT NULL            -- the last of its journal
) WITH (fillfactor = 30, toast_tuple_target = 2200);
ALTER TABLE intent
    ALTER answer_body SET STORAGE EXTERNAL, ALTER request SET STORAGE EXTERNAL, ALTER entries SET STORAGE EXTERNAL;
CREATE INDEX intent_by_scope ON intent (scope, id);
CREATE INDEX intent_by_work ON intent (work, id) WHERE work IS NOT NULL;
CREATE INDEX intent_by_lane ON intent (lane) WHERE lane IS NOT NULL;

-- What the destination said in earlier generations.
CREATE TABLE earlier_answer (
    intent          bigint NOT NULL,
    generation      bigint NOT NULL,
    status          text NOT NULL,
    external_id     text,
    head            text NOT NULL,
    body            bytea,                      -- empty when it was too large to keep
    not_kept        text,                       -- then its length and hash
    PRIMARY KEY (intent, generation)
);

-- What is believed of an intent: all but its journal and its request.
CREATE VIEW belief AS
    SELECT
        i.id, i.hash, i.version, i.scope, i.key, i.status, i.doubt, i.generation, i.fence, i.tries, i.recipe, i.fingerprint,
        i.policy, i.permit, i.claim_id, i.holder, i.granted_at, i.lease_until, i.send_by, i.due_at, i.external_id, i.source,
        i.work, i.step, i.lane, i.lane_version, i.requested_by, i.created_at, i.settled_at, i.tombstone, i.settle_receipt,
        i.detail, i.salt, i.journal_rows, i.journal_head, i.keep_until, i.answer_head, i.answer_body,
        i.request_digest, i.seal
    FROM intent i;

-- Append-only: every transition. The last entries of an intent are in its own row, where a claim and a settle write them
-- with everything else; those before them are in pages, so that a long journal is not written again with every entry.
CREATE TABLE journal_page (
    intent          bigint NOT NULL,
    first           bigint NOT NULL,            -- the number of its first entry
    entries         entry[] NOT NULL,
    PRIMARY KEY (intent, first)
);
CREATE VIEW journal AS
    SELECT j.intent, e.number, e.at, e.actor, e.event, e.status, e.doubt, e.generation, e.fence, e.reason,
        e.words, e.digest, e.hash
    FROM (
        SELECT p.intent, p.entries FROM journal_page p
        UNION ALL
        SELECT i.id, i.entries FROM intent i) j
    CROSS JOIN LATERAL unnest(j.entries) e;

-- Which intents to look at again, and when. Most have settled by then, so that one row for those who were claimed together
-- serves for what would be a row for each, written with the claim and removed with the settle. Kinds: 'wake' for when the
-- permit that is out lapses, 'keep' for when it may be purged, 'new' for both; a new one becomes what is left of them when it
-- is looked at. An intent has a reminder no later than each of these times.
-- What was counted with those who were written together is in the same row, and is added to the tally when it is looked at: a row
-- that is new keeps nobody waiting, as a count would that everybody adds to. Where none was claimed the kind is 'count'.
CREATE TABLE reminder (
    kind            text COLLATE "C" NOT NULL,
    at              bigint NOT NULL,
    intents         int8multirange NOT NULL,    -- their numbers; not all of them need exist
    counts          text,                       -- of 'new' and 'count': what is counted with each change of a kind, as JSON
    times           bigint[]                    -- how many changes of each kind were written
);
CREATE INDEX reminder_by_time ON reminder (kind, at);
-- It has no key, and rows of it are deleted: where tables are replicated that has to be said.
ALTER TABLE reminder REPLICA IDENTITY FULL;

-- Everything that is not simply done, and for which no permit is out: what waits for time, for a caller or for a person.
CREATE TABLE agenda (
    status          text COLLATE "C" NOT NULL,
    wake_at         bigint NOT NULL,            -- when time alone changes something
    intent          bigint NOT NULL,
    due_at          bigint,                     -- when the next attempt or lookup may go
    scope           text COLLATE "C",           -- where something has a due time, by which others find it
    PRIMARY KEY (status, wake_at, intent)
);
CREATE INDEX agenda_by_due ON agenda (scope, due_at, intent) WHERE scope IS NOT NULL;

CREATE TABLE lane (
    name            text COLLATE "C" PRIMARY KEY,
    holder          bigint,
    applied         bigint
);

CREATE TABLE lane_waiting (
    lane            text COLLATE "C" NOT NULL,
    rank            bigint NOT NULL,            -- the version; the least number where there is none
    intent          bigint NOT NULL,
    until           bigint NOT NULL,
    PRIMARY KEY (lane, rank, intent)
);

-- Counts of events by hour; hour 0 holds how many intents stand where now.
CREATE TABLE tally (
    hour            bigint NOT NULL,
    name            text COLLATE "C" NOT NULL,
    n               bigint NOT NULL,
    PRIMARY KEY (hour, name)
) WITH (fillfactor = 50);
-- With what was not added to it yet.
CREATE VIEW tallied AS
    SELECT t.hour, t.name, t.n FROM tally t
    UNION ALL
    SELECT c.hour, c.name, c.n * r.times[c.kind]
    FROM reminder r
    CROSS JOIN LATERAL json_to_recordset(r.counts::json) c (kind bigint, hour bigint, name text, n bigint)
    WHERE r.kind IN ('new', 'count');

-- What few batches have. Rows of `agenda_after` are new: what was there before is in `agenda_before`. Of entries that are
-- `paged`, what is there first becomes a page of its own. Those `answered` keep the answer they have. Requests stay where
-- none comes, but for `unrequested`. Of those `forgotten` the words of the journal go, and the work; of those `unplaced` the lane, which
-- goes as well if it is one of `left_lanes` and nobody is in it any more. But for `removals`, an intent is given by its position in the batch.
CREATE TYPE seldom AS (
    removals         bigint[],
    removed_versions bigint[],
    paged            bigint[],
    archived         bigint[],
    not_kept         text[],
    answered         bigint[],
    unrequested      bigint[],
    buried           bigint[],
    reminder_kinds   text[],
    reminder_times   bigint[],
    reminded         bigint[],
    agenda_before    agenda[],
    agenda_after     agenda[],
    lane_changes     bigint[],
    lanes            lane[],
    waiting_before   lane_waiting[],
    waiting_after    lane_waiting[],
    forgotten        bigint[],
    unplaced         bigint[],
    left_lanes       text[]
);

-- Functions, because their plans are made once a connection, behind a pooler too: planned anew each time, as the statements
-- of a pooled connection are, these take longer to plan than to carry out. A plan that is kept must not depend on how full
-- the tables happened to be when it was made, so no table is joined to an array, nor asked with EXISTS, which could read
-- all of it: rows are found one by one, by subqueries that can only follow an index, and then by where they are (ctid).

-- Entries up to a number without their words: who and why.
CREATE FUNCTION ledger_forget(kept entry[], up_to bigint) RETURNS entry[] LANGUAGE sql IMMUTABLE
SET search_path FROM CURRENT
AS $$
    SELECT coalesce(array_agg(
        ROW(
            e.number, e.at, CASE WHEN e.number > up_to THEN e.actor ELSE 'forgotten' END, e.event, e.status, e.doubt, e.generation,
            e.fence, CASE WHEN e.number > up_to THEN e.reason ELSE '' END, e.words, e.digest, e.hash)::entry
        ORDER BY e.number), '{}')
    FROM unnest(kept) e
$$;

-- Writes a batch of changes, each entirely or not at all; says which. A change is left out when its intent exists already, or
-- no longer has the version it was decided on. Changes have positions: first those that are inserted, then those that are
-- updated, then those that are removed.
-- `numbered`: some that are inserted have their numbers already; `remind_at`: when to look at them again.
-- What is counted is the same for many changes, so it is sent once for all of a kind (`counts`); `kinds` says for each position
-- of which kind it is, `times` how many there are of each.
-- Entries of the journal come with the rows, and are added to those that are there; answers come with the rows.
-- `believed` are intents that are asked for and not written: which of them have another version, or another journal, because the
-- number went to another one after a tail was lost (S43), is given back (`mistaken`).
-- Given back are the time, since when records may be missing, the number of the first that was inserted (the others follow it),
-- and, unless everything was written just so, the numbers of what was written by position; and what was
-- there already in place of what was to be inserted, unless its answer is large (an array of belief, as it is sent).
CREATE FUNCTION ledger_apply(
    relaxed boolean, known_key bytea, inserts intent[], numbered boolean, updates intent[], updated_ids bigint[],
    remind_at bigint, counts text, kinds bigint[], times bigint[],
    believed bigint[], believed_versions bigint[], believed_heads bytea[], seldom seldom[], timeline text,
    OUT now bigint, OUT recovering_since bigint, OUT first bigint, OUT written bigint[], OUT there bytea,
    OUT mistaken bigint[]
) LANGUAGE plpgsql
SET search_path FROM CURRENT
SET lock_timeout = '250ms'
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    inserted bigint := cardinality(inserts);
    more boolean := cardinality(seldom) > 0;
    rare seldom;
    ids bigint[];
    fresh int8multirange := '{}';
    changed bigint[];
    missing bigint[];
    place bigint;
    same_key boolean;
    safe boolean;
BEGIN
    -- Another server than the one this was decided for: it may lack what that one had acknowledged (S43).
    IF timeline <> '' AND left(pg_walfile_name(pg_current_wal_lsn()), 8) <> timeline THEN
        RAISE EXCEPTION 'the database is on another timeline' USING ERRCODE = 'TS003';
    END IF;
    IF relaxed THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;

    IF inserted > 0 THEN
        IF numbered THEN
            ids := ARRAY(SELECT coalesce(n.id, nextval('intent_number')) FROM unnest(inserts) n);
            fresh := (SELECT range_agg(int8range(n, n + 1)) FROM unnest(ids) n);
        ELSE
            first := nextval('intent_number');
            fresh := int8multirange(int8range(first, first + inserted));
        END IF;
        -- Only the statement itself tells what it wrote: a number, a version and even a journal may be those of another who
        -- decided the same at the same time.
        WITH done AS (
            INSERT INTO intent (
                id, hash, version, scope, key, status, doubt, generation, fence, tries, recipe, fingerprint, policy, permit,
                claim_id, holder, granted_at, lease_until, send_by, due_at, external_id, source, work, step, lane,
                lane_version, requested_by, created_at, settled_at, tombstone, settle_receipt, detail, salt, journal_rows,
                journal_head, keep_until, answer_head, answer_body, request_digest, seal, request, wake_at, entries)
            SELECT
                coalesce(ids[n.ordinality], first + n.ordinality - 1), n.hash, n.version, n.scope, n.key, n.status, n.doubt,
                n.generation, n.fence, n.tries,
                n.recipe, n.fingerprint, n.policy, n.permit, n.claim_id, n.holder, n.granted_at, n.lease_until, n.send_by,
                n.due_at, n.external_id, n.source, n.work, n.step, n.lane, n.lane_version, n.requested_by, n.created_at,
                n.settled_at, n.tombstone, n.settle_receipt, n.detail, n.salt, n.journal_rows, n.journal_head, n.keep_until,
                n.answer_head, n.answer_body, n.request_digest, n.seal, n.request, n.wake_at, n.entries
            FROM unnest(inserts) WITH ORDINALITY n
            ON CONFLICT (hash) DO NOTHING
            RETURNING id)
        SELECT array_agg(d.id) INTO changed FROM done d;
        IF cardinality(changed) IS DISTINCT FROM inserted THEN
            ids := coalesce(ids, ARRAY(SELECT first + n FROM generate_series(0, inserted - 1) n));
            missing := ARRAY(
                SELECT n FROM generate_subscripts(ids, 1) n WHERE ids[n] <> ALL (coalesce(changed, '{}')));
            there := array_send(ARRAY(
                SELECT i.found FROM unnest(missing) n
                CROSS JOIN LATERAL (
                    SELECT i AS found FROM belief i
                    WHERE i.hash = inserts[n].hash
                    AND coalesce(octet_length(i.answer_head), 0) + coalesce(octet_length(i.answer_body), 0) <= 8192
                    OFFSET 0) i));
        END IF;
    END IF;

    -- A full page of entries goes, and what an earlier generation came to stays with it. The lock, which
    -- is taken before it is looked, keeps the version until it is checked again below.
    IF more THEN
        rare := seldom[1];
        FOREACH place IN ARRAY rare.paged || rare.archived LOOP
            PERFORM FROM intent i WHERE i.id = updates[place - inserted].id FOR UPDATE;
        END LOOP;
        FOREACH place IN ARRAY rare.paged LOOP
            INSERT INTO journal_page (intent, first, entries)
            SELECT i.id, (i.entries[1]).number, i.entries FROM intent i
            WHERE i.id = updates[place - inserted].id AND i.version = updates[place - inserted].version - 1
            AND cardinality(i.entries) > 0;
        END LOOP;
        FOREACH place IN ARRAY rare.archived LOOP
            INSERT INTO earlier_answer (intent, generation, status, external_id, head, body, not_kept)
            SELECT
                i.id, i.generation, i.status, i.external_id, i.answer_head, i.answer_body,
                rare.not_kept[array_position(rare.archived, place)]
            FROM intent i
            WHERE i.id = updates[place - inserted].id AND i.version = updates[place - inserted].version - 1
            AND i.answer_head IS NOT NULL
            ON CONFLICT (intent, generation) DO NOTHING;
        END LOOP;
    END IF;

    IF cardinality(updates) > 0 THEN
        -- Every write makes one version more.
        WITH done AS (
            UPDATE intent i SET
                version = n.version, scope = n.scope, key = n.key, status = n.status, doubt = n.doubt,
                generation = n.generation, fence = n.fence, tries = n.tries, recipe = n.recipe,
                fingerprint = n.fingerprint, permit = n.permit, claim_id = n.claim_id, holder = n.holder,
                granted_at = n.granted_at, lease_until = n.lease_until, send_by = n.send_by, due_at = n.due_at,
                external_id = n.external_id, source = n.source, requested_by = n.requested_by,
                settled_at = n.settled_at, tombstone = n.tombstone, settle_receipt = n.settle_receipt,
                detail = n.detail, salt = n.salt, journal_rows = n.journal_rows, journal_head = n.journal_head,
                keep_until = CASE WHEN i.tombstone <> n.tombstone THEN n.keep_until ELSE i.keep_until END,
                answer_head = CASE WHEN more AND n.position = ANY (rare.answered) THEN i.answer_head ELSE n.answer_head END,
                answer_body = CASE WHEN more AND n.position = ANY (rare.answered) THEN i.answer_body ELSE n.answer_body END,
                request_digest = n.request_digest, seal = n.seal,
                request = CASE WHEN n.request IS NOT NULL OR more AND n.position = ANY (rare.unrequested) THEN n.request
                               ELSE i.request END,
                wake_at = n.wake_at,
                entries = CASE WHEN more AND n.position = ANY (rare.paged) THEN n.entries ELSE i.entries || n.entries END
            FROM (
                SELECT
                    n.*, n.ordinality + inserted AS position,
                    (SELECT i.ctid FROM intent i WHERE i.id = n.id) AS place
                FROM unnest(updates) WITH ORDINALITY n OFFSET 0) n
            -- After a lost tail a number may have gone to another intent.
            WHERE i.ctid = n.place AND i.version = n.version - 1 AND i.hash = coalesce(n.hash, i.hash)
            RETURNING n.position)
        SELECT array_agg(d.position) INTO changed FROM done d;
        IF cardinality(changed) IS DISTINCT FROM cardinality(updates) THEN
            missing := missing || ARRAY(
                SELECT n + inserted FROM generate_subscripts(updates, 1) n WHERE n + inserted <> ALL (coalesce(changed, '{}')));
        END IF;
    END IF;

    IF more OR numbered OR missing IS NOT NULL THEN
        written := coalesce(ids, ARRAY(SELECT first + n FROM generate_series(0, inserted - 1) n)) || updated_ids;
        FOREACH place IN ARRAY coalesce(missing, '{}') LOOP
            written[place] := NULL;
            times[kinds[place]] := times[kinds[place]] - 1;
        END LOOP;
    END IF;

    IF more THEN
        FOR i IN 1 .. cardinality(rare.removals) LOOP
            DELETE FROM intent WHERE id = rare.removals[i] AND version = rare.removed_versions[i];
            IF NOT FOUND THEN
                written := written || NULL::bigint;
                place := kinds[cardinality(written)];
                times[place] := times[place] - 1;
                CONTINUE;
            END IF;
            written := written || rare.removals[i];
            DELETE FROM earlier_answer WHERE intent = rare.removals[i];
            DELETE FROM journal_page WHERE intent = rare.removals[i];
        END LOOP;

        FOREACH place IN ARRAY rare.buried LOOP
            DELETE FROM earlier_answer WHERE intent = written[place];
        END LOOP;
        FOREACH place IN ARRAY rare.forgotten LOOP
            UPDATE journal_page SET entries = ledger_forget(entries, updates[place - inserted].journal_rows)
            WHERE intent = written[place];
            UPDATE intent SET
                work = NULL, step = NULL,
                entries = ledger_forget(
                    entries, updates[place - inserted].journal_rows - cardinality(updates[place - inserted].entries))
            WHERE id = written[place];
        END LOOP;
        FOREACH place IN ARRAY rare.unplaced LOOP
            UPDATE intent SET lane = NULL, lane_version = NULL WHERE id = written[place];
        END LOOP;
        -- Lanes are locked by whoever changes them.
        FOR i IN 1 .. cardinality(rare.lanes) LOOP
            UPDATE lane SET holder = rare.lanes[i].holder, applied = rare.lanes[i].applied
            WHERE name = rare.lanes[i].name AND written[rare.lane_changes[i]] IS NOT NULL;
        END LOOP;
        FOR i IN 1 .. cardinality(rare.waiting_before) LOOP
            DELETE FROM lane_waiting
            WHERE lane = rare.waiting_before[i].lane AND rank = rare.waiting_before[i].rank
            AND intent = written[rare.waiting_before[i].intent];
        END LOOP;
        IF cardinality(rare.waiting_after) > 0 THEN
            INSERT INTO lane_waiting (lane, rank, intent, until)
            SELECT n.lane, n.rank, written[n.intent], n.until
            FROM unnest(rare.waiting_after) n WHERE written[n.intent] IS NOT NULL;
        END IF;
        IF cardinality(rare.agenda_before) > 0 THEN
            DELETE FROM agenda WHERE ctid = ANY (ARRAY(
                SELECT (
                    SELECT g.ctid FROM agenda g
                    WHERE g.status = n.status AND g.wake_at = n.wake_at AND g.intent = written[n.intent])
                FROM unnest(rare.agenda_before) n));
        END IF;
        IF cardinality(rare.agenda_after) > 0 THEN
            INSERT INTO agenda (status, wake_at, intent, due_at, scope)
            SELECT n.status, n.wake_at, written[n.intent], n.due_at, n.scope
            FROM unnest(rare.agenda_after) n WHERE written[n.intent] IS NOT NULL;
        END IF;
        FOR i IN 1 .. cardinality(rare.left_lanes) LOOP
            DELETE FROM lane WHERE name = rare.left_lanes[i] AND holder IS NULL
            AND (SELECT w.intent FROM lane_waiting w WHERE w.lane = rare.left_lanes[i] LIMIT 1) IS NULL
            AND (SELECT t.id FROM intent t WHERE t.lane = rare.left_lanes[i] LIMIT 1) IS NULL;
        END LOOP;
        IF cardinality(rare.reminded) > 0 THEN
            INSERT INTO reminder (kind, at, intents)
            SELECT n.kind, n.at, range_agg(int8range(written[n.position], written[n.position] + 1))
            FROM unnest(rare.reminder_kinds, rare.reminder_times, rare.reminded) n (kind, at, position)
            WHERE written[n.position] IS NOT NULL
            GROUP BY n.kind, n.at;
        END IF;
    END IF;

    -- Where nothing was written there is nothing to keep, and nothing to commit.
    IF counts IS NOT NULL AND (missing IS NULL OR 0 < ANY (times)) THEN
        INSERT INTO reminder (kind, at, intents, counts, times)
        VALUES (CASE WHEN inserted > 0 THEN 'new' ELSE 'count' END, coalesce(remind_at, 0), fresh, counts, times);
    END IF;

    mistaken := '{}';
    IF cardinality(believed) > 0 THEN
        mistaken := ARRAY(
            SELECT n.ordinality
            FROM unnest(believed, believed_versions, believed_heads) WITH ORDINALITY n (id, version, head, ordinality)
            WHERE (SELECT i.version FROM intent i WHERE i.id = n.id AND i.journal_head = n.head) IS DISTINCT FROM n.version);
    END IF;

    SELECT
        l.recovering_since, l.hash_key = known_key, current_setting('fsync') <> 'off' AND current_setting('full_page_writes') <> 'off',
        (extract(epoch FROM clock_timestamp()) * 1000)::bigint
    INTO recovering_since, same_key, safe, now FROM ledger l WHERE l.one = 1;
    IF same_key AND safe THEN
        RETURN;
    END IF;
    -- Names hashed by another key than the ledger's would all look new, and everything would happen again.
    IF same_key IS DISTINCT FROM true THEN
        RAISE EXCEPTION 'the ledger was filled from an export since it was opened; start again' USING ERRCODE = 'TS001';
    END IF;
    -- Both can be turned off beneath connections that stay.
    RAISE EXCEPTION 'fsync = %, full_page_writes = %', current_setting('fsync'), current_setting('full_page_writes')
        USING ERRCODE = 'TS002';
END $$;

-- What there is under these hashes and numbers.
CREATE FUNCTION ledger_look(hashes bytea[], ids bigint[]) RETURNS SETOF belief
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    IF cardinality(hashes) > 0 THEN
        RETURN QUERY
        SELECT i.* FROM unnest(hashes) n (hash)
        CROSS JOIN LATERAL (SELECT i.* FROM belief i WHERE i.hash = n.hash OFFSET 0) i;
    END IF;
    IF cardinality(ids) > 0 THEN
        RETURN QUERY
        SELECT i.* FROM unnest(ids) n (id)
        CROSS JOIN LATERAL (SELECT i.* FROM belief i WHERE i.id = n.id OFFSET 0) i;
    END IF;
END $$;

-- Looks at intents of reminders of a kind whose time has come. Which of them are to be woken ('wake'), or were kept long enough
-- ('keep'), is given back and stays; of the others it is known when to look again. Reminders to keep something are for the
-- hour, so that there are few of them, and become exact in its course. `most` intents, give or take a reminder, are looked at;
-- none is left to be looked at once no reminder was. One kind at a time, so that the index gives the order. What was counted
-- with them is added to the tally.
CREATE FUNCTION ledger_remind(wanted text, now bigint, most bigint, OUT looked_at bigint, OUT due bigint[]) LANGUAGE plpgsql
SET search_path FROM CURRENT
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
BEGIN
    -- Should it be lost, all of it is, and is done again.
    PERFORM set_config('synchronous_commit', 'off', true);
    WITH told AS (
        DELETE FROM reminder WHERE ctid = ANY (ARRAY(
            SELECT r.ctid FROM (
                SELECT r.ctid, sum(r.size) OVER (ORDER BY r.at, r.ctid) - r.size AS before
                FROM (
                    SELECT r.ctid, r.at, (SELECT coalesce(sum(upper(x) - lower(x)), 0) FROM unnest(r.intents) x) AS size
                    FROM reminder r WHERE r.kind = wanted AND r.at <= now
                    ORDER BY r.at LIMIT 200 FOR UPDATE SKIP LOCKED) r) r
            WHERE r.before < most))
        RETURNING kind, intents, counts, times
    ), counted AS (
        -- In the order of keys, so that two who do this lock rows in the same order.
        INSERT INTO tally (hour, name, n)
        SELECT c.hour, c.name, sum(c.n * t.times[c.kind]) FROM told t
        CROSS JOIN LATERAL json_to_recordset(t.counts::json) c (kind bigint, hour bigint, name text, n bigint)
        GROUP BY 1, 2 HAVING sum(c.n * t.times[c.kind]) <> 0 ORDER BY 1, 2
        ON CONFLICT (hour, name) DO UPDATE SET n = tally.n + excluded.n
    ), seen AS (
        SELECT DISTINCT i.id, k.kind, k.at FROM told t
        CROSS JOIN LATERAL unnest(t.intents) x
        CROSS JOIN LATERAL generate_series(lower(x), upper(x) - 1) n (id)
        CROSS JOIN LATERAL (SELECT i.id, i.wake_at, i.keep_until FROM intent i WHERE i.id = n.id OFFSET 0) i
        CROSS JOIN LATERAL (VALUES ('wake', i.wake_at), ('keep', i.keep_until)) k (kind, at)
        WHERE k.at IS NOT NULL AND t.kind IN (k.kind, 'new')
    ), told_again AS (
        INSERT INTO reminder (kind, at, intents)
        SELECT s.kind, s.at, range_agg(int8range(s.id, s.id + 1)) FROM (
            SELECT s.id, s.kind, s.at, (row_number() OVER (PARTITION BY s.kind, s.at ORDER BY s.id) - 1) / 200 AS part FROM (
                SELECT
                    s.id, s.kind,
                    CASE WHEN s.kind = 'keep' AND s.at - s.at % 3600000 > now THEN s.at - s.at % 3600000 ELSE s.at END AS at
                FROM seen s) s) s
        GROUP BY s.kind, s.at, s.part
    )
    SELECT
        (SELECT count(*) FROM told),
        (SELECT coalesce(array_agg(s.id ORDER BY s.at, s.id), '{}') FROM seen s WHERE s.kind = wanted AND s.at <= now)
    INTO looked_at, due;
END $$;

-- Keeps a name, or a lane, for the caller's transaction; false when another one has kept it too long.
CREATE FUNCTION ledger_hold(kept bigint) RETURNS boolean
LANGUAGE plpgsql
SET lock_timeout = '2s'
AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(kept);
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END $$;

-- The number of the lock by which somebody's own transaction keeps a lane. Whoever has a short one shares it.
CREATE FUNCTION ledger_lane_lock(lane text) RETURNS bigint LANGUAGE sql IMMUTABLE
AS $$ SELECT hashtextextended('twicesafe lane ' || lane, 0) $$;

-- Locks lanes for the caller's transaction, making them if necessary. For each: what is known of it, a number for an intent
-- that may turn out to be new, and the first two that wait in it. Those that somebody's own transaction keeps are left out, so
-- that nobody has to wait for it, unless who asks is `patient`.
CREATE FUNCTION ledger_lock(names text[], at bigint, patient boolean)
RETURNS TABLE (name text, holder bigint, applied bigint, fresh_id bigint, rank bigint, intent bigint, until bigint)
LANGUAGE plpgsql
SET search_path FROM CURRENT
SET lock_timeout = '250ms'
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    this_name text;
    this_id bigint;
    free text[];
BEGIN
    IF patient THEN
        PERFORM pg_advisory_xact_lock_shared(ledger_lane_lock(n)) FROM unnest(names) n;
        free := names;
    ELSE
        free := ARRAY(SELECT n FROM unnest(names) n WHERE pg_try_advisory_xact_lock_shared(ledger_lane_lock(n)));
    END IF;
    INSERT INTO lane (name) SELECT n FROM unnest(free) n ON CONFLICT (name) DO NOTHING;
    FOREACH this_name IN ARRAY free LOOP
        -- Whoever had it may have removed it.
        LOOP
            PERFORM FROM lane l WHERE l.name = this_name FOR UPDATE;
            EXIT WHEN FOUND;
            INSERT INTO lane (name) VALUES (this_name) ON CONFLICT (name) DO NOTHING;
        END LOOP;
        this_id := nextval('intent_number');
        RETURN QUERY
        SELECT l.name, l.holder, l.applied, this_id, w.rank, w.intent, w.until
        FROM lane l
        LEFT JOIN LATERAL (
            SELECT w.rank, w.intent, w.until FROM lane_waiting w WHERE w.lane = this_name AND w.until > at
            ORDER BY w.rank, w.intent LIMIT 2) w ON true
        WHERE l.name = this_name;
    END LOOP;
END $$;
