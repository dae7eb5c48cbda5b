-- What was done to the server as a whole: a chain like those of jobs, written with the changes.
CREATE TABLE audit (
    seq  INTEGER NOT NULL PRIMARY KEY,
    -- The sealed line, byte for byte as it was hashed.
    line TEXT    NOT NULL
);

-- Where it ends: one row.
CREATE TABLE audit_end (
    one  INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
    seq  INTEGER NOT NULL,
    -- None before the first line.
    hash BLOB
);
INSERT INTO audit_end (one, seq) VALUES (1, 0);
