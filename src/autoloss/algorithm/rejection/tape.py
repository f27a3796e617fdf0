"""A tree and its gradient as one straight list of instructions: what the compiled engine runs instead of autograd.

Three things make it short. What does not depend on the prediction is computed once. What is equal over channels or over
positions, as after a mean, is kept as few numbers. Signs and other constant factors are carried along, not computed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from autoloss.space.expression import CONSTANT, Expression
from autoloss.space.operators import EPSILON

CHANNEL, POSITION = 1, 2
"""What a register varies over, as a sum of these: nothing, channels, positions, or both."""
FULL = CHANNEL + POSITION

P_REGISTER, Y_REGISTER, MASK_REGISTER = 0, 1, 2


class Op(IntEnum):
    """What one instruction does; a unary one takes its operand times a factor."""

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
    """Repeat what is equal over channels or positions."""
    SUM_CHANNELS = 15
    SUM_POSITIONS = 16
    TOTAL = 17
    """Add factor · the plain sum of a to the loss."""
    MASKED_TOTAL = 18
    POOL = 19
    """max_pool of factor · a."""
    POOL_SLOPE = 20
    """Give each of b, an output's slope, to the first largest of its window in factor · a."""


class Scaled(NamedTuple):
    """A register times a constant, or without a register the constant itself; in single and in double precision."""

    register: int | None
    single: float
    double: float


class Instruction(NamedTuple):
    """One instruction; stage 0 is run once, stage 1 in every step; even times go tile by tile, odd ones over the sample."""

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
    """Instructions in order, what their registers vary over, and the derivative by p they end with.

    Args:
        end: The time at which the prediction takes its step.
        slope: The derivative of the plain sum by p, a register that varies over everything.
    """

    instructions: tuple[Instruction, ...]
    varies: tuple[int, ...]
    end: int
    slope: Scaled


ONE = Scaled(None, 1.0, 1.0)
_MODERATE = 1e9
"""Constant factors beyond this, or below its inverse, are multiplied at once: carried along they could over- or underflow."""


def record(expression: Expression, channels: int, positions: int, flat: bool, masked: bool) -> Tape | None:
    """Lay out a tree over the leaves y and p, and the derivative of its plain sum by p.

    Args:
        positions: N·H·W.
        flat: A plane has one position only, so that pools change nothing.
        masked: Not all elements count.

    Returns:
        None where the tree does not depend on p.
    """
    with np.errstate(all="ignore"):
        return _Recorder(channels, positions, flat).record(expression, masked)


