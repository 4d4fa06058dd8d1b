-- Times are milliseconds since the Unix epoch, by the database's clock. Hashes and ids are bytea. Everything else is text
-- that a person can read. See docs/reading-the-ledger.md.

-- One row: what the ledger as a whole knows.
CREATE TABLE ledger (
    one              int PRIMARY KEY CHECK (one = 1),
    schema_version   bigint NOT NULL,
    hash_key         bytea NOT NULL,            -- keys the hashes of names, so that a forgotten key cannot be guessed
    recovering_since bigint                     -- set while a lost tail is being made up for
);

-- Numbers are never reused.
CREATE SEQUENCE intent_number;

-- One row an intent, its answer inline. No index covers a column that a settle changes, so that updates stay on their page.
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
    request         bytea                       -- what would be sent, kept for what the server sends later
) WITH (fillfactor = 70);
CREATE INDEX intent_by_scope ON intent (scope, id);
CREATE INDEX intent_by_keep_until ON intent (keep_until);
CREATE INDEX intent_by_work ON intent (work, id) WHERE work IS NOT NULL;

-- What the destination said in earlier generations.
CREATE TABLE earlier_answer (
    intent          bigint NOT NULL,
    generation      bigint NOT NULL,
    status          text NOT NULL,
    external_id     text,
    head            text NOT NULL,
    body            bytea,
    PRIMARY KEY (intent, generation)
);

-- Everything that is not simply done: what waits for time, for a caller or for a person.
CREATE TABLE agenda (
    status          text COLLATE "C" NOT NULL,
    wake_at         bigint NOT NULL,            -- when time alone changes something
    intent          bigint NOT NULL,
    due_at          bigint,                     -- when the next attempt or lookup may go
    PRIMARY KEY (status, wake_at, intent)
);

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

-- Functions, because their plans are made once a connection, behind a pooler too. Planned anew each time, as statements of
-- a pooled connection are, what ledger_apply does takes longer to plan than to do. Their plans must not depend on how full
-- the tables happened to be at first: arrays drive, indexes are followed.

-- Writes a batch of changes, each entirely or not at all; says which. Position i of every `new_` and `old_` array belongs to
-- the i-th change. There is no row yet where `old_version` is empty, and none any more where `new_version` is. A change is left
-- out when the intent no longer has the version it was decided on, or exists already.
CREATE FUNCTION ledger_apply(
    inserts bigint, removals bigint, relaxed boolean, slot bigint,
    old_version bigint[], old_status text[], old_wake_at bigint[], archived boolean[], answered boolean[],
    new_wake_at bigint[], new_id bigint[],
    new_hash bytea[], new_version bigint[], new_scope text[], new_key text[], new_status text[], new_doubt boolean[],
    new_generation bigint[], new_fence bigint[], new_tries bigint[], new_recipe text[], new_fingerprint bytea[],
    new_policy text[], new_permit text[], new_claim_id bytea[], new_holder text[], new_granted_at bigint[],
    new_lease_until bigint[], new_send_by bigint[], new_due_at bigint[], new_external_id text[], new_source text[],
    new_work text[], new_step text[], new_lane text[], new_lane_version bigint[], new_requested_by text[],
    new_created_at bigint[], new_settled_at bigint[], new_tombstone boolean[], new_settle_receipt bytea[],
    new_detail text[], new_salt bytea[], new_journal_rows bigint[], new_journal_head bytea[], new_keep_until bigint[],
    new_answer_head text[], new_answer_body bytea[], new_request bytea[],
    journal_change bigint[], journal_number bigint[], journal_at bigint[], journal_actor text[], journal_event text[],
    journal_status text[], journal_doubt boolean[], journal_generation bigint[], journal_fence bigint[],
    journal_reason text[], journal_digest bytea[], journal_hash bytea[],
    tally_change bigint[], tally_hour bigint[], tally_name text[], tally_n bigint[],
    OUT now bigint, OUT recovering_since bigint, OUT written bigint[]
) LANGUAGE plpgsql
SET search_path FROM CURRENT
SET lock_timeout = '250ms'
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    expected bigint;
    found_count bigint;
    changed bigint[];
    place bigint;
