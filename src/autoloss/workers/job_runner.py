"""A worker's bench: the task with its samples, and the two kinds of job done on it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from autoloss import zoo
from autoloss.rejection.compiled.engine import Engine
from autoloss.rejection.gradients import Gradient, directions, gradient
from autoloss.rejection.protocol import Reference, Verdict, measure_reference, simulate
from autoloss.rejection.reasons import Reason
from autoloss.rejection.screen import screened
from autoloss.search.attempts import draw_attempt
from autoloss.search.jobs import Attempt, Job, RejectionBatch, Train
from autoloss.search.mutation import Kind
from autoloss.search.proposer import Plan
from autoloss.search.records import Outcome, State
from autoloss.settings import Configuration
from autoloss.space.branch import Branch, BranchLoss, Criterion, Role, Sample
from autoloss.space.expression import Alphabet, Expression
from autoloss.space.loss import bind
from autoloss.space.operators import OPERATORS, Operator
from autoloss.space.parsing import parse
from autoloss.tasks.task import Diverged, Scored, Stopped, Task
from autoloss.tasks.training.threads import one_thread

REMEMBERED = 50_000
"""Formulas whose test a worker remembers."""


class JobRunner:
    """Does jobs; equal jobs give equal results in every process.

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
        self._branches: dict[str, RejectionTester] = {}

    def perform(self, job: Job) -> list[Attempt] | Outcome:
        with one_thread():
            match job:
                case RejectionBatch():
                    return self.test(job)
                case Train():
                    return self.train(job)

    def branch(self, name: str) -> RejectionTester:
        """Return what tests trees on a branch; made when first needed."""
        if name not in self._branches:
            branch = self.task.branches[name]
            reference = measure_reference(branch, self.samples[name])
            self._branches[name] = RejectionTester(branch, reference, self.configuration, self.operators)
            self._branches[name].learn(self._known.get(name, b""), 0)
        return self._branches[name]

    def test(self, job: RejectionBatch) -> list[Attempt]:
        tested = self.branch(job.branch)
        tested.learn(job.known, job.known_before)
        plan = Plan(job.candidate, None, {job.branch: Kind(job.kind)})
        parent = None if job.parent is None else tested.parse(job.parent)
        done = []
        for number in range(job.first, job.first + job.count):
            settings, seed = self.configuration.evolution, self.configuration.seed
            tree = draw_attempt(plan, job.branch, number, parent, tested.alphabet, settings, seed)
            done.append(tested.test(number, tree))
            if done[-1].simulated and done[-1].reason is None:
                break
        return done

    def train(self, job: Train) -> Outcome:
        losses = zoo.resolve(job.loss, self.task.branches, self.operators)[1]
        criterion = scale_criterion(bind(losses, self.task.branches), job.training.scale)
        return to_record(self.task.train(criterion, job.training))


def alphabet(
    roles: Mapping[str, Role], configuration: Configuration, operators: Mapping[str, Operator] = OPERATORS
) -> Alphabet:
    """Return what a run draws a branch's trees from: all operators that are not switched off."""
    off = configuration.space.without
    return Alphabet(roles, tuple(operator for name, operator in operators.items() if name not in off))