class _Recorder:
    """Collects the instructions of one tree."""

    def __init__(self, channels: int, positions: int, flat: bool) -> None:
        self.flat = flat
        self.count = {CHANNEL: channels, POSITION: positions}
        self.instructions: list[Instruction] = []
        self.known: dict[Any, int] = {}
        self.varies = [FULL, FULL, FULL]
        self.active = [True, False, False]
        self.time = [0, 0, 0]
        self.slopes: dict[int, list[Scaled]] = {}
        self.spread: dict[tuple[int, int, tuple[int, int]], int] = {}
        self.source: dict[int | None, int] = {}

    def record(self, expression: Expression, masked: bool) -> Tape | None:
        root = self.forward(expression)
        if root.register is None or not self.active[root.register]:
            return None
        forward = tuple(self.instructions)
        self.add_total(root, masked)
        for instruction in reversed(forward):
            self.backward(instruction)
        return self.finish()

    def forward(self, expression: Expression) -> Scaled:
        stack: list[Scaled] = []
        for symbol in reversed(expression.symbols):
            if isinstance(symbol, str):
                leaves = {CONSTANT: ONE, "p": Scaled(P_REGISTER, 1.0, 1.0), "y": Scaled(Y_REGISTER, 1.0, 1.0)}
                stack.append(leaves[symbol])
            else:
                parts = [stack.pop() for _ in range(symbol.arity)]
                stack.append(_FORWARD[symbol.name](self, *parts))
        return stack.pop()

    def add_total(self, root: Scaled, masked: bool) -> None:
        """Sum the output, and begin the way back with the sum's derivative by it."""
        register = root.register
        assert register is not None
        if masked:
            self.emit(Op.MASKED_TOTAL, FULL, Scaled(register, 1.0, 1.0), Scaled(MASK_REGISTER, 1.0, 1.0), factor=root)
            self.give(register, self.scaled(Scaled(MASK_REGISTER, 1.0, 1.0), root), FULL)
            return
        every = self.fit(Scaled(None, root.single, root.double), FULL, self.varies[register])
        self.emit(Op.TOTAL, self.varies[register], Scaled(register, 1.0, 1.0), factor=every)
        self.give(register, every, self.varies[register])

    def backward(self, instruction: Instruction) -> None:
        """Hand the slope of an instruction's result to its operands."""
        if not self.active[instruction.to] or instruction.op is Op.SPREAD:
            return
        slope = self.slope_of(instruction.to)
        a, b = (Scaled(self.source.get(one, one), 1.0, 1.0) for one in (instruction.a, instruction.b))
        result = Scaled(instruction.to, 1.0, 1.0)
        varies = self.varies[instruction.to]
        assert a.register is not None
        match instruction.op:
            case Op.SUM_CHANNELS | Op.SUM_POSITIONS:
                self.give(a.register, slope, self.varies[a.register])
            case Op.MULTIPLY if a == b:
                self.give(a.register, self.scaled(self.multiply(slope, a), Scaled(None, 2.0, 2.0)), varies)
            case Op.MULTIPLY:
                assert b.register is not None
                self.give(a.register, self.multiply(slope, b) if self.active[a.register] else slope, varies)
                self.give(b.register, self.multiply(slope, a) if self.active[b.register] else slope, varies)
            case Op.COMBINE:
                assert b.register is not None
                self.give(a.register, self.scaled(slope, instruction.factor), varies)
                self.give(b.register, self.scaled(slope, instruction.second), varies)
            case Op.SHIFT:
                self.give(a.register, self.scaled(slope, instruction.factor), varies)
            case Op.POOL:
                found = self.emit(Op.POOL_SLOPE, varies, a, self.filled(slope, varies), factor=instruction.factor)
                self.give(a.register, self.scaled(found, instruction.factor), varies)
            case _:
                derivative = self.derivative(instruction.op, Scaled(a.register, *instruction.factor[1:]), result)
                self.give(a.register, self.scaled(self.multiply(slope, derivative), instruction.factor), varies)

    def slope_of(self, register: int) -> Scaled:
        first, *others = self.slopes[register]
        return reduce(self.add, others, first)

    def derivative(self, op: Op, argument: Scaled, result: Scaled) -> Scaled:
        """Return a unary operator's derivative by its argument."""
        match op:
            case Op.EXP:
                return result
            case Op.INV:
                return self.scaled(self.multiply(result, result), Scaled(None, -1.0, -1.0))
            case Op.ABS:
                return self.unary(Op.SIGN, argument)
            case Op.LOG:
                return self.unary(Op.LOG_SLOPE, argument)
            case Op.TANH:
                return self.unary(Op.TANH_SLOPE, result)
            case _:
                return self.unary(Op.SQRT_SLOPE, result)

    def finish(self) -> Tape:
        slope = self.slope_of(P_REGISTER)
        end = max([0, *(one.time for one in self.instructions if one.stage)])
        end += end % 2
        if slope.register is None:
            slope = self.filled(slope, FULL)
        slope = self.widened(slope, FULL, (1, end))
        return Tape(tuple(self.instructions), tuple(self.varies), end, slope)

    # What follows writes instructions.

    def emit(
        self, op: Op, varies: int, a: Scaled, b: Scaled | None = None, factor: Scaled = ONE, second: Scaled = ONE
    ) -> Scaled:
        """Append an instruction unless the same one is there; operands lose their constants, which `factor` holds."""
        key = (op, varies, a.register, b and b.register, factor[1:], second[1:])
        if key not in self.known:
            self.known[key] = self.append(op, varies, a, b, factor, second)
        return Scaled(self.known[key], 1.0, 1.0)

    def append(self, op: Op, varies: int, a: Scaled, b: Scaled | None, factor: Scaled, second: Scaled) -> int:
        operands = [one.register for one in (a, b) if one is not None and one.register is not None]
        stage = int(any(self.active[register] for register in operands))
        waits = [self.time[register] for register in operands if int(self.active[register]) == stage]
        if varies & POSITION and op not in (Op.POOL, Op.POOL_SLOPE) or op is Op.SUM_POSITIONS:
            time = max([0, *(wait + wait % 2 for wait in waits)])
        else:
            time = max(wait | 1 for wait in waits)
        reads = self.varies[operands[0]] if op in (Op.SUM_CHANNELS, Op.SUM_POSITIONS) else varies
        left, right = (
            self.widened(one, reads, (stage, time)).register if one is not None and one.register is not None else None
            for one in (a, b)
        )
        register = self.new(varies, bool(stage), time + (op is Op.SUM_POSITIONS))
        self.instructions.append(Instruction(stage, time, op, reads, register, left, right, factor, second))
        return register

    def new(self, varies: int, active: bool, time: int) -> int:
        self.varies.append(varies)
        self.active.append(active)
        self.time.append(time)
        return len(self.varies) - 1

    def widened(self, value: Scaled, varies: int, when: tuple[int, int]) -> Scaled:
        """Repeat a register over all that `varies`, just where it is needed: it is cheaper to repeat than to read back."""
        register = value.register
        assert register is not None
        if self.varies[register] == varies:
            return value
        key = (register, varies, when)
        if key not in self.spread:
            wide = self.spread[key] = self.new(varies, bool(when[0]), when[1])
            self.source[wide] = register
            self.instructions.append(Instruction(*when, Op.SPREAD, varies, wide, register, None, ONE, ONE))
        return Scaled(self.spread[key], value.single, value.double)

    def filled(self, value: Scaled, varies: int) -> Scaled:
        """Give a value a register of its own over all that `varies`, where the sample is to be had as a whole."""
        if value.register is None:
            return self.emit(Op.FILL, varies, value, second=value)
        if self.varies[value.register] == varies and value[1:] == (1.0, 1.0):
            return value
        zero = Scaled(None, 0.0, 0.0)
        return self.emit(Op.SHIFT, varies, value, factor=value, second=zero)

    # Arithmetic on values, the way there and back.

    def add(self, a: Scaled, b: Scaled) -> Scaled:
        if a.register is None and b.register is None:
            return Scaled(None, _single(a.single + b.single), a.double + b.double)
        if a.register == b.register:
            return self.moderate(Scaled(a.register, _single(a.single + b.single), a.double + b.double))
        if a.register is None:
            a, b = b, a
        assert a.register is not None
        if b.register is None:
            return self.emit(Op.SHIFT, self.varies[a.register], a, factor=a, second=b)
        if a.register > b.register:
            a, b = b, a
        return self.emit(Op.COMBINE, self.varies[a.register] | self.varies[b.register], a, b, factor=a, second=b)

    def multiply(self, a: Scaled, b: Scaled) -> Scaled:
        if a.register is None or b.register is None:
            return self.scaled(a, b) if b.register is None else self.scaled(b, a)
        if a.register > b.register:
            a, b = b, a
        product = self.emit(Op.MULTIPLY, self.varies[a.register] | self.varies[b.register], a, b)
        return self.scaled(self.scaled(product, a), b)

    def scaled(self, value: Scaled, factor: Scaled) -> Scaled:
        """Multiply by the constant of `factor`."""
        single, double = _single(value.single * factor.single), value.double * factor.double
        return self.moderate(Scaled(value.register, single, double))

    def moderate(self, value: Scaled) -> Scaled:
        if value.register is None or all(1 / _MODERATE <= abs(size) <= _MODERATE for size in value[1:]):
            return value
        zero = Scaled(None, 0.0, 0.0)
        return self.emit(Op.SHIFT, self.varies[value.register], value, factor=value, second=zero)

    def unary(self, op: Op, value: Scaled) -> Scaled:
        if value.register is None:
            return Scaled(None, float(_FOLD[op](np.float32(value.single))), float(_FOLD[op](np.float64(value.double))))
        return self.emit(op, self.varies[value.register], value, factor=value)

    def mean(self, value: Scaled, over: int) -> Scaled:
        if value.register is None or not self.varies[value.register] & over:
            return value
        op = Op.SUM_CHANNELS if over == CHANNEL else Op.SUM_POSITIONS
        whole = self.emit(op, self.varies[value.register] & ~over, value)
        share = 1 / self.count[over]
        return self.scaled(self.scaled(whole, value), Scaled(None, _single(share), share))

    def pool(self, value: Scaled) -> Scaled:
        if value.register is None or self.flat or not self.varies[value.register] & POSITION:
            return value
        return self.emit(Op.POOL, self.varies[value.register], value, factor=value)

    def give(self, register: int, slope: Scaled, given: int) -> None:
        """Note a share of a register's slope, which stands once for each of what `given` varies over."""
        if self.active[register]:
            self.slopes.setdefault(register, []).append(self.fit(slope, given, self.varies[register]))

    def fit(self, slope: Scaled, given: int, wanted: int) -> Scaled:
        """Add up over what the slope is given for but its register does not vary over."""
        for over, op in ((CHANNEL, Op.SUM_CHANNELS), (POSITION, Op.SUM_POSITIONS)):
            if not given & over or wanted & over:
                continue
            if slope.register is not None and self.varies[slope.register] & over:
                whole = self.emit(op, self.varies[slope.register] & ~over, slope)
                slope = self.scaled(whole, slope)
            else:
                slope = self.scaled(slope, Scaled(None, float(self.count[over]), float(self.count[over])))
        return slope


