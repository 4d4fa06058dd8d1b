-- Times are milliseconds since the Unix epoch, by the database's clock. Hashes and ids are bytea. Everything else is text
-- that a person can read. See docs/reading-the-ledger.md.

-- One row: what the ledger as a whole knows.
CREATE TABLE ledger (
    one              int PRIMARY KEY CHECK (one = 1),
    schema_version   bigint NOT NULL,
    hash_key         bytea NOT NULL,            -- keys the hashes of names, so that a forgotten key cannot be guessed
    recovering_since bigint                     -- set while a lost tail is being made up for
);

-- What doors keep beside intents: tokens (their hashes), what is paused. Few, small, read whole.
CREATE TABLE note (
    kind            text COLLATE "C" NOT NULL,
    name            text COLLATE "C" NOT NULL,
    value           text NOT NULL,              -- JSON
    PRIMARY KEY (kind, name)
);

-- Numbers are never reused.
CREATE SEQUENCE intent_number;

-- One row an intent. A settle rewrites it in place: no index covers a column that a settle changes, there is room on its
-- page, and what is large is elsewhere.
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
    keep_until      bigint NOT NULL             -- when to look whether it can be purged
) WITH (fillfactor = 50);
CREATE INDEX intent_by_scope ON intent (scope, id);
CREATE INDEX intent_by_keep_until ON intent (keep_until);
CREATE INDEX intent_by_work ON intent (work, id) WHERE work IS NOT NULL;

-- What the destination said in the present generation.
CREATE TABLE answer (
    intent          bigint PRIMARY KEY,
    head            text NOT NULL,
    body            bytea                       -- empty when it was too large to keep
);

-- What it said in earlier ones.
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

-- What would be sent, kept for what the server sends later.
CREATE TABLE request (
    intent          bigint PRIMARY KEY,
    generation      bigint NOT NULL,
    body            bytea NOT NULL
);

CREATE VIEW intent_and_answer AS
    SELECT i.*, a.head AS answer_head, a.body AS answer_body FROM intent i LEFT JOIN answer a ON a.intent = i.id;

-- Everything that is not simply done: what waits for time, for a caller or for a person.
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

-- Append-only: every transition. Rows of an intent are chained by hash.
CREATE TABLE journal (
    intent          bigint NOT NULL,
    number          bigint NOT NULL,
    at              bigint NOT NULL,
    actor           text NOT NULL,
    event           text NOT NULL,
    status          text NOT NULL,
    doubt           boolean NOT NULL,
    generation      bigint NOT NULL,
    fence           bigint NOT NULL,
    reason          text NOT NULL,
    digest          bytea,
    hash            bytea NOT NULL,
    PRIMARY KEY (intent, number)
);

-- Counts of events by hour; hour 0 holds how many intents stand where now. Writers have slots, so that they do not wait
-- for each other; a count is the sum over its slots. Slots below zero belong to transactions of others (guards): nobody
-- may wait for those, so each has its own, and they are folded into slot 0 later.
CREATE TABLE tally (
    hour            bigint NOT NULL,
    name            text COLLATE "C" NOT NULL,
    slot            bigint NOT NULL,
    n               bigint NOT NULL,
    PRIMARY KEY (hour, name, slot)
) WITH (fillfactor = 50);

-- Functions, because their plans are made once a connection, behind a pooler too: planned anew each time, as the statements
-- of a pooled connection are, these take longer to plan than to carry out. A plan that is kept must not depend on how full
-- the tables happened to be when it was made, so no table is joined to an array, nor asked with EXISTS, which could read
-- all of it: rows are found one by one, by subqueries that can only follow an index, and then by where they are (ctid).

