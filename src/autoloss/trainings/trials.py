"""Evidence: trainings beside the search, on fresh seeds and held-out data, with baselines that were given a fair chance.

The scale of a loss acts like a learning rate. A baseline's learning rate is therefore the best of a small grid, chosen on the
valid split, and cross entropy stands there in several scales as well.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from autoloss.search.jobs import Train
from autoloss.search.records import Outcome
from autoloss.settings import Configuration
from autoloss.space.branch import Branch
from autoloss.store.store import Store
from autoloss.tasks.task import Task
from autoloss.trainings.evidence import COMPARISON, TEST, Entrant, Row, by_mean, rows, seeds
from autoloss.workers.dispatch import Dispatcher, run_all

LEARNING_RATES = (0.1, 0.3, 1.0, 3.0, 10.0)
"""The grid of factors on the recipe's learning rate that a baseline is tuned on."""
TUNING_SEEDS = 2
SCALES = (0.3, 3.0, 10.0)
"""Factors in which the standard loss stands beside itself; 1 is the standard loss."""
DICE = "baseline/dice"
OF_CLASSES = ("baseline/wce", "baseline/lovasz")
OF_REGIONS = ("baseline/dpce", "baseline/ssim", "baseline/ce_ssim")
"""Further baselines of a full comparison, for a softmax over classes; the second ones need space."""

Outcomes = dict[Train, Outcome]
Keep = Callable[[Train, Outcome], None]


def trained(jobs: Iterable[Train], dispatcher: Dispatcher, known: Outcomes, keep: Keep) -> Outcomes:
    """Run the trainings that are not known yet, and keep each as it ends."""
    wanted = list(dict.fromkeys(jobs))
    for done in run_all([job for job in wanted if job not in known], dispatcher):
        # Tests that a search had under way when it ended come in here as well; nobody needs them any more.
        if isinstance(done.job, Train) and isinstance(done.result, Outcome):
            keep(done.job, done.result)
            known[done.job] = done.result
    return known


def standard(task: Task) -> str | None:
    """Return the task's standard loss as the text of a training, or None when it names none."""
    losses = task.standard
    return _text(losses) if set(losses) == set(task.branches) else None


def _text(losses: Mapping[str, str]) -> str:
    return next(iter(losses.values())) if len(losses) == 1 else "; ".join(f"{name}: {losses[name]}" for name in losses)


def baselines(task: Task, *, every: bool = False) -> list[Entrant]:
    """Return the task's standard loss and, where it applies, Dice.

    Args:
        every: Also the others that apply, for a comparison that may take its time.
    """
    text = standard(task)
    if text is None:
        return []
    names = [text]
    if _one_softmax(task.branches):
        names += [DICE, *(OF_CLASSES if every else ()), *(OF_REGIONS if every and _has_space(task) else ())]
    if every:
        names += [_text({**task.standard, **other}) for other in task.baselines]
    return [Entrant(_label(name), name, baseline=True) for name in names]


def _label(text: str) -> str:
    """Return the losses of several branches in short, as the paper's tables name them: ce + l1 + ce + l1."""
    named = [part.partition(": ")[2] for part in text.split("; ")]
    if len(named) == 1 or not all(name.startswith("baseline/") for name in named):
        return text
    return " + ".join(name.removeprefix("baseline/") for name in named)


def scaled(entrant: Entrant) -> list[Entrant]:
    return [replace(entrant, label=f"{entrant.label} × {scale:g}", scale=scale) for scale in SCALES]


def tuned(
    entrants: Sequence[Entrant], task: Task, seed: int, dispatcher: Dispatcher, known: Outcomes, keep: Keep
) -> list[Entrant]:
    """Give each entrant the learning rate of the grid that does best on the valid split.

    A task whose learning rate cannot be tuned gets the scale of its losses tuned instead.
    """
    setting = "learning_rate" if task.tunes_learning_rate else "scale"
    grid = {entrant: [replace(entrant, **{setting: factor}) for factor in LEARNING_RATES] for entrant in entrants}
    fresh = seeds(seed, "tuning", TUNING_SEEDS)
    best = []
    for found in _in_order(grid.values(), compared(_flat(grid.values()), fresh, "valid", dispatcher, known, keep)):
        choice = by_mean(found)[0].entrant
        factor = getattr(choice, setting)
        named = "lr" if setting == "learning_rate" else "scale"
        best.append(choice if factor == 1 else replace(choice, label=f"{choice.label} ({named} × {factor:g})"))
    return best


def compared(
    entrants: Sequence[Entrant],
    training_seeds: Sequence[int],
    split: str,
    dispatcher: Dispatcher,
    known: Outcomes,
    keep: Keep,
) -> list[Row]:
    """Train every entrant on the same seeds; the first baseline is what the others are tested against."""
    trained([entrant.job(seed, split) for seed in training_seeds for entrant in entrants], dispatcher, known, keep)
    return rows(entrants, training_seeds, split, known)


def against_baselines(
    best: Sequence[Entrant],
    task: Task,
    configuration: Configuration,
    seed_count: int,
    store: Store,
    dispatcher: Dispatcher,
    *,
    every: bool = False,
) -> list[Row]:
    """Set losses beside the tuned baselines, and beside the standard loss in other scales, on the test split.

    Every training is kept in the store, and so is the list of who took part.

    Args:
        every: With all baselines, not only those that close a search.
    """
    known = store.trials()
    plain = baselines(task, every=every)
    rivals = tuned(plain, task, configuration.seed, dispatcher, known, store.add_trial)
    # The standard loss at the recipe's own learning rate comes first: it is what the others are tested against.
    own = [rival for rival in plain[:1] if rival not in rivals]
    entrants = [*best, *own, *rivals, *(other for rival in plain[:1] for other in scaled(rival))]
    listed = {"seeds": seed_count, "entrants": [dataclasses.asdict(entrant) for entrant in entrants]}
    store.change_setting(COMPARISON, json.dumps(listed))
    fresh = seeds(configuration.seed, COMPARISON, seed_count)
    return by_mean(compared(entrants, fresh, TEST, dispatcher, known, store.add_trial))


def _flat(groups: Iterable[Sequence[Entrant]]) -> list[Entrant]:
    return [entrant for group in groups for entrant in group]


def _in_order(groups: Iterable[Sequence[Entrant]], found: Sequence[Row]) -> list[list[Row]]:
    """Put the rows of a flat list back into groups of the same sizes."""
    rest = iter(found)
    return [[next(rest) for _ in group] for group in groups]


def _one_softmax(branches: Mapping[str, Branch]) -> bool:
    return len(branches) == 1 and next(iter(branches.values())).activation == "softmax"


def _has_space(task: Task) -> bool:
    samples = task.samples(1, 0)
    return all(sample.prediction.shape[2:].numel() > 1 for found in samples.values() for sample in found)
