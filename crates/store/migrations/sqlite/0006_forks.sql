-- The job that another one goes on from, which is kept for as long as that has not ended.
ALTER TABLE jobs ADD COLUMN forked_from TEXT;
-- Whether it is on its way out, so that nothing can go on from it any more.
ALTER TABLE jobs ADD COLUMN retired INTEGER NOT NULL DEFAULT 0;

CREATE INDEX forks_in_work ON jobs (forked_from) WHERE finished_at IS NULL AND forked_from IS NOT NULL;

UPDATE jobs SET forked_from = (
    SELECT json_extract(line, '$.spec.fork.job') FROM events WHERE job_id = jobs.id AND seq = 1
) WHERE finished_at IS NULL;