-- Writes a batch of changes, each entirely or not at all; says which. A change is left out when its intent exists already, or
-- no longer has the version it was decided on. Changes have positions: first those that are inserted, then those that are
-- updated, then those that are removed. In the rows of other tables a position stands where the number of the intent goes.
-- What is counted is the same for many changes, so it is sent once for all of a kind, with the number of the kind in place of
-- the slot; `kinds` says for each position of which kind it is, `times` how many there are of each.
-- `seldom` says whether any of the parameters behind it, up to `waiting_after`, has anything in it: asking each costs more
-- than what is usually written. Rows of `answers` and `agenda_after` are new: what was there before is in `unanswered` and
-- `agenda_before`.
-- Given back are the time, since when records may be missing, by position the numbers of what was written, and what was
-- there already in place of what was to be inserted, unless its answer is large (an array of intent_and_answer, as it is sent).
CREATE FUNCTION ledger_apply(
    relaxed boolean, slot bigint, known_key bytea, inserts intent[], given_ids bigint[], updates intent[], updated_ids bigint[],
    answers answer[], agenda_before agenda[], agenda_after agenda[], journal_rows journal[], counts tally[], kinds bigint[],
    times bigint[], seldom boolean, removals bigint[], removed_versions bigint[], archived bigint[], not_kept text[], unanswered bigint[],
    unrequested bigint[], buried bigint[], requests request[], lane_changes bigint[], lanes lane[],
    waiting_before lane_waiting[], waiting_after lane_waiting[],
    OUT now bigint, OUT recovering_since bigint, OUT written bigint[], OUT there bytea
) LANGUAGE plpgsql
SET search_path FROM CURRENT
SET lock_timeout = '250ms'
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    changed bigint[];
    missing bigint[];
    place bigint;
    hash_key bytea;