def _single(value: float) -> float:
    return float(np.float32(value))


_FOLD: dict[Op, Callable[[Any], Any]] = {
    Op.ABS: np.abs,
    Op.INV: lambda x: type(x)(1) / (x + type(x)(EPSILON)),
    Op.LOG: lambda x: np.sign(x) * np.log(np.abs(x) + type(x)(EPSILON)),
    Op.EXP: np.exp,
    Op.TANH: np.tanh,
    Op.SQRT: lambda x: np.sign(x) * np.sqrt(np.abs(x) + type(x)(EPSILON)),
}
"""Constants are folded in both precisions: 1 + ε is 1 in one of them only."""

_FORWARD: dict[str, Callable[..., Scaled]] = {
    "add": _Recorder.add,
    "mul": _Recorder.multiply,
    "neg": lambda self, x: self.scaled(x, Scaled(None, -1.0, -1.0)),
    "abs": lambda self, x: self.unary(Op.ABS, x),
    "inv": lambda self, x: self.unary(Op.INV, x),
    "log": lambda self, x: self.unary(Op.LOG, x),
    "exp": lambda self, x: self.unary(Op.EXP, x),
    "tanh": lambda self, x: self.unary(Op.TANH, x),
    "square": lambda self, x: self.multiply(x, x),
    "sqrt": lambda self, x: self.unary(Op.SQRT, x),
    "mean_nhw": lambda self, x: self.mean(x, POSITION),
    "mean_c": lambda self, x: self.mean(x, CHANNEL),
    "max_pool": lambda self, x: self.pool(x),
    "min_pool": lambda self, x: self.scaled(
        self.pool(self.scaled(x, Scaled(None, -1.0, -1.0))), Scaled(None, -1.0, -1.0)
    ),
}
COMPILED = frozenset(_FORWARD)
"""The operators that the engine knows; a tree with any other runs in the reference."""
