-- Who may use the server. A token itself is nowhere: only its hash is.
CREATE TABLE tokens (
    id         TEXT   NOT NULL PRIMARY KEY,
    -- The token that a browser's session was begun with; none for a token that somebody was given.
    parent     TEXT,
    hash       BYTEA  NOT NULL UNIQUE,
    holder     TEXT   NOT NULL,
    role       TEXT   NOT NULL,
    name       TEXT   NOT NULL,
    created_at BIGINT NOT NULL,
    -- None: it holds until it is revoked.
    expires_at BIGINT
);

CREATE INDEX tokens_by_parent ON tokens (parent) WHERE parent IS NOT NULL;

-- What the share links of a job are sealed with. Another key ends all links that there were.
CREATE TABLE share_keys (
    job_id UUID  NOT NULL PRIMARY KEY REFERENCES jobs (id),
    key    BYTEA NOT NULL
);

-- Whose job it is; nobody's where the server has no users.
ALTER TABLE jobs ADD COLUMN owner TEXT;
CREATE INDEX jobs_by_owner ON jobs (owner, id) WHERE owner IS NOT NULL;
-- What a user has in work, and what ended lately.
CREATE INDEX jobs_by_owner_and_end ON jobs (owner, finished_at) WHERE owner IS NOT NULL;
