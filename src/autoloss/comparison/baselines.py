"""The losses that found ones are compared with: which fit a task."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from autoloss.comparison.entrant import Entrant
from autoloss.errors import RequestError
from autoloss.evaluation.evaluator import draw_samples
from autoloss.space.activated import ActivatedBranch
from autoloss.space.loss_text import join_losses, split_branches
from autoloss.space.pairs import PairBranch
from autoloss.tasks.task import Task
from autoloss.zoo.entries import COMPARED, ENTRIES, OF_SHARES, say_loss
from autoloss.zoo.entry import Entry

SEVERAL_CHANNELS = 2
"""One logit counts as two channels, and so for both kinds of probabilities; known losses fit by the kind of the branch itself."""
UNEVEN, LEAST_ROWS = 1.5, 2
"""Losses with the shares of the classes in the training data take part where these differ by more than this factor, and a batch has
fewer rows of the rarest class than this on average: else the shares of a batch, which formulas have, do as well."""
MOST_RIVALS = 2
"""Number of baselines besides the standard loss that are measured on the test split: the best on the valid split."""


def baselines(task: Task, *, every: bool = False) -> list[Entrant]:
    """Return the task's standard loss, and the others in common use: those that fit its branch, and those that it declares.

    With several branches, the others stand on one of them at a time, as they are written, unless the task declares its own.

    Args:
        every: Also those that only a full comparison has.
    """
    standard = standard_entrant(task)
    if standard is None:
        return []
    names = [] if len(task.branches) > 1 and task.baselines else list(_list_fitting(task, every))
    names += [join_losses({**task.standard, **other}) for other in task.baselines]
    return [standard, *(enter_loss(name) for name in names if name != standard.loss)]


def join_with(best: Entrant, known: Iterable[Entrant], task: Task) -> list[Entrant]:
    """Return known losses of the other branches beside the best of one branch, as an expert goes on.

    There are none where the task declares its own baselines: it has said what goes together.

    Args:
        best: A loss that differs from the standard one on some branches; the `known` ones stand on the others.
    """

    def changes(one: Entrant) -> dict[str, str]:
        return {branch: loss for branch, loss in split_branches(one.loss).items() if loss != task.standard.get(branch)}

    if task.baselines:
        return []
    kept, others = split_branches(best.loss), [changes(one) for one in known]
    return [enter_loss(join_losses({**kept, **one})) for one in others if one.keys().isdisjoint(changes(best))]


def _list_fitting(task: Task, every: bool) -> Iterator[str]:
    """Yield the entries of the zoo that are baselines of a branch, with the standard loss on the others."""
    shape = "space" if has_space(task) else "rows"
    for branch, form in task.branches.items():
        items = "groups" if isinstance(form, PairBranch) and "group" in form.columns else shape
        for name, (when, fitting) in COMPARED.items():
            if (every or when == "usual") and fitting in ("any", items) and fits(ENTRIES[name], branch, task):
                yield join_losses({**task.standard, branch: name})


def fits(entry: Entry, branch: str, task: Task) -> bool:
    """Return True if a loss of the zoo fits a branch of a task, its predictions and its targets."""
    form = task.branches[branch]
    if not form.with_kernel(entry.activation).fits(entry.activation, SEVERAL_CHANNELS):
        return False
    try:
        entry.make_branch_loss(branch, form)
    except RequestError:
        return False
    if entry.name in OF_SHARES:
        yes = form.shares if isinstance(form, ActivatedBranch) else ()
        no = [1 - share for share in yes] if entry.activation == "sigmoid" else []
        # A class that the training data lack has no weight.
        shares = [share for share in (*yes, *no) if share]
        rarest, batch = min(shares, default=1.0), task.recipe("proxy").get("batch_size") or math.inf
        return rarest * batch < LEAST_ROWS and max(shares, default=0.0) > UNEVEN * rarest
    samples = draw_samples(task, 1, 0)[branch] if entry.positive else ()
    leaves = [form.leaves(one.prediction, one.context) for one in samples]
    needs = entry.positive.split(", ")
    if "several outputs" in needs and leaves[0]["p"].shape[1] < SEVERAL_CHANNELS:
        return False
    if "positive targets" in needs and not all(bool((one["y"] > 0).all()) for one in leaves):
        return False
    return "positive" not in needs or all(bool((one["p"] > 0).all() and (one["y"] >= 0).all()) for one in leaves)


def standard_entrant(task: Task) -> Entrant | None:
    """Return the task's standard loss as the recipe trains it; None where it does not name one for every branch."""
    return enter_loss(join_losses(task.standard)) if set(task.standard) == set(task.branches) else None


def enter_loss(loss: str) -> Entrant:
    """Return a known loss as an entrant."""
    return Entrant(say_loss(loss), loss, baseline=True)


def has_space(task: Task) -> bool:
    """Return True if every branch predicts several positions for an item, as for images."""
    samples = task.samples(1, 0)
    return all(sample.prediction.shape[2:].numel() > 1 for found in samples.values() for sample in found)
