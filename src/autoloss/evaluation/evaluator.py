"""Runs the two kinds of job inside a worker: rejection tests and trainings (Section 3.2)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from types import MappingProxyType

from autoloss import zoo
from autoloss.errors import keep_text
from autoloss.evaluation.rejection_tester import RejectionTester, make_tester
from autoloss.proposing.attempts import draw_attempt
from autoloss.proposing.jobs import Attempt, Job, RejectionBatch, Train
from autoloss.proposing.mutation import Kind
from autoloss.proposing.proposer import Plan
from autoloss.proposing.records import FURTHER_METRICS, NAME_CHARACTERS, REASON_CHARACTERS, Outcome, State
from autoloss.rejection.protocol import Verdict, measure_reference
from autoloss.settings import Configuration
from autoloss.space.branch import BranchLoss, Sample
from autoloss.space.expression import Expression
from autoloss.space.loss import bind, scale_criterion
from autoloss.space.operators import OPERATORS, Operator
from autoloss.tasks.task import Task
from autoloss.training.loop import thin_curve
from autoloss.training.threads import one_thread
from autoloss.training.training import Diverged, Scored, Stopped

STEPS = 1 << 31
"""Steps of a training are below."""


class Evaluator:
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

    def changed(self, configuration: Configuration) -> Evaluator:
        """Return a runner of the same task and samples that decides by another configuration; this one where it decides alike."""
        if configuration.rejection == self.configuration.rejection:
            return self
        return Evaluator(self.task, self.samples, configuration, self._known, self.operators)

    def perform(self, job: Job) -> list[Attempt] | Outcome:
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
            standard = self.find_standard(branch) if self.configuration.search.scale else None
            tester = make_tester(self.task.branches[branch], reference, self.configuration, self.operators, standard)
            tester.learn(self._known.get(branch, b""), 0)
            self._testers[branch] = tester
        return self._testers[branch]

    def find_standard(self, branch: str) -> Expression | BranchLoss | None:
        """Return the task's standard loss on a branch; None where it has none."""
        if branch not in self.task.standard:
            return None
        one = {branch: self.task.branches[branch]}
        return zoo.resolve({branch: self.task.standard[branch]}, one, self.operators)[1][branch]

    def judge_standard(self, branch: str) -> Verdict | None:
        """Run all steps of the protocol with the standard loss on a branch; None where it has none, or one written by hand."""
        loss = self.find_standard(branch)
        if not isinstance(loss, Expression):
            return None
        (verdict,) = self.get_tester(branch).engine.verdicts([loss])
        return verdict

    def test(self, job: RejectionBatch) -> list[Attempt]:
        tester = self.get_tester(job.branch)
        tester.learn(job.known, job.known_before)
        plan = Plan(job.candidate, None, {job.branch: Kind(job.kind)})
        parent = None if job.parent is None else tester.parse(job.parent)
        settings, seed = self.configuration.evolution, self.configuration.seed
        done: list[Attempt] = []
        passed = 0
        while len(done) < job.count:
            first = job.first + len(done)
            numbers = range(first, min(first + tester.engine.batch_size, job.first + job.count))
            trees = [
                draw_attempt(plan, job.branch, number, parent, tester.alphabet, settings, seed) for number in numbers
            ]
            for tested in tester.test(first, trees):
                done.append(tested)
                passed += tested.simulated and tested.reason is None
                if passed == job.passes:
                    return done
        return done

    def train(self, job: Train) -> Outcome:
        losses = zoo.resolve(job.loss, self.task.branches, self.operators)[1]
        criterion = scale_criterion(bind(losses, self.task.branches), job.training.scale)
        return to_record(self.task.train(criterion, job.training))


def to_record(outcome: Scored | Diverged | Stopped) -> Outcome:
    """Return a training's outcome as plain values of limited length; a score that is not finite is no score.

    Raises:
        TypeError: A task's `train` returned something else.
        ValueError: A step is no number of a step.
    """
    match outcome:
        case Diverged():
            return Outcome(state=State.DIVERGED, step=_step(outcome.step), reason=_reason(outcome.reason))
        case Stopped():
            return Outcome(state=State.STOPPED, step=_step(outcome.step), reason=_reason(outcome.reason))
        case Scored():
            score = float(outcome.score)
            curve = thin_curve([(_step(step), float(loss)) for step, loss in outcome.curve])
            if not math.isfinite(score):
                return Outcome(state=State.DIVERGED, curve=curve, reason=f"the metric is {score}")
            also = {
                keep_text(str(name), NAME_CHARACTERS): float(value)
                for name, value in itertools.islice(outcome.also.items(), FURTHER_METRICS)
            }
            finite = {name: value for name, value in also.items() if math.isfinite(value)}
            return Outcome(state=State.SCORED, score=score, also=finite, curve=curve)
        case _:
            raise TypeError(f"train() returned a {type(outcome).__name__}; expected Scored, Diverged or Stopped.")


def _step(step: int) -> int:
    if not abs(step) < STEPS:
        raise ValueError(f"train() returned a step of {keep_text(repr(step), 60)}; expected a number below {STEPS}.")
    return int(step)


def _reason(reason: str) -> str:
    return keep_text(str(reason), REASON_CHARACTERS)
