-- One run: append-only, text and numbers only, a checksum in every row. Times are for people; no decision reads them.
-- `PRAGMA integrity_check` compares each table with its indexes, so that no row is lost to damage without notice.

CREATE TABLE setting (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL,
    checksum TEXT NOT NULL
) STRICT;

-- How each candidate was made. It is written when its attempts are decided, before it is trained.
CREATE TABLE candidate (
    id INTEGER PRIMARY KEY,
    parent INTEGER,
    kinds TEXT NOT NULL,          -- JSON: branch → copied | fresh | mutated | given | promoted
    attempts TEXT NOT NULL,       -- JSON: branch → number of the winning attempt, null for a copy
    loss TEXT NOT NULL,
    origin TEXT NOT NULL,         -- trained | twin | copied
    source INTEGER,               -- the candidate whose outcome a twin or a copy shares
    signature TEXT NOT NULL,      -- JSON: branch → norms
    scores TEXT NOT NULL,         -- JSON: branch → [g, gains], where simulated
    counts TEXT NOT NULL,         -- JSON: sampled, simulated, passed, reused and rejections by reason
    rejected TEXT NOT NULL,       -- JSON: branch → keys simulated and rejected, eight bytes each in hexadecimal
    passed TEXT NOT NULL,         -- JSON: branch → keys simulated and passed, likewise
    fidelity REAL NOT NULL,       -- share of the schedule that it is trained at
    pool TEXT NOT NULL,           -- JSON: branch → [number, signature] of each attempt it was chosen among, where several
    seeds TEXT NOT NULL,          -- JSON: numbers of the training seeds
    folds TEXT NOT NULL,          -- JSON: folds; it has one training for each pair of seed and fold
    root INTEGER,                 -- the candidate whose trainings decide the outcome: itself, or the root of its source
    born_at REAL NOT NULL,
    checksum TEXT NOT NULL
) STRICT;

CREATE INDEX candidate_root ON candidate (root);

-- Every training of the run: those of the search, of a candidate each, and those beside it: confirmations on new seeds,
-- baselines, comparisons on the test split. Twins and copies have none of their own.
CREATE TABLE training (
    candidate INTEGER REFERENCES candidate (id),  -- null beside the search
    loss TEXT NOT NULL,
    seed INTEGER NOT NULL,
    split TEXT NOT NULL,
    fold INTEGER NOT NULL,
    schedule TEXT NOT NULL,
    fidelity REAL NOT NULL,
    learning_rate REAL NOT NULL,
    scale TEXT NOT NULL,          -- JSON: branch → factor on its loss, where it is not 1
    step_rule TEXT NOT NULL,      -- recipe | clipped | one_norm | adamw
    length REAL NOT NULL,         -- factor on the epochs
    tuned_threshold INTEGER NOT NULL,
    paced_by TEXT NOT NULL,       -- loss whose norms of the gradient are replayed; empty for none
    item_weights TEXT NOT NULL,   -- JSON: [branch, grouping, weights]
    task_version INTEGER NOT NULL,  -- 0 for the task that the run began with
    state TEXT NOT NULL,          -- scored | diverged | stopped | failed
    score REAL,
    also TEXT NOT NULL,           -- JSON
    replicates TEXT NOT NULL,     -- JSON: examples of the split, and scores on resamples (null where undefined); or null
    curve TEXT NOT NULL,          -- JSON
    step INTEGER,
    reason TEXT NOT NULL,
    seconds REAL NOT NULL,
    finished_at REAL NOT NULL,
    checksum TEXT NOT NULL
) STRICT;

-- Every training runs once. A loss that failed may be trained again as another candidate.
CREATE UNIQUE INDEX training_of_candidate
ON training (candidate, seed, split, fold, schedule, fidelity, learning_rate, scale, step_rule, length, tuned_threshold,
    paced_by, item_weights)
WHERE candidate IS NOT NULL;
CREATE UNIQUE INDEX training_beside_search
ON training (loss, seed, split, fold, schedule, fidelity, learning_rate, scale, step_rule, length, tuned_threshold,
    paced_by, item_weights, task_version)
WHERE candidate IS NULL;

-- One in a thousand of the rejected, to look at.
CREATE TABLE rejected (
    candidate INTEGER NOT NULL,
    branch TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    formula TEXT NOT NULL,
    reason TEXT NOT NULL,
    checksum TEXT NOT NULL,
    PRIMARY KEY (candidate, branch, attempt)
) STRICT;
