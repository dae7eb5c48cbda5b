-- Which of its transactions a process committed last. A transaction's own number cannot say that for certain: after
-- a crash of the database it may be given to another.
CREATE TABLE written (
    teller TEXT        NOT NULL PRIMARY KEY,
    batch  BIGINT      NOT NULL,
    at     TIMESTAMPTZ NOT NULL
);