BEGIN
    IF relaxed THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;

    written := '{}';
    IF cardinality(inserts) > 0 THEN
        -- A name that is known uses up a number too. There are enough.
        written := ARRAY(SELECT coalesce(n.id, nextval('intent_number')) FROM unnest(given_ids) n (id));
        WITH inserted AS (
            INSERT INTO intent (
                id, hash, version, scope, key, status, doubt, generation, fence, tries, recipe, fingerprint, policy, permit,
                claim_id, holder, granted_at, lease_until, send_by, due_at, external_id, source, work, step, lane,
                lane_version, requested_by, created_at, settled_at, tombstone, settle_receipt, detail, salt, journal_rows,
                journal_head, keep_until)
            SELECT
                written[n.ordinality], n.hash, n.version, n.scope, n.key, n.status, n.doubt, n.generation, n.fence, n.tries,
                n.recipe, n.fingerprint, n.policy, n.permit, n.claim_id, n.holder, n.granted_at, n.lease_until, n.send_by,
                n.due_at, n.external_id, n.source, n.work, n.step, n.lane, n.lane_version, n.requested_by, n.created_at,
                n.settled_at, n.tombstone, n.settle_receipt, n.detail, n.salt, n.journal_rows, n.journal_head, n.keep_until
            FROM unnest(inserts) WITH ORDINALITY n
            ON CONFLICT (hash) DO NOTHING
            RETURNING id)
        SELECT coalesce(array_agg(n.id), '{}') INTO changed FROM inserted n;
        IF cardinality(changed) < cardinality(written) THEN
            missing := ARRAY(SELECT n FROM generate_subscripts(written, 1) n WHERE written[n] <> ALL (changed));
            there := array_send(ARRAY(
                SELECT ROW (i.*, a.head, a.body)::intent_and_answer FROM unnest(missing) n
                CROSS JOIN LATERAL (SELECT i.* FROM intent i WHERE i.hash = inserts[n].hash OFFSET 0) i
                LEFT JOIN LATERAL (SELECT a.head, a.body FROM answer a WHERE a.intent = i.id OFFSET 0) a ON true
                WHERE coalesce(octet_length(a.head), 0) + coalesce(octet_length(a.body), 0) <= 8192));
            FOREACH place IN ARRAY missing LOOP
                written[place] := NULL;
                times[kinds[place]] := times[kinds[place]] - 1;
            END LOOP;
        END IF;
    END IF;

    -- What an earlier generation came to stays with it. The lock keeps the version until it is checked again below.
    IF seldom THEN
        FOREACH place IN ARRAY archived LOOP
            INSERT INTO earlier_answer (intent, generation, status, external_id, head, body, not_kept)
            SELECT i.id, i.generation, i.status, i.external_id, a.head, a.body, not_kept[array_position(archived, place)]
            FROM intent i JOIN answer a ON a.intent = i.id
            WHERE i.id = updates[place - cardinality(inserts)].id AND i.version = updates[place - cardinality(inserts)].version - 1
            FOR UPDATE OF i
            ON CONFLICT (intent, generation) DO NOTHING;
        END LOOP;
    END IF;

    IF cardinality(updates) > 0 THEN
        -- Every write makes one version more.
        WITH updated AS (
            UPDATE intent i SET
                version = n.version, scope = n.scope, key = n.key, status = n.status, doubt = n.doubt,
                generation = n.generation, fence = n.fence, tries = n.tries, recipe = n.recipe,
                fingerprint = n.fingerprint, permit = n.permit, claim_id = n.claim_id, holder = n.holder,
                granted_at = n.granted_at, lease_until = n.lease_until, send_by = n.send_by, due_at = n.due_at,
                external_id = n.external_id, source = n.source, requested_by = n.requested_by,
                settled_at = n.settled_at, tombstone = n.tombstone, settle_receipt = n.settle_receipt,
                detail = n.detail, salt = n.salt, journal_rows = n.journal_rows, journal_head = n.journal_head,
                keep_until = CASE WHEN i.tombstone <> n.tombstone THEN n.keep_until ELSE i.keep_until END
            FROM (
                SELECT n.*, (SELECT i.ctid FROM intent i WHERE i.id = n.id) AS place
                FROM unnest(updates) n OFFSET 0) n
            WHERE i.ctid = n.place AND i.version = n.version - 1
            RETURNING n.id)
        SELECT coalesce(array_agg(u.id), '{}') INTO changed FROM updated u;
        written := written || updated_ids;
        IF cardinality(changed) < cardinality(updates) THEN
            missing := ARRAY(
                SELECT cardinality(inserts) + n.ordinality FROM unnest(updated_ids) WITH ORDINALITY n (id)
                WHERE n.id <> ALL (changed));
            FOREACH place IN ARRAY missing LOOP
                written[place] := NULL;
                times[kinds[place]] := times[kinds[place]] - 1;
            END LOOP;
        END IF;
    END IF;

    IF seldom THEN
        FOR i IN 1 .. cardinality(removals) LOOP
            DELETE FROM intent WHERE id = removals[i] AND version = removed_versions[i];
            IF NOT FOUND THEN
                written := written || NULL::bigint;
                place := kinds[cardinality(written)];
                times[place] := times[place] - 1;
                CONTINUE;
            END IF;
            written := written || removals[i];
            DELETE FROM answer WHERE intent = removals[i];
            DELETE FROM earlier_answer WHERE intent = removals[i];
            DELETE FROM journal WHERE intent = removals[i];
        END LOOP;

        FOREACH place IN ARRAY unanswered LOOP
            DELETE FROM answer WHERE intent = written[place];
        END LOOP;
        FOREACH place IN ARRAY unrequested LOOP
            DELETE FROM request WHERE intent = written[place];
        END LOOP;
        FOREACH place IN ARRAY buried LOOP
            DELETE FROM earlier_answer WHERE intent = written[place];
        END LOOP;
        IF cardinality(requests) > 0 THEN
            INSERT INTO request (intent, generation, body)
            SELECT written[n.intent], n.generation, n.body FROM unnest(requests) n WHERE written[n.intent] IS NOT NULL
            ON CONFLICT (intent) DO UPDATE SET generation = excluded.generation, body = excluded.body;
        END IF;
        -- Lanes are locked by whoever changes them.
        FOR i IN 1 .. cardinality(lanes) LOOP
            UPDATE lane SET holder = lanes[i].holder, applied = lanes[i].applied
            WHERE name = lanes[i].name AND written[lane_changes[i]] IS NOT NULL;
        END LOOP;
        FOR i IN 1 .. cardinality(waiting_before) LOOP
            DELETE FROM lane_waiting
            WHERE lane = waiting_before[i].lane AND rank = waiting_before[i].rank AND intent = written[waiting_before[i].intent];
        END LOOP;
        IF cardinality(waiting_after) > 0 THEN
            INSERT INTO lane_waiting (lane, rank, intent, until)
            SELECT n.lane, n.rank, written[n.intent], n.until
            FROM unnest(waiting_after) n WHERE written[n.intent] IS NOT NULL;
        END IF;
    END IF;

    IF cardinality(answers) > 0 THEN
        INSERT INTO answer (intent, head, body)
        SELECT written[n.intent], n.head, n.body FROM unnest(answers) n WHERE written[n.intent] IS NOT NULL;
    END IF;
    IF cardinality(agenda_before) > 0 THEN
        DELETE FROM agenda WHERE ctid = ANY (ARRAY(
            SELECT (
                SELECT g.ctid FROM agenda g
                WHERE g.status = n.status AND g.wake_at = n.wake_at AND g.intent = written[n.intent])
            FROM unnest(agenda_before) n));
    END IF;
    IF cardinality(agenda_after) > 0 THEN
        INSERT INTO agenda (status, wake_at, intent, due_at, scope)
        SELECT n.status, n.wake_at, written[n.intent], n.due_at, n.scope
        FROM unnest(agenda_after) n WHERE written[n.intent] IS NOT NULL;
    END IF;
    IF cardinality(journal_rows) > 0 THEN
        INSERT INTO journal (
            intent, number, at, actor, event, status, doubt, generation, fence, reason, digest, hash)
        SELECT
            written[n.intent], n.number, n.at, n.actor, n.event, n.status, n.doubt, n.generation, n.fence, n.reason,
            n.digest, n.hash
        FROM unnest(journal_rows) n WHERE written[n.intent] IS NOT NULL;
    END IF;
    IF cardinality(counts) > 0 THEN
        -- In the order of keys, so that two writers lock rows in the same order.
        INSERT INTO tally (hour, name, slot, n)
        SELECT t.hour, t.name, ledger_apply.slot, sum(t.n * times[t.slot]) FROM unnest(counts) t
        WHERE times[t.slot] > 0
        GROUP BY 1, 2 ORDER BY 1, 2
        ON CONFLICT (hour, name, slot) DO UPDATE SET n = tally.n + excluded.n;
    END IF;

    SELECT l.recovering_since, l.hash_key INTO recovering_since, hash_key FROM ledger l WHERE l.one = 1;
    -- Names hashed by another key than the ledger's would all look new, and everything would happen again.
    IF known_key <> hash_key THEN
        RAISE EXCEPTION 'the ledger was filled from an export since it was opened; start again' USING ERRCODE = 'TS001';
    END IF;
    now := (extract(epoch FROM clock_timestamp()) * 1000)::bigint;
