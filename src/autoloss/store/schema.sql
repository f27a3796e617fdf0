-- One run: append-only, text and numbers only, a checksum in every row. Times are for people; no decision reads them.

CREATE TABLE setting (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL,
    checksum TEXT NOT NULL
) STRICT;

-- How each child came about. It is written when its attempts are resolved, before it is trained.
CREATE TABLE child (
    id INTEGER PRIMARY KEY,
    parent INTEGER,
    kinds TEXT NOT NULL,          -- JSON: branch → copied | fresh | mutated
    attempts TEXT NOT NULL,       -- JSON: branch → number of the winning attempt, null for a copy
    loss TEXT NOT NULL,
    origin TEXT NOT NULL,         -- trained | twin | copied
    source INTEGER,               -- whose outcome a twin or a copy shares
    signature TEXT NOT NULL,      -- JSON: branch → norms
    scores TEXT NOT NULL,         -- JSON: branch → [g, gains], where simulated
    counts TEXT NOT NULL,         -- JSON: sampled, simulated, passed, reused and rejections by reason
    rejected TEXT NOT NULL,       -- JSON: branch → keys simulated and rejected, eight bytes each in hexadecimal
    passed TEXT NOT NULL,         -- JSON: branch → keys simulated and passed, likewise
    born_at REAL NOT NULL,
    checksum TEXT NOT NULL
) STRICT;

-- What its training came to. Twins and copies have none of their own.
CREATE TABLE outcome (
    child INTEGER PRIMARY KEY REFERENCES child (id),
    state TEXT NOT NULL,          -- scored | diverged | failed
    score REAL,
    also TEXT NOT NULL,           -- JSON
    curve TEXT NOT NULL,          -- JSON
    step INTEGER,
    reason TEXT NOT NULL,
    seconds REAL NOT NULL,
    finished_at REAL NOT NULL,
    checksum TEXT NOT NULL
) STRICT;

-- One in a thousand of the rejected, to look at.
CREATE TABLE rejected (
    child INTEGER NOT NULL,
    branch TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    formula TEXT NOT NULL,
    reason TEXT NOT NULL,
    checksum TEXT NOT NULL,
    PRIMARY KEY (child, branch, attempt)
) STRICT;

-- Trainings beside the search: confirmations on fresh seeds, baselines, comparisons on the test split.
CREATE TABLE trial (
    loss TEXT NOT NULL,
    seed INTEGER NOT NULL,
    split TEXT NOT NULL,
    schedule TEXT NOT NULL,
    learning_rate REAL NOT NULL,
    scale REAL NOT NULL,
    state TEXT NOT NULL,
    score REAL,
    also TEXT NOT NULL,
    curve TEXT NOT NULL,
    step INTEGER,
    reason TEXT NOT NULL,
    seconds REAL NOT NULL,
    finished_at REAL NOT NULL,
    checksum TEXT NOT NULL,
    PRIMARY KEY (loss, seed, split, schedule, learning_rate, scale)
) STRICT;
