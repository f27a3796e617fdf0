"""`autoloss check`: tries a task before a search, and estimates how long the search will take."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from random import Random
from statistics import mean
from timeit import timeit
from typing import Any

from autoloss import tasks
from autoloss.comparison.climbing import climb_ladder
from autoloss.comparison.confirm import count_equivalents
from autoloss.comparison.ladder import Ladder
from autoloss.comparison.record import Record
from autoloss.comparison.resolution import Resolution, measure_resolution
from autoloss.evaluation.adapting import adapt
from autoloss.evaluation.dispatch import Machines, gpus_of_workers, start_workers
from autoloss.evaluation.evaluator import Evaluator
from autoloss.evaluation.learning import NOTHING_TO_LEARN, Floor, measure_floor
from autoloss.numbers import duration, figure
from autoloss.options import Count, Natural, checked
from autoloss.proposing.initialization import valid_expression
from autoloss.run.beginning import follow_ladder, settle_length
from autoloss.run.request import make_request, prepare
from autoloss.run.resolving import refer_to_task
from autoloss.run.user_files import importable_files
from autoloss.settings import LEAST_LADDER, Configuration
from autoloss.tasks.task import Task
from autoloss.training.trainer import SKIPPED
from autoloss.training.training import Training
from autoloss.workers.gpus import describe_gpus
from autoloss.zoo.entries import say_loss

WARMUP = 0.01
"""Share of the schedule that is trained before one is timed, where its steps are not known."""
ROUNDING = 1e-3
"""Relative difference of the losses of two trainings with one seed that may be rounding, as on a GPU."""
LEAST_STEPS = 2
"""Training steps that a check waits for."""
TRAINING_SECONDS = 10.0
"""A training that takes longer is cut off after `LEAST_STEPS`, unless it ends within `PATIENCE_SECONDS`."""
PATIENCE_SECONDS = 20.0
UNTRAINED = 5
"""Untrained networks, of which the best has to be beaten where several ways of training were tried."""
LEAST_SHARE = 0.05
"""Smallest share of the schedule at which a training that was cut off is tried again for its score."""
TIMED_CANDIDATES = 10
"""Number of random trees whose rejection test is timed."""
FULL_CANDIDATES = 3
"""Number of these that also run all steps of the protocol, as a tree that passes does; the longest time counts."""
SIMULATED_SHARE = 0.11
"""Approximate share of random trees that hold a prediction and a target; only these are simulated."""
PASSING_SHARE = 0.01
"""Approximate share of random trees that pass (measured on several tasks)."""


@dataclass(frozen=True, slots=True)
class BranchCheck:
    """The verdict of the rejection protocol on the standard loss of one branch.

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
        outcome: Of the training, in words.
        has_score: Whether a training with the standard loss has a score, or none was tried to its end.
        training_seconds: Of one whole training, extrapolated if it was cut off; None where the task does not tell its steps.
        seconds_per_candidate: Of testing one candidate, a tree for each branch.
        search_seconds: Estimated time of a search with this budget and number of workers.
        final_seconds: Likewise, of confirming the best candidates and comparing them with the baselines.
        ladder: The tuning of the standard loss; None if it was not tuned.
        resolution: The smallest difference that the valid split can show; None where the metric was not measured on resamples.
        floor: The scores of a network that has learned nothing: of untrained ones, and of a constant prediction.
        rungs: Shares of the schedule that candidates are trained at.
        notes: Settings that a search would change, since the task cannot follow them, and how its workers share GPUs.
        doubts: Likely mistakes in the data or the network.
        choices: Values that the task chose, such as the number of epochs.
    """

    task: str
    branches: tuple[BranchCheck, ...]
    outcome: str
    has_score: bool
    training_seconds: float | None
    seconds_per_candidate: float
    search_seconds: float | None
    final_seconds: float | None
    evaluations: int
    threshold: float
    unit: str
    ladder: Ladder | None = None
    resolution: Resolution | None = None
    floor: Floor = field(default_factory=lambda: Floor(None, None))
    rungs: tuple[float, ...] = (1.0,)
    notes: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()

    def values(self) -> dict[str, Any]:
        """Return the result as plain values."""
        return {**asdict(self), "ladder": None if self.ladder is None else self.ladder.to_dict()}

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> Iterator[str]:
        """Describe the result in lines for a terminal."""
        yield f"Task {self.task}"
        yield from (f"  {choice}" for choice in self.choices)
        yield from (f"  Check: {doubt}" for doubt in self.doubts)
        for branch in self.branches:
            where = f" of the branch {branch.branch}" if len(self.branches) > 1 else ""
            untested = "has no g" if branch.reason else "is not tested"
            g = untested if branch.score is None else f"has g = {branch.score:.3f}"
            passes = f"a loss passes from η = {self.threshold:g} ({self.unit})"
            yield f"  rejection test{where}: {say_loss(branch.loss)} {g}; {passes}"
            yield f"    the metric is ξ₀ = {branch.initial:.3f} for an untrained network, ξ_best = {branch.best:.3f} for the target"
            if branch.reason:
                yield f"    rejected: {branch.reason}. {_advise(branch, self.unit)}"
        whole = "?" if self.training_seconds is None else f"{self.training_seconds:.1f} s"
        yield f"  one training with the standard loss: {whole}, {self.outcome}"
        if self.floor.score is not None:
            yield f"  without learning: {self.floor.describe()}"
            yield from [f"    {NOTHING_TO_LEARN}"] * self.floor.is_ideal
        yield from self._describe_ladder()
        if self.resolution is not None:
            yield f"  {self.resolution.describe(self.floor.measure_gain(self.ladder and self.ladder.highest))}"
        yield f"  one rejection test: {self.seconds_per_candidate:.3f} s"
        if self.search_seconds is not None and self.final_seconds is not None:
            yield (
                f"  a search of {self.evaluations} trainings: about {duration(self.search_seconds + self.final_seconds)}, of which "
                f"the comparison of the best with the baselines takes {duration(self.final_seconds)}"
            )
        yield from (f"  {note}" for note in self.notes)

    def _describe_ladder(self) -> Iterator[str]:
        if self.ladder is None:
            if self.training_seconds is not None and self.training_seconds > TRAINING_SECONDS:
                slow = f"since a training takes over {TRAINING_SECONDS:g} s: use --rates or `autoloss tune`. A search tunes first."
                yield f"    Learning rates and step rules were not tried, {slow}"
            return
        yield f"  {len(self.ladder.rungs)} ways to train with the standard loss were tried, as a search does first:"
        yield from (f"    {text}" for text in self.ladder.describe())
        highest, noise = self.ladder.highest, 0.0 if self.resolution is None else self.resolution.single
        if highest is not None and not self.floor.is_clearly_beaten(highest, noise):
            yield (
                f"    The network hardly learns in any of these: {self.floor.describe()}. A search tries known losses next. "
                "First train longer, and check inputs, targets and the choice of the standard loss."
            )


@checked
@importable_files()
def check(
    task: str | Task,
    *,
    metric: str | None = None,
    options: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | Configuration | None = None,
    evaluations: Count = 500,
    workers: Natural = 2,
    seed: Natural = 0,
    rates: bool | None = None,
) -> TaskCheck:
    """Check a task before a search: its data, its samples, its standard loss and a training.

    Args:
        task: As for `autoloss.search`, likewise `metric`, `options` and `settings`.
        evaluations: The budget whose time is estimated.
        workers: Their number, for the estimate.
        seed: Decides the samples.
        rates: Whether to tune the standard loss, too: learning rate, step rule, class weights; if None, only where a training
            takes seconds.

    Returns:
        What was found, with the estimated time of a search; `lines()` describes it.

    Raises:
        RequestError: Files of the data are faulty, the task cannot be made, or no sample can improve.
        RunError: The task's own code fails.

    >>> import autoloss
    >>> options, settings = {"data": "iris", "steps": 20}, {"rejection.engine": "reference", "rejection.steps": 20}
    >>> found = autoloss.check("tabular", options=options, settings=settings)
    >>> found.branches[0].loss, found.branches[0].initial < found.branches[0].best
    ('baseline/ce', True)
    """
    reference = refer_to_task(task, metric, options)
    if reference.name is not None and ".py:" not in reference.name:
        # Faulty files are named before the task is made.
        tasks.inspect(reference.name, **reference.options)
    request = make_request(task, settings, seed=seed, evaluations=evaluations, metric=metric, options=options)
    evaluator = prepare(request)
    doubts, notes = evaluator.diagnose(), list[str]()
    outcome, has_score, training = _try_training(evaluator, doubts)
    tried = rates or (rates is None and training is not None and training <= TRAINING_SECONDS)
    if tried and training is not None:
        evaluator = settle_length(evaluator, Machines(workers=0), notes.append)
        length = evaluator.configuration.search.length
        training, outcome = training * length, outcome + f" at 1/{length:g} of its length" * (length > 1)
    climbs = tried and evaluator.has_standard
    # The best of several trainings needs to be better than the best of several untrained networks.
    floor = measure_floor(evaluator, range(UNTRAINED if climbs else 1))
    ladder, resolution = _climb(evaluator, seed, floor) if climbs else (None, None)
    # In the order of a search, whose settings follow what the ladder found.
    evaluator = evaluator if ladder is None else follow_ladder(evaluator, ladder, resolution)
    evaluator = adapt(evaluator, notes.append, tuned=ladder is not None)
    loaded, configuration = evaluator.task, evaluator.configuration
    notes += describe_gpus(gpus_of_workers(loaded, Machines(workers=workers)))
    branches = tuple(_test_standard_loss(name, evaluator) for name in loaded.branches)
    usual, full = zip(*(_time_candidates(name, evaluator) for name in loaded.branches), strict=True)
    # Candidates are tested until one passes, which runs all steps.
    per_candidate, accepted = sum(usual), sum(usual) * SIMULATED_SHARE / PASSING_SHARE + sum(full)
    return TaskCheck(
        task=loaded.name,
        branches=branches,
        outcome=outcome,
        has_score=has_score if ladder is None else ladder.highest is not None,
        training_seconds=training,
        seconds_per_candidate=per_candidate,
        search_seconds=training and _estimate_search(configuration, accepted, training, workers),
        final_seconds=training and count_equivalents(configuration.final, loaded, ladder) * training / max(1, workers),
        evaluations=evaluations,
        threshold=configuration.rejection.threshold,
        unit=configuration.rejection.unit,
        ladder=ladder,
        resolution=resolution,
        floor=floor,
        rungs=configuration.search.rungs,
        notes=tuple(notes),
        doubts=tuple(doubts),
        choices=tuple(loaded.choices()),
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


def _advise(branch: BranchCheck, unit: str) -> str:
    """Return what to change where even the standard loss is rejected."""
    if branch.score is None:
        return "Check that the prediction reaches the loss, and that inputs and targets are finite."
    if unit == "absolute" and branch.best - branch.initial < 0.7:
        return "The metric cannot rise by η in absolute units; set rejection.unit=relative."
    if branch.score > 0:
        return (
            "It improves the metric too slowly: scale targets to about 1, raise rejection.learning_rate, or lower "
            "rejection.threshold."
        )
    return (
        "Descending it does not raise the metric: check that higher is better, that the activation fits the network, "
        "and that the samples have enough rows (rows_per_sample)."
    )


def _test_standard_loss(name: str, evaluator: Evaluator) -> BranchCheck:
    reference = evaluator.get_tester(name).engine.reference
    initial, best = mean(reference.initial), mean(reference.best)
    text, verdict = evaluator.task.standard.get(name, "(no standard loss)"), evaluator.judge_standard(name)
    score, reason = (None, None) if verdict is None else (verdict.score, verdict.reason)
    return BranchCheck(name, text, score, initial, best, reason.value if reason else None)


def _time_candidates(name: str, evaluator: Evaluator) -> tuple[float, float]:
    """Return the seconds of testing a random tree with a prediction and a target, in the mean and when all steps run."""
    configuration, tester = evaluator.configuration, evaluator.get_tester(name)
    rng = Random(configuration.seed)
    depth = configuration.evolution.depth
    trees = [valid_expression(tester.alphabet, depth, rng) for _ in range(TIMED_CANDIDATES + 1)]
    # The first call includes compiling.
    evaluator.test_loss({name: trees.pop()})
    usual = [timeit(lambda tree=tree: evaluator.test_loss({name: tree}), number=1) for tree in trees]
    full = [timeit(lambda tree=tree: evaluator.judge(name, [tree]), number=1) for tree in trees[:FULL_CANDIDATES]]
    return mean(usual), max(full)


class _CutOff(BaseException):
    """Ends a training that takes too long for a check; not an Exception, because it is not an error."""


def _try_training(evaluator: Evaluator, doubts: list[str]) -> tuple[str, bool, float | None]:
    """Train with the standard loss; return the outcome in words, whether it may have a score, and the seconds of all steps.

    Args:
        doubts: Gets a sentence where two trainings with one seed differ.
    """
    if not evaluator.has_standard:
        return "not tried: the task names no standard loss", True, None
    training = Training(seed=0, resampled=True)
    steps = evaluator.task.steps(training)
    if evaluator.task.shortens:
        # What a process does once, such as loading libraries, belongs to no training.
        short = replace(training, fidelity=min(1.0, LEAST_STEPS / steps) if steps else WARMUP)
        first = evaluator.train_standard(short).curve
        again = evaluator.train_standard(short, lambda step, loss: None).curve
        if first and again:
            doubts += _doubt_repeats("after the first steps their losses", first[-1][1], again[-1][1])
    began = time.perf_counter()
    reached = 0

    def watch(step: int, loss: float) -> None:
        nonlocal reached
        reached = step
        seconds = time.perf_counter() - began
        left = math.inf if steps is None else seconds / step * (steps - step)
        if step >= LEAST_STEPS and seconds > TRAINING_SECONDS and left > PATIENCE_SECONDS:
            raise _CutOff

    try:
        outcome = evaluator.train_standard(training, watch)
    except _CutOff:
        seconds = None if steps is None else (time.perf_counter() - began) / reached * steps
        return f"cut off after {reached} steps{_score_shortly(evaluator, training, seconds)}", True, seconds
    seconds = time.perf_counter() - began
    if outcome.score is not None and not evaluator.task.shortens and seconds <= TRAINING_SECONDS:
        began = time.perf_counter()
        again = evaluator.train_standard(training, lambda step, loss: None).score
        seconds = min(seconds, time.perf_counter() - began)
        doubts += _doubt_repeats("their scores", outcome.score, math.nan if again is None else again)
    if outcome.score is not None:
        skipped = outcome.also.get(SKIPPED, 0)
        without = f"; {skipped:.0f} batches without a loss were skipped" if skipped else ""
        return f"score {figure(outcome.score)}{without}", True, seconds
    return f"{outcome.state.value} at step {outcome.step}: {outcome.reason}", False, seconds


def _doubt_repeats(what: str, first: float, again: float) -> list[str]:
    """Return a sentence where two trainings with one seed differ."""
    told = (
        f"Two trainings with the same seed differ: {what} are {first:.4g} and {again:.4g}. Draw all that is random from "
        "training.seed: equal losses, resumed runs and comparisons over the same seeds rely on it."
    )
    return [] if math.isclose(first, again, rel_tol=ROUNDING) else [told]


def _score_shortly(evaluator: Evaluator, training: Training, seconds: float | None) -> str:
    """Return the score at the share of the schedule that fits into the time of a check, in words; empty where there is none."""
    if seconds is None or not evaluator.task.shortens:
        return ""
    share = max(LEAST_SHARE, round(TRAINING_SECONDS / seconds, 2))
    score = evaluator.train_standard(replace(training, fidelity=share)).score
    return f"; at {share:g} of the schedule {'no score' if score is None else f'score {figure(score)}'}"


def _climb(evaluator: Evaluator, seed: int, floor: Floor) -> tuple[Ladder, Resolution | None]:
    """Climb the ladder as a short search does; return it with what the valid split can tell."""
    with start_workers(evaluator, Machines(workers=0)) as dispatcher:
        record = Record(dispatcher)
        ladder = climb_ladder(evaluator, seed, LEAST_LADDER, record)
    return ladder, measure_resolution(record.outcomes, floor.measure_gain(ladder.highest))