END $$;

-- What there is under these hashes and numbers.
CREATE FUNCTION ledger_look(hashes bytea[], ids bigint[]) RETURNS SETOF intent_and_answer
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    IF cardinality(hashes) > 0 THEN
        RETURN QUERY
        SELECT i.*, a.* FROM unnest(hashes) n (hash)
        CROSS JOIN LATERAL (SELECT i.* FROM intent i WHERE i.hash = n.hash OFFSET 0) i
        LEFT JOIN LATERAL (SELECT a.head, a.body FROM answer a WHERE a.intent = i.id OFFSET 0) a ON true;
    END IF;
    IF cardinality(ids) > 0 THEN
        RETURN QUERY
        SELECT i.*, a.* FROM unnest(ids) n (id)
        CROSS JOIN LATERAL (SELECT i.* FROM intent i WHERE i.id = n.id OFFSET 0) i
        LEFT JOIN LATERAL (SELECT a.head, a.body FROM answer a WHERE a.intent = i.id OFFSET 0) a ON true;
    END IF;
END $$;

-- Keeps a name for the caller's transaction; false when another one has kept it too long.
CREATE FUNCTION ledger_hold(name_lock bigint) RETURNS boolean
LANGUAGE plpgsql
SET lock_timeout = '2s'
AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(name_lock);
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END $$;

-- Locks lanes for the caller's transaction, making them if necessary. For each: what is known of it, a number for an intent
-- that may turn out to be new, and the first two that wait in it.
CREATE FUNCTION ledger_lock(names text[], at bigint)
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
BEGIN
    INSERT INTO lane (name) SELECT n FROM unnest(names) n ON CONFLICT (name) DO NOTHING;
    FOREACH this_name IN ARRAY names LOOP
        PERFORM FROM lane l WHERE l.name = this_name FOR UPDATE;
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
