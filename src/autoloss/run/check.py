"""`autoloss check`: tries a task before a search, and estimates how long the search will take."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from random import Random
from statistics import mean
from typing import Any

from autoloss import recipes, zoo
from autoloss.comparison.baselines import LEARNING_RATES, count_tuning_trainings
from autoloss.evaluation.evaluator import Evaluator
from autoloss.evaluation.machines import Machines, gpus_of_workers
from autoloss.evaluation.rejection_tester import RejectionTester
from autoloss.numbers import duration
from autoloss.proposing.initialization import initial_expression
from autoloss.run.adapting import adapt_configuration, explain_failures
from autoloss.run.request import make_request
from autoloss.run.resolving import inspect_data, refer_to_task
from autoloss.run.user_files import importable_files
from autoloss.settings import Configuration, FinalSettings
from autoloss.space.branch import Criterion
from autoloss.space.expression import Expression
from autoloss.space.loss import bind
from autoloss.store import samples as sample_files
from autoloss.tasks.diagnosis import find_doubtful_predictions
from autoloss.tasks.task import Task
from autoloss.training.threads import one_thread
from autoloss.training.training import Diverged, Observe, Scored, Stopped, Training
from autoloss.workers.gpus import describe_gpus

EXPLANATION = (
    "ξ₀: metric of an untrained network on its samples; ξ_best: of the target itself. g: how far descending the loss raises the "
    "first towards the second; a loss passes where g is at least η (rejection.threshold)."
)
WARMUP = 0.01
"""Share of the schedule that is trained before one is timed, where its steps are not known."""
LEAST_STEPS = 2
"""Training steps that a check waits for."""
TRAINING_SECONDS = 10.0
"""A training that takes longer is cut off after `LEAST_STEPS`."""
TIMED_CANDIDATES = 10
"""Number of random trees whose rejection test is timed."""
FULL_CANDIDATES = 3
"""Number of these that also run all steps of the protocol, as a tree that passes does; the longest time counts."""
SIMULATED_SHARE = 0.11
"""Approximate share of random trees that hold a prediction and a target; only these are simulated."""
PASSING_SHARE = 0.01
"""Approximate share of random trees that pass (measured on several tasks)."""
LITTLE = 0.05
"""A training that gains no more of the way from the untrained network's score to the ideal one has learned next to nothing."""


@dataclass(frozen=True, slots=True)
class BranchCheck:
    """What the rejection protocol says of the standard loss on one branch.

    Args:
        loss: Its name or formula.
        score: Correlation score g in the run's unit; None without one, and for a hand-written loss, which cannot be tested.
        initial: Mean ξ₀, the metric of the untrained network.
        best: Mean ξ_best, the metric of the ideal prediction.
        reason: Why it is rejected, or None.
    """

    branch: str
    loss: str
    score: float | None
    initial: float
    best: float
    reason: str | None