BEGIN
    IF relaxed THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;

    -- By place: the number of what was written.
    written := array_fill(NULL::bigint, ARRAY[cardinality(new_id)]);

    IF inserts > 0 THEN
        -- Looking first keeps known names from using up numbers.
        written := ARRAY(
            SELECT CASE
                WHEN n.old_version IS NULL AND NOT EXISTS (SELECT FROM intent i WHERE i.hash = n.hash)
                THEN coalesce(n.id, nextval('intent_number'))
            END
            FROM unnest(old_version, new_id, new_hash) WITH ORDINALITY n (old_version, id, hash, place)
            ORDER BY n.place);
        INSERT INTO intent (
            id, hash, version, scope, key, status, doubt, generation, fence, tries, recipe, fingerprint, policy, permit,
            claim_id, holder, granted_at, lease_until, send_by, due_at, external_id, source, work, step, lane,
            lane_version, requested_by, created_at, settled_at, tombstone, settle_receipt, detail, salt, journal_rows,
            journal_head, keep_until, answer_head, answer_body, request)
        SELECT n.* FROM unnest(
            written, new_hash, new_version, new_scope, new_key, new_status, new_doubt, new_generation, new_fence,
            new_tries, new_recipe, new_fingerprint, new_policy, new_permit, new_claim_id, new_holder, new_granted_at,
            new_lease_until, new_send_by, new_due_at, new_external_id, new_source, new_work, new_step, new_lane,
            new_lane_version, new_requested_by, new_created_at, new_settled_at, new_tombstone, new_settle_receipt,
            new_detail, new_salt, new_journal_rows, new_journal_head, new_keep_until, new_answer_head, new_answer_body,
            new_request) n (id, hash)
        WHERE n.id IS NOT NULL
        ORDER BY n.hash
        ON CONFLICT (hash) DO NOTHING;
        GET DIAGNOSTICS found_count = ROW_COUNT;
        expected := (SELECT count(n) FROM unnest(written) n);
        IF found_count < expected THEN
            written := ARRAY(
                SELECT (SELECT i.id FROM intent i WHERE i.id = n.id)
                FROM unnest(written) WITH ORDINALITY n (id, place) ORDER BY n.place);
        END IF;
    END IF;

    IF true = ANY (archived) THEN
        -- What an earlier generation came to stays with it. The lock keeps the version until it is checked again below.
        INSERT INTO earlier_answer (intent, generation, status, external_id, head, body)
        SELECT i.id, i.generation, i.status, i.external_id, coalesce(i.answer_head, ''), i.answer_body
        FROM unnest(new_id, old_version, archived) n (id, version, archived)
        JOIN intent i ON i.id = n.id AND i.version = n.version
        WHERE n.archived
        FOR UPDATE OF i
        ON CONFLICT (intent, generation) DO UPDATE
            SET status = excluded.status, external_id = excluded.external_id, head = excluded.head, body = excluded.body;
    END IF;

    IF inserts + removals < cardinality(new_id) THEN
        WITH updated AS (
            UPDATE intent i SET
                version = n.version, scope = n.scope, key = n.key, status = n.status, doubt = n.doubt,
                generation = n.generation, fence = n.fence, tries = n.tries, recipe = n.recipe,
                fingerprint = n.fingerprint, permit = n.permit, claim_id = n.claim_id, holder = n.holder,
                granted_at = n.granted_at, lease_until = n.lease_until, send_by = n.send_by, due_at = n.due_at,
                external_id = n.external_id, source = n.source, requested_by = n.requested_by,
                settled_at = n.settled_at, tombstone = n.tombstone, settle_receipt = n.settle_receipt,
                detail = n.detail, salt = n.salt, journal_rows = n.journal_rows, journal_head = n.journal_head,
                keep_until = CASE WHEN i.tombstone <> n.tombstone THEN n.keep_until ELSE i.keep_until END,
                answer_head = CASE WHEN n.answered THEN n.answer_head ELSE i.answer_head END,
                answer_body = CASE WHEN n.answered THEN n.answer_body ELSE i.answer_body END,
                request = CASE WHEN n.tombstone THEN NULL ELSE coalesce(n.request, i.request) END
            FROM unnest(
                new_id, old_version, new_version, new_scope, new_key, new_status, new_doubt, new_generation, new_fence,
                new_tries, new_recipe, new_fingerprint, new_permit, new_claim_id, new_holder, new_granted_at,
                new_lease_until, new_send_by, new_due_at, new_external_id, new_source, new_requested_by, new_settled_at,
                new_tombstone, new_settle_receipt, new_detail, new_salt, new_journal_rows, new_journal_head,
                new_keep_until, answered, new_answer_head, new_answer_body, new_request)
            WITH ORDINALITY n (
                id, old_version, version, scope, key, status, doubt, generation, fence, tries, recipe, fingerprint,
                permit, claim_id, holder, granted_at, lease_until, send_by, due_at, external_id, source, requested_by,
                settled_at, tombstone, settle_receipt, detail, salt, journal_rows, journal_head, keep_until, answered,
                answer_head, answer_body, request, place)
            WHERE i.id = n.id AND i.version = n.old_version AND n.version IS NOT NULL
            RETURNING n.place)
        SELECT array_agg(u.place) INTO changed FROM updated u;
        FOREACH place IN ARRAY coalesce(changed, '{}') LOOP
            written[place] := new_id[place];
        END LOOP;
    END IF;

    IF removals > 0 THEN
        WITH removed AS (
            DELETE FROM intent i
            USING unnest(new_id, old_version, new_version) WITH ORDINALITY n (id, old_version, version, place)
            WHERE i.id = n.id AND i.version = n.old_version AND n.version IS NULL
            RETURNING n.place)
        SELECT array_agg(r.place) INTO changed FROM removed r;
        FOREACH place IN ARRAY coalesce(changed, '{}') LOOP
            written[place] := new_id[place];
            DELETE FROM journal WHERE intent = new_id[place];
            DELETE FROM earlier_answer WHERE intent = new_id[place];
        END LOOP;
    END IF;

    IF true = ANY (new_tombstone) THEN
        DELETE FROM earlier_answer e USING unnest(written, new_tombstone) n (id, tombstone)
        WHERE n.tombstone AND e.intent = n.id;
    END IF;

    INSERT INTO journal (
        intent, number, at, actor, event, status, doubt, generation, fence, reason, digest, hash)
    SELECT
        written[n.change], n.number, n.at, n.actor, n.event, n.status, n.doubt, n.generation, n.fence, n.reason,
        n.digest, n.hash
    FROM unnest(
        journal_change, journal_number, journal_at, journal_actor, journal_event, journal_status, journal_doubt,
        journal_generation, journal_fence, journal_reason, journal_digest, journal_hash)
        n (change, number, at, actor, event, status, doubt, generation, fence, reason, digest, hash)
    WHERE written[n.change] IS NOT NULL;

    DELETE FROM agenda g USING unnest(written, old_status, old_wake_at) o (id, status, wake_at)
    WHERE g.status = o.status AND g.wake_at = o.wake_at AND g.intent = o.id;

    INSERT INTO agenda (status, wake_at, intent, due_at)
    SELECT n.status, n.wake_at, n.id, n.due_at
    FROM unnest(written, new_status, new_wake_at, new_due_at) n (id, status, wake_at, due_at)
    WHERE n.id IS NOT NULL AND n.wake_at IS NOT NULL
    ON CONFLICT (status, wake_at, intent) DO UPDATE SET due_at = excluded.due_at;

    -- In the order of keys, so that two writers lock rows in the same order. Change 0 is what needed no write.
    INSERT INTO tally (hour, name, slot, n)
    SELECT t.hour, t.name COLLATE "C", slot, sum(t.n)
    FROM unnest(tally_change, tally_hour, tally_name, tally_n) t (change, hour, name, n)
    WHERE t.change = 0 OR written[t.change] IS NOT NULL
    GROUP BY 1, 2
    ORDER BY 1, 2
    ON CONFLICT (hour, name, slot) DO UPDATE SET n = tally.n + excluded.n;

    now := extract(epoch FROM clock_timestamp()) * 1000;
    recovering_since := (SELECT l.recovering_since FROM ledger l WHERE l.one = 1);
END $$;

-- What there is under these hashes and numbers.
CREATE FUNCTION ledger_look(hashes bytea[], ids bigint[]) RETURNS SETOF intent
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
BEGIN
    IF cardinality(hashes) > 0 THEN
        RETURN QUERY SELECT i.* FROM unnest(hashes) n (hash) JOIN intent i ON i.hash = n.hash;
    END IF;
    IF cardinality(ids) > 0 THEN
        RETURN QUERY SELECT i.* FROM unnest(ids) n (id) JOIN intent i ON i.id = n.id;
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

-- Locks a lane for the caller's transaction.
CREATE FUNCTION ledger_lock(lane_name text) RETURNS void
LANGUAGE plpgsql
SET search_path FROM CURRENT
SET lock_timeout = '2s'
SET enable_seqscan = off
AS $$
BEGIN
    INSERT INTO lane (name) VALUES (lane_name) ON CONFLICT (name) DO NOTHING;
    PERFORM 1 FROM lane WHERE name = lane_name FOR UPDATE;
END $$;
