"""`autoloss learn`: adds the results of runs to a prior."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from autoloss.errors import RequestError
from autoloss.options import checked
from autoloss.proposing.memory import SHIPPED_PRIOR, Forest, grow_forest, read_prior, write_prior
from autoloss.proposing.portrait import describe_tree, find_kind
from autoloss.run.results import Search, open_run
from autoloss.settings import LimitSettings
from autoloss.space.loss_text import split_branches, split_factor
from autoloss.space.parsing import FormulaError, parse
from autoloss.training.loop import one_thread

LEAST_LOSSES = 20
"""Minimum number of losses with a score for a run to be used."""


@dataclass(frozen=True, slots=True)
class Learnt:
    """A prior that was written.

    Args:
        losses: Run → number of losses that were learnt from.
        sources: Number of tasks and runs that the prior was trained on.
    """

    path: Path
    digest: str
    losses: dict[str, int]
    sources: int


@checked
def learn(runs: Sequence[str | Path], out: str | Path, *, prior: str | Path = SHIPPED_PRIOR) -> Learnt:
    """Train a prior on the losses of runs, and write it to a file for `search(…, prior=…)`.

    Each run counts as one task: its losses are ordered by their scores at the first rung. Nothing is trained, and no code of a run
    is executed; losses with user-defined operators are left out.

    Args:
        runs: Folders of runs of a task with one branch, whose leaves are y and p.
        out: The file to write; a prior there is replaced.
        prior: The prior to add to: `default`, a file, or `none`.

    Raises:
        RequestError: A run does not exist, has too few trained losses, or other branches; or `prior`, or a file that
            `out` names, is not a prior.

    >>> import autoloss
    >>> task = autoloss.tasks.get("tabular", data="iris", steps=20)
    >>> quick = {"rejection.engine": "reference", "rejection.samples": 1, "rejection.steps": 5, "rejection.threshold": 0.01}
    >>> found = autoloss.search(task, evaluations=22, workers=0, final=False, settings=quick, directory="iris")
    >>> autoloss.learn(["iris"], "mine.npz", prior="none").sources
    1
    """
    runs, path = [runs] if isinstance(runs, str | Path) else runs, Path(out)
    if path.is_file():
        try:
            read_prior(str(path))
        except RequestError:
            problem = f"{path} exists already and is not a prior, so it is not replaced. Name another file."
            raise RequestError(problem, argument="out") from None
    learnt = {str(run): learn_run(open_run(run)) for run in runs}
    if not learnt:
        raise RequestError("There is no run to learn from; name the folders of one or several.", argument="runs")
    new = {forest.source: forest for forest in learnt.values()}
    kept = [forest for forest in read_prior(str(prior))[0] if forest.source not in new]
    digest = write_prior([*kept, *new.values()], path)
    losses = {run: forest.losses for run, forest in learnt.items()}
    return Learnt(path, digest, losses, len(kept) + len(new))


def learn_run(run: Search) -> Forest:
    """Return the order of the losses of one run."""
    forms = run.settings.branches
    kind = find_kind(next(iter(forms.values()))) if len(forms) == 1 else None
    if kind is None:
        raise RequestError(
            f"{run.directory} cannot be used: its branches are {', '.join(forms)}. Name runs of a task with one branch "
            "whose leaves are y and p of classes, labels or single values.",
            argument="runs",
        )
    first = run.configuration.search.rungs[0]
    trained = [one for one in run.history if one.candidate.source is None and one.candidate.fidelity == first]
    scores = {one.candidate.loss: one.outcome.score for one in trained if one.outcome.score is not None}
    if len(scores) < LEAST_LOSSES:
        raise RequestError(
            f"The run in {run.directory} has {len(scores)} trained losses with a score; at least {LEAST_LOSSES} are needed. Resume "
            "it, or leave it out.",
            argument="runs",
        )
    [(branch, form)] = forms.items()
    portraits, values = [], []
    for loss, score in scores.items():
        # Of an operator of a person's own nothing is known.
        with suppress(FormulaError), one_thread():
            tree = parse(split_factor(split_branches(loss)[branch])[1], form.leaves)
            portraits.append(describe_tree(tree, kind))
            values.append(score)
    # The same for a run that was resumed since, and another for another metric or proposer.
    configuration = replace(run.configuration, evaluations=1, limits=LimitSettings())
    began = run.settings.samples_digest, configuration, [*scores.items()][:LEAST_LOSSES]
    source = f"{run.settings.title} {hashlib.sha256(str(began).encode()).hexdigest()[:8]}"
    return grow_forest(source, kind, portraits, values)
