"""Trainings outside a search: each is run once and recorded; losses are compared on the same seeds, each at its best rate.

The scale of a loss acts like a learning rate. The learning rate of every loss that is compared is therefore the best of a small
grid, chosen on the valid split.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from statistics import median

from autoloss.comparison.baselines import MOST_RIVALS
from autoloss.comparison.entrant import (
    TUNING,
    TUNING_SEEDS,
    Entrant,
    Row,
    collect_rows,
    sort_by_mean,
    training_seeds,
)
from autoloss.evaluation.adapting import LARGEST_SHARE, LEAST_STEPS
from autoloss.evaluation.dispatch import Dispatcher, run_jobs
from autoloss.proposing.records import Outcome, Train
from autoloss.space.loss_text import split_branches, split_factor
from autoloss.store.database import ignore
from autoloss.store.store import Store
from autoloss.tasks.task import Task
from autoloss.training.training import Training
from autoloss.zoo.entries import ENTRIES

LEARNING_RATES = (0.1, 0.3, 1.0, 3.0, 10.0)
"""The grid of factors on the recipe's learning rate on which found losses and baselines are tuned."""
NEAR_RATES = LEARNING_RATES[1:-1]
"""Those of the grid that are tried first; an end of the grid only where the best of these, or one as good, is next to it."""
CLOSE = 2
"""Number of learning rates that are trained whole on all seeds."""
TUNING_SHARE = 1 / 4
"""Share of the schedule at which learning rates are tried first, where it has enough steps."""
PROMISING = MOST_RIVALS + 2
"""Number of these that are trained whole on the valid split: the best of short trainings, in which some good ones are slow."""
Vary = Callable[[Entrant], Sequence[Entrant]]
"""Returns the ways of training an entrant that are tried on the grid; the first is trained whole at its own rate in any case."""


