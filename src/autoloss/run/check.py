"""A task looked over before a search: its samples, its standard loss, and the time a search will take."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from random import Random
from statistics import mean
from typing import Any

from autoloss import recipes, zoo
from autoloss.rejection.protocol import measure_reference
from autoloss.run.request import make_request
from autoloss.run.resolving import inspect_data, refer_to_task
from autoloss.run.user_files import importable_files
from autoloss.search.initialization import initial_expression
from autoloss.settings import Configuration, FinalSettings
from autoloss.space.expression import Expression
from autoloss.space.loss import bind
from autoloss.store import samples as sample_files
from autoloss.tasks.task import Diverged, Scored, Task, Training
from autoloss.tasks.training.threads import one_thread
from autoloss.trainings.baselines import LEARNING_RATES, SCALES, TUNING_SEEDS
from autoloss.workers.rejection_tester import RejectionTester, make_tester

STEPS = 2
"""Training steps that are tried at least."""
PATIENCE_SECONDS = 10.0
"""A training that takes longer is cut off after the steps that are tried."""
TIMED_CANDIDATES = 10
"""Random trees whose rejection is timed."""
WHOLE_CANDIDATES = 3
"""So many of them are taken through all steps too, as what passes is; the longest counts, since some end early."""
HOLDING = 0.11
"""The share of random trees that hold both roles, about; they alone are simulated."""
PASSING = 0.01
"""The share of random trees that pass, about (measured on several tasks)."""


@dataclass(frozen=True, slots=True)
class BranchCheck:
    """How the standard loss does on one branch's samples.

    Args:
        loss: Its name or formula.
        score: g in the run's unit, or None; also None for a hand-written loss, which the protocol cannot test.
        initial: Mean ξ₀.
        best: Mean ξ_best.
        reason: Why it does not pass, or None.
    """

    branch: str
    loss: str
    score: float | None
    initial: float
    best: float
    reason: str | None


@dataclass(frozen=True, slots=True)
class TaskCheck:
    """What a check found.

    Args:
        seconds_per_candidate: Of testing one loss as a search does, a tree for each branch, most of them dropped early.
        training_seconds: Of one whole training, estimated where it was cut off; None where that cannot be told.
        search_seconds: Estimated time of a search with this budget and so many workers.
        final_seconds: Likewise, of what is trained when it is over.
    """

    task: str
    branches: tuple[BranchCheck, ...]
    outcome: str
    training_seconds: float | None
    seconds_per_candidate: float
    search_seconds: float | None
    final_seconds: float | None
    evaluations: int
    threshold: float
    unit: str

    def values(self) -> dict[str, Any]:
        return asdict(self)

    def lines(self) -> Iterator[str]:
        """Say it in words."""
        yield f"Task {self.task}"
        for branch in self.branches:
            g = "–" if branch.score is None else f"{branch.score:.3f}"
            yield (
                f"  {branch.branch}: {branch.loss} has g {g} ({self.unit}; η {self.threshold:g}), "
                f"ξ₀ {branch.initial:.3f}, ξ_best {branch.best:.3f}"
            )
            if branch.reason:
                yield f"    rejected: {branch.reason}. {advice(branch, self.unit)}"
        whole = "?" if self.training_seconds is None else f"{self.training_seconds:.1f} s"
        yield f"  one training with the standard loss: {whole}, {self.outcome}"
        if self.final_seconds is not None:
            yield f"  the best again and beside the baselines, at the end: about {self.final_seconds:.0f} s"
        yield f"  one candidate through the protocol: {self.seconds_per_candidate:.3f} s"
        if self.search_seconds is not None:
            yield f"  a search of {self.evaluations} trainings: about {self.search_seconds:.0f} s"


@importable_files()
def check(
    task: str | Task,
    *,
    metric: str | None = None,
    options: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    evaluations: int = 500,
    workers: int = 2,
    seed: int = 0,
) -> TaskCheck:
    """Try a task's data, its samples, its standard loss and a training.

    Raises:
        RequestError: Files of the data are faulty, the task cannot be made, or its samples can gain nothing.
    """
    inspect_data(refer_to_task(task, metric, options))
    wanted = {**recipes.get_search_settings(task), **(settings or {}), "seed": seed, "evaluations": evaluations}
    request = make_request(task, metric=metric, options=options, settings=wanted)
    loaded, configuration, table = request.task, request.configuration, request.operators
    drawn = sample_files.draw_samples(loaded, configuration.rejection.samples, seed)
    branches = []
    screened, whole = [], []
    with one_thread():
        for name, branch in loaded.branches.items():
            tester = make_tester(branch, measure_reference(branch, drawn[name]), configuration, table)
            branches.append(_standard(name, loaded, tester))
            for times, taken in zip((screened, whole), _seconds(tester, configuration), strict=True):
                times.append(taken)
        outcome, training = _training(loaded)
    per_candidate = sum(screened)
    # What passes takes all steps.
    accepted = per_candidate * HOLDING / PASSING + sum(whole)
    busy = max(1, min(workers, configuration.evolution.lag))
    return TaskCheck(
        loaded.name,
        tuple(branches),
        outcome,
        training,
        per_candidate,
        None if training is None else evaluations * (accepted + training) / busy,
        None if training is None else final_trainings(configuration.final) * training / max(1, workers),
        evaluations,
        configuration.rejection.threshold,
        configuration.rejection.unit,
    )


def final_trainings(settings: FinalSettings) -> int:
    """Return about how many trainings follow a search: confirmations, the baselines' grid, the comparison."""
    tuning = 2 * len(LEARNING_RATES) * TUNING_SEEDS
    entrants = settings.compare + 3 + len(SCALES)
    compared = tuning + entrants * settings.compare_seeds if settings.compare and settings.compare_seeds else 0
    return settings.confirm * settings.confirm_seeds + settings.finalists * settings.finalist_seeds + compared


