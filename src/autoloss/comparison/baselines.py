"""The losses that found ones are compared with: which fit a task, and at which learning rates.

The scale of a loss acts like a learning rate. The learning rate of every loss that is compared is therefore the best of a small
grid, chosen on the valid split.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from autoloss.comparison.entrant import TUNING, TUNING_SEEDS, Entrant, training_seeds
from autoloss.comparison.record import Record, compare_losses
from autoloss.comparison.table import Row, sort_by_mean
from autoloss.evaluation.adapting import LARGEST_SHARE, LEAST_STEPS
from autoloss.evaluation.dispatch import Dispatcher
from autoloss.space.loss_text import join_branches, split_branches
from autoloss.tasks.task import Task
from autoloss.training.training import Training
from autoloss.zoo.entries import COMPARED, ENTRIES

LEARNING_RATES = (0.1, 0.3, 1.0, 3.0, 10.0)
"""The grid of factors on the recipe's learning rate on which found losses and baselines are tuned."""
CLOSE = 2
"""Number of learning rates, the best at first, that are trained whole on all seeds."""
TUNING_SHARE = 1 / 4
"""Share of the schedule at which learning rates are tried first, where it has enough steps."""
SEVERAL_CHANNELS = 2
"""One logit counts as two channels, and so for both kinds of probabilities; a baseline is of the kind of the branch itself."""
MOST_RIVALS = 2
"""Number of baselines besides the standard loss that are measured on the test split: the best on the valid split."""
PROMISING = MOST_RIVALS + 1
"""Number of these that are trained whole on the valid split: the best of short trainings."""
Vary = Callable[[Entrant], Sequence[Entrant]]
"""Returns the ways of training an entrant that are tried."""


def baselines(task: Task, *, every: bool = False) -> list[Entrant]:
    """Return the task's standard loss, and the others in common use: those that fit its branch, and those that it declares.

    Args:
        every: Also those that only a full comparison has.
    """
    standard = standard_entrant(task)
    if standard is None:
        return []
    names = list(_list_fitting(task, every)) if len(task.branches) == 1 else []
    names += [_join({**task.standard, **other}) for other in task.baselines]
    return [standard, *(Entrant(_label(name), name, baseline=True) for name in names if name != standard.loss)]


def _list_fitting(task: Task, every: bool) -> Iterator[str]:
    """Yield the entries of the zoo that are baselines of the task's one branch."""
    (branch,) = task.branches.values()
    shape = "space" if has_space(task) else "rows"
    for name, (when, items) in COMPARED.items():
        if (
            (every or when == "usual")
            and items in ("any", shape)
            and branch.fits(ENTRIES[name].activation, SEVERAL_CHANNELS)
        ):
            yield name


def standard_entrant(task: Task) -> Entrant | None:
    """Return the task's standard loss as the recipe trains it; None where it does not name one for every branch."""
    if set(task.standard) != set(task.branches):
        return None
    name = _join(task.standard)
    return Entrant(_label(name), name, baseline=True)


def tune_learning_rates(
    entrants: Sequence[Entrant],
    task: Task,
    seed: int,
    dispatcher: Dispatcher,
    record: Record,
    *,
    vary: Vary = lambda one: [one],
) -> list[Row]:
    """Return each entrant at the learning rate of the grid with the highest mean on the valid split, with its scores there.

    All rates are trained on one seed, shortly where the task allows it, and the best `CLOSE` of each entrant whole on all seeds. Of
    equal rates the one nearest to the recipe's is chosen. Where the task does not tune the learning rate, the scale of the loss is
    tuned instead.
    """
    seeds = training_seeds(seed, TUNING, TUNING_SEEDS)
    first = _try_rates(entrants, task, seed, dispatcher, record, vary)
    grids = [[row.entrant for row in rows] for rows in first]
    best = _tune([[row.entrant for row in rows[:CLOSE]] for rows in first], seeds, 1.0, dispatcher, record)
    # What fails late may do so at the best rates of short trainings alone.
    others = [[] if rows[0].mean is not None else grid for rows, grid in zip(best, grids, strict=True)]
    again = _tune(others, seeds[:1], 1.0, dispatcher, record)
    chosen = [sort_by_mean([*rows, *more])[0] for rows, more in zip(best, again, strict=True)]
    return [
        replace(row, entrant=row.entrant.name_factor("lr" if task.tunes_learning_rate else "scale")) for row in chosen
    ]


