"""The loss-rejection protocol (Section 3.2) in compiled code: the verdicts of the reference, many times faster.

Value and gradient of any tree of the 14 operators, the activation in between and all steps of SGD run in single precision
without returning to Python. The metric is the branch's own function.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from autoloss.errors import RequestError
from autoloss.rejection.compiled.differentiation import FORWARD, record
from autoloss.rejection.compiled.interpreter import (
    DONE,
    NO_GRADIENT,
    NOT_FINITE,
    PLAIN,
    compile_descent,
    compile_gradient,
)
from autoloss.rejection.compiled.layout import MASK, VELOCITY, Layout, Y, Z
from autoloss.rejection.compiled.packed_samples import (
    Packed,
    PackedSample,
    assign_registers,
    bound_leaves,
    check_samples,
    find_obstacle,
    pack_sample,
)
from autoloss.rejection.compiled.program import Program, assemble
from autoloss.rejection.engine import Engine, Gradient
from autoloss.rejection.protocol import Descent, Reference
from autoloss.rejection.reasons import Reason
from autoloss.rejection.reference import ReferenceEngine
from autoloss.settings import ProtocolSettings
from autoloss.space.activated import ActivatedBranch
from autoloss.space.branch import Sample
from autoloss.space.expression import Expression, Symbol
from autoloss.space.operators import is_own
from autoloss.space.parsing import parse
from autoloss.space.ranges import Range

_ENDS = {DONE: None, NOT_FINITE: Reason.NOT_FINITE, NO_GRADIENT: Reason.NO_GRADIENT}

_log = logging.getLogger(__name__)


class CompiledEngine(Engine):
    """The protocol on one branch in compiled code, one tree after the other.

    A branch or a tree that the compiled code does not support runs in the reference instead; the log says why, once.
    """

    def _prepare(self) -> None:
        check_samples(self.reference.samples)
        self._fallback = ReferenceEngine(self.branch, self.reference, self.settings, directions=self.directions)
        self._workspace: Packed = np.zeros(0, np.float32)
        self._leaves: dict[int | None, Packed] = {}
        self._programs: tuple[Expression | None, dict[tuple[Layout, bool], Program | None]] = (None, {})
        self._logged: set[str] = set()
        self._obstacle = find_obstacle(self.branch, self.reference.samples)
        self.samples: tuple[PackedSample, ...] = ()
        if self._obstacle is None:
            pairs = zip(self.reference.samples, self.directions, strict=True)
            self._registers = assign_registers(self.branch)
            self.samples = tuple(pack_sample(self.branch, sample, direction) for sample, direction in pairs)
        self._bounds = bound_leaves(self.samples)

    def gradients(self, expressions: Sequence[Expression]) -> list[Gradient]:
        return [self._compute_gradient(expression) for expression in expressions]

    def start_descent(self, expression: Expression) -> Descent:
        if expression.factor != 1 or not self.compiles(expression):
            return self._fallback.start_descent(expression)
        return CompiledDescent(self, expression)

    def _compute_gradient(self, expression: Expression) -> Gradient:
        if expression.factor != 1 or not self.compiles(expression):
            return self._fallback.gradients([expression])[0]
        norms: list[float] = []
        products: list[float] = []
        for number, sample in enumerate(self.samples):
            program = self.translate(expression, sample)
            end, square, product = (DONE, 0.0, 0.0) if program is None else self._differentiate(number, program)
            norms.append(math.nan if end == NOT_FINITE else math.sqrt(square))
            products.append(math.nan if end == NOT_FINITE else product)
        return Gradient(tuple(norms), tuple(products))

    def _differentiate(self, number: int, program: Program) -> tuple[int, float, float]:
        """Measure the gradient of a sample, in double precision.

        A sample keeps its leaves in a workspace of its own. Programs with many registers share one, which is written anew.
        """
        sample = self.samples[number]
        place = number if program.size <= sample.layout.kept else None
        workspace = self._leaves.get(place)
        fresh = place is None or workspace is None
        if workspace is None or len(workspace) < program.size:
            workspace = self._leaves[place] = np.zeros(max(program.size, sample.layout.kept))
        if fresh:
            _write_leaves(workspace, sample, {Z: sample.prediction, VELOCITY: np.zeros_like(sample.prediction)})
        # Each takes a quarter of a minute: another process compiles the descent while this one compiles the gradient.
        compile_descent().compile_elsewhere(f"from {__name__} import run_descent; run_descent()")
        return compile_gradient()(
            workspace,
            program.double,
            sample.areas,
            sample.activation,
            sample.shape,
            sample.items,
            sample.direction,
            fresh,
        )

    def compiles(self, expression: Expression) -> bool:
        """Check whether compiled code supports a tree; if not, the log says why."""
        if len(expression.operators) > self.operator_cap:
            raise RequestError(
                f"The tree has {len(expression.operators)} operators; the cap is {self.operator_cap}. "
                "Use a smaller tree, or raise evolution.maximum_operators."
            )
        self.check_leaves(expression)
        obstacle = self._obstacle
        for operator in expression.operators:
            if operator.name not in FORWARD or is_own(operator):
                obstacle = obstacle or f"the operator {operator.name!r} is not of Table 1"
        if obstacle is not None and obstacle not in self._logged:
            self._logged.add(obstacle)
            _log.warning("The reference runs in place of the compiled engine: %s.", obstacle)
        return obstacle is None

    def translate(self, expression: Expression, sample: PackedSample) -> Program | None:
        """Translate a tree, once for all samples of one shape; None where it does not depend on the prediction."""
        if self._programs[0] is not expression:
            self._programs = (expression, {})
        programs = self._programs[1]
        layout, masked = sample.layout, sample.is_masked
        if (layout, masked) not in programs:
            registers, plain = tuple(self._registers.items()), sample.activation == PLAIN
            bounds = None if self._bounds is None else tuple(self._bounds.items())
            programs[layout, masked] = _translate(expression.symbols, registers, layout, masked, bounds, plain)
        return programs[layout, masked]

    def run(
        self, sample: PackedSample, program: Program, z: Packed, velocity: Packed, steps: tuple[int, int]
    ) -> Reason | None:
        """Run from the first to the second of `steps`; `z` and `velocity`, in single precision, change in place.

        Returns:
            None, or why the descent ended.
        """
        area, count, single = sample.layout.area, len(z), np.float32
        if len(self._workspace) < program.size:
            self._workspace = np.zeros(program.size, single)
        workspace = self._workspace
        _write_leaves(workspace, sample, {Z: z, VELOCITY: velocity})
        end = compile_descent()(
            workspace,
            program.single,
            sample.areas,
            sample.activation,
            sample.shape,
            sample.items,
            steps,
            single(self.settings.momentum),
            single(self.settings.learning_rate),
            np.zeros(steps[1] - steps[0]),
            float(np.finfo(single).max),
        )
        z[:] = workspace[:count]
        velocity[:] = workspace[VELOCITY * area : VELOCITY * area + count]
        return _ENDS[end]


@lru_cache(maxsize=16)
def _translate(
    symbols: tuple[Symbol, ...],
    registers: tuple[tuple[str, int], ...],
    layout: Layout,
    masked: bool,
    bounds: tuple[tuple[int, Range], ...] | None,
    plain: bool,
) -> Program | None:
    """Translate a tree. The engines of one branch, on other predictions of the same shape, share what was translated last."""
    size, leaves = (layout.channels, layout.positions), None if bounds is None else dict(bounds)
    tape = record(Expression(symbols), dict(registers), size, layout.flat, masked, leaves)
    return None if tape is None else assemble(tape, layout, plain)


def _write_leaves(workspace: Packed, sample: PackedSample, heads: Mapping[int, Packed]) -> None:
    """Write the leaf y, the mask, and further areas to the head of a workspace."""
    masks = {} if sample.mask is None else {MASK: sample.mask}
    for head, values in {**heads, Y: sample.target[workspace.dtype.type], **masks}.items():
        at = head * sample.layout.area
        workspace[at : at + len(values)] = values


class CompiledDescent(Descent):
    """The descent of one tree that the engine compiles."""

    def __init__(self, engine: CompiledEngine, expression: Expression) -> None:
        super().__init__(engine.branch, engine.reference)
        self._engine = engine
        self._expression = expression
        self._states: dict[int, tuple[Packed, Packed]] = {}
        """Sample → prediction and velocity."""

    def _run(self, sample: int, taken: int, step: int) -> Reason | None:
        packed = self._engine.samples[sample]
        program = self._engine.translate(self._expression, packed)
        if program is None:
            return Reason.NO_GRADIENT
        if sample not in self._states:
            z = packed.prediction.astype(np.float32)
            self._states[sample] = z, np.zeros_like(z)
        return self._engine.run(packed, program, *self._states[sample], (taken, step))

    def prediction(self, sample: int, extrapolation: float = 1.0) -> Tensor:
        packed = self._engine.samples[sample]
        current = self._states[sample][0]
        if extrapolation != 1.0:
            with np.errstate(over="ignore"):
                current = (packed.prediction + extrapolation * (current - packed.prediction)).astype(np.float32)
        return packed.unpack(current)


def run_descent() -> None:
    """Take one step on a sample of one position; the types of the arguments are those of every descent."""
    sample = Sample(torch.zeros(1, 2, 1, 1), {"target": torch.zeros(1, 1, 1, dtype=torch.long)})
    engine = CompiledEngine(ActivatedBranch(), Reference((sample,), (0.0,), (1.0,)), ProtocolSettings(samples=1))
    engine.start_descent(parse("-y * log(p)")).advance(0, 1)
