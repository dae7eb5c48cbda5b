-- Where a job stands, so that asking for it does not read its whole log.
ALTER TABLE jobs ADD COLUMN steps_done   INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN steps_total  INTEGER;
-- A JSON list of numbers.
ALTER TABLE jobs ADD COLUMN failed_steps TEXT    NOT NULL DEFAULT '[]';
-- Number of the newest `result.stored`.
ALTER TABLE jobs ADD COLUMN result_seq   INTEGER;

-- The same for jobs from before, by the rules of the index.
UPDATE jobs SET
    steps_total = (
        SELECT json_array_length(line, '$.spec.steps') FROM events
        WHERE job_id = jobs.id AND seq = 1
    ),
    result_seq = (
        SELECT MAX(seq) FROM events
        WHERE job_id = jobs.id AND json_extract(line, '$.type') = 'result.stored'
    ),
    steps_done = (
        SELECT COUNT(*) FROM events
        WHERE job_id = jobs.id AND json_extract(line, '$.type') = 'step.finished' AND seq > (
            SELECT COALESCE(MAX(seq), 0) FROM events
            WHERE job_id = jobs.id AND json_extract(line, '$.type') = 'sandbox.lost'
        )
    ),
    failed_steps = COALESCE(
        (
            SELECT json_extract(line, '$.end.failed_steps') FROM events
            WHERE job_id = jobs.id AND json_extract(line, '$.type') = 'finished'
        ),
        (
            SELECT json_group_array(json_extract(line, '$.n')) FROM events
            WHERE job_id = jobs.id AND json_extract(line, '$.type') = 'step.finished'
                AND json_extract(line, '$.outcome.status') <> 'succeeded' AND seq > (
                    SELECT COALESCE(MAX(seq), 0) FROM events
                    WHERE job_id = jobs.id AND json_extract(line, '$.type') = 'sandbox.lost'
                )
        )
    );