def find_promising(
    entrants: Sequence[Entrant], task: Task, seed: int, dispatcher: Dispatcher, record: Record, vary: Vary
) -> tuple[list[Entrant], list[Row]]:
    """Return the entrants that lead in the short trainings of `tune_learning_rates`, and the rows of the others."""
    first = _try_rates(entrants, task, seed, dispatcher, record, vary)
    order = sort_by_mean([rows[0] for rows in first])
    place = {rows[0].entrant: one for rows, one in zip(first, entrants, strict=True)}
    return [place[row.entrant] for row in order[:PROMISING]], order[PROMISING:]


def _try_rates(
    entrants: Sequence[Entrant], task: Task, seed: int, dispatcher: Dispatcher, record: Record, vary: Vary
) -> list[list[Row]]:
    """Train each entrant at all rates on one seed, shortly where the task allows it; return the rows of each, the best first."""
    setting = "learning_rate" if task.tunes_learning_rate else "scale"
    factors = sorted(LEARNING_RATES, key=lambda factor: abs(math.log(factor)))
    grids = [[replace(way, **{setting: factor}) for way in vary(one) for factor in factors] for one in entrants]
    seeds = training_seeds(seed, TUNING, 1)
    return _tune(grids, seeds, choose_first_share(task, TUNING_SHARE), dispatcher, record)


def _tune(
    grids: Sequence[Sequence[Entrant]], seeds: Sequence[int], fidelity: float, dispatcher: Dispatcher, record: Record
) -> list[list[Row]]:
    """Train all grids at once; return the rows of each, the best first."""
    rows = iter(compare_losses([one for grid in grids for one in grid], seeds, "valid", dispatcher, record, fidelity))
    return [sort_by_mean([next(rows) for _ in grid]) for grid in grids]


def count_tuning_trainings(entrants: int, others: int = 0, ways: int = 1, share: float = 1.0) -> float:
    """Return about how many trainings `tune_learning_rates` needs for so many entrants, and for the promising of some others.

    Args:
        ways: In which each is trained.
        share: What a first training counts.

    >>> count_tuning_trainings(1)
    9.0
    """
    whole = entrants + min(others, PROMISING)
    return (entrants + others) * ways * len(LEARNING_RATES) * share + whole * CLOSE * TUNING_SEEDS


def choose_first_share(task: Task, least: float) -> float:
    """Return the share of the schedule of first trainings: this one, or more where that has too few steps to tell losses apart."""
    if not task.shortens:
        return 1.0
    steps = task.steps(Training(seed=0))
    share = max(least, 0.0 if steps is None else LEAST_STEPS / steps)
    return share if share <= LARGEST_SHARE else 1.0


def _join(losses: Mapping[str, str]) -> str:
    return next(iter(losses.values())) if len(losses) == 1 else join_branches(losses)


def _label(text: str) -> str:
    """Return the losses of several branches in short, as the paper's tables name them: ce + l1 + ce + l1."""
    named = list(split_branches(text).values())
    if len(named) == 1 or not all(name.startswith("baseline/") for name in named):
        return text
    return " + ".join(name.removeprefix("baseline/") for name in named)


def has_space(task: Task) -> bool:
    """Return True if every branch predicts several positions for an item, as for images."""
    samples = task.samples(1, 0)
    return all(sample.prediction.shape[2:].numel() > 1 for found in samples.values() for sample in found)
