-- The event log is the truth; `jobs` is an index over it, written in the same transaction.
-- Moments are microseconds since 1970, so that they sort and compare as integers in any database.

CREATE TABLE jobs (
    id               TEXT    NOT NULL PRIMARY KEY,
    status           TEXT    NOT NULL,
    priority         INTEGER NOT NULL,
    name             TEXT,
    title            TEXT    NOT NULL,
    scheduled_at     INTEGER NOT NULL,
    started_at       INTEGER,
    finished_at      INTEGER,
    generation       INTEGER NOT NULL,
    cancel_requested INTEGER NOT NULL,
    worker           TEXT,
    lease_until      INTEGER,
    last_seq         INTEGER NOT NULL,
    last_at          INTEGER NOT NULL,
    last_hash        BLOB    NOT NULL
) WITHOUT ROWID;

-- With a rowid, unlike `jobs`: lines are long, and a tree that is sorted by key holds few of them a page.
CREATE TABLE events (
    job_id TEXT    NOT NULL REFERENCES jobs (id),
    seq    INTEGER NOT NULL,
    -- The sealed line, byte for byte as it was hashed.
    line   TEXT    NOT NULL,
    PRIMARY KEY (job_id, seq)
);

-- Both queues are partial: a million finished jobs cost a claim nothing.
CREATE INDEX jobs_waiting ON jobs (priority DESC, id) WHERE status = 'scheduled';
CREATE INDEX jobs_leased ON jobs (lease_until) WHERE status = 'running';

-- Lists and counts by status.
CREATE INDEX jobs_by_status ON jobs (status, id);
