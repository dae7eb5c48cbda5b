-- How much a worker must be able to do to carry the job out: nothing that is new, if nothing is said. A newer
-- program whose job asks for something that older ones do not know writes a number here that is higher than
-- theirs, and they leave the job to newer workers.
ALTER TABLE jobs ADD COLUMN needs INTEGER;