class Record:
    """Trainings outside a search, each recorded in a run's store or, without one, in memory.

    Each is run once, under whatever name or factor its loss is listed: equal trainings share one outcome.

    Args:
        dispatcher: Runs them.
        expected: Trainings at the end, those that are recorded already included.
        observe: Called with (recorded, expected) now and after each training; `expected` grows with what is asked for.

    Attributes:
        outcomes: All that is recorded.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        store: Store | None = None,
        expected: int = 0,
        observe: Callable[[int, int], None] = ignore,
    ) -> None:
        self.outcomes: dict[Train, Outcome] = {} if store is None else store.trainings()
        self._dispatcher, self._store, self._expected, self._observe = dispatcher, store, expected, observe
        if store is not None:
            store.database.rest = dispatcher.queue.rest
        self._tell()

    def run_trainings(self, jobs: Iterable[Train]) -> Mapping[Train, Outcome]:
        """Run the trainings that are not recorded, record each as it ends, and return all that is recorded."""
        known = {_make_key(job): outcome for job, outcome in self.outcomes.items()}
        waiting: dict[object, list[Train]] = {}
        for job in dict.fromkeys(jobs):
            if job not in self.outcomes:
                waiting.setdefault(_make_key(job), []).append(job)
        for key in waiting.keys() & known.keys():
            self._add(waiting.pop(key), known[key])
        self._expected = max(self._expected, len(self.outcomes) + sum(map(len, waiting.values())))
        for job, result, _ in run_jobs([alike[0] for alike in waiting.values()], self._dispatcher):
            # Rejection tests that a search left under way end here as well; nobody needs them any more.
            if isinstance(job, Train) and isinstance(result, Outcome):
                self._add(waiting.get(_make_key(job), [job]), result)
        return self.outcomes

    def compare_losses(
        self, entrants: Sequence[Entrant], seeds: Sequence[int], split: str, fidelity: float = 1.0
    ) -> list[Row]:
        """Train every entrant on the same seeds; the first baseline is the reference of the others.

        Args:
            fidelity: Share of the schedule.

        Returns:
            One row per entrant, in their order.
        """
        jobs = [entrant.job(seed, split, fidelity=fidelity) for seed in seeds for entrant in entrants]
        return collect_rows(entrants, seeds, split, self.run_trainings(jobs), fidelity=fidelity)

    def _add(self, jobs: Iterable[Train], outcome: Outcome) -> None:
        """Record the outcome that equal trainings share."""
        for job in jobs:
            if self._store is not None:
                self._store.add_training(job.loss, job.training, outcome)
            self.outcomes[job] = outcome
            self._tell()

    def _tell(self) -> None:
        count = len(self.outcomes)
        self._observe(count, max(self._expected, count))


def _make_key(job: Train) -> object:
    """Return a key that is equal for trainings that differ in the text of the loss alone.

    Steps of one norm do not depend on the factor of an only branch.
    """
    training, parts = job.training, list[tuple[str, str, float]]()
    for branch, text in split_branches(job.loss).items():
        factor, tree = split_factor(_write_tree(text))
        parts.append((branch, tree, factor * training.scale.get(branch, 1.0)))
    if len(parts) == 1 and training.step_rule == "one_norm":
        parts = [(*parts[0][:2], 1.0)]
    return tuple(parts), replace(training, scale={})


def write_trees(loss: str) -> Mapping[str, tuple[float, str]]:
    """Return branch → factor, and tree or name; an only branch has the factor 1, which a tuned rate makes up for."""
    parts = {branch: split_factor(_write_tree(text)) for branch, text in split_branches(loss).items()}
    return parts if len(parts) > 1 else {branch: (1.0, tree) for branch, (_, tree) in parts.items()}


@cache
def _write_tree(text: str) -> str:
    """Return the tree of a loss that the zoo names, as a search writes it; any other text as it is."""
    return str(ENTRIES[text].make_loss()) if text in ENTRIES else text


def tune_learning_rates(
    entrants: Sequence[Entrant],
    task: Task,
    seed: int,
    record: Record,
    *,
    vary: Vary = lambda one: [one],
) -> list[Row]:
    """Return each entrant at the learning rate of the grid with the highest mean on the valid split, with its scores there.

    Rates are tried on one seed, shortly where the task allows it. Short trainings often favour another rate or way of training: of
    each entrant the best rate of each way and the one that it comes with are trained whole, all rates where none is ahead, and
    those beside the best until none is better (larger ones of the better half only); the better two of these on all seeds. Of equal
    rates the one nearest to the recipe's is chosen. Where the task does not tune the learning rate, the scale of the loss is tuned
    instead.
    """
    seeds = training_seeds(seed, TUNING, TUNING_SEEDS)
    first = _try_rates(entrants, task, seed, record, vary)
    tried = [_choose_close(rows, vary(one)[0]) for one, rows in zip(entrants, first, strict=True)]
    whole = _tune(tried, seeds[:1], 1.0, record)
    for _ in LEARNING_RATES:
        level = median([-math.inf if rows[0].mean is None else rows[0].mean for rows in whole] or [0.0])
        pairs = zip(tried, whole, strict=True)
        tried = [list(dict.fromkeys([*some, *_list_beside(rows[0], level, task)])) for some, rows in pairs]
        whole = _tune(tried, seeds[:1], 1.0, record)
    best = _tune([[row.entrant for row in rows[:CLOSE]] for rows in whole], seeds, 1.0, record)
    # What fails late may do so at the best rates of short trainings alone.
    pairs = zip(best, first, strict=True)
    others = [[] if rows[0].mean is not None else [row.entrant for row in grid] for rows, grid in pairs]
    again = _tune(others, seeds[:1], 1.0, record)
    chosen = [sort_by_mean([*rows, *more])[0] for rows, more in zip(best, again, strict=True)]
    return [replace(row, entrant=row.entrant.spell_out()) for row in chosen]


def _choose_close(rows: Sequence[Row], given: Entrant) -> list[Entrant]:
    """Return the entrants of a grid that may be the best in whole trainings.

    Args:
        rows: Of first trainings, the best first.
        given: At the rate that it comes with.
    """
    grid = [row.entrant for row in rows]
    if len({row.mean for row in rows}) == 1:
        return list(dict.fromkeys([*grid, given]))
    return list(dict.fromkeys([*{one.way: one for one in reversed(grid)}.values(), given]))


def _list_beside(row: Row, level: float, task: Task) -> list[Entrant]:
    """Return an entrant at the next smaller rate of the grid, and where it reaches a score at the next larger one as well.

    Too large a rate can hide a good loss altogether; too small a one costs it a little.
    """
    setting, rate = _name_setting(task), getattr(row.entrant, _name_setting(task))
    below = [other for other in LEARNING_RATES if other < rate][-1:]
    reached = row.mean is not None and row.mean >= level
    above = [other for other in LEARNING_RATES if reached and other > rate][:1]
    return [replace(row.entrant, **{setting: other}) for other in (*below, *above)]


def _name_setting(task: Task) -> str:
    return "learning_rate" if task.tunes_learning_rate else "scale"


def find_promising(
    entrants: Sequence[Entrant], task: Task, seed: int, record: Record, vary: Vary
) -> tuple[list[Entrant], list[Row]]:
    """Return the entrants that lead in short trainings at their best rates there, and the rows of the others.

    The first trainings are those of `tune_learning_rates`; one seed alone would choose among many by chance.
    """
    best = [rows[0].entrant for rows in _try_rates(entrants, task, seed, record, vary)]
    seeds, share = training_seeds(seed, TUNING, TUNING_SEEDS), choose_first_share(task, TUNING_SHARE)
    order = sort_by_mean(record.compare_losses(best, seeds, "valid", share))
    place = dict(zip(best, entrants, strict=True))
    return [place[row.entrant] for row in order[:PROMISING]], order[PROMISING:]


def _try_rates(entrants: Sequence[Entrant], task: Task, seed: int, record: Record, vary: Vary) -> list[list[Row]]:
    """Train each entrant at the rates on one seed, shortly where the task allows it; return the rows of each, the best first."""
    setting = _name_setting(task)
    grids = [[replace(way, **{setting: factor}) for way in vary(one) for factor in NEAR_RATES] for one in entrants]
    seeds, share = training_seeds(seed, TUNING, 1), choose_first_share(task, TUNING_SHARE)
    near = zip(grids, _tune(grids, seeds, share, record), strict=True)
    return _tune([[*grid, *_reach_out(rows, setting)] for grid, rows in near], seeds, share, record)


def _reach_out(rows: Sequence[Row], setting: str) -> Iterator[Entrant]:
    """Yield the ends of the grid next to the best rate of each way of training."""
    means = {row.entrant: -math.inf if row.mean is None else row.mean for row in rows}
    for way in dict.fromkeys(replace(one, **{setting: 1.0}) for one in means):
        found = {factor: means[replace(way, **{setting: factor})] for factor in NEAR_RATES}
        for near, end in ((NEAR_RATES[0], LEARNING_RATES[0]), (NEAR_RATES[-1], LEARNING_RATES[-1])):
            if found[near] == max(found.values()):
                yield replace(way, **{setting: end})


def _tune(grids: Sequence[Sequence[Entrant]], seeds: Sequence[int], fidelity: float, record: Record) -> list[list[Row]]:
    """Train all grids at once; return the rows of each, the best first."""
    near = [sorted(grid, key=lambda one: abs(math.log(one.learning_rate * one.scale))) for grid in grids]
    rows = iter(record.compare_losses([one for grid in near for one in grid], seeds, "valid", fidelity))
    return [sort_by_mean([next(rows) for _ in grid]) for grid in near]


def count_tuning_trainings(entrants: int, others: int = 0, ways: int = 1, share: float = 1.0) -> float:
    """Return about how many trainings `tune_learning_rates` needs for so many entrants, and for the promising of some others.

    The best rate is taken to be next to an end of the grid.

    Args:
        ways: In which each is trained.
        share: What a first training counts.

    >>> count_tuning_trainings(1)
    9.0
    """
    whole = entrants + min(others, PROMISING)
    short = (entrants + others) * ways * (len(NEAR_RATES) + 1) + others
    return short * share + whole * (CLOSE * TUNING_SEEDS + ways)


def choose_first_share(task: Task, least: float) -> float:
    """Return the share of the schedule of first trainings: this one, or more where that has too few steps to tell losses apart."""
    if not task.shortens:
        return 1.0
    steps = task.steps(Training(seed=0))
    share = max(least, 0.0 if steps is None else LEAST_STEPS / steps)
    return share if share <= LARGEST_SHARE else 1.0