@dataclass(frozen=True, slots=True)
class TaskCheck:
    """The result of a check.

    Args:
        outcome: What the training came to.
        training_seconds: Of one whole training, extrapolated if it was cut off; None where the task does not tell its steps.
        seconds_per_candidate: Of testing one candidate, a tree for each branch.
        search_seconds: Estimated time of a search with this budget and number of workers.
        final_seconds: Likewise, of confirming the best candidates and comparing them with the baselines.
        rates: Score of the standard loss by the factor on the learning rate; empty where it was not tried.
        untrained: The best score of as many untrained networks; None where no rate was tried or the task cannot tell.
        rungs: Shares of the schedule that candidates are trained at.
        learning_rate: Factor on the recipe's at which they are.
        notes: What a search would change of its settings, since the task cannot do it, and how its workers share GPUs.
        doubts: What looks wrong with data or network.
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
    rates: Mapping[float, float | None] = field(default_factory=dict)
    untrained: float | None = None
    rungs: tuple[float, ...] = (1.0,)
    learning_rate: float = 1.0
    notes: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()

    def values(self) -> dict[str, Any]:
        return asdict(self)

    def lines(self) -> Iterator[str]:
        """Describe the result in lines for a terminal."""
        yield f"Task {self.task}"
        for doubt in self.doubts:
            yield f"  Check: {doubt}"
        for branch in self.branches:
            g = "–" if branch.score is None else f"{branch.score:.3f}"
            yield (
                f"  {branch.branch}: {branch.loss} has g {g} ({self.unit}; η {self.threshold:g}), "
                f"ξ₀ {branch.initial:.3f}, ξ_best {branch.best:.3f}"
            )
            if branch.reason:
                yield f"    rejected: {branch.reason}. {advise(branch, self.unit)}"
        yield f"    {EXPLANATION}"
        whole = "?" if self.training_seconds is None else f"{self.training_seconds:.1f} s"
        yield f"  one training with the standard loss: {whole}, {self.outcome}"
        yield from self._describe_rates()
        if self.final_seconds is not None:
            yield f"  confirming the best and comparing them with the baselines: about {duration(self.final_seconds)}"
        yield f"  one candidate through the protocol: {self.seconds_per_candidate:.3f} s"
        shares = ", ".join(f"{rung:.3g}" for rung in self.rungs[:-1])
        if self.search_seconds is not None:
            how = f", at {shares} of the schedule first" if shares else ""
            yield f"  a search of {self.evaluations} trainings{how}: about {duration(self.search_seconds)}"
        for note in self.notes:
            yield f"  {note}"

    def _describe_rates(self) -> Iterator[str]:
        if not self.rates:
            return
        scores = ", ".join(
            f"× {rate:g}: {'–' if score is None else f'{score:.4f}'}" for rate, score in self.rates.items()
        )
        yield f"  the standard loss at factors on the learning rate, one seed: {scores}"
        best = max(self.rates, key=lambda rate: (_worth(self.rates[rate]), -abs(math.log(rate))))
        if all(score is None for score in self.rates.values()):
            yield "    No training had a score at any of these. First try lower learning rates in the recipe."
        elif self.untrained is not None and self._learns_little(_worth(self.rates[best]), self.untrained):
            yield (
                f"    The network learns next to nothing at any of these: the best of {len(self.rates)} untrained networks "
                f"scores {self.untrained:.4f}. A search could hardly tell losses apart. First try learning rates beyond these, or "
                "more steps, in the recipe."
            )
        elif best != self.learning_rate and _worth(self.rates[best]) > _worth(self.rates.get(self.learning_rate)):
            mine = (
                "The recipe's learning rate"
                if self.learning_rate == 1
                else f"{self.learning_rate:g} times the recipe's"
            )
            beyond = "" if min(self.rates) < best < max(self.rates) else ", at the end of the grid"
            yield (
                f"    {mine} is not the best of these; a small difference may be chance. To search at {best:g} times the "
                f"recipe's{beyond}: --set search.learning_rate={best:g}"
            )

    def _learns_little(self, best: float, untrained: float) -> bool:
        """Say so where the ideal score is known: of one branch, whose samples have the metric of the task."""
        return len(self.branches) == 1 and best <= untrained + LITTLE * max(0.0, self.branches[0].best - untrained)


def _worth(score: float | None) -> float:
    return -math.inf if score is None else score


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
    rates: bool | None = None,
) -> TaskCheck:
    """Try a task's data, its samples, its standard loss and a training.

    Args:
        task: As for `autoloss.search`, likewise `metric`, `options` and `settings`.
        evaluations: The budget whose time is estimated.
        workers: Their number, for the estimate.
        seed: Decides the samples.
        rates: Train the standard loss at each of `LEARNING_RATES` as well; None does so where a training takes seconds.

    Raises:
        RequestError: Files of the data are faulty, the task cannot be made, or its samples can gain nothing.

    >>> options, settings = {"data": "iris", "steps": 20}, {"rejection.engine": "reference", "rejection.steps": 20}
    >>> found = check("tabular", options=options, settings=settings)
    >>> found.branches[0].loss, found.branches[0].initial < found.branches[0].best
    ('baseline/ce', True)
    """
    inspect_data(refer_to_task(task, metric, options))
    wanted = {**recipes.get_search_settings(task), **(settings or {}), "seed": seed, "evaluations": evaluations}
    request = make_request(task, metric=metric, options=options, settings=wanted)
    loaded, configuration = request.task, request.configuration
    samples = sample_files.draw_samples(loaded, configuration.rejection.samples, seed)
    runner = Evaluator(loaded, samples, configuration, operators=request.operators)
    doubts = [*find_doubtful_predictions(loaded, samples), *loaded.diagnose()]
    notes: list[str] = []
    configuration, _ = adapt_configuration(loaded, configuration, runner, notes.append)
    runner = runner.changed(configuration)
    notes += describe_gpus(gpus_of_workers(loaded, Machines(workers=workers)))
    branches = []
    usual_seconds, full_seconds = [], []
    with one_thread():
        for name in loaded.branches:
            tester = runner.get_tester(name)
            branches.append(_test_standard_loss(name, runner))
            usual, full = _time_candidates(tester, configuration)
            usual_seconds.append(usual)
            full_seconds.append(full)
        outcome, training = _try_training(loaded)
        tried = rates or (rates is None and training is not None and training <= TRAINING_SECONDS)
        scores = _try_rates(loaded, configuration.search.learning_rate) if tried else {}
    per_candidate = sum(usual_seconds)
    # The one that passes runs all steps.
    accepted = per_candidate * SIMULATED_SHARE / PASSING_SHARE + sum(full_seconds)
    return TaskCheck(
        loaded.name,
        tuple(branches),
        outcome,
        training,
        per_candidate,
        None if training is None else _estimate_search(configuration, accepted, training, workers),
        None if training is None else count_final_trainings(configuration.final) * training / max(1, workers),
        evaluations,
        configuration.rejection.threshold,
        configuration.rejection.unit,
        scores,
        _try_untrained(loaded, len(scores)),
        configuration.search.rungs,
        configuration.search.learning_rate,
        tuple(notes),
        tuple(doubts),
    )


def _estimate_search(configuration: Configuration, accepted: float, training: float, workers: int) -> float:
    """Return the seconds of a search.

    Args:
        accepted: Seconds of rejection tests for each candidate.
        training: Seconds of a whole training.
    """
    settings = configuration.search
    share_of_candidate = sum(rung * settings.promote**place for place, rung in enumerate(settings.rungs))
    candidates = configuration.evaluations / share_of_candidate
    busy = max(1, min(workers, configuration.evolution.lag))
    return (candidates * accepted + configuration.evaluations * training) / busy


def count_final_trainings(settings: FinalSettings) -> int:
    """Return at most about how many trainings follow a search: confirmations, learning rates, the comparison.

    >>> count_final_trainings(FinalSettings(confirm=10, confirm_seeds=2, finalists=0, compare=0))
    20
    """
    tuning = count_tuning_trainings(settings.compare + 2)
    entrants = settings.compare + 3
    compared = tuning + entrants * settings.compare_seeds if settings.compare and settings.compare_seeds else 0
    return settings.confirm * settings.confirm_seeds + settings.finalists * settings.finalist_seeds + compared


def advise(branch: BranchCheck, unit: str) -> str:
    """Return what to change where even the standard loss is rejected."""
    if branch.score is None:
        return "Check that the prediction reaches the loss, and that inputs and targets are finite."
    if unit == "absolute" and branch.best - branch.initial < 0.7:
        return "The metric cannot rise by η in absolute units; set rejection.unit=relative."
    if branch.score > 0:
        return (
            "It improves the metric too slowly: scale targets to about 1, or raise rejection.learning_rate; if neither helps, "
            "lower rejection.threshold."
        )
    return (
        "Descending it does not raise the metric: check that higher is better, that the activation fits the network, "
        "and that the samples have enough rows (rows_per_sample)."
    )


def _test_standard_loss(name: str, runner: Evaluator) -> BranchCheck:
    reference = runner.get_tester(name).engine.reference
    initial, best = mean(reference.initial), mean(reference.best)
    text = runner.task.standard.get(name)
    if text is None:
        return BranchCheck(name, "(no standard loss)", None, initial, best, None)
    verdict = runner.judge_standard(name)
    if verdict is None:
        return BranchCheck(name, f"{text} (hand-written)", None, initial, best, None)
    return BranchCheck(name, text, verdict.score, initial, best, verdict.reason.value if verdict.reason else None)


def _time_candidates(tester: RejectionTester, configuration: Configuration) -> tuple[float, float]:
    """Return the seconds of testing a random tree with a prediction and a target, in the mean and when all steps run."""
    rng = Random(configuration.seed)
    trees: list[Expression] = []
    while len(trees) < TIMED_CANDIDATES + 1:
        tree = initial_expression(tester.alphabet, configuration.evolution.depth, rng)
        if tree.holds(tester.engine.branch.leaves_and_roles):
            trees.append(tree)
    # The first call includes compiling.
    tester.test(0, [trees.pop()])
    usual = [_measure_seconds(lambda tree=tree: tester.test(0, [tree])) for tree in trees]
    full = [_measure_seconds(lambda tree=tree: tester.engine.verdicts([tree])) for tree in trees[:FULL_CANDIDATES]]
    return mean(usual), max(full)


def _measure_seconds(function: Callable[[], object]) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


class _CutOff(BaseException):
    """Ends a training that takes too long for a check; no Exception, since no fault."""


def _try_training(task: Task) -> tuple[str, float | None]:
    """Train with the standard loss; return what it came to, and the seconds of a whole training or None."""
    if set(task.standard) != set(task.branches):
        return "not tried: the task names no standard loss", None
    criterion = bind(zoo.resolve(task.standard, task.branches)[1], task.branches)
    training = Training(seed=0)
    if task.shortens:
        # What a process does once, such as loading libraries, belongs to no training.
        steps = task.steps(training)
        _train(task, criterion, Training(seed=0, fidelity=min(1.0, LEAST_STEPS / steps) if steps else WARMUP))
    began = time.perf_counter()
    reached = 0

    def watch(step: int, loss: float) -> None:
        nonlocal reached
        reached = step
        if step >= LEAST_STEPS and time.perf_counter() - began > TRAINING_SECONDS:
            raise _CutOff

    try:
        outcome = _train(task, criterion, training, watch)
    except _CutOff:
        steps = task.steps(training)
        seconds = None if steps is None else (time.perf_counter() - began) / reached * steps
        return f"cut off after {reached} steps", seconds
    seconds = time.perf_counter() - began
    if isinstance(outcome, Scored):
        return f"score {outcome.score:.4f}", seconds
    ended = "diverged" if isinstance(outcome, Diverged) else "stopped"
    return f"{ended} at step {outcome.step}: {outcome.reason}", seconds


def _train(
    task: Task, criterion: Criterion, training: Training, observe: Observe | None = None
) -> Scored | Diverged | Stopped:
    with explain_failures():
        return task.train(criterion, training, observe=observe)


def _try_rates(task: Task, searched: float) -> dict[float, float | None]:
    """Train with the standard loss at each learning rate of the grid, and at that of the search; return the scores."""
    if set(task.standard) != set(task.branches) or not task.tunes_learning_rate:
        return {}
    criterion = bind(zoo.resolve(task.standard, task.branches)[1], task.branches)
    rates = sorted({*LEARNING_RATES, searched})
    outcomes = {rate: _train(task, criterion, Training(seed=0, learning_rate=rate)) for rate in rates}
    return {rate: outcome.score if isinstance(outcome, Scored) else None for rate, outcome in outcomes.items()}


def _try_untrained(task: Task, count: int) -> float | None:
    """Return the best score of some untrained networks: the best of as many trainings is to be better."""
    with explain_failures("The measurement of an untrained network"), one_thread():
        scores = [task.untrained(seed) for seed in range(count)]
    return max((score for score in scores if score is not None), default=None)
