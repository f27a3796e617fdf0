"""Runs the two kinds of job inside a worker: rejection tests and trainings (Section 3.2)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from autoloss import zoo
from autoloss.errors import RequestError
from autoloss.rejection.protocol import measure_reference
from autoloss.search.evolution import Plan, attempt
from autoloss.search.jobs import Attempt, Job, RejectionBatch, Train, Trained
from autoloss.search.mutation import Kind
from autoloss.settings import Configuration
from autoloss.space.branch import BranchLoss, Criterion, Sample
from autoloss.space.loss import bind
from autoloss.space.operators import OPERATORS, Operator
from autoloss.tasks.task import Diverged, Scored, Task
from autoloss.tasks.training.threads import one_thread
from autoloss.workers.rejection_tester import RejectionTester, make_tester


class JobRunner:
    """Runs jobs; equal jobs give equal results in every process.

    Args:
        samples: B samples per branch, the same for the whole run.
        known: Branch → keys whose verdict a resumed run knows already, eight bytes each.
        operators: All that a formula may hold, by name.
    """

    def __init__(
        self,
        task: Task,
        samples: Mapping[str, tuple[Sample, ...]],
        configuration: Configuration,
        known: Mapping[str, bytes] = MappingProxyType({}),
        operators: Mapping[str, Operator] = OPERATORS,
    ) -> None:
        self.task = task
        self.operators = operators
        self.configuration = configuration
        self.samples = samples
        self._known = dict(known)
        self._testers: dict[str, RejectionTester] = {}

    def perform(self, job: Job) -> list[Attempt] | Trained:
        with one_thread():
            match job:
                case RejectionBatch():
                    return self.test(job)
                case Train():
                    return self.train(job)

    def get_tester(self, branch: str) -> RejectionTester:
        """Return what tests losses on a branch; it is made at the first call."""
        if branch not in self._testers:
            reference = measure_reference(self.task.branches[branch], self.samples[branch])
            tester = make_tester(self.task.branches[branch], reference, self.configuration, self.operators)
            tester.learn(self._known.get(branch, b""), 0)
            self._testers[branch] = tester
        return self._testers[branch]

    def test(self, job: RejectionBatch) -> list[Attempt]:
        tester = self.get_tester(job.branch)
        tester.learn(job.known, job.known_before)
        plan = Plan(job.child, None, {job.branch: Kind(job.kind)})
        parent = None if job.parent is None else tester.parse(job.parent)
        settings, seed = self.configuration.evolution, self.configuration.seed
        done: list[Attempt] = []
        while len(done) < job.count:
            first = job.first + len(done)
            numbers = range(first, min(first + tester.engine.batch_size, job.first + job.count))
            trees = [attempt(plan, job.branch, number, parent, tester.alphabet, settings, seed) for number in numbers]
            for tested in tester.test(first, trees):
                done.append(tested)
                if tested.simulated and tested.reason is None:
                    return done
        return done

    def train(self, job: Train) -> Trained:
        task = self.task
        if job.learning_rate != 1.0:
            task = at_learning_rate(task, job.learning_rate)
        losses = zoo.resolve(job.loss, task.branches, self.operators)[1]
        criterion = scale_criterion(bind(losses, task.branches), job.scale)
        return to_record(task.train(criterion, job.seed, split=job.split, schedule=job.schedule))


def at_learning_rate(task: Task, factor: float) -> Task:
    """Return the task with its recipe's learning rate multiplied.

    Raises:
        RequestError: The task cannot change its learning rate.
    """
    change = getattr(task, "at_learning_rate", None)
    if change is None:
        raise RequestError(f"Task {task.name!r} has no at_learning_rate(factor); compare with scaled losses instead.")
    return change(factor)


def scale_criterion(criterion: Criterion, factor: float) -> Criterion:
    """Multiply every branch's loss."""
    if factor == 1.0:
        return criterion
    return {name: _times(loss, factor) for name, loss in criterion.items()}


def _times(loss: BranchLoss, factor: float) -> BranchLoss:
    return lambda prediction, context: factor * loss(prediction, context)


def to_record(outcome: Scored | Diverged) -> Trained:
    """Return a training's outcome as plain values, which is what is kept; a score that is no number is no score.

    Raises:
        TypeError: A task's `train` returned something else.
    """
    match outcome:
        case Diverged():
            return Trained("diverged", step=int(outcome.step), reason=str(outcome.reason))
        case Scored():
            score = float(outcome.score)
            curve = tuple((int(step), float(loss)) for step, loss in outcome.curve)
            if not math.isfinite(score):
                return Trained("diverged", curve=curve, reason=f"the metric is {score}")
            also = {str(name): float(value) for name, value in outcome.also.items()}
            return Trained(
                "scored", score, {name: value for name, value in also.items() if math.isfinite(value)}, curve
            )
        case _:
            raise TypeError(f"train() returned a {type(outcome).__name__}; expected Scored or Diverged.")
