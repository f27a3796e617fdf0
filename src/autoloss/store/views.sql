-- What a reader keeps of a run in memory, every row checked, and what it ranks, counts and joins of that.

CREATE TABLE candidate (
    id INTEGER PRIMARY KEY,
    parent INTEGER,
    source INTEGER,
    root INTEGER,                 -- whose training decides the outcome; null where a damaged row hides that
    origin TEXT,
    kinds TEXT,
    loss TEXT,
    fidelity REAL,
    born_at REAL
);

-- Trainings of the search. One whose row is damaged has no state: its candidate has no outcome, and is not running either.
CREATE TABLE training (
    candidate INTEGER PRIMARY KEY,
    loss TEXT,
    fidelity REAL,
    state TEXT,
    score REAL,
    also TEXT,
    step INTEGER,
    reason TEXT,
    finished_at REAL
);

CREATE TABLE rejected (
    candidate INTEGER,
    branch TEXT,
    attempt INTEGER,
    formula TEXT,
    reason TEXT
);

-- Sums of the counts of all candidates.
CREATE TABLE total (
    name TEXT PRIMARY KEY,
    count INTEGER
);

-- Candidates with an outcome, their own or a shared one. In prefix text each operator has one opening parenthesis.
CREATE VIEW settled AS
SELECT candidate.*, state, score, also, length(candidate.loss) - length(replace(candidate.loss, '(', '')) AS size
FROM candidate JOIN training ON training.candidate = candidate.root
WHERE state IS NOT NULL;

-- Candidates that were trained themselves, and to an end.
CREATE VIEW trained AS
SELECT id, candidate.loss, candidate.fidelity, state, score, also, length(candidate.loss) - length(replace(candidate.loss, '(', '')) AS size
FROM training JOIN candidate ON candidate.id = training.candidate
WHERE origin = 'trained' AND state IS NOT NULL;

-- Candidates that have a score at a larger share of the schedule as well, as another candidate.
CREATE VIEW promoted AS
SELECT parent AS id FROM settled WHERE kinds LIKE '%"promoted"%' AND score IS NOT NULL;

-- Twins and copies are not listed again, nor are candidates that were promoted. A score at a larger share of the schedule counts
-- more. Of equal scores the earlier candidate counts: a twin is no news.
CREATE VIEW ranking AS
SELECT * FROM trained WHERE score IS NOT NULL AND id NOT IN promoted ORDER BY fidelity DESC, score DESC, id;

-- The best candidate of each size that is better than all smaller ones, of those with a score at the largest share.
CREATE VIEW best_by_size AS
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

CREATE VIEW running AS
SELECT id, loss, fidelity, born_at
FROM candidate WHERE source IS NULL AND id NOT IN (SELECT candidate FROM training)
ORDER BY id;

-- Trainings of the search without a score by the first line of the reason; what follows is a traceback, which differs. Each
-- group is shown by its first candidate.
CREATE VIEW unscored AS
SELECT state, line, count(*) AS count, min(candidate) AS id, loss, fidelity, step
FROM (SELECT *, substr(reason, 1, instr(reason || char(10), char(10)) - 1) AS line FROM training)
WHERE state <> 'scored'
GROUP BY state, line ORDER BY count DESC, id;

-- The first formula that was kept of those rejected for a reason.
CREATE VIEW example AS
SELECT reason, candidate, branch, formula
FROM (SELECT *, row_number() OVER (PARTITION BY reason ORDER BY candidate, branch, attempt) AS place FROM rejected)
WHERE place = 1;
