-- What was done to the server as a whole: a chain like those of jobs, written with the changes.
CREATE TABLE audit (
    seq  BIGINT NOT NULL PRIMARY KEY,
    -- The sealed line, byte for byte as it was hashed.
    line TEXT   NOT NULL
);

-- Where it ends: one row, which whoever adds a line holds until the commit.
CREATE TABLE audit_end (
    one  BOOLEAN NOT NULL PRIMARY KEY CHECK (one),
    seq  BIGINT  NOT NULL,
    -- None before the first line.
    hash BYTEA
);
INSERT INTO audit_end (one, seq) VALUES (TRUE, 0);
