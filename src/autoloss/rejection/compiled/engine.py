"""The loss-rejection protocol (Section 3.2) in compiled code: the decisions of `protocol.simulate`, many times faster.

Value and gradient of any tree of the 14 operators, the activation on the way and all steps of SGD run in single precision
without returning to Python. The metric stays the branch's own function.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from autoloss.errors import RequestError, unknown
from autoloss.rejection import gradients as equivalence
from autoloss.rejection.compiled import prepared
from autoloss.rejection.compiled.differentiation import FORWARD, record
from autoloss.rejection.compiled.interpreter import DONE, NO_GRADIENT, NOT_FINITE, PLAIN, descent
from autoloss.rejection.compiled.layout import MASK, VELOCITY, Layout, P, Y, Z
from autoloss.rejection.compiled.prepared import Packed, Prepared
from autoloss.rejection.compiled.program import Program, place
from autoloss.rejection.gradients import Gradient
from autoloss.rejection.protocol import Reference, Verdict
from autoloss.rejection.reasons import Reason
from autoloss.rejection.uncompiled import UncompiledAttempt
from autoloss.settings import ProtocolSettings
from autoloss.space.branch import Branch
from autoloss.space.expression import CONSTANT, Expression
from autoloss.space.operators import OPERATORS

OPERATOR_CAP = 64
"""Operators of the largest tree; it guards memory."""

ROUNDING = 1e-9
"""Of g: a sum within it of the threshold is not decided by a bound."""

_log = logging.getLogger(__name__)


class Engine:
    """The protocol on one branch, ready for any number of trees; one for each thread.

    A branch or a tree that compiled code does not know runs in the reference instead, and the log says why, once.

    Args:
        branch: Its metric is called on each optimised prediction.
        reference: The samples, and where their metric starts and could end.
        operator_cap: Trees with more operators are an error.
        towards: The fixed directions of the samples; by default those of seed 0.

    Raises:
        RequestError: A sample is not finite, or channels, height or width differ between samples.
    """

    def __init__(
        self,
        branch: Branch,
        reference: Reference,
        settings: ProtocolSettings,
        *,
        operator_cap: int = OPERATOR_CAP,
        towards: Sequence[Tensor] | None = None,
    ) -> None:
        prepared.check(reference.samples)
        self.branch = branch
        self.reference = reference
        self.settings = settings
        self.operator_cap = operator_cap
        self.towards = tuple(equivalence.directions(reference.samples, seed=0) if towards is None else towards)
        self._workspaces: dict[type[np.floating[Any]], Packed] = {}
        self._programs: tuple[Expression | None, dict[tuple[Layout, bool], Program | None]] = (None, {})
        self._logged: set[str] = set()
        self._obstacle = prepared.obstacle(branch, reference.samples)
        self.samples: tuple[Prepared, ...] = ()
        if self._obstacle is None:
            pairs = zip(reference.samples, self.towards, strict=True)
            self.samples = tuple(prepared.prepare(branch, sample, direction) for sample, direction in pairs)

    def verdict(self, expression: Expression) -> Verdict:
        """Descend on the predictions themselves and see how far the metric rises, as `protocol.simulate` does.

        Raises:
            RequestError: The tree has too many operators, or a leaf that the branch does not have.
        """
        if not self.compiles(expression):
            return self.conclude(self.uncompiled(expression))
        return self.conclude(Attempt(self, expression))

    def uncompiled(self, expression: Expression) -> UncompiledAttempt:
        """Return a tree on its way in plain autograd."""
        return UncompiledAttempt(expression, self.branch, self.reference, self.settings)

    def conclude(self, attempt: Attempt | UncompiledAttempt, limits: Sequence[float] | None = None) -> Verdict:
        """Take an attempt through all steps on all samples.

        Args:
            limits: What each sample can gain at most. A sum that can no longer reach the threshold then ends the run, with
                `LOW_GAIN` and no score, unless nothing has moved so far.
        """
        gains: list[float] = []
        silent = 0
        for number in range(len(self.reference.samples)):
            if limits is not None and silent < number and self.misses(gains, limits):
                return Verdict(Reason.LOW_GAIN)
            end = attempt.advance(number, self.settings.steps)
            if end == NOT_FINITE:
                return Verdict(Reason.NOT_FINITE)
            silent += end == NO_GRADIENT
            gains.append(0.0 if end == NO_GRADIENT else attempt.gain(number))
        if silent == len(gains):
            return Verdict(Reason.NO_GRADIENT)
        score = self.reference.score(gains, self.settings.unit)
        if not math.isfinite(score):
            return Verdict(Reason.NOT_FINITE, None, tuple(gains))
        return Verdict(None if score >= self.settings.threshold else Reason.LOW_GAIN, score, tuple(gains))

    def misses(self, gains: Sequence[float], limits: Sequence[float]) -> bool:
        """Say whether the first samples' gains leave the threshold out of reach of the other samples' limits."""
        most = self.reference.score([*gains, *limits[len(gains) :]], self.settings.unit)
        return most < self.settings.threshold - ROUNDING

    def gradient(self, expression: Expression) -> Gradient:
        """Differentiate the plain sum with respect to the raw initial predictions, as `equivalence.gradient` does.

        Raises:
            RequestError: The tree has too many operators, or a leaf that the branch does not have.
        """
        if not self.compiles(expression):
            return equivalence.gradient(expression, self.branch, self.reference.samples, self.towards)
        norms: list[float] = []
        products: list[float] = []
        for sample in self.samples:
            program = self.program(expression, sample)
            if program is None:
                norms.append(0.0)
                products.append(0.0)
                continue
            slope = np.zeros_like(sample.prediction)
            end = self.run(sample, program, sample.prediction.copy(), slope, (0, 1), 0.0)
            with np.errstate(over="ignore"):
                norms.append(math.nan if end == NOT_FINITE else float(np.linalg.norm(slope)))
                products.append(math.nan if end == NOT_FINITE else float(slope @ sample.towards))
        return Gradient(tuple(norms), tuple(products))

    def compiles(self, expression: Expression) -> bool:
        """Say whether compiled code serves a tree; if not, the log says why.

        Raises:
            RequestError: The tree has too many operators, or a leaf that the branch does not have.
        """
        if len(expression.operators) > self.operator_cap:
            raise RequestError(
                f"The tree has {len(expression.operators)} operators; the cap is {self.operator_cap}. "
                "Reject it before, or raise rejection.operator_cap."
            )
        for name in sorted(expression.leaves - {CONSTANT}):
            if name not in self.branch.leaves_and_roles:
                raise unknown("leaf of this branch", name, self.branch.leaves_and_roles)
        obstacle = self._obstacle
        for operator in expression.operators:
            if operator.name not in FORWARD or operator.function is not OPERATORS[operator.name].function:
                obstacle = obstacle or f"the operator {operator.name!r} is not of Table 1"
        if obstacle is not None and obstacle not in self._logged:
            self._logged.add(obstacle)
            _log.warning("The reference runs in place of the compiled engine: %s.", obstacle)
        return obstacle is None

    def program(self, expression: Expression, sample: Prepared) -> Program | None:
        """Translate a tree, once for all samples of one shape; None where it does not depend on the prediction."""
        if self._programs[0] is not expression:
            self._programs = (expression, {})
        held = self._programs[1]
        layout, masked = sample.layout, sample.mask is not None
        if (layout, masked) not in held:
            tape = record(expression, layout.channels, layout.positions, layout.flat, masked)
            held[layout, masked] = None if tape is None else place(tape, layout, sample.activation == PLAIN)
        return held[layout, masked]

    def run(
        self, sample: Prepared, program: Program, z: Packed, velocity: Packed, span: tuple[int, int], momentum: float
    ) -> int:
        """Take the steps of a span, in the precision of `z`; `z` and `velocity` change in place."""
        precision = z.dtype.type
        layout, area, count = sample.layout, sample.layout.area, len(z)
        workspace = self._workspace(precision, program.size)
        heads = {Z: z, VELOCITY: velocity, Y: sample.target[precision]}
        if sample.mask is not None:
            heads[MASK] = sample.mask
        for head, values in heads.items():
            workspace[head * area : head * area + len(values)] = values
        plain = sample.activation == PLAIN
        u = np.uint64
        rows, rows_per_tile = u(layout.rows), u(layout.rows_per_tile)
        end = descent()(
            workspace,
            program.code,
            program.single if precision is np.float32 else program.double,
            program.blocks,
            program.once,
            (u(0), u(VELOCITY * area), u(0 if plain else P * area), u(Y * area)),
            program.slopes,
            program.single_factors if precision is np.float32 else program.double_factors,
            sample.activation,
            (
                *(u(layout.channels), rows, u(layout.height), u(layout.width), rows_per_tile, u((MASK + 1) * area)),
                u(layout.moving),
            ),
            span,
            precision(momentum),
            precision(self.settings.learning_rate),
            np.zeros(span[1] - span[0]),
            float(np.finfo(precision).max),
        )
        z[:] = workspace[:count]
        velocity[:] = workspace[VELOCITY * area : VELOCITY * area + count]
        return end

    def _workspace(self, precision: type[np.floating[Any]], size: int) -> Packed:
        held = self._workspaces.get(precision)
        if held is None or len(held) < size:
            held = self._workspaces[precision] = np.zeros(size, precision)
        return held


class Attempt:
    """One tree on its way through the steps, sample by sample."""

    def __init__(self, engine: Engine, expression: Expression) -> None:
        self._engine = engine
        self._expression = expression
        self._states: dict[int, tuple[Packed, Packed]] = {}
        self._steps: dict[int, int] = {}
        self._ends: dict[int, int] = {}

    def advance(self, number: int, step: int) -> int:
        """Take a sample as far as `step`; return how the descent ended: what ended before the last step stays ended."""
        if self._ends.get(number, DONE) == DONE:
            self._ends[number] = self._advance(number, step)
        return self._ends[number]

    def _advance(self, number: int, step: int) -> int:
        sample = self._engine.samples[number]
        program = self._engine.program(self._expression, sample)
        if program is None:
            return NO_GRADIENT
        if number not in self._states:
            z = sample.prediction.astype(np.float32)
            self._states[number] = z, np.zeros_like(z)
        span = (self._steps.get(number, 0), step)
        self._steps[number] = step
        return self._engine.run(sample, program, *self._states[number], span, self._engine.settings.momentum)

    def prediction(self, number: int) -> Tensor:
        """Return the raw prediction of a sample where it is now, in the shape of the sample's own."""
        return self._engine.samples[number].shown(self._states[number][0])

    def gain(self, number: int, reach: float = 1.0) -> float:
        """Measure how far the metric of a sample has risen.

        Args:
            reach: Measure at so many times the way gone; where that is not finite the gain is infinite.
        """
        engine = self._engine
        way = self._states[number][0]
        if reach != 1.0:
            start = engine.samples[number].prediction
            way = (start + reach * (way - start)).astype(np.float32)
            if not np.isfinite(way).all():
                return math.inf
        shown = engine.samples[number].shown(way)
        return engine.branch.metric(shown, engine.reference.samples[number].context) - engine.reference.initial[number]