class RejectionTester:
    """Tests trees on one branch, and remembers what it tested by canonical text."""

    __test__ = False

    def __init__(
        self,
        branch: Branch,
        reference: Reference,
        configuration: Configuration,
        operators: Mapping[str, Operator] = OPERATORS,
    ) -> None:
        self.branch = branch
        self.reference = reference
        self._operators = operators
        self.alphabet = alphabet(branch.leaves_and_roles, configuration, operators)
        self._settings = configuration.rejection
        self._maximum = configuration.evolution.maximum_operators
        self._directions = directions(reference.samples, configuration.seed)
        self._engine: Engine | None = None
        if self._settings.engine == "fast":
            self._engine = Engine(
                branch, reference, self._settings, operator_cap=self._maximum, towards=self._directions
            )
        self._known: set[bytes] = set()
        self._learnt = 0
        self._tested: dict[str, Attempt] = {}

    def parse(self, text: str) -> Expression:
        return parse(text, self.alphabet.leaves_and_roles, self._operators)

    def learn(self, keys: bytes, before: int) -> None:
        """Take over the latest keys that the driver knows, after so many bytes of others; it only ever adds to their end."""
        for start in range(max(0, self._learnt - before), len(keys), 8):
            self._known.add(keys[start : start + 8])
        self._learnt = max(self._learnt, before + len(keys))

    def test(self, number: int, tree: Expression) -> Attempt:
        """Test a tree: size and structure, then its gradient, then the protocol."""
        text = str(tree)
        if len(tree.operators) > self._maximum:
            return Attempt(number, text, Reason.SIZE.name)
        if not tree.holds(self.branch.leaves_and_roles):
            return Attempt(number, text, Reason.STRUCTURE.name)
        canonical = tree.canonical()
        name = str(canonical)
        known = self._tested.get(name)
        if known is None or not (known.simulated or known.reason or known.key in self._known):
            known = self._test(canonical)
            if len(self._tested) >= REMEMBERED:
                self._tested.clear()
            self._tested[name] = known
        return Attempt(
            number, text, known.reason, known.key, known.signature, known.simulated, known.score, known.gains
        )

    def _test(self, tree: Expression) -> Attempt:
        found = self.gradient(tree)
        if not found.finite or found.zero:
            return Attempt(0, "", (Reason.NO_GRADIENT if found.finite else Reason.NOT_FINITE).name)
        key = found.key(str(tree))
        if key in self._known:
            return Attempt(0, "", None, key, found.signature)
        verdict = self.verdict(tree) if self._engine is None else screened(self._engine, tree)
        reason = verdict.reason.name if verdict.reason else None
        return Attempt(0, "", reason, key, found.signature, True, verdict.score, verdict.gains)

    def gradient(self, tree: Expression) -> Gradient:
        if self._engine is not None:
            return self._engine.gradient(tree)
        return gradient(tree, self.branch, self.reference.samples, self._directions)

    def verdict(self, tree: Expression) -> Verdict:
        """Run the whole protocol, without the screen."""
        if self._engine is not None:
            return self._engine.verdict(tree)
        return simulate(tree, self.branch, self.reference, self._settings)


def scale_criterion(criterion: Criterion, scale: Mapping[str, float]) -> Criterion:
    """Multiply the losses of the branches that `scale` names."""
    return {name: _times(loss, scale[name]) if name in scale else loss for name, loss in criterion.items()}


def _times(loss: BranchLoss, factor: float) -> BranchLoss:
    return lambda prediction, context: factor * loss(prediction, context)


def to_record(outcome: Scored | Diverged | Stopped) -> Outcome:
    """Return a training's outcome as plain values; a score that is not finite is no score.

    Raises:
        TypeError: A task's `train` returned something else.
    """
    match outcome:
        case Diverged():
            return Outcome(state=State.DIVERGED, step=int(outcome.step), reason=str(outcome.reason))
        case Stopped():
            return Outcome(state=State.STOPPED, step=int(outcome.step), reason=str(outcome.reason))
        case Scored():
            score = float(outcome.score)
            curve = tuple((int(step), float(loss)) for step, loss in outcome.curve)
            if not math.isfinite(score):
                return Outcome(state=State.DIVERGED, curve=curve, reason=f"the metric is {score}")
            also = {str(name): float(value) for name, value in outcome.also.items()}
            finite = {name: value for name, value in also.items() if math.isfinite(value)}
            return Outcome(state=State.SCORED, score=score, also=finite, curve=curve)
        case _:
            raise TypeError(f"train() returned a {type(outcome).__name__}; expected Scored, Diverged or Stopped.")
