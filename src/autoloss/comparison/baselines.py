"""The losses that found ones are compared with: which fit a task, and at which learning rates.

The scale of a loss acts like a learning rate. The learning rate of every loss that is compared is therefore the best of a small
grid, chosen on the valid split.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from autoloss.comparison.entrant import Entrant, training_seeds
from autoloss.comparison.record import Record, compare_losses
from autoloss.comparison.table import sort_by_mean
from autoloss.evaluation.dispatch import Dispatcher
from autoloss.settings import StepRule
from autoloss.space.branch import Branch
from autoloss.space.loss_text import join_branches, split_branches
from autoloss.tasks.task import Task

LEARNING_RATES = (0.1, 0.3, 1.0, 3.0, 10.0)
"""The grid of factors on the recipe's learning rate on which found losses and baselines are tuned."""
TUNING_SEEDS = 2
CLOSE = 2
"""Number of learning rates, the best on the first seed, that are trained on the further seeds."""
DICE = "baseline/dice"
OF_CLASSES = ("baseline/wce", "baseline/lovasz")
OF_REGIONS = ("baseline/dpce", "baseline/ssim", "baseline/ce_ssim")
"""Further baselines of a full comparison, for a softmax over classes; the second ones need space."""


def baselines(task: Task, *, every: bool = False) -> list[Entrant]:
    """Return the task's standard loss and, where it applies, Dice.

    Args:
        every: Also the others that apply, for a full comparison.
    """
    standard = standard_entrant(task)
    if standard is None:
        return []
    names = []
    if _has_one_softmax(task.branches):
        names += [DICE, *(OF_CLASSES if every else ()), *(OF_REGIONS if every and _has_space(task) else ())]
    if every:
        names += [_join({**task.standard, **other}) for other in task.baselines]
    return [standard, *(Entrant(_label(name), name, baseline=True) for name in names)]


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
    rule: StepRule | None = None,
) -> list[Entrant]:
    """Return each entrant at the learning rate of the grid with the highest mean on the valid split.

    All rates are trained on one seed, and the best `CLOSE` of each entrant on the others. Of equal rates the one nearest to the
    recipe's is chosen. Where the task does not tune the learning rate, the scale of the loss is tuned instead.

    Args:
        rule: A step rule under which candidates are tried as well as under their own.
    """
    setting, short = ("learning_rate", "lr") if task.tunes_learning_rate else ("scale", "scale")
    seeds = training_seeds(seed, "tuning", TUNING_SEEDS)
    factors = sorted(LEARNING_RATES, key=lambda factor: abs(math.log(factor)))
    variants = [
        dict.fromkeys([one, one if rule is None or one.number is None else replace(one, step_rule=rule)])
        for one in entrants
    ]
    grids = [[replace(one, **{setting: factor}) for one in group for factor in factors] for group in variants]
    for count in range(1, len(seeds) + 1):
        rows = compare_losses([one for grid in grids for one in grid], seeds[:count], "valid", dispatcher, record)
        ranked = iter(rows)
        grids = [[row.entrant for row in sort_by_mean([next(ranked) for _ in grid])[:CLOSE]] for grid in grids]
    return [choice.name_factor(short) for choice, *_ in grids]


def count_tuning_trainings(entrants: int) -> int:
    """Return how many trainings `tune_learning_rates` needs for so many entrants.

    >>> count_tuning_trainings(1)
    7
    """
    return entrants * (len(LEARNING_RATES) + CLOSE * (TUNING_SEEDS - 1))


def _join(losses: Mapping[str, str]) -> str:
    return next(iter(losses.values())) if len(losses) == 1 else join_branches(losses)


def _label(text: str) -> str:
    """Return the losses of several branches in short, as the paper's tables name them: ce + l1 + ce + l1."""
    named = list(split_branches(text).values())
    if len(named) == 1 or not all(name.startswith("baseline/") for name in named):
        return text
    return " + ".join(name.removeprefix("baseline/") for name in named)


def _has_one_softmax(branches: Mapping[str, Branch]) -> bool:
    return len(branches) == 1 and next(iter(branches.values())).has_classes


def _has_space(task: Task) -> bool:
    samples = task.samples(1, 0)
    return all(sample.prediction.shape[2:].numel() > 1 for found in samples.values() for sample in found)