def advice(branch: BranchCheck, unit: str) -> str:
    """Say what to change where even the standard loss is rejected."""
    if branch.score is None:
        return "Check that the prediction reaches the loss, and that inputs and targets are finite."
    if unit == "absolute" and branch.best - branch.initial < 0.7:
        return "The metric cannot rise by η in absolute units; set rejection.unit=relative."
    if branch.score > 0:
        return (
            "It improves the metric too slowly: scale targets to about 1, raise rejection.learning_rate, "
            "or lower rejection.threshold."
        )
    return (
        "Descending it does not raise the metric: check that higher is better, that the activation fits the network, "
        "and that the samples have enough rows (rows_per_sample)."
    )


def _standard(name: str, task: Task, tester: RejectionTester) -> BranchCheck:
    reference = tester.engine.reference
    initial, best = mean(reference.initial), mean(reference.best)
    text = task.standard.get(name)
    if text is None:
        return BranchCheck(name, "(no standard loss)", None, initial, best, None)
    loss = zoo.resolve(text, {name: tester.engine.branch})[1][name]
    if not isinstance(loss, Expression):
        return BranchCheck(name, f"{text} (hand-written)", None, initial, best, None)
    (verdict,) = tester.engine.verdicts([loss])
    return BranchCheck(name, text, verdict.score, initial, best, verdict.reason.value if verdict.reason else None)


def _seconds(tester: RejectionTester, configuration: Configuration) -> tuple[float, float]:
    """Return how long a search takes with a random tree that holds both roles, screened, and how long with all steps."""
    rng = Random(configuration.seed)
    trees: list[Expression] = []
    while len(trees) < TIMED_CANDIDATES + 1:
        tree = initial_expression(tester.alphabet, configuration.evolution.depth, rng)
        if tree.holds(tester.engine.branch.leaves_and_roles):
            trees.append(tree)
    # The first one pays for compiling and warming up.
    tester.test(0, [trees.pop()])
    screened = [_timed(tree, lambda tree: tester.test(0, [tree])) for tree in trees]
    whole = [_timed(tree, lambda tree: tester.engine.verdicts([tree])) for tree in trees[:WHOLE_CANDIDATES]]
    return mean(screened), max(whole)


def _timed(tree: Expression, decide: Callable[[Expression], object]) -> float:
    began = time.perf_counter()
    decide(tree)
    return time.perf_counter() - began


class _Enough(Exception):
    """Ends a training that takes too long for a check."""


def _training(task: Task) -> tuple[str, float | None]:
    """Train with the standard loss; say what came of it and how long a whole training takes, None where unknown."""
    if set(task.standard) != set(task.branches):
        return "not tried: the task names no standard loss", None
    criterion = bind(zoo.resolve(task.standard, task.branches)[1], task.branches)
    training = Training(seed=0)
    began = time.perf_counter()
    reached = 0

    def watch(step: int, loss: float) -> None:
        nonlocal reached
        reached = step
        if step >= STEPS and time.perf_counter() - began > PATIENCE_SECONDS:
            raise _Enough

    try:
        outcome = task.train(criterion, training, observe=watch)
    except _Enough:
        steps = task.steps(training)
        seconds = None if steps is None else (time.perf_counter() - began) / reached * steps
        return f"cut off after {reached} steps", seconds
    seconds = time.perf_counter() - began
    if isinstance(outcome, Scored):
        return f"score {outcome.score:.4f}", seconds
    ended = "diverged" if isinstance(outcome, Diverged) else "stopped"
    return f"{ended} at step {outcome.step}: {outcome.reason}", seconds
