-- Times are milliseconds since the Unix epoch, in ledger time. Hashes and ids are blobs. Everything else is text that a
-- person can read. See docs/reading-the-ledger.md.

-- One row: what the ledger as a whole knows, and seldom changes.
CREATE TABLE ledger (
    one             INTEGER PRIMARY KEY CHECK (one = 1),
    hash_key        BLOB NOT NULL,              -- keys the hashes of names, so that a forgotten key cannot be guessed; behind it a few such hashes
    sealed_key      BLOB NOT NULL,              -- sealed with the ledger's secret, which is not in the ledger; see docs/reading-the-ledger.md
    recovering_since INTEGER                    -- set while a lost tail is being made up for
);

-- What doors keep beside intents: tokens (their hashes), what is paused. Few, small, read whole.
CREATE TABLE note (
    kind            TEXT NOT NULL,
    name            TEXT NOT NULL,
    value           TEXT NOT NULL,              -- JSON
    PRIMARY KEY (kind, name)
) WITHOUT ROWID;

-- One row an intent. A settle touches only the newest pages: answers are elsewhere, and no index covers what it changes.
CREATE TABLE intent (
    id              INTEGER PRIMARY KEY,
    hash            BLOB NOT NULL UNIQUE,       -- of scope and key
    version         INTEGER NOT NULL,           -- grows with every write
    scope           TEXT,                       -- empty once forgotten, like the key
    key             TEXT,
    status          TEXT NOT NULL,
    doubt           INTEGER NOT NULL,
    generation      INTEGER NOT NULL,
    fence           INTEGER NOT NULL,
    tries           INTEGER NOT NULL,
    recipe          TEXT,
    fingerprint     BLOB,
    policy          TEXT NOT NULL,
    permit          TEXT,                       -- 'act' or 'lookup' while one is out
    claim_id        BLOB,
    holder          TEXT,
    granted_at      INTEGER,
    lease_until     INTEGER,
    send_by         INTEGER,
    due_at          INTEGER,
    external_id     TEXT,
    source          TEXT,                       -- how the answer came to be known
    work            TEXT,
    step            TEXT,
    lane            TEXT,
    lane_version    INTEGER,
    requested_by    TEXT NOT NULL,
    created_at      INTEGER NOT NULL,
    settled_at      INTEGER,
    tombstone       INTEGER NOT NULL,
    settle_receipt  BLOB,
    detail          TEXT,                       -- what is seldom there, as JSON
    salt            BLOB,
    journal_rows    INTEGER NOT NULL,
    journal_head    BLOB NOT NULL,
    keep_until      INTEGER NOT NULL,           -- when to look whether it can be purged
    request_digest  BLOB,                       -- of the request that is kept
    seal            BLOB NOT NULL               -- a keyed digest of the row and its answer: what was changed by hand is not acted on
);
CREATE INDEX intent_by_scope ON intent (scope);
CREATE INDEX intent_by_keep_until ON intent (keep_until);
CREATE INDEX intent_by_work ON intent (work) WHERE work IS NOT NULL;
CREATE INDEX intent_by_lane ON intent (lane) WHERE lane IS NOT NULL;

-- What the destination said in the present generation. Rowid tables: a body in a WITHOUT ROWID row would spill.
CREATE TABLE answer (
    intent          INTEGER PRIMARY KEY,
    head            TEXT NOT NULL,
    body            BLOB                        -- empty when it was too large to keep
);

-- What it said in earlier ones.
CREATE TABLE earlier_answer (
    intent          INTEGER NOT NULL,
    generation      INTEGER NOT NULL,
    status          TEXT NOT NULL,
    external_id     TEXT,
    head            TEXT NOT NULL,
    body            BLOB,                       -- empty when it was too large to keep
    not_kept        TEXT,                       -- then its length and hash
    PRIMARY KEY (intent, generation)
);

-- What would be sent, kept for what the server sends later.
CREATE TABLE request (
    intent          INTEGER PRIMARY KEY,
    generation      INTEGER NOT NULL,
    length          INTEGER NOT NULL,           -- of all of the body
    body            BLOB NOT NULL
);

-- The second half of a request's body, where a page would hold only one such body: it holds three halves.
CREATE TABLE request_rest (
    intent          INTEGER PRIMARY KEY,
    body            BLOB NOT NULL
);

-- Everything that is not simply done: what waits for time, for a caller or for a person.
CREATE TABLE agenda (
    status          TEXT NOT NULL,
    wake_at         INTEGER NOT NULL,           -- when time alone changes something
    intent          INTEGER NOT NULL,
    due_at          INTEGER,                    -- when the next attempt or lookup may go
    scope           TEXT,                       -- where something has a due time, by which others find it
    PRIMARY KEY (status, wake_at, intent)
) WITHOUT ROWID;
CREATE INDEX agenda_by_due ON agenda (scope, due_at, intent) WHERE scope IS NOT NULL;

CREATE TABLE lane (
    name            TEXT PRIMARY KEY,
    holder          INTEGER,
    applied         INTEGER
) WITHOUT ROWID;

CREATE TABLE lane_waiting (
    lane            TEXT NOT NULL,
    rank            INTEGER NOT NULL,           -- the version; the least number where there is none
    intent          INTEGER NOT NULL,
    until           INTEGER NOT NULL,
    PRIMARY KEY (lane, rank, intent)
) WITHOUT ROWID;

-- Append-only: every transition. Rows of an intent are chained by hash.
CREATE TABLE journal (
    intent          INTEGER NOT NULL,
    number          INTEGER NOT NULL,
    at              INTEGER NOT NULL,
    actor           TEXT NOT NULL,
    event           TEXT NOT NULL,
    status          TEXT NOT NULL,
    doubt           INTEGER NOT NULL,
    generation      INTEGER NOT NULL,
    fence           INTEGER NOT NULL,
    reason          TEXT NOT NULL,
    words           BLOB NOT NULL,              -- the digest of actor and reason, which are dropped when the intent is forgotten
    digest          BLOB,
    hash            BLOB NOT NULL,
    PRIMARY KEY (intent, number)
) WITHOUT ROWID;

-- Counts of events by hour. The last hour, 1000000000, never comes: it holds what is so now. That is how many intents stand where
-- ('standing: ...'), the time of the last write ('last at', ledger time never runs backwards), what a clock that only ticks
-- said then and since which start of the machine ('last tick', 'last boot'), and the highest number an intent
-- was ever given ('last intent', numbers are never reused); and which start of the machine somebody opened it in last, and when it was last
-- written before that ('start', 'before start'). Every commit changes these, so they are together, beside the counts
-- of the present hour: one page.
CREATE TABLE tally (
    hour            INTEGER NOT NULL,
    name            TEXT NOT NULL,
    n               INTEGER NOT NULL,
    PRIMARY KEY (hour, name)
) WITHOUT ROWID;
