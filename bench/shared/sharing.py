"""Searches that share their trainings through a file: what was trained once, by any search of any process, is looked up."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import sqlite3
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import autoloss
from autoloss.comparison.entrant import CONFIRMATION, training_seeds
from autoloss.evaluation.adapting import adapt
from autoloss.evaluation.dispatch import Dispatcher
from autoloss.evaluation.evaluator import Evaluator
from autoloss.proposing.history import History
from autoloss.proposing.memory import recall
from autoloss.proposing.proposers import make_proposer
from autoloss.proposing.records import Attempt, Candidate, Job, Outcome, State, Train
from autoloss.run.loop import run_loop
from autoloss.run.request import branch_forms, make_request, prepare
from autoloss.settings import Configuration
from autoloss.training.training import Training
from autoloss.workers.pool import InlineWorkers

SCHEMA = """
CREATE TABLE IF NOT EXISTS trainings (task TEXT, loss TEXT, training TEXT, state TEXT, score REAL, step INTEGER, reason TEXT,
    seconds REAL, PRIMARY KEY (task, loss, training)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS searches (task TEXT, seed INTEGER, settings TEXT, trace TEXT, PRIMARY KEY (task, seed, settings))
    WITHOUT ROWID;
"""
WAIT_SECONDS = 120.0
"""Time to wait for another process that writes."""
FRESH = training_seeds(0, CONFIRMATION, 2)
"""Training seeds on which losses are confirmed; no search trains with them, and all share them."""


PROPOSING = ("proposing/*.py", "rejection/**/*.py", "evaluation/rejection_tester.py", "evaluation/adapting.py")
"""Code that decides which losses are trained; a search that was done with other code is done again, from the same trainings."""


@cache
def digest_code() -> str:
    """Return a digest of that code.

    Raises:
        FileNotFoundError: A pattern matches no file, so a change of that code would go unnoticed.
    """
    folder = Path(autoloss.__file__).parent
    matches = {pattern: sorted(folder.glob(pattern)) for pattern in PROPOSING}
    if empty := [pattern for pattern, paths in matches.items() if not paths]:
        raise FileNotFoundError(f"No file of the package matches {', '.join(empty)}; correct PROPOSING.")
    files = [path for paths in matches.values() for path in paths]
    return hashlib.blake2b(b"".join(path.read_bytes() for path in files), digest_size=8).hexdigest()


class OutOfTime(KeyboardInterrupt):
    """No further training may begin: it ends a search as Ctrl-C does. A worker would report any other as a failed training."""


@dataclass(frozen=True, slots=True)
class Improvement:
    """A whole training with a higher score than all before it in its search.

    Args:
        equivalents: What the budget was charged with by then.
        minutes: Time by then on one worker: tests, trainings, the model, and everything between.
        score: Of the search's own training.
        confirmed: Mean over the new training seeds; None where one of these trainings has no score.
    """

    equivalents: float
    minutes: float
    loss: str
    score: float
    confirmed: float | None


@dataclass(frozen=True, slots=True)
class Trace:
    """Result of a search: the improvements in order, and where it ended."""

    equivalents: float
    minutes: float
    candidates: int
    trainings: int
    improvements: tuple[Improvement, ...] = field(default=())

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Trace:
        values = json.loads(text)
        improvements = tuple(Improvement(**each) for each in values.pop("improvements"))
        return cls(**values, improvements=improvements)


class Cache:
    """Trainings and searches in an SQLite file, which several processes may use at a time.

    Args:
        task: The name under which those of one task are kept.
    """

    def __init__(self, path: Path, task: str) -> None:
        self._path = path
        self._task = task
        path.parent.mkdir(parents=True, exist_ok=True)
        with closing(self._connect()) as connection:
            connection.executescript(SCHEMA)

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=WAIT_SECONDS, isolation_level=None)

    def _query(self, sql: str, values: Sequence[Any]) -> Sequence[Any] | None:
        with closing(self._connect()) as connection:
            return connection.execute(sql, values).fetchone()

    def find_training(self, job: Train) -> Outcome | None:
        """Return the outcome of a training, with its seconds."""
        columns = "state, score, step, reason, seconds"
        sql = f"SELECT {columns} FROM trainings WHERE task = ? AND loss = ? AND training = ?"
        row = self._query(sql, (self._task, job.loss, _write_training(job.training)))
        if row is None:
            return None
        state, score, step, reason, seconds = row
        return Outcome(state=State(state), score=score, step=step, reason=reason, seconds=seconds)

    def add_training(self, job: Train, outcome: Outcome) -> None:
        row = (outcome.state.value, outcome.score, outcome.step, outcome.reason, outcome.seconds)
        values = (self._task, job.loss, _write_training(job.training), *row)
        self._query("INSERT OR IGNORE INTO trainings VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)

    def find_search(self, seed: int, settings: str) -> str | None:
        """Return what was kept of a search, as text."""
        sql = "SELECT trace FROM searches WHERE task = ? AND seed = ? AND settings = ?"
        row = self._query(sql, (self._task, seed, settings))
        return None if row is None else row[0]

    def add_search(self, seed: int, settings: str, text: str) -> None:
        self._query("INSERT OR REPLACE INTO searches VALUES (?, ?, ?, ?)", (self._task, seed, settings, text))


def _write_training(training: Training) -> str:
    return json.dumps(dataclasses.asdict(training), sort_keys=True)


class SharedRunner:
    """Does jobs, and looks up the trainings that were done before.

    Args:
        end: Time of the wall clock after which no training begins.
    """

    def __init__(self, runner: Evaluator, cache: Cache, end: float = math.inf) -> None:
        self._runner = runner
        self._cache = cache
        self._end = end
        self.saved = 0.0
        """Seconds that trainings took when they were done, less those that looking them up took."""

    def __call__(self, job: Job) -> list[Attempt] | Outcome:
        if not isinstance(job, Train):
            return self._runner.perform(job)
        began = time.perf_counter()
        outcome = self._cache.find_training(job)
        if outcome is None:
            if time.time() > self._end:
                raise OutOfTime
            found = self._runner.perform(job)
            assert isinstance(found, Outcome)
            outcome = replace(found, seconds=time.perf_counter() - began)
            self._cache.add_training(job, outcome)
        self.saved += outcome.seconds - (time.perf_counter() - began)
        return outcome

    def confirm(self, loss: str, training: Training) -> float | None:
        """Return the mean score of a loss over the new training seeds, on the valid split, trained like this otherwise."""
        scores: list[float] = []
        for seed in FRESH:
            outcome = self(Train(loss, replace(training, seed=seed)))
            if not isinstance(outcome, Outcome) or outcome.score is None:
                return None
            scores.append(outcome.score)
        return sum(scores) / len(scores)


class _Observer:
    """Takes what a run would store, and keeps the improvements."""

    def __init__(self, shared: SharedRunner, began: float) -> None:
        self._shared = shared
        self._began = began
        self.equivalents, self.trainings, self.candidates = 0.0, 0, 0
        self.improvements: list[Improvement] = []

    @property
    def minutes(self) -> float:
        return (time.perf_counter() - self._began + self._shared.saved) / 60

    def add_candidate(self, candidate: Candidate, rejected: Mapping[tuple[str, int], tuple[str, str]]) -> None:
        self.candidates += 1

    def add_training(self, loss: str, training: Training, outcome: Outcome, candidate: int | None) -> None:
        self.trainings += 1
        if outcome.score is None:
            return
        self.equivalents += training.fidelity
        best = self.improvements[-1].score if self.improvements else -math.inf
        if training.fidelity == 1 and outcome.score > best:
            self.improvements.append(Improvement(self.equivalents, self.minutes, loss, outcome.score, None))


def run_search(
    task: autoloss.Task, settings: Mapping[str, Any], seed: int, known: Cache, end: float = math.inf
) -> Trace:
    """Search a loss, or look up the search that was done before, and confirm each loss that was ahead.

    Raises:
        OutOfTime: A training was due after `end`; those before it are kept.
    """
    request = make_request(task, Configuration().changed({**settings, "seed": seed}))
    text = f"{request.configuration.to_json()} {digest_code()}"
    if (found := known.find_search(seed, text)) is not None:
        return Trace.from_json(found)
    runner = adapt(prepare(request), lambda said: None)
    adapted = runner.configuration
    for branch in task.branches:
        # What testers compile and measure at first is no part of a search's time.
        runner.get_tester(branch)
    shared = SharedRunner(runner, known, end)
    observer = _Observer(shared, time.perf_counter())
    with InlineWorkers(shared) as workers:
        memory = recall(adapted.search, branch_forms(task, runner.samples), runner.operators)
        history = History(task.branches, adapted, make_proposer(adapted, memory=memory))
        run_loop(history, observer, Dispatcher(workers, adapted.limits))
    minutes, training = observer.minutes, runner.make_training()
    improvements = tuple(replace(each, confirmed=shared.confirm(each.loss, training)) for each in observer.improvements)
    trace = Trace(observer.equivalents, minutes, observer.candidates, observer.trainings, improvements)
    known.add_search(seed, text, trace.to_json())
    return trace
