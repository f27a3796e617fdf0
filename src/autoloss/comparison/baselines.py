"""The losses that found ones are compared with: which fit a task."""

from __future__ import annotations

from collections.abc import Iterator

from autoloss.comparison.entrant import Entrant
from autoloss.space.loss_text import join_losses, split_branches
from autoloss.tasks.task import Task
from autoloss.zoo.entries import COMPARED, ENTRIES

SEVERAL_CHANNELS = 2
"""One logit counts as two channels, and so for both kinds of probabilities; a baseline is of the kind of the branch itself."""
MOST_RIVALS = 2
"""Number of baselines besides the standard loss that are measured on the test split: the best on the valid split."""


def baselines(task: Task, *, every: bool = False) -> list[Entrant]:
    """Return the task's standard loss, and the others in common use: those that fit its branch, and those that it declares.

    Args:
        every: Also those that only a full comparison has.
    """
    standard = standard_entrant(task)
    if standard is None:
        return []
    names = list(_list_fitting(task, every)) if len(task.branches) == 1 else []
    names += [join_losses({**task.standard, **other}) for other in task.baselines]
    return [standard, *(_enter(name) for name in names if name != standard.loss)]


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
    return _enter(join_losses(task.standard))


def _enter(loss: str) -> Entrant:
    """Return a loss as an entrant; those of several branches are named in short, as in the paper's tables: ce + l1 + ce + l1."""
    named = list(split_branches(loss).values())
    short = len(named) > 1 and all(name.startswith("baseline/") for name in named)
    return Entrant(" + ".join(name.removeprefix("baseline/") for name in named) if short else loss, loss, baseline=True)


def has_space(task: Task) -> bool:
    """Return True if every branch predicts several positions for an item, as for images."""
    samples = task.samples(1, 0)
    return all(sample.prediction.shape[2:].numel() > 1 for found in samples.values() for sample in found)
