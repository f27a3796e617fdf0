-- What a reader ranks, counts and joins, on its own connection: of the rows that it has seen, those that are not damaged.

CREATE TEMP TABLE seen (name TEXT PRIMARY KEY, last INTEGER);
CREATE TEMP TABLE damaged (name TEXT, number INTEGER, PRIMARY KEY (name, number));

CREATE TEMP VIEW candidate AS
SELECT *, length(loss) - length(replace(loss, '(', '')) AS size  -- in prefix text each operator has one opening parenthesis
FROM main.candidate
WHERE id <= (SELECT last FROM seen WHERE name = 'candidate') AND id NOT IN (SELECT number FROM damaged WHERE name = 'candidate');

CREATE TEMP VIEW training AS
SELECT rowid AS number, *
FROM main.training
WHERE rowid <= (SELECT last FROM seen WHERE name = 'training') AND rowid NOT IN (SELECT number FROM damaged WHERE name = 'training');

CREATE TEMP VIEW rejected AS
SELECT *
FROM main.rejected
WHERE rowid <= (SELECT last FROM seen WHERE name = 'rejected') AND rowid NOT IN (SELECT number FROM damaged WHERE name = 'rejected');

-- Candidates one of whose trainings is damaged: they have no outcome, and are not running either.
CREATE TEMP VIEW unreadable AS
SELECT candidate FROM main.training
WHERE rowid IN (SELECT number FROM damaged WHERE name = 'training') AND candidate IS NOT NULL;

-- All trainings of a candidate at one share of the schedule. Several are pooled by `Outcome.pool`, as the driver does.
CREATE TEMP VIEW pooled AS
SELECT candidate, fidelity, count(*) AS count, state, score, also, step, reason, pool(fidelity, state, score, also, step, reason) AS pooled
FROM training
WHERE candidate IS NOT NULL AND candidate NOT IN unreadable
GROUP BY candidate, fidelity;

CREATE TEMP VIEW outcome AS
SELECT
    candidate, fidelity, count, json_extract(pooled, '$.deviation') AS deviation,
    iif(pooled IS NULL, state, json_extract(pooled, '$.state')) AS state,
    iif(pooled IS NULL, score, json_extract(pooled, '$.score')) AS score,
    iif(pooled IS NULL, also, json_extract(pooled, '$.also')) AS also,
    iif(pooled IS NULL, step, json_extract(pooled, '$.step')) AS step,
    iif(pooled IS NULL, reason, json_extract(pooled, '$.reason')) AS reason
FROM pooled;

-- Candidates that were trained themselves, and to an end: every pair of seed and fold.
CREATE TEMP VIEW trained AS
SELECT id, loss, size, candidate.fidelity, state, score, deviation, count, also, step, reason
FROM candidate JOIN outcome ON outcome.candidate = id AND outcome.fidelity = candidate.fidelity
WHERE origin = 'trained' AND count = json_array_length(seeds) * json_array_length(folds);

-- Candidates with an outcome, their own or a shared one.
CREATE TEMP VIEW settled AS
SELECT
    candidate.id, parent, root, kinds, candidate.loss, candidate.size, candidate.fidelity,
    state, score, deviation, count, also
FROM candidate JOIN trained ON trained.id = root;

-- Candidates that have a score at a larger share of the schedule as well, as another candidate.
CREATE TEMP VIEW promoted AS
SELECT parent AS id FROM settled WHERE kinds LIKE '%"promoted"%' AND score IS NOT NULL;

-- The best first. Twins and copies are not listed again, nor are candidates that were promoted. A score at a larger share of the
-- schedule counts more. Of equal scores the earlier candidate counts: a twin is no news.
CREATE TEMP VIEW ranking AS
SELECT * FROM trained WHERE score IS NOT NULL AND id NOT IN promoted ORDER BY fidelity DESC, score DESC, id;

-- The best candidate of each size that is better than all smaller ones, of those with a score at the largest share.
CREATE TEMP VIEW best_by_size AS
WITH
best AS (
    SELECT id, size, score, row_number() OVER (PARTITION BY size ORDER BY score DESC, id) AS place
    FROM trained WHERE score IS NOT NULL AND fidelity = (SELECT max(fidelity) FROM trained WHERE score IS NOT NULL)
),
rising AS (
    SELECT id, size, score, max(score) OVER (ORDER BY size ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS smaller
    FROM best WHERE place = 1
)
SELECT id FROM rising WHERE smaller IS NULL OR score > smaller ORDER BY size;

CREATE TEMP VIEW running AS
SELECT id, loss, fidelity, born_at
FROM candidate
WHERE source IS NULL AND id NOT IN (SELECT id FROM trained) AND id NOT IN unreadable
ORDER BY id;

-- Sums of the counts of all candidates.
CREATE TEMP VIEW total AS
SELECT key AS name, sum(value) AS count FROM candidate, json_each(counts) GROUP BY key;

-- Candidates and other trainings (without id) that have no score, by the first line of the reason; what follows is a traceback,
-- which differs. Each group is shown by its first member.
CREATE TEMP VIEW unscored AS
WITH ended AS (
    SELECT id, id AS place, loss, fidelity, state, step, reason, NULL AS seed, NULL AS split FROM trained
    UNION ALL
    SELECT NULL, number, loss, fidelity, state, step, reason, seed, split FROM training WHERE candidate IS NULL
)
SELECT state, line, count(*) AS count, min(place) AS place, id, loss, fidelity, step, seed, split
FROM (SELECT *, substr(reason, 1, instr(reason || char(10), char(10)) - 1) AS line FROM ended)
WHERE state <> 'scored'
GROUP BY id IS NULL, state, line ORDER BY count DESC, place;

-- The first formula that was kept of those rejected for a reason.
CREATE TEMP VIEW example AS
SELECT reason, candidate, branch, formula
FROM (SELECT *, row_number() OVER (PARTITION BY reason ORDER BY candidate, branch, attempt) AS place FROM rejected)
WHERE place = 1;
