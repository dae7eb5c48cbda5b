-- The event log is the truth; `jobs` is an index over it, written in the same transaction.
-- Moments are microseconds since 1970, so that they sort and compare as integers in any database.
--
-- Migrations here only add: during a rolling upgrade older programs work on a newer schema. So every
-- later column has a default or may be null, and nothing is dropped or renamed. A migration that older
-- programs cannot live with raises `oldest` below, and they refuse to start.

CREATE TABLE bellglass_schema (
    -- The oldest schema whose programs may use this database.
    oldest BIGINT NOT NULL
);
INSERT INTO bellglass_schema (oldest) VALUES (1);

-- Rows are updated with each event, so pages keep room for that and are tidied early.
CREATE TABLE jobs (
    id               UUID    NOT NULL PRIMARY KEY,
    status           TEXT    NOT NULL,
    priority         INTEGER NOT NULL,
    name             TEXT,
    title            TEXT    NOT NULL,
    scheduled_at     BIGINT  NOT NULL,
    started_at       BIGINT,
    finished_at      BIGINT,
    generation       BIGINT  NOT NULL,
    cancel_requested BOOLEAN NOT NULL,
    worker           TEXT,
    lease_until      BIGINT,
    last_seq         BIGINT  NOT NULL,
    last_at          BIGINT  NOT NULL,
    last_hash        BYTEA   NOT NULL,
    steps_done       BIGINT  NOT NULL DEFAULT 0,
    steps_total      BIGINT,
    -- A JSON list of numbers.
    failed_steps     TEXT    NOT NULL DEFAULT '[]',
    -- Number of the newest `result.stored`.
    result_seq       BIGINT
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02);

CREATE TABLE events (
    job_id UUID   NOT NULL REFERENCES jobs (id),
    seq    BIGINT NOT NULL,
    -- The sealed line, byte for byte as it was hashed.
    line   TEXT   NOT NULL,
    PRIMARY KEY (job_id, seq)
);

-- Both queues are partial: a million finished jobs cost a claim nothing.
CREATE INDEX jobs_waiting ON jobs (priority DESC, id) WHERE status = 'scheduled';
CREATE INDEX jobs_leased ON jobs (lease_until) WHERE status IN ('running', 'paused');

-- Lists and counts by status.
CREATE INDEX jobs_by_status ON jobs (status, id);

-- What ended lately, for those who missed the news of it, and what ended long ago.
CREATE INDEX jobs_finished ON jobs (finished_at) WHERE finished_at IS NOT NULL;

-- Where the workers can be asked for what runs with them.
CREATE TABLE workers (
    name    TEXT   NOT NULL PRIMARY KEY,
    -- Host and port; none if it cannot be asked.
    address TEXT,
    seen_at BIGINT NOT NULL
);

-- What tasks learnt that is worth knowing in later ones of the same project.
CREATE TABLE memories (
    id      BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    project TEXT   NOT NULL,
    text    TEXT   NOT NULL,
    -- The job that left it; none if somebody wrote it by hand.
    job_id  UUID,
    at      BIGINT NOT NULL,
    -- Where the text lies for those who look by meaning: numbers of four bytes, little end first.
    vector  BYTEA,
    -- Words are found whatever their ending is in English; those that English has everywhere are
    -- found too, but count for little.
    words   TSVECTOR GENERATED ALWAYS AS (
        setweight(to_tsvector('english', text), 'A') || setweight(to_tsvector('simple', text), 'D')
    ) STORED
);

-- By hash, because a text may be longer than what an index holds.
CREATE UNIQUE INDEX memories_once ON memories (project, md5(text));
CREATE INDEX memory_words ON memories USING gin (words);
