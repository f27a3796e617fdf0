"""A tree and its gradient as a linear list of instructions, which the compiled engine runs instead of autograd.

Three things keep it short. What does not depend on the prediction is computed once. What is constant over channels or over
positions, as after a mean, is stored once. Signs and other constant factors are tracked as factors, not computed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from autoloss.space.operators import EPSILON

CHANNEL, POSITION = 1, 2
"""The dimensions over which a register varies, as a sum of these: none, channels, positions, or both."""
FULL = CHANNEL + POSITION

P_REGISTER, Y_REGISTER, MASK_REGISTER, I_REGISTER, U_REGISTER, E_REGISTER = range(6)
AREA_REGISTERS = (I_REGISTER, U_REGISTER, E_REGISTER)
LEAF_REGISTERS = 6


class Op(IntEnum):
    """The operation of an instruction; a unary one is applied to its operand times a factor."""

    ABS = 0
    INV = 1
    LOG = 2
    EXP = 3
    TANH = 4
    SQRT = 5
    SIGN = 6
    """The derivative of abs."""
    LOG_SLOPE = 7
    TANH_SLOPE = 8
    """From the value of tanh, not from its argument."""
    SQRT_SLOPE = 9
    """From the value of sqrt, not from its argument."""
    MULTIPLY = 10
    COMBINE = 11
    """factor · a + second · b."""
    SHIFT = 12
    """factor · a + second."""
    FILL = 13
    """The constant `second`."""
    SPREAD = 14
    """Broadcast over channels or positions."""
    SUM_CHANNELS = 15
    SUM_POSITIONS = 16
    TOTAL = 17
    """Add factor · the plain sum of a to the loss."""
    MASKED_TOTAL = 18
    POOL = 19
    """max_pool of factor · a."""
    POOL_SLOPE = 20
    """Add each derivative in b to the first maximum of its window in factor · a."""


class Scaled(NamedTuple):
    """A register times a constant, or without a register the constant itself; in single and in double precision."""

    register: int | None
    single: float
    double: float


class Instruction(NamedTuple):
    """One instruction. Stage 0 runs once, stage 1 in every step; even times run tile by tile, odd times on the whole sample."""

    stage: int
    time: int
    op: Op
    varies: int
    to: int
    a: int | None
    b: int | None
    factor: Scaled
    second: Scaled


@dataclass(frozen=True, slots=True)
class Tape:
    """Instructions in order, the dimensions of their registers, and the resulting derivatives.

    Args:
        end: The time of the optimisation step.
        slopes: The derivatives of the plain sum by p, or by i, u and e; registers that vary over everything.
    """

    instructions: tuple[Instruction, ...]
    varies: tuple[int, ...]
    end: int
    slopes: tuple[Scaled, ...]


ONE = Scaled(None, 1.0, 1.0)


def constant(value: float) -> Scaled:
    """Return a number as a value without a register."""
    return Scaled(None, round_to_single(value), value)


def unscaled(register: int) -> Scaled:
    """Return a register with the factor 1."""
    return Scaled(register, 1.0, 1.0)


def round_to_single(value: float) -> float:
    """Round to single precision."""
    return float(np.float32(value))


_MODERATE = 1e9
"""Constant factors between the inverse of this size and this size are tracked instead of computed."""


class Writer:
    """Collects the instructions of one tree.

    Args:
        channels: C of the leaves.
        positions: N·H·W.
        flat: Whether a plane has one position only, so that pools change nothing.
    """

    def __init__(self, channels: int, positions: int, flat: bool) -> None:
        self.flat = flat
        self.count = {CHANNEL: channels, POSITION: positions}
        self.instructions: list[Instruction] = []
        # Of each register, leaves and mask first: its dimensions, whether it is computed in every step, and the time from
        # which it is available.
        given = (Y_REGISTER, MASK_REGISTER)
        self.varies = [FULL] * LEAF_REGISTERS
        self.active = [register not in given for register in range(LEAF_REGISTERS)]
        self.time = [0] * LEAF_REGISTERS
        self.source: dict[int | None, int] = {}
        self._known: dict[tuple[Any, ...], int] = {}
        self._spread: dict[tuple[int, int, tuple[int, int]], int] = {}

    def emit(
        self, op: Op, varies: int, a: Scaled, b: Scaled | None = None, factor: Scaled = ONE, second: Scaled = ONE
    ) -> Scaled:
        """Append an instruction unless it exists already; the constants of the operands are in `factor`."""
        key = (op, varies, a.register, b and b.register, factor[1:], second[1:])
        if key not in self._known:
            self._known[key] = self.append(op, varies, a, b, factor, second)
        return Scaled(self._known[key], 1.0, 1.0)

    def append(self, op: Op, varies: int, a: Scaled, b: Scaled | None, factor: Scaled, second: Scaled) -> int:
        """Append an instruction in the first stage and time at which its operands are there; return its register."""
        operands = [one.register for one in (a, b) if one is not None and one.register is not None]
        stage = int(any(self.active[register] for register in operands))
        waits = [self.time[register] for register in operands if int(self.active[register]) == stage]
        if (varies & POSITION and op not in (Op.POOL, Op.POOL_SLOPE)) or op is Op.SUM_POSITIONS:
            time = max([0, *(wait + wait % 2 for wait in waits)])
        else:
            time = max(wait | 1 for wait in waits)
        reads = self.varies[operands[0]] if op in (Op.SUM_CHANNELS, Op.SUM_POSITIONS) else varies
        left, right = (
            self.widen(one, reads, (stage, time)).register if one is not None and one.register is not None else None
            for one in (a, b)
        )
        register = self.new(varies, bool(stage), time + (op is Op.SUM_POSITIONS))
        self.instructions.append(Instruction(stage, time, op, reads, register, left, right, factor, second))
        return register

    def new(self, varies: int, active: bool, time: int) -> int:
        """Return a new register."""
        self.varies.append(varies)
        self.active.append(active)
        self.time.append(time)
        return len(self.varies) - 1

    def widen(self, value: Scaled, varies: int, when: tuple[int, int]) -> Scaled:
        """Broadcast a register to the dimensions `varies` where it is needed; storing and reading it costs more."""
        register = value.register
        assert register is not None
        if self.varies[register] == varies:
            return value
        key = (register, varies, when)
        if key not in self._spread:
            wide = self._spread[key] = self.new(varies, bool(when[0]), when[1])
            self.source[wide] = register
            self.instructions.append(Instruction(*when, Op.SPREAD, varies, wide, register, None, ONE, ONE))
        return Scaled(self._spread[key], value.single, value.double)

    def fill(self, value: Scaled, varies: int) -> Scaled:
        """Write a value to a register of its own with the dimensions `varies`, for operations on the whole sample."""
        if value.register is None:
            return self.emit(Op.FILL, varies, value, second=value)
        if self.varies[value.register] == varies and value[1:] == (1.0, 1.0):
            return value
        return self.emit(Op.SHIFT, varies, value, factor=value, second=constant(0.0))

    def add(self, a: Scaled, b: Scaled) -> Scaled:
        """Return the sum of two values; of two constants, a constant."""
        if a.register is None and b.register is None:
            return Scaled(None, round_to_single(a.single + b.single), a.double + b.double)
        if a.register == b.register:
            return self.moderate(Scaled(a.register, round_to_single(a.single + b.single), a.double + b.double))
        if a.register is None:
            return self.add(b, a)
        if b.register is None:
            return self.emit(Op.SHIFT, self.varies[a.register], a, factor=a, second=b)
        varies = self.varies[a.register] | self.varies[b.register]
        if a.register > b.register:
            a, b = b, a
        return self.emit(Op.COMBINE, varies, a, b, factor=a, second=b)

    def multiply(self, a: Scaled, b: Scaled) -> Scaled:
        """Return the product of two values; of two constants, a constant."""
        if b.register is None:
            return self.scale(a, b)
        if a.register is None:
            return self.scale(b, a)
        varies = self.varies[a.register] | self.varies[b.register]
        if a.register > b.register:
            a, b = b, a
        product = self.emit(Op.MULTIPLY, varies, a, b)
        return self.scale(self.scale(product, a), b)

    def scale(self, value: Scaled, factor: Scaled) -> Scaled:
        """Multiply by the constant of `factor`."""
        product = Scaled(value.register, round_to_single(value.single * factor.single), value.double * factor.double)
        return self.moderate(product)

    def moderate(self, value: Scaled) -> Scaled:
        """Multiply by a tracked constant where that is cheap, or where tracking it further could overflow."""
        if value.register is None or value[1:] in ((1.0, 1.0), (-1.0, -1.0)):
            return value
        if self.varies[value.register] == FULL and all(1 / _MODERATE <= abs(size) <= _MODERATE for size in value[1:]):
            return value
        return self.emit(Op.SHIFT, self.varies[value.register], value, factor=value, second=constant(0.0))

    def unary(self, value: Scaled, op: Op) -> Scaled:
        """Return an elementwise function of a value."""
        if value.register is None:
            return Scaled(None, float(_FOLD[op](np.float32(value.single))), float(_FOLD[op](np.float64(value.double))))
        return self.emit(op, self.varies[value.register], value, factor=value)

    def mean(self, value: Scaled, over: int) -> Scaled:
        """Return the mean over channels or positions."""
        if value.register is None or not self.varies[value.register] & over:
            return value
        op = Op.SUM_CHANNELS if over == CHANNEL else Op.SUM_POSITIONS
        total = self.emit(op, self.varies[value.register] & ~over, value)
        return self.scale(self.scale(total, value), constant(1 / self.count[over]))

    def pool(self, value: Scaled) -> Scaled:
        """Return the pool of a value; itself where it does not vary over positions."""
        if value.register is None or self.flat or not self.varies[value.register] & POSITION:
            return value
        return self.emit(Op.POOL, self.varies[value.register], value, factor=value)

    def fit(self, slope: Scaled, given: int, wanted: int) -> Scaled:
        """Sum a derivative over the dimensions in `given` that are not in `wanted`."""
        for over, op in ((CHANNEL, Op.SUM_CHANNELS), (POSITION, Op.SUM_POSITIONS)):
            if not given & over or wanted & over:
                continue
            if slope.register is not None and self.varies[slope.register] & over:
                total = self.emit(op, self.varies[slope.register] & ~over, slope)
                slope = self.scale(total, slope)
            else:
                slope = self.scale(slope, constant(float(self.count[over])))
        return slope


_FOLD: dict[Op, Callable[[np.float32 | np.float64], Any]] = {
    Op.ABS: np.abs,
    Op.INV: lambda x: type(x)(1) / (x + type(x)(EPSILON)),
    Op.LOG: lambda x: np.sign(x) * np.log(np.abs(x) + type(x)(EPSILON)),
    Op.EXP: np.exp,
    Op.TANH: np.tanh,
    Op.SQRT: lambda x: np.sign(x) * np.sqrt(np.abs(x) + type(x)(EPSILON)),
}
"""Constants are folded in both precisions: 1 + ε is 1 in one of them only."""
